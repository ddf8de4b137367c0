//! The receiving end of a gRPC stream: from a body of HTTP/2 to messages, each bounded before it is collected.
//!
//! At the end of a response, its trailers say how the stream ended. The peer gets the window back as bytes are read, so a slow reader slows
//! its peer.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use forebay_actors::{Fault, FaultKind};
use http_body::Body as _;
use tonic::body::Body;

use crate::rope::Rope;
use crate::status::{self, Origin};
use crate::wire::{PREFIX, claimed_len};

#[derive(Clone, Copy, PartialEq)]
enum State {
    Open,
    Ended,
    Failed,
}

pub(crate) struct Frames {
    body: Body,
    received: Rope,
    most: usize,
    state: State,
    origin: Arc<Origin>,
}

impl Frames {
    /// Messages of at most `most` bytes. `origin`: who sends them.
    pub(crate) fn new(body: Body, most: usize, origin: Arc<Origin>) -> Self {
        Self { body, received: Rope::default(), most, state: State::Open, origin }
    }

    /// The next message; `None`: the peer has ended the stream. Cancel safe: bytes that have arrived are kept.
    pub(crate) async fn next(&mut self) -> Result<Option<Rope>, Fault> {
        let next = self.try_next().await;
        if next.is_err() {
            self.state = State::Failed;
        }
        next
    }

    /// Reads nothing more, because the received bytes are not valid.
    pub(crate) fn give_up(&mut self) {
        self.state = State::Failed;
    }

    fn broke(&self, what: &str) -> Fault {
        self.origin.fault(what).kind(FaultKind::Unreachable).retryable()
    }

    async fn try_next(&mut self) -> Result<Option<Rope>, Fault> {
        loop {
            if self.state == State::Failed {
                return Err(self.origin.fault("this stream has failed before"));
            }
            if let Some(prefix) = self.received.peek::<PREFIX>() {
                let len = claimed_len(prefix, self.most).map_err(|fault| self.origin.name(fault))?;
                if bytes::Buf::remaining(&self.received) >= PREFIX + len {
                    self.received.split_to(PREFIX);
                    return Ok(Some(self.received.split_to(len)));
                }
            }
            if self.state == State::Ended {
                if bytes::Buf::has_remaining(&self.received) {
                    return Err(self.broke("the stream ended within a message"));
                }
                return Ok(None);
            }
            match poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.received.push(data),
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            self.origin.check_trailers(trailers)?;
                            self.state = State::Ended;
                        }
                    }
                },
                Some(Err(e)) => return Err(status::broken(&self.origin, &e)),
                // A server that ends well says so in trailers. A client just ends; a connection that was given up looks
                // the same to the body, but not to its state.
                None if self.origin.answers() || !self.body.is_end_stream() => {
                    return Err(self.broke("the connection ended before the stream did"));
                }
                None => self.state = State::Ended,
            }
        }
    }
}
