//! One integration binary: each module is a kind of promise that crosses crates.

mod bad_input;
mod golden;
mod harness;
mod invariants;
mod look;
mod probes;
mod reproduce;
mod resume;
mod sweep;
mod tensorboard;
mod while_training;
