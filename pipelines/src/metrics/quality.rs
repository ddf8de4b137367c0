//! The quality of a model's scores on some rows: the result of an evaluation.

use std::collections::BTreeMap;

use forebay_actors::{commas, counted, left_out_lines};
use forebay_models::{
    ReliabilityBin, auc_weighted, clicks_over_predicted, loss_sum, normalized_entropy, reliability, sigmoid,
};
use serde::{Deserialize, Deserializer, Serialize};

use super::retrieval::Retrieval;

/// The quality of a model's scores on some rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The name of the label that this is the quality of; `None` if there is one label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Rows scored.
    pub rows: u64,
    /// Rows with label 1.
    pub positives: u64,
    /// Weighted mean of the labels: the share of rows with label 1. NaN if nothing [is measured](Self::is_measured).
    #[serde(deserialize_with = "nan_if_null")]
    pub positive_rate: f64,
    /// Exact area under the ROC curve of the scores of the weighted rows; ties count half. `None` if all labels are the same.
    pub auc: Option<f64>,
    /// The metrics that need probabilities; `None` if the scores of the model are not probabilities.
    #[serde(flatten)]
    pub probability: Option<ProbabilityMetrics>,
    /// At most ten bins of about equally many rows, by ascending score; see [`forebay_models::reliability`]. Empty if scores are no
    /// probabilities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reliability: Vec<ReliabilityBin>,
    /// Of two towers: how high they rank the items of the rows with label 1. `None` if no such row has an item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retrieval: Option<Retrieval>,
    /// The AUC within the rows of each value of `evaluation.group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gauc: Option<Gauc>,
    /// The quality on the rows of each value of the columns `evaluation.slices`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
    /// Rows that were read and not scored, by reason: bad rows, and rows that custom stages dropped.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<String, u64>,
    /// With several labels: the quality of each, in their order, including this one. They have no `rejected`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Evaluation>,
}

/// The metrics that need scores which are probabilities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbabilityMetrics {
    /// Weighted mean of the cross entropy in nats. NaN if nothing [is measured](Evaluation::is_measured).
    #[serde(deserialize_with = "nan_if_null")]
    pub logloss: f64,
    /// See [`forebay_models::normalized_entropy`].
    pub normalized_entropy: Option<f64>,
    /// See [`forebay_models::clicks_over_predicted`].
    pub copc: Option<f64>,
}

/// The AUC within groups of rows; see [`forebay_models::GroupedAuc`]. Rows without a value are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gauc {
    /// The column whose values make the groups.
    pub column: String,
    /// The mean of the AUC of the groups with rows of both classes, weighted by their rows (or the weights of these). `None` if no
    /// group has rows of both classes.
    pub auc: Option<f64>,
    /// All groups.
    pub groups: u64,
    /// Groups with rows of both classes.
    pub mixed_groups: u64,
    /// Rows in them.
    pub mixed_rows: u64,
}

/// The quality on the rows of one value of a column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The column.
    pub column: String,
    /// The value as text; `None`: the rows without one.
    pub value: Option<String>,
    /// As in [`Evaluation`].
    pub rows: u64,
    /// As in [`Evaluation`].
    pub positives: u64,
    /// As in [`Evaluation`]; `None` if all rows weigh 0.
    pub positive_rate: Option<f64>,
    /// As in [`Evaluation`].
    pub auc: Option<f64>,
    /// As in [`Evaluation`].
    #[serde(flatten)]
    pub probability: Option<ProbabilityMetrics>,
    /// As in [`Evaluation`], of the rows of the slice alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gauc: Option<Gauc>,
}

/// JSON has no NaN: it is null there.
fn nan_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Most bins of the reliability table.
const BINS: usize = 10;

