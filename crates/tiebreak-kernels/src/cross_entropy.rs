//! The head: softmax cross-entropy over the vocabulary and its gradients, in chunks of tokens, off the tape.
//!
//! Logits of more than one chunk never exist at once. With dL/dlogits = (p - onehot) scale, dL/dh = dL/dlogits U and
//! G_out = dL/dlogits^T h cost the two products that a tape would need as well.

use burn::tensor::{IndexingUpdateOp, Int, Tensor, activation};
use rayon::prelude::*;

use crate::flex::{Unfilled, from_values, indices, plain, shape, tensor, values};
use crate::matrix::{Factor, Into, Matrix, MatrixMut, Precision, Side, Threads, Tiles, product};
use crate::simd::{exp_sum, largest, simd};

/// Tokens per chunk. Fixed, because the split changes the rounding of G_out.
pub const CHUNK: usize = 512;

/// Rows of logits per task.
const ROWS: usize = 8;

/// What one micro-batch's head gives.
pub struct HeadGradients {
    /// Cross-entropy per token in nats, `[n]`.
    pub nats_n: Tensor<1>,
    /// dL/dh, `[n, d]`.
    pub state_nd: Tensor<2>,
    /// G_out = dL/dU, `[v, d]`.
    pub output_vd: Tensor<2>,
}

/// Cross-entropy per token in nats `[n]` of the logits h U^T, without gradients, for states `[n, d]`, table `[v, d]` and
/// targets `[n]`.
///
/// # Panics
/// If a target is not below `v`.
pub fn cross_entropy(state_nd: Tensor<2>, output_vd: &Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
    if let Some((nats, _, _)) = native(&state_nd, output_vd, &targets_n, None, Precision::F32) {
        return nats;
    }
    let chunks = chunks(&state_nd, &targets_n);
    let nats = chunks.map(|(state_md, targets_m1)| nats_and_softmax(state_md, output_vd, &targets_m1).0).collect();
    Tensor::cat(nats, 0).squeeze_dim(1)
}

