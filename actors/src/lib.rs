//! The runtime of Forebay: pipelines of stages that are actors, connected by bounded links.
//!
//! A pipeline is a source, stages, and a sink, each a plain struct with `async fn`s. The runtime gives each a thread
//! (of its own, or shared), a bounded link to the next, and meters; it ends the run when the source has no more, when
//! it is asked to, or at the first fault; and it accounts for every row.
//!
//! ```
//! use forebay_actors::{Batch, Fault, Lineage, Outbox, Place, Sink, Source, Stage, StageCx, Topology};
//!
//! struct Words(Vec<String>, Lineage);
//! impl Batch for Words {
//!     fn rows(&self) -> usize { self.0.len() }
//!     fn bytes(&self) -> usize { self.0.iter().map(String::len).sum() }
//!     fn lineage(&self) -> &Lineage { &self.1 }
//! }
//!
//! struct Lines(std::vec::IntoIter<&'static str>, u64);
//! impl Source for Lines {
//!     type Out = Words;
//!     type Position = u64;
//!     async fn open(&mut self, _cx: &StageCx, from: Option<u64>) -> Result<(), Fault> {
//!         self.1 = from.unwrap_or(0);
//!         self.0.by_ref().take(self.1 as usize).for_each(drop);
//!         Ok(())
//!     }
//!     async fn next(&mut self) -> Result<Option<Words>, Fault> {
//!         let Some(line) = self.0.next() else { return Ok(None) };
//!         self.1 += 1;
//!         let lineage = Lineage { seq: self.1 - 1, ..Lineage::default() };
//!         Ok(Some(Words(line.split(' ').map(str::to_owned).collect(), lineage)))
//!     }
//!     fn position(&self) -> u64 { self.1 }
//! }
//!
//! struct Shout;
//! impl Stage for Shout {
//!     type In = Words;
//!     type Out = Words;
//!     async fn on_batch(&mut self, mut batch: Words, _cx: &StageCx, out: &mut Outbox<Words>) -> Result<(), Fault> {
//!         batch.0.iter_mut().for_each(|word| *word = word.to_uppercase());
//!         out.send(batch).await
//!     }
//! }
//!
//! struct Say(std::sync::mpsc::Sender<String>);
//! impl Sink for Say {
//!     type In = Words;
//!     async fn write(&mut self, batch: Words, _cx: &StageCx) -> Result<(), Fault> {
//!         self.0.send(batch.0.join(" ")).map_err(|e| Fault::external("nobody listens").because(e))
//!     }
//! }
//!
//! let (sender, said) = std::sync::mpsc::channel();
//! let poem = vec!["the old pond", "a frog jumps in", "the sound of water"];
//! let report = Topology::new("poem")
//!     .source("lines", Place::Shared, move || Lines(poem.into_iter(), 0))
//!     .link(8)
//!     .stage("shout", Place::Own, || Shout)
//!     .link(2)
//!     .sink("say", Place::Shared, move || Say(sender))
//!     .run()?;
//! assert_eq!(said.iter().next().as_deref(), Some("THE OLD POND"));
//! assert_eq!(report.ledger.delivered, 11);
//! println!("{report}");
//! # Ok::<(), Fault>(())
//! ```
//!
//! # How it is built
//!
//! ```text
//!        topology ── wires ──→ run ── ends as ──→ Outcome { result, report, results }
//!                               │
//!   ┌─ shell ─────────┐  link   ┌─ shell ─────────┐  link   ┌─ shell ─────────┐
//!   │ future of a     │ ──8──→  │ future of a     │ ──2──→  │ future of a     │   one shell = one actix actor
//!   │ Source          │ permits │ Stage           │ permits │ Sink            │   on an arbiter given by place
//!   └───────┬─────────┘         └───────┬─────────┘         └───────┬─────────┘
//!           └── switch (drain, kill), ledger, meters: reached through StageCx
//! ```
//!
//! Read these files in this order:
//!
//! 1. `batch`, `fault`, `stage`, `context`: what travels, what stops it, what a user writes, what each call comes with.
//! 2. `link`: an actix recipient and a semaphore. The permit rides in the envelope. `outbox`: its sending end as a
//!    stage sees it.
//! 3. `shell`: the one actor, which owns one future from the opening to the end of a stage. `stage_future`: that future
//!    for sources, stages and sinks. `service` and `host`: actors that answer calls and outlive a pipeline.
//! 4. `replicas`, `replicated` and `turn`: one stage in several replicas, and how order is kept.
//! 5. `switch`: drain and kill; the first fault wins. `barrier`: a mark that passes through in order.
//! 6. `topology`, `closures`, `wiring`, `place`: wiring back to front, onto threads. `run`, `control`, `state`: how a
//!    run begins, is steered, and ends.
//! 7. `meter`, `ledger`, `plan`, `report`: what is counted and how it is shown.
//! 8. `io_runtime`: the threads that wait for networks. `testsuite` (feature): the rules every stage follows, checked.
//!
//! # What it promises
//!
//! - **Bounded.** Nothing enters a mailbox without a permit. At most the capacity of each link, plus one batch in the
//!   hands of each stage or replica, is under way.
//! - **One batch at a time** per stage and replica, in order; with ordered replicas, in order behind them too.
//! - **No deadlock**: links go one way and no cycle of them can be wired; calls to services are replies, and a service
//!   never sends into a pipeline.
//! - **Never a hang**: the first fault closes all links and drops every stage where it awaits; a stage that blocks its
//!   thread is left behind after a grace. Panics are faults. An actor that is dropped before its stage ends is a fault.
//! - **Every row is accounted for**: rows read = rows delivered + rows rejected, or the run ends with a fault.
//! - **Fair on shared threads**: every stage yields after each batch.
//!
//! A batch costs two allocations per link (actix's envelope and its queue node) and a few microseconds between
//! threads; see `benches/hop.rs`. The facts about actix this stands on are kept true by `tests/actix_facts.rs`, and no
//! other crate names actix.

#![allow(clippy::disallowed_types, reason = "the one crate that may name actix")]

mod barrier;
pub mod batch;
mod closures;
pub mod context;
mod control;
pub mod fault;
mod host;
mod io_runtime;
pub mod ledger;
mod link;
pub mod meter;
pub mod outbox;
pub mod place;
mod plan;
mod replicas;
mod replicated;
mod report;
mod results;
mod run;
mod seconds;
pub mod service;
mod shell;
pub mod stage;
mod stage_future;
mod state;
mod switch;
#[cfg(any(test, feature = "testsuite"))]
pub mod testsuite;
mod topology;
mod turn;
mod wiring;

pub use barrier::Barrier;
pub use batch::{Batch, Epoch, Lineage};
pub use context::StageCx;
pub use control::Control;
pub use fault::{Domain, Fault, FaultKind, Phase};
pub use host::Host;
pub use io_runtime::IoRuntime;
pub use ledger::{Ledger, LedgerReport};
pub use link::{Capacity, LinkReport};
pub use meter::{StageMeter, StageReport, WaitReport};
pub use outbox::{Collected, Outbox};
pub use place::Place;
pub use plan::{Plan, PlanStage};
pub use replicas::Replicas;
pub use report::{Report, Verdict, commas};
pub use results::Results;
pub use run::{Outcome, Running};
pub use service::{Client, PendingReply, Service};
pub use stage::{Sink, Source, Stage};
pub use topology::{DEFAULT_CAPACITY, Flow, Pipeline, Topology};
