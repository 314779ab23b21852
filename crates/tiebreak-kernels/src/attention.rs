//! Causal multi-head attention on packed queries, keys and values, rotary angles included.
//!
//! The native path never holds scores of more than one block of queries per head. It keeps the packed input, the result
//! and the log-sum-exp of every score row; the backward pass computes the probabilities anew, block by block.

use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Bool, Tensor, activation};
use rayon::prelude::*;

use crate::flex::{Fused, Shared, Unfilled, apply, from_values, operand, plain, shape, values};
use crate::matrix::{Factor, FactorPart, Into, Matrix, MatrixMut, Precision, Side, Threads, product};
use crate::simd::{exp, exp_sum, largest, simd, sum2};

/// Queries per block of scores.
const BLOCK: usize = 64;

/// Stands for minus infinity, which not every device has, in a score: far below any real one.
pub const NEVER: f32 = -1e30;

/// Cosines and sines of position t times the frequency of pair j, each `[context, head width / 2]`, outside the tape.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// Cosines.
    pub cos: Tensor<2>,
    /// Sines.
    pub sin: Tensor<2>,
}

/// softmax(q k^T / sqrt(width)) v over earlier and own positions.
///
/// `qkv_bt3d` holds columns q | k | v, each head after head; the result is `[b, t, d]`, head after head. With `rotary`,
/// queries and keys are rotated first, the two halves of a head against each other. With [`Precision::Bf16`] the operands
/// of the two products and of the five of the backward pass are rounded: rotated and scaled queries, keys, values, exp(score
/// - largest), and the gradients of result and scores. Scores, softmax, sums and gradients are f32.
///
/// # Panics
/// If `heads` does not divide d, or the angles cover fewer than t positions. With `Bf16`, if the tensor is not contiguous
/// f32 on flex: there is no composition of it.
pub fn attention(qkv_bt3d: Tensor<3>, heads: usize, rotary: Option<&Rotary>, precision: Precision) -> Tensor<3> {
    let native = || {
        let angles = match rotary {
            Some(r) => Some((plain(&r.cos)?, plain(&r.sin)?)),
            None => None,
        };
        apply(Attention { heads, angles, precision }, [operand(&qkv_bt3d)?])
    };
    match native() {
        Some(y) => y,
        None => {
            precision.require_f32();
            composed(qkv_bt3d, heads, rotary)
        }
    }
}

fn composed(qkv_bt3d: Tensor<3>, heads: usize, rotary: Option<&Rotary>) -> Tensor<3> {
    let [b, t, d3] = qkv_bt3d.dims();
    let (d, width) = (d3 / 3, d3 / 3 / heads);
    let mask_tt = Tensor::<2, Bool>::tril_mask([t, t], 0, &qkv_bt3d.device());
    let part = |part: usize| {
        let x_btd = qkv_bt3d.clone().slice_dim(2, part * d..(part + 1) * d);
        x_btd.reshape([b, t, heads, width]).swap_dims(1, 2)
    };
    // Scaling q costs a head width per row; scaling the scores would cost a context.
    let q_bhtw = rotate(part(0), rotary).mul_scalar(1.0 / (width as f64).sqrt());
    let k_bhtw = rotate(part(1), rotary);
    let scores_bhtt = q_bhtw.matmul(k_bhtw.swap_dims(2, 3)).mask_fill(mask_tt.unsqueeze(), NEVER);
    let mixed_bhtw = activation::softmax(scores_bhtt, 3).matmul(part(2));
    mixed_bhtw.swap_dims(1, 2).reshape([b, t, d])
}

/// Queries or keys `[b, heads, t, width]`, the two halves of each head rotated against each other by the angles of the first
/// t positions of `rotary`; as they are without it.
///
/// # Panics
/// If the angles cover fewer than t positions.
pub fn rotate(x_bhtw: Tensor<4>, rotary: Option<&Rotary>) -> Tensor<4> {
    let Some(Rotary { cos, sin }) = rotary else { return x_bhtw };
    let [_, _, t, width] = x_bhtw.dims();
    let half = width / 2;
    let rows = |table: &Tensor<2>| table.clone().slice([0..t, 0..half]).unsqueeze::<4>();
    let (cos, sin) = if x_bhtw.is_autodiff() {
        (Tensor::from_inner(rows(cos)), Tensor::from_inner(rows(sin)))
    } else {
        (rows(cos), rows(sin))
    };
    let a = x_bhtw.clone().slice_dim(3, 0..half);
    let b = x_bhtw.slice_dim(3, half..width);
    let rotated = [a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin];
    Tensor::cat(rotated.to_vec(), 3)
}

