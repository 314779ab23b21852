//! What happens to logits between the head's product and the softmax.

use burn::tensor::Tensor;

use crate::simd::exp;

/// What happens between the product h U^T and the softmax, and what the logarithm of its sum costs.
///
/// raw = h U^T + b; z = c tanh(raw / c); L = scale sum of (nats + z_loss (log sum exp z)^2). Nats are always those of z alone.
#[derive(Clone, Debug, Default)]
pub struct LogitMap {
    /// b, `[1, v]`.
    pub bias_1v: Option<Tensor<2>>,
    /// c: no logit leaves (-c, c).
    pub softcap: Option<f64>,
    /// Weight of the squared log-partition.
    pub z_loss: f64,
}

impl LogitMap {
    pub(crate) fn is_plain(&self) -> bool {
        self.bias_1v.is_none() && self.softcap.is_none() && self.z_loss == 0.0
    }

    /// z of the products h U^T, `[n, v]`. Differentiable where they are on the tape.
    pub fn apply(&self, product_nv: Tensor<2>) -> Tensor<2> {
        let raw_nv = match &self.bias_1v {
            Some(bias_1v) if product_nv.is_autodiff() && !bias_1v.is_autodiff() => {
                product_nv + Tensor::from_inner(bias_1v.clone())
            }
            Some(bias_1v) => product_nv + bias_1v.clone(),
            None => product_nv,
        };
        match self.softcap {
            // Burn's gradient of a division by a scalar is rounded to f32.
            Some(c) => raw_nv.mul_scalar(1.0 / c).tanh().mul_scalar(c),
            None => raw_nv,
        }
    }

    /// dz/draw from z, `[n, v]`, under a soft-cap.
    pub(crate) fn slope(&self, z_nv: &Tensor<2>) -> Option<Tensor<2>> {
        self.softcap.map(|c| {
            let tanh_nv = z_nv.clone().div_scalar(c);
            tanh_nv.clone().mul(tanh_nv).neg().add_scalar(1.0)
        })
    }
}

/// [`LogitMap`] for rows of f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowMap<'a> {
    bias: Option<&'a [f32]>,
    pub(crate) softcap: Option<f32>,
    pub(crate) z_loss: f32,
}

impl<'a> RowMap<'a> {
    pub(crate) fn new(map: &LogitMap, bias: Option<&'a [f32]>) -> Self {
        Self { bias, softcap: map.softcap.map(|c| c as f32), z_loss: map.z_loss as f32 }
    }

    /// z of one row of products, in place.
    #[inline(always)]
    pub(crate) fn apply<const FMA: bool>(self, z: &mut [f32]) {
        if let Some(bias) = self.bias {
            for (z, b) in z.iter_mut().zip(bias) {
                *z += b;
            }
        }
        if let Some(cap) = self.softcap {
            // tanh x = 1 - 2 / (e^2x + 1); beyond 44 the exponential saturates where tanh is 1.
            let twice = 2.0 / cap;
            for z in z.iter_mut() {
                *z = cap * (1.0 - 2.0 / (exp::<FMA>(*z * twice) + 1.0));
            }
        }
    }
}
