//! The model that a training continues from, `train.from`. Everything here blocks on the store.

use forebay_actors::{Fault, commas};
use forebay_connectors::staged::{Folder, OpenFolder, is_in};
use forebay_job::{Columns, Job, RunEnd, is_of_weights};
use forebay_ps::{TableClient, TableConfig};

use crate::checkpoint::ModelState;
use crate::columns::run_types::RowTypes;
use crate::context::Context;
use crate::dense_model::job_model::JobModel;
use crate::model_folder::replaced::{ModelIdentity, read_one};
use crate::model_folder::{Manifest, checked, dense_file, table_file};

/// The model folder at `train.from`, whose manifest fits the job.
pub(crate) struct Predecessor {
    folder: OpenFolder,
    identity: ModelIdentity,
    manifest: Manifest,
}

/// Checks, before any process starts, that `train.from` is a model that the job can continue from.
///
/// # Errors
/// A user fault if it is not; an external fault of a store.
pub fn check_predecessor(job: &Job, context: &Context) -> Result<(), Fault> {
    Predecessor::open(job, context).map(drop)
}

/// The job for a process that reads rows and loads no model: columns that have nothing but nulls are read as in the training of the model
/// at `train.from`. Such a process need not reach the model, so it goes on if the model cannot be read.
pub(crate) fn job_to_read(job: &Job, context: &Context) -> Job {
    let mut job = job.clone();
    match Predecessor::open(&job, context) {
        Ok(Some(predecessor)) => predecessor.types().tell_lists(&mut job.columns),
        Ok(None) => {}
        Err(fault) => tracing::warn!(
            "this reader cannot read the model at train.from, so it does not know which columns of nothing but nulls had lists \
             there: {fault}"
        ),
    }
    job
}

/// Whether a field of a job must be the same as when the model was trained. With the `state` of optimizers, their settings must be the
/// same, too, except learning rates: no state depends on them. That of FTRL stands for the weights at its `alpha`, which is no such rate.
fn is_bound(name: &str, state: bool) -> bool {
    let is_table = name.starts_with("table.") || name.starts_with("tables.");
    let of_state = name.starts_with("train.optimizer") || is_table && name != "table.shards";
    is_of_weights(name) || name.starts_with("columns.") || state && of_state && !is_rate(name)
}

/// Whether a field is a learning rate, or a part of its schedule.
fn is_rate(name: &str) -> bool {
    name.rsplit_once("optimizer.").is_some_and(|(_, field)| field == "lr" || field.starts_with("lr."))
}

impl Predecessor {
    /// The model that `job` continues from; `None` if it begins with a new one.
    ///
    /// # Errors
    /// A user fault that names the folder: there is no model, it was trained on other columns, with another seed or another
    /// structure, or the job would replace it.
    pub(crate) fn open(job: &Job, context: &Context) -> Result<Option<Self>, Fault> {
        Self::read_with(job, context, Ok)
    }

    /// The result of `read` for the model that `job` continues from; `None` if it begins with a new one. If another model replaces the
    /// folder meanwhile, calls `read` again, with the new one.
    ///
    /// # Errors
    /// The faults of [`open`](Self::open) and of `read`; an external fault if the folder was replaced again and again.
    pub(crate) fn read_with<T>(
        job: &Job,
        context: &Context,
        mut read: impl FnMut(Self) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        let Some(from) = &job.train.from else { return Ok(None) };
        let mut places = [RunEnd::Complete, RunEnd::Drained].into_iter().filter_map(|ended| job.output.folder(ended));
        if let Some(place) = places.find(|place| is_in(from, place)) {
            return Err(Fault::user(format!(
                "train.from, {from}, is where the run saves its own model, {place}: a run that has to begin again needs the model that \
                 it began with, so save to another folder"
            )));
        }
        let folder = Folder::from(from.as_str()).with_stores(&context.stores).open()?;
        read_one(folder, |folder| read(Self::in_folder(folder.clone(), job, context)?)).map(Some)
    }

    fn in_folder(folder: OpenFolder, job: &Job, context: &Context) -> Result<Self, Fault> {
        let identity = ModelIdentity::of(&folder)?;
        let manifest = Manifest::read_in(&folder)?;
        let state = manifest.optimizer.is_some();
        let job = &job.with_scales_of(&manifest.job);
        let differences = manifest.job.differences(job, |name| is_bound(name, state));
        if !differences.is_empty() {
            return Err(Fault::user(format!(
                "cannot continue from the model {folder}: {}; train with its settings, or leave out train.from",
                differences.join(", ")
            )));
        }
        let this = Self { folder, identity, manifest };
        let config = JobModel::of(job, &context.registry)?.table_config(job);
        this.check_parts(&config)?;
        Ok(this)
    }

