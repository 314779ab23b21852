use super::{
    Cost, HeadConfig, HeadMode, Mode, OutputFactor, Role, RoleAndShape, Sides, Start, Table, TableParameter, Tables,
    TablesGradient,
};
use crate::ConfigError;
use crate::rng::Stream;

pub(super) const MODE: Mode = Mode {
    keys: &["rank", "output_factor"],
    check,
    cost: |head, v, d| Cost { per_token: v * head.rank + 2 * head.rank * d, per_step: 0 },
    factors: true,
    one_matrix: |head, _, _| head.output_factor == OutputFactor::Shared,
    ..Mode::new(parameters, describe, init)
};

fn check(head: &HeadConfig, _: usize, d: usize) -> Result<(), ConfigError> {
    match (1..=d).contains(&head.rank) {
        true => Ok(()),
        false => Err(ConfigError(format!("head.rank = {}: expected 1 to model.d_model = {d}", head.rank))),
    }
}

fn parameters(head: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    let r = head.rank;
    let rows = (Role::Shared, [v, r]);
    match head.output_factor {
        OutputFactor::Shared => vec![rows, (Role::Shared, [r, d])],
        OutputFactor::Own => vec![rows, (Role::Input, [r, d]), (Role::Output, [r, d])],
    }
}

fn describe(head: &HeadConfig, v: usize, d: usize) -> String {
    let r = head.rank;
    let right = match head.output_factor {
        OutputFactor::Shared => format!("and one factor [{r}, {d}]"),
        OutputFactor::Own => format!("while each side has a factor [{r}, {d}] of its own"),
    };
    format!("factorised: both sides share rows [{v}, {r}] {right}; the tables [{v}, {d}] are their products")
}

fn init(head: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    let ([v, d], r) = (start.shape, head.rank);
    let rows = start.input.chunks_exact(d).flat_map(|row| &row[..r]).copied().collect();
    let factor = |path: &str, role: Role| {
        let values = Stream::new(start.seed, path).normals(r * d, 1.0 / (r as f64).sqrt(), None);
        start.parameter(path, values, [r, d], role)
    };
    let (input, output) = match head.output_factor {
        OutputFactor::Shared => (factor("input_factor", Role::Shared), None),
        OutputFactor::Own => (factor("input_factor", Role::Input), Some(factor("output_factor", Role::Output))),
    };
    Box::new(Factorised { rows: start.parameter("table", rows, [v, r], Role::Shared), input, output })
}

/// E = A B and U = A B or A C (ALBERT, arXiv 1909.11942): A `[v, r]` from the first columns of E_0, B and C `[r, d]` normal with
/// variance 1 / r, so that rows of E start as long as those of `tied`. Lookup and head use the factors.
struct Factorised {
    rows: TableParameter,
    input: TableParameter,
    output: Option<TableParameter>,
}

impl HeadMode for Factorised {
    fn one_matrix(&self) -> bool {
        self.output.is_none()
    }

    fn tables(&self) -> Tables {
        let side = |factor: &TableParameter| Table::factors(self.rows.value(), factor.value());
        Tables { input: side(&self.input), output: side(self.output.as_ref().unwrap_or(&self.input)), bias_1v: None }
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        let rows = Sides::both(gradient.input.rows_vr, gradient.output.rows_vr);
        let maps = [gradient.input.map_rd, gradient.output.map_rd].map(|g| g.expect("handed out in factors"));
        let [input_rd, output_rd] = maps;
        match self.output {
            None => vec![rows, Sides::both(input_rd, output_rd)],
            Some(_) => vec![rows, Sides::input(input_rd), Sides::output(output_rd)],
        }
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        [&self.rows, &self.input].into_iter().chain(&self.output).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        [&mut self.rows, &mut self.input].into_iter().chain(&mut self.output).collect()
    }
}
