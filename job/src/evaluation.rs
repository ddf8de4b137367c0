//! The `[evaluation]` section of a job.

use std::fmt;

use forebay_actors::{Fault, counted};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Job, LookupAt, ModelKind, TowerLoss};

/// More metrics of evaluations, and evaluation during training. The columns need not be features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationOptions {
    /// The column whose values are the groups of the GAUC, the mean of the AUC within each group, for instance `user`. Default: no GAUC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// With several labels, the name of the label that `metric`, the best model, `patience` and the reports use, for instance `buy`.
    /// Default: the first label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Columns, such as the country: evaluation also measures the rows of each value, for the 50 values with the most rows. With `group`,
    /// also their GAUC.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<String>,
    /// Evaluate the model on `data.eval` during training: after this many epochs or rows, at the next end of a batch, and after the last
    /// row, for instance `{ epochs = 1 }`. Only `patience` and `reduce_lr_on_plateau` change the training. Several trainers need
    /// `train.sync` ([several processes](evaluation.md#with-several-processes)). Default: only after the last row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<EvaluateEvery>,
    /// The metric that compares evaluations. A model has some of them: see [metrics](evaluation.md#metrics).
    pub metric: EvaluationMetric,
    /// For "two_towers": each k of the recall@k that evaluation measures ([recall](evaluation.md#recall)). `metric = "recall"` is the
    /// recall at the first one. At least one; each at least 1.
    pub recall_at: Vec<u32>,
    /// For the recall: the most items among which an item is ranked. If the rows have more distinct items, these are a sample, and the
    /// recall is too high. Each takes `4 * model.vector_dim` bytes. At least 1.
    pub recall_items: usize,
    /// For the recall: the most rows with label 1 whose items are ranked; if there are more, a sample of them. At least 1.
    pub recall_rows: usize,
    /// Stop the training after this many evaluations in a row without an improvement of the metric, for instance `3`. The report counts
    /// rows that were read but not trained on. Default: train on all rows. At least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u32>,
    /// For `patience` and `reduce_lr_on_plateau`: the least difference to the metric of the last improvement that counts as an improvement.
    /// At least 0.
    pub min_delta: f64,
    /// Multiply all learning rates by `factor` when the metric does not improve, for instance `{ factor = 0.1 }`
    /// ([how](evaluation.md#when-the-learning-rates-are-reduced)). Default: the rates follow their schedules alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduce_lr_on_plateau: Option<ReduceLrOnPlateau>,
    /// The model that goes to `output.model`. Until the run ends, the best model so far is beside it, with the suffix `.best-0` or
    /// `.best-1`. Default: "best" with `patience`, else "last".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<KeepModel>,
}

impl Default for EvaluationOptions {
    fn default() -> Self {
        Self {
            group: None,
            label: None,
            slices: Vec::new(),
            every: None,
            metric: EvaluationMetric::default(),
            recall_at: vec![10, 100],
            recall_items: 100_000,
            recall_rows: 10_000,
            patience: None,
            min_delta: 0.0,
            reduce_lr_on_plateau: None,
            keep: None,
        }
    }
}

/// When learning rates are reduced, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReduceLrOnPlateau {
    /// The share of the rates that each reduction leaves, default 0.1. Above 0 and below 1.
    pub factor: f64,
    /// Reduce the rates after this many evaluations in a row without an improvement, and again after as many more, default 1. At least 1,
    /// and less than `evaluation.patience`.
    pub patience: u32,
    /// The least rate to which reductions lead, default 0. At least 0.
    pub min_lr: f64,
}

impl Default for ReduceLrOnPlateau {
    fn default() -> Self {
        Self { factor: 0.1, patience: 1, min_lr: 0.0 }
    }
}

