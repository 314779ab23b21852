use std::collections::BTreeMap;

use burn::tensor::Tensor;
use tiebreak_kernels::{AdamWStep, adamw};
use tiebreak_model::Parameter;
use tiebreak_model::interface::Moved;

/// First and second moment of one parameter, of its shape.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Running mean of the gradient.
    pub first: Tensor<2>,
    /// Running mean of its square.
    pub second: Tensor<2>,
}

/// AdamW (Loshchilov & Hutter, arXiv 1711.05101) by PyTorch's formula, state by parameter path.
///
/// p <- p (1 - lr wd); m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
/// p <- p - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps).
pub struct AdamW {
    betas: [f64; 2],
    eps: f64,
    state: BTreeMap<String, Moments>,
}

impl AdamW {
    /// No state yet: moments start at 0.
    pub fn new(betas: [f64; 2], eps: f64) -> Self {
        Self { betas, eps, state: BTreeMap::new() }
    }

    /// Moments by parameter path.
    pub fn moments(&self) -> &BTreeMap<String, Moments> {
        &self.state
    }

    /// Replaces all moments, as a checkpoint has them.
    pub fn restore(&mut self, state: BTreeMap<String, Moments>) {
        self.state = state;
    }

    /// Copies moments to parameters that were made out of others, and drops those of the others.
    pub fn carry(&mut self, moved: &[Moved]) {
        for Moved { from, to } in moved {
            if let Some(moments) = self.state.get(*from) {
                self.state.insert((*to).into(), moments.clone());
            }
        }
        for Moved { from, .. } in moved {
            self.state.remove(*from);
        }
    }

    /// Moves one parameter by `factor` times its gradient, in the update that completes `step` (1-based).
    pub fn update(
        &mut self,
        parameter: &mut Parameter,
        gradient: Tensor<2>,
        factor: f64,
        lr: f64,
        decay: f64,
        step: u64,
    ) {
        let moments = self.state.remove(&parameter.path).map(|old| (old.first, old.second));
        // Taking the value out leaves its buffer with one owner, so that it is overwritten in place.
        let empty = Tensor::empty([0, 0], (&parameter.value.device(), parameter.value.dtype()));
        let value = std::mem::replace(&mut parameter.value, empty);
        let step = AdamWStep { betas: self.betas, eps: self.eps, factor, lr, decay, step };
        let (value, first, second) = adamw(value, moments, gradient, step);
        parameter.value = value;
        self.state.insert(parameter.path.clone(), Moments { first, second });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{DType, Device};
    use tiebreak_model::Placement;

    fn scalar(value: f64) -> Parameter {
        let at = Placement { device: Device::flex(), dtype: DType::F64 };
        Parameter::new("p".into(), vec![value], [1, 1], true, &at)
    }

    fn read(p: &Parameter) -> f64 {
        crate::step::host(&p.value)[0]
    }

    #[test]
    fn two_steps_by_hand() {
        let (mut p, mut adam) = (scalar(1.0), AdamW::new([0.9, 0.95], 1e-8));
        adam.update(&mut p, scalar(0.5).value, 1.0, 0.1, 0.1, 1);
        // The first bias-corrected step is the gradient's sign, up to eps.
        let first = 1.0 * 0.99 - 0.1 * 0.5 / (0.5 + 1e-8);
        assert!((read(&p) - first).abs() < 1e-12);
        adam.update(&mut p, scalar(-0.25).value, 1.0, 0.1, 0.1, 2);
        let m = (0.9 * 0.05 - 0.1 * 0.25) / (1.0 - 0.81);
        let v = (0.95 * 0.05 * 0.25 + 0.05 * 0.0625) / (1.0 - 0.95f64.powi(2));
        assert!((read(&p) - (first * 0.99 - 0.1 * m / (v.sqrt() + 1e-8))).abs() < 1e-12);
    }

    #[test]
    fn eps_zero_leaves_untouched_elements_alone() {
        let (mut p, mut adam) = (scalar(1.0), AdamW::new([0.9, 0.95], 0.0));
        adam.update(&mut p, scalar(0.0).value, 1.0, 0.1, 0.0, 1);
        assert_eq!(read(&p), 1.0);
    }
}
