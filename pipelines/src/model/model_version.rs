//! The version of a model: a hash of everything that its scores depend on. It depends neither on the number of shards nor on the order of
//! rows.
//!
//! The hash of the rows is the sum of the hashes of each row, so that a delta changes it by the rows that it changes.

use std::fmt;
use std::str::FromStr;

use forebay_job::{DenseStatistics, HistoryAttention, Job, ModelKind, ModelOptions, TowerColumns};
use forebay_models::{Activation, CrossStructure, NamedTensor, Norm, Pooling, Similarity};
use forebay_ps::ExportBlock;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The version of a model, as 32 hexadecimal digits: XXH3, 128 bits. Models of one version give the same scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ModelVersion(u128);

impl fmt::Display for ModelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for ModelVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match u128::from_str_radix(text, 16) {
            Ok(version) if text.len() == 32 && !text.starts_with('+') => Ok(Self(version)),
            _ => Err(format!("{text:?} is not a version of a model, expected 32 hexadecimal digits")),
        }
    }
}

impl From<ModelVersion> for String {
    fn from(version: ModelVersion) -> Self {
        version.to_string()
    }
}

impl TryFrom<String> for ModelVersion {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl ModelVersion {
    /// The version of the model of `job` with these dense parameters and rows.
    pub(crate) fn of(job: &Job, dense: &[NamedTensor], rows: RowsHash) -> Self {
        let mut hash = Xxh3::new();
        let features =
            (&job.columns.dense, &job.columns.slots, Structure::of(&job.model), job.seed, job.data.negatives);
        hash.update(&serde_json::to_vec(&features).expect("a part of a job is JSON"));
        let scaled_by = scaled_by(job);
        if !scaled_by.is_empty() || !job.columns.crosses.is_empty() {
            let more = (scaled_by, &job.columns.crosses);
            hash.update(&serde_json::to_vec(&more).expect("a part of a job is JSON"));
        }
        let quantiles = job.columns.slots.iter().filter(|slot| slot.quantiles.is_some());
        let quantiles: Vec<_> = quantiles.map(|slot| job.columns.boundaries_of(slot)).collect();
        if !quantiles.is_empty() {
            hash.update(&serde_json::to_vec(&quantiles).expect("a part of a job is JSON"));
        }
        let mut dense: Vec<&NamedTensor> = dense.iter().collect();
        dense.sort_by(|a, b| a.name.cmp(&b.name));
        for tensor in dense {
            hash.update(tensor.name.as_bytes());
            tensor.shape.iter().for_each(|&size| hash.update(&(size as u64).to_le_bytes()));
            tensor.data.iter().for_each(|value| hash.update(&value.to_le_bytes()));
        }
        hash.update(&rows.0.to_le_bytes());
        Self(hash.digest128())
    }
}

/// The fields of `[model]` that scores depend on (not dropout, which only training uses), as they were first hashed. A field that was added
/// later stands at the end, and is hashed only if it differs from its default, so that models of earlier programs keep their versions.
#[derive(Serialize)]
struct Structure<'a> {
    kind: ModelKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    embedding_dim: usize,
    hidden: &'a [usize],
    pooling: Pooling,
    linear: bool,
    fm: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cross_layers: Option<usize>,
    #[serde(skip_serializing_if = "is_default")]
    activation: Activation,
    #[serde(skip_serializing_if = "is_default")]
    norm: Norm,
    #[serde(skip_serializing_if = "Option::is_none")]
    experts: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_hidden: Option<&'a [usize]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attention: Option<(&'a [HistoryAttention], &'a [usize], Activation)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    two_towers: Option<TwoTowersStructure<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cross_rank: Option<usize>,
    #[serde(skip_serializing_if = "is_default")]
    cross_structure: CrossStructure,
    #[serde(skip_serializing_if = "Option::is_none")]
    final_mlp: Option<FinalMlpStructure<'a>>,
}

/// The same of FinalMLP.
#[derive(Serialize)]
struct FinalMlpStructure<'a> {
    second_hidden: Option<&'a [usize]>,
    heads: Option<usize>,
    feature_gates: bool,
    gate_hidden: Option<&'a [usize]>,
    contexts: [&'a [String]; 2],
}

/// The same of two towers.
#[derive(Serialize)]
struct TwoTowersStructure<'a> {
    user: &'a TowerColumns,
    item: &'a TowerColumns,
    vector_dim: Option<usize>,
    similarity: Similarity,
    temperature: Option<f32>,
}

