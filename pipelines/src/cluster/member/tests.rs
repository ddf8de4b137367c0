//! A process joins while the process of the coordinator dies: real coordinators behind real servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_connectors::{DataPlan, Leases as _};
use forebay_net::{Caller, Dialer, Handler, Health, Identity, Limits, Security, Server};
use tokio::sync::Notify;

use super::super::coordinator::Coordinator;
use super::super::lease_client::LeaseClient;
use super::super::messages::job_digest;
use super::*;
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;

/// A coordinator whose process dies before it answers a request of this kind.
struct Dies {
    coordinator: Coordinator,
    kind: &'static str,
    /// The requests of this kind that it answers before.
    answers: AtomicUsize,
    asked: Arc<Notify>,
}

impl Dies {
    fn before(coordinator: &Coordinator, kind: &'static str, answers: usize) -> (Self, Arc<Notify>) {
        let (coordinator, asked) = (coordinator.clone(), Arc::new(Notify::new()));
        (Self { coordinator, kind, answers: AtomicUsize::new(answers), asked: Arc::clone(&asked) }, asked)
    }
}

/// Reader 0 joins the attempt 7.
fn joins(job: &Job) -> JoinRequest {
    let (role, sampled_settings) = (Role::Reader, SampledSettings::default());
    JoinRequest { role, rank: 0, address: None, attempt: 7, job: job_digest(job), nonce: 99, sampled_settings }
}

#[async_trait]
impl Handler for Dies {
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
        if kind == self.kind {
            let left = self.answers.load(Ordering::SeqCst);
            if left == 0 {
                self.asked.notify_one();
                std::future::pending::<()>().await;
            }
            self.answers.store(left - 1, Ordering::SeqCst);
        }
        self.coordinator.action(caller, kind, body).await
    }
}

/// An address whose port the kernel chooses, and gives to no other process while no server has it: no other process uses this address.
fn own_address() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 77, high, low], 0))
}

fn never_over(job: &Job) -> OverBefore {
    OverBefore::new(job, false, &Context::default())
}

async fn serve(io: &IoRuntime, at: SocketAddr, handler: Arc<dyn Handler>) -> Server {
    let identity = Identity { run: "run".into(), role: "ps 0".into(), incarnation: 0, attempt: 0 };
    let (none, limits) = (Security::default(), Limits::default());
    Server::start(io, at, &none, identity, &limits, vec![handler], Health::new()).await.unwrap()
}

fn job() -> Job {
    let mut job = Job::default();
    (job.placement.readers, job.placement.ps) = (1, 1);
    job
}

fn peer(io: &IoRuntime, at: SocketAddr) -> Peer {
    let identity = Identity { run: "run".into(), role: "reader 0".into(), incarnation: 0, attempt: 0 };
    let dialer = Dialer::new(io, &Security::default(), &identity, &Limits::default()).unwrap();
    dialer.peer(&at.to_string()).unwrap()
}

/// A reader joins attempt 7. Between the two answers the coordinator's process ends, and another begins at its address with what
/// `successor` makes of the coordinator.
fn join_while_the_coordinator_dies(
    successor: impl FnOnce(&Job, Coordinator) -> Coordinator,
) -> Result<MemberId, Fault> {
    let (io, job) = (IoRuntime::new("test", 2), job());
    let coordinator = Coordinator::new(&job, 7);
    io.block_on(async {
        let (dies, heartbeat) = Dies::before(&coordinator, "heartbeat", 0);
        let first = serve(&io, own_address(), Arc::new(dies)).await;
        let at = first.address();
        let peer = peer(&io, at);
        let joining = async { Member::join(peer, joins(&job), &job).await.map(|member| member.id()) };
        let dying = async {
            heartbeat.notified().await;
            first.stop(Duration::ZERO).await;
            serve(&io, at, Arc::new(successor(&job, coordinator))).await
        };
        let (joined, _server) = tokio::join!(joining, dying);
        joined
    })
}

#[test]
fn a_process_that_joins_asks_for_the_status_again_if_the_coordinator_was_away() {
    let member = join_while_the_coordinator_dies(|_, coordinator| coordinator).unwrap();
    assert_eq!((member.role, member.rank, member.attempt), (Role::Reader, 0, 7));
}

#[test]
fn a_process_that_joins_asks_for_another_plan_if_the_coordinator_was_started_again() {
    let fault = join_while_the_coordinator_dies(|job, _| Coordinator::new(job, 8)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::RolledBack, "{fault}");
}

/// The fault of a reader whose coordinator ends, and none after it, before it answers a request of this kind, after so many answers.
fn fault_once_the_coordinator_has_ended(kind: &'static str, answers: usize) -> Fault {
    let (io, mut job) = (IoRuntime::new("test", 2), job());
    job.placement.lease_seconds = 0.2;
    // A coordinator that looks for its newest checkpoint answers that there is no plan yet.
    job.checkpoint.to = Some("checkpoints".into());
    let coordinator = Coordinator::new(&job, 7);
    io.block_on(async {
        let (dies, asked) = Dies::before(&coordinator, kind, answers);
        let server = serve(&io, own_address(), Arc::new(dies)).await;
        let peer = peer(&io, server.address());
        let process =
            ProcessRequest { role: Role::Reader, rank: 0, job: job_digest(&job), nonce: 99, made_under: None };
        let joining = async {
            if kind == "plan" {
                return Member::plan(&peer, &process, &job, &never_over(&job)).await.map(drop);
            }
            Member::join(peer.clone(), joins(&job), &job).await.map(drop)
        };
        let dying = async {
            asked.notified().await;
            server.stop(Duration::ZERO).await;
        };
        // Far less than `placement.timeout_seconds`.
        let both = async { tokio::join!(joining, dying).0 };
        tokio::time::timeout(Duration::from_secs(120), both).await.expect("the reader ends").unwrap_err()
    })
}

