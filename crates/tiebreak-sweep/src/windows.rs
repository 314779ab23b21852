//! Windows of training steps: what a ratio of two norms does early, late and at its peak.

use serde::Serialize;

use crate::statistics::{mean, median};

/// Steps of the rolling mean (paper, figure 4).
pub const ROLLING_STEPS: u64 = 20;

/// Values by step, ascending; every step occurs once.
pub type Series = [(u64, f64)];

/// At each step the mean of the values of the last `steps` steps, itself included; fewer at the beginning.
pub fn rolling_mean(series: &Series, steps: u64) -> Vec<(u64, f64)> {
    let mut first = 0;
    let mean_up_to = |last: usize| {
        let step = series[last].0;
        while series[first].0 + steps <= step {
            first += 1;
        }
        let window = &series[first..=last];
        (step, window.iter().map(|(_, x)| x).sum::<f64>() / window.len() as f64)
    };
    (0..series.len()).map(mean_up_to).collect()
}

/// `above` over `below` at the steps that both have, where that is a finite number.
pub fn ratio(above: &Series, below: &Series) -> Vec<(u64, f64)> {
    let mut below = below.iter().peekable();
    let mut at = |step: u64| {
        while below.next_if(|(s, _)| *s < step).is_some() {}
        below.next_if(|(s, _)| *s == step).map(|(_, x)| *x)
    };
    let ratios = above.iter().filter_map(|(step, x)| Some((*step, x / at(*step)?)));
    ratios.filter(|(_, x)| x.is_finite()).collect()
}

/// A part of a run of some number of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// Steps up to this share of the run, 0 to 1; at least step 1.
    First(f64),
    /// Steps from the end of the first (1 - share) of the run on; at least the last.
    Last(f64),
}

impl Window {
    /// The part of a series of a run of `steps` steps that lies in the window.
    pub fn of(self, series: &Series, steps: u64) -> &Series {
        let part = |share: f64| ((share * steps as f64).round() as u64).clamp(1, steps.max(1));
        match self {
            Self::First(share) => &series[..series.partition_point(|(step, _)| *step <= part(share))],
            Self::Last(share) => {
                let last = steps.saturating_sub(part(share));
                &series[series.partition_point(|(step, _)| *step <= last)..]
            }
        }
    }
}

/// A step and the value there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct At {
    /// Completed steps.
    pub step: u64,
    /// The value.
    pub value: f64,
}

/// Means over a window of the ratio of two norms, each a rolling mean first. `None` of a window without steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InWindow {
    /// Mean of log(ratio), nats: 0 where both norms are equal.
    pub mean_log: Option<f64>,
    /// Mean of the ratio.
    pub mean: Option<f64>,
    /// Median of the ratio.
    pub median: Option<f64>,
    /// Mean of ratio / (1 + ratio), the output's share of the sum of the two norms.
    pub share: Option<f64>,
}

/// What the ratio of two norms (`grad/output_norm` over `grad/input_norm`, or the authors' two) does over a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RatioWindows {
    /// Where it is largest; the first such step.
    pub peak: Option<At>,
    /// First 1 % of steps.
    pub first_1: InWindow,
    /// First 10 %.
    pub first_10: InWindow,
    /// All.
    pub all: InWindow,
    /// Last 10 %.
    pub last_10: InWindow,
    /// The last step at which it lies on another side of 1 than at the step before (a ratio of 1 counts as below); `None` if
    /// there is none.
    pub last_crossing: Option<u64>,
}

