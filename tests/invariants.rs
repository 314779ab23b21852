//! Numbers that must always hold, for every head mode.

use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};
use tiebreak_kernels::{Precision, Transposed, product};
use tiebreak_model::interface::{
    GatePer, Head, HeadConfig, ModeKind, OutputFactor, Role, RowsWhich, Sides, Table, TableGradient,
};
use tiebreak_model::rng::Stream;
use tiebreak_model::{Model, ModelConfig, Placement, Vocabulary};
use tiebreak_train::auxiliary::{Auxiliary, auxiliary};
use tiebreak_train::config::RunConfig;
use tiebreak_train::intervene::{Scale, ScaleKind, ScaleSchedule};
use tiebreak_train::optim::AdamW;
use tiebreak_train::step::{Memory, MicroBatch, gradients, host, update};

const V: usize = 23;
const T: usize = 7;
const D: usize = 12;

/// A mode with values of its own keys that fit V and d; a key that is not named here keeps its default.
fn head(mode: ModeKind) -> HeadConfig {
    let mut head = HeadConfig { mode, ..HeadConfig::default() };
    type Set = fn(&mut HeadConfig);
    let small: [(&str, Set); 4] = [
        ("shared_width", |h| h.shared_width = 5),
        ("untie_at", |h| h.untie_at = 2.0),
        ("rank", |h| h.rank = 3),
        ("rows", |h| h.rows = 7),
    ];
    for (key, set) in small {
        if head.uses(key) {
            set(&mut head);
        }
    }
    head
}

fn with(mode: ModeKind, change: impl Fn(&mut HeadConfig)) -> HeadConfig {
    let mut head = head(mode);
    change(&mut head);
    head
}

/// Every mode, its variants and its limits.
fn heads() -> Vec<HeadConfig> {
    use ModeKind::*;
    let mut all: Vec<HeadConfig> = ModeKind::ALL.into_iter().map(head).collect();
    all.extend([
        with(Partial, |h| h.shared_width = 0),
        with(Partial, |h| h.shared_width = D),
        with(DualHead, |h| h.gate = 0.0),
        with(DualHead, |h| h.gate = 1.0),
        with(DualHead, |h| (h.gate, h.gate_learned) = (0.8, true)),
        with(DualHead, |h| (h.gate_per, h.gate_learned) = (GatePer::Row, true)),
        with(TieThenUntie, |h| h.untie_at = 0.0),
        with(LowRankPrivate, |h| h.rank = 0),
        with(Factorised, |h| h.output_factor = OutputFactor::Own),
        with(PartialRows, |h| (h.rows, h.rows_which) = (4, RowsWhich::Rare)),
        with(PartialRows, |h| h.rows = 0),
        with(PartialRows, |h| h.rows = V),
    ]);
    all
}

/// The same with changed logits.
fn mapped_heads() -> Vec<HeadConfig> {
    let change = |mut head: HeadConfig, softcap: f64, z_loss: f64| {
        (head.logit_softcap, head.z_loss) = (softcap, z_loss);
        head
    };
    let all = heads().into_iter();
    all.flat_map(|head| [head.clone(), change(head.clone(), 2.0, 0.0), change(head, 4.0, 0.1)]).collect()
}

fn shape() -> ModelConfig {
    ModelConfig { d_model: D, n_layers: 2, n_heads: 2, d_ff: 20, ..ModelConfig::default() }
}

fn model_of(head: &HeadConfig, dtype: DType) -> Model {
    let at = Placement { device: Device::flex(), dtype };
    // Frequencies that are not in the order of ids.
    let by_rank = (0..V as u32).map(|i| i * 5 % V as u32).collect();
    Model::init(&shape(), head, Vocabulary { by_rank }, T, 3, &at)
}

fn model(mode: ModeKind, dtype: DType) -> Model {
    model_of(&head(mode), dtype)
}

/// The same with noise on the interface's parameters: where some start at 0, others have no gradient.
fn shaken(head: &HeadConfig, dtype: DType) -> Model {
    let mut model = model_of(head, dtype);
    let mut rng = Stream::new(5, "noise");
    model.visit(&mut |p, role| {
        if role.is_some() {
            let [rows, columns] = p.value.dims();
            let noise = TensorData::new(rng.normals(rows * columns, 0.1, None), [rows, columns]);
            p.value = p.value.clone() + Tensor::from_data(noise, (&p.value.device(), p.value.dtype()));
        }
    });
    model
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
    let mut logits_nv = h_nd.matmul(pair.output_vd.transpose());
    if let Some(bias_1v) = model.interface.tables().bias_1v {
        logits_nv = logits_nv + bias_1v;
    }
    if let Some(c) = model.logit_map.softcap {
        logits_nv = logits_nv.mul_scalar(1.0 / c).tanh().mul_scalar(c);
    }
    let sum_n1 = logits_nv.clone().exp().sum_dim(1).log();
    let picked = activation::log_softmax(logits_nv, 1).gather(1, ids(&batch.targets).unsqueeze_dim(1));
    let loss = picked.mean().neg();
    let value = host(&loss.clone().inner())[0];
    let tape = (loss + sum_n1.clone().mul(sum_n1).mean().mul_scalar(model.logit_map.z_loss)).backward();
    let gradients = model.parameters().into_iter().map(|p| {
        let gradient = p.value.grad(&tape).expect("every parameter is used");
        (p.path, host(&gradient))
    });
    (value, gradients.collect())
}

