//! Nearest neighbours by cosine (paper, table 5): which tokens a table holds together.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;
use tiebreak_data::Error;

use crate::Table;
use crate::table::dot;

/// Rows whose neighbours one task looks for, and rows it compares them with at a time: the block of similarities is all that
/// is held beside the normalised table.
const QUERIES: usize = 256;
const KEYS: usize = 1024;

/// The k nearest neighbours of every row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbours {
    k: usize,
    ids: Vec<u32>,
}

/// Finds each row's `k` nearest other rows by cosine, rows not centred; of equally near ones the earlier row is taken. Works
/// block by block, beside `table` in as much memory as it takes and a few MiB per thread.
///
/// # Errors
/// [`Error::Input`] if `k` is 0 or there are not more than `k` rows.
pub fn knn(table: &Table, k: usize) -> Result<Neighbours, Error> {
    let (n, d) = (table.rows(), table.columns());
    if k == 0 || n <= k {
        return Err(Error::Input(format!(
            "{n} rows have no {k} nearest neighbours each; use more rows or a smaller k"
        )));
    }
    let mut unit = table.values().to_vec();
    for row in unit.chunks_mut(d) {
        let length = dot(row, row).sqrt();
        let scale = if length > 0.0 { (1.0 / length) as f32 } else { 0.0 };
        row.iter_mut().for_each(|x| *x *= scale);
    }
    let search = |first: usize| {
        let queries = &unit[first * d..((first + QUERIES) * d).min(n * d)];
        let m = queries.len() / d;
        let mut near = vec![Nearest::new(k); m];
        let mut block = vec![0f32; m * KEYS];
        for start in (0..n).step_by(KEYS) {
            let keys = &unit[start * d..((start + KEYS) * d).min(n * d)];
            let columns = keys.len() / d;
            let block = &mut block[..m * columns];
            matmul(
                MatMut::from_row_major_slice_mut(block, m, columns),
                Accum::Replace,
                MatRef::from_row_major_slice(queries, m, d),
                MatRef::from_row_major_slice(keys, columns, d).transpose(),
                1.0,
                Par::Seq,
            );
            for (query, (near, row)) in near.iter_mut().zip(block.chunks(columns)).enumerate() {
                near.offer(row, start, first + query);
            }
        }
        near.into_iter().flat_map(|n| n.ids).collect::<Vec<u32>>()
    };
    let tasks: Vec<usize> = (0..n).step_by(QUERIES).collect();
    Ok(Neighbours { k, ids: tasks.into_par_iter().flat_map_iter(search).collect() })
}

/// The best rows so far, nearest first.
#[derive(Clone)]
struct Nearest {
    ids: Vec<u32>,
    similarities: Vec<f32>,
    k: usize,
}

impl Nearest {
    fn new(k: usize) -> Self {
        Self { ids: Vec::with_capacity(k + 1), similarities: Vec::with_capacity(k + 1), k }
    }

    /// Takes in the similarities of rows `start..`, all but that of row `own`.
    fn offer(&mut self, similarities: &[f32], start: usize, own: usize) {
        let mut worst = self.worst();
        for (offset, &similarity) in similarities.iter().enumerate() {
            // Rows come in order, so an equal one never displaces an earlier one.
            if similarity > worst && start + offset != own {
                let at = self.similarities.partition_point(|s| *s >= similarity);
                self.similarities.insert(at, similarity);
                self.ids.insert(at, (start + offset) as u32);
                self.similarities.truncate(self.k);
                self.ids.truncate(self.k);
                worst = self.worst();
            }
        }
    }

    fn worst(&self) -> f32 {
        if self.ids.len() < self.k { f32::NEG_INFINITY } else { self.similarities[self.k - 1] }
    }
}

impl Neighbours {
    /// k.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The neighbours of row `row`, nearest first.
    pub fn of(&self, row: usize) -> &[u32] {
        &self.ids[row * self.k..][..self.k]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.ids.len() / self.k
    }

    /// Share of common neighbours of each row in two tables over the same tokens, of any widths.
    ///
    /// # Errors
    /// [`Error::Input`] if the tables differ in rows, or k differs.
    pub fn overlap(&self, other: &Self) -> Result<Vec<f64>, Error> {
        if (self.k, self.ids.len()) != (other.k, other.ids.len()) {
            return Err(Error::Input(format!(
                "{} neighbours of {} rows and {} of {} rows have no overlap to speak of; use the same tokens and k",
                self.k,
                self.rows(),
                other.k,
                other.rows()
            )));
        }
        Ok((0..self.rows()).map(|i| share(self.of(i), other.of(i), |id| id)).collect())
    }

