//! One integration binary: each module is a kind of promise that crosses crates.

mod golden;
mod invariants;
