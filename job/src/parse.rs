//! Parses a [`Job`] from TOML text and settings; an error names the line and the nearest valid name.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use forebay_actors::{Fault, FaultKind};
use toml::{Table, Value};

use super::Job;
use super::formats::{ReadJob, WrittenJob};
use super::meant_field::meant;
use super::plain_words::plain_words;
use super::template::template;

/// The longest job file that is read.
const MOST_BYTES: u64 = 16 << 20;

impl Job {
    /// Reads a job file, then applies `key=value` settings (`train.staleness=2`) in order. Blocks on reading the file.
    ///
    /// # Errors
    /// A user fault that names the file. Its kind is [`FaultKind::NotFound`] if the file is not there, and [`FaultKind::InvalidJob`] if the
    /// file or a setting is wrong.
    pub fn load(path: &Path, settings: &[String]) -> Result<Self, Fault> {
        Self::of_file(path, &Self::read_file(path)?, settings)
    }

    /// The text of a job file, which may be a pipe. Blocks on reading it.
    pub fn read_file(path: &Path) -> Result<String, Fault> {
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text));
        let name = path.display();
        let cannot = |e: io::Error| {
            let kind = if e.kind() == io::ErrorKind::NotFound { FaultKind::NotFound } else { FaultKind::Other };
            Fault::user(format!("cannot read the job file {name}")).because(e).kind(kind)
        };
        match read.map_err(cannot)? as u64 {
            0..=MOST_BYTES => Ok(text),
            _ => Err(Fault::user(format!("{name} is not a job file: it is longer than {MOST_BYTES} bytes"))
                .kind(FaultKind::InvalidJob)),
        }
    }

    /// The job of a file with this text, with settings applied in order.
    pub fn of_file(path: &Path, text: &str, settings: &[String]) -> Result<Self, Fault> {
        Self::from_toml(text, settings).map_err(|fault| {
            let message = format!("in {}: {fault}", path.display());
            Fault::user(message).kind(fault.kind).with_source(fault)
        })
    }

    /// Parses TOML text, then applies settings. An empty text is the default job.
    ///
    /// # Errors
    /// A user fault of the kind [`FaultKind::InvalidJob`] that names the line or the setting, and the nearest valid name. Combinations of
    /// fields are checked later: see [`check`](Self::check).
    pub fn from_toml(text: &str, settings: &[String]) -> Result<Self, Fault> {
        Self::parsed(text, settings).map_err(|fault| fault.kind_if_none(FaultKind::InvalidJob))
    }

    fn parsed(text: &str, settings: &[String]) -> Result<Self, Fault> {
        let mut table: Table = toml::from_str(text).map_err(|e| explain(&e))?;
        // The text is first parsed without the settings, so that an error in the file names its line.
        let ReadJob(mut job) = toml::from_str(text).map_err(|e| explain(&e))?;
        if !settings.is_empty() {
            settings.iter().try_for_each(|setting| set(&mut table, setting))?;
            job = Self::deserialize_table(table.clone())?;
        }
        if job.steps().complete_optimizers(&mut table) { Self::deserialize_table(table) } else { Ok(job) }
    }

    /// As [`from_toml`](Self::from_toml), with settings that a program has as literals.
    pub fn with_settings(text: &str, settings: &[&str]) -> Result<Self, Fault> {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        Self::from_toml(text, &settings)
    }

    fn deserialize_table(table: Table) -> Result<Self, Fault> {
        table.try_into().map(|ReadJob(job)| job).map_err(|e: toml::de::Error| explain(&e).context("in a setting"))
    }

    /// The job as TOML, with every field that has a value. This text is in the manifest of a model folder.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(&WrittenJob(self)).expect("every job can be written as TOML")
    }

    /// The job as TOML with every field and a sentence about each. A field without a value is a comment with its default and an example.
    pub fn to_commented_toml(&self) -> String {
        let job = Value::Table(toml::from_str(&self.to_toml()).expect("the TOML of a job can be read"));
        let mut lines = Vec::new();
        for (section, line) in template() {
            let section = section.iter().fold(&job, |at, key| &at[*key]);
            let key = line.trim_start_matches('#').split(" =").next().unwrap_or_default();
            lines.push(match section.get(key) {
                Some(value) => format!("{key} = {}", on_lines(value)),
                None => line.to_owned(),
            });
        }
        lines.join("\n")
    }
}

/// A value as TOML; a list of tables has a line for each.
fn on_lines(value: &Value) -> String {
    match value {
        Value::Array(list) if list.iter().any(Value::is_table) => {
            let lines: String = list.iter().map(|entry| format!("    {entry},\n")).collect();
            format!("[\n{lines}]")
        }
        value => value.to_string(),
    }
}

