//! The coordinator on the network: Flight actions `coordinator.*` with JSON bodies, applied to the [`RunState`] under one lock.
//!
//! It runs in the first ps process, or in the trainer if there is no ps, because it has to live as long as the sparse rows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::{Domain, Fault};
use forebay_job::Job;
use forebay_net::{Caller, Handler, Identity};
use serde::Deserialize;

use super::cuts::{CutOrder, CutRequest, LeadCutRequest, LeadReply};
use super::json::{read, write};
use super::members::{self, Role};
use super::messages::{
    EvaluationAt, EvaluationReply, LeaveRequest, MemberId, MemberRequest, ProcessesEnded, RunPhase, SUPERVISOR,
    job_digest,
};
use super::meters::{MAX_BYTES, MeterBook, MetersReply, MetersRequest};
use super::run_state::{Origin, RunState};
use super::timelines::{self, NextTimelineReply, NextTimelineRequest, TimelineBook, TimelineRequest};
use crate::checkpoint::{self, TrainPosition};
use crate::context::Context;
use crate::shared_state::SharedState;

/// The handler's name in actions.
const NAME: &str = "coordinator";

/// The time between two calls of [`RunState::tick`].
const TICK: Duration = Duration::from_millis(100);

/// How long a trainer's question about a cut or an evaluation waits for news.
const LONG_POLL: Duration = Duration::from_secs(2);

/// The handler of the coordinator's actions. Clones share one run.
#[derive(Clone)]
pub(crate) struct Coordinator {
    /// Notified when an order for a cut, or the reply to a trainer that waits for an evaluation, may have changed.
    state: Arc<SharedState<RunState>>,
    meters: Arc<Mutex<MeterBook>>,
    timelines: Arc<Mutex<TimelineBook>>,
    /// Whether an attempt of this process has looked for a checkpoint.
    began: Arc<AtomicBool>,
}

impl Coordinator {
    /// A coordinator for a run of `job`; the number of the first `attempt` must differ between starts.
    pub(super) fn new(job: &Job, attempt: u64) -> Self {
        Self {
            state: Arc::new(SharedState::new(RunState::new(job, attempt, Instant::now()))),
            meters: Arc::default(),
            timelines: Arc::default(),
            began: Arc::default(),
        }
    }

    /// If `drains`, the run was asked to drain before this process was started.
    pub(super) fn draining(self, drains: bool) -> Self {
        if drains {
            self.state.lock().drains_from_the_start();
        }
        self
    }

    /// If `has`, the run has made checkpoints before this process was started.
    pub(super) fn with_checkpoints(self, has: bool) -> Self {
        if has {
            self.state.lock().has_made_checkpoints();
        }
        self
    }

    /// Finds what the attempt continues from, if that is not known. Blocks on the store of the checkpoints. Without `resume`, the
    /// first attempt of this process needs a folder without checkpoints. If the run has made checkpoints, and none is there, waits for them
    /// for `output.retry_for`, or until `stop` returns true or the run has failed; then there is no origin.
    ///
    /// # Errors
    /// See [`checkpoint::find`]. Then the run has failed.
    pub(super) fn find_origin(
        &self,
        job: &Job,
        resume: bool,
        stop: &dyn Fn() -> bool,
        context: &Context,
    ) -> Result<(), Fault> {
        if !self.lacks_origin() {
            return Ok(());
        }
        let again = self.began.swap(true, Ordering::SeqCst);
        if resume
            && !again
            && let Some(run) = checkpoint::finished(job, &job_digest(job), context)?
        {
            tracing::info!("{run}");
            self.state.lock().was_over_before();
            return Ok(());
        }
        let resume = resume || again;
        let gives_up = || stop() || matches!(self.state.lock().status().phase, RunPhase::Failed(_));
        match checkpoint::waiting(job.output.retry_for.0, &gives_up)
            .run(|| self.try_to_find_origin(job, resume, context))
        {
            Err(fault) if checkpoint::are_away(&fault) && gives_up() => Ok(()),
            // The store may be back when this process is started again. But a run whose processes were all started again would not know of
            // its checkpoints.
            Err(fault) if fault.domain == Domain::External && !checkpoint::are_away(&fault) => Err(fault),
            found => found.inspect_err(|fault| self.state.lock().no_origin(fault)),
        }
    }

