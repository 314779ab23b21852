use super::tied::Tied;
use super::untied::{self, Untied};
use super::{HeadConfig, HeadMode, Mode, Role, Sides, Start, Successor, TableParameter, Tables, TablesGradient};
use crate::ConfigError;

pub(super) const MODE: Mode = Mode {
    keys: &["untie_at"],
    check,
    first_role: |head| (head.untie_at > 0.0).then_some(Role::Shared),
    ..Mode::new(untied::parameters, describe, init)
};

fn check(head: &HeadConfig, _: usize, _: usize) -> Result<(), ConfigError> {
    let at = head.untie_at;
    if (0.0..1.0).contains(&at) || ((1.0..=1e12).contains(&at) && at.fract() == 0.0) {
        return Ok(());
    }
    Err(ConfigError(format!(
        "head.untie_at = {at}: expected a whole number of steps, or a fraction of them from 0 to below 1"
    )))
}

fn init(head: &HeadConfig, start: Start) -> Box<dyn HeadMode> {
    let table = start.parameter("table", start.input.clone(), start.shape, Role::Shared);
    Box::new(TieThenUntie { untie_at: head.untie_at as u64, now: Box::new(Tied { table }) })
}

fn describe(head: &HeadConfig, v: usize, d: usize) -> String {
    let when = if head.untie_at == 0.0 || head.untie_at >= 1.0 {
        format!("step {}", head.untie_at)
    } else {
        format!("{:.1} % of the steps", 100.0 * head.untie_at)
    };
    format!(
        "tie_then_untie: up to {when} one table [{v}, {d}] serves both sides; then the output side starts from a copy of it, with \
         its moments, and each side has [{v}, {d}] of its own ({} parameters more)",
        v * d
    )
}

/// [`Tied`] until `untie_at` updates are complete, then [`Untied`] whose two tables and moments start as copies (modded-nanogpt,
/// pull request 178). An `untie_at` beyond the last step is `tied`.
struct TieThenUntie {
    untie_at: u64,
    now: Box<dyn HeadMode>,
}

impl HeadMode for TieThenUntie {
    fn one_matrix(&self) -> bool {
        self.now.one_matrix()
    }

    fn tables(&self) -> Tables {
        self.now.tables()
    }

    fn pullback(&self, gradient: TablesGradient) -> Vec<Sides> {
        self.now.pullback(gradient)
    }

    fn parameters(&self) -> Vec<&TableParameter> {
        self.now.parameters()
    }

    fn parameters_mut(&mut self) -> Vec<&mut TableParameter> {
        self.now.parameters_mut()
    }

    fn after_step(&mut self, step: u64) -> Vec<Successor> {
        if step < self.untie_at || !self.now.one_matrix() {
            return vec![];
        }
        let part = |path: &str, role: Role| {
            let mut part = self.now.parameters()[0].clone();
            (part.parameter.path, part.role) = (path.into(), role);
            part
        };
        let (input, output) = (part("input_table", Role::Input), part("output_table", Role::Output));
        self.now = Box::new(Untied { input, output });
        vec![Successor { from: "table", to: "input_table" }, Successor { from: "table", to: "output_table" }]
    }
}
