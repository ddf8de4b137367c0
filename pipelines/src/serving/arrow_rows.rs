//! Selects the columns of the model from a record batch that a client sent.

use std::sync::Arc;

use arrow::array::{ArrayRef, ListArray, RecordBatch};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{filter, is_not_null};
use arrow::datatypes::{DataType, Field};
use forebay_actors::Fault;
use forebay_base::nearest;

use super::json_cell::JsonCell;
use super::json_column;
use super::request_size::RequestSize;
use super::serving_columns::{ServingColumn, ServingColumns};

/// The columns of the model in `batch`; `None` if it has no rows. Other columns of the batch are left out.
///
/// # Errors
/// A user fault: a column that is not there, with the nearest one, or is there twice, or more rows or values than a request may have.
pub(super) fn select(columns: &ServingColumns, batch: &RecordBatch) -> Result<Option<RecordBatch>, Fault> {
    let (rows, most) = (batch.num_rows(), columns.most_rows);
    if rows == 0 {
        return Ok(None);
    }
    if rows > most {
        return Err(Fault::user(format!("{rows} rows in one record batch, at most {most}: split them over several")));
    }
    let (mut size, mut sent) = (RequestSize::default(), Vec::with_capacity(columns.columns.len()));
    for column in &columns.columns {
        let array = array(column, batch)?;
        size.add(RequestSize::of_array(&*array), 1);
        sent.push((column, array));
    }
    size.check()?;
    let selected = sent.into_iter().map(|(column, array)| {
        let array = if column.lists && !is_list(&array) { lists_of_one(&array)? } else { array };
        Ok((column.name.as_str(), array, true))
    });
    RecordBatch::try_from_iter_with_nullable(selected.collect::<Result<Vec<_>, Fault>>()?)
        .map(Some)
        .map_err(|e| Fault::internal("the columns of a record batch do not fit together").because(e))
}

/// The column as it was sent, or nulls.
fn array(column: &ServingColumn, batch: &RecordBatch) -> Result<ArrayRef, Fault> {
    let (name, schema) = (column.name.as_str(), batch.schema_ref());
    let mut places = (0..schema.fields().len()).filter(|&at| schema.field(at).name() == name);
    let Some(at) = places.next() else {
        if column.optional {
            return nulls(column, batch.num_rows());
        }
        let near = nearest(name, schema.fields().iter().map(|field| field.name().as_str()));
        let near = near.map_or_else(String::new, |near| format!(" (`{near}` is not a feature of the model)"));
        return Err(Fault::user(format!(
            "the record batch has no column `{name}`{near}: send it, with nulls if its values are missing"
        )));
    };
    if places.next().is_some() {
        return Err(Fault::user(format!("the record batch has two columns `{name}`")));
    }
    let array = batch.column(at);
    match array.data_type() {
        DataType::Null => nulls(column, batch.num_rows()),
        _ => Ok(array.clone()),
    }
}

fn is_list(array: &ArrayRef) -> bool {
    matches!(array.data_type(), DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..))
}

