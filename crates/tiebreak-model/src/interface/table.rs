//! Tables as the lookup and the head use them: whole, or in two factors.

use burn::tensor::{Int, Tensor};
use tiebreak_kernels::{Transposed, product, scatter_add};

/// One side's table, whole or as a product of two factors that is formed only where that is cheaper, or asked for.
#[derive(Clone, Debug)]
pub struct Table {
    /// The whole table `[v, d]`, or its left factor `[v, r]`.
    pub rows_vr: Tensor<2>,
    /// The right factor `[r, d]`: the table is rows times map.
    pub map_rd: Option<Tensor<2>>,
}

/// The gradient of a [`Table`], by factor.
#[derive(Clone, Debug)]
pub struct TableGradient {
    /// Of the rows, `[v, r]`.
    pub rows_vr: Tensor<2>,
    /// Of the map, `[r, d]`, where there is one.
    pub map_rd: Option<Tensor<2>>,
}

impl Table {
    /// A table `[v, d]`.
    pub fn whole(table_vd: Tensor<2>) -> Self {
        Self { rows_vr: table_vd, map_rd: None }
    }

    /// rows `[v, r]` times map `[r, d]`.
    pub fn factors(rows_vr: Tensor<2>, map_rd: Tensor<2>) -> Self {
        Self { rows_vr, map_rd: Some(map_rd) }
    }

    /// The table `[v, d]` itself.
    pub fn formed(&self) -> Tensor<2> {
        match &self.map_rd {
            None => self.rows_vr.clone(),
            Some(map_rd) => product(&self.rows_vr, map_rd, Transposed::Neither),
        }
    }

    /// The form that costs fewer multiply-adds where `n` tokens are multiplied with it: n r (d + v) in factors, v r d + n v d formed.
    pub fn for_head(&self, n: usize) -> Self {
        let Some(map_rd) = &self.map_rd else { return self.clone() };
        let ([v, _], [r, d], n) = (self.rows_vr.dims(), map_rd.dims(), n as f64);
        let (v, r, d) = (v as f64, r as f64, d as f64);
        if n * r * (d + v) <= v * r * d + n * v * d { self.clone() } else { Self::whole(self.formed()) }
    }

    /// The form that costs fewer where `n` tokens are looked up: n r d in factors, v r d formed.
    pub fn for_lookup(&self, n: usize) -> Self {
        let [v, _] = self.rows_vr.dims();
        if n <= v { self.clone() } else { Self::whole(self.formed()) }
    }

    /// Rows of the table for ids `[n]`: `[n, d]`.
    pub fn lookup(&self, ids_n: Tensor<1, Int>) -> Tensor<2> {
        let rows_nr = self.rows_vr.clone().select(0, ids_n);
        match &self.map_rd {
            None => rows_nr,
            Some(map_rd) => product(&rows_nr, map_rd, Transposed::Neither),
        }
    }

    /// The gradient of a lookup whose rows have the gradient `x_nd`, added to `sum`.
    pub fn lookup_gradient(
        &self,
        sum: Option<TableGradient>,
        ids_n: Tensor<1, Int>,
        x_nd: &Tensor<2>,
    ) -> TableGradient {
        let [v, _] = self.rows_vr.dims();
        let (rows, map) = sum.map_or((None, None), |s| (Some(s.rows_vr), s.map_rd));
        let Some(map_rd) = &self.map_rd else {
            return TableGradient { rows_vr: scatter_add(rows, v, ids_n, x_nd), map_rd: None };
        };
        let found_rd = product(&self.rows_vr.clone().select(0, ids_n.clone()), x_nd, Transposed::First);
        let x_nr = product(x_nd, map_rd, Transposed::Second);
        let map_rd = Some(match map {
            Some(sum_rd) => sum_rd + found_rd,
            None => found_rd,
        });
        TableGradient { rows_vr: scatter_add(rows, v, ids_n, &x_nr), map_rd }
    }

    /// The gradient by factor from that of the formed table, `[v, d]`.
    pub fn gradient(&self, table_vd: Tensor<2>) -> TableGradient {
        match &self.map_rd {
            None => TableGradient { rows_vr: table_vd, map_rd: None },
            Some(map_rd) => TableGradient {
                rows_vr: product(&table_vd, map_rd, Transposed::Second),
                map_rd: Some(product(&self.rows_vr, &table_vd, Transposed::First)),
            },
        }
    }
}

impl TableGradient {
    /// The sum of two gradients of one table.
    pub fn plus(self, other: Self) -> Self {
        let map_rd = match (self.map_rd, other.map_rd) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        Self { rows_vr: self.rows_vr + other.rows_vr, map_rd }
    }
}

/// What a mode makes of its parameters: the two sides' tables and a bias of the logits.
#[derive(Clone, Debug)]
pub struct Tables {
    /// E: ids to vectors.
    pub input: Table,
    /// U: states to logits, h U^T.
    pub output: Table,
    /// b, `[1, v]`, added to the logits.
    pub bias_1v: Option<Tensor<2>>,
}

impl Tables {
    /// E and U, each `[v, d]`, without a bias.
    pub fn whole(input_vd: Tensor<2>, output_vd: Tensor<2>) -> Self {
        Self { input: Table::whole(input_vd), output: Table::whole(output_vd), bias_1v: None }
    }
}

/// The gradients of a mode's [`Tables`], in the form in which it handed them out.
#[derive(Clone, Debug)]
pub struct TablesGradient {
    /// dL/dE: of a whole table, G_in is its `rows_vr`.
    pub input: TableGradient,
    /// dL/dU: of a whole table, G_out is its `rows_vr`.
    pub output: TableGradient,
    /// dL/db, where there is a bias.
    pub bias_1v: Option<Tensor<2>>,
}
