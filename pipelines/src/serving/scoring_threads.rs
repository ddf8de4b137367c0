//! The threads that score requests, and the model that they score with.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use forebay_actors::Fault;
use tokio::sync::oneshot;

use super::request_rows::RequestRows;
use super::row_scorer::{RowScorer, Scores};
use super::serving_model::ServingModel;

/// Requests that may wait for each thread. More are refused at once: they would be answered too late to be of use.
const WAITING: usize = 64;

struct Request {
    rows: RequestRows,
    answer: oneshot::Sender<Result<Scores, Fault>>,
}

/// Threads that score requests. Dropping it ends them after the requests that wait.
pub struct ScoringThreads {
    requests: Option<SyncSender<Request>>,
    current: Arc<RwLock<Arc<ServingModel>>>,
    threads: Vec<JoinHandle<()>>,
}

impl ScoringThreads {
    /// Starts `threads` threads, at least one, that score with `model`.
    ///
    /// # Errors
    /// An external fault if the system starts no threads.
    pub fn start(model: ServingModel, threads: usize) -> Result<Self, Fault> {
        let threads = threads.max(1);
        let (requests, receiver) = sync_channel(WAITING * threads);
        let current = Arc::new(RwLock::new(Arc::new(model)));
        let receiver = Arc::new(Mutex::new(receiver));
        let start = |number: usize| {
            let (receiver, current) = (Arc::clone(&receiver), Arc::clone(&current));
            std::thread::Builder::new()
                .name(format!("score-{number}"))
                .spawn(move || work(&receiver, &current))
                .map_err(|e| Fault::external(format!("cannot start {threads} threads")).because(e))
        };
        let started = (0..threads).map(start).collect::<Result<_, _>>()?;
        Ok(Self { requests: Some(requests), current, threads: started })
    }

    /// The scores of the rows of a request. Cancel safe: the answer is thrown away.
    ///
    /// # Errors
    /// A user fault if the rows are wrong. A retryable external fault if too many requests wait.
    pub async fn score(&self, rows: RequestRows) -> Result<Scores, Fault> {
        let (answer, scores) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(gone)?;
        requests.try_send(Request { rows, answer }).map_err(|e| match e {
            TrySendError::Full(_) => Fault::external("too many requests wait: try again later").retryable(),
            TrySendError::Disconnected(_) => gone(),
        })?;
        scores.await.map_err(|_| gone())?
    }

    /// The model that new requests are scored with.
    pub fn model(&self) -> Arc<ServingModel> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has all requests that begin from now on scored with `model`. Requests under way end with the one that they began with.
    pub fn replace(&self, model: ServingModel) {
        let old =
            std::mem::replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), Arc::new(model));
        // Outside of the lock: freeing a large table takes long.
        drop(old);
    }
}

impl Drop for ScoringThreads {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn gone() -> Fault {
    Fault::internal("the threads that score have ended")
}

fn work(requests: &Mutex<Receiver<Request>>, current: &RwLock<Arc<ServingModel>>) {
    let mut scorer = None;
    loop {
        // One idle thread waits for a request, the others wait for their turn to wait.
        let next = requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Request { rows, answer }) = next else { return };
        if answer.is_closed() {
            continue;
        }
        let model = Arc::clone(&current.read().unwrap_or_else(PoisonError::into_inner));
        let scored = catch_unwind(AssertUnwindSafe(|| score(&mut scorer, model, &rows)));
        let scored = scored.unwrap_or_else(|_| {
            // Its buffers may be half written.
            scorer = None;
            Err(Fault::internal("scoring this request panicked"))
        });
        let _ = answer.send(scored);
    }
}

fn score(scorer: &mut Option<RowScorer>, model: Arc<ServingModel>, rows: &RequestRows) -> Result<Scores, Fault> {
    let scorer = match scorer {
        Some(scorer) => scorer,
        None => scorer.insert(RowScorer::new(Arc::clone(&model))?),
    };
    scorer.adopt(model)?;
    scorer.score(rows)
}
