//! Which fields differ between two jobs, for a message that names them.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::Job;

impl Job {
    /// The fields that differ from those of `other`, by their names with dots: "train.batch_rows is 2048 there and 77 here". `self` is
    /// "there". Compares only fields that `asked` returns true for.
    pub fn differences(&self, other: &Job, asked: impl Fn(&str) -> bool) -> Vec<String> {
        let (there, here) = (fields(self), fields(other));
        let names: BTreeSet<_> = there.keys().chain(here.keys()).filter(|name| asked(name)).collect();
        let shown = |value: Option<&Value>| value.map_or_else(|| "not set".to_owned(), Value::to_string);
        names
            .into_iter()
            .filter(|name| there.get(*name) != here.get(*name))
            .map(|name| format!("{name} is {} there and {} here", shown(there.get(name)), shown(here.get(name))))
            .collect()
    }
}

/// All fields of a job, by their names with dots. A field whose default depends on the kind of model has the value that the model uses, so
/// a job that leaves the field out is the same job.
fn fields(job: &Job) -> BTreeMap<String, Value> {
    fn flatten(prefix: &str, table: Table, fields: &mut BTreeMap<String, Value>) {
        for (key, value) in table {
            let name = format!("{prefix}{key}");
            match value {
                Value::Table(table) => flatten(&format!("{name}."), table, fields),
                value => {
                    fields.insert(name, value);
                }
            }
        }
    }
    let (mut all, mut job) = (BTreeMap::new(), job.clone());
    job.model.cross_layers = Some(job.model.cross_layer_count());
    for part in [&mut job.model.linear, &mut job.model.fm] {
        part.get_or_insert(false);
    }
    job.train.optimizer = Some(job.dense_optimizer());
    job.table.embedding_optimizer = Some(job.embedding_optimizer());
    job.table.linear_optimizer = Some(job.linear_optimizer());
    flatten("", toml::from_str(&job.to_toml()).unwrap_or_default(), &mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_of_the_kind_of_model_is_no_difference() {
        let job = |text: &str| Job::from_toml(&format!("[model]\n{text}"), &[]).unwrap();
        let differ = |a: &str, b: &str| job(a).differences(&job(b), |_| true);
        // As manifests of earlier programs have it.
        assert_eq!(differ("cross_layers = 0", ""), [""; 0]);
        assert_eq!(differ("kind = 'custom'\nlinear = false\nfm = false", "kind = 'custom'"), [""; 0]);
        assert_eq!(
            differ("kind = 'custom'\nlinear = true", "kind = 'custom'"),
            ["model.linear is true there and false here"]
        );
        assert_eq!(differ("kind = 'dcn_v2'\ncross_layers = 3", "kind = 'dcn_v2'"), [""; 0]);
        assert_eq!(
            differ("kind = 'dcn_v2'\ncross_layers = 2", "kind = 'dcn_v2'"),
            ["model.cross_layers is 2 there and 3 here"]
        );
    }
}
