//! Initial values. Every tensor has a random stream of its own, named by its path.

use serde::{Deserialize, Serialize};

use super::ModelConfig;
use crate::rng::Stream;
use crate::{Parameter, Placement};

/// Initial distribution of the matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// OLMo's: normal cut at 3 standard deviations, std 1/sqrt(d) for tables and maps out of the stream,
    /// 1/sqrt(2 fan_in (l + 1)) for maps back into it in block l = 0, 1, ...
    Mitchell,
    /// GPT-2's: normal, std 0.02; maps back into the stream 0.02 / sqrt(2 n_layers).
    Normal,
}

/// What a matrix does, as far as its initial scale goes.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// Token tables, learned positions and maps out of the residual stream.
    FromStream,
    /// Maps back into the residual stream in the given block.
    IntoStream {
        /// Block index from 0.
        layer: usize,
    },
}

impl Init {
    /// Standard deviation and cut (in standard deviations) for a matrix with `fan_in` rows of input.
    pub fn spread(self, usage: Use, fan_in: usize, n_layers: usize) -> (f64, Option<f64>) {
        match (self, usage) {
            (Init::Mitchell, Use::FromStream) => (1.0 / (fan_in as f64).sqrt(), Some(3.0)),
            (Init::Mitchell, Use::IntoStream { layer }) => {
                (1.0 / (2.0 * fan_in as f64 * (layer + 1) as f64).sqrt(), Some(3.0))
            }
            (Init::Normal, Use::FromStream) => (0.02, None),
            (Init::Normal, Use::IntoStream { .. }) => (0.02 / (2.0 * n_layers as f64).sqrt(), None),
        }
    }
}

/// Draws parameters for one model and seed.
pub struct Initialiser<'a> {
    /// The trunk's shape.
    pub config: &'a ModelConfig,
    /// The run's seed.
    pub seed: u64,
    /// Where the tensors go.
    pub at: &'a Placement,
}

impl Initialiser<'_> {
    /// A `[rows, columns]` matrix applied as x W, from the stream `trunk/<path>`.
    pub fn matrix(&self, path: String, shape: [usize; 2], usage: Use) -> Parameter {
        let fan_in = match usage {
            Use::FromStream => self.config.d_model,
            Use::IntoStream { .. } => shape[0],
        };
        let values = self.values(&format!("trunk/{path}"), shape, usage, fan_in);
        Parameter::new(path, values, shape, true, self.at)
    }

    /// A token table's initial values, `[vocabulary, d]` row-major, from the stream `stream`.
    pub fn table(&self, stream: &str, vocabulary: usize) -> Vec<f64> {
        let d = self.config.d_model;
        self.values(stream, [vocabulary, d], Use::FromStream, d)
    }

    fn values(&self, stream: &str, shape: [usize; 2], usage: Use, fan_in: usize) -> Vec<f64> {
        let (std, cut) = self.config.init.spread(usage, fan_in, self.config.n_layers);
        Stream::new(self.seed, stream).normals(shape[0] * shape[1], std, cut)
    }
}
