//! Means of readings over held-out tokens.

use std::f64::consts::LN_2;

use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{Lens, Predictors, Reading, TunedLens, points, read_beside};
use crate::ProbedModel;

/// Means over tokens of what one point, or a predictor, says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// KL(final || lens), bits.
    pub kl_bits: f64,
    /// The same over that of the constant predictor, on the same tokens; none where that is 0.
    pub kl_fraction: Option<f64>,
    /// Share of tokens with the final distribution's top id.
    pub top1_agreement: f64,
    /// Share of tokens whose top id is the next token.
    pub accuracy: f64,
    /// -ln probability of the next token, nats.
    pub ce_nats: f64,
    /// Probability of the current token.
    pub p_input: f64,
}

impl Summary {
    /// Names, as in tags, and values.
    pub fn values(&self) -> Vec<(&'static str, f64)> {
        let all = [
            ("kl_bits", Some(self.kl_bits)),
            ("kl_fraction", self.kl_fraction),
            ("top1_agreement", Some(self.top1_agreement)),
            ("accuracy", Some(self.accuracy)),
            ("ce_nats", Some(self.ce_nats)),
            ("p_input", Some(self.p_input)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// What both lenses say at one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointSummary {
    /// `embed`, `1` .. `L`.
    pub point: String,
    /// The logit lens.
    pub logit: Summary,
    /// The tuned lens.
    pub tuned: Summary,
}

/// Everything read on held-out text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Tokens read; all means are over them.
    pub tokens: usize,
    /// embed, 1 .. L.
    pub points: Vec<PointSummary>,
    /// The mean final distribution of the lens's training tokens.
    pub constant: Summary,
    /// The same by current token; none for large vocabularies.
    pub bigram: Option<Summary>,
}

/// Running sums over tokens, in f64 and in order.
#[derive(Clone, Default)]
struct Sums {
    tokens: usize,
    kl: f64,
    agree: usize,
    correct: usize,
    nats: f64,
    p_input: f64,
}

impl Sums {
    fn add(&mut self, reading: &Reading, target: usize) {
        self.tokens += 1;
        self.kl += f64::from(reading.kl_nats);
        self.agree += usize::from(reading.rank == 1);
        self.correct += usize::from(reading.top == target);
        self.nats += reading.nats.map_or(f64::NAN, f64::from);
        self.p_input += f64::from(reading.p_input);
    }

    fn mean(&self, constant_kl: f64) -> Summary {
        let mean = |sum: f64| sum / self.tokens as f64;
        Summary {
            kl_bits: mean(self.kl) / LN_2,
            kl_fraction: (constant_kl > 0.0).then(|| self.kl / constant_kl),
            top1_agreement: mean(self.agree as f64),
            accuracy: mean(self.correct as f64),
            ce_nats: mean(self.nats),
            p_input: mean(self.p_input),
        }
    }
}

/// Reads both lenses and the predictors on batches of ids `[b, t]` and their next tokens `[b, t]`. `None` if `go_on` says
/// no before a batch.
pub fn held_out(
    model: &dyn ProbedModel,
    lens: &TunedLens,
    predictors: &Predictors,
    batches: impl Iterator<Item = [Tensor<2, Int>; 2]>,
    go_on: &dyn Fn() -> bool,
) -> Option<HeldOut> {
    let lenses = [Lens::Logit, Lens::Tuned(lens)];
    let n_points = model.layers() + 1;
    let mut sums: Vec<Sums> = Vec::new();
    for [ids_bt, targets_bt] in batches {
        if !go_on() {
            return None;
        }
        let [b, t] = targets_bt.dims();
        let targets_n = targets_bt.reshape([b * t]);
        let targets: Vec<usize> = targets_n.to_data().iter::<i64>().map(|id| id as usize).collect();
        let read = read_beside(model, &lenses, Some(predictors), ids_bt, Some(&targets_n));
        sums.resize(read.len(), Sums::default());
        for (sums, readings) in sums.iter_mut().zip(read) {
            readings.iter().zip(&targets).for_each(|(reading, target)| sums.add(reading, *target));
        }
    }
    let constant_kl = sums[2 * n_points].kl;
    let mean = |at: usize| sums[at].mean(constant_kl);
    let points = points(model.layers()).into_iter().enumerate();
    Some(HeldOut {
        tokens: sums[0].tokens,
        points: points.map(|(k, point)| PointSummary { point, logit: mean(k), tuned: mean(n_points + k) }).collect(),
        constant: mean(2 * n_points),
        bigram: (sums.len() > 2 * n_points + 1).then(|| mean(2 * n_points + 1)),
    })
}
