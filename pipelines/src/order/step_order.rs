//! The order of look-ups and pushes of a trainer in step with others (`train.sync`) and `train.staleness = 0`: the look-up of batch `n`
//! sees the round of batch `n - 1`. A state machine without a clock and without IO.
//!
//! ```text
//!  push    share of step 1 ─────→ waits until the round is applied
//!  lookup   └─ pull after step 1 ─→ waits until the round is applied ─→ train ─→ ...
//! ```
//! The `push` stage hands over its share of a round. Right behind it, before the answer, the `lookup` stage sends the pull for the next
//! batch, which names the step of that round. The ps hold the pull until the round is applied. So a step takes one round trip to the ps.
//!
//! The `push` stage waits for the answer before it takes the next batch: its share of one round is never sent before the round before it
//! is applied.

use std::sync::Arc;

use forebay_job::Job;

use crate::shared_state::SharedState;

/// The order of one trainer.
#[derive(Debug, Default)]
pub(crate) struct StepOrder {
    state: SharedState<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Batches that were looked up.
    looked_up: u64,
    /// Batches whose gradients were handed over.
    pushed: u64,
    /// Batches whose round is applied.
    applied: u64,
    /// The step of the batch whose gradients were handed over last.
    step: Option<u64>,
}

impl StepOrder {
    /// The order that a job asks for. `None`: its trainers are not in step, or an exact order has its own turns
    /// ([`ExactOrder`](crate::order::exact_order::ExactOrder)).
    pub(crate) fn of(job: &Job) -> Option<Arc<Self>> {
        (job.round().is_some() && !job.train.staleness.exactly).then(Arc::default)
    }

    /// Waits until the gradients of all batches that were looked up are handed over. Returns the step of the last one: the look-up must
    /// see its round. `None`: there was none. Cancel safe.
    pub(crate) async fn turn(&self) -> Option<u64> {
        self.state.when(|state| (state.pushed == state.looked_up).then_some(state.step)).await
    }

    /// A batch is looked up.
    pub(crate) fn looks_up(&self) {
        self.state.change(|state| state.looked_up += 1);
    }

    /// The gradients of the next batch were handed over, as the share of this step.
    pub(crate) fn pushed(&self, step: u64) {
        self.state.change(|state| {
            state.pushed += 1;
            state.step = Some(step);
        });
    }

    /// The round of the push that was handed over is applied.
    pub(crate) fn applied(&self) {
        self.state.change(|state| state.applied += 1);
    }

    /// Waits until the round of the push that was handed over is applied. Until then a look-up waits for the other trainers. Cancel safe.
    pub(crate) async fn until_applied(&self) {
        self.state.until(|state| state.applied == state.pushed).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_look_up_follows_the_push_before_it_and_names_its_step() {
        let order = StepOrder::default();
        assert_eq!(order.turn().now_or_never(), Some(None), "the first look-up waits for no round");
        order.looks_up();
        for step in 71..75 {
            let mut next = Box::pin(order.turn());
            assert!(next.as_mut().now_or_never().is_none(), "the push of step {step} is not handed over");
            order.pushed(step);
            assert_eq!(next.now_or_never(), Some(Some(step)));
            assert!(order.until_applied().now_or_never().is_none());
            order.applied();
            assert!(order.until_applied().now_or_never().is_some());
            order.looks_up();
        }
    }

    #[test]
    fn only_trainers_in_step_have_it() {
        let of = |settings: &[&str]| StepOrder::of(&Job::with_settings("", settings).unwrap()).is_some();
        let two = ["placement.trainers=2", "placement.ps=1", "placement.readers=1"];
        assert!(of(&[&two[..], &["train.sync=true", "train.staleness=0"]].concat()));
        assert!(!of(&[&two[..], &["train.sync=true", "train.staleness={ exactly = 2 }"]].concat()));
        assert!(!of(&two) && !of(&["train.sync=true"]));
    }
}
