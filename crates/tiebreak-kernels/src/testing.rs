//! Comparison of native kernels with the composition in f64.

use std::sync::{Mutex, MutexGuard};

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::matrix::Bf16Kernel;
use crate::simd::{Level, force};

/// The bf16 kernels that the processor has.
pub(crate) fn available_kernels() -> impl Iterator<Item = Bf16Kernel> {
    [Bf16Kernel::Amx, Bf16Kernel::Avx512, Bf16Kernel::Plain].into_iter().filter(|k| k.available())
}

/// x to the nearest bf16, ties to even, by arithmetic: 8 bits of mantissa.
pub(crate) fn rounded(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let unit = (x.abs().log2().floor() - 7.0).exp2();
    (x / unit).round_ties_even() * unit
}

/// Which loops are used is one choice for the process.
static LEVEL: Mutex<()> = Mutex::new(());

/// For a test that compares bits: until it is dropped no other test changes the loops.
pub(crate) fn one_level() -> MutexGuard<'static, ()> {
    LEVEL.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs a test with the loops of every instruction set that the processor has.
pub(crate) fn at_every_level(test: impl Fn()) {
    let _one = one_level();
    for level in [Level::Avx512, Level::Avx2, Level::Plain] {
        force(Some(level));
        test();
    }
    force(None);
}

/// Values of a matrix and its shape.
pub(crate) type Values = (Vec<f64>, [usize; 2]);

/// Repeatable values, roughly normal (a sum of uniform ones), rounded to f32 so that both paths see the same.
pub(crate) fn normal(shape: [usize; 2], scale: f64) -> Values {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ ((shape[0] as u64) << 32 | shape[1] as u64) ^ scale.to_bits();
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    };
    let mut one = || (0..6).map(|_| uniform()).sum::<f64>() * 2f64.sqrt();
    ((0..shape[0] * shape[1]).map(|_| (one() * scale) as f32 as f64).collect(), shape)
}

pub(crate) fn matrix_f32(values: &[f32], shape: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), (&Device::flex(), DType::F32))
}

pub(crate) fn matrix((values, shape): &Values, dtype: DType) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.clone(), *shape), (&Device::flex(), dtype))
}

pub(crate) fn host<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

/// |found - expected| / |expected| in L2; the absolute distance where nothing is expected.
pub(crate) fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    match norm(&mut expected.iter().copied()) {
        0.0 => difference,
        length => difference / length,
    }
}

/// Result and gradients of <f(inputs), fixed weights>.
fn run(inputs: &[Values], dtype: DType, f: &impl Fn(&[Tensor<2>]) -> Tensor<2>) -> Vec<Vec<f64>> {
    let leaves: Vec<Tensor<2>> = inputs.iter().map(|v| Tensor::from_inner(matrix(v, dtype)).require_grad()).collect();
    let y = f(&leaves);
    let mut found = vec![host(&y.clone().inner())];
    if found[0].is_empty() && dtype == DType::F64 {
        // Burn does not track a composition of nothing.
        return found;
    }
    let weights = Tensor::from_inner(matrix(&normal(y.dims(), 0.9), dtype));
    let tape = (y * weights).sum().backward();
    found.extend(leaves.iter().map(|x| host(&x.grad(&tape).expect("every input is used"))));
    // Without a tape the same kernel must give the same values.
    let plain: Vec<Tensor<2>> = inputs.iter().map(|v| matrix(v, dtype)).collect();
    assert!(dtype == DType::F64 || host(&f(&plain)) == found[0], "the tape changes no bit");
    found
}

/// Compares values and all gradients of the native path (f32) with the composition (f64).
pub(crate) fn against_f64(inputs: &[Values], tolerance: f64, f: impl Fn(&[Tensor<2>]) -> Tensor<2>) {
    let (found, expected) = (run(inputs, DType::F32, &f), run(inputs, DType::F64, &f));
    for (which, (a, b)) in found.iter().zip(&expected).enumerate() {
        let d = distance(a, b);
        assert!(
            d <= tolerance,
            "{:?}: {} {d:e}",
            inputs.iter().map(|i| i.1).collect::<Vec<_>>(),
            match which {
                0 => "value".into(),
                i => format!("gradient {i}"),
            }
        );
    }
}
