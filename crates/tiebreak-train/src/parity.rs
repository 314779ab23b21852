//! One suite for every device: what a run computes there in single precision, beside the same in double precision on flex.
//!
//! The sizes are tiny and odd, for a software adapter compiles each kernel for a second. Losses, states, gradients of both sides and
//! of every parameter, ten steps of AdamW with interventions and auxiliary losses, provenance, evaluation, decoding and lenses are
//! compared; the deviation is the largest difference over the largest magnitude expected, of cosines and shares the difference itself.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use serde::Serialize;
use tiebreak_kernels::{Precision, largest_tensor, lens_kl, set_largest_tensor};
use tiebreak_model::generation::Decoder;
use tiebreak_model::interface::{GatePer, HeadConfig, ModeKind};
use tiebreak_model::trunk::mlp::MlpKind;
use tiebreak_model::trunk::norm::NormKind;
use tiebreak_model::trunk::position::PositionKind;
use tiebreak_model::{Model, ModelConfig, Placement};
use tiebreak_probe::ProbedModel;
use tiebreak_probe::lens::{Recipe, Training, train};

use crate::config::RunConfig;
use crate::decode::CachedDecoder;
use crate::device::{DeviceKind, Opened};
use crate::evaluate::{TargetInfo, evaluate};
use crate::intervene::{Place, Scale};
use crate::optim::AdamW;
use crate::probed::Probed;
use crate::step::{Memory, MicroBatch, gradients, host, update};

/// How much wider tolerances are on CUDA, up to [`WIDEST`]: Burn rounds the operands of products to TF32's 11 bits there instead of f32's
/// 24, which for a single product would be 8192 times as much.
const TF32: f64 = 500.0;

/// The widest tolerance.
const WIDEST: f64 = 0.1;

/// Steps of AdamW.
const STEPS: u64 = 10;

/// What was compared.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The device.
    pub device: String,
    /// Whether every deviation is within its tolerance.
    pub passed: bool,
    /// By case and quantity.
    pub checks: Vec<Check>,
}

/// One quantity of one case.
#[derive(Debug, Serialize)]
pub struct Check {
    /// The case.
    pub case: &'static str,
    /// The quantity.
    pub what: String,
    /// The largest difference over the largest magnitude expected.
    pub deviation: f64,
    /// How large it may be.
    pub tolerance: f64,
    /// Whether it is.
    pub passed: bool,
}

impl Report {
    /// For people: the worst of each case, and all that failed.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}, beside double precision on flex\n", self.device);
        let mut cases: Vec<&str> = self.checks.iter().map(|c| c.case).collect();
        cases.dedup();
        for case in cases {
            let all = || self.checks.iter().filter(move |c| c.case == case);
            let nearness = |c: &&Check| c.deviation / c.tolerance;
            let Some(worst) = all().max_by(|a, b| nearness(a).total_cmp(&nearness(b))) else { continue };
            let Check { what, deviation, tolerance, .. } = worst;
            let _ = writeln!(
                text,
                "{case:<20} {:>3} quantities, the farthest {what}: {deviation:.1e} of {tolerance:.0e} allowed",
                all().count()
            );
        }
        for Check { case, what, deviation, tolerance, .. } in self.checks.iter().filter(|c| !c.passed) {
            let _ = writeln!(text, "FAILED: {case}, {what}: {deviation:.1e}, allowed {tolerance:.0e}");
        }
        text += if self.passed { "passed\n" } else { "failed\n" };
        text
    }
}

/// A configuration and its tokens.
struct Case {
    name: &'static str,
    config: RunConfig,
    vocabulary: usize,
    /// Sequences of each micro-batch.
    batches: &'static [usize],
    /// Steps.
    steps: u64,
    /// Rows of logits at a time, where that is not left to the device.
    rows: Option<u64>,
}

fn config(model: ModelConfig, context: usize, head: HeadConfig) -> RunConfig {
    let mut config = RunConfig { model, head, ..RunConfig::default() };
    config.data.context_length = context;
    config.train.steps = STEPS;
    config.schedule.warmup_steps = 3;
    config.optim.lr = 1e-2;
    // With 1e-8, where a gradient is 0 but for rounding, the rounding decides.
    config.optim.eps = 1e-5;
    config
}

