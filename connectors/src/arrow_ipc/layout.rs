//! Which messages a file has, and where: from the footer of the file format, or along the messages of the stream format.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::{self, MessageHeader, MetadataVersion};
use bytes::Bytes;
use forebay_actors::{Fault, FaultKind};
use forebay_base::catch_expected;
use futures::{StreamExt, TryStreamExt};

use crate::file::DataFile;

const MAGIC: &[u8] = b"ARROW1";
/// The first version of Feather was a format of its own.
const FEATHER_1: &[u8] = b"FEA1";
/// Before the length of a message's header, since Arrow 0.15.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// The magic bytes and their padding, and the length and the magic bytes behind a footer.
const HEAD: u64 = 8;
const TAIL: u64 = 10;

/// Bytes that are read at once from the end of a file, or along a stream.
const GUESS: u64 = 64 * 1024;
/// Headers of one file that are fetched at once.
const AT_ONCE: usize = 16;

/// One message: its header, and the place of its body in the file.
pub(super) struct Place {
    /// A flatbuffer.
    pub(super) header: Bytes,
    pub(super) body: Range<u64>,
}

/// The messages of a file.
pub(super) struct Layout {
    pub(super) schema: SchemaRef,
    pub(super) dictionaries: Vec<Place>,
    /// Each record batch, and how many of the dictionaries stand before it.
    pub(super) batches: Vec<(Place, usize)>,
}

/// A fault of a file that is damaged: `why` says where and what.
pub(super) fn damaged(name: &str, why: impl std::fmt::Display) -> Fault {
    Fault::user(format!("`{name}`: {why}: the file is damaged, write or copy it again")).kind(FaultKind::BadData)
}

fn cut(file: &DataFile, why: &str) -> Fault {
    Fault::user(format!(
        "`{}` is not a whole Arrow IPC file ({} bytes): {why}; it is of another format, was cut short, or is still being written",
        file.name, file.size
    ))
    .kind(FaultKind::BadData)
}

/// Finds the messages of a file. Reads the headers only.
pub(super) async fn read(file: &DataFile) -> Result<Layout, Fault> {
    let head = file.read(0..file.size.min(HEAD)).await?;
    if head.starts_with(FEATHER_1) {
        return Err(Fault::user(format!(
            "`{}` is Feather version 1, which Forebay does not read: write it again as version 2",
            file.name
        )));
    }
    if head.starts_with(MAGIC) { of_file(file).await } else { of_stream(file).await }
}

async fn of_file(file: &DataFile) -> Result<Layout, Fault> {
    let size = file.size;
    if size < HEAD + TAIL {
        return Err(cut(file, "it has no footer"));
    }
    let from = size.saturating_sub(GUESS);
    let tail = file.read(from..size).await?;
    let (rest, end) = tail.split_at(tail.len() - TAIL as usize);
    let (length, magic) = end.split_at(4);
    if magic != MAGIC {
        return Err(cut(file, "it does not end as one"));
    }
    let length = i32::from_le_bytes(length.try_into().expect("four bytes"));
    let length = u64::try_from(length).ok().filter(|&length| length <= size - HEAD - TAIL);
    let length = length.ok_or_else(|| cut(file, "its footer is longer than the file"))?;
    let footer = match rest.len().checked_sub(length as usize) {
        Some(at) => tail.slice(at..rest.len()),
        None => file.read(size - TAIL - length..size - TAIL).await?,
    };
    let footer = ipc::root_as_footer(&footer).map_err(|e| damaged(&file.name, "its footer").because(e.to_string()))?;
    let schema = footer.schema().ok_or_else(|| damaged(&file.name, "its footer has no schema"))?;
    let schema = schema_of(file, schema)?;
    let end = size - TAIL - length;
    let dictionaries = places(file, footer.dictionaries().into_iter().flatten(), end).await?;
    let batches = places(file, footer.recordBatches().into_iter().flatten(), end).await?;
    let before = dictionaries.len();
    Ok(Layout { schema, dictionaries, batches: batches.into_iter().map(|batch| (batch, before)).collect() })
}

/// The messages that a footer names; they lie before `end`.
async fn places(file: &DataFile, blocks: impl Iterator<Item = &ipc::Block>, end: u64) -> Result<Vec<Place>, Fault> {
    let mut left = end;
    let mut found = Vec::new();
    for (number, block) in blocks.enumerate() {
        let (offset, header, body) = (block.offset(), i64::from(block.metaDataLength()), block.bodyLength());
        let mut place = || {
            let (offset, header, body) =
                (u64::try_from(offset).ok()?, u64::try_from(header).ok()?, u64::try_from(body).ok()?);
            let at = offset.checked_add(header)?;
            // Messages do not overlap, so together they are no longer than the file.
            left = left.checked_sub(header)?.checked_sub(body)?;
            let whole = offset >= HEAD && header >= 8 && at.checked_add(body)? <= end;
            whole.then(|| (offset..at, at..at + body))
        };
        found.push(place().ok_or_else(|| {
            let why = format!(
                "the footer places message {number} at byte {offset}, {header} and {body} bytes long, but messages end at byte {end}"
            );
            damaged(&file.name, why)
        })?);
    }
    let read = |(header, body): (Range<u64>, Range<u64>)| async move {
        let header =
            unframed(&file.read(header).await?).ok_or_else(|| damaged(&file.name, "a message without header"))?;
        Ok::<_, Fault>(Place { header, body })
    };
    futures::stream::iter(found).map(read).buffered(AT_ONCE).try_collect().await
}

