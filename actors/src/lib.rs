//! The runtime of Forebay: pipelines of stages that are actors, connected by bounded links.
//!
//! A pipeline is a source, stages, and a sink, each a plain struct with `async fn`s. The runtime gives each a thread
//! (its own or a shared one), a bounded link to the next, and meters. It ends the run when the source has no more
//! batches, on request, or at the first fault, and it accounts for every row.
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
//!     async fn next(&mut self, _cx: &StageCx) -> Result<Option<Words>, Fault> {
//!         let Some(line) = self.0.next() else { return Ok(None) };
//!         self.1 += 1;
//!         let lineage = Lineage { seq: self.1 - 1, ..Lineage::default() };
//!         Ok(Some(Words(line.split(' ').map(str::to_owned).collect(), lineage)))
//!     }
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
//!         self.0.send(batch.0.join(" ")).map_err(|e| Fault::external("the channel is closed").because(e))
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
//! 1. `batch`, `fault`, `stage`, `context`: what travels, the error, the traits of stages, and what a stage knows about
//!    its run.
//! 2. `link`: an actix recipient and a semaphore; each message carries its permit. `outbox`: the sending end that a
//!    stage sees.
//! 3. `shell`: the only actor, which runs one future per stage. `stage_future`: that future for sources, stages and
//!    sinks. `service` and `host`: actors that answer calls and outlive a pipeline.
//! 4. `replicas`, `replicated` and `turn`: one stage in several replicas, and how they keep the order.
//! 5. `switch`: drain and kill; the first fault wins. `barrier`: marks between batches. `lock`: a mutex, also after a panic.
//! 6. `topology`, `closures`, `wiring`, `place`: wiring back to front, onto threads. `run`, `control`, `state`: how a
//!    run starts, is controlled, and ends. `long_work`: warns of a stage that holds its thread. `results`: what stages leave for the
//!    program.
//! 7. `clock`, `meter`, `timeline`, `ledger`, `plan`, `stage_report`, `machine`, `adjustment`, `report`: the counts, and how they are
//!    shown. `numbers`, `seconds`: numbers and durations in text.
//! 8. `io_runtime`: the threads for network IO. `testsuite` (feature): checks the rules that every stage,
//!    sink and source follows. `testsuite/conformance.rs` runs it here, files of the same name run it in other crates.
//!
//! # What it promises
//!
//! - **Bounded.** No batch enters a mailbox without a permit. The batches under way are at most the capacities of all
//!   links plus one for each stage and replica.
//! - **One batch at a time** per stage and replica, in order. The output of ordered replicas is in order too.
//! - **No deadlock**: links form no cycle, and a service replies to calls but never sends into a pipeline.
//! - **No hang**: the first fault closes all links and drops every stage that awaits. A stage that blocks its thread is
//!   named in the log after a minute, and left behind after a grace period once the run ends. A panic is a fault, and so
//!   is an actor that is dropped before its stage ends.
//! - **Every row is accounted for**: rows read = rows delivered + rows rejected, or the run ends with a fault.
//! - **Fair on shared threads**: every stage yields after each batch.
//!
//! A batch costs two allocations per link (actix's envelope and its queue node) and a few microseconds between threads;
//! see `benches/hop.rs`. `tests/actix_facts.rs` checks what this crate relies on in actix. No other crate names actix.

#![allow(clippy::disallowed_types, reason = "the one crate that may name actix")]

mod adjustment;
mod barrier;
pub mod batch;
mod clock;
mod closures;
pub mod context;
mod control;
pub mod fault;
mod host;
mod io_runtime;
pub mod ledger;
mod link;
mod lock;
mod long_work;
mod machine;
pub mod meter;
mod numbers;
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
mod stage_report;
mod state;
mod switch;
#[cfg(any(test, feature = "testsuite"))]
pub mod testsuite;
mod timeline;
mod topology;
mod turn;
mod wiring;

pub use adjustment::{Adjustment, ScaledStage, TunedKnob};
pub use batch::{BarrierNumber, Batch, BatchName, Lineage};
pub use context::StageCx;
pub use control::Control;
pub use fault::{Domain, Fault, FaultKind, Phase};
pub use host::{Host, HostMeters};
pub use io_runtime::IoRuntime;
pub use ledger::{Ledger, LedgerReport, left_out_lines};
pub use link::{Capacity, LinkReport};
pub use machine::{CoreSeconds, Machine};
pub use meter::StageMeter;
pub use numbers::{commas, counted, size};
pub use outbox::{Collected, Outbox};
pub use place::Place;
pub use plan::{Plan, PlanStage};
pub use replicas::Replicas;
pub use report::{Report, Verdict};
pub use results::Results;
pub use run::{Outcome, Running};
pub use service::{Client, PendingReply, Service};
pub use stage::{Sink, Source, Stage};
pub use stage_report::{ProcessWait, StageReport, WaitKind, WaitReport};
pub use timeline::{Doing, Observed, Observer, Track, TrackSlice};
pub use topology::{DEFAULT_CAPACITY, Flow, Pipeline, Topology};
