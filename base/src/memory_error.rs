//! Distinguishes decoders without memory from damaged bytes, by their errors.

/// Whether this message of an error or a panic says that a decoder got no memory, as decoders of zstd do.
pub fn is_out_of_memory(message: &str) -> bool {
    ["zstd returned null pointer", "not enough memory"].iter().any(|words| message.contains(words))
}
