//! How positions enter: rotary angles inside attention, or learned vectors added to x0.

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};
use tiebreak_kernels::Rotary;

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
    Rope(Rotary),
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
        Position::Rope(Rotary { cos: table(f64::cos), sin: table(f64::sin) })
    }

    /// Adds learned positions to x0 `[b, t, d]` of positions `first..first + t`; leaves x0 as it is for rotary ones.
    pub fn add_learned(&self, x_btd: Tensor<3>, first: usize) -> Tensor<3> {
        match self {
            Position::Rope(_) => x_btd,
            Position::Learned(table) => {
                let [_, t, d] = x_btd.dims();
                x_btd + table.value.clone().slice([first..first + t, 0..d]).unsqueeze()
            }
        }
    }

    /// The angles by which attention rotates queries and keys, if it does.
    pub fn rotary(&self) -> Option<&Rotary> {
        match self {
            Position::Rope(rotary) => Some(rotary),
            Position::Learned(_) => None,
        }
    }

    /// The same for positions `first..first + t` alone.
    pub fn rotary_at(&self, first: usize, t: usize) -> Option<Rotary> {
        let rows = |table: &Tensor<2>| table.clone().slice_dim(0, first..first + t);
        self.rotary().map(|r| Rotary { cos: rows(&r.cos), sin: rows(&r.sin) })
    }

    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        if let Position::Learned(table) = self {
            f(table);
        }
    }
}
