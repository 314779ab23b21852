//! Means over seeds and what their spread allows to say.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Fewer pairs give no interval.
pub const FEWEST_PAIRS: usize = 3;

/// Arithmetic mean; `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Standard deviation of a sample (n - 1 below the line); `None` below two values.
pub fn sd(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// The middle value, or the mean of the middle two; `None` of nothing.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some((values[low] + values[high]) / 2.0)
}

/// A difference between two arms over the seeds that both have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Paired {
    /// Mean over seeds of arm minus baseline; `None` without a pair.
    pub mean_difference: Option<f64>,
    /// 95 % t interval of that mean; `None` below three pairs.
    pub ci95: Option<[f64; 2]>,
    /// Number of seeds that both arms have.
    pub pairs: usize,
}

/// Half the width of a 95 % t interval of a mean of `n` values with standard error `error`; `None` below three values.
pub fn half_width(error: f64, n: usize) -> Option<f64> {
    let freedom = n.checked_sub(1).filter(|_| n >= FEWEST_PAIRS)?;
    Some(StudentsT::new(0.0, 1.0, freedom as f64).ok()?.inverse_cdf(0.975) * error)
}

/// Mean and 95 % t interval (n - 1 degrees of freedom) of paired differences.
pub fn paired(differences: &[f64]) -> Paired {
    let (pairs, mean_difference) = (differences.len(), mean(differences));
    let interval = |mean: f64| {
        let half = half_width(sd(differences)? / (pairs as f64).sqrt(), pairs)?;
        Some([mean - half, mean + half])
    };
    let ci95 = mean_difference.and_then(interval);
    Paired { mean_difference, ci95, pairs }
}

/// Two-sided p-value of the t test that paired differences have mean zero (n - 1 degrees of freedom); `None` below three pairs.
pub fn p_value(differences: &[f64]) -> Option<f64> {
    let n = differences.len();
    let (mean, error) = (mean(differences)?, sd(differences)? / (n as f64).sqrt());
    let freedom = n.checked_sub(1).filter(|_| n >= FEWEST_PAIRS)?;
    if error == 0.0 {
        return Some(if mean == 0.0 { 1.0 } else { 0.0 });
    }
    Some(2.0 * StudentsT::new(0.0, 1.0, freedom as f64).ok()?.sf((mean / error).abs()))
}

/// Holm's step-down adjustment (Scandinavian Journal of Statistics 6, 1979): adjusted p-values in the order given, which
/// may be held against one level without the chance of any false positive among them passing it.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let (mut adjusted, mut least) = (vec![1.0; p.len()], 0.0f64);
    for (rank, index) in order.into_iter().enumerate() {
        least = least.max((p[index] * (p.len() - rank) as f64).min(1.0));
        adjusted[index] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance, "{a} is not {b} within {tolerance}");
    }

    #[test]
    fn mean_sd_and_median_by_hand() {
        // Deviations of 2, 4, 9 from 5: -3, -1, 4; squares sum to 26; 26 / 2 = 13.
        close(mean(&[2.0, 4.0, 9.0]).unwrap(), 5.0, 1e-15);
        close(sd(&[2.0, 4.0, 9.0]).unwrap(), 13f64.sqrt(), 1e-15);
        assert_eq!((mean(&[]), sd(&[1.0]), median(vec![])), (None, None, None));
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn interval_of_three_pairs_by_hand() {
        // t(0.975, 2) = 4.302653, so the half width is 4.302653 * sqrt(13) / sqrt(3) = 8.956686.
        let result = paired(&[2.0, 4.0, 9.0]);
        let [low, high] = result.ci95.unwrap();
        close(low, 5.0 - 8.956686, 2e-5);
        close(high, 5.0 + 8.956686, 2e-5);
        // t(0.975, 4) = 2.776445; deviations -2..2, sd = sqrt(2.5).
        let [low, high] = paired(&[1.0, 2.0, 3.0, 4.0, 5.0]).ci95.unwrap();
        close(high - low, 2.0 * 2.776445 * (2.5f64 / 5.0).sqrt(), 1e-5);
    }

    #[test]
    fn no_interval_below_three_pairs() {
        let two = paired(&[1.0, 3.0]);
        assert_eq!(two, Paired { mean_difference: Some(2.0), ci95: None, pairs: 2 });
        assert_eq!(paired(&[]), Paired { mean_difference: None, ci95: None, pairs: 0 });
    }

    #[test]
    fn equal_differences_have_an_interval_of_no_width() {
        assert_eq!(paired(&[0.5; 4]).ci95, Some([0.5, 0.5]));
    }

    #[test]
    fn p_values_and_holm_by_hand() {
        // t = 5 / (sqrt(13) / sqrt(3)) = 2.401922; with two degrees of freedom p = 1 - t / sqrt(2 + t^2) = 0.138337.
        close(p_value(&[2.0, 4.0, 9.0]).unwrap(), 1.0 - 2.4019223 / (2.0 + 2.4019223f64.powi(2)).sqrt(), 1e-7);
        close(p_value(&[-2.0, -4.0, -9.0]).unwrap(), p_value(&[2.0, 4.0, 9.0]).unwrap(), 1e-15);
        assert_eq!((p_value(&[0.5; 4]), p_value(&[0.0; 4]), p_value(&[1.0, 2.0])), (Some(0.0), Some(1.0), None));
        // Sorted 0.01, 0.03, 0.04 times 3, 2, 1 is 0.03, 0.06, 0.04; none may fall below the one before it.
        for (found, expected) in holm(&[0.04, 0.01, 0.03]).into_iter().zip([0.06, 0.03, 0.06]) {
            close(found, expected, 1e-15);
        }
        assert_eq!((holm(&[0.9, 0.8]), holm(&[])), (vec![1.0, 1.0], vec![]));
    }
}
