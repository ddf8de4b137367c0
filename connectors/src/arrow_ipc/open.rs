//! All files of a data set, ready to be read: their layouts, the columns wanted of them, and the types over all files.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Fields, Schema, SchemaRef};
use arrow::ipc;
use forebay_actors::Fault;
use forebay_base::{catch_expected, panic_message};
use futures::{StreamExt, TryStreamExt};

use super::blocks::Block;
use super::dictionaries::DictionaryBlock;
use super::layout::{self, Layout, Place, damaged};
use super::types;
use crate::column_types::dictionary;
use crate::file::DataFile;
use crate::names::{names_of, unnamed_columns};
use crate::partition_columns::PartitionColumns;
use crate::typed_columns::{self, FoundColumns};

/// Files that are opened at once.
const AT_ONCE: usize = 16;

/// One file, ready to be read.
pub(crate) struct IpcFile {
    pub(crate) file: Arc<DataFile>,
    pub(crate) found: FoundColumns,
    /// The columns that are decoded, in the file's order.
    pub(super) decoded: SchemaRef,
    pub(super) dictionaries: Vec<DictionaryBlock>,
    pub(crate) batches: Vec<BatchBlock>,
}

/// A record batch.
pub(crate) struct BatchBlock {
    pub(super) block: Block,
    /// How many of the file's wanted dictionaries stand before it.
    pub(super) before: usize,
}

impl IpcFile {
    /// Rows of each record batch.
    pub(super) fn rows_of_batches(&self) -> Vec<u64> {
        self.batches.iter().map(|batch| batch.block.rows).collect()
    }

    /// The dictionaries of a record batch, without replaced ones.
    pub(super) fn dictionaries_of(&self, before: usize) -> Vec<&DictionaryBlock> {
        let (mut replaced, mut found) = (HashSet::new(), Vec::new());
        for dictionary in self.dictionaries[..before].iter().rev() {
            if !replaced.contains(&dictionary.number) {
                found.push(dictionary);
                if !dictionary.is_delta {
                    replaced.insert(dictionary.number);
                }
            }
        }
        found.reverse();
        found
    }
}

/// Reads the headers of all files, in their order. `columns` is `None` for all columns of the first file, or with `of_all_files` for all
/// columns of all files; `as_text`: columns that are text where they are folders.
pub(crate) async fn load(
    files: Vec<DataFile>,
    columns: Option<&[String]>,
    optional: &[String],
    of_all_files: bool,
    as_text: &[String],
    dictionaries: bool,
) -> Result<Vec<Arc<IpcFile>>, Fault> {
    let layouts: Vec<(DataFile, Layout)> = futures::stream::iter(files)
        .map(|file| async move {
            let layout = layout::read(&file).await?;
            Ok::<_, Fault>((file, layout))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let (wanted, optional) = match columns {
        Some(columns) => (columns.to_vec(), optional.to_vec()),
        None => {
            let names: Vec<_> =
                layouts.iter().map(|(file, found)| (file.name.as_str(), names_of(&found.schema))).collect();
            unnamed_columns(&names, of_all_files)
        }
    };
    let text = if dictionaries { dictionary() } else { DataType::Utf8 };
    let folders = PartitionColumns::new(layouts.iter().map(|(file, _)| file), &wanted, as_text, &text);
    let mut opened = Vec::with_capacity(layouts.len());
    for (file, layout) in layouts {
        let in_batches = |field: &_| types::field_in_batches(field, dictionaries);
        let found = typed_columns::find(&file, layout.schema.fields(), &wanted, &optional, &folders, in_batches)?;
        // Arrow's readers of headers may panic at a damaged file.
        let read = catch_expected(|| blocks(&layout, &found.places));
        let read = read.unwrap_or_else(|panic| Err(panic_message(&*panic).to_owned()));
        let (decoded, dictionaries, batches) = read.map_err(|why| damaged(&file.name, why))?;
        opened.push(IpcFile { file: Arc::new(file), found, decoded, dictionaries, batches });
    }
    let all: Vec<_> = opened.iter().map(|opened| (&*opened.file, &opened.found.schema)).collect();
    if let Some(schema) = typed_columns::unified(&all)? {
        opened.iter_mut().for_each(|opened| opened.found.read_as(&schema));
    }
    Ok(opened.into_iter().map(Arc::new).collect())
}

type Blocks = (SchemaRef, Vec<DictionaryBlock>, Vec<BatchBlock>);

/// The parts of each message that the columns at `places` need.
fn blocks(layout: &Layout, places: &[usize]) -> Result<Blocks, String> {
    let fields = layout.schema.fields();
    let mut numbers = Vec::new();
    places.iter().for_each(|&place| types::dictionaries(&fields[place], &mut numbers));
    // The wanted dictionaries, and for each of all dictionaries how many wanted ones stand before it.
    let (mut dictionaries, mut before) = (Vec::new(), vec![0]);
    for (number, place) in layout.dictionaries.iter().enumerate() {
        let block = dictionary_block(place, &numbers).map_err(|why| format!("dictionary {number}: {why}"))?;
        dictionaries.extend(block);
        before.push(dictionaries.len());
    }
    let mut batches = Vec::with_capacity(layout.batches.len());
    for (number, (place, all_before)) in layout.batches.iter().enumerate() {
        let block = batch_block(place, fields, places).map_err(|why| format!("record batch {number}: {why}"))?;
        batches.push(BatchBlock { block, before: before[*all_before] });
    }
    let decoded = places.iter().map(|&place| types::decoded(&fields[place])).collect::<Fields>();
    Ok((Arc::new(Schema::new(decoded)), dictionaries, batches))
}

fn batch_block(place: &Place, fields: &Fields, places: &[usize]) -> Result<Block, String> {
    let message = layout::message(&place.header)?;
    let batch = message.header_as_record_batch().ok_or("its message is of another kind")?;
    Block::new(batch, message.version(), &place.body, fields, places)
}

/// `None`: no wanted column has the dictionary.
fn dictionary_block(place: &Place, numbers: &[(i64, DataType)]) -> Result<Option<DictionaryBlock>, String> {
    let message = layout::message(&place.header)?;
    let dictionary: ipc::DictionaryBatch<'_> =
        message.header_as_dictionary_batch().ok_or("its message is of another kind")?;
    let number = dictionary.id();
    let Some((_, values)) = numbers.iter().find(|(wanted, _)| *wanted == number) else { return Ok(None) };
    let batch = dictionary.data().ok_or("it has no values")?;
    let fields = Schema::new(vec![arrow::datatypes::Field::new("", values.clone(), true)]).fields;
    let block = Block::new(batch, message.version(), &place.body, &fields, &[0])?;
    Ok(Some(DictionaryBlock { number, is_delta: dictionary.isDelta(), values: values.clone(), block }))
}
