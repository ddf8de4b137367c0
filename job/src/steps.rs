//! The rows that a step of training covers, which decide the default optimizers.

use forebay_models::DenseOptimizer;
use forebay_ps::Optimizer;
use serde::Serialize;
use toml::{Table, Value};

use super::{Job, ModelKind, TowerLoss};

/// The steps of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// Rows of data in a step.
    pub(super) rows: usize,
    /// Steps that may be under way when a step begins.
    pub(super) staleness: usize,
    /// Whether the items of a step are the negatives of its rows: in-batch softmax.
    pub(super) in_batch: bool,
    /// The units of the widest hidden layer, if the model predicts several labels.
    pub(super) width_of_labels: Option<usize>,
    /// Whether the dense parameters are a weight for each dense input and a bias: `lr` and `fm`.
    pub(super) dense_is_linear: bool,
}

/// The default rate of Adam for embeddings with in-batch softmax: see "Two towers" in `docs/quality.md`.
const IN_BATCH_RATE: f64 = 0.03;

/// The default rate of Adam for small batches.
const ADAM_RATE: f64 = 1e-3;

/// The default rate of Adam for the dense parameters of models without hidden layers, and small batches: see "The default rate of Adam" in
/// `docs/quality.md`.
const LINEAR_RATE: f64 = 4e-3;

/// The most rows that a step may cover before its linear weights have a smaller `alpha`, in models with hidden layers and without. Without
/// them, the bias soon has the mean of the labels, so linear weights go less too far: see "The default of linear weights" in
/// `docs/quality.md`.
const COVERED: f64 = 1024.0;
const COVERED_WITHOUT_LAYERS: f64 = 4096.0;

/// The default rate of Adam for the dense parameters of several labels and small batches, and the most units of a hidden layer that it is
/// for; wider layers have half of it. See "The default optimizers of `din` and of several labels" in `docs/quality.md`.
const LABELS_RATE: f64 = 4e-3;
const NARROW: usize = 256;

impl Steps {
    /// The default for linear weights: FTRL whose steps have about the same length per row of data for all sizes of batches.
    ///
    /// The first step of a weight is near `alpha`. Steps that begin from the same weights add up and overshoot, so `alpha` falls with the
    /// number of rows that they cover. The gradient of the mean loss shrinks with the number of rows in a batch, and FTRL compares `beta`
    /// with the root of the sum of its squares, so `beta` shrinks too.
    pub(super) fn linear_optimizer(self) -> Optimizer {
        let rows = self.rows.max(1) as f64;
        let covered = rows * (1.0 + self.staleness as f64);
        let most = if self.dense_is_linear { COVERED_WITHOUT_LAYERS } else { COVERED };
        let alpha = (0.1 * (most / covered).cbrt()).clamp(1e-5, 0.1);
        // Rounded, because roots may differ in the last bit between machines.
        let alpha = ((alpha * 1e5).round() / 1e5) as f32;
        Optimizer::Ftrl { alpha, beta: (1.0 / rows) as f32, l1: 0.0, l2: 0.0 }
    }

    /// The default rate of Adam, which is `small` for small batches. A batch of n times as many rows has a gradient with a variance of
    /// 1 / n, which Adam divides by its root, so the rate grows with the root of n (Malladi et al. 2022).
    fn adam_rate(self, small: f64) -> f64 {
        let rate = small * (self.rows as f64 / 4096.0).max(1.0).sqrt();
        // Rounded as `alpha`.
        ((rate * 1e5).round() / 1e5).min(0.01)
    }

    /// The default rate of Adam for dense parameters. Wide layers need a lower rate than narrow ones, because each output of a layer sums
    /// the changes of more weights (Yang and Hu 2021).
    fn dense_rate(self) -> f64 {
        self.adam_rate(match self.width_of_labels {
            None if self.dense_is_linear => LINEAR_RATE,
            None => ADAM_RATE,
            Some(..=NARROW) => LABELS_RATE,
            Some(_) => LABELS_RATE / 2.0,
        })
    }

    fn dense_optimizer(self) -> DenseOptimizer {
        DenseOptimizer::adam(self.dense_rate())
    }

