//! Every operation, forward and, where it has one, backward, over sizes: a line of costs per element or product should have no
//! cliff. Left out: linear_add, which is timed behind an activation; rotate, which is timed in attention; inject and same_buffer,
//! which have no loops.
//!
//! Run      cargo bench -p tiebreak-kernels -- cross_entropy
//! Paths    TIEBREAK_SIMD=avx512|avx2|plain chooses the loops, off the composition. bf16 is timed where it is faster than f32.

use std::hint::black_box;
use std::time::Duration;

use burn::tensor::{Device, Int, Tensor, TensorData};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tiebreak_kernels::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tokens, or rows, of every bench.
const N: usize = 1024;
const VOCABULARIES: [usize; 6] = [256, 1000, 3144, 8192, 16384, 50257];
const WIDTHS: [usize; 7] = [64, 100, 128, 256, 384, 512, 1024];

fn random(rows: usize, columns: usize) -> Tensor<2> {
    let mut state = (rows * columns) as u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1u64 << 31) as f32 - 0.5
    };
    let values: Vec<f32> = (0..rows * columns).map(|_| next()).collect();
    Tensor::from_data(TensorData::new(values, [rows, columns]), &Device::flex())
}

fn leaf(rows: usize, columns: usize) -> Tensor<2> {
    Tensor::from_inner(random(rows, columns)).require_grad()
}

fn ids(v: usize) -> Tensor<1, Int> {
    let list: Vec<i32> = (0..N as i32).map(|i| i * 7919 % v as i32).collect();
    Tensor::from_data(TensorData::new(list, [N]), &Device::flex())
}

fn precisions() -> impl Iterator<Item = (&'static str, Precision)> {
    let bf16 = Bf16Kernel::fastest().map(|kernel| (kernel.name(), Precision::Bf16(kernel)));
    std::iter::once(("f32", Precision::F32)).chain(bf16)
}

/// Times the operation with its backward pass; throughput in the given units (floating-point operations or elements).
fn both(c: &mut Criterion, group: &str, id: BenchmarkId, units: usize, f: impl Fn() -> Tensor<2>) {
    let [rows, columns] = f().dims();
    let dy = random(rows, columns);
    let mut group = c.benchmark_group(group);
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
    group.throughput(Throughput::Elements(units as u64));
    group.bench_function(id, |b| b.iter(|| black_box(inject(f(), dy.clone()).backward())));
}

fn once<R>(c: &mut Criterion, group: &str, id: BenchmarkId, units: usize, f: impl FnMut() -> R) {
    let mut group = c.benchmark_group(group);
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
    group.throughput(Throughput::Elements(units as u64));
    let mut f = f;
    group.bench_function(id, |b| b.iter(|| black_box(f())));
}

fn head(c: &mut Criterion) {
    let sizes = VOCABULARIES.map(|v| (v, 128)).into_iter().chain(WIDTHS.map(|d| (4096, d)));
    for (v, d) in sizes {
        let (h, u, targets) = (random(N, d), random(v, d), ids(v));
        let id = |name| BenchmarkId::new(name, format!("v{v} d{d}"));
        for (name, precision) in precisions() {
            once(c, "cross_entropy_gradients", id(name), 6 * N * v * d, || {
                cross_entropy_gradients(h.clone(), &u, targets.clone(), 1.0, precision)
            });
        }
        once(c, "cross_entropy", id("f32"), 2 * N * v * d, || cross_entropy(h.clone(), &u, targets.clone()));
    }
}

