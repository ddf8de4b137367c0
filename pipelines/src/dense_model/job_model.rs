//! The dense model of a job: a built-in model on a backend, or a custom model.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_actors::Fault;
use forebay_job::{Backend, DenseAt, Job, ModelKind};
use forebay_models::{DenseModel, DenseOptimizer, ModelError, ModelSpec, NamedTensor, NativeModel, RowPart};
use forebay_ps::TableConfig;

use crate::extension::own_model::{ModelFactory, OwnModel};
use crate::extension::registry::Registry;
use crate::fault::model_fault;

const NO_TORCH: &str = "this program was built without libtorch: run `make setup`, then build with `--features torch`";

/// Refuses to train on a backend that this program was built without. (Models that were trained on it can be read.)
pub(crate) fn check_backend(job: &Job) -> Result<(), Fault> {
    let torch = job.train.backend == Backend::Torch && job.model.kind != ModelKind::Own;
    match torch && cfg!(not(feature = "torch")) {
        true => Err(Fault::user(format!("train.backend is \"torch\", but {NO_TORCH}"))),
        false => Ok(()),
    }
}

/// The row parts of the job's table, and the factory of its dense model.
#[derive(Clone)]
pub struct JobModel {
    /// The row parts of the table.
    pub parts: Vec<RowPart>,
    /// Makes the model.
    pub factory: ModelFactory,
    /// The structure of a built-in model. `None` for a custom model.
    pub spec: Option<ModelSpec>,
    /// The model's line in plans and reports.
    pub(crate) describe: String,
}

impl JobModel {
    /// The model that `job.model` names.
    ///
    /// # Errors
    /// A user fault if the options are invalid, or `registry` has no model of that name.
    pub fn of(job: &Job, registry: &Registry) -> Result<Self, Fault> {
        if job.model.kind == ModelKind::Own {
            let name = job.model.name.as_deref().unwrap_or_default();
            let OwnModel { parts, factory } = registry.model(job)?;
            let describe = format!("own model `{name}`");
            let factory = clipping(checking(factory, describe.clone(), parts.clone()), job.train.clip_norm);
            return Ok(Self { parts, factory, spec: None, describe });
        }
        let spec = job.model_spec()?;
        spec.validate().map_err(model_fault)?;
        job.check_table_bytes(&spec.parts())?;
        let (own_job, made) = (job.clone(), spec.clone());
        Ok(Self {
            parts: spec.parts(),
            factory: clipping(Arc::new(move || on_backend(&own_job, &made)), job.train.clip_norm),
            describe: format!("{} on {}, {}", job.model.kind, job.train.backend, job.train.device),
            spec: Some(spec),
        })
    }

    /// The configuration of the job's table, with the row parts of the model.
    pub fn table_config(&self, job: &Job) -> TableConfig {
        job.table_config(&self.parts)
    }

    /// Fails if the model needs more parameters than the file `name` has, before memory is allocated for the model.
    pub(crate) fn check_parameters(&self, dense: &[NamedTensor], name: &str) -> Result<(), Fault> {
        let (there, here) = (dense.iter().map(|tensor| tensor.data.len()).sum::<usize>(), self.spec.as_ref());
        match here.map(ModelSpec::dense_len) {
            Some(expected) if expected > there => Err(Fault::user(format!(
                "{name} has {there} dense parameters, and the job of its manifest is of a model with {expected}: {}",
                self.describe
            ))),
            _ => Ok(()),
        }
    }

    /// Fails if the rows of a saved table have other parts than those that the model expects.
    pub(crate) fn check_parts(&self, rows: &TableConfig) -> Result<(), Fault> {
        let found = widths(rows.widest_parts().iter().map(|part| (part.name.as_str(), part.dim)));
        let expected = widths_of(&self.parts);
        match found == expected {
            true => Ok(()),
            false => Err(Fault::user(format!("its rows have the parts {found:?}, its model expects {expected:?}"))),
        }
    }

    /// Returns a function that makes the model, for the train stage.
    pub fn maker(&self) -> Box<dyn FnOnce() -> Result<Box<dyn DenseModel>, ModelError> + Send> {
        let factory = Arc::clone(&self.factory);
        Box::new(move || factory())
    }

