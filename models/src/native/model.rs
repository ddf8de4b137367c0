//! The native model: parameters, the dense optimizer's state, and a step over lanes and threads.

use super::gather::{Bags, scatter};
use super::kernels;
use super::lane::{Lane, Stretch};
use super::network::Network;
use super::workers::Workers;
use crate::dense::BatchShape;
use crate::{DenseBatch, DenseModel, DenseOptimizer, ModelError, ModelSpec, NamedTensor, Part, StepOutput, params};

/// Rows below which a lane is not worth its share of the gradients: adding up 432,000 of them costs as much as 20 rows.
const LANE_ROWS: usize = 256;
/// Lanes of a large batch, for up to so many threads.
const LANES: usize = 4;
/// Numbers of a stretch of parameters: 64 KiB, small enough to spread, large enough to be worth a task.
const STRETCH: usize = 16_384;

/// A model of a spec, computed on the CPU by the program itself.
pub struct NativeModel {
    net: Network,
    optimizer: DenseOptimizer,
    workers: Workers,
    threads: usize,
    params: Vec<f32>,
    /// Of the optimizer: one buffer for each name in its `state()`, each as long as `params`.
    state: Vec<Vec<f32>>,
    step: u64,
    lanes: Vec<Lane>,
    /// The lanes' gradients, added up.
    grads: Vec<f32>,
    slopes: Vec<f32>,
    dx: Vec<f32>,
}

impl NativeModel {
    /// A new model; its first parameters depend on `spec` and `seed` alone (see `params.rs` for the distribution).
    ///
    /// # Errors
    /// A spec that describes no model, optimizer settings out of range, or threads that cannot be started.
    pub fn new(
        spec: ModelSpec,
        optimizer: DenseOptimizer,
        seed: u64,
        threads: usize,
    ) -> Result<NativeModel, ModelError> {
        spec.validate()?;
        optimizer.validate()?;
        let net = Network::new(spec);
        let params = params::initial(&net.layout, seed);
        let mut model = NativeModel {
            workers: Workers::new(threads)?,
            threads,
            grads: vec![0.0; params.len()],
            params,
            net,
            optimizer,
            state: Vec::new(),
            step: 0,
            lanes: Vec::new(),
            slopes: Vec::new(),
            dx: Vec::new(),
        };
        model.forget();
        Ok(model)
    }

    /// Starts the optimizer's state anew.
    fn forget(&mut self) {
        let buffer = |_: &&str| vec![self.optimizer.first_state(); self.params.len()];
        self.state = self.optimizer.state().iter().map(buffer).collect();
        self.step = 0;
    }

    fn shape(&self) -> BatchShape {
        BatchShape { slots: self.net.spec.slots, dense: self.net.spec.dense, row_dim: self.net.parts.row_dim }
    }

    /// Runs every lane over its rows; `slopes` and `dx` are empty when only predicting.
    fn run_lanes(&mut self, batch: &DenseBatch<'_>, logits: &mut [f32], training: bool) {
        let n = batch.rows;
        // Fixed by the batch for up to four threads; more threads than that need more lanes.
        let most = if self.threads <= LANES { LANES } else { self.threads.next_power_of_two() };
        let count = (n / LANE_ROWS).clamp(1, most);
        let rows = n.div_ceil(count).max(1);
        let embedded = if training { self.net.embedded() } else { 0 };
        self.slopes.resize(if training { n } else { 0 }, 0.0);
        self.dx.resize(n * embedded, 0.0);
        self.lanes.truncate(count);
        self.lanes.resize_with(count, Lane::default);
        let (mut slopes, mut dx, mut rest) = (self.slopes.as_mut_slice(), self.dx.as_mut_slice(), logits);
        let mut tasks = Vec::with_capacity(count);
        for (i, lane) in self.lanes.iter_mut().enumerate() {
            let (start, end) = ((i * rows).min(n), ((i + 1) * rows).min(n));
            let own = end - start;
            let (logits, tail) = std::mem::take(&mut rest).split_at_mut(own);
            let (own_slopes, slopes_tail) = std::mem::take(&mut slopes).split_at_mut(if training { own } else { 0 });
            let (own_dx, dx_tail) = std::mem::take(&mut dx).split_at_mut(own * embedded);
            (rest, slopes, dx) = (tail, slopes_tail, dx_tail);
            tasks.push((lane, Stretch { rows: start..end, logits, slopes: own_slopes, dx: own_dx }));
        }
        let (net, params) = (&self.net, self.params.as_slice());
        self.workers.each(true, tasks, |(lane, stretch)| lane.run(net, params, batch, stretch));
    }

