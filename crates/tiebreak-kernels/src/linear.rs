//! x W, alone or added to a residual.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::flex::{Fused, Unfilled, apply, from_values, operand, shape, values};
use crate::matrix::{Factor, Into, Matrix, MatrixMut, Precision, Side, Threads, product};

/// x `[n, i]` times w `[i, o]`: `[n, o]`.
///
/// With [`Precision::Bf16`] the operands of this product and of the two of its backward pass are rounded; sums, result and
/// gradients are f32.
///
/// # Panics
/// With `Bf16`, if the operands are not contiguous f32 on flex: there is no composition of it.
pub fn linear(x_ni: Tensor<2>, w_io: &Tensor<2>, precision: Precision) -> Tensor<2> {
    match (operand(&x_ni), operand(w_io)) {
        (Some(x), Some(w)) => apply(Linear(precision), [x, w]),
        _ => None,
    }
    .unwrap_or_else(|| {
        precision.require_f32();
        x_ni.matmul(w_io.clone())
    })
}

/// residual `[n, o]` + x `[n, i]` times w `[i, o]`, as [`linear`]; the sum is f32.
///
/// # Panics
/// As [`linear`].
pub fn linear_add(residual_no: Tensor<2>, x_ni: Tensor<2>, w_io: &Tensor<2>, precision: Precision) -> Tensor<2> {
    match (operand(&x_ni), operand(w_io), operand(&residual_no)) {
        (Some(x), Some(w), Some(r)) => apply(Linear(precision), [x, w, r]),
        _ => None,
    }
    .unwrap_or_else(|| {
        precision.require_f32();
        residual_no + x_ni.matmul(w_io.clone())
    })
}

#[derive(Clone, Debug)]
struct Linear(Precision);

#[derive(Clone, Debug)]
struct Saved {
    x: Input,
    w: FlexTensor,
}

/// The left operand, as the backward pass wants it.
#[derive(Clone, Debug)]
enum Input {
    Exact(FlexTensor),
    Rounded(Factor<'static>),
}

fn forward(precision: Precision, x: FlexTensor, w: FlexTensor, residual: Option<FlexTensor>) -> (FlexTensor, Saved) {
    let ([n, i], [_, o]) = (dims(&x), dims(&w));
    let mut y = Unfilled::new(n * o);
    let into = match &residual {
        None => Into::Overwrite,
        Some(residual) => {
            let copy = y.slots().par_chunks_mut(1 << 16).zip(values(residual).par_chunks(1 << 16));
            copy.for_each(|(y, r)| {
                y.write_copy_of_slice(r);
            });
            Into::Add
        }
    };
    let factor = |matrix, side| Factor::new(precision, matrix, side, Threads::All);
    let left = factor(Matrix::new(values(&x), n, i), Side::Left);
    let right = factor(Matrix::new(values(&w), i, o), Side::Right);
    product(MatrixMut::unfilled(y.slots(), n, o), left.whole(), right.whole(), into, Threads::All);
    let x = match left {
        Factor::Exact(_) => Input::Exact(x),
        Factor::Rounded(kernel, tiles) => Input::Rounded(Factor::Rounded(kernel, tiles)),
    };
    // SAFETY: an overwriting product writes every element; an adding one finds the residual in all of them.
    (from_values(unsafe { y.filled() }, [n, o]), Saved { x, w })
}

fn backward(precision: Precision, saved: Saved, dy: &FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
    let ([n, o], [i, _]) = (dims(dy), dims(&saved.w));
    let factor = |matrix, side| Factor::new(precision, matrix, side, Threads::All);
    let multiply = |a: Factor, b: Factor, rows: usize, columns: usize| {
        let mut y = Unfilled::new(rows * columns);
        let to = MatrixMut::unfilled(y.slots(), rows, columns);
        product(to, a.whole(), b.whole(), Into::Overwrite, Threads::All);
        // SAFETY: an overwriting product writes every element.
        from_values(unsafe { y.filled() }, [rows, columns])
    };
    let dy = factor(Matrix::new(values(dy), n, o), Side::Left);
    let dx = wanted[0].then(|| {
        let w_t = factor(Matrix::new(values(&saved.w), i, o).t(), Side::Right);
        multiply(dy.clone(), w_t, n, i)
    });
    let dw = wanted[1].then(|| {
        let x = match &saved.x {
            Input::Exact(x) => Factor::Exact(Matrix::new(values(x), n, i)),
            Input::Rounded(x) => x.clone(),
        };
        multiply(x.turned(Side::Left, Threads::All), dy.turned(Side::Right, Threads::All), i, o)
    });
    [dx, dw]
}

fn dims(t: &FlexTensor) -> [usize; 2] {
    let shape = shape(t);
    [shape[0], shape[1]]
}

impl Fused<2> for Linear {
    type Saved = Saved;

