//! `evaluate`: predicts every row, and computes exact AUC, logloss and calibration over all rows; with several labels, each label over the
//! rows that have it. The sink keeps 8 bytes per row and label, 4 more per row if rows have weights, and 4 more per row for each column of
//! `[evaluation]`. It blocks its thread during a forward pass.

use forebay_actors::{Fault, Sink, StageCx};
use forebay_batches::{KeptRows, ReadyBatch};
use forebay_job::EvaluationOptions;
use forebay_models::{GroupedAuc, LabelRows, auc_grouped, label_column, sigmoid};

use super::row_groups::RowGroups;
use super::scorer::Scorer;
use super::train::ModelMaker;
use crate::quality::{Evaluation, Gauc, Slice, left_out};

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
}

impl Evaluate {
    /// Scores with the model that `maker` makes, and adds `correction` to each logit; see
    /// [`DataOptions::logit_correction`](forebay_job::DataOptions::logit_correction). Leaves the [`Evaluation`] in the run's results.
    pub fn new(maker: ModelMaker, correction: f32) -> Self {
        let scorer = Scorer::new(maker, correction);
        let (options, groups, names) = (EvaluationOptions::default(), Vec::new(), Vec::new());
        Self { scorer, logits: Vec::new(), labels: Vec::new(), weights: Vec::new(), names, options, groups }
    }

    /// Measures each of several labels, which have these names. None: there is one.
    pub(crate) fn with_labels(self, names: Vec<String>) -> Self {
        Self { names, ..self }
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
        let all = Evaluation::new(of.logits, of.labels, of.weights);
        Evaluation { gauc: self.gauc(of, None), slices: self.slices(of), ..all }
    }

    /// The quality of each of several labels on the rows that have it, and of the one that the options name, or else the first, on top.
    ///
    /// # Errors
    /// A user fault if no row of a weight above 0 has that one.
    fn of_labels(&self, weights: Option<&[f32]>) -> Result<Evaluation, Fault> {
        let count = self.names.len();
        let of_label = |(k, name): (usize, &String)| {
            let own = LabelRows::of(&self.logits, &self.labels, weights, k, count);
            let known = OfLabel { logits: &own.logits, labels: &own.labels, weights: own.weights.as_deref() };
            let quality = Evaluation::new(known.logits, known.labels, known.weights);
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
            groups.into_iter().filter_map(|(value, rows)| slice(column, value, rows, of)).collect::<Vec<_>>()
        };
        self.options.slices.iter().flat_map(of_column).collect()
    }
}

/// The rows of one label, `[n]` each. A label that a row lacks is NaN.
struct OfLabel<'a> {
    logits: &'a [f32],
    labels: &'a [f32],
    weights: Option<&'a [f32]>,
}

/// The quality on those of the rows that have the label; `None` if none has it.
fn slice(column: &str, value: Option<&str>, mut rows: Vec<u32>, of: &OfLabel<'_>) -> Option<Slice> {
    rows.retain(|&row| !of.labels[row as usize].is_nan());
    if rows.is_empty() {
        return None;
    }
    let gather = |from: &[f32]| -> Vec<f32> { rows.iter().map(|&row| from[row as usize]).collect() };
    let weights = of.weights.map(gather);
    let of_rows = Evaluation::new(&gather(of.logits), &gather(of.labels), weights.as_deref());
    let defined = |value: f64| value.is_finite().then_some(value);
    Some(Slice {
        column: column.to_owned(),
        value: value.map(str::to_owned),
        rows: of_rows.rows,
        positives: of_rows.positives,
        positive_rate: defined(of_rows.positive_rate),
        auc: of_rows.auc,
        logloss: defined(of_rows.logloss),
        normalized_entropy: of_rows.normalized_entropy,
        copc: of_rows.copc,
    })
}

impl Sink for Evaluate {
    type In = ReadyBatch;

    fn describe(&self) -> String {
        "exact AUC, logloss and calibration".into()
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.scorer.open()
    }

    async fn write(&mut self, batch: ReadyBatch, _cx: &StageCx) -> Result<(), Fault> {
        self.logits.extend_from_slice(self.scorer.logits(&batch)?);
        self.labels.extend_from_slice(&batch.train.labels);
        self.weights.extend_from_slice(&batch.train.weights);
        if self.groups.is_empty() { Ok(()) } else { self.add_groups(&batch.train.kept, batch.train.rows) }
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        if self.labels.is_empty() {
            let left_out = left_out(&cx.ledger().snapshot().rejected);
            return Err(Fault::user(format!("no rows to evaluate{left_out}")));
        }
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
