//! Interventions at the table: factors on the accumulated G_in and G_out, once per optimiser step, whatever the mode.

mod balance;
mod learned;
mod output_clip;
pub(crate) mod schedule;

use serde::{Deserialize, Serialize};
use tiebreak_data::Error;

use crate::config::section;

pub use schedule::{Scale, ScaleKind, ScaleSchedule};

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
        input_scale: Scale = Scale::Constant(1.0),
        /// s_out, on G_out and never on the trunk.
        output_scale: Scale = Scale::Constant(1.0),
        /// Before or after the clip.
        position: Place = Place::BeforeClip,
        /// The authors' output scale: one factor on dL/dh and G_out alike, so on the whole network.
        paper_output_scale: f64 = 1.0,
        /// s_in is driven so that |s_in G_in| / |s_out G_out| becomes this; 0: off.
        balance_target: f64 = 0.0,
        /// s_in and s_out are learned from the two gradients, by multiple-gradient descent.
        learned: bool = false,
        /// |s_out G_out| is at most s_out times this times the recent |G_in|; 0: off.
        output_clip: f64 = 0.0,
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

/// Squared lengths and the inner product of one step's two sides: of G_in and G_out, or of what reaches the shared parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Products {
    /// The input side's squared length.
    pub input: f64,
    /// The output side's.
    pub output: f64,
    /// Their inner product.
    pub dot: f64,
}

impl std::iter::Sum for Products {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        let mut sum = Self { input: 0.0, output: 0.0, dot: 0.0 };
        for part in parts {
            sum = Self { input: sum.input + part.input, output: sum.output + part.output, dot: sum.dot + part.dot };
        }
        sum
    }
}

/// What the interventions remember from step to step; checkpoints keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    balance: Option<balance::Balance>,
    learned: Option<learned::Learned>,
    output_clip: Option<output_clip::OutputClip>,
}

impl InterveneConfig {
    /// Refuses factors that are no finite numbers from 0 up, and rules that would fight over one factor.
    pub fn validate(&self) -> Result<(), Error> {
        let fail = |text: String| Err(Error::Input(text));
        self.input_scale.validate("intervene.input_scale")?;
        self.output_scale.validate("intervene.output_scale")?;
        let keys = [
            ("paper_output_scale", self.paper_output_scale),
            ("balance_target", self.balance_target),
            ("output_clip", self.output_clip),
        ];
        if let Some((key, value)) = keys.iter().find(|(_, value)| !(0.0..=1e12).contains(value)) {
            return fail(format!("intervene.{key} = {value}: expected a number from 0 to 1e12"));
        }
        let rules = self.rules();
        if rules.len() > 1 {
            return fail(format!(
                "intervene.{} and intervene.{} would work against each other: keep one of them",
                rules[0], rules[1]
            ));
        }
        if self.balance_target > 0.0 && !(1.0 / balance::LIMIT..=balance::LIMIT).contains(&self.balance_target) {
            return fail(format!(
                "intervene.balance_target = {}: expected 0 (off) or a number from {} to {}, between which the scale is kept",
                self.balance_target,
                1.0 / balance::LIMIT,
                balance::LIMIT
            ));
        }
        if self.balance_target > 0.0 && matches!(self.output_scale, Scale::Constant(0.0)) {
            return fail("intervene.balance_target weighs the input side against an output side that intervene.output_scale = 0 \
                         takes away: remove one of the two".into());
        }
        if (self.balance_target > 0.0 || self.learned) && !self.input_scale.is_one() {
            return fail(format!("intervene.input_scale is decided by intervene.{}: remove one of the two", rules[0]));
        }
        if self.learned && !self.output_scale.is_one() {
            return fail("intervene.output_scale is decided by intervene.learned: remove one of the two".into());
        }
        Ok(())
    }

    /// Keys of the rules in use that look at the two sides.
    pub fn rules(&self) -> Vec<&'static str> {
        let rules = [
            ("balance_target", self.balance_target > 0.0),
            ("learned", self.learned),
            ("output_clip", self.output_clip > 0.0),
        ];
        rules.into_iter().filter(|(_, used)| *used).map(|(key, _)| key).collect()
    }

    /// Whether the factors can differ from 1, so that they are worth logging.
    pub fn acts(&self) -> bool {
        !self.input_scale.is_one() || !self.output_scale.is_one() || !self.rules().is_empty()
    }

    /// Factors of the update that completes `step` (1-based); `products` is called if a rule looks at the sides: over the `shared`
    /// parameters if they are learned, else of G_in and G_out. Without parameters that are `shared`, as after an untying, rules rest.
    pub fn factors(
        &self,
        step: u64,
        memory: &mut Memory,
        shared: bool,
        products: impl FnOnce() -> Products,
    ) -> Factors {
        let output = self.output_scale.at(step);
        if !shared {
            Factors { input: self.input_scale.at(step), output }
        } else if self.learned {
            learned::factors(&mut memory.learned, products())
        } else if self.balance_target > 0.0 {
            let input = balance::input_scale(&mut memory.balance, products(), self.balance_target, output);
            Factors { input, output }
        } else if self.output_clip > 0.0 {
            let factor = output_clip::output_factor(&mut memory.output_clip, products(), self.output_clip);
            Factors { input: self.input_scale.at(step), output: output * factor }
        } else {
            Factors { input: self.input_scale.at(step), output }
        }
    }
}
