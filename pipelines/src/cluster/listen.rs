//! A process listens at its address. It waits if another process listens there for a moment.

use std::net::SocketAddr;
use std::time::Duration;

use forebay_actors::{Fault, FaultKind};
use forebay_net::Retry;

/// How long a process waits for an address that another process listens at. `ADDRESS_TAKEN_AGAIN` is for a process that listened there
/// before, or whose address a program chose.
const ADDRESS_TAKEN: Duration = Duration::from_secs(5);
const ADDRESS_TAKEN_AGAIN: Duration = Duration::from_secs(60);

/// Starts a server, and waits for a while if another process listens there: a predecessor may be about to end.
///
/// # Errors
/// What `start` returns. `again`: external if the address stays taken, since it was free before.
pub(super) async fn listen<S, F>(at: SocketAddr, again: bool, start: impl Fn() -> F) -> Result<S, Fault>
where
    F: Future<Output = Result<S, Fault>>,
{
    let patience = if again { ADDRESS_TAKEN_AGAIN } else { ADDRESS_TAKEN };
    match Retry::within(patience).run(&format!("the address {at}"), &start).await {
        Err(fault) if fault.kind == FaultKind::Timeout && !again => start().await,
        ended => ended,
    }
}

#[cfg(test)]
mod tests {
    use forebay_actors::Domain;

    use super::*;

    /// A user can correct an address that they chose.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_stays_taken_is_the_users_fault_unless_it_was_free_before() {
        let at = SocketAddr::from(([127, 0, 0, 1], 7600));
        let taken = || async { Err::<(), _>(Fault::user("is another process there already?").retryable()) };
        for (again, domain, patience) in
            [(false, Domain::User, ADDRESS_TAKEN), (true, Domain::External, ADDRESS_TAKEN_AGAIN)]
        {
            let begun = tokio::time::Instant::now();
            let fault = listen(at, again, taken).await.unwrap_err();
            assert!(fault.domain == domain && fault.to_string().contains("there already?"), "{fault}");
            let waited = begun.elapsed();
            assert!(waited >= patience && waited < patience + Duration::from_secs(1), "{waited:?}");
        }
        let wrong = || async { Err::<(), _>(Fault::user("can be reached from other machines")) };
        let begun = tokio::time::Instant::now();
        assert_eq!(listen(at, true, wrong).await.unwrap_err().domain, Domain::User);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
