//! Exact staleness, `train.staleness = { exactly = k }`: the look-up of batch `n` sees the pushes of all batches before `n - k`,
//! and of no other. A state machine over look-ups and computed gradients, without a clock and without IO.
//!
//! ```text
//!  k = 2:  look up 0, 1, 2 │ push 0, look up 3 │ push 1, look up 4 │ ... │ push the rest
//! ```
//! The `lookup` stage follows this order: before it looks up batch `n` it pushes the gradients of batch `n - k - 1`. It looks up
//! while `train` computes the `k` batches between. The `push` stage keeps the computed gradients, at most `k + 1`, until they are
//! due, and pushes the rest when no batch is left. So `push` never waits for `lookup`, and no link has to hold `k` batches.
//!
//! Batches are numbered from 0 over all epochs of an attempt, without those that are not trained on. Between two look-ups nothing
//! is being pushed: there a checkpoint is cut, with the kept gradients.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_batches::GradBatch;
use forebay_job::Job;
use forebay_ps::PushId;

use crate::shared_state::SharedState;

/// The order of the look-ups and pushes of one trainer.
#[derive(Debug)]
pub(crate) struct ExactOrder {
    k: u64,
    /// The rank of this trainer among those that take each step together.
    rank: u32,
    in_step: u32,
    state: SharedState<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Batches that were looked up.
    looked_up: u64,
    /// Batches whose gradients were given out to be pushed.
    pushed: u64,
    /// Gradients from `pushed` on.
    computed: VecDeque<Arc<GradBatch>>,
    /// Barriers that are between the look-up and the push.
    barriers: u32,
}

/// A batch whose gradients are to be pushed.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) batch: Arc<GradBatch>,
    /// The id of the push. It comes from the number of the batch and not from its window, because the coordinator counts a window as done
    /// when its gradients are computed.
    pub(crate) id: PushId,
    /// All pushes of lower series are applied. `None` if this was returned before.
    pub(crate) acknowledge: Option<u64>,
}

/// Pushes of a series: shards forget the ids of a whole series at once.
const SERIES_PUSHES: u64 = 4096;

impl ExactOrder {
    /// The order that a job asks for, in the trainer of this rank.
    pub(crate) fn of(job: &Job, rank: u32) -> Option<Arc<Self>> {
        let staleness = job.train.staleness;
        let (k, in_step) = (staleness.batches as u64, job.in_step() as u32);
        staleness.exactly.then(|| Arc::new(Self::new(k, rank, in_step)))
    }

