//! Says in the words of a job file what serde says of a value of the wrong type: "found the text "x", expected a list".

/// The message of an error, which says what was found and what is expected in the words of the documentation of the job.
pub(crate) fn plain_words(message: &str) -> String {
    if let Some(field) = message.strip_prefix("missing field ") {
        return format!("the field {field} is missing");
    }
    if let Some(wanted) = message.strip_prefix("invalid length 0, expected ") {
        return format!("found an empty list, expected {wanted}");
    }
    if let Some(name) = message.strip_prefix("unknown variant ") {
        return format!("unknown value {name}");
    }
    // The parser's text about a name, such as the name of a metric, if the value is no text.
    match message {
        "wanted string or table" => return "found a value of another type, expected text".to_owned(),
        message if message.starts_with("wanted exactly 1 element") || message.starts_with("expected table, found ") => {
            return "found a table, expected text".to_owned();
        }
        _ => {}
    }
    let said = ["invalid type: ", "invalid value: "].iter().find_map(|prefix| message.strip_prefix(prefix));
    match said.and_then(|said| said.split_once(", expected ")) {
        Some((found, wanted)) => format!("found {}, expected {}", self::found(found), expected(wanted, found)),
        None => message.to_owned(),
    }
}

fn found(what: &str) -> String {
    let number = what.strip_prefix("integer ").or(what.strip_prefix("floating point "));
    match (what, what.strip_prefix("string "), number, what.strip_prefix("boolean ")) {
        (_, Some(text), _, _) => format!("the text {text}"),
        // "integer `99999999999999999999` as i128".
        (_, _, Some(number), _) => format!("the number {}", number.split('`').nth(1).unwrap_or(number)),
        (_, _, _, Some(truth)) => truth.trim_matches('`').to_owned(),
        ("map", ..) => "a table".to_owned(),
        ("sequence", ..) => "a list".to_owned(),
        ("unit variant", ..) => "a value of another type".to_owned(),
        _ => what.to_owned(),
    }
}

fn expected(what: &str, found: &str) -> String {
    if what.starts_with("internally tagged enum ") {
        let kind = found.strip_prefix("string ").unwrap_or("...");
        return format!("a table with a kind, such as {{ kind = {kind} }}");
    }
    let plain = match what {
        "a sequence" => "a list",
        "a map" => "a table",
        "a boolean" => "true or false",
        "a string" | "string only" | "variant identifier" => "text",
        "u8" | "u16" | "u32" | "u64" | "usize" if is_large(found) => "a smaller whole number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        what if what.starts_with("struct ") => "a table of its fields",
        what => what,
    };
    plain.to_owned()
}

/// Whether what was found is an integer that is too large: serde refuses another one only if it is negative. One beyond the integers of
/// TOML, which end at 2^63 - 1, is text in a setting.
fn is_large(found: &str) -> bool {
    if found.strip_prefix("integer `").is_some_and(|number| !number.starts_with('-')) {
        return true;
    }
    let digits = found.trim_start_matches(|c: char| !c.is_ascii_digit() && c != '-');
    digits.len() - digits.trim_start_matches(|c: char| c.is_ascii_digit()).len() >= 19
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serde_says_is_said_in_the_words_of_a_job_file() {
        for (said, plain) in [
            (r#"invalid type: string "c", expected a sequence"#, r#"found the text "c", expected a list"#),
            (
                "invalid type: integer `7`, expected struct DataOptions",
                "found the number 7, expected a table of its fields",
            ),
            (
                r#"invalid type: string "adam", expected internally tagged enum DenseOptimizer"#,
                r#"found the text "adam", expected a table with a kind, such as { kind = "adam" }"#,
            ),
            (
                "invalid value: integer `-3`, expected usize",
                "found the number -3, expected a whole number of at least 0",
            ),
            (
                "invalid type: integer `99999999999999999999` as i128, expected u64",
                "found the number 99999999999999999999, expected a smaller whole number",
            ),
            (
                r#"invalid type: string "9223372036854775808", expected u64"#,
                r#"found the text "9223372036854775808", expected a smaller whole number"#,
            ),
            ("invalid value: integer `300`, expected u8", "found the number 300, expected a smaller whole number"),
            (
                "invalid type: floating point `1.5`, expected usize",
                "found the number 1.5, expected a whole number of at least 0",
            ),
            ("invalid type: map, expected a path", "found a table, expected a path"),
            ("invalid type: unit variant, expected string only", "found a value of another type, expected text"),
            ("invalid type: boolean `true`, expected f64", "found true, expected a number"),
            ("invalid type: integer `3`, expected variant identifier", "found the number 3, expected text"),
            ("wanted string or table", "found a value of another type, expected text"),
            ("wanted exactly 1 element, found 0 elements", "found a table, expected text"),
            ("expected table, found integer", "found a table, expected text"),
            ("missing field `column`", "the field `column` is missing"),
            ("invalid length 0, expected a list", "found an empty list, expected a list"),
            ("unknown field `x`, expected `y`", "unknown field `x`, expected `y`"),
            ("unknown variant `x`, expected one of `y`, `z`", "unknown value `x`, expected one of `y`, `z`"),
        ] {
            assert_eq!(plain_words(said), plain);
        }
    }
}
