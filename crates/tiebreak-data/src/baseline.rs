//! What counting alone achieves on the validation split.

use std::collections::HashMap;

use rayon::prelude::*;
use serde::Serialize;

use crate::Prepared;
use crate::sampler::window_count;

/// Perplexity of two count models, learnt on the training split and scored on every target of every validation window (so on the
/// tokens that evaluation scores when `eval.tokens = 0`). A model that does not beat the bigram has learnt no context.
///
/// Unigram: (c(w) + 1) / (N + V). Bigram: interpolated Kneser-Ney with three discounts (Chen and Goodman's modified form),
/// p(w|v) = (c(vw) - D(c(vw))) / c(v) + g(v) q(w), where g(v) is the mass the discounts leave, and q(w) likewise from the number of
/// different tokens seen before w, interpolated with 1 / V. D1, D2, D3+ come from the numbers of counts 1 to 4
/// (Y = n1 / (n1 + 2 n2), Dk = k - (k + 1) Y n(k+1) / nk); where one of these numbers is 0 every discount is 0.5.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Baselines {
    /// Perplexity of the unigram model.
    pub unigram_ppl: f64,
    /// Perplexity of the bigram model.
    pub bigram_ppl: f64,
    /// Nats per token of the unigram model.
    pub unigram_loss: f64,
    /// Nats per token of the bigram model.
    pub bigram_loss: f64,
    /// Number of targets scored.
    pub targets: usize,
}

/// Scores both count models on the validation windows of `prepared.context_length`.
pub fn baselines(prepared: &Prepared) -> Baselines {
    let train = prepared.train.tokens(0..prepared.train.len());
    let scored = window_count(prepared.validation.len(), prepared.context_length) * prepared.context_length;
    // Windows are back to back, so their (input, target) pairs are the pairs of neighbours in this stretch.
    let validation = prepared.validation.tokens(0..scored + 1);
    score(&train, &validation, prepared.train.vocabulary())
}

fn score(train: &[u32], validation: &[u32], vocabulary: usize) -> Baselines {
    let model = Bigram::new(train, vocabulary);
    let total = train.len() as f64;
    let pairs: Vec<(u32, u32)> = validation.windows(2).map(|w| (w[0], w[1])).collect();
    let (mut unigram, mut bigram) = (0.0, 0.0);
    for &(v, w) in &pairs {
        unigram -= ((model.counts[w as usize] as f64 + 1.0) / (total + vocabulary as f64)).ln();
        bigram -= model.probability(v, w).ln();
    }
    let targets = pairs.len().max(1) as f64;
    Baselines {
        unigram_ppl: (unigram / targets).exp(),
        bigram_ppl: (bigram / targets).exp(),
        unigram_loss: unigram / targets,
        bigram_loss: bigram / targets,
        targets: pairs.len(),
    }
}

/// Interpolated Kneser-Ney; every probability is positive.
struct Bigram {
    counts: Vec<u64>,
    /// c(vw) of the pairs that occur.
    pairs: HashMap<(u32, u32), u64>,
    discounts: [f64; 3],
    /// c(v) as the first of a pair, and the mass its discounts leave.
    contexts: Vec<(f64, f64)>,
    /// q(w).
    lower: Vec<f64>,
}

impl Bigram {
    fn new(train: &[u32], vocabulary: usize) -> Self {
        let mut counts = vec![0u64; vocabulary];
        for &id in train {
            counts[id as usize] += 1;
        }
        let mut keys: Vec<u64> = train.windows(2).map(|w| u64::from(w[0]) << 32 | u64::from(w[1])).collect();
        keys.par_sort_unstable();
        let mut pairs = HashMap::new();
        for run in keys.chunk_by(|a, b| a == b) {
            pairs.insert(((run[0] >> 32) as u32, run[0] as u32), run.len() as u64);
        }
        drop(keys);
        let discounts = discounts(pairs.values().copied());
        let mut contexts = vec![(0u64, [0u64; 3]); vocabulary];
        let mut before = vec![0u64; vocabulary];
        for (&(v, w), &count) in &pairs {
            let (total, kinds) = &mut contexts[v as usize];
            *total += count;
            kinds[count.min(3) as usize - 1] += 1;
            before[w as usize] += 1;
        }
        let left = |kinds: &[u64; 3], d: &[f64; 3]| (0..3).map(|k| kinds[k] as f64 * d[k]).sum::<f64>();
        let contexts = contexts.iter().map(|(total, kinds)| (*total as f64, left(kinds, &discounts))).collect();

        let lower_discounts = self::discounts(before.iter().copied().filter(|&n| n > 0));
        let mut kinds = [0u64; 3];
        before.iter().filter(|&&n| n > 0).for_each(|&n| kinds[n.min(3) as usize - 1] += 1);
        let spread = left(&kinds, &lower_discounts) / vocabulary as f64;
        let different = pairs.len() as f64;
        let lower = before
            .iter()
            .map(|&n| {
                if pairs.is_empty() {
                    1.0 / vocabulary as f64
                } else {
                    (discounted(n, &lower_discounts) + spread) / different
                }
            })
            .collect();
        Self { counts, pairs, discounts, contexts, lower }
    }

