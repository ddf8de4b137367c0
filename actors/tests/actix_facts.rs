//! What the runtime relies on in actix, and what it works around. If a test fails after an update of actix, read
//! `src/link.rs` and `src/shell.rs` first.

#![allow(clippy::disallowed_types, clippy::unwrap_used, missing_docs, reason = "this is where actix is watched")]

#[path = "common/until.rs"]
#[allow(dead_code, unreachable_pub, reason = "the other test binaries use the rest")]
mod until;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use actix::dev::SendError;
use actix::dev::channel::channel;
use actix::fut::wrap_future;
use actix::prelude::*;
use futures::FutureExt;
use tokio::sync::Semaphore;
use until::until_on_this_thread;

struct Ping;
impl Message for Ping {
    type Result = ();
}

/// Holds its mailbox with `ctx.wait` while it handles a message, until the gate has a permit.
struct Gated {
    gate: Arc<Semaphore>,
    handled: Arc<AtomicUsize>,
    capacity: usize,
}

impl Actor for Gated {
    type Context = Context<Self>;
    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(self.capacity);
    }
}

impl Handler<Ping> for Gated {
    type Result = ();
    fn handle(&mut self, _: Ping, ctx: &mut Self::Context) {
        let (gate, handled) = (Arc::clone(&self.gate), Arc::clone(&self.handled));
        ctx.wait(wrap_future(async move {
            gate.acquire().await.unwrap().forget();
            handled.fetch_add(1, SeqCst);
        }));
    }
}

async fn gated(capacity: usize) -> (Addr<Gated>, Arc<Semaphore>, Arc<AtomicUsize>) {
    let (gate, handled) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let addr = Gated { gate: Arc::clone(&gate), handled: Arc::clone(&handled), capacity }.start();
    // The actor handles the first message, and the mailbox is empty.
    addr.do_send(Ping);
    rest().await;
    (addr, gate, handled)
}

/// Lets everything else on this thread run.
async fn rest() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn system<T>(body: impl Future<Output = T>) -> T {
    System::new().block_on(body)
}

#[test]
fn pending_sends_ignore_the_capacity() {
    system(async {
        let (addr, gate, handled) = gated(4).await;
        let mut sends: Vec<_> = (0..10_000).map(|_| Box::pin(addr.send(Ping))).collect();
        for send in &mut sends {
            assert!(send.as_mut().now_or_never().is_none());
        }
        gate.add_permits(usize::MAX >> 4);
        until_on_this_thread("10,001 messages are handled", || handled.load(SeqCst) >= 10_001).await;
        // The sends were not polled again: all messages were in the mailbox at once.
        drop(sends);
    });
}

#[test]
fn do_send_ignores_the_capacity() {
    system(async {
        let (addr, gate, handled) = gated(4).await;
        for _ in 0..10_000 {
            addr.do_send(Ping);
        }
        gate.add_permits(usize::MAX >> 4);
        until_on_this_thread("10,001 messages are handled", || handled.load(SeqCst) >= 10_001).await;
    });
}

#[test]
fn try_send_honours_it_for_one_address_and_every_clone_owns_a_slot_more() {
    system(async {
        let (addr, _gate, _) = gated(4).await;
        let accepted = (0..100).take_while(|_| addr.try_send(Ping).is_ok()).count();
        assert!((4..=5).contains(&accepted), "{accepted} went into a mailbox of 4");
        assert!(matches!(addr.try_send(Ping), Err(SendError::Full(_))));
        for _ in 0..1_000 {
            addr.clone().try_send(Ping).expect("a fresh clone always has a slot");
        }
    });
}

#[test]
fn a_mailbox_of_capacity_zero_never_refuses() {
    system(async {
        let (sender, receiver) = channel::<Gated>(0);
        let recipient: Recipient<Ping> = Addr::new(sender).recipient();
        for _ in 0..10_000 {
            recipient.try_send(Ping).expect("no bound, not even before the actor runs");
        }
        let (gate, handled) = (Arc::new(Semaphore::new(usize::MAX >> 4)), Arc::new(AtomicUsize::new(0)));
        let actor = Gated { gate, handled: Arc::clone(&handled), capacity: 0 };
        Context::with_receiver(receiver).run(actor);
        until_on_this_thread("10,000 messages are handled", || handled.load(SeqCst) >= 10_000).await;
    });
}

