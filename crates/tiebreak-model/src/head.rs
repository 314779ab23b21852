//! The head: cross-entropy over the vocabulary and its gradients, in chunks of tokens, off the tape.

use burn::tensor::{Int, Tensor};
pub use tiebreak_kernels::{CHUNK, HeadGradients};
use tiebreak_kernels::{cross_entropy, cross_entropy_gradients};

/// Loss and gradients of L = factor * sum of nats / normaliser for states `[n, d]`, table `[v, d]` and targets `[n]`.
pub fn loss_and_gradients(
    state_nd: Tensor<2>,
    output_vd: &Tensor<2>,
    targets_n: Tensor<1, Int>,
    normaliser: usize,
    factor: f64,
) -> HeadGradients {
    cross_entropy_gradients(state_nd, output_vd, targets_n, factor / normaliser as f64)
}

/// Cross-entropy per token in nats, `[n]`, without gradients.
pub fn nats(state_nd: Tensor<2>, output_vd: &Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
    cross_entropy(state_nd, output_vd, targets_n)
}