impl<'a> Structure<'a> {
    fn of(model: &'a ModelOptions) -> Self {
        Self {
            kind: model.kind,
            name: model.name.as_deref(),
            embedding_dim: model.embedding_dim,
            hidden: &model.hidden,
            pooling: model.pooling,
            linear: model.linear.unwrap_or(false),
            fm: model.fm.unwrap_or(false),
            cross_layers: model.cross_layers,
            activation: model.activation,
            norm: model.norm,
            experts: model.experts,
            task_hidden: model.task_hidden.as_deref(),
            attention: (!model.attention.is_empty()).then_some((
                &model.attention,
                &model.attention_hidden,
                model.attention_activation,
            )),
            two_towers: model.user.as_ref().zip(model.item.as_ref()).map(|(user, item)| TwoTowersStructure {
                user,
                item,
                vector_dim: model.vector_dim,
                similarity: model.similarity,
                temperature: model.temperature,
            }),
            cross_rank: model.cross_rank,
            cross_structure: model.cross_structure,
            final_mlp: (model.kind == ModelKind::FinalMlp).then(|| FinalMlpStructure {
                second_hidden: model.second_hidden.as_deref(),
                heads: model.heads,
                feature_gates: model.feature_gates,
                gate_hidden: model.gate_hidden.as_deref(),
                contexts: [&model.first_context, &model.second_context],
            }),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// For each dense feature with a scale, its statistics.
fn scaled_by(job: &Job) -> Vec<Option<&DenseStatistics>> {
    let scaled = job.columns.dense.iter().filter(|dense| dense.scale.is_some());
    scaled.map(|dense| job.columns.statistics_of(&dense.column)).collect()
}

/// The hash of a set of rows: it does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowsHash(u128);

impl RowsHash {
    /// Adds the row of a key.
    pub(crate) fn add(&mut self, key: u64, weights: &[f32]) {
        self.0 = self.0.wrapping_add(of_row(key, weights));
    }

    /// Adds the rows of a page, of `row_dim` weights each.
    pub(crate) fn add_page(&mut self, page: &ExportBlock, row_dim: usize) {
        page.keys.iter().zip(page.weights.chunks_exact(row_dim)).for_each(|(key, row)| self.add(*key, row));
    }

    /// Takes out the rows of a page, which were added with these weights.
    pub(crate) fn remove_page(&mut self, page: &ExportBlock, row_dim: usize) {
        page.keys.iter().zip(page.weights.chunks_exact(row_dim)).for_each(|(key, row)| self.remove(*key, row));
    }

    /// Takes out the row of a key, which was added with these weights.
    pub(crate) fn remove(&mut self, key: u64, weights: &[f32]) {
        self.0 = self.0.wrapping_sub(of_row(key, weights));
    }
}

/// Rows up to this width are hashed without an allocation.
const NARROW: usize = 128;

fn of_row(key: u64, weights: &[f32]) -> u128 {
    let mut narrow = [0; 8 + 4 * NARROW];
    let mut wide = Vec::new();
    let bytes = match 8 + 4 * weights.len() {
        len if len <= narrow.len() => &mut narrow[..len],
        len => {
            wide.resize(len, 0);
            &mut wide[..]
        }
    };
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    for (to, value) in bytes[8..].chunks_exact_mut(4).zip(weights) {
        to.copy_from_slice(&value.to_le_bytes());
    }
    xxh3_128(bytes)
}

#[cfg(test)]
mod tests {
    use forebay_job::UnixUnit;

    use super::*;

    /// Models of earlier programs keep their versions.
    #[test]
    fn features_without_options_are_hashed_as_by_earlier_programs() {
        let columns = &Job::default().columns;
        let text = serde_json::to_string(&(&columns.dense[0], &columns.slots[0])).unwrap();
        assert_eq!(text, r#"[{"column":"I1","transform":"auto"},{"column":"C1","kind":"hex"}]"#);
    }

    #[test]
    fn rows_count_in_any_order_and_can_be_taken_out() {
        let wide = vec![0.5; 3 * NARROW];
        let rows: [(u64, &[f32]); 3] = [(1, &[0.5, 1.0]), (2, &[0.5, 1.0]), (3, &wide)];
        let (mut forwards, mut backwards) = (RowsHash::default(), RowsHash::default());
        rows.iter().for_each(|(key, row)| forwards.add(*key, row));
        rows.iter().rev().for_each(|(key, row)| backwards.add(*key, row));
        assert_eq!(forwards, backwards);
        forwards.remove(1, &[0.5, 1.0]);
        assert_ne!(forwards, backwards);
        forwards.add(1, &[0.5, 1.0]);
        assert_eq!(forwards, backwards);
        forwards.remove(1, &[0.5, 1.0]);
        forwards.add(1, &[1.0, 0.5]);
        assert_ne!(forwards, backwards, "the order of the weights counts");
    }

    #[test]
    fn the_structure_is_hashed_as_by_earlier_programs() {
        let text = |model: &ModelOptions| serde_json::to_string(&Structure::of(model)).unwrap();
        let first = r#"{"kind":"wide_deep","embedding_dim":16,"hidden":[400,400,400],"pooling":"sum","linear":false,"fm":false}"#;
        assert_eq!(text(&ModelOptions::default()), first);
        let own =
            ModelOptions { kind: ModelKind::Own, name: Some("x".into()), cross_layers: Some(2), ..Default::default() };
        let words = [r#""kind":"own","name":"x","embedding_dim""#, r#""fm":false,"cross_layers":2}"#];
        assert!(words.iter().all(|words| text(&own).contains(words)), "{}", text(&own));
    }

    #[test]
    fn the_version_changes_with_all_that_scores_depend_on_and_with_nothing_else() {
        let tensor = |name: &str, value: f32| NamedTensor { name: name.into(), shape: vec![1], data: vec![value] };
        let dense = [tensor("a", 1.0), tensor("b", 2.0)];
        let version = |change: &dyn Fn(&mut Job)| {
            let mut job = Job::default();
            change(&mut job);
            ModelVersion::of(&job, &dense, RowsHash::default())
        };
        let first = version(&|_| {});
        assert_eq!(first.to_string().parse(), Ok(first));
        assert_eq!(version(&|job| job.train.threads = 77.into()), first);
        assert_ne!(version(&|job| job.seed += 1), first);
        assert_ne!(version(&|job| job.model.norm = Norm::Layer), first);
        assert_eq!(version(&|job| job.model.dropout = 0.5), first);
        assert_ne!(version(&|job| job.model.activation = Activation::Gelu), first);
        assert_ne!(version(&|job| job.model.cross_rank = Some(3)), first);
        assert_ne!(version(&|job| job.model.cross_structure = CrossStructure::Stacked), first);
        assert_ne!(version(&|job| job.columns.slots[3].pooling = Some(Pooling::Max)), first);
        assert_ne!(version(&|job| job.columns.slots[3].last = Some(5)), first);
        let final_mlp = |heads: Option<usize>, context: &[&str]| {
            version(&|job| {
                job.model.kind = ModelKind::FinalMlp;
                job.model.heads = heads;
                job.model.first_context = context.iter().map(|&name| name.to_owned()).collect();
            })
        };
        let of_final_mlp = final_mlp(None, &[]);
        assert!([first, final_mlp(Some(2), &[]), final_mlp(None, &["C1"])].iter().all(|other| *other != of_final_mlp));
        let attention = |hidden: usize| {
            version(&|job| {
                job.model.attention = vec![HistoryAttention { history: "C1".into(), target: "C2".into() }];
                job.model.attention_hidden = vec![hidden];
            })
        };
        assert_ne!(attention(1), first);
        assert_ne!(attention(1), attention(2));
        assert_ne!(version(&|job| job.columns.slots[3].key_space = Some("x".into())), first);
        assert_ne!(version(&|job| job.columns.slots[3].unit = Some(UnixUnit::S)), first);
        assert_ne!(version(&|job| job.columns.slots[3].utc_offset = Some("+01:00".into())), first);
        assert_ne!(version(&|job| job.columns.dense[3].at_unit = Some(UnixUnit::Ms)), first);
        let cross = crate::SlotCross { columns: vec!["C1".into(), "C2".into()], buckets: None, table: None };
        assert_ne!(version(&|job| job.columns.crosses.push(cross.clone())), first);
        let scaled = |mean| {
            version(&move |job| {
                let statistics = DenseStatistics { mean, ..DenseStatistics::default() };
                job.columns.dense[0].scale = Some(crate::Scale::ZScore);
                job.columns.statistics = Some([("I1".to_owned(), statistics)].into());
            })
        };
        assert_ne!(scaled(1.0), scaled(2.0));
        let swapped = [tensor("b", 2.0), tensor("a", 1.0)];
        assert_eq!(ModelVersion::of(&Job::default(), &swapped, RowsHash::default()), first);
        let other = [tensor("a", 1.0), tensor("b", 2.5)];
        assert_ne!(ModelVersion::of(&Job::default(), &other, RowsHash::default()), first);
        for wrong in ["", "12", "+1234567890123456789012345678901", "g2345678901234567890123456789012"] {
            assert!(wrong.parse::<ModelVersion>().is_err(), "{wrong}");
        }
    }
}
