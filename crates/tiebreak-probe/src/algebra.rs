//! Products and decompositions on faer, in f64. Every decomposition runs on the calling thread and products are cut into strips
//! of fixed width, so that the bits do not depend on the number of threads.

use std::ops::Range;

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt;
use faer::linalg::evd::{ComputeEigenvectors, self_adjoint_evd, self_adjoint_evd_scratch};
use faer::linalg::matmul::matmul;
use faer::linalg::svd::{ComputeSvdVectors, svd, svd_scratch};
use faer::{Accum, Col, Mat, MatMut, MatRef, Par};
use rayon::prelude::*;
use tiebreak_data::Error;

/// Columns of a task.
const STRIP: usize = 256;
/// Rows that are copied to f64 at a time.
pub(crate) const BLOCK: usize = 256;

/// Writes a row's values of some columns.
pub(crate) type Fill<'a> = &'a (dyn Fn(usize, Range<usize>, &mut [f64]) + Sync);

/// The sum over rows i of a\[i\]^T b\[i\], `[p, q]`, of rows that are given in pieces.
pub(crate) fn sum_of_products(rows: Range<usize>, (p, a): (usize, Fill), (q, b): (usize, Fill)) -> Mat<f64> {
    let strip = |columns: Range<usize>| {
        let w = columns.len();
        let mut sum = Mat::zeros(p, w);
        let (mut left, mut right) = (vec![0.0; BLOCK * p], vec![0.0; BLOCK * w]);
        for start in rows.clone().step_by(BLOCK) {
            let m = BLOCK.min(rows.end - start);
            for i in 0..m {
                a(start + i, 0..p, &mut left[i * p..(i + 1) * p]);
                b(start + i, columns.clone(), &mut right[i * w..(i + 1) * w]);
            }
            let left = MatRef::from_row_major_slice(&left[..m * p], m, p).transpose();
            matmul(&mut sum, Accum::Add, left, MatRef::from_row_major_slice(&right[..m * w], m, w), 1.0, Par::Seq);
        }
        sum
    };
    join(p, q, strip)
}

/// a b.
pub(crate) fn product(a: MatRef<f64>, b: MatRef<f64>) -> Mat<f64> {
    join(a.nrows(), b.ncols(), |columns| multiply(a, b.get(.., columns)))
}

/// a b, on the calling thread.
pub(crate) fn multiply(a: MatRef<f64>, b: MatRef<f64>) -> Mat<f64> {
    let mut y = Mat::zeros(a.nrows(), b.ncols());
    matmul(&mut y, Accum::Replace, a, b, 1.0, Par::Seq);
    y
}

/// Puts strips of columns side by side.
fn join(rows: usize, columns: usize, strip: impl Fn(Range<usize>) -> Mat<f64> + Sync) -> Mat<f64> {
    let strips: Vec<(usize, Mat<f64>)> = (0..columns.div_ceil(STRIP))
        .into_par_iter()
        .map(|s| (s * STRIP, strip(s * STRIP..((s + 1) * STRIP).min(columns))))
        .collect();
    let mut whole = Mat::zeros(rows, columns);
    for (first, strip) in strips {
        let width = strip.ncols();
        whole.get_mut(.., first..first + width).copy_from(&strip);
    }
    whole
}

/// y = a b of rows in f32, on the calling thread; y is row-major.
pub(crate) fn multiply_rows(y: &mut [f32], a: &[f32], (rows, inner): (usize, usize), b: MatRef<f32>) {
    let y = MatMut::from_row_major_slice_mut(y, rows, b.ncols());
    matmul(y, Accum::Replace, MatRef::from_row_major_slice(a, rows, inner), b, 1.0, Par::Seq);
}

/// Eigenvalues, largest first, and vectors (columns) of a symmetric matrix.
pub(crate) fn eigen(a: &Mat<f64>) -> Result<(Vec<f64>, Mat<f64>), Error> {
    let n = a.nrows();
    let (mut values, mut vectors) = (Col::zeros(n), Mat::zeros(n, n));
    let mut memory =
        MemBuffer::new(self_adjoint_evd_scratch::<f64>(n, ComputeEigenvectors::Yes, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    let diagonal = values.as_diagonal_mut();
    self_adjoint_evd(a.as_ref(), diagonal, Some(vectors.as_mut()), Par::Seq, stack, Default::default())
        .map_err(|e| no_decomposition("eigenvalues", e))?;
    Ok(((0..n).rev().map(|i| values[i]).collect(), vectors.as_ref().reverse_cols().to_owned()))
}

/// Singular values, largest first.
pub(crate) fn singular_values(a: &Mat<f64>) -> Result<Vec<f64>, Error> {
    let (rows, columns) = a.shape();
    let mut values = Col::zeros(rows.min(columns));
    let no = ComputeSvdVectors::No;
    let mut memory = MemBuffer::new(svd_scratch::<f64>(rows, columns, no, no, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    svd(a.as_ref(), values.as_diagonal_mut(), None, None, Par::Seq, stack, Default::default())
        .map_err(|e| no_decomposition("singular values", e))?;
    Ok(values.iter().copied().collect())
}

/// The matrix with orthonormal rows (of a square one: orthogonal) nearest to `a`, which is not taller than wide: P R^T where
/// a = P D R^T.
pub(crate) fn polar(a: &Mat<f64>) -> Result<Mat<f64>, Error> {
    let (m, n) = a.shape();
    let (mut values, mut left, mut right) = (Col::zeros(m.min(n)), Mat::zeros(m, m), Mat::zeros(n, m.min(n)));
    let thin = ComputeSvdVectors::Thin;
    let mut memory = MemBuffer::new(svd_scratch::<f64>(m, n, thin, thin, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    let (u, v) = (Some(left.as_mut()), Some(right.as_mut()));
    svd(a.as_ref(), values.as_diagonal_mut(), u, v, Par::Seq, stack, Default::default())
        .map_err(|e| no_decomposition("singular values", e))?;
    Ok(product(left.as_ref(), right.transpose()))
}

/// The lower Cholesky factor of a positive definite matrix.
pub(crate) fn cholesky(mut a: Mat<f64>) -> Result<Mat<f64>, Error> {
    let scratch = llt::factor::cholesky_in_place_scratch::<f64>(a.nrows(), Par::Seq, Default::default());
    let mut memory = MemBuffer::new(scratch);
    let stack = MemStack::new(&mut memory);
    llt::factor::cholesky_in_place(a.as_mut(), Default::default(), Par::Seq, stack, Default::default())
        .map_err(|e| no_decomposition("Cholesky factor", e))?;
    Ok(a)
}

/// Solves l l^T x = b in place.
pub(crate) fn solve(l: &Mat<f64>, b: &mut Mat<f64>) {
    let scratch = llt::solve::solve_in_place_scratch::<f64>(l.nrows(), b.ncols(), Par::Seq);
    let mut memory = MemBuffer::new(scratch);
    llt::solve::solve_in_place(l.as_ref(), b.as_mut(), Par::Seq, MemStack::new(&mut memory));
}

fn no_decomposition(what: &str, e: impl std::fmt::Debug) -> Error {
    Error::Failed(format!("a matrix of finite numbers has no {what} that could be found ({e:?})"))
}
