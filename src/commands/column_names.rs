//! Lists of columns in arguments: `user_id,item_id`. A name with a comma or with spaces around it stands in double quotes, as in CSV.

use crate::Fault;

/// The columns in all values of an argument that may be repeated.
///
/// # Errors
/// A user fault if a quote has no end, or text follows it; or if a name is empty and has no quotes.
pub(super) fn split(arguments: &[String]) -> Result<Vec<String>, Fault> {
    let mut names = Vec::new();
    for argument in arguments {
        let wrong = || {
            Fault::user(format!("`{argument}` is not a list of columns, expected for instance user_id,\"buy, now\""))
        };
        let mut rest = argument.as_str();
        loop {
            let (name, after) = match rest.trim_start().strip_prefix('"') {
                Some(quoted) => unquote(quoted).ok_or_else(wrong)?,
                None => {
                    let (name, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                    if name.trim().is_empty() {
                        return Err(Fault::user(format!(
                            "`{argument}` has an empty name in its list of columns: leave out the comma, or write \"\" for a column \
                             without a name"
                        )));
                    }
                    (name.trim().to_owned(), after)
                }
            };
            names.push(name);
            rest = match after.trim_start() {
                "" => break,
                after => after.strip_prefix(',').ok_or_else(wrong)?,
            };
        }
    }
    Ok(names)
}

/// The name whose first quote is before `text`, and the text after its last quote.
fn unquote(text: &str) -> Option<(String, &str)> {
    let (mut name, mut rest) = (String::new(), text);
    loop {
        let (part, after) = rest.split_once('"')?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => (name, rest) = (name + "\"", more),
            None => return Some((name, after)),
        }
    }
}

/// A list that [`split`] takes for these columns.
pub(super) fn join(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{}\"", name.replace('"', "\"\""))).collect();
    quoted.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: a column whose name has a comma, or spaces around it, could not be named.
    #[test]
    fn names_in_quotes_may_have_commas_and_spaces() {
        let of = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
            split(&arguments).map_err(|fault| fault.to_string())
        };
        let found = |arguments: &[&str]| of(arguments).unwrap();
        assert_eq!(found(&["a, b ", "c"]), ["a", "b", "c"]);
        assert_eq!(found(&["\"buy, now\", a,\" lead\"", "\"x\"\"y\" "]), ["buy, now", "a", " lead", "x\"y"]);
        assert_eq!(found(&["a,\"\""]), ["a", ""]);
        assert_eq!(found(&[]), [""; 0]);
        let names = ["buy, now", " lead", "x\"y", "a"];
        assert_eq!(found(&[&join(&names)]), names);
        for wrong in ["\"a", "\"a\"b", "a,\"b\"\""] {
            assert!(of(&[wrong]).unwrap_err().contains("is not a list of columns"), "{wrong}");
        }
        // A bug: a column without a name was looked for.
        for wrong in ["a,", ",a", "a,,b", "a, ,b", ""] {
            let said = of(&[wrong]).unwrap_err();
            assert!(said.starts_with(&format!("`{wrong}` has an empty name in its list of columns")), "{said}");
        }
    }
}
