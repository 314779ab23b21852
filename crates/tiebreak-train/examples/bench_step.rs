//! Training throughput, one side of scripts/bench_pytorch.py: the same shapes, weights, tokens and optimiser.
//!
//! Run      cargo run --release -p tiebreak-train --example bench_step -- --d-model 128 --layers 4 --heads 4 --context 128
//!          --batch 32 --vocab 3144 --head tied --block default --precision bf16
//! Paths    TIEBREAK_SIMD=avx512|avx2|plain chooses the loops, off the composition of tensor operations.
//! Measures whole optimiser steps without provenance: forward, head, backward, clip at 1.0, AdamW with a constant rate. No data
//!          loading or logging. Then passes of the evaluation: forward and loss without a tape, in f32.
//!          With --pairs-provenance N (20 to 1000), then, what provenance at every step costs: two models of their own, one
//!          with it and one without, take the same tokens in turn, each first in every second of the N pairs. The median of the
//!          paired differences, with a 95 % interval from their order.
//!          With --limit, how long the step's f32 products take alone, at the rate of the gemm crate: maps and head, forward and
//!          both gradients, without attention's.
//! Writes   with --export FILE the initial weights, as safetensors.
//! Devices  with --device NAME on another device than flex. With --check nothing is timed: it runs the parity suite there, prints its
//!          report as JSON and exits with 1 where it fails.
//! Prints   one JSON object. Medians leave out the warm-up steps; peak_rss_mb (MiB) is of the whole process, before evaluation.

use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use tiebreak_data::Error;
use tiebreak_kernels::{Bf16Kernel, Precision};
use tiebreak_model::interface::{HeadConfig, ModeKind};
use tiebreak_model::trunk::mlp::MlpKind;
use tiebreak_model::trunk::norm::NormKind;
use tiebreak_model::trunk::position::PositionKind;
use tiebreak_model::{Model, ModelConfig, Placement};
use tiebreak_train::config::{RunConfig, ScheduleKind};
use tiebreak_train::device::{self, DeviceSpec, Opened};
use tiebreak_train::evaluate::{TargetInfo, evaluate};
use tiebreak_train::optim::AdamW;
use tiebreak_train::step::{Memory, MicroBatch, gradients, update};
use tiebreak_train::{parity, tensors};

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
    (ms[(ms.len() - 1) / 2] + ms[ms.len() / 2]) / 2.0
}

/// The k-th smallest and the k-th largest of some 20 values or more, with the largest k for which the median lies outside with a
/// probability of at most 5 %, whatever the distribution: each value is below it with probability 1/2.
fn interval_of_median(mut ms: Vec<f64>) -> [f64; 2] {
    ms.sort_by(f64::total_cmp);
    let n = ms.len();
    let (mut k, mut probability, mut below) = (0, 0.5f64.powi(n as i32), 0.0);
    while 2.0 * (below + probability) <= 0.05 {
        below += probability;
        probability *= (n - k) as f64 / (k + 1) as f64;
        k += 1;
    }
    [ms[k - 1], ms[n - k]]
}

/// Milliseconds of every f32 product of a step but attention's, by the backend's own product.
fn products_ms(n: usize, d: usize, inner: usize, up: usize, layers: usize, vocabulary: usize) -> f64 {
    let product = |m: usize, k: usize, n: usize| {
        let at = &Device::flex();
        let tensor = |rows, columns| Tensor::<2>::random([rows, columns], Distribution::Uniform(-1.0, 1.0), at);
        let (a, b) = (tensor(m, k), tensor(k, n));
        let times = (0..4).map(|_| {
            let start = Instant::now();
            let c = a.clone().matmul(b.clone());
            let ms = 1e3 * start.elapsed().as_secs_f64();
            assert_eq!(c.dims(), [m, n]);
            ms
        });
        // The first one warms up.
        median(times.skip(1).collect())
    };
    // y = x W, dx = dy W^T, dW = x^T dy.
    let map = |from: usize, to: usize| product(n, from, to) + product(n, to, from) + product(from, n, to);
    let layer = map(d, 3 * d) + map(d, d) + map(d, up) + map(inner, d);
    layers as f64 * layer + map(d, vocabulary)
}

struct Bench {
    model: Model,
    adam: AdamW,
    memory: Memory,
    config: RunConfig,
    precision: Precision,
    step: u64,
}

/// Milliseconds.
struct Timed {
    loss: f64,
    whole: f64,
    update: f64,
}

impl Bench {
    fn step(&mut self, tokens: MicroBatch) -> Timed {
        self.step += 1;
        let (start, with_provenance) = (Instant::now(), self.config.log.provenance_every > 0);
        let found = gradients(&self.model, &[tokens], 1.0, self.precision, with_provenance);
        let middle = start.elapsed();
        let (model, adam, memory) = (&mut self.model, &mut self.adam, &mut self.memory);
        let done = update(model, adam, memory, found, &self.config, self.step, with_provenance);
        assert!(done.nonfinite.is_empty() && done.provenance.is_some() == with_provenance);
        let [whole, middle] = [start.elapsed(), middle].map(|time| 1e3 * time.as_secs_f64());
        Timed { loss: done.loss, whole, update: whole - middle }
    }
}

/// Every option; all but the last two take a value.
const OPTIONS: [&str; 16] = [
    "layers",
    "heads",
    "d-model",
    "context",
    "batch",
    "vocab",
    "steps",
    "warmup",
    "head",
    "block",
    "precision",
    "export",
    "pairs-provenance",
    "device",
    "check",
    "limit",
];

