//! The whole state of a model as one list of tensors: the parameters, and the optimizer under names of its own.

use crate::{ModelError, NamedTensor};

/// Names of the optimizer's tensors begin with this.
const OPTIMIZER: &str = "optimizer.";

/// Joins the parameters and the tensors of the optimizer into one list.
///
/// # Errors
/// [`ModelError::State`] if a parameter's name begins with `optimizer.`, or the name of an optimizer's tensor does not.
pub(crate) fn join(
    mut parameters: Vec<NamedTensor>,
    optimizer: Vec<NamedTensor>,
) -> Result<Vec<NamedTensor>, ModelError> {
    let misnamed = |tensor: &&NamedTensor| tensor.name.starts_with(OPTIMIZER);
    if let Some(NamedTensor { name, .. }) = parameters.iter().find(misnamed) {
        return Err(ModelError::State(format!("parameter `{name}` has the name of an optimizer's state; rename it")));
    }
    if let Some(NamedTensor { name, .. }) = optimizer.iter().find(|tensor| !misnamed(tensor)) {
        return Err(ModelError::State(format!(
            "the optimizer's `{name}` has a name that does not begin with `{OPTIMIZER}`"
        )));
    }
    parameters.extend(optimizer);
    Ok(parameters)
}

/// Whether a state includes an optimizer.
pub fn has_optimizer(state: &[NamedTensor]) -> bool {
    state.iter().any(|tensor| tensor.name.starts_with(OPTIMIZER))
}

/// The parameters, and the tensors of the optimizer.
pub(crate) fn split(state: impl IntoIterator<Item = NamedTensor>) -> (Vec<NamedTensor>, Vec<NamedTensor>) {
    state.into_iter().partition(|tensor| !tensor.name.starts_with(OPTIMIZER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_taken_apart_as_it_was_put_together() {
        let tensor = |name: &str| NamedTensor { name: name.into(), shape: vec![1], data: vec![1.0] };
        let (parameters, optimizer) = (vec![tensor("b"), tensor("a")], vec![tensor("optimizer.step")]);
        let state = join(parameters.clone(), optimizer.clone()).unwrap();
        assert_eq!(split(state), (parameters.clone(), optimizer.clone()));
        let refused = |result: Result<Vec<NamedTensor>, ModelError>| result.unwrap_err().to_string();
        assert!(refused(join(optimizer, Vec::new())).contains("`optimizer.step` has the name"));
        assert!(refused(join(Vec::new(), parameters)).contains("the optimizer's `b`"));
    }
}
