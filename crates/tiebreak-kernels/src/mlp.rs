//! The nonlinear part of the MLP: gelu in its tanh form, and swiglu on packed value and gate.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Tensor, activation};
use rayon::prelude::*;

use crate::flex::{Fused, Unfilled, apply, from_values, operand, shape, values, values_mut};
use crate::linear::{Kept, Left};
use crate::simd::{exp, mul_add, simd};

/// Elements per task; also what fits the first cache together with the result.
const BLOCK: usize = 4096;

/// The nonlinear part of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// gelu in its tanh form, u / 2 (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3))), elementwise.
    Gelu,
    /// value silu(gate) for u `[n, 2 f]`, whose first half of columns is the value and second the gate: `[n, f]`.
    Swiglu,
}

impl Activation {
    /// The activation of u, `[n, f]` or `[n, 2 f]`.
    pub fn apply(self, u: Tensor<2>) -> Tensor<2> {
        match self {
            Activation::Gelu => gelu(u),
            Activation::Swiglu => swiglu(u),
        }
    }
}

fn gelu(x_nf: Tensor<2>) -> Tensor<2> {
    match operand(&x_nf).and_then(|x| apply(Gelu, [x])) {
        Some(y) => y,
        None => activation::gelu_approximate(x_nf),
    }
}

fn swiglu(x_n2f: Tensor<2>) -> Tensor<2> {
    if let Some(y) = operand(&x_n2f).and_then(|x| apply(Swiglu, [x])) {
        return y;
    }
    let f = x_n2f.dims()[1] / 2;
    let (value_nf, gate_nf) = (x_n2f.clone().slice_dim(1, 0..f), x_n2f.slice_dim(1, f..2 * f));
    activation::silu(gate_nf) * value_nf
}

// SAFETY: both functions write a value for each of f inputs, and there are as many slots.
unsafe impl Left for Activation {
    type Row = ();

    fn columns(&self, source: usize) -> usize {
        match self {
            Activation::Gelu => source,
            Activation::Swiglu => source / 2,
        }
    }

    fn row(&self, kept: &Kept, row: usize, to: &mut [MaybeUninit<f32>]) {
        let (u, f) = (values(kept.source()), to.len());
        match self {
            Activation::Gelu => gelu_forward(&u[row * f..(row + 1) * f], to),
            Activation::Swiglu => {
                let (value, gate) = u[2 * row * f..2 * (row + 1) * f].split_at(f);
                swiglu_forward(value, gate, to);
            }
        }
    }

    fn back(&self, kept: Kept, _: Vec<()>, dy: FlexTensor, _: bool) -> [Option<FlexTensor>; 3] {
        let u = kept.source.expect("kept for the way back");
        let [du] = match self {
            Activation::Gelu => Gelu.backward(u, dy, [true]),
            Activation::Swiglu => Swiglu.backward(u, dy, [true]),
        };
        [du, None, None]
    }
}

/// 1 / (1 + e^-x).
#[inline(always)]
fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FMA>(-x))
}

// (1 + tanh u) / 2 is the sigmoid of 2 u = A x + B x^3.
const A: f32 = 1.595_769;
const B: f32 = 0.071_354_814;

simd! {
    fn gelu_forward(x: &[f32], y: &mut [MaybeUninit<f32>]) {
        for (x, y) in x.iter().zip(y) {
            y.write(x * sigmoid::<FMA>(x * mul_add::<FMA>(B * x, *x, A)));
        }
    }
}

simd! {
    fn gelu_backward(x: &[f32], dy: &mut [f32]) {
        for (&x, dy) in x.iter().zip(dy) {
            let s = sigmoid::<FMA>(x * mul_add::<FMA>(B * x, x, A));
            let slope = mul_add::<FMA>(3.0 * B * x, x, A);
            // Where s (1 - s) is 0, an infinite slope must not make a NaN of it.
            let bend = s * (1.0 - s);
            let bend = if bend == 0.0 { 0.0 } else { x * bend * slope };
            *dy *= s + bend;
        }
    }
}

simd! {
    fn swiglu_forward(value: &[f32], gate: &[f32], y: &mut [MaybeUninit<f32>]) {
        for ((v, g), y) in value.iter().zip(gate).zip(y) {
            y.write(v * g * sigmoid::<FMA>(*g));
        }
    }
}

