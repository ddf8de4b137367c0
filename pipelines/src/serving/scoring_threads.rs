//! The threads that score requests, and the model that they score with.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use forebay_actors::Fault;
use tokio::sync::oneshot;

use super::request_rows::RequestRows;
use super::row_scorer::{Part, RowScorer, Scores};
use super::score_queue::{ScoreQueue, Work};
use super::serving_model::ServingModel;

/// Requests that may wait for each thread. More are refused at once: they would be answered too late to be of use.
const WAITING: usize = 64;

struct Request {
    rows: RequestRows,
    answer: oneshot::Sender<Result<Scores, Fault>>,
}

/// Threads that score requests. Dropping it ends them after the requests that wait.
pub struct ScoringThreads {
    queue: Arc<ScoreQueue<Request, Part>>,
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
        let queue = Arc::new(ScoreQueue::new(WAITING * threads));
        let current = Arc::new(RwLock::new(Arc::new(model)));
        let start = |number: usize| {
            let (queue, current) = (Arc::clone(&queue), Arc::clone(&current));
            std::thread::Builder::new()
                .name(format!("score-{number}"))
                .spawn(move || work(&queue, &current))
                .map_err(|e| Fault::no_thread(format_args!("{threads} threads that score"), e))
        };
        let mut this = Self { queue: Arc::clone(&queue), current: Arc::clone(&current), threads: Vec::new() };
        for number in 0..threads {
            this.threads.push(start(number)?);
        }
        Ok(this)
    }

    /// The scores of the rows of a request. Cancel safe: the answer is thrown away.
    ///
    /// # Errors
    /// A user fault if the rows are wrong. A retryable external fault if too many requests wait.
    pub async fn score(&self, rows: RequestRows) -> Result<Scores, Fault> {
        let (answer, scores) = oneshot::channel();
        if !self.queue.push(Request { rows, answer }) {
            return Err(Fault::external("too many requests wait: try again later").retryable());
        }
        scores.await.map_err(|_| Fault::internal("the threads that score have ended"))?
    }

    /// The model that new requests are scored with.
    pub fn model(&self) -> Arc<ServingModel> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Requests that begin later are scored with `model`. Requests under way end with the model that they began with.
    pub fn replace(&self, model: ServingModel) {
        let old =
            std::mem::replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), Arc::new(model));
        // Dropped outside of the lock, because freeing a large table takes long.
        drop(old);
    }
}

impl Drop for ScoringThreads {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(queue: &ScoreQueue<Request, Part>, current: &RwLock<Arc<ServingModel>>) {
    let current = || Arc::clone(&current.read().unwrap_or_else(PoisonError::into_inner));
    // The scorer is made before the first request, which would have to wait for it. If this fails, the first request says why.
    let mut scorer = RowScorer::new(current()).ok();
    while let Some(next) = queue.take() {
        // After a panic the buffers of the scorer may be half written.
        match next {
            Work::Part(Part { model, batch }) => {
                // If there is no scorer, the other thread scores all rows.
                let help = || scorer_of(&mut scorer, model).map(|scorer| scorer.help(&batch));
                if catch_unwind(AssertUnwindSafe(help)).is_err() {
                    scorer = None;
                }
            }
            Work::Request(Request { answer, .. }) if answer.is_closed() => {}
            Work::Request(Request { rows, answer }) => {
                let score = || scorer_of(&mut scorer, current())?.score(&rows, queue);
                let scored = catch_unwind(AssertUnwindSafe(score)).unwrap_or_else(|panic| {
                    scorer = None;
                    Err(Fault::of_panic("scoring this request panicked", &*panic))
                });
                let _ = answer.send(scored);
            }
        }
    }
}

/// The scorer of this thread, with this model.
fn scorer_of(scorer: &mut Option<RowScorer>, model: Arc<ServingModel>) -> Result<&mut RowScorer, Fault> {
    let scorer = match scorer {
        Some(scorer) => scorer,
        None => scorer.insert(RowScorer::new(Arc::clone(&model))?),
    };
    scorer.adopt(model)?;
    Ok(scorer)
}
