use burn::tensor::Tensor;

use super::{HeadConfig, HeadMode, Mode, ModeKind, Pair, Role, RoleAndShape, Sides, Start, TableParameter, table};

pub(super) const MODE: Mode = Mode { parameters, describe, init };

fn parameters(_: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    vec![(Role::Shared, [v, d])]
}

fn init(_: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    Box::new(Tied { table: table("table", start.input, start.shape, &start.at, Role::Shared) })
}

fn describe(_: &HeadConfig, v: usize, d: usize) -> String {
    format!(
        "tied: one table [{v}, {d}] is looked up and, as its transpose [{d}, {v}], turns states [1, {d}] into \
             logits [1, {v}]; sharing saves {} parameters",
        v * d
    )
}

/// U = E, one parameter `table` that starts as E_0. Its gradient is G_in + G_out.
pub struct Tied {
    table: TableParameter,
}

impl HeadMode for Tied {
    fn kind(&self) -> ModeKind {
        ModeKind::Tied
    }

    fn one_matrix(&self) -> bool {
        true
    }

    fn pair(&self) -> Pair {
        let table = &self.table.parameter.value;
        Pair { input_vd: table.clone(), output_vd: table.clone() }
    }

    fn pullback(&self, input_vd: Tensor<2>, output_vd: Tensor<2>) -> Vec<Sides> {
        vec![Sides { input: Some(input_vd), output: Some(output_vd) }]
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        vec![&self.table]
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        vec![&mut self.table]
    }
}
