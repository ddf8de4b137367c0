//! Leases and cuts at the edges of a run.

use forebay_actors::FaultKind;
use forebay_batches::RowCounts;
use forebay_job::{DenseStatistics, FeatureScale, InitialBias, StalenessRule};

use super::super::cuts::{LeadCutRequest, LeadReply, LeadStep};
use super::super::leases::DoneWindows;
use super::super::messages::{CannotStartRequest, JoinReply, JoinRequest, PlanReply, ProcessRequest};
use super::*;
use crate::columns::sampled_settings::SampledSettings;

/// A run in attempt 7 with these numbers of readers, ps and trainers. No process has joined yet.
fn begun(ps: usize, trainers: usize, readers: usize) -> (Job, RunState, Instant) {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.ps, job.placement.trainers, job.placement.readers) = (ps, trainers, readers);
    let run = RunState::new(&job, 7, now);
    (job, run, now)
}

/// The reply to a request for a lease is lost, the request is sent again, and comes once more later.
#[test]
fn a_request_for_a_lease_that_comes_again_gets_the_same_lease() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.readers, job.placement.lease_rows) = (2, 1);
    let mut run = RunState::new(&job, 7, now);
    let mut join = |role, rank: u32| {
        let (address, nonce, digest) = (Some("a:1".into()), u64::from(rank) + 1, job_digest(&job));
        run.plan(&ProcessRequest { role, rank, job: digest.clone(), nonce, made_under: None }, now).unwrap();
        let sampled_settings = SampledSettings::default();
        let join = JoinRequest { role, rank, address, attempt: 7, job: digest, nonce, sampled_settings };
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

#[test]
fn a_run_keeps_what_the_first_rows_decided_when_its_first_trainer_read_them_first() {
    let (job, mut run, now) = begun(0, 2, 1);
    let sampled_settings = |mean| {
        let statistics = Some(DenseStatistics { mean, ..DenseStatistics::default() });
        let scales = [("x".to_owned(), FeatureScale { statistics, ..FeatureScale::default() })].into();
        SampledSettings { scales, initial_bias: Some(InitialBias(vec![mean])) }
    };
    let mut join = |role, rank, nonce, mean| {
        let (address, digest) = (Some("a:1".into()), job_digest(&job));
        run.plan(&ProcessRequest { role, rank, job: digest.clone(), nonce, made_under: None }, now).unwrap();
        let request = JoinRequest {
            role,
            rank,
            address,
            attempt: 7,
            job: digest,
            nonce,
            sampled_settings: sampled_settings(mean),
        };
        let JoinReply::Joined(member) = run.join(request, now).unwrap() else { panic!("it did not join") };
        (member, run.sampled_settings(member, now))
    };
    let (reader, early) = join(Role::Reader, 0, 1, 5.0);
    assert!(early.unwrap_err().to_string().contains("no trainer has read a sample of the rows"));
    assert!(join(Role::Trainer, 1, 2, 6.0).1.is_err(), "another trainer decides nothing");
    assert_eq!(join(Role::Trainer, 0, 3, 7.0).1.unwrap(), sampled_settings(7.0));
    assert_eq!(join(Role::Trainer, 0, 4, 8.0).1.unwrap(), sampled_settings(7.0), "it was started again");
    assert_eq!(run.sampled_settings(reader, now).unwrap(), sampled_settings(7.0));
    let stranger = MemberId { attempt: 6, ..reader };
    assert_eq!(run.sampled_settings(stranger, now).unwrap_err().kind, FaultKind::RolledBack);
}

/// A damaged file costs the rows since the checkpoint before, and not the run.
#[test]
fn a_damaged_checkpoint_is_given_up_and_what_is_no_damage_ends_the_run() {
    let (mut job, now) = (Job::default(), Instant::now());
    job.placement.ps = 1;
    job.checkpoint.to = Some("checkpoints".into());
    let mut run = RunState::new(&job, 6, now);
    let says = |run: &mut RunState, attempt, damaged| {
        let kind = if damaged { FaultKind::Damaged } else { FaultKind::BadData };
        let failure = Failure { kind, ..Failure::new(Domain::User, "rows are damaged") };
        let request = CannotStartRequest { role: Role::Ps, rank: 0, attempt, failure };
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

/// A bug: one of several trainers was asked to shut down when the run had finished, and was started again. Then all rows were trained on
/// again.
#[test]
fn a_trainer_that_is_started_again_when_every_row_is_trained_on_rolls_nothing_back() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.ps, job.placement.trainers, job.placement.readers) = (1, 2, 1);
    job.checkpoint.to = Some("checkpoints".into());
    let mut run = RunState::new(&job, 7, now);
    let trainers = run_that_has_finished(&mut run, &job, now);
    run.leave(trainers[1], Vec::new(), now).unwrap();
    let again = ProcessRequest { nonce: 99, ..process(&job, Role::Trainer, 1) };
    assert_eq!(run.plan(&again, now).unwrap(), PlanReply::Wait);
    run.over(trainers[0], now).unwrap();
    assert_eq!((run.status().attempt, run.status().phase), (7, RunPhase::Over));
    run.mark_notified_if_ended(Role::Ps, 0);
    run.mark_notified_if_ended(Role::Reader, 0);
    assert!(run.notify_timeout() > Duration::ZERO, "it asks again");
    assert_eq!(run.plan(&again, now).unwrap(), PlanReply::Over);
    assert_eq!(run.notify_timeout(), Duration::ZERO);
}

/// The first trainer still has to save the model. With an exact order, the others keep gradients of rows that count as trained on.
#[test]
fn a_trainer_that_is_lost_with_what_it_still_had_to_do_begins_a_new_attempt() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.ps, job.placement.trainers, job.placement.readers) = (1, 2, 1);
    job.checkpoint.to = Some("checkpoints".into());
    for (rank, exact, attempt) in [(0, false, 8), (1, false, 7), (1, true, 8)] {
        job.train.staleness = if exact { StalenessRule::exactly(2) } else { StalenessRule::at_most(2) };
        let mut run = RunState::new(&job, 7, now);
        run_that_has_finished(&mut run, &job, now);
        run.plan(&ProcessRequest { nonce: 99, ..process(&job, Role::Trainer, rank) }, now).unwrap();
        assert_eq!(run.status().attempt, attempt, "trainer {rank}, exact: {exact}");
    }
}

