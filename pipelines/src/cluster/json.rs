//! The JSON bodies of actions.

use bytes::Bytes;
use forebay_actors::Fault;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// # Errors
/// A user fault that names the action: its body has other fields.
pub(super) fn read<T: DeserializeOwned>(handler: &str, kind: &str, body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body)
        .map_err(|e| Fault::user(format!("the body of {handler}.{kind} is not what it should be")).because(e))
}

pub(super) fn write(reply: &impl Serialize) -> Result<Bytes, Fault> {
    serde_json::to_vec(reply)
        .map(Bytes::from)
        .map_err(|e| Fault::internal("a reply cannot be written as JSON").because(e))
}
