//! Numbers that must always hold, for every head mode.

use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};
use tiebreak_kernels::Precision;
use tiebreak_model::interface::{HeadConfig, ModeKind, Role};
use tiebreak_model::rng::Stream;
use tiebreak_model::{Model, ModelConfig, Placement};
use tiebreak_train::config::RunConfig;
use tiebreak_train::optim::AdamW;
use tiebreak_train::step::{MicroBatch, gradients, host, update};

const V: usize = 23;
const T: usize = 7;

fn head(mode: ModeKind) -> HeadConfig {
    HeadConfig { mode }
}

fn model(mode: ModeKind, dtype: DType) -> Model {
    let config = ModelConfig { d_model: 12, n_layers: 2, n_heads: 2, d_ff: 20, ..ModelConfig::default() };
    let at = Placement { device: Device::flex(), dtype };
    Model::init(&config, &HeadConfig { mode }, V, T, 3, &at)
}

/// `sequences` windows with repeated ids.
fn batch(sequences: usize, stream: &str) -> MicroBatch {
    let mut rng = Stream::new(9, stream);
    let mut ids = || (rng.normal().abs() * 6.0) as i32 % V as i32;
    let inputs = (0..sequences * T).map(|_| ids()).collect();
    let targets = (0..sequences * T).map(|_| ids()).collect();
    MicroBatch { inputs, targets, context: T }
}

fn config() -> RunConfig {
    let mut config = RunConfig::default();
    config.optim.lr = 1e-2;
    config.schedule.warmup_steps = 0;
    config
}

fn bits(model: &Model) -> Vec<(String, Vec<u32>)> {
    let bits = |t: &Tensor<2>| host(t).into_iter().map(|x| (x as f32).to_bits()).collect();
    model.parameters().into_iter().map(|p| (p.path.clone(), bits(&p.value))).collect()
}

fn relative(found: &[f64], expected: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied()).max(1e-300)
}

/// The whole model on the tape, the loss composed by Burn: an oracle that knows nothing of sides.
fn autodiff_gradients(mut model: Model, batch: &MicroBatch) -> (f64, Vec<(String, Vec<f64>)>) {
    let n = batch.inputs.len();
    model.visit(&mut |p, _| p.value = Tensor::from_inner(p.value.clone()).require_grad());
    let pair = model.interface.pair();
    let ids = |ids: &[i32]| Tensor::<1, Int>::from_data(TensorData::new(ids.to_vec(), [n]), &Device::flex().autodiff());
    let x0_btd = Model::lookup(&pair.input_vd, ids(&batch.inputs).reshape([n / T, T]));
    let [_, d] = pair.input_vd.dims();
    let h_nd = model.trunk.forward(x0_btd).reshape([n, d]);
    let logits_nv = h_nd.matmul(pair.output_vd.transpose());
    let picked = activation::log_softmax(logits_nv, 1).gather(1, ids(&batch.targets).unsqueeze_dim(1));
    let loss = picked.mean().neg();
    let value = host(&loss.clone().inner())[0];
    let tape = loss.backward();
    let gradients = model.parameters().into_iter().map(|p| {
        let gradient = p.value.grad(&tape).expect("every parameter is used");
        (p.path, host(&gradient))
    });
    (value, gradients.collect())
}

fn pullback_is_the_gradient(dtype: DType, tolerance: f64) {
    for mode in ModeKind::ALL {
        let batch = batch(3, "pullback");
        let (loss, expected) = autodiff_gradients(model(mode, dtype), &batch);
        let model = model(mode, dtype);
        let found = gradients(&model, &[batch], 1.0, Precision::F32);
        assert!((found.loss - loss).abs() <= tolerance * loss);
        let tables = model.interface.pullback(found.input_vd, found.output_vd).into_iter().map(|s| s.sum());
        for (gradient, (path, expected)) in tables.chain(found.trunk).zip(expected) {
            let d = relative(&host(&gradient), &expected);
            assert!(d <= tolerance, "{mode:?} {path}: {d:e}");
        }
    }
}

