//! The only actor. It owns one future, which runs a stage from open to finish.
//!
//! The handler puts a message into a slot and calls `ctx.wait(HoldMailbox)`, which holds the mailbox. `HoldMailbox` polls the future
//! until it asks for the next message. The future takes the message out of the slot, and the permit is freed there. So
//! a stage is plain `async` code that handles one message at a time, and may borrow and hold `!Send` state. A message
//! costs actix's two allocations (envelope and queue node) and no other: `HoldMailbox` has no size, so its box does not
//! allocate.
//!
//! After each message the shell yields once, so that a mailbox that never empties does not starve the other actors on
//! the arbiter.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Waker};

use actix::dev::channel::{AddressReceiver, channel};
use actix::fut::ActorFuture;
use actix::{Actor, ActorContext, Addr, ArbiterHandle, AsyncContext, Context, Handler, Recipient};
use tokio::sync::mpsc;

use crate::batch::Lineage;
use crate::clock::Activity;
use crate::context::StageCx;
use crate::fault::{Fault, FaultKind, Phase};
use crate::link::Envelope;
use crate::meter::StageMeter;

/// Every shell holds one. When the last is dropped, the receiver knows that all shells have ended.
pub(crate) type LivenessToken = mpsc::Sender<()>;

/// A stage, from open to finish.
pub(crate) type StageFuture = Pin<Box<dyn Future<Output = Result<(), Fault>>>>;

/// The current phase and batch of a stage, to be added to its fault.
pub(crate) struct ErrorContext {
    phase: Cell<Phase>,
    lineage: RefCell<Option<Lineage>>,
}

impl ErrorContext {
    pub(crate) fn set(&self, phase: Phase, lineage: Option<&Lineage>) {
        self.phase.set(phase);
        *self.lineage.borrow_mut() = lineage.cloned();
    }
}

struct Slot<M> {
    message: RefCell<Option<Envelope<M>>>,
    wanted: Cell<bool>,
}

/// The receiving end of a link, as the future of a stage sees it.
pub(crate) struct Inbox<M> {
    slot: Rc<Slot<M>>,
    meter: Arc<StageMeter>,
}

impl<M> Inbox<M> {
    /// The next message. Its permit is freed here.
    pub(crate) async fn next(&mut self) -> M {
        self.meter.enter(Activity::Starved);
        let envelope = poll_fn(|_| {
            let taken = self.slot.message.borrow_mut().take();
            self.slot.wanted.set(taken.is_none());
            taken.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        self.meter.enter(Activity::Busy);
        drop(envelope.permit);
        envelope.message
    }
}

pub(crate) struct Shell<M: Send + 'static> {
    future: Option<StageFuture>,
    slot: Rc<Slot<M>>,
    error_context: Rc<ErrorContext>,
    cx: StageCx,
    killed: Pin<Box<dyn Future<Output = ()>>>,
    enrolled: Option<Waker>,
    yielded: bool,
    _alive: LivenessToken,
}

/// A mailbox whose actor is not started yet. Its address can be used already.
pub(crate) struct Mailbox<M: Send + 'static> {
    receiver: AddressReceiver<Shell<M>>,
}

/// Makes a mailbox without a bound (capacity 0 in actix): the permits of the link are the bound.
pub(crate) fn mailbox<M: Send + 'static>() -> (Recipient<Envelope<M>>, Mailbox<M>) {
    let (sender, receiver) = channel::<Shell<M>>(0);
    (Addr::new(sender).recipient(), Mailbox { receiver })
}

