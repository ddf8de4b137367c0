//! A link: a bounded queue from one actor to another, made of an actix recipient and a semaphore.
//!
//! A message lies in the receiver's mailbox in an [`Envelope`] with its permit, which is freed by drop when the
//! receiver takes the message out. The semaphore is the bound. The mailbox has none: actix honours its capacity for
//! some ways of sending only (see `tests/actix_facts.rs`). Only [`Room::reserve`] waits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use actix::dev::SendError;
use actix::{Message, Recipient};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::{METERED, now};
use crate::switch::Close;

/// The bound of a link: in items, and optionally in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    items: usize,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    bytes: Option<usize>,
}

impl Capacity {
    /// At most this many items; 0 counts as 1.
    pub fn items(items: usize) -> Self {
        Self { items: items.clamp(1, Semaphore::MAX_PERMITS), bytes: None }
    }

    /// Adds a bound in bytes. An item larger than the bound waits until the link is empty and then takes all of it.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes.max(1));
        self
    }

    /// The bound of two links together.
    fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.zip(other.bytes).map(|(own, other)| own.saturating_add(other));
        Self { items: self.items.saturating_add(other.items), bytes }
    }

    /// The bound in items.
    pub fn max_items(&self) -> usize {
        self.items
    }

    /// The bound in bytes, if there is one.
    pub fn max_bytes(&self) -> Option<usize> {
        self.bytes
    }
}

impl From<usize> for Capacity {
    fn from(items: usize) -> Self {
        Self::items(items)
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.items)?;
        match self.bytes {
            Some(bytes) => write!(f, " items, {:.1} MiB", bytes as f64 / (1u64 << 20) as f64),
            None if self.items == 1 => f.write_str(" item"),
            None => f.write_str(" items"),
        }
    }
}

/// A message in a mailbox, with its permit.
pub(crate) struct Envelope<M> {
    pub(crate) message: M,
    /// Freed by drop; `None` for a message sent with [`Link::hand`].
    pub(crate) permit: Option<Permit>,
}

impl<M> Message for Envelope<M> {
    type Result = ();
}

/// Room for one message. Freed by drop.
pub(crate) struct Permit {
    _items: OwnedSemaphorePermit,
    _bytes: Option<OwnedSemaphorePermit>,
}

/// The link is closed: the run was killed, or the receiver is gone.
#[derive(Debug)]
pub(crate) struct Closed;

/// The semaphores and counts of a link, shared by all its senders and by the report.
pub(crate) struct Room {
    capacity: Capacity,
    items: Arc<Semaphore>,
    bytes: Option<Budget>,
    pub(crate) meter: LinkMeter,
}

/// A semaphore for bytes, in granules: tokio grants at most `u32::MAX` permits at once.
struct Budget {
    granules: Arc<Semaphore>,
    total: u32,
    granule: usize,
}

impl Budget {
    fn new(bytes: usize) -> Self {
        let granule = bytes.div_ceil(u32::MAX as usize).max(1);
        let total = (bytes / granule).max(1) as u32;
        Self { granules: Arc::new(Semaphore::new(total as usize)), total, granule }
    }

    /// Granules that an item takes; an oversize item takes all.
    fn price(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(self.granule)).unwrap_or(u32::MAX).min(self.total)
    }
}

/// Counts of one link.
#[derive(Default)]
pub(crate) struct LinkMeter {
    items: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    high_water: AtomicU64,
    blocked: AtomicU64,
    blocked_ns: AtomicU64,
}

impl LinkMeter {
    /// Counts a call that was sent.
    pub(crate) fn called(&self) {
        if METERED {
            self.items.fetch_add(1, Relaxed);
        }
    }

    /// Counts a batch that was sent.
    pub(crate) fn sent(&self, rows: usize, bytes: usize) {
        self.called();
        if METERED {
            self.rows.fetch_add(rows as u64, Relaxed);
            self.bytes.fetch_add(bytes as u64, Relaxed);
        }
    }
}

/// Counts of one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The stage that sends.
    pub from: String,
    /// The stage that receives.
    pub to: String,
    /// The bounds.
    pub capacity: Capacity,
    /// Batches sent.
    pub items: u64,
    /// Rows sent.
    pub rows: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Batches in the link.
    pub depth: u64,
    /// The most batches in the link at one time.
    pub high_water: u64,
    /// How often a sender found the link full.
    pub blocked_sends: u64,
    /// How long senders waited for room; in JSON, seconds.
    #[serde(with = "crate::seconds")]
    pub blocked: Duration,
}

impl LinkReport {
    /// A link that nothing has passed yet.
    pub fn new(from: &str, to: &str, capacity: Capacity) -> Self {
        Room::new(capacity).report(from, to)
    }

    /// Adds the same link of another process.
    pub fn merge(&mut self, other: &Self) {
        self.items += other.items;
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.depth += other.depth;
        self.capacity = self.capacity.plus(other.capacity);
        self.high_water = self.high_water.max(other.high_water);
        self.blocked_sends += other.blocked_sends;
        self.blocked += other.blocked;
    }
}

