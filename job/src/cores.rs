//! The numbers for the knobs that a job leaves at `"auto"`, by the cores of the run.
//!
//! Replicas of `parse` and `batch` begin with one, and the tuner adds more while the run goes on. The rest cannot change in a run that goes
//! on, so it follows from the cores alone. The trained model depends on none of these numbers.

use std::thread::available_parallelism;

use forebay_actors::counted;
use forebay_ps::MAX_SHARDS;

use super::{Backend, Job, MOST_THREADS};

/// On this many cores or fewer there is nothing to tune: everything has one thread, as the stages already use all cores.
const FEW_CORES: usize = 2;

/// In measurements, more decode threads or shards than this never helped.
const MOST_DECODE_THREADS: usize = 16;
const MOST_SHARDS: usize = 16;

/// How the batch stage is wired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchStage {
    /// One stage.
    Plain,
    /// `cut`, then this many replicas.
    Replicated(usize),
}

impl Job {
    /// Cores that the run may use in this process: `pipeline.cores`, or those that the process's affinity and its cgroup allow, at most
    /// 1,024.
    pub fn cores(&self) -> usize {
        self.pipeline.cores.or(available_parallelism().map_or(1, usize::from).min(MOST_THREADS)).max(1)
    }

    /// The memory limit of the process, in bytes, within which knobs grow; `None`: what the cgroup and the machine have free.
    pub fn memory_limit(&self) -> Option<u64> {
        self.pipeline.memory.map(|bytes| bytes.0 as u64)
    }

    /// Threads that decode at first.
    pub fn decode_threads(&self) -> usize {
        self.data.decode_threads.or((self.cores() / 4).clamp(1, MOST_DECODE_THREADS))
    }

    /// The most threads that decode, if the run waits for decoding.
    pub fn most_decode_threads(&self) -> usize {
        self.data.decode_threads.or(self.cores())
    }

    /// Shards of this process, if it holds shards.
    pub fn shards(&self) -> usize {
        self.shards_on(self.cores())
    }

    /// Shards of a process that holds shards and has `cores` cores. A ps does nothing else: about half of its work is in the network.
    pub fn shards_on(&self, cores: usize) -> usize {
        let auto = match self.placement.ps {
            0 => cores / 4,
            ps => (cores / 2).min(MAX_SHARDS / ps),
        };
        self.table.shards.or(auto.clamp(1, MOST_SHARDS))
    }

    /// Threads of dense compute.
    pub fn dense_threads(&self) -> usize {
        // 0 was the way to say "auto" once.
        match self.train.threads.or(0) {
            0 => self.cores(),
            n => n,
        }
    }

    /// Replicas that the parse stage begins with.
    pub fn parse_replicas(&self) -> usize {
        self.pipeline.parse_replicas.or(1)
    }

    /// Replicas of the parse stage in a pipeline that is not tuned, and in which no other stage computes.
    pub fn parse_replicas_alone(&self) -> usize {
        self.pipeline.parse_replicas.or(self.cores() / 2).max(1)
    }

    /// How the batch stage is wired.
    pub fn batch_stage(&self) -> BatchStage {
        match self.pipeline.batch_replicas.or(if self.cores() > FEW_CORES { 0 } else { 1 }) {
            0 => BatchStage::Replicated(1),
            1 => BatchStage::Plain,
            n => BatchStage::Replicated(n),
        }
    }

    /// What the fields that say "auto" stand for here, in a line; `None` if no field does.
    pub fn auto_values(&self) -> Option<String> {
        let knobs = [
            ("train.threads", self.train.threads, self.dense_threads()),
            ("table.shards", self.table.shards, self.shards()),
            ("data.decode_threads at first", self.data.decode_threads, self.decode_threads()),
        ];
        let mut values: Vec<String> = knobs
            .into_iter()
            .filter(|(_, knob, _)| knob.is_auto())
            .map(|(name, _, value)| format!("{name} = {value}"))
            .collect();
        let tuned = self.tuned_stages();
        if !tuned.is_empty() {
            values.push(format!("replicas of {} follow from the meters of the run", tuned.join(" and ")));
        }
        (!values.is_empty()).then(|| format!("auto, with {}: {}", counted(self.cores(), "core"), values.join(", ")))
    }