impl<M: Send + 'static> Mailbox<M> {
    /// Starts the shell on `arbiter`, and calls `future` on that thread.
    pub(crate) fn start(
        self,
        arbiter: &ArbiterHandle,
        cx: StageCx,
        liveness: LivenessToken,
        future: impl FnOnce(StageCx, Inbox<M>, Rc<ErrorContext>) -> StageFuture + Send + 'static,
    ) {
        let switch = cx.switch().clone();
        let name = cx.name().to_owned();
        let started = arbiter.spawn_fn(move || {
            let slot = Rc::new(Slot { message: RefCell::new(None), wanted: Cell::new(false) });
            let error_context = Rc::new(ErrorContext { phase: Cell::new(Phase::Open), lineage: RefCell::new(None) });
            let inbox = Inbox { slot: Rc::clone(&slot), meter: cx.meter_arc() };
            let switch = cx.switch().clone();
            let shell = Shell {
                future: Some(future(cx.clone(), inbox, Rc::clone(&error_context))),
                slot,
                error_context,
                cx,
                killed: Box::pin(async move { switch.killed().await }),
                enrolled: None,
                yielded: false,
                _alive: liveness,
            };
            actix::spawn(Context::with_receiver(self.receiver).into_future(shell));
        });
        if !started {
            switch.kill(Fault::internal("its thread has ended").kind(FaultKind::Stopped).at(&name, Phase::Open, None));
        }
    }
}

impl<M: Send + 'static> Actor for Shell<M> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.cx.meter().enter(Activity::Busy);
        ctx.wait(HoldMailbox);
        ctx.spawn(Watch);
    }
}

impl<M: Send + 'static> Handler<Envelope<M>> for Shell<M> {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<M>, ctx: &mut Self::Context) {
        *self.slot.message.borrow_mut() = Some(envelope);
        ctx.wait(HoldMailbox);
    }
}

/// Holds the mailbox until the stage wants its next message.
struct HoldMailbox;

impl<M: Send + 'static> ActorFuture<Shell<M>> for HoldMailbox {
    type Output = ();

    fn poll(self: Pin<&mut Self>, shell: &mut Shell<M>, ctx: &mut Context<Shell<M>>, task: &mut Task<'_>) -> Poll<()> {
        if shell.is_killed(task) {
            shell.end(ctx);
            return Poll::Ready(());
        }
        if std::mem::take(&mut shell.yielded) {
            return Poll::Ready(());
        }
        let Some(future) = shell.future.as_mut() else { return Poll::Ready(()) };
        shell.cx.meter().resumes();
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(task)));
        shell.cx.meter().pauses();
        match polled {
            Ok(Poll::Pending) if shell.slot.wanted.get() => {
                shell.yielded = true;
                task.waker().wake_by_ref();
                Poll::Pending
            }
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => {
                if let Err(fault) = result {
                    shell.kill(fault);
                }
                shell.end(ctx);
                Poll::Ready(())
            }
            Err(panic) => {
                shell.kill(Fault::of_panic("panicked", &*panic));
                shell.end(ctx);
                Poll::Ready(())
            }
        }
    }
}

/// Wakes an idle shell when the run is killed.
struct Watch;

impl<M: Send + 'static> ActorFuture<Shell<M>> for Watch {
    type Output = ();

    fn poll(self: Pin<&mut Self>, shell: &mut Shell<M>, ctx: &mut Context<Shell<M>>, task: &mut Task<'_>) -> Poll<()> {
        if shell.is_killed(task) {
            shell.end(ctx);
        }
        Poll::Pending
    }
}

impl<M: Send + 'static> Shell<M> {
    /// The first call on a task registers its waker; later calls are an atomic load.
    fn is_killed(&mut self, task: &mut Task<'_>) -> bool {
        if !self.enrolled.as_ref().is_some_and(|waker| waker.will_wake(task.waker())) {
            self.enrolled = Some(task.waker().clone());
            return self.killed.as_mut().poll(task).is_ready();
        }
        self.cx.switch().is_killed()
    }

    fn kill(&self, fault: Fault) {
        let lineage = self.error_context.lineage.borrow();
        self.cx.switch().kill(fault.at(self.cx.name(), self.error_context.phase.get(), lineage.as_ref()));
    }

    /// Drops the future, with the stage and its outbox, and stops the actor.
    fn end(&mut self, ctx: &mut Context<Self>) {
        self.drop_future();
        ctx.stop();
    }

    fn drop_future(&mut self) {
        if let Some(future) = self.future.take() {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(future))) {
                self.kill(Fault::of_panic("panicked while it was dropped", &*panic));
            }
            self.cx.meter().enter(Activity::Nothing);
        }
    }
}

