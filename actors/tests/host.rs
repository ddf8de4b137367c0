//! Services: bounded, in order, and no caller hangs when one dies.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Count, Numbers, end, until};
use forebay_actors::{Client, Doing, Fault, Host, Phase, Place, Service, Sink, StageCx, Topology};
use futures::executor::block_on;
use futures::{FutureExt, future};
use tokio::sync::Semaphore;

/// Adds when the gate has a permit.
struct Add {
    sum: u64,
    gate: Arc<Semaphore>,
}

impl Service for Add {
    type Call = u64;
    type Reply = u64;
    fn describe(&self) -> String {
        format!("sum {}", self.sum)
    }
    fn name_of(n: &u64) -> (&'static str, usize) {
        ("add", *n as usize)
    }
    async fn call(&mut self, n: u64) -> Result<u64, Fault> {
        self.gate.acquire().await.unwrap().forget();
        match n {
            13 => Err(Fault::user("13 is not added")),
            666 => panic!("the number of the beast"),
            _ => {
                self.sum += n;
                Ok(self.sum)
            }
        }
    }
}

fn add(host: &Host, capacity: usize, permits: usize) -> (Client<u64, u64>, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(permits));
    let service = Arc::clone(&gate);
    (host.serve("add", Place::Own, capacity, move || Add { sum: 0, gate: service }), gate)
}

const OPEN: usize = usize::MAX >> 4;

#[test]
fn calls_are_answered_in_order_and_a_fault_is_the_callers_alone() {
    let host = Host::start("host").unwrap();
    let (client, _) = add(&host, 4, OPEN);
    let answers = block_on(future::join_all((1..=4).map(|n| client.call(n))));
    assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [1, 3, 6, 10]);
    let fault = block_on(client.call(13)).unwrap_err();
    assert_eq!((fault.message(), fault.stage.as_deref()), ("13 is not added", Some("add")));
    assert_eq!(block_on(client.call(5)).unwrap(), 15);
    let report = host.report();
    assert_eq!((report[0].items_in, report[0].items_out, report[0].kind.as_str()), (6, 6, "service"));
    let [track] = &host.meters().timeline()[..] else { panic!("one service has one track") };
    let names = track.slices.iter().map(|slice| slice.what.clone());
    assert_eq!(names.collect::<Vec<_>>(), [1, 2, 3, 4, 13, 5].map(|items| Doing::Call { name: "add".into(), items }));
    host.stop().unwrap();
    assert!(block_on(client.call(1)).unwrap_err().to_string().contains("`add` has ended"));
}

/// Blocks its thread for these milliseconds, as a load of a table does.
struct Load;

impl Service for Load {
    type Call = u64;
    type Reply = ();
    async fn call(&mut self, milliseconds: u64) -> Result<(), Fault> {
        std::thread::sleep(Duration::from_millis(milliseconds));
        Ok(())
    }
}

#[test]
fn what_a_service_did_before_the_run_is_not_in_the_report_of_the_run() {
    struct Ask(Client<u64, ()>);
    impl Sink for Ask {
        type In = Numbers;
        async fn write(&mut self, batch: Numbers, _cx: &StageCx) -> Result<(), Fault> {
            for _ in batch.values {
                self.0.call(0).await?;
            }
            Ok(())
        }
    }
    let host = Host::start("host").unwrap();
    let client = host.serve("load", Place::Own, 2, || Load);
    let loading = Duration::from_millis(300);
    block_on(client.call(300)).unwrap();
    let busy = || host.report()[0].busy;
    assert!(busy() >= loading, "since it was started: {:?}", host.report());

    let meters = host.meters();
    block_on(client.call(0)).unwrap();
    let report = meters.report();
    let [service] = &report.services[..] else { panic!("one service: {report}") };
    assert_eq!((service.items_in, service.items_out), (1, 1), "{report}");
    assert!(busy() >= service.busy + loading, "{report}");
    assert_eq!(service.wall, report.wall);

    let asked = client.clone();
    let topology = Topology::new("asking").attach(&host);
    let outcome = end(topology
        .source("count", Place::Own, || Count::new(3, 4))
        .link(1)
        .sink("ask", Place::Own, move || Ask(asked))
        .start()
        .unwrap());
    outcome.result.unwrap();
    let report = outcome.report;
    let [service] = &report.services[..] else { panic!("one service: {report}") };
    assert_eq!((service.items_in, service.items_out, report.ledger.delivered), (12, 12, 12), "{report}");
    assert!(busy() >= service.busy + loading, "{report}");
    assert_eq!(host.report()[0].items_in, 14, "since it was started");
    drop(client);
    host.stop().unwrap();
}

