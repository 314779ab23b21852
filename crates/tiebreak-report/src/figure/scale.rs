//! Axes with ticks at 1, 2 and 5, linear or logarithmic.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// One axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// An axis that holds all of `values` that it can show (finite, and above 0 if it is logarithmic), with a margin of `margin` of
    /// its length on both sides.
    pub fn of(values: impl Iterator<Item = f64>, log: bool, margin: f64) -> Self {
        let shown = values.filter(|x| x.is_finite() && (!log || *x > 0.0)).map(|x| if log { x.log10() } else { x });
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
        let (low, high) = match high - low {
            // Nothing, or one value: something around it.
            length if !length.is_finite() => (0.0, 1.0),
            length if length < 1e-12 => (low - 0.5, high + 0.5),
            length => (low - margin * length, high + margin * length),
        };
        Self { low, high, log }
    }

    /// Whether equal factors are equally long.
    pub fn is_log(self) -> bool {
        self.log
    }

    /// The value held inside the axis; `None` where it cannot be shown.
    pub fn clamp(self, x: f64) -> Option<f64> {
        let range = self.range();
        (x.is_finite() && (!self.log || x > 0.0)).then(|| x.clamp(range.start, range.end))
    }

    /// Ticks: at most about `most` of them.
    fn ticks(self, most: usize) -> Vec<f64> {
        if !self.log {
            let rough = (self.high - self.low) / most.max(1) as f64;
            let power = 10f64.powf(rough.log10().floor());
            let step =
                [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
            let first = (self.low / step).ceil() as i64;
            return (first..).map(|i| i as f64 * step).take_while(|x| *x <= self.high + 1e-9 * step).collect();
        }
        let decades = self.low.floor() as i32..=self.high.ceil() as i32;
        let parts: &[f64] = if self.high - self.low < 0.35 * most as f64 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let all = decades.flat_map(|decade| parts.iter().map(move |m| m * 10f64.powi(decade)));
        let ticks: Vec<f64> = all.filter(|x| (self.low..=self.high).contains(&x.log10())).collect();
        let every = ticks.len().div_ceil(most.max(1)).max(1);
        ticks.into_iter().step_by(every).collect()
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let x = if self.log { value.log10() } else { *value };
        let share = (x - self.low) / (self.high - self.low);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        self.ticks(hint.max_num_points().min(7))
    }

    fn range(&self) -> Range<f64> {
        if self.log { 10f64.powf(self.low)..10f64.powf(self.high) } else { self.low..self.high }
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        let x = if value.abs() < 1e-12 { 0.0 } else { *value };
        let text = match x.abs() {
            0.0 => "0".into(),
            size if !(1e-4..1e6).contains(&size) => format!("{x:.0e}"),
            size => {
                let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
                let text = format!("{x:.digits$}");
                if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
            }
        };
        text.replacen('-', "\u{2212}", 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let linear = Scale::of([0.0, 0.93].into_iter(), false, 0.0);
        assert_eq!(
            linear.ticks(5).iter().map(|x| linear.format_ext(x)).collect::<Vec<_>>(),
            ["0", "0.2", "0.4", "0.6", "0.8"]
        );
        let log = Scale::of([1.0, 600.0, -3.0].into_iter(), true, 0.0);
        assert_eq!(log.ticks(9), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(Scale::of([1e-8, 1.0].into_iter(), true, 0.0).ticks(5).len(), 5);
        assert_eq!(linear.format_ext(&-0.25), "\u{2212}0.25");
    }

    #[test]
    fn values_map_to_their_places_and_what_cannot_be_shown_is_none() {
        let log = Scale::of([1.0, 100.0].into_iter(), true, 0.0);
        assert_eq!((log.map(&1.0, (0, 200)), log.map(&10.0, (0, 200)), log.map(&100.0, (200, 0))), (0, 100, 0));
        assert_eq!((log.clamp(0.0), log.clamp(f64::NAN), log.clamp(1000.0).map(f64::round)), (None, None, Some(100.0)));
        // Nothing to show, or one value, still makes an axis.
        assert!(Scale::of([f64::NAN].into_iter(), false, 0.1).range().end > 0.0);
        let one = Scale::of([3.0].into_iter(), false, 0.1).range();
        assert!(one.start < 3.0 && one.end > 3.0);
    }
}
