//! The index as one file.
//!
//! A head with a table of sections, then the sections without gaps. The head carries a checksum of itself and the
//! table one of each section (CRC-64/XZ, which finds every flip of up to several bits), so no byte of the file can
//! change unnoticed. A file is read whole and checked whole before anything of it is used; lengths are compared
//! with what is there before memory is asked for. A file is written beside its place and renamed over it.
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::BrokerError;
use super::index::{Config, SemanticIndex, Writer};
use super::memory::MAX_SLOTS;
use super::planner::Costs;
use super::store::{Metric, Rerank};

const MAGIC: &[u8; 8] = b"PANDAIDX";
const FORMAT: u32 = 1;
const HEAD: usize = 8 + 4 + 4;
const ENTRY: usize = 4 + 4 + 8 + 8;

/// Sections, in the order of the file.
const SECTIONS: usize = 7;
const META: usize = 0;
const PRESENT: usize = 1;
const LABELS: usize = 2;
const FLAGS: usize = 3;
const CODES: usize = 4;
const TAILS: usize = 5;
const LINKS: usize = 6;

/// Tables for eight bytes at a time.
const TABLES: [[u64; 256]; 8] = {
    let mut tables = [[0u64; 256]; 8];
    let mut at = 0;
    while at < 256 {
        let mut value = at as u64;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 != 0 {
                value >> 1 ^ 0xC96C_5795_D787_0F42
            } else {
                value >> 1
            };
            bit += 1;
        }
        tables[0][at] = value;
        at += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut at = 0;
        while at < 256 {
            let before = tables[table - 1][at];
            tables[table][at] = tables[0][(before & 0xFF) as usize] ^ before >> 8;
            at += 1;
        }
        table += 1;
    }
    tables
};

/// CRC-64/XZ.
fn checksum(bytes: &[u8]) -> u64 {
    let mut crc = u64::MAX;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        crc ^= u64::from_le_bytes(*word);
        let mut next = 0;
        for (byte, table) in TABLES.iter().rev().enumerate() {
            next ^= table[(crc >> (8 * byte)) as usize & 0xFF];
        }
        crc = next;
    }
    for &byte in rest {
        crc = TABLES[0][(crc as u8 ^ byte) as usize] ^ crc >> 8;
    }
    !crc
}

/// Reads numbers off the front of a section.
struct Cursor<'b>(&'b [u8]);

impl<'b> Cursor<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], String> {
        let (head, rest) = self
            .0
            .split_at_checked(count)
            .ok_or("a section is shorter than its content")?;
        self.0 = rest;
        Ok(head)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| "short")?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| "short")?))
    }

    fn text(&mut self) -> Result<String, String> {
        let len = self.u32()? as usize;
        String::from_utf8(self.take(len)?.to_vec()).map_err(|_| "a name is not UTF-8".into())
    }

    fn end(&self) -> Result<(), String> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err("a section is longer than its content".into())
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

