//! A replicated sink counts each row once, queues no batch behind a slow replica, and handles barriers and faults.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use std::sync::{Arc, Mutex};

use common::{Count, Numbers, end, until};
use forebay_actors::{BarrierNumber, Domain, Fault, Place, Running, Sink, StageCx, Topology};
use tokio::sync::Semaphore;

/// The calls of all replicas, in their order.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Batch { seq: u64, arrival: u64 },
    Barrier(u64),
    Finish,
}

#[derive(Clone)]
struct Write {
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Batch 0 waits for it.
    gate: Arc<Semaphore>,
    /// The write of this batch fails.
    bad: Option<u64>,
}

impl Write {
    fn new(gate: usize) -> Self {
        Self { seen: Arc::default(), gate: Arc::new(Semaphore::new(gate)), bad: None }
    }

    /// Starts a run that writes the batches of `count` with this many replicas.
    fn start(&self, count: Count, replicas: usize) -> Running {
        let sink = self.clone();
        Topology::new("write")
            .source("count", Place::Own, move || count)
            .link(1)
            .replicated_sink("write", Place::Shared, replicas, move |_| sink.clone())
            .start()
            .unwrap()
    }

    fn saw(&self, what: Seen) {
        self.seen.lock().unwrap().push(what);
    }
}

impl Sink for Write {
    type In = Numbers;
    fn describe(&self) -> String {
        "writes".to_owned()
    }
    async fn write(&mut self, batch: Numbers, cx: &StageCx) -> Result<(), Fault> {
        let (seq, arrival) = (batch.lineage.seq, cx.arrival());
        if seq == 0 {
            self.gate.acquire().await.unwrap().forget();
        }
        if self.bad == Some(seq) {
            return Err(Fault::external("no space left"));
        }
        self.saw(Seen::Batch { seq, arrival });
        Ok(())
    }
    async fn on_barrier(&mut self, barrier: BarrierNumber, _cx: &StageCx) -> Result<(), Fault> {
        self.saw(Seen::Barrier(barrier.0));
        Ok(())
    }
    async fn finish(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.saw(Seen::Finish);
        Ok(())
    }
}

#[test]
fn a_batch_that_takes_long_holds_up_no_other_and_each_row_is_counted_once() {
    let write = Write::new(0);
    let running = write.start(Count::new(100, 2), 3);
    until("198 rows are delivered", || running.snapshot().ledger.delivered >= 198);
    write.gate.add_permits(1);
    let report = end(running).report;
    assert_eq!((report.ledger.read, report.ledger.delivered), (200, 200));
    let seen = write.seen.lock().unwrap();
    assert_eq!(seen[99], Seen::Batch { seq: 0, arrival: 0 });
    // `arrival` counts the batches of all replicas.
    assert!(seen[..100].iter().all(|seen| matches!(seen, Seen::Batch { seq, arrival } if seq == arrival)));
    assert_eq!(seen[100..], [Seen::Finish, Seen::Finish, Seen::Finish]);
    assert_eq!((report.stages.len(), report.links.len()), (2, 1));
    assert_eq!((report.stages[1].kind.as_str(), report.stages[1].replicas), ("sink", 3));
}

#[test]
fn a_barrier_is_over_when_every_replica_has_seen_it_and_all_before_it_is_written() {
    let write = Write::new(0);
    let running = write.start(Count::endless(1), 2);
    until("a batch is written", || !write.seen.lock().unwrap().is_empty());
    let barrier = running.barrier_at("write");
    assert!(!write.seen.lock().unwrap().contains(&Seen::Barrier(0)), "batch 0 is not written yet");
    write.gate.add_permits(1);
    let barrier = futures::executor::block_on(barrier).unwrap();
    let seen = write.seen.lock().unwrap().clone();
    running.drain();
    end(running).result.unwrap();
    let at = seen.iter().position(|seen| matches!(seen, Seen::Barrier(_))).unwrap();
    assert_eq!(seen[at..at + 2], [Seen::Barrier(barrier.0), Seen::Barrier(barrier.0)]);
    let mut before: Vec<u64> = seen[..at]
        .iter()
        .filter_map(|seen| if let Seen::Batch { seq, .. } = seen { Some(*seq) } else { None })
        .collect();
    before.sort_unstable();
    assert_eq!(before, (0..before.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_fault_of_one_replica_ends_the_run_and_names_the_batch() {
    let running = Write { bad: Some(7), ..Write::new(1) }.start(Count::endless(1), 2);
    let fault = end(running).result.unwrap_err();
    assert_eq!((fault.domain, fault.stage.as_deref()), (Domain::External, Some("write")));
    assert_eq!(fault.lineage.map(|lineage| lineage.seq), Some(7));
}