/// Two trainers and a reader have trained on the only window. Returns the trainers.
fn run_that_has_finished(run: &mut RunState, job: &Job, now: Instant) -> [MemberId; 2] {
    run.set_origin(7, Origin::default());
    join(run, job, Role::Ps, 0, now);
    let trainers = [0, 1].map(|rank| join(run, job, Role::Trainer, rank, now));
    let reader = join(run, job, Role::Reader, 0, now);
    let data = DataPlan { epochs: 1, rows: 0, windows: 1, fingerprint: 1 };
    run.lease(LeaseRequest { member: reader, data, returned_only: false, number: 0 }, now).unwrap();
    let done = DoneWindows { epoch: 0, first: 0, counts: vec![RowCounts::default()] };
    run.complete(CompletedWindows { member: reader, windows: vec![done], gives_back: false }, now).unwrap();
    assert_eq!(run.status().phase, RunPhase::Finished);
    trainers
}

#[test]
fn a_member_may_say_only_what_its_role_allows() {
    let (job, mut run, now) = begun(1, 2, 1);
    let ps = join(&mut run, &job, Role::Ps, 0, now);
    let trainers = [0, 1].map(|rank| join(&mut run, &job, Role::Trainer, rank, now));
    let reader = join(&mut run, &job, Role::Reader, 0, now);
    let data = DataPlan { epochs: 1, rows: 1 << 22, windows: 64, fingerprint: 1 };
    let lease = |member| LeaseRequest { member, data: data.clone(), returned_only: false, number: 0 };
    assert!(matches!(run.lease(lease(reader), now).unwrap(), LeaseReply::Lease(_)));
    let before = run.status();
    for member in [ps, trainers[0], trainers[1]] {
        let refused = run.lease(lease(member), now).unwrap_err().to_string();
        assert!(refused.contains("asks for a lease, expected a reader"), "{refused}");
        let completed = CompletedWindows { member, windows: Vec::new(), gives_back: true };
        let refused = run.complete(completed, now).unwrap_err().to_string();
        assert!(refused.contains("has completed windows, expected a reader"), "{refused}");
    }
    let refused = run.drain(reader, now).unwrap_err().to_string();
    assert!(refused.contains("reader 0 asked to drain the run, expected a ps or a trainer"), "{refused}");
    assert_eq!(run.status(), before);
    run.drain(ps, now).unwrap();
    run.leave(reader, Vec::new(), now).unwrap();
    run.tick(now);
    assert_eq!(run.status().phase, RunPhase::Finished);
    for member in [ps, trainers[1], reader] {
        let refused = run.over(member, now).unwrap_err().to_string();
        assert!(refused.contains("says that the model is saved, expected trainer 0"), "{refused}");
    }
    assert_eq!(run.status().phase, RunPhase::Finished);
    run.over(trainers[0], now).unwrap();
    assert_eq!(run.status().phase, RunPhase::Over);
}

/// Time passes, and the coordinator looks at it. `meanwhile` is called twice a second.
fn pass(run: &mut RunState, from: Instant, seconds: f64, mut meanwhile: impl FnMut(&mut RunState, Instant)) -> Instant {
    let mut now = from;
    while now < from + Duration::from_secs_f64(seconds) {
        now += Duration::from_millis(500);
        meanwhile(run, now);
        run.tick(now);
    }
    now
}

/// What a process says of itself that runs, whether it has joined or not.
fn process(job: &Job, role: Role, rank: u32) -> ProcessRequest {
    ProcessRequest { role, rank, job: job_digest(job), nonce: 1 + 10 * role as u64 + u64::from(rank), made_under: None }
}

