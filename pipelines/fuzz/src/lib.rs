//! A checkpoint as one sequence of bytes, and back, because a fuzzer changes bytes, not folders.
//!
//! The parts are the manifest, then the files in the order in which it names them. Each has its length before it (u32, little endian).
//! Unpacking writes the right lengths and checksums into the manifest; with wrong ones, no fuzzed file would be read any further.

use std::path::Path;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

/// The number of the checkpoint in the folder that [`unpack`] writes.
pub const NUMBER: u64 = 3;

/// Parts that are read; more are left out.
const MOST_PARTS: usize = 64;

fn parts(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<4>()
        && parts.len() < MOST_PARTS
    {
        let (part, rest) = rest.split_at(rest.len().min(u32::from_le_bytes(*len) as usize));
        parts.push(part);
        bytes = rest;
    }
    parts
}

/// Finds the entries of files in a manifest.
fn entries<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    if value.get("xxh3").is_some() {
        return found.push(value);
    }
    match value {
        Value::Array(all) => all.iter_mut().for_each(|value| entries(value, found)),
        Value::Object(all) => all.values_mut().for_each(|value| entries(value, found)),
        _ => {}
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.len() < 200 && !name.starts_with('.') && !name.contains(['/', '\0'])
}

/// Writes the checkpoint that the bytes describe to a folder. It may be broken.
pub fn unpack(bytes: &[u8], folder: &Path) -> std::io::Result<()> {
    let parts = parts(bytes);
    let Some((manifest, files)) = parts.split_first() else { return Ok(()) };
    let mut text = manifest.to_vec();
    if let Ok(mut json) = serde_json::from_slice::<Value>(manifest) {
        let (mut found, mut files) = (Vec::new(), files.iter());
        entries(&mut json, &mut found);
        for entry in found {
            let (Some(path), Some(file)) = (entry["path"].as_str().filter(|path| is_plain(path)), files.next()) else {
                continue;
            };
            std::fs::write(folder.join(path), file)?;
            entry["bytes"] = file.len().into();
            entry["xxh3"] = format!("{:032x}", xxh3_128(file)).into();
        }
        text = serde_json::to_vec(&json)?;
    }
    std::fs::write(folder.join(format!("checkpoint-{NUMBER:06}.json")), text)
}

/// The bytes of a checkpoint, given the file of its manifest.
pub fn pack(manifest: &Path) -> std::io::Result<Vec<u8>> {
    let text = std::fs::read(manifest)?;
    let mut json: Value = serde_json::from_slice(&text)?;
    let mut bytes = Vec::new();
    let mut add = |part: &[u8]| {
        bytes.extend((part.len() as u32).to_le_bytes());
        bytes.extend(part);
    };
    add(&text);
    let mut found = Vec::new();
    entries(&mut json, &mut found);
    let folder = manifest.parent().unwrap_or(Path::new("."));
    for path in found.iter().filter_map(|entry| entry["path"].as_str()) {
        add(&std::fs::read(folder.join(path))?);
    }
    Ok(bytes)
}
