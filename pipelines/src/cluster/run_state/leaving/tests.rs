//! Trainers that leave, come back and are asked to shut down at the same time as the run.

use std::time::Duration;

use forebay_actors::FaultKind;
use forebay_batches::{BatchId, RowCounts, WindowEnd};
use forebay_connectors::DataPlan;
use forebay_job::{Job, StalenessRule};

use super::super::super::cuts::{CutReport, LeadCutRequest, LeadReply, LeadStep};
use super::super::super::leases::{DoneWindows, LeaseReply};
use super::super::super::messages::{
    CompletedWindows, FailRequest, Failure, JoinReply, JoinRequest, LeaseRequest, PlanReply, job_digest,
};
use super::super::Origin;
use super::*;
use crate::checkpoint::OriginCheckpoint;
use crate::columns::sampled_settings::SampledSettings;

const DATA: DataPlan = DataPlan { epochs: 1, rows: 0, windows: 64, fingerprint: 1 };

/// A run of a ps, three trainers and these readers.
struct Run {
    job: Job,
    state: RunState,
    now: Instant,
    nonces: u64,
}

impl Run {
    fn new(readers: usize, checkpoints: bool, sync: bool) -> Self {
        let mut job = Job::default();
        (job.placement.ps, job.placement.trainers, job.placement.readers) = (1, 3, readers);
        // Several windows a lease.
        job.placement.lease_rows = 1 << 22;
        job.train.staleness = StalenessRule::at_most(0);
        job.train.sync = sync;
        job.checkpoint.to = checkpoints.then(|| "checkpoints".into());
        let now = Instant::now();
        let mut state = RunState::new(&job, 7, now);
        if checkpoints {
            state.set_origin(7, Origin::default());
        }
        Self { job, state, now, nonces: 0 }
    }

    /// All join. Returns the trainers, and what reads first.
    fn begin(&mut self) -> ([MemberId; 3], MemberId) {
        self.join(Role::Ps, 0);
        let trainers = [0, 1, 2].map(|rank| self.join(Role::Trainer, rank));
        let readers: Vec<MemberId> =
            (0..self.job.placement.readers as u32).map(|rank| self.join(Role::Reader, rank)).collect();
        assert_eq!(self.state.status().phase, RunPhase::Running);
        (trainers, readers.first().copied().unwrap_or(trainers[0]))
    }

    /// A new process.
    fn process(&mut self, role: Role, rank: u32) -> ProcessRequest {
        self.nonces += 1;
        ProcessRequest { role, rank, job: job_digest(&self.job), nonce: self.nonces, made_under: None }
    }

    fn plan(&mut self, process: &ProcessRequest) -> PlanReply {
        self.state.plan(process, self.now).unwrap()
    }

    fn join(&mut self, role: Role, rank: u32) -> MemberId {
        let process = self.process(role, rank);
        assert!(matches!(self.plan(&process), PlanReply::Plan { .. }));
        self.join_as(process)
    }

    fn join_as(&mut self, process: ProcessRequest) -> MemberId {
        let ProcessRequest { role, rank, job, nonce, .. } = process;
        let attempt = self.state.status().attempt;
        let (address, sampled_settings) = (Some("a:1".into()), SampledSettings::default());
        let join = JoinRequest { role, rank, address, attempt, job, nonce, sampled_settings };
        let JoinReply::Joined(member) = self.state.join(join, self.now).unwrap() else { panic!("it did not join") };
        member
    }

    fn lease(&mut self, member: MemberId, number: u64) -> LeaseReply {
        let request = LeaseRequest { member, data: DATA, returned_only: false, number };
        self.state.lease(request, self.now).unwrap()
    }

    fn complete(&mut self, member: MemberId, windows: std::ops::Range<u64>) {
        let counts = windows.clone().map(|_| RowCounts::default()).collect();
        let windows = vec![DoneWindows { epoch: 0, first: windows.start, counts }];
        self.state.complete(CompletedWindows { member, windows, gives_back: false }, self.now).unwrap();
    }

    fn leave(&mut self, member: MemberId, done: Vec<WindowLog>) {
        assert!(self.state.leaving(member, self.now).unwrap());
        self.state.leave(member, done, self.now).unwrap();
    }

    /// Time passes, and these members are alive.
    fn pass(&mut self, seconds: u64, alive: &[MemberId]) {
        for _ in 0..2 * seconds {
            self.now += Duration::from_millis(500);
            alive.iter().for_each(|&member| self.state.heartbeat(member, self.now).unwrap());
            self.state.tick(self.now);
        }
    }

