//! `evaluate`: predicts every row, and computes exact AUC, logloss and calibration over all rows; with several labels, each label over the
//! rows that have it. Of two towers it also measures the recall (`ranked_rows.rs`). The sink keeps 8 bytes per row and label, 4 more per
//! row if rows have weights, and 4 more per row for each column of `[evaluation]`. It blocks its thread during a forward pass.

use forebay_actors::{Fault, Sink, StageCx};
use forebay_batches::{KeptRows, ReadyBatch};
use forebay_job::EvaluationOptions;
use forebay_models::{GroupedAuc, LabelRows, auc_grouped, label_column, sigmoid};

use super::ranked_rows::RankedRows;
use super::scorer::Scorer;
use crate::metrics::quality::{Evaluation, Gauc, Slice, left_out};
use crate::sources::row_groups::RowGroups;

/// Most slices of a column.
const SLICES: usize = 50;

/// The `evaluate` sink.
pub struct Evaluate {
    scorer: Scorer,
    /// `[n x t]`.
    logits: Vec<f32>,
    labels: Vec<f32>,
    /// `[n]`, or empty.
    weights: Vec<f32>,
    /// The names of several labels; empty for one.
    names: Vec<String>,
    options: EvaluationOptions,
    /// The columns of the options, as they travel with the rows.
    groups: Vec<RowGroups>,
    /// Of two towers.
    ranked: Option<RankedRows>,
    /// Whether scores only order rows, and are no probabilities.
    only_order: bool,
    vectors: [Vec<f32>; 2],
}

impl Evaluate {
    /// Evaluates the scores of `scorer`. Leaves the [`Evaluation`] in the run's results.
    pub fn new(scorer: Scorer) -> Self {
        let (options, groups, names) = (EvaluationOptions::default(), Vec::new(), Vec::new());
        let (logits, labels, weights) = Default::default();
        let (ranked, only_order, vectors) = Default::default();
        Self { scorer, logits, labels, weights, names, options, groups, ranked, only_order, vectors }
    }

    /// Measures each of several labels, which have these names. Without names there is one label.
    pub(crate) fn with_labels(self, names: Vec<String>) -> Self {
        Self { names, ..self }
    }

    /// Also measures the recall of two towers.
    pub(crate) fn ranking(self, ranked: Option<RankedRows>) -> Self {
        Self { ranked, ..self }
    }

    /// Leaves out the metrics that need scores which are probabilities, if `only_order`.
    pub(crate) fn of_scores_that_only_order(self, only_order: bool) -> Self {
        Self { only_order, ..self }
    }

    /// Also measures what the options say. Their columns travel with the rows.
    pub(crate) fn with_options(self, options: EvaluationOptions) -> Self {
        let groups = options.columns().into_iter().map(RowGroups::new).collect();
        Self { options, groups, ..self }
    }

    fn add_groups(&mut self, kept: &[KeptRows], rows: usize) -> Result<(), Fault> {
        if kept.iter().map(KeptRows::rows).sum::<usize>() != rows {
            return Err(Fault::user(
                "a stage of the program changed the rows, and did not pass on their `kept` columns, which evaluation.group and \
                 evaluation.slices need",
            ));
        }
        for part in kept {
            for (groups, (_, values)) in self.groups.iter_mut().zip(part.columns()) {
                groups.add(values)?;
            }
        }
        Ok(())
    }

    fn groups_of(&self, column: &str) -> &RowGroups {
        self.groups.iter().find(|groups| groups.column == column).expect("made for every column of the options")
    }

    /// The quality of the only label.
    fn quality(&self, of: &OfLabel<'_>) -> Evaluation {
        let retrieval = self.ranked.as_ref().and_then(RankedRows::measure);
        Evaluation { gauc: self.gauc(of, None), slices: self.slices(of), retrieval, ..self.of_rows(of) }
    }

    fn of_rows(&self, of: &OfLabel<'_>) -> Evaluation {
        let all = Evaluation::new(of.logits, of.labels, of.weights);
        if self.only_order { all.of_scores_that_only_order() } else { all }
    }

