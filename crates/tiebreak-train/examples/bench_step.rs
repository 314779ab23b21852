//! Training throughput on the CPU, one side of scripts/bench_pytorch.py: the same shapes, weights, tokens and optimiser.
//!
//! Run      cargo run --release -p tiebreak-train --example bench_step -- --d-model 128 --layers 4 --heads 4 --context 128
//!          --batch 32 --vocab 3144 --head tied --block default --precision bf16
//! Paths    TIEBREAK_SIMD=avx512|avx2|plain chooses the loops, off the composition of tensor operations.
//! Measures whole optimiser steps: forward, head, backward, clip at 1.0, AdamW with a constant rate. No data loading or logging.
//!          Every second step also measures provenance; its steps are summarised apart, as differences of neighbours. Then
//!          passes of the evaluation: forward and loss without a tape, in f32.
//! Writes   with --export FILE the initial weights, as safetensors.
//! Prints   one JSON object. Medians leave out the warm-up steps; peak_rss_mb (MiB) is of the whole process, before evaluation.

use std::time::Instant;

use burn::tensor::Device;
use tiebreak_kernels::{Bf16Kernel, Precision};
use tiebreak_model::interface::{HeadConfig, ModeKind};
use tiebreak_model::trunk::mlp::MlpKind;
use tiebreak_model::trunk::norm::NormKind;
use tiebreak_model::trunk::position::PositionKind;
use tiebreak_model::{Model, ModelConfig, Placement};
use tiebreak_train::config::{RunConfig, ScheduleKind};
use tiebreak_train::evaluate::{TargetInfo, evaluate};
use tiebreak_train::optim::AdamW;
use tiebreak_train::step::{Memory, MicroBatch, gradients, update};
use tiebreak_train::tensors;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args();
    arguments.find(|a| a == &format!("--{name}"))?;
    arguments.next()
}

fn number(name: &str, default: usize) -> usize {
    option(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("--{name} {text}: expected a number")))
}

fn median(mut ms: Vec<f64>) -> f64 {
    ms.sort_by(f64::total_cmp);
    ms[ms.len() / 2]
}

fn main() {
    tiebreak_kernels::keep_memory();
    let (layers, heads, d) = (number("layers", 4), number("heads", 4), number("d-model", 128));
    let (context, batch, vocabulary) = (number("context", 128), number("batch", 32), number("vocab", 3144));
    let (steps, warmup) = (number("steps", 20), number("warmup", 4));
    let head = option("head").unwrap_or("tied".into());
    let block = option("block").unwrap_or("default".into());
    let mut shape = ModelConfig { d_model: d, n_layers: layers, n_heads: heads, ..ModelConfig::default() };
    if block != "default" {
        (shape.mlp, shape.position) = (MlpKind::Gelu, PositionKind::Learned);
        shape.norm = if block == "rms" { NormKind::Rms } else { NormKind::Layer };
    }
    shape.resolve();
    let named = |mode: &ModeKind| serde_json::to_value(mode).is_ok_and(|name| name == head.as_str());
    let mode = ModeKind::ALL.into_iter().find(named).unwrap_or_else(|| panic!("--head {head}: no such mode"));
    let head = HeadConfig { mode, ..HeadConfig::default() };
    let precision = match option("precision").as_deref() {
        None | Some("f32") => Precision::F32,
        Some("bf16") => Precision::Bf16(Bf16Kernel::fastest().expect("--precision bf16: no kernel on this processor")),
        Some("avx512-bf16") => Precision::Bf16(Bf16Kernel::Avx512),
        Some(other) => panic!("--precision {other}: expected f32, bf16 or avx512-bf16"),
    };
    let at = Placement::f32(&Device::flex());
    let mut model = Model::init(&shape, &head, vocabulary, context, 0, &at);
    let mut config = RunConfig::default();
    (config.optim.clip_norm, config.train.steps) = (1.0, (warmup + 2 * steps) as u64);
    (config.schedule.kind, config.schedule.warmup_steps) = (ScheduleKind::Constant, 0);
    if let Some(path) = option("export") {
        let parameters = model.parameters();
        let named = parameters.iter().map(|p| (p.path.as_str(), &p.value));
        let bytes = tensors::to_bytes(named, ("from", "bench_step".into())).expect("--export: weights are f32");
        std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("--export {path}: {e}"));
    }
    let mut adam = AdamW::new(config.optim.betas, config.optim.eps);
    let mut memory = Memory::default();
    let mut state = 1u64;
    let mut ids = |n: usize| -> Vec<i32> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as usize % vocabulary) as i32
        };
        (0..n).map(|_| next()).collect()
    };
    let (mut plain, mut measured, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    let mut losses = Vec::new();
    for step in 1..=warmup + 2 * steps {
        let tokens = MicroBatch { inputs: ids(batch * context), targets: ids(batch * context), context };
        let (start, with_provenance) = (Instant::now(), step % 2 == 0);
        let found = gradients(&model, &[tokens], 1.0, precision, with_provenance);
        let middle = start.elapsed();
        losses.push(found.loss);
        let done = update(&mut model, &mut adam, &mut memory, found, &config, step as u64, with_provenance);
        assert!(done.nonfinite.is_empty());
        let ms = 1e3 * start.elapsed().as_secs_f64();
        if step > warmup {
            if with_provenance { &mut measured } else { &mut plain }.push(ms);
            if !with_provenance {
                parts.push(ms - 1e3 * middle.as_secs_f64());
            }
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).and_then(|l| l.split_whitespace().next());
    let info = TargetInfo { bytes: vec![1; vocabulary], deciles: vec![0; vocabulary] };
    let evaluation: Vec<f64> = (0..steps.div_ceil(2) + 1)
        .map(|_| {
            let tokens = MicroBatch { inputs: ids(batch * context), targets: ids(batch * context), context };
            let start = Instant::now();
            assert!(evaluate(&model, [tokens].into_iter(), &info).loss().is_finite());
            1e3 * start.elapsed().as_secs_f64()
        })
        .skip(1)
        .collect();
    let least = plain.iter().copied().fold(f64::INFINITY, f64::min);
    let costs: Vec<f64> = plain.iter().zip(&measured).map(|(without, with)| with - without).collect();
    let step = median(plain);
    println!(
        "{}",
        serde_json::json!({
            "tokens_per_second": (batch * context) as f64 / step * 1e3,
            "median_step_ms": step,
            "min_step_ms": least,
            "update_ms": median(parts),
            "provenance_ms": median(costs),
            "evaluation_tokens_per_second": (batch * context) as f64 / median(evaluation) * 1e3,
            "peak_rss_mb": peak.and_then(|kib| kib.parse::<f64>().ok()).map(|kib| kib / 1024.0),
            "losses": losses,
            "products": precision.describe(),
            "threads": rayon::current_num_threads(),
            "head": head,
            "block": block,
            "parameters": model.parameters().iter().map(|p| p.value.dims().iter().product::<usize>()).sum::<usize>(),
        })
    );
}