/// Refuses what would otherwise be left out in silence.
fn check_options() {
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let name = argument.strip_prefix("--").filter(|name| OPTIONS.contains(name));
        let name = name.unwrap_or_else(|| panic!("{argument}: unknown; options: --{}", OPTIONS.join(", --")));
        assert!(["check", "limit"].contains(&name) || arguments.next().is_some(), "{argument}: a value is missing");
    }
}

fn main() {
    check_options();
    tiebreak_kernels::keep_memory();
    device::without_display();
    let named = option("device").unwrap_or("flex".into()).parse::<DeviceSpec>();
    let done = named.and_then(device::open).and_then(|opened| device::caught(|| bench(&opened)));
    if let Err(e) = done {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}

fn bench(opened: &Opened) -> Result<(), Error> {
    if std::env::args().any(|a| a == "--check") {
        let report = parity::run(opened);
        println!("{}", serde_json::to_string(&report).expect("a report"));
        return if report.passed { Ok(()) } else { Err(Error::Failed("the parity suite failed".into())) };
    }
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
    let new = |provenance_every: u64| {
        let at = Placement::f32(&opened.device);
        let model = Model::init(&shape, &head, vocabulary, context, 0, &at);
        let mut config = RunConfig::default();
        (config.optim.clip_norm, config.log.provenance_every) = (1.0, provenance_every);
        (config.schedule.kind, config.schedule.warmup_steps) = (ScheduleKind::Constant, 0);
        let (adam, memory) = (AdamW::new(config.optim.betas, config.optim.eps), Memory::default());
        Bench { model, adam, memory, config, precision, step: 0 }
    };
    let mut bench = new(0);
    if let Some(path) = option("export") {
        let parameters = bench.model.parameters();
        let named = parameters.iter().map(|p| (p.path.as_str(), &p.value));
        let bytes = tensors::to_bytes(named, ("from", "bench_step".into())).expect("--export: weights are f32");
        std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("--export {path}: {e}"));
    }
    let mut state = 1u64;
    let mut ids = |n: usize| -> Vec<i32> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as usize % vocabulary) as i32
        };
        (0..n).map(|_| next()).collect()
    };
    let mut tokens = || MicroBatch { inputs: ids(batch * context), targets: ids(batch * context), context };
    let all: Vec<Timed> = (0..warmup + steps).map(|_| bench.step(tokens())).collect();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).and_then(|l| l.split_whitespace().next());
    let info = TargetInfo { bytes: vec![1; vocabulary], deciles: vec![0; vocabulary] };
    let evaluation: Vec<f64> = (0..steps.div_ceil(4) + 1)
        .map(|_| {
            let (tokens, start) = (tokens(), Instant::now());
            assert!(evaluate(&bench.model, [tokens].into_iter(), &info).loss().is_finite());
            1e3 * start.elapsed().as_secs_f64()
        })
        .skip(1)
        .collect();
    let provenance = option("pairs-provenance").map(|_| {
        let pairs = number("pairs-provenance", 0);
        assert!((20..=1000).contains(&pairs), "--pairs-provenance {pairs}: expected 20 to 1000");
        let mut both = [new(0), new(1)];
        let (mut plain, mut differences) = (Vec::new(), Vec::new());
        for pair in 0..warmup + pairs {
            let tokens = tokens();
            let mut times = [0.0; 2];
            for which in [pair % 2, 1 - pair % 2] {
                times[which] = both[which].step(tokens.clone()).whole;
            }
            if pair >= warmup {
                plain.push(times[0]);
                differences.push(times[1] - times[0]);
            }
        }
        let (step, interval) = (median(plain), interval_of_median(differences.clone()));
        let difference = median(differences);
        serde_json::json!({
            "pairs": pairs,
            "median_step_ms": step,
            "difference_ms": difference,
            "interval_ms": interval,
            "fraction": difference / step,
            "interval_fraction": interval.map(|ms| ms / step),
        })
    });
    let limit = std::env::args().any(|a| a == "--limit").then(|| {
        let up = shape.mlp.up_width() * shape.d_ff;
        products_ms(batch * context, d, shape.d_ff, up, layers, vocabulary)
    });
    let timed = || all[warmup..].iter();
    let step = median(timed().map(|t| t.whole).collect());
    println!(
        "{}",
        serde_json::json!({
            "tokens_per_second": (batch * context) as f64 / step * 1e3,
            "median_step_ms": step,
            "min_step_ms": timed().map(|t| t.whole).fold(f64::INFINITY, f64::min),
            // A GPU is only told of the gradients until the update reads.
            "update_ms": (!opened.kind.is_gpu()).then(|| median(timed().map(|t| t.update).collect())),
            "provenance": provenance,
            "products_ms": limit,
            "evaluation_tokens_per_second": (batch * context) as f64 / median(evaluation) * 1e3,
            "peak_rss_mb": peak.and_then(|kib| kib.parse::<f64>().ok()).map(|kib| kib / 1024.0),
            "losses": all.iter().map(|t| t.loss).collect::<Vec<_>>(),
            "products": opened.products(precision),
            "device": opened.name(),
            "threads": rayon::current_num_threads(),
            "head": head.mode_name(),
            "block": block,
            "parameters": bench.model.parameters().iter().map(|p| p.value.dims().iter().product::<usize>()).sum::<usize>(),
        })
    );
    Ok(())
}
