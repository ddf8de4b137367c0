//! The memory that the dense parameters of a built-in model take while it is trained.

use std::fmt;

use forebay_actors::{Fault, counted, size};
use forebay_job::{Backend, DenseAt, Job};
use forebay_models::{ModelSpec, NativeModel};
use serde::Serialize;

/// The dense parameters of a built-in model, and the bytes that they take in a process that trains. Only the state of the optimizer may be
/// elsewhere, in the ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DenseMemory {
    /// The number of dense parameters.
    pub parameters: u64,
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the state of the optimizer.
    pub state: u64,
    /// Bytes of the gradients. The native backend has those of each micro-batch, and their sum.
    pub gradients: u64,
}

impl DenseMemory {
    pub(crate) fn of(job: &Job, spec: &ModelSpec) -> Self {
        let parameters = spec.dense_len();
        let gradients = match job.train.backend {
            Backend::Native => NativeModel::gradient_buffers(parameters, job.train.batch_rows),
            Backend::Torch => 1,
        };
        let bytes = |buffers: usize| 4 * parameters as u64 * buffers as u64;
        Self {
            parameters: parameters as u64,
            weights: bytes(1),
            state: bytes(job.dense_optimizer().state_buffers()),
            gradients: bytes(gradients),
        }
    }

    /// Refuses a model whose dense parameters alone take more than the `limit` bytes that a trainer may have, and warns if they take more
    /// than half of them: the program, the rows and the tables need memory, too. Those on a GPU are not checked.
    ///
    /// # Errors
    /// User: says the sizes, and what makes them large.
    pub(crate) fn check(&self, job: &Job, spec: &ModelSpec, limit: u64) -> Result<(), Fault> {
        let state = if job.placement.dense() == DenseAt::Ps { 0 } else { self.state };
        let needed = if job.train.device == "cpu" { self.weights + state + self.gradients } else { 0 };
        if needed <= limit {
            if needed > limit / 2 {
                let (needed, limit) = (size(needed), size(limit));
                tracing::warn!(
                    "the model may not fit into memory: this process may have {limit}, and its dense parameters take {needed}"
                );
            }
            return Ok(());
        }
        let largest = spec.largest_parameter().map_or_else(String::new, |(name, shape)| {
            let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
            format!("; the largest is `{name}`, {}", shape.join(" × "))
        });
        Err(Fault::user(format!(
            "the model does not fit into memory: it has {self}, and this process may have {}{largest}. Lower model.hidden or other \
             widths of layers in [model], the width of embeddings (model.embedding_dim), the number of slots, or, for fewer gradients of the \
             native backend, train.batch_rows",
            size(limit)
        )))
    }
}

impl fmt::Display for DenseMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameters, weights, state, gradients } = *self;
        write!(
            f,
            "{} with {} of weights, {} of optimizer state and {} of gradients",
            counted(parameters, "dense parameter"),
            size(weights),
            size(state),
            size(gradients)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(settings: &[&str]) -> (DenseMemory, Job, ModelSpec) {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let job = Job::from_toml("[columns]\ndense = ['d1..d3']\nslots = ['a', 'b']\n", &settings).unwrap();
        let spec = job.model_spec().unwrap();
        (DenseMemory::of(&job, &spec), job, spec)
    }

    #[test]
    fn weights_state_and_the_gradients_of_each_micro_batch_are_counted() {
        let wide = ["model.kind=ctr_dnn", "model.embedding_dim=4", "model.hidden=[4000]", "train.optimizer.kind=adam"];
        let (parameters, memory_of) = (11 * 4000 + 4000 + 4001, |more: &str| memory(&[&wide[..], &[more]].concat()).0);
        for (setting, state, gradients) in [
            ("train.batch_rows=2048", 2, 9),
            ("train.batch_rows=4096", 2, 9),
            ("train.batch_rows=100", 2, 2),
            ("train.backend=torch", 2, 1),
            ("train.optimizer.kind=sgd", 0, 9),
        ] {
            let bytes = |buffers| 4 * parameters * buffers;
            let expected =
                DenseMemory { parameters, weights: bytes(1), state: bytes(state), gradients: bytes(gradients) };
            assert_eq!(memory_of(setting), expected, "{setting}");
        }
    }

    #[test]
    fn a_model_that_is_larger_than_memory_is_refused_with_what_makes_it_large() {
        let (memory, job, spec) =
            memory(&["model.kind=ctr_dnn", "model.hidden=[30000, 20000]", "train.batch_rows=2048"]);
        let needed = memory.weights + memory.state + memory.gradients;
        memory.check(&job, &spec, needed).unwrap();
        let fault = memory.check(&job, &spec, needed - 1).unwrap_err();
        let said = fault.to_string();
        for words in
            ["601,120,001 dense parameters with 2.4 GB of weights", "`tower.1.weight`, 20000 × 30000", "model.hidden"]
        {
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        assert_eq!(fault.domain, forebay_actors::Domain::User);
    }
}
