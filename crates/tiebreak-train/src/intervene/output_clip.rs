//! Caps |G_out| at a multiple of the recent |G_in|, on the table only: the trunk is left alone.

use serde::{Deserialize, Serialize};

use super::Products;

/// Part of the past in the recent norm: about five steps, as long as the window of the paper's code.
const SMOOTHING: f64 = 0.8;

/// The running mean of |G_in|, this step's included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputClip {
    input_norm: f64,
}

/// What s_out is multiplied with in this step: min(1, multiple recent |G_in| / |G_out|).
pub(super) fn output_factor(memory: &mut Option<OutputClip>, products: Products, multiple: f64) -> f64 {
    let norm = products.input.sqrt();
    if norm.is_finite() {
        let input_norm = memory.map_or(norm, |m| SMOOTHING * m.input_norm + (1.0 - SMOOTHING) * norm);
        *memory = Some(OutputClip { input_norm });
    }
    let factor = memory.map_or(1.0, |m| multiple * m.input_norm / products.output.sqrt());
    if factor.is_nan() { 1.0 } else { factor.min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_sides_are_cut_to_the_recent_input_norm_and_short_ones_kept() {
        let mut memory = None;
        let of = |input: f64, output: f64| Products { input: input * input, output: output * output, dot: 0.0 };
        assert!((output_factor(&mut memory, of(2.0, 8.0), 1.5) - 3.0 / 8.0).abs() < 1e-15);
        assert_eq!(output_factor(&mut memory, of(2.0, 2.5), 1.5), 1.0);
        // The mean is now 0.8 2 + 0.2 7 = 3.
        assert!((output_factor(&mut memory, of(7.0, 6.0), 1.0) - 0.5).abs() < 1e-15);
        assert_eq!(output_factor(&mut memory, of(f64::NAN, 3.0), 1.0), 1.0);
        assert_eq!(output_factor(&mut memory, of(0.0, 0.0), 1.0), 1.0);
    }
}
