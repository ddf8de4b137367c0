//! The rows of a request: `{"rows": [{"user": 5, "item": 1}, ...], "shared": {"day": "mon"}}` becomes a record batch with the
//! columns of the model.

use std::borrow::Cow;
use std::fmt;

use arrow::array::RecordBatch;
use forebay_actors::Fault;
use forebay_base::nearest;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::column_order::ColumnOrder;
use super::json_cell::JsonCell;
use super::json_column;
use super::request_size::RequestSize;
use super::serving_columns::ServingColumns;

/// The rows of a body; `None` if it has none.
///
/// # Errors
/// A user fault: where the JSON is damaged, an unknown field or column with the nearest one, a column that no row has, a value of another
/// type, or more values than a request may have.
pub(super) fn parse(columns: &ServingColumns, body: &[u8]) -> Result<Option<RecordBatch>, Fault> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let request = json.deserialize_map(RequestVisitor(columns)).and_then(|request| json.end().map(|()| request));
    let request = request.map_err(|e| wrong_body(&e))?;
    if request.rows == 0 {
        return Ok(None);
    }
    request.size().check()?;
    let mut batch = Vec::with_capacity(columns.columns.len());
    for (column, (cells, shared)) in columns.columns.iter().zip(request.cells.iter().zip(&request.shared)) {
        let all: Vec<&JsonCell<'_>> = (0..request.rows)
            .map(|row| match cells.get(row) {
                None | Some(JsonCell::Absent) => shared,
                Some(cell) => cell,
            })
            .collect();
        if !column.optional && all.iter().all(|cell| matches!(cell, JsonCell::Absent)) {
            return Err(Fault::user(format!(
                "no row has column `{}`: give it to the rows or to `shared`, as null if its values are missing",
                column.name
            )));
        }
        let array = json_column::array(&all, column)
            .map_err(|(row, what)| Fault::user(format!("row {row}: column `{}` is {what}", column.name)))?;
        batch.push((column.name.as_str(), array, true));
    }
    RecordBatch::try_from_iter_with_nullable(batch)
        .map(Some)
        .map_err(|e| Fault::internal("the columns of a request do not fit together").because(e))
}

/// The fault for JSON that is no request, with the place before what is wrong there, which may end with a hint.
fn wrong_body(error: &serde_json::Error) -> Fault {
    let (said, place) = (error.to_string(), format!("line {} column {}", error.line(), error.column()));
    Fault::user(match said.strip_suffix(&format!(" at {place}")) {
        Some(said) => format!("the body is not a request for scores: {place}: {said}"),
        None => format!("the body is not a request for scores: {said}"),
    })
}

/// The content of a body.
struct Request<'a> {
    rows: usize,
    /// By column: the values of the first rows. Later rows do not have the column.
    cells: Vec<Vec<JsonCell<'a>>>,
    /// By column: the value of rows that do not have it.
    shared: Vec<JsonCell<'a>>,
}

impl Request<'_> {
    fn size(&self) -> RequestSize {
        let mut size = RequestSize::default();
        for (cells, shared) in self.cells.iter().zip(&self.shared) {
            let own = || cells.iter().filter(|cell| !matches!(cell, JsonCell::Absent));
            own().for_each(|cell| size.add(RequestSize::of_cell(cell), 1));
            size.add(RequestSize::of_cell(shared), self.rows - own().count());
        }
        size
    }
}

struct RequestVisitor<'c>(&'c ServingColumns);

impl<'de> Visitor<'de> for RequestVisitor<'_> {
    type Value = Request<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `rows` and perhaps `shared`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Request<'de>, A::Error> {
        let width = self.0.columns.len();
        let absent = || std::iter::repeat_n(JsonCell::Absent, width).collect::<Vec<_>>();
        let mut request = Request { rows: 0, cells: (0..width).map(|_| Vec::new()).collect(), shared: absent() };
        let (mut rows, mut shared, mut order) = (false, false, ColumnOrder::new(self.0));
        while let Some(field) = map.next_key::<Cow<'de, str>>()? {
            match field.as_ref() {
                "rows" if !rows => {
                    rows = true;
                    map.next_value_seed(RowsSeed { order: &mut order, most: self.0.most_rows, request: &mut request })?;
                }
                "shared" if !shared => {
                    shared = true;
                    let cells = &mut request.shared;
                    map.next_value_seed(RowSeed(&mut order, |column: usize, cell| {
                        let first = cells[column] == JsonCell::Absent;
                        cells[column] = cell;
                        first
                    }))?;
                }
                "rows" | "shared" => return Err(A::Error::custom(format!("`{field}` is there twice"))),
                other => {
                    let short: String = other.chars().take(80).collect();
                    let near = nearest(other, ["rows", "shared"]);
                    let near = near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
                    return Err(A::Error::custom(format!(
                        "unknown field `{short}`{near} (expected `rows` and `shared`)"
                    )));
                }
            }
        }
        if rows { Ok(request) } else { Err(A::Error::custom("it has no `rows`")) }
    }
}

