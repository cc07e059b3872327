//! Scanning windows of signatures, several words at a time.
//!
//! Signatures are hints: every candidate found here is checked on its line. So a window is read in blocks, which is much
//! faster than word by word, and a word that changes meanwhile may come out either way.
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest window, in signatures.
pub(crate) const WINDOW: usize = 512;
/// Candidates returned per window.
pub(crate) const FOUND: usize = 8;
/// Places compared at once; divides [`WINDOW`].
const CHUNK: usize = 64;
/// Words counted together; divides [`CHUNK`].
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

/// What is looked for: single bits, which are counted all at once, and groups of several.
struct Wanted {
    single: u64,
    groups: [u64; 64],
    used: usize,
}

impl Wanted {
    fn new(all: impl Iterator<Item = u64>) -> Self {
        let mut wanted = Self {
            single: 0,
            groups: [0; 64],
            used: 0,
        };
        for bits in all {
            match bits.count_ones() {
                0 => {}
                1 => wanted.single |= bits,
                _ => {
                    wanted.groups[wanted.used] = bits;
                    wanted.used += 1;
                }
            }
        }
        wanted
    }

    fn groups(&self) -> &[u64] {
        &self.groups[..self.used]
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
        let wanted = Wanted::new(wanted);
        let signatures = &signatures[..signatures.len().min(WINDOW)];
        #[cfg(target_arch = "x86_64")]
        {
            if avx512::usable() {
                // SAFETY: the features were detected.
                return unsafe { self.most_avx512(signatures, &wanted, turn) };
            }
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("popcnt") {
                // SAFETY: the features were detected.
                return unsafe { self.most_avx2(signatures, &wanted, turn) };
            }
        }
        self.most_anywhere(signatures, &wanted, turn)
    }

