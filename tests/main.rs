//! One integration binary: each module is a kind of promise that crosses crates.

mod bad_input;
mod docs;
mod golden;
#[cfg(feature = "wgpu-unfused")]
mod gpu;
mod harness;
mod invariants;
mod lens;
mod look;
mod modes;
mod precision;
mod probes;
mod reproduce;
mod resume;
mod sweep;
mod tensorboard;
mod trust;
mod while_training;
