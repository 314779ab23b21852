//! Correlations, quantiles, and what is kept of a distribution over tokens.

use serde::Serialize;
use statrs::statistics::{Data, OrderStatistics, RankTieBreaker};

/// Pearson's correlation of two equally long lists; `None` if one of them does not vary.
pub fn pearson(a: &[f64], b: &[f64]) -> Option<f64> {
    let n = a.len() as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    let (mut aa, mut bb, mut ab) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        (aa, bb, ab) = (aa + a * a, bb + b * b, ab + a * b);
    }
    (aa > 0.0 && bb > 0.0).then(|| ab / (aa.sqrt() * bb.sqrt()))
}

/// Ranks from 1; equal values share the mean of their ranks.
pub fn ranks(values: &[f64]) -> Vec<f64> {
    Data::new(values.to_vec()).ranks(RankTieBreaker::Average)
}

/// Spearman's correlation: Pearson's of the ranks; `None` if one list does not vary.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    pearson(&ranks(a), &ranks(b))
}

/// The `q`-quantile of sorted values, linear between neighbours (as numpy's default); NaN of none.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (at - low as f64) * (sorted[high] - sorted[low])
}

/// A distribution of cosines (or of other values in -1..1) over tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Quantiles 0.1, 0.2, ..., 0.9.
    pub deciles: [f64; 9],
    /// Tokens in each of 80 equal bins from -1 to 1; the last includes 1.
    pub histogram: Vec<u32>,
}

impl Distribution {
    /// Bins of [`Distribution::histogram`].
    pub const BINS: usize = 80;

    /// Of one value per token.
    pub fn of(values: &[f64]) -> Self {
        let mut histogram = vec![0; Self::BINS];
        for x in values {
            let bin = ((x + 1.0) / 2.0 * Self::BINS as f64).floor().max(0.0) as usize;
            histogram[bin.min(Self::BINS - 1)] += 1;
        }
        Self { deciles: deciles(values), histogram }
    }
}

/// Quantiles 0.1, 0.2, ..., 0.9.
pub(crate) fn deciles(values: &[f64]) -> [f64; 9] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    std::array::from_fn(|i| quantile(&sorted, (i + 1) as f64 / 10.0))
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlations_by_hand() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]);
        // Deviations -1.5..1.5 and -6.5, -3.5, 1.5, 8.5: 25 / sqrt(5 x 129).
        assert!((pearson(&a, &b).unwrap() - 25.0 / 645f64.sqrt()).abs() < 1e-15);
        assert!((spearman(&a, &b).unwrap() - 1.0).abs() < 1e-15);
        assert_eq!(ranks(&[2.0, 1.0, 2.0, 5.0]), [2.5, 1.0, 2.5, 4.0]);
        assert_eq!((pearson(&a, &[1.0; 4]), spearman(&[1.0; 4], &a)), (None, None));
    }

    #[test]
    fn distributions_by_hand() {
        let sorted: Vec<f64> = (0..=10).map(|i| i as f64 / 10.0).collect();
        let found = Distribution::of(&sorted);
        for (i, decile) in found.deciles.iter().enumerate() {
            assert!((decile - (i + 1) as f64 / 10.0).abs() < 1e-15);
        }
        assert_eq!(quantile(&[1.0, 2.0], 0.25), 1.25);
        let edges = Distribution::of(&[-1.0, 1.0, 1.0 + 1e-9, -1.0 - 1e-9, 0.0, -1e-9]).histogram;
        assert_eq!((edges[0], edges[79], edges[40], edges[39], edges.iter().sum()), (2, 2, 1, 1, 6u32));
    }
}