    fn lead(&mut self, member: MemberId, cut: u64, step: LeadStep) -> LeadReply {
        self.state.lead_cut(LeadCutRequest { member, cut, checkpoint: 1, step }, self.now).unwrap()
    }

    fn stops(&mut self, member: MemberId, cut: u64, done: Vec<WindowLog>) {
        self.state.cut(member, Some(CutReport::Stopped { cut, done, kept: None }), self.now).unwrap();
    }
}

/// Batch `index` of `window` is done, the last of two if it is the second.
fn log(window: u64, index: u32) -> WindowLog {
    let end = (index == 1).then_some(WindowEnd { batches: 2, rows: 20, rejected: 0 });
    WindowLog { epoch: 0, window, batches: vec![(index, 10)], end }
}

#[test]
fn the_run_goes_on_without_a_trainer_that_has_left_whose_leases_go_to_others() {
    for checkpoints in [false, true] {
        let mut run = Run::new(0, checkpoints, false);
        let (trainers, _) = run.begin();
        let LeaseReply::Lease(lease) = run.lease(trainers[1], 0) else { panic!("no lease") };
        run.complete(trainers[1], lease.windows.start..lease.windows.start + 1);
        run.leave(trainers[1], Vec::new());
        assert_eq!(run.state.status().returned_leases, 1);
        let LeaseReply::Lease(again) = run.lease(trainers[2], 0) else { panic!("no lease") };
        assert_eq!((again.windows, again.term), (lease.windows.start + 1..lease.windows.end, 1));
        let ps = MemberId { role: Role::Ps, rank: 0, incarnation: 1, attempt: 7 };
        let timeout = run.job.placement.timeout_seconds as u64;
        run.pass(timeout + 20, &[ps, trainers[0], trainers[2]]);
        let status = run.state.status();
        assert_eq!((status.phase, status.silent, status.missing), (RunPhase::Running, vec![], vec![]));
        assert!(status.trainers[1].is_none() && status.trainers[2].is_some(), "no reader sends to it");
        assert_eq!(run.lease(trainers[1], 9), LeaseReply::Finished, "a late request");
        // The request comes a second time.
        run.state.leave(trainers[1], Vec::new(), run.now).unwrap();
        assert!(run.state.status().trainers[1].is_none());
    }
}

#[test]
fn the_first_trainer_a_ps_and_trainers_in_step_drain_the_run() {
    let mut run = Run::new(1, true, false);
    let (trainers, _) = run.begin();
    assert!(!run.state.leaving(trainers[0], run.now).unwrap());
    let mut run = Run::new(1, true, true);
    let (trainers, reader) = run.begin();
    for member in [trainers[1], trainers[2], reader] {
        assert!(!run.state.leaving(member, run.now).unwrap(), "{member}");
    }
}

/// All processes are asked to shut down, in any order.
#[test]
fn a_trainer_that_is_asked_to_shut_down_while_the_run_drains_drains_with_it() {
    let mut run = Run::new(1, true, false);
    let (trainers, reader) = run.begin();
    assert!(matches!(run.lease(reader, 0), LeaseReply::Lease(_)));
    // One has left before the first drains the run, one is leaving, and hears of the drain.
    run.leave(trainers[2], vec![log(0, 0)]);
    assert!(run.state.leaving(trainers[1], run.now).unwrap());
    run.state.drain(trainers[0], run.now).unwrap();
    assert!(!run.state.leaving(trainers[1], run.now).unwrap(), "the reply was lost, and it asks again");
    assert_eq!(run.state.status().phase, RunPhase::Draining);
    // The last checkpoint waits for the one that has not left.
    assert_eq!(run.lead(trainers[0], 5, LeadStep::Stop), LeadReply::Wait);
    run.stops(trainers[0], 5, vec![log(0, 1)]);
    assert_eq!(run.lead(trainers[0], 5, LeadStep::Stop), LeadReply::Wait);
    run.state.leave(trainers[1], vec![log(1, 0)], run.now).unwrap();
    let LeadReply::Stopped { batches, .. } = run.lead(trainers[0], 5, LeadStep::Stop) else { panic!("it waits") };
    assert!(batches.has_window(0, 0), "two trainers have done a batch each");
    assert!(batches.contains(BatchId { epoch: 0, window: 1, index: 0 }) && !batches.has_window(0, 1));
    assert_eq!(run.lead(trainers[0], 5, LeadStep::GoOn), LeadReply::Whole);
    // What is started in their place meanwhile has nothing to do.
    let again = run.process(Role::Trainer, 2);
    assert_eq!(run.plan(&again), PlanReply::Wait);
    let failure = Failure::drained("stopped");
    run.state.fail(FailRequest { member: trainers[0], failure }, run.now).unwrap();
    let PlanReply::Failed(failure) = run.plan(&again) else { panic!("it waits") };
    assert!(failure.kind == FaultKind::Drained && run.state.status().attempt == 7);
}