    /// Finds places with all `wanted` bits from the start on; fills `found`, returns how many.
    pub(crate) fn all(&mut self, signatures: &[AtomicU64], wanted: u64) -> usize {
        let signatures = &signatures[..signatures.len().min(WINDOW)];
        #[cfg(target_arch = "x86_64")]
        {
            if avx512::usable() {
                // SAFETY: the features were detected.
                return unsafe { self.all_avx512(signatures, wanted) };
            }
            if std::is_x86_feature_detected!("avx2") {
                // SAFETY: the feature was detected.
                return unsafe { self.all_avx2(signatures, wanted) };
            }
        }
        self.all_anywhere(signatures, wanted)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vpopcntdq")]
    fn most_avx512(&mut self, signatures: &[AtomicU64], wanted: &Wanted, turn: usize) -> usize {
        let top = avx512::count(signatures, wanted, &mut self.counts);
        self.pick(signatures.len(), top, turn, |chunk, level| {
            avx512::equal(chunk, level)
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn all_avx512(&mut self, signatures: &[AtomicU64], wanted: u64) -> usize {
        avx512::all(signatures, wanted, &mut self.found)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn most_avx2(&mut self, signatures: &[AtomicU64], wanted: &Wanted, turn: usize) -> usize {
        self.most_anywhere(signatures, wanted, turn)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn all_avx2(&mut self, signatures: &[AtomicU64], wanted: u64) -> usize {
        self.all_anywhere(signatures, wanted)
    }

    #[inline(always)]
    fn most_anywhere(&mut self, signatures: &[AtomicU64], wanted: &Wanted, turn: usize) -> usize {
        let n = signatures.len();
        copy(signatures, &mut self.words[..n]);
        // Whole lines: what lies behind the end does not count.
        let padded = n.next_multiple_of(LINE);
        let (words, _) = self.words[..padded].as_chunks::<LINE>();
        let (lines, _) = self.counts[..padded].as_chunks_mut::<LINE>();
        for (words, counts) in words.iter().zip(lines) {
            let mut sums = words.map(|word| u64::from((word & wanted.single).count_ones()));
            for &group in wanted.groups() {
                for (sum, word) in sums.iter_mut().zip(words) {
                    *sum += u64::from(word & group == group);
                }
            }
            *counts = sums.map(|sum| sum as u8);
        }
        self.counts[n..n.next_multiple_of(CHUNK)].fill(0);
        let top = self.counts[..n].iter().fold(0, |top, &count| top.max(count));
        self.pick(n, top, turn, |chunk, level| {
            let mut places = 0;
            if chunk.iter().fold(false, |any, &count| any | (count == level)) {
                for (k, &count) in chunk.iter().enumerate() {
                    places |= u64::from(count == level) << k;
                }
            }
            places
        })
    }

    /// The places whose count is `top`, then those one below: shared bits promise more than is there. `equal` tells
    /// which of some counts have a value.
    #[inline(always)]
    fn pick(&mut self, n: usize, top: u8, turn: usize, equal: impl Fn(&[u8; CHUNK], u8) -> u64) -> usize {
        let (chunks, _) = self.counts[..n.next_multiple_of(CHUNK)].as_chunks::<CHUNK>();
        let first = (turn / CHUNK).min(chunks.len().saturating_sub(1));
        let mut found = 0;
        self.top = (u32::from(top), 0);
        for level in (top.saturating_sub(1).max(1)..=top).rev() {
            for k in (first..chunks.len()).chain(0..first) {
                let mut places = equal(&chunks[k], level);
                while places != 0 {
                    self.found[found] = (k * CHUNK) as u16 + places.trailing_zeros() as u16;
                    places &= places - 1;
                    found += 1;
                    self.top.1 += usize::from(level == top);
                    if found == FOUND {
                        return found;
                    }
                }
            }
        }
        found
    }

    #[inline(always)]
    fn all_anywhere(&mut self, signatures: &[AtomicU64], wanted: u64) -> usize {
        let words = &mut self.words[..signatures.len()];
        copy(signatures, words);
        let mut found = 0;
        for (c, chunk) in words.chunks(CHUNK).enumerate() {
            if !chunk
                .iter()
                .fold(false, |any, word| any | (word & wanted == wanted))
            {
                continue;
            }
            for (j, word) in chunk.iter().enumerate() {
                if word & wanted == wanted {
                    self.found[found] = (c * CHUNK + j) as u16;
                    found += 1;
                    if found == FOUND {
                        return found;
                    }
                }
            }
        }
        found
    }
}

/// A line at a time, counted as it is read: copying it first takes as long as counting.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{AtomicU64, CHUNK, FOUND, LINE, Ordering, WINDOW, Wanted};

    pub(super) fn usable() -> bool {
        !cfg!(miri)
            && std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vpopcntdq")
    }

    /// Eight words that another thread may be writing.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load(line: &[AtomicU64; LINE]) -> __m512i {
        let words;
        // SAFETY: reads the 64 bytes of the line. They may change meanwhile; the processor reads them, outside the
        // language's memory model, and any bytes are valid words.
        unsafe {
            std::arch::asm!(
                "vmovdqu64 {words}, [{line}]",
                words = out(zmm_reg) words,
                line = in(reg) line.as_ptr(),
                options(nostack, preserves_flags, readonly)
            );
        }
        words
    }

    /// Fewer than eight words, and zeros.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load_rest(rest: &[AtomicU64]) -> __m512i {
        let mut words = [0u64; LINE];
        for (to, from) in words.iter_mut().zip(rest) {
            *to = from.load(Ordering::Relaxed);
        }
        // SAFETY: reads the array.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    /// How many wanted groups each word has, and the most of all. The counts are zero up to the end of the last chunk.
    #[target_feature(enable = "avx512f,avx512vpopcntdq")]
    #[inline]
    pub(super) fn count(signatures: &[AtomicU64], wanted: &Wanted, counts: &mut [u8; WINDOW]) -> u8 {
        let single = _mm512_set1_epi64(wanted.single as i64);
        let one = _mm512_set1_epi64(1);
        let mut top = _mm512_setzero_si512();
        let (lines, rest) = signatures.as_chunks::<LINE>();
        let n = signatures.len();
        counts[n & !(LINE - 1)..n.next_multiple_of(CHUNK)].fill(0);
        let (out, _) = counts.as_chunks_mut::<LINE>();
        for (k, counts) in out[..n.div_ceil(LINE)].iter_mut().enumerate() {
            let words = match lines.get(k) {
                Some(line) => load(line),
                None => load_rest(rest),
            };
            let mut sums = _mm512_popcnt_epi64(_mm512_and_si512(words, single));
            for &group in wanted.groups() {
                let group = _mm512_set1_epi64(group as i64);
                let has = _mm512_cmpeq_epi64_mask(_mm512_and_si512(words, group), group);
                sums = _mm512_mask_add_epi64(sums, has, sums, one);
            }
            top = _mm512_max_epi64(top, sums);
            // SAFETY: writes the eight bytes of `counts`.
            unsafe { _mm_storel_epi64(counts.as_mut_ptr().cast(), _mm512_cvtepi64_epi8(sums)) };
        }
        _mm512_reduce_max_epi64(top) as u8
    }

    /// Which of the counts are `level`.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub(super) fn equal(counts: &[u8; CHUNK], level: u8) -> u64 {
        // SAFETY: reads the array.
        let counts = unsafe { _mm512_loadu_si512(counts.as_ptr().cast()) };
        _mm512_cmpeq_epi8_mask(counts, _mm512_set1_epi8(level as i8))
    }

    /// The first places whose words have all `wanted` bits.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn all(signatures: &[AtomicU64], wanted: u64, out: &mut [u16; FOUND]) -> usize {
        let all = _mm512_set1_epi64(wanted as i64);
        let (lines, rest) = signatures.as_chunks::<LINE>();
        let mut found = 0;
        for k in 0..signatures.len().div_ceil(LINE) {
            let (words, real) = match lines.get(k) {
                Some(line) => (load(line), 0xFF),
                None => (load_rest(rest), (1 << rest.len()) - 1),
            };
            let mut places = _mm512_cmpeq_epi64_mask(_mm512_and_si512(words, all), all) & real;
            while places != 0 {
                out[found] = (k * LINE) as u16 + places.trailing_zeros() as u16;
                places &= places - 1;
                found += 1;
                if found == FOUND {
                    return found;
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
        *to = from.load(Ordering::Relaxed);
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
                let found = fast.most(&signatures, parts.clone(), turn);
                let (single, together) = match groups[0].count_ones() {
                    0 | 1 => (wanted, &groups[..0]),
                    _ => (wanted & !7, &groups[..1]),
                };
                let parts = Wanted::new(parts);
                assert_eq!(slow.most_anywhere(&signatures[..len], &parts, turn), found);
                assert_eq!(slow.found[..found], fast.found[..found]);
                assert_eq!(slow.top, fast.top);
                let value = |k: usize| {
                    let word = signatures[k].load(Ordering::Relaxed);
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
                assert_eq!(slow.all_anywhere(&signatures[..len], wanted), all);
                assert_eq!(slow.found[..all], fast.found[..all]);
                let holds = |k: &usize| signatures[*k].load(Ordering::Relaxed) & wanted == wanted;
                let expected: Vec<u16> = (0..len).filter(holds).take(FOUND).map(|k| k as u16).collect();
                assert_eq!(fast.found[..all], expected[..]);
            }
        }
    }
}
