//! Turns the errors of models into faults.

use forebay_actors::{Fault, FaultKind};
use forebay_models::ModelError;

/// Makes a fault of `error`, with its domain: user, external or internal.
pub(crate) fn model_fault(error: ModelError) -> Fault {
    match error {
        ModelError::Batch(_) => Fault::internal("a batch does not fit the model").because(error),
        ModelError::Device(_) => Fault::external("dense compute failed").because(error).kind(FaultKind::Device),
        ModelError::Threads { threads, error } => {
            Fault::no_thread(format_args!("{threads} threads of dense compute"), error)
        }
        ModelError::NonFinite(_) => {
            Fault::user(format!("{error} (a smaller learning rate, or cleaner data, may help)"))
                .kind(FaultKind::NonFinite)
                .with_source(error)
        }
        ModelError::Spec(_)
        | ModelError::Optimizer(_)
        | ModelError::Load(_)
        | ModelError::State(_)
        | ModelError::Setting(_)
        | ModelError::Module(_) => Fault::user(error.to_string()).kind(FaultKind::InvalidJob).with_source(error),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use forebay_actors::Domain;

    use super::*;

    #[test]
    fn an_error_of_the_device_is_not_the_users_fault() {
        let fault = model_fault(ModelError::Device("CUDA out of memory".into()));
        assert_eq!((fault.domain, fault.kind), (Domain::External, FaultKind::Device));
        assert!(fault.to_string().contains("CUDA out of memory"), "{fault}");
        let fault = model_fault(ModelError::Threads { threads: 8, error: "no more".into() });
        assert_eq!(fault.domain, Domain::External);
        assert!(fault.to_string().starts_with("cannot start 8 threads of dense compute: "), "{fault}");
        assert_eq!(model_fault(ModelError::Setting("device \"gpu\" is unknown".into())).domain, Domain::User);
        let nan = model_fault(ModelError::NonFinite("the loss is NaN".into()));
        assert_eq!(nan.kind, FaultKind::NonFinite);
        assert_eq!(nan.to_string(), "not finite: the loss is NaN (a smaller learning rate, or cleaner data, may help)");
        assert!(nan.source().is_some_and(|e| e.is::<ModelError>()));
        assert_eq!(model_fault(ModelError::Batch("2 labels for 3 rows".into())).domain, Domain::Internal);
    }
}