#[test]
fn a_sync_arbiter_has_no_bound() {
    struct Sync(std::sync::mpsc::Receiver<()>);
    impl Actor for Sync {
        type Context = SyncContext<Self>;
    }
    impl Handler<Ping> for Sync {
        type Result = ();
        fn handle(&mut self, _: Ping, _: &mut Self::Context) {
            let _ = self.0.recv();
        }
    }
    system(async {
        let (gate, receiver) = std::sync::mpsc::channel();
        let receiver = std::sync::Mutex::new(Some(receiver));
        let addr = SyncArbiter::start(1, move || Sync(receiver.lock().unwrap().take().unwrap()));
        let mut accepted = 0;
        while accepted < 10_000 && addr.try_send(Ping).is_ok() {
            accepted += 1;
            tokio::task::yield_now().await;
        }
        assert_eq!(accepted, 10_000);
        drop(gate);
    });
}

#[test]
fn handlers_that_return_futures_do_not_hold_the_mailbox() {
    struct Crowd {
        inside: Arc<AtomicUsize>,
    }
    impl Actor for Crowd {
        type Context = Context<Self>;
        fn started(&mut self, ctx: &mut Self::Context) {
            ctx.set_mailbox_capacity(4);
        }
    }
    impl Handler<Ping> for Crowd {
        type Result = ResponseFuture<()>;
        fn handle(&mut self, _: Ping, _: &mut Self::Context) -> ResponseFuture<()> {
            self.inside.fetch_add(1, SeqCst);
            Box::pin(std::future::pending())
        }
    }
    struct Orderly {
        inside: Arc<AtomicUsize>,
    }
    impl Actor for Orderly {
        type Context = Context<Self>;
    }
    impl Handler<Ping> for Orderly {
        type Result = AtomicResponse<Self, ()>;
        fn handle(&mut self, _: Ping, _: &mut Self::Context) -> Self::Result {
            self.inside.fetch_add(1, SeqCst);
            AtomicResponse::new(Box::pin(wrap_future(std::future::pending())))
        }
    }
    system(async {
        let inside = Arc::new(AtomicUsize::new(0));
        let crowd = Crowd { inside: Arc::clone(&inside) }.start();
        for _ in 0..5_000 {
            crowd.do_send(Ping);
        }
        rest().await;
        assert_eq!(inside.swap(0, SeqCst), 5_000, "all at once");
        let orderly = Orderly { inside: Arc::clone(&inside) }.start();
        for _ in 0..5_000 {
            orderly.do_send(Ping);
        }
        rest().await;
        assert_eq!(inside.load(SeqCst), 1, "one at a time");
        let (addr, gate, handled) = gated(4).await;
        addr.do_send(Ping);
        gate.add_permits(1);
        rest().await;
        assert_eq!(handled.load(SeqCst), 1, "`ctx.wait` holds the mailbox");
    });
}

