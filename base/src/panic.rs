//! The message of a panic.

use std::any::Any;

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
    fn both_kinds_of_message_are_read() {
        let said = |run: fn()| panic_message(&*std::panic::catch_unwind(run).unwrap_err()).to_owned();
        assert_eq!(said(|| panic!("plain")), "plain");
        assert_eq!(said(|| panic!("number {}", std::hint::black_box(7))), "number 7");
        assert_eq!(said(|| std::panic::panic_any(7)), "no message");
    }
}
