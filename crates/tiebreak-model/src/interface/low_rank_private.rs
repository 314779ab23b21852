use burn::tensor::Tensor;
use tiebreak_kernels::{Transposed, product};

use super::{
    Cost, HeadConfig, HeadMode, Mode, Role, RoleAndShape, Sides, Start, TableParameter, Tables, TablesGradient,
};
use crate::ConfigError;
use crate::rng::Stream;

pub(super) const MODE: Mode = Mode {
    keys: &["rank"],
    check,
    // Each side's product, once forward and twice backward.
    cost: |head, v, d| Cost { per_token: v * d, per_step: 2 * 3 * v * head.rank * d },
    one_matrix: |head, _, _| head.rank == 0,
    ..Mode::new(parameters, describe, init)
};

fn check(head: &HeadConfig, _: usize, d: usize) -> Result<(), ConfigError> {
    match head.rank <= d {
        true => Ok(()),
        false => Err(ConfigError(format!("head.rank = {}: expected at most model.d_model = {d}", head.rank))),
    }
}

fn parameters(head: &HeadConfig, v: usize, d: usize) -> Vec<RoleAndShape> {
    let r = head.rank;
    let own = |role: Role| [(role, [v, r]), (role, [r, d])];
    let own = [own(Role::Input), own(Role::Output)].concat();
    std::iter::once((Role::Shared, [v, d])).chain(own.into_iter().filter(|_| r > 0)).collect()
}

fn describe(head: &HeadConfig, v: usize, d: usize) -> String {
    let r = head.rank;
    if r == 0 {
        return format!("low_rank_private: with rank 0 one table [{v}, {d}] serves both sides, as in tied");
    }
    format!(
        "low_rank_private: both sides share a table [{v}, {d}], to which each adds a product [{v}, {r}] [{r}, {d}] of its own that \
         starts at 0"
    )
}

fn init(head: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    let ([v, d], r) = (start.shape, head.rank);
    let own = |side: &str, role: Role| {
        (r > 0).then(|| {
            let right = Stream::new(start.seed, &format!("{side}_right")).normals(r * d, 1.0 / (d as f64).sqrt(), None);
            Factors {
                left: start.parameter(&format!("{side}_left"), vec![0.0; v * r], [v, r], role),
                right: start.parameter(&format!("{side}_right"), right, [r, d], role),
            }
        })
    };
    Box::new(LowRankPrivate {
        input: own("input", Role::Input),
        output: own("output", Role::Output),
        shared: start.parameter("table", start.input.clone(), start.shape, Role::Shared),
    })
}

/// A `[v, r]` from 0 and B `[r, d]` normal with variance 1 / d.
struct Factors {
    left: TableParameter,
    right: TableParameter,
}

/// E = S + A_in B_in, U = S + A_out B_out, S from E_0 (the form of LoRA, arXiv 2106.09685; for a shared table we know no source).
/// Rank 0 is `tied`. Formed once a step: at usual sizes that costs less than carrying r more columns through the head.
struct LowRankPrivate {
    shared: TableParameter,
    input: Option<Factors>,
    output: Option<Factors>,
}

impl HeadMode for LowRankPrivate {
    fn one_matrix(&self) -> bool {
        self.input.is_none()
    }

    fn tables(&self) -> Tables {
        let side = |own: &Option<Factors>| match own {
            None => self.shared.value(),
            Some(Factors { left, right }) => {
                self.shared.value() + product(&left.parameter.value, &right.parameter.value, Transposed::Neither)
            }
        };
        Tables::whole(side(&self.input), side(&self.output))
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        let (input_vd, output_vd) = (gradient.input.rows_vr, gradient.output.rows_vr);
        let own = |own: &Option<Factors>, g_vd: &Tensor<2>, side: fn(Tensor<2>) -> Sides| {
            let parts = own.iter().flat_map(|Factors { left, right }| {
                let left_vr = product(g_vd, &right.parameter.value, Transposed::Second);
                let right_rd = product(&left.parameter.value, g_vd, Transposed::First);
                [side(left_vr), side(right_rd)]
            });
            parts.collect::<Vec<_>>()
        };
        let private =
            [own(&self.input, &input_vd, Sides::input), own(&self.output, &output_vd, Sides::output)].concat();
        std::iter::once(Sides::both(input_vd, output_vd)).chain(private).collect()
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        let own = self.input.iter().chain(&self.output).flat_map(|f| [&f.left, &f.right]);
        std::iter::once(&self.shared).chain(own).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        let own = self.input.iter_mut().chain(&mut self.output).flat_map(|f| [&mut f.left, &mut f.right]);
        std::iter::once(&mut self.shared).chain(own).collect()
    }
}
