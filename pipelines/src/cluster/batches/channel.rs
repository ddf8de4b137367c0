//! The channels of a reader: one to each trainer, with one or more streams. Each stream is a connection of its own. Any free stream sends
//! the next batch, so a faster stream carries more. Credits belong to the channel.
//!
//! If a stream breaks, the whole channel is opened again at the trainer's current address, and its batches that are not done
//! are sent again. A trainer that stays unreachable for `placement.timeout_seconds` ends the reader, unless the coordinator does not hear
//! of that trainer either: then the coordinator decides whether the run goes on without it.
//!
//! A [`RequestStream`](forebay_net::RequestStream) would not do: it has one stream, and answers come in the order of the requests. The
//! streams of a channel share credits, and its batches are done in any order. After a break they wait in the send queue. If all trainers
//! share that queue, the channel to another trainer may take them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_actors::{Fault, FaultKind, counted};
use forebay_batches::wire::metadata::{Header, Reply};
use forebay_net::{Dialer, Incoming, Message, Outgoing, Peer, Retry};
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use tokio::task::JoinSet;

use super::super::lease_client::LeaseClient;
use super::super::member::Member;
use super::super::messages::{RunPhase, RunStatus};
use super::handler::{NAME, PING};
use super::send_queue::SendQueue;
use super::unreached::Unreached;

/// A live trainer opens a stream within this time.
const DEADLINE: Duration = Duration::from_secs(10);

/// A channel gets one stream for each of these in the round trip: by default Linux lets a connection have about 3 MiB in
/// flight, which gives 2 Gbit/s at this round trip.
const ROUND_TRIP_PER_STREAM: Duration = Duration::from_micros(12_500);

/// The most streams of a channel, unless `placement.streams` sets their number.
const MAX_STREAMS: u128 = 8;

/// What the channels of one reader share.
#[derive(Clone)]
pub(crate) struct ReaderChannels {
    pub(crate) send_queue: Arc<SendQueue>,
    pub(crate) leases: LeaseClient,
    pub(crate) member: Member,
    pub(crate) dialer: Dialer,
    pub(crate) timeout: Duration,
    /// Counts the channels that are being opened.
    pub(crate) unreached: Unreached,
    /// Streams of each channel. `None`: chosen by the round trip.
    pub(crate) streams: Option<usize>,
}

/// Opens a channel to each of `trainers` trainers. Each sends from the queue of its rank, or all from the only queue. The
/// channels close when the returned set is dropped.
pub(crate) fn open(channels: &ReaderChannels, trainers: usize, queues: usize) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for trainer in 0..trainers {
        let channel = Channel { channels: channels.clone(), trainer, queue: trainer % queues };
        tasks.spawn_on(
            async move {
                if let Err(fault) = channel.run().await {
                    // No error if the trainer wants no more rows: the program that reads the scores may close its pipe.
                    match fault.kind == FaultKind::Drained {
                        true => tracing::debug!(%fault, "the channel to trainer {trainer} has ended"),
                        false => tracing::error!(%fault, "the channel to trainer {trainer} has ended"),
                    }
                    channel.channels.send_queue.fail(fault);
                }
            },
            channels.dialer.io().handle(),
        );
    }
    tasks
}

/// The channel to one trainer.
struct Channel {
    channels: ReaderChannels,
    trainer: usize,
    /// The index of its queue in the send queue.
    queue: usize,
}

/// The streams of a channel. Replies come on the first.
struct Streams {
    outgoing: Vec<Outgoing>,
    first: Incoming,
    others: Vec<Incoming>,
}

/// The credits of a channel.
#[derive(Default)]
struct CreditsLeft {
    batches: AtomicU32,
    bytes: AtomicU64,
    /// Batches sent whose credit has not come back.
    held: AtomicU32,
}

