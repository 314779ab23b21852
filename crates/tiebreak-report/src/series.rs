//! A run's scalars over steps, and what windows of them come to.

use std::collections::BTreeMap;

use tiebreak_sweep::each_scalar;
use tiebreak_sweep::statistics::mean;
use tiebreak_sweep::windows::{ROLLING_STEPS, Window, ratio, rolling_mean};
use tiebreak_train::Error;
use tiebreak_train::folder::RunFolder;

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

    /// Rolling means of a tag.
    pub fn rolling(&self, tag: &str) -> Vec<(u64, f64)> {
        rolling_mean(self.of(tag), ROLLING_STEPS)
    }

    /// Ratio of the rolling means of two tags, step by step.
    pub fn rolling_ratio(&self, above: &str, below: &str) -> Vec<(u64, f64)> {
        ratio(&self.rolling(above), &self.rolling(below))
    }
}

/// Mean over a part of a run of `steps` steps; `None` of nothing.
pub fn mean_over(values: &[(u64, f64)], window: Window, steps: u64, of: impl Fn(f64) -> f64) -> Option<f64> {
    let inside: Vec<f64> = window.of(values, steps).iter().map(|(_, x)| of(*x)).collect();
    mean(&inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_steps_and_windows() {
        let values = |f: fn(u64) -> f64| (1..=100).map(|step| (step, f(step))).collect();
        let series = Series([("a".into(), values(|s| s as f64)), ("b".into(), values(|_| 2.0))].into());
        assert_eq!((series.at("a", 7), series.at("a", 700), series.of("c").len()), (Some(7.0), None, 0));
        // The mean of 31..=50 over 2.
        assert_eq!(series.rolling_ratio("a", "b")[49], (50, 20.25));
        assert!(series.rolling_ratio("a", "none").is_empty());
        assert_eq!(mean_over(series.of("a"), Window::First(0.1), 100, |x| x), Some(5.5));
        assert_eq!(mean_over(series.of("a"), Window::Last(0.1), 100, |x| x), Some(95.5));
        assert_eq!(mean_over(series.of("none"), Window::Last(0.1), 100, |x| x), None);
    }
}
