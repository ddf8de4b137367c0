//! The `[data]` section of a job.

use forebay_actors::Fault;
use forebay_connectors::{CsvOptions, Format, OnBadRow, Predicate};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Knob;
use super::paths::Paths;

/// Where the rows are and how they are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataOptions {
    /// Rows to train on: a file, a folder or a glob, as a path or a URL, or a list of them, for instance `rows/train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Paths>,
    /// Rows to evaluate on after training, a path or a list, for instance `rows/test`. Default: no evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<Paths>,
    /// Which partition folders (`column=value`) below `train` are read, for instance `day >= '2026-11-20' and hour < 6`.
    /// Other folders are not listed. To leave out rows by their values in the files, write a row filter with `drop_rows`
    /// ([how](in-rust.md#a-row-filter-or-a-stage-of-your-own)). Default: all folders.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub filter: Option<Predicate>,
    /// Which partition folders below `eval` are read, for instance `day = '2026-11-21'`. Default: all folders; `where` does
    /// not apply to evaluation.
    #[serde(rename = "eval_where", skip_serializing_if = "Option::is_none")]
    pub eval_filter: Option<Predicate>,
    /// A custom source, by its name in the program's `Registry`, for instance `queue`. It gets the paths in
    /// `train` or `eval`. Default: the source of the files' format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The format of the files. Default: by the endings of their names ([data.md](data.md#formats)), and for `.txt`, `.tsv`, `.gz`, `.zst`
    /// and unknown endings by their first bytes; other text is Criteo text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// The format of the files of `eval`. Default: by the endings of their names or by their first bytes; other text has `format`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_format: Option<Format>,
    /// The form of CSV files.
    pub csv: CsvOptions,
    /// Passes over the training rows. From 1 to 1000000000.
    pub epochs: usize,
    /// Shuffle the order of splits, anew in each epoch.
    pub shuffle: bool,
    /// Rows of a window, rounded up to whole batches; the rows of a window are shuffled together. 0 keeps the order of rows.
    /// A batch never spans two windows, so if rows are rejected, the last batch of a window is short. At most 1048576.
    /// With several epochs, row groups of Parquet should have fewer rows: their order differs from epoch to epoch, that of windows within a
    /// row group does not.
    pub shuffle_rows: usize,
    /// Rows of a record batch, the unit in which rows are read and parsed. From 1 to 1048576.
    pub read_rows: usize,
    /// Most bytes that are fetched ahead of decoding, for instance `256MiB`. Default: 64 MiB at first; more, up to 1 GiB and within the
    /// free memory, while the run waits for its store and the store gives more if more is asked for at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ahead: Option<ByteSize>,
    /// Most bytes that are decoded ahead of parsing.
    pub decode_ahead: ByteSize,
    /// Threads that decode. "auto": at first a quarter of `pipeline.cores`, at least 1 and at most 16; more, up to all cores, while
    /// the run waits for decoding. A number is 1 to 1024.
    pub decode_threads: Knob,
    /// Share of the negative rows (label 0) that are trained on, anew in each epoch. Predictions are corrected for it, so that they
    /// are as high as with all rows (He et al., ADKDD 2014). 1 keeps all rows. Above 0 and at most 1.
    pub negatives: f64,
    /// What happens to a row that cannot be parsed.
    pub on_bad_row: OnBadRow,
}

impl Default for DataOptions {
    fn default() -> Self {
        Self {
            train: None,
            eval: None,
            filter: None,
            eval_filter: None,
            source: None,
            format: None,
            eval_format: None,
            csv: CsvOptions::default(),
            epochs: 1,
            shuffle: true,
            shuffle_rows: 65_536,
            read_rows: 8192,
            read_ahead: None,
            decode_ahead: ByteSize(64 << 20),
            decode_threads: Knob::AUTO,
            negatives: 1.0,
            on_bad_row: OnBadRow::Fail,
        }
    }
}

/// Bytes that are fetched ahead at first and at most, if the job does not say how many.
const FIRST_READ_AHEAD: usize = 64 << 20;
const MOST_READ_AHEAD: usize = 1 << 30;

