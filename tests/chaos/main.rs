//! Chaos: `forebay launch` with default settings, while its processes are killed and stopped at random times. Every row must be
//! trained on once, and with `train.staleness = 0` or `{ exactly = k }` the model must be that of an undisturbed run, to the bit. Jobs that do not promise
//! the same bits train a table that counts rows: see [`Promise::Rows`].
//!
//! `make chaos` runs 100 rounds, CI a few. A failed round prints its seed: `FOREBAY_CHAOS_SEED=SEED FOREBAY_CHAOS_ROUNDS=1`
//! repeats it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a test blocks and prints"
)]

#[path = "../cluster/bits.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod bits;
mod round;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use bits::Bits;
use forebay_base::SplitMix64;
use round::{Placement, Promise, Round};

/// Rows for some seconds of work.
pub(crate) const ROWS: u64 = 400_000;

/// Rounds of a run without FOREBAY_CHAOS_ROUNDS: one for each placement.
const ROUNDS: usize = PLACEMENTS.len();

/// Placements, and what must be the same whatever happens.
const PLACEMENTS: [Placement; 12] = [
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
    let mut undisturbed: HashMap<&[&str], Bits> = HashMap::new();
    let (mut kills, mut stops, mut attempts) = (0, 0, 0);
    for seed in first..first + rounds as u64 {
        let mut random = SplitMix64::new(seed);
        let placement = &PLACEMENTS[seed as usize % PLACEMENTS.len()];
        let round = Round { seed, rows: &rows, placement };
        let done = round.run(&mut random);
        let calm = undisturbed.entry(placement.settings).or_insert_with(|| round.undisturbed());
        let difference = match placement.promises {
            Promise::Bits => done.model.difference(calm),
            Promise::Rows => done.model.difference_of_rows(calm),
        };
        assert_eq!(difference, None, "seed {seed}: {}", done.log);
        println!(
            "seed {seed}: {} kills, {} stops, {} attempts, {:.1} s, {}",
            done.kills,
            done.stops,
            done.attempts,
            done.seconds,
            placement.settings.join(" ")
        );
        (kills, stops, attempts) = (kills + done.kills, stops + done.stops, attempts + done.attempts);
    }
    println!("{rounds} rounds, {kills} kills, {stops} stops, {attempts} attempts: no row lost or doubled, no hang");
}
