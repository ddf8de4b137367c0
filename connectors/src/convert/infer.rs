//! The types of the columns of CSV and JSON lines, by their first rows: integers, numbers or text.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use forebay_actors::{Fault, Source, StageCx};

use crate::format::{FileColumn, Integers, ValueKind};
use crate::inspect::{OddText, OddTexts};
use crate::rows::Rows;
use crate::text::number::{is_rounded, loses_digits, parse_integer, parse_number, parse_truth, trimmed};

/// A column of text files, with the type that its first values have.
#[derive(Clone, Debug)]
pub struct InferredColumn {
    /// The column.
    pub column: FileColumn,
    /// The one text, beside which all its values are numbers: because of this text the column is text.
    pub odd_text: Option<OddText>,
}

/// What the values of a column were so far.
#[derive(Clone, Debug)]
struct ValuesSeen {
    integers: bool,
    numbers: bool,
    truths: bool,
    any: bool,
    odd_texts: OddTexts,
}

impl Default for ValuesSeen {
    fn default() -> Self {
        Self { integers: true, numbers: true, truths: true, any: false, odd_texts: OddTexts::default() }
    }
}

impl ValuesSeen {
    fn add(&mut self, text: &str) {
        let bytes = trimmed(text.as_bytes());
        if bytes.is_empty() {
            // A missing number or a text of spaces says nothing about the type.
            return;
        }
        self.any = true;
        let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
        let whole = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        let kept = !loses_digits(bytes);
        let integer = whole && kept && parse_integer(bytes).is_some();
        // An infinite number too, such as `1e400`, and NaN, as in `inspect`: the reader of the numbers decides about it.
        let parses = parse_number(bytes).is_some();
        let number = !whole && kept && parses;
        let truth = parse_truth(bytes).is_some();
        if (whole || parses) && !(integer || number) {
            self.odd_texts.settle();
        } else if !self.odd_texts.is_settled() {
            self.odd_texts.add(text.trim(), (integer || number) && !truth);
        }
        self.integers &= integer;
        self.numbers &= integer && !is_rounded(bytes) || number;
        self.truths &= truth;
    }

    fn kind(&self) -> ValueKind {
        match self {
            Self { any: false, .. } => ValueKind::Text,
            Self { integers: true, .. } => ValueKind::Integer,
            Self { numbers: true, .. } => ValueKind::Number,
            Self { truths: true, .. } => ValueKind::Integer,
            _ => ValueKind::Text,
        }
    }
}

/// Columns of integers, of numbers or of text, by the first `rows` rows of a source that reads all of them as text. A column without a
/// value there is text. So is a column with integers that begin with 0 or have more than 64 bits, or with fractions and integers that a
/// floating-point number rounds. A column of only `true` and `false`, in any case, becomes integers, 1 and 0. Later values that would lose
/// digits as numbers are refused ([`Integers::AsWritten`]). `nan` is a number.
///
/// # Errors
/// The source's fault, or an internal one if it does not give texts.
pub async fn infer_columns<S: Source<Out = Rows>>(source: &mut S, rows: u64) -> Result<Vec<InferredColumn>, Fault> {
    let cx = StageCx::detached("infer");
    source.open(&cx).await?;
    let (mut columns, mut read) = (Vec::<(String, ValuesSeen)>::new(), 0);
    while read < rows {
        let Some(next) = source.next(&cx).await? else { break };
        let batch = next.batch;
        if columns.is_empty() {
            columns =
                batch.schema_ref().fields().iter().map(|field| (field.name().clone(), ValuesSeen::default())).collect();
        }
        let left = usize::try_from(rows - read).unwrap_or(usize::MAX).min(batch.num_rows());
        for ((_, seen), column) in columns.iter_mut().zip(batch.slice(0, left).columns()) {
            add(seen, column)?;
        }
        read += left as u64;
    }
    let column = |(name, mut seen): (String, ValuesSeen)| {
        let kind = seen.kind();
        let odd_text = (kind == ValueKind::Text).then(|| seen.odd_texts.finish()).flatten();
        InferredColumn { column: FileColumn::new(name, kind).integers(Integers::AsWritten), odd_text }
    };
    Ok(columns.into_iter().map(column).collect())
}

fn add(seen: &mut ValuesSeen, column: &ArrayRef) -> Result<(), Fault> {
    match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().iter().flatten().for_each(|text| seen.add(text)),
        DataType::List(_) => {
            let lists = column.as_list::<i32>();
            let (from, to) = (lists.value_offsets()[0], lists.value_offsets()[lists.len()]);
            add(seen, &lists.values().slice(from as usize, (to - from) as usize))?;
        }
        other => return Err(Fault::internal(format!("a column of {other} where all are read as text"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_would_change_as_numbers_are_text() {
        for (values, kind) in [
            (&["1", "-20", "0"][..], ValueKind::Integer),
            (&["1", "2.5", "-1e-3"], ValueKind::Number),
            (&["1", "x"], ValueKind::Text),
            (&["007", "12"], ValueKind::Text),
            (&["00.5"], ValueKind::Text),
            (&["0.5", "0"], ValueKind::Number),
            (&["9223372036854775807"], ValueKind::Integer),
            (&["9223372036854775808", "1"], ValueKind::Text),
            (&["1.5", "9007199254740992"], ValueKind::Number),
            (&["1.5", "9007199254740993"], ValueKind::Text),
            (&["nan", "1"], ValueKind::Number),
            (&["NaN", "x"], ValueKind::Text),
            (&["NA", "1"], ValueKind::Text),
            (&["1e400", "2"], ValueKind::Number),
            (&["0.5", "-inf"], ValueKind::Number),
            (&["+1"], ValueKind::Number),
            (&["-"], ValueKind::Text),
            (&[], ValueKind::Text),
            (&["true", "false"], ValueKind::Integer),
            (&["True", " FALSE"], ValueKind::Integer),
            (&["true", "1"], ValueKind::Text),
            (&["false", "no"], ValueKind::Text),
        ] {
            let mut seen = ValuesSeen::default();
            values.iter().for_each(|value| seen.add(value));
            assert_eq!(seen.kind(), kind, "{values:?}");
        }
    }

    #[test]
    fn the_one_text_beside_numbers_is_told() {
        let odd = |values: &[&str]| {
            let mut seen = ValuesSeen::default();
            values.iter().for_each(|value| seen.add(value));
            seen.odd_texts.finish().map(|odd| (odd.values, odd.text))
        };
        assert_eq!(odd(&["1", "NA", "2.5", "nan", " NA", ""]), Some((2, "NA".to_owned())));
        for values in [&["1", "x", "y"][..], &["x"], &["1", "2"], &["10115", "07001", "NA"], &["true", "false"]] {
            assert_eq!(odd(values), None, "{values:?}");
        }
    }
}
