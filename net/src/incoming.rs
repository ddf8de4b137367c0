//! The receiving end of a stream.
//!
//! The columns of a message stay in the memory they were received into. Receiving and decoding run where
//! [`Incoming::next`] is awaited.

use std::convert::Infallible;
use std::sync::Arc;

use forebay_actors::Fault;
use tokio::sync::oneshot;
use tonic::body::Body;

use crate::attempt::OpenedIn;
use crate::decode::Decoder;
use crate::frames::Frames;
use crate::limits::Limits;
use crate::message::Message;
use crate::status::Origin;
use crate::wire::Flight;

/// Receives messages of a peer. Dropping it ends the exchange at a client; at a server it lets the client's messages
/// pile up to the stream window.
pub struct Incoming {
    frames: Frames,
    decoder: Decoder,
    /// At a server: what the first message of the stream has besides its descriptor.
    ahead: Option<Message>,
    origin: Arc<Origin>,
    /// At a server: the attempt that the stream was opened in.
    opened_in: Option<OpenedIn>,
    /// Dropped with this: breaks off the request that this is the answer to.
    _listening: Option<oneshot::Sender<Infallible>>,
}

impl Incoming {
    pub(crate) fn new(body: Body, limits: &Limits, origin: Arc<Origin>) -> Self {
        let most = limits.most_message_bytes;
        let frames = Frames::new(body, most, origin.clone());
        let decoder = Decoder::new(limits.compression, most);
        Self { frames, decoder, ahead: None, origin, opened_in: None, _listening: None }
    }

    /// The answer to a request that is broken off when this is dropped.
    pub(crate) fn listening(self, listening: oneshot::Sender<Infallible>) -> Self {
        Self { _listening: Some(listening), ..self }
    }

    /// Its messages are refused once the server enters another attempt.
    pub(crate) fn bound_to(self, opened_in: Option<OpenedIn>) -> Self {
        Self { opened_in, ..self }
    }

    /// The next message; `None`: the peer has ended its direction of the stream in good order.
    ///
    /// # Errors
    /// The reason that the peer gave for ending the stream; external, retryable: the connection broke; user: the message is not Arrow, or
    /// larger than `Limits` allow. After an error there are only errors.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Message>, Fault> {
        let message = self.next_of_any_attempt().await?;
        // Checked here and not only by the task of the stream, so that messages that arrived before the attempt changed are refused, too.
        match self.opened_in.as_ref().map_or(Ok(()), OpenedIn::check) {
            Ok(()) => Ok(message),
            Err(fault) => Err(self.fail(fault)),
        }
    }

    async fn next_of_any_attempt(&mut self) -> Result<Option<Message>, Fault> {
        if let Some(message) = self.ahead.take() {
            return Ok(Some(message));
        }
        while let Some(flight) = self.next_flight().await? {
            if let Some(message) = self.decode(flight)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// The other end, for messages.
    pub fn peer(&self) -> &str {
        self.origin.who()
    }

    pub(crate) async fn next_flight(&mut self) -> Result<Option<Flight>, Fault> {
        let Some(message) = self.frames.next().await? else { return Ok(None) };
        Flight::decode(message).map(Some).map_err(|fault| self.fail(fault))
    }

    /// Takes the content of the first message beside its descriptor.
    pub(crate) fn begin(&mut self, first: Flight) -> Result<(), Fault> {
        self.ahead = self.decode(first)?;
        Ok(())
    }

    fn decode(&mut self, flight: Flight) -> Result<Option<Message>, Fault> {
        self.decoder.decode(flight).map_err(|fault| self.fail(fault))
    }

    fn fail(&mut self, fault: Fault) -> Fault {
        self.frames.give_up();
        self.origin.name(fault)
    }
}
