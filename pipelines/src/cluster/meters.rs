//! The meters of all processes of a run: each process sends its own to the coordinator, and the first trainer gets all of them.
//!
//! The coordinator keeps the last report of each member, and passes them on without looking into them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_actors::{Adjustment, Fault, IoRuntime, Report, StageReport, Track};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::clock_offset::ClockOffset;
use super::member::Member;
use super::members::Role;
use super::messages::{MemberId, RunPhase};
use super::timelines::{SentTimeline, TimelineRequest};
use crate::metrics::process_report::ProcessReport;
use crate::metrics::slots_seen::SentSlots;

/// The time between two reports of a process.
const INTERVAL: Duration = Duration::from_millis(500);

/// The time between two tries to send the last report.
const RETRY: Duration = Duration::from_millis(50);

/// The last report of a process is given up after this time: the run does not wait for it.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The reports of the others are given up after this time if the run has ended early.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The largest report, as JSON.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Most members whose reports are kept.
const MAX_MEMBERS: usize = 4096;

/// The longest time that a meter may show. No run takes longer, and the sum of longer times could overflow.
const MAX_TIME: Duration = Duration::from_secs(1 << 36);

/// `meters`: a member sends its meters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetersRequest {
    pub(super) member: MemberId,
    pub(super) report: Report,
    /// Whether the reply has the reports of all other members.
    pub(super) others: bool,
    /// Whether the member has ended its part of the run, so that its meters are final.
    pub(super) last: bool,
    /// With the last meters of each trainer except the first: the counts of its slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) slots: Option<SentSlots>,
}

/// The reply to a [`MetersRequest`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetersReply {
    /// The reports of the other members, if they were asked for.
    pub(super) others: Vec<ProcessReport>,
    /// Whether the last meters of some member that takes part have not come. A ps serves until the run is over: its last meters are
    /// the ones when every row is trained on.
    pub(super) more_to_come: bool,
    /// Whether the last meters of all other trainers have come.
    pub(super) has_trainers: bool,
    /// If so, the sums of the counts of their slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) slots: Option<SentSlots>,
    /// The coordinator's clock, in nanoseconds since 1970.
    pub(super) now: u64,
}

/// What a member sent last.
struct Sent {
    member: MemberId,
    report: Report,
    last: bool,
    slots: Option<SentSlots>,
}

/// The newest report of each member, in the coordinator.
#[derive(Default)]
pub(super) struct MeterBook {
    newest: BTreeMap<(Role, u32), Sent>,
    /// The last reports of members whose part had ended before another process of their rank sent its first report: their work counts.
    ended: Vec<Sent>,
}

impl MeterBook {
    /// Keeps the report of a member of the current attempt. Returns the reports of the other members, if the member asks for them.
    /// `present`: the members that take part.
    ///
    /// # Errors
    /// A user fault if the report has times or counts that no run has.
    pub(super) fn record(&mut self, request: MetersRequest, present: &[(Role, u32)]) -> Result<MetersReply, Fault> {
        let MetersRequest { member, report, others, last, slots } = request;
        if !plausible(&report) || !slots.as_ref().is_none_or(SentSlots::is_plausible) {
            return Err(Fault::user(format!("the meters of {member} show times or counts that no run has")));
        }
        let place = (member.role, member.rank);
        if self.newest.len() >= MAX_MEMBERS && !self.newest.contains_key(&place) {
            return Err(Fault::user(format!("the meters of {MAX_MEMBERS} members are kept, {member} is one more")));
        }
        // A report that arrives late is out of date.
        let newer = |known: &Sent| {
            (known.member.attempt, known.member.incarnation) != (member.attempt, member.incarnation)
                || known.report.wall <= report.wall
        };
        if self.newest.get(&place).is_none_or(newer) {
            let before = self.newest.insert(place, Sent { member, report, last, slots });
            self.ended.retain(|sent| sent.member.attempt == member.attempt);
            let has_ended = |sent: &Sent| {
                sent.last && sent.member.attempt == member.attempt && sent.member.incarnation != member.incarnation
            };
            self.ended.extend(before.filter(has_ended).filter(|_| self.ended.len() < MAX_MEMBERS));
        }
        if !others {
            return Ok(MetersReply::default());
        }
        let current = |place: &(Role, u32)| self.newest.get(place).filter(|sent| sent.member.attempt == member.attempt);
        let complete = |place: &(Role, u32)| current(place).is_some_and(|sent| sent.last);
        let mut missing = present.iter().filter(|other| **other != place && !complete(other)).peekable();
        let more_to_come = missing.peek().is_some();
        let has_trainers = missing.all(|(role, _)| *role != Role::Trainer);
        let reports = || {
            let newest = self.newest.keys().filter(|at| **at != place).filter_map(current);
            newest.chain(self.ended.iter().filter(|sent| sent.member.attempt == member.attempt))
        };
        // The counts are large, and meters are requested repeatedly until the run has ended.
        let wanted = last && has_trainers;
        let slots = wanted.then(|| SentSlots::together(reports().filter_map(|sent| sent.slots.as_ref()))).flatten();
        let others = reports()
            .map(|sent| ProcessReport { process: sent.member.to_string(), report: sent.report.clone() })
            .collect();
        Ok(MetersReply { others, more_to_come, has_trainers, slots, now: 0 })
    }
}

