//! The runtime of Forebay: stages as actors, bounded links, faults, meters, reports.
pub mod batch;
pub mod context;
pub mod fault;
mod host;
pub mod ledger;
mod link;
pub mod meter;
pub mod outbox;
pub mod place;
mod seconds;
pub mod service;
mod shell;
pub mod stage;
mod switch;
mod turn;

pub use batch::{Batch, Lineage};
pub use context::StageCx;
pub use fault::{Domain, Fault, Phase};
pub use host::Host;
pub use ledger::{Ledger, LedgerReport};
pub use link::Capacity;
pub use meter::{StageMeter, StageReport};
pub use outbox::{Collected, Outbox};
pub use place::Place;
pub use service::{Client, Service};
pub use stage::{Epoch, Sink, Source, Stage};
