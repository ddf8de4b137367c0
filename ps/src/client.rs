//! The client of a table: splits keys by shard, calls all shards at once, and puts the answers together in order. Every
//! method waits for room in the shards' mailboxes and for their replies.
//!
//! Keys and gradients are copied once on their way (12 to 80 bytes per key at the speed of memory, against two cache
//! misses per key in the shard). Buffers travel to the shard and come back, so a steady state allocates nothing of size.

mod ahead;
mod import;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_actors::Fault;
use forebay_base::LrReductions;
use futures::future::try_join_all;

use crate::buffers::{Answered, Asked, Buffers, SpareBuffers};
use crate::config::TableConfig;
use crate::endpoint::{Endpoint, wrong_reply};
use crate::lifetime::Absent;
use crate::push::{AfterRound, PushId, PushOutcome, Round, Stamp, Trainer};
use crate::route::{Route, gather};
use crate::shard::{Call, Reply};
use crate::stats::TableStats;
use crate::table::{ExportBlock, Layout};
use crate::wire::reply_times::PsReplies;

/// A client of one table. Clones are cheap and share buffers.
#[derive(Clone)]
pub struct TableClient {
    /// One per shard, or one per process.
    endpoints: Arc<[Endpoint]>,
    /// From a key to its endpoint.
    route: Route,
    /// The shards that can be reached.
    held: Range<usize>,
    layout: Arc<Layout>,
    config: Arc<TableConfig>,
    trainer: Option<Trainer>,
    /// The shards hold weights without state.
    read_only: bool,
    spare: Arc<SpareBuffers>,
}

impl std::fmt::Debug for TableClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableClient(`{}`, {} shards)", self.layout.table, self.held.len())
    }
}

impl TableClient {
    pub(crate) fn new(
        endpoints: Arc<[Endpoint]>,
        route: Route,
        held: Range<usize>,
        layout: Arc<Layout>,
        config: TableConfig,
    ) -> Self {
        Self {
            endpoints,
            route,
            held,
            layout,
            config: Arc::new(config),
            trainer: None,
            read_only: false,
            spare: Arc::default(),
        }
    }

    /// This client, of shards that hold the weights of a table of this configuration without its state.
    pub(crate) fn read_only(self, config: TableConfig) -> Self {
        Self { config: Arc::new(config), read_only: true, ..self }
    }

    /// Fails if the shards hold weights alone. `what` would need more.
    fn check_not_read_only(&self, what: &str) -> Result<(), Fault> {
        if !self.read_only {
            return Ok(());
        }
        Err(Fault::user(format!(
            "table `{}` takes no {what}: it has the weights of its rows without the state of optimizers, as it was loaded to be read",
            self.layout.table
        )))
    }

    /// Name of the table.
    pub fn table(&self) -> &str {
        &self.layout.table
    }

    /// The configuration of the table.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Weights per row, over all parts.
    pub fn row_dim(&self) -> usize {
        self.layout.row_dim
    }

    /// Floats of optimizer state per row, over all parts; 0 if the table is [only read](crate::start_read_only).
    pub fn state_dim(&self) -> usize {
        self.layout.state_dim
    }

    /// Shards that this client reaches: all of the table, unless it comes from [`start_shards`](crate::start_shards).
    pub fn shards(&self) -> usize {
        self.held.len()
    }

