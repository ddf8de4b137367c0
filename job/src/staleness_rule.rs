//! `train.staleness`: a number of batches, or `{ exactly = 4 }`.

use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How many earlier batches are unapplied when a batch is looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StalenessRule {
    /// The number of batches.
    pub batches: usize,
    /// Whether every look-up has exactly this number of unapplied batches, and not only at most this number.
    pub exactly: bool,
}

impl StalenessRule {
    /// At most this many batches.
    pub fn at_most(batches: usize) -> Self {
        Self { batches, exactly: false }
    }

    /// Exactly this many batches: the look-up of batch n sees the pushes of all batches before n - k, and of no other.
    pub fn exactly(batches: usize) -> Self {
        Self { batches, exactly: true }
    }

    /// Whether the order of look-ups and pushes is the same in every run.
    pub fn is_sequential(self) -> bool {
        self.exactly || self.batches == 0
    }
}

impl fmt::Display for StalenessRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { batches, exactly: false } => write!(f, "{batches}"),
            Self { batches, exactly: true } => write!(f, "{{ exactly = {batches} }}"),
        }
    }
}

/// The table form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exact {
    exactly: usize,
}

impl Serialize for StalenessRule {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self { batches, exactly: false } => batches.serialize(to),
            Self { batches, exactly: true } => Exact { exactly: *batches }.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for StalenessRule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NumberOrTable;
        impl<'de> Visitor<'de> for NumberOrTable {
            type Value = StalenessRule;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of batches from 0 on, or { exactly = 4 }")
            }

            fn visit_u64<E: de::Error>(self, batches: u64) -> Result<StalenessRule, E> {
                let batches = usize::try_from(batches);
                batches.map(StalenessRule::at_most).map_err(|_| E::custom("expected a smaller number of batches"))
            }

            fn visit_i64<E: de::Error>(self, batches: i64) -> Result<StalenessRule, E> {
                let wrong = || E::invalid_value(de::Unexpected::Signed(batches), &self);
                usize::try_from(batches).map(StalenessRule::at_most).map_err(|_| wrong())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<StalenessRule, A::Error> {
                let table = Exact::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(StalenessRule::exactly(table.exactly))
            }
        }
        from.deserialize_any(NumberOrTable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    fn read(setting: &str) -> Result<StalenessRule, String> {
        let job = Job::from_toml("", &[setting.into()]).map_err(|fault| fault.to_string())?;
        Ok(job.train.staleness)
    }

    #[test]
    fn both_forms_are_read_and_written() {
        assert_eq!(read("seed=1"), Ok(StalenessRule::at_most(0)));
        assert_eq!(read("train.staleness=3"), Ok(StalenessRule::at_most(3)));
        assert_eq!(read("train.staleness={ exactly = 3 }"), Ok(StalenessRule::exactly(3)));
        assert_eq!(read("train.staleness.exactly=3"), Ok(StalenessRule::exactly(3)));
        for rule in [StalenessRule::at_most(2), StalenessRule::exactly(0), StalenessRule::exactly(5)] {
            let mut job = Job::default();
            job.train.staleness = rule;
            assert_eq!(Job::from_toml(&job.to_toml(), &[]).unwrap(), job, "{}", job.to_toml());
            assert_eq!(serde_json::from_str::<Job>(&serde_json::to_string(&job).unwrap()).unwrap(), job);
            let text = job.to_commented_toml();
            assert_eq!(Job::from_toml(&text, &[]).unwrap().train.staleness, rule, "{text}");
        }
    }

    #[test]
    fn an_order_that_no_process_can_keep_is_refused() {
        let refused = |settings: &[&str], words: &str| {
            let said = Job::with_settings("", settings).unwrap().check().unwrap_err().to_string();
            assert!(said.contains(words), "no `{words}` in: {said}");
        };
        let two = ["placement.ps=1", "placement.trainers=2", "placement.readers=1"];
        refused(
            &[&two[..], &["train.staleness.exactly=3"]].concat(),
            "train.staleness is { exactly = 3 }, which needs one order of all batches, but the 2 trainers",
        );
        refused(&[&two[..], &["train.sync=true", "train.staleness=3"]].concat(), "set it to 0 or to { exactly = 3 }");
        refused(
            &["placement.ps=1", "placement.readers=1", "placement.lookup_at=reader", "train.staleness.exactly=3"],
            "placement.lookup_at is \"reader\", but train.staleness is { exactly = 3 }",
        );
    }

    #[test]
    fn what_is_neither_is_refused() {
        for (setting, words) in [
            ("train.staleness=-1", "a number of batches from 0 on, or { exactly = 4 }"),
            ("train.staleness=1.5", "a number of batches from 0 on, or { exactly = 4 }"),
            ("train.staleness=\"exactly 2\"", "a number of batches from 0 on, or { exactly = 4 }"),
            ("train.staleness={ exactly = -1 }", "found the number -1, expected a whole number of at least 0"),
            ("train.staleness={ exactly = \"2\" }", "expected a whole number"),
            ("train.staleness={}", "the field `exactly` is missing"),
            ("train.staleness={ exact = 2 }", "unknown field `exact`, expected `exactly`"),
            ("train.staleness={ exactly = 2, at_most = 4 }", "unknown field `at_most`"),
        ] {
            let said = read(setting).expect_err(setting);
            assert!(said.contains(words), "{setting}: no `{words}` in: {said}");
        }
        let both = Job::from_toml("[train]\nstaleness = 2\nstaleness.exactly = 2\n", &[]).unwrap_err().to_string();
        assert!(both.contains("staleness") && both.contains("line 3"), "{both}");
        let both = Job::from_toml("[train]\nstaleness = 2\n", &["train.staleness.exactly=2".into()]).unwrap_err();
        assert!(both.to_string().contains("`staleness` is a value, not a table"), "{both}");
    }
}
