//! The reader's end of the links: one to each trainer, of so many streams, each on a connection of its own. A batch goes by
//! whichever is free, so the faster stream takes more; credits are the link's.
//!
//! Comes in: batches in the [`SendQueue`], addresses in the coordinator's news. Goes out: batches on Flight exchanges. A link that
//! loses a stream is opened again, wherever its trainer is then, within the job's patience; what went by it and is not done
//! goes again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_actors::Fault;
use forebay_net::{Dialer, Incoming, Message, Outgoing, Peer, Retry, runtime};
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use tokio::task::JoinSet;

use super::super::member::{Leaseholder, Member};
use super::super::messages::RunPhase;
use super::handler::{NAME, PING};
use super::metadata::{self, Header, Reply};
use super::send_queue::SendQueue;

/// A trainer that is there opens a stream within this.
const DEADLINE: Duration = Duration::from_secs(10);

/// Of the round trip, for each stream: Linux lets a connection have some 3 MiB under way unless it is told otherwise, which
/// are 2 Gbit/s at this distance.
const EACH: Duration = Duration::from_micros(12_500);

/// Streams of a link, unless the job asks for more.
const MOST: u128 = 8;

/// What the links of one reader share.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) send_queue: Arc<SendQueue>,
    pub(crate) holder: Leaseholder,
    pub(crate) member: Member,
    pub(crate) dialer: Dialer,
    pub(crate) patience: Duration,
    /// Of each link; `None`: as the distance asks for.
    pub(crate) streams: Option<usize>,
}

/// Opens a link to each of `trainers` trainers. Each trainer takes from the box of its rank, or all from the only one. Dropping
/// what comes back closes them.
pub(crate) fn open(line: &Line, trainers: usize, boxes: usize) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for trainer in 0..trainers {
        let link = Link { line: line.clone(), trainer, at: trainer % boxes };
        tasks.spawn_on(
            async move {
                if let Err(fault) = link.live().await {
                    tracing::error!(%fault, "the link to trainer {trainer} has ended");
                    link.line.send_queue.fail(&fault.to_string());
                }
            },
            runtime(),
        );
    }
    tasks
}

/// The link to one trainer.
struct Link {
    line: Line,
    trainer: usize,
    /// Box of the send_queue.
    at: usize,
}

/// Its streams. Replies come on the first.
struct Streams {
    outgoing: Vec<Outgoing>,
    first: Incoming,
    others: Vec<Incoming>,
}

/// Its credits.
#[derive(Default)]
struct Credits {
    batches: AtomicU32,
    bytes: AtomicU64,
    /// Sent and not granted again.
    held: AtomicU32,
}

impl Credits {
    /// While one that is larger than all credit is under way there is none, not even for an empty batch: on another stream it
    /// might be there first.
    fn fit(&self, bytes: u64) -> bool {
        self.batches.load(Ordering::Relaxed) > 0
            && (bytes.max(1) <= self.bytes.load(Ordering::Relaxed) || self.held.load(Ordering::Relaxed) == 0)
    }

