//! Normalisation over the last dimension.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

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
        let x_btd = match self.kind {
            NormKind::LayerNoAffine | NormKind::Layer => x_btd.clone() - x_btd.mean_dim(2),
            NormKind::Rms => x_btd,
        };
        let scale_bt1 = x_btd.clone().powi_scalar(2).mean_dim(2).add_scalar(self.eps).sqrt().recip();
        let mut y_btd = x_btd * scale_bt1;
        if let Some(gain) = &self.gain {
            y_btd = y_btd * gain.value.clone().unsqueeze();
        }
        if let Some(bias) = &self.bias {
            y_btd = y_btd + bias.value.clone().unsqueeze();
        }
        y_btd
    }

    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Parameter)) {
        self.gain.iter_mut().chain(&mut self.bias).for_each(f);
    }
}
