//! Validation loss: nats summed over tokens, exponentiated once.

use burn::tensor::{Int, Tensor, TensorData};
use tiebreak_model::Model;
use tiebreak_model::interface::{Head, Table};

use crate::step::{MicroBatch, host};
use crate::track::Tag;

/// Running sums over scored tokens.
#[derive(Clone, Debug, Default)]
pub struct Score {
    nats: f64,
    tokens: usize,
    bytes: usize,
    decile_nats: [f64; 10],
    decile_tokens: [usize; 10],
}

/// What a target id counts for.
pub struct TargetInfo {
    /// Bytes of text each id stands for; end-of-text 0.
    pub bytes: Vec<u32>,
    /// Frequency decile of each id, 0 the most frequent targets.
    pub deciles: Vec<u8>,
}

impl Score {
    /// Adds the nats of one token.
    pub fn add(&mut self, nats: f64, target: usize, info: &TargetInfo) {
        let decile = info.deciles[target] as usize;
        self.nats += nats;
        self.tokens += 1;
        self.bytes += info.bytes[target] as usize;
        self.decile_nats[decile] += nats;
        self.decile_tokens[decile] += 1;
    }

    /// Nats per token.
    pub fn loss(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// exp(nats / tokens).
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// The eval/ tags; a decile without tokens has none, nor have tokens without bytes their bits per byte.
    pub fn scalars(&self) -> Vec<(Tag, f64)> {
        let bits = self.nats / std::f64::consts::LN_2 / self.bytes as f64;
        let mut tags: Vec<(Tag, f64)> = vec![("eval/loss".into(), self.loss()), ("eval/ppl".into(), self.perplexity())];
        if self.bytes > 0 {
            tags.push(("eval/bits_per_byte".into(), bits));
        }
        for (decile, (nats, tokens)) in self.decile_nats.iter().zip(self.decile_tokens).enumerate() {
            if tokens > 0 {
                tags.push((format!("eval/loss_decile/{decile}").into(), nats / tokens as f64));
            }
        }
        tags
    }
}

/// Scores windows without a tape. Deterministic: windows and tokens in the given order.
pub fn evaluate(model: &Model, batches: impl Iterator<Item = MicroBatch>, info: &TargetInfo) -> Score {
    let tables = model.interface.tables();
    let device = tables.input.rows_vr.device();
    // So many tokens that forming a table once costs nothing.
    let input = Table::whole(tables.input.formed());
    let head = Head::new(&tables, &model.logit_map, |table| table.for_head(usize::MAX));
    let [_, d] = input.rows_vr.dims();
    let mut score = Score::default();
    for batch in batches {
        let (n, t) = (batch.inputs.len(), batch.context);
        let ids = |ids: &[i32]| Tensor::<1, Int>::from_data(TensorData::new(ids.to_vec(), [n]), &device);
        let x0_btd = Model::lookup(&input.rows_vr, ids(&batch.inputs).reshape([n / t, t]));
        let state_nd = model.trunk.forward(x0_btd).reshape([n, d]);
        let nats_n = host(&head.nats(&state_nd, ids(&batch.targets)));
        for (nats, target) in nats_n.into_iter().zip(&batch.targets) {
            score.add(nats, *target as usize, info);
        }
    }
    score
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> TargetInfo {
        TargetInfo { bytes: vec![3, 0], deciles: vec![0, 9] }
    }

    #[test]
    fn batches_of_perplexity_2_and_32_give_8() {
        let mut score = Score::default();
        for nats in [2f64.ln(), 2f64.ln(), 32f64.ln(), 32f64.ln()] {
            score.add(nats, 0, &info());
        }
        assert!((score.perplexity() - 8.0).abs() < 1e-12);
    }

    #[test]
    fn one_token_of_2_and_three_of_32_give_16() {
        let mut score = Score::default();
        for nats in [2f64, 32.0, 32.0, 32.0] {
            score.add(nats.ln(), 0, &info());
        }
        assert!((score.perplexity() - 16.0).abs() < 1e-12);
    }

    #[test]
    fn end_of_text_is_scored_with_no_bytes_and_empty_deciles_have_no_tag() {
        let mut score = Score::default();
        score.add(2.0, 0, &info());
        score.add(4.0, 1, &info());
        let tags: std::collections::BTreeMap<_, _> = score.scalars().into_iter().collect();
        assert_eq!(tags["eval/loss"], 3.0);
        assert!((tags["eval/bits_per_byte"] - 6.0 / std::f64::consts::LN_2 / 3.0).abs() < 1e-12);
        assert_eq!(tags["eval/loss_decile/9"], 4.0);
        assert!(!tags.contains_key("eval/loss_decile/5"));
        let mut only_end = Score::default();
        only_end.add(4.0, 1, &info());
        assert!(only_end.scalars().iter().all(|(tag, x)| tag != "eval/bits_per_byte" && x.is_finite()));
    }
}
