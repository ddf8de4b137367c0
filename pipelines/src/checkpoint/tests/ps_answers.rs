//! Checkpoints whose rows are written by two ps: each request of a snapshot, and each answer, is lost, comes twice or late, or the ps or
//! the trainer dies with it. The promises are those of `fail_points.rs`. Servers, clients and shards are the real ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::{Fault, Host, IoRuntime};
use forebay_job::Job;
use forebay_net::{Caller, Dialer, Handler, Health, Identity, Limits, Retry, Security, Server};
use forebay_ps::{Route, TableClient, start_shards};
use futures::executor::block_on;

use super::super::made::MadeCheckpoints;
use super::super::manifest::TrainPosition;
use super::super::trained_batches::BatchOrder;
use super::chain::{Contents, batch, config, contents, fast_folder};
use super::fail_points::{check, unnamed};
use crate::checkpoint::CheckpointFolder;
use crate::checkpointer::cut::{Cut, CutPoint, Kept, Shards};
use crate::checkpointer::writer::{CheckpointWriter, Checkpoints};
use crate::cluster::{PsSnapshots, SnapshotHandler};
use crate::columns::run_types::RunTypes;
use crate::context::Context;
use crate::metrics::progress::Progress;

/// All rows, changes, changes, all rows.
const CHECKPOINTS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PsFailure {
    RequestLost,
    AnswerLost,
    Twice,
    /// The sender gets no answer and asks again; the ps handles the first request after this many others.
    Late(usize),
    PsDies,
    PsDiesAfter,
    TrainerDies,
}

/// The `nth` request of this kind to a ps fails.
#[derive(Clone, Copy, Debug)]
struct At {
    ps: usize,
    kind: &'static str,
    nth: usize,
    failure: PsFailure,
}

/// The kind and the body of a request.
type Request = (String, Bytes);

#[derive(Default)]
struct Seen {
    /// Requests by kind.
    of_kind: BTreeMap<String, usize>,
    requests: usize,
    late: Option<(usize, String, Bytes)>,
    dead: bool,
}

struct FaultyPs {
    ps: usize,
    handler: SnapshotHandler,
    at: Option<At>,
    seen: Mutex<Seen>,
    /// The trainer is dead.
    trainer: Arc<Mutex<bool>>,
}

fn lost() -> Fault {
    Fault::external("the line is cut").retryable()
}

impl FaultyPs {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trainer_is_dead(&self, dies: bool) -> bool {
        let mut dead = self.trainer.lock().unwrap_or_else(PoisonError::into_inner);
        *dead |= dies;
        *dead
    }

    /// What is to fail with a request, and an earlier one that comes now.
    fn next(&self, kind: &str) -> Result<(Option<PsFailure>, Option<Request>), Fault> {
        let mut seen = self.seen();
        if seen.dead || self.trainer_is_dead(false) {
            return Err(lost());
        }
        seen.requests += 1;
        let late = seen.requests;
        let late = seen.late.take_if(|(at, ..)| *at <= late).map(|(_, kind, body)| (kind, body));
        let nth = seen.of_kind.entry(kind.to_owned()).or_default();
        let fails = self.at.filter(|at| at.ps == self.ps && at.kind == kind && at.nth == *nth);
        *nth += 1;
        Ok((fails.map(|at| at.failure), late))
    }
}

