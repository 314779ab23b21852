//! How often each id occurs, and what follows from it.

use crate::Shard;

/// Occurrences of each id of the vocabulary in `shard`.
pub fn frequencies(shard: &Shard) -> Vec<u64> {
    let mut counts = vec![0; shard.vocabulary()];
    shard.for_each(|id| counts[id as usize] += 1);
    counts
}

/// Places from the most to the least frequent, ties in order of place.
pub fn by_rank(counts: &[u64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(counts[i]), i));
    order
}

/// Cuts ids (or some of them) into `groups` groups of equally many (up to one) by frequency rank: the id of rank r (from 0) among n
/// is in group floor(groups r / n), so that group 0 has the most frequent ones. With fewer ids than groups some are empty.
pub fn frequency_groups(counts: &[u64], groups: u8) -> Vec<u8> {
    let mut group = vec![0; counts.len()];
    for (rank, i) in by_rank(counts).into_iter().enumerate() {
        group[i] = (usize::from(groups) * rank / counts.len()) as u8;
    }
    group
}

/// The ten [`frequency_groups`] of the ids that occur, by id; `None` for ids that never occur.
pub fn seen_deciles(train_counts: &[u64]) -> Vec<Option<u8>> {
    let seen: Vec<u64> = train_counts.iter().copied().filter(|&count| count > 0).collect();
    let mut groups = frequency_groups(&seen, 10).into_iter();
    train_counts.iter().map(|&count| if count > 0 { groups.next() } else { None }).collect()
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

    #[test]
    fn groups_hold_equally_many_ids() {
        assert_eq!(frequency_groups(&[1, 5, 5, 9, 0, 2], 3), [2, 0, 1, 0, 2, 1]);
        assert_eq!(frequency_groups(&[1, 1, 1, 1], 10), [0, 2, 5, 7]);
        assert!(frequency_groups(&[], 10).is_empty());
        // Ranks: id 2 (50), id 0 (20), id 3 (20), id 4 (10); four ids in ten groups are in 0, 2, 5 and 7.
        assert_eq!(seen_deciles(&[20, 0, 50, 20, 10, 0]), [Some(2), None, Some(0), Some(5), Some(7), None]);
        assert_eq!(seen_deciles(&[0, 0]), [None, None]);
        // 23 ids that occur, in order of rank, behind two that do not.
        let counts: Vec<u64> = [0, 0].into_iter().chain((1..=23).rev()).collect();
        let groups = seen_deciles(&counts);
        assert_eq!(groups[..2], [None, None]);
        assert!(groups[2..].is_sorted() && groups[2] == Some(0) && groups[24] == Some(9));
        let sizes: Vec<usize> = (0..10).map(|g| groups.iter().filter(|x| **x == Some(g)).count()).collect();
        assert_eq!(sizes, [3, 2, 2, 3, 2, 2, 3, 2, 2, 2]);
    }
}
