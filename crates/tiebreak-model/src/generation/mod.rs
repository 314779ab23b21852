//! Continuing a text: the next id from logits, and the walk of a window over what has been written.

mod sample;

pub use sample::{Choice, Distribution, NoNumbers, Policy, Sampler, rank, softmax};

/// What continues a sequence, fed from left to right. A model that has seen nothing, or has been restarted, reads the next
/// id at position 0.
pub trait Decoder {
    /// Most ids it can see at once, at least 1.
    fn context(&self) -> usize;

    /// Forgets every id.
    fn restart(&mut self);

    /// Reads on, by at least one id and never beyond the context: the logits `[v]` of what follows the last.
    fn extend(&mut self, ids: &[u32]) -> Vec<f32>;
}

/// Where the window that predicts id `length` begins, in a sequence of any length: the first multiple of half the context
/// (at least 1) from which the rest fits.
///
/// So a sequence that outgrows the context loses its oldest half window, and the rest is read anew from position 0: the
/// model never sees a position it was not trained on, and what it sees depends on the length alone, not on how the
/// sequence came about.
///
/// ```
/// use tiebreak_model::generation::window_start;
/// assert_eq!([7, 8, 9, 12, 13, 16, 17].map(|length| window_start(length, 8)), [0, 0, 4, 4, 8, 8, 12]);
/// ```
pub fn window_start(length: usize, context: usize) -> usize {
    let hop = (context / 2).max(1);
    length.saturating_sub(context).div_ceil(hop) * hop
}

/// Why a continuation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// As many ids as were asked for.
    Length,
    /// The model ended the text.
    EndOfText,
}

/// A sequence being continued, an iterator over its new ids. End-of-text is chosen like any id; it is handed out and ends
/// the continuation.
pub struct Continuation<'a> {
    decoder: &'a mut dyn Decoder,
    sampler: Sampler,
    /// The prompt and what followed.
    ids: Vec<u32>,
    /// The decoder has read `ids[window.start..window.end]`.
    window: std::ops::Range<usize>,
    remaining: usize,
    end_of_text: Option<u32>,
    finish: Option<Finish>,
}

impl<'a> Continuation<'a> {
    /// Continues `prompt` by at most `new` ids, or up to `end_of_text`.
    ///
    /// # Panics
    /// If the prompt is empty.
    pub fn new(
        decoder: &'a mut dyn Decoder,
        sampler: Sampler,
        prompt: &[u32],
        new: usize,
        end_of_text: Option<u32>,
    ) -> Self {
        assert!(!prompt.is_empty(), "a model predicts what follows an id");
        decoder.restart();
        let finish = (new == 0).then_some(Finish::Length);
        Self { decoder, sampler, ids: prompt.to_vec(), window: 0..0, remaining: new, end_of_text, finish }
    }

    /// Why it ended; `None` before it has.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// The logits of the next id.
    fn logits(&mut self) -> Vec<f32> {
        let start = window_start(self.ids.len(), self.decoder.context());
        if start != self.window.start {
            self.decoder.restart();
            self.window = start..start;
        }
        let logits = self.decoder.extend(&self.ids[self.window.end..]);
        self.window.end = self.ids.len();
        logits
    }
}