/// Whether times and counts can be added up.
fn plausible(report: &Report) -> bool {
    let stages = || report.stages.iter().chain(&report.services);
    let stage = |stage: &StageReport| {
        let times = [stage.busy, stage.starved, stage.blocked, stage.waiting, stage.idle, stage.wall];
        let (fetched, held) = (stage.bytes_fetched, stage.rows_held.unwrap_or(0));
        let counts = [stage.items_in, stage.rows_in, stage.bytes_in, stage.items_out, stage.rows_out, stage.bytes_out];
        times.into_iter().chain(stage.waits.values().map(|wait| wait.total)).all(|time| time <= MAX_TIME)
            && counts.into_iter().chain([fetched, held]).chain(stage.waits.values().map(|wait| wait.count)).all(small)
            && stage.by_process.values().all(|wait| wait.total.max(wait.round_trip) <= MAX_TIME && small(wait.count))
            && stage.replicas.max(stage.threads) <= 1 << 20
    };
    let link = |link: &forebay_actors::LinkReport| {
        [link.items, link.rows, link.bytes, link.depth, link.blocked_sends].into_iter().all(small)
            && link.blocked <= MAX_TIME
    };
    report.wall <= MAX_TIME
        && report.adjustments.len() <= Adjustment::MOST_KEPT
        && report.machine.cpu <= MAX_TIME
        && [report.machine.resident_bytes, report.machine.peak_bytes].into_iter().all(small)
        && report.machine.threads.values().all(|cpu| *cpu >= 0.0 && *cpu <= MAX_TIME.as_secs_f64())
        && stages().all(stage)
        && report.links.iter().all(link)
        && small(report.ledger.delivered)
        && small(report.ledger.unwritten)
        && report.ledger.rejected.values().copied().all(small)
}

/// Whether thousands of such counts can be added up.
fn small(count: u64) -> bool {
    count <= 1 << 50
}

/// Sends the meters of this process while the run goes on.
pub(crate) struct MeterSender {
    member: Member,
    io: IoRuntime,
    others: watch::Receiver<Vec<ProcessReport>>,
    offset: Arc<Mutex<ClockOffset>>,
    task: AbortOnDropHandle<()>,
}

/// What is known of the other processes at the end of a run.
#[derive(Default)]
pub(crate) struct LastMeters {
    /// Their reports.
    pub(crate) others: Vec<ProcessReport>,
    /// How far the clock of this process is from the coordinator's.
    pub(crate) offset: ClockOffset,
    /// The counts of the slots of the other trainers together, if there are others; `None` if not all counts have come.
    pub(crate) slots: Option<Option<SentSlots>>,
}

impl MeterSender {
    /// Starts to send the result of `meters` twice a second. The first trainer receives the meters of the others.
    pub(crate) fn start(member: &Member, meters: impl Fn() -> Report + Send + Sync + 'static) -> Self {
        let (sender, others) = watch::channel(Vec::new());
        let (io, meters, to) = (member.io().clone(), Arc::new(meters), member.clone());
        let offset = Arc::new(Mutex::new(ClockOffset::default()));
        let measured = Arc::clone(&offset);
        let task = io.spawn(async move {
            loop {
                if matches!(to.status().phase, RunPhase::Failed(_) | RunPhase::Over) {
                    return;
                }
                if let Some(reply) = send(&to, Sending { report: meters(), last: false, slots: None }, &measured).await
                {
                    sender.send_replace(reply.others);
                }
                tokio::time::sleep(INTERVAL).await;
            }
        });
        Self { member: member.clone(), io, others, offset, task: AbortOnDropHandle::new(task) }
    }

    /// The meters of the other processes, as far as they are known.
    pub(crate) fn others(&self) -> Vec<ProcessReport> {
        self.others.borrow().clone()
    }

