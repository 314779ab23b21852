use burn::tensor::Tensor;
use tiebreak_kernels::packed;

use super::{HeadConfig, HeadMode, Mode, Role, RoleAndShape, Sides, Start, TableParameter, Tables, TablesGradient};
use crate::ConfigError;

pub(super) const MODE: Mode = Mode {
    keys: &["shared_width"],
    check,
    one_matrix: |head, _, d| head.shared_width == d,
    ..Mode::new(parameters, describe, init)
};

fn check(head: &HeadConfig, _: usize, d: usize) -> Result<(), ConfigError> {
    match head.shared_width <= d {
        true => Ok(()),
        false => {
            Err(ConfigError(format!("head.shared_width = {}: expected at most model.d_model = {d}", head.shared_width)))
        }
    }
}

fn parameters(head: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    let k = head.shared_width;
    let all = [(Role::Shared, [v, k]), (Role::Input, [v, d - k]), (Role::Output, [v, d - k])];
    all.into_iter().filter(|(_, [_, width])| *width > 0).collect()
}

fn describe(head: &HeadConfig, v: usize, d: usize) -> String {
    let k = head.shared_width;
    if k == d {
        return format!("partial: all columns of one table [{v}, {d}] serve both sides, as in tied");
    }
    format!(
        "partial: the first {k} columns [{v}, {k}] are looked up and multiplied with; of the other {} each side has its own \
         [{v}, {}]; sharing saves {} parameters",
        d - k,
        d - k,
        v * k
    )
}

fn init(head: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    let ([v, d], k) = (start.shape, head.shared_width);
    let part = |path: &str, table: &[f64], from: usize, to: usize, role: Role| {
        let values = table.chunks_exact(d).flat_map(|row| &row[from..to]).copied().collect();
        (to > from).then(|| start.parameter(path, values, [v, to - from], role))
    };
    Box::new(Partial {
        shared: part("table", &start.input, 0, k, Role::Shared),
        input: part("input_table", &start.input, k, d, Role::Input),
        output: part("output_table", &start.output, k, d, Role::Output),
    })
}

/// E = [S | P_in], U = [S | P_out]: S `[v, k]` from E_0, P_in and P_out `[v, d - k]` from E_0 and U_0 (after the shared-private
/// embeddings of Liu et al., arXiv 1906.03100). A part of width 0 is no parameter; k = d is `tied`, k = 0 `untied`.
struct Partial {
    shared: Option<TableParameter>,
    input: Option<TableParameter>,
    output: Option<TableParameter>,
}

impl HeadMode for Partial {
    fn one_matrix(&self) -> bool {
        self.input.is_none()
    }

    fn tables(&self) -> Tables {
        let side = |own: &Option<TableParameter>| {
            let parts: Vec<Tensor<2>> = self.shared.iter().chain(own).map(TableParameter::value).collect();
            if parts.len() == 1 { parts[0].clone() } else { Tensor::cat(parts, 1) }
        };
        Tables::whole(side(&self.input), side(&self.output))
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        let (input_vd, output_vd) = (gradient.input.rows_vr, gradient.output.rows_vr);
        let [v, d] = input_vd.dims();
        let k = self.shared.as_ref().map_or(0, |s| s.parameter.value.dims()[1]);
        let columns = |g: &Tensor<2>, from: usize, to: usize| packed(g.clone().slice([0..v, from..to]));
        let shared = self.shared.iter().map(|_| Sides::both(columns(&input_vd, 0, k), columns(&output_vd, 0, k)));
        let input = self.input.iter().map(|_| Sides::input(columns(&input_vd, k, d)));
        let output = self.output.iter().map(|_| Sides::output(columns(&output_vd, k, d)));
        shared.chain(input).chain(output).collect()
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        self.shared.iter().chain(&self.input).chain(&self.output).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        self.shared.iter_mut().chain(&mut self.input).chain(&mut self.output).collect()
    }
}
