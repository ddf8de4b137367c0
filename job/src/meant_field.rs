//! The field or the value that was probably meant by an unknown name.

use forebay_base::nearest;

use super::template::template;

/// Names that other programs have for fields, and where a job has them.
const OTHER_NAMES: [(&str, &str); 13] = [
    ("batch_size", "train.batch_rows"),
    ("minibatch_size", "train.batch_rows"),
    ("micro_batch_size", "train.batch_rows"),
    ("num_epochs", "data.epochs"),
    ("n_epochs", "data.epochs"),
    ("max_epochs", "data.epochs"),
    ("lr", "train.optimizer = { kind = \"adam\", lr = 0.001 }"),
    ("learning_rate", "train.optimizer = { kind = \"adam\", lr = 0.001 }"),
    ("embedding_size", "model.embedding_dim"),
    ("hidden_units", "model.hidden"),
    ("hidden_layers", "model.hidden"),
    ("features", "columns.slots` and `columns.dense"),
    ("labels", "columns.label"),
];

/// What was meant by the name in "unknown field `a`, expected one of `b`, `c`", in backquotes: the field of that name in another section,
/// or the nearest name.
pub(super) fn meant(message: &str) -> Option<String> {
    let mut names = message.split('`').skip(1).step_by(2);
    let unknown = names.next()?;
    let expected: Vec<&str> = names.collect();
    let near = || nearest(unknown, expected.iter().copied()).map(|name| format!("`{name}`"));
    if message.starts_with("unknown variant") {
        return near();
    }
    if !message.starts_with("unknown field") {
        return None;
    }
    let of_section = in_section(&expected);
    let elsewhere = || of_section.then(|| in_other_section(unknown)).flatten();
    elsewhere().or_else(near)
}

/// The field of this name in any section, or the field that other programs call so.
fn in_other_section(unknown: &str) -> Option<String> {
    /// More sections than these would be a guess.
    const MOST: usize = 3;
    if let Some((_, field)) = OTHER_NAMES.iter().find(|(name, _)| *name == unknown) {
        return Some(format!("`{field}`"));
    }
    let of_name = fields().into_iter().filter(|path| path.last() == Some(&unknown));
    let paths: Vec<String> = of_name.map(|path| format!("`{}`", path.join("."))).collect();
    (1..=MOST).contains(&paths.len()).then(|| paths.join(" or "))
}

/// Whether these are names of fields of one section, and not of a table in a list or of an optimizer.
fn in_section(names: &[&str]) -> bool {
    let fields = fields();
    let has = |section: &[&str], name: &str| {
        fields.iter().any(|path| path.split_last().is_some_and(|(last, of)| of == section && *last == name))
    };
    let sections = fields.iter().map(|path| &path[..path.len() - 1]);
    sections.into_iter().any(|section| names.iter().all(|name| has(section, name)))
}

/// The paths of all fields and sections.
fn fields() -> Vec<Vec<&'static str>> {
    let path = |(section, line): (Vec<&'static str>, &'static str)| match line.trim_start_matches('#').split_once(" =")
    {
        _ if line.starts_with('[') => Some(section),
        Some((key, _)) if !key.contains(' ') => Some([section, vec![key]].concat()),
        _ => None,
    };
    template().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use crate::Job;

    #[test]
    fn a_field_of_another_section_or_of_another_program_is_named_where_it_is() {
        for (text, meant) in [
            ("[train]\nbatch_size = 8", "`train.batch_rows`"),
            ("batch_size = 8", "`train.batch_rows`"),
            ("[optimizer]\nkind = 'adam'", "`train.optimizer`"),
            ("optimizer = 'adam'", "`train.optimizer`"),
            ("epochs = 3", "`data.epochs`"),
            ("[train]\nepochs = 3", "`data.epochs`"),
            ("num_epochs = 3", "`data.epochs`"),
            ("[train]\nlr = 0.1", "`train.optimizer = { kind = \"adam\", lr = 0.001 }`"),
            ("[model]\nslots = []", "`columns.slots`"),
            ("[links]\nparse = 1", "`pipeline.links`"),
            ("[data]\ncheckpoint = 1", "`checkpoint`"),
            ("[table]\nkeep = 1", "`evaluation.keep` or `checkpoint.keep`"),
            // The nearest name of the section, as before.
            ("[train]\nbatch_row = 8", "`batch_rows`"),
            ("[columns]\nslots = [{ column = 'x', bucket = 3 }]", "`buckets`"),
        ] {
            let said = Job::from_toml(text, &[]).unwrap_err().to_string();
            assert!(said.ends_with(&format!("did you mean {meant}?")), "{text}: {said}");
        }
        let said = Job::with_settings("", &["train.batch_size=8"]).unwrap_err().to_string();
        assert!(said.contains("did you mean `train.batch_rows`?"), "{said}");
    }

    #[test]
    fn a_name_in_a_table_of_a_list_or_in_an_optimizer_is_not_looked_for_elsewhere() {
        for text in
            ["[train]\noptimizer = { kind = 'adam', epochs = 3 }", "columns.slots = [{ column = 'x', staleness = 1 }]"]
        {
            let said = Job::from_toml(text, &[]).unwrap_err().to_string();
            assert!(said.contains("unknown field") && !said.contains("did you mean"), "{said}");
        }
    }
}
