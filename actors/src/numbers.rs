//! Numbers in text for people.

/// Writes a number with commas: `12,345,678`.
pub fn commas(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun: `1 file`, `2,000 files`, `3 record batches`.
pub fn counted(n: impl TryInto<u64>, noun: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    let ending = match n {
        1 => "",
        _ if noun.ends_with("ch") && noun != "epoch" => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", commas(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(
            [0u64, 1, 12_345].map(|n| counted(n, "row group")),
            ["0 row groups", "1 row group", "12,345 row groups"]
        );
        assert_eq!([counted(3usize, "record batch"), counted(3, "epoch")], ["3 record batches", "3 epochs"]);
    }
}
