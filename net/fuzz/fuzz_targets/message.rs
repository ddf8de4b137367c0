//! Bytes of a request, read as messages: `cargo fuzz run message` in `net/fuzz`. What it finds goes to
//! `corpus/message`, which `tests/corpus.rs` reads in every run of the tests.

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
