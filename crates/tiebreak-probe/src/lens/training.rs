//! Training of translators: KL(final || lens), each translator by its own loss, only A_k and b_k moving.
//!
//! The trunk runs off the tape, once per batch for all points; the head's gradients come from
//! [`tiebreak_kernels::lens_gradients`], and only the final norm lies on a tape, from the translated states on.

use std::f64::consts::LN_2;

use burn::tensor::{Int, Tensor, TensorData};
use faer::{Mat, Scale};
use serde::{Deserialize, Serialize};
use tiebreak_kernels::{
    AdamWStep, LogitHead, Pending, Precision, Reads, adamw, inject, lens_gradients, lens_kl, linear, linear_add,
    squares,
};

use super::tuned::{Translator, TunedLens};
use super::{Baselines, flat_states};
use crate::ProbedModel;
use crate::algebra::{cholesky, inverse_transpose};

/// How translators are trained and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recipe {
    /// Adam on whitened states at a fixed rate until every point's held-in KL, read with the mean translator of each
    /// `WINDOW` tokens, falls by less than `BOUND` from one window to the next; then with the rate falling linearly to 0
    /// over as many tokens again. Translator k reads point k; the last point has none.
    Converged,
    /// The paper's code, for comparison: `PAPER_STEPS` steps of SGD (Nesterov momentum 0.9, rate 0.1 falling linearly to
    /// 0, decay 1e-3) under one gradient clip of 1 over all translators together, which bounds how far they can get. Its
    /// translators are trained on their own points but point k >= 1 is read with translator k - 1, and the last point is
    /// normed twice. The paper's steps have 16 to 64 times as many tokens, and its lenses 50 to 500 of them.
    Paper,
}

/// Tokens between two looks at the held-in loss, and the window of the stopping rule.
pub const WINDOW: u64 = 65_536;

/// Relative improvement over a window below which a point counts as settled.
pub const BOUND: f64 = 0.01;

/// Tokens after which the rate falls in any case.
pub const LIMIT: u64 = 1 << 23;

/// Steps of [`Recipe::Paper`] unless tokens are given.
pub const PAPER_STEPS: u64 = 100;

/// The paper's rate, momentum, decay and clip.
const PAPER_RATE: f64 = 0.1;
const PAPER_MOMENTUM: f64 = 0.9;
const PAPER_DECAY: f64 = 1e-3;
const PAPER_CLIP: f64 = 1.0;

/// Adam's rate, in units of a whitened state's standard deviation.
const RATE: f64 = 1e-2;

/// Added to the variances before whitening, as a part of their mean.
const RIDGE: f64 = 1e-4;

impl Recipe {
    /// The second part of its tags.
    pub fn tag(self) -> &'static str {
        match self {
            Recipe::Converged => "tuned",
            Recipe::Paper => "tuned_paper",
        }
    }

    /// Tokens of a step, as near as whole windows come: many small steps get far on few tokens, and few steps need less noise.
    pub fn step_tokens(self) -> usize {
        match self {
            Recipe::Converged => 512,
            Recipe::Paper => 2048,
        }
    }

    /// Its name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Recipe::Converged => "converged",
            Recipe::Paper => "paper",
        }
    }
}

/// What a training needs.
pub struct Training<'a> {
    /// How.
    pub recipe: Recipe,
    /// About how many tokens to train on; 0: as the recipe says.
    pub tokens: u64,
    /// Tokens of a step.
    pub step_tokens: u64,
    /// The sequences `[b, t]` of a step, from 0, none of them in `check`.
    pub batch: &'a mut dyn FnMut(u64) -> Tensor<2, Int>,
    /// Sequences of the training split that are not trained on: the held-in loss, and what whitening goes by.
    pub check: &'a [Tensor<2, Int>],
    /// Asked before every step.
    pub go_on: &'a dyn Fn() -> bool,
    /// Told each point of the curve.
    pub report: &'a mut dyn FnMut(&CurvePoint),
}

