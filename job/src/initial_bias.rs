//! The first biases of a new model.

use std::fmt;

use forebay_actors::Fault;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Job, ModelKind};

/// The largest absolute value: the probability of such a logit is 0 or 1.
const MOST: f64 = 100.0;

/// The biases of a new model's logits, one for each label. 0 leaves a bias as it is. In a file one number, or a list of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct InitialBias(pub Vec<f64>);

impl InitialBias {
    /// Whether it leaves all biases as they are.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|bias| *bias == 0.0)
    }
}

impl fmt::Display for InitialBias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [bias] => bias.fmt(f),
            biases => write!(f, "{biases:?}"),
        }
    }
}

impl Serialize for InitialBias {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [bias] => bias.serialize(serializer),
            biases => biases.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for InitialBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> de::Visitor<'de> for OneOrMore {
            type Value = InitialBias;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or a list with a number for each label")
            }
            fn visit_f64<E: de::Error>(self, bias: f64) -> Result<InitialBias, E> {
                Ok(InitialBias(vec![bias]))
            }
            fn visit_i64<E: de::Error>(self, bias: i64) -> Result<InitialBias, E> {
                self.visit_f64(bias as f64)
            }
            fn visit_u64<E: de::Error>(self, bias: u64) -> Result<InitialBias, E> {
                self.visit_f64(bias as f64)
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<InitialBias, A::Error> {
                let mut biases = Vec::new();
                while let Some(bias) = list.next_element()? {
                    biases.push(bias);
                }
                Ok(InitialBias(biases))
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

impl Job {
    /// Refuses a `train.initial_bias` that the model cannot begin with.
    pub(crate) fn check_initial_bias(&self) -> Result<(), Fault> {
        let Some(initial) = &self.train.initial_bias else { return Ok(()) };
        if let Some(bias) = initial.0.iter().find(|bias| !(-MOST..=MOST).contains(*bias)) {
            return Err(Fault::user(format!("train.initial_bias is {bias}, expected -{MOST} to {MOST}")));
        }
        let (found, labels) = (initial.0.len(), self.columns.label.len());
        if found != labels {
            return Err(Fault::user(format!(
                "train.initial_bias has {found} of {labels} numbers: set one for each label, and 0 for a bias that stays as it is"
            )));
        }
        let has_biases = self.model.kind != ModelKind::Own && !self.model_spec()?.output_biases().is_empty();
        match has_biases || initial.is_zero() {
            true => Ok(()),
            false => Err(Fault::user(format!(
                "train.initial_bias is {initial}, but this model adds no bias to a logit: leave it out"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> Result<Job, Fault> {
        let job = Job::from_toml(text, &[])?;
        job.check().map(|()| job)
    }

    #[test]
    fn it_is_a_number_or_a_list_in_every_format() {
        let two = "columns.label = ['a', 'b']\nmodel.kind = 'esmm'\n";
        for (text, expected) in [
            ("train.initial_bias = -4.5", vec![-4.5]),
            ("train.initial_bias = -4", vec![-4.0]),
            (&format!("{two}train.initial_bias = [-3, 0.5]"), vec![-3.0, 0.5]),
        ] {
            let read = job(text).unwrap();
            assert_eq!(read.train.initial_bias, Some(InitialBias(expected)), "{text}");
            let json = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Job>(&json).unwrap().train, read.train, "{json}");
        }
        let wrong = job("train.initial_bias = 'low'").unwrap_err().to_string();
        assert!(wrong.contains("a number, or a list with a number for each label"), "{wrong}");
    }

    #[test]
    fn a_bias_that_the_model_does_not_have_is_refused() {
        let two = "columns.label = ['a', 'b']\nmodel.kind = 'esmm'\n";
        for (text, refused) in [
            ("train.initial_bias = 101".to_owned(), "is 101, expected -100 to 100"),
            ("train.initial_bias = nan".to_owned(), "is NaN"),
            ("train.initial_bias = [-4, 0]".to_owned(), "has 2 of 1 numbers"),
            ("train.initial_bias = []".to_owned(), "has 0 of 1 numbers"),
            (format!("{two}train.initial_bias = -4"), "has 1 of 2 numbers"),
            (format!("{two}train.initial_bias = [-4, inf]"), "is inf"),
            ("model = { kind = 'own', name = 'mine' }\ntrain.initial_bias = -4".to_owned(), "adds no bias"),
        ] {
            let fault = job(&text).unwrap_err().to_string();
            assert!(fault.contains(refused), "{text}: {fault}");
        }
        job("model = { kind = 'own', name = 'mine' }\ntrain.initial_bias = 0").unwrap();
    }
}
