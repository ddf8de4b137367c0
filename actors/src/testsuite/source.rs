//! Checks the rules of sources.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::rig::{Left, Mode, Take, ended};
use crate::context::StageCx;
use crate::fault::Fault;
use crate::link::Capacity;
use crate::lock::lock;
use crate::place::Place;
use crate::run::{Outcome, Running};
use crate::stage::Source;
use crate::topology::Topology;

/// Checks a source against the rules of [this module](super).
///
/// `make` makes the source, over the same rows at each call. It must return two batches or more.
///
/// # Panics
/// The source breaks a rule; the message lists all broken rules.
pub fn check_source<S: Source>(make: impl Fn() -> S + Clone + Send + 'static) {
    let broken = source_rules_broken(make);
    assert!(broken.is_empty(), "the source breaks {} rules:\n{}", broken.len(), broken.join("\n"));
}

/// The rules that a source breaks, one line each.
pub fn source_rules_broken<S: Source>(make: impl Fn() -> S + Clone + Send + 'static) -> Vec<String> {
    let whole = match run(make.clone(), Mode::Takes) {
        Ok((Outcome { result: Ok(()), .. }, whole)) => whole,
        Ok((Outcome { result: Err(fault), .. }, _)) => {
            return vec![format!("rule 1, every row is accounted for: {fault}")];
        }
        Err(hang) => return vec![hang],
    };
    let mut broken = Vec::new();
    broken.extend(numbered(&whole).err());
    let waits = make.clone();
    broken.extend(cancelled(move || DropsNext { source: waits(), ended: false }, &whole).err());
    broken.extend(drained(make, &whole).err());
    broken
}

/// Rule 2: the numbers of the batches are 0, 1, 2 and so on.
fn numbered(whole: &[Left]) -> Result<(), String> {
    match whole.iter().zip(0..).find(|(left, seq)| left.lineage.seq != *seq) {
        Some((left, seq)) => Err(format!("rule 2, batches are numbered: batch {seq} says {}", left.lineage)),
        None => Ok(()),
    }
}

/// Rules 3 and 4.
fn cancelled<S: Source>(make: impl Fn() -> DropsNext<S> + Send + 'static, whole: &[Left]) -> Result<(), String> {
    let (outcome, left) = run(make, Mode::Takes)?;
    outcome.result.map_err(|fault| format!("rule 3, `next` may be dropped: {fault}"))?;
    if left != whole {
        return Err(format!("rule 3, `next` may be dropped: with dropped futures {left:?}, otherwise {whole:?}"));
    }
    Ok(())
}

/// Rule 5: the batches of a drained run are the first ones, and each row of them is accounted for.
fn drained<S: Source>(make: impl Fn() -> S + Send + 'static, whole: &[Left]) -> Result<(), String> {
    let (running, left) = start(make, Mode::Slow)?;
    while running.snapshot().stages[0].items_out == 0 && !running.ended() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    running.drain();
    let outcome = ended(running)?;
    outcome.result.map_err(|fault| format!("rule 5, a drain loses nothing: {fault}"))?;
    let left = lock(&left);
    if whole.starts_with(&left) { Ok(()) } else { Err(format!("rule 5, a drain loses nothing: {left:?} of {whole:?}")) }
}

fn run<S: Source>(make: impl Fn() -> S + Send + 'static, mode: Mode) -> Result<(Outcome, Vec<Left>), String> {
    let (running, left) = start(make, mode)?;
    let outcome = ended(running)?;
    let left = std::mem::take(&mut *lock(&left));
    Ok((outcome, left))
}

fn start<S: Source>(make: impl Fn() -> S + Send + 'static, mode: Mode) -> Result<(Running, super::Arrived), String> {
    let left = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&left);
    let running = Topology::new("testsuite")
        .grace(Duration::from_secs(2))
        .source("source", Place::Own, make)
        .link(Capacity::items(1))
        .sink("testsuite sink", Place::Own, move || Take { left: into, mode, seen: PhantomData })
        .start()
        .map_err(|fault| format!("cannot be started: {fault}"))?;
    Ok((running, left))
}

/// Asks another source, and drops the futures of its `next` that are not ready in time: in no time at first, then in twice as much,
/// so that one that starts again each time gets ready, too.
struct DropsNext<S> {
    source: S,
    ended: bool,
}

impl<S: Source> Source for DropsNext<S> {
    type Out = S::Out;

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.source.open(cx).await
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<S::Out>, Fault> {
        let mut timeout = Duration::ZERO;
        loop {
            if let Ok(batch) = tokio::time::timeout(timeout, self.source.next(cx)).await {
                let batch = batch?;
                if batch.is_some() && self.ended {
                    return Err(Fault::internal("rule 4, the end is the end: a batch came after it"));
                }
                if batch.is_none() && !self.ended {
                    self.ended = true;
                    continue;
                }
                return Ok(batch);
            }
            timeout = (2 * timeout).clamp(Duration::from_micros(20), Duration::from_secs(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Lineage};

    struct Bag(Lineage);

    impl Batch for Bag {
        fn rows(&self) -> usize {
            3
        }
        fn bytes(&self) -> usize {
            3
        }
        fn lineage(&self) -> &Lineage {
            &self.0
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Vice {
        None,
        NumbersNothing,
        LosesWhatIsDropped,
        GoesOnAfterTheEnd,
        CountsTwice,
    }

    struct Bags {
        vice: Vice,
        next: u64,
    }

    impl Source for Bags {
        type Out = Bag;

        async fn next(&mut self, cx: &StageCx) -> Result<Option<Bag>, Fault> {
            let seq = self.next;
            if self.vice == Vice::LosesWhatIsDropped {
                self.next += 1;
            }
            // Timers go by the millisecond: a future that is ready within the same one is not dropped, and on a busy machine neither is
            // one that is ready a few later.
            let ready_after = if self.vice == Vice::LosesWhatIsDropped { 20_000 } else { 300 };
            tokio::time::sleep(Duration::from_micros(ready_after)).await;
            if self.vice != Vice::LosesWhatIsDropped {
                self.next += 1;
            }
            if self.vice == Vice::CountsTwice {
                cx.ledger().read(3);
            }
            let lineage =
                Lineage { seq: if self.vice == Vice::NumbersNothing { 0 } else { seq }, ..Lineage::default() };
            let more = seq < 8 || (self.vice == Vice::GoesOnAfterTheEnd && seq == 9);
            Ok(more.then_some(Bag(lineage)))
        }
    }

    fn rules(vice: Vice) -> String {
        source_rules_broken(move || Bags { vice, next: 0 }).join("\n")
    }

    #[test]
    fn a_good_source_breaks_no_rule() {
        check_source(|| Bags { vice: Vice::None, next: 0 });
    }

    #[test]
    fn bad_sources_are_found() {
        let vices = [
            (Vice::NumbersNothing, "rule 2"),
            (Vice::LosesWhatIsDropped, "rule 3"),
            (Vice::GoesOnAfterTheEnd, "rule 4"),
            (Vice::CountsTwice, "rule 1"),
        ];
        for (vice, rule) in vices {
            let found = rules(vice);
            assert!(found.contains(rule), "{vice:?}: {found:?}");
        }
    }
}
