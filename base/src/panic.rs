//! The message of a panic.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `read`, which may panic at hostile bytes: such a panic is an error of the bytes, which a panic hook need not report
/// ([`panic_is_expected`]).
pub fn catch_expected<T>(read: impl FnOnce() -> T) -> thread::Result<T> {
    let before = EXPECTED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(read));
    EXPECTED.set(before);
    result
}

/// For a panic hook: whether [`catch_expected`] of this thread takes the panic.
pub fn panic_is_expected() -> bool {
    EXPECTED.get()
}

/// The text that `panic!` was called with, from what `catch_unwind` or `JoinHandle::join` returned.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "no message"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_expected_only_within_what_catches_it() {
        assert!(!panic_is_expected());
        let inner = catch_expected(|| {
            assert!(panic_is_expected());
            let inner = catch_expected(|| panic!("inner"));
            assert!(inner.is_err() && panic_is_expected());
        });
        assert!(inner.is_ok() && !panic_is_expected());
        assert!(catch_expected(|| panic!("outer")).is_err() && !panic_is_expected());
    }

    #[test]
    fn both_kinds_of_message_are_read() {
        let said = |run: fn()| panic_message(&*std::panic::catch_unwind(run).unwrap_err()).to_owned();
        assert_eq!(said(|| panic!("plain")), "plain");
        assert_eq!(said(|| panic!("number {}", std::hint::black_box(7))), "number 7");
        assert_eq!(said(|| std::panic::panic_any(7)), "no message");
    }
}