/// A bug: a trainer was stopped, then a ps was killed. The run waited ten minutes for the trainer to join, and failed.
#[test]
fn a_process_that_stands_still_and_has_not_joined_is_silent_and_one_that_loads_is_not() {
    let (job, mut run, begun) = begun(2, 2, 1);
    let lease = job.placement.lease_seconds;
    let places = [(Role::Ps, 0), (Role::Ps, 1), (Role::Trainer, 0), (Role::Trainer, 1), (Role::Reader, 0)];
    let alive = |of: &[usize]| {
        let said: Vec<_> = of.iter().map(|&at| process(&job, places[at].0, places[at].1)).collect();
        move |run: &mut RunState, now| {
            said.iter().for_each(|process| assert_eq!(run.alive(process, now).unwrap(), None));
        }
    };
    // Trainer 1 stands still before anybody has heard of it, and ps 1 loads.
    let now = pass(&mut run, begun, lease - 1.0, alive(&[0, 1, 2, 4]));
    assert_eq!(run.status().silent, [""; 0]);
    let now = pass(&mut run, now, 2.0, alive(&[0, 1, 2, 4]));
    assert_eq!(run.status().silent, ["trainer 1"]);
    let now = pass(&mut run, now, 1.0, alive(&[3]));
    assert_eq!(run.status().silent, [""; 0], "it was started again");
    for (role, rank) in places {
        join(&mut run, &job, role, rank, now);
    }
    assert_eq!(run.status().phase, RunPhase::Running);
    // Trainer 0 stands still, and ps 1 is started again: the run begins a new attempt, and trainer 0 does not hear it.
    let again = ProcessRequest { nonce: 99, ..process(&job, Role::Ps, 1) };
    run.plan(&again, now).unwrap();
    assert_eq!(run.status().attempt, 8);
    let rest = alive(&[0, 3, 4]);
    pass(&mut run, now, lease + 1.0, |run, now| {
        rest(run, now);
        run.alive(&again, now).unwrap();
    });
    assert_eq!(run.status().silent, ["trainer 0"]);
}

/// A bug: loading from a slow store took longer than `placement.timeout_seconds`, in every attempt.
#[test]
fn a_process_that_loads_for_longer_than_the_timeout_is_not_missing() {
    let (job, mut run, begun) = begun(2, 1, 1);
    for (role, rank) in [(Role::Ps, 0), (Role::Trainer, 0)] {
        join(&mut run, &job, role, rank, begun);
    }
    let alive = |run: &mut RunState, now| {
        for (role, rank) in [(Role::Ps, 1), (Role::Reader, 0)] {
            run.alive(&process(&job, role, rank), now).unwrap();
        }
    };
    let now = pass(&mut run, begun, job.placement.timeout_seconds * 2.0, alive);
    assert_eq!(run.status().phase, RunPhase::Gathering);
    // Then it dies.
    let now = pass(&mut run, now, job.placement.timeout_seconds - 1.0, |_, _| {});
    assert_eq!(run.status().phase, RunPhase::Gathering);
    pass(&mut run, now, 2.0, |_, _| {});
    let RunPhase::Failed(failure) = run.status().phase else { panic!("it waits forever") };
    assert!(failure.message.starts_with("ps 1, any reader did not join within 600 s"), "{}", failure.message);
}

#[test]
fn a_coordinator_that_stood_still_takes_nobody_for_silent() {
    let (job, mut run, begun) = begun(1, 2, 1);
    let lease = job.placement.lease_seconds;
    for (role, rank) in [(Role::Ps, 0), (Role::Trainer, 0), (Role::Reader, 0)] {
        join(&mut run, &job, role, rank, begun);
    }
    let now = begun + Duration::from_secs_f64(lease * 3.0);
    run.tick(now);
    assert_eq!(run.status().silent, [""; 0]);
    pass(&mut run, now, lease + 1.0, |_, _| {});
    assert_eq!(run.status().silent, ["ps 0", "trainer 0", "trainer 1", "reader 0"]);
}