#[test]
fn pullback_is_the_autodiff_gradient_of_every_parameter_in_f64() {
    pullback_is_the_gradient(DType::F64, 1e-10);
}

#[test]
fn pullback_is_the_autodiff_gradient_of_every_parameter_in_f32() {
    pullback_is_the_gradient(DType::F32, 1e-5);
}

#[test]
fn columns_of_the_output_gradient_sum_to_zero() {
    for mode in ModeKind::ALL {
        let found = gradients(&model(mode, DType::F64), &[batch(3, "columns")], 1.0, Precision::F32);
        let largest = host(&found.output_vd).into_iter().fold(0f64, |m, x| m.max(x.abs()));
        for sum in host(&found.output_vd.sum_dim(0)) {
            assert!(sum.abs() < 1e-13 * V as f64 * largest, "{mode:?}: {sum:e}");
        }
    }
}

#[test]
fn a_step_of_tied_keeps_one_table_with_one_set_of_moments() {
    let mut config = config();
    config.intervene.input_scale = 5.0;
    config.intervene.output_scale = 0.25;
    let mut model = model(ModeKind::Tied, DType::F32);
    let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
    let before = bits(&model);
    let found = gradients(&model, &[batch(3, "tied")], 1.0, Precision::F32);
    update(&mut model, &mut adam, found, &config, 1, false);
    assert_ne!(before[0].1, bits(&model)[0].1, "the table moved");
    let pair = model.interface.pair();
    assert_eq!(host(&pair.input_vd), host(&pair.output_vd));
    let tables: Vec<_> = adam.moments().keys().filter(|path| path.contains("table")).collect();
    assert_eq!(tables, ["table"]);
    let paths: Vec<String> = model.parameters().into_iter().map(|p| p.path).collect();
    assert_eq!(paths.iter().filter(|p| p.contains("table")).count(), 1);
    let total: usize = model.parameters().iter().map(|p| p.value.dims().iter().product::<usize>()).sum();
    let shape = ModelConfig { d_model: 12, n_layers: 2, n_heads: 2, d_ff: 20, ..ModelConfig::default() };
    let (tied, untied) = (shape.count(&head(ModeKind::Tied), V, T), shape.count(&head(ModeKind::Untied), V, T));
    assert_eq!(tied.unique, total);
    assert_eq!((tied.embedding, tied.head), (V * 12, 0));
    assert_eq!(untied.unique - tied.unique, V * 12);
    assert_eq!(untied.trunk, tied.trunk);
}

#[test]
fn counted_parameters_are_the_parameters_that_exist() {
    for (norm, mlp, position) in [("layer", "gelu", "learned"), ("rms", "swiglu", "rope")] {
        let text = format!(
            "d_model = 8\nn_layers = 3\nn_heads = 2\nd_ff = 12\nnorm = \"{norm}\"\nmlp = \"{mlp}\"\nposition = \"{position}\""
        );
        let config: ModelConfig = toml::from_str(&text).unwrap();
        for mode in ModeKind::ALL {
            let at = Placement::f32(&Device::flex());
            let model = Model::init(&config, &HeadConfig { mode }, V, T, 0, &at);
            let total: usize = model.parameters().iter().map(|p| p.value.dims().iter().product::<usize>()).sum();
            assert_eq!(config.count(&head(mode), V, T).unique, total, "{mode:?} {text}");
            let said: Vec<(Role, [usize; 2])> =
                model.interface.parameters().iter().map(|p| (p.role, p.parameter.value.dims())).collect();
            assert_eq!(said, head(mode).parameters(V, 8));
        }
    }
}

