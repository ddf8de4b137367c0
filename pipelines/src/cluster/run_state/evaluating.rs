//! Evaluations of a run whose trainers take each step together: the first trainer evaluates the model before a step, and the others hold
//! before the same step until it has.

use std::time::Instant;

use forebay_actors::Fault;

use super::super::members::Role;
use super::super::messages::{EvaluationAt, EvaluationReply, Failure, RunPhase};
use super::RunState;

impl RunState {
    /// The first trainer has evaluated the model, or goes on without that evaluation.
    ///
    /// # Errors
    /// A user fault for any other member.
    pub(in crate::cluster) fn evaluated(&mut self, request: EvaluationAt, now: Instant) -> Result<(), Fault> {
        let EvaluationAt { member, rows } = request;
        self.heartbeat(member, now)?;
        if (member.role, member.rank) != (Role::Trainer, 0) {
            return Err(Fault::user(format!("{member} says that the model is evaluated, expected trainer 0")));
        }
        self.evaluations.end(rows);
        Ok(())
    }

    /// Another trainer waits for an evaluation.
    ///
    /// # Errors
    /// A user fault for any other member.
    pub(in crate::cluster) fn await_evaluation(
        &mut self,
        request: EvaluationAt,
        now: Instant,
    ) -> Result<EvaluationReply, Fault> {
        let EvaluationAt { member, rows } = request;
        self.heartbeat(member, now)?;
        if member.role != Role::Trainer || member.rank == 0 {
            return Err(Fault::user(format!("{member} waits for an evaluation, expected a trainer after the first")));
        }
        self.evaluations.wait_for(rows);
        self.evaluation_reply(request)
    }

    /// As [`await_evaluation`](Self::await_evaluation), of a member that waits for the reply. Does not count as a heartbeat.
    pub(in crate::cluster) fn evaluation_reply(&self, request: EvaluationAt) -> Result<EvaluationReply, Fault> {
        if !self.is_current(&request.member) {
            return Err(Failure::rolled_back().fault());
        }
        // A run that has drained without the rows of a lost reader may lack the batch that the first trainer evaluates before.
        let goes_on = !matches!(self.phase, RunPhase::Running | RunPhase::Draining);
        Ok(match self.stopped_after {
            Some(_) => EvaluationReply::Stop,
            None if goes_on || self.evaluations.is_over(request.rows) => EvaluationReply::GoOn,
            None => EvaluationReply::Wait,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_job::Job;

    use super::super::super::cuts::{CutOrder, LeadCutRequest, LeadReply, LeadStep};
    use super::super::super::messages::{
        JoinReply, JoinRequest, MemberId, ProcessRequest, StopEarlyRequest, job_digest,
    };
    use super::*;
    use crate::columns::sampled_settings::SampledSettings;

    const ALL: [(Role, u32); 4] = [(Role::Ps, 0), (Role::Trainer, 0), (Role::Trainer, 1), (Role::Reader, 0)];

    /// A run of two trainers in step whose processes have joined, in the order of [`ALL`].
    fn begun(now: Instant) -> (Job, RunState, [MemberId; 4]) {
        let settings = ["placement.ps=1", "placement.trainers=2", "placement.readers=1", "train.sync=true"];
        let job = Job::with_settings("", &settings).unwrap();
        let mut run = RunState::new(&job, 7, now);
        let members = ALL.map(|(role, rank)| {
            let (address, nonce, job) = (Some("a:1".into()), 1 + u64::from(rank), job_digest(&job));
            let sampled_settings = SampledSettings::default();
            let request = JoinRequest { role, rank, address, attempt: 7, job, nonce, sampled_settings };
            let JoinReply::Joined(member) = run.join(request, now).unwrap() else { panic!("it did not join") };
            member
        });
        (job, run, members)
    }

    #[test]
    fn the_other_trainer_waits_until_the_first_has_evaluated_after_the_same_rows() {
        let now = Instant::now();
        let (job, mut run, [ps, first, second, reader]) = begun(now);
        let at = |member, rows| EvaluationAt { member, rows };
        for member in [ps, first, reader] {
            let said = run.await_evaluation(at(member, 100), now).unwrap_err().to_string();
            assert!(said.contains("expected a trainer after the first"), "{said}");
        }
        for member in [ps, second, reader] {
            let said = run.evaluated(at(member, 100), now).unwrap_err().to_string();
            assert!(said.contains("expected trainer 0"), "{said}");
        }
        assert_eq!(run.await_evaluation(at(second, 100), now).unwrap(), EvaluationReply::Wait);
        run.evaluated(at(first, 100), now).unwrap();
        assert_eq!(run.evaluation_reply(at(second, 100)).unwrap(), EvaluationReply::GoOn);
        assert_eq!(run.await_evaluation(at(second, 200), now).unwrap(), EvaluationReply::Wait);
        // A request that was sent again.
        run.evaluated(at(first, 100), now).unwrap();
        assert_eq!(run.evaluation_reply(at(second, 200)).unwrap(), EvaluationReply::Wait);
        let stop = StopEarlyRequest { member: second, trained: Default::default() };
        assert!(run.stop_early(stop, now).unwrap_err().to_string().contains("or trainer 0 with train.sync"));
        run.stop_early(StopEarlyRequest { member: first, ..stop }, now).unwrap();
        assert_eq!(run.evaluation_reply(at(second, 200)).unwrap(), EvaluationReply::Stop);

        let (role, rank, job) = (Role::Trainer, 0, job_digest(&job));
        run.plan(&ProcessRequest { role, rank, job, nonce: 99, made_under: None }, now).unwrap();
        let fault = run.evaluation_reply(at(second, 200)).unwrap_err();
        assert_eq!(fault.kind, forebay_actors::FaultKind::RolledBack, "the attempt is over: {fault}");
        let second = MemberId { attempt: run.status().attempt, ..second };
        assert!(!run.evaluations.is_over(0) && run.is_current(&second));
    }

    /// Its trainers stop for a checkpoint after the step before which the model is evaluated.
    #[test]
    fn the_time_of_an_evaluation_is_no_time_of_a_cut() {
        for evaluates in [true, false] {
            let mut now = Instant::now();
            let (_, mut run, members) = begun(now);
            let [_, first, second, _] = members;
            let lead = LeadCutRequest { member: first, cut: 5, checkpoint: 1, step: LeadStep::Stop };
            run.lead_cut(lead, now).unwrap();
            if evaluates {
                run.await_evaluation(EvaluationAt { member: second, rows: 100 }, now).unwrap();
            }
            let mut seconds = |run: &mut RunState, seconds: u32| {
                for _ in 0..10 * seconds {
                    now += Duration::from_millis(100);
                    members.iter().for_each(|member| run.heartbeat(*member, now).unwrap());
                    run.tick(now);
                }
                now
            };
            let now = seconds(&mut run, 60);
            let order = run.cut_order(second).unwrap();
            assert_eq!(order, if evaluates { CutOrder::Hold { cut: 5 } } else { CutOrder::GoOn });
            run.evaluated(EvaluationAt { member: first, rows: 100 }, now).unwrap();
            seconds(&mut run, 60);
            assert!(matches!(run.lead_cut_reply(lead).unwrap(), LeadReply::GivenUp(_)), "it has a limit again");
        }
    }
}