#[test]
fn a_panicked_actor_is_lost_with_its_queue_but_drop_runs_while_panicking() {
    struct Fragile {
        handled: Arc<AtomicUsize>,
        stopped: Arc<AtomicBool>,
        dropped: Arc<AtomicBool>,
    }
    impl Actor for Fragile {
        type Context = Context<Self>;
        fn stopped(&mut self, _: &mut Self::Context) {
            self.stopped.store(std::thread::panicking(), SeqCst);
        }
    }
    impl Supervised for Fragile {}
    impl Handler<Ping> for Fragile {
        type Result = ();
        fn handle(&mut self, _: Ping, _: &mut Self::Context) {
            self.handled.fetch_add(1, SeqCst);
            panic!("on purpose");
        }
    }
    impl Drop for Fragile {
        fn drop(&mut self) {
            self.dropped.store(std::thread::panicking(), SeqCst);
        }
    }
    system(async {
        let handled = Arc::new(AtomicUsize::new(0));
        let (stopped, dropped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (h, s, d) = (Arc::clone(&handled), Arc::clone(&stopped), Arc::clone(&dropped));
        let addr = Supervisor::start(move |_| Fragile { handled: h, stopped: s, dropped: d });
        for _ in 0..10 {
            addr.do_send(Ping);
        }
        rest().await;
        assert_eq!(handled.load(SeqCst), 1, "the queue is lost, even under a supervisor");
        assert!(!addr.connected());
        assert!(stopped.load(SeqCst) && dropped.load(SeqCst), "the only word of it");
    });
}

#[test]
fn stopping_an_arbiter_does_not_drain_but_dropping_the_addresses_does() {
    system(async {
        let start = |arbiter: &Arbiter| {
            let (gate, handled) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
            let actor = Gated { gate: Arc::clone(&gate), handled: Arc::clone(&handled), capacity: 64 };
            let addr = Gated::start_in_arbiter(&arbiter.handle(), |_| actor);
            for _ in 0..50 {
                addr.do_send(Ping);
            }
            (addr, gate, handled)
        };
        let reach = async |handled: &AtomicUsize, n| {
            until_on_this_thread("the messages are handled", || handled.load(SeqCst) >= n).await;
        };

        let arbiter = Arbiter::new();
        let (addr, gate, handled) = start(&arbiter);
        gate.add_permits(5);
        reach(&handled, 5).await;
        arbiter.stop();
        arbiter.join().unwrap();
        gate.add_permits(100);
        assert_eq!(handled.load(SeqCst), 5, "45 are lost");
        drop(addr);

        let arbiter = Arbiter::new();
        let (addr, gate, handled) = start(&arbiter);
        drop(addr);
        gate.add_permits(100);
        reach(&handled, 50).await;
        arbiter.stop();
        arbiter.join().unwrap();
    });
}

#[test]
fn an_actor_that_keeps_an_interval_outlives_its_addresses() {
    struct Keeper {
        interval: bool,
        dropped: Arc<AtomicBool>,
    }
    impl Actor for Keeper {
        type Context = Context<Self>;
        fn started(&mut self, ctx: &mut Self::Context) {
            if self.interval {
                ctx.run_interval(Duration::from_secs(60), |_, _| {});
            }
        }
    }
    impl Drop for Keeper {
        fn drop(&mut self) {
            self.dropped.store(true, SeqCst);
        }
    }
    system(async {
        for interval in [false, true] {
            let dropped = Arc::new(AtomicBool::new(false));
            drop(Keeper { interval, dropped: Arc::clone(&dropped) }.start());
            rest().await;
            assert_eq!(dropped.load(SeqCst), !interval);
        }
    });
}

#[test]
fn a_mailbox_that_never_empties_starves_the_neighbours() {
    const FLOOD: usize = 10_000;
    struct Flood(Arc<AtomicUsize>);
    impl Actor for Flood {
        type Context = Context<Self>;
    }
    impl Handler<Ping> for Flood {
        type Result = ();
        fn handle(&mut self, _: Ping, ctx: &mut Self::Context) {
            if self.0.fetch_add(1, SeqCst) + 1 < FLOOD {
                ctx.address().do_send(Ping);
            }
        }
    }
    struct Neighbour(Arc<AtomicUsize>, Arc<AtomicUsize>);
    impl Actor for Neighbour {
        type Context = Context<Self>;
    }
    impl Handler<Ping> for Neighbour {
        type Result = ();
        fn handle(&mut self, _: Ping, _: &mut Self::Context) {
            self.1.store(self.0.load(SeqCst), SeqCst);
        }
    }
    system(async {
        let (flooded, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let flood = Flood(Arc::clone(&flooded)).start();
        let neighbour = Neighbour(flooded, Arc::clone(&seen)).start();
        flood.do_send(Ping);
        neighbour.do_send(Ping);
        rest().await;
        assert_eq!(seen.load(SeqCst), FLOOD, "its turn came after the whole flood");
    });
}
