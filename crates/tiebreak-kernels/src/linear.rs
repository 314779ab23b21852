//! x W, alone or added to a residual, where x may be a norm or an activation of what is kept.
//!
//! Such an x is made for each product and dropped after it: the backward pass makes it anew from the input that its own
//! gradient needs anyway, which costs little beside the product and saves the memory. In bf16 its rows are rounded as they
//! are made, and of a plain x the rounded operand is kept in its place.

use std::fmt::Debug;
use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::flex::{Fused, Operand, Unfilled, apply, from_values, operand, shape, values};
use crate::matrix::{Factor, Into, Matrix, MatrixMut, Precision, Side, Threads, Tiles, product};
use crate::mlp::Activation;
use crate::norm::{Norm, NormKind, norm};

/// x `[n, i]` times w `[i, o]`: `[n, o]`.
///
/// With [`Precision::Bf16`] the operands of this product and of the two of its backward pass are rounded; sums, result and
/// gradients are f32.
///
/// # Panics
/// With `Bf16`, if the operands are not contiguous f32 on flex: there is no composition of it.
pub fn linear(x_ni: Tensor<2>, w_io: &Tensor<2>, precision: Precision) -> Tensor<2> {
    native(Linear { precision, left: Plain }, [&x_ni, w_io]).unwrap_or_else(|| {
        precision.require_f32();
        x_ni.matmul(w_io.clone())
    })
}

/// residual `[n, o]` + x `[n, i]` times w `[i, o]`, as [`linear`]; the sum is f32.
///
/// # Panics
/// As [`linear`].
pub fn linear_add(residual_no: Tensor<2>, x_ni: Tensor<2>, w_io: &Tensor<2>, precision: Precision) -> Tensor<2> {
    native(Linear { precision, left: Plain }, [&x_ni, w_io, &residual_no]).unwrap_or_else(|| {
        precision.require_f32();
        residual_no + x_ni.matmul(w_io.clone())
    })
}

/// residual `[n, o]` + activation(u) `[n, f]` times w `[f, o]`, as [`linear_add`]; u as [`Activation::apply`] takes it.
///
/// # Panics
/// As [`linear`].
pub fn activation_linear_add(
    residual_no: Tensor<2>,
    activation: Activation,
    u: Tensor<2>,
    w_fo: &Tensor<2>,
    precision: Precision,
) -> Tensor<2> {
    native(Linear { precision, left: activation }, [&u, w_fo, &residual_no])
        .unwrap_or_else(|| linear_add(residual_no, activation.apply(u), w_fo, precision))
}

/// The [`norm`] of x `[b, t, d]` times w `[d, o]`, as [`linear`]: `[b t, o]`.
///
/// # Panics
/// As [`linear`].
pub fn norm_linear(
    kind: NormKind,
    x_btd: Tensor<3>,
    eps: f64,
    gain: Option<&Tensor<2>>,
    bias: Option<&Tensor<2>>,
    w_do: &Tensor<2>,
    precision: Precision,
) -> Tensor<2> {
    let [b, t, d] = x_btd.dims();
    let x_nd = x_btd.clone().reshape([b * t, d]);
    let op = NormLinear(Linear { precision, left: Norm { kind, eps: eps as f32 } });
    let found = match (gain, bias) {
        (None, None) => native(op, [&x_nd, w_do]),
        (Some(gain), None) => native(op, [&x_nd, w_do, gain]),
        (Some(gain), Some(bias)) => native(op, [&x_nd, w_do, gain, bias]),
        (None, Some(_)) => None,
    };
    found.unwrap_or_else(|| linear(norm(kind, x_btd, eps, gain, bias).reshape([b * t, d]), w_do, precision))
}

fn native<O: Fused<N>, const N: usize>(op: O, inputs: [&Tensor<2>; N]) -> Option<Tensor<2>> {
    let operands: Option<Vec<Operand>> = inputs.into_iter().map(operand).collect();
    apply(op, operands?.try_into().ok()?)
}

/// How the left operand comes from what is kept.
///
/// # Safety
/// [`Left::row`] writes every slot it is given.
pub(crate) unsafe trait Left: Clone + Debug + Send + Sync + 'static {
    /// What making a row finds out about it, for the way back.
    type Row: Clone + Debug + Default + Send + Sync + 'static;

    /// Columns of the operand, for the shape of `kept`'s first tensor.
    fn columns(&self, source: usize) -> usize;

    /// The operand itself, if it is kept.
    fn whole<'a>(&self, _: &'a Kept) -> Option<&'a FlexTensor> {
        None
    }

    /// Writes one row of the operand, whole.
    fn row(&self, kept: &Kept, row: usize, to: &mut [MaybeUninit<f32>]) -> Self::Row;

    /// Gradients of the source, the gain and the bias from that of the operand. `vectors`: of gain and bias too.
    fn back(&self, kept: Kept, rows: Vec<Self::Row>, dx: FlexTensor, vectors: bool) -> [Option<FlexTensor>; 3];
}

