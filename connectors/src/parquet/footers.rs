//! Reads the footers of Parquet files, and the types of columns over all files.

use std::sync::Arc;

use arrow::datatypes::DataType;
use bytes::Bytes;
use forebay_actors::{Fault, FaultKind};
use futures::{StreamExt, TryStreamExt};
use parquet::errors::ParquetError;
use parquet::file::metadata::FooterTail;

use super::footer::{Footer, ParsedFooter};
use super::row_group::RowGroup;
use super::schemas::Schemas;
use super::selection::{self, Wanted};
use crate::column_types::dictionary;
use crate::file::DataFile;
use crate::names::{names_of, unnamed_columns};
use crate::partition_columns::PartitionColumns;
use crate::store_error::store_fault;
use crate::typed_columns;

/// Footers that are fetched at once.
const AT_ONCE: usize = 16;

/// Bytes read from the end of a file at first: most footers are smaller, so that one request suffices.
const FOOTER_GUESS: u64 = 64 * 1024;

/// Bytes at the end of a file: the length of the footer before them, and a magic number.
const TAIL: usize = 8;

/// Reads all footers, in the order of the files. `columns` is `None` for all columns of the first file, or with `of_all_files` for all
/// columns of all files; `as_text`: columns that are text where they are folders.
pub(crate) async fn load(
    files: Vec<DataFile>,
    columns: Option<&[String]>,
    optional: &[String],
    of_all_files: bool,
    as_text: &[String],
    dictionaries: bool,
) -> Result<Vec<Arc<Footer>>, Fault> {
    let text = if dictionaries { dictionary() } else { DataType::Utf8 };
    let mut wanted = columns.map(|columns| {
        let folders = PartitionColumns::new(files.iter(), columns, as_text, &text);
        Wanted { columns: columns.to_vec(), optional: optional.to_vec(), folders }
    });
    let mut schemas = Schemas::new(dictionaries);
    let (mut all_columns, mut footers) = (Vec::new(), Vec::with_capacity(files.len()));
    let fetched = futures::stream::iter(files).map(|file| async move {
        let bytes = read(&file).await?;
        Ok::<_, Fault>((file, bytes))
    });
    let mut fetched = fetched.buffered(AT_ONCE);
    while let Some((file, bytes)) = fetched.try_next().await? {
        let parsed = parse(file, &bytes, &mut schemas)?;
        match &wanted {
            Some(wanted) => footers.push(selection::select(parsed, wanted, &mut schemas)),
            None => all_columns.push(parsed),
        }
    }
    if wanted.is_none() {
        let names: Vec<_> =
            all_columns.iter().map(|parsed| (parsed.file.name.as_str(), names_of(&parsed.schema.arrow))).collect();
        let (columns, optional) = unnamed_columns(&names, of_all_files);
        let files = all_columns.iter().map(|parsed| &parsed.file);
        let folders = PartitionColumns::new(files, &columns, as_text, &text);
        let wanted = wanted.insert(Wanted { columns, optional, folders });
        footers.extend(all_columns.into_iter().map(|parsed| selection::select(parsed, wanted, &mut schemas)));
    }
    let mut footers = footers.into_iter().collect::<Result<Vec<Footer>, Fault>>()?;
    let files: Vec<_> = footers.iter().map(|footer| (&*footer.file, &footer.found.schema)).collect();
    if let Some(schema) = typed_columns::unified(&files)? {
        footers.iter_mut().for_each(|footer| footer.found.read_as(&schema));
    }
    Ok(footers.into_iter().map(Arc::new).collect())
}

/// The bytes of a footer, without the tail.
async fn read(file: &DataFile) -> Result<Bytes, Fault> {
    let fetch = |range| async { file.get(range).await.map_err(|e| ParquetError::External(Box::new(e))) };
    let all = async {
        let size = file.size;
        let end = size
            .checked_sub(TAIL as u64)
            .ok_or_else(|| ParquetError::EOF(format!("file size of {size} is less than footer")))?;
        let first = size.saturating_sub(FOOTER_GUESS);
        let guess = fetch(first..size).await?;
        let tail = guess.len().checked_sub(TAIL).filter(|_| guess.len() as u64 == size - first);
        let tail = tail.ok_or_else(|| {
            ParquetError::EOF(format!("metadata requires {} bytes, but could only read {}", size - first, guess.len()))
        })?;
        if guess[..guess.len() - 1].ends_with(b"ORC") {
            return Err(ParquetError::General(ORC.to_owned()));
        }
        let tail = FooterTail::try_from(&guess[tail..])?;
        if tail.is_encrypted_footer() {
            return Err(ParquetError::General(ENCRYPTED.to_owned()));
        }
        let start = end.checked_sub(tail.metadata_length() as u64).ok_or_else(|| {
            let needed = tail.metadata_length() + TAIL;
            ParquetError::EOF(format!("file size of {size} is less than footer + metadata {needed}"))
        })?;
        match start.checked_sub(first) {
            Some(from) => Ok(guess.slice(from as usize..guess.len() - TAIL)),
            None => fetch(start..end).await,
        }
    };
    all.await.map_err(|e| fault(file, e))
}

