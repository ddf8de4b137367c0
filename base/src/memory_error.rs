//! Tells from the error of a decoder whether memory ran out or the bytes are damaged.

/// Whether a decoder says in this message, of an error or a panic, that it got no memory: those of zstd do.
pub fn is_out_of_memory(message: &str) -> bool {
    ["zstd returned null pointer", "not enough memory"].iter().any(|words| message.contains(words))
}
