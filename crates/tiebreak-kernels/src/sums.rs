//! Sums over gradients: f32 within a row or block, then f64 in order.

use burn::tensor::{Tensor, Transaction};
use rayon::prelude::*;

use crate::flex::{plain, shape, values};
use crate::simd::{simd, sum1, sum2};

/// Elements of a block; an f32 sum inside it keeps its relative error near 1e-6.
const BLOCK: usize = 4096;

/// Row by row |a|^2, |b|^2 and <a, b>.
#[derive(Clone, Debug)]
pub struct RowProducts {
    /// |a\[v\]|^2.
    pub aa: Vec<f64>,
    /// |b\[v\]|^2.
    pub bb: Vec<f64>,
    /// <a\[v\], b\[v\]>.
    pub ab: Vec<f64>,
}

simd! {
    fn products(a: &[f32], b: &[f32]) -> [f64; 3] {
        let square = |x: f32| x * x;
        [sum1(a, square) as f64, sum1(b, square) as f64, sum2(a, b, |a, b| a * b) as f64]
    }
}

simd! {
    fn square_sum(x: &[f32]) -> f64 {
        sum1(x, |x| x * x) as f64
    }
}

/// Sums that are asked for one by one and read from their device together, for every read waits until the device has caught up. On
/// flex they are taken at once.
#[derive(Default)]
pub struct Reads {
    slots: Vec<Slot>,
}

enum Slot {
    Read(Vec<f64>),
    Waiting(Box<Tensor<2>>),
}

/// A sum in [`Reads`] that may not be read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending(usize);

/// [`RowProducts`] that may not be read yet.
#[derive(Clone, Copy, Debug)]
pub struct PendingRows {
    aa: Pending,
    bb: Pending,
    ab: Pending,
}

impl Reads {
    /// The values of a tensor.
    pub fn values<const D: usize>(&mut self, tensor: Tensor<D>) -> Pending {
        let n: usize = tensor.dims().iter().product();
        self.wait(tensor.reshape([n, 1]))
    }

    /// See [`row_products`].
    pub fn row_products(&mut self, a_vd: &Tensor<2>, b_vd: &Tensor<2>) -> PendingRows {
        if let (Some(a), Some(b)) = (plain(a_vd), plain(b_vd)) {
            let (v, d) = (shape(&a)[0], shape(&a)[1]);
            let (a, b) = (values(&a), values(&b));
            let row = |i: usize| products(&a[i * d..(i + 1) * d], &b[i * d..(i + 1) * d]);
            let rows: Vec<[f64; 3]> = (0..v).into_par_iter().with_min_len(64).map(row).collect();
            let [aa, bb, ab] = std::array::from_fn(|k| self.put(rows.iter().map(|row| row[k]).collect()));
            return PendingRows { aa, bb, ab };
        }
        let mut sums = |a: &Tensor<2>, b: &Tensor<2>| self.wait(a.clone().mul(b.clone()).sum_dim(1));
        PendingRows { aa: sums(a_vd, a_vd), bb: sums(b_vd, b_vd), ab: sums(a_vd, b_vd) }
    }

    /// The sum of squares of a tensor, possibly in parts.
    pub fn square(&mut self, t: &Tensor<2>) -> Pending {
        match plain(t) {
            Some(t) => {
                let blocks: Vec<f64> = values(&t).par_chunks(BLOCK).map(square_sum).collect();
                self.put(vec![blocks.iter().sum()])
            }
            None => self.wait(t.clone().mul(t.clone()).sum_dim(1)),
        }
    }

    /// A sum that is known.
    pub(crate) fn put(&mut self, values: Vec<f64>) -> Pending {
        self.slots.push(Slot::Read(values));
        Pending(self.slots.len() - 1)
    }

    fn wait(&mut self, tensor: Tensor<2>) -> Pending {
        match tensor.clone().try_into_primitive::<burn::backend::Flex>() {
            Ok(_) => self.put(tensor.to_data().iter::<f64>().collect()),
            Err(_) => {
                self.slots.push(Slot::Waiting(Box::new(tensor)));
                Pending(self.slots.len() - 1)
            }
        }
    }

