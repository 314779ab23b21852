//! From logits to an id.

use crate::rng::Stream;

/// How the next id is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// The largest logit, of equal ones the lowest id. Softmax keeps the order, so it is not computed for this.
    Greedy,
    /// At random, from [`Distribution::new`].
    Random {
        /// Divides the logits: above 0; below 1 sharpens, above 1 flattens.
        temperature: f64,
        /// Only so many of the most probable ids.
        top_k: Option<usize>,
        /// Of these, only the smallest set whose probabilities sum to at least this: above 0, at most 1.
        top_p: f64,
    },
}

/// An id and how probable it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The id.
    pub id: u32,
    /// ln of its probability under the model itself, softmax of the logits: neither temperature nor a cut is in it. In nats.
    pub log_probability: f64,
}

/// The logits are no numbers, or infinite, or none: nothing can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the logits hold NaN, an infinity or nothing, so no id can be chosen: the model's weights are no usable numbers"
)]
pub struct NoNumbers;

/// ln of the sum of e^z.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    top + logits.iter().map(|&z| (z as f64 - top).exp()).sum::<f64>().ln()
}

/// softmax(logits): e^z / sum of e^z. Logits are no probabilities before this.
///
/// ```
/// use tiebreak_model::generation::{Policy, Sampler, rank, softmax};
/// use tiebreak_model::rng::Stream;
///
/// // A state of width 4 against a table of five rows: logits z = U h.
/// let h = [0.9, -1.2, 0.4, 2.0];
/// let u = [[1.0, 0.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.25], [0.0, 0.5, -0.5, 0.0], [1.0, 0.0, 0.0, 0.4], [0.0, 0.0, 0.5, 0.0]];
/// let logits = u.map(|row: [f32; 4]| row.iter().zip(h).map(|(u, h)| u * h).sum::<f32>());
/// assert!(logits.iter().zip([3.1, 0.5, -0.8, 1.7, 0.2]).all(|(z, expected)| (z - expected).abs() < 1e-6));
///
/// // e^3.1 = 22.198 of 22.198 + 1.649 + 0.449 + 5.474 + 1.221 = 30.991.
/// let p = softmax(&logits);
/// for (p, expected) in p.iter().zip([0.7163, 0.0532, 0.0145, 0.1766, 0.0394]) {
///     assert!((p - expected).abs() < 1e-4);
/// }
/// // Greedy takes the first; token 3 comes second, token 2 last.
/// let mut greedy = Sampler::new(Policy::Greedy, Stream::new(0, "any"));
/// let choice = greedy.choose(&logits).unwrap();
/// assert_eq!(choice.id, 0);
/// assert!((choice.log_probability - 0.7163f64.ln()).abs() < 1e-4);
/// assert_eq!([0, 3, 1, 4, 2].map(|id| rank(&logits, id)), [1, 2, 3, 4, 5]);
/// ```
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let log_sum = log_sum_exp(logits);
    logits.iter().map(|&z| (z as f64 - log_sum).exp()).collect()
}

/// Place of `id` by falling logit, from 1; of equal logits the lower id comes first.
pub fn rank(logits: &[f32], id: usize) -> usize {
    let z = logits[id];
    1 + logits.iter().enumerate().filter(|(other, x)| **x > z || (**x == z && *other < id)).count()
}

/// Ids that may come next and their probabilities, which sum to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution(pub Vec<(u32, f64)>);