impl SemanticIndex {
    /// Writes the index to `path`, replacing what is there only when all of the new file is on the disk. Removed
    /// vectors are taken out of the graph first. Searches go on; writes wait.
    ///
    /// # Errors
    /// [`BrokerError::File`] with the system's words; the old file is then untouched.
    pub fn save(&self, path: &Path) -> Result<(), BrokerError> {
        let writer = self.consolidated()?;
        let sections = self.sections();
        drop(writer);
        let refused = |error: std::io::Error| BrokerError::File {
            path: path.into(),
            why: error.to_string(),
        };
        let name = path.file_name().ok_or_else(|| BrokerError::File {
            path: path.into(),
            why: "the path names no file".into(),
        })?;
        let mut beside = std::ffi::OsString::from(".");
        beside.push(name);
        // Two threads may save to one place; the last to finish wins.
        static SAVES: AtomicU64 = AtomicU64::new(0);
        beside.push(format!(
            ".{}-{}.new",
            std::process::id(),
            SAVES.fetch_add(1, Ordering::Relaxed)
        ));
        let beside = path.with_file_name(beside);
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(&beside)?;
            file.write_all(&head(&sections))?;
            for section in &sections {
                file.write_all(section)?;
            }
            file.sync_all()?;
            drop(file);
            std::fs::rename(&beside, path)?;
            // The rename itself must survive a power cut, where directories can be synchronised.
            if let Some(folder) = path.parent() {
                let folder = if folder.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    folder
                };
                if let Ok(folder) = File::open(folder) {
                    let _ = folder.sync_all();
                }
            }
            Ok(())
        })();
        written.map_err(|error| {
            let _ = std::fs::remove_file(&beside);
            refused(error)
        })
    }

    fn sections(&self) -> [Vec<u8>; SECTIONS] {
        let slots = self.store.slots();
        let live: Vec<u32> = (0..slots as u32)
            .filter(|&slot| self.store.present(slot) && !self.store.dead(slot))
            .collect();
        let Config {
            dim,
            metric,
            rerank,
            m,
            ef_construction,
            flags,
            model,
            seed,
            consolidate_at,
        } = &self.config;
        let mut sections: [Vec<u8>; SECTIONS] = Default::default();
        let meta = &mut sections[META];
        for number in [*dim, *m, *ef_construction, slots, live.len()] {
            meta.extend((number as u64).to_le_bytes());
        }
        meta.extend(seed.to_le_bytes());
        meta.extend(self.version().to_le_bytes());
        meta.extend(self.graph.packed_entry().to_le_bytes());
        meta.extend(consolidate_at.to_le_bytes());
        meta.push(match metric {
            Metric::Cosine => 0,
            Metric::InnerProduct => 1,
        });
        meta.push(match rerank {
            Rerank::F32 => 0,
            Rerank::Bf16 => 1,
            Rerank::Int16 => 2,
            Rerank::None => 3,
        });
        put_text(meta, model);
        meta.extend((flags.len() as u32).to_le_bytes());
        flags.iter().for_each(|flag| put_text(meta, flag));
        let mut present = vec![0u64; slots.div_ceil(64)];
        live.iter()
            .for_each(|&slot| present[slot as usize / 64] |= 1 << (slot % 64));
        present
            .iter()
            .for_each(|word| sections[PRESENT].extend(word.to_le_bytes()));
        for &slot in &live {
            sections[LABELS].extend(self.store.label(slot).to_le_bytes());
            sections[FLAGS].extend(self.store.flags_of(slot).to_le_bytes());
            let (codes, tail, norm) = self.store.parts(slot);
            sections[CODES].extend(codes);
            sections[TAILS].extend(norm.to_le_bytes());
            sections[TAILS].extend(tail);
            self.graph.write_rows(slot, &mut sections[LINKS]);
        }
        sections
    }

    /// Reads an index that [`save`](Self::save) has written.
    ///
    /// # Errors
    /// [`BrokerError::Corrupt`] unless every byte is as it was written; [`BrokerError::Dimension`] and
    /// [`BrokerError::Model`] if the file holds other vectors than the caller expects; [`BrokerError::File`] if it
    /// cannot be read.
    pub fn load(
        path: &Path,
        dim: Option<usize>,
        model: Option<&str>,
        costs: Costs,
    ) -> Result<Self, BrokerError> {
        let bytes = read(path)?;
        let corrupt = |why: String| BrokerError::Corrupt {
            path: path.into(),
            why,
        };
        let sections = split(&bytes).map_err(corrupt)?;
        let (config, shape) = meta(sections[META]).map_err(corrupt)?;
        if let Some(got) = dim.filter(|&dim| dim != config.dim) {
            return Err(BrokerError::Dimension {
                expected: config.dim,
                got,
                model: config.model,
            });
        }
        if let Some(expected) = model.filter(|&model| model != config.model) {
            return Err(BrokerError::Model {
                expected: expected.into(),
                got: config.model,
            });
        }
        let index = Self::new(config, costs).map_err(|error| corrupt(error.to_string()))?;
        index.fill(&sections, &shape).map_err(corrupt)?;
        Ok(index)
    }

    fn fill(&self, sections: &[&[u8]; SECTIONS], shape: &Shape) -> Result<(), String> {
        let Shape {
            slots,
            live,
            version,
            entry,
        } = *shape;
        let tail = self.config.rerank.bytes(self.store.width);
        let wanted = [
            (PRESENT, slots.div_ceil(64) * 8),
            (LABELS, live * 8),
            (FLAGS, live * 4),
            (CODES, live * self.store.width),
            (TAILS, live * (4 + tail)),
        ];
        for (section, len) in wanted {
            if sections[section].len() != len {
                return Err(format!(
                    "section {section} has {} bytes, not {len}",
                    sections[section].len()
                ));
            }
        }
        let present: Vec<u64> = sections[PRESENT]
            .as_chunks::<8>()
            .0
            .iter()
            .map(|&word| u64::from_le_bytes(word))
            .collect();
        let is_present = |slot: u32| {
            present
                .get(slot as usize / 64)
                .is_some_and(|word| word >> (slot % 64) & 1 != 0)
        };
        let all: Vec<u32> = (0..present.len() as u32 * 64)
            .filter(|&slot| is_present(slot))
            .collect();
        if all.len() != live || all.last().is_some_and(|&last| last as usize >= slots) {
            return Err("the number of vectors contradicts their bitmap".into());
        }
        let mut labels: Vec<u64> = sections[LABELS]
            .as_chunks::<8>()
            .0
            .iter()
            .map(|&label| u64::from_le_bytes(label))
            .collect();
        let flags = sections[FLAGS].as_chunks::<4>().0;
        self.store.ensure(slots).map_err(|error| error.to_string())?;
        self.graph.ensure(0, slots);
        let width = self.store.width;
        for (at, &slot) in all.iter().enumerate() {
            let (norm, tail) = sections[TAILS][at * (4 + tail)..][..4 + tail].split_at(4);
            let norm = f32::from_le_bytes(norm.try_into().map_err(|_| "short")?);
            if !norm.is_finite() || norm <= 0.0 {
                return Err("a norm is not positive".into());
            }
            let codes = &sections[CODES][at * width..][..width];
            if codes.contains(&0) {
                return Err("a code is out of range".into());
            }
            // SAFETY: the index is not shared yet.
            unsafe { self.store.write_parts(slot as usize, codes, tail, norm) };
            self.store.set_label(slot, labels[at]);
            self.store.set_born(slot, version);
            self.store.set_present(slot, true);
            let flags = u32::from_le_bytes(flags[at]);
            (0..self.store.flag_count())
                .for_each(|flag| self.store.set_flag(flag, slot, flags >> flag & 1 != 0));
        }
        labels.sort_unstable();
        if labels.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("an id occurs twice".into());
        }
        self.store.set_slots(slots);
        let mut links = Cursor(sections[LINKS]);
        for &slot in &all {
            self.graph.read_rows(slot, || links.u32(), is_present)?;
        }
        links.end()?;
        self.graph.set_packed_entry(&self.store, entry, is_present)?;
        if (entry == 0) != (live == 0) {
            return Err("the entry of the graph is missing".into());
        }
        self.set_version(version);
        let free = (0..slots as u32).filter(|&slot| !is_present(slot)).collect();
        let mut writer = self.write_lock().map_err(|error| error.to_string())?;
        let writer: &mut Writer = &mut writer;
        self.restore(slots, free, writer);
        Ok(())
    }
}

