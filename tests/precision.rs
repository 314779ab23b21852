//! Whole steps on fused operations, against the composition, and in bf16.

use burn::tensor::{DType, Device};
use tiebreak_kernels::{Bf16Kernel, Precision};
use tiebreak_model::interface::{HeadConfig, ModeKind};
use tiebreak_model::trunk::mlp::MlpKind;
use tiebreak_model::trunk::norm::NormKind;
use tiebreak_model::trunk::position::PositionKind;
use tiebreak_model::{Model, ModelConfig, Placement};
use tiebreak_train::config::RunConfig;
use tiebreak_train::optim::AdamW;
use tiebreak_train::step::{Memory, MicroBatch, gradients, host, update};

const V: usize = 700;
const T: usize = 40;

/// Losses of `steps` steps, and the parameters after them.
fn run(shape: &ModelConfig, dtype: DType, precision: Precision, steps: u64) -> (Vec<f64>, Vec<f64>) {
    run_head(shape, &HeadConfig::default(), dtype, precision, steps)
}

fn run_head(
    shape: &ModelConfig,
    head: &HeadConfig,
    dtype: DType,
    precision: Precision,
    steps: u64,
) -> (Vec<f64>, Vec<f64>) {
    let at = Placement { device: Device::flex(), dtype };
    let mut model = Model::init(shape, head, V, T, 0, &at);
    let mut config = RunConfig::default();
    config.schedule.warmup_steps = 0;
    let (mut adam, mut memory) = (AdamW::new([0.9, 0.95], 1e-8), Memory::default());
    let mut losses = Vec::new();
    for step in 1..=steps {
        let ids = |k: i64| (0..15 * T as i64).map(|i| ((i * i * k + i * step as i64) % V as i64) as i32).collect();
        let batch = MicroBatch { inputs: ids(3), targets: ids(7), context: T };
        let found = gradients(&model, &[batch], 1.0, precision, step % 2 == 0);
        losses.push(found.loss());
        let done = update(&mut model, &mut adam, &mut memory, found, &config, step, step % 2 == 0);
        assert!(done.nonfinite.is_empty());
    }
    (losses, model.parameters().iter().flat_map(|p| host(&p.value)).collect())
}

/// The default block, and one of the other parts.
fn shapes() -> [ModelConfig; 2] {
    let shape = ModelConfig { d_model: 48, n_layers: 2, n_heads: 2, d_ff: 100, ..ModelConfig::default() };
    let other =
        ModelConfig { mlp: MlpKind::Gelu, norm: NormKind::Rms, position: PositionKind::Learned, ..shape.clone() };
    [shape, other]
}

fn bf16() -> Precision {
    Precision::Bf16(Bf16Kernel::fastest().unwrap_or(Bf16Kernel::Plain))
}

/// The largest relative distance of losses.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max)
}

#[test]
fn fused_steps_follow_the_composition_in_f64() {
    for shape in shapes() {
        let (fused, _) = run(&shape, DType::F32, Precision::F32, 25);
        let (composed, _) = run(&shape, DType::F64, Precision::F32, 25);
        let distance = apart(&fused, &composed);
        assert!(distance < 2e-6, "{distance:e}");
        assert!(composed[24] < composed[0], "{composed:?}");
    }
}

#[test]
fn bf16_steps_stay_near_f32() {
    for shape in shapes() {
        let (rounded, _) = run(&shape, DType::F32, bf16(), 25);
        let (exact, _) = run(&shape, DType::F32, Precision::F32, 25);
        let distance = apart(&rounded, &exact);
        assert!(distance < 2e-3 && rounded != exact, "{distance:e}");
    }
}

#[test]
fn bf16_steps_of_every_head_stay_near_f32() {
    let [shape, _] = shapes();
    for mode in ModeKind::ALL {
        for (logit_softcap, z_loss) in [(0.0, 0.0), (5.0, 1e-3)] {
            let mut head = HeadConfig { mode, logit_softcap, z_loss, ..HeadConfig::default() };
            head.shared_width = if head.uses("shared_width") { 20 } else { head.shared_width };
            head.rows = if head.uses("rows") { 300 } else { head.rows };
            head.validate(V, 48).unwrap();
            let of = |precision| run_head(&shape, &head, DType::F32, precision, 5).0;
            let (rounded, exact) = (of(bf16()), of(Precision::F32));
            let distance = apart(&rounded, &exact);
            assert!(distance < 2e-3 && rounded != exact, "{head:?}: {distance:e}");
        }
    }
}

#[test]
fn thread_count_changes_no_bit_of_a_bf16_step() {
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| shapes().map(|shape| run(&shape, DType::F32, bf16(), 3)))
    };
    let one = on(1);
    assert_eq!(one, on(2));
    assert_eq!(one, on(3));
}
