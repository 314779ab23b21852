//! Sums over gradients: f32 within a row or block, then f64 in order.

use burn::tensor::{Tensor, Transaction};
use rayon::prelude::*;

use crate::flex::{plain, shape, values};
use crate::simd::{simd, sum1, sum2};

/// Elements of a block; an f32 sum inside it keeps its relative error near 1e-6.
const BLOCK: usize = 4096;

/// Row by row |a|^2, |b|^2 and <a, b>.
#[derive(Clone, Debug)]
pub struct RowProducts {
    /// |a\[v\]|^2.
    pub aa: Vec<f64>,
    /// |b\[v\]|^2.
    pub bb: Vec<f64>,
    /// <a\[v\], b\[v\]>.
    pub ab: Vec<f64>,
}

simd! {
    fn products(a: &[f32], b: &[f32]) -> [f64; 3] {
        let square = |x: f32| x * x;
        [sum1(a, square) as f64, sum1(b, square) as f64, sum2(a, b, |a, b| a * b) as f64]
    }
}

simd! {
    fn square_sum(x: &[f32]) -> f64 {
        sum1(x, |x| x * x) as f64
    }
}

/// Squared lengths and products of the rows of a and b, both `[v, d]`, in one pass over them.
pub fn row_products(a_vd: &Tensor<2>, b_vd: &Tensor<2>) -> RowProducts {
    let mut found = RowProducts { aa: Vec::new(), bb: Vec::new(), ab: Vec::new() };
    if let (Some(a), Some(b)) = (plain(a_vd), plain(b_vd)) {
        let (v, d) = (shape(&a)[0], shape(&a)[1]);
        let (a, b) = (values(&a), values(&b));
        let row = |i: usize| products(&a[i * d..(i + 1) * d], &b[i * d..(i + 1) * d]);
        let rows: Vec<[f64; 3]> = (0..v).into_par_iter().with_min_len(64).map(row).collect();
        for [aa, bb, ab] in rows {
            found.aa.push(aa);
            found.bb.push(bb);
            found.ab.push(ab);
        }
        return found;
    }
    let sums = |a: &Tensor<2>, b: &Tensor<2>| a.clone().mul(b.clone()).sum_dim(1);
    let mut read = read(vec![sums(a_vd, a_vd), sums(b_vd, b_vd), sums(a_vd, b_vd)]).into_iter();
    let mut next = || read.next().unwrap_or_default();
    (found.aa, found.bb, found.ab) = (next(), next(), next());
    found
}

/// Sum of squares of each tensor.
pub fn squares<'a>(tensors: impl Iterator<Item = &'a Tensor<2>>) -> Vec<f64> {
    let tensors: Vec<&Tensor<2>> = tensors.collect();
    let mut composed = Vec::new();
    let native: Vec<Option<f64>> = tensors
        .iter()
        .map(|t| match plain(t) {
            Some(t) => {
                let blocks: Vec<f64> = values(&t).par_chunks(BLOCK).map(square_sum).collect();
                Some(blocks.iter().sum())
            }
            None => {
                composed.push((*t).clone().mul((*t).clone()).sum_dim(1));
                None
            }
        })
        .collect();
    // One read for all that is left.
    let mut composed = read(composed).into_iter().map(|rows| rows.iter().sum());
    native.into_iter().map(|sum| sum.or_else(|| composed.next()).unwrap_or_default()).collect()
}

/// Whether both tensors are the same values in the same place, so that a sum over one serves for the other. `false` where
/// that cannot be told.
pub fn same_buffer(a: &Tensor<2>, b: &Tensor<2>) -> bool {
    match (plain(a), plain(b)) {
        (Some(a), Some(b)) => std::ptr::eq(values(&a), values(&b)) && shape(&a) == shape(&b),
        _ => false,
    }
}

fn read(tensors: Vec<Tensor<2>>) -> Vec<Vec<f64>> {
    if tensors.is_empty() {
        return Vec::new();
    }
    let transaction = tensors.into_iter().fold(Transaction::default(), |t, tensor| t.register(tensor));
    transaction.execute().into_iter().map(|data| data.iter::<f64>().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, matrix, normal};
    use burn::tensor::DType;

    #[test]
    fn sums_equal_f64_to_1e_6() {
        at_every_level(|| {
            for [v, d] in [[0, 3], [1, 1], [37, 80], [129, 300]] {
                let at =
                    |dtype| [matrix(&normal([v, d], 1.0), dtype), matrix(&normal([v, d], 1.0), dtype).add_scalar(0.5)];
                let ([a, b], [exact_a, exact_b]) = (at(DType::F32), at(DType::F64));
                let (found, exact) = (row_products(&a, &b), row_products(&exact_a, &exact_b));
                for (found, exact) in [(&found.aa, &exact.aa), (&found.bb, &exact.bb), (&found.ab, &exact.ab)] {
                    assert_eq!(found.len(), v);
                    for (found, exact) in found.iter().zip(exact) {
                        assert!((found - exact).abs() <= 1e-6 * (exact.abs() + d as f64), "{found} {exact}");
                    }
                }
                let (found, exact) = (squares([&a, &exact_b].into_iter()), squares([&exact_a, &b].into_iter()));
                for (found, exact) in found.iter().zip(&exact) {
                    assert!((found - exact).abs() <= 1e-6 * exact);
                }
            }
        });
    }

    #[test]
    fn nan_reaches_the_sum_and_buffers_are_told_apart() {
        let a = matrix(&normal([2, 3], 1.0), DType::F32);
        assert!(same_buffer(&a, &a.clone()) && !same_buffer(&a, &a.clone().add_scalar(0.0)));
        assert!(squares([&a.mul_scalar(f32::NAN)].into_iter())[0].is_nan());
    }
}
