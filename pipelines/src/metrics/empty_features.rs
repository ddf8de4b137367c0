//! A warning about features without any value: they are the same in all rows, so a model learns nothing from them. Usually the rows were
//! written without the column, or the job has another name for it.

use forebay_base::listed;

/// A job may have thousands of columns.
const SHOWN: usize = 10;

/// Warns of the features `names` of the field `field`, if there are any. `rows` says in which rows they have no value.
pub(crate) fn warn(field: &str, names: &[String], rows: &str) {
    if let Some(text) = said(field, names, rows) {
        tracing::warn!("{text}");
    }
}

fn said(field: &str, names: &[String], rows: &str) -> Option<String> {
    let shown = listed(names.iter().map(|name| format!("`{name}`")), SHOWN);
    (!names.is_empty()).then(|| {
        format!(
            "{field}: no row of {rows} has a value of {shown}, so the model learns nothing there: `forebay data inspect` prints how \
             often each column is missing"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_without_a_value_are_named_in_one_line() {
        let said = |names: &[&str]| {
            said("columns.slots", &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), "9")
        };
        assert_eq!(said(&[]), None);
        assert!(said(&["a", "b"]).unwrap().starts_with("columns.slots: no row of 9 has a value of `a`, `b`, so"));
        assert!(said(&["a"; 12]).unwrap().contains("`a` and 2 more, so"));
    }
}