    /// The part of `cores` of one machine that each reader, ps or trainer gets if all processes of the job run there. Readers share
    /// one half, as the trainers and ps compute meanwhile; trainers and ps share the machine among their kind.
    pub fn cores_of_each(&self, role: &str, cores: usize) -> usize {
        let (share, processes) = match role {
            "reader" => (cores / 2, self.placement.readers),
            "ps" => (cores, self.placement.ps),
            _ => (cores, self.placement.trainers),
        };
        (share / processes.max(1)).max(1)
    }

    /// Whether the threads of dense compute are tuned while the run goes on. The torch backend and own models have a fixed number.
    pub fn tunes_dense_threads(&self) -> bool {
        let is_auto = self.train.threads.or(0) == 0;
        is_auto && self.train.backend == Backend::Native && self.cores() > FEW_CORES
    }

    /// The stages whose replicas are tuned while the run goes on.
    pub fn tuned_stages(&self) -> Vec<String> {
        if self.cores() <= FEW_CORES {
            return Vec::new();
        }
        let knobs = [("parse", self.pipeline.parse_replicas), ("batch", self.pipeline.batch_replicas)];
        knobs.into_iter().filter(|(_, knob)| knob.is_auto()).map(|(stage, _)| stage.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(settings: &[&str]) -> Job {
        Job::with_settings("", settings).unwrap()
    }

    #[test]
    fn two_cores_have_one_of_everything_and_more_cores_more() {
        let numbers = |cores: usize| {
            let job = job(&[&format!("pipeline.cores={cores}")]);
            (job.decode_threads(), job.shards(), job.dense_threads(), job.tuned_stages().len(), job.batch_stage())
        };
        assert_eq!(numbers(1), (1, 1, 1, 0, BatchStage::Plain));
        assert_eq!(numbers(2), (1, 1, 2, 0, BatchStage::Plain));
        assert_eq!(numbers(4), (1, 1, 4, 2, BatchStage::Replicated(1)));
        assert_eq!(numbers(16), (4, 4, 16, 2, BatchStage::Replicated(1)));
        assert_eq!(numbers(256), (16, 16, 256, 2, BatchStage::Replicated(1)));
    }

    #[test]
    fn a_pinned_knob_stays_as_it_is() {
        let pinned = ["data.decode_threads=3", "table.shards=5", "train.threads=7", "pipeline.batch_replicas=1"];
        let job = job(&[&pinned[..], &["pipeline.cores=16"]].concat());
        assert_eq!((job.decode_threads(), job.shards(), job.dense_threads()), (3, 5, 7));
        assert_eq!((job.batch_stage(), job.tuned_stages()), (BatchStage::Plain, vec!["parse".to_owned()]));
        assert!(!job.tunes_dense_threads() && !self::job(&["pipeline.cores=2"]).tunes_dense_threads());
        assert!(self::job(&["pipeline.cores=3"]).tunes_dense_threads());
        assert_eq!(self::job(&["train.threads=0", "pipeline.cores=9"]).dense_threads(), 9);
    }

    #[test]
    fn processes_on_one_machine_share_its_cores() {
        let job = job(&["placement.readers=2", "placement.ps=3"]);
        let each = |cores| ["reader", "ps", "trainer"].map(|role| job.cores_of_each(role, cores));
        assert_eq!((each(2), each(16)), ([1, 1, 2], [4, 5, 16]));
    }

    #[test]
    fn a_line_says_what_auto_stands_for() {
        let line = job(&["pipeline.cores=16", "train.threads=3", "pipeline.batch_replicas=2"]).auto_values().unwrap();
        let expected = "auto, with 16 cores: table.shards = 4, data.decode_threads at first = 4, replicas of parse follow from the meters of \
                        the run";
        assert_eq!(line, expected);
    }

    #[test]
    fn a_ps_has_a_shard_for_two_of_its_cores() {
        let shards = |cores: usize, ps: usize| {
            job(&[&format!("pipeline.cores={cores}"), &format!("placement.ps={ps}"), "placement.readers=1"]).shards()
        };
        assert_eq!([1, 2, 3, 4, 16, 64].map(|cores| shards(cores, 2)), [1, 1, 1, 2, 8, 16]);
        assert_eq!([64, 100, 600, 1024].map(|ps| shards(64, ps)), [16, 10, 1, 1], "at most 1,024 in all");
    }
}
