//! The head: softmax cross-entropy over the vocabulary and its gradients, in chunks of tokens, off the tape.
//!
//! Logits of more than one chunk never exist at once. With dL/dlogits = (p - onehot) scale, dL/dh = dL/dlogits U and
//! G_out = dL/dlogits^T h cost the two products that a tape would need as well.

use burn::tensor::{IndexingUpdateOp, Int, Tensor, activation};
use rayon::prelude::*;

use crate::flex::{Unfilled, from_values, indices, plain, shape, tensor, values};
use crate::largest::rows_at_a_time;
use crate::logit_map::{LogitMap, RowMap};
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
    /// dL/db, `[1, v]`, where there is a bias.
    pub bias_1v: Option<Tensor<2>>,
}

/// Cross-entropy per token in nats `[n]` of the logits h U^T, without gradients, for states `[n, d]`, table `[v, d]` and
/// targets `[n]`.
///
/// # Panics
/// If a target is not below `v`.
pub fn cross_entropy(state_nd: Tensor<2>, output_vd: &Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
    cross_entropy_with(state_nd, output_vd, &LogitMap::default(), targets_n)
}

/// [`cross_entropy`] of mapped logits.
///
/// # Panics
/// If a target is not below `v`.
pub fn cross_entropy_with(
    state_nd: Tensor<2>,
    output_vd: &Tensor<2>,
    map: &LogitMap,
    targets_n: Tensor<1, Int>,
) -> Tensor<1> {
    if let Some(parts) = native(&state_nd, output_vd, map, &targets_n, None, Precision::F32) {
        return parts.nats_n;
    }
    let [v, _] = output_vd.dims();
    let chunks = chunks(&state_nd, &targets_n, v);
    let nats = chunks.map(|(state_md, targets_m1)| nats_and_softmax(state_md, output_vd, map, &targets_m1).nats_m1);
    Tensor::cat(nats.collect(), 0).squeeze_dim(1)
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
    cross_entropy_gradients_with(state_nd, output_vd, &LogitMap::default(), targets_n, scale, precision)
}

/// [`cross_entropy_gradients`] of mapped logits, with respect to h, U and b; the z-loss is part of L.
///
/// # Panics
/// As [`cross_entropy_gradients`].
pub fn cross_entropy_gradients_with(
    state_nd: Tensor<2>,
    output_vd: &Tensor<2>,
    map: &LogitMap,
    targets_n: Tensor<1, Int>,
    scale: f64,
    precision: Precision,
) -> HeadGradients {
    if let Some(Parts { nats_n, gradients: Some((state_nd, output_vd, bias_1v)) }) =
        native(&state_nd, output_vd, map, &targets_n, Some(scale as f32), precision)
    {
        return HeadGradients { nats_n, state_nd, output_vd, bias_1v };
    }
    precision.require_f32();
    let (mut nats, mut states) = (Vec::new(), Vec::new());
    let (mut gradient_vd, mut bias_1v): (Option<Tensor<2>>, Option<Tensor<2>>) = (None, None);
    let [v, _] = output_vd.dims();
    for (state_md, targets_m1) in chunks(&state_nd, &targets_n, v) {
        let Softmax { nats_m1, mut p_mv, sum_m1, slope_mv } =
            nats_and_softmax(state_md.clone(), output_vd, map, &targets_m1);
        let [m, _] = p_mv.dims();
        if map.z_loss != 0.0 {
            p_mv = p_mv * sum_m1.mul_scalar(2.0 * map.z_loss).add_scalar(1.0);
        }
        let minus_one = Tensor::<2>::full([m, 1], -1.0, (&p_mv.device(), p_mv.dtype()));
        let mut dlogits_mv = p_mv.scatter(1, targets_m1, minus_one, IndexingUpdateOp::Add).mul_scalar(scale);
        if let Some(slope_mv) = slope_mv {
            dlogits_mv = dlogits_mv * slope_mv;
        }
        if map.bias_1v.is_some() {
            let chunk_1v = dlogits_mv.clone().sum_dim(0);
            bias_1v = Some(match bias_1v {
                Some(sum_1v) => sum_1v + chunk_1v,
                None => chunk_1v,
            });
        }
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
        bias_1v,
    }
}

fn chunks<'a>(
    state_nd: &'a Tensor<2>,
    targets_n: &'a Tensor<1, Int>,
    v: usize,
) -> impl Iterator<Item = (Tensor<2>, Tensor<2, Int>)> + 'a {
    let ([n, d], rows) = (state_nd.dims(), rows_at_a_time(v));
    (0..n).step_by(rows).map(move |start| {
        let end = (start + rows).min(n);
        let targets_m = targets_n.clone().slice_dim(0, start..end);
        (state_nd.clone().slice([start..end, 0..d]), targets_m.unsqueeze_dim(1))
    })
}

