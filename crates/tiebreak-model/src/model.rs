use burn::tensor::{Int, Tensor};
use serde::Serialize;

use crate::interface::{Cost, HeadConfig, HeadMode, LogitMap, Role, Start};
use crate::trunk::init::Initialiser;
use crate::trunk::position::PositionKind;
use crate::trunk::{ModelConfig, Trunk};
use crate::{Parameter, Placement};

/// A trunk and its token interface.
pub struct Model {
    /// x0 to h.
    pub trunk: Trunk,
    /// The rule for (E, U).
    pub interface: Box<dyn HeadMode>,
    /// Soft-cap and z-loss of the logits; a bias is the interface's.
    pub logit_map: LogitMap,
}

/// The ids of a vocabulary, by frequency.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// Each id once, from the most to the least frequent in the training text.
    pub by_rank: Vec<u32>,
}

impl From<usize> for Vocabulary {
    /// V ids, taken to be in the order of their frequency (as byte-pair merges roughly are). Good wherever the ranks come from a
    /// checkpoint, and for modes that do not look at them.
    fn from(v: usize) -> Self {
        Self { by_rank: (0..v as u32).collect() }
    }
}

/// Distinct parameters by place; a shared matrix counts under `embedding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ParameterCount {
    /// All, each once.
    pub unique: usize,
    /// Shared, input side and maps.
    pub embedding: usize,
    /// Output side alone.
    pub head: usize,
    /// Everything between.
    pub trunk: usize,
}

/// An estimate of what training holds, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryLine {
    /// What.
    pub name: String,
    /// How much.
    pub bytes: usize,
}

impl Model {
    /// Draws a model as it is before the first step: the trunk's and the tables' values depend on the seed and their path, not on
    /// the head mode. `vocabulary` is V or a [`Vocabulary`].
    pub fn init(
        model: &ModelConfig,
        head: &HeadConfig,
        vocabulary: impl Into<Vocabulary>,
        context: usize,
        seed: u64,
        at: &Placement,
    ) -> Self {
        let draw = Initialiser { config: model, seed, at };
        let by_rank = vocabulary.into().by_rank;
        let v = by_rank.len();
        let start = Start {
            input: draw.table("input_table", v),
            output: draw.table("output_table", v),
            shape: [v, model.d_model],
            by_rank,
            seed,
            at: at.clone(),
        };
        let trunk = Trunk::init(model, context, seed, at);
        Self { trunk, interface: head.init(start), logit_map: head.logit_map() }
    }

    /// Every parameter once: the interface's, then the trunk's. Tensors are shared, not copied.
    pub fn parameters(&self) -> Vec<Parameter> {
        let tables = self.interface.parameters().into_iter().map(|p| p.parameter.clone());
        tables.chain(self.trunk.parameters()).collect()
    }

    /// Calls `f` on every parameter, with its role if it belongs to the interface.
    pub fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter, Option<Role>)) {
        for table in self.interface.parameters_mut() {
            f(&mut table.parameter, Some(table.role));
        }
        self.trunk.visit(&mut |p| f(p, None));
    }

    /// Rows of E for ids `[b, t]`: x0 `[b, t, d]`.
    pub fn lookup(input_vd: &Tensor<2>, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        let [b, t] = ids_bt.dims();
        let [_, d] = input_vd.dims();
        input_vd.clone().select(0, ids_bt.reshape([b * t])).reshape([b, t, d])
    }
}

impl ModelConfig {
    /// Counts distinct parameters for a vocabulary and context, without building anything. `self` is resolved.
    pub fn count(&self, head: &HeadConfig, vocabulary: usize, context: usize) -> ParameterCount {
        let d = self.d_model;
        let block = 4 * d * d + (self.mlp.up_width() + 1) * d * self.d_ff + 2 * self.norm.vectors() * d;
        let learned = (self.position == PositionKind::Learned) as usize * context * d;
        let trunk = self.n_layers * block + self.norm.vectors() * d + learned;
        let interface = head.parameters(vocabulary, d);
        let size = |output: bool| -> usize {
            interface
                .iter()
                .filter(|(r, _)| (*r == Role::Output) == output)
                .map(|(_, [rows, columns])| rows * columns)
                .sum()
        };
        let (embedding, head) = (size(false), size(true));
        ParameterCount { unique: embedding + head + trunk, embedding, head, trunk }
    }

    /// FLOPs per token of training with `step_tokens` tokens a step: 3 times the forward pass (backward counts twice), 2 per
    /// multiply-add, matrix products only; attention over the whole context, as it is computed; the interface as its mode
    /// computes it, the head's product in every mode. Auxiliary losses and tables that are formed for
    /// provenance and evaluation are not counted.
    pub fn flops_per_token(&self, head: &HeadConfig, vocabulary: usize, context: usize, step_tokens: usize) -> usize {
        let d = self.d_model;
        let block = 4 * d * d + (self.mlp.up_width() + 1) * d * self.d_ff + 2 * context * d;
        let Cost { per_token, per_step } = head.cost(vocabulary, d);
        3 * 2 * (self.n_layers * block + per_token) + 2 * per_step / step_tokens.max(1)
    }

    /// The `d_ff`, a multiple of 8, whose parameter count comes nearest to `unique`; `None` if that misses by over 1 %.
    pub fn d_ff_for(&self, unique: usize, head: &HeadConfig, vocabulary: usize, context: usize) -> Option<usize> {
        let at = |d_ff: usize| ModelConfig { d_ff, ..self.clone() }.count(head, vocabulary, context).unique;
        let per_unit = at(1) - at(0);
        let ideal = unique.checked_sub(at(0))? as f64 / per_unit as f64;
        let d_ff = ((ideal / 8.0).round() as usize).max(1) * 8;
        let miss = (at(d_ff) as f64 - unique as f64).abs() / unique as f64;
        (miss <= 0.01).then_some(d_ff)
    }

    /// Estimated memory of training in single precision, with micro-batches of `tokens`.
    pub fn memory(&self, head: &HeadConfig, vocabulary: usize, context: usize, tokens: usize) -> Vec<MemoryLine> {
        let d = self.d_model;
        let count = self.count(head, vocabulary, context);
        let shared = head.parameters(vocabulary, d).into_iter().filter(|(role, _)| *role == Role::Shared);
        let shared: usize = shared.map(|(_, [rows, columns])| rows * columns).sum();
        // Inputs of the norms and products, packed q k v and one logarithm per score row; scores are not kept.
        let saved_per_token = self.n_layers * (8 * d + (self.mlp.up_width() + 1) * self.d_ff + self.n_heads) + 4 * d;
        let line = |name: &str, floats: usize| MemoryLine { name: name.into(), bytes: 4 * floats };
        vec![
            line("parameters", count.unique),
            line("gradients", count.trunk + 2 * vocabulary * d),
            line("AdamW moments (of shared parameters the input's part too)", 2 * count.unique + shared),
            line("activations of one micro-batch (estimate)", saved_per_token * tokens),
            line("head chunk", tiebreak_kernels::CHUNK.min(tokens) * vocabulary),
        ]
    }
}
