//! Interventions at the table: factors on the accumulated G_in and G_out, once per optimiser step, whatever the mode.

use serde::{Deserialize, Serialize};
use tiebreak_data::Error;

use crate::config::section;

/// Where the factors act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Before the global clip, whose norm sees them (the paper's order).
    BeforeClip,
    /// After it: the clip sees the plain gradient.
    AfterClip,
}

section! {
    /// `[intervene]`.
    InterveneConfig {
        /// s_in, on G_in.
        input_scale: f64 = 1.0,
        /// s_out, on G_out and never on the trunk.
        output_scale: f64 = 1.0,
        /// Before or after the clip.
        position: Place = Place::BeforeClip,
        /// The authors' output scale: one factor on dL/dh and G_out alike, so on the whole network.
        paper_output_scale: f64 = 1.0,
    }
}

/// Factors of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// On the input side.
    pub input: f64,
    /// On the output side.
    pub output: f64,
}

impl Factors {
    /// Nothing is done.
    pub const NONE: Factors = Factors { input: 1.0, output: 1.0 };
}

impl InterveneConfig {
    /// Refuses factors that are no finite numbers from 0 up.
    pub fn validate(&self) -> Result<(), Error> {
        let keys = [
            ("input_scale", self.input_scale),
            ("output_scale", self.output_scale),
            ("paper_output_scale", self.paper_output_scale),
        ];
        match keys.iter().find(|(_, value)| !(0.0..=1e12).contains(value)) {
            Some((key, value)) => {
                Err(Error::Input(format!("intervene.{key} = {value}: expected a number from 0 to 1e12")))
            }
            None => Ok(()),
        }
    }

    /// The step's factors.
    pub fn factors(&self) -> Factors {
        Factors { input: self.input_scale, output: self.output_scale }
    }
}
