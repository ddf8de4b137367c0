//! Actors that answer calls: a [`Service`] takes one call at a time, and a [`Client`] waits for the reply.
//!
//! At most the capacity of calls wait in the mailbox. If a service dies, all calls return a fault that says why, including calls that wait.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use futures::FutureExt;
use tokio::sync::oneshot;

use crate::clock::now;
use crate::context::StageCx;
use crate::fault::{Fault, FaultKind, Phase};
use crate::link::Link;
use crate::shell::{ErrorContext, Inbox};

/// Answers calls, one at a time, in the order of arrival.
pub trait Service: 'static {
    /// A call.
    type Call: Send + 'static;
    /// The reply to a call.
    type Reply: Send + 'static;

    /// Its line in the report.
    fn describe(&self) -> String {
        crate::stage::type_name::<Self>()
    }

    /// The rows that the service holds, for the report. Called after each `call`.
    fn rows_held(&self) -> Option<u64> {
        None
    }

    /// Called once, before the first call. A fault here ends the service.
    fn open(&mut self, _cx: &StageCx) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }

    /// The name of a call and its number of items, for the timeline. Use few, constant names.
    fn name_of(_call: &Self::Call) -> (&'static str, usize) {
        ("call", 1)
    }

    /// Answers one call. A fault goes to the caller and does not end the service; a panic does.
    fn call(&mut self, call: Self::Call) -> impl Future<Output = Result<Self::Reply, Fault>>;
}

/// A message to a service.
pub(crate) enum Ask<C, R> {
    Call { call: C, reply: oneshot::Sender<Result<R, Fault>> },
    Stop,
}

/// Calls a service. Clones share its capacity.
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

    /// Waits for room in the mailbox, sends the call, and waits for the reply. Works on any executor.
    ///
    /// If the future is dropped before the call is sent, the call is not made. If it is dropped later, the reply is
    /// lost.
    ///
    /// # Errors
    /// The fault that the service returned, or an internal fault if it has ended.
    pub async fn call(&self, call: C) -> Result<R, Fault> {
        self.ask(call).await?.reply().await
    }

    /// The first half of a [`call`](Self::call): waits for room and sends the call. To have several calls under way in
    /// a fixed order, `ask` them one after the other and wait for the replies later.
    ///
    /// # Errors
    /// An internal fault if the service has ended.
    pub async fn ask(&self, call: C) -> Result<PendingReply<R>, Fault> {
        let permit = self.link.room.reserve(0).await.map_err(|_| self.ended())?;
        let (reply, answer) = oneshot::channel();
        self.link.send(permit, Ask::Call { call, reply }).map_err(|_| self.ended())?;
        self.link.room.meter.called();
        Ok(PendingReply { answer, cx: self.cx.clone() })
    }

    fn ended(&self) -> Fault {
        ended(&self.cx)
    }
}

/// A call that was sent and whose reply is not here yet.
pub struct PendingReply<R> {
    answer: oneshot::Receiver<Result<R, Fault>>,
    cx: StageCx,
}

impl<R> PendingReply<R> {
    /// The second half of a [`call`](Client::call): waits for the reply. If the future is dropped, the reply is lost.
    ///
    /// # Errors
    /// The fault that the service returned, or an internal fault if it has ended.
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

/// The future of a service, from `open` to its stop.
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
        let (began, (name, items)) = (now(), S::name_of(&call));
        // The shell would catch a panic too, but drop `reply` before the switch knows the reason. So it is caught here.
        let answer = AssertUnwindSafe(async { service.call(call).await }).catch_unwind().await;
        let (answer, died) = match answer {
            Ok(answer) => (answer.map_err(|fault| fault.at(cx.name(), Phase::Batch, None)), false),
            Err(panic) => {
                let fault = Fault::of_panic("panicked", &*panic);
                cx.switch().kill(fault.at(cx.name(), Phase::Batch, None));
                (Err(ended(&cx)), true)
            }
        };
        cx.meter().sent(0, 0);
        if let Some(began) = began {
            cx.meter().recorder().called(began, name, items);
        }
        service.rows_held().inspect(|&rows| cx.meter().holds(rows));
        // The caller may have dropped its future.
        let _ = reply.send(answer);
        if died {
            return Ok(());
        }
    }
    cx.meter().describe(service.describe());
    Ok(())
}
