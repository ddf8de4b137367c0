//! Blocks of keys and rows as Arrow columns, and back.
//!
//! Buffers are moved into columns, not copied. Columns that came from a peer are checked: an unexpected column is a user fault that says
//! what was found.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, ListArray, PrimitiveArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float32Type, Schema, SchemaRef, UInt64Type};
use arrow::record_batch::RecordBatch;
use forebay_actors::Fault;

/// The name of the column of keys.
pub(crate) const KEY: &str = "key";

/// A column of lists of `dim` values.
pub(crate) fn list_field(name: &str, kind: DataType, dim: usize) -> Field {
    Field::new(name, DataType::FixedSizeList(item(kind), dim as i32), false)
}

pub(crate) fn key_field() -> Field {
    Field::new(KEY, DataType::UInt64, false)
}

fn item(kind: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", kind, false))
}

/// Moves keys into a column.
pub(crate) fn keys_column(keys: Vec<u64>) -> ArrayRef {
    plain_column::<UInt64Type>(keys)
}

/// Moves values into a column.
pub(crate) fn plain_column<T: ArrowPrimitiveType>(values: Vec<T::Native>) -> ArrayRef
where
    PrimitiveArray<T>: From<Vec<T::Native>>,
{
    Arc::new(PrimitiveArray::<T>::from(values))
}

/// Moves `[rows x dim]` values into a column of lists.
pub(crate) fn rows_column<T: ArrowPrimitiveType>(values: Vec<T::Native>, dim: usize) -> Result<ArrayRef, Fault>
where
    PrimitiveArray<T>: From<Vec<T::Native>>,
{
    let values = plain_column::<T>(values);
    let list = FixedSizeListArray::try_new(item(T::DATA_TYPE), dim as i32, values, None);
    Ok(Arc::new(list.map_err(|e| Fault::internal("rows do not make a column").because(e))?))
}

/// Moves values into a column of lists that begin at these places.
pub(crate) fn lists_column<T: ArrowPrimitiveType>(values: Vec<T::Native>, begins: &[i32]) -> Result<ArrayRef, Fault>
where
    PrimitiveArray<T>: From<Vec<T::Native>>,
{
    let begins = OffsetBuffer::new(begins.to_vec().into());
    let list = ListArray::try_new(item(T::DATA_TYPE), begins, plain_column::<T>(values), None);
    Ok(Arc::new(list.map_err(|e| Fault::internal("rows do not make a column").because(e))?))
}

/// A column of lists of any length.
pub(crate) fn lists_field(name: &str, kind: DataType) -> Field {
    Field::new(name, DataType::List(item(kind)), false)
}

/// The values of a column of lists that begin at these places.
pub(crate) fn lists<'a, T: ArrowPrimitiveType>(
    batch: &'a RecordBatch,
    name: &str,
    begins: &[i32],
) -> Result<&'a [T::Native], Fault> {
    let column = column(batch, name)?;
    let expected = || wrong(name, column, &format!("lists of {}, each as long as the rows of its key", T::DATA_TYPE));
    let list = column.as_list_opt::<i32>().ok_or_else(expected)?;
    let values = list.values().as_primitive_opt::<T>().ok_or_else(expected)?;
    let end = begins.last().map_or(0, |end| *end as usize);
    if list.null_count() + values.null_count() > 0 || list.value_offsets() != begins || values.len() != end {
        return Err(expected());
    }
    Ok(values.values())
}

pub(crate) fn batch(fields: Vec<Field>, columns: Vec<ArrayRef>) -> Result<RecordBatch, Fault> {
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    RecordBatch::try_new(schema, columns).map_err(|e| Fault::internal("columns do not make a batch").because(e))
}

pub(crate) fn keys(batch: &RecordBatch) -> Result<&[u64], Fault> {
    plain::<UInt64Type>(batch, KEY)
}

