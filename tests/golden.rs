//! Values of an independent PyTorch implementation (scripts/golden.py): every gradient, then ten AdamW steps.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use serde::Deserialize;
use tiebreak_kernels::Precision;
use tiebreak_model::interface::HeadConfig;
use tiebreak_model::{Model, ModelConfig, Placement};
use tiebreak_train::config::RunConfig;
use tiebreak_train::optim::AdamW;
use tiebreak_train::step::{Memory, MicroBatch, gradients, host, update};

#[derive(Deserialize)]
struct Golden {
    config: Config,
    optim: Optim,
    parameters: Vec<Stored>,
    batches: Vec<Batch>,
    first: First,
    training: Training,
    #[serde(default)]
    variants: std::collections::BTreeMap<String, Variant>,
}

#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    context_length: usize,
    sequence_length: usize,
    head: HeadConfig,
    model: ModelConfig,
}

#[derive(Deserialize)]
struct Optim {
    lr: f64,
    weight_decay: f64,
    steps: u64,
    warmup_steps: u64,
    clip_norm: f64,
}

#[derive(Deserialize)]
struct Stored {
    name: String,
    data: Vec<f64>,
}

#[derive(Deserialize)]
struct Batch {
    inputs: Vec<Vec<i32>>,
    targets: Vec<Vec<i32>>,
}

#[derive(Deserialize)]
struct First {
    loss: f64,
    logits: Stored,
    gradients: Vec<Stored>,
    g_in: Stored,
    g_out: Stored,
    x0_gradient: Stored,
}

#[derive(Deserialize)]
struct Training {
    loss: Vec<f64>,
    lr: Vec<f64>,
    grad_norm: Vec<f64>,
    clip_factor: Vec<f64>,
    r#final: Vec<Stored>,
}

#[derive(Deserialize)]
struct Variant {
    loss: Vec<f64>,
    grad_norm: Vec<f64>,
    clip_factor: Vec<f64>,
}

const CASES: [&str; 6] = ["tied_a", "untied_a", "tied_b", "untied_b", "tied_c", "untied_c"];

fn golden(case: &str) -> Golden {
    let path = format!("{}/golden/{case}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()
}

impl Golden {
    fn model(&self, dtype: DType) -> Model {
        let at = Placement { device: Device::flex(), dtype };
        let c = &self.config;
        let mut model = Model::init(&c.model, &c.head, c.vocab_size, c.context_length, 0, &at);
        let mut used = 0;
        model.visit(&mut |p, _| {
            let shape = p.value.dims();
            *p = tiebreak_model::Parameter::new(
                p.path.clone(),
                find(&self.parameters, &p.path).to_vec(),
                shape,
                p.decays,
                &at,
            );
            used += 1;
        });
        assert_eq!(used, self.parameters.len(), "the same parameters on both sides");
        model
    }

    fn batch(&self, step: usize) -> MicroBatch {
        let Batch { inputs, targets } = &self.batches[step];
        MicroBatch { inputs: inputs.concat(), targets: targets.concat(), context: self.config.sequence_length }
    }

    fn run_config(&self) -> RunConfig {
        let mut config = RunConfig::default();
        config.head = self.config.head.clone();
        config.optim.lr = self.optim.lr;
        config.optim.weight_decay = self.optim.weight_decay;
        config.optim.clip_norm = self.optim.clip_norm;
        config.schedule.warmup_steps = self.optim.warmup_steps;
        config.train.steps = self.optim.steps;
        config
    }

    /// Losses, learning rates, norms and clip factors of ten steps, and the model after them.
    fn train(&self, config: &RunConfig, dtype: DType) -> (Vec<[f64; 4]>, Model) {
        let mut model = self.model(dtype);
        let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
        let steps = (0..self.batches.len()).map(|i| {
            let gradients =
                gradients(&model, &[self.batch(i)], config.intervene.paper_output_scale, Precision::F32, false);
            let loss = gradients.loss();
            let done = update(&mut model, &mut adam, &mut Memory::default(), gradients, config, i as u64 + 1, i == 3);
            assert!(done.nonfinite.is_empty());
            [loss, done.lr, done.norm, done.clip_factor]
        });
        let steps = steps.collect();
        (steps, model)
    }
}

fn find<'a>(stored: &'a [Stored], name: &str) -> &'a [f64] {
    &stored.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("{name} is not in the golden file")).data
}

/// Largest difference, relative to the largest magnitude of the expected values.
fn deviation(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
    found.iter().zip(expected).fold(0f64, |m, (a, b)| m.max((a - b).abs())) / largest
}

