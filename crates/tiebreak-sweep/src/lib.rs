//! Sweeps: a file of arms, grid and seeds becomes runs, run side by side as child processes, and a comparison over seeds.

mod compare;
mod expand;
mod grammar;
mod launch;
mod lens;
mod plan;
mod progress;
mod runs;
pub mod statistics;
mod summary;
mod sweep;
mod table;
mod tags;
pub mod windows;

pub use compare::{ArmSummary, CompareOptions, Comparison, Versus, compare};
pub use expand::{Cell, expand};
pub use grammar::{Arm, SweepConfig};
pub use launch::{LaunchOptions, default_split};
pub use plan::{Located, locate};
pub use runs::{each_scalar, series};
pub use summary::{CellRecord, SUMMARY_FILE, SWEEP_FILE, SweepRecord};
pub use sweep::{CellsOutcome, Sweep, SweepOutcome, train_cells};
pub use tags::{TAGS, is_tag};
