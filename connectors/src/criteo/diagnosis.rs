//! Says what is wrong with a line that the parser of Criteo text refused.

use forebay_actors::counted;

use super::schema::{COLUMNS, INTEGERS, column_name};
use crate::text::bad_row::{BadRow, MAX_LINE, Reason, shown, too_long};
use crate::text::sparse::sparse_row;

/// What is wrong with a line that the parser refused; the line comes without its `\n`.
pub(crate) fn diagnose(line: &[u8]) -> BadRow {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let bad = |reason, column: Option<usize>, found: String, expected: &str| {
        let column = column.map(|at| (at, column_name(at)));
        BadRow { column, ..BadRow::new(reason, found, expected) }
    };
    if line.len() > MAX_LINE {
        return too_long("a row of 40 fields");
    }
    let fields: Vec<&[u8]> = line.split(|&b| b == b'\t').take(COLUMNS + 1).collect();
    let count = memchr::memchr_iter(b'\t', line).count() + 1;
    if count != COLUMNS {
        if let Some(sparse) = sparse_row(line) {
            return sparse;
        }
        let reason = if count < COLUMNS { Reason::TooFewFields } else { Reason::TooManyFields };
        let commas = memchr::memchr_iter(b',', line).count();
        let other_delimiter =
            [";", "|"].into_iter().find(|&other| memchr::memmem::find(line, other.as_bytes()).is_some());
        let csv_of;
        let (expected, other_format) = if count == 1 && memchr::memmem::find(line, b"::").is_some() {
            (
                "40 fields, tab-separated (the line has \"::\", and a delimiter is one character: replace it, for instance by `sed 's/::/\\t/g'`, \
                 write a header in front, and set data.format to \"csv\" and data.csv.delimiter to \"\\t\")",
                true,
            )
        } else if count == 1 && commas > 0 {
            (
                "40 fields, tab-separated (the line has commas: set data.format to \"csv\" to read CSV with a header)",
                true,
            )
        } else if let Some(other) = other_delimiter.filter(|_| count == 1) {
            csv_of = format!(
                "40 fields, tab-separated (the line has {other:?}: set data.format to \"csv\" and data.csv.delimiter to {other:?} to read CSV \
                 with a header)"
            );
            (&*csv_of, true)
        } else if !matches!(fields[0], b"" | b"0" | b"1")
            && !fields.iter().any(|f| f.first().is_some_and(u8::is_ascii_digit))
        {
            ("40 fields, tab-separated (a header? set data.format to \"csv\" and data.csv.delimiter to \"\\t\")", true)
        } else if count + 1 == COLUMNS && !matches!(fields[0], b"0" | b"1") {
            let test_set = "40 fields, tab-separated (Criteo's own test set has no labels: it can be predicted, not trained or evaluated on)";
            (test_set, false)
        } else {
            (
                "40 fields, tab-separated: a label, 13 integers, 26 hex categories (if it is not Criteo text, set data.format)",
                false,
            )
        };
        return BadRow { other_format, ..bad(reason, None, counted(count, "field"), expected) };
    }
    for (at, field) in fields.into_iter().enumerate() {
        let (fine, reason, expected) = match at {
            0 if field.is_empty() => (false, Reason::NoLabel, "0 or 1"),
            0 => (matches!(field, b"0" | b"1"), Reason::BadLabel, "0 or 1"),
            1..=INTEGERS => (is_integer(field), Reason::NotAnInteger, "nothing or an integer of 32 bits"),
            _ => (
                field.len() <= 8 && field.iter().all(u8::is_ascii_hexdigit),
                Reason::NotHex,
                "nothing or up to eight hex digits",
            ),
        };
        if !fine {
            let other_format = at == 0 && field.first().is_some_and(u8::is_ascii_alphabetic);
            let expected = match other_format {
                true => "0 or 1 (a header? set data.format to \"csv\" and data.csv.delimiter to \"\\t\")",
                false => expected,
            };
            let reason = if std::str::from_utf8(field).is_err() { Reason::InvalidUtf8 } else { reason };
            return BadRow { other_format, ..bad(reason, Some(at), shown(field), expected) };
        }
    }
    // Not reachable as long as parser and diagnosis agree, which a property test checks.
    bad(Reason::TooFewFields, None, shown(line), "a row that can be read")
}

/// The same where lines without a label are rows, too. The number of a column counts the label.
pub(crate) fn diagnose_unlabelled(line: &[u8]) -> BadRow {
    match memchr::memchr_iter(b'\t', line).count() + 2 == COLUMNS {
        true => diagnose(&[b"0\t", line].concat()),
        false => diagnose(line),
    }
}

