//! The plan of a pipeline: the stages, their places, and the capacity of every link.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fault::{Fault, FaultKind};
use crate::link::Capacity;
use crate::place::Place;
use crate::replicas::Replicas;

/// A pipeline before it runs. `links[i]` lies between `stages[i]` and `stages[i + 1]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The pipeline's name.
    pub name: String,
    /// From the source to the sink.
    pub stages: Vec<PlanStage>,
    /// The capacities of the links between them.
    pub links: Vec<Capacity>,
    /// The services that the stages may call.
    pub services: Vec<PlanStage>,
}

/// One stage of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStage {
    /// Its name.
    pub name: String,
    /// `source`, `stage`, `sink` or `service`.
    pub kind: String,
    /// Where it runs.
    pub place: Place,
    /// How many replicas, if it is replicated.
    pub replicas: Option<Replicas>,
    /// How many calls may wait, for a service.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub capacity: Option<Capacity>,
}

impl PlanStage {
    pub(crate) fn new(name: &str, kind: &str, place: Place) -> Self {
        Self { name: name.to_owned(), kind: kind.to_owned(), place, replicas: None, capacity: None }
    }
}

impl Plan {
    pub(crate) fn add(&mut self, stage: PlanStage) {
        self.stages.push(stage);
    }

    pub(crate) fn link(&mut self, capacity: Capacity) {
        self.links.push(capacity);
    }

    pub(crate) fn check(&self) -> Result<(), Fault> {
        let mut names = HashSet::new();
        for stage in &self.stages {
            if !names.insert(&stage.name) {
                let message = format!("two stages are called `{}`: reports and faults need one name each", stage.name);
                return Err(Fault::user(message).kind(FaultKind::InvalidJob));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        for (i, stage) in self.stages.iter().enumerate() {
            if i > 0 {
                writeln!(f, "{}│ {}", "   ".repeat(i), self.links[i - 1])?;
            }
            write!(f, "{}└─ {}: {}", "   ".repeat(i), stage.name, stage.kind)?;
            if let Some(replicas) = stage.replicas {
                write!(f, " × {replicas}")?;
            }
            writeln!(f, ", {}", stage.place)?;
        }
        for service in &self.services {
            write!(f, "⇄ {}: {}, {}", service.name, service.kind, service.place)?;
            match service.capacity {
                Some(capacity) => writeln!(f, ", room for {} calls", capacity.max_items())?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
