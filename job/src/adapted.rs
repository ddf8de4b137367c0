//! The job of a model that has been trained, with settings for another use of it.

use forebay_actors::Fault;

use super::Job;

impl Job {
    /// This job of a trained model, with settings of the form `KEY=VALUE` applied. What an earlier version trained may be beyond today's
    /// limits, and settings may not.
    ///
    /// # Errors
    /// A user fault that names a setting which is wrong, or with which the weights of the model would mean something else.
    pub fn adapted(&self, settings: &[String]) -> Result<Self, Fault> {
        let job = Self::from_toml(&self.to_toml(), settings)?;
        if settings.is_empty() {
            return Ok(job);
        }
        job.check_saved()?;
        job.check_limits()?;
        match self.differences(&job, |field| is_of_weights(field) || field.starts_with("tables.")).as_slice() {
            [] => Ok(job),
            differences => Err(Fault::user(format!(
                "the model was trained with other settings (there) than --set gives (here), and its weights would mean something else: {}; \
                 leave these out",
                differences.join(", ")
            ))),
        }
    }
}

/// Whether the weights of a trained model mean something else with another value of this field. Keys are hashed with the seed. The weights
/// follow the share of label 1 among the rows that were trained on, and scores are corrected for one share of all rows.
pub fn is_of_weights(field: &str) -> bool {
    const COLUMNS: [&str; 6] = ["dense", "statistics", "quantiles", "slots", "crosses", "tables"];
    match field.split_once('.') {
        Some(("columns", rest)) => COLUMNS.contains(&rest.split('.').next().unwrap_or(rest)),
        Some(("tables", rest)) => rest.ends_with(".embedding_dim"),
        Some(("model", _)) => true,
        _ => matches!(field, "seed" | "data.negatives"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: `predict` panicked, or waited for threads that do not start.
    #[test]
    fn settings_for_a_model_have_the_limits_of_a_job() {
        let job = Job::from_toml("pipeline.cores = 5000", &[]).unwrap();
        job.adapted(&[]).unwrap();
        for (setting, words) in [
            ("data.read_rows=9223372036854775807", "data.read_rows is 9223372036854775807"),
            ("data.read_rows=0", "data.read_rows is 0"),
            ("pipeline.parse_replicas=100000", "pipeline.parse_replicas is 100000"),
            ("placement.timeout_seconds=1e300", "placement.timeout_seconds is 1"),
            ("data.on_bad_row={ write_to = 'hdfs://ns/bad' }", "write_to is hdfs://ns/bad"),
        ] {
            let said = job.adapted(&[setting.to_owned(), "pipeline.cores=2".to_owned()]).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
    }

    /// A bug: `predict` read the rows in another way than the training, and gave wrong scores and no error.
    #[test]
    fn settings_that_change_what_a_model_has_learned_are_refused() {
        let job = "columns = { label = 'y', dense = ['price'], slots = ['user', 'item'] }";
        let job = Job::from_toml(job, &[]).unwrap();
        for (setting, words) in [
            ("seed=7", "seed is 0 there and 7 here"),
            ("columns.slots=['item', 'user']", "columns.slots is"),
            ("columns.slots=['user']", "columns.slots is"),
            ("columns.dense=[]", "columns.dense is"),
            ("columns.dense=[{ column = 'price', transform = 'log1p' }]", "columns.dense is"),
            ("columns.crosses=[{ columns = ['user', 'item'] }]", "columns.crosses is"),
            ("data.negatives=0.5", "data.negatives is"),
            ("model.kind=lr", "model.kind is"),
            ("model.embedding_dim=8", "model.embedding_dim is"),
        ] {
            let said = job.adapted(&[setting.to_owned()]).unwrap_err().to_string();
            assert!(said.contains(words) && said.contains("leave these out"), "{said}");
        }
        let free = ["columns.label=z", "columns.weight=w", "columns.optional=['item']", "data.on_bad_row=skip"];
        let free =
            [&free[..], &["train.threads=1", "evaluation.metric=logloss", "seed=0", "columns.extra=['day']"]].concat();
        for setting in free {
            job.adapted(&[setting.to_owned()]).unwrap_or_else(|fault| panic!("{setting}: {fault}"));
        }
    }
}
