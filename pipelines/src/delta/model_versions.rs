//! The versions of a model after deltas were applied: the version of its content, and the version of the exact model that it approximates.

use std::fmt;

use forebay_actors::Fault;

use crate::model::Model;
use crate::model::model_version::ModelVersion;

/// The versions of a model. A delta leads on from either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelVersions {
    /// The version of its content.
    pub version: ModelVersion,
    /// The version of the model that it would be if no delta had been rounded; `None` if it is that model.
    pub approximates: Option<ModelVersion>,
}

impl ModelVersions {
    /// Whether a delta from `from` applies to the model.
    pub(crate) fn has(&self, from: ModelVersion) -> bool {
        self.version == from || self.approximates == Some(from)
    }

    /// Both, or the only one.
    pub(crate) fn all(&self) -> impl Iterator<Item = ModelVersion> {
        std::iter::once(self.version).chain(self.approximates)
    }
}

impl fmt::Display for ModelVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", self.version)?;
        self.approximates.map_or(Ok(()), |approximates| write!(f, ", approximates {approximates}"))
    }
}

impl Model {
    /// The versions of the model. Takes as long as [`Model::version`].
    pub fn versions(&self) -> Result<ModelVersions, Fault> {
        Ok(ModelVersions { version: self.version()?, approximates: self.approximates })
    }
}