    /// A custom model may have other row parts under the same name.
    fn check_parts(&self, config: &TableConfig) -> Result<(), Fault> {
        let (found, expected) = (self.manifest.table(&self.folder)?.config.part_widths(), config.part_widths());
        if found == expected {
            return Ok(());
        }
        Err(Fault::user(format!(
            "cannot continue from the model {}: its rows have the parts {found:?}, expected {expected:?}",
            self.folder
        )))
    }

    /// Whether the model has the state of its optimizers.
    fn has_state(&self) -> bool {
        self.manifest.optimizer.is_some()
    }

    /// Steps that the model's optimizers have taken; 0 if they start without state.
    pub(crate) fn steps(&self) -> u64 {
        self.manifest.training.as_ref().filter(|_| self.has_state()).map_or(0, |training| training.steps)
    }

    /// The columns that it was trained on.
    pub(crate) fn columns(&self) -> &Columns {
        &self.manifest.job.columns
    }

    /// The types of the feature columns that it was trained on.
    pub(crate) fn types(&self) -> RowTypes {
        RowTypes::of_training(self.manifest.training.as_ref())
    }

    /// Puts its rows into the shards of `table` that this process holds.
    ///
    /// # Errors
    /// A user fault that names a missing or damaged file; an external one if another model has replaced the folder.
    pub(crate) fn load_rows(&self, table: &TableClient) -> Result<(), Fault> {
        self.rows_into(table).map_err(|fault| self.identity.explain(&self.folder, fault))
    }

    fn rows_into(&self, table: &TableClient) -> Result<(), Fault> {
        let entry = self.manifest.table(&self.folder)?;
        for file in entry.all_files() {
            checked::verify(&self.folder, file)?;
        }
        for file in entry.all_files() {
            table_file::read(&self.folder, file, self.has_state(), table)?;
        }
        let rows = commas(futures::executor::block_on(table.stats())?.rows());
        let stateless =
            if self.has_state() { "" } else { "; the model has no state of optimizers, so they start without any" };
        tracing::info!("continues from the model {}: {rows} table rows here{stateless}", self.folder);
        Ok(())
    }

    /// Its dense parameters and, if it has them, the state of their optimizer.
    ///
    /// # Errors
    /// As [`load_rows`](Self::load_rows).
    pub(crate) fn dense(&self) -> Result<ModelState, Fault> {
        let mut state = Vec::new();
        for entry in std::iter::once(&self.manifest.dense).chain(&self.manifest.optimizer) {
            let read = dense_file::read(&self.folder, entry);
            state.extend(read.map_err(|fault| self.identity.explain(&self.folder, fault))?);
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_state_all_settings_of_optimizers_but_their_rates_are_bound() {
        let adam = "kind = 'adam', lr = 0.001";
        let job = |dense: &str, table: &str| {
            let text = format!(
                "train.optimizer = {{ {dense} }}\ntable.embedding_optimizer = {{ {table} }}\n\
                 tables.t = {{ embedding_dim = 4, embedding_optimizer = {{ {table} }} }}\n\
                 columns.slots = ['a', {{ column = 'b', table = 't' }}]\nmodel.kind = 'ctr_dnn'"
            );
            Job::from_toml(&text, &[]).unwrap()
        };
        let differ = |there: &Job, here: &Job| there.differences(here, |name| is_bound(name, true));
        let first = job(adam, adam);
        for rate in ["lr = 0.5", "lr = { peak = 0.1, warmup_steps = 9, decay = { kind = 'linear', steps = 7 } }"] {
            let other = format!("kind = 'adam', {rate}");
            let later = job(&other, &other);
            assert_eq!(differ(&first, &later), Vec::<String>::new());
            assert_eq!(differ(&later, &first), Vec::<String>::new());
        }
        for other in ["kind = 'adam', lr = 0.001, beta1 = 0.5", "kind = 'sgd', lr = 0.001"] {
            assert!(!differ(&first, &job(other, adam)).is_empty(), "{other}");
            assert!(!differ(&first, &job(adam, other)).is_empty(), "{other}");
        }
        let ftrl = |alpha: f64| job(adam, &format!("kind = 'ftrl', alpha = {alpha}"));
        assert!(differ(&ftrl(0.1), &ftrl(0.2))[0].starts_with("table.embedding_optimizer.alpha is 0.1 there"));
    }
}