impl DataOptions {
    /// Bytes that are fetched ahead at first.
    pub fn first_read_ahead(&self) -> usize {
        self.read_ahead.map_or(FIRST_READ_AHEAD, |bytes| bytes.0)
    }

    /// Bytes that are fetched ahead at most, if the run waits for its store.
    pub fn most_read_ahead(&self) -> usize {
        self.read_ahead.map_or(MOST_READ_AHEAD, |bytes| bytes.0)
    }

    /// Checks values, and `on_bad_row` instead of its own; the fault names the field.
    pub(super) fn check(&self, on_bad_row: &OnBadRow) -> Result<(), Fault> {
        if !(self.negatives > 0.0 && self.negatives <= 1.0) {
            return Err(Fault::user(format!(
                "data.negatives is {}, expected a share above 0 and at most 1",
                self.negatives
            )));
        }
        if let OnBadRow::WriteTo(folder) = on_bad_row {
            let folder = folder.to_string_lossy();
            if folder.is_empty() {
                return Err(Fault::user("data.on_bad_row: write_to is empty, expected a local folder"));
            }
            if folder.contains("://") {
                return Err(Fault::user(format!(
                    "data.on_bad_row: write_to is {folder}, expected a local folder without `://`: bad rows are appended to files there"
                )));
            }
        }
        self.csv.check().map_err(|fault| fault.context("data.csv.delimiter"))
    }

    /// What is added to the logits of a model that was trained on these rows. With a share w of the negatives its probability p is too
    /// high; q = p / (p + (1 - p) / w) is corrected (He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD
    /// 2014), and the logit of q is that of p plus ln w.
    pub fn logit_correction(&self) -> f32 {
        self.negatives.ln() as f32
    }
}

/// A number of bytes: an integer, or text such as "64MiB", "1.5 GB" or "800k".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub usize);

impl std::str::FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a number of bytes, expected for instance 64MiB, 1.5GB or 4096");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let number: f64 = trimmed[..digits].parse().map_err(|_| wrong())?;
        let unit: f64 = match trimmed[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "t" | "tb" => 1e12,
            "kib" => 1024.0,
            "mib" => 1024.0 * 1024.0,
            "gib" => 1024.0 * 1024.0 * 1024.0,
            "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => return Err(wrong()),
        };
        let bytes = number * unit;
        if bytes.is_finite() && bytes < 1e18 { Ok(Self(bytes as usize)) } else { Err(wrong()) }
    }
}

impl std::fmt::Display for ByteSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            b if b > 0 && b % (1 << 30) == 0 => write!(f, "{}GiB", b >> 30),
            b if b > 0 && b % (1 << 20) == 0 => write!(f, "{}MiB", b >> 20),
            b if b > 0 && b % (1 << 10) == 0 => write!(f, "{}KiB", b >> 10),
            b => write!(f, "{b}"),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;
        impl de::Visitor<'_> for Size {
            type Value = ByteSize;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of bytes, such as \"64MiB\"")
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                usize::try_from(bytes).map(ByteSize).map_err(|_| E::custom("a number of bytes cannot be negative"))
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes as usize))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predicates_are_checked_when_the_job_is_read() {
        let read = |text: &str| toml::from_str::<DataOptions>(text);
        let data = read("where = \"day >= '2026-11-20' and hour < 6\"\neval_where = \"day = '2026-11-21'\"").unwrap();
        assert_eq!(data.filter.as_ref().unwrap().to_string(), "day >= '2026-11-20' and hour < 6");
        assert_eq!(read(&toml::to_string(&data).unwrap()).unwrap(), data);
        let error = read("epochs = 1\nwhere = \"day >= 2026-11-20\"").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("stands in quotes: '2026-11-20'"), "{error}");
    }

    #[test]
    fn byte_sizes_parse_with_and_without_units() {
        for (text, bytes) in
            [("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000), ("800k", 800_000), ("2 TB", 2_000_000_000_000), ("7", 7)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
        }
        for text in ["", "MiB", "-1", "1 furlong", "1e99GiB", "..GB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!(ByteSize(64 << 20).to_string().parse(), Ok(ByteSize(64 << 20)));
    }
}