impl Room {
    pub(crate) fn new(capacity: Capacity) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            items: Arc::new(Semaphore::new(capacity.items)),
            bytes: capacity.bytes.map(Budget::new),
            meter: LinkMeter::default(),
        })
    }

    fn depth(&self) -> u64 {
        (self.capacity.items - self.items.available_permits().min(self.capacity.items)) as u64
    }

    /// Reserves room for an item of `bytes`, if there is room at once.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Option<Permit> {
        let items = Arc::clone(&self.items).try_acquire_owned().ok()?;
        let bytes = match &self.bytes {
            Some(budget) => Some(Arc::clone(&budget.granules).try_acquire_many_owned(budget.price(bytes)).ok()?),
            None => None,
        };
        Some(Permit { _items: items, _bytes: bytes })
    }

    /// Waits for room for an item of `bytes`. Cancel safe: dropping the future gives back what it held.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Permit, Closed> {
        if let Some(permit) = self.try_reserve(bytes) {
            return Ok(permit);
        }
        let since = now();
        let items = Arc::clone(&self.items).acquire_owned().await.map_err(|_| Closed)?;
        let bytes = match &self.bytes {
            Some(budget) => {
                Some(Arc::clone(&budget.granules).acquire_many_owned(budget.price(bytes)).await.map_err(|_| Closed)?)
            }
            None => None,
        };
        if let Some(since) = since {
            self.meter.blocked.fetch_add(1, Relaxed);
            self.meter.blocked_ns.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
        }
        Ok(Permit { _items: items, _bytes: bytes })
    }

    pub(crate) fn report(&self, from: &str, to: &str) -> LinkReport {
        LinkReport {
            from: from.to_owned(),
            to: to.to_owned(),
            capacity: self.capacity,
            items: self.meter.items.load(Relaxed),
            rows: self.meter.rows.load(Relaxed),
            bytes: self.meter.bytes.load(Relaxed),
            depth: self.depth(),
            high_water: self.meter.high_water.load(Relaxed),
            blocked_sends: self.meter.blocked.load(Relaxed),
            blocked: Duration::from_nanos(self.meter.blocked_ns.load(Relaxed)),
        }
    }
}

impl Close for Room {
    fn close(&self) {
        self.items.close();
        if let Some(budget) = &self.bytes {
            budget.granules.close();
        }
    }
}

/// The sending end of a link. Clones share the room.
pub(crate) struct Link<M: Send + 'static> {
    to: Recipient<Envelope<M>>,
    pub(crate) room: Arc<Room>,
}

impl<M: Send + 'static> Clone for Link<M> {
    fn clone(&self) -> Self {
        Self { to: self.to.clone(), room: Arc::clone(&self.room) }
    }
}

impl<M: Send + 'static> Link<M> {
    pub(crate) fn new(to: Recipient<Envelope<M>>, room: Arc<Room>) -> Self {
        Self { to, room }
    }

    /// Sends `message` with its permit. Never waits.
    pub(crate) fn send(&self, permit: Permit, message: M) -> Result<(), Closed> {
        if METERED {
            self.room.meter.high_water.fetch_max(self.room.depth(), Relaxed);
        }
        self.put(Envelope { message, permit: Some(permit) })
    }

    /// Sends without a permit: an input for a free replica, or the message that stops a service. Never waits.
    pub(crate) fn send_now(&self, message: M) -> Result<(), Closed> {
        self.put(Envelope { message, permit: None })
    }

    fn put(&self, envelope: Envelope<M>) -> Result<(), Closed> {
        match self.to.try_send(envelope) {
            Ok(()) => Ok(()),
            Err(SendError::Closed(_)) => Err(Closed),
            Err(SendError::Full(_)) => unreachable!("the mailbox is made without a bound"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_oversize_item_takes_the_whole_budget() {
        let room = Room::new(Capacity::items(8).bytes(100));
        let small = room.try_reserve(1).unwrap();
        assert!(room.try_reserve(1_000_000).is_none(), "not beside another");
        assert_eq!(room.depth(), 1, "a refused item keeps no room");
        drop(small);
        let large = room.try_reserve(1_000_000).unwrap();
        assert!(room.try_reserve(1).is_none(), "alone");
        let mut next = std::pin::pin!(room.reserve(1));
        assert!(futures::poll!(next.as_mut()).is_pending());
        drop(large);
        next.await.unwrap();
        assert_eq!(room.report("a", "b").blocked_sends, 1);
    }

    #[tokio::test]
    async fn a_cancelled_wait_gives_its_room_back() {
        let room = Room::new(Capacity::items(2).bytes(10));
        let full = room.try_reserve(10).unwrap();
        {
            let mut wait = std::pin::pin!(room.reserve(5));
            assert!(futures::poll!(wait.as_mut()).is_pending(), "holds an item, waits for bytes");
        }
        drop(full);
        let both = (room.try_reserve(5), room.try_reserve(5));
        assert!(both.0.is_some() && both.1.is_some());
    }

    #[tokio::test]
    async fn closing_wakes_who_waits() {
        let room = Room::new(1.into());
        let _full = room.try_reserve(0).unwrap();
        let mut wait = std::pin::pin!(room.reserve(0));
        assert!(futures::poll!(wait.as_mut()).is_pending());
        room.close();
        assert!(wait.await.is_err());
        assert!(room.reserve(0).await.is_err());
    }

    #[test]
    fn budgets_beyond_four_gigabytes_are_counted_in_granules() {
        let budget = Budget::new(40 << 30);
        assert!(budget.granule > 1);
        assert_eq!(budget.price(usize::MAX), budget.total);
        assert!(budget.price(1) == 1 && u64::from(budget.price(20 << 30)) * budget.granule as u64 >= 20 << 30);
    }
}
