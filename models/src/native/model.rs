//! The native model: parameters, the dense optimizer's state, and a step over lanes and threads.

use super::block::{ParamBlock, Piece};
use super::gather::{Bags, scatter};
use super::kernels;
use super::lane::{Lane, Stretch};
use super::network::Network;
use super::workers::Workers;
use crate::dense::BatchShape;
use crate::{DenseBatch, DenseModel, DenseOptimizer, ModelError, ModelSpec, NamedTensor, RowPart, StepOutput, params};

/// Rows below which a lane is not worth its share of the gradients: adding up 432,000 of them costs as much as 20 rows.
const LANE_ROWS: usize = 256;
/// Lanes of a large batch, for up to so many threads.
const LANES: usize = 4;
/// Gradients that one task adds up: 64 KiB of each lane, small enough to spread, large enough to be worth a task.
const STRETCH: usize = 16_384;

/// A model of a spec, computed on the CPU by the program itself.
pub struct NativeModel {
    net: Network,
    /// All parameters, and the optimizer's state.
    block: ParamBlock,
    workers: Workers,
    threads: usize,
    lanes: Vec<Lane>,
    /// The lanes' gradients, added up: of `train`, kept between steps.
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
        let net = Network::new(spec);
        Ok(NativeModel {
            block: ParamBlock::new(optimizer, params::initial(&net.layout, seed))?,
            workers: Workers::new(threads)?,
            threads,
            net,
            lanes: Vec::new(),
            grads: Vec::new(),
            slopes: Vec::new(),
            dx: Vec::new(),
        })
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
        let (net, params) = (&self.net, self.block.values());
        self.workers.each(true, tasks, |(lane, stretch)| lane.run(net, params, batch, stretch));
    }

    /// Adds up the lanes' gradients and scatters the rows', side by side.
    fn collect(&self, batch: &DenseBatch<'_>, row_grads: &mut Vec<f32>, grads: &mut Vec<f32>) {
        enum Task<'a> {
            Scatter(&'a mut [f32]),
            Sum(usize, &'a mut [f32]),
        }
        row_grads.clear();
        row_grads.resize(batch.unique_rows.len(), 0.0);
        grads.resize(self.net.len(), 0.0);
        let bags = Bags {
            slots: self.net.spec.slots,
            inverse: batch.inverse,
            offsets: batch.offsets,
            first: 0,
            pooling: self.net.spec.pooling,
        };
        let sums = grads.chunks_mut(STRETCH).enumerate().map(|(i, sum)| Task::Sum(i * STRETCH, sum));
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

    fn refuse_non_finite(&self, batch: &DenseBatch<'_>, out: &StepOutput, grads: &[f32]) -> Result<(), ModelError> {
        let loss = out.loss;
        if loss.is_finite() && kernels::all_finite(grads) && kernels::all_finite(&out.row_grads) {
            return Ok(());
        }
        let what = batch.first_non_finite(self.shape()).unwrap_or_else(|| {
            if !loss.is_finite() {
                return format!("the loss is {loss}, though every input is finite");
            }
            match grads.iter().position(|g| !g.is_finite()) {
                Some(at) => format!("the gradient of {} is {}", self.net.name_of(at), grads[at]),
                None => "the gradient of a unique row is not finite".to_owned(),
            }
        });
        Err(ModelError::NonFinite(what))
    }
}

impl DenseModel for NativeModel {
    fn train(&mut self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<(), ModelError> {
        let mut grads = std::mem::take(&mut self.grads);
        let done = self.gradients(batch, out, &mut grads);
        if done.is_ok() {
            self.workers.each(true, self.block.step(&grads), Piece::update);
        }
        self.grads = grads;
        done
    }

    fn gradients(
        &mut self,
        batch: &DenseBatch<'_>,
        out: &mut StepOutput,
        grads: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        batch.check(self.shape())?;
        out.logits.resize(batch.rows, 0.0);
        self.run_lanes(batch, &mut out.logits, true);
        out.loss = self.lanes.iter().map(|lane| lane.loss).sum::<f64>() / batch.rows as f64;
        self.collect(batch, &mut out.row_grads, grads);
        self.refuse_non_finite(batch, out, grads)
    }

    fn flat_len(&self) -> usize {
        self.net.len()
    }

    fn read_flat(&self, values: &mut Vec<f32>) -> Result<(), ModelError> {
        values.clear();
        values.extend_from_slice(self.block.values());
        Ok(())
    }

    fn set_flat(&mut self, values: &[f32]) -> Result<(), ModelError> {
        self.block.set_values(values)
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
        params::to_tensors(&self.net.layout, "", self.block.values())
    }

    fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let known: Vec<String> = self.net.layout.iter().map(|param| param.name.clone()).collect();
        params::refuse_unknown(&known, tensors)?;
        let values = params::from_tensors(&self.net.layout, "", tensors)?;
        self.block = ParamBlock::new(*self.block.optimizer(), values)?;
        Ok(())
    }

    fn optimizer(&self) -> Vec<NamedTensor> {
        params::save_optimizer(&self.net.layout, self.block.optimizer(), self.block.steps(), self.block.state())
    }

    fn load_optimizer(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let (steps, state) = params::load_optimizer(&self.net.layout, self.block.optimizer(), tensors)?;
        self.block.set_state(steps, state)
    }

    fn parts(&self) -> Vec<RowPart> {
        self.net.spec.parts()
    }
}
