//! The paper's experiments: what is trained, what is claimed, what holds here.

mod alignments;
mod claims;
mod estimate;
mod experiments;
pub mod figure;
mod lens;
mod measure;
mod pilot;
mod plan;
mod published;
mod reproduce;
mod results;
mod runs;
mod series;
mod verdict;

pub use plan::{EXPERIMENTS, Scale};
pub use reproduce::{Ended, Options, reproduce};