    /// The quality of the label that the options name, or else of the first. Its `labels` has the quality of each label on the rows that
    /// have it.
    ///
    /// # Errors
    /// A user fault if no row of a weight above 0 has the label.
    fn of_labels(&self, weights: Option<&[f32]>) -> Result<Evaluation, Fault> {
        let count = self.names.len();
        let of_label = |(k, name): (usize, &String)| {
            let own = LabelRows::of(&self.logits, &self.labels, weights, k, count);
            let known = OfLabel { logits: &own.logits, labels: &own.labels, weights: own.weights.as_deref() };
            let quality = self.of_rows(&known);
            let gauc = self.gauc(&known, own.rows.as_deref());
            let [logits, labels] = [&self.logits, &self.labels].map(|of| label_column(of, k, count));
            let slices = self.slices(&OfLabel { logits: &logits, labels: &labels, weights });
            Evaluation { label: Some(name.clone()), gauc, slices, ..quality }
        };
        let labels: Vec<Evaluation> = self.names.iter().enumerate().map(of_label).collect();
        let named = self.options.label.as_ref().and_then(|label| self.names.iter().position(|name| name == label));
        let main = &labels[named.unwrap_or(0)];
        if !main.is_measured() {
            let name = main.label.as_deref().unwrap_or_default();
            let what = match main.rows {
                0 => format!("no row has the label `{name}`"),
                _ => format!("all rows with the label `{name}` have weight 0"),
            };
            let what = format!("{what}, so it cannot be evaluated: name another one in evaluation.label");
            return Err(Fault::user(what));
        }
        Ok(Evaluation { labels: labels.clone(), ..main.clone() })
    }

    /// The GAUC of `of`, whose rows have the numbers `rows` in the evaluation; `None`: they are all rows.
    fn gauc(&self, of: &OfLabel<'_>, rows: Option<&[u32]>) -> Option<Gauc> {
        let column = self.options.group.as_ref()?;
        let scores: Vec<f32> = of.logits.iter().map(|&logit| sigmoid(logit)).collect();
        let groups = &self.groups_of(column).rows;
        let found = match rows {
            None => auc_grouped(&scores, of.labels, of.weights, groups),
            Some(rows) => {
                let groups: Vec<u32> = rows.iter().map(|&row| groups[row as usize]).collect();
                auc_grouped(&scores, of.labels, of.weights, &groups)
            }
        };
        let GroupedAuc { auc, groups, mixed_groups, mixed_rows } = found;
        Some(Gauc { column: column.clone(), auc, groups, mixed_groups, mixed_rows })
    }

    fn slices(&self, of: &OfLabel<'_>) -> Vec<Slice> {
        let of_column = |column: &String| {
            let groups = self.groups_of(column).largest(SLICES);
            groups.into_iter().filter_map(|(value, rows)| self.slice(column, value, rows, of)).collect::<Vec<_>>()
        };
        self.options.slices.iter().flat_map(of_column).collect()
    }

    /// The quality on the `rows` that have the label; `None` if none has it. Slices are measured one at a time, so their GAUC takes no more
    /// memory than the GAUC of all rows.
    fn slice(&self, column: &str, value: Option<&str>, mut rows: Vec<u32>, of: &OfLabel<'_>) -> Option<Slice> {
        rows.retain(|&row| !of.labels[row as usize].is_nan());
        if rows.is_empty() {
            return None;
        }
        let gather = |from: &[f32]| -> Vec<f32> { rows.iter().map(|&row| from[row as usize]).collect() };
        let (logits, labels, weights) = (gather(of.logits), gather(of.labels), of.weights.map(gather));
        let own = OfLabel { logits: &logits, labels: &labels, weights: weights.as_deref() };
        let of_rows = self.of_rows(&own);
        let defined = |value: f64| value.is_finite().then_some(value);
        Some(Slice {
            column: column.to_owned(),
            value: value.map(str::to_owned),
            rows: of_rows.rows,
            positives: of_rows.positives,
            positive_rate: defined(of_rows.positive_rate),
            auc: of_rows.auc,
            probability: of_rows.probability,
            gauc: self.gauc(&own, Some(&rows)),
        })
    }
}

/// The rows of one label, `[n]` each. A label that a row lacks is NaN.
struct OfLabel<'a> {
    logits: &'a [f32],
    labels: &'a [f32],
    weights: Option<&'a [f32]>,
}

impl Sink for Evaluate {
    type In = ReadyBatch;

