//! A table made ready to be aligned with others over the same rows.

use std::ops::Range;

use faer::{Mat, MatRef};
use rayon::prelude::*;
use tiebreak_data::Error;

use crate::algebra::{self, BLOCK, Fill};
use crate::alignment::NEIGHBOURS;
use crate::pairing::Pairing;
use crate::{Neighbours, Rows, Table, knn, ranks};

/// Directions in which a table spreads less than this share of its largest singular value are taken for rounding: f32 tables
/// carry no more. So a table of lower rank than its width (a factorised one) has a basis of its own rank.
const RANK_TOLERANCE: f64 = 1e-6;
/// Added to the unit diagonal of a fold's normal equations, so that a direction that only the held-out rows have is left
/// alone; in all others the map changes by this share.
const RIDGE: f64 = 1e-6;

/// The chosen rows of a table, in a pairing's order, and what its alignments share.
pub struct Operand {
    pub(crate) table: Table,
    /// Column means.
    pub(crate) mean: Vec<f64>,
    /// Row lengths, not centred.
    pub(crate) norms: Vec<f64>,
    pub(crate) norm_ranks: Vec<f64>,
    /// For maps.
    pub(crate) spectrum: Option<Spectrum>,
    /// For maps from this table.
    pub(crate) basis: Option<Basis>,
    pub(crate) neighbours: Option<Neighbours>,
}

/// S^T S of the centred table is W diag(values) W^T.
pub(crate) struct Spectrum {
    pub values: Vec<f64>,
    /// W, `[d, r]`.
    pub vectors: Mat<f64>,
}

/// Q, `[n, r]`: the centred table is Q diag(sqrt values) W^T, and Q^T Q = I.
pub(crate) struct Basis {
    pub rows: Vec<f32>,
    pub rank: usize,
    /// By fold; empty if nothing is held out.
    pub fits: Vec<FoldFit>,
}

/// Least squares from the rows outside a fold.
pub(crate) struct FoldFit {
    /// Cholesky factor of the training rows' Q^T Q about their mean.
    factor: Mat<f64>,
    /// Mean of the training rows of Q.
    mean: Vec<f64>,
}

impl Operand {
    pub(crate) fn new(table: &Table, rows: &Rows, pairing: &Pairing) -> Result<Self, Error> {
        let table = table.pick(rows, pairing.order.iter().map(|i| rows.ids()[*i as usize]))?;
        let mut mean = vec![0.0; table.columns()];
        for row in table.values().chunks(table.columns()) {
            mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        mean.iter_mut().for_each(|sum| *sum /= table.rows() as f64);
        let norms = table.norms();
        let norm_ranks = ranks(&norms);
        Ok(Self { table, mean, norms, norm_ranks, spectrum: None, basis: None, neighbours: None })
    }

    /// Rows that are looked at.
    pub fn rows(&self) -> usize {
        self.table.rows()
    }

    /// d.
    pub fn columns(&self) -> usize {
        self.table.columns()
    }

    /// Writes some columns of a centred row.
    pub(crate) fn centred(&self, row: usize, columns: Range<usize>, out: &mut [f64]) {
        let (row, mean) = (&self.table.row(row)[columns.clone()], &self.mean[columns]);
        for ((out, x), mean) in out.iter_mut().zip(row).zip(mean) {
            *out = f64::from(*x) - mean;
        }
    }

    /// Finds what maps to and from this table need.
    pub(crate) fn find_spectrum(&mut self) -> Result<(), Error> {
        let d = self.columns();
        let row: Fill = &|i, columns, out| self.centred(i, columns, out);
        let (values, vectors) = algebra::eigen(&algebra::sum_of_products(0..self.rows(), (d, row), (d, row)))?;
        // Rows that are all equal leave rounding of their own size.
        let size = self.mean.iter().map(|m| m * m).sum::<f64>() * self.rows() as f64;
        let least = values[0].max(size * f64::from(f32::EPSILON)) * RANK_TOLERANCE.powi(2);
        let rank = values.iter().take_while(|x| **x > least).count();
        if rank == 0 {
            return Err(Error::Input("all rows of the table are equal: there is nothing to align".into()));
        }
        let vectors = vectors.get(.., ..rank).to_owned();
        self.spectrum = Some(Spectrum { values: values[..rank].to_vec(), vectors });
        Ok(())
    }

    /// Finds what maps from this table need, held out of each of `folds`.
    pub(crate) fn find_basis(&mut self, folds: &[Range<usize>]) -> Result<(), Error> {
        let Some(Spectrum { values, vectors }) = &self.spectrum else { return Ok(()) };
        let (n, d, rank) = (self.rows(), self.columns(), values.len());
        let map = Mat::from_fn(d, rank, |i, j| vectors[(i, j)] / values[j].sqrt());
        let mut rows = vec![0f32; n * rank];
        rows.par_chunks_mut(BLOCK * rank).enumerate().for_each(|(block, out)| {
            let m = out.len() / rank;
            let mut centred = vec![0.0; m * d];
            for (i, row) in centred.chunks_mut(d).enumerate() {
                self.centred(block * BLOCK + i, 0..d, row);
            }
            let exact = algebra::multiply(MatRef::from_row_major_slice(&centred, m, d), map.as_ref());
            for (i, row) in out.chunks_mut(rank).enumerate() {
                row.iter_mut().enumerate().for_each(|(j, x)| *x = exact[(i, j)] as f32);
            }
        });
        let mut basis = Basis { rows, rank, fits: Vec::new() };
        basis.fits = basis.fit(folds, n)?;
        self.basis = Some(basis);
        Ok(())
    }

    pub(crate) fn find_neighbours(&mut self) -> Result<(), Error> {
        self.neighbours = Some(knn(&self.table, NEIGHBOURS)?);
        Ok(())
    }
}

impl Basis {
    /// Writes some columns of row `row`.
    pub fn write(&self, row: usize, columns: Range<usize>, out: &mut [f64]) {
        let row = &self.rows[row * self.rank..][columns];
        out.iter_mut().zip(row).for_each(|(out, x)| *out = f64::from(*x));
    }

