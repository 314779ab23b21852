//! Training: the step that keeps the two sides of the token interface apart, optimiser, interventions, checkpoints and
//! trackers.

pub mod auxiliary;
pub mod checkpoint;
pub mod config;
pub mod device;
pub mod evaluate;
pub mod folder;
pub mod intervene;
pub mod optim;
mod probed;
pub mod provenance;
mod run;
pub mod schedule;
pub mod step;
pub mod tensors;
pub mod track;

pub use probed::TrainedModel;
pub use run::{BURN_VERSION, Outcome, TrainOptions, train};
pub use tiebreak_data::Error;