/// A point of the training's curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Tokens trained on so far.
    pub tokens: u64,
    /// The optimiser's rate.
    pub rate: f64,
    /// Held-in KL(final || lens) in bits of embed, 1 .. L - 1; while the rate stands, with the window's mean translators.
    pub kl_bits: Vec<f64>,
}

/// Why a training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The stopping rule.
    Settled,
    /// The tokens that were asked for, or that the recipe has.
    Tokens,
    /// `LIMIT`, before the stopping rule held.
    Limit,
    /// The loss became no finite number.
    NotFinite,
    /// It was told not to go on.
    Interrupted,
}

/// A trained lens and what was learned on the way.
pub struct Trained {
    /// The translators.
    pub lens: TunedLens,
    /// Predictors from the final distributions of every training token.
    pub baselines: Baselines,
    /// The curve, from the untrained lens to the last.
    pub curve: Vec<CurvePoint>,
    /// Steps taken.
    pub steps: u64,
    /// Why it ended.
    pub ended: Ended,
}

/// Trains the translators of embed .. L - 1, all at once.
pub fn train(model: &dyn ProbedModel, training: Training) -> Trained {
    let mut trainer = Trainer::new(model, &training);
    let mut plan = Plan::new(&training);
    let mut curve: Vec<CurvePoint> = Vec::new();
    let ended = loop {
        let tokens = trainer.baselines.tokens;
        let over = plan.fall.is_some_and(|fall| tokens >= fall.until);
        if over || curve.last().is_none_or(|last| tokens >= last.tokens + plan.window) {
            // While the rate stands, a window's mean: a single step's translators jump about by more than the rule asks.
            let kl_bits = match plan.fall {
                None => trainer.check(&trainer.mean_translators(), training.check),
                Some(_) => trainer.check(&trainer.translators(), training.check),
            };
            trainer.points.iter_mut().for_each(|point| point.sums = None);
            curve.push(CurvePoint { tokens, rate: plan.rate(tokens), kl_bits });
            (training.report)(&curve[curve.len() - 1]);
            if curve[curve.len() - 1].kl_bits.iter().any(|kl| !kl.is_finite()) {
                break Ended::NotFinite;
            }
            if over {
                break plan.ended;
            }
            plan.look(&curve);
        }
        if !(training.go_on)() {
            break Ended::Interrupted;
        }
        let gradients = trainer.gradients((training.batch)(trainer.steps));
        trainer.steps += 1;
        match training.recipe {
            Recipe::Converged => trainer.adam(gradients, plan.rate(tokens)),
            Recipe::Paper => trainer.sgd(gradients, plan.rate(tokens)),
        }
        if plan.fall.is_none() {
            trainer.points.iter_mut().for_each(Point::remember);
        }
    };
    let lens = TunedLens { recipe: training.recipe, translators: trainer.translators() };
    Trained { lens, steps: trainer.steps, baselines: trainer.baselines, curve, ended }
}

/// From where to where, in tokens, the rate falls.
#[derive(Clone, Copy)]
struct Fall {
    from: u64,
    until: u64,
}

/// The rate over the training, and its end.
struct Plan {
    base: f64,
    fall: Option<Fall>,
    window: u64,
    ended: Ended,
}

impl Plan {
    fn new(training: &Training) -> Self {
        match (training.recipe, training.tokens) {
            (Recipe::Converged, 0) => Self { base: RATE, fall: None, window: WINDOW, ended: Ended::Settled },
            (Recipe::Converged, until) => {
                let fall = Some(Fall { from: until / 2, until });
                Self { base: RATE, fall, window: WINDOW, ended: Ended::Tokens }
            }
            (Recipe::Paper, tokens) => {
                let until = if tokens == 0 { PAPER_STEPS * training.step_tokens } else { tokens };
                let window = until.div_ceil(10);
                Self { base: PAPER_RATE, fall: Some(Fall { from: 0, until }), window, ended: Ended::Tokens }
            }
        }
    }

