//! Operands of a product in either precision.

use std::ops::Range;
use std::sync::Arc;

use super::half::{Bf16Kernel, Precision, multiply_tiles};
use super::tiles::{Side, Threads, Tiles};
use super::{Into, Matrix, MatrixMut, multiply, multiply_parallel};

/// One operand: the values where they are, or rounded in tiles.
#[derive(Clone, Debug)]
pub(crate) enum Factor<'a> {
    Exact(Matrix<'a>),
    Rounded(Bf16Kernel, Arc<Tiles>),
}

/// Some rows and columns of an operand.
#[derive(Debug)]
pub(crate) struct FactorPart<'f, 'a> {
    factor: &'f Factor<'a>,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<'a> Factor<'a> {
    pub(crate) fn new(precision: Precision, values: Matrix<'a>, side: Side, threads: Threads) -> Self {
        match precision {
            Precision::F32 => Factor::Exact(values),
            Precision::Bf16(kernel) => Factor::Rounded(kernel, Arc::new(Tiles::new(values, side, threads))),
        }
    }

    pub(crate) fn rounded(kernel: Bf16Kernel, tiles: Tiles) -> Self {
        Factor::Rounded(kernel, Arc::new(tiles))
    }

    /// Itself, if it holds its own values.
    pub(crate) fn kept(self) -> Option<Factor<'static>> {
        match self {
            Factor::Exact(_) => None,
            Factor::Rounded(kernel, tiles) => Some(Factor::Rounded(kernel, tiles)),
        }
    }

    /// The transpose of a left operand on the left, or that operand itself on the right.
    pub(crate) fn turned(&self, side: Side, threads: Threads) -> Self {
        match self {
            Factor::Exact(values) if side == Side::Left => Factor::Exact(values.t()),
            Factor::Exact(values) => Factor::Exact(*values),
            Factor::Rounded(kernel, tiles) => Factor::Rounded(*kernel, Arc::new(tiles.turned(side, threads))),
        }
    }

    pub(crate) fn whole(&self) -> FactorPart<'_, 'a> {
        let (rows, columns) = match self {
            Factor::Exact(values) => (values.rows, values.columns),
            Factor::Rounded(_, tiles) => tiles.shape(),
        };
        self.part(0..rows, 0..columns)
    }

    /// Both ranges begin at multiples of 32; one along the inner size also ends at such, or with the operand.
    pub(crate) fn part(&self, rows: Range<usize>, columns: Range<usize>) -> FactorPart<'_, 'a> {
        FactorPart { factor: self, rows, columns }
    }
}

/// y = a b or y += a b, over the whole pool in a fixed grid of tasks, or on this thread.
pub(crate) fn product(y: MatrixMut, a: FactorPart, b: FactorPart, into: Into, threads: Threads) {
    match (a.factor, b.factor) {
        (Factor::Exact(left), Factor::Exact(right)) => {
            let left = left.rows(a.rows.start, a.rows.len()).columns(a.columns.start, a.columns.len());
            let right = right.rows(b.rows.start, b.rows.len()).columns(b.columns.start, b.columns.len());
            match threads {
                Threads::All => multiply_parallel(y, left, right, into),
                Threads::One => multiply(y, left, right, into),
            }
        }
        (Factor::Rounded(kernel, left), Factor::Rounded(_, right)) => {
            let (left, right) = (left.part(a.rows, a.columns), right.part(b.columns, b.rows));
            multiply_tiles(*kernel, y, left, right, into, threads);
        }
        _ => unreachable!("both operands of a product have its precision"),
    }
}
