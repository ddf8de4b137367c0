//! Types that Parquet lacks, and the types that replace them, so that other readers see moments and days instead of bare integers.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, AsArray, PrimitiveArray, make_array};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Date32Type, Date64Type, Field, FieldRef, IntervalUnit, Schema, TimeUnit};
use arrow::error::ArrowError;
use arrow::temporal_conversions::MILLISECONDS_IN_DAY;
use arrow::util::display::FormatOptions;
use forebay_actors::Fault;

use crate::nested::fields_within;

/// The type that a column is written as: Parquet counts moments and times of day in milliseconds at the coarsest, and days in 32 bits.
pub(super) fn written_as(kind: &DataType) -> DataType {
    let item = |item: &FieldRef| -> FieldRef { Arc::new(field_as_written(item)) };
    match kind {
        DataType::Timestamp(TimeUnit::Second, zone) => DataType::Timestamp(TimeUnit::Millisecond, zone.clone()),
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Date64 => DataType::Date32,
        DataType::Dictionary(_, values) if written_as(values) != **values => written_as(values),
        DataType::List(of) => DataType::List(item(of)),
        DataType::LargeList(of) => DataType::LargeList(item(of)),
        DataType::FixedSizeList(of, n) => DataType::FixedSizeList(item(of), *n),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(item).collect()),
        DataType::Map(entries, sorted) => DataType::Map(item(entries), *sorted),
        other => other.clone(),
    }
}

fn field_as_written(field: &FieldRef) -> Field {
    field.as_ref().clone().with_data_type(written_as(field.data_type()))
}

/// The column in the type that it is written as.
///
/// # Errors
/// A moment that is too far away to be counted in milliseconds.
pub(super) fn as_written(column: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let (from, kind) = (column.data_type().clone(), written_as(column.data_type()));
    match &from {
        same if *same == kind => Ok(column),
        DataType::Date64 => days(column.as_primitive()),
        DataType::Dictionary(_, values) => as_written(cast(&column, values)?),
        nested if nested.is_nested() => {
            let data = column.to_data();
            let child = |child: &ArrayData| as_written(make_array(child.clone())).map(|child| child.to_data());
            let children: Vec<ArrayData> = data.child_data().iter().map(child).collect::<Result<_, _>>()?;
            Ok(make_array(data.into_builder().data_type(kind).child_data(children).build()?))
        }
        _ => cast_with_options(&column, &kind, &CastOptions { safe: false, format_options: FormatOptions::default() }),
    }
}

/// The days of moments, rounded down, also before 1970.
fn days(moments: &PrimitiveArray<Date64Type>) -> Result<ArrayRef, ArrowError> {
    let day = |moment: i64| {
        i32::try_from(moment.div_euclid(MILLISECONDS_IN_DAY))
            .map_err(|_| ArrowError::CastError(format!("{moment} milliseconds are beyond 32 bits of days")))
    };
    Ok(Arc::new(moments.try_unary::<_, Date32Type, _>(day)?))
}

/// # Errors
/// A user fault that names the first column that Parquet has no type for.
pub(super) fn check_writable(schema: &Schema) -> Result<(), Fault> {
    match schema.fields().iter().find(|field| !is_writable(field.data_type())) {
        None => Ok(()),
        Some(field) => Err(Fault::user(format!(
            "column `{}` is {}, which cannot be written as Parquet: leave the column out",
            field.name(),
            field.data_type()
        ))),
    }
}

/// The Parquet writer panics at some of these types, and refuses the others without a name.
fn is_writable(kind: &DataType) -> bool {
    match kind {
        DataType::Union(..) | DataType::FixedSizeBinary(0) | DataType::Interval(IntervalUnit::MonthDayNano) => false,
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
        | DataType::Decimal256(digits, scale) => u8::try_from(*scale).is_ok_and(|scale| scale <= *digits),
        DataType::Struct(fields) if fields.is_empty() => false,
        DataType::Dictionary(_, values) => !values.is_nested() && is_writable(values),
        kind => fields_within(kind).into_iter().all(|field| is_writable(field.data_type())),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Date32Array, Date64Array, Date64Builder, MapBuilder, StringBuilder};
    use arrow::datatypes::{Fields, UnionFields, UnionMode};

    use super::*;

    #[test]
    fn types_that_parquet_lacks_are_named_with_their_column_at_any_depth() {
        let union = DataType::Union(UnionFields::empty(), UnionMode::Dense);
        let within = |kind: DataType| -> FieldRef { Arc::new(Field::new("item", kind, true)) };
        for kind in [
            union.clone(),
            DataType::FixedSizeBinary(0),
            DataType::Interval(IntervalUnit::MonthDayNano),
            DataType::Decimal128(10, -2),
            DataType::Decimal128(4, 5),
            DataType::Struct(Fields::empty()),
            DataType::List(within(union.clone())),
            DataType::Struct(Fields::from(vec![within(DataType::List(within(union)))])),
            DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::new_list(DataType::Int8, true))),
        ] {
            let fields = vec![Field::new("a", DataType::Int8, true), Field::new("odd", kind.clone(), true)];
            let said = check_writable(&Schema::new(fields)).unwrap_err().to_string();
            assert!(said.contains(&format!("column `odd` is {kind}")), "{said}");
        }
        let fine = [
            DataType::FixedSizeBinary(1),
            DataType::Decimal256(40, 0),
            DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8)),
            DataType::Struct(Fields::from(vec![within(DataType::Date64)])),
        ];
        for kind in fine {
            check_writable(&Schema::new(vec![Field::new("x", kind, true)])).unwrap();
        }
    }

    /// A bug: a moment before 1970 was written as the day after it, and those of a map as bare integers.
    #[test]
    fn moments_are_the_day_that_they_are_in_wherever_they_stand() {
        let moments = [Some(-1), None, Some(-86_400_000), Some(-86_400_001), Some(0), Some(86_399_999)];
        let days = [Some(-1), None, Some(-1), Some(-2), Some(0), Some(0)];
        let found = as_written(Arc::new(Date64Array::from(moments.to_vec()))).unwrap();
        assert_eq!(found.as_primitive::<Date32Type>(), &Date32Array::from(days.to_vec()));
        let mut map = MapBuilder::new(None, StringBuilder::new(), Date64Builder::new());
        for moment in moments {
            map.keys().append_value("key");
            map.values().append_option(moment);
            map.append(true).unwrap();
        }
        let map: ArrayRef = Arc::new(map.finish());
        let found = as_written(map.slice(1, 5)).unwrap();
        assert_eq!(*found.data_type(), written_as(map.data_type()));
        let found = found.as_map();
        let of_row = |row| found.value(row).column(1).as_primitive::<Date32Type>().iter().next().unwrap();
        assert_eq!((0..5).map(of_row).collect::<Vec<_>>(), days[1..]);
        assert!(as_written(Arc::new(Date64Array::from(vec![i64::MIN]))).is_err());
    }
}