/// A bug: a run whose other trainers did all the work failed after `placement.timeout_seconds`.
#[test]
fn a_silent_trainer_ends_the_run_only_if_the_others_do_not_go_on_without_it() {
    let (mut job, begun) = (Job::default(), Instant::now());
    (job.placement.ps, job.placement.trainers, job.placement.readers) = (1, 2, 1);
    (job.placement.lease_rows, job.placement.lease_seconds, job.placement.timeout_seconds) = (1 << 22, 5.0, 60.0);
    job.train.staleness = StalenessRule::at_most(2);
    let failed = |run: &RunState| match run.status().phase {
        RunPhase::Failed(failure) => Some(failure.message),
        _ => None,
    };
    for (checkpoints, expected) in [
        (None, ["trainer 1 sent no heartbeat for 22", " s, and no window was done for 6"]),
        (Some("checkpoints"), ["trainer 1 sent no heartbeat for 6", " s (placement.timeout_seconds)"]),
    ] {
        job.checkpoint.to = checkpoints.map(Into::into);
        let mut run = RunState::new(&job, 7, begun);
        run.set_origin(7, Origin::default());
        let alive = [(Role::Ps, 0), (Role::Trainer, 0), (Role::Reader, 0)];
        let alive = alive.map(|(role, rank)| join(&mut run, &job, role, rank, begun));
        join(&mut run, &job, Role::Trainer, 1, begun);
        let reader = alive[2];
        let says = |run: &mut RunState, now| alive.iter().for_each(|&member| run.heartbeat(member, now).unwrap());
        let data = DataPlan { epochs: 1, rows: 0, windows: 64, fingerprint: 1 };
        let request = LeaseRequest { member: reader, data, returned_only: false, number: 0 };
        let LeaseReply::Lease(lease) = run.lease(request, begun).unwrap() else { panic!("no lease") };
        assert_eq!(lease.windows, 0..8);
        let mut now = begun;
        for first in lease.windows {
            now = pass(&mut run, now, 20.0, says);
            let done = DoneWindows { epoch: 0, first, counts: vec![RowCounts::default()] };
            run.complete(CompletedWindows { member: reader, windows: vec![done], gives_back: false }, now).unwrap();
        }
        assert_eq!(failed(&run).is_none(), checkpoints.is_none(), "{checkpoints:?}");
        pass(&mut run, now, 62.0, says);
        let message = failed(&run).unwrap();
        assert!(expected.iter().all(|words| message.contains(words)), "{message}");
    }
}

/// It waited for the model to be saved, and not for a trainer that has nothing left to do.
#[test]
fn a_run_that_has_finished_does_not_fail_for_a_trainer_that_it_no_longer_needs() {
    let (mut job, begun) = (Job::default(), Instant::now());
    (job.placement.ps, job.placement.trainers, job.placement.readers) = (1, 2, 1);
    job.train.staleness = StalenessRule::at_most(2);
    for silent in [0, 1] {
        let mut run = RunState::new(&job, 7, begun);
        let trainers = run_that_has_finished(&mut run, &job, begun);
        let ps = MemberId { role: Role::Ps, rank: 0, incarnation: 1, attempt: 7 };
        let alive = [ps, trainers[1 - silent]];
        pass(&mut run, begun, job.placement.timeout_seconds + 10.0, |run, now| {
            alive.iter().for_each(|&member| run.heartbeat(member, now).unwrap());
        });
        let fails = matches!(run.status().phase, RunPhase::Failed(_));
        assert_eq!(fails, silent == 0, "trainer {silent}");
    }
}

#[test]
fn a_process_that_has_left_is_not_silent_and_its_successor_may_be() {
    let (job, mut run, begun) = begun(1, 1, 1);
    let reader = join(&mut run, &job, Role::Reader, 0, begun);
    run.leave(reader, Vec::new(), begun).unwrap();
    let others = |run: &mut RunState, now| {
        for (role, rank) in [(Role::Ps, 0), (Role::Trainer, 0)] {
            run.alive(&process(&job, role, rank), now).unwrap();
        }
    };
    let now = pass(&mut run, begun, job.placement.lease_seconds + 1.0, others);
    assert_eq!(run.status().silent, [""; 0]);
    run.alive(&ProcessRequest { nonce: 99, ..process(&job, Role::Reader, 0) }, now).unwrap();
    pass(&mut run, now, job.placement.lease_seconds + 1.0, others);
    assert_eq!(run.status().silent, ["reader 0"]);
}

/// Joins a process, whose number is another for each role and rank.
fn join(run: &mut RunState, job: &Job, role: Role, rank: u32, now: Instant) -> MemberId {
    let (job, nonce) = (job_digest(job), 1 + 10 * role as u64 + u64::from(rank));
    let (address, sampled_settings) = (Some("a:1".into()), SampledSettings::default());
    let request = JoinRequest { role, rank, address, attempt: 7, job, nonce, sampled_settings };
    let JoinReply::Joined(member) = run.join(request, now).unwrap() else { panic!("it did not join") };
    member
}

/// Joins all processes of a run of a trainer that reads by itself, beside a ps. Returns the trainer.
fn trainer_that_reads(run: &mut RunState, job: &Job, now: Instant) -> MemberId {
    join(run, job, Role::Ps, 0, now);
    join(run, job, Role::Trainer, 0, now)
}