fn is_integer(field: &[u8]) -> bool {
    let digits = field.strip_prefix(b"-").unwrap_or(field);
    field.is_empty()
        || ((1..=10).contains(&digits.len())
            && digits.iter().all(u8::is_ascii_digit)
            && std::str::from_utf8(field).is_ok_and(|s| s.parse::<i32>().is_ok()))
}

#[cfg(test)]
mod tests {
    use forebay_actors::FaultKind;
    use proptest::prelude::*;

    use super::super::batch_builder::BatchBuilder;
    use super::super::schema::Categories;
    use super::*;
    use crate::text::format::LineParser;

    fn row() -> Vec<String> {
        (0..COLUMNS).map(|at| if at == 0 { "1".into() } else { at.to_string() }).collect()
    }

    fn said(change: impl FnOnce(&mut Vec<String>)) -> String {
        let mut fields = row();
        change(&mut fields);
        diagnose(fields.join("\t").as_bytes()).to_string()
    }

    #[test]
    fn each_defect_is_named_with_column_found_and_expected() {
        assert!(said(|f| f.truncate(12)).contains("too few fields: found 12 fields, expected 40"));
        assert!(said(|f| f.truncate(1)).contains("too few fields: found 1 field, expected 40"));
        assert!(said(|f| f.push("0".into())).contains("too many fields: found 41 fields"));
        assert!(
            said(|f| f[0] = "2".into())
                .contains("column 1 (label): label is neither 0 nor 1: found `2`, expected 0 or 1")
        );
        assert!(said(|f| f[0].clear()).contains("column 1 (label): label is missing: found ``, expected 0 or 1"));
        assert!(said(|f| f[3] = "x7".into()).contains("column 4 (I3): not an integer: found `x7`"));
        assert!(said(|f| f[3] = "2147483648".into()).contains("not an integer"));
        assert!(said(|f| f[14] = "68fd1e6g".into()).contains("column 15 (C1): not a hex category: found `68fd1e6g`"));
        assert!(said(|f| f[39] = "123456789".into()).contains("column 40 (C26): not a hex category"));
        assert!(
            said(|f| {
                f.remove(0);
                f[0] = "77".into();
            })
            .contains("test set")
        );
        let mut line = row().join("\t").into_bytes();
        *line.last_mut().unwrap() = 0xff;
        assert!(diagnose(&line).to_string().contains("invalid UTF-8"));
        assert_eq!(diagnose(&vec![b'1'; MAX_LINE + 1]).reason, Reason::TooLong);
    }

    #[test]
    fn a_line_that_looks_like_csv_is_of_another_format() {
        let header = (0..COLUMNS).map(column_name).collect::<Vec<_>>().join("\t");
        for line in ["label,I1,C1", "label\tI1\tC1", "1;2;x", "1|2", "1::1193::5::978300760", &header] {
            let bad = diagnose(line.as_bytes());
            assert!(bad.kind() == FaultKind::OtherFormat && bad.expected.contains("set data.format"), "{bad}");
        }
        assert_eq!(diagnose(b"1\t2\t3").kind(), FaultKind::BadData);
        assert!(diagnose(b"1::Jumanji, (1995)::Drama|War").expected.contains("sed 's/::/\\t/g'"));
        assert!(diagnose(b"1;2|x").expected.contains("data.csv.delimiter to \";\""));
        let sparse = diagnose(b"-1 3:1 7:1");
        assert!(sparse.kind() == FaultKind::BadData && sparse.to_string().contains("libsvm, libFM"), "{sparse}");
        let mut fields = row();
        fields[3] = "x7".into();
        assert_eq!(diagnose(fields.join("\t").as_bytes()).kind(), FaultKind::OtherType);
    }

    proptest! {
        #[test]
        fn parser_and_diagnosis_agree_on_what_is_bad(
            at in 0..COLUMNS, field in prop::collection::vec(prop::sample::select(b"0123456789abcF-+ \tg\r\xc3\xa4".to_vec()), 0..12)
        ) {
            let mut fields: Vec<Vec<u8>> = row().into_iter().map(String::into_bytes).collect();
            fields[at] = field;
            let line = fields.join(&b'\t');
            let mut text = line.clone();
            text.push(b'\n');
            let good = BatchBuilder::new(Categories::Int, 1).push(&text, 0).is_some();
            let bad = diagnose(&line);
            prop_assert_eq!(good, bad.expected == "a row that can be read", "{}", bad);
        }
    }
}
