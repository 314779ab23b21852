//! Means over seeds with intervals. The seed is what is replicated; pairs of runs of two arms are not independent.

use std::collections::BTreeMap;

use serde::Serialize;
use tiebreak_sweep::statistics::{FEWEST_PAIRS, half_width, mean, sd};

use crate::verdict::Interval;

/// A mean over seeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Mean; `None` of nothing.
    pub mean: Option<f64>,
    /// 95 % interval; `None` below three seeds.
    pub ci95: Interval,
    /// Seeds.
    pub n: usize,
    /// By seed.
    pub values: BTreeMap<u64, f64>,
}

/// Values by pairs of seeds: the first arm's, the second arm's.
pub type Pairs = BTreeMap<(u64, u64), f64>;

impl Estimate {
    /// Of one value a seed: the t interval.
    pub fn of(values: BTreeMap<u64, f64>) -> Self {
        let all: Vec<f64> = values.values().copied().collect();
        let error = sd(&all).map(|sd| sd / (all.len() as f64).sqrt());
        Self::new(values, error)
    }

    /// Of pairs: each first seed counts with its mean over the other arm's seeds. The interval is the wider of the t interval over
    /// these and the jackknife that leaves a seed out of both arms.
    pub fn crossed(pairs: &Pairs) -> Self {
        let values = by_first(pairs, None);
        let (n, plain) = (values.len(), Self::of(values.clone()));
        let left_out: Vec<f64> =
            values.keys().filter_map(|s| mean(&by_first(pairs, Some(*s)).into_values().collect::<Vec<_>>())).collect();
        if left_out.len() < n {
            // A seed without which nothing is left: no interval can be given.
            return Self { ci95: None, ..plain };
        }
        let middle = mean(&left_out).unwrap_or(0.0);
        let squares: f64 = left_out.iter().map(|theta| (theta - middle).powi(2)).sum();
        let jackknife = Self::new(values, Some(((n as f64 - 1.0) / n as f64 * squares).sqrt()));
        let width = |e: &Self| e.ci95.map_or(0.0, |[low, high]| high - low);
        if width(&jackknife) > width(&plain) { jackknife } else { plain }
    }

    fn new(values: BTreeMap<u64, f64>, error: Option<f64>) -> Self {
        let n = values.len();
        let mean = mean(&values.values().copied().collect::<Vec<_>>());
        let half = error.filter(|_| n >= FEWEST_PAIRS).and_then(|error| half_width(error, n));
        let ci95 = mean.zip(half).map(|(mean, half)| [mean - half, mean + half]);
        Self { mean, ci95, n, values }
    }
}

/// Mean over second seeds, by first seed; without a seed where one is left out.
fn by_first(pairs: &Pairs, without: Option<u64>) -> BTreeMap<u64, f64> {
    let mut grouped: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for ((a, b), value) in pairs.iter().filter(|((a, b), _)| Some(*a) != without && Some(*b) != without) {
        // One seed in both arms is one initialisation: such pairs say something else.
        if a != b {
            grouped.entry(*a).or_default().push(*value);
        }
    }
    grouped.into_iter().filter_map(|(a, values)| Some((a, mean(&values)?))).collect()
}

/// a - b, pair by pair.
pub fn minus(a: &Pairs, b: &Pairs) -> Pairs {
    a.iter().filter_map(|(key, x)| Some((*key, x - b.get(key)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_t_interval_by_hand() {
        let estimate = Estimate::of([(0, 2.0), (1, 4.0), (2, 9.0)].into());
        assert_eq!((estimate.mean, estimate.n), (Some(5.0), 3));
        assert!((estimate.ci95.unwrap()[0] - (5.0 - 8.956686)).abs() < 2e-5);
        assert_eq!(Estimate::of([(0, 2.0), (1, 4.0)].into()).ci95, None);
        assert_eq!(Estimate::of(BTreeMap::new()), Estimate::default());
    }

    #[test]
    fn pairs_of_one_seed_do_not_count() {
        let pairs: Pairs = [((0, 0), 100.0), ((0, 1), 1.0), ((0, 2), 3.0), ((1, 0), 2.0)].into();
        assert_eq!(Estimate::crossed(&pairs).values, [(0, 2.0), (1, 2.0)].into());
    }

    #[test]
    fn where_the_second_arm_varies_the_jackknife_is_wider() {
        // The value is the second seed's alone, so that means by first seed hardly differ and the t interval is too narrow.
        let g = [0.0, 3.0, 6.0];
        let pairs = |f: fn(f64, f64) -> f64| -> Pairs {
            (0..3).flat_map(|a| (0..3).map(move |b| ((a as u64, b as u64), f(g[a], g[b])))).collect()
        };
        let found = Estimate::crossed(&pairs(|_, b| b));
        // By first seed 4.5, 3, 1.5: sd 1.5, t half width 4.302653 x 1.5 / sqrt(3) = 3.7262.
        // Leaving out a seed: mean of the other two: 4.5, 3, 1.5; se^2 = 2/3 x 4.5 = 3; half width 4.302653 x 1.732051 = 7.4524.
        assert_eq!(found.mean, Some(3.0));
        assert!((found.ci95.unwrap()[1] - (3.0 + 7.4524)).abs() < 1e-3, "{found:?}");
        // Two seeds give a mean and no interval.
        let two: Pairs = [((0, 1), 1.0), ((1, 0), 2.0)].into();
        assert_eq!((Estimate::crossed(&two).ci95, Estimate::crossed(&two).mean), (None, Some(1.5)));
    }

    #[test]
    fn differences_are_of_common_pairs() {
        let (a, b): (Pairs, Pairs) = ([((0, 1), 3.0), ((1, 0), 5.0)].into(), [((0, 1), 1.0)].into());
        assert_eq!(minus(&a, &b), [((0, 1), 2.0)].into());
    }
}
