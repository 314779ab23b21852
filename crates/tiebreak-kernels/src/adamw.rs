//! AdamW over one parameter in one pass.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::flex::{contiguous, from_values, plain, shape, tensor, values, values_mut};
use crate::simd::simd;

/// Elements of a block.
pub(crate) const BLOCK: usize = 8192;

/// Factors of one update of one parameter.
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Added to the root. With 0, an element whose second moment is 0 stays where it is.
    pub eps: f64,
    /// Factor on the gradient.
    pub factor: f64,
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub decay: f64,
    /// The update this completes, from 1.
    pub step: u64,
}

/// With g the gradient times `factor`: m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
/// p = p (1 - lr decay) - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps).
///
/// Returns p and the moments (m, v); without moments they start at 0. A buffer that nobody else holds is overwritten.
/// The native path rounds as the composition does, so both give the same bits.
pub fn adamw(
    value: Tensor<2>,
    moments: Option<(Tensor<2>, Tensor<2>)>,
    gradient: Tensor<2>,
    step: AdamWStep,
) -> (Tensor<2>, Tensor<2>, Tensor<2>) {
    let native = plain(&value).is_some()
        && plain(&gradient).is_some()
        && moments.as_ref().is_none_or(|(m, v)| plain(m).is_some() && plain(v).is_some());
    if native {
        let gradient = plain(&gradient).expect("just checked");
        let zeros = || from_values(vec![0.0; values(&gradient).len()], shape(&gradient));
        let (mut m, mut v) = match moments {
            Some((m, v)) => (own(m), own(v)),
            None => (zeros(), zeros()),
        };
        let mut p = own(value);
        let factors = Factors::new(step);
        let slots = |t| values_mut(t).expect("a buffer of its own").par_chunks_mut(BLOCK);
        let state = slots(&mut p).zip(slots(&mut m)).zip(slots(&mut v));
        state.zip(values(&gradient).par_chunks(BLOCK)).for_each(|(((p, m), v), g)| update(factors, p, m, v, g));
        return (tensor(p), tensor(m), tensor(v));
    }
    composed(value, moments, gradient, step)
}

fn composed(
    mut value: Tensor<2>,
    moments: Option<(Tensor<2>, Tensor<2>)>,
    mut gradient: Tensor<2>,
    step: AdamWStep,
) -> (Tensor<2>, Tensor<2>, Tensor<2>) {
    let [b1, b2] = step.betas;
    if step.factor != 1.0 {
        gradient = gradient.mul_scalar(step.factor);
    }
    let (first, second) = match moments {
        Some((m, v)) => (
            m.mul_scalar(b1) + gradient.clone().mul_scalar(1.0 - b1),
            v.mul_scalar(b2) + gradient.clone().mul(gradient).mul_scalar(1.0 - b2),
        ),
        None => (gradient.clone().mul_scalar(1.0 - b1), gradient.clone().mul(gradient).mul_scalar(1.0 - b2)),
    };
    let root = second.clone().sqrt().div_scalar(step.correction(b2).sqrt());
    let mut change = first.clone() / root.add_scalar(step.eps);
    if step.eps == 0.0 {
        change = change.mask_fill(second.clone().equal_scalar(0.0), 0.0);
    }
    if step.decay != 0.0 {
        value = value.mul_scalar(1.0 - step.lr * step.decay);
    }
    (value - change.mul_scalar(step.rate()), first, second)
}

impl AdamWStep {
    pub(crate) fn correction(&self, beta: f64) -> f64 {
        1.0 - beta.powf(self.step as f64)
    }

    /// What an update is in units of: lr / (1 - b1^t).
    pub(crate) fn rate(&self) -> f64 {
        self.lr / self.correction(self.betas[0])
    }
}

/// A buffer that may be overwritten: the tensor's own if nobody else holds it.
pub(crate) fn own(t: Tensor<2>) -> FlexTensor {
    let mut t = contiguous(t.try_into_primitive::<Flex>().expect("checked by the caller"));
    if values_mut(&mut t).is_none() {
        t = from_values(values(&t).to_vec(), shape(&t));
    }
    t
}

#[derive(Clone, Copy)]
pub(crate) struct Factors {
    pub(crate) b1: f32,
    b2: f32,
    pub(crate) rest1: f32,
    rest2: f32,
    pub(crate) eps: f32,
    pub(crate) factor: f32,
    pub(crate) root: f32,
    keep: f32,
    rate: f32,
}

impl Factors {
    pub(crate) fn new(step: AdamWStep) -> Self {
        let [b1, b2] = step.betas;
        Self {
            b1: b1 as f32,
            b2: b2 as f32,
            rest1: (1.0 - b1) as f32,
            rest2: (1.0 - b2) as f32,
            eps: step.eps as f32,
            factor: step.factor as f32,
            root: step.correction(b2).sqrt() as f32,
            keep: if step.decay == 0.0 { 1.0 } else { (1.0 - step.lr * step.decay) as f32 },
            rate: step.rate() as f32,
        }
    }
}

simd! {
    fn update(f: Factors, p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32]) {
        // No fused multiply-add: the memory is the limit, and so the bits are those of the composition.
        let still = if f.eps == 0.0 { 0.0 } else { -1.0 };
        for (((p, m), v), g) in p.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * f.factor;
            *m = *m * f.b1 + g * f.rest1;
            *v = *v * f.b2 + g * g * f.rest2;
            let change = *m / (v.sqrt() / f.root + f.eps);
            let change = if *v == still { 0.0 } else { change };
            *p = *p * f.keep - change * f.rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, host, matrix, normal};
    use burn::tensor::DType;

    #[test]
    fn the_same_bits_as_the_composition() {
        let bits = |(p, m, v): &(Tensor<2>, Tensor<2>, Tensor<2>)| [p, m, v].map(host);
        at_every_level(|| {
            for shape in [[0, 3], [1, 1], [7, 37], [129, 80]] {
                for (eps, factor, decay) in [(1e-8, 1.0, 0.1), (0.0, 0.3, 0.0), (1e-8, 0.7, 0.0)] {
                    let value = || matrix(&normal(shape, 1.0), DType::F32);
                    let mut gradient = matrix(&normal(shape, 0.1), DType::F32);
                    // Untouched elements.
                    gradient = gradient.clone() * gradient.greater_scalar(0.0).float();
                    let mut step = AdamWStep { betas: [0.9, 0.95], eps, factor, lr: 0.01, decay, step: 1 };
                    let mut native = adamw(value(), None, gradient.clone(), step);
                    let mut other = composed(value(), None, gradient.clone(), step);
                    assert_eq!(bits(&native), bits(&other));
                    step.step = 2;
                    native = adamw(native.0, Some((native.1, native.2)), gradient.clone(), step);
                    other = composed(other.0, Some((other.1, other.2)), gradient, step);
                    assert_eq!(bits(&native), bits(&other));
                }
            }
        });
    }

    #[test]
    fn a_shared_buffer_is_left_alone() {
        let value = matrix(&normal([3, 4], 1.0), DType::F32);
        let before = host(&value);
        let step = AdamWStep { betas: [0.9, 0.95], eps: 1e-8, factor: 1.0, lr: 0.1, decay: 0.0, step: 1 };
        let (moved, ..) = adamw(value.clone(), None, value.clone(), step);
        assert!(host(&value) == before && host(&moved) != before);
    }
}
