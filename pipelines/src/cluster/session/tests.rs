//! How a process ends, with a real coordinator behind a real server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::Domain;
use forebay_job::StalenessRule;
use forebay_net::{Caller, Handler, Identity, Limits, Security};

use super::super::messages::{FailRequest, Failure, JoinReply, JoinRequest, MemberId, job_digest};
use super::*;
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;

/// A coordinator, and the kinds of the requests that it gets.
struct Recorded {
    coordinator: Coordinator,
    kinds: Mutex<Vec<String>>,
}

impl Recorded {
    fn has(&self, kind: &str) -> bool {
        self.kinds.lock().unwrap().iter().any(|asked| asked == kind)
    }
}

#[async_trait]
impl Handler for Recorded {
    fn name(&self) -> &'static str {
        self.coordinator.name()
    }

    fn takes_any_attempt(&self) -> bool {
        true
    }

    fn actions(&self) -> Vec<(String, String)> {
        self.coordinator.actions()
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        self.kinds.lock().unwrap().push(kind.to_owned());
        self.coordinator.action(caller, kind, body).await
    }
}

/// A run with a ps and two trainers, behind a server in this process. The second trainer may leave.
struct TestRun {
    io: IoRuntime,
    job: Job,
    recorded: Arc<Recorded>,
    server: Server,
}

impl TestRun {
    fn start(checkpoints: Option<&str>) -> Self {
        let mut job = Job::default();
        job.checkpoint.to = checkpoints.map(str::to_owned);
        (job.placement.ps, job.placement.trainers, job.placement.readers) = (1, 2, 1);
        job.train.staleness = StalenessRule::at_most(1);
        let io = IoRuntime::new("test", 2);
        let recorded = Recorded { coordinator: Coordinator::new(&job, 7), kinds: Mutex::default() };
        let recorded = Arc::new(recorded);
        let identity = Identity { run: "run".into(), role: "ps 0".into(), incarnation: 0, attempt: 0 };
        let handlers: Vec<Arc<dyn Handler>> = vec![Arc::clone(&recorded) as _];
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = io.block_on(async {
            let (none, limits) = (Security::default(), Limits::default());
            Server::start(&io, at, &none, identity, &limits, handlers, Health::new()).await.unwrap()
        });
        Self { io, job, recorded, server }
    }

    fn process(&self, role: Role, rank: u32) -> ClusterProcess {
        ClusterProcess::new(ProcessConfig {
            role,
            rank,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            coordinator: self.server.address().to_string(),
            run: "run".into(),
            security: SecurityFiles::default(),
            resume: false,
            drains: false,
            has_checkpoints: false,
            supervised: false,
        })
    }

    fn join(&self, process: &ClusterProcess) -> Result<ClusterSession, Fault> {
        ClusterSession::join(&Context::default(), process, &self.job, Vec::new(), |_| Ok(SampledSettings::default()))
    }

