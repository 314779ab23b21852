//! x W, alone or added to a residual.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::flex::{Fused, Unfilled, apply, from_values, operand, shape, values};
use crate::matrix::{Into, Matrix, MatrixMut, multiply_parallel};

/// x `[n, i]` times w `[i, o]`: `[n, o]`.
pub fn linear(x_ni: Tensor<2>, w_io: &Tensor<2>) -> Tensor<2> {
    match (operand(&x_ni), operand(w_io)) {
        (Some(x), Some(w)) => apply(Linear, [x, w]),
        _ => None,
    }
    .unwrap_or_else(|| x_ni.matmul(w_io.clone()))
}

/// residual `[n, o]` + x `[n, i]` times w `[i, o]`.
pub fn linear_add(residual_no: Tensor<2>, x_ni: Tensor<2>, w_io: &Tensor<2>) -> Tensor<2> {
    match (operand(&x_ni), operand(w_io), operand(&residual_no)) {
        (Some(x), Some(w), Some(r)) => apply(Linear, [x, w, r]),
        _ => None,
    }
    .unwrap_or_else(|| residual_no + x_ni.matmul(w_io.clone()))
}

#[derive(Clone, Debug)]
struct Linear;

#[derive(Clone, Debug)]
struct Saved {
    x: FlexTensor,
    w: FlexTensor,
}

fn forward(x: FlexTensor, w: FlexTensor, residual: Option<FlexTensor>) -> (FlexTensor, Saved) {
    let ([n, i], [_, o]) = (dims(&x), dims(&w));
    let (xs, ws) = (Matrix::new(values(&x), n, i), Matrix::new(values(&w), i, o));
    let y = match residual {
        None => {
            let mut y = Unfilled::new(n * o);
            multiply_parallel(MatrixMut::unfilled(y.slots(), n, o), xs, ws, Into::Overwrite);
            // SAFETY: an overwriting product writes every element.
            unsafe { y.filled() }
        }
        Some(residual) => {
            let mut y = Unfilled::new(n * o);
            let copy = y.slots().par_chunks_mut(1 << 16).zip(values(&residual).par_chunks(1 << 16));
            copy.for_each(|(y, r)| {
                y.write_copy_of_slice(r);
            });
            // SAFETY: as long as the residual, from which every element is copied.
            let mut y = unsafe { y.filled() };
            multiply_parallel(MatrixMut::new(&mut y, n, o), xs, ws, Into::Add);
            y
        }
    };
    (from_values(y, [n, o]), Saved { x, w })
}

fn backward(saved: Saved, dy: &FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
    let ([n, i], [_, o]) = (dims(&saved.x), dims(&saved.w));
    let dy = Matrix::new(values(dy), n, o);
    let product = |a: Matrix, b: Matrix, rows: usize, columns: usize| {
        let mut y = Unfilled::new(rows * columns);
        multiply_parallel(MatrixMut::unfilled(y.slots(), rows, columns), a, b, Into::Overwrite);
        // SAFETY: an overwriting product writes every element.
        from_values(unsafe { y.filled() }, [rows, columns])
    };
    let dx = wanted[0].then(|| product(dy, Matrix::new(values(&saved.w), i, o).t(), n, i));
    let dw = wanted[1].then(|| product(Matrix::new(values(&saved.x), n, i).t(), dy, i, o));
    [dx, dw]
}

fn dims(t: &FlexTensor) -> [usize; 2] {
    let shape = shape(t);
    [shape[0], shape[1]]
}

impl Fused<2> for Linear {
    type Saved = Saved;

    fn forward(&self, [x, w]: [FlexTensor; 2]) -> (FlexTensor, Saved) {
        forward(x, w, None)
    }

    fn backward(self, saved: Saved, dy: FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        backward(saved, &dy, wanted)
    }
}

impl Fused<3> for Linear {
    type Saved = Saved;

    fn forward(&self, [x, w, residual]: [FlexTensor; 3]) -> (FlexTensor, Saved) {
        forward(x, w, Some(residual))
    }

    fn backward(self, saved: Saved, dy: FlexTensor, [x, w, _]: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let [dx, dw] = backward(saved, &dy, [x, w]);
        [dx, dw, Some(dy)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{against_f64, normal};

    #[test]
    fn equals_its_composition_in_f64() {
        for [n, i, o] in [[0, 3, 2], [1, 1, 1], [7, 80, 37], [129, 16, 600], [700, 80, 3]] {
            let (x, w, r) = (normal([n, i], 1.0), normal([i, o], 1.0), normal([n, o], 1.0));
            against_f64(&[x.clone(), w.clone()], 1e-6, |x| linear(x[0].clone(), &x[1]));
            against_f64(&[x, w, r], 1e-6, |x| linear_add(x[2].clone(), x[0].clone(), &x[1]));
        }
    }
}