impl ReduceLrOnPlateau {
    /// Checks the values. `stops_after`: the evaluations without an improvement after which the training stops.
    fn check(&self, stops_after: Option<u32>) -> Result<(), Fault> {
        let Self { factor, patience, min_lr } = *self;
        let refuse = |what: String| Err(Fault::user(format!("evaluation.reduce_lr_on_plateau.{what}")));
        if !(factor > 0.0 && factor < 1.0) {
            return refuse(format!("factor is {factor}, expected a number above 0 and below 1"));
        }
        if patience == 0 {
            return refuse("patience is 0, expected at least 1".into());
        }
        if !(min_lr.is_finite() && min_lr >= 0.0) {
            return refuse(format!("min_lr is {min_lr}, expected a finite number of at least 0"));
        }
        match stops_after {
            Some(most) if patience >= most => refuse(format!(
                "patience is {patience}, and evaluation.patience is {most}, so the training stops before a rate is reduced: expected \
                 less than evaluation.patience"
            )),
            _ => Ok(()),
        }
    }
}

/// How often a run evaluates its model while it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluateEvery {
    /// After so many epochs.
    Epochs(u32),
    /// After so many rows, counted over all epochs.
    Rows(u64),
}

/// The table in which a job writes an [`EvaluateEvery`]: it must set exactly one of the two fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EpochsOrRows {
    epochs: Option<u32>,
    rows: Option<u64>,
}

/// Not derived, because the derived code would say of both fields "wanted exactly 1 element, more than 1 element".
impl<'de> Deserialize<'de> for EvaluateEvery {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = EvaluateEvery;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("{ epochs = 1 } or { rows = 1_000_000 }")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EvaluateEvery, A::Error> {
                let wrong = |what: &str| de::Error::custom(format!("{what}, expected {}", &self as &dyn de::Expected));
                match EpochsOrRows::deserialize(MapAccessDeserializer::new(map))? {
                    EpochsOrRows { epochs: Some(epochs), rows: None } => Ok(EvaluateEvery::Epochs(epochs)),
                    EpochsOrRows { epochs: None, rows: Some(rows) } => Ok(EvaluateEvery::Rows(rows)),
                    EpochsOrRows { epochs: None, rows: None } => Err(wrong("found neither epochs nor rows")),
                    EpochsOrRows { .. } => Err(wrong("found both epochs and rows")),
                }
            }
        }
        from.deserialize_any(Table)
    }
}

/// The metric that compares evaluations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluationMetric {
    /// The AUC: higher is better.
    #[default]
    Auc,
    /// The logloss: lower is better.
    Logloss,
    /// The mean AUC within the values of `evaluation.group`: higher is better.
    Gauc,
    /// Of "two_towers", the recall at the first of `evaluation.recall_at`: higher is better.
    Recall,
    /// Of "two_towers", the mean reciprocal rank: higher is better.
    Mrr,
}

/// Which model of a run is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepModel {
    /// The model of the evaluation with the best `metric`; of equal ones, the first.
    Best,
    /// The model at the end of the training.
    Last,
}

impl fmt::Display for EvaluationMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auc => "AUC",
            Self::Logloss => "logloss",
            Self::Gauc => "GAUC",
            Self::Recall => "recall",
            Self::Mrr => "MRR",
        })
    }
}

impl EvaluationOptions {
    /// The columns that evaluation needs, without repetition.
    pub fn columns(&self) -> Vec<String> {
        let mut columns: Vec<String> = self.group.iter().cloned().collect();
        columns.extend(self.slices.iter().filter(|slice| Some(*slice) != self.group.as_ref()).cloned());
        columns
    }

