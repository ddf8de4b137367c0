//! What the rounds do to processes, and what they need of a cluster to do it.

use std::fmt;
use std::time::{Duration, Instant};

use forebay_base::SplitMix64;

use crate::LONG;

/// `placement.lease_seconds` of the rounds with long stops and cuts. By default it is 30: a round would take minutes.
pub(crate) const LEASE_SECONDS: u64 = 4;

/// Two harms of so many meet all processes at once: a kill, and a signal to end.
const ALL_AT_ONCE: u64 = 12;

/// What is done to a process, or to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Harm {
    /// SIGKILL.
    Kill,
    /// SIGKILL of all processes at once, but not of what starts them again.
    KillAll,
    /// SIGTERM: it leaves, or the whole run ends with a checkpoint and is resumed.
    Term,
    /// SIGTERM to the run: to `launch`, or to all processes.
    TermAll,
    /// SIGSTOP for up to two seconds.
    Stop,
    /// SIGSTOP for longer than the lease.
    LongStop,
    /// All packets to and from its host are dropped, for less or for more than the lease.
    Cut,
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill | Self::KillAll => "kill",
            Self::Term | Self::TermAll => "SIGTERM",
            Self::Stop => "stop",
            Self::LongStop => "stop longer than the lease",
            Self::Cut => "cut",
        })
    }
}

/// A process, and how it is reached.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Victim {
    pub(crate) role: String,
    pub(crate) name: String,
    pub(crate) id: u32,
}

/// One harm that was done.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) harm: Harm,
    /// The role of the process, or `all processes`.
    pub(crate) role: String,
    pub(crate) at: Instant,
}

/// The processes of a run.
pub(crate) trait Cluster {
    /// The processes that run.
    fn victims(&self) -> Vec<Victim>;
    /// Does what a supervisor does that is no part of the program. Returns whether the run has ended.
    fn is_over(&mut self) -> bool;
    /// Begins to do harm to a process, or to all. Returns whether it could be done.
    fn begin(&mut self, harm: Harm, victim: &Victim) -> bool;
    /// Undoes it, if it can be undone.
    fn end(&mut self, harm: Harm, victim: &Victim);

    /// Lets time pass. Returns early if the run is over.
    fn pause(&mut self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time && !self.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Does one to four kinds of harm out of `kinds` at random times within `calm`, the time of an undisturbed run. A kind that is there twice
/// is twice as likely. Instead of one of `kinds`, it sometimes kills all processes, or tells all to end.
pub(crate) fn harm(cluster: &mut dyn Cluster, kinds: &[Harm], calm: Duration, random: &mut SplitMix64) -> Vec<Done> {
    let mut done = Vec::new();
    // On a loaded machine they come late.
    let begun = Instant::now();
    while cluster.victims().is_empty() && !cluster.is_over() {
        assert!(
            begun.elapsed() < LONG,
            "no process runs that could be harmed, and the run has not ended, after {LONG:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    for _ in 0..1 + random.next_u64() % 4 {
        // On a fast machine a run is over sooner.
        let most = calm.as_millis().clamp(2, 2200) as u64;
        let least = most.min(400) / 2;
        cluster.pause(Duration::from_millis(least + random.next_u64() % (most - least)));
        let victims = cluster.victims();
        if victims.is_empty() || cluster.is_over() {
            break;
        }
        let victim = &victims[random.next_u64() as usize % victims.len()];
        let harm = match random.below(ALL_AT_ONCE) {
            0 => Harm::KillAll,
            1 => Harm::TermAll,
            _ => kinds[random.next_u64() as usize % kinds.len()],
        };
        let lease = LEASE_SECONDS * 1000;
        let time = Duration::from_millis(match harm {
            Harm::Kill | Harm::KillAll | Harm::Term | Harm::TermAll => 0,
            Harm::Stop => random.next_u64() % 2000,
            Harm::LongStop => lease + 1000 + random.next_u64() % lease,
            Harm::Cut => 200 + random.next_u64() % (2 * lease),
        });
        let at = Instant::now();
        if cluster.begin(harm, victim) {
            let all = matches!(harm, Harm::KillAll | Harm::TermAll);
            let role = if all { "all processes" } else { victim.role.as_str() };
            done.push(Done { harm, role: role.to_owned(), at });
        }
        cluster.pause(time);
        cluster.end(harm, victim);
    }
    done
}
