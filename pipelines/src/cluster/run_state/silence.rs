//! Members that are missing, silent or gone: warnings, and the end of the run after the timeout.

use std::time::{Duration, Instant};

use forebay_actors::{Domain, FaultKind, commas, counted};

use super::super::members::{self, MemberState, Role};
use super::super::messages::{Failure, RunPhase};
use super::RunState;

/// Warn about a member that sent no heartbeat for this long, and repeat a warning after this long.
const WARN_AFTER_SILENCE: Duration = Duration::from_secs(10);

/// Log a change of the missing members only after this long, because at the start of a run the list changes often.
const LOG_MISSING_AFTER: Duration = Duration::from_secs(2);

/// If the coordinator has not looked at the time for this long, its process stood still, or listened at no address between two attempts.
const STOOD_STILL: Duration = Duration::from_secs(1);

impl RunState {
    /// If the coordinator itself stood still, the time in which it heard nothing does not count as silence of other processes.
    pub(super) fn discount_own_pause(&mut self, now: Instant) {
        let gap = now.duration_since(self.ticked);
        if gap > STOOD_STILL {
            self.members.coordinator_stood_still(gap, now);
        }
        self.ticked = now;
    }

    /// Fails a run that has waited too long for a reader. Trainers that read by themselves are checked with the other trainers.
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
        self.begin_without_silent_trainers(now);
        if self.phase != RunPhase::Gathering {
            return;
        }
        let (missing, timeout) = (self.members.missing(), self.settings.timeout);
        let waited = now.duration_since(self.started);
        let mut lost = self.members.missing_and_silent(timeout, now);
        if self.members.lacks_only_dispensable() {
            lost.clear();
        }
        if waited > timeout && !lost.is_empty() {
            let message = format!(
                "{} did not join within {:.0} s (placement.timeout_seconds): see the logs of these processes, and check \
                 that they reach the coordinator",
                lost.join(", "),
                timeout.as_secs_f64()
            );
            return self.fail_run(Failure { kind: FaultKind::Timeout, ..Failure::new(Domain::External, message) });
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
            .filter(|member| self.needs(member))
            .map(|member| Silent { idle: self.goes_on_without(&member, now), member })
            .collect();
        let checkpoints = self.settings.checkpoints;
        if let Some(silent) = silent.iter().find(|silent| silent.waited(checkpoints) > timeout) {
            let message = silent.describe(checkpoints);
            return self.fail_run(Failure { kind: FaultKind::Unreachable, ..Failure::new(Domain::External, message) });
        }
        if let Some(first) = silent.first()
            && now.duration_since(self.last_logged.0) > WARN_AFTER_SILENCE
        {
            let name = |silent: &Silent| members::name((silent.member.role, silent.member.rank));
            let (names, seconds) = (silent.iter().map(name).collect::<Vec<_>>(), first.member.silence.as_secs_f64());
            let of = names.join(", ");
            match first.idle.map(|idle| idle.as_secs_f64()) {
                None => tracing::warn!("the run waits: {of} sent no heartbeat for {seconds:.0} s"),
                Some(idle) => tracing::warn!(
                    "{of} sent no heartbeat for {seconds:.0} s: the others go on, the last window was done {idle:.0} s ago"
                ),
            }
            self.last_logged = (now, names);
        }
    }

    /// Whether the run still needs a ps or a trainer. When every row is trained on, it needs the ps, the first trainer, and the
    /// trainers that have not pushed all gradients.
    fn needs(&self, member: &MemberState) -> bool {
        let MemberState { role, rank, .. } = *member;
        self.phase != RunPhase::Finished || role == Role::Ps || rank == 0 || !self.has_pushed_all(role, rank)
    }

    /// The time since a window was done, if the run goes on without a silent member: windows were done long after its last heartbeat.
    fn goes_on_without(&self, member: &MemberState, now: Instant) -> Option<Duration> {
        let idle = now.duration_since(self.progressed);
        (member.silence.saturating_sub(idle) > self.settings.lease_timeout).then_some(idle)
    }
}

/// A member that sent no heartbeat for a while.
struct Silent {
    member: MemberState,
    /// Set if the run goes on without it: the time since a window was done.
    idle: Option<Duration>,
}

impl Silent {
    /// For how long the run has waited for the member. A run with `checkpoints` waits even if it goes on: it makes no checkpoint without
    /// all trainers that have joined.
    fn waited(&self, checkpoints: bool) -> Duration {
        self.idle.filter(|_| !checkpoints).unwrap_or(self.member.silence)
    }

    fn describe(&self, checkpoints: bool) -> String {
        let MemberState { role, rank, silence, .. } = self.member;
        let idle = match self.idle.filter(|_| !checkpoints) {
            Some(idle) => format!(", and no window was done for {:.0} s", idle.as_secs_f64()),
            None => String::new(),
        };
        format!("{role} {rank} sent no heartbeat for {:.0} s{idle} (placement.timeout_seconds)", silence.as_secs_f64())
    }
}
