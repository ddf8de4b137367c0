//! Draining: every row that was read is delivered, and a barrier that comes too late is a fault.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Count, Double, Keep, Numbers, end, until};
use forebay_actors::{Fault, Place, Replicas, Source, StageCx, Topology, Verdict};
use futures::FutureExt;

#[test]
fn a_drain_under_load_keeps_every_row_that_was_read() {
    let keep = Keep { delay: Some(Duration::from_micros(100)), ..Keep::default() };
    let sink = keep.clone();
    let running = Topology::new("drain")
        .source("count", Place::Own, || Count::endless(5))
        .link(4)
        .replicated("double", Place::Shared, Replicas::ordered(2), |_| Double { delay: None })
        .link(4)
        .sink("keep", Place::Own, move || sink)
        .start()
        .unwrap();
    until("200 rows are delivered", || running.snapshot().ledger.delivered >= 200);
    running.drain();
    running.drain();
    let outcome = end(running);
    outcome.result.unwrap();
    let report = outcome.report;
    assert_eq!(report.verdict, Verdict::Drained);
    assert_eq!(report.ledger.read, report.ledger.delivered);
    assert_eq!(keep.seqs(), (0..report.ledger.read / 5).collect::<Vec<u64>>());
}

/// A source that waits forever.
struct Quiet;

impl Source for Quiet {
    type Out = Numbers;
    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        assert!(!cx.draining());
        assert!(cx.stopped().now_or_never().is_none());
        Ok(())
    }
    async fn next(&mut self, _cx: &StageCx) -> Result<Option<Numbers>, Fault> {
        std::future::pending().await
    }
}

#[test]
fn barriers_pass_behind_a_source_that_waits_which_is_drained_then() {
    let running = Topology::new("quiet")
        .source("quiet", Place::Shared, || Quiet)
        .stage("double", Place::Shared, || Double { delay: None })
        .sink("keep", Place::Shared, Keep::default)
        .start()
        .unwrap();
    let barrier = futures::executor::block_on(running.barrier_at("double")).unwrap();
    let next = futures::executor::block_on(running.barrier_at("keep")).unwrap();
    assert!(barrier < next);
    for stage in ["quiet", "unknown"] {
        assert!(futures::executor::block_on(running.barrier_at(stage)).is_err(), "{stage} takes no barrier");
    }
    let control = running.control();
    running.drain();
    end(running).result.unwrap();
    let late = futures::executor::block_on(control.barrier_at("double")).unwrap_err();
    assert_eq!(late.kind, forebay_actors::FaultKind::Stopped, "{late}");
}
