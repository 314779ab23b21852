//! How often each id occurs, and what follows from it.

use crate::Shard;

/// Occurrences of each id of the vocabulary in `shard`.
pub fn frequencies(shard: &Shard) -> Vec<u64> {
    let mut counts = vec![0; shard.vocabulary()];
    shard.for_each(|id| counts[id as usize] += 1);
    counts
}

/// Ids from the most to the least frequent, ties in order of id.
pub fn by_rank(counts: &[u64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|&id| (std::cmp::Reverse(counts[id]), id));
    order
}

/// The loss decile of each id: floor(10 x the share of training tokens that are more frequent ids), ids in decreasing order of
/// count, ties in order of id. Decile 0 holds the most frequent ids; ids that never occur are in decile 9.
pub fn loss_deciles(train_counts: &[u64]) -> Vec<u8> {
    let total: u128 = train_counts.iter().map(|&c| u128::from(c)).sum();
    let mut deciles = vec![9; train_counts.len()];
    let mut before: u128 = 0;
    for id in by_rank(train_counts) {
        if train_counts[id] > 0 {
            deciles[id] = (10 * before / total).min(9) as u8;
        }
        before += u128::from(train_counts[id]);
    }
    deciles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deciles_of_a_hand_example() {
        // Decreasing: id 2 (50), id 0 (20), id 3 (20), id 4 (10), ids 1 and 5 unseen; mass before: 0, .5, .7, .9.
        assert_eq!(loss_deciles(&[20, 0, 50, 20, 10, 0]), [5, 9, 0, 7, 9, 9]);
        assert_eq!(loss_deciles(&[1; 20]), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]);
        assert_eq!(loss_deciles(&[0, 0]), [9, 9]);
    }
}
