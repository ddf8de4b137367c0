//! Columns that are encrypted in a file whose footer is plain.
//!
//! The parser of footers skips the fields of encryption, because it is built without its feature `encryption`. But in place of pages, such
//! a column has encrypted modules, each behind its length.

use parquet::file::reader::ChunkReader as _;

use super::fetch::Fetched;
use super::footer::Footer;

/// Bytes of the nonce that every module begins with.
const NONCE: usize = 12;

/// The first column of a row group that is encrypted. `None` if there is none, or if only some of its bytes are in `data`.
pub(super) fn encrypted_column(footer: &Footer, row_group: usize, data: &Fetched) -> Option<String> {
    let mut chunks = footer.row_groups[row_group].chunks.iter();
    let encrypted = chunks.position(|chunk| {
        let range =
            chunk.range().and_then(|range| data.get_bytes(range.start, (range.end - range.start) as usize).ok());
        range.is_some_and(|chunk| holds_modules(&chunk))
    })?;
    Some(footer.schema.parquet.column(encrypted).path().string())
}

/// Whether a column chunk consists of modules alone: each a length of four bytes, and this many bytes.
fn holds_modules(chunk: &[u8]) -> bool {
    let mut rest = chunk;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        match after.split_at_checked(u32::from_le_bytes(*length) as usize) {
            Some((module, after)) if module.len() >= NONCE => rest = after,
            _ => return false,
        }
    }
    rest.is_empty() && !chunk.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(length: u32) -> Vec<u8> {
        [&length.to_le_bytes()[..], &vec![0x5a_u8; length as usize]].concat()
    }

    #[test]
    fn only_a_whole_row_of_modules_is_taken_for_an_encrypted_column() {
        assert!(holds_modules(&module(42)) && holds_modules(&[module(42), module(12)].concat()));
        // As a page begins.
        let page = [b"\x15\x04\x15\x10\x15\x14\x4c\x15\x02"[..].to_vec(), module(42)].concat();
        let cut = module(42)[..45].to_vec();
        for other in [vec![], vec![0; 64], page, cut, [module(42), module(11)].concat(), [module(42), vec![9]].concat()]
        {
            assert!(!holds_modules(&other), "{other:?}");
        }
    }
}