/// The values of a column that is not of lists.
pub(crate) fn plain<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Result<&'a [T::Native], Fault> {
    let column = column(batch, name)?;
    match column.as_primitive_opt::<T>() {
        Some(values) if values.null_count() == 0 => Ok(values.values()),
        Some(_) => Err(Fault::user(format!("the column `{name}` has nulls; every row needs a value"))),
        None => Err(wrong(name, column, &T::DATA_TYPE.to_string())),
    }
}

/// The values, `[rows x dim]`, of a column of lists of `dim`.
pub(crate) fn rows<'a, T: ArrowPrimitiveType>(
    batch: &'a RecordBatch,
    name: &str,
    dim: usize,
) -> Result<&'a [T::Native], Fault> {
    let column = column(batch, name)?;
    let expected = || wrong(name, column, &format!("lists of {dim} {}", T::DATA_TYPE));
    let list = column.as_fixed_size_list_opt().ok_or_else(expected)?;
    let values = list.values().as_primitive_opt::<T>().ok_or_else(expected)?;
    if list.value_length() as usize != dim || values.len() != batch.num_rows() * dim {
        return Err(expected());
    }
    if list.null_count() + values.null_count() > 0 {
        return Err(Fault::user(format!("the column `{name}` has nulls; every row needs {dim} values")));
    }
    Ok(values.values())
}

/// The buffer of the keys, to be used again.
pub(crate) fn reclaim_keys(batch: &RecordBatch) -> Option<arrow::buffer::Buffer> {
    let keys = batch.column_by_name(KEY)?.as_primitive_opt::<UInt64Type>()?;
    Some(keys.values().inner().clone())
}

/// The buffer of f32 rows, to be used again.
pub(crate) fn reclaim_rows(batch: &RecordBatch, name: &str) -> Option<arrow::buffer::Buffer> {
    let column = batch.column_by_name(name)?;
    let lists = column.as_list_opt::<i32>().map(ListArray::values);
    let values = column.as_fixed_size_list_opt().map(FixedSizeListArray::values).or(lists)?;
    Some(values.as_primitive_opt::<Float32Type>()?.values().inner().clone())
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, Fault> {
    batch.column_by_name(name).ok_or_else(|| {
        let schema = batch.schema();
        let found: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        Fault::user(format!("there is no column `{name}` among [{}]", found.join(", ")))
    })
}

fn wrong(name: &str, column: &ArrayRef, expected: &str) -> Fault {
    Fault::user(format!("the column `{name}` is of {}; expected {expected}", column.data_type()))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Float16Type;

    use super::*;

    #[test]
    fn columns_of_another_name_or_type_are_refused() {
        let fields = vec![key_field(), list_field("grad", DataType::Float32, 2)];
        let columns = vec![keys_column(vec![5, 6]), rows_column::<Float32Type>(vec![1.0, 2.0, 3.0, 4.0], 2).unwrap()];
        let good = batch(fields, columns).unwrap();
        assert_eq!(keys(&good).unwrap(), [5, 6]);
        assert_eq!(rows::<Float32Type>(&good, "grad", 2).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        // A slice has its own rows alone.
        assert_eq!(rows::<Float32Type>(&good.slice(1, 1), "grad", 2).unwrap(), [3.0, 4.0]);
        let message = |result: Result<(), Fault>| result.unwrap_err().to_string();
        assert!(message(rows::<Float32Type>(&good, "grad", 3).map(drop)).contains("lists of 3 Float32"));
        assert!(message(rows::<Float16Type>(&good, "grad", 2).map(drop)).contains("lists of 2 Float16"));
        assert!(message(rows::<Float32Type>(&good, "row", 2).map(drop)).contains("`row` among [key, grad]"));
        assert!(message(plain::<Float32Type>(&good, "key").map(drop)).contains("UInt64; expected Float32"));

        let nulls: ArrayRef = Arc::new(PrimitiveArray::<UInt64Type>::from(vec![Some(1), None]));
        let nulls = batch(vec![Field::new(KEY, DataType::UInt64, true)], vec![nulls]).unwrap();
        assert!(message(keys(&nulls).map(drop)).contains("nulls"));
    }
}