/// The rows of the open window count, and those that readers have read ahead do not.
#[test]
fn a_run_whose_only_trainer_stops_early_is_finished_until_a_process_with_state_is_lost() {
    let (job, mut run, now) = begun(1, 1, 1);
    let trainer = trainer_that_reads(&mut run, &job, now);
    let reader = join(&mut run, &job, Role::Reader, 0, now);
    let data = DataPlan { epochs: 2, rows: 1 << 22, windows: 64, fingerprint: 1 };
    let lease = |number| LeaseRequest { member: reader, data: data.clone(), returned_only: false, number };
    assert!(matches!(run.lease(lease(0), now).unwrap(), LeaseReply::Lease(_)));
    let trained = RowCounts { trained: 70_000, rejected: 0, batches: 9 };
    let of = |member| StopEarlyRequest { member, trained };
    let said = run.stop_early(of(reader), now).unwrap_err().to_string();
    assert!(said.contains("reader 0 stops the training early, expected the only trainer"), "{said}");
    assert!(run.status().phase == RunPhase::Running && !run.status().stopped_early);
    run.stop_early(of(trainer), now).unwrap();
    run.stop_early(of(trainer), now).unwrap();
    let status = run.status();
    assert_eq!((status.phase.clone(), status.stopped_early, status.counts), (RunPhase::Finished, true, trained));
    assert!(status.windows_done < status.windows_total);
    assert_eq!(run.lease(lease(1), now).unwrap(), LeaseReply::Finished);
    let again = ProcessRequest { role: Role::Ps, rank: 0, job: job_digest(&job), nonce: 99, made_under: None };
    run.plan(&again, now).unwrap();
    assert_eq!(
        (run.status().phase, run.status().stopped_early),
        (RunPhase::Gathering, false),
        "it begins a new attempt"
    );
    // Trainers that take their own steps do not evaluate.
    let (job, mut run, now) = begun(1, 2, 0);
    let first = trainer_that_reads(&mut run, &job, now);
    assert!(run.stop_early(of(first), now).unwrap_err().to_string().contains("trainer 0 stops the training early"));
}

/// Otherwise it would train on the batches of its lease a second time: its dense parameters, and with exact staleness the ps, would apply
/// them again.
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
        pass(&mut run, begun, job.placement.lease_seconds * 2.0, |_, _| {});
        assert_eq!(run.status().returned_leases, trainers as u64 - 1);
        assert!(!run.status().silent.is_empty(), "it is named all the same");
    }
}

/// A trainer that is asked to shut down makes its last checkpoint when the run has just finished: that is no cut that was given up.
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
    let (job, mut run, now) = begun(1, 1, 1);
    let ps = join(&mut run, &job, Role::Ps, 0, now);
    run.drain(ps, now).unwrap();
    let RunPhase::Failed(failure) = run.status().phase else { panic!("it waits for the trainer") };
    assert!(failure.kind == FaultKind::Drained && failure.message.contains("no rows"), "{}", failure.message);
}

/// A bug: a run that was drained before the coordinator had found the checkpoint said that it has trained on no rows.
#[test]
fn a_run_that_is_drained_says_what_it_continues_from_as_far_as_that_is_known() {
    let (mut job, now) = (Job::default(), Instant::now());
    job.placement.ps = 1;
    job.checkpoint.to = Some("checkpoints".into());
    let found = |number| Some(Origin { checkpoint: number, ..Origin::default() });
    for (origin, words) in [
        (None, "--resume continues from the newest checkpoint, if there is one"),
        (found(Some(OriginCheckpoint::own(5))), "--resume continues from checkpoint 5"),
        (found(None), "stopped before the first checkpoint: the run has trained on no rows"),
    ] {
        let mut run = RunState::new(&job, 7, now);
        if let Some(origin) = origin {
            run.set_origin(7, origin);
        }
        run.begin_drain();
        let RunPhase::Failed(failure) = run.status().phase else { panic!("it waits: {words}") };
        assert!(failure.kind == FaultKind::Drained && failure.message.contains(words), "{}", failure.message);
    }
}

/// A bug: a run of several processes ended without a checkpoint and without a model.
#[test]
fn a_drain_whose_last_checkpoint_cannot_be_written_ends_as_one_without_checkpoints() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.ps, job.placement.readers, job.checkpoint.to) = (1, 1, Some("checkpoints".into()));
    let mut run = RunState::new(&job, 7, now);
    run.set_origin(7, Origin::default());
    let (ps, trainer) = (join(&mut run, &job, Role::Ps, 0, now), join(&mut run, &job, Role::Trainer, 0, now));
    let reader = join(&mut run, &job, Role::Reader, 0, now);
    let data = DataPlan { epochs: 1, rows: 1 << 22, windows: 64, fingerprint: 1 };
    let lease = |run: &mut RunState, number| {
        run.lease(LeaseRequest { member: reader, data: data.clone(), returned_only: false, number }, now).unwrap()
    };
    assert!(matches!(lease(&mut run, 0), LeaseReply::Lease(_)));
    run.drain(ps, now).unwrap();
    assert_eq!(lease(&mut run, 1), LeaseReply::Wait, "the trainer makes a checkpoint");
    assert!(run.status().phase == RunPhase::Draining && !run.status().begins_no_windows(true));
    for member in [ps, reader] {
        let refused = run.drain_without_checkpoint(member, now).unwrap_err().to_string();
        assert!(refused.contains("says that the last checkpoint cannot be written, expected trainer 0"), "{refused}");
    }
    run.drain_without_checkpoint(trainer, now).unwrap();
    assert!(run.status().phase == RunPhase::Draining && run.status().begins_no_windows(true));
    let lead = LeadCutRequest { member: trainer, cut: 5, checkpoint: 1, step: LeadStep::Stop };
    assert_eq!(run.lead_cut(lead, now).unwrap(), LeadReply::RunEnds);
    assert_eq!(lease(&mut run, 2), LeaseReply::Finished);
    // The windows that the reader has begun are done, and it gives the rest back.
    let gives_back = CompletedWindows { member: reader, windows: Vec::new(), gives_back: true };
    run.complete(gives_back, now).unwrap();
    assert_eq!(run.status().phase, RunPhase::Finished);
    run.drain_without_checkpoint(trainer, now).unwrap();
    run.over(trainer, now).unwrap();
    assert_eq!(run.status().phase, RunPhase::Over);
}