impl Distribution {
    /// softmax(logits / temperature), cut to the `top_k` most probable ids, of which only the smallest set is kept whose
    /// share of the first cut's mass reaches `top_p` (always one id at least), and scaled to sum to 1. Between equal logits
    /// the lower id is kept, so never more than `top_k` remain. A `top_k` beyond the vocabulary and a `top_p` of 1 cut
    /// nothing.
    pub fn new(logits: &[f32], temperature: f64, top_k: Option<usize>, top_p: f64) -> Self {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weigh = |(id, logit): (usize, &f32)| (id as u32, ((*logit as f64 - top as f64) / temperature).exp());
        // By weight, not by logit, would let a low temperature make ties of what has an order.
        let falling = |a: &(usize, &f32), b: &(usize, &f32)| b.1.total_cmp(a.1).then(a.0.cmp(&b.0));
        let mut ids: Vec<(usize, &f32)> = logits.iter().enumerate().collect();
        let k = top_k.unwrap_or(usize::MAX).max(1);
        if k < ids.len() {
            ids.select_nth_unstable_by(k - 1, falling);
            ids.truncate(k);
        }
        if k < logits.len() || top_p < 1.0 {
            ids.sort_unstable_by(falling);
        }
        let mut kept: Vec<(u32, f64)> = ids.into_iter().map(weigh).collect();
        if top_p < 1.0 {
            let enough = top_p * sum(&kept);
            let mut so_far = 0.0;
            let reaches = |(_, weight): &(u32, f64)| {
                so_far += weight;
                so_far >= enough
            };
            let last = kept.iter().position(reaches).unwrap_or(kept.len() - 1);
            kept.truncate(last + 1);
        }
        let whole = sum(&kept);
        kept.iter_mut().for_each(|(_, weight)| *weight /= whole);
        Self(kept)
    }

    /// The id at which the running sum of probabilities reaches `u` in (0, 1].
    fn at(&self, u: f64) -> u32 {
        let mut sum = 0.0;
        for &(id, p) in &self.0 {
            sum += p;
            if sum >= u {
                return id;
            }
        }
        // Rounding may leave the sum a little under 1: the last id that has any probability.
        self.0.iter().rev().find(|(_, p)| *p > 0.0).map_or(0, |(id, _)| *id)
    }
}

fn sum(weights: &[(u32, f64)]) -> f64 {
    weights.iter().map(|(_, weight)| weight).sum()
}

/// Chooses ids by a policy, with random numbers of its own.
pub struct Sampler {
    policy: Policy,
    stream: Stream,
}

impl Sampler {
    /// A sampler; a greedy one draws nothing from the stream, a random one a number per id.
    pub fn new(policy: Policy, stream: Stream) -> Self {
        Self { policy, stream }
    }

    /// An id from the logits `[v]`.
    pub fn choose(&mut self, logits: &[f32]) -> Result<Choice, NoNumbers> {
        if logits.is_empty() || logits.iter().any(|z| !z.is_finite()) {
            return Err(NoNumbers);
        }
        let id = match self.policy {
            Policy::Greedy => greedy(logits),
            Policy::Random { temperature, top_k, top_p } => {
                Distribution::new(logits, temperature, top_k, top_p).at(self.stream.uniform())
            }
        };
        Ok(Choice { id, log_probability: logits[id as usize] as f64 - log_sum_exp(logits) })
    }
}

