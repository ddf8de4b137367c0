//! Names in messages: short lists, and the name that was probably meant.

/// The first `most` items, and how many more there are: `label, I1, I2 and 37 more`.
pub fn listed<T: AsRef<str>>(items: impl IntoIterator<Item = T>, most: usize) -> String {
    let mut text = String::new();
    let mut items = items.into_iter();
    for item in items.by_ref().take(most) {
        text += if text.is_empty() { "" } else { ", " };
        text += item.as_ref();
    }
    match items.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// The name that is nearest to `wrong` (Damerau and Levenshtein's distance): it may differ in case, and in at most a third of
/// its letters, or `wrong` is one of its words, which is nearer: `dcn` for `dcn_v2`, not `din`. `None` if no name is that near.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = wrong.to_lowercase();
    let most = |name: &str| name.chars().count().min(lower.chars().count()) / 3;
    let is_word_of = |name: &str| !lower.is_empty() && name.to_lowercase().split('_').any(|word| word == lower);
    names
        .into_iter()
        .map(|name| (!is_word_of(name), strsim::damerau_levenshtein(&lower, &name.to_lowercase()), name))
        .filter(|(other, distance, name)| *distance <= most(name) || !other)
        .min()
        .map(|(_, _, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_first_items_and_the_number_of_the_others() {
        let list = |most: usize| listed(["a", "b", "c"], most);
        assert_eq!([list(3), list(2), list(1)], ["a, b, c", "a, b and 1 more", "a and 2 more"]);
        assert_eq!(listed(Vec::<String>::new(), 3), "");
    }

    #[test]
    fn the_nearest_name_differs_in_case_or_in_few_letters() {
        let names = ["label", "userId", "day", "hour"];
        assert_eq!(nearest("userid", names), Some("userId"));
        assert_eq!(nearest("lable", names), Some("label"));
        assert_eq!(nearest("labell", names), Some("label"));
        assert_eq!(nearest("dya", names), Some("day"));
    }

    #[test]
    fn one_word_of_a_name_is_enough() {
        let kinds = ["lr", "fm", "wide_deep", "deep_fm", "dcn_v2", "ctr_dnn", "din"];
        for (wrong, right) in [
            ("dcn", "dcn_v2"),
            ("DNN", "ctr_dnn"),
            ("wide", "wide_deep"),
            ("deepfm", "deep_fm"),
            ("DeepFM", "deep_fm"),
            ("dcnv2", "dcn_v2"),
            ("DCN-v2", "dcn_v2"),
            ("widedeep", "wide_deep"),
            ("wide&deep", "wide_deep"),
        ] {
            assert_eq!(nearest(wrong, kinds), Some(right), "{wrong}");
        }
        assert_eq!(nearest("d", kinds), None);
        assert_eq!(nearest("", ["_id", "a__b"]), None);
    }

    #[test]
    fn numbered_columns_are_not_near_each_other() {
        assert_eq!(nearest("C1", ["C2", "C3"]), None);
        assert_eq!(nearest("C1", ["label", "day"]), None);
    }
}
