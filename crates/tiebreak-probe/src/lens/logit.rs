//! The logit lens.

use burn::tensor::{Int, Tensor};

use super::{Lens, Reading, read};
use crate::ProbedModel;

/// What the states of ids `[b, t]` say as they are, by point (L + 1 of them), then by token (b t of them, row by row).
pub fn logit_lens(model: &dyn ProbedModel, ids_bt: Tensor<2, Int>) -> Vec<Vec<Reading>> {
    read(model, &[Lens::Logit], ids_bt).swap_remove(0)
}
