//! Leases and cuts at the edges of a run.

use super::super::cuts::{LeadCutRequest, LeadReply, LeadStep};
use super::super::messages::{CannotStartRequest, JoinReply, JoinRequest, PlanRequest};
use super::*;

/// The reply to a request for a lease is lost, the request is sent again, and comes once more later.
#[test]
fn a_request_for_a_lease_that_comes_again_gets_the_same_lease() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.readers, job.placement.lease_rows) = (2, 1);
    let mut run = RunState::new(&job, 7, now);
    let mut join = |role, rank: u32| {
        let (address, nonce, digest) = (Some("a:1".into()), u64::from(rank) + 1, job_digest(&job));
        run.plan(&PlanRequest { role, rank, job: digest.clone(), nonce }, now).unwrap();
        let join = JoinRequest { role, rank, address, attempt: 7, job: digest, nonce };
        let JoinReply::Joined(member) = run.join(join, now).unwrap() else { panic!("it did not join") };
        member
    };
    join(Role::Trainer, 0);
    let (first, second) = (join(Role::Reader, 0), join(Role::Reader, 1));
    let data = DataPlan { epochs: 1, rows: 1 << 22, windows: 64, fingerprint: 1 };
    let mut lease = |member, number| {
        let request = LeaseRequest { member, data: data.clone(), returned_only: false, number };
        match run.lease(request, now).unwrap() {
            LeaseReply::Lease(lease) => Some(lease.windows.start),
            _ => None,
        }
    };
    let windows = lease(first, 0);
    assert!(windows == Some(0) && lease(first, 0) == windows, "sent again");
    let next = lease(first, 1);
    assert!(next > windows && lease(first, 0).is_none(), "late: the reader has its reply");
    assert!(lease(first, 1) == next && lease(second, 0) > next, "each reader has its own numbers");
}

/// A damaged file costs the rows since the checkpoint before, and not the run.
#[test]
fn a_damaged_checkpoint_is_given_up_and_what_is_no_damage_ends_the_run() {
    let (mut job, now) = (Job::default(), Instant::now());
    job.placement.ps = 1;
    job.checkpoint.to = Some("checkpoints".into());
    let mut run = RunState::new(&job, 6, now);
    let says = |run: &mut RunState, attempt, damaged| {
        let failure = Failure::new(Domain::User, "rows are damaged");
        let request = CannotStartRequest { role: Role::Ps, rank: 0, attempt, failure, damaged };
        run.cannot_start(request, now);
    };
    let begins = |run: &mut RunState, number| {
        let (attempt, damaged) = run.attempt_without_origin().unwrap();
        let checkpoint = Some(OriginCheckpoint::own(number));
        run.set_origin(attempt, Origin { checkpoint, ..Origin::default() });
        (attempt, (1..10).filter(|number| damaged.has(OriginCheckpoint::own(*number))).collect::<Vec<u64>>())
    };
    assert_eq!(begins(&mut run, 5), (6, vec![]));
    says(&mut run, 5, true);
    assert!(run.attempt_without_origin().is_none(), "the report comes from an attempt that is over");
    says(&mut run, 6, true);
    assert_eq!(begins(&mut run, 4), (7, vec![5]));
    trainer_that_reads(&mut run, &job, now);
    assert_eq!(run.status().phase, RunPhase::Running);
    // The ps finds its part damaged after it has joined, while the run is under way.
    says(&mut run, 7, true);
    assert_eq!((begins(&mut run, 3), run.status().phase), ((8, vec![4, 5]), RunPhase::Gathering));
    says(&mut run, 8, false);
    let RunPhase::Failed(failure) = run.status().phase else { panic!("the run goes on") };
    assert_eq!(failure.message, "ps 0: rows are damaged");
}

/// Joins a process, whose number is another for each role and rank.
fn join(run: &mut RunState, job: &Job, role: Role, rank: u32, now: Instant) -> MemberId {
    let (job, nonce) = (job_digest(job), 1 + 10 * role as u64 + u64::from(rank));
    let request = JoinRequest { role, rank, address: Some("a:1".into()), attempt: 7, job, nonce };
    let JoinReply::Joined(member) = run.join(request, now).unwrap() else { panic!("it did not join") };
    member
}

/// Joins all processes of a run of a trainer that reads by itself, beside a ps. Returns the trainer.
fn trainer_that_reads(run: &mut RunState, job: &Job, now: Instant) -> MemberId {
    join(run, job, Role::Ps, 0, now);
    join(run, job, Role::Trainer, 0, now)
}

/// It would train on the batches of its lease a second time: its dense parameters, and with exact staleness the ps, apply them again.
#[test]
fn the_only_trainer_that_reads_keeps_its_leases_however_long_it_is_silent() {
    let (mut job, begun) = (Job::default(), Instant::now());
    job.placement.ps = 1;
    for trainers in [1, 2] {
        job.placement.trainers = trainers;
        let mut run = RunState::new(&job, 7, begun);
        let trainer = trainer_that_reads(&mut run, &job, begun);
        if trainers == 2 {
            join(&mut run, &job, Role::Trainer, 1, begun);
        }
        let data = DataPlan { epochs: 1, rows: 1 << 22, windows: 64, fingerprint: 1 };
        let lease = LeaseRequest { member: trainer, data, returned_only: false, number: 0 };
        assert!(matches!(run.lease(lease, begun).unwrap(), LeaseReply::Lease(_)));
        run.tick(begun + Duration::from_secs_f64(job.placement.lease_seconds * 2.0));
        assert_eq!(run.status().returned_leases, trainers as u64 - 1);
        assert!(!run.status().silent.is_empty(), "it is named all the same");
    }
}

