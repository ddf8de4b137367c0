//! The names of checkpoint manifests.

/// The name of the manifest of checkpoint `number`.
pub(crate) fn of(number: u64) -> String {
    format!("checkpoint-{number:06}.json")
}

/// The number of the checkpoint with a manifest of this name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("checkpoint-")?.strip_suffix(".json")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers() {
        assert_eq!(of(12), "checkpoint-000012.json");
        assert_eq!(number_of("checkpoint-000012.json"), Some(12));
        assert_eq!(number_of("checkpoint-1234567.json"), Some(1_234_567));
        for name in ["checkpoint-.json", "checkpoint-12.json.tmp", "000012-embedding.arrow", ".checkpoint-000012.json"]
        {
            assert_eq!(number_of(name), None, "{name}");
        }
    }
}
