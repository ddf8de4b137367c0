//! Members that are missing, silent or gone: warnings, and the end of the run after the timeout.

use std::time::{Duration, Instant};

use forebay_actors::{Domain, commas, counted};

use super::super::members::{self, Role};
use super::super::messages::{Failure, RunPhase};
use super::RunState;

/// Warn about a member that sent no heartbeat for this long, and repeat a warning after this long.
const WARN_AFTER_SILENCE: Duration = Duration::from_secs(10);

/// Log a change of the missing members only after this long: at the start of a run the list changes often.
const LOG_MISSING_AFTER: Duration = Duration::from_secs(2);

/// If the coordinator has not looked at the time for this long, its process stood still, or listened at no address between two attempts.
const STOOD_STILL: Duration = Duration::from_secs(1);

impl RunState {
    /// If the coordinator itself stood still, the time in which it heard nothing does not count as silence of other processes.
    pub(super) fn forgive_own_silence(&mut self, now: Instant) {
        let gap = now.duration_since(self.ticked);
        if gap > STOOD_STILL {
            self.members.stood_still_for(gap, now);
        }
        self.ticked = now;
    }

    /// Trainers that read by themselves are checked with the other trainers.
    pub(super) fn check_readers(&mut self, now: Instant) {
        let waits = self.phase == RunPhase::Running
            && self.settings.reader_role == Role::Reader
            && !self.members.list(now).any(|member| member.role == Role::Reader && member.present);
        let left = match &self.leases {
            Some(leases) => {
                let total = leases.windows_total();
                let left = total - leases.windows_done();
                let are = if left == 1 { "is" } else { "are" };
                format!("{} of {} {are} not done", commas(left), counted(total, "window"))
            }
            None => "nothing was read".to_owned(),
        };
        if let Some(message) = self.absent_readers.check(waits, &left, self.settings.timeout, now) {
            self.fail_run(Failure::new(Domain::External, message));
        }
    }

    /// A process that gives signs of life is not missing, however long it loads its part of a checkpoint.
    pub(super) fn check_missing(&mut self, now: Instant) {
        if self.phase != RunPhase::Gathering {
            return;
        }
        let (missing, timeout) = (self.members.missing(), self.settings.timeout);
        let waited = now.duration_since(self.started);
        let lost = self.members.missing_and_silent(timeout, now);
        if waited > timeout && !lost.is_empty() {
            let message = format!(
                "{} did not join within {:.0} s (placement.timeout_seconds): see the logs of these processes, and check \
                 that they reach the coordinator",
                lost.join(", "),
                timeout.as_secs_f64()
            );
            return self.fail_run(Failure::new(Domain::External, message));
        }
        let (logged_at, logged) = &self.last_logged;
        if now.duration_since(*logged_at) > WARN_AFTER_SILENCE || (missing != *logged && waited > LOG_MISSING_AFTER) {
            let silent = self.members.silent(WARN_AFTER_SILENCE, now).into_iter().map(members::name);
            let silent: Vec<String> = silent.filter(|_| waited > WARN_AFTER_SILENCE).collect();
            match silent.is_empty() {
                true => tracing::info!("waiting for {}", missing.join(", ")),
                false => tracing::info!("waiting for {}; no sign of life of {}", missing.join(", "), silent.join(", ")),
            }
            self.last_logged = (now, missing);
        }
    }

    pub(super) fn check_silent(&mut self, now: Instant) {
        if !matches!(self.phase, RunPhase::Running | RunPhase::Draining | RunPhase::Finished) {
            return;
        }
        let timeout = self.settings.timeout;
        let silent: Vec<_> = self
            .members
            .list(now)
            .filter(|member| member.role != Role::Reader && member.present)
            .filter(|member| member.silence > WARN_AFTER_SILENCE.min(timeout))
            .collect();
        if let Some(member) = silent.iter().find(|member| member.silence > timeout) {
            let message = format!(
                "{} {} sent no heartbeat for {:.0} s (placement.timeout_seconds)",
                member.role,
                member.rank,
                member.silence.as_secs_f64()
            );
            return self.fail_run(Failure::new(Domain::External, message));
        }
        if let Some(first) = silent.first()
            && now.duration_since(self.last_logged.0) > WARN_AFTER_SILENCE
        {
            let names: Vec<String> = silent.iter().map(|member| format!("{} {}", member.role, member.rank)).collect();
            let seconds = first.silence.as_secs_f64();
            tracing::warn!("the run waits: {} sent no heartbeat for {seconds:.0} s", names.join(", "));
            self.last_logged = (now, names);
        }
    }
}