/// The flatbuffer of a message's header, without the length before it.
fn unframed(framed: &Bytes) -> Option<Bytes> {
    let marked = framed.get(..4)? == CONTINUATION;
    let at = if marked { 8 } else { 4 };
    let length = i32::from_le_bytes(framed.get(at - 4..at)?.try_into().ok()?);
    let end = at.checked_add(usize::try_from(length).ok()?)?;
    (end <= framed.len()).then(|| framed.slice(at..end))
}

async fn of_stream(file: &DataFile) -> Result<Layout, Fault> {
    let mut window = Window { file, from: 0, bytes: Bytes::new() };
    let (mut at, mut schema, mut dictionaries, mut batches) = (0, None, Vec::new(), Vec::new());
    let why_cut = "a stream that ends within a message, or without its end mark";
    loop {
        let mut length = window.read(at, 4).await?.ok_or_else(|| cut(file, why_cut))?;
        at += 4;
        if *length == CONTINUATION {
            length = window.read(at, 4).await?.ok_or_else(|| cut(file, why_cut))?;
            at += 4;
        } else if schema.is_none() && at > 4 {
            return Err(cut(file, "it does not begin as one"));
        }
        let length = i32::from_le_bytes((*length).try_into().expect("four bytes"));
        let length = match u64::try_from(length) {
            Ok(0) => break,
            Ok(length) if length <= file.size => length,
            _ if schema.is_none() => return Err(cut(file, "it does not begin as one")),
            _ => return Err(damaged(&file.name, format!("a header of {length} bytes before byte {at}"))),
        };
        let header = window.read(at, length).await?.ok_or_else(|| cut(file, why_cut))?;
        at += length;
        let message = ipc::root_as_message(&header).map_err(|e| match schema {
            None => cut(file, "it does not begin as one").because(e.to_string()),
            Some(_) => damaged(&file.name, format!("the header before byte {at}")).because(e.to_string()),
        })?;
        let body = u64::try_from(message.bodyLength()).ok().and_then(|body| at.checked_add(body));
        let body = at..body.filter(|&end| end <= file.size).ok_or_else(|| cut(file, why_cut))?;
        at = body.end;
        let place = Place { header: header.clone(), body };
        match (message.header_type(), &schema) {
            (MessageHeader::Schema, None) => {
                let found = message.header_as_schema().ok_or_else(|| cut(file, "it does not begin as one"))?;
                schema = Some(schema_of(file, found)?);
            }
            (MessageHeader::DictionaryBatch, Some(_)) => dictionaries.push(place),
            (MessageHeader::RecordBatch, Some(_)) => batches.push((place, dictionaries.len())),
            (_, None) => return Err(cut(file, "it does not begin with a schema")),
            (other, Some(_)) => {
                let kind = other.variant_name().unwrap_or("unknown");
                return Err(damaged(&file.name, format!("a message of the kind {kind} before byte {at}")));
            }
        }
    }
    let schema = schema.ok_or_else(|| cut(file, "it does not begin with a schema"))?;
    if at < file.size {
        let left = file.size - at;
        let why = format!("{left} bytes after the end mark of its stream, at byte {at}: a file has one stream");
        return Err(damaged(&file.name, why));
    }
    Ok(Layout { schema, dictionaries, batches })
}

/// Bytes of a file around the requested ones, read in one request.
struct Window<'a> {
    file: &'a DataFile,
    from: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// `None` if the file ends before.
    async fn read(&mut self, at: u64, length: u64) -> Result<Option<Bytes>, Fault> {
        let Some(end) = at.checked_add(length).filter(|&end| end <= self.file.size) else { return Ok(None) };
        if at < self.from || end > self.from + self.bytes.len() as u64 {
            (self.from, self.bytes) = (at, self.file.read(at..end.max(at + GUESS).min(self.file.size)).await?);
        }
        let at = (at - self.from) as usize;
        Ok(Some(self.bytes.slice(at..at + length as usize)))
    }
}

/// The schema in a header. Arrow's conversion panics at unknown types, such as the integers of 128 bits of polars, and at some damaged
/// schemas; here a panic becomes an error.
fn schema_of(file: &DataFile, schema: ipc::Schema<'_>) -> Result<SchemaRef, Fault> {
    if !schema.endianness().equals_to_target_endianness() {
        return Err(Fault::user(format!(
            "`{}` has big-endian numbers, which Forebay does not read: write it again on a little-endian machine",
            file.name
        )));
    }
    let converted: Option<Schema> = schema.fields().and_then(|_| catch_expected(|| fb_to_schema(schema)).ok());
    converted.map(Arc::new).ok_or_else(|| {
        let is_unknown = |field: &ipc::Field<'_>| catch_expected(|| Field::from(*field)).is_err();
        let unknown = schema.fields().into_iter().flatten().find(is_unknown);
        match unknown.and_then(|field| field.name()) {
            Some(column) => Fault::user(format!(
                "`{}`: column `{column}` has a type that Forebay does not know, or the file is damaged: write it again without this \
                 column or with another type",
                file.name
            )),
            None => damaged(&file.name, "its schema"),
        }
    })
}

/// The message in a header, of a version that is read.
pub(super) fn message(header: &Bytes) -> Result<ipc::Message<'_>, String> {
    let message = ipc::root_as_message(header).map_err(|e| e.to_string())?;
    if message.version() < MetadataVersion::V4 {
        return Err("it is of an Arrow before 0.8".to_owned());
    }
    Ok(message)
}
