//! The feed-forward part of a block.

use burn::tensor::{Tensor, activation};
use serde::{Deserialize, Serialize};

use super::init::{Initialiser, Use};
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
}

impl Mlp {
    /// Draws the MLP of block `layer`.
    pub fn init(draw: &Initialiser, layer: usize) -> Self {
        let (d, ff, kind) = (draw.config.d_model, draw.config.d_ff, draw.config.mlp);
        let up = draw.matrix(format!("blocks.{layer}.mlp.up.weight"), [d, kind.up_width() * ff], Use::FromStream);
        let down = draw.matrix(format!("blocks.{layer}.mlp.down.weight"), [ff, d], Use::IntoStream { layer });
        Self { kind, up, down }
    }

    /// `[b, t, d]` to `[b, t, d]`.
    pub fn forward(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let [b, t, d] = x_btd.dims();
        let x_nd = x_btd.reshape([b * t, d]);
        let up = self.up.value.clone();
        let hidden_nf = match self.kind {
            MlpKind::Gelu => activation::gelu_approximate(x_nd.matmul(up)),
            MlpKind::Swiglu => {
                // Splitting the weight keeps the tape free of slices of activations, whose backward pass fills zeros.
                let ff = up.dims()[1] / 2;
                let value_nf = x_nd.clone().matmul(up.clone().slice([0..d, 0..ff]));
                let gate_nf = x_nd.matmul(up.slice([0..d, ff..2 * ff]));
                activation::silu(gate_nf) * value_nf
            }
        };
        hidden_nf.matmul(self.down.value.clone()).reshape([b, t, d])
    }

    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        f(&mut self.up);
        f(&mut self.down);
    }
}
