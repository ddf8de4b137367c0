//! The trainer's request handler for batches: it puts what readers send into the [`ReceiveQueue`] and sends back replies.
//!
//! The exchange `["batches"]` is the first stream of a channel; `["batches", CHANNEL]` adds a stream to it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_batches::wire::columns;
use forebay_batches::wire::metadata::{Header, Reply};
use forebay_net::{Caller, Handler, Incoming, Message, Outgoing};
use tokio::sync::mpsc::unbounded_channel;

use super::receive_queue::ReceiveQueue;

/// The handler's name in paths and actions.
pub(crate) const NAME: &str = "batches";

/// An action that is answered at once, for measuring the round trip.
pub(crate) const PING: &str = "ping";

/// Puts received batches into the receive queue.
pub(crate) struct BatchHandler {
    receive_queue: Arc<ReceiveQueue>,
}

impl BatchHandler {
    pub(crate) fn new(receive_queue: Arc<ReceiveQueue>) -> Self {
        Self { receive_queue }
    }

    /// Receives all batches of one stream of a channel.
    async fn receive(&self, channel: u64, incoming: &mut Incoming) -> Result<(), Fault> {
        while let Some(message) = incoming.next().await? {
            let Some(batch) = message.batch else {
                return Err(Fault::user("a message has no columns, expected those of a batch"));
            };
            let bytes = columns::bytes(&batch);
            self.receive_queue.put(channel, Header::read(&message.metadata)?, batch, bytes)?;
        }
        Ok(())
    }
}

/// Closes the channel in the receive queue when dropped.
struct OpenChannel<'a>(&'a ReceiveQueue, u64);

impl Drop for OpenChannel<'_> {
    fn drop(&mut self) {
        self.0.close(self.1);
    }
}

#[async_trait]
impl Handler for BatchHandler {
    fn name(&self) -> &'static str {
        NAME
    }

    fn actions(&self) -> Vec<(String, String)> {
        vec![(PING.to_owned(), "answers at once, with an empty body".to_owned())]
    }

    async fn action(&self, _: &Caller, kind: &str, _: Bytes) -> Result<Bytes, Fault> {
        match kind {
            PING => Ok(Bytes::new()),
            _ => Err(Fault::user(format!("there is no action `{NAME}.{kind}`: there is `{NAME}.{PING}`"))),
        }
    }

    async fn exchange(
        &self,
        caller: Caller,
        path: Vec<String>,
        mut incoming: Incoming,
        mut outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let Some(identity) = &caller.identity else {
            return Err(Fault::user(
                "only readers of the run may send batches: name the run in the header forebay-run",
            ));
        };
        if let Some(channel) = path.get(1) {
            let open = channel.parse().ok().filter(|channel| self.receive_queue.has_channel(*channel, &identity.role));
            let gone =
                || Fault::external(format!("{} has no channel `{}` here", identity.role, channel.escape_debug()));
            return self.receive(open.ok_or_else(|| gone().retryable())?, &mut incoming).await;
        }
        // Replies are small, and each credit has at most two, so the credits bound their queue.
        let (replies, mut to_send) = unbounded_channel();
        let channel = OpenChannel(&self.receive_queue, self.receive_queue.open(&identity.role, replies)?);
        let replying = async {
            outgoing.send(Message::metadata(Reply::Channel(channel.1).write())).await?;
            while let Some(reply) = to_send.recv().await {
                outgoing.send(Message::metadata(reply.write())).await?;
            }
            Ok(())
        };
        tokio::select! {
            ended = self.receive(channel.1, &mut incoming) => ended,
            ended = replying => ended,
        }
    }
}
