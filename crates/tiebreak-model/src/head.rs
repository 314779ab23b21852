//! The head: cross-entropy over the vocabulary and its gradients, in chunks of tokens, off the tape.
//!
//! Logits of more than one chunk never exist at once. With plain softmax cross-entropy
//! dL/dlogits = (p - onehot) / normaliser, so dL/dh = dL/dlogits U and G_out = dL/dlogits^T h cost the two products
//! that a tape would need as well.

use burn::tensor::{IndexingUpdateOp, Int, Tensor, activation};

/// Tokens per chunk. Fixed, because the split changes the rounding of G_out.
pub const CHUNK: usize = 512;

/// What one micro-batch's head gives.
pub struct HeadGradients {
    /// Cross-entropy per token in nats, `[n]`.
    pub nats_n: Tensor<1>,
    /// dL/dh, `[n, d]`.
    pub state_nd: Tensor<2>,
    /// G_out = dL/dU, `[v, d]`.
    pub output_vd: Tensor<2>,
}

/// Loss and gradients of L = factor * sum of nats / normaliser for states `[n, d]`, table `[v, d]` and targets `[n]`.
pub fn loss_and_gradients(
    state_nd: Tensor<2>,
    output_vd: &Tensor<2>,
    targets_n: Tensor<1, Int>,
    normaliser: usize,
    factor: f64,
) -> HeadGradients {
    let scale = factor / normaliser as f64;
    let (mut nats, mut states) = (Vec::new(), Vec::new());
    let mut gradient_vd: Option<Tensor<2>> = None;
    for (state_md, targets_m1) in chunks(&state_nd, &targets_n, CHUNK) {
        let (nats_m1, p_mv) = nats_and_softmax(state_md.clone(), output_vd, &targets_m1);
        let [m, _] = p_mv.dims();
        let minus_one = Tensor::<2>::full([m, 1], -1.0, (&p_mv.device(), p_mv.dtype()));
        let dlogits_mv = p_mv.scatter(1, targets_m1, minus_one, IndexingUpdateOp::Add).mul_scalar(scale);
        states.push(dlogits_mv.clone().matmul(output_vd.clone()));
        let chunk_vd = dlogits_mv.transpose().matmul(state_md);
        gradient_vd = Some(match gradient_vd {
            Some(sum_vd) => sum_vd + chunk_vd,
            None => chunk_vd,
        });
        nats.push(nats_m1);
    }
    HeadGradients {
        nats_n: Tensor::cat(nats, 0).squeeze_dim(1),
        state_nd: Tensor::cat(states, 0),
        output_vd: gradient_vd.expect("a micro-batch has at least one token"),
    }
}

/// Cross-entropy per token in nats, `[n]`, without gradients.
pub fn nats(state_nd: Tensor<2>, output_vd: &Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
    let chunks = chunks(&state_nd, &targets_n, CHUNK);
    let nats = chunks.map(|(state_md, targets_m1)| nats_and_softmax(state_md, output_vd, &targets_m1).0).collect();
    Tensor::cat(nats, 0).squeeze_dim(1)
}

fn chunks<'a>(
    state_nd: &'a Tensor<2>,
    targets_n: &'a Tensor<1, Int>,
    chunk: usize,
) -> impl Iterator<Item = (Tensor<2>, Tensor<2, Int>)> + 'a {
    let [n, d] = state_nd.dims();
    (0..n).step_by(chunk).map(move |start| {
        let end = (start + chunk).min(n);
        let targets_m = targets_n.clone().slice_dim(0, start..end);
        (state_nd.clone().slice([start..end, 0..d]), targets_m.unsqueeze_dim(1))
    })
}

fn nats_and_softmax(state_md: Tensor<2>, output_vd: &Tensor<2>, targets_m1: &Tensor<2, Int>) -> (Tensor<2>, Tensor<2>) {
    let logits_mv = state_md.matmul(output_vd.clone().transpose());
    let target_m1 = logits_mv.clone().gather(1, targets_m1.clone());
    let largest_m1 = logits_mv.clone().max_dim(1);
    let p_mv = activation::softmax(logits_mv, 1);
    // The largest probability is 1 / sum exp(logit - largest), so this is the log-sum-exp, and it cannot underflow.
    let nats_m1 = largest_m1 - p_mv.clone().max_dim(1).log() - target_m1;
    (nats_m1, p_mv)
}