fn pullback_is_the_gradient(dtype: DType, tolerance: f64) {
    for head in mapped_heads() {
        head.validate(V, D).unwrap();
        let batch = batch(3, "pullback");
        let (loss, expected) = autodiff_gradients(shaken(&head, dtype), &batch);
        for whole in [false, true] {
            let model = shaken(&head, dtype);
            let found = gradients(&model, std::slice::from_ref(&batch), 1.0, Precision::F32, whole);
            assert!((found.loss() - loss).abs() <= tolerance * loss, "{head:?}: {} {loss}", found.loss());
            assert!(!whole || found.whole.is_some());
            let tables = model.interface.pullback(found.tables).into_iter().map(Sides::sum);
            for (gradient, (path, expected)) in tables.chain(found.trunk).zip(&expected) {
                let d = relative(&host(&gradient), expected);
                assert!(d <= tolerance, "{head:?} {path}: {d:e}");
            }
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

/// <gradient, direction> against differences of the loss, in f64: of the language model's, through every parameter of the interface.
#[test]
fn pullback_is_the_slope_of_the_loss() {
    for head in mapped_heads() {
        let batch = batch(2, "slope");
        let of = |model: &Model| gradients(model, std::slice::from_ref(&batch), 1.0, Precision::F32, false);
        let base = shaken(&head, DType::F64);
        let found: Vec<Tensor<2>> = base.interface.pullback(of(&base).tables).into_iter().map(Sides::sum).collect();
        for (parameter, gradient) in found.iter().enumerate() {
            let direction = direction(gradient.dims(), parameter);
            let loss = |by: f64| {
                let model = moved(&head, parameter, &direction, by);
                of(&model).loss() + head.z_loss * mean_square_of_log_partition(&model, &batch)
            };
            let expected = (loss(1e-6) - loss(-1e-6)) / 2e-6;
            let along = host(&(gradient.clone() * direction.clone())).iter().sum::<f64>();
            assert!(
                (along - expected).abs() < 1e-8 * (expected.abs() + 1.0),
                "{head:?} {parameter}: {along} {expected}"
            );
        }
    }
}

/// What a z-loss of weight 1 adds per token, from the logits themselves.
fn mean_square_of_log_partition(model: &Model, batch: &MicroBatch) -> f64 {
    let n = batch.inputs.len();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(batch.inputs.clone(), [n]), &Device::flex());
    let h_btd = model.trunk.forward(Model::lookup(&model.interface.pair().input_vd, ids.reshape([n / T, T])));
    let head = Head::new(&model.interface.tables(), &model.logit_map, |table| Table::whole(table.formed()));
    let logits = host(&head.logits(h_btd.reshape([n, D])));
    logits.chunks(V).map(|row| row.iter().map(|z| z.exp()).sum::<f64>().ln().powi(2)).sum::<f64>() / n as f64
}

fn direction(shape: [usize; 2], parameter: usize) -> Tensor<2> {
    let noise = Stream::new(6, &format!("direction {parameter}")).normals(shape[0] * shape[1], 1.0, None);
    Tensor::from_data(TensorData::new(noise, shape), (&Device::flex(), DType::F64))
}

/// [`shaken`], then one parameter of the interface moved.
fn moved(head: &HeadConfig, parameter: usize, direction: &Tensor<2>, by: f64) -> Model {
    let mut model = shaken(head, DType::F64);
    let mut at = 0;
    model.visit(&mut |p, role| {
        if role.is_some() && at == parameter {
            p.value = p.value.clone() + direction.clone().mul_scalar(by);
        }
        at += 1;
    });
    model
}

#[test]
fn columns_of_the_output_gradient_sum_to_zero() {
    for head in heads() {
        let output_vd = gradients(&model_of(&head, DType::F64), &[batch(3, "columns")], 1.0, Precision::F32, true)
            .whole
            .unwrap()
            .output_vd;
        let largest = host(&output_vd).into_iter().fold(0f64, |m, x| m.max(x.abs()));
        for sum in host(&output_vd.sum_dim(0)) {
            assert!(sum.abs() < 1e-13 * V as f64 * largest, "{head:?}: {sum:e}");
        }
    }
}

#[test]
fn a_step_of_tied_keeps_one_table_with_one_set_of_moments() {
    let mut config = config();
    config.intervene.input_scale = 5.0.into();
    config.intervene.output_scale = 0.25.into();
    let mut model = model(ModeKind::Tied, DType::F32);
    let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
    let before = bits(&model);
    let found = gradients(&model, &[batch(3, "tied")], 1.0, Precision::F32, false);
    update(&mut model, &mut adam, &mut Memory::default(), found, &config, 1, false);
    assert_ne!(before[0].1, bits(&model)[0].1, "the table moved");
    let pair = model.interface.pair();
    assert_eq!(host(&pair.input_vd), host(&pair.output_vd));
    let tables: Vec<_> = adam.moments().keys().filter(|path| path.contains("table")).collect();
    assert_eq!(tables, ["table"]);
    let paths: Vec<String> = model.parameters().into_iter().map(|p| p.path).collect();
    assert_eq!(paths.iter().filter(|p| p.contains("table")).count(), 1);
    let total: usize = model.parameters().iter().map(|p| p.value.dims().iter().product::<usize>()).sum();
    let (tied, untied) = (shape().count(&head(ModeKind::Tied), V, T), shape().count(&head(ModeKind::Untied), V, T));
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
        for head in heads().into_iter().filter(|head| head.validate(V, 8).is_ok()) {
            let at = Placement::f32(&Device::flex());
            let mut model = Model::init(&config, &head, V, T, 0, &at);
            if head.changes() {
                model.interface.after_step(u64::MAX);
            }
            let total: usize = model.parameters().iter().map(|p| p.value.dims().iter().product::<usize>()).sum();
            assert_eq!(config.count(&head, V, T).unique, total, "{head:?} {text}");
            assert!(model.parameters().iter().all(|p| !p.value.dims().contains(&0)), "{head:?}: a part of width 0");
            let said: Vec<(Role, [usize; 2])> =
                model.interface.parameters().iter().map(|p| (p.role, p.parameter.value.dims())).collect();
            assert_eq!(said, head.parameters(V, 8), "{head:?}");
            assert_eq!(model.interface.one_matrix(), head.one_matrix(V, 8), "{head:?}");
            let paths: std::collections::BTreeSet<String> = model.parameters().into_iter().map(|p| p.path).collect();
            assert_eq!(paths.len(), model.parameters().len(), "{head:?}: a path twice");
        }
    }
}

/// Trains three steps with eps 0 and the clip off.
fn controlled(mode: ModeKind, input_scale: f64, output_scale: f64) -> Vec<(String, Vec<u32>)> {
    let mut config = config();
    config.optim.eps = 0.0;
    config.optim.clip_norm = 0.0;
    config.intervene.input_scale = input_scale.into();
    config.intervene.output_scale = output_scale.into();
    let mut model = model(mode, DType::F32);
    let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
    for step in 1..=3 {
        let found = gradients(&model, &[batch(3, &format!("control {step}"))], 1.0, Precision::F32, false);
        update(&mut model, &mut adam, &mut Memory::default(), found, &config, step, false);
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
    let plain = gradients(&model, &[batch(3, "paper")], 1.0, Precision::F32, true);
    let scaled = gradients(&model, &[batch(3, "paper")], 0.5, Precision::F32, true);
    assert_eq!(plain.loss(), scaled.loss());
    let all =
        |g: tiebreak_train::step::Gradients| [vec![g.tables.input.rows_vr, g.tables.output.rows_vr], g.trunk].concat();
    for (a, b) in all(plain).iter().zip(&all(scaled)) {
        assert!(relative(&host(b), &host(&a.clone().mul_scalar(0.5))) < 1e-12);
    }
}

#[test]
fn micro_batches_of_unequal_length_equal_one_batch() {
    for head in mapped_heads() {
        let (a, b) = (batch(1, "one"), batch(3, "three"));
        let joined = MicroBatch {
            inputs: [a.inputs.clone(), b.inputs.clone()].concat(),
            targets: [a.targets.clone(), b.targets.clone()].concat(),
            context: T,
        };
        let model = shaken(&head, DType::F64);
        for whole in [false, true] {
            let parts = gradients(&model, &[a.clone(), b.clone()], 1.0, Precision::F32, whole);
            let joined = gradients(&model, std::slice::from_ref(&joined), 1.0, Precision::F32, whole);
            assert!((parts.loss() - joined.loss()).abs() < 1e-12);
            let all = |g: tiebreak_train::step::Gradients| {
                let side = |g: TableGradient| [Some(g.rows_vr), g.map_rd];
                let sides = [side(g.tables.input), side(g.tables.output), [g.tables.bias_1v, None]].concat();
                sides.into_iter().flatten().chain(g.trunk).collect::<Vec<_>>()
            };
            for (a, b) in all(parts).iter().zip(&all(joined)) {
                assert!(relative(&host(a), &host(b)) < 1e-11, "{head:?}");
            }
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
    let run = |mode: ModeKind, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let shape = ModelConfig { d_model: 64, n_layers: 1, n_heads: 2, d_ff: 192, ..ModelConfig::default() };
            let at = Placement::f32(&Device::flex());
            let mut model = Model::init(&shape, &head(mode), 700, 64, 0, &at);
            let ids = |k: i32| (0..20 * 64).map(|i| (i * i * k + i) % 700).collect::<Vec<i32>>();
            let mut run_config = config();
            run_config.aux.reconstruction = 0.1;
            run_config.aux.symmetry = f64::from(u8::from(!head(mode).one_matrix(700, 64)));
            let (mut adam, mut memory) = (AdamW::new([0.9, 0.95], 1e-8), Memory::default());
            for step in 1..=3 {
                let batch = MicroBatch { inputs: ids(3), targets: ids(7), context: 64 };
                let found = gradients(&model, &[batch], 1.0, Precision::F32, step != 2);
                update(&mut model, &mut adam, &mut memory, found, &run_config, step, step != 2);
            }
            bits(&model)
        })
    };
    for mode in ModeKind::ALL {
        let one = run(mode, 1);
        assert_eq!(one, run(mode, 2), "{mode:?}");
        assert_eq!(one, run(mode, 3), "{mode:?}");
    }
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
        let model = Model::init(&shape, &head(ModeKind::Untied), 300, T, 0, &at);
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
    let found = gradients(&model, &[batch(3, "roles")], 1.0, Precision::F32, false);
    update(&mut model, &mut adam, &mut Memory::default(), found, &config, 1, false);
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
    let projected = changes(ModeKind::Projected, |c| c.optim.map_lr_scale = 0.25);
    assert!(near(projected["projection"], 0.25) && near(projected["table"], 1.0), "{projected:?}");
}

#[test]
fn a_table_warms_up_by_itself() {
    let near = |x: f64, y: f64| (x - y).abs() < 1e-4;
    let found = changes(ModeKind::Tied, |c| c.optim.table_warmup_steps = 9);
    assert!(near(found["table"], 0.2) && near(found["blocks.0.mlp.up.weight"], 1.0), "{found:?}");
    let found = changes(ModeKind::Projected, |c| {
        c.schedule.warmup_steps = 9;
        c.optim.table_warmup_steps = 1;
    });
    assert!(near(found["table"], 1.0) && near(found["projection"], 0.2), "{found:?}");
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
    let alone = gradients(&model, std::slice::from_ref(&b), 1.0, Precision::F32, true).whole.unwrap();
    let both = gradients(&model, &[a, b], 1.0, Precision::F32, true).whole.unwrap();
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

/// Losses, E, U and trunk of three steps with the clip on; every mode hands its factors out, or has them formed.
fn trained(head: &HeadConfig, whole: bool, change: impl Fn(&mut RunConfig, &mut Model)) -> Vec<Vec<u64>> {
    let (mut config, mut model) = (config(), model_of(head, DType::F32));
    change(&mut config, &mut model);
    let (mut adam, mut memory) = (AdamW::new(config.optim.betas, config.optim.eps), Memory::default());
    let mut losses = Vec::new();
    for step in 1..=3 {
        let found = gradients(&model, &[batch(3, &format!("reduction {step}"))], 1.0, Precision::F32, whole);
        losses.push(found.loss().to_bits());
        let done = update(&mut model, &mut adam, &mut memory, found, &config, step, whole);
        assert!(done.nonfinite.is_empty());
    }
    let bits = |t: &Tensor<2>| host(t).into_iter().map(f64::to_bits).collect::<Vec<_>>();
    let pair = model.interface.pair();
    let trunk = model.trunk.parameters();
    let tables = [losses, bits(&pair.input_vd), bits(&pair.output_vd)];
    tables.into_iter().chain(trunk.iter().map(|p| bits(&p.value))).collect()
}

#[test]
fn limits_of_the_modes_are_their_neighbours_bit_for_bit() {
    use ModeKind::*;
    let same = |_: &mut RunConfig, _: &mut Model| {};
    let tied = trained(&head(Tied), false, same);
    let untied = trained(&head(Untied), false, same);
    let copied = trained(&head(Untied), false, |_, model| {
        let input_vd = model.interface.pair().input_vd;
        model.visit(&mut |p, role| {
            if role == Some(Role::Output) {
                p.value = input_vd.clone();
            }
        });
    });
    assert!(tied != untied && untied != copied && tied != copied);
    for (head, expected) in [
        (with(Partial, |h| h.shared_width = D), &tied),
        (with(Partial, |h| h.shared_width = 0), &untied),
        (with(DualHead, |h| h.gate = 1.0), &tied),
        (with(DualHead, |h| h.gate = 0.0), &untied),
        (with(TieThenUntie, |h| h.untie_at = 1000.0), &tied),
        (with(TieThenUntie, |h| h.untie_at = 0.0), &copied),
        (with(LowRankPrivate, |h| h.rank = 0), &tied),
        (with(PartialRows, |h| h.rows = V), &tied),
        (with(PartialRows, |h| h.rows = 0), &untied),
    ] {
        assert_eq!(&trained(&head, false, same), expected, "{head:?}");
        assert_eq!(&trained(&head, true, same), expected, "{head:?} with provenance");
    }
    // A map that does not move is no part of the gradient's norm only if there is no clip.
    let frozen = |config: &mut RunConfig, _: &mut Model| {
        config.optim.clip_norm = 0.0;
        config.optim.map_lr_scale = 0.0;
        config.optim.output_lr_scale = 0.0;
    };
    let tied = trained(&head(Tied), false, |config, _| config.optim.clip_norm = 0.0);
    for whole in [false, true] {
        assert_eq!(trained(&head(Projected), whole, frozen), tied, "projected with P at the identity, {whole}");
        // The loss of a biased head is rounded elsewhere.
        assert_eq!(trained(&head(TiedBias), whole, frozen)[1..], tied[1..], "a bias that stays 0");
    }
    let ones = Scale::Schedule(ScaleSchedule { kind: ScaleKind::Cosine, start: 1.0, end: 1.0, until: 2.0 });
    let scaled = trained(&head(Tied), false, |config, _| {
        config.optim.clip_norm = 0.0;
        config.intervene.input_scale = ones.clone();
        config.intervene.output_scale = ones.clone();
    });
    assert_eq!(scaled, tied, "factors of 1");
}

#[test]
fn untying_changes_no_bit_of_the_loss_and_copies_the_moments() {
    let head = with(ModeKind::TieThenUntie, |h| h.untie_at = 2.0);
    let (config, mut model) = (config(), model_of(&head, DType::F32));
    let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
    let tied = model_of(&with(ModeKind::TieThenUntie, |h| h.untie_at = 9.0), DType::F32);
    let mut other = (tied, AdamW::new(config.optim.betas, config.optim.eps));
    let step = |model: &mut Model, adam: &mut AdamW, step: u64| {
        let found = gradients(model, &[batch(3, &format!("switch {step}"))], 1.0, Precision::F32, false);
        update(model, adam, &mut Memory::default(), found, &config, step, false);
    };
    for i in 1..=2 {
        step(&mut model, &mut adam, i);
        step(&mut other.0, &mut other.1, i);
    }
    assert!(!model.interface.one_matrix() && other.0.interface.one_matrix());
    let loss = |model: &Model| gradients(model, &[batch(3, "switch 3")], 1.0, Precision::F32, false).loss().to_bits();
    assert_eq!(loss(&model), loss(&other.0));
    assert!(!adam.moments().contains_key("table"));
    for path in ["input_table", "output_table"] {
        let (copy, original) = (&adam.moments()[path], &other.1.moments()["table"]);
        assert_eq!(host(&copy.first), host(&original.first));
        assert_eq!(host(&copy.second), host(&original.second));
    }
    // The copies are two: each goes its own way from here.
    step(&mut model, &mut adam, 3);
    let pair = model.interface.pair();
    assert_ne!(host(&pair.input_vd), host(&pair.output_vd));
}

#[test]
fn a_pseudo_inverse_stays_one_for_500_steps() {
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F64, 1e-9)] {
        let (mut config, mut model) = (config(), model(ModeKind::PseudoInverse, dtype));
        config.train.steps = 500;
        let (mut adam, mut memory) = (AdamW::new(config.optim.betas, config.optim.eps), Memory::default());
        let start = model.interface.pair();
        let tied = model_of(&head(ModeKind::Tied), dtype).interface.pair();
        let norm = |t: &Tensor<2>| host(t).iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!((norm(&start.input_vd) / norm(&tied.input_vd) - 1.0).abs() < 1e-5, "as long as the table of tied");
        let mut worst = 0f64;
        for step in 1..=500 {
            let found = gradients(&model, &[batch(2, &format!("inverse {step}"))], 1.0, Precision::F32, false);
            update(&mut model, &mut adam, &mut memory, found, &config, step, false);
            let pair = model.interface.pair();
            let product_dd = product(&pair.output_vd, &pair.input_vd, Transposed::First);
            let eye_dd = Tensor::<2>::eye(D, &Device::flex()).cast(dtype);
            worst = worst.max(norm(&(product_dd - eye_dd)));
        }
        let end = model.interface.pair();
        let moved = norm(&(end.input_vd - start.input_vd.clone())) / norm(&start.input_vd);
        println!("{dtype:?}: |U^T E - I| at most {worst:e}, E moved by {moved}");
        assert!(worst < tolerance, "{dtype:?}: {worst:e}");
        assert!(moved > 0.1, "nothing was trained: {moved}");
    }
}

