//! The threads for network IO: servers, clients, connections to stores. They outlive the pipelines that use them. The
//! threads of actors do no network IO.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::available_parallelism;

use forebay_base::catch_expected;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinError, JoinHandle};

use crate::fault::Fault;
use crate::lock::lock;

/// A handle on one multi-threaded tokio runtime. Cheap to clone.
///
/// The threads start at the first use. When the last clone is dropped, the runtime cancels its tasks and shuts down.
/// The drop does not wait, so it may happen on any thread, even one of the runtime's own.
#[derive(Clone)]
pub struct IoRuntime(Arc<Shared>);

struct Shared {
    name: String,
    threads: usize,
    runtime: OnceLock<Runtime>,
    /// Locked while the runtime starts.
    starting: Mutex<()>,
}

impl IoRuntime {
    /// A runtime of `threads` threads (at least one), all named `name`.
    pub fn new(name: impl Into<String>, threads: usize) -> Self {
        let (name, threads) = (name.into(), threads.max(1));
        Self(Arc::new(Shared { name, threads, runtime: OnceLock::new(), starting: Mutex::default() }))
    }

    /// The number of cores that this process may use, at least 1 and at most `most`.
    pub fn cores(most: usize) -> usize {
        available_parallelism().map_or(2, usize::from).clamp(1, most.max(1))
    }

    /// Starts the threads, if they have not started yet. Returns the runtime's own handle, for libraries that ask for one. It does not keep
    /// the runtime alive.
    ///
    /// # Errors
    /// External: the operating system does not start the threads.
    pub fn start(&self) -> Result<&Handle, Fault> {
        let Shared { name, threads, runtime, starting } = &*self.0;
        if let Some(runtime) = runtime.get() {
            return Ok(runtime.handle());
        }
        let _starting = lock(starting);
        if let Some(runtime) = runtime.get() {
            return Ok(runtime.handle());
        }
        let build =
            || Builder::new_multi_thread().worker_threads(*threads).thread_name(name.as_str()).enable_all().build();
        // If only some of the threads start, tokio panics and then waits forever for the started ones, except within another runtime.
        let within = || match Handle::try_current() {
            Ok(_) => build(),
            Err(_) => Builder::new_current_thread().build()?.block_on(async { build() }),
        };
        match catch_expected(within) {
            Ok(Ok(started)) => Ok(runtime.get_or_init(|| started).handle()),
            Ok(Err(e)) => Err(Fault::no_thread(format_args!("the threads `{name}`"), e)),
            Err(panic) => Err(Fault::of_panic(&format!("cannot start the threads `{name}`"), &*panic)),
        }
    }

    /// As [`start`](Self::start), where no fault can be returned.
    ///
    /// # Panics
    /// At the first use, if the operating system does not start the threads.
    pub fn handle(&self) -> &Handle {
        self.start().unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Starts a task. The task goes on if its handle is dropped.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        // In a box, tokio's code for tasks is compiled once for each `T`, and not for each future (docs/adr/0006).
        let task: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(task);
        self.handle().spawn(task)
    }

    /// Runs `work` on the runtime's threads and awaits it. Dropping the future cancels the work.
    ///
    /// # Errors
    /// If the work panicked or the runtime shut down.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, JoinError> {
        struct AbortOnDrop<T>(JoinHandle<T>);
        impl<T> Drop for AbortOnDrop<T> {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        let mut task = AbortOnDrop(self.spawn(work));
        (&mut task.0).await
    }

    /// Polls `work` on this thread until it is done, with the runtime's sockets and timers.
    ///
    /// # Panics
    /// On a thread that runs a tokio runtime, where blocking is not allowed.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let work: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(work);
        self.handle().block_on(work)
    }
}

impl fmt::Debug for IoRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoRuntime({}, {} threads)", self.0.name, self.0.threads)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn tasks_run_on_named_threads() {
        let io = IoRuntime::new("an-io", 2);
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(io.block_on(io.spawn(async move { name() })).unwrap().as_deref(), Some("an-io"));
        assert_eq!(io.block_on(io.run(async move { name() })).unwrap().as_deref(), Some("an-io"));
        assert_eq!(io.block_on(async move { name() }), name());
    }

    #[test]
    fn work_ends_when_its_caller_stops_waiting() {
        let (sender, dropped) = mpsc::channel::<()>();
        let io = IoRuntime::new("an-io", 1);
        io.block_on(async {
            let work = io.run(async move {
                let _sender = sender;
                std::future::pending::<()>().await;
            });
            let waited = tokio::time::timeout(std::time::Duration::from_millis(10), work).await;
            assert!(waited.is_err(), "the work never ends by itself");
        });
        assert_eq!(dropped.recv(), Err(mpsc::RecvError));
    }

    #[test]
    fn the_last_clone_may_be_dropped_on_the_runtimes_own_thread() {
        let (sender, dropped) = mpsc::channel::<()>();
        let io = IoRuntime::new("an-io", 1);
        io.spawn(async move {
            let _sender = sender;
            std::future::pending::<()>().await;
        });
        let last = io.clone();
        let (ready, go) = tokio::sync::oneshot::channel::<()>();
        let task = io.spawn(async move {
            go.await.unwrap();
            drop(last);
        });
        drop(io);
        ready.send(()).unwrap();
        assert_eq!(dropped.recv(), Err(mpsc::RecvError), "tasks that await are dropped");
        drop(task);
    }
}