impl Evaluation {
    /// The quality on rows with these logits and labels, `[n]`, and these weights, `[n]`, if they have weights.
    pub(crate) fn new(logits: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Self {
        let weight = |row: usize| weights.map_or(1.0, |weights| f64::from(weights[row]));
        let all: f64 = (0..labels.len()).map(weight).sum();
        let positive = labels.iter().enumerate().map(|(row, &label)| weight(row) * f64::from(label)).sum::<f64>();
        let (positive_rate, logloss) = (positive / all, loss_sum(logits, labels, weights) / all);
        // Computed as in a prediction, so that its scores give the same AUC.
        let scores: Vec<f32> = logits.iter().map(|&logit| sigmoid(logit)).collect();
        Self {
            label: None,
            rows: labels.len() as u64,
            positives: labels.iter().filter(|&&label| label == 1.0).count() as u64,
            positive_rate,
            auc: auc_weighted(&scores, labels, weights),
            probability: Some(ProbabilityMetrics {
                logloss,
                normalized_entropy: normalized_entropy(logloss, positive_rate),
                copc: clicks_over_predicted(&scores, labels, weights),
            }),
            retrieval: None,
            reliability: reliability(&scores, labels, weights, BINS),
            gauc: None,
            slices: Vec::new(),
            rejected: BTreeMap::new(),
            labels: Vec::new(),
        }
    }

    /// The same without the metrics that need probabilities.
    pub(crate) fn of_scores_that_only_order(self) -> Self {
        Self { probability: None, reliability: Vec::new(), ..self }
    }

    /// The logloss, if the scores are probabilities.
    pub fn logloss(&self) -> Option<f64> {
        self.probability.as_ref().map(|of| of.logloss)
    }

    /// Whether a row of a weight above 0 has the label. One of several labels may lack such rows; then it has no value of any metric.
    pub fn is_measured(&self) -> bool {
        !self.positive_rate.is_nan()
    }

    /// With several labels the quality of each label, else only this one.
    pub fn of_labels(&self) -> &[Evaluation] {
        if self.labels.is_empty() { std::slice::from_ref(self) } else { &self.labels }
    }

    /// A line about the rows that were not scored, for each reason.
    pub fn left_out_lines(&self) -> impl Iterator<Item = String> {
        left_out_lines(&self.rejected)
    }

    /// The same lines as the end of a line; empty if all rows were scored.
    pub fn left_out(&self) -> String {
        left_out(&self.rejected)
    }

    /// How the recall was measured, the GAUC, and each slice, a line each; empty without them.
    pub fn detail_lines(&self) -> Vec<String> {
        let retrieval = self.retrieval.iter().map(|retrieval| format!("  {}", retrieval.how()));
        retrieval.chain(self.group_lines()).collect()
    }

    fn group_lines(&self) -> Vec<String> {
        let rounded = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let shown = |value| rounded(value, 5);
        let gauc = self.gauc.iter().map(|gauc| {
            format!(
                "  GAUC {} by {}: {} of {} {} both classes, with {}",
                shown(gauc.auc),
                gauc.column,
                commas(gauc.mixed_groups),
                counted(gauc.groups, "group"),
                if gauc.mixed_groups == 1 { "has" } else { "have" },
                counted(gauc.mixed_rows, "row")
            )
        });
        let in_slice = |gauc: &Option<Gauc>| {
            let within = |gauc: &Gauc| format!(", GAUC {} in {}", shown(gauc.auc), counted(gauc.mixed_groups, "group"));
            gauc.as_ref().map_or_else(String::new, within)
        };
        let of_probability = |of: &ProbabilityMetrics| {
            format!(
                ", logloss {}, normalized entropy {}, COPC {}",
                shown(Some(of.logloss).filter(|logloss| logloss.is_finite())),
                rounded(of.normalized_entropy, 4),
                rounded(of.copc, 4)
            )
        };
        let slices = self.slices.iter().map(|slice| {
            format!(
                "  {} = {}: {}, {} positive, AUC {}{}{}",
                slice.column,
                slice.value.as_deref().unwrap_or("(missing)"),
                counted(slice.rows, "row"),
                slice.positive_rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.2}%", 100.0 * rate)),
                shown(slice.auc),
                slice.probability.as_ref().map_or_else(String::new, of_probability),
                in_slice(&slice.gauc)
            )
        });
        gauc.chain(slices).collect()
    }