simd! {
    fn swiglu_backward(
        value: &[f32], gate: &[f32], dy: &[f32], dvalue: &mut [MaybeUninit<f32>], dgate: &mut [MaybeUninit<f32>],
    ) {
        for ((((&v, &g), &dy), dv), dg) in value.iter().zip(gate).zip(dy).zip(dvalue).zip(dgate) {
            let s = sigmoid::<FMA>(g);
            let silu = g * s;
            dv.write(dy * silu);
            dg.write(dy * v * mul_add::<FMA>(silu, 1.0 - s, s));
        }
    }
}

#[derive(Clone, Debug)]
struct Gelu;

impl Fused<1> for Gelu {
    type Saved = FlexTensor;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
        let input = values(&x);
        let mut y = Unfilled::new(input.len());
        y.slots().par_chunks_mut(BLOCK).zip(input.par_chunks(BLOCK)).for_each(|(y, x)| gelu_forward(x, y));
        // SAFETY: the chunks cover every slot, and `gelu_forward` writes one for each input.
        let y = from_values(unsafe { y.filled() }, shape(&x));
        (y, x)
    }

    fn backward(self, x: FlexTensor, mut dy: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        if values_mut(&mut dy).is_none() {
            dy = from_values(values(&dy).to_vec(), shape(&dy));
        }
        let slots = values_mut(&mut dy).expect("a buffer of its own");
        slots.par_chunks_mut(BLOCK).zip(values(&x).par_chunks(BLOCK)).for_each(|(dy, x)| gelu_backward(x, dy));
        [Some(dy)]
    }
}

#[derive(Clone, Debug)]
struct Swiglu;

impl Fused<1> for Swiglu {
    type Saved = FlexTensor;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
        let (n, f) = (shape(&x)[0], shape(&x)[1] / 2);
        let mut y = Unfilled::new(n * f);
        if n * f > 0 {
            let rows = values(&x).par_chunks_exact(2 * f);
            y.slots().par_chunks_mut(f).zip(rows).for_each(|(y, row)| {
                let (value, gate) = row.split_at(f);
                swiglu_forward(value, gate, y);
            });
        }
        // SAFETY: one row of f slots per row of 2 f inputs, all written.
        let y = from_values(unsafe { y.filled() }, [n, f]);
        (y, x)
    }

    fn backward(self, x: FlexTensor, dy: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        let (n, f) = (shape(&x)[0], shape(&x)[1] / 2);
        let mut dx = Unfilled::new(n * 2 * f);
        if n * f > 0 {
            let rows = values(&x).par_chunks_exact(2 * f).zip(values(&dy).par_chunks_exact(f));
            dx.slots().par_chunks_mut(2 * f).zip(rows).for_each(|(dx, (row, dy))| {
                let ((value, gate), (dvalue, dgate)) = (row.split_at(f), dx.split_at_mut(f));
                swiglu_backward(value, gate, dy, dvalue, dgate);
            });
        }
        // SAFETY: both halves of every row are written.
        [Some(from_values(unsafe { dx.filled() }, [n, 2 * f]))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{against_f64, at_every_level, matrix_f32, normal};

    const TOLERANCE: f64 = 1e-6;

    #[test]
    fn gelu_equals_its_composition_in_f64() {
        at_every_level(|| {
            for shape in [[0, 3], [1, 1], [7, 37], [129, 80]] {
                against_f64(&[normal(shape, 2.0)], TOLERANCE, |x| gelu(x[0].clone()));
            }
        });
    }

    #[test]
    fn swiglu_equals_its_composition_in_f64() {
        at_every_level(|| {
            for shape in [[0, 4], [1, 2], [7, 74], [129, 160]] {
                against_f64(&[normal(shape, 2.0)], TOLERANCE, |x| swiglu(x[0].clone()));
            }
        });
    }

    #[test]
    fn extremes_saturate_and_nan_passes() {
        let x = matrix_f32(&[1e4, -1e4, 1e30, -1e30, f32::NAN], [1, 5]);
        assert_eq!(swiglu(matrix_f32(&[], [3, 0])).dims(), [3, 0]);
        let y: Vec<f32> = gelu(x).into_data().iter().collect();
        assert!(y[0] == 1e4 && y[1].abs() < 1e-30 && y[2] == 1e30 && y[3].abs() < 1e-7 && y[4].is_nan(), "{y:?}");
        let x = matrix_f32(&[1.0, f32::NAN, 2.0, 1e4, 1.0, -1e4], [1, 6]);
        let y: Vec<f32> = swiglu(x).into_data().iter().collect();
        assert!(y[0] == 1e4 && y[1].is_nan() && y[2].abs() < 1e-30, "{y:?}");
    }
}
