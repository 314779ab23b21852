use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use tiebreak_kernels::{Transposed, product};

use super::{
    Cost, HeadConfig, HeadMode, Mode, Role, RoleAndShape, Sides, Start, Successor, Table, TableParameter, Tables,
    TablesGradient,
};
use crate::ConfigError;
use crate::orthogonal::{ITERATIONS, orthonormal};

pub(super) const MODE: Mode = Mode { check, cost, factors: true, ..Mode::new(parameters, describe, init) };

/// A lookup and a head through d x d maps. Per step the retraction, with four products with Z, and products of d x d: three in each of
/// the retraction's 40 iterations and four beside them, 2 ceil(log2 d) + 2 each time that T is formed (before and after the
/// backward pass), four in the pullback.
fn cost(_: &HeadConfig, v: usize, d: usize) -> Cost {
    let levels = d.next_power_of_two().ilog2() as usize;
    let squares = ITERATIONS * 3 + 4 + 2 * (2 * levels + 2);
    Cost { per_token: v * d + 2 * d * d, per_step: 4 * v * d * d + squares * d * d * d }
}

fn check(_: &HeadConfig, v: usize, d: usize) -> Result<(), ConfigError> {
    match v >= d {
        true => Ok(()),
        false => Err(ConfigError(format!(
            "head.mode = \"pseudo_inverse\": {v} rows have no model.d_model = {d} orthonormal columns; use a smaller width or a \
             larger vocabulary"
        ))),
    }
}

fn parameters(_: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    vec![(Role::Shared, [v, d]), (Role::Map, [1, d * (d + 1) / 2])]
}

fn describe(_: &HeadConfig, v: usize, d: usize) -> String {
    format!(
        "pseudo_inverse: both sides share Z [{v}, {d}] with orthonormal columns and a symmetric positive definite T [{d}, {d}] ({} \
         values): E = s Z T^-1, U = Z T / s with a fixed s, so that U^T E is the identity",
        d * (d + 1) / 2
    )
}

fn init(_: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    let [v, d] = start.shape;
    let length = start.input.iter().map(|x| x * x).sum::<f64>().sqrt();
    let table_vd = Tensor::<2>::from_data(TensorData::new(start.input.clone(), [v, d]), (&Device::flex(), DType::F64));
    let scale = length / (d as f64).sqrt();
    let basis = orthonormal(&table_vd).mul_scalar(scale).to_data().iter::<f64>().collect();
    let packed = d * (d + 1) / 2;
    Box::new(PseudoInverse {
        basis: start.undecayed("basis", basis, [v, d], Role::Shared),
        transform: start.undecayed("transform", vec![0.0; packed], [1, packed], Role::Map),
        scale,
        d,
    })
}

/// E = s Z T^-1 and U = Z T / s with Z^T Z = I and T symmetric positive definite, so that U^T E = I and U^T is the pseudo-inverse of
/// E: the form of pseudo-inverse tying (arXiv 2602.04556), whose abstract we have but whose body we could not read.
///
/// Ours: T = L L^T with L lower triangular from the identity, its d (d + 1) / 2 values in `transform`, row by row, those of the
/// diagonal as logarithms; `basis` is s Z, from the orthogonal polar factor of E_0, trained by AdamW's step in V x d and brought back
/// to s times its own polar factor after it, with its moments as they are; neither decays; s is |E_0| / sqrt(d), so that E starts as
/// long as the table of `tied` and, AdamW's steps having the length of the learning rate whatever they move, turns as fast.
struct PseudoInverse {
    basis: TableParameter,
    transform: TableParameter,
    scale: f64,
    d: usize,
}

/// L, T and T^-1, each `[d, d]`.
struct Transform {
    lower_dd: Tensor<2>,
    square_dd: Tensor<2>,
    inverse_dd: Tensor<2>,
}

impl PseudoInverse {
    /// 1 where `keep(i, j)`, else 0.
    fn mask(&self, keep: impl Fn(usize, usize) -> bool) -> Tensor<2> {
        let d = self.d;
        let values: Vec<f64> = (0..d * d).map(|at| f64::from(u8::from(keep(at / d, at % d)))).collect();
        let packed = &self.transform.parameter.value;
        Tensor::from_data(TensorData::new(values, [d, d]), (&packed.device(), packed.dtype()))
    }