fn trunk(c: &mut Criterion) {
    for d in WIDTHS {
        let (x, residual, u) = (leaf(N, d), leaf(N, d), leaf(N, 4 * d));
        let (w, down, gain) = (leaf(d, 4 * d), leaf(4 * d, d), leaf(1, d));
        let id = |name| BenchmarkId::new(name, format!("d{d}"));
        for (name, precision) in precisions() {
            both(c, "linear", id(name), 24 * N * d * d, || linear(x.clone(), &w, precision));
            both(c, "norm_linear", id(name), 24 * N * d * d, || {
                norm_linear(NormKind::Rms, x.clone().reshape([1, N, d]), 1e-5, Some(&gain), None, &w, precision)
            });
            both(c, "activation_linear_add", id(name), 24 * N * d * d, || {
                activation_linear_add(residual.clone(), Activation::Gelu, u.clone(), &down, precision)
            });
            // Heads of 32 over contexts of 256, as far as they go; two products forward, five backward, half of each masked.
            let (t, heads) = (256, d.div_ceil(32));
            let qkv = leaf(N, 3 * 32 * heads);
            both(c, "attention", id(name), 7 * N * t * 32 * heads, || {
                let qkv = qkv.clone().reshape([(N / t) as i32, t as i32, -1]);
                attention(qkv, heads, None, precision).reshape([N, 32 * heads])
            });
        }
        both(c, "norm", id("rms"), N * d, || {
            norm(NormKind::Rms, x.clone().reshape([1, N, d]), 1e-5, Some(&gain), None).reshape([N, d])
        });
        both(c, "activation", id("gelu"), 4 * N * d, || Activation::Gelu.apply(u.clone()));
        both(c, "activation", id("swiglu"), 2 * N * d, || Activation::Swiglu.apply(u.clone()));
    }
}

fn table(c: &mut Criterion) {
    let sizes = VOCABULARIES.map(|v| (v, 128)).into_iter().chain(WIDTHS.map(|d| (4096, d)));
    for (v, d) in sizes {
        let (rows, a, b) = (random(N, d), random(v, d), random(v, d).add_scalar(0.1));
        let id = |name| BenchmarkId::new(name, format!("v{v} d{d}"));
        once(c, "scatter_add", id("new"), v * d, || scatter_add(None, v, ids(v), &rows));
        once(c, "row_products", id("f32"), v * d, || row_products(&a, &b));
        once(c, "squares", id("f32"), v * d, || squares([&a].into_iter()));
        let mut state = Some((a.clone().add_scalar(0.0), (a.zeros_like(), a.zeros_like())));
        let mut step = AdamWStep { betas: [0.9, 0.95], eps: 1e-8, factor: 1.0, lr: 1e-3, decay: 0.1, step: 0 };
        once(c, "adamw", id("f32"), v * d, || {
            step.step += 1;
            let (value, moments) = state.take().expect("put back below");
            let (value, first, second) = adamw(value, Some(moments), b.clone(), step);
            state = Some((value, (first, second)));
        });
        let (first, second, step) = (a.clone(), b.clone().powi_scalar(2), AdamWStep { step: 10, ..step });
        let mut part = Some(a.clone().add_scalar(0.0));
        once(c, "attribute", id("f32"), v * d, || {
            let mut reads = Reads::default();
            let (input, moving) = attribute((&first, &second), part.take(), &b, step, Some(&mut reads));
            part = Some(input);
            moving.map(|moving| moving.read(&reads))
        });
        once(c, "update_square", id("f32"), v * d, || {
            let mut reads = Reads::default();
            update_square(&first, &second, step, &mut reads).read(&reads)
        });
    }
}

/// Two lenses beside the final state.
fn lenses(c: &mut Criterion) {
    let sizes = VOCABULARIES.map(|v| (v, 128)).into_iter().chain(WIDTHS.map(|d| (4096, d)));
    for (v, d) in sizes {
        let (h, head, inputs) = (random(N, d), LogitHead::new(random(v, d)), ids(v));
        let lenses = [h.clone().mul_scalar(0.5), h.clone().add_scalar(0.1)];
        let sources = lenses.clone().map(Source::States);
        let id = |name| BenchmarkId::new(name, format!("v{v} d{d}"));
        once(c, "lens_kl", id("f32"), 6 * N * v * d, || lens_kl(&h, &lenses, &head));
        once(c, "lens_gradients", id("f32"), 10 * N * v * d, || {
            lens_gradients(&h, &lenses, &head, 1.0, &mut |_, _| {})
        });
        once(c, "readings", id("f32"), 6 * N * v * d, || readings(&h, &sources, &head, &inputs, None));
    }
}

criterion_group!(benches, head, trunk, table, lenses);
criterion_main!(benches);
