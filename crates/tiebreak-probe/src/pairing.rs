//! Which row goes with which: the true pairing, the null ones, and the folds of a held-out fit.

use std::ops::Range;

use tiebreak_data::{Stream, frequency_groups};

use crate::Rows;

/// Groups within which a null keeps the frequencies.
const DECILES: u8 = 10;

/// Rows put into a random order, so that folds are runs of rows, and random pairings of that order.
pub(crate) struct Pairing {
    /// Place in the rows of each position.
    pub order: Vec<u32>,
    /// Positions of each fold.
    pub folds: Vec<Range<usize>>,
    /// 0: the most frequent third; by position.
    pub tercile: Vec<u8>,
    /// Positions in each frequency decile.
    deciles: Vec<Vec<u32>>,
    seed: u64,
}

impl Pairing {
    pub fn new(rows: &Rows, folds: usize, seed: u64) -> Self {
        let n = rows.len();
        let order = permutation(&mut Stream::new(seed, "probe folds"), n);
        let placed = |groups: u8| -> Vec<u8> {
            let group = frequency_groups(rows.counts(), groups);
            order.iter().map(|i| group[*i as usize]).collect()
        };
        let decile = placed(DECILES);
        let members = |g: u8| (0..n as u32).filter(|i| decile[*i as usize] == g).collect();
        Self {
            folds: (0..folds).map(|f| f * n / folds..(f + 1) * n / folds).collect(),
            tercile: placed(3),
            deciles: (0..DECILES).map(members).collect(),
            order,
            seed,
        }
    }

    /// Row i goes with row i.
    pub fn true_pairs(&self) -> Vec<u32> {
        (0..self.order.len() as u32).collect()
    }

    /// The `k`-th random pairing.
    pub fn free(&self, k: usize) -> Vec<u32> {
        permutation(&mut Stream::new(self.seed, &format!("probe null {k}")), self.order.len())
    }

    /// The `k`-th random pairing of tokens in one frequency decile.
    pub fn within_deciles(&self, k: usize) -> Vec<u32> {
        let mut stream = Stream::new(self.seed, &format!("probe null within deciles {k}"));
        let mut pairs = vec![0; self.order.len()];
        for members in &self.deciles {
            for (i, j) in members.iter().zip(permutation(&mut stream, members.len())) {
                pairs[*i as usize] = members[j as usize];
            }
        }
        pairs
    }
}

fn permutation(stream: &mut Stream, n: usize) -> Vec<u32> {
    stream.permutation(n).into_iter().map(|i| i as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairings_are_permutations_that_keep_what_they_promise() {
        let counts: Vec<u64> = (0..103).map(|i| 1000 / (i + 1)).collect();
        let rows = Rows::seen(&counts).unwrap();
        let pairing = Pairing::new(&rows, 5, 7);
        let [free, within] = [Pairing::free, Pairing::within_deciles].map(|draw| [0, 1, 2].map(|k| draw(&pairing, k)));
        let sorted = |mut v: Vec<u32>| {
            v.sort();
            v
        };
        let group = frequency_groups(rows.counts(), DECILES);
        let of = |position: u32| group[pairing.order[position as usize] as usize];
        for pairs in free.iter().chain(&within).chain([&pairing.order]) {
            assert_eq!(sorted(pairs.clone()), pairing.true_pairs());
            assert_ne!(*pairs, pairing.true_pairs());
        }
        for pairs in &within {
            assert!((0..103).all(|i| of(i) == of(pairs[i as usize])));
        }
        assert!(free.iter().any(|pairs| (0..103).any(|i| of(i) != of(pairs[i as usize]))));
        assert_eq!(pairing.folds.iter().map(|f| f.len()).collect::<Vec<_>>(), [20, 21, 20, 21, 21]);
        assert_eq!((pairing.folds[0].start, pairing.folds[4].end), (0, 103));
        assert_eq!(
            (0..3).map(|t| pairing.tercile.iter().filter(|x| **x == t).count()).collect::<Vec<_>>(),
            [35, 34, 34]
        );
        assert_eq!(free[1], Pairing::new(&rows, 5, 7).free(1));
        assert_ne!(free[1], Pairing::new(&rows, 5, 8).free(1));
        assert_ne!(free[0], free[1]);
    }
}
