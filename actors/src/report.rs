//! The report of a run: its plan with the meters, as text and as JSON.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::adjustment::Adjustment;
use crate::batch::Lineage;
use crate::fault::{Domain, Fault, Phase};
use crate::ledger::LedgerReport;
use crate::link::LinkReport;
use crate::machine::Machine;
use crate::numbers::{commas, counted};
use crate::stage_report::{StageReport, WaitKind};

/// The meters of a run, under way or ended. `links[i]` lies between `stages[i]` and `stages[i + 1]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The pipeline's name.
    pub name: String,
    /// Whether it runs, or how it ended.
    pub verdict: Verdict,
    /// The time since the start, up to the end of the run; in JSON, seconds.
    #[serde(with = "crate::seconds")]
    pub wall: Duration,
    /// Where it runs, and what it used there.
    pub machine: Machine,
    /// From the source to the sink.
    pub stages: Vec<StageReport>,
    /// The links between them.
    pub links: Vec<LinkReport>,
    /// The services of the hosts that were attached.
    pub services: Vec<StageReport>,
    /// The row counts.
    pub ledger: LedgerReport,
    /// The replicas that were added and removed while it ran, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adjustments: Vec<Adjustment>,
}

/// The state of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Verdict {
    /// Under way.
    Running,
    /// The source ran out, and every row is accounted for.
    Finished,
    /// The run was drained, and every row read is accounted for.
    Drained,
    /// This root cause stopped the run.
    Failed {
        /// Who can correct it.
        domain: Domain,
        /// Whether the same run may succeed when tried again.
        retryable: bool,
        /// Where it happened.
        stage: Option<String>,
        /// What the stage was doing.
        phase: Option<Phase>,
        /// The batch that the stage worked on.
        lineage: Option<Lineage>,
        /// The text of the fault, with its causes and its place.
        message: String,
    },
}

impl Verdict {
    /// The verdict of a run that this fault stopped.
    pub fn failed(fault: &Fault) -> Self {
        Verdict::Failed {
            domain: fault.domain,
            retryable: fault.retryable,
            stage: fault.stage.clone(),
            phase: fault.phase,
            lineage: fault.lineage.clone(),
            message: fault.to_string(),
        }
    }
}

impl Report {
    /// The stage of this name, if there is one.
    pub fn stage(&self, name: &str) -> Option<&StageReport> {
        self.stages.iter().find(|stage| stage.name == name)
    }

    /// Rows delivered per second of wall time.
    pub fn rows_per_second(&self) -> f64 {
        rate(self.ledger.delivered, self.wall)
    }

    /// As JSON, for tools.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings, numbers and lists always serialise")
    }
}

fn rate(rows: u64, wall: Duration) -> f64 {
    if wall.is_zero() { 0.0 } else { rows as f64 / wall.as_secs_f64() }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Says that a run has failed, but not why: the run also returns its fault, which would then be printed twice.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.verdict {
            Verdict::Running => "running",
            Verdict::Finished => "finished",
            Verdict::Drained => "drained",
            Verdict::Failed { .. } => "failed",
        };
        write!(
            f,
            "{}: {state} after {:.1} s, {}, {} rows/s",
            self.name,
            self.wall.as_secs_f64(),
            counted(self.ledger.delivered, "row"),
            commas(self.rows_per_second() as u64)
        )?;
        writeln!(f)?;
        for (i, stage) in self.stages.iter().enumerate() {
            if let Some(link) = i.checked_sub(1).and_then(|above| self.links.get(above)) {
                writeln!(f, "{}│ {}", "   ".repeat(i), LinkLine(link))?;
            }
            writeln!(f, "{}└─ {}", "   ".repeat(i), StageLine { stage, wall: self.wall })?;
        }
        for stage in &self.services {
            writeln!(f, "⇄ {}", StageLine { stage, wall: self.wall })?;
        }
        write!(f, "ledger: {} read = {} delivered", counted(self.ledger.read, "row"), commas(self.ledger.delivered))?;
        for (reason, rows) in &self.ledger.rejected {
            write!(f, " + {} rejected ({reason})", commas(*rows))?;
        }
        let rest = self.ledger.read.abs_diff(self.ledger.delivered + self.ledger.rejected_total());
        if rest > 0 {
            let what = match self.verdict {
                Verdict::Running => "under way",
                Verdict::Failed { .. } => "not delivered when it stopped",
                // They are in no result yet, and a program that continues from there reads them again.
                Verdict::Drained => "not delivered",
                Verdict::Finished => "lost",
            };
            write!(f, " + {} {what}", commas(rest))?;
        }
        if let Some(line) = self.ledger.unwritten_line() {
            write!(f, "; {line}")?;
        }
        writeln!(f)?;
        for adjustment in &self.adjustments {
            writeln!(f, "{adjustment}")?;
        }
        Ok(())
    }
}

struct StageLine<'a> {
    stage: &'a StageReport,
    wall: Duration,
}

