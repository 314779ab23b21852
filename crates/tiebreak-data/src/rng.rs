//! Random numbers that depend on nothing but a seed and a name, so that they are the same on every platform.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::hash::sha256;

/// A ChaCha8 stream keyed by SHA-256 of the seed (8 bytes, little endian) and the stream's name.
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream called `name` of `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        let key = [&seed.to_le_bytes()[..], name.as_bytes()].concat();
        Self(ChaCha8Rng::from_seed(sha256(&key)))
    }

    /// Uniform in `0..n` without bias; `n` is at least 1.
    pub fn below(&mut self, n: u64) -> u64 {
        let limit = u64::MAX - u64::MAX % n;
        loop {
            let draw = self.0.next_u64();
            if draw < limit {
                return draw % n;
            }
        }
    }

    /// A random order of `0..n` (Fisher-Yates).
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_seed_and_name() {
        let draws = |seed, name| {
            let mut stream = Stream::new(seed, name);
            [stream.below(1000), stream.below(1000), stream.below(1000)]
        };
        assert_eq!(draws(0, "a"), draws(0, "a"));
        assert_ne!(draws(0, "a"), draws(1, "a"));
        assert_ne!(draws(0, "a"), draws(0, "b"));
    }

    #[test]
    fn permutation_is_uniform_over_positions() {
        let mut stream = Stream::new(7, "test");
        let mut first = [0usize; 4];
        for _ in 0..4000 {
            first[stream.permutation(4)[0]] += 1;
        }
        // Binomial(4000, 1/4): standard deviation 27, so 150 is more than five of them.
        assert!(first.iter().all(|&n| n.abs_diff(1000) < 150), "{first:?}");
    }
}
