//! E and U are to be one another's rotations: weight / V |E R - U|^2, R the best rotation (reflections included) at its last refresh.
//!
//! R maximises <E R, U> (Schönemann 1966): the orthogonal polar factor of E^T U. Between refreshes it is held; at a refresh the
//! gradient with R held is that of the minimum over R. Cost: two products v d d a step, and at a refresh one more and R itself; forming
//! tables that come in factors costs more.

use burn::tensor::{DType, Device, Tensor};
use tiebreak_kernels::{Reads, Transposed, packed, product};
use tiebreak_model::interface::{TableGradient, Tables};
use tiebreak_model::orthogonal;

use super::{Loss, Part};

/// Multiply-adds of a step.
pub(super) fn cost(v: usize, d: usize, refresh: usize) -> usize {
    2 * v * d * d + (v * d * d + 2 * orthogonal::ITERATIONS * d * d * d) / refresh.max(1)
}

/// R `[d, d]` for these tables.
pub(super) fn rotation(tables: &Tables) -> Tensor<2> {
    let cross_dd = product(&tables.input.formed(), &tables.output.formed(), Transposed::First);
    // Of independent tables the cross product is nearly singular, more than single precision can invert; GPUs rarely have double.
    let found_dd = orthogonal::rotation(&Tensor::from_data(cross_dd.to_data(), (&Device::flex(), DType::F64)));
    Tensor::from_data(found_dd.to_data(), (&cross_dd.device(), cross_dd.dtype()))
}

/// The weighted loss with R held.
pub(super) fn part(tables: &Tables, rotation_dd: &Tensor<2>, weight: f64, reads: &mut Reads) -> Part {
    let (input_vd, output_vd) = (tables.input.formed(), tables.output.formed());
    let [v, _] = input_vd.dims();
    let apart_vd = packed(product(&input_vd, rotation_dd, Transposed::Neither) - output_vd);
    let loss = Loss(vec![(reads.square(&apart_vd), weight / v as f64)]);
    let half_vd = apart_vd.mul_scalar(2.0 * weight / v as f64);
    let gradient = |rows_vr| TableGradient { rows_vr, map_rd: None };
    Part {
        loss,
        input: gradient(product(&half_vd, rotation_dd, Transposed::Second)),
        output: gradient(half_vd.neg()),
        bias_1v: None,
    }
}