/// The weighted sum of a step's auxiliary losses, and the rest.
fn aux(
    model: &Model,
    config: &RunConfig,
    step: u64,
    rotation_dd: &mut Option<Tensor<2>>,
    whole: bool,
) -> (f64, Auxiliary) {
    let mut reads = tiebreak_kernels::Reads::default();
    let found = auxiliary(model, config, step, rotation_dd, whole, &mut reads).unwrap();
    reads.execute();
    (found.loss.read(&reads), found)
}

/// <gradient, direction> against differences of the loss, in f64.
#[test]
fn auxiliary_losses_have_the_gradients_of_their_differences() {
    for head in mapped_heads() {
        for (reconstruction, symmetry) in [(0.7, 0.0), (0.0, 0.3), (0.7, 0.3)] {
            if symmetry > 0.0 && head.one_matrix(V, D) {
                continue;
            }
            let mut config = config();
            config.head = head.clone();
            config.aux.reconstruction = reconstruction;
            config.aux.symmetry = symmetry;
            let base = shaken(&head, DType::F64);
            if symmetry > 0.0 && base.interface.one_matrix() {
                continue;
            }
            let count = base.interface.parameters().len();
            let loss = |parameter: usize, direction: &Tensor<2>, by: f64| {
                aux(&moved(&head, parameter, direction, by), &config, 1, &mut None, true).0
            };
            let found = [false, true].map(|whole| {
                let (_, found) = aux(&base, &config, 1, &mut None, whole);
                assert_eq!(found.squares.is_some(), whole);
                base.interface.pullback(found.gradient).into_iter().map(Sides::sum).collect::<Vec<_>>()
            });
            for parameter in 0..count {
                let value = &base.interface.parameters()[parameter].parameter.value;
                let direction = direction(value.dims(), parameter);
                let h = 1e-5;
                let expected = (loss(parameter, &direction, h) - loss(parameter, &direction, -h)) / (2.0 * h);
                for found in &found {
                    let along = host(&(found[parameter].clone() * direction.clone())).iter().sum::<f64>();
                    assert!(
                        (along - expected).abs() < 1e-6 * (expected.abs() + 1.0),
                        "{head:?} parameter {parameter}, {reconstruction} {symmetry}: {along} instead of {expected}"
                    );
                }
            }
        }
    }
}

