//! The plan: machines and their limits, the bytes of each link, the table, hours and money, and all assumptions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use forebay_actors::{Fault, counted, size};
use forebay_job::{Job, LookupAt};
use serde::Serialize;

use super::assumed::assumed;
use super::assumption::{Assumption, bits, count, in_cores, time};
use super::bounds::{Bound, Costs};
use super::demand::Demand;
use super::growth::PowerLaw;
use super::options::{MachineKind, PlanOptions, ROLES};
use super::profile::RunProfile;
use super::reached::reached;
use super::search::{cheapest, cheapest_run};
use super::{Machines, tables};
use crate::dense_model::dense_memory::DenseMemory;
use crate::dense_model::job_model::JobModel;
use crate::extension::registry::Registry;

/// The plan of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunPlan {
    /// How many machines.
    pub machines: Machines,
    /// Rows to train on.
    pub rows: f64,
    /// Rows per second: the lowest of `bounds`.
    pub rows_per_second: f64,
    /// Rows per second that the deadline needs, if there is one.
    pub needed: Option<f64>,
    /// Hours from the start to the saved model.
    pub hours: f64,
    /// Money for the run, if all prices are known.
    pub money: Option<f64>,
    /// The resources, the one that limits first.
    pub bounds: Vec<Bound>,
    /// The roles that have machines.
    pub roles: Vec<PlannedRole>,
    /// The links between them.
    pub links: Vec<PlannedLink>,
    /// The table and its checkpoint.
    pub table: PlannedTable,
    /// The dense parameters, and the memory that they take in a trainer. `None` for an own model.
    pub dense: Option<DenseMemory>,
    /// All assumptions: figures of one measurement, and figures that were not measured.
    pub assumptions: Vec<Assumption>,
}

/// The machines of a role.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedRole {
    /// `reader`, `ps` or `trainer`.
    pub role: String,
    /// How many.
    pub machines: usize,
    /// Cores of each.
    pub cores: f64,
    /// The part of its cores that each uses.
    pub busy: f64,
    /// Bytes per second into each machine, and out of it.
    pub network: [f64; 2],
}

/// A link between roles, with headers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedLink {
    /// The sending role.
    pub from: String,
    /// The receiving role.
    pub to: String,
    /// Bytes per row trained on.
    pub bytes_per_row: f64,
    /// Bytes per second of all machines together.
    pub bytes_per_second: f64,
}

/// The table at the end of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedTable {
    /// Its rows.
    pub keys: f64,
    /// Bytes of memory that a row takes at most, with its share of the index.
    pub bytes_per_key: f64,
    /// All shards.
    pub shards: usize,
    /// Bytes of memory of the largest shard.
    pub shard_bytes: f64,
    /// Bytes of memory of the largest ps, or of the trainer without ps.
    pub machine_bytes: f64,
    /// Bytes of a whole checkpoint.
    pub checkpoint_bytes: f64,
    /// Seconds that it takes; the run goes on meanwhile.
    pub checkpoint_seconds: f64,
    /// Bytes of the model folder.
    pub model_bytes: f64,
    /// Seconds that saving it takes.
    pub model_seconds: f64,
}

/// Bytes per second that a machine writes, if it was not measured.
const SAVE_SPEED: f64 = 200e6;

/// A model folder that was saved faster than this says little about the store.
const LEAST_SAVED: f64 = 0.05;

