//! The memory that the dense parameters of a built-in model take while it is trained.

use std::fmt;

use forebay_actors::{Fault, counted, size};
use forebay_batches::MOST_UNDER_WAY;
use forebay_job::{Backend, DenseAt, Job};
use forebay_models::{MatmulPrecision, ModelSpec, NativeModel};
use serde::Serialize;

/// The dense parameters of a built-in model, and the most bytes that they take at one time in a process that trains. Only the state of the
/// optimizer may be elsewhere, in the ps. A checkpoint that is still being written when the run ends takes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DenseMemory {
    /// The number of dense parameters.
    pub parameters: u64,
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the state of the optimizer.
    pub state: u64,
    /// Bytes of the gradients, for a batch with as many rows as `train.batch_rows`. The native backend has the gradients of each
    /// micro-batch, and their sum. libtorch has the gradient of each parameter, all gradients in one tensor, and the results of a step.
    pub gradients: u64,
    /// Bytes of the copies that live beside these: the weights packed for the products of a step, and copies for a checkpoint, for an
    /// evaluation while the model is trained, and for the model that is saved at the end. With the parameters in the ps, also copies for
    /// each batch under way.
    pub copies: u64,
}

impl DenseMemory {
    pub(crate) fn of(job: &Job, spec: &ModelSpec) -> Self {
        Self::in_batches(job, spec, job.train.batch_rows)
    }

    /// The memory of a training in batches of at most `rows` rows.
    fn in_batches(job: &Job, spec: &ModelSpec, rows: usize) -> Self {
        let parameters = spec.dense_len();
        let state = job.dense_optimizer().state_buffers();
        let gradients = match job.train.backend {
            Backend::Native => NativeModel::gradient_buffers(parameters, rows),
            Backend::Torch => 1 + state.max(1),
        };
        let is_packed = job.train.backend == Backend::Native && job.train.matmul_precision == MatmulPrecision::High;
        let packed = if is_packed { NativeModel::packed_copies(rows) } else { 0 };
        let bytes = |buffers: usize| 4 * parameters as u64 * buffers as u64;
        Self {
            parameters: parameters as u64,
            weights: bytes(1),
            state: bytes(state),
            gradients: bytes(gradients),
            copies: bytes(copies(job, state) + packed),
        }
    }

    /// Bytes of main memory in a trainer of `job`.
    fn in_trainer(&self, job: &Job) -> u64 {
        let Self { weights, state, gradients, copies, .. } = *self;
        match (job.train.device.as_str(), job.placement.dense()) {
            ("cpu", DenseAt::Trainer) => weights + state + gradients + copies,
            ("cpu", DenseAt::Ps) => weights + gradients + copies,
            _ => 0,
        }
    }

    /// Refuses a model whose dense parameters alone take more than the `limit` bytes that a trainer may have, and warns if they take more
    /// than half of `limit`: the program, the rows and the tables need memory, too. Does not check the memory of a GPU.
    ///
    /// `rows` returns the rows of an epoch, if they are known: no batch has more. `check` calls it only if full batches need too much
    /// memory and batches of one row do not. If it then returns `None`, that is a warning, too.
    ///
    /// # Errors
    /// User: says the sizes, and what makes them large.
    pub(crate) fn check(
        &self,
        job: &Job,
        spec: &ModelSpec,
        limit: u64,
        rows: impl FnOnce() -> Option<u64>,
    ) -> Result<(), Fault> {
        let (mut memory, least) = (*self, Self::in_batches(job, spec, 1));
        let mut known = true;
        if self.in_trainer(job) > limit && least.in_trainer(job) <= limit {
            match rows() {
                Some(rows) => memory = Self::in_batches(job, spec, job.train.batch_rows.min(rows.max(1) as usize)),
                None => known = false,
            }
        }
        let needed = memory.in_trainer(job);
        if needed <= limit || !known {
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
            "the model does not fit into memory: it has {memory}, and this process may have {}{largest}. Lower model.hidden or other \
             widths of layers in [model], the width of embeddings (model.embedding_dim), the number of slots, or, for fewer gradients of the \
             native backend, train.batch_rows; leave out output.state, evaluation.every or checkpoint.to for fewer copies",
            size(limit)
        )))
    }
}

/// How many copies, each as long as the dense parameters, live at most beside what a step needs, for an optimizer with `state` buffers.
fn copies(job: &Job, state: usize) -> usize {
    if job.placement.dense() == DenseAt::Ps {
        // Each batch under way has the parameters or its gradients. Batches before the train stage are looked up or wait in its link; an
        // exact order keeps the gradients of all. The batch in the train stage has both, and the message of a push or a pull has one.
        let (tickets, replicas) = (job.train.staleness.batches + 1, MOST_UNDER_WAY + job.pipeline.links.train);
        let under_way = if job.train.staleness.exactly { tickets } else { tickets.min(replicas) };
        return under_way + 2;
    }
    // The state at a barrier, and at the end for a checkpoint of the whole run.
    let checkpoint = if job.checkpoint.to.is_some() { 1 + state } else { 0 };
    // Saved with the model.
    let saved = if job.output.state { state } else { 0 };
    // An evaluation has the parameters at its barrier, and a model of its own: while that model is made, one more copy of them, and then
    // its packed weights. The end of the run has the parameters of the model that is saved.
    let parameters = if job.evaluation.every.is_some() { 3 } else { 1 };
    checkpoint + saved + parameters
}

