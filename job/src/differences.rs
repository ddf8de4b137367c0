//! Which fields differ between two jobs, for a message that names them.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::Job;

impl Job {
    /// The fields that differ from the fields of `other`, by their names with dots: "train.batch_rows is 2048 there and 77 here". `self` is
    /// "there". Compares only fields that `asked` returns true for.
    pub fn differences(&self, other: &Job, asked: impl Fn(&str) -> bool) -> Vec<String> {
        let (there, here) = (fields(self), fields(other));
        let names: BTreeSet<_> = there.keys().chain(here.keys()).filter(|name| asked(name)).collect();
        names
            .into_iter()
            .filter(|name| there.get(*name) != here.get(*name))
            .filter(|name| !only_one_says_auto(name, there.get(*name), here.get(*name)))
            .map(|name| said(name, there.get(name), here.get(name)) + &origin(name, self, other))
            .collect()
    }
}

/// Whether `name` is the transform of a column's statistics, and one job has `auto` there, which an earlier version wrote, and the other
/// what `auto` meant. Then the jobs do not differ: the parser compares the transform with the types of the rows.
fn only_one_says_auto(name: &str, there: Option<&Value>, here: Option<&Value>) -> bool {
    let is_transform = name.starts_with("columns.statistics.") && name.ends_with(".transform");
    let values = [there, here].map(|value| value.and_then(Value::as_str));
    is_transform && matches!(values, [Some("auto"), Some("none" | "log1p")] | [Some("none" | "log1p"), Some("auto")])
}

/// If the texts of two lists together have more bytes than this, only the first entry that differs is named.
const LONG_LISTS: usize = 200;

fn said(name: &str, there: Option<&Value>, here: Option<&Value>) -> String {
    let shown = |value: Option<&Value>| value.map_or_else(|| "not set".to_owned(), Value::to_string);
    let (all, others) = (shown(there), shown(here));
    if let (Some(Value::Array(there)), Some(Value::Array(here))) = (there, here)
        && all.len() + others.len() > LONG_LISTS
    {
        let first = (0..there.len().max(here.len())).find(|&entry| there.get(entry) != here.get(entry)).unwrap_or(0);
        let (one, other) = (shown(there.get(first)), shown(here.get(first)));
        let (n, m) = (there.len(), here.len());
        return format!(
            "{name} has {n} entries there and {m} here, and entry {} is {one} there and {other} here",
            first + 1
        );
    }
    format!("{name} is {all} there and {others} here")
}

const LOSS: &str = "model.loss";
const LABELS: &str = "the number of labels";

