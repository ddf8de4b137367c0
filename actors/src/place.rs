//! Where a stage runs: the arbiters (actix's event-loop threads) and their names.
//!
//! Making an arbiter blocks until its thread is up (some tens of microseconds). Stopping blocks until all threads have
//! ended.

use std::fmt;
use std::thread::JoinHandle;
use std::time::Duration;

use actix::{Arbiter, ArbiterHandle, System, SystemRunner};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use crate::fault::Fault;

/// Where a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// One of a few threads shared by stages that mostly wait.
    Shared,
    /// A named thread of its own, for stages that compute or block.
    Own,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Shared => f.write_str("shared"),
            Place::Own => f.write_str("own"),
        }
    }
}

/// The number of threads behind [`Place::Shared`].
const SHARED: usize = 2;

/// How many threads an arbiter may use for `spawn_blocking`; more calls wait.
const BLOCKING: usize = 16;

/// The arbiters of one run.
pub(crate) struct Places {
    run: String,
    shared: Vec<Arbiter>,
    own: Vec<Arbiter>,
    next: usize,
}

impl Places {
    pub(crate) fn new(run: &str) -> Self {
        Self { run: run.to_owned(), shared: Vec::new(), own: Vec::new(), next: 0 }
    }

    /// The arbiter for a stage called `name`. Shared arbiters are given out round-robin.
    pub(crate) fn arbiter(&mut self, place: Place, name: &str) -> Result<ArbiterHandle, Fault> {
        match place {
            Place::Shared => {
                if self.shared.len() < SHARED {
                    let name = format!("{}-io{}", self.run, self.shared.len());
                    self.shared.push(start(name)?);
                }
                let arbiter = &self.shared[self.next % self.shared.len()];
                self.next += 1;
                Ok(arbiter.handle())
            }
            Place::Own => {
                let arbiter = start(name.to_owned())?;
                let handle = arbiter.handle();
                self.own.push(arbiter);
                Ok(handle)
            }
        }
    }

    /// Stops all threads and waits at most `grace` for their end.
    ///
    /// # Errors
    /// A thread did not end in that time. It is left behind.
    pub(crate) fn stop(self, grace: Duration) -> Result<(), Fault> {
        let arbiters: Vec<_> = self.own.into_iter().chain(self.shared).collect();
        for arbiter in &arbiters {
            arbiter.stop();
        }
        let (ended, wait) = std::sync::mpsc::channel();
        let joined = std::thread::Builder::new().name("join".to_owned()).spawn(move || {
            for arbiter in arbiters {
                // The shell has turned a panic on an arbiter into a fault already.
                let _ = arbiter.join();
            }
            let _ = ended.send(());
        });
        if let Err(e) = joined {
            // The work of these threads has ended, so they end by themselves, and nothing waits for them.
            tracing::debug!("no thread can wait for the end of other threads: {e}");
            return Ok(());
        }
        let blocked = "a thread did not end: something that runs on it blocks it, and it is left behind";
        wait.recv_timeout(grace).map_err(|_| Fault::internal(blocked))
    }
}

fn start(name: String) -> Result<Arbiter, Fault> {
    let what = format!("the thread `{name}`");
    Arbiter::try_with_tokio_rt(move || {
        name_thread(&name)?;
        runtime()
    })
    .map_err(|e| Fault::no_thread(what, e))
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING).build()
}

/// Starts a thread `name` with a system of actix, in which `work` runs to its end. Unlike `System::new`, it does not panic if the process
/// has no more file descriptors for the runtime.
pub(crate) fn spawn_system<T: Send + 'static>(
    name: &str,
    work: impl FnOnce(SystemRunner) -> T + Send + 'static,
) -> Result<JoinHandle<T>, Fault> {
    let no_thread = |e| Fault::no_thread(format_args!("the thread `{name}`"), e);
    let runtime = runtime().map_err(no_thread)?;
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(move || work(System::with_tokio_rt(|| runtime))).map_err(no_thread)
}

/// Sets the name of the current thread in the kernel (15 bytes), which tools show. Actix sets the name in `std`.
fn name_thread(name: &str) -> std::io::Result<()> {
    let name: Vec<u8> = name.bytes().filter(|b| *b != 0).take(15).collect();
    match std::ffi::CString::new(name) {
        Ok(name) => Ok(rustix::thread::set_name(&name)?),
        Err(_) => Ok(()),
    }
}