/// Sizes that the meta section states.
struct Shape {
    slots: usize,
    live: usize,
    version: u64,
    entry: u64,
}

fn meta(section: &[u8]) -> Result<(Config, Shape), String> {
    let mut cursor = Cursor(section);
    let mut numbers = [0usize; 5];
    for number in &mut numbers {
        *number = usize::try_from(cursor.u64()?).map_err(|_| "a size is too large")?;
    }
    let [dim, m, ef_construction, slots, live] = numbers;
    let seed = cursor.u64()?;
    let (version, entry) = (cursor.u64()?, cursor.u64()?);
    let consolidate_at = f32::from_bits(cursor.u32()?);
    let metric = match cursor.take(1)?[0] {
        0 => Metric::Cosine,
        1 => Metric::InnerProduct,
        other => return Err(format!("metric {other} is unknown")),
    };
    let rerank = match cursor.take(1)?[0] {
        0 => Rerank::F32,
        1 => Rerank::Bf16,
        2 => Rerank::Int16,
        3 => Rerank::None,
        other => return Err(format!("rerank kind {other} is unknown")),
    };
    let model = cursor.text()?;
    let count = cursor.u32()? as usize;
    if count > super::index::MAX_FLAGS {
        return Err(format!("there are {count} flags"));
    }
    let flags = (0..count)
        .map(|_| cursor.text())
        .collect::<Result<Vec<String>, String>>()?;
    cursor.end()?;
    if slots > MAX_SLOTS || live > slots {
        return Err(format!("{live} vectors in {slots} slots"));
    }
    if version == u64::MAX {
        return Err("the version is out of range".into());
    }
    let config = Config {
        dim,
        metric,
        rerank,
        m,
        ef_construction,
        flags,
        model,
        seed,
        consolidate_at,
    };
    Ok((
        config,
        Shape {
            slots,
            live,
            version,
            entry,
        },
    ))
}