fn assert_near(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    let d = deviation(found, expected);
    assert!(d <= tolerance, "{what}: deviates by {d:e}, allowed {tolerance:e}");
}

/// Logits of the first sequence, `[t, v]` row-major.
fn first_logits(golden: &Golden, model: &Model) -> Vec<f64> {
    let (t, pair) = (golden.config.sequence_length, model.interface.pair());
    let ids = TensorData::new(golden.batches[0].inputs[0].clone(), [1, t]);
    let h_btd = model.trunk.forward(Model::lookup(&pair.input_vd, Tensor::<2, Int>::from_data(ids, &Device::flex())));
    let [_, _, d] = h_btd.dims();
    host(&h_btd.reshape([t, d]).matmul(pair.output_vd.transpose()))
}

fn every_gradient(dtype: DType, tolerance: f64) {
    for case in CASES {
        let golden = golden(case);
        let model = golden.model(dtype);
        let found = gradients(&model, &[golden.batch(0)], 1.0, Precision::F32, false);
        let whole = found.whole.as_ref().expect("whole tables");
        let near = |what: &str, found: &[f64], expected: &[f64]| {
            assert_near(&format!("{case} {what}"), found, expected, tolerance)
        };
        near("loss", &[found.loss()], &[golden.first.loss]);
        near("logits", &first_logits(&golden, &model), &golden.first.logits.data);
        near("G_in", &host(&whole.input_vd), &golden.first.g_in.data);
        near("G_out", &host(&whole.output_vd), &golden.first.g_out.data);
        near("dL/dx0", &host(&whole.last.0), &golden.first.x0_gradient.data);
        let tables = model.interface.pullback(found.tables).into_iter().map(|s| s.sum());
        let all: Vec<Tensor<2>> = tables.chain(found.trunk).collect();
        let parameters = model.parameters();
        assert_eq!(all.len(), golden.first.gradients.len());
        for (parameter, gradient) in parameters.iter().zip(&all) {
            near(&parameter.path, &host(gradient), find(&golden.first.gradients, &parameter.path));
        }
    }
}

#[test]
fn every_gradient_matches_pytorch_in_f64() {
    every_gradient(DType::F64, 1e-10);
}

#[test]
fn every_gradient_matches_pytorch_in_f32() {
    every_gradient(DType::F32, 1e-5);
}

fn ten_steps(dtype: DType, tolerance: f64) {
    for case in CASES {
        let golden = golden(case);
        let (steps, model) = golden.train(&golden.run_config(), dtype);
        let column = |i: usize| steps.iter().map(|s| s[i]).collect::<Vec<_>>();
        let t = &golden.training;
        for (what, i, expected) in [
            ("losses", 0, &t.loss),
            ("learning rates", 1, &t.lr),
            ("norms", 2, &t.grad_norm),
            ("clip", 3, &t.clip_factor),
        ] {
            assert_near(&format!("{case} {what}"), &column(i), expected, tolerance);
        }
        let parameters = model.parameters();
        for stored in &t.r#final {
            let found = parameters.iter().find(|p| p.path == stored.name).unwrap();
            assert_near(&format!("{case} final {}", stored.name), &host(&found.value), &stored.data, tolerance);
        }
    }
}

#[test]
fn ten_steps_of_adamw_match_pytorch_in_f64() {
    ten_steps(DType::F64, 1e-9);
}

#[test]
fn ten_steps_of_adamw_match_pytorch_in_f32() {
    ten_steps(DType::F32, 1e-5);
}

#[test]
fn scaled_sides_match_pytorch_before_and_after_the_clip() {
    let golden = golden("tied_a");
    let plain = golden.train(&golden.run_config(), DType::F64).0;
    let mut before = golden.run_config();
    before.intervene.input_scale = 5.0.into();
    let mut after = golden.run_config();
    after.intervene.output_scale = 0.25.into();
    after.intervene.position = tiebreak_train::intervene::Place::AfterClip;
    for (name, config) in [("input_x5_before_clip", before), ("output_x0.25_after_clip", after)] {
        let steps = golden.train(&config, DType::F64).0;
        let column = |i: usize| steps.iter().map(|s| s[i]).collect::<Vec<_>>();
        let variant = &golden.variants[name];
        assert_near(name, &column(0), &variant.loss, 1e-9);
        assert_near(name, &column(2), &variant.grad_norm, 1e-9);
        assert_near(name, &column(3), &variant.clip_factor, 1e-9);
        assert!(plain.iter().zip(&steps).skip(1).all(|(a, b)| a[0] != b[0]), "{name} changes nothing");
    }
}
