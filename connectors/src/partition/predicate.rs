//! A predicate over partition columns: it selects folders from as much of a path as is known.
//!
//! ```text
//!  predicate = term { "or" term }
//!  term      = factor { "and" factor }
//!  factor    = "not" factor | "(" predicate ")" | test
//!  test      = column ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) literal
//!            | column [ "not" ] "in" "(" literal { "," literal } ")"
//!            | column "is" [ "not" ] "null"
//!  literal   = 'text' | "text" | number
//! ```
//! An empty text selects everything. A quote within a text is written twice. Keywords are taken in any case, columns as
//! they are written; a column whose name is more than letters, digits and `_` stands in backquotes. A number is compared
//! as a number if the folder's value is one, too; everything else is compared as text, byte by byte, which is right for
//! dates and times as ISO writes them. Comparing a missing value is neither true nor false, as in SQL: only `is null`
//! selects it.

use std::fmt;
use std::str::FromStr;

use forebay_actors::Fault;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::expr::Expr;
use super::parse;
use super::partitions::Partitions;

/// A predicate over partition columns, such as `day >= '2026-11-20' and hour < 6`.
///
/// ```
/// use forebay_connectors::partition::{Partitions, Predicate};
///
/// let wanted: Predicate = "day >= '2026-11-20' and hour in (3, 4)".parse()?;
/// assert!(wanted.may_select(&Partitions::of("day=2026-11-21/hour=03")));
/// assert!(wanted.may_select(&Partitions::of("day=2026-11-21")));
/// assert!(!wanted.may_select(&Partitions::of("day=2026-11-19")));
/// # Ok::<(), forebay_actors::Fault>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Predicate {
    text: String,
    root: Expr,
}

impl FromStr for Predicate {
    type Err = Fault;

    /// A user fault that points at the place, if the text is no predicate.
    fn from_str(text: &str) -> Result<Self, Fault> {
        Ok(Self { root: parse::parse(text)?, text: text.trim().to_owned() })
    }
}

impl Predicate {
    /// Whether files below a folder may be wanted. `known` may lack inner folders: then the answer is `true` if some values of them select
    /// the files. With all columns known, the answer says whether the files are wanted.
    pub fn may_select(&self, known: &Partitions) -> bool {
        self.root.eval(known).may_be_true()
    }

    /// The columns that it names, each once, in the order of the text.
    pub fn columns(&self) -> Vec<&str> {
        let mut columns = Vec::new();
        self.root.columns(&mut columns);
        columns
    }

