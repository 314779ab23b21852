//! Training: the step that keeps the two sides of the token interface apart, optimiser, interventions, checkpoints and
//! trackers.

pub mod auxiliary;
pub mod checkpoint;
pub mod config;
mod decode;
pub mod device;
pub mod evaluate;
pub mod folder;
pub mod intervene;
mod kept;
pub mod lens;
pub mod optim;
pub mod parity;
mod probed;
mod probes;
pub mod probing;
pub mod provenance;
mod records;
mod reference;
pub mod residual;
mod run;
pub mod schedule;
pub mod step;
pub mod tensors;
pub mod track;

pub use decode::CachedDecoder;
pub use kept::{KeptTables, Side, keep_tables, tables_of};
pub use probed::{Probed, TrainedModel, Vocabulary};
pub use records::Records;
pub use run::{BURN_VERSION, Outcome, TrainOptions, check_other_devices, train};
pub use tiebreak_data::Error;
