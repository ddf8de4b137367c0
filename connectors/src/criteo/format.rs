//! Criteo's click logs as a format of text.

use forebay_actors::Fault;

use super::batch_builder::BatchBuilder;
use super::schema::Categories;
use crate::file::DataFile;
use crate::input::Input;
use crate::options::ReadOptions;
use crate::text::{LineFormat, TextSource};

/// Criteo's click logs: label, 13 integers, 26 hex categories, tab-separated, without a header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Criteo {
    categories: Categories,
    label_optional: bool,
}

/// Reads Criteo's click logs: label, 13 integers, 26 hex categories, tab-separated.
pub type CriteoSource = TextSource<Criteo>;

impl CriteoSource {
    /// Reads a file, a folder, a glob, or several of them.
    pub fn new(input: impl Into<Input>, options: ReadOptions) -> Self {
        Self::of(Criteo::default(), input, options)
    }

    /// Whether categories come as numbers (the default) or as hex strings.
    #[must_use]
    pub fn categories(self, categories: Categories) -> Self {
        let format = Criteo { categories, ..*self.format() };
        self.with_format(format)
    }

    /// Whether lines without a label, of 39 fields, are rows, too, with label 0: for predictions. Default: false.
    #[must_use]
    pub fn label_optional(self, label_optional: bool) -> Self {
        let format = Criteo { label_optional, ..*self.format() };
        self.with_format(format)
    }
}

impl LineFormat for Criteo {
    type Head = ();
    type Parser = BatchBuilder;

    const NAME: &'static str = "criteo text";
    const HEADER: bool = false;

    async fn heads(&self, files: &[DataFile]) -> Result<Vec<()>, Fault> {
        Ok(vec![(); files.len()])
    }

    fn row_bytes(&self, _heads: &[()]) -> u64 {
        250
    }

    fn parser(&self, _head: &(), capacity: usize) -> BatchBuilder {
        BatchBuilder::new(self.categories, capacity).label_optional(self.label_optional)
    }

    fn identity(&self) -> String {
        "text".to_owned()
    }
}
