//! Snapshots: everything a registry knows in one block of bytes, each part with a checksum.
//!
//! Layout, little-endian: magic, then five sections (settings, names, agents, postings, tombstones), each as length
//! (u64), payload, checksum (u64). Nothing is allocated before the length it depends on was checked against the bytes
//! that are there, and nothing is used before its checksum held.
use std::sync::atomic::Ordering;

use crate::bulk::Batch;
use crate::error::RegistryError;
use crate::registry::{Config, Registry};
use crate::rng::mix;
use crate::store::{ALIVE, DRAINING, PRESENT, TRUSTED};

const MAGIC: &[u8; 8] = b"PNDREG\x01\n";
const FIXED: usize = 32 + 8 + 2 + 2 + 2 + 1 + 1 + 2 + 1 + 1;

fn checksum(bytes: &[u8], section: u64) -> u64 {
    let mut state = mix(
        bytes.len() as u64 ^ 0x9E37_79B9_7F4A_7C15,
        section ^ 0xa076_1d64_78bd_642f,
    );
    let mut chunks = bytes.chunks_exact(16);
    for chunk in &mut chunks {
        let (low, high) = chunk.split_at(8);
        let low = u64::from_le_bytes(low.try_into().expect("eight bytes"));
        let high = u64::from_le_bytes(high.try_into().expect("eight bytes"));
        state = mix(low ^ 0xe703_7ed1_a0b4_28db, high ^ state) ^ state.rotate_left(23);
    }
    let mut tail = [0u8; 16];
    let rest = chunks.remainder();
    tail[..rest.len()].copy_from_slice(rest);
    let (low, high) = tail.split_at(8);
    let low = u64::from_le_bytes(low.try_into().expect("eight bytes"));
    let high = u64::from_le_bytes(high.try_into().expect("eight bytes"));
    mix(low ^ 0xe703_7ed1_a0b4_28db, high ^ state) ^ state.rotate_left(23)
}

fn section(out: &mut Vec<u8>, number: u64, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(&checksum(payload, number).to_le_bytes());
}

struct Reader<'b> {
    rest: &'b [u8],
    at: usize,
}

fn corrupt<T>(text: String) -> Result<T, RegistryError> {
    Err(RegistryError::Corrupt(text))
}

impl<'b> Reader<'b> {
    fn take(&mut self, n: usize) -> Result<&'b [u8], RegistryError> {
        if n > self.rest.len() {
            return corrupt(format!(
                "the snapshot is cut off: {n} bytes wanted at {}, {} left",
                self.at,
                self.rest.len()
            ));
        }
        let (head, tail) = self.rest.split_at(n);
        self.rest = tail;
        self.at += n;
        Ok(head)
    }

    fn u64(&mut self) -> Result<u64, RegistryError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn u32(&mut self) -> Result<u32, RegistryError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn section(&mut self, number: u64) -> Result<Self, RegistryError> {
        let at = self.at;
        let length = self.u64()?;
        let Ok(length) = usize::try_from(length) else {
            return corrupt(format!("section {number} at byte {at} claims {length} bytes"));
        };
        let payload = self.take(length)?;
        if self.u64()? != checksum(payload, number) {
            return corrupt(format!(
                "the checksum of section {number} at byte {at} does not match: the data is damaged"
            ));
        }
        Ok(Reader {
            rest: payload,
            at: at + 8,
        })
    }

    fn column<const N: usize, T>(
        &mut self,
        n: usize,
        read: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, RegistryError> {
        let bytes = match n.checked_mul(N) {
            Some(bytes) => self.take(bytes)?,
            None => return corrupt(format!("{n} rows cannot be")),
        };
        Ok(bytes
            .chunks_exact(N)
            .map(|b| read(b.try_into().expect("N bytes")))
            .collect())
    }
}

impl Registry {
    /// Everything in this registry, for [`restore`](Self::restore).
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let work = self.work();
        let slots = work.store.slots.load(Ordering::Relaxed);
        let (mut present, mut gone) = (Vec::new(), Vec::new());
        for slot in 0..slots {
            if work.is_present(slot) {
                present.push(slot);
            } else if work.find(&work.id(slot)) == Some(slot) {
                gone.push(slot);
            }
        }
        let n = present.len();
        let mut out = Vec::with_capacity(64 + n * (FIXED + 24) + gone.len() * 40);
        out.extend_from_slice(MAGIC);

        let mut part = Vec::new();
        part.extend_from_slice(&self.config.seed.to_le_bytes());
        part.push(u8::from(self.config.signatures));
        part.push(u8::from(self.config.trust_by_default));
        section(&mut out, 1, &part);

        part.clear();
        part.extend_from_slice(&(work.writer.vocabulary.len() as u32).to_le_bytes());
        for name in work.writer.vocabulary.names() {
            part.push(name.len() as u8);
            part.extend_from_slice(name.as_bytes());
        }
        section(&mut out, 2, &part);

