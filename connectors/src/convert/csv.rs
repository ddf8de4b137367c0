//! Record batches as CSV text (RFC 4180): fields with a comma, a quote or a line end are quoted, a missing value is empty.

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::csv::WriterBuilder;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use forebay_actors::Fault;
use std::sync::Arc;

/// Appends the rows to `text`, after a line with the names of the columns if `header` is true. Lists and structs are written as
/// Arrow displays them: `[1, 2]`.
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
        .map(|(field, column)| flat(field, column))
        .collect::<Result<Vec<_>, _>>()
        .map_err(cannot)?
        .into_iter()
        .unzip();
    let flat = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(cannot)?;
    WriterBuilder::new().with_header(header).build(text).write(&flat).map_err(cannot)
}

/// A column that CSV can hold: lists and structs become text.
fn flat(field: &FieldRef, column: &ArrayRef) -> Result<(FieldRef, ArrayRef), arrow::error::ArrowError> {
    if !column.data_type().is_nested() {
        return Ok((Arc::clone(field), Arc::clone(column)));
    }
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(column, &options)?;
    let text: StringArray = (0..column.len())
        .map(|row| column.is_valid(row).then(|| formatter.value(row).try_to_string()).transpose())
        .collect::<Result<_, _>>()?;
    Ok((Arc::new(Field::new(field.name(), DataType::Utf8, true)), Arc::new(text)))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float32Array, Int64Array, ListArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn text_is_quoted_where_it_must_be_and_lists_are_text() {
        let names = StringArray::from(vec![Some("a,b"), Some("say \"x\""), None]);
        let lists =
            ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), Some(2)]), Some(vec![]), None]);
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
            "\"user, id\",name,list,score\n-1,\"a,b\",\"[1, 2]\",0.25\n,\"say \"\"x\"\"\",[],1e-9\n3,,,\n3,,,\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
