//! The shape of one table.

use std::ops::Range;

use faer::{Mat, MatRef};
use rayon::prelude::*;
use serde::Serialize;
use tiebreak_data::Error;

use crate::algebra::{self, BLOCK, Fill};
use crate::{Rows, Table};

/// How a table's rows lie in space.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Geometry {
    /// Mean cosine of two different rows, not centred: (|sum of unit rows|^2 - n) / (n (n - 1)); `None` of one row.
    pub mean_cosine: Option<f64>,
    /// exp of the entropy of the singular values (not their squares) divided by their sum, of the table as it is, not centred
    /// (Roy and Vetterli 2007): from 1 to d.
    pub effective_rank: f64,
    /// IsoScore (Rudman et al. 2022): 0 if all variance lies in one direction, 1 if it is the same in all. `None` of one
    /// column or of rows that are all equal.
    pub isoscore: Option<f64>,
    /// Partition isotropy (Mu and Viswanath 2018): min Z(c) / max Z(c) over c, the eigenvectors of W^T W and their negatives,
    /// Z(c) = sum over rows of exp(<c, w>). 1: isotropic.
    pub partition_isotropy: f64,
    /// Mean row length.
    pub mean_norm: f64,
}

/// Measures `table`, whose rows are all ids of the vocabulary, over `rows`.
///
/// # Errors
/// [`Error::Input`] as [`Table::select`]; [`Error::Failed`] if a decomposition does not converge.
pub fn geometry(table: &Table, rows: &Rows) -> Result<Geometry, Error> {
    let table = table.select(rows)?;
    let (n, d) = (table.rows(), table.columns());
    let raw: Fill = &|i, columns, out| {
        out.iter_mut().zip(&table.row(i)[columns]).for_each(|(out, x)| *out = f64::from(*x));
    };
    let norms = table.norms();
    let (mut mean, mut unit) = (vec![0.0; d], vec![0.0; d]);
    for (i, norm) in norms.iter().enumerate() {
        for ((mean, unit), x) in mean.iter_mut().zip(&mut unit).zip(table.row(i)) {
            *mean += f64::from(*x) / n as f64;
            *unit += f64::from(*x) / norm;
        }
    }
    let square = algebra::sum_of_products(0..n, (d, raw), (d, raw));
    let (values, vectors) = algebra::eigen(&square)?;
    let singular: Vec<f64> = values.iter().map(|x| x.max(0.0).sqrt()).collect();
    let centred = Mat::from_fn(d, d, |i, j| square[(i, j)] - n as f64 * mean[i] * mean[j]);
    let size = square.diagonal().column_vector().sum();
    let length = unit.iter().map(|x| x * x).sum::<f64>();
    Ok(Geometry {
        mean_cosine: (n > 1).then(|| (length - n as f64) / (n as f64 * (n as f64 - 1.0))),
        effective_rank: entropy_rank(&singular),
        isoscore: isoscore(&algebra::eigen(&centred)?.0, size),
        partition_isotropy: partition_isotropy(raw, n, &vectors),
        mean_norm: norms.iter().sum::<f64>() / n as f64,
    })
}

fn entropy_rank(singular: &[f64]) -> f64 {
    let sum: f64 = singular.iter().sum();
    let entropy: f64 = singular.iter().map(|s| s / sum).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum();
    entropy.exp()
}

/// Of the variances along the principal axes, of which what is below rounding of `size` counts as none.
fn isoscore(variances: &[f64], size: f64) -> Option<f64> {
    let d = variances.len() as f64;
    let length = variances.iter().map(|x| x * x).sum::<f64>().sqrt();
    if variances.len() < 2 || length <= size * 1e-12 {
        return None;
    }
    let defect = variances.iter().map(|x| (d.sqrt() * x.max(0.0) / length - 1.0).powi(2)).sum::<f64>().sqrt()
        / (2.0 * (d - d.sqrt())).sqrt();
    let dimensions = (d - defect * defect * (d - d.sqrt())).powi(2) / d;
    Some((dimensions - 1.0) / (d - 1.0))
}

