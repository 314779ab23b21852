//! Measures: what is shown of a claim, one line each.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::estimate::Estimate;
use crate::verdict::Interval;

/// What a measure is to its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It decides.
    Primary,
    /// It corrects the primary one.
    Corrected,
    /// It stands beside.
    Also,
}

/// One number with its interval, chance levels and ceiling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measure {
    /// What is measured.
    pub name: String,
    /// Steps that it is taken over.
    pub window: String,
    /// What it is to the claim.
    pub role: Role,
    /// Mean over seeds.
    pub mean: Option<f64>,
    /// 95 % interval over seeds; `None` below three.
    pub ci95: Interval,
    /// Seeds.
    pub n: usize,
    /// The same of random pairings.
    pub null: Option<f64>,
    /// The same of random pairings within frequency groups.
    pub null_freq: Option<f64>,
    /// The same of two seeds of one arm.
    pub ceiling: Option<f64>,
    /// By seed.
    pub values: BTreeMap<u64, f64>,
}

impl Measure {
    /// Without chance levels.
    pub fn new(role: Role, name: impl Into<String>, window: impl Into<String>, estimate: Estimate) -> Self {
        let Estimate { mean, ci95, n, values } = estimate;
        let (name, window) = (name.into(), window.into());
        Self { name, window, role, mean, ci95, n, null: None, null_freq: None, ceiling: None, values }
    }

    /// With chance levels and a ceiling.
    pub fn beside(self, null: Option<f64>, null_freq: Option<f64>, ceiling: Option<f64>) -> Self {
        Self { null, null_freq, ceiling, ..self }
    }
}
