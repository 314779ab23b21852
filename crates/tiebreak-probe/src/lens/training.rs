//! Training of translators against the final distribution.

use burn::tensor::{Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use tiebreak_kernels::{AdamWStep, LogitHead, adamw, inject, lens_gradients, lens_kl};

use super::baseline::Baselines;
use super::flat_states;
use super::tuned::{Translator, TunedLens};
use crate::ProbedModel;

/// How translators are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recipe {
    /// To the optimum.
    Converged,
    /// Paper.
    Paper,
}

/// One.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Tokens.
    pub tokens: u64,
    /// lr.
    pub lr: f64,
    /// Check.
    pub kl_bits: Vec<f64>,
}

/// Ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// Converged.
    Converged,
}

/// Trained.
pub struct Trained {
    /// Lens.
    pub lens: TunedLens,
    /// Curve.
    pub curve: Vec<CurvePoint>,
    /// Baselines.
    pub baselines: Baselines,
}

/// Training.
pub struct Training<'a> {
    /// Batches.
    pub batch: &'a mut dyn FnMut(u64) -> Tensor<2, Int>,
    /// Check.
    pub check: Vec<Tensor<2, Int>>,
}

fn env(name: &str, default: f64) -> f64 {
    std::env::var(name).ok().map_or(default, |v| v.parse().unwrap())
}

struct Point {
    mean_1d: Tensor<2>,
    r_dd: Tensor<2>,
    m_dd: Tensor<2>,
    c_1d: Tensor<2>,
    moments: [Option<(Tensor<2>, Tensor<2>)>; 2],
}

impl Point {
    fn white(&self, h: &Tensor<2>) -> Tensor<2> {
        (h.clone() - self.mean_1d.clone()).matmul(self.r_dd.clone())
    }
    fn translator(&self) -> Translator {
        let transposed_dd = self.r_dd.clone().matmul(self.m_dd.clone());
        let offset_1d = self.c_1d.clone() - self.mean_1d.clone().matmul(transposed_dd.clone());
        Translator { transposed_dd, offset_1d }
    }
}

fn host(t: &Tensor<2>) -> Vec<f64> {
    t.to_data().iter::<f64>().collect()
}

fn point(h: &Tensor<2>, whiten: bool) -> Point {
    let [n, d] = h.dims();
    let device = h.device();
    let mean_1d = h.clone().mean_dim(0);
    let x = h.clone() - mean_1d.clone();
    let mut c = host(&x.clone().transpose().matmul(x).div_scalar(n as f64));
    let trace: f64 = (0..d).map(|i| c[i * d + i]).sum::<f64>() / d as f64;
    let scale = trace.sqrt();
    let ridge = env("RIDGE", 1e-4) * trace;
    for i in 0..d {
        c[i * d + i] += ridge;
    }
    // cholesky c = l l^T
    let mut l = vec![0.0; d * d];
    for i in 0..d {
        for j in 0..=i {
            let s: f64 = (0..j).map(|k| l[i * d + k] * l[j * d + k]).sum();
            l[i * d + j] = if i == j { (c[i * d + i] - s).sqrt() } else { (c[i * d + j] - s) / l[j * d + j] };
        }
    }
    // r = l^-T scaled: solve L y = e_j
    let mut r = vec![0.0; d * d];
    for j in 0..d {
        let mut y = vec![0.0; d];
        for i in j..d {
            let s: f64 = (j..i).map(|k| l[i * d + k] * y[k]).sum();
            y[i] = (if i == j { 1.0 } else { 0.0 } - s) / l[i * d + i];
        }
        // L^-1 column j = y; r = (L^-1)^T: r[j][i] = y[i]
        for i in 0..d {
            r[j * d + i] = y[i] * scale;
        }
    }
    if !whiten {
        r = vec![0.0; d * d];
        for i in 0..d {
            r[i * d + i] = 1.0;
        }
    }
    let mean_1d = if whiten { mean_1d } else { mean_1d.zeros_like() };
    Point {
        mean_1d,
        r_dd: Tensor::from_data(TensorData::new(r, [d, d]).convert::<f32>(), &device),
        m_dd: Tensor::zeros([d, d], &device),
        c_1d: Tensor::zeros([1, d], &device),
        moments: [None, None],
    }
}

fn check(
    model: &dyn ProbedModel,
    head: &LogitHead,
    translators: &[Translator],
    batches: &[Tensor<2, Int>],
) -> Vec<f64> {
    let mut sums = vec![0.0; translators.len()];
    let mut tokens = 0;
    for ids in batches {
        let (_, states) = flat_states(model, ids.clone());
        let final_nd = model.final_norm(states[states.len() - 1].clone());
        let lenses: Vec<_> =
            translators.iter().zip(&states).map(|(t, s)| model.final_norm(t.apply(s.clone()))).collect();
        tokens += final_nd.dims()[0];
        for (sum, kl) in sums.iter_mut().zip(lens_kl(&final_nd, &lenses, head)) {
            *sum += kl.to_data().iter::<f64>().sum::<f64>();
        }
    }
    sums.iter().map(|s| s / tokens as f64 / std::f64::consts::LN_2).collect()
}

