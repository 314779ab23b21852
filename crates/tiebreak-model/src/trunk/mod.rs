//! The trunk: pre-norm causal blocks between x0 = E\[ids\] and the final norm. Linear maps have no bias.

pub mod attention;
pub mod init;
pub mod mlp;
pub mod norm;
pub mod position;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use tiebreak_kernels::{Precision, Rotary};

use crate::{ConfigError, Parameter, Placement};
use attention::{Attention, KeyValues};
use init::{Init, Initialiser};
use mlp::{Mlp, MlpKind};
use norm::{Norm, NormKind};
use position::{Position, PositionKind};

/// `[model]`: the trunk's shape. The defaults are the block and initialisation of arXiv 2603.26663.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Width d of the residual stream.
    pub d_model: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Attention heads; divides `d_model`.
    pub n_heads: usize,
    /// Hidden width of the MLP; 0 means 4 `d_model`.
    pub d_ff: usize,
    /// MLP form.
    pub mlp: MlpKind,
    /// Normalisation before each part and at the end.
    pub norm: NormKind,
    /// Added to the variance (or mean square) inside the root.
    pub norm_eps: f64,
    /// How positions enter.
    pub position: PositionKind,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Initial distribution of every matrix, tables included.
    pub init: Init,
    /// Factor on the looked-up vectors, after `embed_norm` (sqrt(d) in Gemma and the first Transformer).
    pub embed_scale: f64,
    /// Whether looked-up vectors are divided by their root mean square (modded-nanogpt, nanochat); no gain.
    pub embed_norm: bool,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            d_model: 128,
            n_layers: 4,
            n_heads: 4,
            d_ff: 0,
            mlp: MlpKind::Swiglu,
            norm: NormKind::LayerNoAffine,
            norm_eps: 1e-5,
            position: PositionKind::Rope,
            rope_theta: 10000.0,
            init: Init::Mitchell,
            embed_scale: 1.0,
            embed_norm: false,
        }
    }
}

impl ModelConfig {
    /// Replaces `d_ff = 0` by 4 `d_model`.
    pub fn resolve(&mut self) {
        if self.d_ff == 0 {
            self.d_ff = 4 * self.d_model;
        }
    }

    /// Refuses shapes that cannot be built, naming the key.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail = |text: String| Err(ConfigError(text));
        for (key, value) in [("d_model", self.d_model), ("n_layers", self.n_layers), ("n_heads", self.n_heads)] {
            if value == 0 || value > 1 << 20 {
                return fail(format!("model.{key} = {value}: expected 1 to {}", 1 << 20));
            }
        }
        if self.d_ff > 1 << 22 {
            return fail(format!("model.d_ff = {}: expected at most {}", self.d_ff, 1 << 22));
        }
        if !self.d_model.is_multiple_of(self.n_heads) {
            return fail(format!(
                "model.n_heads = {} does not divide model.d_model = {}: choose a divisor of the width",
                self.n_heads, self.d_model
            ));
        }
        let head = self.d_model / self.n_heads;
        if self.position == PositionKind::Rope && head % 2 == 1 {
            return fail(format!(
                "model.position = \"rope\" needs an even head width, but d_model / n_heads = {head}: change model.n_heads, \
                 or set model.position = \"learned\""
            ));
        }
        let positive =
            [("norm_eps", self.norm_eps), ("rope_theta", self.rope_theta), ("embed_scale", self.embed_scale)];
        for (key, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return fail(format!("model.{key} = {value}: expected a positive number"));
            }
        }
        Ok(())
    }
}

/// One block: x += attention(norm(x)); x += mlp(norm(x)).
#[derive(Clone, Debug)]
pub struct Block {
    norm_attention: Norm,
    attention: Attention,
    norm_mlp: Norm,
    mlp: Mlp,
}

impl Block {
    fn forward(&self, x_btd: Tensor<3>, position: &Position) -> Tensor<3> {
        let x_btd = self.attention.forward(x_btd, &self.norm_attention, position);
        self.mlp.forward(x_btd, &self.norm_mlp)
    }

    fn extend(&self, x_btd: Tensor<3>, rotary: Option<&Rotary>, cache: &mut KeyValues) -> Tensor<3> {
        let x_btd = self.attention.extend(x_btd, &self.norm_attention, rotary, cache);
        self.mlp.forward(x_btd, &self.norm_mlp)
    }
}

/// Keys and values of every block for the positions of one sequence seen so far.
#[derive(Clone, Debug)]
pub struct Cache {
    blocks: Vec<KeyValues>,
    positions: usize,
}

/// Everything between the looked-up rows and the head.
#[derive(Clone, Debug)]
pub struct Trunk {
    embed_scale: f64,
    /// The epsilon of the norm of looked-up vectors, if there is one.
    embed_norm: Option<f64>,
    position: Position,
    blocks: Vec<Block>,
    norm_final: Norm,
}

