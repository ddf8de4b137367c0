//! Files that are damaged.

use std::path::Path;

/// Changes one byte in the middle of a file.
pub(crate) fn flip(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x20;
    std::fs::write(file, bytes).unwrap();
}
