//! The reader's end of the streams: for each trainer so many connections, each a task that takes from the post whenever it has
//! credit. The faster stream takes more.
//!
//! Comes in: batches in the [`Post`], addresses in the coordinator's news. Goes out: batches on Flight exchanges. A stream that
//! breaks is opened again, wherever its trainer is then, within the job's patience; what went by it and is not done goes again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use forebay_actors::Fault;
use forebay_net::{Dialer, Incoming, Message, Outgoing, Retry, runtime};
use tokio::task::JoinSet;

use super::super::member::{Leaseholder, Member};
use super::super::messages::Phase;
use super::note::{self, Header, Reply};
use super::post::Post;

/// A trainer that is there opens a stream within this.
const DEADLINE: Duration = Duration::from_secs(10);

/// What the streams of one reader share.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) post: Arc<Post>,
    pub(crate) holder: Leaseholder,
    pub(crate) member: Member,
    pub(crate) dialer: Dialer,
    pub(crate) patience: Duration,
}

/// Opens `streams` streams to each of `trainers` trainers. Each trainer takes from the box of its rank, or all from the only
/// one. Dropping what comes back closes them.
pub(crate) fn open(line: &Line, trainers: usize, streams: usize, boxes: usize) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for trainer in 0..trainers {
        for stream in 0..streams {
            let way = Way { line: line.clone(), trainer, number: trainer * streams + stream, at: trainer % boxes };
            tasks.spawn_on(
                async move {
                    if let Err(fault) = way.live().await {
                        tracing::error!(%fault, "a stream to trainer {trainer} has ended");
                        way.line.post.fail(&fault.to_string());
                    }
                },
                runtime(),
            );
        }
    }
    tasks
}

/// One stream.
struct Way {
    line: Line,
    trainer: usize,
    number: usize,
    /// Box of the post.
    at: usize,
}

/// Credits of one stream.
#[derive(Default)]
struct Credits {
    batches: AtomicU32,
    bytes: AtomicU64,
    /// Sent and not granted again.
    held: AtomicU32,
}

impl Way {
    /// Opens, sends, opens again, until the run is over.
    async fn live(&self) -> Result<(), Fault> {
        let Line { post, member, patience, .. } = &self.line;
        let what = format!("trainer {}", self.trainer);
        let retry = Retry::within(*patience);
        loop {
            let opened = retry.run(&what, || self.open()).await?;
            let Some((outgoing, incoming)) = opened else { return Ok(()) };
            let ended = self.carry(outgoing, incoming).await;
            post.broken(self.at, self.number);
            if member.news().phase == Phase::Over {
                return Ok(());
            }
            match ended {
                Err(fault) if !fault.retryable => return Err(fault),
                Err(fault) => tracing::warn!(%fault, "the stream to trainer {} broke: what is not done goes again", self.trainer),
                Ok(()) => tracing::debug!("trainer {} closed its stream", self.trainer),
            }
        }
    }

    /// `None` when nobody needs it any more.
    async fn open(&self) -> Result<Option<(Outgoing, Incoming)>, Fault> {
        let Line { member, dialer, .. } = &self.line;
        let news = member.until(|news| news.trainers.get(self.trainer).is_some_and(Option::is_some)).await?;
        if matches!(news.phase, Phase::Finished | Phase::Over) {
            return Ok(None);
        }
        let Some((_, address)) = news.trainers.get(self.trainer).and_then(Clone::clone) else {
            return Err(Fault::external(format!("trainer {} has no address yet", self.trainer)).retryable());
        };
        dialer.peer(&address)?.exchange(&["batches"], DEADLINE).await.map(Some)
    }

    async fn carry(&self, mut outgoing: Outgoing, mut incoming: Incoming) -> Result<(), Fault> {
        let Line { post, holder, .. } = &self.line;
        let credits = Credits::default();
        let fits = |bytes: u64| {
            let Credits { batches, bytes: credit, held } = &credits;
            batches.load(Ordering::Relaxed) > 0
                && (bytes <= credit.load(Ordering::Relaxed) || held.load(Ordering::Relaxed) == 0)
        };
        let sending = async {
            loop {
                let (header, columns, bytes) = post.next(self.at, self.number, fits).await;
                if !header.urgent {
                    credits.batches.fetch_sub(1, Ordering::Relaxed);
                    credits.held.fetch_add(1, Ordering::Relaxed);
                    let left = credits.bytes.load(Ordering::Relaxed).saturating_sub(bytes);
                    credits.bytes.store(left, Ordering::Relaxed);
                }
                let header = Header { done_before: holder.tracker().done_before(header.id), ..header };
                outgoing.send(Message { batch: Some(columns), note: note::write(&header)? }).await?;
            }
        };
        let hearing = async {
            while let Some(message) = incoming.next().await? {
                match note::read(&message.note)? {
                    Reply::Grant { batches, bytes } => {
                        let held = credits.held.load(Ordering::Relaxed).saturating_sub(batches);
                        // The first grant is for what was never sent.
                        credits.held.store(held, Ordering::Relaxed);
                        credits.batches.fetch_add(batches, Ordering::Relaxed);
                        credits.bytes.fetch_add(bytes, Ordering::Relaxed);
                        post.look(self.at);
                    }
                    Reply::Done(id) => {
                        post.done(id);
                        holder.done(id);
                    }
                    Reply::Stale(id) => {
                        tracing::warn!("{id} is with another reader now: its lease is lost here");
                        post.stale(id);
                        holder.tracker().lose(id);
                    }
                }
            }
            Ok(())
        };
        // One task: both see the credits without a race, and the end of either ends the other.
        tokio::select! {
            ended = sending => ended,
            ended = hearing => ended,
        }
    }
}