/// The two requests of a trainer overtake each other. A new attempt ends with what its checkpoint has.
#[test]
fn that_the_last_checkpoint_cannot_be_written_drains_the_run_and_counts_in_its_attempt_only() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.ps, job.checkpoint.to) = (1, Some("checkpoints".into()));
    let mut run = RunState::new(&job, 7, now);
    run.set_origin(7, Origin::default());
    let trainer = trainer_that_reads(&mut run, &job, now);
    let data = DataPlan { epochs: 1, rows: 1 << 22, windows: 64, fingerprint: 1 };
    run.lease(LeaseRequest { member: trainer, data, returned_only: false, number: 0 }, now).unwrap();
    run.drain_without_checkpoint(trainer, now).unwrap();
    run.drain(trainer, now).unwrap();
    assert!(run.status().phase == RunPhase::Draining && run.status().without_checkpoint);
    let ps = ProcessRequest { role: Role::Ps, rank: 0, job: job_digest(&job), nonce: 99, made_under: None };
    run.plan(&ps, now).unwrap();
    assert!(run.status().attempt == 8 && !run.status().without_checkpoint, "the ps was started again");
    assert_eq!(run.drain_without_checkpoint(trainer, now).unwrap_err().kind, FaultKind::RolledBack);
    run.set_origin(8, Origin::default());
    let RunPhase::Failed(failure) = run.status().phase else { panic!("it goes on") };
    assert!(failure.kind == FaultKind::Drained, "{}", failure.message);
}

/// A bug: the data changed between two attempts. Without checkpoints, the second attempt read the data that was left, and ended without a
/// fault.
#[test]
fn a_new_attempt_reads_the_same_data() {
    let (job, mut run, now) = begun(1, 1, 0);
    let trainer = trainer_that_reads(&mut run, &job, now);
    let data = DataPlan { epochs: 1, rows: 1 << 22, windows: 64, fingerprint: 1 };
    let lease = |run: &mut RunState, member, fingerprint| {
        let data = DataPlan { fingerprint, ..data.clone() };
        run.lease(LeaseRequest { member, data, returned_only: false, number: 0 }, now)
    };
    assert!(matches!(lease(&mut run, trainer, 1), Ok(LeaseReply::Lease(_))));
    let plan = ProcessRequest { role: Role::Ps, rank: 0, job: job_digest(&job), nonce: 99, made_under: None };
    run.plan(&plan, now).unwrap();
    assert_eq!(run.status().attempt, 8, "the ps was started again");
    let again = |role, nonce| JoinRequest {
        role,
        rank: 0,
        address: Some("a:1".into()),
        attempt: 8,
        job: job_digest(&job),
        nonce,
        sampled_settings: SampledSettings::default(),
    };
    run.join(again(Role::Ps, 99), now).unwrap();
    let JoinReply::Joined(trainer) = run.join(again(Role::Trainer, 98), now).unwrap() else { panic!() };
    let refused = lease(&mut run, trainer, 2).unwrap_err();
    assert!(refused.domain == Domain::User && refused.to_string().contains("other data"), "{refused}");
    assert!(matches!(lease(&mut run, trainer, 1), Ok(LeaseReply::Lease(_))));
}

/// A bug: the coordinator waited a minute for a reader that had been asked to shut down, and had ended.
#[test]
fn the_coordinator_does_not_wait_for_a_process_that_has_left() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.readers, job.checkpoint.to) = (1, None);
    let mut run = RunState::new(&job, 7, now);
    let asks = |run: &mut RunState, role, nonce| {
        run.plan(&ProcessRequest { role, rank: 0, job: job_digest(&job), nonce, made_under: None }, now).unwrap();
    };
    asks(&mut run, Role::Trainer, 1 + 10 * Role::Trainer as u64);
    asks(&mut run, Role::Reader, 1 + 10 * Role::Reader as u64);
    let trainer = join(&mut run, &job, Role::Trainer, 0, now);
    let reader = join(&mut run, &job, Role::Reader, 0, now);
    run.leave(reader, Vec::new(), now).unwrap();
    let failure = Failure::drained("stopped");
    run.fail(FailRequest { member: trainer, failure }, now).unwrap();
    assert_eq!(run.notify_timeout(), Duration::ZERO);
    // A reader that is started in its place must be told.
    let mut run = RunState::new(&job, 7, now);
    asks(&mut run, Role::Reader, 1);
    let trainer = join(&mut run, &job, Role::Trainer, 0, now);
    let reader = join(&mut run, &job, Role::Reader, 0, now);
    run.leave(reader, Vec::new(), now).unwrap();
    asks(&mut run, Role::Reader, 2);
    let failure = Failure::drained("stopped");
    run.fail(FailRequest { member: trainer, failure }, now).unwrap();
    assert!(run.notify_timeout() > Duration::ZERO);
    // It is killed, and its parent process says so.
    run.has_ended(Role::Reader, 0);
    assert_eq!(run.notify_timeout(), Duration::ZERO);
}