/// Each value as a list of one; null is no list.
fn lists_of_one(array: &ArrayRef) -> Result<ArrayRef, Fault> {
    let cannot = |e| Fault::internal("values cannot be made lists").because(e);
    let there = is_not_null(array).map_err(cannot)?;
    let values = filter(array, &there).map_err(cannot)?;
    let field = Arc::new(Field::new("element", values.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths(there.values().iter().map(usize::from));
    let lists = ListArray::try_new(field, offsets, values, Some(NullBuffer::new(there.values().clone())));
    Ok(Arc::new(lists.map_err(cannot)?))
}

/// A column without values, as the rows of a request that do not have it.
fn nulls(column: &ServingColumn, rows: usize) -> Result<ArrayRef, Fault> {
    json_column::array(&vec![&JsonCell::Absent; rows], column)
        .map_err(|(_, what)| Fault::internal(format!("column `{}` without values is {what}", column.name)))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use arrow::array::{
        Array as _, AsArray as _, FixedSizeListArray, Int64Array, NullArray, RecordBatchOptions, StringArray,
    };
    use arrow::datatypes::{Int64Type, Schema};

    use super::super::serving_columns::MOST_VALUES;
    use super::*;

    fn columns() -> ServingColumns {
        let columns =
            toml::from_str("label = 'y'\ndense = ['count']\nslots = ['city', 'tags', 'late']\noptional = ['late']");
        ServingColumns::new(&columns.unwrap(), &BTreeMap::new(), &BTreeSet::from(["tags".to_owned()]))
    }

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
    }

    fn of(counts: &[i64]) -> ArrayRef {
        Arc::new(Int64Array::from(counts.to_vec()))
    }

    fn cities(n: usize) -> ArrayRef {
        Arc::new(StringArray::from(vec!["oslo"; n]))
    }

    fn lists() -> ArrayRef {
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), Some(2)]), None]))
    }

    #[test]
    fn the_columns_of_the_model_are_found_by_name_in_any_order_and_others_are_left_out() {
        let sent = batch(vec![("tags", lists()), ("y", of(&[0, 1])), ("city", cities(2)), ("count", of(&[7, 8]))]);
        let selected = select(&columns(), &sent).unwrap().unwrap();
        let names: Vec<&str> = selected.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["count", "city", "tags", "late"]);
        assert_eq!(selected["count"].as_primitive::<Int64Type>().values(), &[7, 8]);
        assert_eq!(
            selected["late"].logical_null_count(),
            2,
            "an optional column that is not sent is missing in all rows"
        );
        assert!(select(&columns(), &sent.slice(0, 0)).unwrap().is_none());
    }

    #[test]
    fn a_column_of_nulls_has_the_lists_of_training() {
        let nulls = |rows| Arc::new(NullArray::new(rows));
        let sent = batch(vec![("tags", nulls(2)), ("city", nulls(2)), ("count", of(&[7, 8]))]);
        let selected = select(&columns(), &sent).unwrap().unwrap();
        assert_eq!(selected["tags"].as_list::<i32>().null_count(), 2);
    }

    #[test]
    fn a_single_value_is_a_list_of_one_and_null_is_no_list() {
        let tags: ArrayRef = Arc::new(Int64Array::from(vec![Some(5), None, Some(6)]));
        let sent = batch(vec![("tags", tags), ("city", cities(3)), ("count", of(&[7, 8, 9]))]);
        let selected = select(&columns(), &sent).unwrap().unwrap();
        let lists = selected["tags"].as_list::<i32>();
        let of_row = |row: usize| lists.value(row).as_primitive::<Int64Type>().values().to_vec();
        assert_eq!((of_row(0), lists.is_null(1), of_row(2)), (vec![5], true, vec![6]));
    }

    /// A bug: a message of a few bytes ended the server, because the elements of such lists take no bytes until they are read.
    #[test]
    fn lists_of_nulls_have_at_most_as_many_elements_as_others() {
        let lists = |elements: usize| -> ArrayRef {
            let field = Arc::new(Field::new("element", DataType::Null, true));
            Arc::new(FixedSizeListArray::new(field, elements as i32, Arc::new(NullArray::new(2 * elements)), None))
        };
        let sent = |elements| batch(vec![("tags", lists(elements)), ("city", cities(2)), ("count", of(&[7, 8]))]);
        assert_eq!(select(&columns(), &sent(3)).unwrap().unwrap().num_rows(), 2);
        let said = select(&columns(), &sent(1_000_000_000)).unwrap_err().to_string();
        assert!(said.contains("lists of 2000000000 elements, at most 4194304 in all"), "{said}");
    }

    #[test]
    fn what_is_wrong_is_told_with_the_nearest_name() {
        let said = |sent: &RecordBatch| select(&columns(), sent).unwrap_err().to_string();
        let good = [("tags", lists()), ("city", cities(2)), ("count", of(&[7, 8]))];
        let but = |at: usize, column: (&'static str, ArrayRef)| {
            let mut columns = good.to_vec();
            columns[at] = column;
            batch(columns)
        };
        select(&columns(), &batch(good.to_vec())).unwrap();
        let missing = said(&but(1, ("cty", cities(2))));
        assert!(missing.contains("no column `city` (`cty` is not a feature of the model)"), "{missing}");
        let twice = said(&batch(good.iter().cloned().chain([("count", of(&[1, 2]))]).collect()));
        assert!(twice.contains("two columns `count`"), "{twice}");
        // Rows without columns take no bytes on the wire, so their number must be bounded by itself.
        let many = RecordBatchOptions::new().with_row_count(Some(MOST_VALUES + 1));
        let many = said(&RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &many).unwrap());
        assert!(many.contains("at most 262144: split them over several"), "{many}");
    }
}