    /// Reads all that wait in one transaction.
    pub fn execute(&mut self) {
        let waiting: Vec<usize> =
            (0..self.slots.len()).filter(|i| matches!(self.slots[*i], Slot::Waiting(_))).collect();
        if waiting.is_empty() {
            return;
        }
        let transaction = waiting.iter().fold(Transaction::default(), |transaction, i| match &self.slots[*i] {
            Slot::Waiting(tensor) => transaction.register(tensor.as_ref().clone()),
            Slot::Read(_) => transaction,
        });
        for (i, data) in waiting.into_iter().zip(transaction.execute()) {
            self.slots[i] = Slot::Read(data.iter::<f64>().collect());
        }
    }

    /// What was read.
    ///
    /// # Panics
    /// Before [`Reads::execute`].
    pub fn get(&self, place: Pending) -> &[f64] {
        match &self.slots[place.0] {
            Slot::Read(values) => values,
            Slot::Waiting(_) => panic!("a sum that was not read yet"),
        }
    }

    /// The sum of what was read.
    ///
    /// # Panics
    /// Before [`Reads::execute`].
    pub fn sum(&self, place: Pending) -> f64 {
        self.get(place).iter().sum()
    }

    /// What was read.
    ///
    /// # Panics
    /// Before [`Reads::execute`].
    pub fn rows(&self, places: PendingRows) -> RowProducts {
        let [aa, bb, ab] = [places.aa, places.bb, places.ab].map(|place| self.get(place).to_vec());
        RowProducts { aa, bb, ab }
    }
}

/// Squared lengths and products of the rows of a and b, both `[v, d]`, in one pass over them.
pub fn row_products(a_vd: &Tensor<2>, b_vd: &Tensor<2>) -> RowProducts {
    let mut reads = Reads::default();
    let places = reads.row_products(a_vd, b_vd);
    reads.execute();
    reads.rows(places)
}

/// Sum of squares of each tensor.
pub fn squares<'a>(tensors: impl Iterator<Item = &'a Tensor<2>>) -> Vec<f64> {
    let mut reads = Reads::default();
    let places: Vec<Pending> = tensors.map(|t| reads.square(t)).collect();
    reads.execute();
    places.into_iter().map(|place| reads.sum(place)).collect()
}

/// Whether both tensors are the same values in the same place, so that a sum over one serves for the other. `false` where
/// that cannot be told.
pub fn same_buffer(a: &Tensor<2>, b: &Tensor<2>) -> bool {
    match (plain(a), plain(b)) {
        (Some(a), Some(b)) => std::ptr::eq(values(&a), values(&b)) && shape(&a) == shape(&b),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, matrix, normal};
    use burn::tensor::DType;

    #[test]
    fn sums_equal_f64_to_1e_6() {
        at_every_level(|| {
            for [v, d] in [[0, 3], [1, 1], [37, 80], [129, 300]] {
                let at =
                    |dtype| [matrix(&normal([v, d], 1.0), dtype), matrix(&normal([v, d], 1.0), dtype).add_scalar(0.5)];
                let ([a, b], [exact_a, exact_b]) = (at(DType::F32), at(DType::F64));
                let (found, exact) = (row_products(&a, &b), row_products(&exact_a, &exact_b));
                for (found, exact) in [(&found.aa, &exact.aa), (&found.bb, &exact.bb), (&found.ab, &exact.ab)] {
                    assert_eq!(found.len(), v);
                    for (found, exact) in found.iter().zip(exact) {
                        assert!((found - exact).abs() <= 1e-6 * (exact.abs() + d as f64), "{found} {exact}");
                    }
                }
                let (found, exact) = (squares([&a, &exact_b].into_iter()), squares([&exact_a, &b].into_iter()));
                for (found, exact) in found.iter().zip(&exact) {
                    assert!((found - exact).abs() <= 1e-6 * exact);
                }
            }
        });
    }

    #[test]
    fn nan_reaches_the_sum_and_buffers_are_told_apart() {
        let a = matrix(&normal([2, 3], 1.0), DType::F32);
        assert!(same_buffer(&a, &a.clone()) && !same_buffer(&a, &a.clone().add_scalar(0.0)));
        assert!(squares([&a.mul_scalar(f32::NAN)].into_iter())[0].is_nan());
    }
}
