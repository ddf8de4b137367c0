//! Recognizes lines of libsvm, libFM and libffm, which Forebay does not read.

use super::bad_row::{BadRow, Reason, shown};

/// What to do about a line such as `1 3:0.5 101:1` (`label index:value ...`, libsvm and libFM) or `1 0:3:1 1:101:0.5` (`label
/// field:index:value ...`, libffm). `None`: it is no such line. Its features may be separated by spaces or tabs.
pub(crate) fn sparse_text(line: &[u8]) -> Option<&'static str> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    if !is_number(std::str::from_utf8(words.next()?).ok()?) {
        return None;
    }
    let mut parts_of_all = None;
    for word in words {
        let word = std::str::from_utf8(word).ok()?;
        let parts: Vec<&str> = word.split(':').collect();
        let (value, indices) = parts.split_last()?;
        let is_query = parts.first() == Some(&"qid");
        if is_query {
            continue;
        }
        let fine = indices.iter().all(|index| index.parse::<u64>().is_ok()) && is_number(value);
        if !fine || *parts_of_all.get_or_insert(parts.len()) != parts.len() {
            return None;
        }
    }
    match parts_of_all? {
        2 => Some(
            "columns: Forebay does not read `label index:value ...` (libsvm, libFM). Write JSON lines with a key for each field if all rows \
             have the same fields, such as {\"label\": 1, \"f0\": 3, \"f1\": 101} with slots = [{ column = \"f0..f1\", kind = \"int\" }], or \
             else with two lists, such as {\"label\": 1, \"index\": [3, 101], \"value\": [0.5, 1]} with slots = [{ column = \"index\", kind = \
             \"int\", weights = \"value\" }]",
        ),
        3 => Some(
            "columns: Forebay does not read `label field:index:value ...` (libffm). Write JSON lines with a key for each field and one for its \
             value, such as {\"label\": 1, \"f0\": 3, \"w0\": 1, \"f1\": 101, \"w1\": 0.5} with slots = [{ column = \"f0..f1\", kind = \"int\", \
             weights = \"w0..w1\" }]",
        ),
        _ => None,
    }
}

/// The bad row of a line of libsvm, libFM or libffm.
pub(crate) fn sparse_row(line: &[u8]) -> Option<BadRow> {
    Some(BadRow::new(Reason::Sparse, shown(line), sparse_text(line)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: the error advised to read such lines as CSV with tabs.
    #[test]
    fn rows_of_libsvm_and_libffm_are_told_from_each_other_and_from_all_else() {
        for (line, words) in [
            ("1 3:0.5 101:1", "libsvm"),
            ("-1 3:1 ", "libsvm"),
            ("0.5\t3:1\t7:-2e-3\r", "libsvm"),
            ("2 qid:7 3:0.5", "libsvm"),
            ("0 0:3:1 1:101:0.5", "libffm"),
        ] {
            let bad = sparse_row(line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
            assert!(bad.expected.contains(words), "{line}: {bad}");
        }
        for line in [
            "",
            "1",
            "1 2 3",
            "x 3:1",
            "1 a:1",
            "1 3:x",
            "1 3:1 0:3:1",
            "1 0:1:2:3",
            "1::1193::5::978300760",
            "2026-11-20 03:04:05",
            "1 qid:7",
        ] {
            assert_eq!(sparse_text(line.as_bytes()), None, "{line}");
        }
    }
}