    fn describe(&self) -> String {
        match (&self.ranked, self.only_order) {
            (None, false) => "exact AUC, logloss and calibration".into(),
            (None, true) => "exact AUC".into(),
            (Some(_), false) => "exact AUC, logloss, calibration and recall".into(),
            (Some(_), true) => "exact AUC and recall".into(),
        }
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.scorer.open()
    }

    async fn write(&mut self, batch: ReadyBatch, _cx: &StageCx) -> Result<(), Fault> {
        self.logits.extend_from_slice(self.scorer.logits(&batch)?);
        self.labels.extend_from_slice(&batch.train.labels);
        self.weights.extend_from_slice(&batch.train.weights);
        if let Some(ranked) = &mut self.ranked {
            self.scorer.vectors(&batch, &mut self.vectors)?;
            ranked.add(&batch.train, &self.vectors);
        }
        if self.groups.is_empty() { Ok(()) } else { self.add_groups(&batch.train.kept, batch.train.rows) }
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        if self.labels.is_empty() {
            let left_out = left_out(&cx.ledger().snapshot().rejected);
            return Err(Fault::user(format!("no rows to evaluate{left_out}")));
        }
        self.scorer.warn_of_unknown_values();
        let weights = (!self.weights.is_empty()).then_some(&self.weights[..]);
        if weights.is_some_and(|weights| weights.iter().all(|&weight| weight == 0.0)) {
            return Err(Fault::user("no rows to evaluate: all of them have weight 0"));
        }
        cx.leave(match self.names.is_empty() {
            true => self.quality(&OfLabel { logits: &self.logits, labels: &self.labels, weights }),
            false => self.of_labels(weights)?,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray};
    use proptest::prelude::*;

    use super::*;

    /// A row: logit in eighths, label, country, user, weight. Country 3 and user 4 stand for a missing value.
    type Row = (i8, bool, u8, u8, u8);

    /// The sink that has scored these rows.
    fn scored(rows: &[Row], weighted: bool, names: &[&str]) -> Evaluate {
        let scorer = Scorer::new(Box::new(|| unreachable!("all rows are scored")), 0.0);
        let options = EvaluationOptions {
            group: Some("user".into()),
            slices: vec!["country".into(), "user".into()],
            ..EvaluationOptions::default()
        };
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let mut sink = Evaluate::new(scorer).with_labels(names).with_options(options);
        let text = |of: fn(&Row) -> u8, missing: u8| -> ArrayRef {
            let text = |row: &Row| Some(of(row)).filter(|value| *value != missing).map(|value| value.to_string());
            Arc::new(rows.iter().map(text).collect::<StringArray>())
        };
        for groups in &mut sink.groups {
            let values = if groups.column == "country" { text(|row| row.2, 3) } else { text(|row| row.3, 4) };
            groups.add(&values).unwrap();
        }
        if weighted {
            sink.weights = rows.iter().map(|row| f32::from(row.4)).collect();
        }
        sink
    }

    /// The AUC of rows and the sum of their weights, pair by pair; `None` without two classes.
    fn auc_by_pairs(rows: &[&Row], weighted: bool) -> Option<(f64, f64)> {
        let weight = |row: &Row| if weighted { f64::from(row.4) } else { 1.0 };
        let (mut right, mut pairs) = (0.0, 0.0);
        for a in rows.iter().filter(|row| row.1) {
            for b in rows.iter().filter(|row| !row.1) {
                let wins = if a.0 == b.0 { 0.5 } else { f64::from(u8::from(a.0 > b.0)) };
                right += weight(a) * weight(b) * wins;
                pairs += weight(a) * weight(b);
            }
        }
        (pairs > 0.0).then(|| (right / pairs, rows.iter().map(|row| weight(row)).sum()))
    }

    /// Compares the GAUC of rows with the GAUC of all pairs.
    fn check(found: &Gauc, rows: &[&Row], weighted: bool) -> Result<(), TestCaseError> {
        let of_user = |user: u8| rows.iter().filter(|row| row.3 == user).copied().collect::<Vec<_>>();
        let users: Vec<Vec<&Row>> = (0..4).map(of_user).filter(|rows| !rows.is_empty()).collect();
        let (mut sum, mut all, mut mixed, mut mixed_rows) = (0.0, 0.0, 0, 0);
        for rows in &users {
            if let Some((auc, weight)) = auc_by_pairs(rows, weighted) {
                (sum, all, mixed, mixed_rows) = (sum + weight * auc, all + weight, mixed + 1, mixed_rows + rows.len());
            }
        }
        prop_assert_eq!(
            (found.groups, found.mixed_groups, found.mixed_rows),
            (users.len() as u64, mixed, mixed_rows as u64)
        );
        match found.auc {
            Some(auc) => prop_assert!((auc - sum / all).abs() < 1e-9, "{} is not {}", auc, sum / all),
            None => prop_assert_eq!(mixed, 0),
        }
        Ok(())
    }

    /// Compares the GAUC of each slice; `of_label` says which rows have the label.
    fn check_slices(
        found: &Evaluation,
        rows: &[Row],
        weighted: bool,
        of_label: impl Fn(&&Row) -> bool,
    ) -> Result<(), TestCaseError> {
        for slice in &found.slices {
            let text = |row: &Row| {
                let (value, missing) = if slice.column == "country" { (row.2, 3) } else { (row.3, 4) };
                (value != missing).then(|| value.to_string())
            };
            let own: Vec<&Row> = rows.iter().filter(&of_label).filter(|row| text(row) == slice.value).collect();
            prop_assert_eq!(slice.rows, own.len() as u64);
            let gauc = slice.gauc.as_ref().expect("there is a column of groups");
            check(gauc, &own, weighted)?;
            if slice.column == "user" && slice.value.is_some() {
                // One group.
                let same = gauc.auc.zip(slice.auc).is_some_and(|(a, b)| (a - b).abs() < 1e-12);
                prop_assert!(same || gauc.auc == slice.auc, "{:?} is not {:?}", gauc.auc, slice.auc);
            }
        }
        let in_slices = |column: &str| {
            found.slices.iter().filter(|slice| slice.column == column).map(|slice| slice.rows).sum::<u64>()
        };
        let all = rows.iter().filter(of_label).count() as u64;
        prop_assert_eq!([in_slices("country"), in_slices("user")], [all, all]);
        Ok(())
    }

    proptest! {
        #[test]
        fn the_gauc_of_a_slice_is_that_of_its_rows_pair_by_pair(
            rows in prop::collection::vec((-3_i8..3, any::<bool>(), 0_u8..4, 0_u8..5, 0_u8..4), 1..80),
            weighted in any::<bool>()
        ) {
            let mut sink = scored(&rows, weighted, &[]);
            let scored = |row: &Row| (f32::from(row.0) / 8.0, f32::from(u8::from(row.1)));
            (sink.logits, sink.labels) = rows.iter().map(scored).unzip();
            let weights = weighted.then_some(&sink.weights[..]);
            let found = sink.quality(&OfLabel { logits: &sink.logits, labels: &sink.labels, weights });
            check_slices(&found, &rows, weighted, |_| true)?;
        }

        #[test]
        fn with_several_labels_it_is_that_of_the_rows_that_have_the_label(
            rows in prop::collection::vec((-3_i8..3, any::<bool>(), 0_u8..4, 0_u8..5, 1_u8..4), 1..80),
            weighted in any::<bool>()
        ) {
            // Every other logit has the second label; the first row has it.
            let has_second = |row: &&Row| row.0 % 2 == rows[0].0 % 2;
            let mut sink = scored(&rows, weighted, &["click", "buy"]);
            for row in &rows {
                let label = f32::from(u8::from(row.1));
                sink.logits.extend([f32::from(row.0) / 8.0; 2]);
                sink.labels.extend([label, if has_second(&row) { label } else { f32::NAN }]);
            }
            let weights = weighted.then_some(&sink.weights[..]);
            let found = sink.of_labels(weights).unwrap();
            check_slices(&found.labels[0], &rows, weighted, |_| true)?;
            check_slices(&found.labels[1], &rows, weighted, has_second)?;
        }
    }

    #[test]
    fn without_a_column_of_groups_a_slice_has_no_gauc() {
        let mut sink = scored(&[(0, true, 0, 0, 1), (1, false, 0, 0, 1)], false, &[]);
        (sink.logits, sink.labels, sink.options.group) = (vec![0.5, 0.25], vec![1.0, 0.0], None);
        let found = sink.quality(&OfLabel { logits: &sink.logits, labels: &sink.labels, weights: None });
        assert!(found.slices.len() == 2 && found.slices.iter().all(|slice| slice.gauc.is_none()));
        assert!(serde_json::to_value(&found.slices[0]).unwrap().get("gauc").is_none());
    }
}
