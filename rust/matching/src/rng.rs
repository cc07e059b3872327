//! A small seeded generator: the registry never draws from the operating system.

/// Wyrand: 64 bits of state, one multiplication a draw, equal streams for equal seeds on every platform.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose stream depends on `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(seed ^ 0x9E37_79B9_7F4A_7C15);
        rng.next_u64();
        rng
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        mix(self.0, self.0 ^ 0xe703_7ed1_a0b4_28db)
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is under `bound / 2^32`.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// A number in `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Folds the 128-bit product of `a` and `b` to 64 bits.
#[inline]
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    ((product >> 64) ^ product) as u64
}