/// A bug: the coordinator ended while a reader was about to join, and the reader waited for it for `placement.timeout_seconds`.
#[test]
fn the_coordinator_waits_for_a_process_that_is_about_to_join_when_the_run_is_over() {
    let (job, mut run, now) = begun(0, 1, 2);
    let trainer = join(&mut run, &job, Role::Trainer, 0, now);
    let reader = join(&mut run, &job, Role::Reader, 0, now);
    let late = ProcessRequest { role: Role::Reader, rank: 1, job: job_digest(&job), nonce: 77, made_under: None };
    run.plan(&late, now).unwrap();
    run.leave(reader, Vec::new(), now).unwrap();
    run.phase = RunPhase::Finished;
    run.over(trainer, now).unwrap();
    assert!(run.notify_timeout() > Duration::ZERO, "reader 1 knows of no end");
    let request = JoinRequest {
        role: Role::Reader,
        rank: 1,
        address: None,
        attempt: 7,
        job: job_digest(&job),
        nonce: 77,
        sampled_settings: SampledSettings::default(),
    };
    let JoinReply::Joined(late) = run.join(request, now).unwrap() else { panic!("it did not join") };
    assert!(run.notify_timeout() > Duration::ZERO, "it joins, and asks for the status");
    run.heartbeat(late, now).unwrap();
    run.mark_notified_if_ended(late.role, late.rank);
    assert_eq!((run.status().phase, run.notify_timeout()), (RunPhase::Over, Duration::ZERO));
}

#[test]
fn a_reader_is_refused_alone_where_the_trainers_read() {
    let (job, mut run, now) = begun(1, 1, 0);
    join(&mut run, &job, Role::Ps, 0, now);
    join(&mut run, &job, Role::Trainer, 0, now);
    let before = run.status();
    let address = Some("a:1".into());
    let sampled_settings = SampledSettings::default();
    let request = JoinRequest {
        role: Role::Reader,
        rank: 0,
        address,
        attempt: 7,
        job: job_digest(&job),
        nonce: 99,
        sampled_settings,
    };
    let refused = run.join(request, now).unwrap_err().to_string();
    assert!(refused.contains("placement.readers is 0"), "{refused}");
    assert_eq!(run.status(), before, "the run goes on");
}

/// A bug: a process that was asked to shut down before it had joined told only some coordinators, and the run ended ten seconds late.
#[test]
fn the_end_of_a_run_that_is_stopped_before_it_begins_waits_for_no_process_that_has_gone() {
    let (job, mut run, now) = begun(2, 1, 1);
    let ps = join(&mut run, &job, Role::Ps, 0, now);
    let gone = [(Role::Ps, 1), (Role::Trainer, 0), (Role::Reader, 0)].map(|(role, rank)| process(&job, role, rank));
    gone.iter().for_each(|process| drop(run.plan(process, now).unwrap()));
    gone.iter().for_each(|process| run.gone(process, now).unwrap());
    assert_eq!(run.status().phase, RunPhase::Gathering, "they may be started again");
    run.drain(ps, now).unwrap();
    assert!(matches!(run.status().phase, RunPhase::Failed(failure) if failure.kind == FaultKind::Drained));
    run.mark_notified_if_ended(ps.role, ps.rank);
    assert_eq!(run.notify_timeout(), Duration::ZERO);
    // One that is started again asks, and hears it.
    let again = ProcessRequest { nonce: 99, ..gone[2].clone() };
    run.alive(&again, now).unwrap();
    run.gone(&gone[2], now).unwrap();
    assert!(matches!(run.plan(&again, now).unwrap(), PlanReply::Failed(_)));
}

/// A bug: `launch` waited ten minutes for a ps that was asked to shut down before it had joined, and fourteen seconds for such a first
/// trainer.
#[test]
fn a_run_that_cannot_begin_without_a_process_that_has_ended_for_good_ends_at_once() {
    for ended in [(Role::Ps, 1), (Role::Trainer, 0), (Role::Trainer, 1)] {
        let (mut job, _, now) = begun(2, 2, 1);
        job.train.sync = true;
        let mut run = RunState::new(&job, 7, now);
        let ps = join(&mut run, &job, Role::Ps, 0, now);
        let reader = join(&mut run, &job, Role::Reader, 0, now);
        run.has_ended(Role::Reader, 1);
        assert_eq!(run.status().phase, RunPhase::Gathering, "it begins without a reader that the job does not name");
        run.has_ended(ended.0, ended.1);
        let RunPhase::Failed(failure) = run.status().phase else { panic!("it waits for {ended:?}") };
        assert!(failure.kind == FaultKind::Drained, "{}", failure.message);
        [ps, reader].iter().for_each(|member| run.mark_notified_if_ended(member.role, member.rank));
        assert_eq!(run.notify_timeout(), Duration::from_secs(2), "the last process was never heard of");
    }
}