/// Puts `a.b.c=value` into the table. A value that is not TOML is taken as text.
fn set(table: &mut Table, setting: &str) -> Result<(), Fault> {
    let expected = || Fault::user(format!("setting {setting:?}: expected key=value, for instance train.staleness=2"));
    let (path, text) = setting.split_once('=').ok_or_else(expected)?;
    let mut parsed = toml::from_str::<Table>(&format!("v = {text}")).unwrap_or_default();
    let value = parsed.remove("v").unwrap_or_else(|| Value::String(text.to_owned()));
    if !parsed.is_empty() {
        return Err(Fault::user(format!(
            "setting {setting:?}: it has several lines, expected one setting for each --set"
        )));
    }
    let mut keys: Vec<&str> = path.trim().split('.').collect();
    let last = keys.pop().filter(|k| !k.is_empty()).ok_or_else(expected)?;
    let mut at = table;
    for key in keys {
        at = at
            .entry(key)
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .ok_or_else(|| Fault::user(format!("setting {setting:?}: `{key}` is a value, not a table")))?;
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

/// The parser's error as a user fault, with the nearest valid name if a field or a value is unknown.
fn explain(error: &toml::de::Error) -> Fault {
    let text = error.to_string().replacen(error.message(), &plain_words(error.message()), 1);
    let near = meant(error.message()).map(|name| format!("\ndid you mean {name}?")).unwrap_or_default();
    Fault::user(format!("{}{near}", around_the_error(text.trim_end())))
}

/// Characters of a line of the job that an error shows.
const SHOWN: usize = 120;

/// Cuts the line of the job in an error of the parser, such as one of hundreds of slots, to what is around the error.
fn around_the_error(text: &str) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = lines.iter().skip(1).position(|line| line.trim_start_matches([' ', '|']).starts_with('^'));
    let parts = at.and_then(|at| Some((at, lines[at].split_once(" | ")?, lines[at + 1].split_once(" | ")?)));
    let Some((at, (number, source), (margin, marks))) = parts else { return text.to_owned() };
    let (length, column) = (source.chars().count(), marks.chars().take_while(|mark| *mark == ' ').count());
    if length <= SHOWN {
        return text.to_owned();
    }
    let from = column.saturating_sub(SHOWN / 2).min(length - SHOWN);
    let shown = |of: &str| of.chars().skip(from).take(SHOWN).collect::<String>();
    let (before, under) = if from > 0 { ("...", "   ") } else { ("", "") };
    let after = if from + SHOWN < length { "..." } else { "" };
    let cut_source = format!("{number} | {before}{}{after}", shown(source));
    let cut_marks = format!("{margin} | {under}{}", shown(marks));
    (lines[at], lines[at + 1]) = (cut_source, cut_marks);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelKind;

    /// A bug: the values of the list became the fields' values, in their order; at first only sections were checked.
    #[test]
    fn a_list_in_the_place_of_a_table_is_refused_at_every_level() {
        let kind = "a table with a kind, such as { kind = ... }";
        for (field, list, expected) in [
            (
                "data",
                "['a', 'b']",
                "a table of its fields, such as { train = ..., eval = ..., where = ..., eval_where = ..., ... }",
            ),
            (
                "train",
                "[]",
                "a table of its fields, such as { from = ..., batch_rows = ..., drop_last = ..., staleness = ..., ... }",
            ),
            ("data.csv", "[';']", "a table of its fields, such as { delimiter = ..., quotes = ..., nulls = ... }"),
            ("table.eviction", "[1000]", "a table of its fields, such as { unseen_rows = ..., max_rows = ..., "),
            ("table.admission.bloom", "[1000, 0.1]", "a table of its fields, such as { keys = ..., error = ... }"),
            ("train.optimizer", "['adam', 0.5]", kind),
            ("train.optimizer", "{ kind = 'adam', lr = { peak = 0.1, decay = ['cosine', 50] } }", kind),
            ("table.embedding_init", "['uniform', 0.5]", kind),
            ("table.embedding_optimizer", "{ kind = 'sgd', lr = { peak = 0.1, decay = ['linear', 50] } }", kind),
            ("tables", "{ small = { admission = [3] } }", "{ count = ..., bloom = ..., probability = ... }"),
            ("tables", "{ small = [4] }", "{ embedding_dim = ..., storage = ..., linear_optimizer = ..., "),
            ("model.attention", "[['a', 'b']]", "a table of its fields, such as { history = ..., target = ... }"),
            ("model.attention", "[['a']]", "a table of its fields, such as { history = ..., target = ... }"),
            (
                "model.user",
                "[['a'], ['b']]",
                "a table of its fields, such as { slots = ..., dense = ..., hidden = ... }",
            ),
            ("columns.statistics", "{ x = [1, 2, 0, 9] }", "{ mean = ..., std = ..., min = ..., max = ..., ... }"),
            (
                "columns.dense",
                "[{ column = 'x', clip = [1, 2] }]",
                "a table of its fields, such as { min = ..., max = ... }",
            ),
            ("columns.label", "[['click', '> 3']]", "a column name, or a table with"),
            (
                "evaluation.reduce_lr_on_plateau",
                "[0.1]",
                "a table of its fields, such as { factor = ..., patience = ..., ",
            ),
        ] {
            let words = format!("found a list, expected {}", if expected.starts_with('{') { "" } else { expected });
            let in_file = Job::from_toml(&format!("{field} = {list}"), &[]).unwrap_err().to_string();
            assert!(in_file.contains("line 1") && in_file.contains(&words), "{in_file}");
            let in_setting = Job::from_toml("", &[format!("{field}={list}")]).unwrap_err().to_string();
            assert!(in_setting.contains(&words) && in_setting.contains(&format!("in `{field}")), "{in_setting}");
            assert!(in_file.contains(expected) && in_setting.contains(expected), "{in_file}\n{in_setting}");
        }
        let said = Job::from_toml("[[data]]\ntrain = 'a'", &[]).unwrap_err().to_string();
        assert!(said.contains("line 1") && said.contains("found a list, expected a table of its fields"), "{said}");
        let said =
            serde_json::from_str::<Job>(r#"{ "model": { "attention": [["a", "b"]] } }"#).unwrap_err().to_string();
        assert!(said.contains("expected a table of its fields, such as { history = ..."), "{said}");
    }

    /// A bug: the whole line was shown, of thousands of characters.
    #[test]
    fn an_error_in_a_long_line_shows_what_is_around_it() {
        let slots = |n: usize| (0..n).map(|i| format!("'S{i}', ")).collect::<String>();
        let said = |slots: &str| Job::from_toml(&format!("columns.slots = [{slots}]"), &[]).unwrap_err().to_string();
        let long = said(&format!("{}'wrong' 'here', {}", slots(300), slots(300)));
        assert!(long.contains("'wrong' 'here'") && long.lines().all(|line| line.len() < 140), "{long}");
        let short = said("'wrong' 'here'");
        assert!(!short.contains("...") && short.contains("columns.slots = ['wrong' 'here']"), "{short}");
        // The marks are below the same text.
        let marked = |said: &str| {
            let lines: Vec<&str> = said.lines().collect();
            let at = lines.iter().position(|line| line.contains('^')).unwrap();
            lines[at - 1][lines[at].find('^').unwrap()..].chars().take(3).collect::<String>()
        };
        assert_eq!(marked(&long), marked(&short), "{long}\n{short}");
    }

    /// A bug: all lines but the first were dropped.
    #[test]
    fn a_setting_of_several_lines_is_refused() {
        for setting in ["seed=1\ndata.epochs=3", "data.epochs=9\n[train]\nstaleness=3"] {
            let said = Job::from_toml("", &[setting.to_owned()]).unwrap_err().to_string();
            assert!(said.contains("several lines"), "{said}");
        }
        let job = Job::from_toml("", &["columns.dense=[\n'a',\n'b',\n]\n".to_owned()]).unwrap();
        assert_eq!(job.columns.dense.len(), 2);
    }

    #[test]
    fn an_empty_file_is_the_default_job_and_the_default_job_reads_back() {
        assert_eq!(Job::from_toml("", &[]).unwrap(), Job::default());
        assert_eq!(Job::from_toml(&Job::default().to_toml(), &[]).unwrap(), Job::default());
    }

    #[test]
    fn settings_win_over_the_file() {
        let job = Job::from_toml(
            "[train]\nbatch_rows = 8\n",
            &[
                "train.batch_rows=16".into(),
                "model.kind=lr".into(),
                "model.hidden=[8, 4]".into(),
                "data.train=a/b".into(),
            ],
        )
        .unwrap();
        assert_eq!((job.train.batch_rows, job.model.kind), (16, ModelKind::Lr));
        assert_eq!(job.model.hidden, [8, 4]);
        assert_eq!(job.data.train, Some("a/b".into()));
    }

    #[test]
    fn an_unknown_field_gets_its_line_and_the_nearest_name() {
        let error = Job::from_toml("seed = 1\n[train]\nbatch_row = 8\n", &[]).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("did you mean `batch_rows`?"), "{error}");
        let error = Job::from_toml("", &["train.stalenes=1".into()]).unwrap_err().to_string();
        assert!(error.contains("did you mean `staleness`?"), "{error}");
        let error = Job::from_toml("[model]\nkind = 'ctr_dn'\n", &[]).unwrap_err().to_string();
        assert!(error.contains("did you mean `ctr_dnn`?"), "{error}");
        let error = Job::from_toml("[model]\nkind = 'deepfm'\n", &[]).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("did you mean `deep_fm`?"), "{error}");
        let error = Job::from_toml("", &["model.kind=dcn".into()]).unwrap_err().to_string();
        assert!(error.contains("did you mean `dcn_v2`?"), "{error}");
        let error = Job::from_toml("[trian]\n", &[]).unwrap_err().to_string();
        assert!(error.contains("did you mean `train`?"), "{error}");
        let error = Job::from_toml("elephants = 1\n", &[]).unwrap_err().to_string();
        assert!(error.contains("elephants") && !error.contains("did you mean"), "{error}");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for setting in ["train", "=1", "train.=1", "seed.x=1", "train.batch_rows=many"] {
            assert!(Job::from_toml("seed = 1", &[setting.into()]).is_err(), "{setting}");
        }
    }
}
