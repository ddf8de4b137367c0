//! Checks the types of the parsed columns, once for each schema: a batch with the schema of the previous batch costs nothing.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use forebay_actors::Fault;

/// Says whether rows of a schema may be parsed.
pub(super) type SchemaCheck = Box<dyn Fn(&Schema) -> Result<(), Fault> + Send + Sync>;

/// Checks every schema once.
#[derive(Default)]
pub(super) struct TypeCheck {
    check: Option<SchemaCheck>,
    seen: Option<SchemaRef>,
}

impl TypeCheck {
    pub(super) fn new(check: SchemaCheck) -> Self {
        Self { check: Some(check), seen: None }
    }

    /// # Errors
    /// The fault of the check.
    pub(super) fn check(&mut self, schema: SchemaRef) -> Result<(), Fault> {
        if self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &schema)) {
            return Ok(());
        }
        if let Some(check) = &self.check {
            check(&schema)?;
        }
        self.seen = Some(schema);
        Ok(())
    }
}