    /// Sends the last report of this process when the run ends before the others have sent theirs. Returns what the coordinator knows of
    /// them. Blocks for at most [`KNOWN_TIMEOUT`].
    pub(crate) fn known(self, report: Report) -> LastMeters {
        let Self { member, io, others, offset, task } = self;
        drop(task);
        let sending = send(&member, Sending { report, last: true, slots: None }, &offset);
        let reply = io.block_on(async { tokio::time::timeout(KNOWN_TIMEOUT, sending).await });
        let others = reply.ok().flatten().map_or_else(|| others.borrow().clone(), |reply| reply.others);
        LastMeters { others, offset: current(&offset), slots: None }
    }

    /// As [`finish_async`](Self::finish_async). Blocks.
    pub(crate) fn finish(self, report: Report, tracks: &[Track], slots: Option<SentSlots>) -> LastMeters {
        let io = self.io.clone();
        io.block_on(self.finish_async(report, tracks, slots))
    }

    /// Sends the timelines of this process, then its last report, in a trainer with the counts of its `slots`. Returns the reports of the
    /// others. The first trainer waits until every member that takes part has sent its last one, or returns what is known by then. Takes at
    /// most [`LAST_REPORT_TIMEOUT`]. Cancel safe: the coordinator takes each message whole.
    pub(crate) async fn finish_async(self, report: Report, tracks: &[Track], slots: Option<SentSlots>) -> LastMeters {
        let Self { member, others, offset, task, .. } = self;
        drop(task);
        let slots = slots.filter(|_| !is_first(member.id()));
        let (mut newest, mut of_trainers) = (others.borrow().clone(), None);
        let last = async {
            // The first trainer writes the trace, and has its own slices.
            if !is_first(member.id()) {
                send_timeline(&member, SentTimeline::of(tracks, current(&offset))).await;
            }
            loop {
                let meters = Sending { report: report.clone(), last: true, slots: slots.clone() };
                if let Some(reply) = send(&member, meters, &offset).await {
                    newest = reply.others;
                    of_trainers = reply.has_trainers.then_some(reply.slots);
                    if !reply.more_to_come {
                        return;
                    }
                } else if matches!(member.status().phase, RunPhase::Failed(_) | RunPhase::Over) {
                    // The coordinator has ended.
                    return;
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        let complete = tokio::time::timeout(LAST_REPORT_TIMEOUT, last).await;
        if complete.is_err() && is_first(member.id()) {
            tracing::warn!("the report lacks the last meters of some processes: they were not sent in time");
        }
        LastMeters { others: newest, offset: current(&offset), slots: of_trainers }
    }
}

fn current(offset: &Mutex<ClockOffset>) -> ClockOffset {
    *offset.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this member gets the meters of all others.
fn is_first(id: MemberId) -> bool {
    (id.role, id.rank) == (Role::Trainer, 0)
}

/// A report to send, and what goes with the last one.
struct Sending {
    report: Report,
    last: bool,
    slots: Option<SentSlots>,
}

/// Sends a report. `None` if the coordinator did not take it: the next one will do.
async fn send(member: &Member, meters: Sending, offset: &Mutex<ClockOffset>) -> Option<MetersReply> {
    let (id, Sending { report, last, slots }) = (member.id(), meters);
    let request = MetersRequest { member: id, report, others: is_first(id), last, slots };
    let (began, sent) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    match member.request_once::<_, MetersReply>("meters", &request).await {
        Ok(reply) => {
            let theirs = Duration::from_nanos(reply.now);
            offset.lock().unwrap_or_else(PoisonError::into_inner).observe(sent, began.elapsed(), theirs);
            Some(reply)
        }
        Err(fault) => {
            tracing::debug!(%fault, "the coordinator did not take the meters");
            None
        }
    }
}

/// Sends slices. The trace is without them if the coordinator does not take them.
async fn send_timeline(member: &Member, timeline: SentTimeline) {
    let request = TimelineRequest { member: member.id(), timeline };
    if let Err(fault) = member.request_once::<_, ()>("timeline", &request).await {
        tracing::debug!(%fault, "the coordinator did not take the slices");
    }
}

#[cfg(test)]
mod tests {
    use forebay_actors::Host;

    use super::*;

    const PLACES: [(Role, u32); 3] = [(Role::Ps, 0), (Role::Reader, 1), (Role::Trainer, 0)];

    fn request(role: Role, rank: u32, seconds: u64) -> MetersRequest {
        let host = Host::start("t").unwrap();
        let wall = Duration::from_secs(seconds);
        let report = Report { wall, ..host.meters().report() };
        let member = MemberId { role, rank, incarnation: 1, attempt: 7 };
        MetersRequest { member, report, others: role == Role::Trainer, last: false, slots: None }
    }

    fn names(reply: &MetersReply) -> Vec<(&str, u64)> {
        reply.others.iter().map(|sent| (sent.process.as_str(), sent.report.wall.as_secs())).collect()
    }

    #[test]
    fn the_first_trainer_gets_the_newest_meters_of_all_others() {
        let mut book = MeterBook::default();
        assert!(book.record(request(Role::Reader, 1, 5), &PLACES).unwrap().others.is_empty());
        book.record(request(Role::Ps, 0, 4), &PLACES).unwrap();
        book.record(request(Role::Reader, 1, 3), &PLACES).unwrap();
        let all = book.record(request(Role::Trainer, 0, 6), &PLACES).unwrap();
        assert_eq!(names(&all), [("ps 0", 4), ("reader 1", 5)], "a late report does not replace a newer one");
        // The reader was started again.
        let mut again = request(Role::Reader, 1, 1);
        again.member.incarnation = 2;
        book.record(again, &PLACES).unwrap();
        let all = book.record(request(Role::Trainer, 0, 6), &PLACES).unwrap();
        assert_eq!(names(&all), [("ps 0", 4), ("reader 1", 1)]);
        let mut next = request(Role::Trainer, 0, 6);
        next.member.attempt = 8;
        assert!(book.record(next, &PLACES).unwrap().others.is_empty(), "the others have not joined this attempt");
    }

    /// A bug: what a trainer had done that left was missing in the report once another joined in its place.
    #[test]
    fn what_a_member_did_that_has_ended_its_part_counts_beside_its_successor() {
        let mut book = MeterBook::default();
        book.record(MetersRequest { last: true, ..request(Role::Trainer, 1, 5) }, &PLACES).unwrap();
        for seconds in [1, 2] {
            let mut again = request(Role::Trainer, 1, seconds);
            again.member.incarnation = 2;
            book.record(again, &PLACES).unwrap();
        }
        let all = book.record(request(Role::Trainer, 0, 6), &PLACES).unwrap();
        assert_eq!(names(&all), [("trainer 1", 2), ("trainer 1", 5)]);
        let mut next = request(Role::Trainer, 0, 6);
        next.member.attempt = 8;
        assert!(book.record(next, &PLACES).unwrap().others.is_empty(), "another attempt starts without them");
    }

    #[test]
    fn more_is_to_come_until_every_member_that_takes_part_has_sent_its_last_meters() {
        let mut book = MeterBook::default();
        let mut to_come = |present: &[(Role, u32)], sent: Option<MetersRequest>| {
            if let Some(sent) = sent {
                book.record(sent, present).unwrap();
            }
            let reply = book.record(request(Role::Trainer, 0, 6), present).unwrap();
            assert_eq!(reply.has_trainers, present.len() < 4, "readers and ps do not count");
            reply.more_to_come
        };
        assert!(to_come(&PLACES, None), "neither the ps nor the reader has sent its meters");
        assert!(to_come(&PLACES, Some(request(Role::Reader, 1, 2))), "the reader goes on, the ps is missing");
        assert!(to_come(&PLACES, Some(MetersRequest { last: true, ..request(Role::Reader, 1, 3) })));
        assert!(
            to_come(&PLACES, Some(request(Role::Ps, 0, 1))),
            "the ps does not know yet that every row is trained on"
        );
        assert!(!to_come(&PLACES, Some(MetersRequest { last: true, ..request(Role::Ps, 0, 2) })));
        let another = [&PLACES[..], &[(Role::Trainer, 1)]].concat();
        assert!(to_come(&another, Some(request(Role::Trainer, 1, 4))));
        assert!(!to_come(&PLACES, None), "the other trainer has left");
    }

    #[test]
    fn meters_that_no_run_has_are_refused() {
        let mut book = MeterBook::default();
        let good = request(Role::Reader, 0, 1);
        let mut bad = std::array::from_fn::<_, 6, _>(|_| good.clone());
        bad[0].report.wall = MAX_TIME * 2;
        bad[1].report.services = vec![StageReport { rows_in: u64::MAX, ..StageReport::default() }];
        bad[2].report.services = vec![StageReport { replicas: usize::MAX, ..StageReport::default() }];
        bad[3].report.services = vec![StageReport { rows_held: Some(u64::MAX), ..StageReport::default() }];
        bad[4].report.machine.threads = [("net".to_owned(), f64::NAN)].into();
        bad[5].report.machine.peak_bytes = u64::MAX;
        for bad in bad {
            assert!(book.record(bad, &PLACES).unwrap_err().to_string().contains("that no run has"));
        }
        assert!(book.record(good, &PLACES).is_ok());
    }
}
