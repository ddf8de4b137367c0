//! Batches, sources, stages and sinks for the tests.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses some of it")]

mod until;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_actors::{Batch, Fault, Lineage, Outbox, Outcome, Sink, Source, Stage, StageCx};
pub use until::until;

/// A batch of numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    pub lineage: Lineage,
    pub values: Vec<u64>,
}

impl Batch for Numbers {
    fn rows(&self) -> usize {
        self.values.len()
    }
    fn bytes(&self) -> usize {
        self.values.len() * 8
    }
    fn lineage(&self) -> &Lineage {
        &self.lineage
    }
}

/// Yields `batches` batches of `rows` consecutive numbers.
pub struct Count {
    pub next: u64,
    pub batches: u64,
    pub rows: usize,
}

impl Count {
    pub fn new(batches: u64, rows: usize) -> Self {
        Self { next: 0, batches, rows }
    }

    /// More batches than any test reads.
    pub fn endless(rows: usize) -> Self {
        Self::new(u64::MAX, rows)
    }
}

impl Source for Count {
    type Out = Numbers;
    fn describe(&self) -> String {
        format!("counts to {}", self.batches)
    }
    async fn next(&mut self, _cx: &StageCx) -> Result<Option<Numbers>, Fault> {
        if self.next == self.batches {
            return Ok(None);
        }
        let seq = self.next;
        self.next += 1;
        let first = seq * self.rows as u64;
        let values = (first..first + self.rows as u64).collect();
        Ok(Some(Numbers { lineage: Lineage { seq, row: first, ..Lineage::default() }, values }))
    }
}

/// Doubles each number after `delay`.
pub struct Double {
    pub delay: Option<Duration>,
}

impl Stage for Double {
    type In = Numbers;
    type Out = Numbers;
    fn describe(&self) -> String {
        "doubles".to_owned()
    }
    async fn on_batch(&mut self, mut batch: Numbers, _cx: &StageCx, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        if let Some(delay) = self.delay {
            tokio::time::sleep(delay).await;
        }
        batch.values.iter_mut().for_each(|v| *v *= 2);
        out.send(batch).await
    }
}

/// Keeps the batches it gets.
#[derive(Clone, Default)]
pub struct Keep {
    pub batches: Arc<Mutex<Vec<Numbers>>>,
    pub delay: Option<Duration>,
}

impl Keep {
    pub fn values(&self) -> Vec<u64> {
        self.batches.lock().unwrap().iter().flat_map(|b| b.values.clone()).collect()
    }
    pub fn seqs(&self) -> Vec<u64> {
        self.batches.lock().unwrap().iter().map(|b| b.lineage.seq).collect()
    }
}

impl Sink for Keep {
    type In = Numbers;
    fn describe(&self) -> String {
        "keeps".to_owned()
    }
    async fn write(&mut self, batch: Numbers, _cx: &StageCx) -> Result<(), Fault> {
        if let Some(delay) = self.delay {
            tokio::time::sleep(delay).await;
        }
        self.batches.lock().unwrap().push(batch);
        Ok(())
    }
}

/// Waits for the end of the run, and fails the test if it hangs.
pub fn end(running: forebay_actors::Running) -> Outcome {
    let control = running.control();
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = done.send(running.wait());
    });
    match outcome.recv_timeout(Duration::from_secs(60)) {
        Ok(outcome) => outcome,
        Err(_) => panic!("the run hangs:\n{}", control.snapshot()),
    }
}