#[async_trait]
impl Handler for FaultyPs {
    fn name(&self) -> &'static str {
        self.handler.name()
    }

    fn actions(&self) -> Vec<(String, String)> {
        self.handler.actions()
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        let (failure, late) = self.next(kind)?;
        if let Some((kind, body)) = late {
            // Its sender is gone.
            let _ = self.handler.action(caller, &kind, body).await;
        }
        match failure {
            None => self.handler.action(caller, kind, body).await,
            Some(PsFailure::RequestLost) => Err(lost()),
            Some(PsFailure::AnswerLost) => self.handler.action(caller, kind, body).await.and(Err(lost())),
            Some(PsFailure::Twice) => {
                let first = self.handler.action(caller, kind, body.clone()).await;
                self.handler.action(caller, kind, body).await.and(first)
            }
            Some(PsFailure::Late(by)) => {
                let mut seen = self.seen();
                seen.late = Some((seen.requests + by, kind.to_owned(), body));
                Err(lost())
            }
            Some(PsFailure::PsDies) => {
                self.seen().dead = true;
                Err(lost())
            }
            Some(PsFailure::PsDiesAfter) => {
                let _ = self.handler.action(caller, kind, body).await;
                self.seen().dead = true;
                Err(lost())
            }
            Some(PsFailure::TrainerDies) => {
                let done = self.handler.action(caller, kind, body).await;
                self.trainer_is_dead(true);
                done.and(Err(lost()))
            }
        }
    }
}

/// Two ps and the trainer that makes checkpoints of them.
struct Run {
    hosts: Vec<Host>,
    tables: Vec<TableClient>,
    servers: Vec<Server>,
    to: Checkpoints,
    writer: CheckpointWriter,
    step: u64,
}