/// Trains three steps with eps 0 and the clip off.
fn controlled(mode: ModeKind, input_scale: f64, output_scale: f64) -> Vec<(String, Vec<u32>)> {
    let mut config = config();
    config.optim.eps = 0.0;
    config.optim.clip_norm = 0.0;
    config.intervene.input_scale = input_scale;
    config.intervene.output_scale = output_scale;
    let mut model = model(mode, DType::F32);
    let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
    for step in 1..=3 {
        let found = gradients(&model, &[batch(3, &format!("control {step}"))], 1.0, Precision::F32);
        update(&mut model, &mut adam, found, &config, step, false);
    }
    bits(&model)
}

#[test]
fn a_power_of_two_on_a_whole_gradient_changes_no_bit() {
    assert_eq!(controlled(ModeKind::Untied, 8.0, 1.0), controlled(ModeKind::Untied, 1.0, 1.0));
    assert_eq!(controlled(ModeKind::Tied, 8.0, 8.0), controlled(ModeKind::Tied, 1.0, 1.0));
    assert_ne!(controlled(ModeKind::Tied, 8.0, 1.0), controlled(ModeKind::Tied, 1.0, 1.0), "one side is no control");
}

#[test]
fn paper_output_scale_scales_the_trunk_and_both_sides() {
    let model = model(ModeKind::Tied, DType::F64);
    let plain = gradients(&model, &[batch(3, "paper")], 1.0, Precision::F32);
    let scaled = gradients(&model, &[batch(3, "paper")], 0.5, Precision::F32);
    assert_eq!(plain.loss, scaled.loss);
    let all = |g: tiebreak_train::step::Gradients| [vec![g.input_vd, g.output_vd], g.trunk].concat();
    for (a, b) in all(plain).iter().zip(&all(scaled)) {
        assert!(relative(&host(b), &host(&a.clone().mul_scalar(0.5))) < 1e-12);
    }
}

#[test]
fn micro_batches_of_unequal_length_equal_one_batch() {
    for mode in ModeKind::ALL {
        let (a, b) = (batch(1, "one"), batch(3, "three"));
        let whole = MicroBatch {
            inputs: [a.inputs.clone(), b.inputs.clone()].concat(),
            targets: [a.targets.clone(), b.targets.clone()].concat(),
            context: T,
        };
        let model = model(mode, DType::F64);
        let (parts, whole) =
            (gradients(&model, &[a, b], 1.0, Precision::F32), gradients(&model, &[whole], 1.0, Precision::F32));
        assert!((parts.loss - whole.loss).abs() < 1e-12);
        assert!(relative(&host(&parts.input_vd), &host(&whole.input_vd)) < 1e-12);
        assert!(relative(&host(&parts.output_vd), &host(&whole.output_vd)) < 1e-12);
        for (a, b) in parts.trunk.iter().zip(&whole.trunk) {
            assert!(relative(&host(a), &host(b)) < 1e-11);
        }
    }
}

#[test]
fn arms_of_one_seed_share_every_value_they_can() {
    let (tied, untied) = (bits(&model(ModeKind::Tied, DType::F32)), bits(&model(ModeKind::Untied, DType::F32)));
    assert_eq!(tied[0].1, untied[0].1, "E_0");
    assert_ne!(untied[0].1, untied[1].1, "U_0 has a stream of its own");
    assert_eq!(tied[1..], untied[2..], "trunk");
}

#[test]
fn thread_count_changes_no_bit() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let shape = ModelConfig { d_model: 64, n_layers: 1, n_heads: 2, d_ff: 192, ..ModelConfig::default() };
            let at = Placement::f32(&Device::flex());
            let mut model = Model::init(&shape, &HeadConfig::default(), 700, 64, 0, &at);
            let ids = |k: i32| (0..20 * 64).map(|i| (i * i * k + i) % 700).collect::<Vec<i32>>();
            let run_config = config();
            let mut adam = AdamW::new([0.9, 0.95], 1e-8);
            for step in 1..=3 {
                let batch = MicroBatch { inputs: ids(3), targets: ids(7), context: 64 };
                let found = gradients(&model, &[batch], 1.0, Precision::F32);
                update(&mut model, &mut adam, found, &run_config, step, true);
            }
            bits(&model)
        })
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(3));
}