    fn select(&self, x: Tensor<2>, places: Vec<i32>) -> Tensor<2> {
        let n = places.len();
        let places = Tensor::<1, Int>::from_data(TensorData::new(places, [n]), &x.device());
        x.select(1, places)
    }

    fn transform(&self) -> Transform {
        let d = self.d;
        let place = |at: usize| if at % d <= at / d { (at / d * (at / d + 1) / 2 + at % d) as i32 } else { 0 };
        let values_dd = self.select(self.transform.value(), (0..d * d).map(place).collect()).reshape([d, d]);
        let diagonal_dd = self.mask(|i, j| i == j);
        let logarithm_dd = values_dd.clone() * diagonal_dd.clone();
        let lower_dd = values_dd * self.mask(|i, j| i > j) + logarithm_dd.clone().exp() * diagonal_dd.clone();
        // Inverse blocks of size 1 on the diagonal, then of 2, 4, ...: that of [[A, 0], [B, C]] has -C^-1 B A^-1 below.
        let mut inverse_dd = logarithm_dd.neg().exp() * diagonal_dd;
        let times = |a: &Tensor<2>, b: &Tensor<2>| product(a, b, Transposed::Neither);
        let mut level = 0;
        while 1 << level < d {
            let below_dd = lower_dd.clone() * self.mask(|i, j| i >> level == (j >> level) + 1 && (i >> level) % 2 == 1);
            inverse_dd = inverse_dd.clone() - times(&times(&inverse_dd, &below_dd), &inverse_dd);
            level += 1;
        }
        let square_dd = product(&lower_dd, &lower_dd, Transposed::Second);
        Transform { square_dd, inverse_dd: product(&inverse_dd, &inverse_dd, Transposed::First), lower_dd }
    }

    /// From dL/dT to the gradient of `transform`: dL/dL = (dL/dT + its transpose) L on and below the diagonal, there times L.
    fn packed(&self, square_dd: Tensor<2>, lower_dd: &Tensor<2>) -> Tensor<2> {
        let d = self.d;
        let both_dd = square_dd.clone() + square_dd.transpose();
        let found_dd = product(&both_dd, lower_dd, Transposed::Neither);
        let diagonal_dd = self.mask(|i, j| i == j);
        let found_dd = found_dd.clone() * (diagonal_dd.clone() * lower_dd.clone() + diagonal_dd.neg().add_scalar(1.0));
        let places = (0..d).flat_map(|i| (0..=i).map(move |j| (i * d + j) as i32)).collect();
        self.select(found_dd.reshape([1, d * d]), places)
    }
}

impl HeadMode for PseudoInverse {
    fn tables(&self) -> Tables {
        let Transform { square_dd, inverse_dd, .. } = self.transform();
        Tables {
            input: Table::factors(self.basis.value(), inverse_dd),
            output: Table::factors(self.basis.value(), square_dd.mul_scalar(self.scale.powi(-2))),
            bias_1v: None,
        }
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        let Transform { lower_dd, inverse_dd, .. } = self.transform();
        let maps = [gradient.input.map_rd, gradient.output.map_rd].map(|g| g.expect("handed out in factors"));
        let [input_dd, output_dd] = maps;
        // d(T^-1) = -T^-1 dT T^-1.
        let times = |a: &Tensor<2>, b: &Tensor<2>| product(a, b, Transposed::Neither);
        let input_dd = times(&times(&inverse_dd, &input_dd), &inverse_dd).neg();
        let output_dd = output_dd.mul_scalar(self.scale.powi(-2));
        vec![
            Sides::both(gradient.input.rows_vr, gradient.output.rows_vr),
            Sides::both(self.packed(input_dd, &lower_dd), self.packed(output_dd, &lower_dd)),
        ]
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        vec![&self.basis, &self.transform]
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        vec![&mut self.basis, &mut self.transform]
    }

    fn after_step(&mut self, step: u64) -> Vec<Successor> {
        // It starts as a polar factor.
        if step > 0 {
            self.basis.parameter.value = orthonormal(&self.basis.parameter.value).mul_scalar(self.scale);
        }
        vec![]
    }
}
