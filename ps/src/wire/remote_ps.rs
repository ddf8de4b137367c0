//! A ps process as its clients call it: retried actions, request streams, and messages that name the process.

use std::time::Duration;

use forebay_actors::Fault;
use forebay_net::{Message, Peer, RequestStream, Resend, Retry};
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::messages::{Shape, Wire, push_request};
use super::metadata::{Answer, Header};
use crate::push::PushOutcome;

/// How long the answer to one try of an action may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// One process that holds a part of a table or of the dense parameters.
#[derive(Clone)]
pub(crate) struct RemotePs {
    pub(crate) peer: Peer,
    retry: Retry,
    /// What the process is asked for: "table `ads`".
    what: String,
    /// Its number among the ps processes.
    pub(crate) rank: usize,
    /// The process: "ps 0 at HOST:PORT".
    pub(crate) name: String,
}

impl RemotePs {
    pub(crate) fn new(rank: usize, peer: &Peer, what: impl Into<String>, retry: &Retry) -> Self {
        let name = format!("ps {rank} at {}", peer.address());
        Self { peer: peer.clone(), retry: retry.clone(), what: what.into(), rank, name }
    }

    /// A stream of requests to this path.
    pub(crate) fn stream(&self, path: &[&[&str]]) -> RequestStream {
        RequestStream::new(self.peer.clone(), &self.name, &path.concat(), self.retry.clone())
    }

    /// Asks until there is an answer or the retry's time is up. `kind` is for the log.
    ///
    /// The future waits on the runtime of the connection: a caller may have no runtime, such as the thread that saves a model.
    ///
    /// # Cancel safety
    /// As safe as `ask`: dropping the future drops the one of `ask`.
    pub(crate) async fn retried<T: Send + 'static, F>(
        &self,
        kind: &str,
        ask: impl FnMut() -> F + Send + 'static,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let (retry, what) = (self.retry.clone(), self.describe(kind));
        let asked = self.peer.io().run(async move { retry.run(&what, ask).await }).await;
        asked.map_err(|e| Fault::of_task("a request to a ps panicked", e))?
    }

    /// Calls an action that has the same effect if it is called twice, until it is answered or the retry's time is up.
    ///
    /// The future is boxed and owns its data: one that retries a closure with borrows cannot be sent to another thread.
    pub(crate) fn act<R: DeserializeOwned>(
        &self,
        kind: &str,
        body: &impl Serialize,
    ) -> BoxFuture<'static, Result<R, Fault>> {
        let body = serde_json::to_vec(body)
            .map_err(|e| Fault::internal("cannot encode the body of a request as JSON").because(e));
        let (this, kind) = (self.clone(), kind.to_owned());
        Box::pin(async move {
            let (body, peer, asked) = (body?, this.peer.clone(), kind.clone());
            let ask = move || {
                let (peer, kind, body) = (peer.clone(), asked.clone(), body.clone());
                async move { peer.raw_action(&kind, body, DEADLINE).await }
            };
            let answer = this.retried(&kind, ask).await?;
            serde_json::from_slice(&answer)
                .map_err(|e| Fault::external(format!("{}: a wrong answer", this.describe(&kind))).because(e))
        })
    }

    /// Pushes gradients: of rows if there are `keys`, else of a dense block. Waits until the request has its place in the stream. The
    /// returned future gives the request, for its buffers, and the outcome of the push.
    pub(crate) async fn begin_push(
        &self,
        stream: &RequestStream,
        wire: Wire,
        header: Header,
        keys: Option<Vec<u64>>,
        grads: &mut Vec<f32>,
        shape: Shape<'_>,
    ) -> Result<impl Future<Output = Result<(Message, PushOutcome), Fault>> + Send + 'static + use<>, Fault> {
        let resend = if header.stamp.is_some() { Resend::Yes } else { Resend::No };
        let answered = stream.begin(push_request(wire, header, keys, grads, shape)?, resend).await?;
        let this = self.clone();
        Ok(async move {
            let (request, answer) = answered.await?;
            let (answer, _) = Answer::read(&answer.metadata).map_err(|fault| this.wrong_answer(fault))?;
            Ok((request, answer.pushed))
        })
    }

    /// What the caller waits for, for the log.
    pub(crate) fn describe(&self, kind: &str) -> String {
        format!("{} on {} ({kind})", self.what, self.name)
    }

    /// The fault of an answer that does not fit its request.
    pub(crate) fn wrong_answer(&self, fault: Fault) -> Fault {
        Fault::external(format!("{} on {} gave a wrong answer", self.what, self.name)).because(fault)
    }
}