    fn new(k: u64, rank: u32, in_step: u32) -> Self {
        Self { k, rank, in_step, state: SharedState::default() }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Continues from a checkpoint with these gradients, before the first look-up.
    pub(crate) fn restore(&self, kept: Vec<GradBatch>) {
        let looked_up = kept.len() as u64;
        *self.state.lock() =
            State { looked_up, computed: kept.into_iter().map(Arc::new).collect(), ..State::default() };
    }

    /// The gradients of the next batch are computed.
    pub(crate) fn computed(&self, batch: GradBatch) {
        self.state.change(|state| state.computed.push_back(Arc::new(batch)));
    }

    /// The gradients that must be pushed before the next look-up; waits until they are computed. `None`: the next batch may be looked up.
    /// Not cancel safe: gradients that were given out count as pushed.
    pub(crate) async fn next_due(&self) -> Option<Due> {
        self.state
            .when(|state| {
                if state.pushed + self.k >= state.looked_up {
                    return Some(None);
                }
                Some(Some(self.give(state)?))
            })
            .await
    }

    /// A batch is looked up. Returns how many earlier ones are not pushed.
    pub(crate) fn looks_up(&self) -> u64 {
        let mut state = self.state.lock();
        state.looked_up += 1;
        state.looked_up - 1 - state.pushed
    }

    /// The next gradients once no batch is left to look up.
    pub(crate) fn next_of_the_rest(&self) -> Option<Due> {
        self.give(&mut self.state.lock())
    }

    fn give(&self, state: &mut State) -> Option<Due> {
        let batch = state.computed.pop_front()?;
        let (series, index) = (state.pushed / SERIES_PUSHES, (state.pushed % SERIES_PUSHES) as u32);
        state.pushed += 1;
        let id = PushId { series, index: index * self.in_step + self.rank };
        Some(Due { batch, id, acknowledge: (index == 0 && series > 0).then_some(series) })
    }

    /// The gradients that are computed and not pushed, in the order of the batches.
    pub(crate) fn kept(&self) -> Vec<Arc<GradBatch>> {
        self.state.lock().computed.iter().cloned().collect()
    }

    /// A barrier has passed the look-up: there is no other look-up until it has passed the push.
    pub(crate) fn barrier_begins(&self) {
        self.state.lock().barriers += 1;
    }

    /// A barrier is at the push.
    pub(crate) fn barrier_ends(&self) {
        self.state.change(|state| state.barriers = state.barriers.saturating_sub(1));
    }

    /// Waits until no barrier is between the look-up and the push. Cancel safe.
    pub(crate) async fn without_barriers(&self) {
        self.state.until(|state| state.barriers == 0).await;
    }
}

/// Gradients of no rows, for tests of the order of batches.
#[cfg(test)]
pub(crate) fn gradients_without_rows(id: forebay_batches::BatchId, step: u64) -> GradBatch {
    GradBatch {
        lineage: Default::default(),
        id,
        step,
        samples: 1,
        unique: Vec::new(),
        row_grads: Vec::new(),
        dense_grads: None,
        ticket: forebay_batches::Ticket::free(),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use forebay_batches::BatchId;

    fn batch(step: u64) -> GradBatch {
        gradients_without_rows(BatchId { epoch: 0, window: 0, index: step as u32 }, step)
    }

    proptest! {
        /// Look-ups, computed gradients and checkpoints at any time: before each look-up exactly the pushes of the definition
        /// are made, in order, and each gradient is pushed once.
        #[test]
        fn a_look_up_follows_the_pushes_of_its_definition(
            k in 0u64..6, batches in 0u64..40, events in prop::collection::vec(0u8..8, 0..200),
        ) {
            let mut order = ExactOrder::new(k, 0, 1);
            let (mut looked_up, mut computed, mut pushed) = (0, 0, 0);
            for event in events.into_iter().chain(std::iter::repeat_n([0, 1], 100).flatten()) {
                match event {
                    0 | 2 | 3 if looked_up < batches => match order.next_due().now_or_never() {
                        Some(Some(due)) => {
                            prop_assert_eq!((due.batch.step, due.batch.step + k), (pushed, looked_up - 1));
                            pushed += 1;
                        }
                        Some(None) => {
                            prop_assert_eq!(pushed, looked_up.saturating_sub(k));
                            prop_assert_eq!(order.looks_up(), looked_up - pushed);
                            looked_up += 1;
                        }
                        None => prop_assert!(computed == pushed && pushed + k < looked_up, "it waits without need"),
                    },
                    1 | 4 | 5 | 6 if computed < looked_up => {
                        order.computed(batch(computed));
                        computed += 1;
                        prop_assert!(order.kept().len() as u64 <= k + 1);
                    }
                    // A checkpoint is cut when all that was looked up is computed.
                    7 if computed == looked_up => {
                        let kept: Vec<u64> = order.kept().iter().map(|batch| batch.step).collect();
                        prop_assert_eq!(&kept, &(pushed..looked_up).collect::<Vec<_>>());
                        order = ExactOrder::new(k, 0, 1);
                        order.restore(kept.into_iter().map(batch).collect());
                    }
                    _ => {}
                }
            }
            prop_assert_eq!((looked_up, computed), (batches, batches), "it hangs");
            let rest: Vec<u64> = std::iter::from_fn(|| order.next_of_the_rest()).map(|due| due.batch.step).collect();
            prop_assert_eq!(rest, (pushed..batches).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_push_has_a_name_of_its_own_and_old_names_are_acknowledged() {
        let orders = [0, 1].map(|rank| ExactOrder::new(0, rank, 2));
        let (mut names, mut acknowledged) = (std::collections::BTreeSet::new(), 0);
        for step in 0..2 * SERIES_PUSHES + 2 {
            for order in &orders {
                order.looks_up();
                order.computed(batch(step));
                let due = order.next_due().now_or_never().flatten().unwrap();
                acknowledged = due.acknowledge.unwrap_or(acknowledged);
                assert!(due.id.series >= acknowledged && names.insert(due.id), "{:?}", due.id);
                assert_eq!(due.id.series, step / SERIES_PUSHES);
            }
        }
        assert_eq!(acknowledged, 2);
    }

    #[test]
    fn nothing_is_looked_up_between_the_beginning_and_the_end_of_a_barrier() {
        let order = ExactOrder::new(1, 0, 1);
        assert!(order.without_barriers().now_or_never().is_some());
        order.barrier_begins();
        order.barrier_begins();
        order.barrier_ends();
        assert!(order.without_barriers().now_or_never().is_none());
        order.barrier_ends();
        assert!(order.without_barriers().now_or_never().is_some());
    }
}