    /// Sends a request as the process of this place.
    fn says<R: serde::de::DeserializeOwned>(
        &self,
        role: Role,
        rank: u32,
        kind: &str,
        body: &impl serde::Serialize,
    ) -> R {
        let identity = Identity { run: "run".into(), role: format!("{role} {rank}"), incarnation: 0, attempt: 7 };
        let caller = Caller { peer: ([127, 0, 0, 1], 1).into(), identity: Some(identity) };
        let body = serde_json::to_vec(body).unwrap().into();
        let answer = self.io.block_on(self.recorded.coordinator.action(&caller, kind, body)).unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    /// Joins without a session.
    fn member(&self, role: Role, rank: u32) -> MemberId {
        let (address, job) = (Some("127.0.0.1:1".into()), job_digest(&self.job));
        let (nonce, sampled_settings) = (1000 + u64::from(rank), SampledSettings::default());
        let join = JoinRequest { role, rank, address, attempt: 7, job, nonce, sampled_settings };
        match self.says(role, rank, "join", &join) {
            JoinReply::Joined(member) => member,
            other => panic!("{other:?}"),
        }
    }

    fn status(&self) -> RunStatus {
        self.says(Role::Ps, 0, "status", &())
    }
}

fn disk() -> Fault {
    Fault::external("a disk is gone")
}

/// A bug: a trainer tried for five seconds to report the end of the run to the coordinator, which had told it and had ended.
#[test]
fn a_process_that_knows_how_the_run_has_ended_does_not_report_it() {
    let run = TestRun::start(None);
    let first = run.member(Role::Trainer, 0);
    let process = run.process(Role::Trainer, 1);
    let session = run.join(&process).unwrap();
    let failure = Failure::drained("stopped");
    run.says::<()>(Role::Trainer, 0, "fail", &FailRequest { member: first, failure });
    let ended = run.io.block_on(session.member.wait_until(|_| false)).unwrap_err();
    for fault in [session.fail(ended), session.fail(disk()), session.cannot_start(disk())] {
        assert_ne!(fault.kind, FaultKind::RolledBack, "{fault}");
    }
    session.leave();
    assert!(!run.recorded.has("fail") && !run.recorded.has("leave"), "{:?}", run.recorded.kinds);
}

/// A process that takes the damage for its own asks for a plan again, and the coordinator may have ended by then.
#[test]
fn a_failure_keeps_its_kind_in_other_processes_and_damage_of_another_one_is_not_their_own() {
    for kind in [FaultKind::NonFinite, FaultKind::Damaged] {
        let run = TestRun::start(None);
        let first = run.member(Role::Trainer, 0);
        let process = run.process(Role::Trainer, 1);
        let session = run.join(&process).unwrap();
        let failure = Failure::of(&Fault::user("a fault of trainer 0").kind(kind));
        run.says::<()>(Role::Trainer, 0, "fail", &FailRequest { member: first, failure });
        let ended = run.io.block_on(session.member.wait_until(|_| false)).unwrap_err();
        assert_eq!((ended.domain, ended.kind), (Domain::User, kind), "{ended}");
        let fault = session.cannot_start(ended);
        assert_eq!((fault.kind, fault.to_string()), (kind, "trainer 0: a fault of trainer 0".to_owned()));
        assert!(!run.recorded.has("cannot_start"), "{:?}", run.recorded.kinds);
        session.leave();
    }
}

/// A bug: it ended the run.
#[test]
fn a_trainer_that_may_leave_and_cannot_start_leaves_and_the_run_goes_on() {
    let run = TestRun::start(None);
    for (role, rank) in [(Role::Ps, 0), (Role::Trainer, 0), (Role::Reader, 0)] {
        run.member(role, rank);
    }
    let process = run.process(Role::Trainer, 1);
    let session = run.join(&process).unwrap();
    assert_eq!(run.status().phase, RunPhase::Running);
    assert_eq!(session.cannot_start(disk()).to_string(), disk().to_string());
    let status = run.status();
    assert!(status.phase == RunPhase::Running && status.trainers[1].is_none(), "{status:?}");
    // Another process has the same job, and would find the same fault.
    let process = run.process(Role::Trainer, 1);
    let session = run.join(&process).unwrap();
    session.cannot_start(Fault::user("the job is wrong"));
    assert!(matches!(run.status().phase, RunPhase::Failed(_)));
}

/// A bug: it waited for `placement.timeout_seconds`.
#[test]
fn a_trainer_that_is_asked_to_shut_down_before_it_has_reached_the_ps_gives_up_and_the_run_goes_on_if_it_can() {
    let ends = |rank: u32| {
        let run = TestRun::start(None);
        for (role, rank) in [(Role::Ps, 0), (Role::Trainer, 1 - rank), (Role::Reader, 0)] {
            run.member(role, rank);
        }
        let told = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&told);
        let process = run.process(Role::Trainer, rank).stopped_by(move || stop.load(Ordering::SeqCst));
        let session = run.join(&process).unwrap();
        told.store(true, Ordering::SeqCst);
        let unreached = session.connect::<()>(std::future::pending()).unwrap_err();
        assert_eq!(session.cannot_start(unreached).kind, FaultKind::Drained);
        run.status().phase
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| ends(1));
        let phase = ends(0);
        assert!(matches!(&phase, RunPhase::Failed(failure) if failure.kind == FaultKind::Drained), "{phase:?}");
        assert_eq!(second.join().unwrap(), RunPhase::Running);
    });
}

/// A bug: only a trainer that may leave said so, and the coordinator waited for the others at the end.
#[test]
fn every_process_that_is_asked_to_shut_down_before_it_has_joined_says_so() {
    for role in [Role::Trainer, Role::Reader] {
        // A coordinator that looks for its newest checkpoint has no plan yet.
        let run = TestRun::start(Some("checkpoints"));
        let says_so = |_| {
            let process = run.process(role, 0).stopped_by(|| true);
            let fault = run.join(&process).err().unwrap();
            assert_eq!(fault.kind, FaultKind::Drained, "{fault}");
            run.recorded.has("gone")
        };
        // It does not wait long for a coordinator that does not answer, and this one may stand still.
        assert!((0..20).any(says_so), "{role}: {:?}", run.recorded.kinds);
    }
}