impl<M: Send + 'static> Drop for Shell<M> {
    fn drop(&mut self) {
        if self.future.is_some() {
            let how = if std::thread::panicking() { "in a panic" } else { "without a word" };
            self.kill(Fault::internal(format!("the actor died {how}")).kind(FaultKind::Panic));
            self.drop_future();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use actix::{Arbiter, System};

    use super::*;

    /// Stopping an arbiter while its actors run is a fault.
    #[test]
    fn an_actor_that_dies_without_a_word_is_a_fault() {
        System::new().block_on(async {
            let cx = StageCx::detached("victim");
            let (liveness, mut ended) = mpsc::channel(1);
            let (_address, mailbox) = mailbox::<()>();
            let arbiter = Arbiter::new();
            let (opened, is_open) = tokio::sync::oneshot::channel();
            mailbox.start(&arbiter.handle(), cx.clone(), liveness, |_, _, error_context| {
                Box::pin(async move {
                    error_context.set(Phase::Batch, Some(&Lineage { seq: 7, ..Lineage::default() }));
                    let _ = opened.send(());
                    std::future::pending().await
                })
            });
            is_open.await.unwrap();
            arbiter.stop();
            arbiter.join().unwrap();
            assert!(ended.recv().await.is_none(), "its token is returned");
            let fault = cx.switch().take_root().unwrap();
            assert_eq!(fault.message(), "the actor died without a word");
            assert_eq!((fault.stage.as_deref(), fault.phase), (Some("victim"), Some(Phase::Batch)));
            assert_eq!(fault.lineage.unwrap().seq, 7);
        });
    }

    /// Two actors share a thread: one has a thousand messages, the other one.
    #[test]
    fn a_full_mailbox_does_not_starve_the_neighbours() {
        const FLOOD: usize = 1_000;
        System::new().block_on(async {
            let handled = Arc::new(AtomicUsize::new(0));
            let (seen, was_seen) = tokio::sync::oneshot::channel();
            let (liveness, mut ended) = mpsc::channel(1);
            let (flood, flooded) = mailbox::<()>();
            let (neighbour, waits) = mailbox::<()>();
            for _ in 0..FLOOD {
                assert!(flood.try_send(Envelope { message: (), permit: None }).is_ok());
            }
            assert!(neighbour.try_send(Envelope { message: (), permit: None }).is_ok());
            let here = Arbiter::current();
            let count = Arc::clone(&handled);
            flooded.start(&here, StageCx::detached("flood"), liveness.clone(), move |_, mut inbox, _| {
                Box::pin(async move {
                    for _ in 0..FLOOD {
                        inbox.next().await;
                        count.fetch_add(1, SeqCst);
                    }
                    Ok(())
                })
            });
            waits.start(&here, StageCx::detached("neighbour"), liveness, move |_, mut inbox, _| {
                Box::pin(async move {
                    inbox.next().await;
                    let _ = seen.send(handled.load(SeqCst));
                    Ok(())
                })
            });
            let before = was_seen.await.unwrap();
            assert!(before < FLOOD / 10, "its turn came after {before} of {FLOOD}");
            assert!(ended.recv().await.is_none());
        });
    }

    #[test]
    fn a_stage_that_cannot_be_started_is_a_fault() {
        System::new().block_on(async {
            let cx = StageCx::detached("unborn");
            let arbiter = Arbiter::new();
            let handle = arbiter.handle();
            arbiter.stop();
            arbiter.join().unwrap();
            let (_address, mailbox) = mailbox::<()>();
            mailbox.start(&handle, cx.clone(), mpsc::channel(1).0, |_, _, _| Box::pin(std::future::pending()));
            assert!(cx.switch().take_root().unwrap().message().contains("thread has ended"));
        });
    }
}