        part.clear();
        part.reserve(8 + n * FIXED);
        part.extend_from_slice(&(n as u64).to_le_bytes());
        present.iter().for_each(|&s| part.extend_from_slice(&work.id(s)));
        present
            .iter()
            .for_each(|&s| part.extend_from_slice(&work.version(s).load(Ordering::Relaxed).to_le_bytes()));
        let mut postings = Vec::with_capacity(n * 20);
        present
            .iter()
            .for_each(|&s| part.extend_from_slice(&work.line(s).attributes().load.to_le_bytes()));
        present
            .iter()
            .for_each(|&s| part.extend_from_slice(&work.line(s).attributes().service.to_le_bytes()));
        present
            .iter()
            .for_each(|&s| part.extend_from_slice(&work.line(s).attributes().cost.to_le_bytes()));
        present
            .iter()
            .for_each(|&s| part.push(work.line(s).attributes().rtt));
        present
            .iter()
            .for_each(|&s| part.push(work.line(s).attributes().concurrency));
        present
            .iter()
            .for_each(|&s| part.extend_from_slice(&work.line(s).head().domain.to_le_bytes()));
        present
            .iter()
            .for_each(|&s| part.push(work.line(s).head().flags & !PRESENT));
        present.iter().for_each(|&s| part.push(work.line(s).head().held));
        section(&mut out, 3, &part);
        present.iter().for_each(|&s| {
            work.held(s)
                .for_each(|c| postings.extend_from_slice(&c.to_le_bytes()))
        });
        section(&mut out, 4, &postings);

        part.clear();
        part.extend_from_slice(&(gone.len() as u64).to_le_bytes());
        gone.iter().for_each(|&s| part.extend_from_slice(&work.id(s)));
        gone.iter()
            .for_each(|&s| part.extend_from_slice(&work.version(s).load(Ordering::Relaxed).to_le_bytes()));
        section(&mut out, 5, &part);
        out
    }

    /// A registry equal to the one that `bytes` was taken of. Slots may differ.
    ///
    /// # Errors
    /// [`RegistryError::Corrupt`] for anything but an undamaged snapshot.
    pub fn restore(bytes: &[u8]) -> Result<Self, RegistryError> {
        let mut reader = Reader { rest: bytes, at: 0 };
        if reader.take(MAGIC.len()).ok() != Some(MAGIC) {
            return corrupt("this is no registry snapshot, or one of another version".into());
        }
        let mut settings = reader.section(1)?;
        let seed = settings.u64()?;
        let flags = settings.take(2)?;
        let registry = Self::new(Config {
            seed,
            signatures: flags[0] == 1,
            trust_by_default: flags[1] == 1,
        });

        let mut names = reader.section(2)?;
        for handle in 0..names.u32()? {
            let length = usize::from(names.take(1)?[0]);
            let name = std::str::from_utf8(names.take(length)?);
            let Ok(name) = name else {
                return corrupt(format!("name {handle} is not UTF-8"));
            };
            if registry.intern(name) != Ok(handle) {
                return corrupt(format!("name {handle}, {name:?}, is malformed or out of order"));
            }
        }

        let mut agents = reader.section(3)?;
        let n = agents.u64()?;
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let ids = agents.column(n, |b: [u8; 32]| b)?;
        let versions = agents.column(n, u64::from_le_bytes)?;
        let loads = agents.column(n, u16::from_le_bytes)?;
        let services = agents.column(n, u16::from_le_bytes)?;
        let costs = agents.column(n, u16::from_le_bytes)?;
        let rtts = agents.column(n, |b: [u8; 1]| b[0])?;
        let concurrency = agents.column(n, |b: [u8; 1]| b[0])?;
        let domains = agents.column(n, u16::from_le_bytes)?;
        let flags = agents.column(n, |b: [u8; 1]| b[0])?;
        let held = agents.column(n, |b: [u8; 1]| b[0])?;
        let postings = reader.section(4)?.rest;
        let capabilities: Vec<u32> = postings
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
            .collect();
        let mut offsets = Vec::with_capacity(n + 1);
        let mut end = 0i64;
        offsets.push(0);
        for &count in &held {
            end += i64::from(count);
            offsets.push(end);
        }
        let alive: Vec<bool> = flags.iter().map(|f| f & ALIVE != 0).collect();
        let trusted: Vec<bool> = flags.iter().map(|f| f & TRUSTED != 0).collect();
        let batch = Batch {
            ids: &ids,
            offsets: &offsets,
            capabilities: &capabilities,
            versions: Some(&versions),
            loads: Some(&loads),
            domains: Some(&domains),
            costs: Some(&costs),
            services: Some(&services),
            rtts: Some(&rtts),
            concurrency: Some(&concurrency),
            alive: Some(&alive),
            trusted: Some(&trusted),
        };
        let slots = match registry.announce_many(&batch) {
            Ok(slots) => slots,
            Err(error) => return corrupt(format!("the agents contradict themselves: {error}")),
        };
        for (slot, flags) in slots.iter().zip(&flags) {
            if flags & DRAINING != 0 {
                registry.set_flags(*slot, DRAINING, true)?;
            }
        }
        let mut gone = reader.section(5)?;
        let n = usize::try_from(gone.u64()?).unwrap_or(usize::MAX);
        let ids = gone.column(n, |b: [u8; 32]| b)?;
        let versions = gone.column(n, u64::from_le_bytes)?;
        for (id, version) in ids.iter().zip(versions) {
            registry.withdraw(id, Some(version))?;
        }
        if !reader.rest.is_empty() {
            return corrupt(format!(
                "{} bytes follow the end of the snapshot",
                reader.rest.len()
            ));
        }
        Ok(registry)
    }
}
