//! Work on a thread of its own.

use std::thread::{Builder, scope};

use forebay_actors::Fault;

/// Runs `work` on a thread of its own and waits for it: the caller may be inside a runtime, and runtimes cannot be nested. `what` is what
/// the work does, for instance `"reading a table"`.
///
/// # Errors
/// Returns the fault of the work. Returns an external fault if the thread cannot start, and the [fault of the panic](Fault::of_panic) if
/// the work panics.
pub(crate) fn on_own_thread<T: Send>(what: &str, work: impl FnOnce() -> Result<T, Fault> + Send) -> Result<T, Fault> {
    scope(|scope| {
        let thread = Builder::new().spawn_scoped(scope, work);
        let thread = thread.map_err(|e| Fault::no_thread(format_args!("a thread for {what}"), e))?;
        thread.join().map_err(|panic| Fault::of_panic(&format!("{what} panicked"), &*panic))?
    })
}

#[cfg(test)]
mod tests {
    use forebay_actors::Domain;

    use super::*;

    #[test]
    fn a_result_or_a_panic_comes_back_from_the_thread() {
        let borrowed = [1, 2];
        assert_eq!(on_own_thread("adding", || Ok(borrowed.iter().sum::<i32>())).unwrap(), 3);
        let fault = on_own_thread::<()>("adding", || panic!("planted")).unwrap_err();
        assert_eq!(fault.to_string(), "adding panicked: planted");
        // What a library says inside that finds no thread.
        let fault = on_own_thread::<()>("adding", || panic!("OS can't spawn worker thread: no more")).unwrap_err();
        assert_eq!(fault.domain, Domain::External, "{fault}");
    }
}