fn partition_isotropy(raw: Fill, n: usize, vectors: &Mat<f64>) -> f64 {
    let d = vectors.nrows();
    let strip = |columns: Range<usize>| {
        // Of each direction and its negative log Z as the largest exponent so far and the sum relative to it: no overflow.
        let mut log_z = vec![(f64::NEG_INFINITY, 0.0); 2 * columns.len()];
        let mut block = vec![0.0; BLOCK * d];
        for start in (0..n).step_by(BLOCK) {
            let m = BLOCK.min(n - start);
            (0..m).for_each(|i| raw(start + i, 0..d, &mut block[i * d..(i + 1) * d]));
            let rows = MatRef::from_row_major_slice(&block[..m * d], m, d);
            let products = algebra::multiply(rows, vectors.get(.., columns.clone()));
            for (both, products) in log_z.chunks_mut(2).zip(products.col_iter()) {
                for x in products.iter() {
                    add_exp(&mut both[0], *x);
                    add_exp(&mut both[1], -x);
                }
            }
        }
        log_z.into_iter().map(|(most, sum)| most + sum.ln()).collect::<Vec<f64>>()
    };
    let starts: Vec<usize> = (0..d).step_by(BLOCK).collect();
    let log_z: Vec<f64> = starts.into_par_iter().flat_map_iter(|c| strip(c..(c + BLOCK).min(d))).collect();
    let (least, most) = log_z.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), z| (a.min(*z), b.max(*z)));
    (least - most).exp()
}

fn add_exp((most, sum): &mut (f64, f64), x: f64) {
    if x > *most {
        *sum = *sum * (*most - x).exp() + 1.0;
        *most = x;
    } else {
        *sum += (x - *most).exp();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::gaussian;

    fn measure(rows: usize, columns: usize, value: impl Fn(usize, usize) -> f64) -> Geometry {
        let values = (0..rows * columns).map(|i| value(i / columns, i % columns) as f32).collect();
        geometry(&Table::new(rows, columns, values).unwrap(), &Rows::all(&vec![1; rows]).unwrap()).unwrap()
    }

    #[test]
    fn orthonormal_and_equal_rows() {
        let found = measure(16, 16, |i, j| f64::from(i == j));
        assert!(found.mean_cosine.unwrap().abs() < 1e-12 && (found.effective_rank - 16.0).abs() < 1e-9, "{found:?}");
        let found = measure(9, 4, |_, j| j as f64 + 1.0);
        assert!(
            (found.mean_cosine.unwrap() - 1.0).abs() < 1e-6 && (found.effective_rank - 1.0).abs() < 1e-5,
            "{found:?}"
        );
        assert_eq!(found.isoscore, None);
        assert!((found.mean_norm - 30f64.sqrt()).abs() < 1e-6);
        assert_eq!(measure(1, 3, |_, j| j as f64 + 1.0).mean_cosine, None);
        // Rows +-a e_i of every i: Z is the same along every axis, as long as the axes are the eigenvectors.
        let found = measure(8, 4, |i, j| if i / 2 == j { if i % 2 == 0 { 1.5 } else { -1.5 } } else { 0.0 });
        assert!((found.partition_isotropy - 1.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn isoscore_of_k_equal_variances() {
        // k of 16 directions have the same variance, the others none: (k - 1) / 15.
        for k in [1, 4, 8, 16] {
            let found = measure(32, 16, |i, j| {
                if i / 2 == j && j < k {
                    [1.0, -1.0][i % 2]
                } else if j == 0 {
                    1e-9
                } else {
                    0.0
                }
            });
            let expected = (k as f64 - 1.0) / 15.0;
            assert!((found.isoscore.unwrap() - expected).abs() < 1e-6, "{k}: {found:?}");
        }
        let found = gaussian(4000, 16, 1);
        let found = geometry(&found, &Rows::all(&[1; 4000]).unwrap()).unwrap();
        assert!(found.isoscore.unwrap() > 0.97 && found.mean_cosine.unwrap().abs() < 0.01, "{found:?}");
    }
}