    /// The numbers of these shards: counted over all processes if the shards are in other processes, else as [`Route`] numbers them.
    pub fn held(&self) -> Range<usize> {
        self.held.clone()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The route of keys to these shards.
    pub fn route(&self) -> Route {
        self.route
    }

    /// In the order of their shards.
    pub(crate) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// This client, as `trainer`: its pushes with an id are refused once a newer incarnation of the trainer has pushed.
    #[must_use]
    pub fn of_trainer(self, trainer: Trainer) -> Self {
        Self { trainer: Some(trainer), ..self }
    }

    /// Puts the weights of `keys`, `[keys x row_dim]`, into `rows` (which is resized; empty after a fault or when
    /// cancelled). A key without a row gets one, its weights drawn from (seed, table, part, key). Keys may repeat.
    ///
    /// Cancel safe: rows may have been inserted already, with the weights that any later pull would give them.
    ///
    /// # Errors
    /// An external fault when memory ran out; an internal one when a shard died.
    #[tracing::instrument(level = "debug", skip_all, fields(table = %self.layout.table, keys = keys.len()))]
    pub async fn pull(&self, keys: &[u64], rows: &mut Vec<f32>) -> Result<(), Fault> {
        self.fetch(keys, rows, true, None).await
    }

    /// As [`pull`](Self::pull), as the rows are when the round of `step` is applied: waits for the other trainers. The trainer must have
    /// handed over its share of the round ([`begin_push_round`](Self::begin_push_round)). The pull may be sent before that push has an
    /// answer: then both take one round trip.
    ///
    /// # Errors
    /// As [`pull`](Self::pull). A user fault: this client is [no trainer's](Self::of_trainer), its trainer is fenced, or the round is a
    /// later one than the next. The fault of the round, if it failed.
    #[tracing::instrument(level = "debug", skip_all, fields(table = %self.layout.table, keys = keys.len(), step))]
    pub async fn pull_after(&self, step: u64, keys: &[u64], rows: &mut Vec<f32>) -> Result<(), Fault> {
        let after = AfterRound::of_client(step, self.trainer, &format!("table `{}`", self.layout.table))?;
        self.fetch(keys, rows, true, Some(after)).await
    }

    /// As [`pull`](Self::pull), but never inserts: a key without a row reads as zeros.
    #[tracing::instrument(level = "debug", skip_all, fields(table = %self.layout.table, keys = keys.len()))]
    pub async fn peek(&self, keys: &[u64], rows: &mut Vec<f32>) -> Result<(), Fault> {
        self.fetch(keys, rows, false, None).await
    }

    /// Applies the gradients `grads`, `[keys x row_dim]`, to the rows of `keys`; `step` is the global step, from 1.
    ///
    /// A key without a row gets one first. Keys should be unique. The gradients of a key that repeats are applied one after the other, in
    /// the order given, not as their sum.
    ///
    /// Not cancel safe: dropped before it is ready, any number of shards may have applied their share.
    ///
    /// # Errors
    /// A user fault, before any shard is asked and so with nothing changed anywhere: a length that does not match, a
    /// step of 0, a gradient that is NaN or infinite (with their number, the part, and the first key). When memory runs
    /// out or a shard dies, the other shards may have applied their share.
    #[tracing::instrument(level = "debug", skip_all, fields(table = %self.layout.table, keys = keys.len(), step))]
    pub async fn push(&self, keys: &[u64], grads: &[f32], step: u64) -> Result<(), Fault> {
        self.send(keys, grads, step, None).await.map(drop)
    }

    /// As [`push`](Self::push), at most once: a shard that has applied the push of this id before changes nothing.
    ///
    /// If it was cancelled or failed, it may be repeated, by this client or another one, with the same gradients: shards that have applied
    /// their share change nothing.
    ///
    /// # Errors
    /// As [`push`](Self::push). A user fault also when this client's trainer is fenced: a newer incarnation has pushed.
    #[tracing::instrument(level = "debug", skip_all, fields(table = %self.layout.table, keys = keys.len(), step))]
    pub async fn push_once(&self, id: PushId, keys: &[u64], grads: &[f32], step: u64) -> Result<PushOutcome, Fault> {
        self.send(keys, grads, step, Some(self.stamp(id))).await
    }

    /// As [`push_once`](Self::push_once), as one trainer's part of a round: each shard waits for the pushes of all
    /// trainers for `step` and applies their mean, weighted by rows, as one push. A trainer without rows in a round
    /// pushes no keys. Keys must be unique.
    ///
    /// Waits for all the other trainers, without an end; over [`remote::connect`](crate::remote::connect) each trainer needs
    /// a client of its own, since answers on one connection come in order.
    ///
    /// # Errors
    /// As [`push_once`](Self::push_once). A user fault also when this client is [no trainer's](Self::of_trainer), or when
    /// the trainers do not take the same steps.
    #[tracing::instrument(level = "debug", skip_all, fields(table = %self.layout.table, keys = keys.len(), step))]
    pub async fn push_round(
        &self,
        id: PushId,
        round: Round,
        keys: &[u64],
        grads: &[f32],
        step: u64,
    ) -> Result<PushOutcome, Fault> {
        self.begin_push_round(id, round, keys, grads, step).await?.await
    }

    /// The first half of [`push_round`](Self::push_round): hands the push over. The future that it returns waits until the round is
    /// applied. The next push must wait for that.
    ///
    /// # Errors
    /// As [`push_round`](Self::push_round).
    pub async fn begin_push_round<'a>(
        &'a self,
        id: PushId,
        round: Round,
        keys: &[u64],
        grads: &[f32],
        step: u64,
    ) -> Result<impl Future<Output = Result<PushOutcome, Fault>> + Send + use<'a>, Fault> {
        let stamp = Stamp::of_round(id, self.trainer, round, &format!("table `{}`", self.layout.table))?;
        let asked = self.ask_push(keys, grads, step, Some(stamp)).await?;
        Ok(self.pushed(asked))
    }

    /// Declares all pushes of series below this one applied, so that their ids take no memory. It may be repeated.
    ///
    /// # Errors
    /// An internal fault when a shard died.
    pub async fn acknowledge_before(&self, series: u64) -> Result<(), Fault> {
        self.acknowledge(|| Call::AcknowledgeBefore { before: series }).await
    }

    /// As [`acknowledge_before`](Self::acknowledge_before), for another process: at each shard at most up to the highest series of a push
    /// that was applied there. A shard without keys of a series has no push of it.
    pub(crate) async fn acknowledge_applied_before(&self, series: u64) -> Result<(), Fault> {
        self.acknowledge(|| Call::AcknowledgeApplied { before: series }).await
    }

    async fn acknowledge(&self, call: impl Fn() -> Call) -> Result<(), Fault> {
        let asked: Vec<_> = self.endpoints.iter().map(|endpoint| endpoint.call(call())).collect();
        done(&try_join_all(asked).await?)
    }

    /// Reduces the learning rates of later pushes, by their steps. Replaces earlier reductions, and may be repeated.
    ///
    /// # Errors
    /// External: a process is gone. Internal: a shard died.
    pub async fn reduce_lr(&self, reductions: &LrReductions) -> Result<(), Fault> {
        let call = || Call::ReduceLr { reductions: reductions.clone() };
        let asked: Vec<_> = self.endpoints.iter().map(|endpoint| endpoint.call(call())).collect();
        done(&try_join_all(asked).await?)
    }

    async fn send(&self, keys: &[u64], grads: &[f32], step: u64, stamp: Option<Stamp>) -> Result<PushOutcome, Fault> {
        let asked = self.ask_push(keys, grads, step, stamp).await?;
        self.pushed(asked).await
    }

    /// The counts of each shard.
    ///
    /// # Errors
    /// An internal fault when a shard died.
    pub async fn stats(&self) -> Result<TableStats, Fault> {
        let asked: Vec<_> = self.endpoints.iter().map(|endpoint| endpoint.call(Call::Stats)).collect();
        let mut shards = Vec::new();
        for reply in try_join_all(asked).await? {
            let Reply::Stats(stats) = reply else { return Err(wrong_reply()) };
            shards.extend(stats);
        }
        Ok(TableStats { table: self.layout.table.clone(), shards })
    }

    /// How each ps process has answered pulls so far; empty if the shards are in this process. A pull asks all processes at once and
    /// awaits all, so the slowest decides.
    pub fn replies(&self) -> Vec<PsReplies> {
        self.endpoints.iter().filter_map(Endpoint::replies).collect()
    }

    /// Up to `at_most` rows of one shard from row number `from` on; an empty block means that there are no more.
    ///
    /// Paging with `from += block.keys.len()` gives each row exactly once, in the order in which rows came; rows that are
    /// changed meanwhile are given as they are when their page is. Cancel safe.
    ///
    /// # Errors
    /// A user fault when there is no such shard; an internal one when it died.
    pub async fn export(&self, shard: usize, from: usize, at_most: usize) -> Result<ExportBlock, Fault> {
        let (endpoint, shard) = self.holder(shard)?;
        match endpoint.call(Call::Export { shard, from, at_most }).await? {
            Reply::Export(block) => Ok(block),
            _ => Err(wrong_reply()),
        }
    }

    /// The endpoint of a shard, and the number of the shard there, from 0.
    fn holder(&self, shard: usize) -> Result<(&Endpoint, usize), Fault> {
        let mut number = shard.checked_sub(self.held.start);
        for endpoint in &*self.endpoints {
            match number {
                Some(there) if there < endpoint.shards() => return Ok((endpoint, there)),
                _ => number = number.map(|number| number - endpoint.shards()),
            }
        }
        let (table, held) = (&self.layout.table, &self.held);
        Err(Fault::user(format!("table `{table}` has the shards {held:?} here; there is no shard {shard}")))
    }

    /// As [`export`](Self::export), of the keys without a row whose pushes the shard counts: empty without admission by count.
    ///
    /// # Errors
    /// As [`export`](Self::export).
    pub async fn export_absent(&self, shard: usize, from: usize, at_most: usize) -> Result<Vec<Absent>, Fault> {
        let (endpoint, shard) = self.holder(shard)?;
        match endpoint.call(Call::ExportAbsent { shard, from, at_most }).await? {
            Reply::Absent(absent) => Ok(absent),
            _ => Err(wrong_reply()),
        }
    }

    async fn fetch(
        &self,
        keys: &[u64],
        rows: &mut Vec<f32>,
        insert: bool,
        after: Option<AfterRound>,
    ) -> Result<(), Fault> {
        // If the pull fails or is cancelled, `rows` stays empty.
        let mut filled = std::mem::take(rows);
        let asked = self.ask_rows(keys, insert, after).await?;
        self.take_rows(asked, &mut filled).await?;
        *rows = filled;
        Ok(())
    }

    /// The first half of a pull or peek: sends it to the shards.
    pub(crate) async fn ask_rows(&self, keys: &[u64], insert: bool, after: Option<AfterRound>) -> Result<Asked, Fault> {
        if insert {
            self.check_not_read_only("pulls")?;
        }
        let buffers = self.split(keys)?;
        buffers.hand_over(&self.endpoints, false, |keys, rows| Call::Pull { keys, rows, insert, after }).await
    }

    /// The second half: waits for the rows. Returns how long shards of this process held the pull for the end of a round.
    pub(crate) async fn take_rows(&self, asked: Asked, rows: &mut Vec<f32>) -> Result<Duration, Fault> {
        self.take(asked, self.layout.row_dim, rows).await
    }

    async fn take(&self, asked: Asked, dim: usize, rows: &mut Vec<f32>) -> Result<Duration, Fault> {
        let Answered { mut buffers, held, .. } = asked.answered().await?;
        match &mut buffers.values[..] {
            // The caller gets the shard's buffer, and its own is kept for the next call.
            [only] => std::mem::swap(only, rows),
            parts => gather(&buffers.endpoint_of, parts, dim, rows),
        }
        self.spare.keep(buffers);
        Ok(held)
    }

    /// The first half of a push: sends it to the shards, if there is anything to push.
    pub(crate) async fn ask_push(
        &self,
        keys: &[u64],
        grads: &[f32],
        step: u64,
        stamp: Option<Stamp>,
    ) -> Result<Option<Asked>, Fault> {
        self.check_not_read_only("pushes")?;
        self.layout.check_push(keys, grads, step)?;
        // All shards wait for all pushes of a round. Rows age with the steps, even in shards without keys of the step.
        let all = stamp.is_some_and(|stamp| stamp.round.is_some()) || self.config.has_eviction();
        if keys.is_empty() && !all {
            return Ok(None);
        }
        let mut buffers = self.split(keys)?;
        buffers.scatter_rows(grads, self.layout.row_dim);
        buffers.hand_over(&self.endpoints, all, |keys, grads| Call::Push { keys, grads, step, stamp }).await.map(Some)
    }

    /// The second half: waits until the push is applied, or for the end of its round.
    pub(crate) async fn pushed(&self, asked: Option<Asked>) -> Result<PushOutcome, Fault> {
        let Some(asked) = asked else { return Ok(PushOutcome::Already) };
        let Answered { buffers, pushed, .. } = asked.answered().await?;
        self.spare.keep(buffers);
        Ok(pushed)
    }

    /// Buffers with the keys split over the endpoints.
    fn split(&self, keys: &[u64]) -> Result<Buffers, Fault> {
        self.layout.check_groups(keys)?;
        let mut buffers = self.spare.take();
        let Err(key) = buffers.split(keys, self.route, self.endpoints.len()) else { return Ok(buffers) };
        let (table, held, shard) = (&self.layout.table, self.route.held(), self.route.shard(key));
        Err(Fault::user(format!(
            "table `{table}`: key {key:#018x} belongs to shard {shard} of {}, and this process holds {held:?}; the sides \
             differ in the number of processes",
            self.route.shards()
        )))
    }
}

fn done(replies: &[Reply]) -> Result<(), Fault> {
    if replies.iter().all(|reply| matches!(reply, Reply::Done)) { Ok(()) } else { Err(wrong_reply()) }
}