    pub(super) fn embedding_optimizer(self) -> Optimizer {
        Optimizer::Adam { lr: self.embedding_rate().into(), beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 }
    }

    /// With staleness, steps of embeddings that begin from the same weights overshoot together, as steps of linear weights do: then the
    /// products of `fm` and `deep_fm` diverge with more than 0.001. In-batch softmax has one rate for all sizes of batches and all
    /// staleness.
    fn embedding_rate(self) -> f64 {
        match self.staleness {
            _ if self.in_batch => IN_BATCH_RATE,
            0 => self.adam_rate(ADAM_RATE),
            _ => ADAM_RATE,
        }
    }

    /// Adds to each optimizer in the TOML of a job that is of the kind of its default the values that it lacks, from that default. Returns
    /// whether one lacked any. A job that only adds an `l2` would otherwise get, for instance, the `beta` of single rows.
    pub(super) fn complete_optimizers(self, job: &mut Table) -> bool {
        let (dense, embedding) = (as_toml(&self.dense_optimizer()), as_toml(&self.embedding_optimizer()));
        let linear = as_toml(&self.linear_optimizer());
        let mut added = job.get_mut("train").is_some_and(|train| complete(train, "optimizer", &dense));
        let mut complete_both = |table: &mut Value| {
            added |= complete(table, "embedding_optimizer", &embedding) | complete(table, "linear_optimizer", &linear);
        };
        job.get_mut("table").into_iter().for_each(&mut complete_both);
        let groups = job.get_mut("tables").and_then(Value::as_table_mut);
        groups.into_iter().flat_map(|groups| groups.iter_mut()).for_each(|(_, group)| complete_both(group));
        added
    }
}

fn as_toml(optimizer: &impl Serialize) -> Table {
    Table::try_from(optimizer).expect("every optimizer can be written as TOML")
}

fn complete(section: &mut Value, field: &str, default: &Table) -> bool {
    let Some(given) = section.get_mut(field).and_then(Value::as_table_mut) else { return false };
    if given.get("kind") != default.get("kind") {
        return false;
    }
    let before = given.len();
    for (field, value) in default {
        given.entry(field).or_insert_with(|| value.clone());
    }
    given.len() > before
}

impl Job {
    pub(super) fn steps(&self) -> Steps {
        Steps {
            rows: self.train.batch_rows.saturating_mul(self.in_step()),
            staleness: self.train.staleness.batches,
            in_batch: self.model.kind == ModelKind::TwoTowers && self.model.loss == TowerLoss::InBatchSoftmax,
            width_of_labels: (self.columns.label.len() > 1)
                .then(|| self.model.hidden.iter().copied().fold(0, usize::max)),
            dense_is_linear: self.model.kind.dense_is_linear(),
        }
    }

    /// The optimizer of the dense parameters: `train.optimizer`, or its default for this size of batches.
    pub fn dense_optimizer(&self) -> DenseOptimizer {
        self.train.optimizer.unwrap_or_else(|| self.steps().dense_optimizer())
    }

    /// The optimizer of embeddings whose table has none of its own: `table.embedding_optimizer`, or its default for this size of batches,
    /// this staleness and this loss.
    pub fn embedding_optimizer(&self) -> Optimizer {
        self.table.embedding_optimizer.unwrap_or_else(|| self.steps().embedding_optimizer())
    }

    /// The optimizer of linear weights: `table.linear_optimizer`, or its default for this size of batches and this staleness.
    pub fn linear_optimizer(&self) -> Optimizer {
        self.table.linear_optimizer.unwrap_or_else(|| self.steps().linear_optimizer())
    }