    /// Returns a function that makes a model with these parameters, for predictions: its weights are packed.
    pub(crate) fn with_parameters(
        &self,
        dense: Vec<NamedTensor>,
    ) -> impl FnOnce() -> Result<Box<dyn DenseModel>, ModelError> + Send + use<> {
        let factory = Arc::clone(&self.factory);
        move || {
            let mut model = factory()?;
            model.load(&dense)?;
            drop(dense);
            model.pack_weights();
            Ok(model)
        }
    }

    /// A new model of the job on the CPU, with one thread, so that the process does not need the device of the job. Its first
    /// parameters are the same for both backends.
    pub(crate) fn on_cpu(job: &Job, registry: &Registry) -> Result<Box<dyn DenseModel>, Fault> {
        let mut job = job.clone();
        (job.train.device, job.train.threads) = ("cpu".into(), 1.into());
        if job.model.kind != ModelKind::Own {
            (job.train.backend, job.train.transfers) = (Backend::Native, None);
        }
        (Self::of(&job, registry)?.factory)().map_err(model_fault)
    }
}

fn widths<'a>(parts: impl Iterator<Item = (&'a str, usize)>) -> Vec<String> {
    parts.map(|(name, dim)| format!("{name} {dim}")).collect()
}

fn widths_of(parts: &[RowPart]) -> Vec<String> {
    widths(parts.iter().map(|part| (part.name.as_str(), part.dim)))
}

/// Makes models of a program, and fails if they do not keep to the contract of [`DenseModel`]: the table has the rows of `parts`, and a
/// saved model finds its parameters by name.
fn checking(factory: ModelFactory, name: String, parts: Vec<RowPart>) -> ModelFactory {
    Arc::new(move || {
        let model = factory()?;
        let found = model.parts();
        if found != parts {
            let [found, expected] = [&found, &parts].map(|parts| widths_of(parts));
            let what =
                format!("{name}: DenseModel::parts returns {found:?}, and its OwnModel has the parts {expected:?}");
            return Err(ModelError::Spec(what));
        }
        let mut names = HashSet::new();
        match model.parameters().into_iter().find(|tensor| !names.insert(tensor.name.clone())) {
            Some(twice) => {
                let what = format!("{name}: two of its parameters have the name `{}`: give each its own", twice.name);
                Err(ModelError::Spec(what))
            }
            None => Ok(model),
        }
    })
}

/// Makes models that clip gradients to this norm.
fn clipping(factory: ModelFactory, norm: Option<f64>) -> ModelFactory {
    let Some(norm) = norm else { return factory };
    Arc::new(move || {
        let mut model = factory()?;
        model.set_clip_norm(norm)?;
        Ok(model)
    })
}

fn on_backend(job: &Job, spec: &ModelSpec) -> Result<Box<dyn DenseModel>, ModelError> {
    let (options, seed, threads) = (&job.train, job.seed, job.dense_threads());
    let optimizer = match job.placement.dense() {
        DenseAt::Trainer => job.dense_optimizer(),
        // The steps are taken in the ps: this model needs no state for them.
        DenseAt::Ps => DenseOptimizer::sgd(1.0),
    };
    match options.backend {
        Backend::Native => {
            if options.device != "cpu" {
                return Err(ModelError::Setting(format!(
                    "backend \"native\" computes on \"cpu\", not on {:?}; expected train.backend = \"torch\" for a GPU",
                    options.device
                )));
            }
            let model = NativeModel::new(spec.clone(), optimizer, seed, threads)?;
            Ok(Box::new(model.with_matmul_precision(options.matmul_precision)))
        }
        #[cfg(feature = "torch")]
        Backend::Torch => {
            let device = options.device.parse()?;
            Ok(Box::new(forebay_models::TorchModel::new(spec.clone(), optimizer, seed, threads, device)?))
        }
        #[cfg(not(feature = "torch"))]
        Backend::Torch => Err(ModelError::Setting(NO_TORCH.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_whose_parameters_are_in_the_ps_has_no_state_of_their_optimizer() {
        for (dense, tensors) in [("trainer", 3), ("ps", 1)] {
            let at = format!("placement.dense={dense}");
            let settings = ["model.kind=lr", "train.optimizer.kind=adam", "placement.ps=1", "columns.dense=[]", &at];
            let job = Job::with_settings("", &settings).unwrap();
            let model = (JobModel::of(&job, &Registry::default()).unwrap().factory)().unwrap();
            // The number of steps, and for each moment the bias.
            assert_eq!(model.optimizer().len(), tensors, "{dense}");
        }
    }
}