    fn take(&self, bytes: u64) {
        self.batches.fetch_sub(1, Ordering::Relaxed);
        self.held.fetch_add(1, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed).saturating_sub(bytes), Ordering::Relaxed);
    }

    fn grant(&self, batches: u32, bytes: u64) {
        // The first grant is for what was never sent.
        self.held.store(self.held.load(Ordering::Relaxed).saturating_sub(batches), Ordering::Relaxed);
        self.batches.fetch_add(batches, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Link {
    /// Opens, sends, opens again, until the run is over.
    async fn live(&self) -> Result<(), Fault> {
        let Line { send_queue, member, patience, .. } = &self.line;
        let what = format!("trainer {}", self.trainer);
        let retry = Retry::within(*patience);
        loop {
            let opened = retry.run(&what, || self.open()).await?;
            let Some(streams) = opened else { return Ok(()) };
            let ended = self.carry(streams).await;
            send_queue.broken(self.at, self.trainer);
            if member.news().phase == RunPhase::Over {
                return Ok(());
            }
            match ended {
                Err(fault) if !fault.retryable => return Err(fault),
                Err(fault) => {
                    tracing::warn!(%fault, "the link to trainer {} broke: what is not done goes again", self.trainer)
                }
                Ok(()) => tracing::debug!("trainer {} closed its link", self.trainer),
            }
        }
    }

    /// `None` when nobody needs it any more.
    async fn open(&self) -> Result<Option<Streams>, Fault> {
        let Line { member, dialer, streams, .. } = &self.line;
        let news = member.until(|news| news.trainers.get(self.trainer).is_some_and(Option::is_some)).await?;
        if matches!(news.phase, RunPhase::Finished | RunPhase::Over) {
            return Ok(None);
        }
        let Some((_, address)) = news.trainers.get(self.trainer).and_then(Clone::clone) else {
            return Err(Fault::external(format!("trainer {} has no address yet", self.trainer)).retryable());
        };
        let peer = dialer.peer(&address)?;
        let round_trip = round_trip(&peer).await?;
        let number = streams.unwrap_or_else(|| fill(round_trip));
        let (outgoing, mut first) = peer.exchange(&[NAME], DEADLINE).await?;
        let link = match first.next().await?.map(|message| metadata::read(&message.metadata)).transpose()? {
            Some(Reply::Link(link)) => link.to_string(),
            other => return Err(Fault::user(format!("trainer {} begins a link with {other:?}", self.trainer))),
        };
        let join = || async { dialer.peer(&address)?.exchange(&[NAME, &link], DEADLINE).await };
        let (more, others): (Vec<_>, Vec<_>) = try_join_all((1..number).map(|_| join())).await?.into_iter().unzip();
        tracing::info!("trainer {} is {round_trip:.1?} away: {number} streams", self.trainer);
        Ok(Some(Streams { outgoing: std::iter::once(outgoing).chain(more).collect(), first, others }))
    }

    /// One task: all streams see the credits without a race, and the end of any is that of all.
    async fn carry(&self, streams: Streams) -> Result<(), Fault> {
        let Streams { outgoing, first, others } = streams;
        let credits = Credits::default();
        let mut sending: FuturesUnordered<_> = outgoing.into_iter().map(|stream| self.send(stream, &credits)).collect();
        // Nothing comes on these but their end.
        let mut ending: FuturesUnordered<_> =
            others.into_iter().map(|mut stream| async move { stream.next().await.map(drop) }).collect();
        tokio::select! {
            ended = self.hear(first, &credits) => ended,
            Some(ended) = ending.next() => ended,
            Some(ended) = sending.next() => ended,
        }
    }

    /// Takes from the send queue by one stream, whenever it is free and the link has credit.
    async fn send(&self, mut stream: Outgoing, credits: &Credits) -> Result<(), Fault> {
        let Line { send_queue, holder, .. } = &self.line;
        loop {
            let (header, columns, bytes) = send_queue.next(self.at, self.trainer, |bytes| credits.fit(bytes)).await;
            if !header.urgent {
                credits.take(bytes);
            }
            let header = Header { done_before: holder.tracker().done_before(header.id), ..header };
            stream.send(Message { batch: Some(columns), metadata: metadata::write(&header)? }).await?;
        }
    }

    async fn hear(&self, mut stream: Incoming, credits: &Credits) -> Result<(), Fault> {
        let Line { send_queue, holder, .. } = &self.line;
        while let Some(message) = stream.next().await? {
            match metadata::read(&message.metadata)? {
                Reply::Link(_) => return Err(Fault::user("a link is named once")),
                Reply::Grant { batches, bytes } => {
                    credits.grant(batches, bytes);
                    send_queue.look(self.at);
                }
                Reply::Done(id) => {
                    // Whoever waits for the send queue to be empty finds the lease completed, or being so.
                    holder.done(id);
                    send_queue.done(id);
                }
                Reply::Stale(id) => {
                    tracing::warn!("{id} is with another reader now: its lease is lost here");
                    send_queue.stale(id);
                    holder.tracker().lose(id);
                }
            }
        }
        Ok(())
    }
}

/// How long a word there and back takes. The first call connects; the second finds the connection made.
async fn round_trip(peer: &Peer) -> Result<Duration, Fault> {
    let ping = async || {
        let begun = Instant::now();
        peer.raw_action(&format!("{NAME}.{PING}"), "", DEADLINE).await.map(|_| begun.elapsed())
    };
    Ok(ping().await?.min(ping().await?))
}

/// The streams that fill a network at this distance.
fn fill(round_trip: Duration) -> usize {
    round_trip.as_nanos().div_ceil(EACH.as_nanos()).clamp(1, MOST) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_the_line_the_more_streams() {
        let of = |micros| fill(Duration::from_micros(micros));
        assert_eq!([0, 80, 12_500, 12_501, 50_000, 99_000, 5_000_000].map(of), [1, 1, 1, 2, 4, 8, 8]);
    }

    #[test]
    fn credits_are_taken_and_granted_and_a_large_one_goes_alone() {
        let credits = Credits::default();
        assert!(!credits.fit(0), "nothing was granted");
        credits.grant(3, 100);
        assert!(credits.fit(100) && credits.fit(1000), "the first may be larger");
        credits.take(60);
        assert!(credits.fit(40) && !credits.fit(41));
        credits.take(40);
        assert!(!credits.fit(1));
        credits.grant(1, 60);
        credits.grant(1, 40);
        credits.take(1000);
        assert!(!credits.fit(0), "it goes alone");
        credits.grant(1, 100);
        credits.take(1);
        credits.take(1);
        assert!(credits.fit(98) && !credits.fit(99));
        credits.take(1);
        assert!(!credits.fit(1), "three batches at most");
    }
}
