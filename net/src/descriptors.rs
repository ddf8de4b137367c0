//! The number of files and sockets that this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files and sockets as far as this process may, and logs a warning if that is less than `needed`.
/// Returns the limit; `None`: there is none.
///
/// Many systems start processes with a limit of 1,024 and let them raise it to a million.
pub fn raise_descriptor_limit(needed: u64) -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = maximum != current && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    let limit = if raised { maximum } else { current };
    if let Some(limit) = limit
        && limit < needed
    {
        tracing::warn!(
            "this process may have {limit} files and sockets open, and may need about {needed}: raise its hard limit \
             (`ulimit -Hn`, or LimitNOFILE of its unit)"
        );
    }
    limit
}
