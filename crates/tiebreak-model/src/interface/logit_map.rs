//! From states to logits and their loss: the output table's product, then bias and soft-cap, then softmax and z-loss.
//!
//! Soft-cap: z = c tanh(raw / c) (Gemma 2, arXiv 2408.00118, where c = 30 for the last logits). z-loss: lambda (log sum exp z)^2
//! per token (PaLM, arXiv 2204.02311).

use burn::tensor::{Int, Tensor};
use tiebreak_kernels::{LogitMap, Precision, Transposed, cross_entropy_gradients_with, cross_entropy_with, product};

use super::{HeadConfig, Table, TableGradient, Tables};
use crate::ConfigError;

impl HeadConfig {
    /// Refuses a soft-cap or z-loss that is no number from 0 up, and a soft-cap beyond which f32 loses the logits' last digits.
    pub(super) fn check_logits(&self) -> Result<(), ConfigError> {
        for (key, value, most) in [("logit_softcap", self.logit_softcap, 1e3), ("z_loss", self.z_loss, 1e6)] {
            if !(0.0..=most).contains(&value) {
                return Err(ConfigError(format!("head.{key} = {value}: expected a number from 0 (off) to {most}")));
            }
        }
        Ok(())
    }

    /// Soft-cap and z-loss, without a bias.
    pub fn logit_map(&self) -> LogitMap {
        let softcap = (self.logit_softcap > 0.0).then_some(self.logit_softcap);
        LogitMap { bias_1v: None, softcap, z_loss: self.z_loss }
    }
}

/// The head of one model at one step.
#[derive(Clone, Debug)]
pub struct Head {
    /// U, whole or in factors.
    pub table: Table,
    /// Bias, soft-cap and z-loss.
    pub map: LogitMap,
}

/// What the head gives for one micro-batch.
pub struct HeadOutput {
    /// Cross-entropy per token in nats, `[n]`, without the z-loss.
    pub nats_n: Tensor<1>,
    /// dL/dh, `[n, d]`.
    pub state_nd: Tensor<2>,
    /// dL/dU, by factor.
    pub table: TableGradient,
    /// dL/db, `[1, v]`, where there is a bias.
    pub bias_1v: Option<Tensor<2>>,
}

impl Head {
    /// The head of `tables` with their bias, its table in the form that `form` chooses.
    pub fn new(tables: &Tables, map: &LogitMap, form: impl Fn(&Table) -> Table) -> Self {
        Self { table: form(&tables.output), map: LogitMap { bias_1v: tables.bias_1v.clone(), ..map.clone() } }
    }

    fn mapped(&self, state_nd: &Tensor<2>) -> Tensor<2> {
        match &self.table.map_rd {
            None => state_nd.clone(),
            Some(map_rd) => product(state_nd, map_rd, Transposed::Second),
        }
    }

    /// Logits `[n, v]` of states `[n, d]`. Differentiable where the states are on the tape.
    pub fn logits(&self, state_nd: Tensor<2>) -> Tensor<2> {
        let taped = state_nd.is_autodiff();
        let on = |t: &Tensor<2>| match taped && !t.is_autodiff() {
            true => Tensor::from_inner(t.clone()),
            false => t.clone(),
        };
        let state_nr = match &self.table.map_rd {
            None => state_nd,
            Some(map_rd) => product(&state_nd, &on(map_rd), Transposed::Second),
        };
        self.map.apply(state_nr.matmul(on(&self.table.rows_vr).transpose()))
    }

    /// Cross-entropy per token in nats `[n]` for states `[n, d]` and targets `[n]`.
    pub fn nats(&self, state_nd: &Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy_with(self.mapped(state_nd), &self.table.rows_vr, &self.map, targets_n)
    }

    /// Nats, and the gradients of L = `scale` times the sum of nats and z-loss. `precision` is that of the products with the rows;
    /// those with a map are exact.
    pub fn gradients(
        &self,
        state_nd: Tensor<2>,
        targets_n: Tensor<1, Int>,
        scale: f64,
        precision: Precision,
    ) -> HeadOutput {
        let mapped_nr = self.mapped(&state_nd);
        let found =
            cross_entropy_gradients_with(mapped_nr, &self.table.rows_vr, &self.map, targets_n, scale, precision);
        let (nats_n, bias_1v) = (found.nats_n, found.bias_1v);
        match &self.table.map_rd {
            None => {
                let table = TableGradient { rows_vr: found.output_vd, map_rd: None };
                HeadOutput { nats_n, state_nd: found.state_nd, table, bias_1v }
            }
            Some(map_rd) => {
                let map = product(&found.state_nd, &state_nd, Transposed::First);
                let table = TableGradient { rows_vr: found.output_vd, map_rd: Some(map) };
                HeadOutput { nats_n, state_nd: product(&found.state_nd, map_rd, Transposed::Neither), table, bias_1v }
            }
        }
    }
}