#[derive(Clone, Debug)]
struct Attention {
    heads: usize,
    angles: Option<(FlexTensor, FlexTensor)>,
    precision: Precision,
}

#[derive(Clone, Debug)]
struct Saved {
    qkv: FlexTensor,
    out: FlexTensor,
    /// `[b, heads, t]`.
    log_sums: Arc<Vec<f32>>,
}

#[derive(Clone, Copy)]
struct Sizes {
    t: usize,
    d: usize,
    heads: usize,
    width: usize,
    precision: Precision,
}

/// A product inside a task.
fn multiply(y: MatrixMut, a: FactorPart, b: FactorPart, into: Into) {
    product(y, a, b, into, Threads::One);
}

/// Cosines and sines, or nothing to rotate.
type Angles<'a> = Option<(&'a [f32], &'a [f32])>;

simd! {
    /// Copies one head's rows, `stride` apart in `from`, rotated and scaled.
    fn load(to: &mut [f32], from: &[f32], stride: usize, width: usize, angles: Angles, scale: f32) {
        let half = width / 2;
        for (i, to) in to.chunks_exact_mut(width).enumerate() {
            let from = &from[i * stride..i * stride + width];
            match angles {
                None => {
                    for (to, x) in to.iter_mut().zip(from) {
                        *to = x * scale;
                    }
                }
                Some((cos, sin)) => {
                    let (cos, sin) = (&cos[i * half..(i + 1) * half], &sin[i * half..(i + 1) * half]);
                    let ((a, b), (to_a, to_b)) = (from.split_at(half), to.split_at_mut(half));
                    for j in 0..half {
                        to_a[j] = (a[j] * cos[j] - b[j] * sin[j]) * scale;
                        to_b[j] = (b[j] * cos[j] + a[j] * sin[j]) * scale;
                    }
                }
            }
        }
    }
}

simd! {
    /// Rotates a row of gradients back and scales it.
    fn store_row(to: &mut [f32], from: &[f32], angles: Angles, scale: f32) {
        match angles {
            None => {
                for (to, x) in to.iter_mut().zip(from) {
                    *to = x * scale;
                }
            }
            Some((cos, sin)) => {
                let half = to.len() / 2;
                let ((a, b), (to_a, to_b)) = (from.split_at(half), to.split_at_mut(half));
                for j in 0..half {
                    to_a[j] = (a[j] * cos[j] + b[j] * sin[j]) * scale;
                    to_b[j] = (b[j] * cos[j] - a[j] * sin[j]) * scale;
                }
            }
        }
    }
}

simd! {
    /// Scores of queries `first..` against `columns` keys become exp(score - largest); largest and sum per row.
    fn soften(scores: &mut [f32], columns: usize, first: usize, rows: &mut [[f32; 2]]) {
        for (r, (row, out)) in scores.chunks_exact_mut(columns).zip(rows).enumerate() {
            // Whole rows, the part after the query's own position included: a ragged end would cost more.
            row[first + r + 1..].fill(NEVER);
            let top = largest(row);
            *out = [top, exp_sum::<FMA>(row, top)];
        }
    }
}

simd! {
    /// Scores become probabilities p, and the gradients of p (`dp`) those of the scores, p (dp - mean).
    fn soften_back(scores: &mut [f32], dp: &mut [f32], columns: usize, first: usize, log_sums: &[f32], means: &[f32]) {
        let rows = scores.chunks_exact_mut(columns).zip(dp.chunks_exact_mut(columns));
        for (r, ((row, dp), (log_sum, mean))) in rows.zip(log_sums.iter().zip(means)).enumerate() {
            row[first + r + 1..].fill(NEVER);
            // Copies, since through the references the compiler would read them again for every element.
            let (log_sum, mean) = (*log_sum, *mean);
            for (p, dp) in row.iter_mut().zip(dp) {
                *p = exp::<FMA>(*p - log_sum);
                *dp = *p * (*dp - mean);
            }
        }
    }
}

simd! {
    fn scale_row(row: &mut [f32], factor: f32) {
        for x in row {
            *x *= factor;
        }
    }
}

simd! {
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        sum2(a, b, |a, b| a * b)
    }
}

impl Sizes {
    fn of(qkv: &FlexTensor, heads: usize, precision: Precision) -> (usize, Self) {
        let dims = shape(qkv);
        let d = dims[2] / 3;
        (dims[0], Self { t: dims[1], d, heads, width: d / heads, precision })
    }

