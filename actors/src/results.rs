//! The values that stages leave for the program: counts, a model's parameters, a score.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::lock::lock;

type Values = HashMap<(String, TypeId), Box<dyn Any + Send>>;

/// Values by stage and type. A stage puts one with [`StageCx::leave`](crate::StageCx::leave); the program takes it from the
/// [`Outcome`](crate::Outcome).
#[derive(Clone, Default)]
pub struct Results(Arc<Mutex<Values>>);

impl Results {
    pub(crate) fn put<T: Any + Send>(&self, stage: &str, value: T) {
        let mut values = lock(&self.0);
        values.insert((stage.to_owned(), TypeId::of::<T>()), Box::new(value));
    }

    /// Takes the value of type `T` that this stage left; `None` if there is none, or it was taken before. If several
    /// replicas left one, the last one wins.
    pub fn take<T: Any + Send>(&self, stage: &str) -> Option<T> {
        let mut values = lock(&self.0);
        let value = values.remove(&(stage.to_owned(), TypeId::of::<T>()))?;
        value.downcast().ok().map(|value| *value)
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = lock(&self.0);
        f.debug_set().entries(values.keys().map(|(stage, _)| stage)).finish()
    }
}
