//! The trainer's end of the streams: a part of its server that puts what comes into the inbox.
//!
//! Comes in: exchanges `["batches"]` of readers. Goes out: batches to the [`Inbox`], credits and word of done batches to the
//! readers. A stream waits for its peer; nothing else waits for it.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_actors::Fault;
use forebay_net::{Caller, Incoming, Message, Outgoing, Part};
use tokio::sync::mpsc::unbounded_channel;

use super::inbox::Inbox;
use super::{columns, note};

/// Takes batches.
pub(crate) struct Batches {
    inbox: Arc<Inbox>,
}

impl Batches {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Self {
        Self { inbox }
    }
}

/// Has the inbox forget a stream, however it ends.
struct Open<'a>(&'a Inbox, u64);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.close(self.1);
    }
}

#[async_trait]
impl Part for Batches {
    fn name(&self) -> &'static str {
        "batches"
    }

    async fn exchange(
        &self,
        caller: Caller,
        _path: Vec<String>,
        mut incoming: Incoming,
        mut outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let Some(identity) = &caller.identity else {
            return Err(Fault::user(
                "batches come from the readers of the run: name the run in the header forebay-run",
            ));
        };
        // Replies are a few bytes each and at most two for each credit, so their queue needs no bound of its own.
        let (replies, mut to_send) = unbounded_channel();
        let stream = Open(&self.inbox, self.inbox.open(&identity.role, replies));
        let taking = async {
            while let Some(message) = incoming.next().await? {
                let Some(batch) = message.batch else {
                    return Err(Fault::user("a batch came without columns"));
                };
                let bytes = columns::bytes(&batch);
                self.inbox.put(stream.1, note::read(&message.note)?, batch, bytes)?;
            }
            Ok(())
        };
        let telling = async {
            while let Some(reply) = to_send.recv().await {
                outgoing.send(Message::note(note::write(&reply)?)).await?;
            }
            Ok(())
        };
        tokio::select! {
            ended = taking => ended,
            ended = telling => ended,
        }
    }
}
