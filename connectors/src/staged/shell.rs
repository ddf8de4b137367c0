//! Words of commands that messages tell the user to run.

use std::borrow::Cow;

/// The word as a POSIX shell reads it: unchanged if it has no character that a shell might take for its own, else in single quotes.
pub(super) fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:=@%+,-".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_word_as_it_was() {
        assert_eq!(quoted("hdfs://ns/.model.replaced-7_a=b%20"), "hdfs://ns/.model.replaced-7_a=b%20");
        assert_eq!(quoted("/my model"), "'/my model'");
        for word in ["", "a b", "it's", "''", r#"a"b\c"#, "$HOME `id` $(id)", "~", "*?[a]", "a;b&c|d<e>f#g!h", "é\t\n"]
        {
            let said = Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), word, "{}", quoted(word));
        }
    }
}
