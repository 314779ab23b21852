//! One integration binary: each module is a kind of promise that crosses crates.

mod bad_input;
mod docs;
mod golden;
mod harness;
mod invariants;
mod resume;
mod sweep;
mod tensorboard;
