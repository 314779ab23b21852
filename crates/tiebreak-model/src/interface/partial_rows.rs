use std::sync::OnceLock;

use burn::tensor::{Int, Tensor, TensorData};

use super::{
    HeadConfig, HeadMode, Mode, Role, RoleAndShape, RowsWhich, Sides, Start, TableParameter, Tables, TablesGradient,
};
use crate::{ConfigError, Parameter};

pub(super) const MODE: Mode = Mode {
    keys: &["rows", "rows_which"],
    check,
    one_matrix: |head, v, _| head.rows == v,
    ..Mode::new(parameters, describe, init)
};

fn check(head: &HeadConfig, v: usize, _: usize) -> Result<(), ConfigError> {
    match head.rows <= v {
        true => Ok(()),
        false => {
            Err(ConfigError(format!("head.rows = {}: the vocabulary has {v} ids; expected at most that", head.rows)))
        }
    }
}

fn parameters(head: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    let n = head.rows;
    let all = [(Role::Shared, [n, d]), (Role::Input, [v - n, d]), (Role::Output, [v - n, d])];
    all.into_iter().filter(|(_, [rows, _])| *rows > 0).collect()
}

fn describe(head: &HeadConfig, v: usize, d: usize) -> String {
    let n = head.rows;
    if n == v {
        return format!("partial_rows: all rows of one table [{v}, {d}] serve both sides, as in tied");
    }
    let which = if head.rows_which == RowsWhich::Frequent { "most frequent" } else { "rarest" };
    format!(
        "partial_rows: the {n} {which} ids have one row for both sides [{n}, {d}], the other {} one for each side [{}, {d}]; sharing \
         saves {} parameters",
        v - n,
        v - n,
        n * d
    )
}

fn init(head: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    let ([v, d], n) = (start.shape, head.rows);
    let mut shared: Vec<u32> = match head.rows_which {
        RowsWhich::Frequent => start.by_rank[..n].to_vec(),
        RowsWhich::Rare => start.by_rank[v - n..].to_vec(),
    };
    shared.sort_unstable();
    let own = others(&shared, v);
    let part = |path: &str, table: &[f64], ids: &[u32], role: Role| {
        let values = ids.iter().flat_map(|&id| &table[id as usize * d..(id as usize + 1) * d]).copied().collect();
        (!ids.is_empty()).then(|| start.parameter(path, values, [ids.len(), d], role))
    };
    let ids: Vec<f64> = shared.iter().map(|&id| f64::from(id)).collect();
    Box::new(PartialRows {
        shared: part("table", &start.input, &shared, Role::Shared),
        input: part("input_table", &start.input, &own, Role::Input),
        output: part("output_table", &start.output, &own, Role::Output),
        // Single precision holds every id below 2^24.
        ids: Parameter::new("shared_ids".into(), ids, [1, n], false, &start.at),
        known: OnceLock::new(),
        v,
    })
}

/// The ids below `v` that are not in the ascending `ids`.
fn others(ids: &[u32], v: usize) -> Vec<u32> {
    (0..v as u32).filter(|id| ids.binary_search(id).is_err()).collect()
}

/// Rows of N ids are shared and start as in E_0; of the others each side has its own, from E_0 and U_0 (a control; we know no
/// source). N = V is `tied`, N = 0 `untied`. Which ids is decided by the training text's frequencies and kept in checkpoints.
struct PartialRows {
    shared: Option<TableParameter>,
    input: Option<TableParameter>,
    output: Option<TableParameter>,
    ids: Parameter,
    /// `ids` once they were read, for every read waits for the device.
    known: OnceLock<Vec<u32>>,
    v: usize,
}

impl PartialRows {
    fn shared_ids(&self) -> &[u32] {
        self.known.get_or_init(|| self.ids.value.to_data().iter::<f64>().map(|id| id as u32).collect())
    }
}

/// Rows of `x` in the order of `ids`.
fn rows(x: &Tensor<2>, ids: &[u32]) -> Tensor<2> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let n = ids.len();
    x.clone().select(0, Tensor::<1, Int>::from_data(TensorData::new(ids, [n]), &x.device()))
}

impl HeadMode for PartialRows {
    fn one_matrix(&self) -> bool {
        self.input.is_none()
    }

    fn tables(&self) -> Tables {
        let shared = self.shared_ids();
        let mut place = vec![0; self.v];
        for (at, id) in shared.iter().copied().chain(others(shared, self.v)).enumerate() {
            place[id as usize] = at as u32;
        }
        let side = |own: &Option<TableParameter>| {
            let parts: Vec<Tensor<2>> = self.shared.iter().chain(own).map(TableParameter::value).collect();
            if parts.len() == 1 { parts[0].clone() } else { rows(&Tensor::cat(parts, 0), &place) }
        };
        Tables::whole(side(&self.input), side(&self.output))
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        let (input_vd, output_vd) = (gradient.input.rows_vr, gradient.output.rows_vr);
        let shared = self.shared_ids();
        let own = others(shared, self.v);
        let both = self.shared.iter().map(|_| Sides::both(rows(&input_vd, shared), rows(&output_vd, shared)));
        let input = self.input.iter().map(|_| Sides::input(rows(&input_vd, &own)));
        let output = self.output.iter().map(|_| Sides::output(rows(&output_vd, &own)));
        both.chain(input).chain(output).collect()
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        self.shared.iter().chain(&self.input).chain(&self.output).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        self.shared.iter_mut().chain(&mut self.input).chain(&mut self.output).collect()
    }

    fn state(&self) -> Vec<&Parameter> {
        if self.shared.is_some() { vec![&self.ids] } else { vec![] }
    }

    fn state_mut(&mut self) -> Vec<&mut Parameter> {
        self.known = OnceLock::new();
        if self.shared.is_some() { vec![&mut self.ids] } else { vec![] }
    }
}