    fn scale(self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    /// Queries, keys (both rotated, queries scaled) and values of one head of one sequence, each `[t, width]`.
    fn load(self, qkv: &[f32], head: usize, angles: Angles) -> [Vec<f32>; 3] {
        let part = |which: usize, angles: Angles, scale: f32| {
            let mut to = vec![0.0; self.t * self.width];
            load(&mut to, &qkv[which * self.d + head * self.width..], 3 * self.d, self.width, angles, scale);
            to
        };
        [part(0, angles, self.scale()), part(1, angles, 1.0), part(2, None, 1.0)]
    }

    fn left<'a>(self, matrix: Matrix<'a>) -> Factor<'a> {
        Factor::new(self.precision, matrix, Side::Left, Threads::One)
    }

    fn right<'a>(self, matrix: Matrix<'a>) -> Factor<'a> {
        Factor::new(self.precision, matrix, Side::Right, Threads::One)
    }

    fn blocks(self) -> impl DoubleEndedIterator<Item = (usize, usize)> {
        (0..self.t.div_ceil(BLOCK)).map(move |i| (i * BLOCK, ((i + 1) * BLOCK).min(self.t)))
    }

    /// One head of one sequence. `out` points at its first value, rows are d apart.
    fn forward(self, qkv: &[f32], head: usize, angles: Angles, out: *mut f32) -> Vec<f32> {
        let (t, w) = (self.t, self.width);
        let [q, k, v] = self.load(qkv, head, angles);
        let [q, k, v] = [&q, &k, &v].map(|x| Matrix::new(x, t, w));
        let (q, k_t, v) = (self.left(q), self.right(k.t()), self.right(v));
        let mut scores = vec![0.0; BLOCK.min(t) * t];
        let mut sums = [[0.0; 2]; BLOCK];
        let mut log_sums = Vec::with_capacity(t);
        for (from, to) in self.blocks() {
            let rows = to - from;
            let scores = &mut scores[..rows * to];
            let (queries, keys) = (q.part(from..to, 0..w), k_t.part(0..w, 0..to));
            multiply(MatrixMut::new(scores, rows, to), queries, keys, Into::Overwrite);
            soften(scores, to, from, &mut sums[..rows]);
            // SAFETY: the caller gives rows of `width` values, d apart, that no other task touches.
            let mixed = unsafe { MatrixMut::strided(out.add(from * self.d), rows, w, self.d) };
            let weights = self.left(Matrix::new(scores, rows, to));
            multiply(mixed, weights.whole(), v.part(0..to, 0..w), Into::Overwrite);
            for (r, [top, sum]) in sums[..rows].iter().enumerate() {
                // SAFETY: one of the rows just written, which no other task touches.
                let row = unsafe { std::slice::from_raw_parts_mut(out.add((from + r) * self.d), w) };
                scale_row(row, 1.0 / sum);
                log_sums.push(top + sum.ln());
            }
        }
        log_sums
    }

    /// Gradients of one head of one sequence. `out` and `dout` start at its first value, rows d apart; `dqkv` points at
    /// its first query gradient, rows 3 d apart.
    fn backward(
        self,
        qkv: &[f32],
        [out, dout]: [&[f32]; 2],
        log_sums: &[f32],
        head: usize,
        angles: Angles,
        dqkv: *mut f32,
    ) {
        let (t, w) = (self.t, self.width);
        let [q, k, v] = self.load(qkv, head, angles);
        let mut dy = vec![0.0; t * w];
        load(&mut dy, dout, self.d, w, None, 1.0);
        let means: Vec<f32> =
            dy.chunks_exact(w).enumerate().map(|(i, dy)| dot(dy, &out[i * self.d..i * self.d + w])).collect();
        let [q, k, v, dy] = [&q, &k, &v, &dy].map(|x| Matrix::new(x, t, w));
        let (q, k_t, v_t) = (self.left(q), self.right(k.t()), self.right(v.t()));
        let (k, dy) = (self.right(k), self.left(dy));
        let (q_right, dy_right) = (q.turned(Side::Right, Threads::One), dy.turned(Side::Right, Threads::One));
        let [mut dq, mut dk, mut dv] = [vec![0.0; t * w], vec![0.0; t * w], vec![0.0; t * w]];
        let (mut p, mut ds) = (vec![0.0; BLOCK.min(t) * t], vec![0.0; BLOCK.min(t) * t]);
        // Backwards, because the last block reaches every key: its products overwrite, the others add.
        for (from, to) in self.blocks().rev() {
            let rows = to - from;
            let into = if to == t { Into::Overwrite } else { Into::Add };
            let (p, ds) = (&mut p[..rows * to], &mut ds[..rows * to]);
            multiply(MatrixMut::new(p, rows, to), q.part(from..to, 0..w), k_t.part(0..w, 0..to), Into::Overwrite);
            multiply(MatrixMut::new(ds, rows, to), dy.part(from..to, 0..w), v_t.part(0..w, 0..to), Into::Overwrite);
            soften_back(p, ds, to, from, &log_sums[from..to], &means[from..to]);
            let (p, ds) = (self.left(Matrix::new(p, rows, to)), self.left(Matrix::new(ds, rows, to)));
            let (p_t, ds_t) = (p.turned(Side::Left, Threads::One), ds.turned(Side::Left, Threads::One));
            multiply(MatrixMut::new(&mut dv[..to * w], to, w), p_t.whole(), dy_right.part(from..to, 0..w), into);
            multiply(MatrixMut::new(&mut dk[..to * w], to, w), ds_t.whole(), q_right.part(from..to, 0..w), into);
            multiply(
                MatrixMut::new(&mut dq[from * w..to * w], rows, w),
                ds.whole(),
                k.part(0..to, 0..w),
                Into::Overwrite,
            );
        }
        for i in 0..t {
            let half = w / 2;
            let of_row = angles.map(|(cos, sin)| (&cos[i * half..(i + 1) * half], &sin[i * half..(i + 1) * half]));
            let parts = [(&dq, of_row, self.scale()), (&dk, of_row, 1.0), (&dv, None, 1.0)];
            for (which, (from, of_row, scale)) in parts.into_iter().enumerate() {
                // SAFETY: the caller gives rows of three runs of `width` values, d apart, that no other task touches.
                let row = unsafe { std::slice::from_raw_parts_mut(dqkv.add(i * 3 * self.d + which * self.d), w) };
                store_row(row, &from[i * w..(i + 1) * w], of_row, scale);
            }
        }
    }
}

