//! Checks the rules that every stage, sink and source must follow, for the tests of any crate (feature `testsuite`).
//!
//! The checks run whole pipelines and kill those that hang.
//!
//! A stage
//! 1. MUST account for every row: rows in = rows out + rows it rejects in the ledger;
//! 2. MUST keep the stream in order: the lineage of what it sends never goes back;
//! 3. MUST send the rows that it held back in `finish`, and end without input too;
//! 4. MUST NOT depend on the room below: it sends the same batches into a link of one as into a wide one;
//! 5. MUST return a fault from below unchanged, and end at a fault from above;
//! 6. MUST let barriers and drains pass;
//! 7. MUST accept being dropped while it waits for room.
//!
//! A sink follows rules 1, 5 and 6: it sends nothing.
//!
//! A source
//! 1. MUST account for every row: it counts the rows that it rejects in the ledger, as read and as rejected;
//! 2. MUST number its batches 0, 1, 2 and so on in `lineage.seq`;
//! 3. MUST NOT lose a row if a future of `next` is dropped before it is ready;
//! 4. MUST return the end again if it is asked again;
//! 5. MUST lose nothing when the run is drained.
//!
//! The same runs check the runtime: busy + starved + blocked + waiting + idle is the stage's wall time, and the counts of stage and link
//! agree.

#[cfg(test)]
mod conformance;
mod rig;
mod source;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::marker::PhantomData;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use source::{check_source, source_rules_broken};

use rig::{HANG, Left, Mode, PLAIN, Replay, Rig, Take, ended};

use crate::fault::Fault;
use crate::link::Capacity;
use crate::lock::lock;
use crate::place::Place;
use crate::replicated::Last;
use crate::run::{Outcome, Running, block_on};
use crate::stage::{Sink, Stage};
use crate::topology::Topology;

/// The batches that arrived at the sink.
type Arrived = Arc<Mutex<Vec<Left>>>;

/// Checks a stage against the rules of [this module](self).
///
/// `make` makes the stage, `inputs` its input batches: the same ones at each call, best three or more.
///
/// # Panics
/// The stage breaks a rule; the message lists all broken rules.
pub fn check_stage<S: Stage>(
    make: impl Fn() -> S + Clone + Send + 'static,
    inputs: impl Fn() -> Vec<S::In> + Clone + Send + 'static,
) {
    let broken = broken_rules(make, inputs);
    assert!(broken.is_empty(), "the stage breaks {} rules:\n{}", broken.len(), broken.join("\n"));
}

/// The rules that a stage breaks, one line each.
pub fn broken_rules<S: Stage>(
    make: impl Fn() -> S + Clone + Send + 'static,
    inputs: impl Fn() -> Vec<S::In> + Clone + Send + 'static,
) -> Vec<String> {
    let bench = Bench { make, inputs };
    let checks = [Bench::whole, Bench::empty, Bench::faults, Bench::marks, Bench::dropped];
    checks.iter().filter_map(|check| check(&bench).err()).collect()
}

/// Checks a sink against the rules of [this module](self); see [`check_stage`].
///
/// # Panics
/// The sink breaks a rule; the message lists all broken rules.
pub fn check_sink<S: Sink>(
    make: impl Fn() -> S + Clone + Send + 'static,
    inputs: impl Fn() -> Vec<S::In> + Clone + Send + 'static,
) {
    let bench = Bench { make: move || Last(make()), inputs };
    let checks = [Bench::whole, Bench::faults, Bench::marks];
    let broken: Vec<String> = checks.iter().filter_map(|check| check(&bench).err()).collect();
    assert!(broken.is_empty(), "the sink breaks {} rules:\n{}", broken.len(), broken.join("\n"));
}

struct Bench<M, I> {
    make: M,
    inputs: I,
}

