//! Learning rates of dense and sparse optimizers: a number, or one that changes with the steps of the training.

use std::f64::consts::PI;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::StrictTables;
use crate::lr_reduction::LrReduction;

/// A learning rate. In a job file it is a number, or a table:
///
/// ```toml
/// lr = 0.001
/// lr = { peak = 0.001, warmup_steps = 1000, decay = { kind = "cosine", steps = 50000, end = 0.01 } }
/// ```
///
/// ```
/// use forebay_base::LearningRate;
///
/// let constant = LearningRate::from(0.5);
/// assert_eq!(constant.at(7), 0.5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// The rate after the warm-up.
    pub peak: f64,
    /// The rate of step `s` is `s / warmup_steps` of the peak until it is reached: Goyal et al. 2017, section 2.2.
    pub warmup_steps: u64,
    /// How it falls from there.
    pub decay: Decay,
    /// The reduction at the asked step. Job files do not have it.
    pub reduction: LrReduction,
}

/// How a learning rate falls after the warm-up. `t` counts the steps since the end of the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Decay {
    /// It stays at the peak.
    #[default]
    None,
    /// In a straight line to `end` of the peak: `1 - (1 - end) * min(t / steps, 1)`.
    Linear {
        /// Steps until the end is reached, at least 1.
        steps: u64,
        /// Share of the peak that is left then, default 0.
        #[serde(default)]
        end: f64,
    },
    /// In half a cosine to `end` of the peak: `end + (1 - end) * (1 + cos(pi * min(t / steps, 1))) / 2` (Loshchilov and Hutter
    /// 2017, without restarts).
    Cosine {
        /// Steps until the end is reached, at least 1.
        steps: u64,
        /// Share of the peak that is left then, default 0.
        #[serde(default)]
        end: f64,
    },
    /// At once, again and again: `factor ^ floor(t / every)`.
    Steps {
        /// Steps from one fall to the next, at least 1.
        every: u64,
        /// What each fall leaves of the rate, default 0.1.
        #[serde(default = "tenth")]
        factor: f64,
    },
}

fn tenth() -> f64 {
    0.1
}

impl LearningRate {
    /// The same rate at every step.
    pub const fn constant(rate: f64) -> Self {
        let reduction = LrReduction { share: 1.0, min_lr: 0.0 };
        Self { peak: rate, warmup_steps: 0, decay: Decay::None, reduction }
    }

    /// The rate of this step, from 1.
    pub fn at(&self, step: u64) -> f64 {
        self.peak * self.share(step)
    }

    /// The rate of this step (from 1) as a share of the peak; exactly 1 at every step of a constant rate that is not reduced.
    pub fn share(&self, step: u64) -> f64 {
        let (scheduled, LrReduction { share, min_lr }) = (self.scheduled(step), self.reduction);
        (scheduled * share).max(scheduled.min(min_lr / self.peak))
    }

    fn scheduled(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return step as f64 / self.warmup_steps as f64;
        }
        let t = step - self.warmup_steps;
        let done = |steps: u64| (t as f64 / steps as f64).min(1.0);
        match self.decay {
            Decay::None => 1.0,
            Decay::Linear { steps, end } => 1.0 - (1.0 - end) * done(steps),
            Decay::Cosine { steps, end } => end + (1.0 - end) * (1.0 + (PI * done(steps)).cos()) / 2.0,
            Decay::Steps { every, factor } => factor.powf((t / every) as f64),
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// Names the number, what was found and what is expected.
    pub fn check(&self) -> Result<(), String> {
        let rate = |name: &str, v: f64| match v.is_finite() && v >= 0.0 {
            true => Ok(()),
            false => Err(format!("{name} is {v}, expected a finite number from 0")),
        };
        let share = |name: &str, v: f64| match (0.0..=1.0).contains(&v) {
            true => Ok(()),
            false => Err(format!("lr.decay.{name} is {v}, expected a share of the peak from 0 to 1")),
        };
        let steps = |name: &str, v: u64| match v {
            0 => Err(format!("lr.decay.{name} is 0, expected at least 1")),
            _ => Ok(()),
        };
        rate(if self.is_constant() { "lr" } else { "lr.peak" }, self.peak)?;
        match self.decay {
            Decay::None => Ok(()),
            Decay::Linear { steps: n, end } | Decay::Cosine { steps: n, end } => {
                steps("steps", n).and_then(|()| share("end", end))
            }
            Decay::Steps { every, factor } => steps("every", every).and_then(|()| share("factor", factor)),
        }
    }

    fn is_constant(&self) -> bool {
        self.warmup_steps == 0 && self.decay == Decay::None
    }
}

impl From<f64> for LearningRate {
    fn from(rate: f64) -> Self {
        Self::constant(rate)
    }
}

/// The table form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    peak: f64,
    #[serde(default)]
    warmup_steps: u64,
    #[serde(default)]
    decay: Decay,
}