    fn try_to_find_origin(&self, job: &Job, resume: bool, context: &Context) -> Result<(), Fault> {
        loop {
            let (without, made) = {
                let state = self.state.lock();
                (state.attempt_without_origin(), state.status().has_checkpoints)
            };
            let Some((attempt, damaged)) = without else { return Ok(()) };
            let found = checkpoint::find(job, resume || made, made, &damaged, context)?.and_then(|(_, found)| found);
            let origin = found.map_or_else(Origin::default, |found| {
                let manifest = serde_json::to_string(&found.manifest).ok();
                let TrainPosition { batches, data, .. } = found.manifest.position;
                Origin { checkpoint: Some(found.at), batches, data, manifest }
            });
            let mut state = self.state.lock();
            // Meanwhile a process may have said that there are checkpoints.
            if made || !state.status().has_checkpoints {
                state.set_origin(attempt, origin);
                return Ok(());
            }
        }
    }

    /// Whether it is not known yet what the attempt continues from, and the run has not ended.
    pub(super) fn lacks_origin(&self) -> bool {
        let state = self.state.lock();
        let has_ended = matches!(state.status().phase, RunPhase::Over | RunPhase::Failed(_));
        state.attempt_without_origin().is_some() && !has_ended
    }

    /// Processes have ended, and are not started again.
    ///
    /// # Errors
    /// A user fault for any other sender than the program that starts the processes of the run.
    fn processes_ended(&self, sender: &Identity, body: &[u8]) -> Result<(), Fault> {
        if sender.role != SUPERVISOR {
            let sender = sender.role.escape_debug();
            return Err(Fault::user(format!("`{sender}` says that processes have ended, expected the {SUPERVISOR}")));
        }
        let ProcessesEnded { processes } = read(NAME, "processes_ended", body)?;
        let mut state = self.state.lock();
        processes.into_iter().for_each(|(role, rank)| state.has_ended(role, rank));
        Ok(())
    }

    /// What a trainer has to do for a cut. Waits up to [`LONG_POLL`] for another order than the one that the trainer follows.
    async fn cut(&self, body: &[u8]) -> Result<CutOrder, Fault> {
        let CutRequest { member, follows, report } = read(NAME, "cut", body)?;
        let reported = report.is_some();
        let order = self.state.lock().cut(member, report, Instant::now())?;
        if reported {
            self.state.notify();
        }
        if order == follows { self.news(follows, |state| state.cut_order(member)).await } else { Ok(order) }
    }

    /// A step of the trainer that leads a cut. Waits up to [`LONG_POLL`] until the trainers have stopped.
    async fn lead_cut(&self, body: &[u8]) -> Result<LeadReply, Fault> {
        let request: LeadCutRequest = read(NAME, "lead_cut", body)?;
        match self.state.change(|state| state.lead_cut(request, Instant::now()))? {
            LeadReply::Wait => self.news(LeadReply::Wait, |state| state.lead_cut_reply(request)).await,
            reply => Ok(reply),
        }
    }

    /// Whether a trainer goes on after an evaluation. Waits up to [`LONG_POLL`] until it is over.
    async fn await_evaluation(&self, body: &[u8]) -> Result<EvaluationReply, Fault> {
        let request: EvaluationAt = read(NAME, "await_evaluation", body)?;
        match self.state.lock().await_evaluation(request, Instant::now())? {
            EvaluationReply::Wait => {}
            reply => return Ok(reply),
        }
        self.news(EvaluationReply::Wait, |state| state.evaluation_reply(request)).await
    }

    /// Waits until `ask` replies something other than `old`, and returns the reply. Returns `old` after [`LONG_POLL`].
    async fn news<T: PartialEq>(&self, old: T, ask: impl Fn(&mut RunState) -> Result<T, Fault>) -> Result<T, Fault> {
        let news = self.state.when(|state| Some(ask(state)).filter(|reply| reply.as_ref().ok() != Some(&old)));
        let news = tokio::time::timeout(LONG_POLL, news).await;
        news.unwrap_or(Ok(old))
    }

    /// Keeps the meters of a member. Drops meters of an earlier attempt.
    fn meters(&self, body: &[u8]) -> Result<Bytes, Fault> {
        if body.len() > MAX_BYTES {
            return Err(Fault::user(format!("meters of {} bytes, expected at most {MAX_BYTES}", body.len())));
        }
        let request: MetersRequest = read(NAME, "meters", body)?;
        let present = {
            let state = self.state.lock();
            if !state.is_current(&request.member) {
                return write(&MetersReply::default());
            }
            state.present()
        };
        let reply = self.meters.lock().unwrap_or_else(PoisonError::into_inner).record(request, &present)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        write(&MetersReply { now: now.as_nanos() as u64, ..reply })
    }