struct Softmax {
    nats_m1: Tensor<2>,
    p_mv: Tensor<2>,
    /// log sum exp z.
    sum_m1: Tensor<2>,
    /// dz/draw under a soft-cap.
    slope_mv: Option<Tensor<2>>,
}

fn nats_and_softmax(
    state_md: Tensor<2>,
    output_vd: &Tensor<2>,
    map: &LogitMap,
    targets_m1: &Tensor<2, Int>,
) -> Softmax {
    let logits_mv = map.apply(state_md.matmul(output_vd.clone().transpose()));
    let slope_mv = map.slope(&logits_mv);
    let target_m1 = logits_mv.clone().gather(1, targets_m1.clone());
    let largest_m1 = logits_mv.clone().max_dim(1);
    let p_mv = activation::softmax(logits_mv, 1);
    // The largest probability is 1 / sum exp(logit - largest), so this is the log-sum-exp, and it cannot underflow.
    let sum_m1 = largest_m1 - p_mv.clone().max_dim(1).log();
    Softmax { nats_m1: sum_m1.clone() - target_m1, p_mv, sum_m1, slope_mv }
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

simd! {
    /// [`cross_entropy_row`] of mapped logits. `slopes` is room for as many values where there is a soft-cap.
    fn mapped_row(logits: &mut [f32], map: RowMap, slopes: &mut [f32], target: usize, scale: Option<f32>) -> f32 {
        map.apply::<FMA>(logits);
        if let Some(cap) = map.softcap {
            for (z, slope) in logits.iter().zip(slopes.iter_mut()) {
                let t = z / cap;
                *slope = 1.0 - t * t;
            }
        }
        let (top, aimed) = (largest(logits), logits[target]);
        let sum = exp_sum::<FMA>(logits, top);
        let log_sum = top as f64 + (sum as f64).ln();
        if let Some(scale) = scale {
            let each = scale / sum * (1.0 + 2.0 * map.z_loss * log_sum as f32);
            for x in logits.iter_mut() {
                *x *= each;
            }
            logits[target] -= scale;
            if map.softcap.is_some() {
                for (x, slope) in logits.iter_mut().zip(slopes.iter()) {
                    *x *= slope;
                }
            }
        }
        ((top as f64 - aimed as f64) + (sum as f64).ln()) as f32
    }
}

simd! {
    fn add_columns(sums: &mut [f32], rows: &[f32], width: usize, first: usize) {
        for row in rows.chunks_exact(width) {
            for (sum, x) in sums.iter_mut().zip(&row[first..]) {
                *sum += x;
            }
        }
    }
}

/// Columns per task of a sum over rows.
const COLUMNS: usize = 512;

struct Parts {
    nats_n: Tensor<1>,
    /// Of h, U and b.
    gradients: Option<(Tensor<2>, Tensor<2>, Option<Tensor<2>>)>,
}

fn native(
    state_nd: &Tensor<2>,
    output_vd: &Tensor<2>,
    map: &LogitMap,
    targets_n: &Tensor<1, Int>,
    scale: Option<f32>,
    precision: Precision,
) -> Option<Parts> {
    let (h, u) = (plain(state_nd)?, plain(output_vd)?);
    let bias = match &map.bias_1v {
        Some(bias_1v) => Some(plain(bias_1v)?),
        None => None,
    };
    let ((n, d), v) = ((shape(&h)[0], shape(&h)[1]), shape(&u)[0]);
    if n == 0 || v == 0 {
        return None;
    }
    let targets = indices(targets_n, v)?;
    let (h, u) = (Matrix::new(values(&h), n, d), Matrix::new(values(&u), v, d));
    let gradients = scale.is_some();
    let row_map = RowMap::new(map, bias.as_ref().map(values));
    let mut db = vec![0.0; if gradients && bias.is_some() { v } else { 0 }];
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
        let slopes = || vec![0.0; if row_map.softcap.is_some() { v } else { 0 }];
        let dlogits = match (precision, scale) {
            // Rounded on the way, which saves writing and reading them once more.
            (Precision::Bf16(kernel), Some(scale)) => {
                let tiles = match map.is_plain() {
                    true => Tiles::of_values(logits, v, nats, |i, row, nats| {
                        let (found, factor) = cross_entropy_row_unscaled(row, targets[i], scale);
                        *nats = found;
                        factor
                    }),
                    false => Tiles::of_values(logits, v, nats, |i, row, nats| {
                        *nats = mapped_row(row, row_map, &mut slopes(), targets[i], Some(scale));
                        1.0
                    }),
                };
                Factor::rounded(kernel, tiles)
            }
            _ => {
                let rows = logits.par_chunks_mut(v).zip(targets).zip(nats).with_min_len(ROWS);
                match map.is_plain() {
                    true => rows.for_each(|((row, target), nats)| *nats = cross_entropy_row(row, *target, scale)),
                    false => rows.for_each_init(slopes, |slopes, ((row, target), nats)| {
                        *nats = mapped_row(row, row_map, slopes, *target, scale);
                    }),
                }
                Factor::Exact(Matrix::new(logits, m, v))
            }
        };
        db.par_chunks_mut(COLUMNS).enumerate().for_each(|(part, sums)| add_columns(sums, logits, v, part * COLUMNS));
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
    let nats_n = tensor(from_values(nats, [n]));
    if !gradients {
        return Some(Parts { nats_n, gradients: None });
    }
    // SAFETY: the chunks cover all rows, and each chunk's product has written its rows.
    let dh = unsafe { dh.filled() };
    // SAFETY: the first chunk's product has written every element.
    let du = unsafe { du.filled() };
    let bias_1v = bias.is_some().then(|| tensor(from_values(db, [1, v])));
    let gradients = (tensor(from_values(dh, [n, d])), tensor(from_values(du, [v, d])), bias_1v);
    Some(Parts { nats_n, gradients: Some(gradients) })
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
    fn mapped_logits_equal_their_composition_and_the_tape_in_f64() {
        let (n, v, d) = (CHUNK + 9, 37, 6);
        let (h, u, b) = (normal([n, d], 1.5), normal([v, d], 1.0), normal([1, v], 0.8));
        for (bias, softcap, z_loss) in
            [(true, None, 0.0), (false, Some(2.0), 0.0), (false, None, 0.1), (true, Some(5.0), 0.05)]
        {
            let map = |dtype| LogitMap { bias_1v: bias.then(|| matrix(&b, dtype)), softcap, z_loss };
            let run = |dtype| {
                let (h, u, map) = (matrix(&h, dtype), matrix(&u, dtype), map(dtype));
                let found = cross_entropy_gradients_with(h.clone(), &u, &map, targets(n, v), 0.3, Precision::F32);
                assert_eq!(host(&cross_entropy_with(h, &u, &map, targets(n, v))), host(&found.nats_n));
                let db = found.bias_1v.map(|b| host(&b)).unwrap_or_default();
                [host(&found.nats_n), host(&found.state_nd), host(&found.output_vd), db]
            };
            let exact = run(DType::F64);
            at_every_level(|| {
                for (which, (found, expected)) in run(DType::F32).iter().zip(&exact).enumerate() {
                    let d = distance(found, expected);
                    assert!(d < 5e-6, "part {which} of {bias} {softcap:?} {z_loss}: {d:e}");
                }
            });
            let leaf = |x: &crate::testing::Values| Tensor::from_inner(matrix(x, DType::F64)).require_grad();
            let (h, u, b) = (leaf(&h), leaf(&u), leaf(&b));
            let taped = LogitMap { bias_1v: bias.then(|| b.clone()), ..map(DType::F64) };
            let z_nv = taped.apply(h.clone().matmul(u.clone().transpose()));
            let ids = Tensor::<1, Int>::from_data(targets(n, v).to_data(), &Device::flex().autodiff());
            let sum_n1 = z_nv.clone().exp().sum_dim(1).log();
            let nats = (sum_n1.clone() - z_nv.gather(1, ids.unsqueeze_dim(1))).sum();
            let loss = (nats + sum_n1.clone().mul(sum_n1).sum().mul_scalar(z_loss)).mul_scalar(0.3);
            let tape = loss.backward();
            let mut expected = vec![h.grad(&tape).unwrap(), u.grad(&tape).unwrap()];
            expected.extend(bias.then(|| b.grad(&tape).unwrap()));
            for (which, (found, expected)) in exact[1..].iter().zip(&expected).enumerate() {
                let d = distance(found, &host(expected));
                assert!(d < 1e-12, "gradient {which} of {bias} {softcap:?} {z_loss}: {d:e}");
            }
        }
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
            let Softmax { nats_m1: nats, p_mv: p, .. } =
                nats_and_softmax(hr.clone(), &ur, &LogitMap::default(), &targets(n, v).unsqueeze_dim(1));
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
