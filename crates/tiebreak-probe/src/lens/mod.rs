//! Lenses: what every point of the residual stream knows of the final prediction, read through the model's own final norm,
//! table, bias and logit map.
//!
//! The logit lens reads the state as it is (nostalgebraist, 2020). The tuned lens translates it first, h' = h + A_k h + b_k
//! with its own A_k and b_k for each point k below the last (Belrose et al., arXiv 2303.08112). The last point is the final
//! state: it has no translator, and its divergence is 0.

mod baseline;
mod logit;
mod summary;
#[cfg(test)]
mod tests;
mod training;
mod tuned;

pub use baseline::{Baselines, Predictors};
pub use logit::logit_lens;
pub use summary::{HeldOut, PointSummary, Summary, held_out};
pub use tiebreak_kernels::Reading;
pub use training::{CurvePoint, Ended, Recipe, Trained, Training, train};
pub use tuned::{Translator, TunedLens};

use burn::tensor::{Int, Tensor};
use tiebreak_kernels::{Source, readings};

use crate::ProbedModel;

/// Names of the L + 1 points, as tags and tables have them: `embed`, `1` .. `L`.
pub fn points(layers: usize) -> Vec<String> {
    (0..=layers).map(|k| if k == 0 { "embed".into() } else { k.to_string() }).collect()
}

/// How states are read.
#[derive(Clone, Copy, Debug)]
pub enum Lens<'a> {
    /// As they are.
    Logit,
    /// Translated.
    Tuned(&'a TunedLens),
}

impl Lens<'_> {
    fn normed(&self, model: &dyn ProbedModel, point: usize, state_nd: &Tensor<2>) -> Tensor<2> {
        model.final_norm(match self {
            Lens::Logit => state_nd.clone(),
            Lens::Tuned(lens) => lens.apply(model, point, state_nd.clone()),
        })
    }
}

/// Readings of ids `[b, t]` for each lens, by point (L + 1 of them), then by token (b t of them, row by row).
pub fn read(model: &dyn ProbedModel, lenses: &[Lens], ids_bt: Tensor<2, Int>) -> Vec<Vec<Vec<Reading>>> {
    let mut found = read_beside(model, lenses, None, ids_bt, None).into_iter();
    lenses.iter().map(|_| found.by_ref().take(model.layers() + 1).collect()).collect()
}

/// The same in one list, lens after lens, then the predictors; with the next tokens `[n]` where they are known.
fn read_beside(
    model: &dyn ProbedModel,
    lenses: &[Lens],
    predictors: Option<&Predictors>,
    ids_bt: Tensor<2, Int>,
    targets_n: Option<&Tensor<1, Int>>,
) -> Vec<Vec<Reading>> {
    let (inputs_n, states) = flat_states(model, ids_bt);
    let final_nd = model.final_norm(states[states.len() - 1].clone());
    let normed = lenses.iter().flat_map(|lens| {
        states.iter().enumerate().map(|(point, state_nd)| Source::States(lens.normed(model, point, state_nd)))
    });
    let predicted = predictors.map(|predictors| predictors.sources(&inputs_n)).unwrap_or_default();
    let sources: Vec<Source> = normed.chain(predicted).collect();
    readings(&final_nd, &sources, &model.head(), &inputs_n, targets_n)
}

/// Ids `[n]` and states `[n, d]` of sequences `[b, t]`.
pub(crate) fn flat_states(model: &dyn ProbedModel, ids_bt: Tensor<2, Int>) -> (Tensor<1, Int>, Vec<Tensor<2>>) {
    let [b, t] = ids_bt.dims();
    let flat = |state_btd: Tensor<3>| {
        let [.., d] = state_btd.dims();
        state_btd.reshape([b * t, d])
    };
    (ids_bt.clone().reshape([b * t]), model.states(ids_bt).into_iter().map(flat).collect())
}
