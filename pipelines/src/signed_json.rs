//! JSON whose last field is the checksum of all bytes before it: how manifests are written.

use forebay_actors::{Fault, FaultKind};
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128;

const CHECKSUM: &str = ",\n  \"checksum\": \"";

/// The JSON of an object with at least one field, with its checksum.
pub(crate) fn to_json(object: &impl Serialize) -> Result<Vec<u8>, Fault> {
    let mut text = serde_json::to_vec_pretty(object)
        .map_err(|e| Fault::internal("a manifest cannot be written as JSON").because(e))?;
    text.truncate(text.len() - "\n}".len());
    let checksum = xxh3_128(&text);
    text.extend(format!("{CHECKSUM}{checksum:032x}\"\n}}").bytes());
    Ok(text)
}

/// Whether `text`, the file `name`, ends with its checksum. Files of earlier programs have none.
///
/// # Errors
/// A user fault of the kind [`FaultKind::Damaged`] if the checksum does not match the bytes before it.
pub(crate) fn has_checksum(text: &[u8], name: &str) -> Result<bool, Fault> {
    let at = text.windows(CHECKSUM.len()).rposition(|part| part == CHECKSUM.as_bytes());
    let Some(at) = at else { return Ok(false) };
    let (found, expected) = (format!("{:032x}", xxh3_128(&text[..at])), &text[at + CHECKSUM.len()..]);
    if expected.starts_with(found.as_bytes()) {
        return Ok(true);
    }
    let expected = String::from_utf8_lossy(&expected[..expected.len().min(32)]);
    let message = format!("{name} is damaged: its checksum is {found}, expected {expected}");
    Err(Fault::user(message).kind(FaultKind::Damaged))
}
