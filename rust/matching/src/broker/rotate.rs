//! A fixed random rotation.
//!
//! Byte codes share one scale, so they are only good if every component of a unit vector is about as large as any
//! other. Embeddings are not like that: some models have a few dominant components, hashed features are sparse.
//! After a random rotation every vector is like that, whatever it was, and inner products are what they were.
//! The rotation is a product of sign flips and Walsh-Hadamard transforms (as in RaBitQ's and QuIP#'s code):
//! additions only, in a fixed order, so that every processor finds the same bits.
use crate::rng::Rng;

const ROUNDS: usize = 4;
/// Part of the file format: another seed is another rotation.
const SEED: u64 = 0x70_61_6e_64_61;

/// The rotation of one width.
#[derive(Debug)]
pub(super) struct Rotation {
    /// +1 or -1 for each round and component.
    signs: Vec<f32>,
    width: usize,
    /// Length of the transforms: the largest power of two that fits.
    block: usize,
}

impl Rotation {
    pub(super) fn new(width: usize) -> Self {
        let mut rng = Rng::new(SEED ^ width as u64);
        let signs = (0..ROUNDS * width)
            .map(|_| if rng.next_u64() >> 63 == 0 { 1.0 } else { -1.0 })
            .collect();
        Self {
            signs,
            width,
            block: 1 << width.ilog2(),
        }
    }

    /// Rotates `vector` in place; it has the width of the rotation.
    pub(super) fn apply(&self, vector: &mut [f32]) {
        for round in 0..ROUNDS {
            let signs = &self.signs[round * self.width..][..self.width];
            for (x, sign) in vector.iter_mut().zip(signs) {
                *x *= sign;
            }
            transform(self.part(round, vector));
        }
    }

    /// Undoes [`apply`](Self::apply), up to rounding.
    pub(super) fn undo(&self, vector: &mut [f32]) {
        for round in (0..ROUNDS).rev() {
            transform(self.part(round, vector));
            let signs = &self.signs[round * self.width..][..self.width];
            for (x, sign) in vector.iter_mut().zip(signs) {
                *x *= sign;
            }
        }
    }

    /// The head and the tail in turn: together they mix a width that is no power of two.
    fn part<'v>(&self, round: usize, vector: &'v mut [f32]) -> &'v mut [f32] {
        let start = if round.is_multiple_of(2) {
            0
        } else {
            self.width - self.block
        };
        &mut vector[start..start + self.block]
    }
}

/// The orthonormal Walsh-Hadamard transform; it is its own inverse.
fn transform(x: &mut [f32]) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (x.len() as f32).sqrt();
    for value in x {
        *value *= scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_products_survive_and_undo_is_the_inverse() {
        for width in [64, 128, 320, 384, 1024] {
            let mut rng = Rng::new(5);
            let a: Vec<f32> = (0..width).map(|_| rng.unit() as f32 - 0.5).collect();
            let b: Vec<f32> = (0..width).map(|_| rng.unit() as f32 - 0.5).collect();
            let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(p, q)| f64::from(p * q)).sum::<f64>();
            let rotation = Rotation::new(width);
            let (mut ra, mut rb) = (a.clone(), b.clone());
            rotation.apply(&mut ra);
            rotation.apply(&mut rb);
            assert!((dot(&a, &b) - dot(&ra, &rb)).abs() < 1e-4 * width as f64);
            rotation.undo(&mut ra);
            assert!(a.iter().zip(&ra).all(|(x, y)| (x - y).abs() < 1e-5));
        }
    }

    #[test]
    fn a_single_component_is_spread_over_all() {
        for width in [64, 384, 768] {
            let mut one = vec![0.0; width];
            one[3] = 1.0;
            Rotation::new(width).apply(&mut one);
            assert!(
                one.iter().all(|x| x.abs() < 6.0 / (width as f32).sqrt()),
                "width {width}"
            );
        }
    }
}
