//! How positions enter: rotary angles inside attention, or learned vectors added to x0.

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::init::{Initialiser, Use};
use crate::Parameter;

/// Position encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionKind {
    /// Rotary, halves rotated against each other (GPT-NeoX, Llama).
    Rope,
    /// A learned vector per position, added to x0; part of the trunk.
    Learned,
}

/// Position encoding for up to `context` tokens.
#[derive(Clone, Debug)]
pub enum Position {
    /// cos and sin of position t times theta^(-2 j / head width), each `[context, head width / 2]`.
    Rope {
        /// Cosines.
        cos: Tensor<2>,
        /// Sines.
        sin: Tensor<2>,
    },
    /// The table `[context, d]`.
    Learned(Parameter),
}

impl Position {
    /// Angles or a drawn table.
    pub fn init(draw: &Initialiser, context: usize) -> Self {
        let config = draw.config;
        if config.position == PositionKind::Learned {
            let shape = [context, config.d_model];
            return Position::Learned(draw.matrix("position.weight".into(), shape, Use::FromStream));
        }
        let half = config.d_model / config.n_heads / 2;
        let angle = |i: usize| (i / half) as f64 * config.rope_theta.powf(-((i % half) as f64) / half as f64);
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f64> = (0..context * half).map(|i| f(angle(i))).collect();
            Tensor::from_data(TensorData::new(values, [context, half]), draw.at.options())
        };
        Position::Rope { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Adds learned positions to x0 `[b, t, d]`; leaves x0 as it is for rotary ones.
    pub fn add_learned(&self, x_btd: Tensor<3>) -> Tensor<3> {
        match self {
            Position::Rope { .. } => x_btd,
            Position::Learned(table) => {
                let [_, t, d] = x_btd.dims();
                x_btd + table.value.clone().slice([0..t, 0..d]).unsqueeze()
            }
        }
    }

    /// Rotates queries or keys `[b, heads, t, width]`; leaves them as they are for learned positions.
    pub fn rotate(&self, x_bhtw: Tensor<4>) -> Tensor<4> {
        match self {
            Position::Learned(_) => x_bhtw,
            Position::Rope { cos, sin } => {
                let [_, _, t, width] = x_bhtw.dims();
                let half = width / 2;
                let rows = |table: &Tensor<2>| table.clone().slice([0..t, 0..half]).unsqueeze::<4>();
                let (cos, sin) = if x_bhtw.is_autodiff() {
                    (Tensor::from_inner(rows(cos)), Tensor::from_inner(rows(sin)))
                } else {
                    (rows(cos), rows(sin))
                };
                let a = x_bhtw.clone().slice_dim(3, 0..half);
                let b = x_bhtw.slice_dim(3, half..width);
                let rotated = [a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin];
                Tensor::cat(rotated.to_vec(), 3)
            }
        }
    }

    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        if let Position::Learned(table) = self {
            f(table);
        }
    }
}