/// What the left operand is made from.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// `[n, i]`, or as wide as an activation needs. `None`: no longer needed.
    pub(crate) source: Option<FlexTensor>,
    pub(crate) gain: Option<FlexTensor>,
    pub(crate) bias: Option<FlexTensor>,
}

impl Kept {
    pub(crate) fn source(&self) -> &FlexTensor {
        self.source.as_ref().expect("kept as long as it is needed")
    }
}

/// x itself.
#[derive(Clone, Debug)]
struct Plain;

// SAFETY: `row` is never reached.
unsafe impl Left for Plain {
    type Row = ();

    fn columns(&self, source: usize) -> usize {
        source
    }

    fn whole<'a>(&self, kept: &'a Kept) -> Option<&'a FlexTensor> {
        kept.source.as_ref()
    }

    fn row(&self, _: &Kept, _: usize, _: &mut [MaybeUninit<f32>]) {
        unreachable!("kept whole")
    }

    fn back(&self, _: Kept, _: Vec<()>, dx: FlexTensor, _: bool) -> [Option<FlexTensor>; 3] {
        [Some(dx), None, None]
    }
}

#[derive(Clone, Debug)]
struct Linear<L> {
    precision: Precision,
    left: L,
}

#[derive(Clone, Debug)]
struct Saved<R> {
    kept: Kept,
    rows: Vec<R>,
    /// In bf16, in place of a plain source.
    rounded: Option<Factor<'static>>,
    w: FlexTensor,
}

/// Rows per task where the left operand is made.
const ROWS: usize = 16;

/// A left operand and what is to be known of its rows.
struct Made<R> {
    values: Values,
    rows: Vec<R>,
}

enum Values {
    Exact(Vec<f32>),
    Rounded(Factor<'static>),
}

impl<L: Left> Linear<L> {
    /// The left operand, if it is not kept whole.
    fn make(&self, kept: &Kept) -> Made<L::Row> {
        let [n, source] = dims(kept.source());
        let i = self.left.columns(source);
        let mut rows = vec![L::Row::default(); n];
        let row = |row: usize, to: &mut [MaybeUninit<f32>]| self.left.row(kept, row, to);
        if let (Precision::Bf16(kernel), true) = (self.precision, i > 0) {
            let tiles = Tiles::of_rows(i, &mut rows, row);
            return Made { values: Values::Rounded(Factor::rounded(kernel, tiles)), rows };
        }
        let mut made = Unfilled::new(n * i);
        if n * i > 0 {
            let tasks = made.slots().par_chunks_mut(i).zip(&mut rows).enumerate().with_min_len(ROWS);
            tasks.for_each(|(i, (to, found))| *found = row(i, to));
        }
        // SAFETY: rows of i slots cover the buffer, and `row` writes each whole, as its trait promises.
        Made { values: Values::Exact(unsafe { made.filled() }), rows }
    }

    fn forward(&self, mut kept: Kept, w: FlexTensor, residual: Option<FlexTensor>) -> (FlexTensor, Saved<L::Row>) {
        let ([n, source], [i, o]) = (dims(kept.source()), dims(&w));
        assert_eq!(self.left.columns(source), i, "the operands of a product fit each other");
        let mut y = Unfilled::new(n * o);
        let into = match &residual {
            None => Into::Overwrite,
            Some(residual) => {
                assert_eq!(values(residual).len(), n * o, "the residual has the product's shape");
                let copy = y.slots().par_chunks_mut(1 << 16).zip(values(residual).par_chunks(1 << 16));
                copy.for_each(|(y, r)| {
                    y.write_copy_of_slice(r);
                });
                Into::Add
            }
        };
        let right = Factor::new(self.precision, Matrix::new(values(&w), i, o), Side::Right, Threads::All);
        // SAFETY: the product overwrites, or finds the residual, which has filled every slot (its size is asserted above).
        let to = unsafe { MatrixMut::unfilled(y.slots(), n, o) };
        let multiply = |left: &Factor| product(to, left.whole(), right.whole(), into, Threads::All);
        let (rows, rounded) = match self.left.whole(&kept) {
            Some(x) => {
                let left = Factor::new(self.precision, Matrix::new(values(x), n, i), Side::Left, Threads::All);
                multiply(&left);
                (Vec::new(), left.kept())
            }
            None => {
                let made = self.make(&kept);
                multiply(&made.values.factor(self.precision, n, i));
                (made.rows, None)
            }
        };
        if rounded.is_some() {
            kept.source = None;
        }
        // SAFETY: an overwriting product writes every element; an adding one finds the residual in all of them.
        (from_values(unsafe { y.filled() }, [n, o]), Saved { kept, rows, rounded, w })
    }