impl Trunk {
    /// Draws a trunk for sequences of up to `context` tokens. `config` is resolved and valid.
    pub fn init(config: &ModelConfig, context: usize, seed: u64, at: &Placement) -> Self {
        let draw = Initialiser { config, seed, at };
        let norm = |path: String| Norm::init(config, &path, at);
        let blocks = (0..config.n_layers)
            .map(|layer| Block {
                norm_attention: norm(format!("blocks.{layer}.norm_attention")),
                attention: Attention::init(&draw, layer),
                norm_mlp: norm(format!("blocks.{layer}.norm_mlp")),
                mlp: Mlp::init(&draw, layer),
            })
            .collect();
        Self {
            embed_scale: config.embed_scale,
            embed_norm: config.embed_norm.then_some(config.norm_eps),
            position: Position::init(&draw, context),
            blocks,
            norm_final: norm("norm_final".into()),
        }
    }

    /// x0 `[b, t, d]` of positions `first..first + t` to what enters the first block: norm, scale, learned positions.
    fn enter(&self, x_btd: Tensor<3>, first: usize) -> Tensor<3> {
        let x_btd = match self.embed_norm {
            Some(eps) => tiebreak_kernels::norm(tiebreak_kernels::NormKind::Rms, x_btd, eps, None, None),
            None => x_btd,
        };
        let x_btd = if self.embed_scale == 1.0 { x_btd } else { x_btd.mul_scalar(self.embed_scale) };
        self.position.add_learned(x_btd, first)
    }

    /// x0 `[b, t, d]` to the head's input h `[b, t, d]`, the final norm included.
    pub fn forward(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let x_btd = self.enter(x_btd, 0);
        let x_btd = self.blocks.iter().fold(x_btd, |x, block| block.forward(x, &self.position));
        self.norm_final.forward(x_btd)
    }

    /// The residual stream of x0 `[b, t, d]` at its L + 1 points, each `[b, t, d]`: what enters the first block, then what
    /// leaves each block, before the final norm.
    pub fn states(&self, x_btd: Tensor<3>) -> Vec<Tensor<3>> {
        let mut states = vec![self.enter(x_btd, 0)];
        for block in &self.blocks {
            states.push(block.forward(states[states.len() - 1].clone(), &self.position));
        }
        states
    }

    /// A cache that has seen nothing.
    pub fn cache(&self) -> Cache {
        Cache { blocks: vec![KeyValues::default(); self.blocks.len()], positions: 0 }
    }

    /// As [`forward`](Self::forward) for the next t positions of one sequence, x0 `[1, t, d]`, the earlier ones being in
    /// `cache`: h `[1, t, d]`.
    ///
    /// # Panics
    /// If the cache and the t positions together exceed the context.
    pub fn extend(&self, x_btd: Tensor<3>, cache: &mut Cache) -> Tensor<3> {
        let [_, t, _] = x_btd.dims();
        let mut x_btd = self.enter(x_btd, cache.positions);
        let rotary = self.position.rotary_at(cache.positions, t);
        for (block, cache) in self.blocks.iter().zip(&mut cache.blocks) {
            x_btd = block.extend(x_btd, rotary.as_ref(), cache);
        }
        cache.positions += t;
        self.norm_final.forward(x_btd)
    }

    /// The final norm of `[b, t, d]`, on the tape or off it.
    pub fn final_norm(&self, x_btd: Tensor<3>) -> Tensor<3> {
        self.norm_final.forward(x_btd)
    }

    /// The final norm's parameters; none for a norm without any.
    pub fn final_norm_parameters(&self) -> Vec<Parameter> {
        let mut all = Vec::new();
        self.norm_final.clone().visit(&mut |p| all.push(p.clone()));
        all
    }

    /// Number of blocks.
    pub fn layers(&self) -> usize {
        self.blocks.len()
    }

    /// Calls `f` on every parameter, always in the same order.
    pub fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        self.position.visit(f);
        for block in &mut self.blocks {
            block.norm_attention.visit(f);
            block.attention.visit(f);
            block.norm_mlp.visit(f);
            block.mlp.visit(f);
        }
        self.norm_final.visit(f);
    }

    /// The parameters in visiting order (tensors are shared, not copied).
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all = Vec::new();
        self.clone().visit(&mut |p| all.push(p.clone()));
        all
    }

    /// A copy whose parameters are leaves of autodiff and whose maps and attention multiply with this precision. Without a
    /// tape a trunk computes in f32.
    pub fn tracked(&self, precision: Precision) -> Self {
        let mut copy = self.clone();
        for block in &mut copy.blocks {
            block.attention.precision = precision;
            block.mlp.precision = precision;
        }
        copy.visit(&mut |p| p.value = Tensor::from_inner(p.value.clone()).require_grad());
        copy
    }
}