    /// The reliability table as two lines: the mean score of each bin, and the share of rows with label 1. `None` if scores are no
    /// probabilities.
    pub fn reliability_lines(&self) -> Option<String> {
        self.probability.as_ref()?;
        let line = |name: &str, value: fn(&ReliabilityBin) -> f64| {
            self.reliability.iter().fold(format!("  {name:9}"), |line, bin| line + &format!(" {:.4}", value(bin)))
        };
        Some(line("predicted", |bin| bin.predicted) + "\n" + &line("observed", |bin| bin.observed))
    }
}

/// What was left out, as the end of a line; empty if nothing was.
pub(crate) fn left_out(rejected: &BTreeMap<String, u64>) -> String {
    left_out_lines(rejected).map(|line| format!("; {line}")).collect()
}

/// One line, without the reliability table; with several labels, for the one that it names.
impl std::fmt::Display for Evaluation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(label) = &self.label {
            write!(f, "{label}: ")?;
        }
        match self.rows {
            0 => return f.write_str("no row has the label"),
            rows if !self.is_measured() => return write!(f, "{}, all of weight 0", counted(rows, "row")),
            rows => write!(f, "{}, {:.2}% positive, ", counted(rows, "row"), 100.0 * self.positive_rate)?,
        }
        match self.auc {
            Some(auc) => write!(f, "AUC {auc:.5}")?,
            None => write!(f, "AUC undefined (one class only)")?,
        }
        if let Some(retrieval) = &self.retrieval {
            write!(f, ", {retrieval}")?;
        }
        let Some(ProbabilityMetrics { logloss, normalized_entropy, copc }) = &self.probability else { return Ok(()) };
        write!(f, ", logloss {logloss:.5}")?;
        if let Some(entropy) = *normalized_entropy {
            write!(f, ", normalized entropy {entropy:.4}")?;
            if entropy > 1.0 {
                f.write_str(" (above 1: the mean of the labels alone predicts better)")?;
            }
        }
        copc.map_or(Ok(()), |copc| write!(f, ", COPC {copc:.4}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_no_row_has_is_null_in_json() {
        let none = Evaluation { label: Some("buy".into()), ..Evaluation::new(&[], &[], None) };
        assert_eq!(none.to_string(), "buy: no row has the label");
        let weightless = Evaluation::new(&[0.5, -1.0], &[1.0, 0.0], Some(&[0.0, 0.0]));
        assert_eq!(weightless.to_string(), "2 rows, all of weight 0");
        for evaluation in [none, weightless] {
            let json = serde_json::to_value(&evaluation).unwrap();
            let metrics = ["positive_rate", "auc", "logloss", "normalized_entropy", "copc"];
            assert!(metrics.iter().all(|metric| json[metric].is_null()), "{json}");
            let read: Evaluation = serde_json::from_value(json).unwrap();
            assert!(read.logloss().is_some_and(f64::is_nan) && !read.is_measured() && read.rows == evaluation.rows);
        }
        assert!(Evaluation::new(&[0.5], &[0.0], None).is_measured());
    }

    #[test]
    fn scores_that_only_order_have_no_metrics_of_probabilities() {
        let whole = Evaluation::new(&[0.5, -1.0], &[1.0, 0.0], None);
        let ordered = whole.clone().of_scores_that_only_order();
        assert_eq!(ordered.to_string(), "2 rows, 50.00% positive, AUC 1.00000");
        assert_eq!((ordered.logloss(), ordered.reliability_lines()), (None, None));
        for (evaluation, has) in [(whole, true), (ordered, false)] {
            let json = serde_json::to_value(&evaluation).unwrap();
            let found = ["logloss", "normalized_entropy", "copc", "reliability"].map(|name| json.get(name).is_some());
            assert_eq!(found, [has; 4], "{json}");
            assert_eq!(serde_json::from_value::<Evaluation>(json).unwrap(), evaluation);
        }
    }

    #[test]
    fn a_model_that_is_worse_than_a_constant_is_told() {
        let (worse, better) =
            (Evaluation::new(&[3.0, -3.0], &[0.0, 1.0], None), Evaluation::new(&[3.0, -3.0], &[1.0, 0.0], None));
        assert!(worse.to_string().contains("normalized entropy 4.3982 (above 1: the mean of the labels"), "{worse}");
        assert!(better.to_string().contains("normalized entropy 0.0701, COPC"), "{better}");
    }
}
