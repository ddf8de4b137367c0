//! Cuts a plain text file into byte ranges. A range holds the lines that begin in it, so that every line belongs to exactly
//! one range, wherever the cuts are.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use forebay_actors::Fault;

use super::bad_row::MAX_LINE;
use crate::file::DataFile;

/// Bytes read beyond the nominal end at first: most lines end there.
const TAIL: u64 = 8 * 1024;

/// The lines that begin in a range.
#[derive(Debug)]
pub(crate) struct Cut {
    /// Whole lines; but the last may be cut after more than [`MAX_LINE`] bytes, or lack its line end at the file's end.
    pub(crate) text: Bytes,
    /// Byte of the file where `text` begins.
    pub(crate) offset: u64,
    /// Whether the last line has no end within [`MAX_LINE`] bytes.
    pub(crate) endless: bool,
}

/// The nominal ranges of a file.
pub(crate) fn ranges(size: u64, range_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let step = range_bytes.max(1);
    (0..size.div_ceil(step)).map(move |i| i * step..((i + 1) * step).min(size))
}

/// Bytes that [`read`] will hold, but for the end of a long last line.
pub(crate) fn cost(nominal: &Range<u64>) -> u64 {
    nominal.end - nominal.start + TAIL
}

/// Reads the lines that begin in the nominal range.
pub(crate) async fn read(file: &DataFile, nominal: Range<u64>) -> Result<Cut, Fault> {
    // The byte before tells whether a line begins at the very start.
    let start = nominal.start.saturating_sub(1);
    let mut end = (nominal.end + TAIL).min(file.size);
    let mut text = file.read(start..end).await?;
    let behind =
        |text: &Bytes, from: u64| memchr::memchr(b'\n', &text[(from - start) as usize..]).map(|i| from + i as u64 + 1);
    let first = match nominal.start {
        0 => 0,
        // A line that fills the whole range belongs to an earlier one.
        _ => match behind(&text, start).filter(|first| *first < nominal.end) {
            Some(first) => first,
            None => return Ok(Cut { text: Bytes::new(), offset: nominal.start, endless: false }),
        },
    };
    // From the last byte of the range on: the first line end there ends the last line that begins in it.
    let mut last = behind(&text, nominal.end - 1);
    while last.is_none() && end < file.size && end - nominal.end <= MAX_LINE as u64 {
        let more = (end + (256 << 10)).min(file.size);
        let mut longer = BytesMut::from(text);
        longer.extend_from_slice(&file.read(end..more).await?);
        text = longer.freeze();
        last = behind(&text, end);
        end = more;
    }
    let endless = last.is_none() && end < file.size;
    let text = text.slice((first - start) as usize..(last.unwrap_or(end) - start) as usize);
    Ok(Cut { text, offset: first, endless })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::path::Path;
    use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
    use proptest::prelude::*;

    use super::*;

    async fn stored(text: &[u8]) -> DataFile {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let path = Path::from("f");
        store.put(&path, PutPayload::from(text.to_vec())).await.unwrap();
        DataFile { store, path, size: text.len() as u64, e_tag: None, name: "f".into(), partitions: Default::default() }
    }

    proptest! {
        #[test]
        fn the_ranges_together_are_the_file(
            lines in prop::collection::vec(0usize..30, 1..40), step in 1u64..60, ended: bool
        ) {
            let mut text: Vec<u8> = lines.iter().enumerate()
                .flat_map(|(i, len)| std::iter::repeat_n(b'a' + (i % 26) as u8, *len).chain([b'\n'])).collect();
            if !ended { text.pop(); }
            prop_assume!(!text.is_empty());
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let file = stored(&text).await;
                let mut whole = Vec::new();
                for nominal in ranges(file.size, step) {
                    let cut = read(&file, nominal.clone()).await.unwrap();
                    assert!(!cut.endless);
                    if !cut.text.is_empty() {
                        assert_eq!(cut.offset, whole.len() as u64);
                        assert!(nominal.contains(&cut.offset));
                        assert!(cut.text.ends_with(b"\n") || cut.offset + cut.text.len() as u64 == file.size);
                    }
                    whole.extend_from_slice(&cut.text);
                }
                assert_eq!(whole, text);
            });
        }
    }

    #[tokio::test]
    async fn an_endless_line_is_read_no_further_than_the_longest_line() {
        let mut text = b"0\n1".to_vec();
        text.resize(5 << 20, b'x');
        text.extend_from_slice(b"\nlast\n");
        let file = stored(&text).await;
        let cut = read(&file, 0..100).await.unwrap();
        assert!(cut.endless && cut.text.len() > MAX_LINE && cut.text.len() < MAX_LINE + (512 << 10));
        let cut = read(&file, 100..4 << 20).await.unwrap();
        assert!(cut.text.is_empty());
        let cut = read(&file, 4 << 20..file.size).await.unwrap();
        assert_eq!(cut.text, "last\n");
        assert_eq!(file.lines_before(cut.offset).await.unwrap(), 2);
    }
}
