//! Bounds of a connection: bytes, streams, messages and times.

use std::time::Duration;

use forebay_actors::{Fault, FaultKind};

use crate::compression::Compression;

const MIB: u32 = 1 << 20;

/// The bounds of a connection. Both ends have their own; the bounds of the receiver hold for messages that arrive.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of one stream that may be sent and not read. A stalled stream holds at most this much. The receiver grants read bytes again in
    /// halves, so a stream fills a network that holds half of this in flight: 8 MiB are 1 Gbit/s at a round trip of 67 ms.
    pub stream_window: u32,
    /// Bytes of one connection that may be sent and not read: more than all stream windows together, so that stalled
    /// streams do not hold up the others.
    pub connection_window: u32,
    /// Bytes of the largest HTTP/2 frame that is accepted, 16 KiB to 16 MiB less one.
    pub frame: u32,
    /// Streams of one connection at a time.
    pub streams: u32,
    /// Bytes of the largest message that is sent or accepted.
    pub most_message_bytes: usize,
    /// The compression of columns that are sent, and the only one that is accepted. `None`: no compression.
    pub compression: Option<Compression>,
    /// Messages that wait in an `Outgoing` while its peer does not read, beyond the window.
    pub queued: usize,
    /// A connection is pinged after this long without bytes.
    pub keepalive_every: Duration,
    /// A connection is closed if no answer to a ping comes within this time.
    pub keepalive_timeout: Duration,
    /// How long connecting may take, how long a client may take to send the first message of a new stream, and how long it
    /// may hold a connection before a call of it is accepted.
    pub opening: Duration,
    /// Connections that a server has at a time; beyond them it closes the oldest one without an accepted call, or the new one.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stream_window: 16 * MIB,
            connection_window: i32::MAX as u32,
            frame: MIB,
            streams: 127,
            most_message_bytes: 256 * MIB as usize,
            compression: None,
            queued: 2,
            keepalive_every: Duration::from_secs(5),
            keepalive_timeout: Duration::from_secs(5),
            opening: Duration::from_secs(10),
            connections: 4096,
        }
    }
}

impl Limits {
    /// Refuses limits that HTTP/2 cannot keep, or with which one stream could hold up another.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let sum = u64::from(self.stream_window) * u64::from(self.streams);
        if u64::from(self.connection_window) <= sum || self.connection_window > i32::MAX as u32 {
            return Err(Fault::user(format!(
                "a connection window of {} bytes: it must be more than {} streams times {} bytes, and at most {}",
                self.connection_window,
                self.streams,
                self.stream_window,
                i32::MAX
            ))
            .kind(FaultKind::InvalidJob));
        }
        if !(16 << 10..1 << 24).contains(&self.frame) {
            return Err(Fault::user(format!("frames of {} bytes: from 16 KiB to 16 MiB less one can be", self.frame))
                .kind(FaultKind::InvalidJob));
        }
        if self.queued == 0 || self.streams == 0 || self.stream_window == 0 || self.connections == 0 {
            return Err(Fault::user(
                "limits of no message, no stream, no window or no connection let nothing through".to_owned(),
            )
            .kind(FaultKind::InvalidJob));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_and_impossible_ones_are_refused() {
        Limits::default().check().unwrap();
        for (limits, word) in [
            (Limits { streams: 128, ..Limits::default() }, "more than 128 streams times 16777216"),
            (Limits { frame: 1 << 24, ..Limits::default() }, "frames of 16777216 bytes"),
            (Limits { queued: 0, ..Limits::default() }, "no message"),
            (Limits { connection_window: u32::MAX, ..Limits::default() }, "at most 2147483647"),
        ] {
            let said = limits.check().unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