    /// The same if row i were paired with row `order[i]` of `other`, whose neighbours keep their places among themselves.
    pub(crate) fn overlap_paired(&self, other: &Self, order: &[u32]) -> Vec<f64> {
        let row = |i: usize| share(self.of(i), other.of(order[i] as usize), |id| order[id as usize]);
        (0..self.rows()).map(row).collect()
    }
}

fn share(a: &[u32], b: &[u32], renamed: impl Fn(u32) -> u32) -> f64 {
    a.iter().filter(|id| b.contains(&renamed(**id))).count() as f64 / a.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::gaussian;

    #[test]
    fn neighbours_by_hand() {
        // Directions at 0, 10, 90, 95 and 180 degrees; lengths do not matter.
        let rows = [(0f32, 1.0f32), (10.0, 3.0), (90.0, 0.5), (95.0, 2.0), (180.0, 1.0)];
        let values = rows.iter().flat_map(|(a, r)| [a.to_radians().cos() * r, a.to_radians().sin() * r]).collect();
        let found = knn(&Table::new(5, 2, values).unwrap(), 2).unwrap();
        let expected: [[u32; 2]; 5] = [[1, 2], [0, 2], [3, 1], [2, 1], [3, 2]];
        for (i, near) in expected.iter().enumerate() {
            assert_eq!(found.of(i), near, "row {i}");
        }
        // Of equal ones the first.
        let same = knn(&Table::new(4, 1, vec![1.0, 2.0, 3.0, 4.0]).unwrap(), 2).unwrap();
        assert_eq!((same.of(0), same.of(1), same.of(3)), (&[1u32, 2][..], &[0u32, 2][..], &[0u32, 1][..]));
    }

    #[test]
    fn blocks_find_what_a_plain_search_finds() {
        // More rows than a block on either side, a width that is no multiple of anything.
        let table = gaussian(KEYS + QUERIES + 37, 7, 1);
        let found = knn(&table, 10).unwrap();
        for i in [0, QUERIES - 1, QUERIES, KEYS - 1, KEYS, KEYS + QUERIES + 36] {
            let mut all: Vec<usize> = (0..table.rows()).filter(|j| *j != i).collect();
            let cosine = |j: usize| crate::evolution::cosine(table.row(i), table.row(j));
            all.sort_by(|a, b| cosine(*b).total_cmp(&cosine(*a)));
            // In f32 close ones may change places; the set is compared.
            let (mut near, mut expected) =
                (found.of(i).to_vec(), all[..10].iter().map(|j| *j as u32).collect::<Vec<_>>());
            near.sort();
            expected.sort();
            assert_eq!(near, expected, "row {i}");
        }
    }

    #[test]
    fn overlap_is_1_with_itself_and_k_over_n_with_a_stranger() {
        let (a, b) = (gaussian(2000, 12, 1), gaussian(2000, 5, 2));
        let (a, b) = (knn(&a, 10).unwrap(), knn(&b, 10).unwrap());
        assert!(a.overlap(&a).unwrap().iter().all(|x| *x == 1.0));
        // Mean 10 / 1999 = 0.0050; 2000 tokens of about 0.05 shared neighbours: standard deviation 0.0005.
        let mean = a.overlap(&b).unwrap().iter().sum::<f64>() / 2000.0;
        assert!((mean - 10.0 / 1999.0).abs() < 0.003, "{mean}");
        let same: Vec<u32> = (0..2000).collect();
        assert_eq!(a.overlap_paired(&b, &same), a.overlap(&b).unwrap());
    }

    #[test]
    fn a_renamed_table_has_the_overlap_of_its_own_search() {
        let table = gaussian(300, 6, 4);
        let order: Vec<u32> = (0..300).map(|i| (i * 7 + 3) % 300).collect();
        let other = gaussian(300, 6, 5);
        let paired = order.iter().flat_map(|j| other.row(*j as usize).to_vec()).collect();
        let searched = knn(&Table::new(300, 6, paired).unwrap(), 10).unwrap();
        let (a, b) = (knn(&table, 10).unwrap(), knn(&other, 10).unwrap());
        assert_eq!(a.overlap_paired(&b, &order), a.overlap(&searched).unwrap());
    }

    #[test]
    fn too_few_rows_are_refused() {
        let table = gaussian(10, 3, 1);
        assert!(knn(&table, 10).unwrap_err().to_string().contains("10 rows have no 10 nearest"));
        assert!(knn(&table, 0).is_err());
        assert!(knn(&table, 3).unwrap().overlap(&knn(&table, 4).unwrap()).is_err());
    }
}