fn head(sections: &[Vec<u8>; SECTIONS]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD + SECTIONS * ENTRY + 8);
    head.extend(MAGIC);
    head.extend(FORMAT.to_le_bytes());
    head.extend((SECTIONS as u32).to_le_bytes());
    for (at, section) in sections.iter().enumerate() {
        head.extend((at as u32).to_le_bytes());
        head.extend(0u32.to_le_bytes());
        head.extend((section.len() as u64).to_le_bytes());
        head.extend(checksum(section).to_le_bytes());
    }
    head.extend(checksum(&head).to_le_bytes());
    head
}

/// The whole file. A directory, or what is no regular file, is refused before it is read.
fn read(path: &Path) -> Result<Vec<u8>, BrokerError> {
    let refused = |why: String| BrokerError::File {
        path: path.into(),
        why,
    };
    let mut file = File::open(path).map_err(|error| refused(error.to_string()))?;
    let facts = file.metadata().map_err(|error| refused(error.to_string()))?;
    if !facts.is_file() {
        return Err(refused("this is not a regular file".into()));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(facts.len()).unwrap_or(0));
    file.read_to_end(&mut bytes)
        .map_err(|error| refused(error.to_string()))?;
    Ok(bytes)
}

/// The sections of a file whose every checksum holds.
fn split(bytes: &[u8]) -> Result<[&[u8]; SECTIONS], String> {
    let mut cursor = Cursor(bytes);
    let cut = |_| String::from("the file is cut off or empty");
    if cursor.take(8).map_err(cut)? != MAGIC {
        return Err("this is not an index file".into());
    }
    let format = cursor.u32().map_err(cut)?;
    if format != FORMAT {
        return Err(format!("the format is {format}; this version reads {FORMAT}"));
    }
    if cursor.u32().map_err(cut)? as usize != SECTIONS {
        return Err("the number of sections is wrong".into());
    }
    let table = cursor.take(SECTIONS * ENTRY).map_err(cut)?;
    if cursor.u64().map_err(cut)? != checksum(&bytes[..HEAD + SECTIONS * ENTRY]) {
        return Err("the checksum of the head does not match".into());
    }
    let mut sections: [&[u8]; SECTIONS] = [&[]; SECTIONS];
    let mut table = Cursor(table);
    for (at, section) in sections.iter_mut().enumerate() {
        if table.u32()? as usize != at || table.u32()? != 0 {
            return Err("the table of sections is out of order".into());
        }
        let len = usize::try_from(table.u64()?).map_err(|_| "a section is too long")?;
        let sum = table.u64()?;
        *section = cursor.take(len).map_err(cut)?;
        if checksum(section) != sum {
            return Err(format!("the checksum of section {at} does not match"));
        }
    }
    if !cursor.0.is_empty() {
        return Err("there are bytes behind the last section".into());
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_crc_64_xz() {
        assert_eq!(checksum(b"123456789"), 0x995D_C9BB_DF19_39FA);
        assert_eq!(checksum(b""), 0);
    }
}
