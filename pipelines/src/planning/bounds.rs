//! How fast given machines are: one bound for each resource, and one for the batches under way.

use forebay_job::{DenseAt, Job};
use forebay_ps::MAX_SHARDS;
use serde::Serialize;

use super::Machines;
use super::demand::Demand;
use super::options::{MachineKind, PlanOptions};
use super::traffic::{Batches, Traffic};

/// An upper bound of the speed of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// The resource, for instance `CPU of the readers`.
    pub name: String,
    /// Rows per second.
    pub rate: f64,
}

/// The most machines of a role that a job takes.
const MOST: usize = 1024;

/// Look-ups (and pushes) of a trainer that are in flight at once, at most.
const MOST_IN_FLIGHT: f64 = 8.0;

/// A job with its measured costs.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    pub(super) job: Job,
    pub(super) demand: Demand,
    /// Weights and floats of state of a table row.
    pub(super) row: (f64, f64),
    /// Dense parameters.
    pub(super) dense: f64,
    /// Seconds of a batch in which look-up, compute and push of it ran at once.
    pub(super) overlap: f64,
    /// The share of the speed of cores, compute and shards that a run reaches.
    pub(super) attained: f64,
    /// Whether the measured run had reader and ps processes: then their CPU seconds include the network.
    pub(super) measured: (bool, bool),
    /// Cores of the measured process.
    pub(super) cores: f64,
    /// Bytes of memory of all rows of the table.
    pub(super) table_bytes: f64,
    pub(super) options: PlanOptions,
}

/// The part of a machine's memory that a table may take.
const TABLE_SHARE: f64 = 0.8;

impl Costs {
    /// The job on these machines; `None` if it does not allow them, or the table does not fit.
    pub(super) fn job_on(&self, machines: Machines) -> Option<Job> {
        let mut job = self.job.clone();
        let placement = &mut job.placement;
        (placement.readers, placement.ps, placement.trainers) = (machines.readers, machines.ps, machines.trainers);
        job.check().is_ok().then_some(job)
    }

    /// The most machines that the job takes.
    pub(super) fn most_machines(&self) -> Machines {
        // With "auto", each of many ps has fewer.
        let shards = self.job.table.shards.or(1).clamp(1, MAX_SHARDS);
        Machines { readers: MOST, ps: MOST.min(MAX_SHARDS / shards), trainers: MOST }
    }

    /// Whether the ps, or the trainer without ps, have the memory for the table.
    pub(super) fn fits(&self, machines: Machines) -> bool {
        let holder = if machines.ps > 0 { self.kind(1) } else { self.kind(2) };
        self.table_bytes * self.options.skew <= TABLE_SHARE * holder.memory * machines.ps.max(1) as f64
    }

    pub(super) fn kind(&self, role: usize) -> MachineKind {
        let kind = self.options.machines[role];
        MachineKind { cores: Some(kind.cores.unwrap_or(self.cores)), ..kind }
    }

    pub(super) fn cores_of(&self, role: usize) -> f64 {
        self.kind(role).cores.unwrap_or(1.0)
    }

    /// Batches of a trainer that are under way at once, and whether their rows are asked for ahead.
    pub(super) fn tickets(&self, job: &Job) -> (f64, bool) {
        let ahead = job.look_ahead(std::time::Duration::from_secs_f64(self.options.round_trip));
        ((job.train.staleness.batches.max(ahead) + 1) as f64, ahead > 0)
    }

    /// Bytes per row on the links between these machines.
    pub(super) fn traffic(&self, job: &Job) -> Traffic {
        let dense = if job.placement.ps > 0 && job.placement.dense() == DenseAt::Ps { self.dense } else { 0.0 };
        let (weights, state) = self.row;
        let batches = Batches {
            rows: job.train.batch_rows as f64,
            weights,
            state,
            dense,
            whole_rows: self.tickets(job).1,
            headers: self.options.headers,
        };
        let all = Traffic::of(job, &self.demand, batches);
        let Traffic { batches, to_ps, from_ps } = all;
        let (readers, ps) = (job.placement.readers > 0, job.placement.ps > 0);
        let there = |is: bool, bytes: f64| if is { bytes } else { 0.0 };
        Traffic { batches: there(readers, batches), to_ps: there(ps, to_ps), from_ps: there(ps, from_ps) }
    }

    /// CPU seconds per row of a reader, a ps and a trainer. The trainer does the work of a role without machines.
    pub(super) fn cpu(&self, job: &Job) -> [f64; 3] {
        let Traffic { batches, to_ps, from_ps } = self.traffic(job);
        let Demand { read_cpu, shard_cpu, train_cpu, .. } = self.demand;
        let (readers, ps) = (job.placement.readers > 0, job.placement.ps > 0);
        let new = |was: bool, bytes: f64| if was { 0.0 } else { self.options.network_cpu * bytes };
        let (shipping, calling) = (new(self.measured.0, batches), new(self.measured.1, to_ps + from_ps));
        let mut cpu = [read_cpu + shipping, shard_cpu + calling, train_cpu + shipping + calling];
        for (role, apart) in [(0, readers), (1, ps)] {
            if !apart {
                cpu[2] += std::mem::take(&mut cpu[role]);
            }
        }
        cpu
    }

