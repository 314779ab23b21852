//! Means of readings over tokens.

use std::f64::consts::LN_2;

use serde::{Deserialize, Serialize};

use super::Reading;

/// Running sums over tokens, in f64 and in order.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    tokens: usize,
    kl: f64,
    agree: usize,
    correct: usize,
    nats: f64,
    p_input: f64,
}

/// Means over tokens of what one point says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// KL(final || lens), bits.
    pub kl_bits: f64,
    /// The same over that of the constant predictor; none where that is 0.
    pub kl_fraction: Option<f64>,
    /// Share of tokens with the final distribution's top id.
    pub top1_agreement: f64,
    /// Share of tokens whose top id is the next token.
    pub accuracy: f64,
    /// -ln probability of the next token, nats.
    pub ce_nats: f64,
    /// Probability of the current token.
    pub p_input: f64,
}

impl Sums {
    /// Adds the reading of one token and the token that follows it.
    pub fn add(&mut self, reading: &Reading, target: usize) {
        self.tokens += 1;
        self.kl += reading.kl_nats as f64;
        self.agree += usize::from(reading.rank == 1);
        self.correct += usize::from(reading.top == target);
        self.nats += reading.nats.map_or(f64::NAN, f64::from);
        self.p_input += reading.p_input as f64;
    }

    /// Mean KL(final || lens) in bits.
    pub fn kl_bits(&self) -> f64 {
        self.kl / LN_2 / self.tokens as f64
    }

    /// The means; `constant_kl_bits` is the constant predictor's divergence on the same tokens.
    pub fn mean(&self, constant_kl_bits: f64) -> Summary {
        let mean = |sum: f64| sum / self.tokens as f64;
        Summary {
            kl_bits: self.kl_bits(),
            kl_fraction: (constant_kl_bits > 0.0).then(|| self.kl_bits() / constant_kl_bits),
            top1_agreement: mean(self.agree as f64),
            accuracy: mean(self.correct as f64),
            ce_nats: mean(self.nats),
            p_input: mean(self.p_input),
        }
    }
}

impl Summary {
    /// Names, as in tags, and values.
    pub fn values(&self) -> Vec<(&'static str, f64)> {
        let all = [
            ("kl_bits", Some(self.kl_bits)),
            ("kl_fraction", self.kl_fraction),
            ("top1_agreement", Some(self.top1_agreement)),
            ("accuracy", Some(self.accuracy)),
            ("ce_nats", Some(self.ce_nats)),
            ("p_input", Some(self.p_input)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}