fn parse(file: DataFile, bytes: &Bytes, schemas: &mut Schemas) -> Result<ParsedFooter, Fault> {
    let parsed = Arc::new(schemas.parse(bytes).map_err(|e| fault(&file, e))?);
    let schema = schemas.whole(&file.name, bytes, &parsed)?;
    let row_groups = parsed.row_groups().iter().map(RowGroup::new).collect();
    Ok(ParsedFooter { file, schema, row_groups })
}

/// What the error says of a file whose last four bytes are PARE instead of PAR1.
const ENCRYPTED: &str = "encrypted footer";

/// What the error says of a file that ends as ORC: with `ORC` and a byte for the length of what is before.
const ORC: &str = "footer of ORC";

/// The fault of a footer that cannot be read.
fn fault(file: &DataFile, error: ParquetError) -> Fault {
    let name = &file.name;
    let cut = || {
        Fault::user(format!(
            "`{name}` is not a whole Parquet file ({} bytes): it is of another format, was cut short, or is still being written",
            file.size
        ))
        .kind(FaultKind::BadData)
    };
    match error {
        ParquetError::External(e) => match e.downcast::<object_store::Error>() {
            Ok(e) => store_fault(&format!("cannot read the footer of `{name}`"), *e),
            // For instance, the footer has text that is not UTF-8.
            Err(e) => cut().because(e),
        },
        e if e.to_string().contains(ENCRYPTED) => Fault::user(format!(
            "`{name}` is encrypted, which Forebay does not read: write the file again without encryption"
        )),
        e if e.to_string().contains(ORC) => Fault::user(format!(
            "`{name}` is ORC, which Forebay does not read: convert it to Parquet, for instance with Spark or pyarrow"
        )),
        e => cut().because(e),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};
    use arrow::record_batch::RecordBatch;
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::input::Input;

    /// A bug: it was called not whole, as if it were still being written.
    #[tokio::test]
    async fn a_file_that_is_replaced_after_it_was_listed_is_told_as_that() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        std::fs::write(&path, "PAR1 and so on").unwrap();
        let files = Input::from(path.clone()).list().await.unwrap();
        std::fs::write(&path, "of another length, and no Parquet file").unwrap();
        let said = load(files, None, &[], false, &[], false).await.unwrap_err().to_string();
        assert!(said.contains("a.parquet") && said.contains("was replaced or changed after it was listed"), "{said}");
    }

    /// A bug: every footer was kept with all of its columns and their statistics: 1.4 KB for each column of each file.
    #[tokio::test]
    async fn files_with_many_columns_share_their_schema_and_keep_only_the_columns_that_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, columns: usize, key: i64, note: &str| {
            let values = |column: usize| -> ArrayRef { Arc::new(Int64Array::from(vec![key + column as i64])) };
            let names = (0..columns).map(|column| (format!("c{column}"), values(column)));
            let rows = RecordBatch::try_from_iter(names).unwrap();
            let metadata = [("pandas".to_owned(), note.to_owned())].into();
            let schema = Arc::new(rows.schema().as_ref().clone().with_metadata(metadata));
            let mut file =
                ArrowWriter::try_new(std::fs::File::create(dir.path().join(file)).unwrap(), Arc::clone(&schema), None)
                    .unwrap();
            file.write(&rows.with_schema(schema).unwrap()).unwrap();
            file.close().unwrap();
        };
        write("a.parquet", 300, 1, "x");
        write("b.parquet", 300, 200, "x");
        // Pandas notes the range of the rows of each file.
        write("c.parquet", 300, 3, "y");
        write("d.parquet", 301, 4, "x");
        let load = |columns: Option<&'static [&'static str]>| {
            let columns = columns.map(|names| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
            let path = dir.path().to_owned();
            async move {
                let files = Input::from(path).list().await.unwrap();
                load(files, columns.as_deref(), &[], false, &[], true).await.unwrap()
            }
        };
        let footers = load(Some(&["c7", "c299", "c5"])).await;
        for footer in &footers {
            assert_eq!(footer.row_groups[0].chunks.len(), 3);
            assert!(Arc::ptr_eq(&footer.schema, &footers[0].schema), "{}", footer.file.name);
            assert!(Arc::ptr_eq(&footer.found.schema, &footers[0].found.schema));
            let alone = footer.alone(0).unwrap();
            let columns: Vec<_> = alone.row_group(0).columns().iter().map(|c| c.column_path().string()).collect();
            assert_eq!(columns, ["c5", "c7", "c299"]);
        }
        let all = load(None).await;
        assert!(all.iter().all(|footer| footer.row_groups[0].chunks.len() == 300));
        assert!(Arc::ptr_eq(&all[0].schema, &all[3].schema));
    }
}
