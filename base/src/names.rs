//! The name that was probably meant, for error messages.

/// The name that is nearest to `wrong`: it may differ in case, and in at most a third of its letters (Damerau and
/// Levenshtein's distance). `None` if no name is that near.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = wrong.to_lowercase();
    let most = |name: &str| name.chars().count().min(lower.chars().count()) / 3;
    names
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= most(name))
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_differs_in_case_or_in_few_letters() {
        let names = ["label", "userId", "day", "hour"];
        assert_eq!(nearest("userid", names), Some("userId"));
        assert_eq!(nearest("lable", names), Some("label"));
        assert_eq!(nearest("labell", names), Some("label"));
        assert_eq!(nearest("dya", names), Some("day"));
    }

    #[test]
    fn numbered_columns_are_not_near_each_other() {
        assert_eq!(nearest("C1", ["C2", "C3"]), None);
        assert_eq!(nearest("C1", ["label", "day"]), None);
    }
}
