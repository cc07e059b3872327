//! Scanning windows of signatures, several words at a time.
//!
//! Signatures are hints: every candidate found here is checked on its line. So a window is first copied as a block,
//! which is much faster than word by word, and a word that changes meanwhile may come out either way.
use std::sync::atomic::AtomicU64;

/// The longest window, in signatures.
pub(crate) const WINDOW: usize = 3_072;
/// Candidates returned per window.
pub(crate) const FOUND: usize = 12;
const CHUNK: usize = 64;

/// Reusable memory of one scan.
#[derive(Debug)]
pub(crate) struct Window {
    words: Box<[u64; WINDOW]>,
    counts: Box<[u8; WINDOW]>,
    pub(crate) found: [u16; FOUND],
}

impl Default for Window {
    fn default() -> Self {
        Self {
            words: Box::new([0; WINDOW]),
            counts: Box::new([0; WINDOW]),
            found: [0; FOUND],
        }
    }
}

impl Window {
    /// Finds the places with the most `wanted` bits, starting the search at `turn`; fills `found`, returns how many.
    pub(crate) fn most(&mut self, signatures: &[AtomicU64], wanted: u64, turn: usize) -> usize {
        let n = signatures.len().min(WINDOW);
        copy(&signatures[..n], &mut self.words[..n]);
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx512vpopcntdq")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512vl")
            {
                // SAFETY: the features were detected.
                return unsafe { self.most_avx512(n, wanted, turn) };
            }
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("popcnt") {
                // SAFETY: the features were detected.
                return unsafe { self.most_avx2(n, wanted, turn) };
            }
        }
        self.most_anywhere(n, wanted, turn)
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
    fn most_avx512(&mut self, n: usize, wanted: u64, turn: usize) -> usize {
        self.most_anywhere(n, wanted, turn)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn most_avx2(&mut self, n: usize, wanted: u64, turn: usize) -> usize {
        self.most_anywhere(n, wanted, turn)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn all_avx2(&mut self, signatures: &[AtomicU64], wanted: u64) -> usize {
        self.all_anywhere(signatures, wanted)
    }

    #[inline(always)]
    fn most_anywhere(&mut self, n: usize, wanted: u64, turn: usize) -> usize {
        let counts = &mut self.counts[..n];
        for (word, count) in self.words[..n].iter().zip(&mut *counts) {
            *count = (word & wanted).count_ones() as u8;
        }
        let mut top = 0;
        for &count in &*counts {
            top = top.max(count);
        }
        let chunks = n.div_ceil(CHUNK);
        let first = (turn / CHUNK).min(chunks.saturating_sub(1));
        let mut found = 0;
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
                let found = fast.most(&signatures, wanted, turn);
                let len = n.min(WINDOW);
                copy(&signatures[..len], &mut slow.words[..len]);
                assert_eq!(slow.most_anywhere(len, wanted, turn), found);
                assert_eq!(slow.found[..found], fast.found[..found]);
                let value = |k: usize| {
                    (signatures[k].load(std::sync::atomic::Ordering::Relaxed) & wanted).count_ones()
                };
                let top = (0..len).map(value).max().unwrap_or(0);
                if top > 0 {
                    assert_eq!(value(fast.found[0] as usize), top);
                } else {
                    assert_eq!(found, 0);
                }
                let all = fast.all(&signatures, wanted);
                let holds = |k: &usize| value(*k) == wanted.count_ones();
                let expected: Vec<u16> = (0..len).filter(holds).take(FOUND).map(|k| k as u16).collect();
                assert_eq!(fast.found[..all], expected[..]);
            }
        }
    }
}