impl fmt::Display for StageLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = self.stage;
        f.write_str(&stage.name)?;
        if stage.replicas != 1 {
            write!(f, " × {}", stage.replicas)?;
        }
        if !stage.describe.is_empty() {
            write!(f, " [{}]", stage.describe)?;
        }
        if stage.threads > 1 {
            write!(f, " with {} threads", stage.threads)?;
        }
        if stage.kind == "service" {
            write!(f, ": {}", counted(stage.items_in, "call"))?;
        } else {
            write!(f, ": {} rows/s", commas(rate(stage.rows_in, self.wall) as u64))?;
        }
        write!(
            f,
            ", busy {}, waiting {}, starved {}, blocked {}",
            percent(stage.busy_share()),
            percent(stage.waiting_share()),
            percent(stage.starved_share()),
            percent(stage.blocked_share())
        )?;
        for (what, wait) in &stage.waits {
            let mean = wait.total.as_secs_f64() * 1e3 / wait.count.max(1) as f64;
            let how = match wait.kind {
                WaitKind::Waiting => "waited",
                WaitKind::Starved => "starved",
                WaitKind::Blocked => "blocked",
            };
            write!(f, "; {how} {:.1} s for {what} ({} × {mean:.2} ms)", wait.total.as_secs_f64(), commas(wait.count))?;
        }
        Ok(())
    }
}

struct LinkLine<'a>(&'a LinkReport);

impl fmt::Display for LinkLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = self.0;
        write!(f, "{} through {}, high water {}", counted(link.items, "batch"), link.capacity, link.high_water)?;
        if link.blocked_sends > 0 {
            write!(f, ", full {} for {:.1} s", counted(link.blocked_sends, "time"), link.blocked.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage_report::WaitReport;

    fn stage(name: &str, busy: u64, starved: u64, blocked: u64) -> StageReport {
        let [busy, starved, blocked] = [busy, starved, blocked].map(Duration::from_millis);
        let wall = busy + starved + blocked;
        StageReport { name: name.to_owned(), busy, starved, blocked, wall, replicas: 1, ..StageReport::default() }
    }

    fn report() -> Report {
        let mut parse = stage("parse", 1800, 100, 100);
        parse.replicas = 2;
        parse.rows_in = 2_500_000;
        parse.describe = "13 dense, 26 slots".to_owned();
        parse.waits.insert(
            "tickets".to_owned(),
            WaitReport { count: 1_000, total: Duration::from_millis(1_500), kind: WaitKind::Blocked },
        );
        Report {
            name: "job".to_owned(),
            verdict: Verdict::Running,
            wall: Duration::from_secs(2),
            machine: Machine::default(),
            stages: vec![stage("read", 1000, 0, 1000), parse, stage("train", 800, 1200, 0)],
            links: vec![],
            services: vec![stage("table", 1, 999, 0)],
            ledger: LedgerReport {
                read: 12,
                delivered: 9,
                rejected: [("bad label".to_owned(), 2)].into(),
                ..LedgerReport::default()
            },
            adjustments: Vec::new(),
        }
    }

    #[test]
    fn a_stage_is_occupied_while_it_works_and_while_it_waits_for_replies() {
        let shares: Vec<f64> = report().stages.iter().map(StageReport::occupied_share).collect();
        assert_eq!(shares, [0.5, 0.9, 0.4]);
        let mut train = StageReport { waiting: Duration::from_millis(1100), ..stage("train", 800, 100, 0) };
        train.wall += Duration::from_millis(1100);
        assert_eq!(train.occupied_share(), 0.95);
        assert_eq!(StageReport::default().occupied_share(), 0.0);
    }

    #[test]
    fn lines_say_what_there_is_to_know() {
        let mut report = report();
        let link = crate::link::Room::new(8.into()).report("read", "parse");
        report.links = vec![LinkReport { items: 1234, high_water: 8, ..link.clone() }, link];
        let text = report.to_string();
        for part in [
            "job: running after 2.0 s, 9 rows, 4 rows/s\n",
            "└─ read: 0 rows/s, busy 50%, waiting 0%, starved 0%, blocked 50%",
            "   │ 1,234 batches through 8 items, high water 8",
            "   └─ parse × 2 [13 dense, 26 slots]: 1,250,000 rows/s, busy 90%, waiting 0%, starved 5%, blocked 5%; \
             blocked 1.5 s for tickets (1,000 × 1.50 ms)",
            "⇄ table",
            "ledger: 12 rows read = 9 delivered + 2 rejected (bad label) + 1 under way",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(text.contains("1 under way\n"), "{text}");
        report.ledger.unwritten = 1;
        let text = report.to_string();
        assert!(text.contains("1 under way; 1 bad row could not be written to the file of bad rows\n"), "{text}");
        // A bug: rows that a run had read after its last checkpoint were called lost, and the next run reads them again.
        let drained = Report { verdict: Verdict::Drained, ..report.clone() }.to_string();
        assert!(drained.contains("+ 2 rejected (bad label) + 1 not delivered;"), "{drained}");
        let back: Report = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(back.to_string(), text);
    }
}
