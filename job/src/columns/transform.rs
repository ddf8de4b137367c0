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

/// What depends on the transform alone. Each answer names all transforms, so that the compiler asks it for a new one.
impl Transform {
    /// The name in a job.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Log1p => "log1p",
            Self::Log => "log",
            Self::Hour => "hour",
            Self::Weekday => "weekday",
            Self::AgeDays => "age_days",
            Self::AgeHours => "age_hours",
        }
    }

    /// Whether the transform takes a part of a moment: the hour or the day of the week.
    pub fn is_calendar_part(self) -> bool {
        match self {
            Self::Hour | Self::Weekday => true,
            Self::Auto | Self::None | Self::Log1p | Self::Log | Self::AgeDays | Self::AgeHours => false,
        }
    }

    /// Whether the transform turns a moment into an age.
    pub fn is_age(self) -> bool {
        match self {
            Self::AgeDays | Self::AgeHours => true,
            Self::Auto | Self::None | Self::Log1p | Self::Log | Self::Hour | Self::Weekday => false,
        }
    }

    /// Whether the transform is one of moments.
    pub fn is_of_time(self) -> bool {
        self.is_calendar_part() || self.is_age()
    }

    /// Whether `auto` is this transform in some rows, by the types of their columns.
    pub fn may_be_auto(self) -> bool {
        match self {
            Self::None | Self::Log1p => true,
            Self::Auto | Self::Log | Self::Hour | Self::Weekday | Self::AgeDays | Self::AgeHours => false,
        }
    }

    /// Whether the values are numbers, and the transform is `none` or `log1p`, maybe by the type of the column. The parser is faster then.
    pub(super) fn is_plain(self) -> bool {
        self == Self::Auto || self.may_be_auto()
    }

    /// Whether the transform is `log1p` for a column of integers, or of other numbers.
    pub fn is_log1p(self, of_integers: bool) -> bool {
        match self {
            Self::Auto => of_integers,
            Self::Log1p => true,
            Self::None | Self::Log | Self::Hour | Self::Weekday | Self::AgeDays | Self::AgeHours => false,
        }
    }

    /// Whether a feature without a scale gets one, or `log1p`, where a sample of its values needs it.
    pub(super) fn takes_scale_of_sample(self) -> bool {
        match self {
            Self::Auto | Self::Hour | Self::Weekday | Self::AgeDays | Self::AgeHours => true,
            Self::None | Self::Log1p | Self::Log => false,
        }
    }

    /// Whether the logarithm `log1p` could take the place of the transform: the values are numbers as they are in the file.
    pub fn could_be_log1p(self) -> bool {
        match self {
            Self::Auto | Self::None => true,
            Self::Log1p | Self::Log | Self::Hour | Self::Weekday | Self::AgeDays | Self::AgeHours => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transform_has_the_name_that_a_job_gives_it() {
        use Transform::{AgeDays, AgeHours, Auto, Hour, Log, Log1p, None, Weekday};
        for transform in [Auto, None, Log1p, Log, Hour, Weekday, AgeDays, AgeHours] {
            assert_eq!(toml::Value::try_from(transform).unwrap().as_str(), Some(transform.name()));
        }
    }
}