    fn forward(&self, [x, w]: [FlexTensor; 2]) -> (FlexTensor, Saved) {
        forward(self.0, x, w, None)
    }

    fn backward(self, saved: Saved, dy: FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        backward(self.0, saved, &dy, wanted)
    }
}

impl Fused<3> for Linear {
    type Saved = Saved;

    fn forward(&self, [x, w, residual]: [FlexTensor; 3]) -> (FlexTensor, Saved) {
        forward(self.0, x, w, Some(residual))
    }

    fn backward(self, saved: Saved, dy: FlexTensor, [x, w, _]: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let [dx, dw] = backward(self.0, saved, &dy, [x, w]);
        [dx, dw, Some(dy)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{against_f64, available_kernels, distance, host, matrix, normal, rounded};
    use burn::tensor::DType;

    const SIZES: [[usize; 3]; 5] = [[0, 3, 2], [1, 1, 1], [7, 80, 37], [129, 16, 600], [700, 80, 3]];

    #[test]
    fn equals_its_composition_in_f64() {
        for [n, i, o] in SIZES {
            let (x, w, r) = (normal([n, i], 1.0), normal([i, o], 1.0), normal([n, o], 1.0));
            against_f64(&[x.clone(), w.clone()], 1e-6, |x| linear(x[0].clone(), &x[1], Precision::F32));
            against_f64(&[x, w, r], 1e-6, |x| linear_add(x[2].clone(), x[0].clone(), &x[1], Precision::F32));
        }
    }

    #[test]
    fn bf16_equals_f64_of_rounded_operands() {
        for [n, i, o] in SIZES {
            let (x, w, r, g) = (normal([n, i], 1.0), normal([i, o], 1.0), normal([n, o], 1.0), normal([n, o], 0.5));
            let exact = |(values, shape): &crate::testing::Values| {
                matrix(&(values.iter().map(|x| rounded(*x)).collect(), *shape), DType::F64)
            };
            let (xr, wr, gr) = (exact(&x), exact(&w), exact(&g));
            let expected = match n {
                0 => [vec![], vec![], vec![0.0; i * o], vec![]],
                _ => [
                    host(&(matrix(&r, DType::F64) + xr.clone().matmul(wr.clone()))),
                    host(&gr.clone().matmul(wr.transpose())),
                    host(&xr.transpose().matmul(gr)),
                    g.0.clone(),
                ],
            };
            for kernel in available_kernels() {
                let leaf = |v| Tensor::from_inner(matrix(v, DType::F32)).require_grad();
                let (x, w, r) = (leaf(&x), leaf(&w), leaf(&r));
                let y = linear_add(r.clone(), x.clone(), &w, Precision::Bf16(kernel));
                let tape = crate::inject(y.clone(), matrix(&g, DType::F32)).backward();
                let gradient = |t: &Tensor<2>| host(&t.grad(&tape).expect("every operand is used"));
                let found = [host(&y.inner()), gradient(&x), gradient(&w), gradient(&r)];
                for (found, expected) in found.iter().zip(&expected) {
                    let d = distance(found, expected);
                    assert!(d < 1e-6, "{kernel:?} {n} {i} {o}: {d:e}");
                }
            }
        }
    }
}