/// Plans a run of `job` from a measured one.
///
/// # Errors
/// User: the job of the measured run differs in fields that change the cost of a row, the job cannot be planned, or no machines are fast
/// enough.
pub fn plan(job: &Job, registry: &Registry, profile: &RunProfile, options: &PlanOptions) -> Result<RunPlan, Fault> {
    job.check()?;
    // A sample of the rows decides the scales in this run, too.
    let job = &job.with_scales_of(&profile.settings);
    same_costs(job, profile)?;
    let model = JobModel::of(job, registry)?;
    let config = model.table_config(job);
    let dense = model.spec.as_ref().map(|spec| spec.dense_len() as f64);
    let rows = options.rows.unwrap_or(profile.rows_since_the_start());
    let mut assumptions = Vec::new();
    let grown = keys(job, profile, options, rows, &mut assumptions);
    let tables = tables::sums(&config, &profile.tables, grown, options.keys.is_some(), &mut assumptions);
    let (keys, bytes_per_key) = (tables.keys, tables.bytes / tables.keys.max(1.0));
    let settings = &profile.settings.placement;
    let costs = Costs {
        job: job.clone(),
        demand: Demand::of(profile, config.row_dim()),
        row: (config.row_dim() as f64, config.state_dim() as f64),
        dense: dense.unwrap_or(0.0),
        overlap: 0.0,
        attained: 1.0,
        measured: (settings.readers > 0, settings.ps > 0),
        cores: profile.report.machine.cores as f64,
        table_bytes: tables.bytes,
        options: options.clone(),
    };
    let itself = measured(&costs, profile);
    let overlap = overlap(&itself, profile);
    let reached = reached(&Costs { overlap, ..itself }, profile);
    let attained =
        options.attained.unwrap_or_else(|| reached.as_ref().map_or(1.0, |reached| reached.attained(profile)));
    let costs = Costs { overlap, attained, ..costs };
    let dense = dense.unwrap_or(0.0);
    let measured = profile.saved.filter(|saved| saved.seconds >= LEAST_SAVED);
    let save_speed =
        options.save_speed.or(measured.map(|saved| saved.bytes as f64 / saved.seconds)).unwrap_or(SAVE_SPEED);
    let model_bytes = 8.0 * keys + 4.0 * tables.weights + 4.0 * dense;
    let overhead = profile.start_seconds() + model_bytes / save_speed;
    let needed = options.deadline.map(|deadline| rows / (deadline - overhead));
    let machines = machines(&costs, options, needed, (rows, overhead))?;
    let Some(bounds) = costs.bounds(machines) else {
        let refused = |mut job: Job| {
            (job.placement.readers, job.placement.ps, job.placement.trainers) =
                (machines.readers, machines.ps, machines.trainers);
            job.check()
        };
        refused(job.clone())?;
        return Err(Fault::internal("a job that can run has no bounds"));
    };
    let rate = bounds.first().map_or(0.0, |bound| bound.rate);
    let hours = (rows / rate + overhead) / 3600.0;
    let counts = [machines.readers, machines.ps, machines.trainers];
    let prices = (0..3).map(|role| match counts[role] {
        0 => Some(0.0),
        count => options.machines[role].price.map(|price| price * count as f64 * hours),
    });
    let holders = machines.ps.max(1) as f64;
    let shards = costs.shards(machines);
    let checkpoint_bytes = 8.0 * keys + 4.0 * (tables.weights + tables.state) + 12.0 * dense;
    let table = PlannedTable {
        keys,
        bytes_per_key,
        shards: shards as usize,
        shard_bytes: costs.table_bytes * options.skew / shards,
        machine_bytes: costs.table_bytes * options.skew / holders,
        checkpoint_bytes,
        checkpoint_seconds: checkpoint_bytes * options.skew / holders / save_speed,
        model_bytes,
        model_seconds: model_bytes / save_speed,
    };
    let job = costs.job_on(machines).unwrap_or_else(|| job.clone());
    let links = links(&costs, &job, machines, rate);
    assumptions.extend(assumed(&costs, &job, profile, reached.as_ref(), (measured.is_some(), save_speed), options));
    Ok(RunPlan {
        machines,
        rows,
        rows_per_second: rate,
        needed,
        hours,
        money: prices.sum(),
        roles: roles(&costs, &job, counts, &links, rate),
        links,
        bounds,
        table,
        dense: model.spec.as_ref().map(|spec| DenseMemory::of(&job, spec)),
        assumptions,
    })
}