    fn fit(&self, folds: &[Range<usize>], n: usize) -> Result<Vec<FoldFit>, Error> {
        let r = self.rank;
        let row: Fill = &|i, columns, out| self.write(i, columns, out);
        let squares: Vec<Mat<f64>> =
            folds.iter().map(|f| algebra::sum_of_products(f.clone(), (r, row), (r, row))).collect();
        let sums: Vec<Vec<f64>> = folds.iter().map(|f| sum(f.clone(), r, row)).collect();
        let fit = |left_out: usize| {
            let n = n - folds[left_out].len();
            let (mean, mut square) = (mean_without(&sums, left_out, n), sum_without(&squares, left_out));
            for j in 0..r {
                for i in 0..r {
                    square[(i, j)] -= n as f64 * mean[i] * mean[j];
                }
                square[(j, j)] += RIDGE;
            }
            Ok(FoldFit { factor: algebra::cholesky(square)?, mean })
        };
        (0..folds.len()).map(fit).collect()
    }
}

impl FoldFit {
    /// The map M, `[r, d]`, that sends training rows of Q to the training rows it is paired with, both about their means, and
    /// what it adds so that a row q becomes q M + shift. `cross`: sum over training rows of q^T t; `target_mean`: of their t.
    pub fn solve(&self, mut cross: Mat<f64>, target_mean: &[f64], rows: usize) -> (Mat<f64>, Vec<f64>) {
        for (j, t) in target_mean.iter().enumerate() {
            for (i, q) in self.mean.iter().enumerate() {
                cross[(i, j)] -= rows as f64 * q * t;
            }
        }
        algebra::solve(&self.factor, &mut cross);
        let shift =
            (0..cross.ncols()).map(|j| -self.mean.iter().enumerate().map(|(i, q)| q * cross[(i, j)]).sum::<f64>());
        let shift = shift.collect();
        (cross, shift)
    }
}

/// The sum of rows.
pub(crate) fn sum(rows: Range<usize>, columns: usize, row: Fill) -> Vec<f64> {
    let (mut sum, mut values) = (vec![0.0; columns], vec![0.0; columns]);
    for i in rows {
        row(i, 0..columns, &mut values);
        sum.iter_mut().zip(&values).for_each(|(sum, x)| *sum += x);
    }
    sum
}

/// Sum of all matrices but one.
pub(crate) fn sum_without(all: &[Mat<f64>], left_out: usize) -> Mat<f64> {
    let mut sum = Mat::zeros(all[0].nrows(), all[0].ncols());
    all.iter().enumerate().filter(|(f, _)| *f != left_out).for_each(|(_, x)| sum += x);
    sum
}

/// Mean of the `n` rows whose sums these are, all but one.
pub(crate) fn mean_without(sums: &[Vec<f64>], left_out: usize, n: usize) -> Vec<f64> {
    let others = || sums.iter().enumerate().filter(|(f, _)| *f != left_out);
    (0..sums[0].len()).map(|j| others().map(|(_, sum)| sum[j]).sum::<f64>() / n as f64).collect()
}