    /// Checks values and combinations of values; the fault names the field.
    pub(super) fn check(&self, job: &Job) -> Result<(), Fault> {
        let refuse = |what: String| Err(Fault::user(what));
        if let Some(label) = &self.label
            && !job.columns.label.iter().any(|of_job| of_job.name() == label)
        {
            let near = forebay_base::nearest(label, job.columns.label.iter().map(|label| label.name()));
            let near = near.map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
            return refuse(format!("evaluation.label is `{label}`, which columns.label does not have{near}"));
        }
        let twice = |(at, slice): (usize, &String)| self.slices[..at].contains(slice).then(|| slice.clone());
        if let Some(slice) = self.slices.iter().enumerate().find_map(twice) {
            return refuse(format!("evaluation.slices has `{slice}` twice"));
        }
        if !(self.min_delta.is_finite() && self.min_delta >= 0.0) {
            return refuse(format!("evaluation.min_delta is {}, expected a number of at least 0", self.min_delta));
        }
        if self.patience == Some(0) {
            return refuse("evaluation.patience is 0, expected at least 1".into());
        }
        if let Some(reduce) = &self.reduce_lr_on_plateau {
            reduce.check(self.patience)?;
        }
        self.check_recall()?;
        job.check_metric()?;
        if self.metric == EvaluationMetric::Gauc && self.group.is_none() {
            return refuse(
                "evaluation.metric is \"gauc\", but evaluation.group is not set: name the column whose values make the groups"
                    .into(),
            );
        }
        let needs_every = match self {
            Self { patience: Some(patience), .. } => Some(format!("patience is {patience}")),
            Self { keep: Some(KeepModel::Best), .. } => Some("keep is \"best\"".into()),
            Self { reduce_lr_on_plateau: Some(_), .. } => Some("reduce_lr_on_plateau is set".into()),
            _ => None,
        };
        let Some(every) = self.every else {
            return needs_every.map_or(Ok(()), |field| {
                refuse(format!(
                    "evaluation.{field}, but evaluation.every is not set: say how often to evaluate, for instance {{ epochs = 1 }}"
                ))
            });
        };
        if matches!(every, EvaluateEvery::Epochs(0) | EvaluateEvery::Rows(0)) {
            return refuse("evaluation.every is 0, expected at least 1 epoch or row".into());
        }
        if self.min_delta > 0.0 && self.patience.is_none() && self.reduce_lr_on_plateau.is_none() {
            return refuse(format!(
                "evaluation.min_delta is {}, but evaluation.patience is not set: set patience or reduce_lr_on_plateau, or leave min_delta \
                 out",
                self.min_delta
            ));
        }
        if job.data.eval.is_none() {
            return refuse("evaluation.every is set, but data.eval is not: name the rows to evaluate on".into());
        }
        if self.keep == Some(KeepModel::Best) && job.output.model.is_none() {
            return refuse(
                "evaluation.keep is \"best\", but output.model is not set: name a folder for the model".into(),
            );
        }
        let placement = &job.placement;
        let several = match (placement.trainers, placement.lookup_at) {
            (2.., _) if !job.train.sync => Some(format!(
                "placement.trainers is {}, and trainers that take their own steps do not evaluate during training: set train.sync",
                placement.trainers
            )),
            (_, LookupAt::Reader) => Some(
                "placement.lookup_at is \"reader\", and readers look up rows ahead of an evaluation: look up at the trainer".to_owned(),
            ),
            _ => None,
        };
        if let Some(several) = several {
            return refuse(format!(
                "evaluation.every is set, but {several}; or leave it out, and evaluate the checkpoints with `forebay eval --follow`"
            ));
        }
        Ok(())
    }
}

impl EvaluationOptions {
    fn check_recall(&self) -> Result<(), Fault> {
        let refuse = |what: String| Err(Fault::user(format!("evaluation.{what}")));
        if self.recall_at.is_empty() {
            return refuse("recall_at is empty, expected at least one number, for instance [10, 100]".into());
        }
        for (at, k) in self.recall_at.iter().enumerate() {
            if *k == 0 {
                return refuse("recall_at has 0, expected numbers of at least 1".into());
            }
            if self.recall_at[..at].contains(k) {
                return refuse(format!("recall_at has {k} twice"));
            }
        }
        for (name, most) in [("recall_items", self.recall_items), ("recall_rows", self.recall_rows)] {
            if most == 0 {
                return refuse(format!("{name} is 0, expected at least 1"));
            }
        }
        Ok(())
    }
}