    /// Gradients of source, w, gain and bias; `wanted`: of the source (or gain or bias), of w, of gain or bias.
    fn backward(self, saved: Saved<L::Row>, dy: &FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 4] {
        let Saved { kept, rows, rounded, w } = saved;
        let ([n, o], [i, _]) = (dims(dy), dims(&w));
        let precision = self.precision;
        let multiply = |a: Factor, b: Factor, rows: usize, columns: usize| {
            let mut y = Unfilled::new(rows * columns);
            // SAFETY: the product overwrites.
            let to = unsafe { MatrixMut::unfilled(y.slots(), rows, columns) };
            product(to, a.whole(), b.whole(), Into::Overwrite, Threads::All);
            // SAFETY: an overwriting product writes every element.
            from_values(unsafe { y.filled() }, [rows, columns])
        };
        let dy = Factor::new(precision, Matrix::new(values(dy), n, o), Side::Left, Threads::All);
        let dw = wanted[1].then(|| {
            let x_dw =
                |x: &Factor| multiply(x.turned(Side::Left, Threads::All), dy.turned(Side::Right, Threads::All), i, o);
            match (&rounded, self.left.whole(&kept)) {
                (Some(x), _) => x_dw(x),
                (None, Some(x)) => x_dw(&Factor::Exact(Matrix::new(values(x), n, i))),
                (None, None) => x_dw(&self.make(&kept).values.factor(precision, n, i)),
            }
        });
        drop(rounded);
        let [dsource, dgain, dbias] = match wanted[0] {
            false => [None, None, None],
            true => {
                let w_t = Factor::new(precision, Matrix::new(values(&w), i, o).t(), Side::Right, Threads::All);
                let dx = multiply(dy, w_t, n, i);
                self.left.back(kept, rows, dx, wanted[2])
            }
        };
        [dsource, dw, dgain, dbias]
    }
}

impl Values {
    fn factor(&self, precision: Precision, n: usize, i: usize) -> Factor<'_> {
        match self {
            Values::Exact(values) => Factor::new(precision, Matrix::new(values, n, i), Side::Left, Threads::All),
            Values::Rounded(factor) => factor.clone(),
        }
    }
}

fn dims(t: &FlexTensor) -> [usize; 2] {
    let shape = shape(t);
    [shape[0], shape[1]]
}

impl<L: Left> Fused<2> for Linear<L> {
    type Saved = Saved<L::Row>;

    fn forward(&self, [x, w]: [FlexTensor; 2]) -> (FlexTensor, Self::Saved) {
        Linear::forward(self, Kept { source: Some(x), gain: None, bias: None }, w, None)
    }

    fn backward(self, saved: Self::Saved, dy: FlexTensor, [x, w]: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let [dx, dw, ..] = Linear::backward(self, saved, &dy, [x, w, false]);
        [dx, dw]
    }
}

/// With a residual.
impl<L: Left> Fused<3> for Linear<L> {
    type Saved = Saved<L::Row>;

    fn forward(&self, [x, w, residual]: [FlexTensor; 3]) -> (FlexTensor, Self::Saved) {
        Linear::forward(self, Kept { source: Some(x), gain: None, bias: None }, w, Some(residual))
    }

    fn backward(self, saved: Self::Saved, dy: FlexTensor, [x, w, _]: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let [dx, dw, ..] = Linear::backward(self, saved, &dy, [x, w, false]);
        [dx, dw, Some(dy)]
    }
}

/// Without a residual, but with gain and bias where there are any.
#[derive(Clone, Debug)]
struct NormLinear(Linear<Norm>);

impl Fused<2> for NormLinear {
    type Saved = Saved<<Norm as Left>::Row>;

    fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, Self::Saved) {
        Fused::<2>::forward(&self.0, inputs)
    }

    fn backward(self, saved: Self::Saved, dy: FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        Fused::<2>::backward(self.0, saved, dy, wanted)
    }
}

impl Fused<3> for NormLinear {
    type Saved = Saved<<Norm as Left>::Row>;

    fn forward(&self, [x, w, gain]: [FlexTensor; 3]) -> (FlexTensor, Self::Saved) {
        self.0.forward(Kept { source: Some(x), gain: Some(gain), bias: None }, w, None)
    }

    fn backward(self, saved: Self::Saved, dy: FlexTensor, [x, w, gain]: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let [dx, dw, dgain, _] = self.0.backward(saved, &dy, [x || gain, w, gain]);
        [dx, dw, dgain]
    }
}