impl<S, M, I> Bench<M, I>
where
    S: Stage,
    M: Fn() -> S + Clone + Send + 'static,
    I: Fn() -> Vec<S::In> + Clone + Send + 'static,
{
    fn start(&self, rig: Rig) -> Result<(Running, Arrived), String> {
        let left = Arc::new(Mutex::new(Vec::new()));
        let (inputs, make, into) = (self.inputs.clone(), self.make.clone(), Arc::clone(&left));
        let (fails, waits, mode) = (rig.source_fails, rig.source_waits, rig.sink);
        let running = Topology::new("testsuite")
            .grace(Duration::from_secs(2))
            .source("testsuite source", Place::Own, move || Replay { batches: inputs().into(), sent: 0, fails, waits })
            .link(rig.capacity)
            .stage("stage", Place::Own, make)
            .link(rig.capacity)
            .sink("testsuite sink", Place::Own, move || Take { left: into, mode, seen: PhantomData })
            .start()
            .map_err(|fault| format!("cannot be started: {fault}"))?;
        Ok((running, left))
    }

    fn run(&self, rig: Rig) -> Result<(Outcome, Vec<Left>), String> {
        let (running, left) = self.start(rig)?;
        let outcome = ended(running)?;
        let left = std::mem::take(&mut *lock(&left));
        Ok((outcome, left))
    }

    /// Rules 1, 2 and 4, and the meters.
    fn whole(&self) -> Result<(), String> {
        let (outcome, wide) = self.run(PLAIN())?;
        outcome.result.map_err(|fault| format!("rule 1, every row is accounted for: {fault}"))?;
        if let Some(pair) = wide.windows(2).find(|pair| key(&pair[1]) < key(&pair[0])) {
            let mut text = "rule 2, the stream stays in order: ".to_owned();
            let _ = write!(text, "{} is followed by {}", pair[0].lineage, pair[1].lineage);
            return Err(text);
        }
        let report = outcome.report;
        let (stage, above, below) = (&report.stages[1], &report.links[0], &report.links[1]);
        let times = stage.busy + stage.starved + stage.blocked + stage.waiting + stage.idle;
        if times != stage.wall || stage.wall != report.wall {
            return Err(format!("the meters do not sum up: {stage:?}"));
        }
        if (stage.rows_in, stage.items_in, stage.rows_out, stage.items_out)
            != (above.rows, above.items, below.rows, below.items)
        {
            return Err(format!("stage and links count differently: {stage:?}, {above:?}, {below:?}"));
        }
        let (outcome, tight) = self.run(Rig { capacity: Capacity::items(1).bytes(1), sink: Mode::Slow, ..PLAIN() })?;
        outcome.result.map_err(|fault| format!("rule 4, room below does not matter: {fault}"))?;
        if wide != tight {
            return Err(format!(
                "rule 4, room below does not matter: through links of one left {tight:?}, through wide ones {wide:?}"
            ));
        }
        Ok(())
    }

    /// Rule 3.
    fn empty(&self) -> Result<(), String> {
        let bench = Bench { make: self.make.clone(), inputs: Vec::new };
        let (outcome, left) = bench.run(PLAIN())?;
        outcome.result.map_err(|fault| format!("rule 3, no input is no fault: {fault}"))?;
        match left.iter().map(|l| l.rows).sum::<usize>() {
            0 => Ok(()),
            rows => Err(format!("rule 3, no input is no output: {rows} rows left")),
        }
    }

    /// Rule 5.
    fn faults(&self) -> Result<(), String> {
        let half = (self.inputs)().len() / 2;
        let (outcome, _) = self.run(Rig { source_fails: Some(half), ..PLAIN() })?;
        let root = outcome.result.err().and_then(|fault| fault.stage);
        if root.as_deref() != Some("testsuite source") {
            return Err(format!("rule 5, a fault from above ends it: the root cause is {root:?}"));
        }
        let (outcome, left) = self.run(Rig { capacity: Capacity::items(1), sink: Mode::Fails, ..PLAIN() })?;
        let root = outcome.result.err().and_then(|fault| fault.stage);
        // If the stage sends nothing, the sink does not fail.
        if root.as_deref() != Some("testsuite sink") && !left.is_empty() {
            return Err(format!("rule 5, a fault from below is let through: the root cause is {root:?}"));
        }
        Ok(())
    }

    /// Rule 6.
    fn marks(&self) -> Result<(), String> {
        let half = (self.inputs)().len() / 2;
        let (running, _) = self.start(Rig { source_waits: Some(half), ..PLAIN() })?;
        let barrier = running.barrier_at("stage");
        let (done, passed) = channel();
        std::thread::spawn(move || {
            let _ = done.send(block_on(barrier));
        });
        match passed.recv_timeout(HANG) {
            Ok(Ok(_)) => {}
            Ok(Err(fault)) => return Err(format!("rule 6, a barrier passes: {fault}; {:?}", ended(running)?.result)),
            Err(_) => return Err("rule 6, a barrier passes: it did not".to_owned()),
        }
        // The barrier may come before the first batch, and some sinks refuse to end without one.
        let (control, begun) = (running.control(), Instant::now());
        while half > 0 && control.snapshot().ledger.read == 0 && begun.elapsed() < HANG {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        running.drain();
        let outcome = ended(running)?;
        outcome.result.map_err(|fault| format!("rule 6, a drain passes and loses nothing: {fault}"))
    }

    /// Rule 7.
    fn dropped(&self) -> Result<(), String> {
        let (running, _) = self.start(Rig { capacity: Capacity::items(1), sink: Mode::Clogs, ..PLAIN() })?;
        // Wait until the counts stand still: the source has ended or is blocked.
        let mut before = None;
        loop {
            std::thread::park_timeout(Duration::from_millis(20));
            let report = running.snapshot();
            let now: Vec<_> = report.stages.iter().map(|s| (s.items_in, s.items_out)).collect();
            if before.as_ref() == Some(&now) {
                break;
            }
            before = Some(now);
        }
        running.kill(Fault::user("testsuite kill"));
        match ended(running)?.result {
            Err(fault) if fault.message() == "testsuite kill" => Ok(()),
            other => Err(format!("rule 7, it is dropped while it waits: the run ended with {other:?}")),
        }
    }
}

fn key(left: &Left) -> (u32, u64) {
    (left.lineage.epoch, left.lineage.seq)
}
