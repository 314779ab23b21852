//! The nearest matrix with orthonormal columns.

use burn::tensor::Tensor;
use tiebreak_kernels::{Transposed, product};

/// Steps of the iteration for the inverse root. Each multiplies a small singular value by at least 1.5^2 until the last few, so
/// that ratios of squared singular values down to 1e-9 are brought to 1 (in f64; in f32 rounding ends it earlier).
const ITERATIONS: usize = 40;

/// x (x^T x)^(-1/2) for x `[n, d]`, n >= d: its orthogonal polar factor, the nearest matrix with orthonormal columns (Higham,
/// Functions of Matrices, 2008, ch. 8). Off the tape.
///
/// The inverse root comes from the coupled Newton-Schulz iteration on the d x d matrix. x^T x squares the condition of x, so in f32
/// the factor is polished once: for the nearly orthonormal y, y (3 I - y^T y) / 2.
pub fn polar(x_nd: &Tensor<2>) -> Tensor<2> {
    let [_, d] = x_nd.dims();
    let eye_dd = Tensor::<2>::eye(d, &x_nd.device()).cast(x_nd.dtype());
    let square_dd = product(x_nd, x_nd, Transposed::First);
    // The Frobenius norm bounds the largest eigenvalue.
    let norm_11 = square_dd.clone().mul(square_dd.clone()).sum_dim(0).sum_dim(1).sqrt();
    let times = |a: &Tensor<2>, b: &Tensor<2>| product(a, b, Transposed::Neither);
    let mut root_dd = square_dd / norm_11.clone();
    let mut inverse_dd = eye_dd.clone();
    for _ in 0..ITERATIONS {
        let step_dd = (eye_dd.clone().mul_scalar(3.0) - times(&inverse_dd, &root_dd)).mul_scalar(0.5);
        root_dd = times(&root_dd, &step_dd);
        inverse_dd = times(&step_dd, &inverse_dd);
    }
    let near_nd = times(x_nd, &(inverse_dd / norm_11.sqrt()));
    let polish_dd = (eye_dd.mul_scalar(3.0) - product(&near_nd, &near_nd, Transposed::First)).mul_scalar(0.5);
    times(&near_nd, &polish_dd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;
    use burn::tensor::{DType, Device, TensorData};

    fn random(shape: [usize; 2], dtype: DType) -> Tensor<2> {
        let values = Stream::new(1, "polar").normals(shape[0] * shape[1], 0.3, None);
        Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), dtype))
    }

    fn largest(x: Tensor<2>) -> f64 {
        x.to_data().iter::<f64>().fold(0.0, |m, x| m.max(x.abs()))
    }

    fn off_identity(y: &Tensor<2>) -> f64 {
        let square = product(y, y, Transposed::First);
        let eye = Tensor::<2>::eye(square.dims()[0], &y.device()).cast(y.dtype());
        largest(square - eye)
    }

    #[test]
    fn columns_are_orthonormal_and_what_is_left_is_symmetric_and_positive() {
        for shape in [[1, 1], [40, 7], [24, 24], [300, 64]] {
            let x = random(shape, DType::F64);
            let y = polar(&x);
            assert!(off_identity(&y) < 1e-10, "{shape:?}: {:e}", off_identity(&y));
            // x = y s with s symmetric: then y is the polar factor, up to the sign of eigenvalues, which the trace pins down.
            let s = product(&y, &x, Transposed::First);
            assert!(largest(s.clone() - s.clone().transpose()) < 1e-9);
            let squares = product(&x, &x, Transposed::First);
            assert!(largest(product(&s, &s, Transposed::Neither) - squares) < 1e-8);
            assert!(off_identity(&polar(&random(shape, DType::F32))) < 2e-5);
        }
        // A rotation is its own polar factor.
        let y = polar(&random([24, 24], DType::F64));
        assert!(largest(polar(&y) - y) < 1e-12);
    }
}
