//! Causal multi-head self-attention.

use burn::tensor::{Bool, Tensor, activation};
use tiebreak_kernels::{NEVER, Precision, Rotary, attention, linear_add, rotate};

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

/// What one block's attention keeps of the positions it has seen, `[1, heads, t, head width]` each.
#[derive(Clone, Debug)]
struct Seen {
    /// Rotated where positions are rotary.
    keys: Tensor<4>,
    values: Tensor<4>,
}

/// Keys and values of one block; empty at first.
#[derive(Clone, Debug, Default)]
pub struct KeyValues(Option<Seen>);

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

    /// As [`forward`](Self::forward) for the next t positions of one sequence, `[1, t, d]`, with keys and values of the
    /// earlier ones from `cache`, to which it adds theirs; `rotary` holds the angles of the t positions.
    pub fn extend(&self, x_btd: Tensor<3>, norm: &Norm, rotary: Option<&Rotary>, cache: &mut KeyValues) -> Tensor<3> {
        let [b, t, d] = x_btd.dims();
        let width = d / self.heads;
        let first = cache.0.as_ref().map_or(0, |seen| seen.keys.dims()[2]);
        let qkv_n3d = norm.linear(x_btd.clone(), &self.qkv, self.precision);
        let part = |i: usize| {
            qkv_n3d.clone().slice_dim(1, i * d..(i + 1) * d).reshape([b, t, self.heads, width]).swap_dims(1, 2)
        };
        let q_bhtw = rotate(part(0), rotary).mul_scalar(1.0 / (width as f64).sqrt());
        let new = Seen { keys: rotate(part(1), rotary), values: part(2) };
        let seen = match cache.0.take() {
            None => new,
            Some(old) => Seen {
                keys: Tensor::cat(vec![old.keys, new.keys], 2),
                values: Tensor::cat(vec![old.values, new.values], 2),
            },
        };
        let mut scores_bhts = q_bhtw.matmul(seen.keys.clone().swap_dims(2, 3));
        if t > 1 {
            let mask_ts = Tensor::<2, Bool>::tril_mask([t, first + t], first as i64, &scores_bhts.device());
            scores_bhts = scores_bhts.mask_fill(mask_ts.unsqueeze(), NEVER);
        }
        let mixed_bhtw = activation::softmax(scores_bhts, 3).matmul(seen.values.clone());
        cache.0 = Some(seen);
        let mixed_nd = mixed_bhtw.swap_dims(1, 2).reshape([b * t, d]);
        linear_add(x_btd.reshape([b * t, d]), mixed_nd, &self.out.value, self.precision).reshape([b, t, d])
    }

    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        f(&mut self.qkv);
        f(&mut self.out);
    }
}
