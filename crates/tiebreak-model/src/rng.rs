//! Random streams on the host: one seed, split by name, the same bits on every backend.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// A named random stream. Streams of one seed are independent; arms of one seed share every stream they both draw.
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream `name` of `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        let digest = Sha256::new().chain_update(b"tiebreak stream v1").chain_update(seed.to_le_bytes());
        Self(ChaCha8Rng::from_seed(digest.chain_update(name.as_bytes()).finalize().into()))
    }

    /// Uniform in (0, 1].
    pub fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    /// Uniform in 0..n (to 1 part in 2^64 / n).
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.0.next_u64()) * n as u128) >> 64) as usize
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// `n` normal values of standard deviation `std`, cut at `cut` standard deviations (drawn again beyond).
    pub fn normals(&mut self, n: usize, std: f64, cut: Option<f64>) -> Vec<f64> {
        let cut = cut.unwrap_or(f64::INFINITY);
        let draw = || {
            loop {
                let z = self.normal();
                if z.abs() <= cut {
                    return z * std;
                }
            }
        };
        std::iter::repeat_with(draw).take(n).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_named_and_normal() {
        let mut a = Stream::new(1, "a");
        let mut b = Stream::new(1, "b");
        let (x, y) = (a.normals(20_000, 2.0, None), b.normals(20_000, 2.0, None));
        assert_eq!(x, Stream::new(1, "a").normals(20_000, 2.0, None));
        let dot: f64 = x.iter().zip(&y).map(|(x, y)| x * y).sum::<f64>() / 20_000.0;
        assert!(dot.abs() < 0.1, "streams correlate: {dot}");
        let mean = x.iter().sum::<f64>() / 20_000.0;
        let var = x.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.05 && (var - 4.0).abs() < 0.15, "{mean} {var}");
    }

    #[test]
    fn a_cut_normal_has_the_known_spread() {
        // Var of a standard normal cut at 3: 1 - 6 phi(3) / (2 Phi(3) - 1) = 0.98658^2.
        let x = Stream::new(0, "cut").normals(50_000, 1.0, Some(3.0));
        assert!(x.iter().all(|x| x.abs() <= 3.0));
        let sd = (x.iter().map(|x| x * x).sum::<f64>() / 50_000.0).sqrt();
        assert!((sd - 0.98658).abs() < 0.01, "{sd}");
    }
}