/// The measured run, on its own machine.
fn measured(costs: &Costs, profile: &RunProfile) -> Costs {
    let machines = costs.options.machines.map(|kind| MachineKind { cores: None, ..kind });
    let options = PlanOptions { machines, compute_speed: 1.0, ..costs.options.clone() };
    let mut job = profile.settings.clone();
    job.table.shards = (profile.shards().count() / job.placement.ps.max(1)).max(1).into();
    Costs { job, options, ..costs.clone() }
}

/// Seconds per batch in which two of look-up, compute and push ran at once, from a measured run in one process with one batch under way.
/// If a batch always waited for the ticket, Little's law ("A proof for the queuing formula L = λW", Operations Research 1961) gives the
/// time of a batch: the time between the ends of two batches. The result is negative if batches also waited for something else, and 0 if
/// the profile does not show it.
fn overlap(measured: &Costs, profile: &RunProfile) -> f64 {
    let settings = &measured.job;
    let waited = profile.stage("lookup").map_or(0.0, |stage| stage.wait_share("ticket"));
    if !settings.placement.is_one_process() || settings.train.staleness.batches > 0 || waited < TICKETS_LIMIT {
        return 0.0;
    }
    let between = (profile.report.wall.as_secs_f64() - profile.start_seconds()) / profile.batches() as f64;
    measured.batch_seconds(settings) - between
}

/// Tickets limit a run if `lookup` waits for them for at least this share of it.
const TICKETS_LIMIT: f64 = 0.5;

/// The machines of the job's placement or, with a deadline, the machines that meet it and on which the run costs least. Without the prices
/// of all roles, the machines that cost least in an hour. `overhead` is the seconds of the run in which it trains on no rows.
fn machines(
    costs: &Costs,
    options: &PlanOptions,
    needed: Option<f64>,
    (rows, overhead): (f64, f64),
) -> Result<Machines, Fault> {
    let placement = &costs.job.placement;
    let given = Machines { readers: placement.readers, ps: placement.ps, trainers: placement.trainers };
    let Some(needed) = needed else {
        return if costs.fits(given) { Ok(given) } else { Err(too_large(costs, given, "raise placement.ps, or")) };
    };
    if needed <= 0.0 {
        return Err(Fault::user(format!(
            "deadline: starting and saving the model alone take {}: allow more time, or give --assume save_speed=",
            time(overhead)
        )));
    }
    let prices = options.machines.map(|machine| machine.price);
    let other = if prices.iter().any(Option::is_some) { 1e-9 } else { 1.0 };
    let (known, prices) = (prices.iter().all(Option::is_some), prices.map(|price| price.unwrap_or(other)));
    // A search asks for the same machines several times.
    let rates = RefCell::new(HashMap::new());
    let rate = |machines: Machines| *rates.borrow_mut().entry(machines).or_insert_with(|| costs.rate(machines));
    let fast = needed * options.headroom;
    let most = costs.most_machines();
    let found = match known {
        true => cheapest_run(rate, fast, prices, most, |rate| rows / rate + overhead),
        false => cheapest(rate, fast, prices, most),
    };
    found.ok_or_else(|| too_slow(costs, needed, fast))
}

fn too_large(costs: &Costs, machines: Machines, change: &str) -> Fault {
    let size = size(costs.table_bytes as u64);
    Fault::user(format!(
        "the table of {size} does not fit into the memory of {} ps: {change} --machine memory=",
        machines.ps
    ))
}