impl Iterator for Continuation<'_> {
    type Item = Result<Choice, NoNumbers>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finish.is_some() {
            return None;
        }
        let logits = self.logits();
        let choice = match self.sampler.choose(&logits) {
            Ok(choice) => choice,
            Err(e) => {
                self.finish = Some(Finish::Length);
                return Some(Err(e));
            }
        };
        self.ids.push(choice.id);
        self.remaining -= 1;
        if Some(choice.id) == self.end_of_text {
            self.finish = Some(Finish::EndOfText);
        } else if self.remaining == 0 {
            self.finish = Some(Finish::Length);
        }
        Some(Ok(choice))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int, Tensor, TensorData};

    use super::*;
    use crate::interface::HeadConfig;
    use crate::rng::Stream;
    use crate::trunk::mlp::MlpKind;
    use crate::trunk::norm::NormKind;
    use crate::trunk::position::PositionKind;
    use crate::trunk::{Cache, Trunk};
    use crate::{Model, ModelConfig, Placement};

    /// Predicts the sum of what it sees, modulo 10, and records what that was.
    #[derive(Default)]
    struct Summing {
        seen: Vec<u32>,
        windows: Vec<Vec<u32>>,
    }

    impl Decoder for Summing {
        fn context(&self) -> usize {
            4
        }

        fn restart(&mut self) {
            self.seen.clear();
        }

        fn extend(&mut self, ids: &[u32]) -> Vec<f32> {
            assert!(!ids.is_empty());
            self.seen.extend(ids);
            assert!(self.seen.len() <= 4, "beyond the context");
            self.windows.push(self.seen.clone());
            let sum = self.seen.iter().sum::<u32>() % 10;
            (0..10).map(|id| if id == sum { 5.0 } else { 0.0 }).collect()
        }
    }

    fn run(prompt: &[u32], new: usize, end: Option<u32>) -> (Vec<u32>, Option<Finish>, Vec<Vec<u32>>) {
        let mut decoder = Summing::default();
        let sampler = Sampler::new(Policy::Greedy, Stream::new(0, "test"));
        let mut continuation = Continuation::new(&mut decoder, sampler, prompt, new, end);
        let ids = continuation.by_ref().map(|c| c.unwrap().id).collect();
        let finish = continuation.finish();
        (ids, finish, decoder.windows)
    }

    #[test]
    fn the_window_moves_by_half_a_context() {
        let (ids, finish, windows) = run(&[1, 2, 3], 4, None);
        // 1 2 3 | 6, 1 2 3 6 | 2, then ids 2.. are 3 6 2 | 1, 3 6 2 1 | 2
        assert_eq!((ids, finish), (vec![6, 2, 1, 2], Some(Finish::Length)));
        assert_eq!(windows, [vec![1, 2, 3], vec![1, 2, 3, 6], vec![3, 6, 2], vec![3, 6, 2, 1]]);
        // A prompt of six ids is seen as the same six ids would have been on the way.
        let (ids, _, windows) = run(&[1, 2, 3, 6, 2, 1], 1, None);
        assert_eq!((ids, windows), (vec![2], vec![vec![3, 6, 2, 1]]));
    }

    #[test]
    fn end_of_text_ends_and_is_handed_out() {
        assert_eq!(run(&[1, 2, 3], 9, Some(2)).0, [6, 2]);
        assert_eq!(run(&[1, 2, 3], 9, Some(2)).1, Some(Finish::EndOfText));
        // At the last id allowed it still counts as the end of the text.
        assert_eq!(run(&[1, 2, 3], 2, Some(2)).1, Some(Finish::EndOfText));
        assert_eq!(run(&[1, 2, 3], 0, None), (vec![], Some(Finish::Length), vec![]));
    }

    /// Reads with the cache and anew each time, and compares the logits.
    struct Both {
        trunk: Trunk,
        table_vd: Tensor<2>,
        context: usize,
        cache: Cache,
        seen: Vec<u32>,
        largest: f32,
        compared: usize,
    }

    impl Both {
        fn new(position: PositionKind, mlp: MlpKind, norm: NormKind, context: usize) -> Self {
            let at = Placement::f32(&Device::flex());
            let mut config =
                ModelConfig { d_model: 24, n_layers: 3, n_heads: 3, position, mlp, norm, ..Default::default() };
            config.resolve();
            let head = HeadConfig::default();
            let model = Model::init(&config, &head, 37, context, 5, &at);
            // Tripled, so that one id's logits stand out and differences show.
            let table_vd = model.interface.pair().output_vd.mul_scalar(3.0);
            let cache = model.trunk.cache();
            Self { trunk: model.trunk, table_vd, context, cache, seen: Vec::new(), largest: 0.0, compared: 0 }
        }

        fn lookup(&self, ids: &[u32]) -> Tensor<3> {
            let wide: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
            let ids_bt = Tensor::<2, Int>::from_data(TensorData::new(wide, [1, ids.len()]), &self.table_vd.device());
            Model::lookup(&self.table_vd, ids_bt)
        }

        fn last_logits(&self, h_btd: Tensor<3>) -> Vec<f32> {
            let [_, t, d] = h_btd.dims();
            let last_nd = h_btd.slice_dim(1, t - 1..t).reshape([1, d]);
            last_nd.matmul(self.table_vd.clone().transpose()).into_data().iter().collect()
        }
    }

    impl Decoder for Both {
        fn context(&self) -> usize {
            self.context
        }

        fn restart(&mut self) {
            self.cache = self.trunk.cache();
            self.seen.clear();
        }

        fn extend(&mut self, ids: &[u32]) -> Vec<f32> {
            self.seen.extend(ids);
            let x_btd = self.lookup(ids);
            let h_btd = self.trunk.extend(x_btd, &mut self.cache);
            let cached = self.last_logits(h_btd);
            let whole = self.last_logits(self.trunk.forward(self.lookup(&self.seen)));
            for (a, b) in cached.iter().zip(&whole) {
                assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} with the cache, {b} without, {:?}", self.seen);
                self.largest = self.largest.max(b.abs());
            }
            let best = |z: &[f32]| (0..z.len()).fold(0, |best, i| if z[i] > z[best] { i } else { best });
            assert_eq!(best(&cached), best(&whole));
            self.compared += 1;
            whole
        }
    }

    #[test]
    fn the_cache_changes_no_logit() {
        let kinds = [
            (PositionKind::Rope, MlpKind::Swiglu, NormKind::LayerNoAffine),
            (PositionKind::Learned, MlpKind::Gelu, NormKind::Rms),
            (PositionKind::Learned, MlpKind::Swiglu, NormKind::Layer),
        ];
        for (position, mlp, norm) in kinds {
            for (context, prompt) in [(1, 1), (2, 3), (9, 1), (9, 7), (9, 20), (12, 12), (13, 5)] {
                let mut both = Both::new(position, mlp, norm, context);
                let prompt: Vec<u32> = (0..prompt).map(|i| (i * 11 + 4) % 37).collect();
                let policy = Policy::Random { temperature: 1.0, top_k: None, top_p: 1.0 };
                let sampler = Sampler::new(policy, Stream::new(3, "cache"));
                let ids: Vec<u32> =
                    Continuation::new(&mut both, sampler, &prompt, 31, None).map(|c| c.unwrap().id).collect();
                assert_eq!((ids.len(), both.compared), (31, 31));
                assert!(both.largest > 1.0, "the logits say nothing: {}", both.largest);
            }
        }
    }

    #[test]
    fn several_ids_at_once_are_one_by_one() {
        let mut both = Both::new(PositionKind::Rope, MlpKind::Gelu, NormKind::LayerNoAffine, 16);
        for ids in [&[1u32, 2, 3][..], &[4], &[5, 6, 7, 8, 9], &[10]] {
            both.extend(ids);
        }
        assert_eq!(both.seen.len(), 10);
    }

    #[test]
    fn windows_fit_and_never_shrink_below_half() {
        for context in 1..12 {
            for length in 1..60 {
                let seen = length - window_start(length, context);
                assert!(seen <= context && 2 * seen + 1 >= context.min(length), "{context} {length}: {seen}");
                assert!(seen >= 1);
            }
        }
    }
}
