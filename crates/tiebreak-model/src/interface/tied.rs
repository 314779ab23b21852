use super::{HeadConfig, HeadMode, Mode, Role, RoleAndShape, Sides, Start, TableParameter, Tables, TablesGradient};

pub(super) const MODE: Mode = Mode { one_matrix: |_, _, _| true, ..Mode::new(parameters, describe, init) };

fn parameters(_: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    vec![(Role::Shared, [v, d])]
}

fn init(_: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    Box::new(Tied { table: start.parameter("table", start.input.clone(), start.shape, Role::Shared) })
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
    pub(super) table: TableParameter,
}

impl HeadMode for Tied {
    fn one_matrix(&self) -> bool {
        true
    }

    fn tables(&self) -> Tables {
        Tables::whole(self.table.value(), self.table.value())
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        vec![Sides::both(gradient.input.rows_vr, gradient.output.rows_vr)]
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        vec![&self.table]
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        vec![&mut self.table]
    }
}