/// What a default of an optimizer follows from that is not the same in both jobs, in parentheses.
fn origin(name: &str, there: &Job, here: &Job) -> String {
    let is_default = |job: &Job| {
        (name.starts_with("train.optimizer.") && job.train.optimizer.is_none())
            || (name.starts_with("table.embedding_optimizer.") && job.table.embedding_optimizer.is_none())
            || (name.starts_with("table.linear_optimizer.") && job.table.linear_optimizer.is_none())
    };
    if !is_default(there) && !is_default(here) {
        return String::new();
    }
    let origins = |job: &Job| {
        [
            ("train.batch_rows", job.train.batch_rows.to_string()),
            ("train.staleness", job.train.staleness.batches.to_string()),
            ("the number of trainers that take each step together", job.in_step().to_string()),
            (LOSS, job.model.loss.to_string()),
            (LABELS, job.columns.label.len().to_string()),
        ]
    };
    let counts = |origin: &str| match origin {
        LOSS => name.starts_with("table.embedding_optimizer."),
        LABELS => name.starts_with("train.optimizer."),
        _ => true,
    };
    let pairs = origins(there).into_iter().zip(origins(here));
    let differ: Vec<String> = pairs
        .filter(|((origin, there), (_, here))| counts(origin) && there != here)
        .map(|((origin, there), (_, here))| format!("{origin}, {there} there and {here} here"))
        .collect();
    match differ.is_empty() {
        true => String::new(),
        false => {
            format!(" (it follows from {}: keep that, or write the optimizer into the job)", differ.join(", and from "))
        }
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
    fn a_default_of_an_optimizer_names_what_it_follows_from() {
        let job = |settings: &[&str]| Job::with_settings("train.staleness = 0", settings).unwrap();
        let differ = |a: &[&str], b: &[&str]| job(a).differences(&job(b), |name| name.contains("optimizer"));
        assert_eq!(
            differ(&["train.batch_rows=256"], &["train.batch_rows=512"]),
            [
                "table.linear_optimizer.beta is 0.00390625 there and 0.001953125 here (it follows from train.batch_rows, 256 there and \
              512 here: keep that, or write the optimizer into the job)"
            ]
        );
        let of_staleness = differ(&["train.batch_rows=8192"], &["train.batch_rows=8192", "train.staleness=4"]);
        assert!(of_staleness.iter().any(|said| said.starts_with("table.embedding_optimizer.lr")), "{of_staleness:?}");
        for said in of_staleness {
            assert!(said.contains("(it follows from train.staleness, 0 there and 4 here: keep that"), "{said}");
        }
        assert_eq!(
            differ(&["model.kind=two_towers"], &["model.kind=two_towers", "model.loss=in_batch_softmax"]),
            [
                "table.embedding_optimizer.lr is 0.001 there and 0.03 here (it follows from model.loss, logloss there and \
                 in_batch_softmax here: keep that, or write the optimizer into the job)"
            ]
        );
        let several = ["model.kind=mmoe", "columns.label=['click', 'buy']"];
        assert_eq!(
            differ(&["model.kind=ctr_dnn"], &several),
            [
                "train.optimizer.lr is 0.001 there and 0.002 here (it follows from the number of labels, 1 there and 2 here: keep \
                 that, or write the optimizer into the job)"
            ]
        );
        let beta = |beta: f64| format!("table.linear_optimizer={{ kind = 'ftrl', alpha = 0.5, beta = {beta} }}");
        let (half, quarter) = (beta(0.5), beta(0.25));
        assert_eq!(
            differ(&[half.as_str(), "train.batch_rows=256"], &[quarter.as_str(), "train.batch_rows=512"]),
            ["table.linear_optimizer.beta is 0.5 there and 0.25 here"],
            "the jobs say it"
        );
    }

    #[test]
    fn statistics_of_an_earlier_version_differ_only_in_their_numbers() {
        let job = |transform: &str, mean: u32| {
            let statistics = format!("{{ mean = {mean}, std = 2, min = 0, max = 9, transform = '{transform}' }}");
            let dense = "dense = [{ column = 'x', scale = 'z_score' }]";
            Job::from_toml(&format!("[columns]\n{dense}\nstatistics = {{ x = {statistics} }}"), &[]).unwrap()
        };
        let differ = |there: &Job, here: &Job| there.differences(here, |name| name.starts_with("columns."));
        assert!(
            differ(&job("auto", 1), &job("log1p", 1)).is_empty() && differ(&job("none", 1), &job("auto", 1)).is_empty()
        );
        assert_eq!(differ(&job("none", 1), &job("log1p", 1)).len(), 1);
        let said = differ(&job("auto", 1), &job("log1p", 3));
        assert_eq!(said, ["columns.statistics.x.mean is 1.0 there and 3.0 here"]);
    }

    /// A bug: both lists were printed, of hundreds of slots, and of the 26 slots of Criteo.
    #[test]
    fn of_a_long_list_the_first_entry_that_differs_is_said() {
        let list = |n: usize, third: &str| {
            let name = |i: usize| Value::String(if i == 2 { third.to_owned() } else { format!("S{i}") });
            Value::Array((0..n).map(name).collect())
        };
        let of = |there: &Value, here: &Value| said("columns.slots", Some(there), Some(here));
        assert_eq!(
            of(&list(300, "a"), &list(300, "b")),
            "columns.slots has 300 entries there and 300 here, and entry 3 is \"a\" there and \"b\" here"
        );
        let longer = of(&list(40, "a"), &list(39, "a"));
        assert!(longer.ends_with("entry 40 is \"S39\" there and not set here"), "{longer}");
        assert!(of(&list(3, "a"), &list(3, "b")).starts_with("columns.slots is [\"S0\", "));
        let slots = |second: &str| {
            let slot = |range: &str| format!("{{ column = '{range}', kind = 'hex' }}");
            let setting = format!("columns.slots=[{}, {}]", slot("C1..C6"), slot(second));
            Job::with_settings("", &[setting.as_str()]).unwrap()
        };
        let said = slots("C7..C26").differences(&slots("C8..C26"), |name| name == "columns.slots");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("columns.slots has 26 entries there and 25 here, and entry 7 is "), "{said:?}");
        assert!(said[0].contains("C7") && !said[0].contains("C9"), "{said:?}");
    }

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