impl RatioWindows {
    /// Of the norms above and below the line, in a run of `steps` steps. Each norm is averaged over [`ROLLING_STEPS`] first.
    pub fn of(above: &Series, below: &Series, steps: u64) -> Self {
        let smooth = |series| rolling_mean(series, ROLLING_STEPS);
        let ratio = ratio(&smooth(above), &smooth(below));
        let over = |window: Window| {
            let values: Vec<f64> = window.of(&ratio, steps).iter().map(|(_, x)| *x).collect();
            let mean_of = |f: fn(&f64) -> f64| mean(&values.iter().map(f).collect::<Vec<_>>());
            InWindow {
                mean_log: mean_of(|x| x.ln()).filter(|x| x.is_finite()),
                mean: mean(&values),
                share: mean_of(|x| x / (1.0 + x)),
                median: median(values),
            }
        };
        let largest = |best: Option<At>, (step, value): &(u64, f64)| match best {
            Some(best) if best.value >= *value => Some(best),
            _ => Some(At { step: *step, value: *value }),
        };
        let crossing = ratio.windows(2).rev().find(|pair| (pair[0].1 > 1.0) != (pair[1].1 > 1.0));
        Self {
            peak: ratio.iter().fold(None, largest),
            first_1: over(Window::First(0.01)),
            first_10: over(Window::First(0.1)),
            all: over(Window::First(1.0)),
            last_10: over(Window::Last(0.1)),
            last_crossing: crossing.map(|pair| pair[1].0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Vec<(u64, f64)> {
        values.iter().enumerate().map(|(i, x)| (i as u64 + 1, *x)).collect()
    }

    #[test]
    fn rolling_means_by_hand() {
        assert_eq!(rolling_mean(&series(&[2.0, 4.0, 9.0, 1.0]), 2), series(&[2.0, 3.0, 6.5, 5.0]));
        // Steps count, not entries: of every tenth step, twenty steps hold two.
        let sparse = [(1, 8.0), (10, 2.0), (20, 4.0), (30, 6.0)];
        assert_eq!(rolling_mean(&sparse, 20), [(1, 8.0), (10, 5.0), (20, 14.0 / 3.0), (30, 5.0)]);
        assert!(rolling_mean(&[], 20).is_empty());
    }

    #[test]
    fn ratios_at_common_steps() {
        let (above, below) = ([(1, 6.0), (2, 5.0), (4, 1.0), (5, 3.0)], [(1, 2.0), (3, 7.0), (4, 0.0), (5, 4.0)]);
        assert_eq!(ratio(&above, &below), [(1, 3.0), (5, 0.75)]);
    }

    #[test]
    fn windows_are_parts_of_the_run_not_of_the_series() {
        let all: Vec<(u64, f64)> = (1..=600).map(|s| (s, 0.0)).collect();
        let ends = |window: Window, series: &Series| {
            let part = window.of(series, 600);
            (part.first().map(|p| p.0), part.last().map(|p| p.0))
        };
        assert_eq!(ends(Window::First(0.01), &all), (Some(1), Some(6)));
        assert_eq!(ends(Window::First(0.1), &all), (Some(1), Some(60)));
        assert_eq!(ends(Window::First(1.0), &all), (Some(1), Some(600)));
        assert_eq!(ends(Window::Last(0.1), &all), (Some(541), Some(600)));
        let sparse = [(1, 0.0), (100, 0.0), (600, 0.0)];
        assert_eq!(ends(Window::First(0.1), &sparse), (Some(1), Some(1)));
        assert_eq!(ends(Window::Last(0.1), &sparse), (Some(600), Some(600)));
        assert_eq!(ends(Window::Last(0.1), &[]), (None, None));
        assert_eq!(Window::First(0.01).of(&[(1, 0.0), (2, 0.0)], 5).len(), 1, "never no step at all");
    }

    #[test]
    fn a_run_by_hand() {
        // 40 steps; below is 1 throughout, above 4 at steps 1 and 2, then 0.5. Its mean over the last 20 steps is 4 at 1 and 2,
        // (8 + 0.5 (s - 2)) / s up to step 20, then loses the two large values: 0.5 from step 22 on.
        let above: Vec<(u64, f64)> = (1..=40).map(|s| (s, if s <= 2 { 4.0 } else { 0.5 })).collect();
        let below: Vec<(u64, f64)> = (1..=40).map(|s| (s, 1.0)).collect();
        let found = RatioWindows::of(&above, &below, 40);
        assert_eq!(found.peak, Some(At { step: 1, value: 4.0 }));
        // (8 + 0.5 (s - 2)) / s falls to 1 at s = 14, which counts as below.
        assert_eq!(found.last_crossing, Some(14));
        let first: [f64; 4] = [4.0, 4.0, 8.5 / 3.0, 9.0 / 4.0];
        let close = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() - expected).abs() < 1e-12, "{found:?} {expected}")
        };
        close(found.first_10.mean, first.iter().sum::<f64>() / 4.0);
        close(found.first_10.mean_log, first.iter().map(|x| x.ln()).sum::<f64>() / 4.0);
        close(found.first_10.share, first.iter().map(|x| x / (1.0 + x)).sum::<f64>() / 4.0);
        close(found.first_10.median, (4.0 + 8.5 / 3.0) / 2.0);
        close(found.first_1.mean, 4.0);
        close(found.last_10.mean, 0.5);
        close(found.last_10.mean_log, 0.5f64.ln());
    }

    #[test]
    fn a_ratio_that_stays_on_one_side_and_nothing_at_all() {
        let (one, two) = (series(&[1.0; 30]), series(&[2.0; 30]));
        let found = RatioWindows::of(&two, &one, 30);
        assert_eq!(found.last_crossing, None);
        assert!((found.all.mean_log.unwrap() - 2f64.ln()).abs() < 1e-12);
        let none = RatioWindows::of(&[], &one, 30);
        assert_eq!((none.peak, none.all.mean, none.all.mean_log, none.last_crossing), (None, None, None, None));
        // Without gradient on one side there is no ratio, or none with a logarithm.
        assert_eq!(RatioWindows::of(&one, &series(&[0.0; 30]), 30), none);
        let zero = RatioWindows::of(&series(&[0.0; 30]), &one, 30);
        assert_eq!((zero.all.mean, zero.all.mean_log), (Some(0.0), None));
    }
}
