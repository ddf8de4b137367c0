//! The names of all fields of a job, from `template.toml`.

/// The lines of the job with every field, each with the names of its section.
pub(super) fn template() -> impl Iterator<Item = (Vec<&'static str>, &'static str)> {
    let mut section = Vec::new();
    include_str!("template.toml").lines().map(move |line| {
        if let Some(path) = line.strip_prefix('[') {
            section = path.trim_end_matches(']').split('.').collect();
        }
        (section.clone(), line)
    })
}
