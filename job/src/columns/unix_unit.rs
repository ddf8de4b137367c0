//! Integers that are times: their unit; and fixed offsets from UTC.

use forebay_connectors::ValueKind;
use serde::{Deserialize, Serialize};

/// The unit of integers that count the time since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnixUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
}

impl UnixUnit {
    /// The name in a job.
    pub fn name(self) -> &'static str {
        match self {
            Self::S => "s",
            Self::Ms => "ms",
            Self::Us => "us",
            Self::Ns => "ns",
        }
    }

    /// The name in messages.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::S => "seconds",
            Self::Ms => "milliseconds",
            Self::Us => "microseconds",
            Self::Ns => "nanoseconds",
        }
    }
}

/// What times are in text files, with the unit of their integers or without one.
pub(super) fn times_in_text(unit: Option<UnixUnit>) -> ValueKind {
    if unit.is_some() { ValueKind::Integer } else { ValueKind::Text }
}

/// The most minutes of an offset: 14 hours, as in XML Schema. No time zone has more.
const MOST_MINUTES: i64 = 14 * 60;

/// An offset from UTC, such as `+05:30`, in microseconds; `None` if the text is none, or one of more than 14 hours.
pub(super) fn offset_microseconds(text: &str) -> Option<i64> {
    let (sign, rest) = match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(rest), _) => (1, rest),
        (_, Some(rest)) => (-1, rest),
        _ => return None,
    };
    let number = |digits: &str| match digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<i64>().ok(),
        false => None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let all = hours * 60 + minutes;
    (minutes < 60 && all <= MOST_MINUTES).then_some(sign * all * 60_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_a_sign_two_digits_of_hours_and_two_of_minutes() {
        for (text, minutes) in [
            ("+05:30", Some(330)),
            ("-08:00", Some(-480)),
            ("-00:30", Some(-30)),
            ("+00:00", Some(0)),
            ("+14:00", Some(840)),
            ("-14:00", Some(-840)),
            ("+14:01", None),
            ("+05:60", None),
            ("05:30", None),
            ("+5:30", None),
            ("+05:3", None),
            ("+0530", None),
            ("+05", None),
            ("+-5:30", None),
            ("+05:30:00", None),
            ("+é:30", None),
            ("UTC", None),
            ("Europe/Berlin", None),
            ("", None),
        ] {
            assert_eq!(offset_microseconds(text), minutes.map(|minutes: i64| minutes * 60_000_000), "{text}");
        }
    }
}
