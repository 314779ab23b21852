//! The largest tensor that the process's device can bind.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::CHUNK;

static LARGEST: AtomicU64 = AtomicU64::new(u64::MAX);

/// Says how many bytes a tensor may have on the device that was opened.
pub fn set_largest_tensor(bytes: u64) {
    LARGEST.store(bytes, Ordering::Relaxed);
}

/// Bytes of the largest tensor; as good as unlimited on the CPU.
pub fn largest_tensor() -> u64 {
    LARGEST.load(Ordering::Relaxed)
}

/// Tokens whose logits over `v` ids are composed at a time.
pub(crate) fn rows_at_a_time(v: usize) -> usize {
    rows_within(largest_tensor(), v)
}

fn rows_within(bytes: u64, v: usize) -> usize {
    let rows = bytes / 4 / v.max(1) as u64;
    CHUNK.min(usize::try_from(rows).unwrap_or(CHUNK)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_stay_within_what_a_tensor_may_hold() {
        assert_eq!(rows_within(u64::MAX, 50257), CHUNK);
        assert_eq!(rows_within(128 << 20, 50257), CHUNK);
        assert_eq!(rows_within(64 << 20, 50257), 333);
        assert_eq!(rows_within(3, 50257), 1);
    }
}