fn cases() -> Vec<Case> {
    let small = || ModelConfig { d_model: 12, n_layers: 2, n_heads: 3, d_ff: 20, ..ModelConfig::default() };
    let of = |mode| HeadConfig { mode, ..HeadConfig::default() };
    let case = |name, change: &dyn Fn(&mut RunConfig)| {
        let mut config = config(small(), 7, HeadConfig::default());
        change(&mut config);
        Case { name, config, vocabulary: 37, batches: &[3, 2], steps: STEPS, rows: None }
    };
    let other = ModelConfig {
        mlp: MlpKind::Gelu,
        norm: NormKind::Rms,
        position: PositionKind::Learned,
        embed_norm: true,
        embed_scale: 2.0,
        ..small()
    };
    vec![
        case("tied", &|_| {}),
        Case {
            name: "one token",
            config: config(small(), 1, of(ModeKind::Tied)),
            vocabulary: 2,
            batches: &[1],
            steps: 2,
            rows: None,
        },
        Case {
            name: "gelu, rms, learned",
            config: config(other, 7, HeadConfig { logit_softcap: 5.0, z_loss: 1e-3, ..of(ModeKind::Untied) }),
            vocabulary: 37,
            batches: &[3, 2],
            steps: STEPS,
            rows: None,
        },
        // As on a device that binds 16 rows of logits.
        Case {
            config: config(ModelConfig { norm: NormKind::Layer, ..small() }, 7, of(ModeKind::TiedBias)),
            rows: Some(16),
            ..case("layer norm, chunks", &|_| {})
        },
        case("partial, clip", &|c| {
            c.head = HeadConfig { shared_width: 5, ..of(ModeKind::Partial) };
            c.intervene.output_clip = 0.5;
        }),
        case("dual_head, learned", &|c| {
            c.head = HeadConfig { gate_per: GatePer::Row, gate_learned: true, ..of(ModeKind::DualHead) };
            c.intervene.learned = true;
        }),
        case("tie_then_untie", &|c| {
            c.head = HeadConfig { untie_at: 5.0, ..of(ModeKind::TieThenUntie) };
            c.intervene.balance_target = 1.0;
        }),
        case("partial_rows, aux", &|c| {
            c.head = HeadConfig { rows: 20, ..of(ModeKind::PartialRows) };
            c.aux.reconstruction = 0.1;
            c.aux.symmetry = 0.01;
        }),
        case("projected, after clip", &|c| {
            c.head = of(ModeKind::Projected);
            c.intervene.position = Place::AfterClip;
            (c.intervene.input_scale, c.intervene.output_scale) = (Scale::Constant(3.0), Scale::Constant(0.5));
            c.intervene.paper_output_scale = 2.0;
        }),
        case("low_rank_private", &|c| c.head = HeadConfig { rank: 3, ..of(ModeKind::LowRankPrivate) }),
        case("factorised", &|c| c.head = HeadConfig { rank: 5, ..of(ModeKind::Factorised) }),
        case("pseudo_inverse", &|c| c.head = of(ModeKind::PseudoInverse)),
    ]
}

impl Case {
    fn batch(&self, step: u64, index: usize, sequences: usize) -> MicroBatch {
        let (t, v) = (self.config.data.context_length, self.vocabulary as u64);
        let id = |i: usize| {
            let i = (i as u64 + 1) * (7 * step + 3 * index as u64 + 11);
            // Small ids come often, and some never.
            ((i * i) % v).min((i * 5) % v) as i32
        };
        MicroBatch {
            inputs: (0..sequences * t).map(id).collect(),
            targets: (1..=sequences * t).map(id).collect(),
            context: t,
        }
    }

    fn batches(&self, step: u64) -> Vec<MicroBatch> {
        self.batches.iter().enumerate().map(|(index, sequences)| self.batch(step, index, *sequences)).collect()
    }