    /// Adds up the lanes' gradients and scatters the rows', side by side.
    fn collect(&mut self, batch: &DenseBatch<'_>, row_grads: &mut Vec<f32>) {
        enum Task<'a> {
            Scatter(&'a mut [f32]),
            Sum(usize, &'a mut [f32]),
        }
        row_grads.clear();
        row_grads.resize(batch.unique_rows.len(), 0.0);
        let bags = Bags {
            slots: self.net.spec.slots,
            inverse: batch.inverse,
            offsets: batch.offsets,
            first: 0,
            pooling: self.net.spec.pooling,
        };
        let sums = self.grads.chunks_mut(STRETCH).enumerate().map(|(i, sum)| Task::Sum(i * STRETCH, sum));
        let tasks = std::iter::once(Task::Scatter(row_grads)).chain(sums).collect();
        let (lanes, parts, slopes, dx) = (&self.lanes, self.net.parts, &self.slopes, &self.dx);
        self.workers.each(true, tasks, |task| match task {
            Task::Scatter(row_grads) => scatter(&bags, parts, slopes, dx, row_grads),
            Task::Sum(from, sum) => {
                let own = from..from + sum.len();
                sum.copy_from_slice(&lanes[0].grads[own.clone()]);
                for lane in &lanes[1..] {
                    kernels::add(sum, &lane.grads[own.clone()]);
                }
            }
        });
    }

    fn refuse_non_finite(&self, batch: &DenseBatch<'_>, loss: f64, row_grads: &[f32]) -> Result<(), ModelError> {
        let finite = loss.is_finite() && kernels::all_finite(&self.grads) && kernels::all_finite(row_grads);
        if finite {
            return Ok(());
        }
        let what = batch.first_non_finite(self.shape()).unwrap_or_else(|| {
            if !loss.is_finite() {
                return format!("the loss is {loss}, though every input is finite");
            }
            match self.grads.iter().position(|g| !g.is_finite()) {
                Some(at) => format!("the gradient of {} is {}", self.net.name_of(at), self.grads[at]),
                None => "the gradient of a unique row is not finite".to_owned(),
            }
        });
        Err(ModelError::NonFinite(what))
    }

    fn update(&mut self) {
        self.step += 1;
        let mut tasks = Vec::with_capacity(self.params.len().div_ceil(STRETCH));
        let mut state = self.state.iter_mut().map(|buffer| buffer.chunks_mut(STRETCH));
        let (mut first, mut second) = (state.next(), state.next());
        for (params, grads) in self.params.chunks_mut(STRETCH).zip(self.grads.chunks(STRETCH)) {
            let first = first.as_mut().and_then(Iterator::next).unwrap_or_default();
            let second = second.as_mut().and_then(Iterator::next).unwrap_or_default();
            tasks.push((params, grads, first, second));
        }
        let (optimizer, step) = (&self.optimizer, self.step);
        self.workers.each(true, tasks, |(params, grads, first, second)| {
            kernels::optimize(optimizer, step, params, grads, first, second);
        });
    }
}

impl DenseModel for NativeModel {
    fn train(&mut self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<(), ModelError> {
        batch.check(self.shape())?;
        out.logits.resize(batch.rows, 0.0);
        self.run_lanes(batch, &mut out.logits, true);
        out.loss = self.lanes.iter().map(|lane| lane.loss).sum::<f64>() / batch.rows as f64;
        self.collect(batch, &mut out.row_grads);
        self.refuse_non_finite(batch, out.loss, &out.row_grads)?;
        self.update();
        Ok(())
    }

    fn predict(&mut self, batch: &DenseBatch<'_>, logits: &mut Vec<f32>) -> Result<(), ModelError> {
        batch.check(self.shape())?;
        logits.resize(batch.rows, 0.0);
        self.run_lanes(batch, logits, false);
        if kernels::all_finite(logits) {
            return Ok(());
        }
        let what = batch.first_non_finite(self.shape());
        Err(ModelError::NonFinite(what.unwrap_or_else(|| "a logit, though every input is finite".to_owned())))
    }

    fn parameters(&self) -> Vec<NamedTensor> {
        params::to_tensors(&self.net.layout, "", &self.params)
    }

    fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let known: Vec<String> = self.net.layout.iter().map(|param| param.name.clone()).collect();
        params::refuse_unknown(&known, tensors)?;
        self.params = params::from_tensors(&self.net.layout, "", tensors)?;
        self.forget();
        Ok(())
    }

    fn optimizer(&self) -> Vec<NamedTensor> {
        params::save_optimizer(&self.net.layout, &self.optimizer, self.step, &self.state)
    }

    fn load_optimizer(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        (self.step, self.state) = params::load_optimizer(&self.net.layout, &self.optimizer, tensors)?;
        Ok(())
    }

    fn parts(&self) -> Vec<Part> {
        self.net.spec.parts()
    }
}