impl Serialize for LearningRate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { peak, warmup_steps, decay, .. } = *self;
        match self.is_constant() {
            true => peak.serialize(to),
            false => Table { peak, warmup_steps, decay }.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for LearningRate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NumberOrTable;
        impl<'de> Visitor<'de> for NumberOrTable {
            type Value = LearningRate;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number, or { peak = 0.001, warmup_steps = 1000, decay = { kind = \"cosine\", steps = 50000 } }",
                )
            }

            fn visit_f64<E: de::Error>(self, rate: f64) -> Result<LearningRate, E> {
                Ok(rate.into())
            }

            fn visit_u64<E: de::Error>(self, rate: u64) -> Result<LearningRate, E> {
                Ok((rate as f64).into())
            }

            fn visit_i64<E: de::Error>(self, rate: i64) -> Result<LearningRate, E> {
                Ok((rate as f64).into())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LearningRate, A::Error> {
                // An optimizer with this rate is read from a buffer.
                let table = StrictTables(MapAccessDeserializer::new(map));
                let Table { peak, warmup_steps, decay } = Table::deserialize(table)?;
                Ok(LearningRate { warmup_steps, decay, ..peak.into() })
            }
        }
        from.deserialize_any(NumberOrTable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(warmup_steps: u64, decay: Decay) -> LearningRate {
        LearningRate { warmup_steps, decay, ..2.0.into() }
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found}, expected {expected}");
    }

    #[test]
    fn a_constant_rate_is_exact() {
        for step in [1, 2, 1_000_000, u64::MAX] {
            assert_eq!(LearningRate::from(0.1).at(step), 0.1);
        }
    }

    #[test]
    fn it_rises_and_falls_as_the_formulas_say() {
        let linear = rate(4, Decay::Linear { steps: 10, end: 0.5 });
        for (step, expected) in [(1, 0.5), (2, 1.0), (4, 2.0), (9, 1.5), (14, 1.0), (1000, 1.0)] {
            near(linear.at(step), expected);
        }
        let cosine = rate(0, Decay::Cosine { steps: 8, end: 0.1 });
        for (step, expected) in [(0, 2.0), (4, 1.1), (8, 0.2), (9, 0.2)] {
            near(cosine.at(step), expected);
        }
        near(cosine.at(2), 0.2 + 1.8 * (1.0 + 0.5f64.sqrt()) / 2.0);
        let steps = rate(2, Decay::Steps { every: 3, factor: 0.5 });
        for (step, expected) in [(1, 1.0), (2, 2.0), (4, 2.0), (5, 1.0), (8, 0.5), (9, 0.5)] {
            near(steps.at(step), expected);
        }
    }

    #[test]
    fn a_reduction_leaves_a_share_of_the_schedule_and_never_raises_it() {
        let reduced =
            |rate: LearningRate, share, min_lr| LearningRate { reduction: LrReduction { share, min_lr }, ..rate };
        let falls = rate(4, Decay::Linear { steps: 10, end: 0.0 });
        for (step, expected) in [(1, 0.05), (2, 0.1), (4, 0.2), (9, 0.1), (11, 0.06), (14, 0.0)] {
            near(reduced(falls, 0.1, 0.0).at(step), expected);
        }
        // Where the schedule itself is below the least rate, it stays as it is.
        for (step, expected) in [(1, 0.5), (4, 1.0), (8, 0.6), (9, 0.6), (11, 0.6), (12, 0.4), (14, 0.0)] {
            near(reduced(falls, 0.5, 0.6).at(step), expected);
        }
        // The bits of a rate that is not reduced are the same for every least rate.
        for step in [1, 3, 7, 13, 14] {
            assert_eq!(reduced(falls, 1.0, 0.7).at(step), falls.at(step));
        }
        assert_eq!(reduced(0.0.into(), 0.1, 0.0).at(1), 0.0);
        assert_eq!(reduced(0.3.into(), 0.1, 0.0).at(7), rate(0, Decay::Steps { every: 5, factor: 0.1 }).share(7) * 0.3);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let said = |rate: LearningRate| rate.check().unwrap_err();
        assert_eq!(said((-1.0).into()), "lr is -1, expected a finite number from 0");
        assert!(said(f64::NAN.into()).contains("lr is NaN"));
        assert!(said(rate(0, Decay::Cosine { steps: 0, end: 0.0 })).contains("lr.decay.steps is 0"));
        assert!(said(rate(0, Decay::Linear { steps: 1, end: 1.5 })).contains("lr.decay.end is 1.5"));
        assert!(said(rate(0, Decay::Steps { every: 1, factor: f64::NAN })).contains("lr.decay.factor is NaN"));
        rate(7, Decay::Cosine { steps: 1, end: 0.0 }).check().unwrap();
    }
}
