//! Which windows of a split are trained on, in what order, and which are evaluated.

use crate::rng::Stream;

/// How many windows of `context` tokens with a following target fit into `len` tokens, back to back: (len - 1) / context. Window
/// w has the inputs `w T .. w T + T` and the targets one token later.
pub fn window_count(len: usize, context: usize) -> usize {
    len.saturating_sub(1) / context
}

/// The windows that are evaluated: at most `max_tokens / context` of them (all if `max_tokens` is 0, and never fewer than one),
/// spread evenly, the same for every run.
pub fn evaluation_windows(len: usize, context: usize, max_tokens: usize) -> Vec<usize> {
    let windows = window_count(len, context);
    let wanted = if max_tokens == 0 { windows } else { (max_tokens / context).max(1).min(windows) };
    (0..wanted).map(|i| (i as u128 * windows as u128 / wanted as u128) as usize).collect()
}

/// The order in which training windows are visited: each once per epoch, every epoch in an order of its own. A batch is a pure
/// function of seed, step and batch size.
#[derive(Clone, Debug)]
pub struct Sampler {
    stream: &'static str,
    seed: u64,
    windows: usize,
    /// The last epoch used and its order; only there to save time.
    current: Option<(u64, Vec<usize>)>,
}

impl Sampler {
    /// A sampler of `windows` training windows.
    ///
    /// # Panics
    /// If there are no windows; [`check_context`](crate::check_context) refuses such a split earlier.
    pub fn new(seed: u64, windows: usize) -> Self {
        Self::named("data_order", seed, windows)
    }

    /// The same with an order of its own, from the random stream `stream`.
    ///
    /// # Panics
    /// As [`Sampler::new`].
    pub fn named(stream: &'static str, seed: u64, windows: usize) -> Self {
        assert!(windows > 0, "a sampler needs at least one window");
        Self { stream, seed, windows, current: None }
    }

    /// The windows of step `step` (from 0): positions `step * batch_size ..` of the endless row of epochs.
    pub fn batch(&mut self, step: u64, batch_size: usize) -> Vec<usize> {
        let first = u128::from(step) * batch_size as u128;
        let windows = self.windows as u128;
        (first..first + batch_size as u128)
            .map(|position| self.order((position / windows) as u64)[(position % windows) as usize])
            .collect()
    }

    fn order(&mut self, epoch: u64) -> &[usize] {
        if !matches!(self.current, Some((cached, _)) if cached == epoch) {
            let order = Stream::new(self.seed, &format!("{}/{epoch}", self.stream)).permutation(self.windows);
            self.current = Some((epoch, order));
        }
        self.current.as_ref().map_or(&[], |(_, order)| order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_visits_each_window_once() {
        let mut sampler = Sampler::new(3, 10);
        let visits: Vec<usize> = (0..10).flat_map(|step| sampler.batch(step, 4)).collect();
        let epochs: Vec<&[usize]> = visits.chunks(10).collect();
        for epoch in &epochs {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_ne!(epochs[0], epochs[1]);
    }

    #[test]
    fn a_batch_depends_on_seed_step_and_size_only() {
        let mut one = Sampler::new(3, 100);
        let mut other = Sampler::new(3, 100);
        for step in [40, 0, 7, 7, 23, 1_000_000] {
            one.batch(step + 1, 8);
            assert_eq!(one.batch(step, 8), other.batch(step, 8));
        }
        // Half as many sequences per step walk the same row.
        assert_eq!([one.batch(2, 8), one.batch(3, 8)].concat(), one.batch(1, 16));
        assert_ne!(one.batch(0, 8), Sampler::new(4, 100).batch(0, 8));
        assert_ne!(one.batch(0, 8), Sampler::named("other", 3, 100).batch(0, 8));
    }

    #[test]
    fn evaluation_windows_spread_evenly_and_fit() {
        assert_eq!(window_count(0, 4), 0);
        assert_eq!(window_count(4, 4), 0);
        assert_eq!(window_count(5, 4), 1);
        assert_eq!(evaluation_windows(41, 4, 0), (0..10).collect::<Vec<_>>());
        assert_eq!(evaluation_windows(41, 4, 1000), (0..10).collect::<Vec<_>>());
        assert_eq!(evaluation_windows(41, 4, 15), [0, 3, 6]);
        assert_eq!(evaluation_windows(41, 4, 3), [0]);
        assert!(evaluation_windows(3, 4, 0).is_empty());
    }
}
