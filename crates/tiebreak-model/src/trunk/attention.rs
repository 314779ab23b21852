//! Causal multi-head self-attention.

use burn::tensor::{Bool, Tensor, activation};

use super::init::{Initialiser, Use};
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
}

impl Attention {
    /// Draws the attention of block `layer`.
    pub fn init(draw: &Initialiser, layer: usize) -> Self {
        let d = draw.config.d_model;
        let path = |name: &str| format!("blocks.{layer}.attention.{name}.weight");
        let qkv = draw.matrix(path("qkv"), [d, 3 * d], Use::FromStream);
        let out = draw.matrix(path("out"), [d, d], Use::IntoStream { layer });
        Self { heads: draw.config.n_heads, qkv, out }
    }

    /// `[b, t, d]` to `[b, t, d]`.
    pub fn forward(&self, x_btd: Tensor<3>, position: &Position) -> Tensor<3> {
        let [b, t, d] = x_btd.dims();
        let (heads, width) = (self.heads, d / self.heads);
        let mask_tt = Tensor::<2, Bool>::tril_mask([t, t], 0, &x_btd.device());
        let x_nd = x_btd.reshape([b * t, d]);
        // Splitting the weight keeps the tape free of slices of activations, whose backward pass fills zeros.
        let project = |part: usize| {
            let weight = self.qkv.value.clone().slice([0..d, part * d..(part + 1) * d]);
            x_nd.clone().matmul(weight).reshape([b, t, heads, width]).swap_dims(1, 2)
        };
        // Scaling q costs a head width per row; scaling the scores would cost a context.
        let q_bhtw = position.rotate(project(0)).mul_scalar(1.0 / (width as f64).sqrt());
        let k_bhtw = position.rotate(project(1));
        let scores_bhtt = q_bhtw.matmul(k_bhtw.swap_dims(2, 3)).mask_fill(mask_tt.unsqueeze(), f32::NEG_INFINITY);
        let mixed_bhtw = activation::softmax(scores_bhtt, 3).matmul(project(2));
        let mixed_nd = mixed_bhtw.swap_dims(1, 2).reshape([b * t, d]);
        mixed_nd.matmul(self.out.value.clone()).reshape([b, t, d])
    }

    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        f(&mut self.qkv);
        f(&mut self.out);
    }
}