#[test]
fn a_run_under_way_ends_without_a_ps_and_drains_without_a_trainer_of_its_steps() {
    let (mut job, _, now) = begun(1, 2, 1);
    job.train.sync = true;
    for ended in [(Role::Ps, 0), (Role::Trainer, 0), (Role::Trainer, 1)] {
        let mut run = RunState::new(&job, 7, now);
        for (role, rank) in [(Role::Ps, 0), (Role::Trainer, 0), (Role::Trainer, 1)] {
            join(&mut run, &job, role, rank, now);
        }
        let reader = join(&mut run, &job, Role::Reader, 0, now);
        let data = DataPlan { epochs: 1, rows: 1 << 22, windows: 64, fingerprint: 1 };
        run.lease(LeaseRequest { member: reader, data, returned_only: false, number: 0 }, now).unwrap();
        run.has_ended(ended.0, ended.1);
        match run.status().phase {
            RunPhase::Draining => assert_eq!(ended, (Role::Trainer, 1)),
            RunPhase::Failed(failure) => {
                assert!(failure.kind == FaultKind::Drained && ended != (Role::Trainer, 1), "{}", failure.message)
            }
            phase => panic!("{ended:?}: {phase:?}"),
        }
    }
}

/// It says so several times, also when the run goes on, and when it has ended.
#[test]
fn a_run_goes_on_without_processes_that_have_left_and_ended() {
    let (mut job, _, now) = begun(1, 2, 1);
    job.train.staleness = StalenessRule::at_most(1);
    let mut run = RunState::new(&job, 7, now);
    join(&mut run, &job, Role::Ps, 0, now);
    let trainers = [0, 1].map(|rank| join(&mut run, &job, Role::Trainer, rank, now));
    let reader = join(&mut run, &job, Role::Reader, 0, now);
    assert!(run.leaving(trainers[1], now).unwrap());
    run.leave(trainers[1], Vec::new(), now).unwrap();
    run.leave(reader, Vec::new(), now).unwrap();
    for (role, rank) in [(Role::Trainer, 1), (Role::Reader, 0)] {
        run.has_ended(role, rank);
        assert_eq!(run.status().phase, RunPhase::Running, "{role} {rank}");
    }
    run.phase = RunPhase::Over;
    run.has_ended(Role::Trainer, 0);
    assert_eq!(run.status().phase, RunPhase::Over);
}

/// A bug: the coordinator waited ten seconds for processes that had looked into the folder themselves.
#[test]
fn a_coordinator_that_finds_its_run_finished_waits_only_for_processes_that_have_asked() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.ps, job.placement.readers) = (2, 1);
    job.checkpoint.to = Some("checkpoints".into());
    let mut run = RunState::new(&job, 7, now);
    let reader = process(&job, Role::Reader, 0);
    assert_eq!(run.plan(&reader, now).unwrap(), PlanReply::Wait, "the coordinator still looks");
    run.was_over_before();
    assert!(run.notify_timeout() > Duration::ZERO, "the reader asks again");
    assert_eq!(run.plan(&reader, now).unwrap(), PlanReply::Over);
    assert_eq!(run.notify_timeout(), Duration::ZERO);
}

/// A bug: a trainer that joined a run under way, and lost a disk before its first batch, ended the run.
#[test]
fn a_trainer_that_leaves_before_its_first_batch_is_replaced_without_a_new_attempt() {
    let (mut job, now) = (Job::default(), Instant::now());
    (job.placement.ps, job.placement.trainers, job.placement.readers) = (1, 2, 1);
    (job.checkpoint.to, job.train.staleness) = (Some("checkpoints".into()), StalenessRule::at_most(1));
    let mut run = RunState::new(&job, 7, now);
    run.set_origin(7, Origin::default());
    for (role, rank) in [(Role::Ps, 0), (Role::Trainer, 0), (Role::Reader, 0)] {
        join(&mut run, &job, role, rank, now);
    }
    let late = join(&mut run, &job, Role::Trainer, 1, now);
    assert_eq!(run.status().phase, RunPhase::Running);
    run.leave(late, Vec::new(), now).unwrap();
    let again = ProcessRequest { nonce: 99, ..process(&job, Role::Trainer, 1) };
    assert!(matches!(run.plan(&again, now).unwrap(), PlanReply::Plan { attempt: 7, .. }));
    assert_eq!((run.status().attempt, run.status().phase), (7, RunPhase::Running));
}
