//! What a step of training covers: it decides the default optimizer of linear weights.

use forebay_ps::Optimizer;
use toml::{Table, Value};

use super::Job;

/// The steps of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// Rows of data in a step.
    pub(super) rows: usize,
    /// Steps that may be under way when a step begins.
    pub(super) staleness: usize,
}

impl Steps {
    /// The default: FTRL whose steps have about the same length per row of data for all sizes of batches.
    ///
    /// The first step of a weight is near `alpha`. Steps that begin from the same weights add up and overshoot, so `alpha` falls with the
    /// number of rows that they cover. The gradient of the mean loss shrinks with the number of rows in a batch, and FTRL compares `beta`
    /// with the root of the sum of its squares, so `beta` shrinks too.
    pub(super) fn linear_optimizer(self) -> Optimizer {
        let rows = self.rows.max(1) as f64;
        let covered = rows * (1.0 + self.staleness as f64);
        let alpha = (0.1 * (1024.0 / covered).cbrt()).clamp(1e-5, 0.1);
        // Rounded, because roots may differ in the last bit between machines.
        let alpha = ((alpha * 1e5).round() / 1e5) as f32;
        Optimizer::Ftrl { alpha, beta: (1.0 / rows) as f32, l1: 0.0, l2: 0.0 }
    }

    /// Adds the `alpha` and `beta` of the default to each FTRL of linear weights in the TOML of a job that lacks one. Returns whether one
    /// did. A job that only adds an `l2` would otherwise get the `beta` of single rows.
    pub(super) fn complete_ftrl(self, job: &mut Table) -> bool {
        let Optimizer::Ftrl { alpha, beta, .. } = self.linear_optimizer() else { return false };
        let mut added = false;
        let mut complete = |table: &mut Value| {
            let optimizer = table.get_mut("linear_optimizer").and_then(Value::as_table_mut);
            if let Some(ftrl) = optimizer.filter(|ftrl| ftrl.get("kind").and_then(Value::as_str) == Some("ftrl")) {
                for (field, value) in [("alpha", alpha), ("beta", beta)] {
                    ftrl.entry(field).or_insert_with(|| {
                        added = true;
                        f64::from(value).into()
                    });
                }
            }
        };
        job.get_mut("table").into_iter().for_each(&mut complete);
        let groups = job.get_mut("tables").and_then(Value::as_table_mut);
        groups.into_iter().flat_map(|groups| groups.iter_mut()).for_each(|(_, group)| complete(group));
        added
    }
}

impl Job {
    pub(super) fn steps(&self) -> Steps {
        Steps { rows: self.train.batch_rows.saturating_mul(self.in_step()), staleness: self.train.staleness.batches }
    }

    /// The optimizer of linear weights: `table.linear_optimizer`, or its default for this size of batches and this staleness.
    pub fn linear_optimizer(&self) -> Optimizer {
        self.table.linear_optimizer.unwrap_or_else(|| self.steps().linear_optimizer())
    }

    /// The default of `table.linear_optimizer` in a line; `None` if the job sets it, or has no linear weights.
    pub fn default_linear_optimizer(&self) -> Option<String> {
        let is_used = self.table.linear_optimizer.is_none() && self.model_spec().is_ok_and(|spec| spec.linear);
        let Optimizer::Ftrl { alpha, beta, .. } = self.linear_optimizer() else { return None };
        is_used.then(|| format!("table.linear_optimizer, by default: ftrl with alpha = {alpha:.4}, beta = {beta:.2e}"))
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
        let absurd = format!(
            "train.batch_rows = {0}\ntrain.staleness = {0}\ntrain.sync = true\nplacement.trainers = 2",
            i64::MAX
        );
        let (alpha, beta) = default_of(&absurd);
        assert!(alpha > 0.0 && beta > 0.0, "{alpha} {beta}: the error is to be about the field that is too large");
        let line = |job: &str| Job::from_toml(job, &[]).unwrap().default_linear_optimizer();
        let expected = "table.linear_optimizer, by default: ftrl with alpha = 0.0500, beta = 1.22e-4";
        assert_eq!(line("train.batch_rows = 8192").as_deref(), Some(expected));
        assert_eq!(line("model.kind = 'ctr_dnn'"), None, "it has no linear weights");
        assert_eq!(line("table.linear_optimizer = { kind = 'sgd' }"), None);
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
        assert_eq!(embeddings.table.embedding_optimizer, fixed);
    }
}