#[test]
fn the_end_of_a_run_waits_for_no_trainer_that_has_left() {
    let mut run = Run::new(1, false, false);
    let (trainers, reader) = run.begin();
    run.leave(trainers[1], Vec::new());
    let mut windows = 0;
    while let LeaseReply::Lease(lease) = run.lease(reader, windows) {
        windows = lease.windows.end;
        run.complete(reader, lease.windows);
    }
    assert_eq!((windows, run.state.status().phase), (64, RunPhase::Finished));
    run.state.over(trainers[0], run.now).unwrap();
    for (role, rank) in [(Role::Ps, 0), (Role::Trainer, 2), (Role::Reader, 0)] {
        run.state.mark_notified_if_ended(role, rank);
    }
    assert_eq!(run.state.notify_timeout(), Duration::ZERO);
}

#[test]
fn a_process_that_is_started_while_its_predecessor_leaves_waits_for_it_and_joins_without_a_new_attempt() {
    let mut run = Run::new(0, true, false);
    let manifest = Some("its manifest".to_owned());
    let checkpoint = Some(OriginCheckpoint::own(3));
    let origin = Origin { checkpoint, data: Some(DATA), manifest: manifest.clone(), ..Origin::default() };
    run.state.set_origin(7, origin);
    let (trainers, _) = run.begin();
    assert!(run.state.leaving(trainers[1], run.now).unwrap());
    let again = run.process(Role::Trainer, 1);
    assert_eq!(run.plan(&again), PlanReply::Wait);
    run.state.leave(trainers[1], vec![log(0, 0)], run.now).unwrap();
    assert_eq!(run.plan(&again), PlanReply::Plan { attempt: 7, checkpoint, manifest });
    // It joins while all others stand still for a checkpoint, and trains at once.
    assert!(matches!(run.lease(trainers[0], 0), LeaseReply::Lease(_)));
    run.lead(trainers[0], 5, LeadStep::Stop);
    [0, 2].into_iter().for_each(|rank| run.stops(trainers[rank], 5, Vec::new()));
    assert!(matches!(run.lead(trainers[0], 5, LeadStep::Stop), LeadReply::Stopped { .. }));
    let member = run.join_as(again);
    assert!(matches!(run.lead(trainers[0], 5, LeadStep::GoOn), LeadReply::GivenUp(_)));
    assert_eq!(run.state.status().attempt, 7);
    // The next one has what both processes of its rank have done.
    run.lead(trainers[0], 6, LeadStep::Stop);
    [0, 2].into_iter().for_each(|rank| run.stops(trainers[rank], 6, Vec::new()));
    assert_eq!(run.lead(trainers[0], 6, LeadStep::Stop), LeadReply::Wait);
    run.stops(member, 6, vec![log(0, 1)]);
    let LeadReply::Stopped { batches, .. } = run.lead(trainers[0], 6, LeadStep::Stop) else { panic!("it waits") };
    assert!(batches.has_window(0, 0));
    // One that is killed has not said what it has done.
    let killed = run.process(Role::Trainer, 2);
    run.plan(&killed);
    assert_eq!(run.state.status().attempt, 8);
}

/// Otherwise its successor would wait forever.
#[test]
fn a_trainer_that_dies_while_it_leaves_is_lost_like_any_other() {
    let mut run = Run::new(0, true, false);
    let (trainers, _) = run.begin();
    assert!(run.state.leaving(trainers[1], run.now).unwrap());
    let again = run.process(Role::Trainer, 1);
    assert_eq!(run.plan(&again), PlanReply::Wait);
    let seconds = run.job.placement.lease_seconds as u64 + 1;
    run.pass(seconds, &[trainers[0], trainers[2]]);
    assert!(matches!(run.plan(&again), PlanReply::Wait), "the new attempt looks for its checkpoint");
    assert_eq!(run.state.status().attempt, 8);
}

