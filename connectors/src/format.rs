//! The formats of files of rows, and how the name of a file tells its format.

use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

use crate::file::DataFile;

/// The format of a file of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Criteo's tab-separated text without a header, plain, .gz or .zst.
    Criteo,
    /// CSV with a header, plain, .gz or .zst; see `csv`.
    Csv,
    /// JSON lines: an object on each line, plain, .gz or .zst.
    JsonLines,
    /// Arrow IPC: the file format (Feather version 2) or the stream format.
    Arrow,
}

/// Endings of text that is unpacked while it is read.
const UNPACKED: [&str; 3] = ["gz", "zst", "zstd"];

/// Endings of text that Spark, Hadoop and archivers packed in a way that is not read here: the source of text refuses them by name.
pub(crate) const PACKED_OTHERWISE: [&str; 11] =
    ["bz2", "deflate", "lz4", "snappy", "xz", "zip", "7z", "tar", "tar.gz", "tar.zst", "tgz"];

impl Format {
    /// Whether its files do not say the types of their columns.
    pub fn is_untyped(self) -> bool {
        matches!(self, Self::Csv | Self::JsonLines)
    }

    /// Whether its files say how many rows they have before their rows are read, so that windows have numbers.
    pub fn tells_rows(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }

    /// Its name in a job: the value of `data.format`.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Criteo => "criteo",
            Self::Csv => "csv",
            Self::JsonLines => "json_lines",
            Self::Arrow => "arrow",
        }
    }

    /// The format that the extension of a file name stands for, for instance `.parquet`, `.csv`, `.jsonl` or `.csv.gz`. `None` for `.txt`,
    /// for `.gz` alone, for an unknown extension and for no extension.
    pub fn from_extension(name: &str) -> Option<Self> {
        match ending(name).0.as_str() {
            "parquet" | "pq" => Some(Self::Parquet),
            "csv" => Some(Self::Csv),
            "arrow" | "arrows" | "feather" | "ipc" => Some(Self::Arrow),
            "json" | "jsonl" | "ndjson" => Some(Self::JsonLines),
            _ => None,
        }
    }

    /// The format of a file whose name does not tell: Criteo text for `.txt`, `.tsv` and compressed text, Parquet otherwise.
    fn default_of(name: &str) -> Self {
        let (ending, compressed) = ending(name);
        if compressed || matches!(ending.as_str(), "txt" | "tsv") { Self::Criteo } else { Self::Parquet }
    }

    /// The format of files, by their names; names without a known ending have the format `default`.
    ///
    /// # Errors
    /// A user fault if the names tell several formats.
    pub fn of_files(files: &[DataFile], default: Option<Self>) -> Result<Self, Fault> {
        let of = |file: &DataFile| {
            Self::from_extension(&file.name).or(default).unwrap_or_else(|| Self::default_of(&file.name))
        };
        let Some(first) = files.first() else { return Ok(default.unwrap_or(Self::Parquet)) };
        let format = of(first);
        match files.iter().find(|file| of(file) != format) {
            None => Ok(format),
            Some(other) => Err(Fault::user(format!(
                "`{}` is {format}, but `{}` is {}, by their names or their first bytes: files that are read together have one format; name a \
                 glob such as `*.parquet`, or set data.format if all of them have the same",
                first.name,
                other.name,
                of(other)
            ))),
        }
    }
}

/// The ending of a name in lower case, without the ending of a compression, and whether the name had such an ending.
fn ending(name: &str) -> (String, bool) {
    let lower = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let split = |name: &str| name.rsplit_once('.').map(|(stem, ending)| (stem.to_owned(), ending.to_owned()));
    match split(&lower) {
        Some((stem, last)) if UNPACKED.contains(&last.as_str()) || PACKED_OTHERWISE.contains(&last.as_str()) => {
            (split(&stem).map_or_else(String::new, |(_, ending)| ending), true)
        }
        Some((_, last)) => (last, false),
        None => (String::new(), false),
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Parquet => "Parquet",
            Self::Criteo => "Criteo text",
            Self::Csv => "CSV",
            Self::JsonLines => "JSON lines",
            Self::Arrow => "Arrow IPC",
        })
    }
}

/// A column to read from files, and the type of its values in text files, which do not say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileColumn {
    /// Its name.
    pub name: String,
    /// Its values.
    pub kind: ValueKind,
    /// How its integers and numbers are read.
    pub integers: Integers,
    /// Whether a file may lack it: then it is null in all rows of the file.
    pub optional: bool,
    /// Whether it is text where it is a folder `column=value`, even if all values of the folder are integers.
    pub folder_text: bool,
    /// Whether it holds lists, if the first lines of JSON files have only nulls for it.
    pub list: bool,
    /// Whether it never holds lists, even if the first lines of JSON files show lists: a list in it is a bad row.
    pub single: bool,
    /// The column paired with this one: its weights, or the values that it weighs. In each row the lists of both have the same length. If
    /// JSON files have single values in the paired column, a null in this one is a missing value, too, and no list.
    pub paired_column: Option<String>,
}