struct RowsSeed<'o, 'c, 'r, 'de> {
    order: &'o mut ColumnOrder<'c>,
    /// Rows that a request may have.
    most: usize,
    request: &'r mut Request<'de>,
}

impl<'de> DeserializeSeed<'de> for RowsSeed<'_, '_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for RowsSeed<'_, '_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows, each an object of columns")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { order, most, request } = self;
        loop {
            let (row, cells) = (request.rows, &mut request.cells);
            let seed = RowSeed(&mut *order, |column: usize, cell| {
                let column = &mut cells[column];
                let first = column.len() <= row;
                column.resize(row, JsonCell::Absent);
                column.push(cell);
                first
            });
            if list.next_element_seed(seed)?.is_none() {
                return Ok(());
            }
            request.rows += 1;
            if request.rows > most {
                return Err(A::Error::custom(format!("more than {most} rows: split them over several requests")));
            }
        }
    }
}

/// Gives each value of a row to a function, which says whether it is the first of its column.
struct RowSeed<'o, 'c, F>(&'o mut ColumnOrder<'c>, F);

impl<'de, F: FnMut(usize, JsonCell<'de>) -> bool> DeserializeSeed<'de> for RowSeed<'_, '_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(usize, JsonCell<'de>) -> bool> Visitor<'de> for RowSeed<'_, '_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row: an object of columns")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.0.begin_row();
        while let Some(column) = map.next_key_seed(ColumnSeed(&mut *self.0))? {
            if !(self.1)(column, map.next_value()?) {
                return Err(A::Error::custom(format!("column `{}` is there twice in a row", self.0.name(column))));
            }
        }
        Ok(())
    }
}

/// The place of a column from its name, which is not copied.
struct ColumnSeed<'o, 'c>(&'o mut ColumnOrder<'c>);

