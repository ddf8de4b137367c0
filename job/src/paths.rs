//! One path or several, as in a job file.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// One or several files, folders or globs, as paths or URLs: text, or a list of texts. They are read one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths(pub Vec<String>);

impl<T: Into<String>> From<T> for Paths {
    fn from(path: T) -> Self {
        Self(vec![path.into()])
    }
}

impl From<&Paths> for Paths {
    fn from(paths: &Paths) -> Self {
        paths.clone()
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [path] => serializer.serialize_str(path),
            paths => paths.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> de::Visitor<'de> for OneOrMore {
            type Value = Paths;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path or a list of paths")
            }
            fn visit_str<E: de::Error>(self, path: &str) -> Result<Paths, E> {
                Ok(path.into())
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Paths, A::Error> {
                let mut paths = Vec::new();
                while let Some(path) = list.next_element()? {
                    paths.push(path);
                }
                if paths.is_empty() { Err(de::Error::invalid_length(0, &self)) } else { Ok(Paths(paths)) }
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

#[cfg(test)]
mod tests {
    use crate::Job;

    #[test]
    fn a_job_names_one_path_or_several() {
        let train = |text: &str| Job::from_toml(text, &[]).map(|job| job.data.train.unwrap());
        for (text, paths) in [("'a'", &["a"][..]), ("['a']", &["a"]), ("['a', 'hdfs://b']", &["a", "hdfs://b"])] {
            let read = train(&format!("data.train = {text}")).unwrap();
            assert_eq!(read.0, paths);
            let mut job = Job::default();
            job.data.train = Some(read.clone());
            assert_eq!(train(&job.to_toml()).unwrap(), read);
        }
        for text in ["[]", "7", "[7]"] {
            let said = train(&format!("data.train = {text}")).unwrap_err().to_string();
            assert!(said.contains("line 1") && said.contains("expected "), "{said}");
        }
        for empty in [
            "data.train=",
            "data.train=['a', '']",
            "data.eval=",
            "train.from=",
            "checkpoint.to=",
            "checkpoint.from=",
            "output.model=",
        ] {
            let said = Job::from_toml("", &[empty.into()]).unwrap().check().unwrap_err().to_string();
            let (field, _) = empty.split_once('=').unwrap();
            assert_eq!(said, format!("{field} is empty, expected a path or a URL"));
        }
        let job = Job::from_toml("", &["data.train=['a', 'b']".into()]).unwrap();
        assert_eq!(job.data.train.unwrap().to_string(), "a, b");
    }
}