impl Fused<4> for NormLinear {
    type Saved = Saved<<Norm as Left>::Row>;

    fn forward(&self, [x, w, gain, bias]: [FlexTensor; 4]) -> (FlexTensor, Self::Saved) {
        self.0.forward(Kept { source: Some(x), gain: Some(gain), bias: Some(bias) }, w, None)
    }

    fn backward(self, saved: Self::Saved, dy: FlexTensor, wanted: [bool; 4]) -> [Option<FlexTensor>; 4] {
        let [x, w, gain, bias] = wanted;
        self.0.backward(saved, &dy, [x || gain || bias, w, gain || bias])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        against_f64, at_every_level, available_kernels, distance, host, matrix, normal, one_level, rounded,
    };
    use burn::tensor::DType;

    const SIZES: [[usize; 3]; 5] = [[0, 3, 2], [1, 1, 1], [7, 80, 37], [129, 16, 600], [700, 80, 3]];

    #[test]
    fn equals_its_composition_in_f64() {
        let _level = one_level();
        for [n, i, o] in SIZES {
            let (x, w, r) = (normal([n, i], 1.0), normal([i, o], 1.0), normal([n, o], 1.0));
            against_f64(&[x.clone(), w.clone()], 1e-6, |x| linear(x[0].clone(), &x[1], Precision::F32));
            against_f64(&[x, w, r], 1e-6, |x| linear_add(x[2].clone(), x[0].clone(), &x[1], Precision::F32));
        }
    }

    #[test]
    fn a_left_operand_made_on_the_way_equals_its_composition_in_f64() {
        at_every_level(|| {
            for [n, d, o] in [[0, 4, 2], [1, 8, 1], [7, 80, 37], [130, 16, 70]] {
                let (x, w, r) = (normal([n, d], 1.5), normal([d, o], 1.0), normal([n, o], 1.0));
                let (gain, bias) = (normal([1, d], 1.0), normal([1, d], 0.3));
                let normed = |kind, inputs: &[_]| {
                    against_f64(inputs, 3e-6, |x| {
                        let x_btd = x[0].clone().reshape([n, 1, d]);
                        norm_linear(kind, x_btd, 1e-5, x.get(2), x.get(3), &x[1], Precision::F32)
                    });
                };
                normed(NormKind::Layer, &[x.clone(), w.clone()]);
                normed(NormKind::Rms, &[x.clone(), w.clone(), gain.clone()]);
                normed(NormKind::Layer, &[x.clone(), w.clone(), gain, bias]);
                for activation in [Activation::Gelu, Activation::Swiglu] {
                    let u = if activation == Activation::Gelu { x.clone() } else { normal([n, 2 * d], 1.5) };
                    against_f64(&[u, w.clone(), r.clone()], 2e-6, |x| {
                        activation_linear_add(x[2].clone(), activation, x[0].clone(), &x[1], Precision::F32)
                    });
                }
            }
        });
    }

    #[test]
    fn in_bf16_a_left_operand_made_on_the_way_gives_the_bits_of_one_made_before() {
        let _level = one_level();
        for kernel in available_kernels() {
            let precision = Precision::Bf16(kernel);
            let [n, d, o] = [37, 80, 70];
            let leaf = |v: &crate::testing::Values| Tensor::from_inner(matrix(v, DType::F32)).require_grad();
            let (x, w, r, gain) = (normal([n, d], 1.5), normal([d, o], 1.0), normal([n, o], 1.0), normal([1, d], 1.0));
            let run = |f: &dyn Fn(&[Tensor<2>]) -> Tensor<2>| {
                let leaves = [&x, &w, &r, &gain].map(leaf);
                let y = f(&leaves);
                let tape = crate::inject(y.clone(), matrix(&normal([n, o], 0.5), DType::F32)).backward();
                let gradients = leaves.iter().map(|x| x.grad(&tape).map(|g| host(&g)));
                std::iter::once(Some(host(&y.inner()))).chain(gradients).collect::<Vec<_>>()
            };
            let together = run(&|x| {
                norm_linear(NormKind::Rms, x[0].clone().reshape([1, n, d]), 1e-5, Some(&x[3]), None, &x[1], precision)
            });
            let apart = run(&|x| {
                let normed = norm(NormKind::Rms, x[0].clone().reshape([1, n, d]), 1e-5, Some(&x[3]), None);
                linear(normed.reshape([n, d]), &x[1], precision)
            });
            assert_eq!(together, apart);
            let together =
                run(&|x| activation_linear_add(x[2].clone(), Activation::Gelu, x[0].clone(), &x[1], precision));
            let apart = run(&|x| linear_add(x[2].clone(), Activation::Gelu.apply(x[0].clone()), &x[1], precision));
            assert_eq!(together, apart);
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