/// No machines are fast enough, or have the memory.
fn too_slow(costs: &Costs, needed: f64, fast: f64) -> Fault {
    let most = costs.most_machines();
    if !costs.fits(most) {
        return too_large(costs, most, "give --keys, or");
    }
    let kinds = [most, Machines { trainers: 1, ..most }].into_iter();
    let limits = kinds.filter_map(|machines| costs.bounds(machines)?.into_iter().next());
    let limit = limits.max_by(|a, b| a.rate.total_cmp(&b.rate));
    let limit = limit.map_or("the job".to_owned(), |bound| format!("{}, {} rows/s", bound.name, count(bound.rate)));
    Fault::user(format!(
        "deadline: {} rows/s are needed, {} with the headroom, and even {}, {} ps and {} are not that fast; the limit is {limit}",
        count(needed),
        count(fast),
        counted(most.readers, "reader"),
        most.ps,
        counted(most.trainers, "trainer")
    ))
}

/// Fails if the job of the measured run differs in fields that change the cost of a row.
fn same_costs(job: &Job, profile: &RunProfile) -> Result<(), Fault> {
    for (whose, job) in [("the job", job), ("the report's job", &profile.settings)] {
        if job.placement.lookup_at == LookupAt::Reader {
            return Err(Fault::user(format!(
                "placement.lookup_at of {whose} is \"reader\": expected \"trainer\", which is all that plans support"
            )));
        }
    }
    let costs = |name: &str| {
        // Evaluations during the run are in the CPU time and in the wall time of a measured row.
        let prefixes = ["columns.", "model.", "tables.", "pipeline.after_", "evaluation.every"];
        let names =
            ["train.batch_rows", "train.backend", "train.device", "train.transfers", "table.storage", "data.negatives"];
        let kinds = ["train.optimizer.kind", "table.linear_optimizer.kind", "table.embedding_optimizer.kind"];
        // Statistics of columns change no cost.
        !name.starts_with("columns.statistics")
            && !name.starts_with("columns.quantiles")
            && (prefixes.iter().any(|prefix| name.starts_with(prefix))
                || names.contains(&name)
                || kinds.contains(&name))
    };
    let differ = profile.settings.differences(job, costs);
    match differ.is_empty() {
        true => Ok(()),
        false => Err(Fault::user(format!(
            "the report cannot predict this job, because the costs of a row depend on fields that differ between the measured run \
             (\"there\") and this job (\"here\"): {}; run this job for a while, and plan with its own report",
            differ.join("; ")
        ))),
    }
}

/// Rows of all tables after `rows` rows of data, without a cap.
fn keys(job: &Job, profile: &RunProfile, options: &PlanOptions, rows: f64, assumptions: &mut Vec<Assumption>) -> f64 {
    let mut assume = |what: String| assumptions.push(Assumption { what, change: "--keys".into() });
    let seen = profile.table_rows();
    let measured_rows = profile.rows_since_the_start() / profile.settings.data.epochs.max(1) as f64;
    // Later passes bring no new keys.
    let different = rows / job.data.epochs.max(1) as f64;
    match (options.keys, PowerLaw::through(&profile.growth())) {
        (Some(keys), _) => {
            assume(format!("the table has {} rows at the end, as given", count(keys)));
            keys
        }
        _ if different <= measured_rows => {
            assume(format!("the table has {} rows at the end, as measured", count(seen)));
            seen
        }
        (None, Some(law)) => {
            assume(format!(
                "keys grow as a power of the rows, as in the measured run (Heaps' law): {} keys after {} rows, times {:.1} for each ten \
                 times as many rows",
                count(seen),
                count(measured_rows),
                10_f64.powf(law.exponent)
            ));
            law.keys(different)
        }
        (None, None) => {
            assume(format!(
                "every row brings as many new keys as a measured one, {:.2}: the measured run was too short, or had no history, to tell \
                 how they grow; this is the most there can be",
                seen / measured_rows
            ));
            seen * different / measured_rows
        }
    }
}

fn links(costs: &Costs, job: &Job, machines: Machines, rate: f64) -> Vec<PlannedLink> {
    let traffic = costs.traffic(job);
    let reads = if machines.readers > 0 { "reader" } else { "trainer" };
    [
        ("store", reads, costs.demand.store_bytes),
        ("reader", "trainer", traffic.batches),
        ("trainer", "ps", traffic.to_ps),
        ("ps", "trainer", traffic.from_ps),
    ]
    .into_iter()
    .filter(|(.., bytes)| *bytes > 0.0)
    .map(|(from, to, bytes)| PlannedLink {
        from: from.into(),
        to: to.into(),
        bytes_per_row: bytes,
        bytes_per_second: bytes * rate,
    })
    .collect()
}

