//! Names of columns in messages: lists that do not flood a terminal, and the name that was probably meant.
//!
//! Comes in: names. Goes out: text. Nothing blocks.

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

/// `, did you mean `day`?`, or nothing if no name is near: one that differs in case only, or in a few letters.
pub(crate) fn nearest<'a>(wrong: &str, there: impl IntoIterator<Item = &'a str>) -> String {
    let lower = wrong.to_lowercase();
    there
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= name.chars().count().min(lower.chars().count()) / 3)
        .min()
        .map_or_else(String::new, |(_, name)| format!(", did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_one_that_differs_in_case_or_little() {
        let there = ["label", "userId", "day", "hour"];
        assert_eq!(nearest("userid", there), ", did you mean `userId`?");
        assert_eq!(nearest("lable", there), ", did you mean `label`?");
        assert_eq!(nearest("labell", there), ", did you mean `label`?");
        assert_eq!(nearest("dya", there), ", did you mean `day`?");
        assert_eq!(nearest("C1", there), "");
        assert_eq!(nearest("C1", ["C2", "C3"]), "");
    }

    #[test]
    fn long_lists_are_cut() {
        let many: Vec<String> = (0..60).map(|i| format!("C{i}")).collect();
        let text = listed(many.iter().map(String::as_str));
        assert!(text.starts_with("C0, C1, ") && text.ends_with("C49 and 10 more"), "{text}");
        assert_eq!(listed(["a", "b"]), "a, b");
    }
}
