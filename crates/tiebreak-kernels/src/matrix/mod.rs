//! Matrix views and products on the `gemm` crate, cut into a fixed grid of tasks; products of rounded operands beside.

mod factor;
mod half;
mod tiles;

pub(crate) use factor::{Factor, FactorPart, product};
pub use half::{Bf16Kernel, Precision};
pub(crate) use tiles::{Side, Threads, Tiles};

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use gemm::Parallelism;
use rayon::prelude::*;

/// A view of f32 values by strides, all inside one slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major without gaps.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns);
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The transpose, without a copy.
    pub(crate) fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// `rows` rows from `first` on.
    pub(crate) fn rows(self, first: usize, rows: usize) -> Self {
        assert!(first + rows <= self.rows);
        let start = (first * self.row_stride).min(self.values.len());
        Self { values: &self.values[start..], rows, ..self }
    }

    fn columns(self, first: usize, columns: usize) -> Self {
        self.t().rows(first, columns).t()
    }

    /// Whether every element lies in the slice.
    fn fits(&self) -> bool {
        let last = |length: usize, stride: usize| (length - 1) * stride;
        self.rows == 0
            || self.columns == 0
            || last(self.rows, self.row_stride) + last(self.columns, self.column_stride) < self.values.len()
    }
}

/// A row-major part of a matrix to be written; the parts that tasks hold do not overlap.
pub(crate) struct MatrixMut<'a> {
    values: *mut f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    lifetime: PhantomData<&'a mut f32>,
}

// SAFETY: a unique borrow of f32 values, as `&mut [f32]` is.
unsafe impl Send for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// Row-major without gaps.
    pub(crate) fn new(values: &'a mut [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns);
        Self { values: values.as_mut_ptr(), rows, columns, row_stride: columns, lifetime: PhantomData }
    }

    /// The same over slots that hold no values yet: only for products that overwrite.
    pub(crate) fn unfilled(values: &'a mut [MaybeUninit<f32>], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns);
        Self { values: values.as_mut_ptr().cast(), rows, columns, row_stride: columns, lifetime: PhantomData }
    }

    /// # Safety
    /// For `'a`, `rows` runs of `columns` values, `row_stride` apart from `values` on, are writable, and nobody else
    /// uses them.
    pub(crate) unsafe fn strided(values: *mut f32, rows: usize, columns: usize, row_stride: usize) -> Self {
        Self { values, rows, columns, row_stride, lifetime: PhantomData }
    }

    /// A product that sums nothing.
    fn fill_zero(self, into: Into) {
        if into == Into::Overwrite {
            for row in 0..self.rows {
                // SAFETY: inside `self`, which is uniquely borrowed; writing zeros needs no initialised memory.
                unsafe { self.values.add(row * self.row_stride).write_bytes(0, self.columns) };
            }
        }
    }
}

/// What a product does with what is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Into {
    /// Replace it; it may be uninitialised.
    Overwrite,
    /// Add to it.
    Add,
}

/// y = a b or y += a b, on the calling thread.
pub(crate) fn multiply(y: MatrixMut, a: Matrix, b: Matrix, into: Into) {
    assert!(a.columns == b.rows && y.rows == a.rows && y.columns == b.columns);
    if y.rows == 0 || y.columns == 0 {
        return;
    }
    if a.columns == 0 {
        return y.fill_zero(into);
    }
    assert!(a.fits() && b.fits());
    // SAFETY: the inner sizes agree and the operands lie inside their slices (asserted above); `y` is a unique borrow of
    // its part, so nothing overlaps; without `read_dst` the destination is never read.
    unsafe {
        gemm::gemm(
            y.rows,
            y.columns,
            a.columns,
            y.values,
            1,
            y.row_stride as isize,
            into == Into::Add,
            a.values.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// The same over a grid of tasks that depends on the sizes alone, never on the number of threads.
pub(crate) fn multiply_parallel(y: MatrixMut, a: Matrix, b: Matrix, into: Into) {
    let (rows, columns) = grid(y.rows, y.columns);
    let mut parts = Vec::new();
    for row in (0..y.rows).step_by(rows) {
        for column in (0..y.columns).step_by(columns) {
            let (m, n) = (rows.min(y.rows - row), columns.min(y.columns - column));
            // SAFETY: the parts of the grid lie inside `y` and do not overlap.
            let part = unsafe { MatrixMut::strided(y.values.add(row * y.row_stride + column), m, n, y.row_stride) };
            parts.push((part, a.rows(row, m), b.columns(column, n)));
        }
    }
    parts.into_par_iter().for_each(|(part, a, b)| multiply(part, a, b, into));
}

/// Rows and columns of a task: the longer side is cut, into pieces long enough that packing the other operand again for
/// each costs little.
fn grid(rows: usize, columns: usize) -> (usize, usize) {
    let piece = |length: usize| match length {
        0..1024 => length.div_ceil(2).next_multiple_of(64).max(64),
        1024..=4096 => 512,
        _ => 1024,
    };
    match (rows, columns) {
        // One cut would leave two tasks.
        (512..1024, 256..1024) | (256..1024, 512..1024) => (piece(rows), piece(columns)),
        _ if columns >= rows => (rows.max(1), piece(columns)),
        _ => (piece(rows), columns.max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_odd_sizes() {
        for (m, n, k) in
            [(1, 1, 1), (7, 5, 3), (130, 70, 33), (65, 1025, 2), (1100, 3, 9), (4, 4, 0), (0, 3, 2), (3, 0, 2)]
        {
            let value = |i: usize| ((i * 7 + 3) % 11) as f32 - 5.0;
            let a: Vec<f32> = (0..m * k).map(value).collect();
            let b: Vec<f32> = (0..n * k).map(|i| value(i + 5)).collect();
            let mut y = vec![f32::NAN; m * n];
            // b is stored transposed.
            multiply_parallel(
                MatrixMut::new(&mut y, m, n),
                Matrix::new(&a, m, k),
                Matrix::new(&b, n, k).t(),
                Into::Overwrite,
            );
            multiply(MatrixMut::new(&mut y, m, n), Matrix::new(&a, m, k), Matrix::new(&b, n, k).t(), Into::Add);
            for i in 0..m {
                for j in 0..n {
                    let exact: f32 = (0..k).map(|l| a[i * k + l] * b[j * k + l]).sum();
                    assert_eq!(y[i * n + j], 2.0 * exact, "{m} {n} {k}");
                }
            }
        }
    }
}
