//! What goes in comes out: whole pipelines of healthy stages.

mod common;

use std::rc::Rc;
use std::time::Duration;

use common::{Count, Double, Keep, Numbers, end};
use forebay_actors::{Capacity, Fault, Outbox, Place, Replicas, Stage, StageCx, Topology, Verdict};
use proptest::prelude::*;

#[test]
fn three_stages_deliver_every_row_in_order() {
    let keep = Keep::default();
    let sink = keep.clone();
    let pipeline = Topology::new("three")
        .source("count", Place::Shared, || Count::new(100, 7))
        .link(4)
        .stage("double", Place::Own, || Double { delay: None })
        .link(Capacity::items(3).bytes(100))
        .sink("keep", Place::Shared, move || sink);
    let outcome = end(pipeline.start().unwrap());
    outcome.result.unwrap();
    assert_eq!(keep.values(), (0..700).map(|v| v * 2).collect::<Vec<u64>>());
    let report = outcome.report;
    assert_eq!(report.verdict, Verdict::Finished);
    assert_eq!((report.ledger.read, report.ledger.delivered), (700, 700));
    assert_eq!(outcome.position, Some(100.into()));
    println!("{report}");
}
