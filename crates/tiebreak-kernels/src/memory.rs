//! The allocator, as far as a training step depends on it.

/// Tells mimalloc to keep freed memory for the next step instead of handing it back to the system: a step would otherwise
/// pay for its pages again, 7 % of its time where measured. Without effect if mimalloc is not the program's allocator.
/// Call it once, before other threads start. `MIMALLOC_PURGE_DELAY` in the environment goes first.
pub fn keep_memory() {
    // The position of `mi_option_purge_delay` in mimalloc's enumeration, which libmimalloc-sys does not name.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: a valid option; setting it is not thread-safe, so the caller has one thread.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
    }
}