    /// A predicate that selects a folder if both do.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self.text.is_empty() || other.text.is_empty() {
            return if self.text.is_empty() { other } else { self };
        }
        Self { text: format!("({}) and ({})", self.text, other.text), root: Expr::And(vec![self.root, other.root]) }
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Predicate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Predicate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::expr::{Compare, Literal};
    use super::super::partitions::MISSING;
    use super::*;

    fn selects(text: &str, folders: &str) -> bool {
        text.parse::<Predicate>().unwrap().may_select(&Partitions::of(folders))
    }

    #[test]
    fn numbers_compare_as_numbers_and_all_else_as_text() {
        for (text, folders, expected) in [
            ("hour < 6", "hour=03", true),
            ("hour < 6", "hour=10", false),
            ("hour < '6'", "hour=10", true),
            ("hour = 3", "hour=03", true),
            ("hour = '3'", "hour=03", false),
            ("hour = 3.0", "hour=3", true),
            ("hour in (1, 3)", "hour=03", true),
            ("hour = 9007199254740993", "hour=9007199254740992", false),
            ("day >= '2026-11-20'", "day=2026-11-20", true),
            ("day >= '2026-11-20'", "day=2026-2-1", true),
            ("day < \"2026-11-20\"", "day=2025-12-31", true),
            ("word = 'it''s'", "word=it's", true),
            ("word > 5", "word=inf", true),
            ("word = -0.0", "word=0", true),
            ("`odd name` != 'x'", "odd name=y", true),
            ("NOT day IN ('a', 'b') OR day = 'a'", "day=b", false),
            ("day not in ('a', 'b')", "day=c", true),
        ] {
            assert_eq!(selects(text, folders), expected, "{text} {folders}");
        }
    }

    #[test]
    fn a_missing_value_is_selected_by_is_null_alone() {
        let missing = "day=__HIVE_DEFAULT_PARTITION__";
        for text in ["day = 'x'", "day != 'x'", "not day = 'x'", "day in ('x')", "day not in ('x')", "day is not null"]
        {
            assert!(!selects(text, missing), "{text}");
        }
        assert!(selects("day is null", missing) && selects("day = 'x' or day is null", missing));
        assert!(!selects("day is null", "day="));
    }

    #[test]
    fn it_reads_back_from_its_text_and_names_its_columns() {
        let predicate: Predicate = " a = 1 and (b < 'x' or not a in (2)) ".parse().unwrap();
        assert_eq!(predicate.to_string().parse::<Predicate>().unwrap(), predicate);
        assert_eq!(predicate.columns(), ["a", "b"]);
        let both = predicate.clone().and("c is null".parse().unwrap());
        assert_eq!(both.to_string().parse::<Predicate>().unwrap().columns(), ["a", "b", "c"]);
        let all: Predicate = " ".parse().unwrap();
        assert!(all.may_select(&Partitions::of("day=1")) && all.columns().is_empty());
        assert_eq!((all.clone().and(both.clone()), both.clone().and(all)), (both.clone(), both.clone()));
        let json = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<Predicate>(&json).unwrap(), both);
    }

    /// The reference: the truth value in SQL, if all values are known.
    fn truth(expr: &Expr, at: &Partitions) -> Option<bool> {
        let value = |column: &str| at.get(column).expect("all columns are known");
        match expr {
            Expr::Compare(column, compare, literal) => value(column).map(|v| compare.holds(literal.compare(v))),
            Expr::In(column, literals) => value(column).map(|v| literals.iter().any(|l| l.compare(v).is_eq())),
            Expr::IsNull(column) => Some(value(column).is_none()),
            Expr::Not(inner) => truth(inner, at).map(|t| !t),
            Expr::And(all) => {
                let all: Vec<_> = all.iter().map(|e| truth(e, at)).collect();
                if all.contains(&Some(false)) {
                    Some(false)
                } else if all.contains(&None) {
                    None
                } else {
                    Some(true)
                }
            }
            Expr::Or(all) => {
                let all: Vec<_> = all.iter().map(|e| truth(e, at)).collect();
                if all.contains(&Some(true)) {
                    Some(true)
                } else if all.contains(&None) {
                    None
                } else {
                    Some(false)
                }
            }
        }
    }

    fn expr() -> impl Strategy<Value = Expr> {
        let column = prop::sample::select(vec!["a", "b"]).prop_map(str::to_owned);
        let literal = || {
            prop_oneof![
                (0..3u8).prop_map(|i| Literal::Number(i.to_string())),
                (0..3u8).prop_map(|i| Literal::Text(i.to_string()))
            ]
        };
        let compare = prop::sample::select(vec![Compare::Equal, Compare::NotEqual, Compare::Less, Compare::AtLeast]);
        let leaf = prop_oneof![
            (column.clone(), compare, literal()).prop_map(|(c, o, l)| Expr::Compare(c, o, l)),
            (column.clone(), prop::collection::vec(literal(), 1..3)).prop_map(|(c, l)| Expr::In(c, l)),
            column.prop_map(Expr::IsNull),
        ];
        leaf.prop_recursive(4, 24, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(|e| Expr::Not(Box::new(e))),
                prop::collection::vec(inner.clone(), 1..4).prop_map(Expr::And),
                prop::collection::vec(inner, 1..4).prop_map(Expr::Or),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_folder_is_passed_over_whose_files_are_wanted(root in expr()) {
            let predicate = Predicate { text: String::new(), root };
            let values = ["0", "1", "2", "x", MISSING];
            let mut any = false;
            for a in values {
                let mut below = false;
                for b in values {
                    let all = Partitions::of(&format!("a={a}/b={b}"));
                    let wanted = truth(&predicate.root, &all) == Some(true);
                    prop_assert_eq!(predicate.may_select(&all), wanted);
                    below |= wanted;
                }
                let outer = Partitions::of(&format!("a={a}"));
                prop_assert!(!below || predicate.may_select(&outer));
                any |= below;
            }
            prop_assert!(!any || predicate.may_select(&Partitions::default()));
        }
    }
}