    /// Keeps the timelines of the stages of a member. Drops timelines of an earlier attempt.
    fn timeline(&self, body: &[u8]) -> Result<(), Fault> {
        let most = timelines::MOST_BYTES + MAX_BYTES / 16;
        if body.len() > most {
            return Err(Fault::user(format!("a timeline of {} bytes, expected at most {most}", body.len())));
        }
        let request: TimelineRequest = read(NAME, "timeline", body)?;
        if !self.state.lock().is_current(&request.member) {
            return Ok(());
        }
        self.timelines.lock().unwrap_or_else(PoisonError::into_inner).record(&request)
    }

    fn next_timeline(&self, body: &[u8]) -> Result<NextTimelineReply, Fault> {
        let request: NextTimelineRequest = read(NAME, "next_timeline", body)?;
        if !self.state.lock().is_current(&request.member) {
            return Ok(None);
        }
        Ok(self.timelines.lock().unwrap_or_else(PoisonError::into_inner).next(request))
    }

    /// A process has ended and is not started again: see [`RunState::has_ended`].
    pub(crate) fn has_ended(&self, role: Role, rank: u32) {
        self.state.lock().has_ended(role, rank);
    }

    /// The process of the coordinator was asked to shut down before it has joined: the run drains, and the process of this place ends with
    /// it.
    pub(super) fn drain_before_join(&self, role: Role, rank: u32) {
        let mut state = self.state.lock();
        state.begin_drain();
        state.knows_the_end(role, rank);
    }

    /// As [`wait_until_notified`](Self::wait_until_notified), in the process of this place, which knows the end.
    pub(super) async fn wait_until_others_notified(&self, role: Role, rank: u32) {
        self.state.lock().knows_the_end(role, rank);
        self.wait_until_notified().await;
    }

    /// See [`RunStatus::silent`](super::messages::RunStatus::silent).
    pub(crate) fn silent(&self) -> Vec<String> {
        self.state.lock().silent().to_vec()
    }

    /// Waits a while until all processes know that the run has failed. Returns at once if it has not.
    pub(super) async fn wait_until_notified(&self) {
        let begun = Instant::now();
        loop {
            let waits = self.state.lock().notify_timeout();
            if begun.elapsed() >= waits {
                return;
            }
            tokio::time::sleep(TICK / 2).await;
        }
    }

    /// Checks for missing and silent members a few times a second, forever.
    pub(super) async fn tick(self) {
        loop {
            tokio::time::sleep(TICK).await;
            self.state.lock().tick(Instant::now());
            self.state.notify();
        }
    }
}

/// The process that a request names as its sender: fields of the body, or of the member in the body.
#[derive(Deserialize)]
struct NamedSender {
    role: Option<Role>,
    rank: Option<u32>,
    member: Option<MemberId>,
}

impl NamedSender {
    fn of(kind: &str, body: &[u8]) -> Result<Self, Fault> {
        read(NAME, kind, body)
    }

    /// # Errors
    /// A user fault if another process sent the request.
    fn check(&self, sender: &Identity) -> Result<(), Fault> {
        let place = self.member.map(|member| (member.role, member.rank)).or(self.role.zip(self.rank));
        let author = place.map(members::name);
        if author.as_ref() == Some(&sender.role) {
            return Ok(());
        }
        let author = author.unwrap_or_else(|| "no process".into());
        let sender = sender.role.escape_debug();
        Err(Fault::user(format!("`{sender}` sent a request in the name of {author}, expected its own name")))
    }
}

