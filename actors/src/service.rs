//! Actors that answer: a [`Service`] takes calls one at a time, a [`Client`] asks and waits.
//!
//! Comes in: calls, at most the capacity of them waiting. Goes out: a reply, or a [`Fault`], to whoever asked.
//! [`Client::call`] waits for room, then for the reply; a service that died answers every call, also those already
//! waiting, with a fault that says why it died.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_base::panic_message;
use futures::FutureExt;
use tokio::sync::oneshot;

use crate::context::StageCx;
use crate::fault::{Fault, FaultKind, Phase};
use crate::link::Link;
use crate::shell::{ErrorContext, Inbox};

/// Answers calls, one at a time, in the order they came in.
pub trait Service: 'static {
    /// What it is asked.
    type Call: Send + 'static;
    /// What it answers.
    type Reply: Send + 'static;

    /// Its line in the report.
    fn describe(&self) -> String {
        crate::stage::type_name::<Self>()
    }

    /// Called once, before the first call. A fault here ends the service.
    fn open(&mut self, _cx: &StageCx) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }

    /// Answers one call. A fault goes to the caller and does not end the service; a panic does.
    fn call(&mut self, call: Self::Call) -> impl Future<Output = Result<Self::Reply, Fault>>;
}

/// What lies in the mailbox of a service.
pub(crate) enum Ask<C, R> {
    Call { call: C, reply: oneshot::Sender<Result<R, Fault>> },
    Stop,
}

/// Asks a service. Clones share its capacity.
pub struct Client<C: Send + 'static, R: Send + 'static> {
    link: Link<Ask<C, R>>,
    cx: StageCx,
}

impl<C: Send + 'static, R: Send + 'static> Clone for Client<C, R> {
    fn clone(&self) -> Self {
        Self { link: self.link.clone(), cx: self.cx.clone() }
    }
}

impl<C: Send + 'static, R: Send + 'static> Client<C, R> {
    pub(crate) fn new(link: Link<Ask<C, R>>, cx: StageCx) -> Self {
        Self { link, cx }
    }

    /// Asks, and waits for the answer: first for room in the mailbox, then for the reply. Works on any executor.
    ///
    /// Cancelled before the call was handed over, it was never made; cancelled after, it is answered into the void.
    ///
    /// # Errors
    /// What the service answered, or an internal fault when it has ended.
    pub async fn call(&self, call: C) -> Result<R, Fault> {
        self.ask(call).await?.reply().await
    }

    /// The first half of a [`call`](Self::call): waits for room and hands the call over. Who has several calls under way and
    /// cares for their order asks one after the other, and waits for the replies later.
    ///
    /// # Errors
    /// An internal fault when the service has ended.
    pub async fn ask(&self, call: C) -> Result<PendingReply<R>, Fault> {
        let permit = self.link.room.reserve(0).await.map_err(|_| self.ended())?;
        let (reply, answer) = oneshot::channel();
        self.link.send(permit, Ask::Call { call, reply }).map_err(|_| self.ended())?;
        self.link.room.meter.items.fetch_add(1, Relaxed);
        Ok(PendingReply { answer, cx: self.cx.clone() })
    }

    fn ended(&self) -> Fault {
        ended(&self.cx)
    }
}

/// A call that was handed over: its reply is to come.
pub struct PendingReply<R> {
    answer: oneshot::Receiver<Result<R, Fault>>,
    cx: StageCx,
}

impl<R> PendingReply<R> {
    /// The second half of a [`call`](Client::call): waits for the reply. Cancelled, the call is answered into the void.
    ///
    /// # Errors
    /// What the service answered, or an internal fault when it has ended.
    pub async fn reply(self) -> Result<R, Fault> {
        self.answer.await.unwrap_or_else(|_| Err(ended(&self.cx)))
    }
}

fn ended(cx: &StageCx) -> Fault {
    let name = cx.name();
    match cx.switch().reason() {
        Some(reason) => Fault::internal(format!("the service `{name}` has died: {reason}")).kind(FaultKind::Stopped),
        None => Fault::internal(format!("the service `{name}` has ended")).kind(FaultKind::Stopped),
    }
}

/// The life of a service in its shell.
pub(crate) async fn serve<S: Service>(
    make: impl FnOnce() -> S,
    cx: StageCx,
    mut inbox: Inbox<Ask<S::Call, S::Reply>>,
    error_context: Rc<ErrorContext>,
) -> Result<(), Fault> {
    let mut service = make();
    service.open(&cx).await?;
    cx.meter().describe(service.describe());
    error_context.set(Phase::Batch, None);
    while let Ask::Call { call, reply } = inbox.next().await {
        cx.meter().took(0, 0);
        // A panic is caught here and not in the shell only, so that the caller hears of it after it is known: were
        // `reply` dropped in the panic, the caller would find no reason yet.
        let answer = AssertUnwindSafe(async { service.call(call).await }).catch_unwind().await;
        let (answer, died) = match answer {
            Ok(answer) => (answer.map_err(|fault| fault.at(cx.name(), Phase::Batch, None)), false),
            Err(panic) => {
                let fault = Fault::internal(format!("panicked: {}", panic_message(&*panic))).kind(FaultKind::Panic);
                cx.switch().kill(fault.at(cx.name(), Phase::Batch, None));
                (Err(ended(&cx)), true)
            }
        };
        cx.meter().sent(0, 0);
        // Whoever asked may have given up.
        let _ = reply.send(answer);
        if died {
            return Ok(());
        }
    }
    cx.meter().describe(service.describe());
    Ok(())
}
