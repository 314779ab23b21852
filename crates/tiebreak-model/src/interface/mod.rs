//! The token interface: a head mode is a rule that produces the pair (E, U) from parameters and pulls the gradient of
//! each side back to them. A new mode is one file here with a `MODE`, one variant of [`ModeKind`] and one match arm.

mod tied;
mod untied;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::Parameter;

/// `[head]`: the mode and its own keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeadConfig {
    /// Which rule makes the pair.
    pub mode: ModeKind,
}

impl Default for HeadConfig {
    fn default() -> Self {
        Self { mode: ModeKind::Tied }
    }
}

/// The head modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeKind {
    /// U = E: one matrix looked up and multiplied with (Press & Wolf, arXiv 1608.05859).
    Tied,
    /// E and U are two matrices.
    Untied,
}

impl ModeKind {
    /// Every mode, in the order they are documented.
    pub const ALL: [ModeKind; 2] = [ModeKind::Tied, ModeKind::Untied];

    fn mode(self) -> Mode {
        match self {
            ModeKind::Tied => tied::MODE,
            ModeKind::Untied => untied::MODE,
        }
    }
}

impl HeadConfig {
    /// Role and shape of every parameter for V = `vocabulary` and width `d`, in the order of [`HeadMode::parameters`].
    pub fn parameters(&self, vocabulary: usize, d: usize) -> Vec<RoleAndShape> {
        (self.mode.mode().parameters)(self, vocabulary, d)
    }

    /// Whether a parameter has this role.
    pub fn has_role(&self, role: Role) -> bool {
        self.parameters(1, 1).iter().any(|(r, _)| *r == role)
    }

    /// One sentence: what is shared, with shapes, for V = `vocabulary` and width `d`.
    pub fn describe(&self, vocabulary: usize, d: usize) -> String {
        (self.mode.mode().describe)(self, vocabulary, d)
    }

    /// Builds the configured mode.
    pub fn init(&self, start: Start) -> Box<dyn HeadMode> {
        (self.mode.mode().init)(self, start)
    }
}

/// Role and shape `[rows, columns]` of one parameter.
pub type RoleAndShape = (Role, [usize; 2]);

/// What a mode's file says of it.
struct Mode {
    parameters: fn(&HeadConfig, usize, usize) -> Vec<RoleAndShape>,
    describe: fn(&HeadConfig, usize, usize) -> String,
    init: fn(&HeadConfig, Start) -> Box<dyn HeadMode>,
}

/// What a parameter of the interface serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Both sides.
    Shared,
    /// The lookup only.
    Input,
    /// The head only.
    Output,
    /// A map between the two.
    Map,
}

/// A parameter of the interface and its role.
#[derive(Clone, Debug)]
pub struct TableParameter {
    /// The values and their path.
    pub parameter: Parameter,
    /// What it serves.
    pub role: Role,
}

/// The pair every trunk, loss, probe and export sees, as plain tensors.
#[derive(Clone, Debug)]
pub struct Pair {
    /// E, `[v, d]`: ids to vectors.
    pub input_vd: Tensor<2>,
    /// U, `[v, d]`: states to logits, h U^T.
    pub output_vd: Tensor<2>,
}

/// A parameter's gradient by side, before the sides are added. `None`: the side does not reach the parameter.
#[derive(Clone, Debug)]
pub struct Sides {
    /// The part that came through the lookup.
    pub input: Option<Tensor<2>>,
    /// The part that came through the head.
    pub output: Option<Tensor<2>>,
}

impl Sides {
    /// The whole gradient.
    pub fn sum(self) -> Tensor<2> {
        match (self.input, self.output) {
            // Into the buffer of the output's, for the input's is often kept.
            (Some(a), Some(b)) => b + a,
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => unreachable!("a parameter that neither side reaches has no place in a head mode"),
        }
    }
}

/// What a mode is built from, the same for every mode of one seed.
pub struct Start {
    /// E_0, `[v, d]` row-major, from the random stream "input_table".
    pub input: Vec<f64>,
    /// U_0, `[v, d]` row-major, from the random stream "output_table".
    pub output: Vec<f64>,
    /// V and d.
    pub shape: [usize; 2],
    /// Where its tensors go.
    pub at: crate::Placement,
}

/// A head mode.
pub trait HeadMode: Send {
    /// Its kind.
    fn kind(&self) -> ModeKind;

    /// Whether E and U are one matrix, so that it is kept and measured once.
    fn one_matrix(&self) -> bool {
        false
    }

    /// E and U, once per optimiser step.
    fn pair(&self) -> Pair;

    /// Pulls dL/dE and dL/dU, each `[v, d]`, back to the parameters, in the order of [`HeadMode::parameters`].
    fn pullback(&self, input_vd: Tensor<2>, output_vd: Tensor<2>) -> Vec<Sides>;

    /// The parameters, each once.
    fn parameters(&self) -> Vec<&TableParameter>;

    /// The same, to be changed.
    fn parameters_mut(&mut self) -> Vec<&mut TableParameter>;
}

fn table(path: &str, values: Vec<f64>, start_shape: [usize; 2], at: &crate::Placement, role: Role) -> TableParameter {
    TableParameter { parameter: Parameter::new(path.into(), values, start_shape, true, at), role }
}
