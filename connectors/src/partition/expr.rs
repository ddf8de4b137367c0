//! What a predicate means: an expression over partition columns, decided from as many of them as are known.

use std::cmp::Ordering;

use super::partitions::Partitions;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Compare(String, Compare, Literal),
    In(String, Vec<Literal>),
    IsNull(String),
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    Text(String),
    /// As it was written.
    Number(String),
}

/// The possible values of an expression: a set of `TRUE`, `FALSE` and `NULL`, never empty.
#[derive(Clone, Copy)]
pub(super) struct Outcomes(u8);

impl Outcomes {
    const TRUE: u8 = 1;
    const FALSE: u8 = 2;
    const NULL: u8 = 4;
    /// Anything is possible, because the folder is not known yet.
    const ANY: Self = Self(7);

    pub(super) fn may_be_true(self) -> bool {
        self.0 & Self::TRUE != 0
    }

    fn is(truth: bool) -> Self {
        Self(if truth { Self::TRUE } else { Self::FALSE })
    }

    fn not(self) -> Self {
        Self((self.0 & Self::TRUE) << 1 | (self.0 & Self::FALSE) >> 1 | self.0 & Self::NULL)
    }

    /// False if one is false, else null if one is null (Kleene's logic, which is SQL's), over all members of both.
    fn and(self, other: Self) -> Self {
        let not_false = |t: Self| t.0 & (Self::TRUE | Self::NULL);
        let mut both = (self.0 & other.0 & Self::TRUE) | ((self.0 | other.0) & Self::FALSE);
        if (self.0 & Self::NULL != 0 && not_false(other) != 0) || (other.0 & Self::NULL != 0 && not_false(self) != 0) {
            both |= Self::NULL;
        }
        Self(both)
    }

    fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }
}

impl Expr {
    pub(super) fn eval(&self, known: &Partitions) -> Outcomes {
        let test = |column: &str, test: &dyn Fn(&str) -> bool| match known.get(column) {
            None => Outcomes::ANY,
            Some(None) => Outcomes(Outcomes::NULL),
            Some(Some(value)) => Outcomes::is(test(value)),
        };
        match self {
            Self::Compare(column, compare, literal) => test(column, &|value| compare.holds(literal.compare(value))),
            Self::In(column, literals) => test(column, &|value| literals.iter().any(|l| l.compare(value).is_eq())),
            Self::IsNull(column) => known.get(column).map_or(Outcomes::ANY, |value| Outcomes::is(value.is_none())),
            Self::Not(inner) => inner.eval(known).not(),
            Self::And(all) => all.iter().fold(Outcomes::is(true), |outcomes, e| outcomes.and(e.eval(known))),
            Self::Or(all) => all.iter().fold(Outcomes::is(false), |outcomes, e| outcomes.or(e.eval(known))),
        }
    }

    pub(super) fn columns<'a>(&'a self, found: &mut Vec<&'a str>) {
        match self {
            Self::Compare(column, ..) | Self::In(column, _) | Self::IsNull(column) => {
                if !found.contains(&column.as_str()) {
                    found.push(column);
                }
            }
            Self::Not(inner) => inner.columns(found),
            Self::And(all) | Self::Or(all) => all.iter().for_each(|e| e.columns(found)),
        }
    }
}

impl Compare {
    /// `order` is the order of the folder's value against the literal.
    pub(super) fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::AtLeast => order.is_ge(),
        }
    }
}

impl Literal {
    /// How a folder's value compares to the literal.
    pub(super) fn compare(&self, value: &str) -> Ordering {
        let text = match self {
            Self::Text(text) => text,
            Self::Number(text) => match (Number::of(value), Number::of(text)) {
                (Some(value), Some(number)) => return value.compare(number),
                _ => text,
            },
        };
        value.cmp(text)
    }
}

/// A number: exact, if it is an integer of up to 38 digits.
#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    /// `-12`, `0.5`, `1e9`; neither `inf` nor `nan`, which may be names of folders.
    fn of(text: &str) -> Option<Self> {
        if !text.bytes().all(|c| c.is_ascii_digit() || matches!(c, b'+' | b'-' | b'.' | b'e' | b'E')) {
            return None;
        }
        text.parse().map(Self::Int).or_else(|_| text.parse().map(Self::Float)).ok()
    }

    fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a.cmp(&b),
            (a, b) => a.float().total_cmp(&b.float()),
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            // -0 equals 0.
            Self::Float(f) => f + 0.0,
        }
    }
}