/// The same, with the gradients of L = `scale` times the sum of nats. With [`Precision::Bf16`] the operands of the three
/// products are rounded; logits, softmax, sums and results are f32.
///
/// # Panics
/// If a target is not below `v`. With `Bf16`, if the tensors are not contiguous f32 on flex: there is no composition of it.
pub fn cross_entropy_gradients(
    state_nd: Tensor<2>,
    output_vd: &Tensor<2>,
    targets_n: Tensor<1, Int>,
    scale: f64,
    precision: Precision,
) -> HeadGradients {
    if let Some((nats_n, Some(state_nd), Some(output_vd))) =
        native(&state_nd, output_vd, &targets_n, Some(scale as f32), precision)
    {
        return HeadGradients { nats_n, state_nd, output_vd };
    }
    precision.require_f32();
    let (mut nats, mut states) = (Vec::new(), Vec::new());
    let mut gradient_vd: Option<Tensor<2>> = None;
    for (state_md, targets_m1) in chunks(&state_nd, &targets_n) {
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

fn chunks<'a>(
    state_nd: &'a Tensor<2>,
    targets_n: &'a Tensor<1, Int>,
) -> impl Iterator<Item = (Tensor<2>, Tensor<2, Int>)> + 'a {
    let [n, d] = state_nd.dims();
    (0..n).step_by(CHUNK).map(move |start| {
        let end = (start + CHUNK).min(n);
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

simd! {
    /// Nats of one row; with a scale the logits become their gradient.
    fn cross_entropy_row(logits: &mut [f32], target: usize, scale: Option<f32>) -> f32 {
        let (top, aimed) = (largest(logits), logits[target]);
        let sum = exp_sum::<FMA>(logits, top);
        if let Some(scale) = scale {
            let each = scale / sum;
            for x in logits.iter_mut() {
                *x *= each;
            }
            logits[target] -= scale;
        }
        ((top as f64 - aimed as f64) + (sum as f64).ln()) as f32
    }
}

simd! {
    /// Nats of one row, whose logits become their gradient up to the second number.
    fn cross_entropy_row_unscaled(logits: &mut [f32], target: usize, scale: f32) -> (f32, f32) {
        let (top, aimed) = (largest(logits), logits[target]);
        let sum = exp_sum::<FMA>(logits, top);
        logits[target] -= sum;
        (((top as f64 - aimed as f64) + (sum as f64).ln()) as f32, scale / sum)
    }
}

type Parts = (Tensor<1>, Option<Tensor<2>>, Option<Tensor<2>>);

fn native(
    state_nd: &Tensor<2>,
    output_vd: &Tensor<2>,
    targets_n: &Tensor<1, Int>,
    scale: Option<f32>,
    precision: Precision,
) -> Option<Parts> {
    let (h, u) = (plain(state_nd)?, plain(output_vd)?);
    let ((n, d), v) = ((shape(&h)[0], shape(&h)[1]), shape(&u)[0]);
    if n == 0 || v == 0 {
        return None;
    }
    let targets = indices(targets_n, v)?;
    let (h, u) = (Matrix::new(values(&h), n, d), Matrix::new(values(&u), v, d));
    let gradients = scale.is_some();
    let mut nats = vec![0.0; n];
    let mut dh = Unfilled::new(if gradients { n * d } else { 0 });
    let mut du = Unfilled::new(if gradients { v * d } else { 0 });
    let mut buffer = Unfilled::new(CHUNK.min(n) * v);
    fn factor(precision: Precision, matrix: Matrix<'_>, side: Side) -> Factor<'_> {
        Factor::new(precision, matrix, side, Threads::All)
    }
    let (u_t, u) = (factor(precision, u.t(), Side::Right), gradients.then(|| factor(precision, u, Side::Right)));
    for start in (0..n).step_by(CHUNK) {
        let m = CHUNK.min(n - start);
        let slots = &mut buffer.slots()[..m * v];
        let states = factor(precision, h.rows(start, m), Side::Left);
        // SAFETY: the product overwrites.
        let to = unsafe { MatrixMut::unfilled(slots, m, v) };
        product(to, states.whole(), u_t.whole(), Into::Overwrite, Threads::All);
        // SAFETY: the product has written all m rows.
        let logits = unsafe { slots.assume_init_mut() };
        let (targets, nats) = (&targets[start..start + m], &mut nats[start..start + m]);
        let dlogits = match (precision, scale) {
            // Rounded on the way, which saves writing and reading them once more.
            (Precision::Bf16(kernel), Some(scale)) => {
                let tiles = Tiles::of_values(logits, v, nats, |i, row, nats| {
                    let (found, factor) = cross_entropy_row_unscaled(row, targets[i], scale);
                    *nats = found;
                    factor
                });
                Factor::rounded(kernel, tiles)
            }
            _ => {
                let rows = logits.par_chunks_mut(v).zip(targets).zip(nats).with_min_len(ROWS);
                rows.for_each(|((row, target), nats)| *nats = cross_entropy_row(row, *target, scale));
                Factor::Exact(Matrix::new(logits, m, v))
            }
        };
        if let Some(u) = &u {
            // SAFETY: the product overwrites.
            let part = unsafe { MatrixMut::unfilled(&mut dh.slots()[start * d..(start + m) * d], m, d) };
            product(part, dlogits.whole(), u.whole(), Into::Overwrite, Threads::All);
            let into = if start == 0 { Into::Overwrite } else { Into::Add };
            let [left, right] =
                [(&dlogits, Side::Left), (&states, Side::Right)].map(|(f, s)| f.turned(s, Threads::All));
            // SAFETY: the first chunk's product overwrites, and the others find what it has written.
            let whole = unsafe { MatrixMut::unfilled(du.slots(), v, d) };
            product(whole, left.whole(), right.whole(), into, Threads::All);
        }
    }
    let nats = tensor(from_values(nats, [n]));
    if !gradients {
        return Some((nats, None, None));
    }
    // SAFETY: the chunks cover all rows, and each chunk's product has written its rows.
    let dh = unsafe { dh.filled() };
    // SAFETY: the first chunk's product has written every element.
    let du = unsafe { du.filled() };
    Some((nats, Some(tensor(from_values(dh, [n, d]))), Some(tensor(from_values(du, [v, d])))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, available_kernels, distance, host, matrix, normal, rounded};
    use burn::tensor::{DType, Device, TensorData};

    fn targets(n: usize, v: usize) -> Tensor<1, Int> {
        let list: Vec<i32> = (0..n as i32).map(|i| i * i % v as i32).collect();
        Tensor::from_data(TensorData::new(list, [n]), &Device::flex())
    }

    #[test]
    fn equals_its_composition_in_f64() {
        at_every_level(|| {
            for (n, v, d) in
                [(1, 1, 1), (1, 37, 2), (7, 3, 80), (CHUNK, 129, 16), (2 * CHUNK + 77, 31, 6), (37, 1500, 64)]
            {
                let (h, u) = (normal([n, d], 1.0), normal([v, d], 1.0));
                let run = |dtype| {
                    let (h, u) = (matrix(&h, dtype), matrix(&u, dtype));
                    let found = cross_entropy_gradients(h.clone(), &u, targets(n, v), 0.3, Precision::F32);
                    assert_eq!(host(&cross_entropy(h, &u, targets(n, v))), host(&found.nats_n));
                    [host(&found.nats_n), host(&found.state_nd), host(&found.output_vd)]
                };
                for (found, expected) in run(DType::F32).iter().zip(&run(DType::F64)) {
                    let d = distance(found, expected);
                    assert!(d < 3e-6, "n {n} v {v}: {d:e}");
                }
            }
        });
    }

    #[test]
    fn bf16_equals_f64_of_rounded_operands() {
        for (n, v, d) in [(1, 1, 1), (7, 3, 80), (CHUNK, 129, 16), (2 * CHUNK + 77, 31, 6), (37, 1500, 64)] {
            let (h, u) = (normal([n, d], 1.0), normal([v, d], 1.0));
            let round = |(values, shape): &crate::testing::Values| {
                matrix(&(values.iter().map(|x| rounded(*x)).collect(), *shape), DType::F64)
            };
            let scale = 0.3;
            let (hr, ur) = (round(&h), round(&u));
            let (nats, p) = nats_and_softmax(hr.clone(), &ur, &targets(n, v).unsqueeze_dim(1));
            let minus_one = Tensor::<2>::full([n, 1], -1.0, (&p.device(), p.dtype()));
            let dlogits = p.scatter(1, targets(n, v).unsqueeze_dim(1), minus_one, IndexingUpdateOp::Add);
            let dlogits = round(&(host(&dlogits.mul_scalar(scale)), [n, v]));
            let expected = [host(&nats), host(&dlogits.clone().matmul(ur)), host(&dlogits.transpose().matmul(hr))];
            for kernel in available_kernels() {
                let (h, u) = (matrix(&h, DType::F32), matrix(&u, DType::F32));
                let found = cross_entropy_gradients(h, &u, targets(n, v), scale, Precision::Bf16(kernel));
                let found = [host(&found.nats_n), host(&found.state_nd), host(&found.output_vd)];
                // dL/dlogits in f32 may fall on the other side of a tie than in f64: one unit of bf16 in few elements.
                for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let d = distance(found, expected);
                    assert!(d < [2e-6, 3e-4, 3e-4][i], "{kernel:?} n {n} v {v}, result {i}: {d:e}");
                }
            }
        }
    }

    #[test]
    fn extreme_logits_stay_finite_and_nan_passes() {
        at_every_level(|| {
            for precision in available_kernels().map(Precision::Bf16).chain([Precision::F32]) {
                let h = crate::testing::matrix_f32(&[9984.0, -9984.0, f32::NAN], [3, 1]);
                let u = crate::testing::matrix_f32(&[1.0, -1.0, 0.0], [3, 1]);
                let targets = Tensor::from_data([1, 1, 0], &Device::flex());
                let found = cross_entropy_gradients(h, &u, targets, 1.0, precision);
                let (nats, dh) = (host(&found.nats_n), host(&found.state_nd));
                assert!(nats[..2] == [19968.0, 0.0] && nats[2].is_nan(), "{nats:?}");
                assert!(dh[..2] == [2.0, 0.0] && dh[2].is_nan(), "{dh:?}");
            }
        });
    }
}
