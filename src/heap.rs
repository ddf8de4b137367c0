//! How long the allocator keeps freed memory.

use std::ffi::{c_int, c_long};

/// The option `purge_delay` of mimalloc 3, in milliseconds; 1,000 by default.
const PURGE_DELAY: c_int = 15;

unsafe extern "C" {
    safe fn mi_option_set_default(option: c_int, value: c_long);
}

/// Makes the allocator return freed memory to the system only every ten seconds. Each return gives away the memory of all batches that are
/// free at that moment, and the kernel must provide and clear it again: once a second, this takes a tenth of the CPU time of a feed.
/// `MIMALLOC_PURGE_DELAY` in the environment counts before this.
pub(crate) fn keep_freed_memory() {
    mi_option_set_default(PURGE_DELAY, 10_000);
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        safe fn mi_option_get(option: c_int) -> c_long;
    }

    /// Another version of mimalloc may number its options differently.
    #[test]
    fn the_option_is_the_one_that_is_one_second_by_default() {
        assert_eq!(mi_option_get(PURGE_DELAY), 1_000);
        keep_freed_memory();
        assert_eq!(mi_option_get(PURGE_DELAY), 10_000);
    }
}
