//! Products off the trunk: factors of tables, rotations, squares.

use burn::tensor::Tensor;

use crate::flex::{Unfilled, contiguous, from_values, plain, shape, tensor, values};
use crate::matrix::{Into, Matrix, MatrixMut, multiply_parallel};

/// Which factor of a product is taken transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transposed {
    /// a b.
    Neither,
    /// a^T b.
    First,
    /// a b^T.
    Second,
}

/// The product of two matrices. Off the tape its bits do not depend on the number of threads; on it, it is composed.
pub fn product(a: &Tensor<2>, b: &Tensor<2>, transposed: Transposed) -> Tensor<2> {
    if let (Some(a), Some(b)) = (plain(a), plain(b)) {
        let whole = |m| {
            let (values, shape) = (values(m), shape(m));
            Matrix::new(values, shape[0], shape[1])
        };
        let (mut first, mut second) = (whole(&a), whole(&b));
        let ([a0, a1], [b0, b1]) = ([shape(&a)[0], shape(&a)[1]], [shape(&b)[0], shape(&b)[1]]);
        let (rows, columns) = match transposed {
            Transposed::Neither => (a0, b1),
            Transposed::First => (a1, b1),
            Transposed::Second => (a0, b0),
        };
        match transposed {
            Transposed::Neither => {}
            Transposed::First => first = first.t(),
            Transposed::Second => second = second.t(),
        }
        let mut y = Unfilled::new(rows * columns);
        // SAFETY: the one product over it overwrites.
        let to = unsafe { MatrixMut::unfilled(y.slots(), rows, columns) };
        multiply_parallel(to, first, second, Into::Overwrite);
        // SAFETY: an overwriting product writes every element.
        return tensor(from_values(unsafe { y.filled() }, [rows, columns]));
    }
    match transposed {
        Transposed::Neither => a.clone().matmul(b.clone()),
        Transposed::First => a.clone().transpose().matmul(b.clone()),
        Transposed::Second => a.clone().matmul(b.clone().transpose()),
    }
}

/// The same values without gaps, so that other operations take their native path; a tensor that has none is not copied.
pub fn packed(x: Tensor<2>) -> Tensor<2> {
    match x.is_autodiff() {
        true => x,
        false => match x.clone().try_into_primitive::<burn::backend::Flex>() {
            Ok(t) if !t.is_contiguous() => tensor(contiguous(t)),
            _ => x,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{distance, host, matrix, normal};
    use burn::tensor::DType;

    #[test]
    fn equals_its_composition_in_f64() {
        for (m, n, k) in [(1, 1, 1), (7, 80, 37), (600, 3, 129)] {
            for (transposed, a, b) in [
                (Transposed::Neither, [m, k], [k, n]),
                (Transposed::First, [k, m], [k, n]),
                (Transposed::Second, [m, k], [n, k]),
            ] {
                let (a, b) = (normal(a, 1.0), normal(b, 0.7));
                let at = |dtype| product(&matrix(&a, dtype), &matrix(&b, dtype), transposed);
                let (found, expected) = (at(DType::F32), at(DType::F64));
                assert_eq!(found.dims(), [m, n]);
                assert!(distance(&host(&found), &host(&expected)) < 1e-6, "{transposed:?} {m} {n} {k}");
            }
        }
    }

    #[test]
    fn packing_keeps_the_values() {
        let x = matrix(&normal([5, 7], 1.0), DType::F32);
        let part = x.slice([0..5, 2..6]);
        assert_eq!(host(&packed(part.clone())), host(&part));
        assert!(plain(&packed(part)).is_some());
    }
}
