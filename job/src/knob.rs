//! A number of threads or replicas in a job: `"auto"`, or a number, which pins it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number that the run chooses by the cores that it has, unless the job pins it. What is trained does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knob(Option<usize>);

impl Knob {
    /// The run chooses.
    pub const AUTO: Self = Self(None);

    /// The number of the job, or `auto` if the run chooses.
    pub fn or(self, auto: usize) -> usize {
        self.0.unwrap_or(auto)
    }

    /// Whether the run chooses.
    pub fn is_auto(self) -> bool {
        self == Self::AUTO
    }
}

impl From<usize> for Knob {
    fn from(n: usize) -> Self {
        Self(Some(n))
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("auto"),
            Some(n) => write!(f, "{n}"),
        }
    }
}

impl Serialize for Knob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            None => to.serialize_str("auto"),
            Some(n) => n.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Knob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AutoOrNumber;
        impl de::Visitor<'_> for AutoOrNumber {
            type Value = Knob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Knob, E> {
                let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
                if text == "auto" { Ok(Knob::AUTO) } else { Err(wrong()) }
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Knob, E> {
                usize::try_from(n).map(Knob::from).map_err(|_| E::custom("expected a smaller number"))
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Knob, E> {
                let wrong = || E::invalid_value(de::Unexpected::Signed(n), &self);
                usize::try_from(n).map(Knob::from).map_err(|_| wrong())
            }
        }
        from.deserialize_any(AutoOrNumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    fn read(value: &str) -> Result<Knob, String> {
        let job =
            Job::from_toml("", &[format!("pipeline.parse_replicas={value}")]).map_err(|fault| fault.to_string())?;
        Ok(job.pipeline.parse_replicas)
    }

    #[test]
    fn auto_and_numbers_are_read_and_written() {
        assert_eq!((read("auto"), read("\"auto\""), read("3")), (Ok(Knob::AUTO), Ok(Knob::AUTO), Ok(3.into())));
        for knob in [Knob::AUTO, 0.into(), 7.into()] {
            let mut job = Job::default();
            job.pipeline.parse_replicas = knob;
            assert_eq!(Job::from_toml(&job.to_toml(), &[]).unwrap(), job);
            assert_eq!(serde_json::from_str::<Job>(&serde_json::to_string(&job).unwrap()).unwrap(), job);
            assert_eq!(read(&knob.to_string()), Ok(knob));
        }
    }

    #[test]
    fn a_folder_of_bad_rows_without_a_name_or_in_a_store_is_refused() {
        for (folder, reason) in
            [("", "write_to is empty"), ("hdfs://ns/bad", "write_to is hdfs://ns/bad, expected a local folder")]
        {
            let setting = format!("data.on_bad_row={{ write_to = '{folder}' }}");
            let job = Job::from_toml("", &[setting]).unwrap();
            let said = job.check().unwrap_err().to_string();
            assert!(said.contains(reason), "{said}");
            assert_eq!(job.check_saved().unwrap_err().to_string(), said);
            // A model of an earlier version may have been trained so.
            job.check_trained().unwrap();
        }
    }

    #[test]
    fn more_threads_than_a_machine_starts_are_refused() {
        for name in [
            "pipeline.cores",
            "data.decode_threads",
            "pipeline.parse_replicas",
            "pipeline.batch_replicas",
            "train.threads",
            "table.shards",
        ] {
            let of = |n: usize| Job::from_toml("", &[format!("{name}={n}")]).unwrap().check();
            let said = of(1025).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{name} is 1025, expected at most 1024")), "{said}");
            assert!(of(1024).is_ok());
        }
    }

    #[test]
    fn numbers_that_would_overflow_are_refused_by_their_field() {
        let check =
            |settings: &[&str]| Job::with_settings("", settings).unwrap().check().map_err(|fault| fault.to_string());
        for (field, most) in [
            ("data.epochs", 1_000_000_000_u64),
            ("data.read_rows", 1 << 20),
            ("train.staleness", 65_536),
            ("pipeline.links.parse", 65_536),
            ("pipeline.links.push", 65_536),
            ("placement.in_flight", 65_536),
        ] {
            check(&[&format!("{field}={most}")]).unwrap();
            let said = check(&[&format!("{field}={}", most + 1)]).unwrap_err();
            assert_eq!(said, format!("{field} is {}, expected at most {most}", most + 1));
        }
        check(&["table.shards=512", "placement.ps=2"]).unwrap();
        let said = check(&["table.shards=512", "placement.ps=3"]).unwrap_err();
        assert_eq!(said, "table.shards is 512 for each of 3 ps, expected at most 1024 in all ps together");
        for field in ["placement.lease_seconds", "placement.timeout_seconds"] {
            let said = check(&[&format!("{field}=1e300")]).unwrap_err();
            assert!(said.starts_with(field) && said.ends_with(", expected at most 1000000000"), "{said}");
        }
        // Earlier versions trained models with such jobs.
        for setting in ["pipeline.cores=5000", "placement.lease_seconds=1e10", "data.read_rows=2000000"] {
            Job::from_toml("", &[setting.to_owned()]).unwrap().check_saved().unwrap();
            check(&[setting]).unwrap_err();
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_expected() {
        for wrong in ["many", "-1", "1.5", "true", "[1]", "\"3\""] {
            let said = read(wrong).unwrap_err();
            assert!(said.contains("\"auto\" or a number"), "{wrong}: {said}");
        }
    }
}