impl fmt::Display for DenseMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameters, weights, state, gradients, copies } = *self;
        write!(
            f,
            "{} with {} of weights, {} of optimizer state, {} of gradients and {} of copies",
            counted(parameters, "dense parameter"),
            size(weights),
            size(state),
            size(gradients),
            size(copies)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(settings: &[&str]) -> (DenseMemory, Job, ModelSpec) {
        let job = Job::with_settings("[columns]\ndense = ['d1..d3']\nslots = ['a', 'b']\n", settings).unwrap();
        let spec = job.model_spec().unwrap();
        (DenseMemory::of(&job, &spec), job, spec)
    }

    #[test]
    fn weights_state_the_gradients_of_each_micro_batch_and_copies_are_counted() {
        let wide = ["model.kind=ctr_dnn", "model.embedding_dim=4", "model.hidden=[4000]", "train.optimizer.kind=adam"];
        let (parameters, memory_of) = (11 * 4000 + 4000 + 4001, |more: &[&str]| memory(&[&wide[..], more].concat()).0);
        let (checkpoint, evaluation) = ("checkpoint.to=c", "evaluation.every.epochs=1");
        let in_ps = ["placement.ps=2", "placement.dense=ps", "train.staleness=4"];
        for (settings, state, gradients, copies) in [
            (&["train.batch_rows=2048"][..], 2, 9, 3),
            (&["train.batch_rows=2048", "train.matmul_precision=highest"], 2, 9, 1),
            (&["train.batch_rows=4096"], 2, 9, 3),
            (&["train.batch_rows=100"], 2, 2, 1),
            (&["train.backend=torch"], 2, 3, 1),
            (&["train.backend=torch", "train.optimizer.kind=sgd"], 0, 2, 1),
            (&["train.optimizer.kind=sgd"], 0, 9, 3),
            (&["output.state=true"], 2, 9, 5),
            (&[checkpoint], 2, 9, 6),
            (&[evaluation], 2, 9, 5),
            (&[checkpoint, evaluation, "output.state=true"], 2, 9, 10),
            (&in_ps, 2, 9, 9),
            (&[in_ps[0], in_ps[1], "train.staleness=1000", "pipeline.links.train=3"], 2, 9, 15),
            (&[in_ps[0], in_ps[1], "train.staleness={ exactly = 20 }"], 2, 9, 25),
        ] {
            let bytes = |buffers| 4 * parameters * buffers;
            let expected = DenseMemory {
                parameters,
                weights: bytes(1),
                state: bytes(state),
                gradients: bytes(gradients),
                copies: bytes(copies),
            };
            assert_eq!(memory_of(settings), expected, "{settings:?}");
        }
    }

    #[test]
    fn a_model_that_is_larger_than_memory_is_refused_with_what_makes_it_large() {
        let (memory, job, spec) =
            memory(&["model.kind=ctr_dnn", "model.hidden=[30000, 20000]", "train.batch_rows=2048"]);
        let needed = memory.weights + memory.state + memory.gradients + memory.copies;
        let known = || Some(1 << 40);
        memory.check(&job, &spec, needed, known).unwrap();
        let fault = memory.check(&job, &spec, needed - 1, known).unwrap_err();
        let said = fault.to_string();
        for words in
            ["601,120,001 dense parameters with 2.4 GB of weights", "`tower.1.weight`, 20000 × 30000", "model.hidden"]
        {
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        assert_eq!(fault.domain, forebay_actors::Domain::User);
    }

    /// A bug: fewer rows than a batch were taken for a full batch, and a model that fits was refused.
    #[test]
    fn a_batch_has_no_more_rows_than_there_are() {
        let (memory, job, spec) =
            memory(&["model.kind=ctr_dnn", "model.hidden=[4000]", "train.batch_rows=2048", "train.optimizer.kind=sgd"]);
        // Weights, a copy, two packed copies, and the gradients of two micro-batches with their sum.
        let limit = 7 * memory.weights;
        memory.check(&job, &spec, limit, || Some(2 * 256 + 100)).unwrap();
        let said = memory.check(&job, &spec, limit, || Some(3 * 256)).unwrap_err().to_string();
        assert!(said.contains("does not fit into memory"), "{said}");
        // Whether it fits is not known.
        memory.check(&job, &spec, limit, || None).unwrap();
        // It does not fit with any number of rows.
        let not_asked = || -> Option<u64> { panic!("the number of rows decides nothing") };
        memory.check(&job, &spec, memory.weights, not_asked).unwrap_err();
        memory.check(&job, &spec, 100 * memory.weights, not_asked).unwrap();
    }
}