/// How integers that are written as text are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Integers {
    /// Integers of 64 bits with a sign.
    #[default]
    Signed,
    /// The same, in a column that is also read as numbers: its field says so ([`is_number_of_text`](crate::is_number_of_text)).
    AlsoNumbers,
    /// Also integers of 64 bits without a sign. They wrap, so that they have the keys that they have as `UInt64`.
    Wrapping,
    /// Integers of 64 bits with a sign; in a column of numbers, integers that a floating-point number holds exactly. The error about a
    /// number that would be rounded says that the column is kept.
    Exact,
    /// Integers of 64 bits with a sign, and numbers with a fraction or an exponent, which are rounded down.
    RoundedDown,
    /// Integers that can be written back as they are: none with zeros in front. This holds for numbers, too.
    AsWritten,
}

/// The type of the values of a column of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Numbers: `Float64`.
    Number,
    /// Integers of 64 bits: `Int64`.
    Integer,
    /// Up to 16 hexadecimal digits: the number that they stand for, `UInt64`. Its field says so
    /// ([`is_hex_of_text`](crate::is_hex_of_text)).
    Hex,
    /// Up to 16 hexadecimal digits as they are written: `Utf8`. An integer of JSON becomes its digits.
    HexText,
    /// Integers of 64 bits with a sign or without one, as text without zeros in front: `Utf8`. Its field says so
    /// ([`is_integer_of_text`](crate::is_integer_of_text)).
    IntegerText,
    /// Any text: `Utf8`.
    Text,
}

impl std::fmt::Display for ValueKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Number => "numbers",
            Self::Integer | Self::IntegerText => "integers",
            Self::Hex | Self::HexText => "hexadecimal digits",
            Self::Text => "text",
        })
    }
}

impl FileColumn {
    /// A column.
    pub fn new(name: impl Into<String>, kind: ValueKind) -> Self {
        Self {
            name: name.into(),
            kind,
            integers: Integers::default(),
            optional: false,
            folder_text: false,
            list: false,
            single: false,
            paired_column: None,
        }
    }

    /// The same, with integers that are read in this way.
    #[must_use]
    pub fn integers(self, integers: Integers) -> Self {
        Self { integers, ..self }
    }

    /// The same, but files may lack it or not.
    #[must_use]
    pub fn optional(self, optional: bool) -> Self {
        Self { optional, ..self }
    }

    /// The same; where it is a folder, it is text (true), or integers if all values of the folder are (false).
    #[must_use]
    pub fn folder_text(self, folder_text: bool) -> Self {
        Self { folder_text, ..self }
    }

    /// The same, but with lists where JSON files do not show what it holds.
    #[must_use]
    pub fn list(self, list: bool) -> Self {
        Self { list, ..self }
    }

    /// The same, but a list in it is a bad row.
    #[must_use]
    pub fn single(self, single: bool) -> Self {
        Self { single, ..self }
    }

    /// The same, but paired with this column.
    #[must_use]
    pub fn paired_column(self, paired_column: Option<String>) -> Self {
        Self { paired_column, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::path::Path;

    use super::*;

    fn files(names: &[&str]) -> Vec<DataFile> {
        let file = |name: &&str| DataFile {
            store: Arc::new(InMemory::new()),
            path: Path::from(*name),
            size: 1,
            e_tag: None,
            name: (*name).to_owned(),
            partitions: Default::default(),
        };
        names.iter().map(file).collect()
    }

    #[test]
    fn names_tell_the_format_and_the_default_is_for_names_that_do_not() {
        let of = |name: &str, default| Format::of_files(&files(&[name]), default).unwrap();
        for (name, told, with_csv) in [
            ("a/x.snappy.parquet", Format::Parquet, Format::Parquet),
            ("a.csv/part-0", Format::Parquet, Format::Csv),
            ("x.CSV", Format::Csv, Format::Csv),
            ("x.csv.gz", Format::Csv, Format::Csv),
            ("part-00000.json", Format::JsonLines, Format::JsonLines),
            ("x.jsonl.zst", Format::JsonLines, Format::JsonLines),
            ("x.arrow", Format::Arrow, Format::Arrow),
            ("x.Feather", Format::Arrow, Format::Arrow),
            ("x.ndjson", Format::JsonLines, Format::JsonLines),
            ("x.txt", Format::Criteo, Format::Csv),
            ("x.tsv.zst", Format::Criteo, Format::Csv),
            ("x.gz", Format::Criteo, Format::Csv),
            ("x.bz2", Format::Criteo, Format::Csv),
            ("x.csv.ZIP", Format::Csv, Format::Csv),
            ("x.zip", Format::Criteo, Format::Csv),
            ("x.tar.gz", Format::Criteo, Format::Csv),
            ("part-00000", Format::Parquet, Format::Csv),
        ] {
            assert_eq!(of(name, None), told, "{name}");
            assert_eq!(of(name, Some(Format::Csv)), with_csv, "{name}");
        }
    }

    #[test]
    fn files_of_several_formats_are_refused_and_one_of_each_is_named() {
        let said = Format::of_files(&files(&["d/a.parquet", "d/b.parquet", "d/c.csv"]), None).unwrap_err().to_string();
        assert!(said.contains("`d/a.parquet` is Parquet") && said.contains("`d/c.csv` is CSV"), "{said}");
        assert!(Format::of_files(&files(&["d/a.csv", "d/c.csv.gz"]), None).is_ok());
    }
}
