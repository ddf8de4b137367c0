//! Which evaluation of the model the trainers wait for, and which is over.

/// The evaluations of one attempt, by the rows that the model was trained on.
#[derive(Debug, Default)]
pub(super) struct EvaluationTurns {
    /// The newest one that a trainer waits for.
    awaited: Option<u64>,
    /// The newest one that is over.
    over: Option<u64>,
}

impl EvaluationTurns {
    /// A trainer waits for the evaluation after `rows` rows.
    pub(super) fn wait_for(&mut self, rows: u64) {
        self.awaited = self.awaited.max(Some(rows));
    }

    /// The evaluation after `rows` rows is over.
    pub(super) fn end(&mut self, rows: u64) {
        self.over = self.over.max(Some(rows));
    }

    /// Whether the evaluation after `rows` rows is over.
    pub(super) fn is_over(&self, rows: u64) -> bool {
        self.over >= Some(rows)
    }

    /// Whether a trainer waits for an evaluation that is not over.
    pub(super) fn are_awaited(&self) -> bool {
        self.awaited > self.over
    }
}
