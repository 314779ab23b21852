use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use tiebreak_kernels::{AdamWStep, Moving, Reads, adamw, attribute, update_square};
use tiebreak_model::Parameter;
use tiebreak_model::interface::Successor;

/// First and second moment of one parameter, of its shape.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Running mean of the gradient.
    pub first: Tensor<2>,
    /// Running mean of its square.
    pub second: Tensor<2>,
    /// The input side's part of `first`, of a parameter that both sides reach; the rest is the output side's.
    pub input: Option<Tensor<2>>,
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
    ///
    /// What came from which side goes: a successor belongs to one side.
    pub fn carry(&mut self, successors: &[Successor]) {
        for Successor { from, to } in successors {
            if let Some(moments) = self.state.get(*from) {
                self.state.insert((*to).into(), Moments { input: None, ..moments.clone() });
            }
        }
        for Successor { from, .. } in successors {
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
        let (moments, input) = match self.state.remove(&parameter.path) {
            Some(old) => (Some((old.first, old.second)), old.input),
            None => (None, None),
        };
        // Taking the value out leaves its buffer with one owner, so that it is overwritten in place.
        let empty = Tensor::empty([0, 0], &Device::flex());
        let value = std::mem::replace(&mut parameter.value, empty);
        let step = AdamWStep { betas: self.betas, eps: self.eps, factor, lr, decay, step };
        let (value, first, second) = adamw(value, moments, gradient, step);
        parameter.value = value;
        self.state.insert(parameter.path.clone(), Moments { first, second, input });
    }

    /// Behind [`AdamW::update`] of a shared parameter, and with the same numbers: takes in the input side's part of the
    /// gradient and, where there are `reads` to ask, attributes the update. Changes nothing that moves a parameter.
    pub fn attribute(
        &mut self,
        path: &str,
        input: &Tensor<2>,
        factor: f64,
        lr: f64,
        step: u64,
        reads: Option<&mut Reads>,
    ) -> Option<Moving> {
        let step = AdamWStep { betas: self.betas, eps: self.eps, factor, lr, decay: 0.0, step };
        let moments = self.state.get_mut(path)?;
        let (part, moving) = attribute((&moments.first, &moments.second), moments.input.take(), input, step, reads);
        moments.input = Some(part);
        moving
    }

    /// Behind [`AdamW::update`]: the squared length of the update, weight decay left out.
    pub fn update_square(&self, path: &str, lr: f64, step: u64, reads: &mut Reads) -> Option<Moving> {
        let step = AdamWStep { betas: self.betas, eps: self.eps, factor: 1.0, lr, decay: 0.0, step };
        let moments = self.state.get(path)?;
        Some(update_square(&moments.first, &moments.second, step, reads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::DType;
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
    fn parts_of_two_updates_by_hand() {
        let (mut p, mut adam) = (scalar(1.0), AdamW::new([0.9, 0.95], 1e-8));
        // The whole gradient 0.5 and -0.25; its input part 2 and 1, so that the output part is -1.5 and -1.25.
        adam.update(&mut p, scalar(0.5).value, 1.0, 0.1, 0.1, 1);
        let mut reads = Reads::default();
        adam.attribute("p", &scalar(2.0).value, 1.0, 0.1, 1, None);
        adam.update(&mut p, scalar(-0.25).value, 1.0, 0.1, 0.1, 2);
        let moved = adam.attribute("p", &scalar(1.0).value, 1.0, 0.1, 2, Some(&mut reads)).unwrap().read(&reads);
        let alone = adam.update_square("p", 0.1, 2, &mut reads).unwrap().read(&reads);
        let (m, m_in) = (0.9 * 0.05 - 0.1 * 0.25, 0.9 * 0.2 + 0.1);
        let v: f64 = (0.95 * 0.05 * 0.25 + 0.05 * 0.0625) / (1.0 - 0.95f64.powi(2));
        let scale = 0.1 / (1.0 - 0.81) / (v.sqrt() + 1e-8);
        assert!((moved.input - m_in * m * scale * scale).abs() < 1e-12);
        assert!((moved.whole - (m * scale).powi(2)).abs() < 1e-12);
        assert!((alone.whole - moved.whole).abs() < 1e-12 && alone.input == 0.0);
        assert!((moved.input / moved.whole - 14.0).abs() < 1e-12, "0.28 of 0.02; the output side's share is -13");
    }

    #[test]
    fn eps_zero_leaves_untouched_elements_alone() {
        let (mut p, mut adam) = (scalar(1.0), AdamW::new([0.9, 0.95], 0.0));
        adam.update(&mut p, scalar(0.0).value, 1.0, 0.1, 0.0, 1);
        assert_eq!(read(&p), 1.0);
    }
}