    fn rate(&self, tokens: u64) -> f64 {
        let left = |Fall { from, until }: Fall| until.saturating_sub(tokens) as f64 / (until - from).max(1) as f64;
        self.base * self.fall.map_or(1.0, left).min(1.0)
    }

    /// Lets the rate fall once every point has settled.
    fn look(&mut self, curve: &[CurvePoint]) {
        let [.., before, now] = curve else { return };
        let settled = |(before, now): (&f64, &f64)| before - now < BOUND * now;
        let settled = before.kl_bits.iter().zip(&now.kl_bits).all(settled);
        if self.fall.is_none() && (settled || now.tokens >= LIMIT) {
            self.fall = Some(Fall { from: now.tokens, until: 2 * now.tokens });
            self.ended = if settled { Ended::Settled } else { Ended::Limit };
        }
    }
}

/// One translator in coordinates of its own: h' = h + x M + s c with x = (h - mean) R.
struct Point {
    /// Those of whitened states; none: x = h, s = 1.
    basis: Option<Basis>,
    /// M `[d, d]` and c `[1, d]`, both without a unit.
    values: [Tensor<2>; 2],
    /// Adam's two moments, or the momentum twice.
    moments: [Option<(Tensor<2>, Tensor<2>)>; 2],
    /// Sums of the values over the steps of a window, and their number.
    sums: Option<([Tensor<2>; 2], usize)>,
}

#[derive(Clone)]
struct Basis {
    mean_1d: Tensor<2>,
    /// R.
    map_dd: Tensor<2>,
    /// s: the root of the states' mean variance.
    scale: f64,
}

impl Basis {
    /// Decorrelates states and gives every direction the standard deviation s: one rate then suits every direction and
    /// every point, where raw states would leave the weak directions to the last.
    fn whitening(spread: Spread) -> Self {
        let Spread { shift_1d, sum_1d, outer_dd, n } = spread;
        let ([_, d], at) = (shift_1d.dims(), (&shift_1d.device(), shift_1d.dtype()));
        let away_1d = sum_1d.div_scalar(n as f64);
        let covariance_dd = outer_dd.div_scalar(n as f64) - away_1d.clone().transpose().matmul(away_1d.clone());
        let covariance: Vec<f64> = covariance_dd.to_data().iter::<f64>().collect();
        let (map, scale) = whitening(&Mat::from_fn(d, d, |i, j| covariance[i * d + j]));
        let map: Vec<f64> = (0..d * d).map(|i| map[(i / d, i % d)]).collect();
        Self { map_dd: Tensor::from_data(TensorData::new(map, [d, d]), at), mean_1d: shift_1d.clone() + away_1d, scale }
    }
}

/// Sums over states less a shift near their mean, so that no digits are lost.
struct Spread {
    shift_1d: Tensor<2>,
    sum_1d: Tensor<2>,
    /// Of outer products.
    outer_dd: Tensor<2>,
    n: usize,
}

impl Spread {
    fn of(state_nd: &Tensor<2>) -> Self {
        let shift_1d = state_nd.clone().mean_dim(0);
        let ([_, d], at) = (shift_1d.dims(), (&shift_1d.device(), shift_1d.dtype()));
        let (sum_1d, outer_dd) = (Tensor::zeros([1, d], at), Tensor::zeros([d, d], at));
        Self { shift_1d: shift_1d.clone(), sum_1d, outer_dd, n: 0 }.and(state_nd)
    }

    fn and(self, state_nd: &Tensor<2>) -> Self {
        let x_nd = state_nd.clone() - self.shift_1d.clone();
        Self {
            sum_1d: self.sum_1d + x_nd.clone().sum_dim(0),
            outer_dd: self.outer_dd + x_nd.clone().transpose().matmul(x_nd.clone()),
            n: self.n + x_nd.dims()[0],
            shift_1d: self.shift_1d,
        }
    }
}