#[test]
fn chunks_of_the_head_equal_the_whole() {
    // Two full chunks and an odd rest, in f64 against a composition that holds every logit.
    let (n, v, d) = (2 * tiebreak_kernels::CHUNK + 77, 31, 6);
    let mut rng = Stream::new(4, "head");
    let mut random = |rows: usize| {
        let values = rng.normals(rows * d, 1.0, None);
        Tensor::<2>::from_data(TensorData::new(values, [rows, d]), (&Device::flex(), DType::F64))
    };
    let (h_nd, u_vd) = (random(n), random(v));
    let targets: Vec<i32> = (0..n as i32).map(|i| i * i % v as i32).collect();
    let targets = |device: &Device| Tensor::<1, Int>::from_data(TensorData::new(targets.clone(), [n]), device);
    let found = tiebreak_kernels::cross_entropy_gradients(
        h_nd.clone(),
        &u_vd,
        targets(&Device::flex()),
        1.0 / n as f64,
        Precision::F32,
    );
    let nats = tiebreak_kernels::cross_entropy(h_nd.clone(), &u_vd, targets(&Device::flex()));
    assert_eq!(host(&nats), host(&found.nats_n));

    let (h, u) = (Tensor::from_inner(h_nd).require_grad(), Tensor::from_inner(u_vd).require_grad());
    let log_p = activation::log_softmax(h.clone().matmul(u.clone().transpose()), 1);
    let loss = log_p.gather(1, targets(&Device::flex().autodiff()).unsqueeze_dim(1)).mean().neg();
    let mean = host(&found.nats_n).iter().sum::<f64>() / n as f64;
    assert!((mean - host(&loss.clone().inner())[0]).abs() < 1e-12);
    let tape = loss.backward();
    assert!(relative(&host(&found.state_nd), &host(&h.grad(&tape).unwrap())) < 1e-12);
    assert!(relative(&host(&found.output_vd), &host(&u.grad(&tape).unwrap())) < 1e-12);
}

#[test]
fn a_target_far_below_the_largest_logit_keeps_a_finite_loss() {
    // p(target) underflows in f32; its logarithm must not.
    let h = Tensor::<2>::from_data([[1.0f32]], &Device::flex());
    let u = Tensor::<2>::from_data([[500.0f32], [0.0]], &Device::flex());
    let targets = Tensor::<1, Int>::from_data([1], &Device::flex());
    assert_eq!(host(&tiebreak_kernels::cross_entropy(h, &u, targets)), [500.0]);
}

