//! Drives |s_in G_in| / |s_out G_out| to a target.

use serde::{Deserialize, Serialize};

use super::Products;

/// Part of the past in the smoothed ratio.
const SMOOTHING: f64 = 0.9;
/// s_in stays between 1 / LIMIT and LIMIT.
pub(super) const LIMIT: f64 = 100.0;

/// The controller: s_in = clamp(target s_out exp(r)), r the running mean of log |G_out| / |G_in|, this step's included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Balance {
    log_ratio: f64,
}

/// s_in of this step. A step without a ratio (a side that is 0 or no finite number) leaves the mean alone.
pub(super) fn input_scale(memory: &mut Option<Balance>, products: Products, target: f64, output_scale: f64) -> f64 {
    let log_ratio = 0.5 * (products.output / products.input).ln();
    if log_ratio.is_finite() {
        let smoothed = memory.map_or(log_ratio, |m| SMOOTHING * m.log_ratio + (1.0 - SMOOTHING) * log_ratio);
        *memory = Some(Balance { log_ratio: smoothed });
    }
    memory.map_or(1.0, |m| (target * output_scale * m.log_ratio.exp()).clamp(1.0 / LIMIT, LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn products(input: f64, output: f64) -> Products {
        Products { input: input * input, output: output * output, dot: 0.0 }
    }

    #[test]
    fn a_steady_ratio_is_balanced_at_once_and_a_new_one_within_fifty_steps() {
        let mut memory = None;
        assert!((input_scale(&mut memory, products(2.0, 14.0), 1.0, 1.0) - 7.0).abs() < 1e-12);
        assert!((input_scale(&mut memory, products(1.0, 7.0), 0.5, 2.0) - 7.0).abs() < 1e-12);
        let last = (0..50).map(|_| input_scale(&mut memory, products(4.0, 2.0), 1.0, 1.0)).last().unwrap();
        // What is left of log 14 after fifty steps is 0.9^50.
        assert!((last.ln() - (0.5f64.ln() + 14f64.ln() * 0.9f64.powi(50))).abs() < 1e-12, "{last}");
    }

    #[test]
    fn it_is_clamped_and_survives_steps_without_a_ratio() {
        let mut memory = None;
        assert_eq!(input_scale(&mut memory, products(0.0, 1.0), 1.0, 1.0), 1.0);
        assert_eq!(input_scale(&mut memory, products(1e-9, 1.0), 1.0, 1.0), LIMIT);
        let before = memory;
        input_scale(&mut memory, products(f64::NAN, 1.0), 1.0, 1.0);
        input_scale(&mut memory, products(1.0, 0.0), 1.0, 1.0);
        assert_eq!(memory, before);
        assert_eq!(input_scale(&mut Some(Balance { log_ratio: -50.0 }), products(1.0, 0.0), 1.0, 1.0), 1.0 / LIMIT);
    }
}