/// R with R^T C R = s^2 I but for the ridge, from a covariance C `[d, d]`, and s: with C = L L^T, R = s L^-T.
fn whitening(c: &Mat<f64>) -> (Mat<f64>, f64) {
    let d = c.nrows();
    let variance = (0..d).map(|i| c[(i, i)]).sum::<f64>() / d as f64;
    let variance = if variance > 0.0 { variance } else { 1.0 };
    // Sums in f32 may leave C with an eigenvalue further below 0 than the ridge reaches; then it takes a larger one.
    let mut ridges = (0..=8).map(|power| RIDGE * 10f64.powi(power) * variance);
    let factor = ridges.find_map(|ridge| {
        let ridged = Mat::from_fn(d, d, |i, j| c[(i, j)] + if i == j { ridge } else { 0.0 });
        cholesky(ridged).ok()
    });
    let scale = variance.sqrt();
    // There is none of what is no finite number, which the held-in loss will say.
    let map = factor.map_or_else(|| Mat::identity(d, d), |l| inverse_transpose(&l));
    (map * Scale(scale), scale)
}

impl Point {
    fn new(basis: Option<Basis>, head: &LogitHead) -> Self {
        let (table, [_, d]) = (&head.output_vd, head.output_vd.dims());
        let at = (&table.device(), table.dtype());
        Self {
            basis,
            values: [Tensor::zeros([d, d], at), Tensor::zeros([1, d], at)],
            moments: [None, None],
            sums: None,
        }
    }

    fn input(&self, state_nd: &Tensor<2>) -> Tensor<2> {
        match &self.basis {
            Some(basis) => linear(state_nd.clone() - basis.mean_1d.clone(), &basis.map_dd, Precision::F32),
            None => state_nd.clone(),
        }
    }

    fn scale(&self) -> f64 {
        self.basis.as_ref().map_or(1.0, |basis| basis.scale)
    }

    /// Adds the present values to the window's sums.
    fn remember(&mut self) {
        self.sums = Some(match self.sums.take() {
            None => (self.values.clone(), 1),
            Some(([m_dd, c_1d], n)) => ([m_dd + self.values[0].clone(), c_1d + self.values[1].clone()], n + 1),
        });
    }

    fn mean(&self) -> [Tensor<2>; 2] {
        match &self.sums {
            None => self.values.clone(),
            Some((sums, n)) => sums.clone().map(|sum| sum.div_scalar(*n as f64)),
        }
    }

    fn translator(&self) -> Translator {
        self.translator_of(self.values.clone())
    }

    fn translator_of(&self, [m_dd, c_1d]: [Tensor<2>; 2]) -> Translator {
        match &self.basis {
            None => Translator { transposed_dd: m_dd, offset_1d: c_1d },
            Some(basis) => {
                let transposed_dd = basis.map_dd.clone().matmul(m_dd);
                let offset_1d = c_1d.mul_scalar(basis.scale) - basis.mean_1d.clone().matmul(transposed_dd.clone());
                Translator { transposed_dd, offset_1d }
            }
        }
    }
}

struct Trainer<'a> {
    model: &'a dyn ProbedModel,
    head: LogitHead,
    points: Vec<Point>,
    baselines: Baselines,
    steps: u64,
}

impl<'a> Trainer<'a> {
    fn new(model: &'a dyn ProbedModel, training: &Training) -> Self {
        let head = model.head();
        let mut spreads: Vec<Option<Spread>> = (0..model.layers()).map(|_| None).collect();
        for ids_bt in training.check {
            let (_, states) = flat_states(model, ids_bt.clone());
            for (spread, state_nd) in spreads.iter_mut().zip(&states) {
                *spread = Some(match spread.take() {
                    None => Spread::of(state_nd),
                    Some(spread) => spread.and(state_nd),
                });
            }
        }
        let whiten = training.recipe == Recipe::Converged;
        let points =
            spreads.into_iter().map(|spread| Point::new(spread.filter(|_| whiten).map(Basis::whitening), &head));
        let points = points.collect();
        Self { model, points, baselines: Baselines::new(head.output_vd.dims()[0]), head, steps: 0 }
    }

