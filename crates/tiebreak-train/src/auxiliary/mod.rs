//! Auxiliary losses: gradients of the two sides beside those of the language model, which the table's scales do not touch.

mod reconstruction;
mod symmetry;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use tiebreak_data::Error;
use tiebreak_kernels::{Pending, Reads};
use tiebreak_model::Model;
use tiebreak_model::interface::{TableGradient, Tables, TablesGradient};

use crate::config::{RunConfig, section};

section! {
    /// `[aux]`: weights of losses added to the language model's; 0: off.
    AuxConfig {
        /// Every id is to be predicted from its own row of E, through the head.
        reconstruction: f64 = 0.0,
        /// E and U are to be one another's rotations.
        symmetry: f64 = 0.0,
        /// Steps for which the best rotation is kept.
        symmetry_refresh: u64 = 50,
    }
}

impl AuxConfig {
    /// Refuses weights that are no finite numbers from 0 up.
    pub fn validate(&self) -> Result<(), Error> {
        for (key, value) in [("reconstruction", self.reconstruction), ("symmetry", self.symmetry)] {
            if !(0.0..=1e6).contains(&value) {
                return Err(Error::Input(format!("aux.{key} = {value}: expected a number from 0 (off) to 1e6")));
            }
        }
        match self.symmetry_refresh {
            1..=1_000_000 if self.symmetry == 0.0 && self.symmetry_refresh != AuxConfig::default().symmetry_refresh => {
                Err(Error::Input(format!(
                    "aux.symmetry_refresh = {} without aux.symmetry: remove it, or give the loss a weight",
                    self.symmetry_refresh
                )))
            }
            1..=1_000_000 => Ok(()),
            steps => Err(Error::Input(format!("aux.symmetry_refresh = {steps}: expected 1 to 1000000"))),
        }
    }

    /// Multiply-adds of one step with V = `v` and width `d`, for tables that are whole; forming others is not counted.
    pub fn cost(&self, v: usize, d: usize) -> usize {
        let reconstruction = if self.reconstruction > 0.0 { reconstruction::cost(v, d) } else { 0 };
        let symmetry = if self.symmetry > 0.0 { symmetry::cost(v, d, self.symmetry_refresh as usize) } else { 0 };
        reconstruction + symmetry
    }
}

/// What the auxiliary losses give in one step.
pub struct Auxiliary {
    /// Their sum, weighted, once it is read.
    pub loss: Loss,
    /// Its gradient, in the form in which the mode hands out its tables.
    pub gradient: TablesGradient,
    /// Squares of |dL/dE| and |dL/dU|, if asked for.
    pub squares: Option<[Pending; 2]>,
}

/// A sum of read sums, each with its weight.
pub struct Loss(Vec<(Pending, f64)>);

impl Loss {
    /// What was read.
    ///
    /// # Panics
    /// Before [`Reads::execute`].
    pub fn read(&self, reads: &Reads) -> f64 {
        self.0.iter().map(|(place, weight)| weight * reads.sum(*place)).sum()
    }
}

/// The losses of the update that completes `step`, of the model before it; `None` if all are off. `rotation_dd` is remembered from
/// step to step. `whole`: dL/dE and dL/dU are formed, and their norms measured.
pub fn auxiliary(
    model: &Model,
    config: &RunConfig,
    step: u64,
    rotation_dd: &mut Option<Tensor<2>>,
    whole: bool,
    reads: &mut Reads,
) -> Option<Auxiliary> {
    let aux = &config.aux;
    if aux.reconstruction == 0.0 && aux.symmetry == 0.0 {
        return None;
    }
    let tables = model.interface.tables();
    let mut parts: Vec<Part> = Vec::new();
    if aux.reconstruction > 0.0 {
        parts.push(reconstruction::part(model, &tables, config.seed, step, aux.reconstruction, whole, reads));
    }
    if aux.symmetry > 0.0 {
        if rotation_dd.is_none() || (step - 1).is_multiple_of(aux.symmetry_refresh) {
            *rotation_dd = Some(symmetry::rotation(&tables));
        }
        let rotation_dd = rotation_dd.as_ref().expect("just set");
        parts.push(symmetry::part(&tables, rotation_dd, aux.symmetry, reads));
    }
    if !whole {
        // Parts may come in different forms; what the mode hands out is common to all.
        for part in &mut parts {
            part.hand_out(&tables);
        }
    }
    let mut sum = parts.into_iter().reduce(Part::plus)?;
    let squares = whole.then(|| [&sum.input.rows_vr, &sum.output.rows_vr].map(|t| reads.square(t)));
    sum.hand_out(&tables);
    let bias_1v = tables.bias_1v.as_ref().map(|b| sum.bias_1v.unwrap_or_else(|| b.zeros_like()));
    Some(Auxiliary {
        loss: sum.loss,
        gradient: TablesGradient { input: sum.input, output: sum.output, bias_1v },
        squares,
    })
}

/// One weighted loss and its gradients: of the formed tables, or by the mode's factors.
struct Part {
    loss: Loss,
    input: TableGradient,
    output: TableGradient,
    bias_1v: Option<Tensor<2>>,
}

impl Part {
    fn plus(self, other: Self) -> Self {
        Self {
            loss: Loss(self.loss.0.into_iter().chain(other.loss.0).collect()),
            input: self.input.plus(other.input),
            output: self.output.plus(other.output),
            bias_1v: self.bias_1v.or(other.bias_1v),
        }
    }

    /// Gradients of formed tables become those of the factors.
    fn hand_out(&mut self, tables: &Tables) {
        for (gradient, table) in [(&mut self.input, &tables.input), (&mut self.output, &tables.output)] {
            if gradient.map_rd.is_none() {
                *gradient = table.gradient(gradient.rows_vr.clone());
            }
        }
    }
}