impl Attention {
    fn angles(&self, t: usize) -> Angles<'_> {
        let (cos, sin) = self.angles.as_ref()?;
        assert!(shape(cos)[0] >= t && shape(sin)[0] >= t, "rotary angles for fewer than {t} positions");
        Some((values(cos), values(sin)))
    }
}

impl Fused<1> for Attention {
    type Saved = Saved;

    fn forward(&self, [qkv]: [FlexTensor; 1]) -> (FlexTensor, Saved) {
        let (b, sizes) = Sizes::of(&qkv, self.heads, self.precision);
        let Sizes { t, d, heads, width, .. } = sizes;
        assert_eq!(heads * width, d, "the number of heads divides the width");
        let angles = self.angles(t);
        let input = values(&qkv);
        let mut out = Unfilled::new(b * t * d);
        let shared = Shared::new(out.slots());
        let log_sums: Vec<Vec<f32>> = (0..if t * d == 0 { 0 } else { b * heads })
            .into_par_iter()
            .map(|task| {
                let (sequence, head) = (task / heads, task % heads);
                let qkv = &input[sequence * t * 3 * d..(sequence + 1) * t * 3 * d];
                // SAFETY: inside the buffer; each task has a sequence and head of its own, so their columns of rows do
                // not overlap.
                let out = unsafe { shared.get().add(sequence * t * d + head * width) };
                sizes.forward(qkv, head, angles, out)
            })
            .collect();
        // SAFETY: the tasks together write all columns of all rows.
        let out = from_values(unsafe { out.filled() }, [b, t, d]);
        (out.clone(), Saved { qkv, out, log_sums: Arc::new(log_sums.concat()) })
    }