    fn translators(&self) -> Vec<Translator> {
        self.points.iter().map(Point::translator).collect()
    }

    /// Of the values since the last look; of the present ones where there are none since.
    fn mean_translators(&self) -> Vec<Translator> {
        self.points.iter().map(|point| point.translator_of(point.mean())).collect()
    }

    /// Held-in KL in bits by point.
    fn check(&self, translators: &[Translator], batches: &[Tensor<2, Int>]) -> Vec<f64> {
        let (mut sums, mut tokens) = (vec![0.0; translators.len()], 0);
        for ids_bt in batches {
            let (_, states) = flat_states(self.model, ids_bt.clone());
            let final_nd = self.model.final_norm(states[translators.len()].clone());
            let translated = translators.iter().zip(&states).map(|(t, state_nd)| t.apply(state_nd.clone()));
            let normed: Vec<Tensor<2>> = translated.map(|state_nd| self.model.final_norm(state_nd)).collect();
            tokens += final_nd.dims()[0];
            let mut reads = Reads::default();
            let kl = lens_kl(&final_nd, &normed, &self.head);
            let places: Vec<Pending> = kl.into_iter().map(|kl_n| reads.values(kl_n)).collect();
            reads.execute();
            for (sum, place) in sums.iter_mut().zip(places) {
                *sum += reads.sum(place);
            }
        }
        sums.into_iter().map(|sum| sum / tokens as f64 / LN_2).collect()
    }

    /// Of each translator's mean KL over sequences `[b, t]`, in nats: gradients of M and c.
    fn gradients(&mut self, ids_bt: Tensor<2, Int>) -> Vec<[Tensor<2>; 2]> {
        let (ids_n, states) = flat_states(self.model, ids_bt);
        let v = self.head.output_vd.dims()[0];
        let ids: Vec<usize> = ids_n.to_data().iter::<i64>().map(|id| id as usize).collect();
        let final_nd = self.model.final_norm(states[self.points.len()].clone());
        let inputs: Vec<Tensor<2>> = self.points.iter().zip(&states).map(|(point, h)| point.input(h)).collect();
        let translated = self.points.iter().zip(states).zip(&inputs).map(|((point, state_nd), x_nd)| {
            let [m_dd, c_1d] = &point.values;
            let offset_1d = c_1d.clone().mul_scalar(point.scale());
            Tensor::from_inner(linear_add(state_nd, x_nd.clone(), m_dd, Precision::F32) + offset_1d).require_grad()
        });
        let translated: Vec<Tensor<2>> = translated.collect();
        let taped: Vec<Tensor<2>> = translated.iter().map(|h| self.model.final_norm(h.clone())).collect();
        let normed: Vec<Tensor<2>> = taped.iter().map(|h| h.clone().inner()).collect();
        let baselines = &mut self.baselines;
        let found = lens_gradients(&final_nd, &normed, &self.head, 1.0 / ids.len() as f64, &mut |first, p_mv| {
            baselines.see(&ids[first..first + p_mv.len() / v], p_mv)
        });
        let parts = self.points.iter().zip(inputs).zip(translated).zip(taped).zip(found);
        parts
            .map(|((((point, x_nd), translated_nd), normed_nd), found)| {
                let mut tape = inject(normed_nd, found.state_nd).backward();
                let dh_nd = translated_nd.grad_remove(&mut tape).expect("the translated state is a leaf");
                [x_nd.transpose().matmul(dh_nd.clone()), dh_nd.sum_dim(0).mul_scalar(point.scale())]
            })
            .collect()
    }

    fn adam(&mut self, gradients: Vec<[Tensor<2>; 2]>, rate: f64) {
        let step = AdamWStep { betas: [0.9, 0.99], eps: 1e-12, factor: 1.0, lr: rate, decay: 0.0, step: self.steps };
        for (point, gradients) in self.points.iter_mut().zip(gradients) {
            let state = point.values.iter_mut().zip(&mut point.moments);
            for ((value, moments), gradient) in state.zip(gradients) {
                let (moved, first, second) = adamw(value.clone(), moments.take(), gradient, step);
                *value = moved;
                *moments = Some((first, second));
            }
        }
    }

