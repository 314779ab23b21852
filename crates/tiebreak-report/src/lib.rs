//! The paper's experiments: what is trained, what is claimed, what holds here.

pub mod figure;
mod pilot;
mod plan;
mod reproduce;
mod runs;
mod series;

pub use pilot::Pilot;
pub use plan::{EXPERIMENTS, Scale};
pub use reproduce::{Ended, Options, reproduce};