#[async_trait]
impl Handler for Coordinator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes_any_attempt(&self) -> bool {
        true
    }

    fn actions(&self) -> Vec<(String, String)> {
        let action = |kind: &str, what: &str| (kind.to_owned(), what.to_owned());
        vec![
            action("status", "the status of the run, as JSON, for any caller"),
            action("alive", "a process runs, whether it has joined or not"),
            action("plan", "a process has started and asks what it continues from"),
            action("join", "a process is ready to take part"),
            action("cannot_start", "a process cannot load what it is to continue from"),
            action("heartbeat", "a member is alive"),
            action("meters", "a member sends its meters, and the first trainer gets those of all"),
            action("timeline", "a member sends what its stages did when"),
            action("next_timeline", "the first trainer asks what the stages of the next member did when"),
            action("sampled_settings", "a member asks what a sample of the rows decides of a new model"),
            action("lease", "a reader asks for windows to read"),
            action("complete", "every batch of some windows is done"),
            action("cut", "a trainer asks whether it must stop for a checkpoint, and reports that it has"),
            action("lead_cut", "the first trainer stops all trainers for a checkpoint, and lets them go on"),
            action("fail", "a member cannot go on"),
            action("gone", "a process that was asked to shut down does so before it has joined"),
            action("processes_ended", "the program that starts the processes says which have ended for good"),
            action("leaving", "a trainer that was asked to shut down asks whether the run goes on without it"),
            action("leave", "a member ends"),
            action("drain", "readers begin no more windows"),
            action(
                "without_checkpoint",
                "the last checkpoint of a run that drains cannot be written: the model is saved",
            ),
            action("evaluated", "the first of several trainers in step has evaluated the model"),
            action("await_evaluation", "another trainer waits until the first one has evaluated the model"),
            action("stop_early", "the trainers train on no more batches: the model does not improve"),
            action("over", "the model is saved: processes may end"),
        ]
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        if kind == "status" {
            return write(&self.state.lock().status());
        }
        let Some(identity) = &caller.identity else {
            return Err(Fault::user(format!(
                "coordinator.{kind} is for processes of the run; other callers may call `coordinator.status`"
            )));
        };
        if kind == "processes_ended" {
            return write(&self.processes_ended(identity, &body)?);
        }
        NamedSender::of(kind, &body)?.check(identity)?;
        if kind == "meters" {
            return self.meters(&body);
        }
        if kind == "timeline" {
            return write(&self.timeline(&body)?);
        }
        if kind == "next_timeline" {
            return write(&self.next_timeline(&body)?);
        }
        if kind == "cut" {
            return write(&self.cut(&body).await?);
        }
        if kind == "lead_cut" {
            return write(&self.lead_cut(&body).await?);
        }
        if kind == "await_evaluation" {
            return write(&self.await_evaluation(&body).await?);
        }
        if kind == "evaluated" {
            let request = read(NAME, kind, &body)?;
            return write(&self.state.change(|state| state.evaluated(request, Instant::now()))?);
        }
        let (mut state, now) = (self.state.lock(), Instant::now());
        let member = || read(NAME, kind, &body).map(|request: MemberRequest| request.member);
        match kind {
            "alive" => write(&state.alive(&read(NAME, kind, &body)?, now)?),
            "plan" => write(&state.plan(&read(NAME, kind, &body)?, now)?),
            "join" => write(&state.join(read(NAME, kind, &body)?, now)?),
            "heartbeat" => {
                let member = member()?;
                // A member of an earlier attempt learns from the status that a new attempt has begun.
                if state.is_current(&member) {
                    state.heartbeat(member, now)?;
                    state.mark_notified_if_ended(member.role, member.rank);
                }
                write(&state.status())
            }
            "cannot_start" => {
                state.cannot_start(read(NAME, kind, &body)?, now);
                write(&())
            }
            "sampled_settings" => write(&state.sampled_settings(member()?, now)?),
            "lease" => write(&state.lease(read(NAME, kind, &body)?, now)?),
            "complete" => write(&state.complete(read(NAME, kind, &body)?, now)?),
            "fail" => write(&state.fail(read(NAME, kind, &body)?, now)?),
            "gone" => write(&state.gone(&read(NAME, kind, &body)?, now)?),
            "leaving" => write(&state.leaving(member()?, now)?),
            "leave" => {
                let LeaveRequest { member, done } = read(NAME, kind, &body)?;
                write(&state.leave(member, done, now)?)
            }
            "drain" => write(&state.drain(member()?, now)?),
            "without_checkpoint" => write(&state.drain_without_checkpoint(member()?, now)?),
            "stop_early" => write(&state.stop_early(read(NAME, kind, &body)?, now)?),
            "over" => write(&state.over(member()?, now)?),
            _ => Err(Fault::user(format!("there is no action coordinator.{kind}"))),
        }
    }
}

#[cfg(test)]
mod tests {

    use forebay_actors::FaultKind;

    use super::super::messages::{JoinReply, JoinRequest, PlanReply, ProcessRequest};
    use super::*;
    use crate::columns::sampled_settings::SampledSettings;

