use burn::tensor::{Tensor, activation};

use super::{
    GatePer, HeadConfig, HeadMode, Mode, Role, RoleAndShape, Sides, Start, TableParameter, Tables, TablesGradient,
};
use crate::ConfigError;

pub(super) const MODE: Mode = Mode {
    keys: &["gate", "gate_per", "gate_learned"],
    check,
    one_matrix: |head, _, _| !head.gate_learned && head.gate == 1.0,
    ..Mode::new(parameters, describe, init)
};

fn check(head: &HeadConfig, _: usize, _: usize) -> Result<(), ConfigError> {
    let fail = |text: String| Err(ConfigError(text));
    if !(0.0..=1.0).contains(&head.gate) {
        return fail(format!("head.gate = {}: expected a number from 0 (untied) to 1 (tied)", head.gate));
    }
    if head.gate_learned && (head.gate == 0.0 || head.gate == 1.0) {
        return fail(format!(
            "head.gate = {} with head.gate_learned: a sigmoid never leaves 0 and 1; start between them, or fix the gate",
            head.gate
        ));
    }
    if !head.gate_learned && head.gate_per == GatePer::Row {
        return fail(
            "head.gate_per = \"row\" without head.gate_learned: equal fixed gates for all rows are one gate; set gate_learned".into(),
        );
    }
    Ok(())
}

/// Whether E reaches U, and whether there is a W.
fn parts(head: &HeadConfig) -> (bool, bool) {
    (head.gate_learned || head.gate != 0.0, head.gate_learned || head.gate != 1.0)
}

fn gates(head: &HeadConfig, v: usize) -> [usize; 2] {
    if head.gate_per == GatePer::Row { [v, 1] } else { [1, 1] }
}

fn parameters(head: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    let (shared, own) = parts(head);
    let mut all = vec![(if shared { Role::Shared } else { Role::Input }, [v, d])];
    all.extend(own.then_some((Role::Output, [v, d])));
    all.extend(head.gate_learned.then(|| (Role::Map, gates(head, v))));
    all
}

fn describe(head: &HeadConfig, v: usize, d: usize) -> String {
    if !parts(head).1 {
        return format!("dual_head: with a fixed gate of 1 one table [{v}, {d}] serves both sides, as in tied");
    }
    let g = match (head.gate_learned, head.gate_per) {
        (false, _) => format!("g = {}", head.gate),
        (true, GatePer::Model) => format!("g learned from {}", head.gate),
        (true, GatePer::Row) => format!("g learned for each of {v} rows from {}", head.gate),
    };
    format!(
        "dual_head: a table E [{v}, {d}] is looked up; logits come from g E + (1 - g) W with W [{v}, {d}] of the output side and {g}"
    )
}

fn init(head: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    let [v, _] = start.shape;
    let (shared, own) = parts(head);
    let (path, role) = if shared { ("table", Role::Shared) } else { ("input_table", Role::Input) };
    let shape = gates(head, v);
    Box::new(DualHead {
        table: start.parameter(path, start.input.clone(), start.shape, role),
        own: own.then(|| start.parameter("output_table", start.output.clone(), start.shape, Role::Output)),
        gate: head.gate_learned.then(|| {
            let logit = (head.gate / (1.0 - head.gate)).ln();
            start.undecayed("gate", vec![logit; shape[0]], shape, Role::Map)
        }),
        fixed: head.gate,
    })
}

/// U = g E + (1 - g) W, so that logits are the same mixture of a tied and an untied head. E starts as E_0, W as U_0. A learned
/// gate is the sigmoid of a parameter `gate`, `[1, 1]` or `[v, 1]`, which never decays; dL/dg = <G_out, E - W>, per row or summed.
/// A fixed gate of 1 is `tied` and has no W; with 0, `untied`, E is of the input side.
struct DualHead {
    table: TableParameter,
    own: Option<TableParameter>,
    gate: Option<TableParameter>,
    fixed: f64,
}

impl DualHead {
    fn gate(&self) -> Option<Tensor<2>> {
        self.gate.as_ref().map(|gate| activation::sigmoid(gate.value()))
    }
}

impl HeadMode for DualHead {
    fn one_matrix(&self) -> bool {
        self.own.is_none()
    }

    fn tables(&self) -> Tables {
        let input_vd = self.table.value();
        let output_vd = match (&self.own, self.gate()) {
            (None, _) => input_vd.clone(),
            (Some(own), Some(gate)) => own.value() + (input_vd.clone() - own.value()) * gate,
            (Some(own), None) if self.fixed == 0.0 => own.value(),
            (Some(own), None) => input_vd.clone().mul_scalar(self.fixed) + own.value().mul_scalar(1.0 - self.fixed),
        };
        Tables::whole(input_vd, output_vd)
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        let (input_vd, output_vd) = (gradient.input.rows_vr, gradient.output.rows_vr);
        let Some(own) = &self.own else { return vec![Sides::both(input_vd, output_vd)] };
        match (&self.gate, self.gate()) {
            (Some(parameter), Some(gate)) => {
                let through_gate_vd = output_vd.clone() * gate.clone();
                let own_vd = output_vd.clone() - through_gate_vd.clone();
                let rows_v1 = (output_vd * (self.table.value() - own.value())).sum_dim(1);
                let total = if parameter.parameter.value.dims()[0] == 1 { rows_v1.sum_dim(0) } else { rows_v1 };
                let slope = gate.clone() - gate.clone() * gate;
                vec![Sides::both(input_vd, through_gate_vd), Sides::output(own_vd), Sides::output(total * slope)]
            }
            _ if self.fixed == 0.0 => vec![Sides::input(input_vd), Sides::output(output_vd)],
            _ => vec![
                Sides::both(input_vd, output_vd.clone().mul_scalar(self.fixed)),
                Sides::output(output_vd.mul_scalar(1.0 - self.fixed)),
            ],
        }
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        std::iter::once(&self.table).chain(&self.own).chain(&self.gate).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        std::iter::once(&mut self.table).chain(&mut self.own).chain(&mut self.gate).collect()
    }
}
