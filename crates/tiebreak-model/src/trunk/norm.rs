//! Normalisation over the last dimension.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use tiebreak_kernels::{Precision, norm_linear};

use super::ModelConfig;
use crate::{Parameter, Placement};

/// Kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Layer norm without parameters (OLMo).
    LayerNoAffine,
    /// Layer norm with gain and bias.
    Layer,
    /// Root mean square norm with gain.
    Rms,
}

impl NormKind {
    /// Learned values per norm, in units of d.
    pub fn vectors(self) -> usize {
        match self {
            NormKind::LayerNoAffine => 0,
            NormKind::Layer => 2,
            NormKind::Rms => 1,
        }
    }
}

/// A norm: y = (x - mean) / sqrt(var + eps) gain + bias, or y = x / sqrt(mean(x^2) + eps) gain. The variance is biased.
#[derive(Clone, Debug)]
pub struct Norm {
    kind: NormKind,
    eps: f64,
    gain: Option<Parameter>,
    bias: Option<Parameter>,
}

impl Norm {
    /// Gain 1 and bias 0, where the kind has them.
    pub fn init(config: &ModelConfig, path: &str, at: &Placement) -> Self {
        let vector = |name: &str, value: f64| {
            Parameter::new(format!("{path}.{name}"), vec![value; config.d_model], [1, config.d_model], false, at)
        };
        let gain = (config.norm.vectors() >= 1).then(|| vector("gain", 1.0));
        let bias = (config.norm.vectors() >= 2).then(|| vector("bias", 0.0));
        Self { kind: config.norm, eps: config.norm_eps, gain, bias }
    }

    /// Normalises `[b, t, d]` over d.
    pub fn forward(&self, x_btd: Tensor<3>) -> Tensor<3> {
        // States on the tape may meet a norm that is not trained.
        let lift = x_btd.is_autodiff();
        let [gain, bias] = self.vectors().map(|value| {
            value.map(|value| match lift && !value.is_autodiff() {
                true => Tensor::from_inner(value.clone()),
                false => value.clone(),
            })
        });
        tiebreak_kernels::norm(self.kernel(), x_btd, self.eps, gain.as_ref(), bias.as_ref())
    }

    /// The norm of `[b, t, d]` times w `[d, o]`: `[b t, o]`.
    pub fn linear(&self, x_btd: Tensor<3>, w: &Parameter, precision: Precision) -> Tensor<2> {
        let [gain, bias] = self.vectors();
        norm_linear(self.kernel(), x_btd, self.eps, gain, bias, &w.value, precision)
    }

    fn vectors(&self) -> [Option<&Tensor<2>>; 2] {
        [&self.gain, &self.bias].map(|p| p.as_ref().map(|p| &p.value))
    }

    fn kernel(&self) -> tiebreak_kernels::NormKind {
        match self.kind {
            NormKind::LayerNoAffine | NormKind::Layer => tiebreak_kernels::NormKind::Layer,
            NormKind::Rms => tiebreak_kernels::NormKind::Rms,
        }
    }

    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        self.gain.iter_mut().chain(&mut self.bias).for_each(f);
    }
}
