//! Record batches as CSV text (RFC 4180): fields with a comma, a quote or a line end are quoted, a missing value is empty.

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::csv::WriterBuilder;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use forebay_actors::Fault;
use std::sync::Arc;

const UTC: &str = "+00:00";

/// Appends the rows to `text`, after a line with the names of the columns if `header` is true. Lists and structs are written as
/// Arrow displays them: `[1, 2]`, with `null` for a missing value within.
///
/// # Errors
/// A user fault if a column has a type that has no text.
pub fn to_csv(batch: &RecordBatch, header: bool, text: &mut Vec<u8>) -> Result<(), Fault> {
    let cannot = |e| Fault::user("rows of this shape cannot be written as CSV").because(e);
    let (fields, columns): (Vec<_>, Vec<_>) = batch
        .schema_ref()
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, column)| {
            let cannot = |e| Fault::user(format!("column `{}` cannot be written as CSV", field.name())).because(e);
            flat(field, column).map_err(cannot)
        })
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .unzip();
    let flat = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(cannot)?;
    WriterBuilder::new().with_header(header).build(text).write(&flat).map_err(cannot)
}

/// A column that CSV can hold: lists and structs become text, and timestamps of a time zone become UTC.
fn flat(field: &FieldRef, column: &ArrayRef) -> Result<(FieldRef, ArrayRef), ArrowError> {
    let utc = in_utc(column.data_type());
    if utc != *column.data_type() {
        return flat(&Arc::new(field.as_ref().clone().with_data_type(utc.clone())), &cast(column, &utc)?);
    }
    if !column.data_type().is_nested() {
        return Ok((Arc::clone(field), Arc::clone(column)));
    }
    let options = FormatOptions::default().with_null("null");
    let formatter = ArrayFormatter::try_new(column, &options)?;
    let text: StringArray = (0..column.len())
        .map(|row| column.is_valid(row).then(|| formatter.value(row).try_to_string()).transpose())
        .collect::<Result<_, _>>()?;
    Ok((Arc::new(Field::new(field.name(), DataType::Utf8, true)), Arc::new(text)))
}

/// The type with timestamps of UTC instead of a named time zone: the moment is the same, and no database of time zones is needed.
fn in_utc(kind: &DataType) -> DataType {
    let item =
        |item: &FieldRef| -> FieldRef { Arc::new(item.as_ref().clone().with_data_type(in_utc(item.data_type()))) };
    match kind {
        DataType::Timestamp(unit, Some(zone)) if !zone.starts_with(['+', '-']) => {
            DataType::Timestamp(*unit, Some(UTC.into()))
        }
        DataType::List(of) => DataType::List(item(of)),
        DataType::LargeList(of) => DataType::LargeList(item(of)),
        DataType::FixedSizeList(of, n) => DataType::FixedSizeList(item(of), *n),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(item).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, Float32Array, Int64Array, ListArray, TimestampMillisecondArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn text_is_quoted_where_it_must_be_and_lists_are_text() {
        let names = StringArray::from(vec![Some("a,b"), Some("say \"x\""), None]);
        let lists =
            ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None, Some(2)]), Some(vec![]), None]);
        let batch = RecordBatch::try_from_iter([
            ("user, id", Arc::new(Int64Array::from(vec![Some(-1), None, Some(3)])) as ArrayRef),
            ("name", Arc::new(names)),
            ("list", Arc::new(lists)),
            ("score", Arc::new(Float32Array::from(vec![Some(0.25), Some(1e-9), None]))),
        ])
        .unwrap();
        let mut text = Vec::new();
        to_csv(&batch, true, &mut text).unwrap();
        to_csv(&batch.slice(2, 1), false, &mut text).unwrap();
        let expected =
            "\"user, id\",name,list,score\n-1,\"a,b\",\"[1, null, 2]\",0.25\n,\"say \"\"x\"\"\",[],1e-9\n3,,,\n3,,,\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn timestamps_of_a_named_time_zone_are_those_of_utc() {
        let times = TimestampMillisecondArray::from(vec![Some(1_700_000_000_000), None]).with_timezone("Europe/Oslo");
        let list = ListArray::new(
            Arc::new(Field::new_list_field(times.data_type().clone(), true)),
            arrow::buffer::OffsetBuffer::from_lengths([1, 1]),
            Arc::new(times.clone()),
            None,
        );
        let batch = RecordBatch::try_from_iter([("at", Arc::new(times) as ArrayRef), ("all", Arc::new(list))]).unwrap();
        let mut text = Vec::new();
        to_csv(&batch, true, &mut text).unwrap();
        let expected = "at,all\n2023-11-14T22:13:20Z,[2023-11-14T22:13:20Z]\n,[null]\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
