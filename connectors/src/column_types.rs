//! Maps the column types of typed files (Parquet, Arrow) to the types of batches.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, TimestampMicrosecondArray};
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, Int64Type, TimeUnit};
use arrow::error::ArrowError;

/// The type that strings are read as.
pub(crate) fn dictionary() -> DataType {
    dictionary_of(DataType::Utf8)
}

/// The type that strings, or binary values, are read as.
pub(crate) fn dictionary_of(values: DataType) -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(values))
}

/// The field that batches have. Files of different writers can be read together: the items of a list may be called `element`, `array` or
/// `item`, and may be declared nullable or not. Lists with 64-bit offsets are the same in Parquet; only the writer's Arrow schema differs.
pub(crate) fn in_batches(field: &FieldRef) -> FieldRef {
    match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) => {
            let item = in_batches(&Arc::new(Field::new_list_field(item.data_type().clone(), true)));
            Arc::new(field.as_ref().clone().with_data_type(DataType::List(item)))
        }
        _ => Arc::clone(field),
    }
}

/// Whether values are strings, each with its own text.
pub(crate) fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Whether values are bytes, each of its own length.
pub(crate) fn is_binary(kind: &DataType) -> bool {
    matches!(kind, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// The narrower of two types that can hold the values of both; `None` if there is none. A column that a file lacks has the type `Null`.
/// Lists of two fixed sizes, or of one and of none, become lists of any size. Integers are not converted to floating-point numbers, because
/// dense features of the two are transformed differently. Timestamps of two units become microseconds, as features do; those without a zone
/// are in UTC.
pub(crate) fn wider(a: &DataType, b: &DataType) -> Option<DataType> {
    /// Bits of an integer type, and whether it has a sign.
    fn bits(kind: &DataType) -> Option<(u32, bool)> {
        Some((8 * kind.primitive_width()? as u32, kind.is_signed_integer())).filter(|_| kind.is_integer())
    }
    match (a, b) {
        (a, b) if a == b => Some(a.clone()),
        (DataType::Null, other) | (other, DataType::Null) => Some(other.clone()),
        (DataType::List(a) | DataType::FixedSizeList(a, _), DataType::List(b) | DataType::FixedSizeList(b, _)) => {
            let item = Field::new_list_field(wider(a.data_type(), b.data_type())?, true);
            Some(DataType::List(Arc::new(item)))
        }
        (a, b) if is_text(a) && *b == dictionary() => Some(a.clone()),
        (a, b) if is_text(b) && *a == dictionary() => Some(b.clone()),
        (a, b) if is_text(a) && is_text(b) => Some(DataType::LargeUtf8),
        (a, b) if is_binary(a) && *b == dictionary_of(DataType::Binary) => Some(a.clone()),
        (a, b) if is_binary(b) && *a == dictionary_of(DataType::Binary) => Some(b.clone()),
        // Both are days; Parquet has one type for them.
        (DataType::Date32, DataType::Date64) | (DataType::Date64, DataType::Date32) => Some(DataType::Date32),
        (DataType::Timestamp(_, a), DataType::Timestamp(_, b)) if a == b || (is_utc(a) && is_utc(b)) => {
            Some(DataType::Timestamp(TimeUnit::Microsecond, a.clone().or_else(|| b.clone())))
        }
        (&DataType::Decimal128(a_digits, a_scale), &DataType::Decimal128(b_digits, b_scale)) => {
            let scale = a_scale.max(b_scale);
            let whole = |digits: u8, scale: i8| i16::from(digits) - i16::from(scale);
            let digits = whole(a_digits, a_scale).max(whole(b_digits, b_scale)) + i16::from(scale);
            let digits = u8::try_from(digits).ok().filter(|digits| *digits <= DECIMAL128_MAX_PRECISION)?;
            Some(DataType::Decimal128(digits, scale))
        }
        (a, b) if a.is_floating() && b.is_floating() => {
            Some(if a.primitive_width()? > b.primitive_width()? { a.clone() } else { b.clone() })
        }
        (a, b) => match (bits(a)?, bits(b)?) {
            ((a_bits, a_signed), (b_bits, b_signed)) if a_signed == b_signed => {
                Some(if a_bits > b_bits { a.clone() } else { b.clone() })
            }
            ((bits, false), (_, true)) | ((_, true), (bits, false)) if bits < 64 => Some(DataType::Int64),
            _ => None,
        },
    }
}

/// Whether a timestamp with this zone is in UTC.
fn is_utc(zone: &Option<Arc<str>>) -> bool {
    zone.as_deref().is_none_or(|zone| matches!(zone, "UTC" | "Z" | "+00:00"))
}

/// A type in messages: a dictionary is shown as the type of its values.
pub(crate) fn shown(kind: &DataType) -> String {
    match kind {
        DataType::Dictionary(_, values) => shown(values),
        kind if is_text(kind) => "strings".to_owned(),
        DataType::List(item) | DataType::FixedSizeList(item, _) => format!("lists of {}", shown(item.data_type())),
        kind if kind.is_integer() => format!("integers ({kind})"),
        kind if kind.is_floating() => format!("numbers ({kind})"),
        other => other.to_string(),
    }
}

/// A decoded column in the type of batches: under other names, for which nothing is copied, or in a [`wider`] type.
pub(crate) fn converted(array: &ArrayRef, kind: &DataType) -> Result<ArrayRef, ArrowError> {
    match kind {
        kind if array.data_type() == kind => Ok(Arc::clone(array)),
        DataType::List(item) if matches!(array.data_type(), DataType::List(_)) => {
            let list = array.as_list::<i32>();
            let items = converted(list.values(), item.data_type())?;
            let nulls = list.nulls().cloned();
            Ok(Arc::new(ListArray::try_new(Arc::clone(item), list.offsets().clone(), items, nulls)?))
        }
        DataType::Timestamp(TimeUnit::Microsecond, zone) => microseconds(array, zone.clone()),
        kind => arrow::compute::cast(array, kind),
    }
}

/// Timestamps as microseconds. `cast` knows no names of zones, and rounds nanoseconds towards 0 instead of down, as features are.
fn microseconds(array: &ArrayRef, zone: Option<Arc<str>>) -> Result<ArrayRef, ArrowError> {
    let numbers = arrow::compute::cast(array, &DataType::Int64)?;
    let numbers = numbers.as_primitive::<Int64Type>();
    // A time beyond 64 bits is beyond all years, too, as the largest or the least number.
    let micros: TimestampMicrosecondArray = match array.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => numbers.unary(|seconds| seconds.saturating_mul(1_000_000)),
        DataType::Timestamp(TimeUnit::Millisecond, _) => numbers.unary(|millis| millis.saturating_mul(1000)),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => numbers.unary(|nanos| nanos.div_euclid(1000)),
        _ => numbers.unary(|micros| micros),
    };
    Ok(Arc::new(micros.with_timezone_opt(zone)))
}

#[cfg(test)]
mod tests {
    use arrow::array::{TimestampNanosecondArray, TimestampSecondArray};
    use arrow::datatypes::TimestampMicrosecondType;

    use super::*;

    #[test]
    fn the_wider_type_holds_both_and_strings_and_numbers_have_none() {
        use DataType::{
            Binary, Date32, Date64, Decimal128, Float32, Float64, Int8, Int32, Int64, LargeBinary, LargeUtf8, Null,
            UInt8, UInt32, UInt64, Utf8,
        };
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let time = |unit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Into::into));
        let list = |kind| DataType::List(Arc::new(Field::new_list_field(kind, true)));
        let fixed = |kind, n| DataType::FixedSizeList(Arc::new(Field::new("element", kind, false)), n);
        for (a, b, wide) in [
            (Int32, Int64, Some(Int64)),
            (Int8, Int32, Some(Int32)),
            (UInt8, UInt32, Some(UInt32)),
            (UInt32, Int8, Some(Int64)),
            (UInt64, Int64, None),
            (Float32, Float64, Some(Float64)),
            (Int32, Float64, None),
            (Date32, Date64, Some(Date32)),
            (time(Second, None), time(Second, None), Some(time(Second, None))),
            (time(Nanosecond, None), time(Millisecond, None), Some(time(Microsecond, None))),
            (time(Microsecond, None), time(Microsecond, Some("UTC")), Some(time(Microsecond, Some("UTC")))),
            (
                time(Second, Some("Asia/Tokyo")),
                time(Nanosecond, Some("Asia/Tokyo")),
                Some(time(Microsecond, Some("Asia/Tokyo"))),
            ),
            (time(Microsecond, None), time(Microsecond, Some("Asia/Tokyo")), None),
            (time(Second, None), Date32, None),
            (Decimal128(10, 2), Decimal128(12, 4), Some(Decimal128(12, 4))),
            (Decimal128(10, 2), Decimal128(12, 9), Some(Decimal128(17, 9))),
            (Decimal128(38, 2), Decimal128(38, 3), None),
            (Decimal128(10, 0), Int64, None),
            (Null, Utf8, Some(Utf8)),
            (Int64, Utf8, None),
            (dictionary(), Utf8, Some(Utf8)),
            (dictionary(), LargeUtf8, Some(LargeUtf8)),
            (dictionary(), Int64, None),
            (Utf8, LargeUtf8, Some(LargeUtf8)),
            (LargeUtf8, Int64, None),
            (dictionary_of(Binary), LargeBinary, Some(LargeBinary)),
            (dictionary_of(Binary), dictionary(), None),
            (dictionary_of(Binary), Utf8, None),
            (list(Int32), list(Int64), Some(list(Int64))),
            (list(Int32), Int32, None),
            (fixed(Int32, 2), fixed(Int32, 2), Some(fixed(Int32, 2))),
            (fixed(Int32, 2), fixed(Int64, 2), Some(list(Int64))),
            (fixed(Int32, 2), fixed(Int32, 3), Some(list(Int32))),
            (fixed(Int32, 2), list(Int64), Some(list(Int64))),
            (fixed(Int32, 2), list(Utf8), None),
        ] {
            assert_eq!(wider(&a, &b), wide, "{a} {b}");
            assert_eq!(wider(&b, &a), wide, "{b} {a}");
        }
    }

    #[test]
    fn nanoseconds_are_rounded_down_to_microseconds() {
        let nanos: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![Some(1999), None, Some(-1)]));
        let found = converted(&nanos, &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))).unwrap();
        let expected = TimestampMicrosecondArray::from(vec![Some(1), None, Some(-1)]).with_timezone("UTC");
        assert_eq!(found.as_primitive::<TimestampMicrosecondType>(), &expected);
        let far: ArrayRef = Arc::new(TimestampSecondArray::from(vec![i64::MAX, 2, i64::MIN]));
        let found = converted(&far, &DataType::Timestamp(TimeUnit::Microsecond, None)).unwrap();
        assert_eq!(found.as_primitive::<TimestampMicrosecondType>().values(), &[i64::MAX, 2_000_000, i64::MIN]);
    }
}