fn roles(costs: &Costs, job: &Job, counts: [usize; 3], links: &[PlannedLink], rate: f64) -> Vec<PlannedRole> {
    let cpu = costs.cpu(job);
    let role = |role: usize| {
        let machines = counts[role] as f64;
        let at = |end: fn(&PlannedLink) -> &str| {
            links
                .iter()
                .filter(|link| end(link) == ROLES[role])
                .map(|link| link.bytes_per_second)
                .fold(0.0, |sum, bytes| sum + bytes)
                / machines
        };
        PlannedRole {
            role: ROLES[role].into(),
            machines: counts[role],
            cores: costs.cores_of(role),
            busy: rate * cpu[role] / (machines * costs.cores_of(role)),
            network: [at(|link| &link.to), at(|link| &link.from)],
        }
    };
    (0..3).filter(|&at| counts[at] > 0).map(role).collect()
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machines { readers, ps, trainers } = self.machines;
        match self.machines {
            Machines::ONE => writeln!(f, "machines: 1, one process"),
            _ => writeln!(f, "machines: {}, {ps} ps, {}", counted(readers, "reader"), counted(trainers, "trainer")),
        }?;
        write!(
            f,
            "{} rows at {} rows/s: {}",
            count(self.rows),
            count(self.rows_per_second),
            time(3600.0 * self.hours)
        )?;
        if let Some(needed) = self.needed {
            write!(f, "; the deadline needs {} rows/s", count(needed))?;
        }
        if let Some(money) = self.money {
            write!(f, "; costs {money:.2}")?;
        }
        writeln!(f, "\n\nlimits (rows/s, how busy)")?;
        for Bound { name, rate } in &self.bounds {
            writeln!(f, "  {:<44} {:>12} {:>5.0}%", name, count(*rate), 100.0 * self.rows_per_second / rate)?;
        }
        writeln!(f, "\nmachines")?;
        for PlannedRole { role, machines, cores, busy, network: [into, out] } in &self.roles {
            writeln!(
                f,
                "  {machines} × {role}: {} {:.0}% busy, network {} in and {} out of each",
                in_cores(*cores),
                100.0 * busy,
                bits(*into),
                bits(*out)
            )?;
        }
        writeln!(f, "\nlinks")?;
        for PlannedLink { from, to, bytes_per_row, bytes_per_second } in &self.links {
            writeln!(f, "  {from} → {to}: {:.4} GB/s in all, {bytes_per_row:.0} bytes a row", bytes_per_second / 1e9)?;
        }
        let PlannedTable { keys, bytes_per_key, shards, shard_bytes, machine_bytes, .. } = self.table;
        let PlannedTable { checkpoint_bytes, checkpoint_seconds, model_bytes, model_seconds, .. } = self.table;
        writeln!(
            f,
            "\ntable: {} rows of {bytes_per_key:.0} bytes in {}, {} a shard, {} a machine",
            count(keys),
            counted(shards, "shard"),
            size(shard_bytes as u64),
            size(machine_bytes as u64)
        )?;
        if let Some(dense) = &self.dense {
            writeln!(f, "each trainer: {dense}")?;
        }
        writeln!(
            f,
            "checkpoint: {}, {}; model folder: {}, {}",
            size(checkpoint_bytes as u64),
            time(checkpoint_seconds),
            size(model_bytes as u64),
            time(model_seconds)
        )?;
        write!(f, "\nassumed (and what changes it)")?;
        for Assumption { what, change } in &self.assumptions {
            write!(f, "\n  {what} ({change})")?;
        }
        Ok(())
    }
}
