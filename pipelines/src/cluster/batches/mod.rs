//! Batches on their way from readers to trainers: Arrow Flight streams with credits that the trainer grants.
//!
//! ```text
//!  reader                                                       trainer
//!  Ship ─→ SendQueue ─→ stream task ═══ Header + columns ═══════════→ ReceiveQueue ─→ Receive ─→ lookup ...
//!           ↑          ↑  └ keeps each batch until it is done       │                   push
//!           └─ LeaseProgress ┴══════ Grant, Done, Stale ══════════════════┴──── done ─────────┘
//! ```
//!
//! Any reader feeds any trainer; every batch is kept by its reader until its gradients are applied, so what a trainer that
//! dies had in hand is sent again.

pub(crate) mod channel;
pub(crate) mod columns;
pub(crate) mod handler;
pub(crate) mod lease_progress;
pub(crate) mod metadata;
pub(crate) mod receive_queue;
pub(crate) mod send_queue;