    /// Every quantity and its tolerance.
    fn measure(&self, at: &Placement) -> Vec<(String, f64, Vec<f64>)> {
        let (config, context) = (&self.config, self.config.data.context_length);
        let mut found: Vec<(String, f64, Vec<f64>)> = Vec::new();
        let mut model = Model::init(&config.model, &config.head, self.vocabulary, context, 1, at);
        let probed = Probed { model: &model, context };
        let batch = self.batch(0, 0, self.batches[0]);
        let ids = TensorData::new(batch.inputs.clone(), [self.batches[0], context]);
        let ids_bt = Tensor::<2, Int>::from_data(ids, &at.device);
        let states = probed.states(ids_bt);
        for (point, state_btd) in states.iter().enumerate() {
            found.push((format!("state {point}"), 1e-5, host(state_btd)));
        }
        let normed: Vec<Tensor<2>> = states
            .into_iter()
            .map(|state_btd| {
                let [b, t, d] = state_btd.dims();
                probed.final_norm(state_btd.reshape([b * t, d]))
            })
            .collect();
        let (last, earlier) = normed.split_last().expect("a model has a last point");
        for (point, kl_n) in lens_kl(last, earlier, &probed.head()).iter().enumerate() {
            found.push((format!("logit lens {point}"), 1e-4, host(kl_n)));
        }

        let mut decoder = CachedDecoder::new(Probed { model: &model, context });
        let read = batch.inputs[..context].iter().flat_map(|id| decoder.extend(&[*id as u32]));
        found.push(("decoded logits".into(), 1e-5, read.map(f64::from).collect()));

        let scale = config.intervene.paper_output_scale;
        let first = gradients(&model, &self.batches(1), scale, Precision::F32, true);
        found.push(("loss".into(), 1e-5, vec![first.loss()]));
        let whole = first.whole.as_ref().expect("asked for");
        found.push(("G_in".into(), 1e-4, host(&whole.input_vd)));
        found.push(("G_out".into(), 1e-4, host(&whole.output_vd)));
        let first = gradients(&model, &self.batches(1), scale, Precision::F32, false);
        let sides = model.interface.pullback(first.tables).into_iter().map(|sides| sides.sum());
        let all: Vec<Tensor<2>> = sides.chain(first.trunk).collect();
        for (parameter, gradient) in model.parameters().iter().zip(&all) {
            found.push((format!("gradient of {}", parameter.path), 1e-4, host(gradient)));
        }

        let (mut adam, mut memory) = (AdamW::new(config.optim.betas, config.optim.eps), Memory::default());
        let mut numbers: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for step in 1..=self.steps {
            let measured = step % 3 == 1;
            let whole = measured || !config.intervene.rules().is_empty();
            let found = gradients(&model, &self.batches(step), scale, Precision::F32, whole);
            let done = update(&mut model, &mut adam, &mut memory, found, config, step, measured);
            let mut number = |name: &str, value: f64| numbers.entry(name.into()).or_default().push(value);
            number("loss of the steps", done.loss);
            number("norm", done.norm);
            number("clip factor", done.clip_factor);
            number("input scale", done.factors.input);
            number("output scale", done.factors.output);
            if let Some((loss, norms)) = done.auxiliary {
                number("auxiliary loss", loss);
                norms.into_iter().flatten().for_each(|norm| number("auxiliary norms", norm));
            }
            let groups: Vec<Option<u8>> = (0..self.vocabulary).map(|id| Some((id % 10) as u8)).collect();
            for (tag, value) in done.provenance.iter().flat_map(|p| p.scalars(&groups)) {
                number(&tag, value);
            }
        }
        found.extend(numbers.into_iter().map(|(name, values)| (name, 1e-3, values)));
        for parameter in model.parameters() {
            found.push((format!("{} after {} steps", parameter.path, self.steps), 2e-3, host(&parameter.value)));
        }
        let info = TargetInfo { bytes: vec![2; self.vocabulary], deciles: vec![0; self.vocabulary] };
        let score = evaluate(&model, self.batches(99).into_iter(), &info);
        found.extend(score.scalars().into_iter().map(|(tag, value)| (tag.into_owned(), 1e-3, vec![value])));
        found
    }

    /// Held-in KL of a tuned lens after a few steps, in single precision.
    fn tuned(&self, device: &Device) -> Vec<f64> {
        let context = self.config.data.context_length;
        let model =
            Model::init(&self.config.model, &self.config.head, self.vocabulary, context, 1, &Placement::f32(device));
        let ids = |step: u64| {
            let batch = self.batch(step, 0, 3);
            Tensor::<2, Int>::from_data(TensorData::new(batch.inputs, [3, context]), device)
        };
        let trained = train(
            &Probed { model: &model, context },
            Training {
                recipe: Recipe::Converged,
                tokens: 8 * 3 * context as u64,
                step_tokens: 3 * context as u64,
                batch: &mut |step| ids(step + 1),
                check: &[ids(50), ids(51)],
                go_on: &|| true,
                report: &mut |_| {},
            },
        );
        trained.curve.into_iter().flat_map(|point| point.kl_bits).collect()
    }
}