/// Between refreshes the rotation of an earlier step is held, and is not the best one any more.
#[test]
fn a_symmetry_loss_with_its_rotation_held_has_the_gradient_of_its_differences() {
    let head = head(ModeKind::Untied);
    let mut config = config();
    (config.aux.symmetry, config.aux.symmetry_refresh) = (0.3, 50);
    let mut memory = None;
    aux(&model_of(&with(ModeKind::Untied, |_| ()), DType::F64), &config, 1, &mut memory, false);
    let held = memory.expect("the rotation of step 1");
    let of = |model: &Model| {
        let mut memory = Some(held.clone());
        let found = aux(model, &config, 2, &mut memory, false);
        assert_eq!(host(&memory.unwrap()), host(&held), "step 2 refreshes nothing");
        found
    };
    let base = shaken(&head, DType::F64);
    let at_a_refresh = aux(&base, &config, 1, &mut None, false).0;
    assert!(of(&base).0 > at_a_refresh * (1.0 + 1e-6), "the held rotation is the best one");
    let found = base.interface.pullback(of(&base).1.gradient).into_iter().map(Sides::sum);
    for (parameter, gradient) in found.enumerate() {
        let direction = direction(gradient.dims(), parameter);
        let loss = |by: f64| of(&moved(&head, parameter, &direction, by)).0;
        let expected = (loss(1e-5) - loss(-1e-5)) / 2e-5;
        let along = host(&(gradient * direction)).iter().sum::<f64>();
        assert!((along - expected).abs() < 1e-8 * (expected.abs() + 1.0), "{parameter}: {along} {expected}");
    }
}

