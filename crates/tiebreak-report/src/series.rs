//! A run's scalars over steps, and what windows of them come to.

use std::collections::BTreeMap;

use tiebreak_sweep::each_scalar;
use tiebreak_train::Error;
use tiebreak_train::folder::RunFolder;

/// Steps of a rolling mean.
pub const WINDOW: usize = 20;

/// Every scalar of a run: tag to (step, value) in the order of steps.
#[derive(Clone, Debug, Default)]
pub struct Series(pub BTreeMap<String, Vec<(u64, f64)>>);

impl Series {
    /// Reads a run's `metrics.jsonl`.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file, and the line where one is damaged.
    pub fn read(folder: &RunFolder) -> Result<Self, Error> {
        let mut series = Self::default();
        each_scalar(&folder.metrics(), |step, tag, value| match series.0.get_mut(tag) {
            Some(values) => values.push((step, value)),
            None => _ = series.0.insert(tag.to_owned(), vec![(step, value)]),
        })?;
        Ok(series)
    }

    /// All of a tag's values; empty where there is no such tag.
    pub fn of(&self, tag: &str) -> &[(u64, f64)] {
        self.0.get(tag).map_or(&[], Vec::as_slice)
    }

    /// A tag's value at a step.
    pub fn at(&self, tag: &str, step: u64) -> Option<f64> {
        self.of(tag).iter().find(|(at, _)| *at == step).map(|(_, value)| *value)
    }

    /// Rolling means over [`WINDOW`] steps, fewer at the beginning.
    pub fn rolling(&self, tag: &str) -> Vec<(u64, f64)> {
        let values = self.of(tag);
        let mean = |i: usize| {
            let window = &values[(i + 1).saturating_sub(WINDOW)..=i];
            window.iter().map(|(_, value)| value).sum::<f64>() / window.len() as f64
        };
        (0..values.len()).map(|i| (values[i].0, mean(i))).collect()
    }

    /// Ratio of the rolling means of two tags, step by step.
    pub fn rolling_ratio(&self, above: &str, below: &str) -> Vec<(u64, f64)> {
        let below: BTreeMap<u64, f64> = self.rolling(below).into_iter().collect();
        let ratio = |(step, value): (u64, f64)| Some((step, value / below.get(&step).filter(|x| **x > 0.0)?));
        self.rolling(above).into_iter().filter_map(ratio).collect()
    }
}

/// Mean of the values at steps `from` (exclusive) to `to`; `None` of nothing.
pub fn mean_between(values: &[(u64, f64)], from: u64, to: u64, of: impl Fn(f64) -> f64) -> Option<f64> {
    let inside: Vec<f64> = values.iter().filter(|(s, _)| *s > from && *s <= to).map(|(_, x)| of(*x)).collect();
    tiebreak_sweep::statistics::mean(&inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Series {
        let values = |f: fn(u64) -> f64| (1..=100).map(|step| (step, f(step))).collect();
        Series([("a".into(), values(|s| s as f64)), ("b".into(), values(|_| 2.0))].into())
    }

    #[test]
    fn rolling_means_by_hand() {
        let rolling = series().rolling("a");
        // 1; the mean of 1..=10; of 31..=50.
        assert_eq!((rolling[0].1, rolling[9].1, rolling[49].1), (1.0, 5.5, 40.5));
        let ratio = series().rolling_ratio("a", "b");
        assert_eq!((ratio.len(), ratio[49]), (100, (50, 20.25)));
        assert!(series().rolling_ratio("a", "none").is_empty());
    }

    #[test]
    fn windows_leave_their_first_step_out() {
        assert_eq!(mean_between(&series().0["a"], 0, 10, |x| x), Some(5.5));
        assert_eq!(mean_between(&series().0["a"], 90, 100, |x| x), Some(95.5));
        assert_eq!(mean_between(&series().0["a"], 100, 200, |x| x), None);
        assert_eq!((series().at("a", 7), series().at("a", 700)), (Some(7.0), None));
    }
}
