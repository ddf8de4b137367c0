//! The columns that a prediction writes beside its results.

use forebay_actors::Fault;

/// The names of the columns to keep.
///
/// # Errors
/// A user fault if a column is kept twice, or has the name of a result.
pub(crate) fn check_kept(keep: &[&str], results: &[String]) -> Result<Vec<String>, Fault> {
    for (at, name) in keep.iter().enumerate() {
        if results.iter().any(|result| result == name) {
            return Err(Fault::user(format!(
                "`{name}` is the name of the result: a column of this name cannot be kept"
            )));
        }
        if keep[..at].contains(name) {
            return Err(Fault::user(format!("column `{name}` is kept twice, name it once")));
        }
    }
    Ok(keep.iter().map(|&name| name.to_owned()).collect())
}
