//! What a plan assumes besides the growth of the table, and how a user changes each assumption.

use std::collections::BTreeMap;

use forebay_actors::{counted, size};
use forebay_job::{DenseAt, Job};

use super::assumption::{Assumption, bits, count, in_cores, time};
use super::bounds::Costs;
use super::options::{PlanOptions, ROLES};
use super::profile::RunProfile;
use super::reached::Reached;
/// What the plan assumes. `saving`: whether the speed of saving was measured, and bytes per second.
pub(super) fn assumed(
    costs: &Costs,
    job: &Job,
    profile: &RunProfile,
    reached: Option<&Reached>,
    saving: (bool, f64),
    options: &PlanOptions,
) -> Vec<Assumption> {
    let mut all = of_rows(costs, job, profile, reached, options);
    all.extend(of_machines(costs, job, options));
    all.extend(of_links(costs, job, profile, options));
    all.extend(of_stores(profile, saving, options));
    all
}

/// The cost of a row.
fn of_rows(
    costs: &Costs,
    job: &Job,
    profile: &RunProfile,
    reached: Option<&Reached>,
    options: &PlanOptions,
) -> Vec<Assumption> {
    let demand = &costs.demand;
    let micro = |seconds: f64| seconds * 1e6;
    let mut all = Vec::new();
    let mut assume = |what: String, change: &str| all.push(Assumption { what, change: change.into() });
    assume(
        format!(
            "a row costs what it cost in the measured run: {:.2} µs of CPU to read, parse and batch, {:.2} in the shards, {:.2} to look \
             up, train and push; {:.2} keys",
            micro(demand.read_cpu),
            micro(demand.shard_cpu),
            micro(demand.train_cpu),
            demand.keys
        ),
        "--profile",
    );
    if let Some(every) = job.evaluation.every {
        assume(
            format!(
                "the model is evaluated every {every} as in the measured run: a row costs its part of these evaluations, whatever rows are in \
                 data.eval and in an epoch"
            ),
            "evaluation.every, in both runs",
        );
    }
    let given = options.attained.is_some();
    let how = match reached {
        Some(reached) => reached.words(profile, given),
        None if given => ", as given".to_owned(),
        None => String::new(),
    };
    assume(
        format!(
            "a run reaches {:.0}% of the rows/s that its cores, its compute and its shards allow{how}",
            100.0 * costs.attained
        ),
        "--assume attained=",
    );
    all
}

fn of_machines(costs: &Costs, job: &Job, options: &PlanOptions) -> Vec<Assumption> {
    let demand = &costs.demand;
    let mut all = Vec::new();
    let mut assume = |what: String, change: &str| all.push(Assumption { what, change: change.into() });
    assume(
        "readers and ps use all cores of a machine: the cost of a row does not depend on their number".into(),
        "--machine cores=",
    );
    let who = if job.placement.ps > 0 { "a ps" } else { "the process" };
    let shards = counted(costs.shards_of_each(job.placement.ps), "shard");
    assume(format!("{who} has {shards}, and a shard uses one core"), "table.shards");
    assume(
        format!(
            "a trainer computes {:.1} times as fast as in the measured run, on {}: {} rows/s",
            options.compute_speed,
            in_cores(costs.cores),
            count(options.compute_speed / demand.compute.max(1e-12))
        ),
        "--assume compute_speed=",
    );
    let mut machines: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (at, role) in ROLES.iter().enumerate() {
        let kind = costs.kind(at);
        let is = format!(
            "{}, network {} each way, memory {}",
            in_cores(costs.cores_of(at)),
            bits(kind.network),
            size(kind.memory as u64)
        );
        machines.entry(is).or_default().push(role);
    }
    for (is, roles) in machines {
        assume(format!("machines of {}: {is}", roles.join(", ")), "--machine [ROLE:]cores=,network=,memory=");
    }
    all
}

/// The links between machines, and what travels there.
fn of_links(costs: &Costs, job: &Job, profile: &RunProfile, options: &PlanOptions) -> Vec<Assumption> {
    let demand = &costs.demand;
    let mut all = Vec::new();
    let mut assume = |what: String, change: &str| all.push(Assumption { what, change: change.into() });
    let placement = &job.placement;
    if !placement.is_one_process() {
        assume(format!("round trip between machines: {}", time(options.round_trip)), "--assume round_trip=");
        assume(
            format!("headers of TLS, HTTP/2 and TCP add {:.0}% to the bytes", 100.0 * (options.headers - 1.0)),
            "--assume headers=",
        );
    }
    if placement.readers > 0 && !costs.measured.0 || placement.ps > 0 && !costs.measured.1 {
        assume(
            format!(
                "on links that the measured run did not have, a byte costs {:.1} ns of CPU at each end",
                options.network_cpu * 1e9
            ),
            "--assume network_cpu=",
        );
    }
    if placement.ps > 1 {
        assume(format!("the busiest ps has {:.2} times its share of keys", options.skew), "--assume skew=");
    }
    if placement.ps > 0 && placement.dense() == DenseAt::Ps && profile.settings.placement.dense() != DenseAt::Ps {
        assume(
            "the step of the dense parameters costs the ps no more than it cost the trainer".into(),
            "--profile of a run with several trainers",
        );
    }
    if placement.compress.is_some() {
        assume("compression saves no bytes: its ratio is not known".into(), "placement.compress");
    }
    if costs.tickets(job).1 {
        assume(
            format!("look-ahead pulls {:.0}% of the rows of a batch", 100.0 * demand.pulled),
            "--profile of a run with look-ahead",
        );
    }
    all
}

fn of_stores(
    profile: &RunProfile,
    (measured_saving, save_speed): (bool, f64),
    options: &PlanOptions,
) -> Vec<Assumption> {
    let mut all = Vec::new();
    let mut assume = |what: String, change: &str| all.push(Assumption { what, change: change.into() });
    let store = match options.store {
        Some(store) => format!("the store gives {}/s to all readers together", size(store as u64)),
        None => "the store gives readers all that they ask for".into(),
    };
    assume(store, "--assume store=");
    let how = if measured_saving { "as measured" } else { "not measured" };
    assume(format!("a machine writes {}/s to the store, {how}", size(save_speed as u64)), "--assume save_speed=");
    if options.deadline.is_some() {
        assume(format!("headroom: {:.2} times as fast as the deadline needs", options.headroom), "--assume headroom=");
    }
    assume(
        format!("the start takes {}, as measured, and no process dies", time(profile.start_seconds())),
        "--deadline, shorter",
    );
    all
}
