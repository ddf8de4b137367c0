//! The transforms of dense values.

use serde::{Deserialize, Serialize};

/// A transform of dense values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transform {
    /// `log1p` for integers, `none` for floating-point numbers, booleans and the numbers of CSV and JSON lines, and a scale or `log1p`
    /// where a sample of the values needs it.
    #[default]
    Auto,
    /// The value itself, without a scale unless the job sets one.
    None,
    /// sign(x) · ln(1 + |x|).
    Log1p,
    /// ln(x). A row with a value of 0 or less is a bad row: set `clip.min`.
    Log,
    /// The hour of a timestamp, 0 to 23, in UTC or at `utc_offset`. Text of CSV must be a date or a timestamp, `2026-11-20 03:04:05`, also
    /// with `T` and a time zone; integers need a `unit`.
    Hour,
    /// The day of the week of a date or a timestamp, in UTC or at `utc_offset`: 0 for Monday to 6 for Sunday. Integers need a `unit`.
    Weekday,
    /// The days from a date or a timestamp to that of `at`, with fractions; negative if `at` is earlier. `fill`, `clip` and `scale` apply
    /// to the days. Integers need a `unit`.
    AgeDays,
    /// The same in hours.
    AgeHours,
}

impl Transform {
    /// Whether the transform is one of moments.
    pub fn is_of_time(self) -> bool {
        match self {
            Self::Hour | Self::Weekday | Self::AgeDays | Self::AgeHours => true,
            Self::Auto | Self::None | Self::Log1p | Self::Log => false,
        }
    }

    /// Whether the transform turns a moment into an age.
    pub fn is_age(self) -> bool {
        matches!(self, Self::AgeDays | Self::AgeHours)
    }
}
