//! What survives a restart: the start counter and known addresses. One process owns the folder.
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const MAX_ADDRESSES: usize = 4096;

/// Why the state folder cannot be used.
#[derive(Debug)]
pub enum StateError {
    /// Another process has it.
    Locked {
        /// The folder.
        path: PathBuf,
        /// The process, as it wrote itself down.
        pid: String,
    },
    /// It cannot be read or written.
    Io(PathBuf, io::Error),
    /// The start counter is not a number.
    Corrupt(PathBuf),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked { path, pid } => write!(f, "process {pid} uses {}", path.display()),
            Self::Io(path, error) => write!(f, "cannot use {}: {error}", path.display()),
            Self::Corrupt(path) => write!(f, "{} holds no start counter", path.display()),
        }
    }
}

/// A locked state folder.
pub(crate) struct StateDir {
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let io = |error| StateError::Io(path.to_owned(), error);
        fs::create_dir_all(path).map_err(io)?;
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path.join("lock"))
            .map_err(io)?;
        // SAFETY: flock takes any open descriptor, and `lock` is open.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let mut pid = String::new();
            let _ = (&mut lock).take(32).read_to_string(&mut pid);
            return Err(StateError::Locked {
                path: path.to_owned(),
                pid: pid.trim().to_owned(),
            });
        }
        lock.set_len(0).map_err(io)?;
        writeln!(lock, "{}", std::process::id()).map_err(io)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// The next epoch, written down.
    pub(crate) fn next_epoch(&self) -> Result<u32, StateError> {
        let file = self.path.join("epoch");
        let epoch = match fs::read_to_string(&file) {
            Ok(text) => text
                .trim()
                .parse::<u32>()
                .map_err(|_| StateError::Corrupt(file))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(StateError::Io(file, error)),
        };
        let next = epoch.saturating_add(1);
        self.write_epoch(next)?;
        Ok(next)
    }

    pub(crate) fn write_epoch(&self, epoch: u32) -> Result<(), StateError> {
        self.write("epoch", &format!("{epoch}\n"))
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let text = fs::read_to_string(self.path.join("addresses")).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.parse().ok())
            .take(MAX_ADDRESSES)
            .collect()
    }

    pub(crate) fn write_addresses(&self, addresses: &[SocketAddr]) -> Result<(), StateError> {
        let text: String = addresses
            .iter()
            .take(MAX_ADDRESSES)
            .map(|a| format!("{a}\n"))
            .collect();
        self.write("addresses", &text)
    }

    /// Replaces a file as a whole, durable when it returns.
    fn write(&self, name: &str, text: &str) -> Result<(), StateError> {
        let (target, temporary) = (self.path.join(name), self.path.join(format!("{name}.new")));
        let write = || -> io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &target)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|error| StateError::Io(target.clone(), error))
    }
}
