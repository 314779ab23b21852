//! Tables on the host.

use burn::tensor::{DType, Tensor};
use tiebreak_data::Error;

use crate::Rows;

/// A `[v, d]` table of embedding vectors; row i is the vector of id i (or of the i-th of the ids that were selected).
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Table {
    /// Takes `values` row by row.
    ///
    /// # Errors
    /// [`Error::Input`] if there are none, or not `rows` times `columns`.
    pub fn new(rows: usize, columns: usize, values: Vec<f32>) -> Result<Self, Error> {
        if rows == 0 || columns == 0 || rows.checked_mul(columns) != Some(values.len()) {
            return Err(Error::Input(format!(
                "a table of {rows} rows and {columns} columns cannot hold {} values; both sizes are at least 1",
                values.len()
            )));
        }
        Ok(Self { rows, columns, values })
    }

    /// Reads a `[v, d]` tensor.
    ///
    /// # Errors
    /// As [`Table::new`].
    pub fn from_tensor(table_vd: &Tensor<2>) -> Result<Self, Error> {
        let [rows, columns] = table_vd.dims();
        let data = table_vd.to_data().convert_dtype(DType::F32);
        let values = data.try_into_vec().map_err(|e| Error::Failed(format!("a table cannot be read: {e:?}")))?;
        Self::new(rows, columns, values)
    }

    /// v.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// d.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The vector of row `row`.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// All values, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The rows of `rows`, in its order. Probes need a direction in every row, so this is where a table is refused.
    ///
    /// # Errors
    /// [`Error::Input`] if the table has another number of rows than `rows` has ids to choose from, or if a chosen row
    /// holds NaN, an infinity or nothing but zeros.
    pub fn select(&self, rows: &Rows) -> Result<Self, Error> {
        self.pick(rows, rows.ids().iter().copied())
    }

    /// The same for `ids` of `rows` in an order of their own.
    pub(crate) fn pick(&self, rows: &Rows, ids: impl Iterator<Item = u32>) -> Result<Self, Error> {
        if self.rows != rows.vocabulary() {
            return Err(Error::Input(format!(
                "the table has {} rows, the vocabulary {} ids: tables of unlike vocabularies cannot be compared row by row",
                self.rows,
                rows.vocabulary()
            )));
        }
        let mut values = Vec::with_capacity(rows.len() * self.columns);
        for id in ids {
            let row = self.row(id as usize);
            if let Some(value) = row.iter().find(|x| !x.is_finite()) {
                return Err(Error::Input(format!(
                    "row {id} of the table holds {value}; expected finite numbers: the run diverged or the file is damaged"
                )));
            }
            if row.iter().all(|x| *x == 0.0) {
                return Err(Error::Input(format!(
                    "row {id} of the table is all zeros and has no direction; leave the id out or probe another step"
                )));
            }
            values.extend_from_slice(row);
        }
        Self::new(rows.len(), self.columns, values)
    }

    /// Lengths of the rows.
    pub fn norms(&self) -> Vec<f64> {
        self.values.chunks(self.columns).map(|row| dot(row, row).sqrt()).collect()
    }
}

/// <a, b> in f64.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tiebreak_model::rng::Stream;

    /// A table of independent standard normal values.
    pub fn gaussian(rows: usize, columns: usize, seed: u64) -> Table {
        let normals = Stream::new(seed, "probe tests").normals(rows * columns, 1.0, None);
        let values = normals.into_iter().map(|x| x as f32).collect();
        Table::new(rows, columns, values).unwrap()
    }

    #[test]
    fn refused_tables_are_named() {
        let error = |e: Result<Table, Error>| match e {
            Err(Error::Input(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(error(Table::new(2, 3, vec![0.0; 5])).contains("cannot hold 5 values"));
        assert!(error(Table::new(0, 3, vec![])).contains("at least 1"));
        let rows = Rows::all(&[1, 1, 1]).unwrap();
        let select = |values: Vec<f32>| Table::new(values.len() / 2, 2, values).unwrap().select(&rows);
        assert!(error(select(vec![1.0; 4])).contains("2 rows, the vocabulary 3"));
        assert!(error(select(vec![1.0, 1.0, 1.0, f32::NAN, 1.0, 1.0])).contains("row 1 of the table holds NaN"));
        assert!(error(select(vec![1.0, 1.0, 1.0, 1.0, 0.0, -0.0])).contains("row 2 of the table is all zeros"));
        // A row that is not looked at may hold anything.
        let seen = Rows::seen(&[1, 0, 1]).unwrap();
        let table = Table::new(3, 2, vec![1.0, 2.0, f32::NAN, 0.0, 5.0, 6.0]).unwrap();
        assert_eq!(table.select(&seen).unwrap().values(), [1.0, 2.0, 5.0, 6.0]);
    }
}
