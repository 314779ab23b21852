//! Which row goes with which: the true pairing, the null ones, and the folds of a held-out fit.

use std::ops::Range;

use tiebreak_data::{Stream, frequency_groups};

use crate::Rows;

/// Groups within which a null keeps the frequencies.
const DECILES: u8 = 10;

/// Rows put into a random order, so that folds are runs of rows, and permutations of that order.
pub(crate) struct Pairing {
    /// Place in the rows of each position.
    pub order: Vec<u32>,
    /// Positions of each fold.
    pub folds: Vec<Range<usize>>,
    /// 0: the most frequent third; by position.
    pub tercile: Vec<u8>,
    /// Row i goes with row i.
    pub true_pairs: Vec<u32>,
    /// Random pairings.
    pub free: Vec<Vec<u32>>,
    /// Random pairings of tokens in one frequency decile.
    pub within_deciles: Vec<Vec<u32>>,
}

impl Pairing {
    pub fn new(rows: &Rows, folds: usize, permutations: usize, seed: u64) -> Self {
        let n = rows.len();
        let order: Vec<u32> = Stream::new(seed, "probe folds").permutation(n).into_iter().map(|i| i as u32).collect();
        let placed = |groups: u8| -> Vec<u8> {
            let group = frequency_groups(rows.counts(), groups);
            order.iter().map(|i| group[*i as usize]).collect()
        };
        let decile = placed(DECILES);
        let members: Vec<Vec<u32>> =
            (0..DECILES).map(|g| (0..n as u32).filter(|i| decile[*i as usize] == g).collect()).collect();
        let free = |k: usize| {
            let drawn = Stream::new(seed, &format!("probe null {k}")).permutation(n);
            drawn.into_iter().map(|i| i as u32).collect()
        };
        let within = |k: usize| {
            let mut stream = Stream::new(seed, &format!("probe null within deciles {k}"));
            let mut pairs = vec![0; n];
            for members in &members {
                for (i, j) in members.iter().zip(stream.permutation(members.len())) {
                    pairs[*i as usize] = members[j];
                }
            }
            pairs
        };
        Self {
            folds: (0..folds).map(|f| f * n / folds..(f + 1) * n / folds).collect(),
            tercile: placed(3),
            true_pairs: (0..n as u32).collect(),
            free: (0..permutations).map(free).collect(),
            within_deciles: (0..permutations).map(within).collect(),
            order,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairings_are_permutations_that_keep_what_they_promise() {
        let counts: Vec<u64> = (0..103).map(|i| 1000 / (i + 1)).collect();
        let rows = Rows::seen(&counts).unwrap();
        let pairing = Pairing::new(&rows, 5, 3, 7);
        let sorted = |mut v: Vec<u32>| {
            v.sort();
            v
        };
        let group = frequency_groups(rows.counts(), DECILES);
        let of = |position: u32| group[pairing.order[position as usize] as usize];
        for pairs in pairing.free.iter().chain(&pairing.within_deciles).chain([&pairing.order]) {
            assert_eq!(sorted(pairs.clone()), pairing.true_pairs);
            assert_ne!(*pairs, pairing.true_pairs);
        }
        for pairs in &pairing.within_deciles {
            assert!((0..103).all(|i| of(i) == of(pairs[i as usize])));
        }
        assert!(pairing.free.iter().any(|pairs| (0..103).any(|i| of(i) != of(pairs[i as usize]))));
        assert_eq!(pairing.folds.iter().map(|f| f.len()).collect::<Vec<_>>(), [20, 21, 20, 21, 21]);
        assert_eq!((pairing.folds[0].start, pairing.folds[4].end), (0, 103));
        assert_eq!(
            (0..3).map(|t| pairing.tercile.iter().filter(|x| **x == t).count()).collect::<Vec<_>>(),
            [35, 34, 34]
        );
        assert_eq!(pairing.free, Pairing::new(&rows, 5, 3, 7).free);
        assert_ne!(pairing.free, Pairing::new(&rows, 5, 3, 8).free);
    }
}