impl Job {
    /// Whether the scores of the job's model are probabilities. Scores of two towers with in-batch softmax only order the items of a user.
    pub fn scores_are_probabilities(&self) -> bool {
        !(self.model.kind == ModelKind::TwoTowers && self.model.loss == TowerLoss::InBatchSoftmax)
    }

    /// Refuses a metric that means nothing for the scores of the model.
    fn check_metric(&self) -> Result<(), Fault> {
        let (metric, kind) = (self.evaluation.metric, self.model.kind);
        let (name, why) = match metric {
            EvaluationMetric::Logloss if !self.scores_are_probabilities() => {
                ("logloss", "the scores of model.loss = \"in_batch_softmax\" are no probabilities".to_owned())
            }
            EvaluationMetric::Recall if kind != ModelKind::TwoTowers => ("recall", format!("model.kind is \"{kind}\"")),
            EvaluationMetric::Mrr if kind != ModelKind::TwoTowers => ("mrr", format!("model.kind is \"{kind}\"")),
            _ => return Ok(()),
        };
        let expected = match (kind, self.scores_are_probabilities()) {
            (ModelKind::TwoTowers, false) => "\"recall\", \"mrr\", \"auc\" or \"gauc\"",
            _ => "\"auc\", \"logloss\" or \"gauc\"",
        };
        Err(Fault::user(format!("evaluation.metric is \"{name}\", but {why}: expected {expected}")))
    }
}

impl fmt::Display for EvaluateEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Epochs(1) => f.write_str("epoch"),
            Self::Epochs(epochs) => write!(f, "{epochs} epochs"),
            Self::Rows(rows) => f.write_str(&counted(rows, "row")),
        }
    }
}

impl Job {
    /// What the run does with evaluations while it trains, as a sentence; `None` if it evaluates only at the end.
    pub fn evaluation_plan(&self) -> Option<String> {
        let EvaluationOptions { every, metric, patience, reduce_lr_on_plateau, .. } = &self.evaluation;
        let mut plan = format!("evaluates every {} on data.eval", (*every)?);
        let without = |evaluations: u32| {
            let in_a_row = if evaluations == 1 { "" } else { " in a row" };
            format!("{}{in_a_row} without a better {metric}", counted(evaluations, "evaluation"))
        };
        if let Some(ReduceLrOnPlateau { factor, patience, .. }) = reduce_lr_on_plateau {
            plan += &format!("; multiplies learning rates by {factor} after {}", without(*patience));
        }
        if let Some(patience) = patience {
            plan += &format!("; stops after {}", without(*patience));
        }
        if self.keeps_best() {
            plan += &format!("; saves the model with the best {metric}");
        }
        Some(plan)
    }