impl Run {
    fn new(folder: &CheckpointFolder, io: &IoRuntime, at: Option<At>, with_lifetime: bool) -> Self {
        let (mut hosts, mut tables, mut servers, mut peers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let identity = |role: &str| Identity { run: "run".into(), role: role.into(), incarnation: 0, attempt: 1 };
        let (security, limits, trainer) = (Security::default(), Limits::default(), Arc::default());
        let dialer = Dialer::new(io, &security, &identity("trainer 0"), &limits).unwrap();
        for ps in 0..2 {
            let host = Host::start("test").unwrap();
            let table = start_shards(&host, config(with_lifetime), Route::of_process(ps, 2, 1)).unwrap();
            let handler = SnapshotHandler::new(folder.clone(), ps as u32, table.clone(), None);
            let faulty = FaultyPs { ps, handler, at, seen: Mutex::default(), trainer: Arc::clone(&trainer) };
            let begin = Server::start(
                io,
                "127.0.0.1:0".parse().unwrap(),
                &security,
                identity(&format!("ps {ps}")),
                &limits,
                vec![Arc::new(faulty)],
                Health::new(),
            );
            let server = io.block_on(begin).unwrap();
            peers.push(dialer.peer(&server.address().to_string()).unwrap());
            hosts.push(host);
            tables.push(table);
            servers.push(server);
        }
        let snapshots = PsSnapshots::new(peers, Retry::within(Duration::from_millis(500)));
        let mut job = Job::default();
        (job.checkpoint.full_every, job.checkpoint.keep) = (3, 2);
        let position = TrainPosition { run: 7, ..TrainPosition::default() };
        let (cut_point, cuts) =
            CutPoint::new(position, BatchOrder::Any, Shards::InPs(snapshots), None, Progress::default());
        let (folder, config) = (folder.clone(), config(with_lifetime));
        let author = folder.author(7, 5).unwrap();
        let (leader, published, types) = (None, Box::new(|_: &_| ()), RunTypes::default());
        let (is_evaluating, made, model) = (Arc::new(|| false), MadeCheckpoints::default(), None);
        let to = Checkpoints {
            folder,
            author,
            job,
            config,
            cut_point,
            cuts,
            leader,
            published,
            is_evaluating,
            types,
            model,
            made,
        };
        Self { hosts, tables, servers, to, writer: CheckpointWriter::default(), step: 0 }
    }

    fn train(&mut self) {
        self.step += 1;
        let (keys, grads) = batch(self.step);
        for (ps, table) in self.tables.iter().enumerate() {
            let route = Route::new(2);
            let held: Vec<usize> = (0..keys.len()).filter(|i| route.shard(keys[*i]) == ps).collect();
            let own: Vec<u64> = held.iter().map(|i| keys[*i]).collect();
            let grads: Vec<f32> = held.iter().flat_map(|i| grads[i * 4..][..4].to_vec()).collect();
            block_on(table.pull(&own, &mut Vec::new())).unwrap();
            block_on(table.push(&own, &grads, self.step)).unwrap();
        }
    }

    /// As the thread of a trainer and its stage `push`.
    fn checkpoint(&mut self) -> Result<(), Fault> {
        let plan = self.writer.plan(&self.to)?;
        if let Shards::InPs(ps) = self.to.cut_point.shards() {
            block_on(ps.begin(plan))?;
        }
        let position = TrainPosition { steps: self.step, run: 7, ..TrainPosition::default() };
        let cut =
            Cut { plan, position, model: None, snapshots: Vec::new(), kept: Kept::Here(Vec::new()), metrics: None };
        self.writer.write(&self.to, cut)?;
        let _ = self.to.folder.prune(self.to.job.checkpoint.keep);
        Ok(())
    }

    fn end(self, io: &IoRuntime) {
        for server in self.servers {
            io.block_on(server.stop(Duration::ZERO));
        }
        drop((self.tables, self.to));
        self.hosts.into_iter().for_each(|host| host.stop().unwrap());
    }
}

/// Trains and makes checkpoints. Returns the step of the last one that was acknowledged.
fn train(run: &mut Run, mut each: impl FnMut(&Run)) -> u64 {
    let mut acknowledged = 0;
    for step in 1..=CHECKPOINTS {
        run.train();
        each(run);
        if run.checkpoint().is_ok() {
            acknowledged = step;
        }
    }
    acknowledged
}

fn at(at: At, expected: &BTreeMap<u64, Contents>, io: &IoRuntime, with_lifetime: bool) {
    let what = format!("{at:?}");
    let dir = fast_folder();
    let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
    let mut run = Run::new(&folder, io, Some(at), with_lifetime);
    let acknowledged = train(&mut run, |_| {});
    let newest = check(&folder, expected, with_lifetime, &what);
    assert!(newest >= acknowledged, "{what}: {acknowledged} was acknowledged, {newest} is the newest");
    if !matches!(at.failure, PsFailure::PsDies | PsFailure::PsDiesAfter | PsFailure::TrainerDies) {
        assert!(acknowledged + 1 >= CHECKPOINTS, "{what}: later checkpoints fail, too");
        run.checkpoint().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(check(&folder, expected, with_lifetime, &what), CHECKPOINTS);
        assert_eq!(unnamed(&folder), [""; 0], "{what}");
    }
    run.end(io);
}

#[test]
fn at_every_request_and_answer_of_a_snapshot() {
    let (io, with_lifetime) = (IoRuntime::new("test", 2), true);
    let (dir, mut expected) = (fast_folder(), BTreeMap::new());
    let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
    let mut run = Run::new(&folder, &io, None, with_lifetime);
    let all = train(&mut run, |run| drop(expected.insert(run.step, contents(&run.tables, &[]))));
    assert_eq!((all, check(&folder, &expected, with_lifetime, "without a fault")), (CHECKPOINTS, CHECKPOINTS));
    run.end(&io);
    use PsFailure::{AnswerLost, Late, PsDies, PsDiesAfter, RequestLost, TrainerDies, Twice};
    let failures = [RequestLost, AnswerLost, Twice, Late(1), Late(2), Late(5), PsDies, PsDiesAfter, TrainerDies];
    // These threads mostly wait.
    std::thread::scope(|scope| {
        for failure in failures {
            let (io, expected) = (&io, &expected);
            scope.spawn(move || {
                for ps in 0..2 {
                    for kind in ["begin", "written", "keep"] {
                        for nth in 0..CHECKPOINTS as usize {
                            at(At { ps, kind, nth, failure }, expected, io, with_lifetime);
                        }
                    }
                }
            });
        }
    });
}