/// A bug: a reader that had a plan, or waited for one, tried for ten minutes to reach a coordinator that had ended with its run.
#[test]
fn a_reader_whose_coordinator_ends_before_it_has_joined_ends_soon() {
    for (kind, answers) in [("plan", 1), ("join", 0), ("heartbeat", 0)] {
        let fault = fault_once_the_coordinator_has_ended(kind, answers);
        assert!(fault.domain == Domain::External && !fault.retryable, "{kind}: {fault}");
        assert!(fault.to_string().contains("has ended, and so has the run"), "{kind}: {fault}");
    }
}

#[test]
fn a_reader_waits_for_a_coordinator_that_is_started_after_it() {
    let (io, mut job) = (IoRuntime::new("test", 2), job());
    job.placement.lease_seconds = 0.05;
    let coordinator = Coordinator::new(&job, 7);
    io.block_on(async {
        let none = serve(&io, own_address(), Arc::new(coordinator.clone())).await;
        let at = none.address();
        none.stop(Duration::ZERO).await;
        let peer = peer(&io, at);
        let process =
            ProcessRequest { role: Role::Reader, rank: 0, job: job_digest(&job), nonce: 99, made_under: None };
        let starting = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            serve(&io, at, Arc::new(coordinator.clone())).await
        };
        let over = never_over(&job);
        let (planned, _server) = tokio::join!(Member::plan(&peer, &process, &job, &over), starting);
        assert_eq!(planned.unwrap(), (7, None));
    });
}

/// A reader cannot start in attempt 7 because of `fault`, while the coordinator of attempt `attempt` has no server. Returns the fault that
/// the reader ends with, and the coordinator's reply to a request for a plan.
fn cannot_start_while_the_coordinator_is_away(attempt: u64, fault: Fault) -> (Fault, PlanReply) {
    let (io, job) = (IoRuntime::new("test", 2), job());
    let coordinator = Coordinator::new(&job, attempt);
    io.block_on(async {
        let first = serve(&io, own_address(), Arc::new(coordinator.clone())).await;
        let at = first.address();
        first.stop(Duration::ZERO).await;
        let reader = peer(&io, at);
        let telling = Member::cannot_start(&reader, Role::Reader, 0, 7, fault);
        let serving = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            serve(&io, at, Arc::new(coordinator.clone())).await
        };
        let (fault, _server) = tokio::join!(telling, serving);
        let request =
            ProcessRequest { role: Role::Reader, rank: 0, job: job_digest(&job), nonce: 99, made_under: None };
        (fault, reader.action("coordinator.plan", &request, DEADLINE).await.unwrap())
    })
}

#[test]
fn a_process_with_a_damaged_part_asks_again_if_the_coordinator_was_away() {
    let damaged = Fault::user("its part is damaged").kind(FaultKind::Damaged);
    let (fault, reply) = cannot_start_while_the_coordinator_is_away(8, damaged);
    assert_eq!(fault.kind, FaultKind::RolledBack, "{fault}");
    assert_eq!(reply, PlanReply::Plan { attempt: 8, checkpoint: None, manifest: None });
}

#[test]
fn a_process_that_cannot_start_tells_the_coordinator_when_it_is_back() {
    let unlike = Fault::user("another schema").kind(FaultKind::BadData);
    let (fault, reply) = cannot_start_while_the_coordinator_is_away(7, unlike);
    assert_eq!(fault.kind, FaultKind::BadData, "{fault}");
    let PlanReply::Failed(failure) = reply else { panic!("the run goes on: {reply:?}") };
    assert!(failure.message.contains("reader 0: another schema"), "{}", failure.message);
}

/// A coordinator of a run that is over, which ends before it answers a request for a lease.
struct IsOver(Coordinator);

#[async_trait]
impl Handler for IsOver {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn takes_any_attempt(&self) -> bool {
        true
    }

    fn actions(&self) -> Vec<(String, String)> {
        self.0.actions()
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        if kind == "lease" {
            std::future::pending::<()>().await;
        }
        let answer = self.0.action(caller, kind, body).await?;
        if kind != "heartbeat" {
            return Ok(answer);
        }
        let status: RunStatus = serde_json::from_slice(&answer).unwrap();
        Ok(serde_json::to_vec(&RunStatus { phase: RunPhase::Over, ..status }).unwrap().into())
    }
}

/// A bug: a reader that knew that the run was over asked a coordinator that had ended for a lease, for ten minutes.
#[test]
fn a_reader_of_a_run_that_is_over_waits_for_no_lease() {
    let (io, job) = (IoRuntime::new("test", 2), job());
    let coordinator = Coordinator::new(&job, 7);
    io.block_on(async {
        let server = serve(&io, own_address(), Arc::new(IsOver(coordinator))).await;
        let peer = peer(&io, server.address());
        let member = Member::join(peer, joins(&job), &job).await.unwrap();
        let (leases, data) =
            (LeaseClient::new(member, &job), DataPlan { epochs: 1, rows: 1, windows: 1, fingerprint: 1 });
        // Far less than `placement.timeout_seconds`.
        let lease = tokio::time::timeout(Duration::from_secs(120), leases.next(&data)).await.expect("the source ends");
        assert_eq!(lease.unwrap(), None);
    });
}
