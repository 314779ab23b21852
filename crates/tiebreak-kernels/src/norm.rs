//! Normalisation over the last dimension, with the gradients of gain and bias.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::flex::{Fused, Shared, Unfilled, apply, from_values, operand, shape, values};
use crate::linear::{Kept, Left};
use crate::simd::{mul_add, simd, sum1, sum2, sum3};

/// Rows per task, and per partial sum of the gradients of gain and bias.
const ROWS: usize = 32;

/// What is taken out of a row before its length is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Layer norm: the mean.
    Layer,
    /// Root mean square norm: nothing.
    Rms,
}

/// y = (x - mean) / sqrt(var + eps) gain + bias, or y = x / sqrt(mean(x^2) + eps) gain + bias, over rows of d.
///
/// `gain` and `bias` are `[1, d]` where the norm has them; a bias needs a gain. The variance is biased.
pub fn norm(
    kind: NormKind,
    x_btd: Tensor<3>,
    eps: f64,
    gain: Option<&Tensor<2>>,
    bias: Option<&Tensor<2>>,
) -> Tensor<3> {
    let native = || {
        let x = operand(&x_btd)?;
        let op = Norm { kind, eps: eps as f32 };
        match (gain, bias) {
            (None, None) => apply(op, [x]),
            (Some(gain), None) => apply(op, [x, operand(gain)?]),
            (Some(gain), Some(bias)) => apply(op, [x, operand(gain)?, operand(bias)?]),
            (None, Some(_)) => None,
        }
    };
    if let Some(y) = native() {
        return y;
    }
    let x_btd = match kind {
        NormKind::Layer => x_btd.clone() - x_btd.mean_dim(2),
        NormKind::Rms => x_btd,
    };
    let scale_bt1 = x_btd.clone().powi_scalar(2).mean_dim(2).add_scalar(eps).sqrt().recip();
    let mut y_btd = x_btd * scale_bt1;
    if let Some(gain) = gain {
        y_btd = y_btd * gain.clone().unsqueeze();
    }
    if let Some(bias) = bias {
        y_btd = y_btd + bias.clone().unsqueeze();
    }
    y_btd
}

#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub(crate) kind: NormKind,
    pub(crate) eps: f32,
}

/// The input, the gain, and (mean, 1 / length) per row.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    x: FlexTensor,
    gain: Option<FlexTensor>,
    rows: Vec<[f32; 2]>,
}

simd! {
    fn forward_row(
        kind: NormKind, eps: f32, x: &[f32], gain: Option<&[f32]>, bias: Option<&[f32]>, y: &mut [MaybeUninit<f32>],
    ) -> [f32; 2] {
        let d = x.len() as f32;
        let mean = match kind {
            NormKind::Layer => sum1(x, |x| x) / d,
            NormKind::Rms => 0.0,
        };
        let scale = 1.0 / (sum1(x, |x| (x - mean) * (x - mean)) / d + eps).sqrt();
        match (gain, bias) {
            (Some(gain), Some(bias)) => {
                for (((x, g), b), y) in x.iter().zip(gain).zip(bias).zip(y) {
                    y.write(mul_add::<FMA>((x - mean) * scale, *g, *b));
                }
            }
            (Some(gain), None) => {
                for ((x, g), y) in x.iter().zip(gain).zip(y) {
                    y.write((x - mean) * scale * g);
                }
            }
            _ => {
                for (x, y) in x.iter().zip(y) {
                    y.write((x - mean) * scale);
                }
            }
        }
        [mean, scale]
    }
}

