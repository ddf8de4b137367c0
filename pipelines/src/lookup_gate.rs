//! The gate before the look-ups of a trainer: while a checkpoint of several trainers is cut, or a model is evaluated, no more batches are
//! looked up, and the gradients of all earlier ones are applied or, with exact staleness, kept. Then the parameters stand still.
//!
//! It counts the batches that enter and leave. Trainers that take their steps together close it before the same step.
//!
//! Batches enter in the order in which they arrived at the look-up, because its replicas send them on in that order: a batch behind
//! one that waits at the closed gate would never leave.

use std::collections::BTreeSet;

use crate::shared_state::SharedState;

/// A gate that a batch enters before its look-up and leaves when its gradients are applied or, with exact staleness, kept.
#[derive(Debug, Default)]
pub(crate) struct LookupGate {
    state: SharedState<State>,
}

#[derive(Debug, Default)]
struct State {
    /// All batches before this arrival have entered or were skipped.
    next: u64,
    /// Arrivals from `next` on that were skipped.
    skipped: BTreeSet<u64>,
    /// Batches that have entered since the process joined.
    entered: u64,
    left: u64,
    /// Batches that may enter in all. `None`: any number.
    most: Option<u64>,
}

impl LookupGate {
    /// Waits until the gate is open for the batch that arrived as number `arrival`, counted from 0, and all before it have entered
    /// or were skipped. Then it enters. Cancel safe.
    pub(crate) async fn enter(&self, arrival: u64) {
        self.state
            .until(|state| {
                let enters = state.next == arrival && state.most.is_none_or(|most| state.entered < most);
                if enters {
                    state.entered += 1;
                    state.pass(arrival);
                }
                enters
            })
            .await;
        self.state.notify();
    }

    /// Waits until all batches before the one that arrived as number `arrival` have entered or were skipped. No batch behind it enters
    /// before it does. Cancel safe.
    pub(crate) async fn until_turn(&self, arrival: u64) {
        self.state.until(|state| state.next == arrival).await;
    }

    /// Waits until each batch that has entered has left. Cancel safe.
    pub(crate) async fn until_all_left(&self) {
        self.state.until(|state| state.left == state.entered).await;
    }

    /// This batch is not looked up, so later batches do not wait for it.
    pub(crate) fn skip(&self, arrival: u64) {
        self.state.change(|state| state.pass(arrival));
    }

    /// The gradients of a batch that has entered are applied or kept.
    pub(crate) fn leave(&self) {
        self.state.change(|state| state.left += 1);
    }

    /// Lets no more batches in. Returns how many have entered.
    pub(crate) fn close(&self) -> u64 {
        let mut state = self.state.lock();
        state.most = Some(state.entered);
        state.entered
    }

    /// Lets batches in until `most` have entered in all.
    pub(crate) fn close_after(&self, most: u64) {
        self.state.change(|state| state.most = Some(most));
    }

    pub(crate) fn open(&self) {
        self.state.change(|state| state.most = None);
    }

    /// Waits until the number of batches that may enter has entered and each has left. Cancel safe.
    pub(crate) async fn until_quiet(&self) {
        self.state
            .until(|state| state.most.is_some_and(|most| state.entered >= most) && state.left == state.entered)
            .await;
    }
}

impl State {
    fn pass(&mut self, arrival: u64) {
        self.skipped.insert(arrival);
        while self.skipped.remove(&self.next) {
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn now(future: impl Future<Output = ()>) -> bool {
        future.now_or_never().is_some()
    }

    #[test]
    fn a_closed_gate_is_quiet_when_all_that_entered_have_left() {
        let gate = LookupGate::default();
        assert!(now(gate.enter(0)) && now(gate.enter(1)) && !now(gate.until_quiet()), "an open gate is never quiet");
        assert_eq!(gate.close(), 2);
        assert!(!now(gate.enter(2)) && !now(gate.until_quiet()));
        gate.leave();
        assert!(!now(gate.until_quiet()));
        gate.leave();
        assert!(now(gate.until_quiet()) && !now(gate.enter(2)));
        gate.open();
        assert!(now(gate.enter(2)));
    }

    #[test]
    fn it_lets_in_as_many_as_the_step_that_all_agreed_on() {
        let gate = LookupGate::default();
        assert!(now(gate.enter(0)));
        gate.leave();
        assert_eq!(gate.close(), 1);
        gate.close_after(3);
        assert!(!now(gate.until_quiet()), "two batches are to come");
        assert!(now(gate.enter(1)) && now(gate.enter(2)) && !now(gate.enter(3)));
        gate.leave();
        gate.leave();
        assert!(now(gate.until_quiet()));
    }

    #[test]
    fn a_batch_that_waits_enters_when_the_gate_opens() {
        let gate = LookupGate::default();
        gate.close();
        let mut waiting = Box::pin(gate.enter(0));
        assert!(waiting.as_mut().now_or_never().is_none());
        gate.open();
        assert!(waiting.now_or_never().is_some());
        assert_eq!(gate.close(), 1);
    }

    #[test]
    fn a_batch_holds_back_those_behind_it_while_it_waits_for_those_before_it() {
        let gate = LookupGate::default();
        assert!(now(gate.until_turn(0)) && now(gate.until_all_left()) && now(gate.enter(0)));
        gate.skip(1);
        assert!(!now(gate.until_turn(3)), "batch 2 has not entered");
        assert!(now(gate.until_turn(2)) && !now(gate.until_all_left()) && !now(gate.enter(3)));
        gate.leave();
        assert!(now(gate.until_all_left()) && !now(gate.enter(3)) && now(gate.enter(2)) && now(gate.enter(3)));
    }

    /// In another order, a look-up that has passed the gate could wait for an earlier one that the gate holds back.
    #[test]
    fn batches_enter_in_the_order_in_which_they_arrived() {
        let gate = LookupGate::default();
        assert!(!now(gate.enter(1)), "batch 0 has not entered");
        gate.skip(2);
        let (mut third, mut first) = (Box::pin(gate.enter(3)), Box::pin(gate.enter(1)));
        assert!(third.as_mut().now_or_never().is_none() && first.as_mut().now_or_never().is_none());
        gate.skip(0);
        assert!(third.as_mut().now_or_never().is_none() && first.now_or_never().is_some());
        assert!(third.now_or_never().is_some());
        assert_eq!(gate.close(), 2);
    }
}