    fn probability(&self, v: u32, w: u32) -> f64 {
        let (total, left) = self.contexts[v as usize];
        let lower = self.lower[w as usize];
        if total == 0.0 {
            return lower;
        }
        let count = self.pairs.get(&(v, w)).copied().unwrap_or(0);
        (discounted(count, &self.discounts) + left * lower) / total
    }
}

fn discounted(count: u64, discounts: &[f64; 3]) -> f64 {
    if count == 0 { 0.0 } else { count as f64 - discounts[count.min(3) as usize - 1] }
}

fn discounts(counts: impl Iterator<Item = u64>) -> [f64; 3] {
    let mut n = [0.0; 4];
    counts.filter(|&c| (1..=4).contains(&c)).for_each(|c| n[c as usize - 1] += 1.0);
    if n.contains(&0.0) {
        return [0.5; 3];
    }
    let y = n[0] / (n[0] + 2.0 * n[1]);
    // An unusual text can give estimates outside the range in which the probabilities are probabilities.
    [1.0, 2.0, 3.0].map(|k: f64| (k - (k + 1.0) * y * n[k as usize] / n[k as usize - 1]).clamp(0.01, k - 0.01))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_example() {
        // V = 4. Training 0 1 0 1 0 2: counts 3, 2, 1, 0; pairs 01: 2, 10: 2, 02: 1. All discounts 0.5.
        // Before: 0 after {1}, 1 after {0}, 2 after {0}: q = (0.5 + 1.5 / 4) / 3 = 7/24 each, q(3) = 1.5 / 4 / 3 = 1/8.
        // From 0 (3 pairs, mass left 1): p(1|0) = (1.5 + 7/24) / 3 = 43/72, p(3|0) = 1/8 / 3 = 1/24.
        // From 2 (never first): p(1|2) = q(1) = 7/24.
        let train = [0, 1, 0, 1, 0, 2];
        let model = Bigram::new(&train, 4);
        for (v, w, expected) in [(0, 1, 43.0 / 72.0), (0, 3, 1.0 / 24.0), (2, 1, 7.0 / 24.0)] {
            assert!((model.probability(v, w) - expected).abs() < 1e-12, "{v} {w}");
        }
        // Validation 0 1 0 3: bigram p(1|0) p(0|1) p(3|0), p(0|1) = (1.5 + 0.5 * 7/24) / 2 = 79/96; unigram 3/10, 4/10, 1/10.
        let result = score(&train, &[0, 1, 0, 3], 4);
        assert!((result.unigram_ppl - (0.3f64 * 0.4 * 0.1).powf(-1.0 / 3.0)).abs() < 1e-12);
        assert!((result.bigram_ppl - (43.0 / 72.0 * 79.0 / 96.0 / 24.0f64).powf(-1.0 / 3.0)).abs() < 1e-12);
        assert_eq!(result.targets, 3);
    }

    #[test]
    fn probabilities_sum_to_one_with_estimated_discounts() {
        let mut stream = crate::rng::Stream::new(0, "baseline test");
        // The minimum of two draws: frequent and rare ids, as in text.
        let train: Vec<u32> = (0..3000).map(|_| stream.below(60).min(stream.below(60)) as u32).collect();
        let model = Bigram::new(&train, 70);
        assert!(model.discounts != [0.5; 3]);
        for v in [0, 5, 59, 69] {
            let sum: f64 = (0..70).map(|w| model.probability(v, w)).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{v}: {sum}");
        }
    }
}
