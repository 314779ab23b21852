//! The nearest matrix with orthonormal columns, x (x^T x)^(-1/2): the orthogonal polar factor (Higham, Functions of Matrices, 2008,
//! chapter 8), by Newton-Schulz iterations: products alone, so on every device, and with the same bits for any number of threads.

use burn::tensor::Tensor;
use tiebreak_kernels::{Transposed, product};

/// Each step multiplies a small singular value by 1.5 until the last few, so ratios down to 1e-6 are brought to 1.
pub const ITERATIONS: usize = 40;

fn times(a: &Tensor<2>, b: &Tensor<2>) -> Tensor<2> {
    product(a, b, Transposed::Neither)
}

/// The Frobenius norm, `[1, 1]`: a bound of the largest singular value.
fn length(x: &Tensor<2>) -> Tensor<2> {
    x.clone().mul(x.clone()).sum_dim(0).sum_dim(1).sqrt()
}

/// The polar factor of x `[n, d]`, n >= d, of full rank. Off the tape.
///
/// The inverse root of the d x d square is iterated, coupled with the root, so that only four products reach n. The square has the
/// square of x's condition, so in f32 the factor is polished once: the nearly orthonormal y becomes y (3 I - y^T y) / 2.
pub fn orthonormal(x_nd: &Tensor<2>) -> Tensor<2> {
    let [_, d] = x_nd.dims();
    let three_dd = Tensor::<2>::eye(d, &x_nd.device()).cast(x_nd.dtype()).mul_scalar(3.0);
    let square_dd = product(x_nd, x_nd, Transposed::First);
    let length_11 = length(&square_dd);
    let mut root_dd = square_dd / length_11.clone();
    let mut inverse_dd = three_dd.clone().mul_scalar(1.0 / 3.0);
    for _ in 0..ITERATIONS {
        let step_dd = (three_dd.clone() - times(&inverse_dd, &root_dd)).mul_scalar(0.5);
        root_dd = times(&root_dd, &step_dd);
        inverse_dd = times(&step_dd, &inverse_dd);
    }
    let near_nd = times(x_nd, &(inverse_dd / length_11.sqrt()));
    let polish_dd = (three_dd - product(&near_nd, &near_nd, Transposed::First)).mul_scalar(0.5);
    times(&near_nd, &polish_dd)
}

/// The polar factor of a square x `[d, d]`, which may be singular: directions that it takes to 0 stay there. Off the tape.
pub fn rotation(x_dd: &Tensor<2>) -> Tensor<2> {
    let length_11 = length(x_dd).clamp_min(f64::MIN_POSITIVE);
    let mut y_dd = x_dd.clone() / length_11;
    for _ in 0..ITERATIONS {
        let square_dd = product(&y_dd, &y_dd, Transposed::First);
        y_dd = y_dd.clone().mul_scalar(1.5) - times(&y_dd, &square_dd).mul_scalar(0.5);
    }
    y_dd
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
        type Factor = fn(&Tensor<2>) -> Tensor<2>;
        let cases: [([usize; 2], Factor, f64); 5] = [
            ([40, 7], orthonormal, 2e-5),
            ([300, 64], orthonormal, 2e-5),
            ([1, 1], orthonormal, 2e-5),
            ([1, 1], rotation, 2e-5),
            ([24, 24], rotation, 2e-5),
        ];
        for (shape, factor, single) in cases {
            let x = random(shape, DType::F64);
            let y = factor(&x);
            assert!(off_identity(&y) < 1e-10, "{shape:?}: {:e}", off_identity(&y));
            // x = y s with s the root of x^T x: symmetric, its square that of x, its trace the largest.
            let s = product(&y, &x, Transposed::First);
            assert!(largest(s.clone() - s.clone().transpose()) < 1e-9);
            assert!(largest(times(&s, &s) - product(&x, &x, Transposed::First)) < 1e-9);
            let trace = |s: &Tensor<2>| {
                largest((s.clone() * Tensor::<2>::eye(shape[1], &s.device()).cast(s.dtype())).sum().unsqueeze())
            };
            let other = times(&y, &rotation(&random([shape[1], shape[1]], DType::F64)));
            assert!(shape[1] == 1 || trace(&s) > trace(&product(&other, &x, Transposed::First)));
            assert!(off_identity(&factor(&random(shape, DType::F32))) < single);
        }
        // A rotation is its own polar factor.
        let y = rotation(&random([24, 24], DType::F64));
        assert!(largest(rotation(&y) - y) < 1e-12);
    }

    #[test]
    fn a_singular_matrix_keeps_its_null_directions() {
        // Rank 3 of 9: y^T y is the projection on the rows of x.
        let x = times(&random([9, 3], DType::F64), &random([3, 9], DType::F64));
        let y = rotation(&x);
        let onto = product(&y, &y, Transposed::First);
        assert!(largest(times(&onto, &onto) - onto.clone()) < 1e-8);
        assert!(largest(times(&x, &onto) - x) < 1e-8);
        assert!(largest(rotation(&random([3, 3], DType::F64).mul_scalar(0.0))) == 0.0);
    }
}
