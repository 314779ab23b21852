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
mod cross_entropy;
mod embedding;
mod flex;
mod inject;
mod linear;
mod matrix;
mod memory;
mod mlp;
mod norm;
mod product;
pub mod simd;
mod sums;

pub use adamw::{AdamWStep, adamw};
pub use attention::{Rotary, attention};
pub use cross_entropy::{
    CHUNK, HeadGradients, LogitMap, cross_entropy, cross_entropy_gradients, cross_entropy_gradients_with,
    cross_entropy_with,
};
pub use embedding::scatter_add;
pub use inject::inject;
pub use linear::{linear, linear_add};
pub use memory::keep_memory;
pub use mlp::{gelu, swiglu};
pub use norm::{NormKind, norm};
pub use product::{Transposed, packed, product};
pub use sums::{RowProducts, row_products, same_buffer, squares};

#[cfg(test)]
mod testing;