fn greedy(logits: &[f32]) -> u32 {
    let first_largest = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (0..logits.len()).fold(0, first_largest) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [3.1, 0.5, -0.8, 1.7, 0.2];

    fn ids(d: &Distribution) -> Vec<u32> {
        d.0.iter().map(|(id, _)| *id).collect()
    }

    #[test]
    fn cuts_keep_the_most_probable() {
        let cut = |k, p| ids(&Distribution::new(&LOGITS, 1.0, k, p));
        assert_eq!(cut(Some(1), 1.0), [0]);
        assert_eq!(cut(Some(2), 1.0), [0, 3]);
        assert_eq!(cut(Some(5), 1.0), [0, 1, 2, 3, 4]);
        assert_eq!(cut(Some(99), 1.0), [0, 1, 2, 3, 4], "k beyond the vocabulary");
        assert_eq!(cut(Some(usize::MAX), 0.5), [0]);
        // 0.7163, then 0.8929, 0.9461, 0.9855, 1.
        assert_eq!(cut(None, 0.71), [0]);
        assert_eq!(cut(None, 0.72), [0, 3]);
        assert_eq!(cut(None, 0.9), [0, 3, 1]);
        assert_eq!(cut(None, 1e-300), [0], "one id always remains");
        assert_eq!(cut(None, 1.0), [0, 1, 2, 3, 4]);
        // Within the best two, the first has 0.8022 of the mass: top_p counts after top_k.
        assert_eq!(cut(Some(2), 0.80), [0]);
        assert_eq!(cut(Some(2), 0.81), [0, 3]);
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        let flat = [1.0f32; 6];
        assert_eq!(ids(&Distribution::new(&flat, 1.0, Some(4), 1.0)), [0, 1, 2, 3]);
        assert_eq!(ids(&Distribution::new(&flat, 1.0, None, 0.5)), [0, 1, 2]);
        assert_eq!(greedy(&flat), 0);
        assert_eq!(greedy(&[0.0, 2.0, 2.0]), 1);
        assert_eq!((rank(&flat, 0), rank(&flat, 5)), (1, 6));
    }

    #[test]
    fn temperature_scales_logits_and_probabilities_sum_to_one() {
        for temperature in [1e-30, 1e-3, 0.5, 1.0, 7.0, 1e30] {
            let Distribution(d) = Distribution::new(&LOGITS, temperature, None, 1.0);
            let sum: f64 = d.iter().map(|(_, p)| p).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{temperature}: {sum}");
            assert!(d.iter().all(|(_, p)| p.is_finite()));
            let ratio = d[3].1 / d[0].1;
            assert!(
                (ratio - ((LOGITS[3] as f64 - LOGITS[0] as f64) / temperature).exp()).abs() < 1e-12,
                "{temperature}: {ratio}"
            );
        }
        let whole = Distribution::new(&LOGITS, 1.0, None, 1.0);
        for ((_, p), expected) in whole.0.iter().zip(softmax(&LOGITS)) {
            assert!((p - expected).abs() < 1e-12);
        }
    }

    /// Upper 0.1 % points of chi-square: 18.467 with 4 degrees of freedom, 13.816 with 2.
    #[test]
    fn frequencies_follow_the_distribution() {
        const N: usize = 20_000;
        for (top_k, top_p, temperature, limit) in
            [(None, 1.0, 1.0, 18.467), (Some(3), 1.0, 1.0, 13.816), (None, 0.9, 1.0, 13.816), (None, 1.0, 2.5, 18.467)]
        {
            let policy = Policy::Random { temperature, top_k, top_p };
            let mut sampler = Sampler::new(policy, Stream::new(7, "chi-square"));
            let mut counts = [0usize; 5];
            for _ in 0..N {
                counts[sampler.choose(&LOGITS).unwrap().id as usize] += 1;
            }
            let Distribution(expected) = Distribution::new(&LOGITS, temperature, top_k, top_p);
            let drawn: usize = expected.iter().map(|(id, _)| counts[*id as usize]).sum();
            assert_eq!(drawn, N, "nothing outside the cut");
            let chi2: f64 = expected
                .iter()
                .map(|(id, p)| (counts[*id as usize] as f64 - p * N as f64).powi(2) / (p * N as f64))
                .sum();
            assert!(chi2 < limit, "{top_k:?} {top_p} {temperature}: {chi2}, {counts:?}");
        }
    }

    #[test]
    fn a_seed_fixes_the_draws_and_the_edges_of_the_range_are_safe() {
        let draw = |seed| {
            let policy = Policy::Random { temperature: 1.0, top_k: None, top_p: 1.0 };
            let mut sampler = Sampler::new(policy, Stream::new(seed, "x"));
            (0..50).map(|_| sampler.choose(&LOGITS).unwrap().id).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let d = Distribution(vec![(4, 0.0), (2, 0.5), (9, 0.5 - 1e-9), (1, 0.0)]);
        assert_eq!((d.at(1e-300), d.at(0.5), d.at(1.0)), (2, 2, 9));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let mut greedy = Sampler::new(Policy::Greedy, Stream::new(0, "x"));
        for bad in [&[][..], &[f32::NAN, 1.0], &[f32::INFINITY, 1.0], &[f32::NEG_INFINITY]] {
            assert_eq!(greedy.choose(bad), Err(NoNumbers));
        }
        // The largest spread that single precision has.
        let choice = greedy.choose(&[f32::MAX, f32::MIN]).unwrap();
        assert_eq!((choice.id, choice.log_probability), (0, 0.0));
    }
}
