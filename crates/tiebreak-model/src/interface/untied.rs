use burn::tensor::Tensor;

use super::{HeadConfig, HeadMode, Mode, ModeKind, Pair, Role, RoleAndShape, Sides, Start, TableParameter, table};

pub(super) const MODE: Mode = Mode { parameters, describe, init };

fn parameters(_: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    vec![(Role::Input, [v, d]), (Role::Output, [v, d])]
}

fn init(_: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    Box::new(Untied {
        input: table("input_table", start.input, start.shape, &start.at, Role::Input),
        output: table("output_table", start.output, start.shape, &start.at, Role::Output),
    })
}

fn describe(_: &HeadConfig, v: usize, d: usize) -> String {
    format!(
        "untied: an input table [{v}, {d}] is looked up, an output table of its own, transposed [{d}, {v}], turns \
             states [1, {d}] into logits [1, {v}]; tying would save {} parameters",
        v * d
    )
}

/// E = `input_table` from E_0, U = `output_table` from U_0.
pub struct Untied {
    input: TableParameter,
    output: TableParameter,
}

impl HeadMode for Untied {
    fn kind(&self) -> ModeKind {
        ModeKind::Untied
    }

    fn pair(&self) -> Pair {
        Pair { input_vd: self.input.parameter.value.clone(), output_vd: self.output.parameter.value.clone() }
    }

    fn pullback(&self, input_vd: Tensor<2>, output_vd: Tensor<2>) -> Vec<Sides> {
        vec![Sides { input: Some(input_vd), output: None }, Sides { input: None, output: Some(output_vd) }]
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        vec![&self.input, &self.output]
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        vec![&mut self.input, &mut self.output]
    }
}
