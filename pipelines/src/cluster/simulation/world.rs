//! Virtual time, and the events of a run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use forebay_base::{SplitMix64, mix64};
use forebay_batches::BatchId;
use forebay_job::Job;

use super::super::messages::job_digest;
use super::faults::{FAULTS_UNTIL, FOR_EVER};
use super::job::random_job;
use super::network::{Answer, Message, Pid, Place, StoredCheckpoint};
use super::process::Process;
use super::transport::Transport;

/// A run hangs if it is not over this many milliseconds after the last fault, or after it was resumed.
const HANG_TIMEOUT: u64 = 120_000;

/// Something that happens.
pub(super) enum Event {
    Deliver {
        to: Pid,
        from: Pid,
        message: Message,
    },
    Retry {
        from: Pid,
        call: u64,
    },
    Step(Pid),
    Start(Place),
    /// A process is asked to shut down.
    Terminate(Pid),
    /// The supervisor looks for processes that hang.
    Supervise,
    /// The connections of a process may break, because it stands still.
    KeepAlive(Pid),
    Fault,
}

/// A run and its processes.
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) job: Job,
    /// The digest of the job.
    pub(super) digest: String,
    pub(super) now: u64,
    base: Instant,
    pub(super) random: SplitMix64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    sequence: u64,
    pub(super) processes: Vec<Process>,
    pub(super) transport: Transport,
    /// The checkpoints by number.
    pub(super) store: BTreeMap<u64, StoredCheckpoint>,
    /// The store cannot be reached until then: no checkpoint is found.
    pub(super) away_until: u64,
    /// The newest attempt that began without a checkpoint while the store could not be reached.
    pub(super) began_without: Option<u64>,
    /// Files of gradients that several trainers keep.
    pub(super) kept_files: BTreeMap<String, Vec<(BatchId, u64)>>,
    /// When processes were asked to shut down, in this run.
    pub(super) told_at: Option<u64>,
    /// When the run was last started again after a drain.
    pub(super) resumed_at: u64,
    /// When the last checkpoint was published.
    pub(super) published_at: u64,
    /// The model is saved.
    pub(super) over: bool,
    /// Prints what happens.
    pub(super) trace: bool,
    pub(super) counted: Counted,
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// Runs that look ahead.
    pub(super) ahead: u64,
    /// Pulls that waited for the end of a round.
    pub(super) held: u64,
    pub(super) kills: u64,
    pub(super) pauses: u64,
    /// Processes that the supervisor killed, because nothing was heard of them.
    pub(super) hung: u64,
    pub(super) cuts_off: u64,
    /// Cuts between a reader and the trainers, and readers that left for that reason.
    pub(super) cut_from_trainers: u64,
    pub(super) unreaching: u64,
    pub(super) attempts: u64,
    pub(super) checkpoints: u64,
    pub(super) resumes: u64,
    /// Processes that found their part of a checkpoint damaged.
    pub(super) damaged: u64,
    /// Processes that were asked to shut down, and runs that ended as drained and were resumed.
    pub(super) told: u64,
    pub(super) drains: u64,
    /// Last checkpoints that could not be written.
    pub(super) without_checkpoint: u64,
    /// How often a trainer stopped early.
    pub(super) stopped_early: u64,
    /// Trainers that left while the run went on.
    pub(super) left: u64,
    /// How often the store could not be reached when the coordinator was started again, and how often the coordinator found no checkpoint
    /// and waited.
    pub(super) away: u64,
    pub(super) waits: u64,
    pub(super) events: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(mix64(seed));
        let job = random_job(seed, &mut random);
        let mut world = Self {
            seed,
            digest: job_digest(&job),
            job,
            now: 0,
            base: Instant::now(),
            random,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            processes: Vec::new(),
            transport: Transport::default(),
            store: BTreeMap::new(),
            away_until: 0,
            began_without: None,
            kept_files: BTreeMap::new(),
            told_at: None,
            resumed_at: 0,
            published_at: 0,
            over: false,
            trace: false,
            counted: Counted::default(),
        };
        world.counted.ahead = u64::from(world.looks_ahead());
        for place in world.places() {
            let at = world.random.below(500);
            world.at(at, Event::Start(place));
        }
        let first = world.random.below(4000);
        world.at(first, Event::Fault);
        world.at(0, Event::Supervise);
        world
    }

    /// Whether the trainer looks ahead.
    pub(super) fn looks_ahead(&self) -> bool {
        self.job.train.look_ahead.or(0) > 0
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_millis(self.now)
    }

    /// Something will happen at this time.
    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((time.max(self.now), self.sequence)));
        self.events.insert(self.sequence, event);
    }

    /// Runs to the end. Returns the counts of the run, or what was wrong with it.
    pub(super) fn run(&mut self) -> Result<Counted, String> {
        while let Some(Reverse((time, sequence))) = self.queue.pop() {
            let Some(event) = self.events.remove(&sequence) else { continue };
            self.now = time;
            self.counted.events += 1;
            if self.trace
                && let Event::Deliver { to, from, message } = &event
            {
                self.log(&format!("{} -> {}: {message:?}", self.name(*from), self.name(*to)));
            }
            if time > self.resumed_at.max(FAULTS_UNTIL) + HANG_TIMEOUT {
                return Err(format!("it hangs:\n{}", self.describe()));
            }
            match event {
                Event::Fault => self.fault(),
                Event::Supervise => self.supervise(),
                Event::Start(place) => self.start(place),
                Event::KeepAlive(pid) => self.keep_alive(pid),
                Event::Terminate(pid) => self.terminate(pid),
                // A process that stands still forever sends nothing again.
                Event::Retry { from, .. } if self.processes[from].paused_until == FOR_EVER => self.at(FOR_EVER, event),
                Event::Retry { from, call } if self.processes[from].alive => self.try_call(from, call),
                Event::Step(pid) | Event::Deliver { to: pid, .. } if self.processes[pid].paused_until > time => {
                    let until = self.processes[pid].paused_until;
                    self.at(until, event);
                }
                Event::Step(pid) if self.processes[pid].alive => {
                    self.step(pid)?;
                    let next = time + self.processes[pid].pace;
                    self.at(next, Event::Step(pid));
                }
                // Its sender may be dead.
                Event::Deliver { to, from, message } if self.processes[to].alive => self.deliver(to, from, message)?,
                _ => {}
            }
            if self.over {
                return Ok(self.counted);
            }
        }
        Err("nothing happens any more".into())
    }

    /// Drops the starts and terminations that have not happened yet.
    pub(super) fn forget_starts(&mut self) {
        self.events.retain(|_, event| !matches!(event, Event::Start(_) | Event::Terminate(_)));
    }

    /// A line of the trace.
    #[allow(clippy::print_stdout, reason = "the trace of one seed")]
    pub(super) fn log(&self, what: &str) {
        if self.trace {
            println!("{:>6} {what}", self.now);
        }
    }

    pub(super) fn name(&self, pid: Pid) -> String {
        let process = &self.processes[pid];
        let (role, rank) = process.place;
        format!("{role} {rank} #{pid}{}", if process.alive { "" } else { " (dead)" })
    }

    fn deliver(&mut self, to: Pid, from: Pid, message: Message) -> Result<(), String> {
        match message {
            Message::Request { call, body } => self.request(to, (from, call), body),
            Message::Answer { call, body } => {
                // The answer to a call that was already answered, or was given up.
                if matches!(body, Answer::Later) || !self.transport.ends_call(to, call) {
                    return Ok(());
                }
                self.answered(to, call, body)
            }
            Message::Stream { stream, body } => self.comes_by_stream(to, stream, body),
            Message::CheckpointsAreThere(start) => {
                self.processes[to].made.are_there(start);
                Ok(())
            }
            Message::Broke { stream } => {
                self.stream_broke(to, stream);
                Ok(())
            }
        }
    }

    fn describe(&self) -> String {
        let mut lines =
            vec![format!("{:?} {:?}", self.job.placement, self.job.train.staleness), format!("{:?}", self.counted)];
        lines.extend(self.processes.iter().filter(|process| process.alive).map(Process::describe));
        lines.join("\n")
    }
}
