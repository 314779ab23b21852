use super::{HeadConfig, HeadMode, Mode, Role, RoleAndShape, Sides, Start, TableParameter, Tables, TablesGradient};

pub(super) const MODE: Mode = Mode { one_matrix: |_, _, _| true, ..Mode::new(parameters, describe, init) };

fn parameters(_: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    vec![(Role::Shared, [v, d]), (Role::Output, [1, v])]
}

fn describe(_: &HeadConfig, v: usize, d: usize) -> String {
    format!(
        "tied_bias: one table [{v}, {d}] is looked up and, transposed, turns states into logits, to which the output side adds a bias \
         [1, {v}]; sharing saves {} parameters",
        v * d
    )
}

fn init(_: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    let [v, _] = start.shape;
    Box::new(TiedBias {
        table: start.parameter("table", start.input.clone(), start.shape, Role::Shared),
        bias: start.undecayed("bias", vec![0.0; v], [1, v], Role::Output),
    })
}

/// U = E and logits h E^T + b: `table` from E_0, `bias` from 0, which never decays.
struct TiedBias {
    table: TableParameter,
    bias: TableParameter,
}

impl HeadMode for TiedBias {
    fn one_matrix(&self) -> bool {
        true
    }

    fn tables(&self) -> Tables {
        Tables { bias_1v: Some(self.bias.value()), ..Tables::whole(self.table.value(), self.table.value()) }
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        let bias_1v = gradient.bias_1v.expect("a head with a bias gives its gradient");
        vec![Sides::both(gradient.input.rows_vr, gradient.output.rows_vr), Sides::output(bias_1v)]
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        vec![&self.table, &self.bias]
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        vec![&mut self.table, &mut self.bias]
    }
}