#[test]
fn initial_values_have_the_spread_they_are_said_to_have() {
    use tiebreak_model::trunk::init::Init;
    for init in [Init::Mitchell, Init::Normal] {
        let shape = ModelConfig { d_model: 64, n_layers: 3, n_heads: 2, d_ff: 160, init, ..ModelConfig::default() };
        let at = Placement::f32(&Device::flex());
        let model = Model::init(&shape, &HeadConfig { mode: ModeKind::Untied }, 300, T, 0, &at);
        for parameter in model.parameters() {
            let values = host(&parameter.value);
            let sd = (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt();
            let layer = parameter.path.split('.').nth(1).and_then(|l| l.parse::<f64>().ok()).unwrap_or(0.0);
            let fan_in = if parameter.path.contains("mlp.down") { 160.0 } else { 64.0 };
            let back = parameter.path.contains("attention.out") || parameter.path.contains("mlp.down");
            // A normal cut at 3 standard deviations keeps 0.98658 of its spread.
            let expected = match (init, back) {
                (Init::Mitchell, false) => 0.98658 / 8.0,
                (Init::Mitchell, true) => 0.98658 / (2.0 * fan_in * (layer + 1.0)).sqrt(),
                (Init::Normal, false) => 0.02,
                (Init::Normal, true) => 0.02 / 6f64.sqrt(),
            };
            assert!((sd / expected - 1.0).abs() < 0.04, "{init:?} {}: {sd} instead of {expected}", parameter.path);
        }
    }
}

/// Largest change of each parameter in one first step, in units of lr: 1 for AdamW without decay.
fn changes(mode: ModeKind, change: impl Fn(&mut RunConfig)) -> std::collections::BTreeMap<String, f64> {
    let mut config = config();
    config.optim.weight_decay = 0.0;
    change(&mut config);
    let mut model = model(mode, DType::F64);
    let before: Vec<Vec<f64>> = model.parameters().iter().map(|p| host(&p.value)).collect();
    let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
    let found = gradients(&model, &[batch(3, "roles")], 1.0, Precision::F32);
    update(&mut model, &mut adam, found, &config, 1, false);
    let largest = |a: &[f64], b: &[f64]| a.iter().zip(b).fold(0f64, |m, (a, b)| m.max((a - b).abs()));
    let after = model.parameters().into_iter().zip(before);
    after.map(|(p, old)| (p.path.clone(), largest(&host(&p.value), &old) / config.optim.lr)).collect()
}

#[test]
fn learning_rates_follow_roles() {
    let near = |x: f64, y: f64| (x - y).abs() < 1e-4;
    let tied = changes(ModeKind::Tied, |c| c.optim.table_lr_scale = 0.5);
    assert!(near(tied["table"], 0.5) && near(tied["blocks.0.mlp.up.weight"], 1.0), "{tied:?}");
    let untied = changes(ModeKind::Untied, |c| {
        c.optim.table_lr_scale = 0.5;
        c.optim.input_lr_scale = 0.25;
        c.optim.output_lr_scale = 4.0;
    });
    assert!(near(untied["input_table"], 0.125) && near(untied["output_table"], 2.0), "{untied:?}");
}

#[test]
fn decay_reaches_matrices_and_tables_only_if_asked() {
    // lr 1e-2 and decay 50: a decayed value loses half in a step, far more than the step itself moves it.
    let decayed = |embeddings: bool| {
        changes(ModeKind::Tied, |c| {
            c.optim.weight_decay = 50.0;
            c.optim.decay_embeddings = embeddings;
        })
    };
    let (with, without) = (decayed(true), decayed(false));
    assert!(with["table"] > 10.0 && without["table"] < 1.1, "{with:?} {without:?}");
    assert!(without["blocks.0.mlp.up.weight"] > 10.0);
}

#[test]
fn the_papers_quantities_are_those_of_the_last_micro_batch_in_units_of_the_whole_step() {
    let (a, b) = (batch(1, "first"), batch(3, "last"));
    let model = model(ModeKind::Tied, DType::F64);
    let alone = gradients(&model, std::slice::from_ref(&b), 1.0, Precision::F32);
    let both = gradients(&model, &[a, b], 1.0, Precision::F32);
    // Alone, the last micro-batch is 3 T tokens; in the step it is 3 T of 4 T.
    assert!(relative(&host(&both.last.0), &host(&alone.last.0.mul_scalar(0.75))) < 1e-12);
    assert!(relative(&host(&both.last.1), &host(&alone.output_vd.mul_scalar(0.75))) < 1e-12);
}

#[test]
fn the_recorded_version_of_burn_is_the_locked_one() {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
    assert!(lock.contains(&format!("name = \"burn\"\nversion = \"{}\"", tiebreak_train::BURN_VERSION)));
}

#[test]
fn the_commented_example_has_every_key_at_its_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/models/small.toml");
    let loaded = tiebreak_train::config::load(std::path::Path::new(path), &[]).unwrap();
    let mut defaults = RunConfig::default();
    defaults.resolve().unwrap();
    assert_eq!(loaded.config, defaults);
    let Ok(toml::Value::Table(all)) = toml::Value::try_from(&defaults) else { panic!() };
    let keys = tiebreak_train::config::flatten(&all);
    let missing: Vec<&String> = keys.keys().filter(|key| !loaded.origins.contains_key(*key)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
