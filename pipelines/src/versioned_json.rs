//! Reads the JSON of a manifest: its `format` and `version` are checked before its fields.

use forebay_actors::{Fault, FaultKind};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The version of this program.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// The value of `text`, of this `version` or an older one. `name` is the name of the file.
///
/// # Errors
/// A user fault of the kind [`FaultKind::Damaged`] that names the file if it is not JSON, of another format or version, or lacks a field.
/// It is of the kind [`FaultKind::OtherVersion`] if the version is one of a later program.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8], name: &str, format: &str, version: u32) -> Result<T, Fault> {
    let what: Value =
        serde_json::from_slice(text).map_err(|e| damaged(format!("{name} is damaged: not JSON")).because(e))?;
    if what["format"] != format {
        return Err(damaged(format!("{name}: format is {}, expected {format:?}", what["format"])));
    }
    let (found, known) = (&what["version"], 1..=u64::from(version));
    if !found.as_u64().is_some_and(|found| known.contains(&found)) {
        let reads = if version == 1 { "version 1".into() } else { format!("versions 1 to {version}") };
        let message = format!("{name}: version {found} of the format, this program reads {reads}");
        return Err(match found.as_u64() {
            Some(found) if found > *known.end() => {
                Fault::user(format!("{message}: {}", other_version(&what))).kind(FaultKind::OtherVersion)
            }
            _ => damaged(message),
        });
    }
    // Not read from `what`, because serde's code for a type is compiled for each kind of input (docs/adr/0006).
    serde_json::from_slice(text).map_err(|e| damaged(format!("{name} is damaged")).because(e))
}

fn damaged(message: String) -> Fault {
    Fault::user(message).kind(FaultKind::Damaged)
}

/// What to do about a manifest that another program wrote.
pub(crate) fn other_version(manifest: &Value) -> String {
    let Some(writer) = manifest["forebay"].as_str() else {
        return format!(
            "another version of Forebay than this one ({PROGRAM}) wrote it; use that one, it is not damaged"
        );
    };
    let build = if writer == PROGRAM { "another build of " } else { "" };
    format!(
        "{build}Forebay {writer} wrote it, this is Forebay {PROGRAM}; it is not damaged: go on with the program that wrote it"
    )
}
