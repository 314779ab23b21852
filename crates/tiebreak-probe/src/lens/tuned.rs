//! The tuned lens: a translator per point below the last.

use burn::tensor::{Int, Tensor};
use tiebreak_kernels::{Precision, linear_add};

use super::training::Recipe;
use super::{Lens, Reading, read};
use crate::ProbedModel;

/// h' = h + A h + b for column vectors h.
#[derive(Clone, Debug)]
pub struct Translator {
    /// A^T, `[d, d]`: states are rows here.
    pub transposed_dd: Tensor<2>,
    /// b, `[1, d]`.
    pub offset_1d: Tensor<2>,
}

impl Translator {
    /// From A `[d, d]` and b `[1, d]`.
    pub fn new(a_dd: Tensor<2>, offset_1d: Tensor<2>) -> Self {
        // A transpose is a view; the fused product wants it laid out.
        let at = (&a_dd.device(), a_dd.dtype());
        Self { transposed_dd: Tensor::from_data(a_dd.clone().transpose().to_data(), at), offset_1d }
    }

    /// A = 0, b = 0.
    pub fn identity(d: usize, device: &burn::tensor::Device) -> Self {
        Self { transposed_dd: Tensor::zeros([d, d], device), offset_1d: Tensor::zeros([1, d], device) }
    }

    /// h' of states `[n, d]`.
    pub fn apply(&self, state_nd: Tensor<2>) -> Tensor<2> {
        linear_add(state_nd.clone(), state_nd, &self.transposed_dd, Precision::F32) + self.offset_1d.clone()
    }
}

/// A tuned lens of one model: translators of the points embed .. L - 1.
#[derive(Clone, Debug)]
pub struct TunedLens {
    /// How it was trained, which also says which translator reads which point.
    pub recipe: Recipe,
    /// Translator k was trained on point k.
    pub translators: Vec<Translator>,
}

impl TunedLens {
    /// A lens before its training, which says what the logit lens says.
    pub fn identity(model: &dyn ProbedModel, recipe: Recipe) -> Self {
        let ([_, d], device) = (model.head().output_vd.dims(), model.device());
        Self { recipe, translators: (0..model.layers()).map(|_| Translator::identity(d, &device)).collect() }
    }

    /// The translated states `[n, d]` of `point`, to be normed. Point k is read with translator k and the last point as it
    /// is; `paper` reads as the paper's code does (see [`Recipe::Paper`]).
    pub fn apply(&self, model: &dyn ProbedModel, point: usize, state_nd: Tensor<2>) -> Tensor<2> {
        let last = self.translators.len();
        match self.recipe {
            Recipe::Converged if point == last => state_nd,
            Recipe::Converged => self.translators[point].apply(state_nd),
            Recipe::Paper => {
                let state_nd = if point == last { model.final_norm(state_nd) } else { state_nd };
                match self.translators.get(point.saturating_sub(1)) {
                    Some(translator) => translator.apply(state_nd),
                    None => state_nd,
                }
            }
        }
    }

    /// What the translated states of ids `[b, t]` say, by point (L + 1 of them), then by token (b t of them, row by row).
    pub fn readings(&self, model: &dyn ProbedModel, ids_bt: Tensor<2, Int>) -> Vec<Vec<Reading>> {
        read(model, &[Lens::Tuned(self)], ids_bt).swap_remove(0)
    }
}
