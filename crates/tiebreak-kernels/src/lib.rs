//! Fused operations of a training step, each with its own forward and backward pass.
//!
//! Every operation takes ordinary tensors and picks its path at run time. Contiguous `f32` tensors on Burn's CPU backend
//! flex, alone or on the tape, go through a native kernel: rayon over fixed blocks and loops compiled for AVX-512, AVX2
//! and the plain target, chosen by what the processor has. Everything else (other backends, `f64`, views with gaps,
//! gradient checkpointing) is composed of tensor operations, which are also the reference in the tests.
//!
//! The native path gives the same bits for any number of threads: blocks have fixed sizes, partial sums are added in
//! order, and there are no atomics. Different instruction sets round differently.
//!
//! Shapes in names: `n` rows, `b` sequences, `t` positions, `d` model width, `v` vocabulary.

mod adamw;
mod attention;
mod attribute;
mod cross_entropy;
mod embedding;
mod flex;
mod inject;
mod largest;
mod lens;
mod linear;
mod logit_map;
mod matrix;
mod memory;
mod mlp;
mod norm;
mod product;
pub mod simd;
mod sums;

pub use adamw::{AdamWStep, adamw};
pub use attention::{NEVER, Rotary, attention, rotate};
pub use attribute::{Moved, Moving, attribute, update_square};
pub use cross_entropy::{
    CHUNK, HeadGradients, cross_entropy, cross_entropy_gradients, cross_entropy_gradients_with, cross_entropy_with,
};
pub use embedding::scatter_add;
pub use inject::inject;
pub use largest::{largest_tensor, set_largest_tensor};
pub use lens::{LensGradients, LogitHead, Reading, Source, lens_gradients, lens_kl, readings};
pub use linear::{activation_linear_add, linear, linear_add, norm_linear};
pub use logit_map::LogitMap;
pub use matrix::{Bf16Kernel, Precision};
pub use memory::keep_memory;
pub use mlp::Activation;
pub use norm::{NormKind, norm};
pub use product::{Transposed, packed, product};
pub use sums::{Pending, PendingRows, Reads, RowProducts, row_products, same_buffer, squares};

#[cfg(test)]
mod testing;
