//! Reads the JSON of a manifest: its `format` and `version` are checked before its fields.

use forebay_actors::Fault;
use serde::de::DeserializeOwned;

/// The value of `text`, of this `version` or an older one. `name` is that of the file.
///
/// # Errors
/// A user fault that names the file if it is not JSON, of another format or version, or lacks a field.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8], name: &str, format: &str, version: u32) -> Result<T, Fault> {
    let what: serde_json::Value =
        serde_json::from_slice(text).map_err(|e| Fault::user(format!("{name} is damaged: not JSON")).because(e))?;
    if what["format"] != format {
        return Err(Fault::user(format!("{name}: format is {}, expected {format:?}", what["format"])));
    }
    if !what["version"].as_u64().is_some_and(|found| (1..=u64::from(version)).contains(&found)) {
        let known = if version == 1 { "version 1".into() } else { format!("versions 1 to {version}") };
        return Err(Fault::user(format!(
            "{name}: version {} of the format, this program reads {known}",
            what["version"]
        )));
    }
    serde_json::from_value(what).map_err(|e| Fault::user(format!("{name} is damaged")).because(e))
}
