//! One round: a job in a placement, and what is done to its processes.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay::actors::commas;
use forebay_base::SplitMix64;
use tempfile::TempDir;

use super::ROWS;
use super::bits::Bits;
use super::harm::{Done, Harm, LEASE_SECONDS, harm};
use super::launched::Launched;
use super::on_hosts::OnHosts;
use super::progress::Times;

/// What is the same after all faults.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Promise {
    /// Every number of the model.
    Bits,
    /// Which rows are trained on, and how often: the job trains a table that counts them.
    Rows,
}

/// Settings of a job whose table counts rows, exactly and in any order: the steps are so small that every gradient is the gradient of a new
/// model, a power of two.
const COUNTS: [&str; 3] = [
    "model.kind=lr",
    "table.linear_optimizer={kind=\"sgd\",lr=8.673617379884035e-19}",
    "train.optimizer={kind=\"sgd\",lr=8.673617379884035e-19}",
];

impl Promise {
    /// How often a round reads the rows.
    fn epochs(self) -> u64 {
        match self {
            Self::Bits => 2,
            Self::Rows => 8,
        }
    }
}

pub(crate) struct Placement {
    pub(crate) promises: Promise,
    pub(crate) settings: &'static [&'static str],
}

/// Who starts the processes of a round, and what is done to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scene {
    /// `forebay launch` with default settings: kills, SIGTERM, and stops of up to two seconds.
    Launch,
    /// The same with a short lease, and stops that are longer.
    ShortLease,
    /// Each process on a host of its own, with a short lease: cuts as well.
    Hosts,
}

impl Scene {
    fn kinds(self) -> &'static [Harm] {
        match self {
            Self::Launch => &[Harm::Kill, Harm::Kill, Harm::Kill, Harm::Term, Harm::Stop],
            Self::ShortLease => &[Harm::Kill, Harm::Kill, Harm::Term, Harm::Stop, Harm::LongStop],
            Self::Hosts => &[Harm::Kill, Harm::Term, Harm::Stop, Harm::LongStop, Harm::Cut, Harm::Cut],
        }
    }
}

pub(crate) struct Round<'a> {
    pub(crate) seed: u64,
    pub(crate) rows: &'a Path,
    pub(crate) placement: &'a Placement,
    pub(crate) scene: Scene,
}

/// How a round ended.
pub(crate) struct Ended {
    pub(crate) model: Bits,
    pub(crate) log: String,
    pub(crate) done: Vec<Done>,
    /// Attempts of the run after the first.
    pub(crate) attempts: usize,
    /// How often the run ended with a checkpoint, and was resumed.
    pub(crate) resumes: usize,
    pub(crate) seconds: f64,
}

impl Round<'_> {
    /// The model of a run in which nothing dies, and how long the run takes.
    pub(crate) fn undisturbed(&self) -> (Bits, Duration) {
        let begun = Instant::now();
        let folder = TempDir::new().unwrap();
        let settings = self.settings(folder.path(), false);
        let mut calm = Launched::start(folder, &settings);
        calm.until_ended(self.seed);
        (Bits::read(&calm.folder().join("model")), begun.elapsed())
    }

    /// Runs, and does one to four kinds of harm at random times within `calm`. How long the run stood still goes into `times`.
    pub(crate) fn run(&self, calm: Duration, random: &mut SplitMix64, times: &mut Times) -> Ended {
        let begun = Instant::now();
        let folder = TempDir::new().unwrap();
        let settings = self.settings(folder.path(), true);
        let (log, model, done, resumes) = if self.scene == Scene::Hosts {
            let mut run = OnHosts::start(folder, &settings, self.seed);
            let watch = run.watch();
            let done = harm(&mut run, self.scene.kinds(), calm, random);
            let log = run.until_ended();
            watch.times(&done, times);
            (log, Bits::read(&run.folder().join("model")), done, run.resumes)
        } else {
            let mut run = Launched::start(folder, &settings);
            let watch = run.watch();
            let done = harm(&mut run, self.scene.kinds(), calm, random);
            let log = run.until_ended(self.seed);
            watch.times(&done, times);
            (log, Bits::read(&run.folder().join("model")), done, run.resumes)
        };
        let counted =
            format!("all processes: {} rows trained on, 0 rejected", commas(self.placement.promises.epochs() * ROWS));
        assert!(log.contains(&counted), "seed {}: not {counted:?} in\n{log}", self.seed);
        let attempts = log.matches("the run begins a new attempt").count();
        Ended { model, log, done, attempts, resumes, seconds: begun.elapsed().as_secs_f64() }
    }

    fn settings(&self, folder: &Path, checkpoints: bool) -> Vec<String> {
        let mut settings = vec![
            format!("data.train={}", self.rows.display()),
            format!("output.model={}", folder.join("model").display()),
            format!("data.epochs={}", self.placement.promises.epochs()),
        ];
        let small = ["seed=9", "model.embedding_dim=4", "model.hidden=[16]", "train.batch_rows=512", "train.threads=1"];
        let counts: &[&str] = if self.placement.promises == Promise::Rows { &COUNTS } else { &[] };
        settings.extend(small.iter().chain(counts).chain(self.placement.settings).map(|setting| (*setting).to_owned()));
        if checkpoints {
            settings.push(format!("checkpoint.to={}", folder.join("checkpoints").display()));
            settings.push("checkpoint.rows=50000".to_owned());
        }
        if self.scene != Scene::Launch {
            settings.push(format!("placement.lease_seconds={LEASE_SECONDS}"));
        }
        settings
    }
}
