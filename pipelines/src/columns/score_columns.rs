//! The columns that a prediction gives for each row: the score of one label, or a score for each of several.

use forebay_job::{Job, ModelKind};
use forebay_models::{sigmoid, sigmoid_ratio};

/// The name of the column with the scores of one label.
pub(crate) const SCORE: &str = "score";

/// The columns of scores of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreColumns {
    names: Vec<String>,
    labels: usize,
}

impl Default for ScoreColumns {
    /// The column of one label.
    fn default() -> Self {
        Self { names: vec![SCORE.into()], labels: 1 }
    }
}

impl ScoreColumns {
    /// `score` for one label. For several labels `score_LABEL` for each, and for "esmm" also `score_SECOND_given_FIRST`, the probability of
    /// the second label where the first is 1.
    pub fn of(job: &Job) -> Self {
        let labels = job.columns.label.names();
        if labels.is_empty() {
            return Self::default();
        }
        let mut names: Vec<String> = labels.iter().map(|label| format!("{SCORE}_{label}")).collect();
        if job.model.kind == ModelKind::Esmm {
            names.push(format!("{SCORE}_{}_given_{}", labels[1], labels[0]));
        }
        Self { names, labels: labels.len() }
    }

    /// The names of the columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Logits of a row.
    pub(crate) fn labels(&self) -> usize {
        self.labels
    }

    /// The score of column `column` from the logits of a row, `[labels]`.
    pub(crate) fn score(&self, column: usize, logits: &[f32]) -> f32 {
        match logits.get(column) {
            Some(&logit) => sigmoid(logit),
            None => sigmoid_ratio(logits[1], logits[0]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_label_has_a_score_and_several_have_one_each() {
        let names = |kind: &str, label: &str| {
            let settings = [format!("model.kind={kind}"), format!("columns.label={label}")];
            ScoreColumns::of(&Job::from_toml("", &settings).unwrap()).names().to_vec()
        };
        assert_eq!(names("lr", "clicked"), ["score"]);
        assert_eq!(names("mmoe", "['click', { column = 'b', name = 'buy' }]"), ["score_click", "score_buy"]);
        assert_eq!(names("esmm", "['click', 'buy']"), ["score_click", "score_buy", "score_buy_given_click"]);
    }

    #[test]
    fn the_probability_after_a_click_is_the_quotient() {
        let job = Job::from_toml("columns.label=['click','buy']\nmodel.kind='esmm'", &[]).unwrap();
        let (columns, logits) = (ScoreColumns::of(&job), [-1.0f32, -2.5]);
        let [click, buy, given] = [0, 1, 2].map(|column| columns.score(column, &logits));
        assert!((given - buy / click).abs() < 1e-6 && given < 1.0, "{click} {buy} {given}");
        assert_eq!(columns.score(2, &[-300.0, -300.0]), 1.0);
        assert_eq!(columns.score(2, &[5.0, -300.0]), 0.0);
    }
}