fn length(t: &Tensor<2>) -> f64 {
    host(t).iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The update that completes step 1 of a mode, and the model after it.
fn first_step(head: &HeadConfig, change: impl Fn(&mut RunConfig)) -> (tiebreak_train::step::Update, Model) {
    let (mut config, mut model) = (config(), model_of(head, DType::F64));
    change(&mut config);
    let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
    let found = gradients(&model, &[batch(3, "rules")], 1.0, Precision::F32, true);
    let done = update(&mut model, &mut adam, &mut Memory::default(), found, &config, 1, false);
    (done, model)
}

#[test]
fn rules_weigh_the_sides_as_they_say() {
    use tiebreak_train::intervene::Place;
    let tied = head(ModeKind::Tied);
    let whole = gradients(&model_of(&tied, DType::F64), &[batch(3, "rules")], 1.0, Precision::F32, true).whole.unwrap();
    let (input, output) = (length(&whole.input_vd), length(&whole.output_vd));
    assert!((input / output - 1.0).abs() > 1e-3, "sides that are equal from the start show nothing");

    let balanced = first_step(&tied, |c| c.intervene.balance_target = 2.0).0.factors;
    assert!((balanced.input * input / (balanced.output * output) - 2.0).abs() < 1e-12, "{balanced:?}");
    assert_eq!(balanced.output, 1.0);

    let multiple = 0.5 * output / input;
    let clipped = |c: &mut RunConfig| {
        c.intervene.output_clip = multiple;
        c.intervene.position = Place::AfterClip;
    };
    let (done, clipped) = first_step(&tied, clipped);
    assert!((done.factors.output - 0.5).abs() < 1e-12 && done.factors.input == 1.0, "{:?}", done.factors);
    let plain = first_step(&tied, |_| ()).1;
    for (a, b) in clipped.trunk.parameters().iter().zip(plain.trunk.parameters()) {
        assert_eq!(host(&a.value), host(&b.value), "{}: the clip of the output side reaches the table alone", a.path);
    }
    assert_ne!(host(&clipped.interface.pair().input_vd), host(&plain.interface.pair().input_vd));

    // The shortest mixture of what reaches the shared columns, which are the first five of `partial`.
    for (mode, columns) in [(ModeKind::Tied, D), (ModeKind::Partial, 5)] {
        let head = head(mode);
        let whole =
            gradients(&model_of(&head, DType::F64), &[batch(3, "rules")], 1.0, Precision::F32, true).whole.unwrap();
        let part = |g: &Tensor<2>| host(&g.clone().slice([0..V, 0..columns]));
        let (a, b) = (part(&whole.input_vd), part(&whole.output_vd));
        let squared = |g: f64| a.iter().zip(&b).map(|(a, b)| (g * a + (1.0 - g) * b).powi(2)).sum::<f64>();
        let learned = first_step(&head, |c| c.intervene.learned = true).0.factors;
        assert!((learned.input + learned.output - 2.0).abs() < 1e-12, "{learned:?}");
        let g = learned.input / 2.0;
        assert!(g > 0.01 && g < 0.99, "{mode:?}: an end of the range shows little: {g}");
        assert!(squared(g) < squared(g + 1e-4).min(squared(g - 1e-4)), "{mode:?}: {g}");
    }
}

#[test]
fn rules_rest_once_nothing_is_shared() {
    let head = with(ModeKind::TieThenUntie, |h| h.untie_at = 1.0);
    for (name, rule) in [
        ("balance", (|c| c.intervene.balance_target = 1.0) as fn(&mut RunConfig)),
        ("learned", |c| c.intervene.learned = true),
        ("output_clip", |c| c.intervene.output_clip = 0.1),
    ] {
        let (mut config, mut model) = (config(), model_of(&head, DType::F64));
        rule(&mut config);
        let (mut adam, mut memory) = (AdamW::new(config.optim.betas, config.optim.eps), Memory::default());
        let factors: Vec<_> = (1..=2)
            .map(|step| {
                let found = gradients(&model, &[batch(3, &format!("rest {step}"))], 1.0, Precision::F32, true);
                update(&mut model, &mut adam, &mut memory, found, &config, step, false).factors
            })
            .collect();
        assert_ne!(factors[0], tiebreak_train::intervene::Factors::NONE, "{name}");
        assert_eq!(factors[1], tiebreak_train::intervene::Factors::NONE, "{name}");
    }
}

/// Looked-up vectors are brought to a root mean square of 1, then scaled: 3 and 4 have 5 / sqrt(2).
#[test]
fn looked_up_vectors_are_normed_and_then_scaled() {
    let entered = |norm: bool, scale: f64| {
        let shape = ModelConfig { d_model: 2, n_layers: 1, n_heads: 1, d_ff: 4, ..ModelConfig::default() };
        let shape = ModelConfig { embed_norm: norm, embed_scale: scale, norm_eps: 0.0, ..shape };
        let at = Placement { device: Device::flex(), dtype: DType::F64 };
        let model = Model::init(&shape, &head(ModeKind::Tied), V, T, 3, &at);
        let x = Tensor::<3>::from_data([[[3.0f64, 4.0]]], (&Device::flex(), DType::F64));
        host(&model.trunk.states(x)[0])
    };
    let rms = 5.0 / 2f64.sqrt();
    for (norm, scale, expected) in [
        (false, 1.0, [3.0, 4.0]),
        (false, 2.5, [7.5, 10.0]),
        (true, 1.0, [3.0 / rms, 4.0 / rms]),
        (true, 2.5, [7.5 / rms, 10.0 / rms]),
    ] {
        let found = entered(norm, scale);
        assert!(relative(&found, &expected) < 1e-12, "{norm} {scale}: {found:?}");
    }
}

/// Norm and scale of looked-up vectors, through the whole step: G_in is that of the raw table.
#[test]
fn a_normed_and_scaled_lookup_has_the_gradient_of_its_differences() {
    let shape = ModelConfig { embed_norm: true, embed_scale: 3.0, ..shape() };
    let at = Placement { device: Device::flex(), dtype: DType::F64 };
    let batch = batch(2, "entered");
    let loss_and_gradient = |by: f64| {
        let mut model = Model::init(&shape, &head(ModeKind::Untied), V, T, 3, &at);
        let direction = direction([V, D], 0);
        model.visit(&mut |p, role| {
            if role == Some(Role::Input) {
                p.value = p.value.clone() + direction.clone().mul_scalar(by);
            }
        });
        let found = gradients(&model, std::slice::from_ref(&batch), 1.0, Precision::F32, true);
        (found.loss(), host(&(found.whole.unwrap().input_vd * direction)).iter().sum::<f64>())
    };
    let along = loss_and_gradient(0.0).1;
    let expected = (loss_and_gradient(1e-6).0 - loss_and_gradient(-1e-6).0) / 2e-6;
    assert!((along - expected).abs() < 1e-8 * (expected.abs() + 1.0) && along != 0.0, "{along} {expected}");
}

#[test]
fn scales_do_not_touch_an_auxiliary_loss() {
    let moments = |scale: f64, place: tiebreak_train::intervene::Place| {
        let mut config = config();
        config.optim.clip_norm = 0.0;
        config.aux.reconstruction = 0.5;
        config.intervene.input_scale = scale.into();
        config.intervene.output_scale = scale.into();
        config.intervene.position = place;
        let mut model = model(ModeKind::Tied, DType::F64);
        let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
        let found = gradients(&model, &[batch(3, "aux")], 1.0, Precision::F32, true);
        let done = update(&mut model, &mut adam, &mut Memory::default(), found, &config, 1, true);
        let [input, output] = done.auxiliary.unwrap().1.unwrap();
        assert!(input > 0.0 && output > 0.0);
        host(&adam.moments()["table"].first)
    };
    use tiebreak_train::intervene::Place::*;
    let [none, one, two] = [0.0, 1.0, 2.0].map(|scale| moments(scale, BeforeClip));
    // The part that is left without the sides is the auxiliary one: 2 (aux + sides) - (aux + 2 sides) = aux.
    let left: Vec<f64> = one.iter().zip(&two).map(|(one, two)| 2.0 * one - two).collect();
    assert!(relative(&left, &none) < 1e-12 && none.iter().any(|x| *x != 0.0));
    assert!(relative(&moments(2.0, AfterClip), &two) < 1e-12);
}

#[test]
fn logits_of_factors_bias_and_softcap_are_those_of_the_formed_table() {
    for head in mapped_heads() {
        let model = shaken(&head, DType::F64);
        let values = Stream::new(8, "states").normals(5 * D, 1.0, None);
        let h_nd = Tensor::<2>::from_data(TensorData::new(values, [5, D]), (&Device::flex(), DType::F64));
        let tables = model.interface.tables();
        let raw_nv = h_nd.clone().matmul(model.interface.pair().output_vd.transpose());
        let raw: Vec<f64> = match &tables.bias_1v {
            Some(bias_1v) => host(&(raw_nv + bias_1v.clone())),
            None => host(&raw_nv),
        };
        let c = head.logit_softcap;
        let expected: Vec<f64> = raw.into_iter().map(|x| if c > 0.0 { c * (x / c).tanh() } else { x }).collect();
        let forms: [fn(&Table) -> Table; 3] = [|t| t.clone(), |t| Table::whole(t.formed()), |t| t.for_head(1 << 20)];
        for form in forms {
            let head_of = Head::new(&tables, &model.logit_map, form);
            assert!(relative(&host(&head_of.logits(h_nd.clone())), &expected) < 1e-12, "{head:?}");
            // The loss is that of the same logits.
            let targets = Tensor::<1, Int>::from_data([3, 0, 22, 7, 7], &Device::flex());
            let nats = host(&head_of.nats(&h_nd, targets));
            for ((row, target), nats) in expected.chunks(V).zip([3, 0, 22, 7, 7]).zip(nats) {
                let sum = row.iter().map(|x| x.exp()).sum::<f64>().ln();
                assert!((sum - row[target] - nats).abs() < 1e-12, "{head:?}");
            }
            let taped = Tensor::from_inner(h_nd.clone()).require_grad();
            assert!(head_of.logits(taped).is_autodiff(), "lenses train through it");
        }
    }
}

#[test]
fn tables_in_factors_are_formed_only_where_that_is_cheaper_or_asked_for() {
    let formed = |mode: ModeKind, sequences: usize, whole: bool| {
        gradients(&model(mode, DType::F32), &[batch(sequences, "formed")], 1.0, Precision::F32, whole).whole.is_some()
    };
    // 21 and 28 tokens, around V = 23.
    for (mode, few, many) in [(ModeKind::Tied, true, true), (ModeKind::Factorised, false, false)] {
        assert_eq!((formed(mode, 3, false), formed(mode, 4, false)), (few, many), "{mode:?}");
        assert!(formed(mode, 3, true));
    }
    // A square map is cheaper in factors up to V tokens; the input side of `projected` has none.
    assert!(!formed(ModeKind::Projected, 3, false) && formed(ModeKind::Projected, 4, false));
}

#[test]
fn operations_are_counted_by_factor() {
    use ModeKind::*;
    let flops = |head: &HeadConfig| shape().flops_per_token(head, V, T, 100);
    let (tied, v, d) = (flops(&head(Tied)), V, D);
    for mode in [Untied, Partial, DualHead, TieThenUntie, TiedBias, PartialRows] {
        assert_eq!(flops(&head(mode)), tied, "{mode:?}");
    }
    assert_eq!(flops(&head(Projected)), tied + 6 * d * d);
    assert_eq!(flops(&head(Factorised)), tied - 6 * v * d + 6 * (v * 3 + 2 * 3 * d));
    assert_eq!(flops(&head(LowRankPrivate)), tied + 2 * 6 * v * 3 * d / 100);
    // d = 12: T is formed with 4 levels of blocks, 10 products, twice; 124 products of d x d in the retraction, 4 in the pullback.
    assert_eq!(
        flops(&head(PseudoInverse)),
        tied + 6 * 2 * d * d + 2 * (4 * v * d * d + (120 + 4 + 2 * 10) * d * d * d) / 100
    );
    let mut config = config();
    (config.model, config.data.context_length, config.train.batch_size) = (shape(), 10, 10);
    let plain = config.flops_per_token(V);
    config.aux.reconstruction = 0.1;
    assert_eq!(config.flops_per_token(V), plain + 2 * 3 * 256 * v * d / 100);
    (config.aux.reconstruction, config.aux.symmetry, config.aux.symmetry_refresh) = (0.0, 0.1, 1);
    assert_eq!(config.flops_per_token(V), plain + 2 * (3 * v * d * d + 80 * d * d * d) / 100);
}

/// At a size that is trained: T and the retraction in f32.
#[test]
fn a_pseudo_inverse_of_usual_size_stays_one() {
    let (v, d) = (3144, 128);
    let shape = ModelConfig { d_model: d, n_layers: 1, n_heads: 2, d_ff: 64, ..ModelConfig::default() };
    let head = head(ModeKind::PseudoInverse);
    let mut model = Model::init(&shape, &head, v, T, 3, &Placement::f32(&Device::flex()));
    let mut config = config();
    config.optim.lr = 6e-3;
    let (mut adam, mut memory) = (AdamW::new(config.optim.betas, config.optim.eps), Memory::default());
    for step in 1..=40 {
        let found = gradients(&model, &[batch(4, &format!("usual {step}"))], 1.0, Precision::F32, false);
        update(&mut model, &mut adam, &mut memory, found, &config, step, false);
    }
    let pair = model.interface.pair();
    let product_dd = product(&pair.output_vd, &pair.input_vd, Transposed::First);
    let off = length(&(product_dd - Tensor::<2>::eye(d, &Device::flex())));
    assert!(off < 1e-3, "|U^T E - I| = {off:e}");
}

#[test]
fn every_mode_says_what_it_shares() {
    for head in heads() {
        let said = head.describe(3144, 128);
        assert!(said.starts_with(&format!("{}: ", head.mode_name())), "{said}");
        assert!(said.contains("[3144, ") || said.contains(", 128]"), "shapes: {said}");
        assert!(!said.contains("  ") && !said.ends_with('.'), "{said}");
        // At a limit that is `tied`, nothing is said of parts that do not exist.
        if head.one_matrix(V, D) && !matches!(head.mode, ModeKind::Tied | ModeKind::Factorised | ModeKind::TiedBias) {
            let said = head.describe(V, D);
            assert!(said.ends_with("as in tied") && !said.contains(", 0]"), "{said}");
        }
    }
}
