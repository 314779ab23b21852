//! A factor that changes over the steps.

use serde::{Deserialize, Serialize};
use tiebreak_data::Error;

/// A factor: a number, or a way from one to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or { kind, start, end, until }")]
pub enum Scale {
    /// The same at every step.
    Constant(f64),
    /// See [`ScaleSchedule`].
    Schedule(ScaleSchedule),
}

/// From `start`, at the first update, to `end`, at every update after `until`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleSchedule {
    /// How it gets there.
    pub kind: ScaleKind,
    /// Factor of the first update.
    pub start: f64,
    /// Factor from update `until` + 1 on.
    pub end: f64,
    /// A number of updates, or, below 1, a fraction of all.
    pub until: f64,
}

/// Shape of a [`ScaleSchedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleKind {
    /// `start` up to and with update `until`.
    Constant,
    /// A straight line.
    Linear,
    /// Half a cosine.
    Cosine,
}

impl From<f64> for Scale {
    fn from(factor: f64) -> Self {
        Scale::Constant(factor)
    }
}

impl Scale {
    /// The factor of the update that completes `step` (1-based). With p = min(1, (step - 1) / until): linear start + (end - start) p,
    /// cosine start + (end - start) (1 - cos(pi p)) / 2, constant start until p is 1.
    pub fn at(&self, step: u64) -> f64 {
        let Scale::Schedule(s) = self else { return self.start() };
        let p = if s.until == 0.0 { 1.0 } else { ((step - 1) as f64 / s.until).min(1.0) };
        let part = match s.kind {
            _ if p == 1.0 => return s.end,
            ScaleKind::Constant => 0.0,
            ScaleKind::Linear => p,
            ScaleKind::Cosine => 0.5 * (1.0 - (std::f64::consts::PI * p).cos()),
        };
        s.start + (s.end - s.start) * part
    }

    fn start(&self) -> f64 {
        match self {
            Scale::Constant(factor) => *factor,
            Scale::Schedule(s) => s.start,
        }
    }

    /// Whether it is 1 at every step.
    pub fn is_one(&self) -> bool {
        *self == Scale::Constant(1.0)
    }

    /// Turns a fraction of `steps` into a number of steps.
    pub(crate) fn resolve(&mut self, steps: u64) {
        if let Scale::Schedule(s) = self {
            s.until = whole_steps(s.until, steps);
        }
    }

    pub(super) fn validate(&self, key: &str) -> Result<(), Error> {
        let factor = |key: String, value: f64| match (0.0..=1e12).contains(&value) {
            true => Ok(()),
            false => Err(Error::Input(format!("{key} = {value}: expected a number from 0 to 1e12"))),
        };
        match self {
            Scale::Constant(value) => factor(key.into(), *value),
            Scale::Schedule(s) => {
                factor(format!("{key}.start"), s.start)?;
                factor(format!("{key}.end"), s.end)?;
                let until = s.until;
                match (0.0..1.0).contains(&until) || (1.0..=1e12).contains(&until) && until.fract() == 0.0 {
                    true => Ok(()),
                    false => Err(Error::Input(format!(
                        "{key}.until = {until}: expected a whole number of steps, or a fraction of them from 0 to below 1"
                    ))),
                }
            }
        }
    }
}

/// A number below 1 as that fraction of `steps`, rounded; others as they are.
pub(crate) fn whole_steps(at: f64, steps: u64) -> f64 {
    if at < 1.0 { (at * steps as f64).round() } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_start_and_end_where_they_are_said_to() {
        let at = |kind| {
            let scale = Scale::Schedule(ScaleSchedule { kind, start: 5.0, end: 1.0, until: 4.0 });
            [1, 3, 4, 5, 9].map(|step| scale.at(step))
        };
        assert_eq!(at(ScaleKind::Constant), [5.0, 5.0, 5.0, 1.0, 1.0]);
        assert_eq!(at(ScaleKind::Linear), [5.0, 3.0, 2.0, 1.0, 1.0]);
        let cosine = at(ScaleKind::Cosine);
        assert!((cosine[1] - 3.0).abs() < 1e-15 && cosine[0] == 5.0 && cosine[3..] == [1.0, 1.0], "{cosine:?}");
        assert_eq!(Scale::from(3.0).at(7), 3.0);
    }
}
