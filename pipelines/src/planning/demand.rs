//! The measured costs of a row: CPU seconds of each role, seconds of each stage, keys and bytes.

use std::collections::BTreeMap;

use forebay_actors::{Report, StageReport};

use super::profile::RunProfile;

/// The demand of a row at the resources of the run, in seconds and bytes per row trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    /// CPU seconds of reading, parsing and batching.
    pub(super) read_cpu: f64,
    /// CPU seconds of shards.
    pub(super) shard_cpu: f64,
    /// CPU seconds of look-up, compute and push.
    pub(super) train_cpu: f64,
    /// Seconds in which the `train` stage, or its device, worked.
    pub(super) compute: f64,
    /// Seconds in which a replica of `lookup` ran.
    pub(super) lookup: f64,
    /// Seconds in which a replica of `push` ran.
    pub(super) push: f64,
    /// Seconds in which a shard ran, summed over all shards, without the time that it waited for a core.
    pub(super) shard: f64,
    /// Different keys of a batch.
    pub(super) keys: f64,
    /// Bytes of a batch in memory.
    pub(super) batch_bytes: f64,
    /// Bytes fetched from the store.
    pub(super) store_bytes: f64,
    /// With look-ahead, the part of the keys whose rows were pulled; 1 if the run had none.
    pub(super) pulled: f64,
}

impl Demand {
    /// The demand of a measured run of a model with `row_dim` weights a row.
    pub(super) fn of(profile: &RunProfile, row_dim: usize) -> Self {
        let rows = profile.rows().max(1.0);
        let per_row = |stage: Option<&StageReport>, what: fn(&StageReport) -> f64| stage.map_or(0.0, what) / rows;
        let lookup = profile.stage("lookup");
        let mut cpu = RoleCpu::default();
        profile.reports().for_each(|(process, report)| cpu.add(process, report));
        // A shard has a thread of its own, and waits for nothing but a core while it is busy.
        let busy: f64 = profile.shards().map(|shard| shard.busy.as_secs_f64()).sum();
        let worked: f64 = profile.reports().filter_map(|(_, report)| by_role(report).get(&Some("ps")).copied()).sum();
        let looked_up = per_row(lookup, |stage| stage.bytes_out.saturating_sub(stage.bytes_in) as f64);
        Self {
            read_cpu: cpu.reader / rows,
            shard_cpu: cpu.ps / rows,
            train_cpu: cpu.trainer / rows,
            compute: per_row(profile.stage("train"), |stage| (stage.busy + stage.waiting).as_secs_f64()),
            lookup: per_row(lookup, |stage| stage.busy.as_secs_f64()),
            push: per_row(profile.stage("push"), |stage| stage.busy.as_secs_f64()),
            shard: if worked > 0.0 { busy.min(worked) } else { busy } / rows,
            keys: looked_up / (4 * row_dim.max(1)) as f64,
            batch_bytes: per_row(lookup, |stage| stage.bytes_in as f64),
            store_bytes: per_row(profile.stage("read"), |stage| stage.bytes_fetched as f64),
            pulled: profile.look_ahead.map_or(1.0, |ahead| ahead.rows_pulled as f64 / ahead.keys.max(1) as f64),
        }
    }
}

/// CPU seconds by role.
#[derive(Debug, Default, PartialEq)]
struct RoleCpu {
    reader: f64,
    ps: f64,
    trainer: f64,
}

impl RoleCpu {
    /// If the name of a thread tells its work, its CPU time counts for the role of this work. All other CPU time counts for the role of the
    /// process.
    fn add(&mut self, process: &str, report: &Report) {
        let parts = by_role(report);
        let [reader, ps] = [Some("reader"), Some("ps")].map(|role| parts.get(&role).copied().unwrap_or(0.0));
        let rest = (report.machine.cpu.as_secs_f64() - reader - ps).max(0.0);
        self.reader += reader;
        self.ps += ps;
        match process.split(' ').next() {
            Some("reader") => self.reader += rest,
            Some("ps") => self.ps += rest,
            _ => self.trainer += rest,
        }
    }
}

/// The CPU seconds of a process by the roles that its threads work for.
fn by_role(report: &Report) -> BTreeMap<Option<&'static str>, f64> {
    let (machine, mut parts) = (&report.machine, BTreeMap::new());
    for (thread, cpu) in &machine.threads {
        *parts.entry(role(thread)).or_insert(0.0) += cpu;
    }
    let all: f64 = parts.values().sum();
    // Threads are looked at less often than the process: a thread's last half second may be missing.
    let scale = if all > 0.0 { machine.cpu.as_secs_f64() / all } else { 0.0 };
    parts.values_mut().for_each(|cpu| *cpu *= scale);
    parts
}

/// The role that a thread works for, by its name without number; `None` if that is the role of its process.
fn role(thread: &str) -> Option<&'static str> {
    let shard = thread.strip_prefix("ps").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    match thread {
        _ if shard => Some("ps"),
        "read" | "parse" | "cut" | "batch" => Some("reader"),
        _ if thread.ends_with("-decode") => Some("reader"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_actors::{LedgerReport, Machine, Verdict};

    use super::*;

    fn process(cpu: f64, threads: &[(&str, f64)]) -> Report {
        let threads = threads.iter().map(|&(name, cpu)| (name.to_owned(), cpu)).collect();
        Report {
            name: "train".into(),
            verdict: Verdict::Finished,
            wall: Duration::from_secs(1),
            machine: Machine { cpu: Duration::from_secs_f64(cpu), threads, ..Machine::default() },
            stages: Vec::new(),
            links: Vec::new(),
            services: Vec::new(),
            ledger: LedgerReport::default(),
            adjustments: Vec::new(),
        }
    }

    #[test]
    fn threads_count_for_the_role_that_they_work_for() {
        let mut one = RoleCpu::default();
        one.add(
            "trainer 0",
            &process(16.0, &[("parse", 1.0), ("read-decode", 1.0), ("ps0-embedding", 2.0), ("dense", 4.0)]),
        );
        assert_eq!(
            one,
            RoleCpu { reader: 4.0, ps: 4.0, trainer: 8.0 },
            "and half of the time was in threads that ended"
        );
        let mut many = RoleCpu::default();
        many.add("reader 1", &process(3.0, &[("parse", 1.0), ("net", 2.0)]));
        many.add("ps 0", &process(5.0, &[("ps0-embedding", 1.0), ("net", 4.0)]));
        many.add("trainer 0", &process(7.0, &[]));
        assert_eq!(many, RoleCpu { reader: 3.0, ps: 5.0, trainer: 7.0 });
    }
}
