//! The feed-forward part of a block.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use tiebreak_kernels::{Activation, Precision, activation_linear_add};

use super::init::{Initialiser, Use};
use super::norm::Norm;
use crate::Parameter;

/// MLP form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpKind {
    /// down(silu(gate) * value): `up` is `[d, 2 d_ff]`, its first half the value, its second the gate.
    Swiglu,
    /// down(gelu(up)), gelu in its tanh form: `up` is `[d, d_ff]`.
    Gelu,
}

impl MlpKind {
    /// Columns of `up`, in units of `d_ff`.
    pub fn up_width(self) -> usize {
        match self {
            MlpKind::Swiglu => 2,
            MlpKind::Gelu => 1,
        }
    }
}

/// The MLP of one block.
#[derive(Clone, Debug)]
pub struct Mlp {
    kind: MlpKind,
    up: Parameter,
    down: Parameter,
    /// Of the two maps.
    pub(super) precision: Precision,
}

impl Mlp {
    /// Draws the MLP of block `layer`.
    pub fn init(draw: &Initialiser, layer: usize) -> Self {
        let (d, ff, kind) = (draw.config.d_model, draw.config.d_ff, draw.config.mlp);
        let up = draw.matrix(format!("blocks.{layer}.mlp.up.weight"), [d, kind.up_width() * ff], Use::FromStream);
        let down = draw.matrix(format!("blocks.{layer}.mlp.down.weight"), [ff, d], Use::IntoStream { layer });
        Self { kind, up, down, precision: Precision::F32 }
    }

    /// x + MLP of norm(x), each `[b, t, d]`.
    pub fn forward(&self, x_btd: Tensor<3>, norm: &Norm) -> Tensor<3> {
        let [b, t, d] = x_btd.dims();
        let up = norm.linear(x_btd.clone(), &self.up, self.precision);
        let activation = match self.kind {
            MlpKind::Gelu => Activation::Gelu,
            MlpKind::Swiglu => Activation::Swiglu,
        };
        let x_nd = x_btd.reshape([b * t, d]);
        activation_linear_add(x_nd, activation, up, &self.down.value, self.precision).reshape([b, t, d])
    }

    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        f(&mut self.up);
        f(&mut self.down);
    }
}
