//! What the thread that evaluates gets of a run. It knows neither the run's resources nor the cluster.

use forebay_actors::Control;
use forebay_batches::RowCounts;
use forebay_job::RunEnd;

use super::resources::Resources;
use crate::cluster::RunPhase;
use crate::evaluations::{DenseCopy, EvaluatedRun};
use crate::metrics::training_summary::TrainingSummary;

impl Resources {
    /// The run that `control` controls, for the thread that evaluates it.
    pub(crate) fn evaluated_run(&self, control: Control) -> EvaluatedRun {
        // A process that is asked to shut down asks the coordinator for a drain.
        let status = self.session.as_ref().map(|session| session.member.subscribe());
        let ends = move || {
            let phase = status.as_ref().map(|status| status.borrow().phase.clone());
            matches!(phase, Some(RunPhase::Draining | RunPhase::Failed(_)))
        };
        let (participation, saves_state) = (self.participation.clone(), self.job.output.state);
        let latest = move |DenseCopy { parameters, optimizer }| {
            let (parameters, optimizer) = participation.latest(parameters, optimizer, saves_state)?;
            Ok(DenseCopy { parameters, optimizer })
        };
        let cut_point = self.participation.cut_point().cloned();
        let (steps_before, in_step) = (self.steps_before, self.job.in_step() as u64);
        let tell_coordinator = self.session.as_ref().map(|session| session.stops_early());
        let stopped = move |rows, steps: u64| {
            if let Some(tell) = &tell_coordinator {
                tell(RowCounts { trained: rows, rejected: 0, batches: steps.saturating_sub(steps_before) * in_step });
            }
        };
        let others = self.session.as_ref().filter(|_| self.job.round().is_some());
        EvaluatedRun {
            control,
            job: self.job.clone(),
            context: self.context.clone(),
            model: self.model.clone(),
            rates: self.learning_rates(),
            progress: self.progress.clone(),
            types: self.types.clone(),
            summary: TrainingSummary { ended: RunEnd::StoppedEarly, ..self.summary() },
            latest: Box::new(latest),
            evaluated: Box::new(move |point| cut_point.iter().for_each(|cut_point| cut_point.evaluated(point))),
            ends: Box::new(ends),
            stopped: Box::new(stopped),
            tell_others: others.map(|session| Box::new(session.evaluated()) as _),
        }
    }
}
