use super::{HeadConfig, HeadMode, Mode, Role, RoleAndShape, Sides, Start, TableParameter, Tables, TablesGradient};

pub(super) const MODE: Mode = Mode::new(parameters, describe, init);

pub(super) fn parameters(_: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    vec![(Role::Input, [v, d]), (Role::Output, [v, d])]
}

fn init(_: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    Box::new(Untied {
        input: start.parameter("input_table", start.input.clone(), start.shape, Role::Input),
        output: start.parameter("output_table", start.output.clone(), start.shape, Role::Output),
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
    pub(super) input: TableParameter,
    pub(super) output: TableParameter,
}

impl HeadMode for Untied {
    fn tables(&self) -> Tables {
        Tables::whole(self.input.value(), self.output.value())
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        vec![Sides::input(gradient.input.rows_vr), Sides::output(gradient.output.rows_vr)]
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        vec![&self.input, &self.output]
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        vec![&mut self.input, &mut self.output]
    }
}