    /// Sends the body of a request as the process of this role and rank.
    async fn says(of: &Coordinator, sender: &str, kind: &str, body: &serde_json::Value) -> Result<Bytes, Fault> {
        let identity = Identity { run: "run".into(), role: sender.into(), incarnation: 0, attempt: 0 };
        let caller = Caller { peer: ([127, 0, 0, 1], 1).into(), identity: Some(identity) };
        of.action(&caller, kind, body.to_string().into()).await
    }

    /// A bug: the run trained on all its rows anew, and the checkpoints that it had made counted as those of another run.
    #[test]
    fn a_run_that_has_made_checkpoints_does_not_begin_without_one() {
        let dir = tempfile::tempdir().unwrap();
        let to = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
        let job = Job::from_toml("output.retry_for = '0s'", &[to]).unwrap();
        let find = |coordinator: &Coordinator, stop: bool| {
            coordinator
                .find_origin(&job, true, &|| stop, &Context::default())
                .map_err(|fault| (fault.domain, fault.kind))
        };
        let begins = Coordinator::new(&job, 7);
        assert_eq!((find(&begins, false), begins.lacks_origin()), (Ok(()), false), "no process knows of a checkpoint");
        let waits = || Coordinator::new(&job, 7).with_checkpoints(true);
        let fails = waits();
        assert_eq!(find(&fails, false), Err((Domain::External, FaultKind::Unsaved)));
        let RunPhase::Failed(failure) = fails.state.lock().status().phase else { panic!("the run has not failed") };
        assert!(failure.kind == FaultKind::Unsaved && failure.message.contains("has no checkpoint now"), "{failure:?}");
        let stops = waits();
        assert_eq!((find(&stops, true), stops.lacks_origin()), (Ok(()), true), "it was asked to shut down");
    }

    #[tokio::test]
    async fn no_process_may_speak_for_another() {
        let job = Job::default();
        let coordinator = Coordinator::new(&job, 7);
        let process =
            ProcessRequest { role: Role::Trainer, rank: 0, job: job_digest(&job), nonce: 1, made_under: None };
        let plan = serde_json::to_value(&process).unwrap();
        let planned = says(&coordinator, "trainer 0", "plan", &plan).await.unwrap();
        assert!(matches!(serde_json::from_slice(&planned), Ok(PlanReply::Plan { attempt: 7, .. })));
        let join = JoinRequest {
            role: Role::Trainer,
            rank: 0,
            address: Some("a:1".into()),
            attempt: 7,
            job: job_digest(&job),
            nonce: 1,
            sampled_settings: SampledSettings::default(),
        };
        let join = serde_json::to_value(&join).unwrap();
        let joined = says(&coordinator, "trainer 0", "join", &join).await.unwrap();
        let Ok(JoinReply::Joined(member)) = serde_json::from_slice(&joined) else { panic!("{joined:?}") };
        let of_member = serde_json::json!({ "member": member });
        for (kind, body) in [
            ("alive", &plan),
            ("plan", &plan),
            ("join", &join),
            ("heartbeat", &of_member),
            ("gone", &plan),
            ("leaving", &of_member),
            ("leave", &of_member),
            ("drain", &of_member),
            ("without_checkpoint", &of_member),
            ("evaluated", &of_member),
            ("await_evaluation", &of_member),
            ("stop_early", &of_member),
            ("over", &of_member),
            ("sampled_settings", &of_member),
            ("lease", &of_member),
            ("complete", &of_member),
            ("cut", &of_member),
            ("lead_cut", &of_member),
            ("meters", &of_member),
            ("fail", &of_member),
            ("leave", &serde_json::json!({ "role": "reader" })),
        ] {
            for sender in ["trainer 1", "reader 0", "trainer 00", ""] {
                let fault = says(&coordinator, sender, kind, body).await.unwrap_err();
                assert!(fault.to_string().contains("in the name of"), "{sender} says {kind}: {fault}");
            }
        }
        let ended = serde_json::json!({ "processes": [["trainer", 0]] });
        for sender in ["trainer 0", "status", ""] {
            let fault = says(&coordinator, sender, "processes_ended", &ended).await.unwrap_err();
            assert!(fault.to_string().contains("expected the supervisor"), "{sender}: {fault}");
        }
        assert_eq!(coordinator.state.lock().present(), [(Role::Trainer, 0)], "it has not left");
        says(&coordinator, "trainer 0", "leave", &of_member).await.unwrap();
        assert!(coordinator.state.lock().present().is_empty());
    }
}