    fn backward(self, saved: Saved, dy: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        let (b, sizes) = Sizes::of(&saved.qkv, self.heads, self.precision);
        let Sizes { t, d, heads, width, .. } = sizes;
        let angles = self.angles(t);
        let (qkv, out, dout) = (values(&saved.qkv), values(&saved.out), values(&dy));
        let mut dqkv = Unfilled::new(b * t * 3 * d);
        let shared = Shared::new(dqkv.slots());
        (0..if t * d == 0 { 0 } else { b * heads }).into_par_iter().for_each(|task| {
            let (sequence, head) = (task / heads, task % heads);
            let rows = sequence * t..(sequence + 1) * t;
            let qkv = &qkv[rows.start * 3 * d..rows.end * 3 * d];
            let of_head = |x: &'_ [f32]| rows.start * d + head * width..x.len().min(rows.end * d);
            let outs = [&out[of_head(out)], &dout[of_head(dout)]];
            let log_sums = &saved.log_sums[task * t..(task + 1) * t];
            // SAFETY: inside the buffer; each task has a sequence and head of its own, so their columns of rows do not
            // overlap.
            let dqkv = unsafe { shared.get().add(rows.start * 3 * d + head * width) };
            sizes.backward(qkv, outs, log_sums, head, angles, dqkv);
        });
        // SAFETY: the tasks together write all columns of all rows.
        [Some(from_values(unsafe { dqkv.filled() }, [b, t, 3 * d]))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{against_f64, at_every_level, available_kernels, distance, host, matrix_f32, normal};
    use burn::tensor::{DType, Device, TensorData};

    fn rotary(t: usize, width: usize, dtype: DType) -> Rotary {
        let half = width / 2;
        let table = |f: fn(f64) -> f64| {
            let angle = |i: usize| (i / half) as f64 * 100f64.powf(-((i % half) as f64) / half as f64);
            // Rounded, so that both paths rotate by the same angles.
            let values: Vec<f64> = (0..t * half).map(|i| f(angle(i)) as f32 as f64).collect();
            Tensor::from_data(TensorData::new(values, [t, half]), (&Device::flex(), dtype))
        };
        Rotary { cos: table(f64::cos), sin: table(f64::sin) }
    }

    #[test]
    fn equals_its_composition_in_f64() {
        at_every_level(|| {
            for (b, t, heads, width) in [
                (0, 3, 2, 4),
                (2, 1, 1, 2),
                (1, 7, 5, 16),
                (2, 37, 1, 80),
                (1, 64, 2, 64),
                (2, 129, 3, 2),
                (1, 200, 1, 32),
            ] {
                let (d, qkv) = (heads * width, normal([b * t, 3 * heads * width], 1.5));
                for rotated in [false, true] {
                    against_f64(std::slice::from_ref(&qkv), 3e-6, |x| {
                        // One angle more than there are positions.
                        let angles = rotated.then(|| rotary(t + 1, width, x[0].dtype()));
                        attention(x[0].clone().reshape([b, t, 3 * d]), heads, angles.as_ref(), Precision::F32)
                            .reshape([b * t, d])
                    });
                }
            }
        });
    }

    #[test]
    fn bf16_is_within_its_rounding_of_f64() {
        for (b, t, heads, width) in [(0, 3, 2, 4), (2, 1, 1, 2), (1, 7, 5, 16), (2, 37, 1, 80), (2, 129, 3, 32)] {
            let (d, n) = (heads * width, b * t);
            let (qkv, g) = (normal([n, 3 * d], 0.8), normal([n, d], 0.5));
            let run = |dtype, precision| {
                let x = Tensor::from_inner(crate::testing::matrix(&qkv, dtype)).require_grad();
                let angles = rotary(t, width, dtype);
                let y = attention(x.clone().reshape([b, t, 3 * d]), heads, Some(&angles), precision);
                let dy = crate::testing::matrix(&g, dtype).reshape([b, t, d]);
                let tape = crate::inject(y.clone(), dy).backward();
                [host(&y.inner()), x.grad(&tape).map(|g| host(&g)).unwrap_or_default()]
            };
            let expected = if n == 0 { [vec![], vec![]] } else { run(DType::F64, Precision::F32) };
            for kernel in available_kernels() {
                for (found, expected) in run(DType::F32, Precision::Bf16(kernel)).iter().zip(&expected) {
                    let d = distance(found, expected);
                    assert!(d < 8e-3, "{kernel:?} {b} {t} {heads} {width}: {d:e}");
                }
            }
        }
    }

    #[test]
    fn extreme_scores_pick_one_value_and_nan_stays_behind_the_mask() {
        // Width 1: q = 100, so scores are +-1e4; the second key wins for the second query.
        let qkv = matrix_f32(&[100.0, -100.0, 3.0, 100.0, 100.0, 5.0], [2, 3]);
        let y = host(&attention(qkv.reshape([1, 2, 3]), 1, None, Precision::F32));
        assert_eq!(y, [3.0, 5.0]);
        let mut values = vec![1.0f32; 200 * 3];
        values[130 * 3] = f32::NAN;
        let y = host(&attention(matrix_f32(&values, [200, 3]).reshape([1, 200, 3]), 1, None, Precision::F32));
        let nan: Vec<usize> = (0..200).filter(|i| y[*i].is_nan()).collect();
        assert_eq!(nan, [130], "a query's NaN stays in its row");
    }
}