    /// The defaults of the optimizers that the job does not set and its model has, each in a line.
    pub fn default_optimizers(&self) -> Vec<String> {
        let Ok(spec) = self.model_spec() else { return Vec::new() };
        let adam = |rate: f64| format!("adam with lr = {rate}");
        let mut lines = Vec::new();
        let mut is_default = |field: &str, default: &str| lines.push(format!("{field}, by default: {default}"));
        if self.train.optimizer.is_none() && spec.dense_len() > 0 {
            is_default("train.optimizer", &adam(self.steps().dense_rate()));
        }
        if self.table.embedding_optimizer.is_none() && spec.embedding_dim > 0 {
            is_default("table.embedding_optimizer", &adam(self.steps().embedding_rate()));
        }
        if let (None, true, Optimizer::Ftrl { alpha, beta, .. }) =
            (self.table.linear_optimizer, spec.linear, self.linear_optimizer())
        {
            is_default("table.linear_optimizer", &format!("ftrl with alpha = {alpha:.4}, beta = {beta:.2e}"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_of(job: &str) -> (f32, f32) {
        let Optimizer::Ftrl { alpha, beta, .. } = Job::from_toml(job, &[]).unwrap().linear_optimizer() else {
            panic!("not FTRL")
        };
        (alpha, beta)
    }

    #[test]
    fn larger_and_staler_steps_are_shorter() {
        assert_eq!(default_of("train.batch_rows = 512"), (0.1, 1.0 / 512.0));
        assert_eq!(default_of("train.batch_rows = 8192"), (0.05, 1.0 / 8192.0));
        assert_eq!(default_of("train.batch_rows = 512\ntrain.staleness = { exactly = 15 }"), (0.05, 1.0 / 512.0));
        assert_eq!(default_of("train.batch_rows = 64"), (0.1, 1.0 / 64.0), "never longer");
        for (steps, alpha) in [("4096", 0.1), ("32768", 0.05), ("2048\ntrain.staleness = { exactly = 15 }", 0.05)] {
            let job = format!("model.kind = 'lr'\nmodel.hidden = []\ntrain.batch_rows = {steps}");
            assert_eq!(default_of(&job).0, alpha, "{job}");
        }
        let absurd = format!(
            "train.batch_rows = {0}\ntrain.staleness = {0}\ntrain.sync = true\nplacement.trainers = 2",
            i64::MAX
        );
        let (alpha, beta) = default_of(&absurd);
        assert!(alpha > 0.0 && beta > 0.0, "{alpha} {beta}: the error is to be about the field that is too large");
    }

    #[test]
    fn adam_has_a_higher_rate_for_batches_of_more_than_4096_rows() {
        let both = |job: &str| {
            let job = Job::from_toml(job, &[]).unwrap();
            let Optimizer::Adam { lr, .. } = job.embedding_optimizer() else { panic!("not Adam") };
            (job.dense_optimizer(), lr)
        };
        let expected = |lr: f64| (DenseOptimizer::adam(lr), lr.into());
        assert_eq!(both(""), expected(0.001));
        assert_eq!(both("train.batch_rows = 4096"), expected(0.001));
        assert_eq!(both("train.batch_rows = 16384"), expected(0.002));
        assert_eq!(both("train.batch_rows = 8192"), expected(0.00141));
        assert_eq!(both("train.batch_rows = 8192\nplacement.trainers = 2\ntrain.sync = true"), expected(0.002));
        let stale = both("train.batch_rows = 16384\ntrain.staleness = 8");
        assert_eq!(stale, (DenseOptimizer::adam(0.002), 0.001.into()));
        assert_eq!(both("train.batch_rows = 100000000"), expected(0.01));
    }

    #[test]
    fn adam_has_a_higher_rate_for_embeddings_with_in_batch_softmax() {
        let job = |settings: &str| Job::from_toml(&format!("model.kind = 'two_towers'\n{settings}"), &[]).unwrap();
        let adam = |lr: f64, l2| Optimizer::Adam { lr: lr.into(), beta1: 0.9, beta2: 0.999, eps: 1e-8, l2 };
        let in_batch = "model.loss = 'in_batch_softmax'\n";
        assert_eq!(job("").embedding_optimizer(), adam(0.001, 0.0));
        for steps in ["", "train.batch_rows = 16384", "train.staleness = 8"] {
            assert_eq!(job(&format!("{in_batch}{steps}")).embedding_optimizer(), adam(0.03, 0.0), "{steps}");
        }
        let given = |fields: &str| job(&format!("{in_batch}table.embedding_optimizer = {{ kind = 'adam', {fields} }}"));
        assert_eq!(given("l2 = 0.1").embedding_optimizer(), adam(0.03, 0.1), "Adam without a rate");
        assert_eq!(given("lr = 0.002").embedding_optimizer(), adam(0.002, 0.0));
        assert_eq!(job(in_batch).dense_optimizer(), DenseOptimizer::adam(0.001), "only that of embeddings");
    }

    #[test]
    fn adam_has_a_higher_rate_for_dense_parameters_with_several_labels() {
        let job = |settings: &str| {
            let labels = "columns.label = ['click', 'buy']\nmodel.kind = 'mmoe'\nmodel.hidden = [64, 128]\n";
            Job::from_toml(&format!("{labels}{settings}"), &[]).unwrap()
        };
        let embeddings = |lr: f64| Optimizer::Adam { lr: lr.into(), beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 };
        for (steps, dense, embedding) in [
            ("train.batch_rows = 512", 0.004, 0.001),
            ("train.batch_rows = 4096\ntrain.staleness = 8", 0.004, 0.001),
            ("train.batch_rows = 16384", 0.008, 0.002),
            ("train.batch_rows = 16384\ntrain.staleness = 8", 0.008, 0.001),
            ("train.batch_rows = 65536", 0.01, 0.004),
        ] {
            let job = job(steps);
            assert_eq!(job.dense_optimizer(), DenseOptimizer::adam(dense), "{steps}");
            assert_eq!(job.embedding_optimizer(), embeddings(embedding), "{steps}");
        }
        let lines = job("train.batch_rows = 16384").default_optimizers();
        assert_eq!(lines[0], "train.optimizer, by default: adam with lr = 0.008");
        let given = |fields: &str| job(&format!("train.optimizer = {{ kind = 'adam', {fields} }}")).dense_optimizer();
        let DenseOptimizer::Adam { lr, l2, .. } = given("l2 = 0.1") else { panic!("not Adam") };
        assert_eq!((lr, l2), (0.004.into(), 0.1), "Adam without a rate");
        assert_eq!(given("lr = 0.001"), DenseOptimizer::adam(0.001));
    }

    #[test]
    fn adam_has_a_higher_rate_for_dense_parameters_without_hidden_layers() {
        for kind in ["lr", "fm"] {
            let job = |rows: usize| {
                Job::from_toml(&format!("train.batch_rows = {rows}\n[model]\nkind = '{kind}'\nhidden = []"), &[])
                    .unwrap()
            };
            for (rows, dense) in [(512, 0.004), (4096, 0.004), (16384, 0.008), (65536, 0.01)] {
                assert_eq!(job(rows).dense_optimizer(), DenseOptimizer::adam(dense), "{kind}, {rows} rows");
            }
            let Optimizer::Adam { lr, .. } = job(512).embedding_optimizer() else { panic!("not Adam") };
            assert_eq!(lr, 0.001.into(), "only that of dense parameters");
        }
    }

    #[test]
    fn with_several_labels_and_wide_layers_the_rate_is_half_of_that_of_narrow_ones() {
        let rate = |settings: &[&str]| {
            let job = Job::with_settings("columns.label = ['click', 'buy']\nmodel.kind = 'esmm'", settings).unwrap();
            let DenseOptimizer::Adam { lr, .. } = job.dense_optimizer() else { panic!("not Adam") };
            lr
        };
        assert_eq!(rate(&[]), 0.002.into(), "400 units");
        assert_eq!(rate(&["model.hidden=[64, 257]"]), 0.002.into());
        assert_eq!(rate(&["model.hidden=[256, 128]"]), 0.004.into());
        assert_eq!(rate(&["train.batch_rows=16384"]), 0.004.into());
    }

    #[test]
    fn an_adam_that_lacks_its_rate_has_the_default() {
        let settings = ["train.batch_rows=16384", "train.optimizer={ kind = 'adam', l2 = 0.1 }"].map(str::to_owned);
        let job = "table.embedding_optimizer = { kind = 'adam', beta1 = 0.5 }\n\
                   tables.wide.embedding_optimizer = { kind = 'adam' }\ntables.deep.embedding_optimizer = { kind = 'sgd' }";
        let job = Job::from_toml(job, &settings).unwrap();
        let adam = |beta1| Optimizer::Adam { lr: 0.002.into(), beta1, beta2: 0.999, eps: 1e-8, l2: 0.0 };
        let DenseOptimizer::Adam { lr, l2, .. } = job.dense_optimizer() else { panic!("not Adam") };
        assert_eq!((lr, l2), (0.002.into(), 0.1));
        assert_eq!(job.embedding_optimizer(), adam(0.5));
        assert_eq!(job.tables["wide"].embedding_optimizer, Some(adam(0.9)));
        assert_eq!(job.tables["deep"].embedding_optimizer, Some(Optimizer::Sgd { lr: 0.001.into(), l2: 0.0 }));
        assert_eq!(Job::from_toml(&job.to_toml(), &[]).unwrap(), job);
    }

    #[test]
    fn a_plan_has_a_line_for_each_default_that_the_model_reads() {
        let lines = |job: &str| Job::from_toml(job, &[]).unwrap().default_optimizers();
        let ftrl = "table.linear_optimizer, by default: ftrl with alpha = 0.0500, beta = 1.22e-4";
        let adam = |field: &str| format!("{field}, by default: adam with lr = 0.00141");
        let (dense, embedding) = (adam("train.optimizer"), adam("table.embedding_optimizer"));
        assert_eq!(lines("train.batch_rows = 8192"), [&*dense, &*embedding, ftrl]);
        assert_eq!(lines("train.batch_rows = 8192\nmodel.kind = 'ctr_dnn'"), [&*dense, &*embedding]);
        let lr = "train.batch_rows = 8192\n[columns]\ndense = []\nslots = ['a']\n[model]\nkind = 'lr'";
        let bias = "train.optimizer, by default: adam with lr = 0.00566";
        let without_layers = "table.linear_optimizer, by default: ftrl with alpha = 0.0794, beta = 1.22e-4";
        assert_eq!(lines(lr), [bias, without_layers], "its bias is dense, and it has no embeddings");
        let towers = "[columns]\ndense = []\nslots = ['a', 'b']\n[model]\nkind = 'two_towers'\nuser.slots = ['a']\n\
                      item.slots = ['b']\nloss = 'in_batch_softmax'";
        let rate = |field: &str, rate: &str| format!("{field}, by default: adam with lr = {rate}");
        let expected = [rate("train.optimizer", "0.001"), rate("table.embedding_optimizer", "0.03")];
        assert_eq!(lines(towers), expected);
        let set =
            "[train]\noptimizer.kind = 'sgd'\n[table]\nembedding_optimizer.kind = 'sgd'\nlinear_optimizer.kind = 'sgd'";
        assert_eq!(lines(set), [""; 0]);
    }

    #[test]
    fn an_ftrl_that_lacks_alpha_or_beta_has_those_of_the_default() {
        let of =
            |optimizer: &str| default_of(&format!("table.linear_optimizer = {optimizer}\ntrain.batch_rows = 8192"));
        assert_eq!(of("{ kind = 'ftrl', l2 = 0.1 }"), (0.05, 1.0 / 8192.0));
        assert_eq!(of("{ kind = 'ftrl', alpha = 0.2 }"), (0.2, 1.0 / 8192.0));
        assert_eq!(of("{ kind = 'ftrl', alpha = 0.2, beta = 1 }"), (0.2, 1.0));
        let settings = ["train.batch_rows=8192", "tables.wide.linear_optimizer={ kind = 'ftrl', l1 = 0.5 }"];
        let job = Job::from_toml("train.batch_rows = 512", &settings.map(str::to_owned)).unwrap();
        let expected = Optimizer::Ftrl { alpha: 0.05, beta: 1.0 / 8192.0, l1: 0.5, l2: 0.0 };
        assert_eq!(job.tables["wide"].linear_optimizer, Some(expected), "with the settings");
        assert_eq!(Job::from_toml(&job.to_toml(), &[]).unwrap(), job);
        let embeddings = Job::from_toml("table.embedding_optimizer = { kind = 'ftrl' }", &[]).unwrap();
        let fixed = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 };
        assert_eq!(embeddings.table.embedding_optimizer, Some(fixed));
    }
}