impl<'de> DeserializeSeed<'de> for ColumnSeed<'_, '_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for ColumnSeed<'_, '_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a column")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<usize, E> {
        self.0.place(name).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use arrow::array::{Array as _, AsArray as _};
    use arrow::datatypes::{Date32Type, Float64Type, Int64Type, TimestampMicrosecondType, UInt64Type};
    use forebay_job::Columns;

    use super::super::serving_columns::MOST_VALUES;
    use super::*;
    use forebay_batches::ColumnType;

    fn rows() -> ServingColumns {
        let columns: Columns = toml::from_str(
            r#"
            label = "label"
            dense = ["price", "count"]
            slots = ["item", { column = "site", kind = "hex" }, "tags", "late"]
            optional = ["late"]
            "#,
        )
        .unwrap();
        let types = [("price", ColumnType::Number), ("count", ColumnType::Integer), ("site", ColumnType::Text)];
        ServingColumns::new(&columns, &types.map(|(name, kind)| (name.to_owned(), kind)).into(), &BTreeSet::new())
    }

    #[test]
    fn rows_have_their_own_values_or_the_shared_ones_in_the_types_of_the_training() {
        let body = br#" {"shared": {"count": 7, "site": "0a", "tags": null},
            "rows": [{"price": 3, "item": "x\u0041"}, {"item": null, "count": null, "price": 0.5, "tags": []},
                     {"tags": [1, null, 2], "price": null, "item": "z"}]} "#;
        let batch = parse(&rows(), body).unwrap().unwrap();
        let price = batch["price"].as_primitive::<Float64Type>();
        assert_eq!(price.iter().collect::<Vec<_>>(), [Some(3.0), Some(0.5), None]);
        let count = batch["count"].as_primitive::<Int64Type>();
        assert_eq!(count.iter().collect::<Vec<_>>(), [Some(7), None, Some(7)]);
        assert_eq!(batch["item"].as_string::<i32>().iter().collect::<Vec<_>>(), [Some("xA"), None, Some("z")]);
        let tags = batch["tags"].as_list::<i32>();
        assert_eq!((tags.value_offsets(), batch["tags"].null_count()), (&[0, 0, 0, 3][..], 1));
        assert_eq!(batch["late"].len(), 3);
        assert!(parse(&rows(), br#"{"rows": []}"#).unwrap().is_none());
    }

    /// What a row gets must not depend on the other rows of its request.
    #[test]
    fn a_column_of_lists_in_training_has_lists_in_every_request() {
        let columns =
            toml::from_str("label = 'y'\ndense = []\nslots = ['tags', { column = 'seen', last = 2 }]").unwrap();
        let rows = ServingColumns::new(&columns, &BTreeMap::new(), &["tags".to_owned()].into());
        for (body, offsets, nulls) in [
            (r#"{"rows": [{"tags": null, "seen": null}, {"tags": null, "seen": null}]}"#, &[0, 0, 0], 2),
            (r#"{"rows": [{"tags": 7, "seen": "x"}, {"tags": null, "seen": null}]}"#, &[0, 1, 1], 1),
            (r#"{"rows": [{"tags": 7, "seen": []}, {"tags": [8, 9], "seen": ["x", null]}]}"#, &[0, 1, 3], 0),
        ] {
            let batch = parse(&rows, body.as_bytes()).unwrap().unwrap();
            let (tags, seen) = (batch["tags"].as_list::<i32>(), batch["seen"].as_list::<i32>());
            assert_eq!(
                (tags.value_offsets(), tags.null_count(), seen.null_count()),
                (&offsets[..], nulls, nulls),
                "{body}"
            );
        }
    }

    #[test]
    fn dates_and_timestamps_have_the_types_of_the_training() {
        let columns = toml::from_str("label = \"y\"\ndense = []\nslots = [\"day\", \"time\"]").unwrap();
        let types = [("day", ColumnType::Date), ("time", ColumnType::Timestamp)];
        let rows =
            ServingColumns::new(&columns, &types.map(|(name, kind)| (name.to_owned(), kind)).into(), &BTreeSet::new());
        let batch =
            parse(&rows, br#"{"rows": [{"day": -3, "time": 7000000}, {"day": null, "time": null}]}"#).unwrap().unwrap();
        assert_eq!(batch["day"].as_primitive::<Date32Type>().iter().collect::<Vec<_>>(), [Some(-3), None]);
        let time = batch["time"].as_primitive::<TimestampMicrosecondType>();
        assert_eq!(time.iter().collect::<Vec<_>>(), [Some(7_000_000), None]);
        let said = parse(&rows, br#"{"rows": [{"day": 1.5, "time": 1}]}"#).unwrap_err().to_string();
        assert!(said.contains("expected an integer: days since 1970"), "{said}");
    }

    #[test]
    fn dates_and_timestamps_may_be_text_as_arrow_and_pandas_write_it() {
        let columns = toml::from_str("label = 'y'\ndense = []\nslots = ['day', 'time', 'times']").unwrap();
        let types = [("day", ColumnType::Date), ("time", ColumnType::Timestamp), ("times", ColumnType::Timestamp)];
        let types = types.map(|(name, kind)| (name.to_owned(), kind)).into();
        let rows = ServingColumns::new(&columns, &types, &["times".to_owned()].into());
        let of = |day: &str, time: &str| {
            let body = format!(
                r#"{{"rows": [{{"day": null, "time": 1, "times": []}}, {{"day": {day}, "time": {time}, "times": [{time}]}}]}}"#
            );
            let batch = parse(&rows, body.as_bytes()).map_err(|fault| fault.to_string())?.unwrap();
            let times = batch["times"].as_list::<i32>().values().clone();
            let time = batch["time"].as_primitive::<TimestampMicrosecondType>().value(1);
            assert_eq!(times.as_primitive::<TimestampMicrosecondType>().value(0), time);
            Ok::<_, String>((batch["day"].as_primitive::<Date32Type>().value(1), time))
        };
        // 20,777 days after 1970.
        let (day, noon) = (20_777, 20_777 * 86_400_000_000 + 43_200_000_000);
        for (text, more) in [
            ("2026-11-20T12:00:00", 0),
            ("2026-11-20 12:00:00", 0),
            ("2026-11-20T12:00", 0),
            ("2026-11-20 12:00:00 UTC", 0),
            ("2026-11-20T12:00:00Z", 0),
            ("2026-11-20T12:00:00.000Z", 0),
            ("2026-11-20T12:00:00.25", 250_000),
            ("2026-11-20 12:00:00.000001999", 1),
            ("2026-11-20T17:30:00+05:30", 0),
            ("2026-11-20 04:00:00-08:00", 0),
            ("2026-11-20", -43_200_000_000),
        ] {
            for date in ["2026-11-20", "2026-11-20T00:00:00", "2026-11-20T00:00:00.000Z", "2026-11-20 00:00:00"] {
                assert_eq!(of(&format!("{date:?}"), &format!("{text:?}")), Ok((day, noon + more)), "{date} {text}");
            }
        }
        assert_eq!(of("\"1969-12-31\"", "\"1969-12-31T23:59:59.9999999Z\""), Ok((-1, -1)), "rounded down");
        assert_eq!(of("-1", "-1"), Ok((-1, -1)), "and integers beside text");
        for (day, time, words) in [
            (
                "1",
                "\"yesterday\"",
                "row 1: column `time` is \"yesterday\", expected an integer: microseconds since 1970, or a time in",
            ),
            ("1", "\"2026-02-30T00:00:00Z\"", "row 1: column `time` is \"2026-02-30T00:00:00Z\", expected"),
            ("1", "\"\"", "column `time` is \"\", expected"),
            ("1", "\"1795176245000000\"", "column `time` is \"1795176245000000\", expected an integer"),
            ("1", "\"0000-01-01\"", "column `time` is \"0000-01-01\", expected"),
            (
                "1",
                "true",
                "row 1: column `time` is a boolean, expected an integer: microseconds since 1970, or a time in",
            ),
            (
                "\"2026-11-20T12:00:00\"",
                "1",
                "row 1: column `day` is \"2026-11-20T12:00:00\", expected an integer: days since 1970, or a date",
            ),
            ("\"20 Nov 2026\"", "1", "column `day` is \"20 Nov 2026\", expected"),
            (
                "5000000000",
                "1",
                "column `day` is an integer of more than 32 bits, expected an integer: days since 1970",
            ),
        ] {
            let said = of(day, time).unwrap_err();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
    }

    /// A bug: it was called a number with a fraction or an exponent.
    #[test]
    fn minus_zero_is_zero_where_integers_are_expected() {
        let columns = toml::from_str("label = 'y'\ndense = ['n', 'u', 'x']\nslots = ['day', 'time', 'word']").unwrap();
        let types = [
            ("n", ColumnType::Integer),
            ("u", ColumnType::Integer),
            ("x", ColumnType::Number),
            ("day", ColumnType::Date),
            ("time", ColumnType::Timestamp),
            ("word", ColumnType::Text),
        ];
        let rows =
            ServingColumns::new(&columns, &types.map(|(name, kind)| (name.to_owned(), kind)).into(), &BTreeSet::new());
        let body = br#"{"shared": {"n": -0, "x": -0, "day": -0, "time": -0, "word": "-0"},
            "rows": [{"u": 18446744073709551615}, {"u": -0}]}"#;
        let batch = parse(&rows, body).unwrap().unwrap();
        assert_eq!(batch["n"].as_primitive::<Int64Type>().values(), &[0, 0]);
        assert_eq!(batch["u"].as_primitive::<UInt64Type>().values(), &[u64::MAX, 0]);
        assert_eq!(batch["day"].as_primitive::<Date32Type>().values(), &[0, 0]);
        assert_eq!(batch["time"].as_primitive::<TimestampMicrosecondType>().values(), &[0, 0]);
        let x = batch["x"].as_primitive::<Float64Type>().value(0);
        assert!(x == 0.0 && x.is_sign_negative(), "{x}");
        // As text, `-0` and `-0.0` would differ.
        let body = br#"{"rows": [{"n": 1, "u": 1, "x": 1, "day": 1, "time": 1, "word": -0}]}"#;
        let said = parse(&rows, body).unwrap_err().to_string();
        assert!(said.contains("column `word` is a minus zero (-0 or -0.0), expected a string"), "{said}");
    }

    /// A bug: they were refused, although each alone is a value of such a slot, and `predict` reads both in one column.
    #[test]
    fn hexadecimal_digits_and_the_integers_that_they_stand_for_may_mix() {
        let columns = "label = 'y'\ndense = []\nslots = [{ column = 'a', kind = 'hex' }, { column = 'b', kind = 'hex', last = 3 }]";
        let rows = ServingColumns::new(&toml::from_str(columns).unwrap(), &BTreeMap::new(), &BTreeSet::new());
        let body = r#"{"rows": [{"a": "0a", "b": ["ff", 16]}, {"a": 26, "b": 0}, {"a": -1, "b": null}, {"a": null, "b": "7"},
            {"a": 18446744073709551615, "b": []}]}"#;
        let batch = parse(&rows, body.as_bytes()).unwrap().unwrap();
        let all = "ffffffffffffffff";
        let a: Vec<_> = batch["a"].as_string::<i32>().iter().collect();
        assert_eq!(a, [Some("0a"), Some("1a"), Some(all), None, Some(all)]);
        let b: Vec<_> = batch["b"].as_list::<i32>().values().as_string::<i32>().iter().collect();
        assert_eq!(b, [Some("ff"), Some("10"), Some("0"), Some("7")]);
        let body = r#"{"rows": [{"a": "0a", "b": "1"}, {"a": true, "b": "1"}]}"#;
        let said = parse(&rows, body.as_bytes()).unwrap_err().to_string();
        assert!(said.contains("row 1: column `a` is a boolean, expected hexadecimal digits or an integer"), "{said}");
    }

    /// A bug: `predict` reads such values, and requests with them were refused.
    #[test]
    fn values_are_converted_to_the_types_of_the_training_as_in_json_lines() {
        let columns =
            toml::from_str("label = 'y'\ndense = ['x', 'n', 'flag']\nslots = ['vip', 'word', 'tags']").unwrap();
        let types = [
            ("x", ColumnType::Number),
            ("n", ColumnType::Integer),
            ("flag", ColumnType::Boolean),
            ("vip", ColumnType::Integer),
            ("word", ColumnType::Text),
            ("tags", ColumnType::Integer),
        ];
        let types: BTreeMap<String, ColumnType> = types.map(|(name, kind)| (name.to_owned(), kind)).into();
        let rows = ServingColumns::new(&columns, &types, &["tags".to_owned()].into());
        let body =
            br#"{"rows": [{"x": true, "n": 31.0, "flag": 1, "vip": true, "word": true, "tags": [true, 7.0, null]},
            {"x": false, "n": -2e3, "flag": 0.0, "vip": false, "word": false, "tags": false}]}"#;
        let batch = parse(&rows, body).unwrap().unwrap();
        assert_eq!(batch["x"].as_primitive::<Float64Type>().values(), &[1.0, 0.0]);
        assert_eq!(batch["n"].as_primitive::<Int64Type>().values(), &[31, -2000]);
        assert_eq!(batch["flag"].as_boolean().iter().collect::<Vec<_>>(), [Some(true), Some(false)]);
        assert_eq!(batch["vip"].as_primitive::<Int64Type>().values(), &[1, 0]);
        assert_eq!(batch["word"].as_string::<i32>().iter().collect::<Vec<_>>(), [Some("true"), Some("false")]);
        let tags = batch["tags"].as_list::<i32>();
        let values = tags.values().as_primitive::<Int64Type>();
        assert_eq!(values.iter().collect::<Vec<_>>(), [Some(1), Some(7), None, Some(0)]);
        assert_eq!(tags.value_offsets(), &[0, 3, 4]);
        for (name, value, words) in [
            // It may have been another integer before it became a floating-point number.
            (
                "n",
                "9007199254740993.0",
                "is a number with a point or an exponent and a size of 2^53 or more, expected an integer",
            ),
            ("n", "-9007199254740992.0", "is a number with a point or an exponent and a size of 2^53 or more"),
            ("n", "-9223372036854775809", "is a number not between -2^63 and 2^64, expected an integer"),
            ("n", "18446744073709551616", "is a number not between -2^63 and 2^64, expected an integer"),
            ("n", "-1e300", "is a number not between -2^63 and 2^64, expected an integer"),
            ("n", "0.5", "is a number with a fraction or an exponent, expected an integer"),
            ("tags", "[-1, 18446744073709551615]", "is an integer, expected an integer from 0, because another value"),
            ("flag", "2", "is an integer, expected true or false, or 1 or 0"),
            ("x", "\"1\"", "is a string, expected a number"),
        ] {
            let rest = [("x", "1"), ("n", "1"), ("flag", "true"), ("vip", "1"), ("word", "1"), ("tags", "1")];
            let row: Vec<String> = rest
                .map(|(column, fine)| format!(r#""{column}": {}"#, if column == name { value } else { fine }))
                .into();
            let said = parse(&rows, format!(r#"{{"rows": [{{{}}}]}}"#, row.join(",")).as_bytes()).unwrap_err();
            assert!(said.to_string().contains(&format!("column `{name}` {words}")), "{said}");
        }
    }

    /// A bug: a body of 100 kB took gigabytes, because each row got a copy of what all share.
    #[test]
    fn shared_lists_and_text_count_for_each_row_without_a_value_of_its_own() {
        let columns = toml::from_str("label = 'y'\ndense = []\nslots = ['tags', 'city']").unwrap();
        let rows = ServingColumns::new(&columns, &BTreeMap::new(), &["tags".to_owned()].into());
        let said = |elements: usize, text: usize, own: usize, sharing: usize| {
            let (tags, city) = (vec!["1"; elements].join(","), "x".repeat(text));
            let own =
                vec![r#"{"tags": 1, "city": "a"}"#; own].into_iter().chain(vec!["{}"; sharing]).collect::<Vec<_>>();
            let body = format!(r#"{{"shared": {{"tags": [{tags}], "city": "{city}"}}, "rows": [{}]}}"#, own.join(","));
            parse(&rows, body.as_bytes()).map(|batch| batch.unwrap().num_rows()).map_err(|fault| fault.to_string())
        };
        assert_eq!(said(4000, 4000, 20_000, 1000), Ok(21_000));
        let long = said(5000, 1, 7, 1000).unwrap_err();
        assert!(long.contains("lists of 5000000 elements, at most 4194304 in all"), "{long}");
        let long = said(5_000_000, 1, 0, 1).unwrap_err();
        assert!(long.contains("a list of more than 4194304 elements"), "{long}");
        let long = said(1, 100_000, 7, 1000).unwrap_err();
        assert!(long.contains("text of 100000007 bytes, at most 67108864 in all"), "{long}");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place_and_the_nearest_name() {
        let said = |body: &str| parse(&rows(), body.as_bytes()).unwrap_err().to_string();
        let all = r#""price": 1.5, "count": 1, "item": 1, "site": 1, "tags": 1"#;
        parse(&rows(), format!(r#"{{"rows": [{{{all}}}]}}"#).as_bytes()).unwrap();
        for (body, words) in [
            ("", "EOF while parsing"),
            ("[1]", "an object with `rows`"),
            (r#"{"rows": [{"price": NaN}]}"#, "line 1 column 21"),
            (r#"{"rows": [{"price": 1e999}]}"#, "number out of range"),
            (r#"{"rows": [], "rows": []}"#, "`rows` is there twice"),
            (r#"{"row": []}"#, "did you mean `rows`?"),
            ("{}", "it has no `rows`"),
            (r#"{"rows": [{"prise": 1}]}"#, "did you mean `price`?"),
            (
                r#"{"rows": [{"label": 1}]}"#,
                "scores: line 1 column 18: column `label` is not a feature of the model: see GET /v1/model for its columns",
            ),
            (r#"{"rows": [{"price": 1, "price": 2}]}"#, "`price` is there twice"),
            (r#"{"rows": [{"price": {}}]}"#, "an object, expected a number, a string"),
            (r#"{"rows": [{"tags": [[1]]}]}"#, "a list within a list"),
            (r#"{"rows": [{"price": 1}]} x"#, "trailing characters"),
            (r#"{"rows": [{"price": 1}]}"#, "no row has column `count`"),
            (
                r#"{"shared": {"price": 1, "count": 1, "item": 1, "site": "a", "tags": 1}, "rows": [{}, {"count": 1.5}]}"#,
                "row 1: column `count` is a number with a fraction or an exponent, expected an integer",
            ),
            (
                r#"{"shared": {"price": 1, "count": 1, "site": "a", "tags": 1}, "rows": [{"item": 1}, {"item": 1.5}]}"#,
                "row 1: column `item` is a number with a fraction or an exponent in a column of integers",
            ),
            (
                r#"{"shared": {"price": 1, "count": 1, "site": "a", "item": 1}, "rows": [{"tags": [1]}, {"tags": 2}]}"#,
                "row 1: column `tags` is an integer among lists",
            ),
        ] {
            let said = said(body);
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        let many = format!(r#"{{"rows": [{}{{}}]}}"#, "{},".repeat(MOST_VALUES));
        assert!(said(&many).contains("rows: split them over several requests"));
        let deep = format!("{{\"rows\": {}", "[".repeat(100_000));
        assert!(said(&deep).contains("the body is not a request for scores"));
    }
}
