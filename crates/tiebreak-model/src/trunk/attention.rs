//! Causal multi-head self-attention.

use burn::tensor::Tensor;
use tiebreak_kernels::{Precision, attention, linear_add};

use super::init::{Initialiser, Use};
use super::norm::Norm;
use super::position::Position;
use crate::Parameter;

/// Attention of one block: softmax(q k^T / sqrt(width)) v over earlier and own positions, then a map back.
#[derive(Clone, Debug)]
pub struct Attention {
    heads: usize,
    /// `[d, 3 d]`: columns q | k | v, each head after head.
    qkv: Parameter,
    /// `[d, d]`.
    out: Parameter,
    /// Of the products.
    pub(super) precision: Precision,
}

impl Attention {
    /// Draws the attention of block `layer`.
    pub fn init(draw: &Initialiser, layer: usize) -> Self {
        let d = draw.config.d_model;
        let path = |name: &str| format!("blocks.{layer}.attention.{name}.weight");
        let qkv = draw.matrix(path("qkv"), [d, 3 * d], Use::FromStream);
        let out = draw.matrix(path("out"), [d, d], Use::IntoStream { layer });
        Self { heads: draw.config.n_heads, qkv, out, precision: Precision::F32 }
    }

    /// x + attention of norm(x), each `[b, t, d]`.
    pub fn forward(&self, x_btd: Tensor<3>, norm: &Norm, position: &Position) -> Tensor<3> {
        let [b, t, d] = x_btd.dims();
        let qkv_n3d = norm.linear(x_btd.clone(), &self.qkv, self.precision);
        let mixed_btd = attention(qkv_n3d.reshape([b, t, 3 * d]), self.heads, position.rotary(), self.precision);
        linear_add(x_btd.reshape([b * t, d]), mixed_btd.reshape([b * t, d]), &self.out.value, self.precision)
            .reshape([b, t, d])
    }

    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        f(&mut self.qkv);
        f(&mut self.out);
    }
}