/// Runs every case on a device.
pub fn run(opened: &Opened) -> Report {
    let exact = Placement { device: Device::flex(), dtype: DType::F64 };
    let mut checks = Vec::new();
    for case in cases() {
        let started = Instant::now();
        let wider = if opened.kind == DeviceKind::Cuda { TF32 } else { 1.0 };
        let largest = largest_tensor();
        if let Some(rows) = case.rows {
            set_largest_tensor(4 * case.vocabulary as u64 * rows);
        }
        let expected = case.measure(&exact);
        let found = case.measure(&Placement::f32(&opened.device));
        set_largest_tensor(largest);
        // One that no number came of is left out, by either side.
        let of = |side: &'_ [(String, f64, Vec<f64>)], what: &str| {
            side.iter().find(|(name, ..)| name == what).map(|(_, _, values)| values.clone()).unwrap_or_default()
        };
        let alone = found.iter().filter(|(name, ..)| expected.iter().all(|(other, ..)| other != name));
        for (what, tolerance, _) in expected.iter().chain(alone) {
            let (expected, found) = (of(&expected, what), of(&found, what));
            checks.push(Check::new(case.name, what.clone(), tolerance * wider, &expected, &found));
        }
        // In single precision on both sides, of which flex's would agree with itself.
        if case.name == "tied" && opened.kind.is_gpu() {
            let (expected, found) = (case.tuned(&Device::flex()), case.tuned(&opened.device));
            checks.push(Check::new(case.name, "tuned lens".into(), 1e-2 * wider, &expected, &found));
        }
        // The first ones compile and tune most of the kernels.
        tracing::info!("{}: {:.1} s", case.name, started.elapsed().as_secs_f64());
    }
    Report { device: opened.name(), passed: checks.iter().all(|check| check.passed), checks }
}

impl Check {
    fn new(case: &'static str, what: String, tolerance: f64, expected: &[f64], found: &[f64]) -> Self {
        let tolerance = tolerance.min(WIDEST);
        let bounded = what.ends_with("cosine") || what.ends_with("share");
        let deviation = deviation(expected, found, if bounded { 1.0 } else { 1e-30 });
        Self { case, what, deviation, tolerance, passed: deviation <= tolerance }
    }
}

/// Relative to the largest magnitude expected, or to `least` where that is larger. Infinite for values that are no numbers, and for more
/// or fewer of them.
fn deviation(expected: &[f64], found: &[f64], least: f64) -> f64 {
    let largest = expected.iter().fold(least, |m, x| m.max(x.abs()));
    let all_finite = expected.iter().chain(found).all(|x| x.is_finite());
    if expected.len() != found.len() || !all_finite {
        return f64::INFINITY;
    }
    expected.iter().zip(found).fold(0.0, |m: f64, (a, b)| m.max((a - b).abs())) / largest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{self, DeviceKind, DeviceSpec, Which};

    #[test]
    fn the_cpu_backend_passes() {
        let report = run(&device::open(DeviceSpec::Named(DeviceKind::Flex, Which::Best)).unwrap());
        assert!(report.passed, "{}", report.to_text());
        assert!(report.checks.len() > 100, "{}", report.checks.len());
    }

    #[test]
    fn what_deviates_fails() {
        assert_eq!(deviation(&[1.0, -4.0], &[1.0, -3.0], 1e-30), 0.25);
        assert_eq!(Check::new("case", "grad/cosine".into(), 1.0, &[0.25], &[-0.25]).deviation, 0.5);
        assert_eq!(Check::new("case", "loss".into(), 1.0, &[0.25], &[-0.25]).deviation, 2.0);
        for (expected, found) in [(&[1.0][..], &[1.0, 2.0][..]), (&[1.0], &[f64::NAN]), (&[f64::NAN], &[f64::NAN])] {
            assert!(!Check::new("case", "what".into(), 1e9, expected, found).passed);
        }
        for what in ["state 1", "grad/cosine", "tuned lens"] {
            assert!(!Check::new("case", what.into(), TF32, &[0.5, -0.25], &[0.0, 0.0]).passed, "{what}");
            assert!(!Check::new("case", what.into(), TF32, &[0.5], &[]).passed, "{what}");
        }
    }
}
