//! How far rows have turned: cosines of the same tokens in two states of a table.

use serde::Serialize;
use tiebreak_data::Error;

use crate::statistics::{deciles, mean};
use crate::table::dot;
use crate::{Rows, Table};

/// Cosines, over tokens, of a table's rows with the same rows at another step. Neither is centred or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Drift {
    /// Mean over tokens.
    pub mean: f64,
    /// Quantiles 0.1, 0.2, ..., 0.9 over tokens.
    pub deciles: [f64; 9],
}

impl Drift {
    /// Of `now` against `before`, over `rows`.
    ///
    /// # Errors
    /// As [`cosines`].
    pub fn between(now: &Table, before: &Table, rows: &Rows) -> Result<Self, Error> {
        let cosines = cosines(&now.select(rows)?, &before.select(rows)?)?;
        Ok(Self { mean: mean(&cosines), deciles: deciles(&cosines) })
    }
}

/// cos(a\[i\], b\[i\]) of every row; a row of zeros has cosine 0 with anything.
///
/// # Errors
/// [`Error::Input`] if the tables differ in shape.
pub fn cosines(a: &Table, b: &Table) -> Result<Vec<f64>, Error> {
    same_shape(a, b)?;
    Ok((0..a.rows()).map(|i| cosine(a.row(i), b.row(i))).collect())
}

/// What training added: each row of `table` less its projection on the same row of `initial`. A row that only grew or shrank
/// (weight decay alone) becomes zero up to rounding.
///
/// # Errors
/// [`Error::Input`] if the tables differ in shape.
pub fn learned_part(table: &Table, initial: &Table) -> Result<Table, Error> {
    same_shape(table, initial)?;
    let mut values = Vec::with_capacity(table.values().len());
    for i in 0..table.rows() {
        let (row, first) = (table.row(i), initial.row(i));
        let square = dot(first, first);
        let along = if square > 0.0 { dot(row, first) / square } else { 0.0 };
        values.extend(row.iter().zip(first).map(|(x, f)| (f64::from(*x) - along * f64::from(*f)) as f32));
    }
    Table::new(table.rows(), table.columns(), values)
}

/// Which rows have another direction than in `initial`, by more than rounding over a long training: rows that got nothing but
/// weight decay have not, and their learned part is noise.
///
/// # Errors
/// [`Error::Input`] if the tables differ in shape.
pub fn turned(table: &Table, initial: &Table) -> Result<Vec<bool>, Error> {
    const ROUNDING: f64 = 1e-4;
    let learned = learned_part(table, initial)?;
    let length = |t: &Table, i: usize| dot(t.row(i), t.row(i)).sqrt();
    Ok((0..table.rows()).map(|i| length(&learned, i) > ROUNDING * length(table, i)).collect())
}

pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}

fn same_shape(a: &Table, b: &Table) -> Result<(), Error> {
    let shape = |t: &Table| format!("{} x {}", t.rows(), t.columns());
    if (a.rows(), a.columns()) != (b.rows(), b.columns()) {
        return Err(Error::Input(format!(
            "tables of shapes {} and {} are not two states of one table",
            shape(a),
            shape(b)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::gaussian;

    #[test]
    fn cosines_by_hand() {
        let table = |values: [f32; 6]| Table::new(3, 2, values.to_vec()).unwrap();
        let (now, before) = (table([3.0, 4.0, 1.0, 0.0, 1.0, 1.0]), table([4.0, 3.0, 0.0, 7.0, -2.0, -2.0]));
        let found = cosines(&now, &before).unwrap();
        for (found, expected) in found.iter().zip([0.96, 0.0, -1.0]) {
            assert!((found - expected).abs() < 1e-12, "{found}");
        }
        let rows = Rows::seen(&[5, 5, 0]).unwrap();
        let drift = Drift::between(&now, &before, &rows).unwrap();
        assert!((drift.mean - 0.48).abs() < 1e-12 && (drift.deciles[4] - 0.48).abs() < 1e-12, "{drift:?}");
        assert!((drift.deciles[0] - 0.096).abs() < 1e-12);
        let wide = Table::new(3, 1, vec![1.0; 3]).unwrap();
        assert!(cosines(&now, &wide).unwrap_err().to_string().contains("3 x 2 and 3 x 1"));
    }

    #[test]
    fn the_learned_part_is_orthogonal_to_the_initial_row() {
        let (now, initial) = (gaussian(50, 8, 1), gaussian(50, 8, 2));
        let learned = learned_part(&now, &initial).unwrap();
        assert!(cosines(&learned, &initial).unwrap().iter().all(|c| c.abs() < 1e-6));
        // Nothing is lost: the learned part and the projection add up to the row.
        let row = 7;
        let rest: Vec<f32> = now.row(row).iter().zip(learned.row(row)).map(|(a, b)| a - b).collect();
        assert!((cosine(&rest, initial.row(row)).abs() - 1.0).abs() < 1e-6);
        // A row that was only shrunk has learned nothing.
        let shrunk = Table::new(50, 8, initial.values().iter().map(|x| x * 0.5).collect()).unwrap();
        assert!(learned_part(&shrunk, &initial).unwrap().values().iter().all(|x| x.abs() < 1e-6));
        assert!(
            !turned(&shrunk, &initial).unwrap().contains(&true) && !turned(&now, &initial).unwrap().contains(&false)
        );
    }
}