    /// PyTorch's formula: g = clipped gradient + decay p; m = momentum m + g; p -= rate (g + momentum m).
    fn sgd(&mut self, gradients: Vec<[Tensor<2>; 2]>, rate: f64) {
        let norm = squares(gradients.iter().flatten()).iter().sum::<f64>().sqrt();
        let factor = (PAPER_CLIP / (norm + 1e-6)).min(1.0);
        for (point, gradients) in self.points.iter_mut().zip(gradients) {
            let state = point.values.iter_mut().zip(&mut point.moments);
            for ((value, moments), gradient) in state.zip(gradients) {
                let gradient = gradient.mul_scalar(factor) + value.clone().mul_scalar(PAPER_DECAY);
                let momentum = match moments.take() {
                    Some((before, _)) => before.mul_scalar(PAPER_MOMENTUM) + gradient.clone(),
                    None => gradient.clone(),
                };
                *value = value.clone() - (gradient + momentum.clone().mul_scalar(PAPER_MOMENTUM)).mul_scalar(rate);
                *moments = Some((momentum.clone(), momentum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lens::tests::{distorted, draw, host, ids};
    use burn::tensor::DType;

    fn trainer(model: &dyn ProbedModel, recipe: Recipe) -> Trainer<'_> {
        let training = Training {
            recipe,
            tokens: 0,
            step_tokens: 1,
            batch: &mut |_| unreachable!("not run"),
            check: &[ids(6, 8, 40, 3)],
            go_on: &|| true,
            report: &mut |_| {},
        };
        Trainer::new(model, &training)
    }

    #[test]
    fn gradients_equal_finite_differences_of_the_held_in_loss() {
        let model = distorted(DType::F64);
        let batch = ids(2, 5, 40, 11);
        for recipe in [Recipe::Converged, Recipe::Paper] {
            let mut trainer = trainer(&model, recipe);
            for (k, point) in trainer.points.iter_mut().enumerate() {
                let values = point.values.iter().enumerate();
                let moved = values.map(|(i, value)| {
                    let [rows, columns] = value.dims();
                    draw(rows, columns, (20 + 2 * k + i) as u64, DType::F64).mul_scalar(0.2)
                });
                point.values = moved.collect::<Vec<_>>().try_into().unwrap();
            }
            let gradients = trainer.gradients(batch.clone());
            for (k, gradients) in gradients.iter().enumerate() {
                for (which, gradient) in gradients.iter().enumerate() {
                    let start = trainer.points[k].values[which].clone();
                    let ([rows, columns], gradient) = (start.dims(), host(gradient));
                    for (i, gradient) in gradient.iter().enumerate() {
                        let mut at = |by: f64| {
                            let mut values = host(&start);
                            values[i] += by;
                            let data = TensorData::new(values, [rows, columns]);
                            trainer.points[k].values[which] = Tensor::from_data(data, (&model.device(), DType::F64));
                            trainer.check(&trainer.translators(), std::slice::from_ref(&batch))[k] * LN_2
                        };
                        let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                        assert!(
                            (slope - gradient).abs() < 1e-7 * (1.0 + slope.abs()),
                            "{k} {which} {i}: {slope} {gradient}"
                        );
                    }
                    trainer.points[k].values[which] = start;
                }
            }
        }
    }

    #[test]
    fn whitened_states_have_one_variance_and_no_correlation() {
        let (n, d) = (500, 7);
        let state_nd = draw(n, d, 3, DType::F64).matmul(draw(d, d, 4, DType::F64)).add_scalar(2.0);
        let halves = state_nd.clone().chunk(2, 0);
        let basis = Basis::whitening(Spread::of(&halves[0]).and(&halves[1]));
        let x_nd = (state_nd - basis.mean_1d).matmul(basis.map_dd);
        let covariance = host(&x_nd.clone().transpose().matmul(x_nd).div_scalar(n as f64));
        for (i, c) in covariance.iter().enumerate() {
            let expected = if i % d == i / d { 1.0 } else { 0.0 };
            // The ridge takes a little from the weakest direction.
            assert!((c / basis.scale.powi(2) - expected).abs() < 0.02, "{i}: {c}");
        }
        // Constant states, and fewer states than dimensions, have a basis too.
        let (map, scale) = whitening(&Mat::zeros(2, 2));
        assert!(scale == 1.0 && map.is_all_finite());
        // An eigenvalue of -1e-3, ten ridges below 0, takes a larger ridge; what is no number has no basis but does no harm.
        let (map, _) = whitening(&Mat::from_fn(2, 2, |i, j| if i == j { 1.0 } else { 1.001 }));
        assert!(map.is_all_finite() && map.norm_max() < 1e3);
        assert_eq!(whitening(&Mat::from_fn(2, 2, |_, _| f64::NAN)).0, Mat::<f64>::identity(2, 2));
        let few = Basis::whitening(Spread::of(&draw(3, d, 5, DType::F32)));
        assert!(host(&few.map_dd).iter().all(|x| x.is_finite()));
    }

    #[test]
    fn the_paper_s_step_is_pytorch_s_nesterov_under_one_clip() {
        let model = distorted(DType::F64);
        let mut trainer = trainer(&model, Recipe::Paper);
        // Norm 5 over both translators, so the clip gives 0.6 and 0.8.
        let gradient = |value: f64| {
            let mut m = vec![0.0; 36];
            m[0] = value;
            let at = (&model.device(), DType::F64);
            [Tensor::from_data(TensorData::new(m, [6, 6]), at), Tensor::zeros([1, 6], at)]
        };
        for _ in 0..2 {
            trainer.sgd(vec![gradient(3.0), gradient(4.0)], 0.1);
        }
        // By hand: p1 = -0.19 g; g' = g + 1e-3 p1; m = 0.9 g + g'; p2 = p1 - 0.1 (g' + 0.9 m).
        let moved = |k: usize| host(&trainer.points[k].values[0])[0];
        assert!((moved(0) + 0.276_578_34).abs() < 1e-6, "{}", moved(0));
        assert!((moved(1) / moved(0) - 4.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn the_rate_falls_once_every_point_has_settled() {
        let at = |tokens: u64, kl_bits: &[f64]| CurvePoint { tokens, rate: 0.0, kl_bits: kl_bits.to_vec() };
        let plan = |tokens: u64| {
            let (recipe, step_tokens) = (Recipe::Converged, 64);
            Plan::new(&Training {
                recipe,
                tokens,
                step_tokens,
                batch: &mut |_| unreachable!("not run"),
                check: &[],
                go_on: &|| true,
                report: &mut |_| {},
            })
        };
        let mut rule = plan(0);
        for curve in [&[at(0, &[9.0, 9.0])][..], &[at(0, &[9.0, 1.0]), at(100, &[1.0, 1.0])]] {
            rule.look(curve);
            assert!(rule.fall.is_none() && rule.rate(100) == RATE, "one point still falls");
        }
        rule.look(&[at(0, &[1.0, 1.0]), at(100, &[1.0 / 1.009, 1.1])]);
        assert_eq!((rule.rate(100), rule.rate(150), rule.rate(200)), (RATE, RATE / 2.0, 0.0));
        assert_eq!(rule.ended, Ended::Settled);
        let mut endless = plan(0);
        endless.look(&[at(0, &[2.0]), at(LIMIT, &[1.0])]);
        assert!(endless.fall.is_some() && endless.ended == Ended::Limit);
        let given = plan(200);
        assert_eq!((given.rate(100), given.rate(150), given.rate(200)), (RATE, RATE / 2.0, 0.0));
    }
}
