//! Factors learned from the training gradients: the multiple-gradient descent algorithm for two objectives.
//!
//! Sener & Koltun (arXiv 1810.04650, section 3.2) after Désidéri (2012): of all mixtures g a + (1 - g) b with g in \[0, 1\] the
//! shortest is a direction that improves both objectives, and for two gradients g = clamp(<b - a, b> / |a - b|^2). Here a and b are the
//! input's and the output's part of the gradient of the shared parameters (of `tied` G_in and G_out): two uses of one loss, which are
//! taken for two objectives. Between orthogonal sides g / (1 - g) = |b|^2 / |a|^2, so the shorter side ends up the longer one. Ours:
//! the three products are running means, for a step's gradients are noisy, and the factors are 2 g and 2 (1 - g), so that equally
//! long orthogonal sides keep factors of 1. Nothing is taken from validation.

use serde::{Deserialize, Serialize};

use super::{Factors, Products};

/// Part of the past in the running means.
const SMOOTHING: f64 = 0.9;

/// Running means of the products, this step's included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    means: Products,
}

/// The step's factors. A step whose products are no finite numbers leaves the means alone.
pub(super) fn factors(memory: &mut Option<Learned>, products: Products) -> Factors {
    let finite = [products.input, products.output, products.dot].iter().all(|x| x.is_finite());
    if finite {
        let mean = |old: f64, new: f64| SMOOTHING * old + (1.0 - SMOOTHING) * new;
        let means = memory.map_or(products, |Learned { means: m }| Products {
            input: mean(m.input, products.input),
            output: mean(m.output, products.output),
            dot: mean(m.dot, products.dot),
        });
        *memory = Some(Learned { means });
    }
    let Some(Learned { means: Products { input, output, dot } }) = *memory else { return Factors::NONE };
    let part = (output - dot) / (input + output - 2.0 * dot);
    // Equal gradients: every mixture is the same.
    let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.5 };
    Factors { input: 2.0 * part, output: 2.0 * (1.0 - part) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixture_is_the_shortest_one() {
        for (a, b) in [([3.0, 0.0], [0.0, 1.0]), ([1.0, 2.0], [-2.0, 1.5]), ([1.0, 0.0], [3.0, 0.5])] {
            let dot = |x: [f64; 2], y: [f64; 2]| x[0] * y[0] + x[1] * y[1];
            let products = Products { input: dot(a, a), output: dot(b, b), dot: dot(a, b) };
            let found = factors(&mut None, products);
            assert!((found.input + found.output - 2.0).abs() < 1e-15);
            let length = |g: f64| {
                let m = [g * a[0] + (1.0 - g) * b[0], g * a[1] + (1.0 - g) * b[1]];
                dot(m, m)
            };
            let least = (0..=1000).map(|i| length(i as f64 / 1000.0)).fold(f64::INFINITY, f64::min);
            assert!(length(found.input / 2.0) <= least + 1e-12, "{a:?} {b:?}: {found:?}");
        }
    }

    #[test]
    fn equal_lengths_keep_one_and_bad_steps_change_nothing() {
        let mut memory = None;
        let nan = Products { input: f64::NAN, output: 1.0, dot: 0.0 };
        assert_eq!(factors(&mut memory, nan), Factors::NONE);
        assert_eq!(factors(&mut memory, Products { input: 4.0, output: 4.0, dot: 0.0 }), Factors::NONE);
        assert_eq!(factors(&mut memory, nan), Factors::NONE);
        assert_eq!(factors(&mut None, Products { input: 2.0, output: 2.0, dot: 2.0 }), Factors::NONE);
    }
}
