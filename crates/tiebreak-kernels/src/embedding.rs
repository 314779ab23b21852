//! The gradient of a lookup: rows added to the rows of a table.

use burn::backend::Flex;
use burn::tensor::{IndexingUpdateOp, Int, Tensor};
use rayon::prelude::*;

use crate::flex::{Unfilled, contiguous, from_values, indices, plain, shape, tensor, values, values_mut};
use crate::simd::simd;

/// Table rows per task.
const ROWS: usize = 32;

simd! {
    fn add_row(sum: &mut [f32], row: &[f32]) {
        for (sum, x) in sum.iter_mut().zip(row) {
            *sum += x;
        }
    }
}

/// table `[v, d]` + for each i, row i of `rows_nd` at table row `ids_n[i]`, in the order of i. `None`: a table of zeros
/// with `v` rows.
///
/// # Panics
/// If an id is not below `v`.
pub fn scatter_add(table_vd: Option<Tensor<2>>, v: usize, ids_n: Tensor<1, Int>, rows_nd: &Tensor<2>) -> Tensor<2> {
    if let Some(rows) = plain(rows_nd)
        && table_vd.as_ref().is_none_or(|t| plain(t).is_some())
        && let Some(ids) = indices(&ids_n, v)
    {
        let d = shape(&rows)[1];
        let (starts, order) = by_id(&ids, v);
        let rows = values(&rows);
        let add = |id: usize, sum: &mut [f32]| {
            for &i in &order[starts[id]..starts[id + 1]] {
                add_row(sum, &rows[i * d..(i + 1) * d]);
            }
        };
        let Some(table_vd) = table_vd else {
            let mut sums = Unfilled::new(v * d);
            if d > 0 {
                sums.slots().par_chunks_mut(d).enumerate().with_min_len(ROWS).for_each(|(id, row)| {
                    for x in row.iter_mut() {
                        x.write(0.0);
                    }
                    // SAFETY: just written.
                    add(id, unsafe { row.assume_init_mut() });
                });
            }
            // SAFETY: every row is written.
            return tensor(from_values(unsafe { sums.filled() }, [v, d]));
        };
        let mut table = contiguous(table_vd.try_into_primitive::<Flex>().expect("checked above"));
        if values_mut(&mut table).is_none() {
            table = from_values(values(&table).to_vec(), [v, d]);
        }
        if d > 0 {
            let sums = values_mut(&mut table).expect("a buffer of its own");
            sums.par_chunks_mut(d).enumerate().with_min_len(ROWS).for_each(|(id, row)| add(id, row));
        }
        return tensor(table);
    }
    let table_vd =
        table_vd.unwrap_or_else(|| Tensor::zeros([v, rows_nd.dims()[1]], (&rows_nd.device(), rows_nd.dtype())));
    table_vd.select_assign(0, ids_n, rows_nd.clone(), IndexingUpdateOp::Add)
}

/// Positions of every id in order: those of `id` are `order[starts[id]..starts[id + 1]]`.
fn by_id(ids: &[usize], v: usize) -> (Vec<usize>, Vec<usize>) {
    let mut starts = vec![0; v + 1];
    for id in ids {
        starts[id + 1] += 1;
    }
    for id in 0..v {
        starts[id + 1] += starts[id];
    }
    let (mut next, mut order) = (starts.clone(), vec![0; ids.len()]);
    for (i, id) in ids.iter().enumerate() {
        order[next[*id]] = i;
        next[*id] += 1;
    }
    (starts, order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{host, matrix, normal};
    use burn::tensor::{DType, Device, TensorData};

    #[test]
    fn the_same_bits_as_the_composition() {
        for (n, v, d) in [(0, 3, 2), (1, 1, 1), (37, 5, 80), (129, 700, 16), (3, 2, 0)] {
            let list: Vec<i32> = (0..n as i32).map(|i| i * i * 7 % v as i32).collect();
            let ids = || Tensor::<1, Int>::from_data(TensorData::new(list.clone(), [n]), &Device::flex());
            let rows = matrix(&normal([n, d], 1.0), DType::F32);
            let table = || matrix(&normal([v, d], 1.0), DType::F32);
            let composed = |table: Tensor<2>| match n * d {
                0 => table,
                _ => table.select_assign(0, ids(), rows.clone(), IndexingUpdateOp::Add),
            };
            assert_eq!(host(&scatter_add(None, v, ids(), &rows)), host(&composed(table().zeros_like())));
            assert_eq!(host(&scatter_add(Some(table()), v, ids(), &rows)), host(&composed(table())));
        }
    }

    #[test]
    #[should_panic(expected = "id 3 is outside a table of 3 rows")]
    fn an_id_outside_the_table_is_refused() {
        let rows = matrix(&normal([1, 2], 1.0), DType::F32);
        scatter_add(None, 3, Tensor::from_data([3], &Device::flex()), &rows);
    }
}
