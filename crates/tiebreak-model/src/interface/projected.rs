use burn::tensor::Tensor;

use super::{
    Cost, HeadConfig, HeadMode, Mode, Role, RoleAndShape, Sides, Start, Table, TableParameter, Tables, TablesGradient,
};

pub(super) const MODE: Mode = Mode {
    cost: |_, v, d| Cost { per_token: v * d + d * d, per_step: 0 },
    factors: true,
    ..Mode::new(parameters, describe, init)
};

fn parameters(_: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    vec![(Role::Shared, [v, d]), (Role::Map, [d, d])]
}

fn describe(_: &HeadConfig, v: usize, d: usize) -> String {
    format!(
        "projected: one table [{v}, {d}] is looked up; for the logits it is turned by a matrix [{d}, {d}] that starts as the identity; \
         sharing saves {} parameters",
        (v * d).saturating_sub(d * d)
    )
}

fn init(_: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    let [_, d] = start.shape;
    Box::new(Projected {
        table: start.parameter("table", start.input.clone(), start.shape, Role::Shared),
        map: start.parameter("projection", vec![0.0; d * d], [d, d], Role::Map),
    })
}

/// U = E P with P = I + D (after the projection regularisation of Press & Wolf, arXiv 1608.05859, section 3): `table` is E from E_0,
/// `projection` is D from 0. They penalise the length of P, which draws it to 0; ours is weight decay of D, which draws P to the
/// identity. Logits are h P^T E^T.
struct Projected {
    table: TableParameter,
    map: TableParameter,
}

impl HeadMode for Projected {
    fn tables(&self) -> Tables {
        let change_dd = self.map.value();
        let [d, _] = change_dd.dims();
        let eye_dd = Tensor::<2>::eye(d, &change_dd.device()).cast(change_dd.dtype());
        let output = Table::factors(self.table.value(), change_dd + eye_dd);
        Tables { input: Table::whole(self.table.value()), output, bias_1v: None }
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        let map_dd = gradient.output.map_rd.expect("handed out in factors");
        vec![Sides::both(gradient.input.rows_vr, gradient.output.rows_vr), Sides::output(map_dd)]
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        vec![&self.table, &self.map]
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        vec![&mut self.table, &mut self.map]
    }
}
