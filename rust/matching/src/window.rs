//! Scanning windows of signatures, several words at a time.
//!
//! Signatures are hints: every candidate found here is checked on its line. So a window is first copied as a block,
//! which is much faster than word by word, and a word that changes meanwhile may come out either way.
use std::sync::atomic::AtomicU64;

/// The longest window, in signatures.
pub(crate) const WINDOW: usize = 1_024;
/// Candidates returned per window.
pub(crate) const FOUND: usize = 12;
const CHUNK: usize = 64;
/// Words counted together; divides [`WINDOW`].
const LINE: usize = 8;

/// Reusable memory of one scan.
#[derive(Debug)]
pub(crate) struct Window {
    words: Box<[u64; WINDOW]>,
    counts: Box<[u8; WINDOW]>,
    pub(crate) found: [u16; FOUND],
    /// How many of the wanted groups the best places have, and how many of those found have so many.
    pub(crate) top: (u32, usize),
}

impl Default for Window {
    fn default() -> Self {
        Self {
            words: Box::new([0; WINDOW]),
            counts: Box::new([0; WINDOW]),
            found: [0; FOUND],
            top: (0, 0),
        }
    }
}

impl Window {
    /// Finds the places that have the most of the `wanted` groups of bits, starting the search at `turn`; fills
    /// `found`, returns how many.
    pub(crate) fn most(
        &mut self,
        signatures: &[AtomicU64],
        wanted: impl Iterator<Item = u64>,
        turn: usize,
    ) -> usize {
        let n = signatures.len().min(WINDOW);
        copy(&signatures[..n], &mut self.words[..n]);
        // Groups of one bit are counted all at once.
        let mut single = 0;
        let mut groups = [0; 64];
        let mut used = 0;
        for bits in wanted {
            match bits.count_ones() {
                0 => {}
                1 => single |= bits,
                _ => {
                    groups[used] = bits;
                    used += 1;
                }
            }
        }
        let groups = &groups[..used];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx512vpopcntdq")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512vl")
            {
                // SAFETY: the features were detected.
                return unsafe { self.most_avx512(n, single, groups, turn) };
            }
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("popcnt") {
                // SAFETY: the features were detected.
                return unsafe { self.most_avx2(n, single, groups, turn) };
            }
        }
        self.most_anywhere(n, single, groups, turn)
    }

    /// Finds places with all `wanted` bits from the start on; fills `found`, returns how many.
    pub(crate) fn all(&mut self, signatures: &[AtomicU64], wanted: u64) -> usize {
        let n = signatures.len().min(WINDOW);
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was detected.
            return unsafe { self.all_avx2(&signatures[..n], wanted) };
        }
        self.all_anywhere(&signatures[..n], wanted)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vpopcntdq,popcnt")]
    fn most_avx512(&mut self, n: usize, single: u64, groups: &[u64], turn: usize) -> usize {
        self.most_anywhere(n, single, groups, turn)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn most_avx2(&mut self, n: usize, single: u64, groups: &[u64], turn: usize) -> usize {
        self.most_anywhere(n, single, groups, turn)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn all_avx2(&mut self, signatures: &[AtomicU64], wanted: u64) -> usize {
        self.all_anywhere(signatures, wanted)
    }

    #[inline(always)]
    fn most_anywhere(&mut self, n: usize, single: u64, groups: &[u64], turn: usize) -> usize {
        // Whole lines: what lies behind the end is not looked at.
        let padded = n.next_multiple_of(LINE);
        let (words, _) = self.words[..padded].as_chunks::<LINE>();
        let (lines, _) = self.counts[..padded].as_chunks_mut::<LINE>();
        for (words, counts) in words.iter().zip(lines) {
            let mut sums = words.map(|word| u64::from((word & single).count_ones()));
            for &group in groups {
                for (sum, word) in sums.iter_mut().zip(words) {
                    *sum += u64::from(word & group == group);
                }
            }
            *counts = sums.map(|sum| sum as u8);
        }
        let counts = &self.counts[..n];
        let mut top = 0;
        for &count in counts {
            top = top.max(count);
        }
        let chunks = n.div_ceil(CHUNK);
        let first = (turn / CHUNK).min(chunks.saturating_sub(1));
        let mut found = 0;
        self.top = (u32::from(top), 0);
        // One level below the top is worth a look: shared bits promise more than is there.
        for level in (top.saturating_sub(1).max(1)..=top).rev() {
            for k in 0..chunks {
                let k = if first + k >= chunks {
                    first + k - chunks
                } else {
                    first + k
                };
                let chunk = &counts[k * CHUNK..n.min((k + 1) * CHUNK)];
                let mut any = false;
                for &count in chunk {
                    any |= count == level;
                }
                if !any {
                    continue;
                }
                for (j, &count) in chunk.iter().enumerate() {
                    if count == level {
                        self.found[found] = (k * CHUNK + j) as u16;
                        found += 1;
                        self.top.1 += usize::from(level == top);
                        if found == FOUND {
                            return found;
                        }
                    }
                }
            }
        }
        found
    }

    #[inline(always)]
    fn all_anywhere(&mut self, signatures: &[AtomicU64], wanted: u64) -> usize {
        let mut found = 0;
        for (k, part) in signatures.chunks(512).enumerate() {
            let words = &mut self.words[..part.len()];
            copy(part, words);
            for (c, chunk) in words.chunks(CHUNK).enumerate() {
                let mut any = false;
                for word in chunk {
                    any |= word & wanted == wanted;
                }
                if !any {
                    continue;
                }
                for (j, word) in chunk.iter().enumerate() {
                    if word & wanted == wanted {
                        self.found[found] = (k * 512 + c * CHUNK + j) as u16;
                        found += 1;
                        if found == FOUND {
                            return found;
                        }
                    }
                }
            }
        }
        found
    }
}

/// Copies words that another thread may be writing.
#[inline(always)]
fn copy(from: &[AtomicU64], to: &mut [u64]) {
    let n = from.len().min(to.len());
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: both ranges have `n` words and do not overlap (`to` is exclusive). The source may change meanwhile;
    // the copy is made by the processor, outside the language's memory model, and any bytes are a valid u64.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") n => _,
            inout("rsi") from.as_ptr() => _,
            inout("rdi") to.as_mut_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    for (from, to) in from.iter().zip(&mut to[..n]) {
        *to = from.load(std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn every_variant_finds_the_same_places() {
        let mut rng = Rng::new(5);
        for n in [0, 1, 7, 64, 65, 511, 513, 4_000, 4_096, 5_000] {
            let signatures: Vec<AtomicU64> = (0..n)
                .map(|_| AtomicU64::new(rng.next_u64() & rng.next_u64() & rng.next_u64()))
                .collect();
            for wanted in [0, 1, 0xFF, 0x8000_0000_0001_0101, u64::MAX] {
                let turn = rng.below(n.max(1) as u32) as usize;
                let (mut fast, mut slow) = (Window::default(), Window::default());
                let len = n.min(WINDOW);
                // Every bit by itself, but the lowest three only together.
                let groups = [wanted & 7, 0];
                let parts = (3..64).map(|bit| wanted & 1 << bit).chain(groups);
                let found = fast.most(&signatures, parts, turn);
                copy(&signatures[..len], &mut slow.words[..len]);
                let (single, together) = match groups[0].count_ones() {
                    0 | 1 => (wanted, &groups[..0]),
                    _ => (wanted & !7, &groups[..1]),
                };
                assert_eq!(slow.most_anywhere(len, single, together, turn), found);
                assert_eq!(slow.found[..found], fast.found[..found]);
                assert_eq!(slow.top, fast.top);
                let value = |k: usize| {
                    let word = signatures[k].load(std::sync::atomic::Ordering::Relaxed);
                    let together = together.iter().filter(|&&group| word & group == group).count();
                    (word & single).count_ones() + together as u32
                };
                let top = (0..len).map(value).max().unwrap_or(0);
                assert_eq!(fast.top.0, top);
                assert_eq!(found > 0, top > 0);
                for (at, &k) in fast.found[..found].iter().enumerate() {
                    let expected = if at < fast.top.1 { top } else { top - 1 };
                    assert_eq!(value(k as usize), expected);
                }
                let all = fast.all(&signatures, wanted);
                let holds =
                    |k: &usize| signatures[*k].load(std::sync::atomic::Ordering::Relaxed) & wanted == wanted;
                let expected: Vec<u16> = (0..len).filter(holds).take(FOUND).map(|k| k as u16).collect();
                assert_eq!(fast.found[..all], expected[..]);
            }
        }
    }
}
