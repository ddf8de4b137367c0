//! The runtime that network tasks run on.
//!
//! Comes in: nothing. Goes out: one [`Handle`] for the whole process. Its threads wait for sockets, so that no actor's
//! thread does. Nothing here blocks.

use std::sync::OnceLock;
use std::thread::available_parallelism;

use forebay_actors::Fault;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// The runtime of all servers and peers of this process: multi-threaded, its threads named `net`.
///
/// # Panics
/// If the operating system gives no threads to begin with.
pub fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        // The other half of the cores is for those who make and use what travels. On two cores a second thread costs more in
        // threads that wake each other than it carries.
        let threads = (available_parallelism().map_or(2, |n| n.get()) / 2).clamp(1, 8);
        let builder = &mut Builder::new_multi_thread();
        let builder = builder.worker_threads(threads).thread_name("net").enable_all();
        builder.build().expect("a process can start threads before it does anything else")
    });
    runtime.handle()
}

/// Runs a future on the network's runtime and waits for it; a caller that stops waiting ends it.
pub(crate) async fn spawned<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Fault> {
    struct Task<T>(JoinHandle<T>);
    impl<T> Drop for Task<T> {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let mut task = Task(runtime().spawn(work));
    (&mut task.0).await.map_err(|e| Fault::internal("a task of the network was lost").because(e))
}