impl CreditsLeft {
    /// Whether a batch of `bytes` may be sent. While a batch that is larger than all credit is on its way, no other batch may be sent, not
    /// even an empty one: on another stream the second batch could arrive first.
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
        // The first grant returns no credit of a batch.
        self.held.store(self.held.load(Ordering::Relaxed).saturating_sub(batches), Ordering::Relaxed);
        self.batches.fetch_add(batches, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Channel {
    /// Opens the channel and sends, again and again, until the run is over.
    async fn run(&self) -> Result<(), Fault> {
        let ReaderChannels { send_queue, member, timeout, unreached, .. } = &self.channels;
        let what = format!("trainer {}", self.trainer);
        let retry = Retry::within(*timeout);
        loop {
            // A trainer that has left may join again, however late.
            if self.wait_until_needed().await? {
                return Ok(());
            }
            let opened = unreached.during(retry.run(&what, || self.open())).await;
            let streams = match opened {
                Ok(Some(streams)) => streams,
                Ok(None) => continue,
                // The reader has tried for `timeout`.
                Err(fault) if fault.retryable && member.status().silent.contains(&what) => continue,
                Err(fault) => return Err(fault),
            };
            let ended = self.transfer(streams).await;
            send_queue.channel_broke(self.queue, self.trainer);
            if member.status().phase == RunPhase::Over {
                return Ok(());
            }
            match ended {
                Err(fault) if !fault.retryable => return Err(fault),
                Err(fault) => {
                    tracing::warn!(%fault, "the channel to trainer {} broke: batches that are not done are sent again", self.trainer)
                }
                Ok(()) => tracing::debug!("trainer {} closed its channel", self.trainer),
            }
        }
    }

    /// Waits until the trainer has joined. Returns whether the run needs no more batches.
    async fn wait_until_needed(&self) -> Result<bool, Fault> {
        let is_over = |status: &RunStatus| matches!(status.phase, RunPhase::Finished | RunPhase::Over);
        let is_there = |status: &RunStatus| status.trainers.get(self.trainer).is_some_and(Option::is_some);
        let status = self.channels.member.wait_until(|status| is_over(status) || is_there(status)).await?;
        Ok(is_over(&status))
    }

    /// Opens the streams. `None`: the run needs no more batches, or the trainer has left.
    async fn open(&self) -> Result<Option<Streams>, Fault> {
        let ReaderChannels { member, dialer, streams, .. } = &self.channels;
        let status = member.wait_until(|_| true).await?;
        if matches!(status.phase, RunPhase::Finished | RunPhase::Over) {
            return Ok(None);
        }
        let Some((_, address)) = status.trainers.get(self.trainer).and_then(Clone::clone) else { return Ok(None) };
        let peer = dialer.peer(&address)?;
        let round_trip = measure_round_trip(&peer).await?;
        let number = streams.unwrap_or_else(|| streams_to_fill(round_trip));
        let (outgoing, mut first) = peer.exchange(&[NAME], DEADLINE).await?;
        let channel = match first.next().await?.map(|message| Reply::read(&message.metadata)).transpose()? {
            Some(Reply::Channel(channel)) => channel.to_string(),
            other => {
                return Err(Fault::user(format!(
                    "trainer {} began a channel with {other:?}, expected its number",
                    self.trainer
                )));
            }
        };
        let join = || async { dialer.peer(&address)?.exchange(&[NAME, &channel], DEADLINE).await };
        let (more, others): (Vec<_>, Vec<_>) = try_join_all((1..number).map(|_| join())).await?.into_iter().unzip();
        tracing::info!("trainer {} is {round_trip:.1?} away: {}", self.trainer, counted(number, "stream"));
        Ok(Some(Streams { outgoing: std::iter::once(outgoing).chain(more).collect(), first, others }))
    }

    /// Sends and receives on all streams in one task, so that credits need no lock. Ends when any stream ends.
    async fn transfer(&self, streams: Streams) -> Result<(), Fault> {
        let Streams { outgoing, first, others } = streams;
        let credits = CreditsLeft::default();
        let mut sending: FuturesUnordered<_> = outgoing.into_iter().map(|stream| self.send(stream, &credits)).collect();
        // No replies come on these streams: they can only end.
        let mut ending: FuturesUnordered<_> =
            others.into_iter().map(|mut stream| async move { stream.next().await.map(drop) }).collect();
        tokio::select! {
            ended = self.handle_replies(first, &credits) => ended,
            Some(ended) = ending.next() => ended,
            Some(ended) = sending.next() => ended,
        }
    }

    /// Sends batches on one stream, whenever it is free and the channel has credit.
    async fn send(&self, mut stream: Outgoing, credits: &CreditsLeft) -> Result<(), Fault> {
        let ReaderChannels { send_queue, leases, .. } = &self.channels;
        loop {
            let (header, columns, bytes) = send_queue.next(self.queue, self.trainer, |bytes| credits.fit(bytes)).await;
            if !header.urgent {
                credits.take(bytes);
            }
            let header = Header { done_before: leases.progress().done_before(header.id), ..header };
            let sent = stream.send(Message { batch: Some(columns), metadata: header.write() }).await;
            sent.map_err(|fault| fault.context(header.id.to_string()))?;
        }
    }

    async fn handle_replies(&self, mut stream: Incoming, credits: &CreditsLeft) -> Result<(), Fault> {
        let ReaderChannels { send_queue, leases, .. } = &self.channels;
        while let Some(message) = stream.next().await? {
            match Reply::read(&message.metadata)? {
                Reply::Channel(_) => return Err(Fault::user("a trainer sent the number of a channel twice")),
                Reply::Grant { batches, bytes } => {
                    credits.grant(batches, bytes);
                    send_queue.credit_came(self.queue);
                }
                Reply::Done(id) => {
                    // In this order: when the send queue is empty, every lease is completed or being reported.
                    leases.batch_done(id);
                    send_queue.batch_done(id);
                }
                Reply::Stale(id, term) => {
                    tracing::warn!("{id} of term {term} is refused: this reader had lost its lease");
                    send_queue.remove_window_of(id, term);
                    leases.progress().remove_lease_of(id, term);
                }
            }
        }
        Ok(())
    }
}

/// The round trip of an empty request. The first one also connects, so the shorter of two counts.
async fn measure_round_trip(peer: &Peer) -> Result<Duration, Fault> {
    let ping = async || {
        let start = Instant::now();
        peer.raw_action(&format!("{NAME}.{PING}"), "", DEADLINE).await.map(|_| start.elapsed())
    };
    Ok(ping().await?.min(ping().await?))
}

/// The number of streams that fill a 2 Gbit/s network at this round trip.
fn streams_to_fill(round_trip: Duration) -> usize {
    round_trip.as_nanos().div_ceil(ROUND_TRIP_PER_STREAM.as_nanos()).clamp(1, MAX_STREAMS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_round_trip_gets_more_streams() {
        let of = |micros| streams_to_fill(Duration::from_micros(micros));
        assert_eq!([0, 80, 12_500, 12_501, 50_000, 99_000, 5_000_000].map(of), [1, 1, 1, 2, 4, 8, 8]);
    }

    #[test]
    fn credits_are_taken_and_granted_and_a_large_batch_is_sent_alone() {
        let credits = CreditsLeft::default();
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
        assert!(!credits.fit(0), "it is sent alone");
        credits.grant(1, 100);
        credits.take(1);
        credits.take(1);
        assert!(credits.fit(98) && !credits.fit(99));
        credits.take(1);
        assert!(!credits.fit(1), "three batches at most");
    }
}
