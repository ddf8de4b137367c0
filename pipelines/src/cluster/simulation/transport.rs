//! How messages travel: requests that are sent again until they are answered, and streams that keep their order until they break.

use std::collections::BTreeMap;

use super::super::members::Role;
use super::super::messages::ProcessRequest;
use super::faults::FOR_EVER;
use super::network::{Answer, Message, OnStream, Pid, Place, Request};
use super::world::{Event, World};

/// A request is sent again after this long without an answer, up to twice as long.
const RETRY: u64 = 700;

/// What is under way between processes.
#[derive(Default)]
pub(super) struct Transport {
    /// Requests without an answer, by who asks and by number.
    calls: BTreeMap<(Pid, u64), Call>,
    numbers: u64,
    streams: BTreeMap<u64, Stream>,
    /// Places that are cut off, until when.
    cut_off: BTreeMap<Place, u64>,
    /// Readers that reach no trainer, but all others, until when.
    cut_from_trainers: BTreeMap<Place, u64>,
}

#[derive(Clone)]
struct Call {
    to: Receiver,
    body: Request,
}

/// Who gets a request.
#[derive(Clone, Copy)]
enum Receiver {
    /// The newest process of a place, at its known address.
    At(Place),
    /// The process at an address, or when it is dead, the newest process of its place, which may have taken over the address.
    Process(Pid),
}

struct Stream {
    client: Pid,
    server: Pid,
    /// When its last message arrives: to the server, to the client.
    last: [u64; 2],
}

impl Transport {
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// An answer came. Returns whether the call was still open.
    pub(super) fn ends_call(&mut self, from: Pid, call: u64) -> bool {
        self.calls.remove(&(from, call)).is_some()
    }

    pub(super) fn cut_off(&mut self, place: Place, until: u64) {
        self.cut_off.insert(place, until);
    }

    pub(super) fn cut_from_trainers(&mut self, reader: Place, until: u64) {
        self.cut_from_trainers.insert(reader, until);
    }
}

impl World {
    /// The newest process of a place.
    pub(super) fn newest(&self, place: Place) -> Option<Pid> {
        self.processes.iter().rposition(|process| process.place == place && process.alive)
    }

    pub(super) fn is_cut_off(&self, pid: Pid) -> bool {
        self.transport.cut_off.get(&self.processes[pid].place).is_some_and(|until| *until > self.now)
    }

    /// Whether nothing arrives from one process at the other.
    fn is_cut_between(&self, one: Pid, other: Pid) -> bool {
        let is_trainer = |pid: Pid| self.processes[pid].place.0 == Role::Trainer;
        let cut = |pid: Pid| self.transport.cut_from_trainers.get(&self.processes[pid].place);
        let between = |one, other| is_trainer(other) && cut(one).is_some_and(|until| *until > self.now);
        self.is_cut_off(one) || self.is_cut_off(other) || between(one, other) || between(other, one)
    }

    /// Whether a reader never reaches the trainers again.
    pub(super) fn is_cut_for_ever(&self, place: Place) -> bool {
        self.transport.cut_from_trainers.get(&place).is_some_and(|until| *until >= FOR_EVER)
    }

    fn delay(&mut self) -> u64 {
        let slow = match self.random.below(800) {
            0 => self.random.below(8000),
            1..10 => self.random.below(2500),
            _ => 0,
        };
        1 + self.random.below(15) + slow
    }

    /// Sends a message, which may be lost, come late or twice.
    fn send(&mut self, from: Pid, to: Pid, message: Message) {
        if self.is_cut_between(from, to) {
            return;
        }
        if self.random.below(30) == 0 {
            let time = self.now + self.delay();
            self.at(time, Event::Deliver { to, from, message: message.clone() });
        }
        if self.random.below(40) > 0 {
            let time = self.now + self.delay();
            self.at(time, Event::Deliver { to, from, message });
        }
    }

    /// Asks the process at a place, again and again until an answer comes. Returns the number of the call.
    pub(super) fn call(&mut self, from: Pid, to: Place, body: Request) -> u64 {
        self.begin_call(from, Receiver::At(to), body)
    }

