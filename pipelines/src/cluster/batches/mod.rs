//! Batches from readers to trainers: Arrow Flight streams with credits that the trainer grants.
//!
//! ```text
//!  reader                                                              trainer
//!  ship ─→ SendQueue ────→ channel ═══ Header + columns ═══→ handler ─→ ReceiveQueue ─→ receive ─→ lookup ...
//!           ↑ keeps each batch until it is done                         │                push
//!           └ LeaseProgress ←═══════ Grant, Done, Stale ════════════════┴──── done ───────┘
//! ```
//!
//! Any reader sends to any trainer. A reader keeps every batch until it is done (its gradients are applied or, in an exact order, kept by
//! the trainer), so it can send the batches of a lost trainer again.
//!
//! The queues and [`LeaseProgress`](lease_progress::LeaseProgress) are state machines without a clock and without IO. A *channel*
//! is what connects one reader to one trainer: one or more streams that share credits.
//!
//! Read in this order: `send_queue.rs` and `lease_progress.rs` (of the reader), `channel.rs`, `handler.rs` and `receive_queue.rs` (of the
//! trainer), `unreached.rs` (a trainer that a reader does not reach).

pub(crate) mod channel;
pub(crate) mod handler;
pub(crate) mod lease_progress;
pub(crate) mod receive_queue;
pub(crate) mod send_queue;
pub(crate) mod unreached;