    /// Whether the best model of the run is kept, and not the last one.
    pub fn keeps_best(&self) -> bool {
        let EvaluationOptions { every, patience, keep, .. } = &self.evaluation;
        let best =
            keep.unwrap_or(if patience.is_some() { KeepModel::Best } else { KeepModel::Last }) == KeepModel::Best;
        every.is_some() && best && self.output.model.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(settings: &[&str]) -> Result<(), String> {
        Job::with_settings("", settings).and_then(|job| job.check()).map_err(|fault| fault.to_string())
    }

    const EVERY: [&str; 3] = ["data.eval=rows", "output.model=model", "evaluation.every={ epochs = 1 }"];

    #[test]
    fn what_does_not_fit_together_is_refused() {
        for (settings, words) in [
            (&["evaluation.patience=3"][..], "evaluation.patience is 3, but evaluation.every is not set"),
            (&["evaluation.keep=best"], "evaluation.keep is \"best\", but evaluation.every is not set"),
            (&["evaluation.metric=gauc"], "evaluation.metric is \"gauc\", but evaluation.group is not set"),
            (
                &["evaluation.metric=recall"],
                "but model.kind is \"wide_deep\": expected \"auc\", \"logloss\" or \"gauc\"",
            ),
            (&["evaluation.metric=mrr"], "evaluation.metric is \"mrr\", but model.kind is"),
            (&["evaluation.recall_at=[]"], "evaluation.recall_at is empty, expected at least one number"),
            (&["evaluation.recall_at=[10, 0]"], "evaluation.recall_at has 0, expected numbers of at least 1"),
            (&["evaluation.recall_at=[10, 5, 10]"], "evaluation.recall_at has 10 twice"),
            (&["evaluation.recall_items=0"], "evaluation.recall_items is 0, expected at least 1"),
            (&["evaluation.recall_rows=0"], "evaluation.recall_rows is 0, expected at least 1"),
            (&["evaluation.metric=aucc"], "did you mean `auc`?"),
            (&["evaluation.metric=log_loss"], "did you mean `logloss`?"),
            (&["evaluation.every.epoch=1"], "did you mean `epochs`?"),
            (
                &["evaluation.every={ epochs = 1, rows = 2 }"],
                "found both epochs and rows, expected { epochs = 1 } or { rows = 1_000_000 }",
            ),
            (
                &["evaluation.every={}"],
                "found neither epochs nor rows, expected { epochs = 1 } or { rows = 1_000_000 }",
            ),
            (&["evaluation.every=epoch"], "found the text \"epoch\", expected { epochs = 1 } or { rows = 1_000_000 }"),
            (&["evaluation.every=1000"], "found the number 1000, expected { epochs = 1 } or { rows = 1_000_000 }"),
            (&["evaluation.every=[1, 2]"], "found a list, expected { epochs = 1 } or { rows = 1_000_000 }"),
            (
                &["evaluation.every.epochs=5_000_000_000"],
                "found the number 5000000000, expected a smaller whole number",
            ),
            (&["evaluation.every={ epochs = 1 }"], "data.eval is not"),
            (&["data.eval=rows", "evaluation.every.rows=0"], "evaluation.every is 0"),
            (&["evaluation.min_delta=-0.1"], "evaluation.min_delta is -0.1"),
            (&["evaluation.min_delta=nan"], "evaluation.min_delta is NaN"),
            (&["evaluation.patience=0"], "evaluation.patience is 0, expected at least 1"),
            (&["evaluation.reduce_lr_on_plateau={}"], "reduce_lr_on_plateau is set, but evaluation.every is not set"),
            (&["evaluation.reduce_lr_on_plateau.facter=0.1"], "did you mean `factor`?"),
            (&["evaluation.reduce_lr_on_plateau.factor=0"], "factor is 0, expected a number above 0 and below 1"),
            (&["evaluation.reduce_lr_on_plateau.factor=1"], "factor is 1, expected a number above 0 and below 1"),
            (&["evaluation.reduce_lr_on_plateau.factor=nan"], "factor is NaN"),
            (
                &["evaluation.reduce_lr_on_plateau.min_lr=-1"],
                "evaluation.reduce_lr_on_plateau.min_lr is -1, expected a finite number of at least 0",
            ),
            (&["evaluation.reduce_lr_on_plateau.min_lr=inf"], "min_lr is inf"),
            (
                &["evaluation.reduce_lr_on_plateau.patience=0"],
                "evaluation.reduce_lr_on_plateau.patience is 0, expected at least 1",
            ),
            (
                &["evaluation.reduce_lr_on_plateau.patience=2", "evaluation.patience=2"],
                "evaluation.reduce_lr_on_plateau.patience is 2, and evaluation.patience is 2",
            ),
            (
                &["data.eval=rows", "evaluation.every.rows=9", "evaluation.min_delta=0.1"],
                "evaluation.patience is not set",
            ),
            (&["data.eval=rows", "evaluation.every.rows=9", "evaluation.keep=best"], "output.model is not set"),
        ] {
            let said = check(settings).expect_err(words);
            assert!(said.contains(words), "no `{words}` in: {said}");
        }
        for (placement, words) in [
            (
                &["placement.ps=1", "placement.trainers=2"][..],
                "but placement.trainers is 2, and trainers that take their own steps do not evaluate during training: set train.sync",
            ),
            (
                &["placement.ps=1", "placement.readers=1", "placement.lookup_at=reader"],
                "but placement.lookup_at is \"reader\"",
            ),
        ] {
            let said = check(&[&EVERY[..], placement].concat()).unwrap_err();
            assert!(said.contains(words) && said.contains("`forebay eval --follow`"), "{said}");
        }
        let in_step = ["placement.ps=1", "placement.readers=1", "placement.trainers=2", "train.sync=true"];
        for placement in
            [&["placement.ps=1"][..], &["placement.readers=2"], &["placement.ps=2", "placement.dense=ps"], &in_step]
        {
            check(&[&EVERY[..], placement].concat()).unwrap();
        }
        check(&[&EVERY[..], &["evaluation.patience=2", "evaluation.min_delta=0.1", "evaluation.keep=last"]].concat())
            .unwrap();
        let plateau = ["evaluation.reduce_lr_on_plateau={ min_lr = 1e-6 }", "evaluation.min_delta=0.1"];
        check(&[&EVERY[..], &plateau].concat()).unwrap();
        check(&[&EVERY[..], &plateau, &["evaluation.patience=2"]].concat()).unwrap();
    }

    #[test]
    fn two_towers_have_the_metrics_that_mean_something_for_their_scores() {
        let towers = ["model.kind=two_towers", "model.user={ slots = ['a'] }", "model.item={ slots = ['b'] }"];
        let check =
            |more: &[&str]| check(&[&["columns.slots=['a', 'b']", "columns.dense=[]"], &towers[..], more].concat());
        for metric in ["evaluation.metric=recall", "evaluation.metric=mrr", "evaluation.metric=auc"] {
            check(&[metric]).unwrap();
            check(&[metric, "model.loss=in_batch_softmax"]).unwrap();
        }
        check(&["evaluation.metric=logloss"]).unwrap();
        let said = check(&["evaluation.metric=logloss", "model.loss=in_batch_softmax"]).unwrap_err();
        assert!(said.contains("are no probabilities: expected \"recall\", \"mrr\", \"auc\" or \"gauc\""), "{said}");
    }

    #[test]
    fn the_plan_says_what_happens() {
        let plan = |more: &[&str]| {
            let settings: Vec<&str> = EVERY.iter().chain(more).copied().collect();
            Job::with_settings("", &settings).unwrap().evaluation_plan().unwrap()
        };
        assert_eq!(plan(&[]), "evaluates every epoch on data.eval");
        assert_eq!(
            plan(&["evaluation.every={ rows = 5_000_000 }", "evaluation.patience=2", "evaluation.metric=logloss"]),
            "evaluates every 5,000,000 rows on data.eval; stops after 2 evaluations in a row without a better logloss; saves the \
             model with the best logloss"
        );
        assert_eq!(
            plan(&["evaluation.reduce_lr_on_plateau={}", "evaluation.patience=3", "evaluation.keep=last"]),
            "evaluates every epoch on data.eval; multiplies learning rates by 0.1 after 1 evaluation without a better AUC; stops after 3 \
             evaluations in a row without a better AUC"
        );
        assert_eq!(Job::default().evaluation_plan(), None);
    }

    #[test]
    fn the_best_model_is_kept_when_the_training_may_stop_early_or_the_job_says_so() {
        let keeps = |more: &[&str]| {
            let settings: Vec<&str> = EVERY.iter().chain(more).copied().collect();
            let job = Job::with_settings("", &settings).unwrap();
            assert_eq!(Job::from_toml(&job.to_toml(), &[]).unwrap(), job, "{}", job.to_toml());
            job.keeps_best()
        };
        assert!(!keeps(&[]) && keeps(&["evaluation.patience=1"]) && keeps(&["evaluation.keep=best"]));
        assert!(!keeps(&["evaluation.patience=1", "evaluation.keep=last"]));
    }
}