    /// Asks the process at an address.
    pub(super) fn call_process(&mut self, from: Pid, to: Pid, body: Request) -> u64 {
        self.begin_call(from, Receiver::Process(to), body)
    }

    fn begin_call(&mut self, from: Pid, to: Receiver, body: Request) -> u64 {
        let call = self.transport.number();
        self.transport.calls.insert((from, call), Call { to, body });
        self.try_call(from, call);
        call
    }

    pub(super) fn try_call(&mut self, from: Pid, call: u64) {
        let Some(Call { to, body }) = self.transport.calls.get(&(from, call)).cloned() else { return };
        let to = match to {
            Receiver::At(place) => self.newest(place),
            Receiver::Process(pid) if self.processes[pid].alive => Some(pid),
            Receiver::Process(pid) => self.newest(self.processes[pid].place),
        };
        if let Some(to) = to {
            self.send(from, to, Message::Request { call, body });
        }
        let again = self.now + RETRY + self.random.below(RETRY);
        self.at(again, Event::Retry { from, call });
    }

    /// Tells the coordinator once that a process runs. The message has no reply.
    pub(super) fn say_alive(&mut self, from: Pid, process: ProcessRequest) {
        let Some(to) = self.newest((Role::Ps, 0)) else { return };
        if !self.is_cut_off(from) && !self.is_cut_off(to) {
            let message = Message::Request { call: 0, body: Request::Alive(process) };
            self.at(self.now + 5, Event::Deliver { to, from, message });
        }
    }

    pub(super) fn answer(&mut self, from: Pid, (to, call): (Pid, u64), body: Answer) {
        self.send(from, to, Message::Answer { call, body });
    }

    /// Ends the connections of a process: it is dead or has begun a new attempt. What it has sent may still arrive.
    pub(super) fn end_connections(&mut self, pid: Pid) {
        self.transport.calls.retain(|(from, _), _| *from != pid);
        self.break_streams(pid);
    }

    /// Breaks all streams of a process.
    pub(super) fn break_streams(&mut self, pid: Pid) {
        let streams = self.transport.streams.iter();
        let ended: Vec<u64> =
            streams.filter(|(_, s)| s.client == pid || s.server == pid).map(|(number, _)| *number).collect();
        ended.into_iter().for_each(|stream| self.break_stream(stream));
    }

    /// Opens a stream from a reader to a trainer.
    pub(super) fn open_stream(&mut self, reader: Pid, trainer: Pid, attempt: u64) -> u64 {
        let number = self.new_stream(reader, trainer);
        let name = format!("reader {}", self.processes[reader].place.1);
        self.on_stream(reader, number, OnStream::Open { attempt, reader: name });
        number
    }

    /// A stream on which nothing was sent.
    pub(super) fn new_stream(&mut self, client: Pid, server: Pid) -> u64 {
        let number = self.transport.number();
        self.transport.streams.insert(number, Stream { client, server, last: [self.now; 2] });
        number
    }

    /// Sends on a stream: in order, or the stream breaks.
    pub(super) fn on_stream(&mut self, from: Pid, stream: u64, body: OnStream) {
        let Some(&Stream { client, server, last }) = self.transport.streams.get(&stream) else { return };
        let (to, direction) = if from == client { (server, 0) } else { (client, 1) };
        if !self.processes[to].alive || self.is_cut_between(from, to) || self.random.below(800) == 0 {
            return self.break_stream(stream);
        }
        let time = (self.now + self.delay()).max(last[direction] + 1);
        if let Some(stream) = self.transport.streams.get_mut(&stream) {
            stream.last[direction] = time;
        }
        self.at(time, Event::Deliver { to, from, message: Message::Stream { stream, body } });
    }

    /// Each end learns it, sooner or later, after all that was sent.
    pub(super) fn break_stream(&mut self, stream: u64) {
        let Some(Stream { client, server, last }) = self.transport.streams.remove(&stream) else { return };
        for (to, last) in [(server, last[0]), (client, last[1])] {
            let late = self.now + self.random.below(1500);
            self.at(late.max(last + 1), Event::Deliver { to, from: to, message: Message::Broke { stream } });
        }
    }
}
