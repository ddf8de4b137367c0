//! Names of columns in messages: lists that do not flood a terminal, and the name that was probably meant.

/// `label, I1, I2 and 37 more`.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 50;
    let mut names = names.into_iter();
    let mut text = names.by_ref().take(SHOWN).collect::<Vec<_>>().join(", ");
    match names.count() {
        0 => {}
        more => text += &format!(" and {more} more"),
    }
    text
}

/// ``no column `x` ``: every message about a column that a file lacks has it, so that [`FileSource`](crate::FileSource) finds the column.
pub(crate) fn no_column(column: &str) -> String {
    format!("no column `{column}`")
}

/// `, did you mean `day`?`, or nothing if no name is near.
pub(crate) fn did_you_mean<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    forebay_base::nearest(wrong, names).map_or_else(String::new, |name| format!(", did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let many: Vec<String> = (0..60).map(|i| format!("C{i}")).collect();
        let text = listed(many.iter().map(String::as_str));
        assert!(text.starts_with("C0, C1, ") && text.ends_with("C49 and 10 more"), "{text}");
        assert_eq!(listed(["a", "b"]), "a, b");
    }
}
