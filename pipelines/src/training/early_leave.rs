//! The end of a trainer that leaves while its run goes on: it has trained on all that it had taken.

use forebay_actors::{Control, FaultKind, Outcome, Report};

use super::failed_training::{FailedTraining, stopped};
use super::resources::Resources;
use crate::cluster::departure::Departure;
use crate::cluster::meters::{LastMeters, MeterSender};
use crate::cluster::{ClusterSession, RunPhase};
use crate::metrics::slots_seen::SlotsSeen;

/// A trainer whose pipeline has ended because it leaves.
pub(crate) struct EarlyLeave {
    session: ClusterSession,
    departure: Departure,
}

impl EarlyLeave {
    /// Takes the session out of the resources. `None`: the trainer does not leave, or every row is trained on, and it ends like the others.
    pub(crate) fn of(resources: &mut Resources) -> Option<Self> {
        let departure = resources.departure.clone().filter(Departure::has_begun)?;
        let has_ended =
            |session: &mut ClusterSession| matches!(session.status().phase, RunPhase::Finished | RunPhase::Over);
        let session = resources.session.take_if(|session| !has_ended(session))?;
        Some(Self { session, departure })
    }

    /// Leaves the run. Returns the end of this process's part in it, with a fault of the kind [`FaultKind::Drained`], or the fault of the
    /// run if it has failed or begun a new attempt. Blocks until the coordinator knows what this trainer has done.
    pub(crate) fn leave(
        self,
        mut resources: Resources,
        outcome: Outcome,
        control: &Control,
        meters: Option<MeterSender>,
    ) -> Box<FailedTraining> {
        let Self { session, departure } = self;
        session.io.block_on(departure.give_back());
        let (timeline, slots) = (control.timeline(), resources.progress.slots());
        let sent = slots.as_ref().map(SlotsSeen::sent);
        let finish = |meters: MeterSender| meters.finish(outcome.report.clone(), &timeline, sent);
        let LastMeters { others, offset, .. } = meters.map(finish).unwrap_or_default();
        let shared = resources.participation.cut_point().and_then(|cut_point| cut_point.shared());
        let done = shared.map(|shared| shared.log().windows()).unwrap_or_default();
        let fault = session.leave_early(done, &departure);
        // The report names the process.
        resources.session = Some(session);
        let verdict = stopped(&fault, &outcome.report);
        let report = resources.run_report(Report { verdict, ..outcome.report }, others);
        let timeline = resources.timeline(offset.corrected_tracks(timeline));
        if let Some(session) = resources.session.take_if(|_| fault.kind == FaultKind::Drained) {
            session.end();
        }
        let (progress, job) = (resources.progress.snapshot(), resources.job);
        Box::new(FailedTraining { timeline, progress, job, fault, report, drained: None })
    }
}