/// Train.
pub fn train(model: &dyn ProbedModel, training: Training) -> Trained {
    let head = model.head();
    let layers = model.layers();
    let [v, d] = head.output_vd.dims();
    let mut baselines = Baselines::new(v);
    let whiten = env("WHITEN", 1.0) > 0.0;
    let total = env("TOTAL", 1e6) as u64;
    let every = env("EVERY", 131072.0) as u64;
    let lr0 = env("LR", 3e-3);
    let (b1, b2) = (env("B1", 0.9), env("B2", 0.99));
    let decay = env("DECAY", 0.5);
    let (_, states) = flat_states(model, training.check[0].clone());
    let mut points: Vec<Point> = states[..layers].iter().map(|s| point(s, whiten)).collect();
    let _ = d;
    let mut tokens = 0;
    let mut step = 0;
    let mut curve = vec![];
    let mut next = 0;
    let started = std::time::Instant::now();
    let mut ema: Option<Vec<Translator>> = None;
    let ema_tokens = env("EMA", 0.0);
    loop {
        if tokens >= next || tokens >= total {
            let translators: Vec<Translator> = points.iter().map(Point::translator).collect();
            let kl = check(model, &head, &translators, &training.check);
            let e = ema.as_ref().map(|e| check(model, &head, e, &training.check));
            let f = |x: &Vec<f64>| x.iter().map(|x| format!("{x:.4}")).collect::<Vec<_>>().join(" ");
            eprintln!(
                "{:.1}s tokens {tokens} kl {}  ema {}",
                started.elapsed().as_secs_f64(),
                f(&kl),
                e.as_ref().map_or("".into(), f)
            );
            curve.push(CurvePoint { tokens, lr: 0.0, kl_bits: kl });
            next += every;
        }
        if tokens >= total {
            break;
        }
        let x = tokens as f64 / total as f64;
        let lr = lr0 * if x < 1.0 - decay { 1.0 } else { ((1.0 - x) / decay).max(0.0) };
        let ids = (training.batch)(step);
        let (inputs_n, states) = flat_states(model, ids);
        let n = inputs_n.dims()[0];
        let inputs: Vec<usize> = inputs_n.to_data().iter::<i64>().map(|x| x as usize).collect();
        let final_nd = model.final_norm(states[layers].clone());
        let white: Vec<Tensor<2>> = points.iter().zip(&states).map(|(p, h)| p.white(h)).collect();
        let leaves: Vec<Tensor<2>> = points
            .iter()
            .zip(&states)
            .zip(&white)
            .map(|((p, h), x)| {
                Tensor::from_inner(h.clone() + x.clone().matmul(p.m_dd.clone()) + p.c_1d.clone()).require_grad()
            })
            .collect();
        let normed: Vec<Tensor<2>> = leaves.iter().map(|h| model.final_norm(h.clone())).collect();
        let plain: Vec<Tensor<2>> = normed.iter().map(|h| h.clone().inner()).collect();
        let found = lens_gradients(&final_nd, &plain, &head, 1.0 / n as f64, &mut |first, p| {
            baselines.see(&inputs[first..first + p.len() / v], p)
        });
        step += 1;
        for ((((point, white), leaf), normed), found) in points.iter_mut().zip(white).zip(leaves).zip(normed).zip(found)
        {
            let mut tape = inject(normed, found.state_nd).backward();
            let dh = leaf.grad_remove(&mut tape).expect("leaf");
            let dm = white.transpose().matmul(dh.clone());
            let dc = dh.sum_dim(0);
            for (which, (value, gradient)) in [(&mut point.m_dd, dm), (&mut point.c_1d, dc)].into_iter().enumerate() {
                let s = AdamWStep { betas: [b1, b2], eps: 1e-12, factor: 1.0, lr, decay: 0.0, step };
                let (p, m, v) = adamw(value.clone(), point.moments[which].take(), gradient, s);
                *value = p;
                point.moments[which] = Some((m, v));
            }
        }
        tokens += n as u64;
        if ema_tokens > 0.0 {
            let k = (n as f64 / ema_tokens).min(1.0);
            let now: Vec<Translator> = points.iter().map(Point::translator).collect();
            ema = Some(match ema {
                None => now,
                Some(e) => e
                    .into_iter()
                    .zip(now)
                    .map(|(e, n)| Translator {
                        transposed_dd: e.transposed_dd.mul_scalar(1.0 - k) + n.transposed_dd.mul_scalar(k),
                        offset_1d: e.offset_1d.mul_scalar(1.0 - k) + n.offset_1d.mul_scalar(k),
                    })
                    .collect(),
            });
        }
    }
    let translators = points.iter().map(Point::translator).collect();
    Trained { lens: TunedLens { recipe: Recipe::Converged, translators }, curve, baselines }
}
