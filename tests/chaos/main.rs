//! Chaos: a run of several processes, while one or all are killed or asked to shut down, or one is stopped or cut off, at random times. A
//! run that ends with a checkpoint is resumed. Every row must be trained on once in each epoch. With one trainer or `train.sync`, and
//! `train.staleness = 0` or `{ exactly = k }`, the model must be that of an undisturbed run, to the bit. Jobs that do not promise the same
//! bits train a table that counts rows: see [`Promise::Rows`].
//!
//! `make chaos` runs 100 rounds, CI a few. A failed round prints its seed: `FOREBAY_CHAOS_SEED=SEED FOREBAY_CHAOS_ROUNDS=1`
//! repeats it. A seed stands for a placement, a scene and harms; when one of these lists changes, it stands for others.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a test blocks and prints"
)]

#[path = "../cluster/bits.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod bits;
mod harm;
#[path = "../cluster/hosts.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod hosts;
mod launched;
mod on_hosts;
mod progress;
mod round;
#[path = "../cluster/trust.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod trust;
#[path = "../cluster/wire.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod wire;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bits::Bits;
use forebay_base::SplitMix64;
use harm::Harm;
use progress::Times;
use round::{Placement, Promise, Round, Scene};

/// A round that lasts longer after the last harm hangs.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// Rows of an epoch: whole batches of 512, because a gradient of [`Promise::Rows`] is one part of the rows of its batch, a power of two.
pub(crate) const ROWS: u64 = 200_192;

/// Rounds of a run without FOREBAY_CHAOS_ROUNDS: one for each placement.
const ROUNDS: usize = PLACEMENTS.len();

const SCENES: [Scene; 3] = [Scene::Launch, Scene::ShortLease, Scene::Hosts];

/// Placements, and what must be the same after all faults.
const PLACEMENTS: [Placement; 13] = [
    Placement { promises: Promise::Bits, settings: &["placement.readers=2", "placement.ps=2", "train.look_ahead=8"] },
    Placement { promises: Promise::Bits, settings: &["placement.readers=2", "placement.ps=2", "placement.dense=ps"] },
    Placement { promises: Promise::Bits, settings: &["placement.ps=2"] },
    Placement { promises: Promise::Bits, settings: &["placement.readers=2"] },
    Placement {
        promises: Promise::Bits,
        settings: &["placement.readers=1", "placement.ps=2", "placement.lookup_at=reader"],
    },
    Placement { promises: Promise::Rows, settings: &["placement.readers=2", "placement.ps=2", "train.staleness=4"] },
    Placement {
        promises: Promise::Bits,
        settings: &["placement.readers=2", "placement.ps=2", "placement.trainers=2", "train.sync=true"],
    },
    Placement {
        promises: Promise::Rows,
        settings: &["placement.readers=2", "placement.ps=1", "placement.trainers=2", "train.staleness=2"],
    },
    Placement { promises: Promise::Rows, settings: &["placement.ps=1", "placement.trainers=2", "train.staleness=2"] },
    Placement {
        promises: Promise::Bits,
        settings: &["placement.readers=1", "placement.ps=2", "placement.trainers=3", "train.sync=true"],
    },
    Placement {
        promises: Promise::Bits,
        settings: &["placement.readers=2", "placement.ps=2", "train.staleness.exactly=2"],
    },
    Placement {
        promises: Promise::Bits,
        settings: &[
            "placement.readers=2",
            "placement.ps=2",
            "placement.trainers=2",
            "train.sync=true",
            "train.staleness.exactly=2",
        ],
    },
    Placement {
        promises: Promise::Rows,
        settings: &["placement.ps=2", "placement.trainers=2", "placement.dense=ps", "train.staleness=0"],
    },
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}")))
}

/// Makes the rows of all rounds.
fn rows(folder: &std::path::Path) -> PathBuf {
    let (rows, number) = (folder.join("rows"), ROWS.to_string());
    let mut synth = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let said = synth.args(["data", "synth", "--rows", &number, "--group-rows", "16384", "--out"]).arg(&rows).output();
    let said = said.unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    rows
}

#[test]
fn whatever_dies_every_row_is_trained_on_once() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows(folder.path());
    let rounds = number("FOREBAY_CHAOS_ROUNDS").map_or(ROUNDS, |rounds| rounds as usize);
    let first = number("FOREBAY_CHAOS_SEED").unwrap_or(1);
    let mut undisturbed: HashMap<&[&str], (Bits, Duration)> = HashMap::new();
    let (mut harms, mut attempts, mut times): (Vec<Harm>, _, _) = (Vec::new(), 0, Times::new());
    for seed in first..first + rounds as u64 {
        let mut random = SplitMix64::new(seed);
        let at = seed as usize % PLACEMENTS.len();
        let placement = &PLACEMENTS[at];
        // Another scene for each placement with each turn.
        let scene = SCENES[(seed as usize / PLACEMENTS.len() + at) % SCENES.len()];
        let round = Round { seed, rows: &rows, placement, scene };
        let (calm, time) = undisturbed.entry(placement.settings).or_insert_with(|| round.undisturbed());
        let ended = round.run(*time, &mut random, &mut times);
        let difference = match placement.promises {
            Promise::Bits => ended.model.difference(calm),
            Promise::Rows => ended.model.difference_of_rows(calm),
        };
        assert_eq!(difference, None, "seed {seed}: {}", ended.log);
        let done: Vec<String> = ended.done.iter().map(|done| format!("{} {}", done.harm, done.role)).collect();
        println!(
            "seed {seed}, {scene:?}: {}; {} attempts, {} resumes, {:.1} s, {}",
            done.join(", "),
            ended.attempts,
            ended.resumes,
            ended.seconds,
            placement.settings.join(" ")
        );
        harms.extend(ended.done.iter().map(|done| done.harm));
        attempts += ended.attempts;
    }
    assert!(rounds < ROUNDS || !harms.is_empty(), "all runs were over before any harm");
    let count = |of| harms.iter().filter(|harm| **harm == of).count();
    let [kills, all, told, all_told] = [Harm::Kill, Harm::KillAll, Harm::Term, Harm::TermAll].map(count);
    let [stops, long, cuts] = [Harm::Stop, Harm::LongStop, Harm::Cut].map(count);
    progress::print(&times);
    println!(
        "{rounds} rounds, {kills} kills, {all} kills of all processes at once, {told} SIGTERM to one process, {all_told} to all, {stops} \
         stops, {long} stops longer than the lease, {cuts} cuts, {attempts} attempts: no row lost or doubled, no hang"
    );
}