#[test]
fn no_more_calls_wait_than_there_is_room_for() {
    let host = Host::start("host").unwrap();
    let (client, gate) = add(&host, 2, 0);
    let first = client.call(1).now_or_never();
    assert!(first.is_none(), "nobody answers yet");
    until("the service has a call", || host.report()[0].items_in > 0);
    // The service handles one call (its caller has gone), two calls find room, the others wait for it.
    let mut calls: Vec<_> = (0..10).map(|_| Box::pin(client.call(1))).collect();
    for call in &mut calls {
        assert!(call.as_mut().now_or_never().is_none());
    }
    drop(calls);
    gate.add_permits(OPEN);
    assert_eq!(block_on(client.call(0)).unwrap(), 3, "those outside were never made");
    host.stop().unwrap();
}

#[test]
fn a_dead_service_is_a_fault_for_those_who_wait_and_those_who_come_later() {
    let host = Host::start("host").unwrap();
    let (client, gate) = add(&host, 2, 0);
    let callers: Vec<_> = [666, 1, 2, 3, 4]
        .into_iter()
        .map(|n| {
            let client = client.clone();
            std::thread::spawn(move || block_on(client.call(n)))
        })
        .collect();
    // Every call that waits when the service panics gets the reason.
    until("the service has a call", || host.report()[0].items_in > 0);
    gate.add_permits(OPEN);
    let answers: Vec<_> = callers.into_iter().map(|c| c.join().unwrap()).collect();
    let text = answers[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("`add` has died: panicked: the number of the beast"), "{text}");
    for answer in answers.into_iter().flat_map(Result::err).chain(block_on(client.call(1)).err()) {
        assert!(answer.to_string().contains("the number of the beast"), "{answer}");
    }
    let fault = host.stop().unwrap_err();
    assert_eq!((fault.stage.as_deref(), fault.phase), (Some("add"), Some(Phase::Batch)));
}

#[test]
fn a_service_that_does_not_open_says_why() {
    struct Shut;
    impl Service for Shut {
        type Call = ();
        type Reply = ();
        async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
            Err(Fault::external("no memory"))
        }
        async fn call(&mut self, (): ()) -> Result<(), Fault> {
            Ok(())
        }
    }
    let host = Host::start("host").unwrap();
    let client = host.serve("shut", Place::Shared, 1, || Shut);
    let text = block_on(client.call(())).unwrap_err().to_string();
    assert!(text.contains("no memory (stage `shut`, opening)"), "{text}");
    assert!(host.stop().is_err());
}

#[test]
fn stopping_answers_what_is_queued() {
    let host = Host::start("host").unwrap();
    let (client, gate) = add(&host, 8, 0);
    let mut calls: Vec<_> = (0..8).map(|_| Box::pin(client.call(1))).collect();
    for call in &mut calls {
        assert!(call.as_mut().now_or_never().is_none());
    }
    let stopper = std::thread::spawn(move || host.stop());
    std::thread::sleep(Duration::from_millis(5));
    gate.add_permits(OPEN);
    let answers = block_on(future::join_all(calls));
    assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), (1..=8).collect::<Vec<u64>>());
    stopper.join().unwrap().unwrap();
}

#[test]
fn a_pipeline_whose_service_dies_ends_with_that_as_its_fault() {
    struct Ask(Client<u64, u64>);
    impl Sink for Ask {
        type In = Numbers;
        async fn write(&mut self, batch: Numbers, _cx: &StageCx) -> Result<(), Fault> {
            for n in batch.values {
                self.0.call(n).await?;
            }
            Ok(())
        }
    }
    let host = Host::start("host").unwrap();
    let (client, _) = add(&host, 2, OPEN);
    let topology = Topology::new("asking").attach(&host);
    let outcome = end(topology
        .source("count", Place::Own, || Count { next: 14, ..Count::endless(1) })
        .link(1)
        .sink("ask", Place::Own, move || Ask(client))
        .start()
        .unwrap());
    let fault = outcome.result.unwrap_err();
    assert_eq!(fault.stage.as_deref(), Some("ask"));
    assert!(fault.to_string().contains("the number of the beast"), "{fault}");
    assert_eq!(outcome.report.services[0].name, "add");
    assert!(outcome.report.to_string().contains("⇄ add"));
    assert!(host.stop().is_err());
}