/// A trainer that is told to end makes its last checkpoint when the run has just finished: that is no cut that was given up.
#[test]
fn a_cut_of_a_run_that_has_finished_is_not_given_up() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.ps, job.checkpoint.to) = (1, None);
    let mut run = RunState::new(&job, 7, now);
    let member = trainer_that_reads(&mut run, &job, now);
    run.drain(member, now).unwrap();
    assert_eq!(run.status().phase, RunPhase::Finished);
    let lead = LeadCutRequest { member, cut: 5, checkpoint: 1, step: LeadStep::Stop };
    assert_eq!(run.lead_cut(lead, now).unwrap(), LeadReply::RunEnds);
}

/// Without a trainer the run cannot end in any other way.
#[test]
fn a_run_that_is_drained_before_its_trainer_joins_ends_at_once() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.ps, job.placement.readers) = (1, 1);
    let mut run = RunState::new(&job, 7, now);
    let ps = join(&mut run, &job, Role::Ps, 0, now);
    run.drain(ps, now).unwrap();
    let RunPhase::Failed(failure) = run.status().phase else { panic!("it waits for the trainer") };
    assert!(failure.drained && failure.message.contains("no rows"), "{}", failure.message);
}

/// The data changed between two attempts: without checkpoints, the second one would have read what is left, and ended well.
#[test]
fn an_attempt_that_begins_anew_reads_the_same_data() {
    let (mut job, now) = (Job::default(), Instant::now());
    job.placement.ps = 1;
    let mut run = RunState::new(&job, 7, now);
    let trainer = trainer_that_reads(&mut run, &job, now);
    let data = DataPlan { epochs: 1, rows: 1 << 22, windows: 64, fingerprint: 1 };
    let lease = |run: &mut RunState, member, fingerprint| {
        let data = DataPlan { fingerprint, ..data.clone() };
        run.lease(LeaseRequest { member, data, returned_only: false, number: 0 }, now)
    };
    assert!(matches!(lease(&mut run, trainer, 1), Ok(LeaseReply::Lease(_))));
    let plan = PlanRequest { role: Role::Ps, rank: 0, job: job_digest(&job), nonce: 99 };
    run.plan(&plan, now).unwrap();
    assert_eq!(run.status().attempt, 8, "the ps was started again");
    let again = |role, nonce| JoinRequest {
        role,
        rank: 0,
        address: Some("a:1".into()),
        attempt: 8,
        job: job_digest(&job),
        nonce,
    };
    run.join(again(Role::Ps, 99), now).unwrap();
    let JoinReply::Joined(trainer) = run.join(again(Role::Trainer, 98), now).unwrap() else { panic!() };
    let refused = lease(&mut run, trainer, 2).unwrap_err();
    assert!(refused.domain == Domain::User && refused.to_string().contains("other data"), "{refused}");
    assert!(matches!(lease(&mut run, trainer, 1), Ok(LeaseReply::Lease(_))));
}

/// The coordinator waited a minute for a reader that had been told to end, and had ended.
#[test]
fn the_coordinator_does_not_wait_for_a_process_that_has_left() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.readers, job.checkpoint.to) = (1, None);
    let mut run = RunState::new(&job, 7, now);
    let asks = |run: &mut RunState, role, nonce| {
        run.plan(&PlanRequest { role, rank: 0, job: job_digest(&job), nonce }, now).unwrap();
    };
    asks(&mut run, Role::Trainer, 1 + 10 * Role::Trainer as u64);
    asks(&mut run, Role::Reader, 1 + 10 * Role::Reader as u64);
    let trainer = join(&mut run, &job, Role::Trainer, 0, now);
    let reader = join(&mut run, &job, Role::Reader, 0, now);
    run.leave(reader, now).unwrap();
    let failure = Failure { drained: true, ..Failure::new(Domain::External, "stopped") };
    run.fail(FailRequest { member: trainer, failure }, now).unwrap();
    assert_eq!(run.notify_timeout(), Duration::ZERO);
    // A reader that is started in its place must be told.
    let mut run = RunState::new(&job, 7, now);
    asks(&mut run, Role::Reader, 1);
    let trainer = join(&mut run, &job, Role::Trainer, 0, now);
    let reader = join(&mut run, &job, Role::Reader, 0, now);
    run.leave(reader, now).unwrap();
    asks(&mut run, Role::Reader, 2);
    let failure = Failure { drained: true, ..Failure::new(Domain::External, "stopped") };
    run.fail(FailRequest { member: trainer, failure }, now).unwrap();
    assert!(run.notify_timeout() > Duration::ZERO);
}
