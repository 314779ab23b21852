//! Probes: what two tables have in common, and what every layer knows of the final prediction. They see matrices and
//! [`ProbedModel`]s, never a trainer.
//!
//! Shapes in names: `n` tokens, `b` sequences, `t` positions, `d` model width, `v` vocabulary.

pub mod lens;
mod model;

pub use model::ProbedModel;
