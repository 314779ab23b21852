//! Probes: what two tables have in common, and what every layer knows of the final prediction. They see matrices and
//! [`ProbedModel`]s, never a trainer.
//!
//! Shapes in names: `n` tokens, `b` sequences, `t` positions, `d` model width, `v` vocabulary.

mod algebra;
mod alignment;
mod evolution;
mod geometry;
#[cfg(test)]
mod golden;
pub mod lens;
mod model;
mod neighbours;
mod norm_frequency;
mod operand;
mod pairing;
mod rows;
mod statistics;
mod table;

pub use alignment::{Aligner, Alignment, FEWEST_ROWS, MOST_PERMUTATIONS, Metric, Options, Score, Tercile, align};
pub use evolution::{Drift, cosines, learned_part, turned};
pub use geometry::{Geometry, geometry};
pub use model::ProbedModel;
pub use neighbours::{Neighbours, knn};
pub use norm_frequency::{FrequencyBin, NormFrequency, norm_frequency};
pub use operand::Operand;
pub use rows::Rows;
pub use statistics::{Distribution, pearson, quantile, ranks, spearman};
pub use table::Table;
