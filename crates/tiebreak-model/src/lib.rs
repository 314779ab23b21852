//! Decoder-only language models whose token interface, the pair of an input table E and an output table U, is a
//! choice: trunks and head modes.
//!
//! Shapes in names: `n` tokens, `b` sequences, `t` positions, `d` model width, `v` vocabulary.

pub mod generation;
pub mod interface;
mod model;
pub mod orthogonal;
mod parameter;
pub mod rng;
pub mod trunk;

pub use model::{MemoryLine, Model, ParameterCount, Vocabulary};
pub use parameter::{Parameter, Placement};
pub use trunk::ModelConfig;

/// A model or head configuration that cannot be built; the message names the key, what was found and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);
