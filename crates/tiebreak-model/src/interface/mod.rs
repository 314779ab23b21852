//! The token interface: a head mode is a rule that produces the pair (E, U), and where it has one a bias of the logits, from
//! parameters, and pulls the gradient of each side back to them. A new mode is one file here and one line in `modes!`
//! (docs/ADD_A_HEAD_MODE.md).

mod config;
mod dual_head;
mod factorised;
mod logit_map;
mod low_rank_private;
mod partial;
mod partial_rows;
mod projected;
mod pseudo_inverse;
mod table;
mod tie_then_untie;
mod tied;
mod tied_bias;
mod untied;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{ConfigError, Parameter};

pub use config::{GatePer, HeadConfig, OutputFactor, RowsWhich};
pub use logit_map::{Head, HeadOutput};
pub use table::{Table, TableGradient, Tables, TablesGradient};
pub use tiebreak_kernels::LogitMap;

macro_rules! modes {
    ($($(#[$doc:meta])* $kind:ident => $file:ident,)*) => {
        /// The head modes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum ModeKind {
            $($(#[$doc])* $kind,)*
        }

        impl ModeKind {
            /// Every mode, in the order they are documented.
            pub const ALL: [ModeKind; [$(stringify!($kind)),*].len()] = [$(ModeKind::$kind),*];

            fn mode(self) -> Mode {
                match self {
                    $(ModeKind::$kind => $file::MODE,)*
                }
            }
        }
    };
}

modes! {
    /// U = E: one matrix looked up and multiplied with (Press & Wolf, arXiv 1608.05859).
    Tied => tied,
    /// E and U are two matrices.
    Untied => untied,
    /// The first columns of E and U are one matrix, the others each side's own.
    Partial => partial,
    /// U = g E + (1 - g) W: a tied and an untied head, mixed by a gate.
    DualHead => dual_head,
    /// One matrix until a step, then two that start from it.
    TieThenUntie => tie_then_untie,
    /// U = E P: the table turned for the head.
    Projected => projected,
    /// One matrix, and a low-rank product of its own for each side.
    LowRankPrivate => low_rank_private,
    /// E and U are products of two thin matrices, of which they share the rows, or all.
    Factorised => factorised,
    /// U^T is the pseudo-inverse of E.
    PseudoInverse => pseudo_inverse,
    /// One matrix, and a bias of the logits.
    TiedBias => tied_bias,
    /// The rows of some ids are one, those of the others each side's own.
    PartialRows => partial_rows,
}

/// Role and shape `[rows, columns]` of one parameter.
pub type RoleAndShape = (Role, [usize; 2]);

/// What a mode's file says of it.
struct Mode {
    /// The parameters for V and d, in the order of [`HeadMode::parameters`]; of a mode that changes, the last ones.
    parameters: fn(&HeadConfig, usize, usize) -> Vec<RoleAndShape>,
    /// One sentence for V and d: what is shared, with shapes.
    describe: fn(&HeadConfig, usize, usize) -> String,
    init: fn(&HeadConfig, Start) -> Box<dyn HeadMode>,
    /// Its own keys in `[head]`; other modes refuse them.
    keys: &'static [&'static str],
    /// Refuses values of its keys that make no sense for V and d.
    check: fn(&HeadConfig, usize, usize) -> Result<(), ConfigError>,
    /// Multiply-adds for V and d.
    cost: fn(&HeadConfig, usize, usize) -> Cost,
    /// Whether E and U are one matrix to the end, for V and d.
    one_matrix: fn(&HeadConfig, usize, usize) -> bool,
    /// Whether it hands its tables out in factors, so that forming them changes how a step rounds.
    factors: bool,
    /// A role that its parameters have only at first.
    first_role: fn(&HeadConfig) -> Option<Role>,
}

impl Mode {
    /// A mode without keys, whose tables are whole and two.
    const fn new(
        parameters: fn(&HeadConfig, usize, usize) -> Vec<RoleAndShape>,
        describe: fn(&HeadConfig, usize, usize) -> String,
        init: fn(&HeadConfig, Start) -> Box<dyn HeadMode>,
    ) -> Self {
        Self {
            parameters,
            describe,
            init,
            keys: &[],
            check: |_, _, _| Ok(()),
            cost: |_, v, d| Cost { per_token: v * d, per_step: 0 },
            one_matrix: |_, _, _| false,
            factors: false,
            first_role: |_| None,
        }
    }
}

/// Multiply-adds of the interface in the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// For each token: the head's product, and what turns rows and states.
    pub per_token: usize,
    /// Once for each optimiser step, with its backward pass: forming tables, retractions.
    pub per_step: usize,
}

impl HeadConfig {
    /// Role and shape of every parameter for V = `vocabulary` and width `d`, in the order of [`HeadMode::parameters`]; of a mode
    /// that changes while training, those it has at the end.
    pub fn parameters(&self, vocabulary: usize, d: usize) -> Vec<RoleAndShape> {
        (self.mode.mode().parameters)(self, vocabulary, d)
    }

    /// Whether a parameter has this role, at some step.
    pub fn has_role(&self, role: Role, vocabulary: usize, d: usize) -> bool {
        self.parameters(vocabulary, d).iter().any(|(r, _)| *r == role)
            || (self.mode.mode().first_role)(self) == Some(role)
    }

    /// Whether the parameters change their roles at some step.
    pub fn changes(&self) -> bool {
        (self.mode.mode().first_role)(self).is_some()
    }

    /// Whether the tables are handed out in factors, so that forming them changes how a step rounds.
    pub fn in_factors(&self) -> bool {
        self.mode.mode().factors
    }

    /// Whether E and U are one matrix to the end.
    pub fn one_matrix(&self, vocabulary: usize, d: usize) -> bool {
        (self.mode.mode().one_matrix)(self, vocabulary, d)
    }

    /// One sentence: what is shared, with shapes, for V = `vocabulary` and width `d`.
    pub fn describe(&self, vocabulary: usize, d: usize) -> String {
        (self.mode.mode().describe)(self, vocabulary, d)
    }

    /// Multiply-adds of the interface for V = `vocabulary` and width `d`.
    pub fn cost(&self, vocabulary: usize, d: usize) -> Cost {
        (self.mode.mode().cost)(self, vocabulary, d)
    }

    /// Builds the configured mode, as it is before the first step. Fractions of steps have been resolved.
    pub fn init(&self, start: Start) -> Box<dyn HeadMode> {
        let mut mode = (self.mode.mode().init)(self, start);
        mode.after_step(0);
        mode
    }
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

impl TableParameter {
    fn value(&self) -> Tensor<2> {
        self.parameter.value.clone()
    }
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
    /// Reached by the lookup alone.
    pub fn input(gradient: Tensor<2>) -> Self {
        Self { input: Some(gradient), output: None }
    }

    /// Reached by the head alone.
    pub fn output(gradient: Tensor<2>) -> Self {
        Self { input: None, output: Some(gradient) }
    }

    /// Reached by both.
    pub fn both(input: Tensor<2>, output: Tensor<2>) -> Self {
        Self { input: Some(input), output: Some(output) }
    }

    /// Both gradients by side; that of another loss may be absent.
    pub fn plus(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        let add = |a: Option<Tensor<2>>, b: Option<Tensor<2>>| match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        Self { input: add(self.input, other.input), output: add(self.output, other.output) }
    }

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
    /// Ids from the most to the least frequent in the training text.
    pub by_rank: Vec<u32>,
    /// The run's seed, for parameters that have no counterpart in E_0 and U_0.
    pub seed: u64,
    /// Where its tensors go.
    pub at: crate::Placement,
}

impl Start {
    /// A parameter that decays like other matrices.
    fn parameter(&self, path: &str, values: Vec<f64>, shape: [usize; 2], role: Role) -> TableParameter {
        TableParameter { parameter: Parameter::new(path.into(), values, shape, true, &self.at), role }
    }

    /// A parameter that never decays.
    fn undecayed(&self, path: &str, values: Vec<f64>, shape: [usize; 2], role: Role) -> TableParameter {
        TableParameter { parameter: Parameter::new(path.into(), values, shape, false, &self.at), role }
    }
}

/// A parameter that a mode made out of another one, whose moments it takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    /// Path of the parameter that was.
    pub from: &'static str,
    /// Path of the parameter that is.
    pub to: &'static str,
}

/// A head mode.
pub trait HeadMode: Send {
    /// Whether E and U are now one matrix, so that it is kept and measured once.
    fn one_matrix(&self) -> bool {
        false
    }

    /// E, U and b, once per optimiser step. Off the tape, or on it where the parameters are.
    fn tables(&self) -> Tables;

    /// E and U formed.
    fn pair(&self) -> Pair {
        let tables = self.tables();
        Pair { input_vd: tables.input.formed(), output_vd: tables.output.formed() }
    }

    /// Pulls the gradients of [`HeadMode::tables`] back to the parameters, in the order of [`HeadMode::parameters`].
    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides>;

    /// The parameters, each once.
    fn parameters(&self) -> Vec<&TableParameter>;

    /// The same, to be changed.
    fn parameters_mut(&mut self) -> Vec<&mut TableParameter>;

    /// Values that are not trained but that a checkpoint needs.
    fn state(&self) -> Vec<&Parameter> {
        vec![]
    }

    /// The same, to be loaded.
    fn state_mut(&mut self) -> Vec<&mut Parameter> {
        vec![]
    }

    /// Called when `step` updates are complete, so before the first one with 0, and before a checkpoint of that step is loaded:
    /// retractions, and changes of the mode itself. Gives the parameters that are new.
    fn after_step(&mut self, _step: u64) -> Vec<Successor> {
        vec![]
    }
}