#[test]
fn a_new_attempt_begins_without_the_trainers_that_have_left_or_end_before_they_join() {
    let mut run = Run::new(0, false, false);
    let (trainers, _) = run.begin();
    run.leave(trainers[1], Vec::new());
    let ps = run.process(Role::Ps, 0);
    run.plan(&ps);
    assert_eq!(run.state.status().missing, ["ps 0", "trainer 0", "trainer 2"]);
    run.join_as(ps);
    let first = run.join(Role::Trainer, 0);
    assert_eq!(run.state.status().phase, RunPhase::Gathering);
    // The last one is asked to shut down before it has joined.
    let gone = run.process(Role::Trainer, 2);
    run.plan(&gone);
    run.state.gone(&gone, run.now).unwrap();
    assert_eq!((run.state.status().attempt, run.state.status().phase), (8, RunPhase::Running));
    // The end of the run waits for neither.
    let failure = Failure::new(forebay_actors::Domain::User, "a fault of the job");
    run.state.fail(FailRequest { member: first, failure }, run.now).unwrap();
    run.state.mark_notified_if_ended(Role::Ps, 0);
    assert_eq!(run.state.notify_timeout(), Duration::ZERO);
    // The first trainer is needed, whatever it says.
    let mut run = Run::new(0, false, false);
    let first = run.process(Role::Trainer, 0);
    run.plan(&first);
    run.state.gone(&first, run.now).unwrap();
    assert!(run.state.status().missing.contains(&"trainer 0".to_owned()));
}

#[test]
fn a_trainer_that_is_asked_to_shut_down_before_the_run_begins_leaves_too() {
    let mut run = Run::new(0, false, false);
    run.join(Role::Ps, 0);
    let trainers = [0, 1].map(|rank| run.join(Role::Trainer, rank));
    run.leave(trainers[1], Vec::new());
    assert_eq!(run.state.status().phase, RunPhase::Gathering);
    run.join(Role::Trainer, 2);
    assert_eq!(run.state.status().phase, RunPhase::Running);
    assert!(run.state.status().trainers[1].is_none());
}

/// A bug: a coordinator that was started again waited for a trainer that had left, until `placement.timeout_seconds`, and the run failed.
#[test]
fn an_attempt_begins_without_trainers_that_nothing_is_heard_of() {
    for checkpoints in [false, true] {
        let wait = 30;
        let mut run = Run::new(1, checkpoints, false);
        let (ps, reader) = (run.join(Role::Ps, 0), run.join(Role::Reader, 0));
        // Trainer 1 loads, and nothing is heard of trainer 2.
        let second = run.process(Role::Trainer, 1);
        run.plan(&second);
        run.pass(wait - 5, &[ps, reader]);
        let first = run.join(Role::Trainer, 0);
        run.pass(wait - 5, &[ps, reader, first]);
        assert_eq!(run.state.status().phase, RunPhase::Gathering, "the time counts since the others are there");
        run.state.alive(&second, run.now).unwrap();
        run.pass(wait - 5, &[ps, reader, first]);
        assert_eq!(run.state.status().phase, RunPhase::Gathering, "trainer 1 loads");
        run.pass(10, &[ps, reader, first]);
        assert_eq!(run.state.status().phase, RunPhase::Running);
        assert_eq!(run.state.silent(), ["trainer 1", "trainer 2"], "launch kills a process that hangs");
        let second = run.join_as(second);
        assert_eq!(run.state.status().trainers.iter().flatten().count(), 2);
        run.pass(5, &[ps, reader, first, second]);
        assert_eq!(run.state.silent(), ["trainer 2"]);
    }
    let mut run = Run::new(1, false, true);
    let members = [(Role::Ps, 0), (Role::Reader, 0), (Role::Trainer, 0)].map(|(role, rank)| run.join(role, rank));
    run.pass(590, &members);
    assert_eq!(run.state.status().phase, RunPhase::Gathering, "each step needs all trainers");
    run.pass(20, &members);
    let RunPhase::Failed(failure) = run.state.status().phase else { panic!("it waits forever") };
    assert!(failure.message.starts_with("trainer 1, trainer 2 did not join within 600 s"), "{}", failure.message);
}

/// A bug: it took part in the last cut, which waited for it in vain.
#[test]
fn a_trainer_that_loads_does_not_join_a_run_that_drains() {
    let mut run = Run::new(1, true, false);
    let ([first, second, _], reader) = run.begin();
    run.lease(reader, 1);
    run.leave(second, Vec::new());
    let again = run.process(Role::Trainer, 1);
    assert!(matches!(run.plan(&again), PlanReply::Plan { .. }));
    run.state.drain(first, run.now).unwrap();
    let ProcessRequest { role, rank, job, nonce, .. } = again.clone();
    let sampled_settings = SampledSettings::default();
    let join = JoinRequest { role, rank, address: None, attempt: 7, job, nonce, sampled_settings };
    assert!(matches!(run.state.join(join, run.now).unwrap(), JoinReply::AttemptIsOver));
    assert!(matches!(run.plan(&again), PlanReply::Wait));
}
