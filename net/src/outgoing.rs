//! The sending end of a stream.
//!
//! [`Outgoing::send`] queues messages in the body of an HTTP/2 request or response, which the connection reads. It waits
//! while `Limits::queued` messages are queued.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_flight::FlightDescriptor;
use bytes::Bytes;
use forebay_actors::{Fault, FaultKind};
use http::HeaderMap;
use http_body::Frame;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use crate::encode::Encoder;
use crate::limits::Limits;
use crate::message::Message;
use crate::status::Origin;

/// Sends messages to a peer. Dropping it ends this direction of the stream: the peer receives what was sent, then
/// `None`.
pub struct Outgoing {
    sender: mpsc::Sender<Vec<Bytes>>,
    encoder: Encoder,
    origin: Arc<Origin>,
}

impl Outgoing {
    pub(crate) fn new(limits: &Limits, origin: Arc<Origin>, end: End) -> (Self, SendBody) {
        let (sender, receiver) = mpsc::channel(limits.queued);
        let outgoing = Self { sender, encoder: Encoder::new(limits.compression, limits.most_message_bytes), origin };
        (outgoing, SendBody { receiver, pieces: VecDeque::new(), end })
    }

    /// Sends a client's descriptor, before anything else.
    pub(crate) fn open(&mut self, descriptor: &FlightDescriptor) -> Result<(), Fault> {
        let pieces = self.encoder.open(descriptor)?;
        self.sender.try_send(pieces).map_err(|_| Fault::internal("a new stream has no room for its first message"))
    }

    /// Sends one message; waits when the peer does not read. The columns are not copied: their buffers are held until
    /// the socket has taken them. The first columns send their schema first, and all later ones must have the same.
    ///
    /// # Errors
    /// External, retryable: the peer has ended the exchange or is gone; [`Incoming::next`](crate::Incoming::next) returns the reason. User:
    /// the message is larger than `Limits` allow. Internal: the columns differ from the columns of earlier messages.
    ///
    /// # Cancel safety
    /// A send that is cancelled has sent nothing.
    pub async fn send(&mut self, message: Message) -> Result<(), Fault> {
        let permit = self.sender.reserve().await;
        let permit = permit.map_err(|_| {
            self.origin.fault("the peer takes no more messages").kind(FaultKind::Unreachable).retryable()
        })?;
        let pieces = self.encoder.encode(&message).map_err(|fault| self.origin.name(fault))?;
        permit.send(pieces);
        Ok(())
    }

    /// Waits until the peer takes no more messages: it has ended the exchange, or is gone. Cancel safe.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// How a body ends.
pub(crate) enum End {
    /// Without trailers.
    Silent,
    /// A request ends without trailers, and is cancelled when the receiver of its answer is dropped.
    Request(oneshot::Receiver<Infallible>),
    /// A response ends with what the handler will return.
    Awaited(oneshot::Receiver<Result<(), Status>>),
    /// A response ends with this.
    Known(Result<(), Status>),
}

/// The body that the connection reads.
pub(crate) struct SendBody {
    receiver: mpsc::Receiver<Vec<Bytes>>,
    pieces: VecDeque<Bytes>,
    end: End,
}

impl SendBody {
    /// A body of one piece.
    pub(crate) fn once(piece: Bytes) -> Self {
        Self { receiver: mpsc::channel(1).1, pieces: VecDeque::from([piece]), end: End::Silent }
    }
}

fn trailers(result: Result<(), Status>) -> Frame<Bytes> {
    let status = result.err().unwrap_or_else(|| Status::ok(""));
    let mut headers = HeaderMap::new();
    if status.add_header(&mut headers).is_err() {
        // The message cannot be a header: only the code is sent.
        let _ = Status::new(status.code(), "").add_header(&mut headers);
    }
    Frame::trailers(headers)
}

impl http_body::Body for SendBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(piece) = this.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if let End::Awaited(result) = &mut this.end
                && let Poll::Ready(result) = Pin::new(result).poll(cx)
            {
                this.end =
                    End::Known(result.unwrap_or_else(|_| Err(Status::internal("the handler that answers panicked"))));
            }
            if let End::Request(listened) = &mut this.end
                && Pin::new(listened).poll(cx).is_ready()
            {
                this.end = End::Silent;
                return Poll::Ready(Some(Err(Status::cancelled("the receiver of the answer was dropped"))));
            }
            match this.receiver.poll_recv(cx) {
                Poll::Ready(Some(pieces)) => this.pieces.extend(pieces),
                // A handler that failed ends the stream even if its `Outgoing` was moved elsewhere and still exists.
                Poll::Pending if !matches!(this.end, End::Known(Err(_))) => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => match std::mem::replace(&mut this.end, End::Silent) {
                    End::Silent | End::Request(_) => return Poll::Ready(None),
                    End::Known(result) => return Poll::Ready(Some(Ok(trailers(result)))),
                    end @ End::Awaited(_) => {
                        this.end = end;
                        return Poll::Pending;
                    }
                },
            }
        }
    }
}