    /// What limits a run on these machines, the lowest first. `None` if the job does not allow them.
    pub(super) fn bounds(&self, machines: Machines) -> Option<Vec<Bound>> {
        let job = self.job_on(machines)?;
        let Machines { readers, ps, trainers } = machines;
        let (demand, traffic, cpu) = (&self.demand, self.traffic(&job), self.cpu(&job));
        let [r, p, t] = [readers, ps, trainers].map(|count| count as f64);
        let PlanOptions { skew, compute_speed, store, .. } = self.options;
        let line = |role: usize| self.kind(role).network;
        let mut bounds = Vec::new();
        // A bound is capacity over demand; a resource without demand is no bound.
        let mut add = |name: &str, capacity: f64, demand: f64| {
            if demand > 0.0 && capacity > 0.0 {
                bounds.push(Bound { name: name.to_owned(), rate: capacity / demand });
            }
        };
        add("CPU of the readers", self.attained * r * self.cores_of(0), cpu[0]);
        add("CPU of the ps", self.attained * p * self.cores_of(1), cpu[1] * skew);
        add("CPU of the trainers", self.attained * t * self.cores_of(2), cpu[2]);
        add("compute of the trainers (train)", self.attained * t * compute_speed, demand.compute);
        let shards = self.shards(machines);
        add("shards", self.attained * shards, demand.shard * skew);
        add("the store", store.unwrap_or(f64::INFINITY), demand.store_bytes);
        let fetched = if self.reads_over_the_network() { demand.store_bytes } else { 0.0 };
        add("network into the readers", r * line(0), fetched);
        add("network out of the readers", r * line(0), traffic.batches);
        let into = traffic.batches + traffic.from_ps + if readers == 0 { fetched } else { 0.0 };
        add("network into the trainers", t * line(2), into);
        add("network out of the trainers", t * line(2), traffic.to_ps);
        add("network into the ps", p * line(1), traffic.to_ps * skew);
        add("network out of the ps", p * line(1), traffic.from_ps * skew);

        let rows = job.train.batch_rows as f64;
        let ((tickets, _), pull, push) = (self.tickets(&job), self.pull_seconds(&job), self.push_seconds(&job));
        let in_flight = if ps == 0 || job.train.staleness.exactly { 1.0 } else { tickets.min(MOST_IN_FLIGHT) };
        add("look-ups in flight", t * in_flight * rows, pull);
        add("pushes in flight", t * in_flight * rows, push);
        if job.train.staleness.exactly {
            add("look-ups and pushes, one after the other", t * rows, pull + push);
        }
        add("batches under way", t * tickets * rows, self.batch_seconds(&job) - self.overlap);
        bounds.retain(|bound| bound.rate.is_finite());
        bounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        Some(bounds)
    }

    /// Rows per second of these machines; 0 if the job does not allow them, or the table does not fit into their memory.
    pub(super) fn rate(&self, machines: Machines) -> f64 {
        let rate = || self.bounds(machines)?.first().map(|bound| bound.rate);
        if self.fits(machines) { rate().unwrap_or(0.0) } else { 0.0 }
    }

    pub(super) fn shards(&self, machines: Machines) -> f64 {
        (self.shards_of_each(machines.ps) * machines.ps.max(1)) as f64
    }

    /// Shards of each of so many ps, or of the only process.
    pub(super) fn shards_of_each(&self, ps: usize) -> usize {
        let mut job = self.job.clone();
        job.placement.ps = ps;
        job.shards_on(self.cores_of(if ps > 0 { 1 } else { 2 }) as usize)
    }

    fn reads_over_the_network(&self) -> bool {
        self.job.data.train.as_ref().is_some_and(|paths| paths.to_string().contains("://"))
    }

    /// Seconds of a batch from its look-up to the end of its push, when no other is under way.
    pub(super) fn batch_seconds(&self, job: &Job) -> f64 {
        let compute = job.train.batch_rows as f64 * self.demand.compute / (self.options.compute_speed * self.attained);
        self.pull_seconds(job) + compute + self.push_seconds(job)
    }

    /// Seconds of a look-up of one batch, when nothing else is under way.
    fn pull_seconds(&self, job: &Job) -> f64 {
        let Traffic { from_ps, .. } = self.traffic(job);
        let seconds = self.call_seconds(job, self.demand.lookup, from_ps);
        // In step with other trainers, the pull follows right behind the push before it: both take one round trip.
        if job.round().is_some() { seconds - self.round_trips(job) } else { seconds }
    }

    /// Seconds of a push of one batch. Keys that a look-up sends are counted here.
    fn push_seconds(&self, job: &Job) -> f64 {
        let Traffic { to_ps, .. } = self.traffic(job);
        self.call_seconds(job, self.demand.push, to_ps)
    }

    /// Seconds of a call to all shards about one batch. It is the sum of `work` seconds per row at the trainer, half of the shards' work
    /// for a row (both at the attained speed), `bytes` per row over the slower of the two ends (all ps at once), and a round trip. With the
    /// dense parameters in the ps it has a second round trip.
    fn call_seconds(&self, job: &Job, work: f64, bytes: f64) -> f64 {
        let (rows, ps) = (job.train.batch_rows as f64, job.placement.ps);
        let machines = Machines { readers: job.placement.readers, ps, trainers: job.placement.trainers };
        let shards = self.demand.shard / 2.0 * self.options.skew / self.shards(machines);
        let work = (work + shards) / self.attained;
        if ps == 0 {
            return rows * work;
        }
        let line = (self.kind(1).network * ps as f64 / self.options.skew).min(self.kind(2).network);
        rows * (work + bytes / line) + self.round_trips(job)
    }

    /// Seconds of the round trips of a call.
    fn round_trips(&self, job: &Job) -> f64 {
        let trips = if job.placement.dense() == DenseAt::Ps { 2.0 } else { 1.0 };
        trips * self.options.round_trip
    }
}
