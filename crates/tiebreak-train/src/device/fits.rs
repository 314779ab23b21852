//! Whether a device can bind the tensors of a run.

use tiebreak_data::Error;
use tiebreak_probe::lens::Recipe;

use super::Present;
use crate::config::RunConfig;

/// Refuses a run with a tensor that the device cannot bind; `config` is resolved. The head's logits come in chunks that fit. `lens`:
/// its tuned lens is trained or read too, whose batches are its own.
///
/// # Errors
/// [`Error::Input`] naming the tensor, its size, by how much it is too large and what to lower.
pub fn fits(config: &RunConfig, vocabulary: usize, lens: bool, device: &Present) -> Result<(), Error> {
    for Needed { what, shape, lower } in needed(config, vocabulary, lens) {
        let bytes = shape.iter().fold(4u128, |bytes, n| bytes * *n as u128);
        if bytes > u128::from(device.largest) {
            let mib = |bytes: u128| bytes as f64 / 1048576.0;
            return Err(Error::Input(format!(
                "device {}: {what} {shape:?} takes {:.1} MiB, {:.1} MiB more than the {:.1} MiB that one tensor may take there; lower \
                 {lower}, or use device = \"flex\"",
                device.name,
                mib(bytes),
                mib(bytes - u128::from(device.largest)),
                mib(device.largest.into())
            )));
        }
    }
    Ok(())
}

struct Needed {
    what: &'static str,
    shape: Vec<usize>,
    lower: &'static str,
}

fn needed(config: &RunConfig, vocabulary: usize, lens: bool) -> Vec<Needed> {
    let model = &config.model;
    let (d, t, b) = (model.d_model, config.data.context_length, config.train.micro_batch_size);
    // `lens train` may choose the other recipe.
    let tokens = Recipe::Converged.step_tokens().max(Recipe::Paper.step_tokens());
    let b = if lens { b.max(tokens / t) } else { b };
    let widest = (3 * d).max(model.mlp.up_width() * model.d_ff);
    let one = |what, shape: &[usize], lower| Needed { what, shape: shape.to_vec(), lower };
    vec![
        one("a table", &[vocabulary, d], "data.tokenizer's vocabulary or model.d_model"),
        one("the largest matrix of a block", &[d, widest], "model.d_model or model.d_ff"),
        one("the widest activation of a block", &[b, t, widest], "train.micro_batch_size"),
        one(
            "the attention scores of a block",
            &[b, model.n_heads, t, t],
            "train.micro_batch_size or data.context_length",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_named_with_what_to_lower() {
        let mut config = RunConfig::default();
        config.model.d_ff = 512;
        config.train.micro_batch_size = 32;
        let at = |largest: u64| fits(&config, 3144, false, &Present { name: "wgpu (A)".into(), largest });
        // Scores 32 x 4 x 128 x 128 x 4 bytes = 8 MiB; activations 32 x 128 x 1024 x 4 = 16 MiB (swiglu's two halves).
        assert!(at(16 << 20).is_ok());
        let error = at((16 << 20) - 1).unwrap_err().to_string();
        assert!(error.contains("[32, 128, 1024]") && error.contains("micro_batch_size"), "{error}");
        let error = at(1 << 20).unwrap_err().to_string();
        assert!(error.contains("a table [3144, 128] takes 1.5 MiB, 0.5 MiB more"), "{error}");
    }
}