simd! {
    fn backward_row(
        kind: NormKind, row: [f32; 2], x: &[f32], gain: Option<&[f32]>, dy: &[f32], dx: &mut [MaybeUninit<f32>],
    ) {
        let [mean, scale] = row;
        let d = x.len() as f32;
        // g is the gradient of the normalised row; what the mean and the length take away is projected out of it.
        match gain {
            None => {
                let mean_g = if kind == NormKind::Layer { sum1(dy, |g| g) / d } else { 0.0 };
                let along = sum2(x, dy, |x, g| (x - mean) * scale * g) / d;
                for ((x, g), dx) in x.iter().zip(dy).zip(dx) {
                    dx.write(scale * (g - mean_g - (x - mean) * scale * along));
                }
            }
            Some(gain) => {
                let mean_g = if kind == NormKind::Layer { sum2(dy, gain, |a, b| a * b) / d } else { 0.0 };
                let along = sum3(x, dy, gain, |x, dy, gain| (x - mean) * dy * gain) * scale / d;
                for (((x, dy), gain), dx) in x.iter().zip(dy).zip(gain).zip(dx) {
                    dx.write(scale * (dy * gain - mean_g - (x - mean) * scale * along));
                }
            }
        }
    }
}

simd! {
    fn add_vectors(row: [f32; 2], x: &[f32], dy: &[f32], dgain: &mut [f32], dbias: &mut [f32]) {
        let [mean, scale] = row;
        for ((x, dy), dgain) in x.iter().zip(dy).zip(dgain) {
            *dgain += (x - mean) * scale * dy;
        }
        for (dy, dbias) in dy.iter().zip(dbias) {
            *dbias += dy;
        }
    }
}

fn width(dims: &[usize]) -> usize {
    dims.last().copied().unwrap_or_default()
}

// SAFETY: `forward_row` writes a value for each of the row's, and a row is as long as the slots.
unsafe impl Left for Norm {
    type Row = [f32; 2];

    fn columns(&self, source: usize) -> usize {
        source
    }

    fn row(&self, kept: &Kept, row: usize, to: &mut [MaybeUninit<f32>]) -> [f32; 2] {
        let x = &values(kept.source())[row * to.len()..(row + 1) * to.len()];
        forward_row(self.kind, self.eps, x, kept.gain.as_ref().map(values), kept.bias.as_ref().map(values), to)
    }

    fn back(&self, kept: Kept, rows: Vec<[f32; 2]>, dy: FlexTensor, vectors: bool) -> [Option<FlexTensor>; 3] {
        let x = kept.source.expect("kept for the way back");
        let (dx, dgain, dbias) = self.clone().run_back(Saved { x, gain: kept.gain, rows }, dy, vectors);
        [Some(dx), vectors.then_some(dgain), vectors.then_some(dbias)]
    }
}

impl Norm {
    fn run(&self, x: FlexTensor, gain: Option<FlexTensor>, bias: Option<FlexTensor>) -> (FlexTensor, Saved) {
        let dims = shape(&x);
        let (input, d) = (values(&x), width(&dims));
        let (g, b) = (gain.as_ref().map(values), bias.as_ref().map(values));
        let mut y = Unfilled::new(input.len());
        let rows = match input.is_empty() {
            true => Vec::new(),
            false => {
                let inputs = input.par_chunks_exact(d);
                let rows = y.slots().par_chunks_mut(d).zip(inputs).with_min_len(ROWS);
                rows.map(|(y, x)| forward_row(self.kind, self.eps, x, g, b, y)).collect()
            }
        };
        // SAFETY: rows of d cover the buffer, and each is written whole.
        let y = from_values(unsafe { y.filled() }, dims);
        (y, Saved { x, gain, rows })
    }

