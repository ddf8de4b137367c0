//! The transform and the scale of the dense features for which a job sets none. A sample of the rows decides, or the model or the
//! checkpoint that the run continues from.

use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

use super::{Columns, DenseColumn, DenseStatistics, Scale, Transform};
use crate::Job;

/// What a dense feature gets that has the transform `auto` and no scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FeatureScale {
    /// Its transform. `Auto`: that of its type.
    pub transform: Transform,
    /// Its scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
    /// The limit of its scaled values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// The statistics for the scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<DenseStatistics>,
}

/// Numbers of at least 0 are counts, most of them small and a few large, if their standard deviation is this many times their mean.
const SPREAD_OF_COUNTS: f64 = 2.0;

/// Whether numbers look like counts, by their least value, their mean and their standard deviation. Counts need logarithms.
pub fn look_like_counts(least: f64, mean: f64, deviation: f64) -> bool {
    least >= 0.0 && deviation >= SPREAD_OF_COUNTS * mean
}

/// What dense features get, by column.
pub type FeatureScales = BTreeMap<String, FeatureScale>;

impl DenseColumn {
    /// Whether the job sets no scale for this feature, which is one number, and no transform that is one of the numbers themselves.
    fn is_open(&self) -> bool {
        self.transform.takes_scale_of_sample() && self.scale.is_none() && self.length.is_none()
    }
}

impl Columns {
    /// The dense features whose columns are no other dense features.
    fn features_alone(&self) -> impl Iterator<Item = &DenseColumn> {
        let mut uses: HashMap<&String, usize> = HashMap::new();
        self.dense.iter().for_each(|dense| *uses.entry(&dense.column).or_default() += 1);
        self.dense.iter().filter(move |dense| uses[&dense.column] == 1)
    }

    /// The dense features without a scale, with the transform `auto` or one of a time, whose columns are no other dense features.
    pub fn open_features(&self) -> Vec<&DenseColumn> {
        self.features_alone().filter(|dense| dense.is_open()).collect()
    }

    /// What the dense features have whose columns are no other dense features.
    pub fn scales(&self) -> FeatureScales {
        self.features_alone().map(|dense| (dense.column.clone(), self.scale_of(dense))).collect()
    }

    fn scale_of(&self, dense: &DenseColumn) -> FeatureScale {
        let &DenseColumn { ref column, transform, scale, limit, .. } = dense;
        let statistics = scale.and_then(|_| self.statistics_of(column).copied());
        FeatureScale { transform, scale, limit, statistics }
    }

    /// What these columns, of an earlier run, have for the [open features](Self::open_features) of `later`.
    pub fn scales_for(&self, later: &Self) -> FeatureScales {
        let of_column = |open: &DenseColumn| {
            let dense = self.dense.iter().find(|dense| dense.column == open.column)?;
            Some((dense.column.clone(), self.scale_of(dense)))
        };
        later.open_features().into_iter().filter_map(of_column).collect()
    }

    /// Sets what `scales` says of the [open features](Self::open_features).
    fn set_open_scales(&mut self, scales: &FeatureScales) {
        let open: HashSet<&String> = self.open_features().into_iter().map(|dense| &dense.column).collect();
        let of_open = scales.iter().filter(|(column, _)| open.contains(column));
        let of_open = of_open.map(|(column, scale)| (column.clone(), *scale)).collect();
        self.set_scales(&of_open);
    }

    /// Replaces what dense features have.
    pub fn set_scales(&mut self, scales: &FeatureScales) {
        for dense in &mut self.dense {
            let Some(&FeatureScale { transform, scale, limit, statistics }) = scales.get(&dense.column) else {
                continue;
            };
            (dense.transform, dense.scale, dense.limit) = (transform, scale, limit);
            if let Some(statistics) = statistics {
                self.statistics.get_or_insert_default().insert(dense.column.clone(), statistics);
            }
        }
    }
}

impl Job {
    /// The job of a run that continues from a run of `earlier`, whose dense features have the scales of that run.
    #[must_use]
    pub fn with_scales_of(&self, earlier: &Self) -> Self {
        let mut job = self.clone();
        job.columns.set_open_scales(&earlier.columns.scales_for(&self.columns));
        job
    }

    /// Gives the [open features](Columns::open_features) what `scales` says of them.
    ///
    /// # Errors
    /// A user fault if the job does not fit together with it.
    pub fn set_open_scales(&mut self, scales: &FeatureScales) -> Result<(), Fault> {
        self.columns.set_open_scales(scales);
        if scales.is_empty() { Ok(()) } else { self.check() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(text: &str) -> Columns {
        Job::from_toml(&format!("[columns]\n{text}"), &[]).unwrap().columns
    }

    #[test]
    fn a_feature_is_open_that_has_neither_a_transform_nor_a_scale_nor_another_use() {
        let columns = columns(
            "dense = ['a', { column = 'b', fill = 0, indicator = true, clip = { max = 9 } }, { column = 'raw', transform = 'none' }, \
             { column = 'log', transform = 'log1p' }, { column = 'scaled', scale = 'z_score' }, { column = 'list', length = 3 }, 'twice', \
             { column = 'twice', transform = 'log' }]\nslots = []\n\
             statistics = { scaled = { mean = 0, std = 1, min = 0, max = 1, transform = 'none' } }",
        );
        let open: Vec<&str> = columns.open_features().iter().map(|dense| dense.column.as_str()).collect();
        assert_eq!(open, ["a", "b"]);
    }

    #[test]
    fn a_later_run_has_the_scales_of_the_earlier_one_and_keeps_what_it_sets_itself() {
        let earlier = columns(
            "dense = ['raw', { column = 'x', scale = 'z_score', limit = 10 }, { column = 'n', transform = 'log1p' }, \
             { column = 'own', transform = 'log1p' }]\nslots = []\n\
             statistics = { x = { mean = 1, std = 2, min = -5, max = 5, transform = 'none' } }",
        );
        let mut later = columns("dense = ['raw', 'x', 'n', { column = 'own', transform = 'none' }, 'new']\nslots = []");
        let scales = earlier.scales_for(&later);
        assert_eq!(scales.keys().collect::<Vec<_>>(), ["n", "raw", "x"]);
        later.set_open_scales(&scales);
        assert_eq!(later.dense[..3], earlier.dense[..3]);
        assert_eq!((later.dense[3].transform, later.dense[4].transform), (Transform::None, Transform::Auto));
        assert_eq!(later.statistics, earlier.statistics);

        let mut replaced = columns(
            "dense = ['x', { column = 'n', transform = 'log' }, { column = 'own', transform = 'none' }]\nslots = []",
        );
        replaced.set_scales(&earlier.scales());
        assert_eq!(replaced.scales(), earlier.scales().into_iter().filter(|(column, _)| column != "raw").collect());
        let json = serde_json::to_string(&scales).unwrap();
        assert_eq!(serde_json::from_str::<FeatureScales>(&json).unwrap(), scales);
    }
}
