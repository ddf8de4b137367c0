//! Makes the dense model that a job asks for.
//!
//! Comes in: options and a spec. Goes out: a [`DenseModel`]. May block while a device starts.

use forebay_models::{DenseModel, ModelError, ModelSpec, NativeModel};

use crate::job::{Backend, TrainOptions};

pub(crate) fn make(options: &TrainOptions, spec: &ModelSpec, seed: u64) -> Result<Box<dyn DenseModel>, ModelError> {
    let optimizer = options.optimizer;
    match options.backend {
        Backend::Native => {
            if options.device != "cpu" {
                return Err(ModelError::Backend(format!(
                    "backend \"native\" computes on \"cpu\", not on {:?}; expected train.backend = \"torch\" for a GPU",
                    options.device
                )));
            }
            Ok(Box::new(NativeModel::new(spec.clone(), optimizer, seed, options.resolved_threads())?))
        }
        #[cfg(feature = "torch")]
        Backend::Torch => {
            let device = options.device.parse()?;
            Ok(Box::new(forebay_models::TorchModel::new(
                spec.clone(),
                optimizer,
                seed,
                options.resolved_threads(),
                device,
            )?))
        }
        #[cfg(not(feature = "torch"))]
        Backend::Torch => Err(ModelError::Backend(
            "this program was built without libtorch: run `make setup`, then build with `--features torch`".into(),
        )),
    }
}