    /// Gradients of the input, the gain and the bias.
    fn run_back(self, saved: Saved, dy: FlexTensor, vectors: bool) -> (FlexTensor, FlexTensor, FlexTensor) {
        let dims = shape(&saved.x);
        let (x, dy, d) = (values(&saved.x), values(&dy), width(&dims));
        let gain = saved.gain.as_ref().map(values);
        let mut dx = Unfilled::new(x.len());
        let shared = Shared::new(dx.slots());
        let n = saved.rows.len();
        let partial: Vec<(Vec<f32>, Vec<f32>)> = (0..n.div_ceil(ROWS))
            .into_par_iter()
            .map(|block| {
                let width = if vectors { d } else { 0 };
                let (mut dgain, mut dbias) = (vec![0.0; width], vec![0.0; width]);
                for row in block * ROWS..((block + 1) * ROWS).min(n) {
                    let range = row * d..(row + 1) * d;
                    // SAFETY: rows do not overlap, each belongs to one block, and all lie inside the buffer.
                    let dx = unsafe {
                        std::slice::from_raw_parts_mut(shared.get().add(row * d).cast::<MaybeUninit<f32>>(), d)
                    };
                    let (x, dy, of_row) = (&x[range.clone()], &dy[range], saved.rows[row]);
                    backward_row(self.kind, of_row, x, gain, dy, dx);
                    if vectors {
                        add_vectors(of_row, x, dy, &mut dgain, &mut dbias);
                    }
                }
                (dgain, dbias)
            })
            .collect();
        let (mut dgain, mut dbias) = (vec![0.0; d], vec![0.0; d]);
        for (a, b) in &partial {
            dgain.iter_mut().zip(a).for_each(|(sum, part)| *sum += part);
            dbias.iter_mut().zip(b).for_each(|(sum, part)| *sum += part);
        }
        // SAFETY: blocks of rows cover the buffer, and each row is written whole.
        let dx = from_values(unsafe { dx.filled() }, dims);
        (dx, from_values(dgain, [1, d]), from_values(dbias, [1, d]))
    }
}

impl Fused<1> for Norm {
    type Saved = Saved;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, Saved) {
        self.run(x, None, None)
    }

    fn backward(self, saved: Saved, dy: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(self.run_back(saved, dy, false).0)]
    }
}

impl Fused<2> for Norm {
    type Saved = Saved;

    fn forward(&self, [x, gain]: [FlexTensor; 2]) -> (FlexTensor, Saved) {
        self.run(x, Some(gain), None)
    }

    fn backward(self, saved: Saved, dy: FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let (dx, dgain, _) = self.run_back(saved, dy, wanted[1]);
        [Some(dx), Some(dgain)]
    }
}

impl Fused<3> for Norm {
    type Saved = Saved;

    fn forward(&self, [x, gain, bias]: [FlexTensor; 3]) -> (FlexTensor, Saved) {
        self.run(x, Some(gain), Some(bias))
    }

    fn backward(self, saved: Saved, dy: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let (dx, dgain, dbias) = self.run_back(saved, dy, wanted[1] || wanted[2]);
        [Some(dx), Some(dgain), Some(dbias)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{against_f64, at_every_level, normal};

    #[test]
    fn every_norm_equals_its_composition_in_f64() {
        at_every_level(|| {
            for [b, t, d] in [[0, 3, 4], [1, 1, 8], [1, 7, 37], [3, 43, 80], [2, 5, 256]] {
                let (x, gain, bias) = (normal([b * t, d], 2.0), normal([1, d], 1.0), normal([1, d], 0.3));
                let run = |kind, inputs: &[_]| {
                    against_f64(inputs, 3e-6, |x| {
                        norm(kind, x[0].clone().reshape([b, t, d]), 1e-5, x.get(1), x.get(2)).reshape([b * t, d])
                    })
                };
                run(NormKind::Layer, std::slice::from_ref(&x));
                run(NormKind::Rms, &[x.clone(), gain.clone()]);
                run(NormKind::Layer, &[x, gain, bias]);
            }
        });
    }

    #[test]
    fn nan_stays_in_its_row_and_a_constant_row_has_no_direction() {
        let x = crate::testing::matrix_f32(&[f32::NAN, 1.0, 5.0, 5.0], [2, 2]);
        let y: Vec<f32> = norm(NormKind::Layer, x.reshape([1, 2, 2]), 1e-5, None, None).into_data().iter().collect();
        assert!(y[0].is_nan() && y[1].is_nan() && y[2..] == [0.0, 0.0], "{y:?}");
    }
}
