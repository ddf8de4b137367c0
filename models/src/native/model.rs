//! The native model: parameters, the dense optimizer's state, and a step over micro-batches and threads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::block::{ParamBlock, UpdateTask};
use super::gemm::Products;
use super::in_batch_softmax::InBatchSoftmax;
use super::kernels;
use super::micro_batch::{CHUNK, MicroBatch, MicroBatchRows, Pace};
use super::network::{Network, nanoseconds_per_value};
use super::packed_weights::{PackedWeights, Weights};
use super::scatter::{PartGrads, scatter, scatter_largest, scatter_listed, scatter_values};
use super::step_weights::StepWeights;
use super::workers::Workers;
use crate::dense::NO_VECTORS;
use crate::{BatchShape, clip_norm};
use crate::{
    DenseBatch, DenseModel, DenseOptimizer, LrReduction, MatmulPrecision, ModelError, ModelSpec, NamedTensor, RowPart,
    StepOutput, TowerSide, TwoTowersLoss, params,
};

/// The least rows of a micro-batch. Each costs one addition of all gradients: for 432,000 gradients as much as 20 rows.
const MICRO_BATCH_ROWS: usize = 256;
/// Micro-batches of a large batch, for any number of threads: their number decides the order of sums.
const MICRO_BATCHES: usize = 8;
/// With at most this many parameters, adding up their gradients costs nothing beside a micro-batch.
const FEW_PARAMETERS: usize = 16_384;
/// Micro-batches of a large batch of a model with at most [`FEW_PARAMETERS`].
const MOST_OF_FEW_PARAMETERS: usize = 16;
/// The most parts of the unique rows whose gradients are added up at the same time.
const MOST_PARTS: usize = 8;
/// Gradients that one task adds up: 64 KiB of each micro-batch.
const SUM_LEN: usize = 16_384;

/// A model of a spec, computed on the CPU by the program itself.
pub struct NativeModel {
    net: Network,
    /// All parameters, and the optimizer's state.
    block: ParamBlock,
    /// Packed copies of layers' weights, from [`DenseModel::pack_weights`] until the weights change.
    packed: Option<PackedWeights>,
    /// Packed copies of layers' weights from the beginning of the last step.
    step_weights: StepWeights,
    workers: Workers,
    micro_batches: Vec<MicroBatch>,
    /// The sum of the micro-batches' gradients. Only `train` uses it; it is kept between steps.
    grads: Vec<f32>,
    dlogits: Vec<f32>,
    dx: Vec<f32>,
    /// For each pair of attention, the gradients of the values of the history.
    by_value: Vec<Vec<f32>>,
    clip_norm: Option<f64>,
    /// The precision of the products of training steps; other products are f32.
    precision: MatmulPrecision,
    /// For two towers, `[n x vector_dim]` each: the vectors of users and items, and the loss's gradients by them.
    vectors: [Vec<f32>; 2],
    by_vectors: [Vec<f32>; 2],
    softmax: InBatchSoftmax,
}

/// The result for all rows of a batch; see [`Pace`].
#[derive(Clone, Copy, PartialEq)]
enum Run {
    Predict,
    Train,
    Vectors { training: bool },
    Back,
}

impl NativeModel {
    /// A new model; its first parameters depend on `spec` and `seed` alone (see `params.rs` for the distribution), and so does its
    /// dropout, with the id of each batch.
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
        let net = Network::new(spec, seed);
        Ok(NativeModel {
            block: ParamBlock::new(optimizer, params::initial(&net.layout, seed))?,
            packed: None,
            step_weights: StepWeights::default(),
            workers: Workers::new(threads)?,
            net,
            micro_batches: Vec::new(),
            grads: Vec::new(),
            dlogits: Vec::new(),
            dx: Vec::new(),
            by_value: Vec::new(),
            clip_norm: None,
            precision: MatmulPrecision::Highest,
            vectors: Default::default(),
            by_vectors: Default::default(),
            softmax: InBatchSoftmax::default(),
        })
    }

    /// The same model, whose training steps make their matrix products with this precision. With [`MatmulPrecision::High`] they are faster
    /// on x86 processors with AMX, and f32 on others. Predictions are f32.
    pub fn with_matmul_precision(self, precision: MatmulPrecision) -> NativeModel {
        NativeModel { precision, ..self }
    }

    /// How many buffers of gradients, each as long as the `parameters` dense parameters, training on batches of `rows` rows keeps: one
    /// for each micro-batch, and one for their sum.
    pub fn gradient_buffers(parameters: usize, rows: usize) -> usize {
        micro_batches(parameters, rows) + 1
    }

    /// How many copies of the weights training on batches of `rows` rows keeps packed with [`MatmulPrecision::High`], where the processor
    /// has AMX: none for batches of one chunk, because they use each weight once.
    pub fn packed_copies(rows: usize) -> usize {
        if rows > CHUNK { 2 } else { 0 }
    }

    /// Sets `vectors` to the vectors of both towers.
    fn compute_vectors(&mut self, batch: &DenseBatch<'_>) -> Result<(), ModelError> {
        if self.net.two_towers.is_none() {
            return Err(ModelError::Setting(NO_VECTORS.into()));
        }
        batch.check(self.shape())?;
        let mut logits = vec![0.0; batch.rows];
        self.run_micro_batches(batch, &mut logits, Run::Vectors { training: false });
        Ok(())
    }

    fn copy_vectors(&self, batch: &DenseBatch<'_>, side: TowerSide, to: &mut Vec<f32>) -> Result<(), ModelError> {
        to.clear();
        to.extend_from_slice(&self.vectors[side as usize]);
        if kernels::all_finite(to) {
            return Ok(());
        }
        let what = batch.first_non_finite(self.shape());
        Err(ModelError::NonFinite(what.unwrap_or_else(|| "a vector, though every input is finite".to_owned())))
    }

    fn shape(&self) -> BatchShape {
        BatchShape {
            slots: self.net.spec.slots,
            dense: self.net.spec.dense,
            row_dim: self.net.parts.row_dim,
            labels: self.net.labels(),
        }
    }

    /// Runs every micro-batch over its rows. `dlogits` and `dx` are empty without a backward pass.
    fn run_micro_batches(&mut self, batch: &DenseBatch<'_>, logits: &mut [f32], run: Run) {
        let training = matches!(run, Run::Train | Run::Back);
        let (n, labels) = (batch.rows, self.net.labels());
        let vector_dim = self.net.vector_dim();
        if let Run::Vectors { .. } = run {
            self.vectors.iter_mut().for_each(|vectors| vectors.resize(n * vector_dim, 0.0));
        }
        let (count, part_bits) = (micro_batches(self.net.len(), n), self.part_bits(batch));
        let histories: Vec<usize> = self.net.attention.iter().map(|unit| unit.pair.history).collect();
        let values = |rows: Range<usize>| -> Vec<usize> {
            let bags = self.net.bags(batch, rows.start);
            histories.iter().map(|&history| bags.count(history, rows.len())).collect()
        };
        let all_values = values(0..n);
        let attention = self.net.nanoseconds_of_attention(all_values.iter().copied().max().unwrap_or(0));
        let threads = self.workers.worth(n * self.net.nanoseconds_per_row() + attention);
        let has_products = self.net.hidden().next().is_some();
        let sharing = if has_products { threads_per_product(threads, count) } else { 1 };
        let is_step = training || matches!(run, Run::Vectors { training: true });
        let precision = if is_step { self.precision } else { MatmulPrecision::Highest };
        let products = Products { threads: sharing, precision };
        let rows = n.div_ceil(count).max(1);
        let embedded = if training { self.net.embedded() } else { 0 };
        self.dlogits.resize(if training { n * labels } else { 0 }, 0.0);
        self.dx.resize(n * embedded, 0.0);
        self.by_value.resize_with(histories.len(), Vec::new);
        let dim = if training { self.net.parts.dim } else { 0 };
        for (by_value, values) in self.by_value.iter_mut().zip(all_values) {
            by_value.resize(values * dim, 0.0);
        }
        let mut by_value: Vec<&mut [f32]> = self.by_value.iter_mut().map(Vec::as_mut_slice).collect();
        self.micro_batches.truncate(count);
        self.micro_batches.resize_with(count, MicroBatch::default);
        let (mut dlogits, mut dx, mut rest) = (self.dlogits.as_mut_slice(), self.dx.as_mut_slice(), logits);
        let mut vectors = self.vectors.each_mut().map(Vec::as_mut_slice);
        let mut tasks = Vec::with_capacity(count);
        for (i, micro_batch) in self.micro_batches.iter_mut().enumerate() {
            (micro_batch.products, micro_batch.part_bits) = (products, part_bits);
            let (start, end) = ((i * rows).min(n), ((i + 1) * rows).min(n));
            let own = end - start;
            let (logits, tail) = std::mem::take(&mut rest).split_at_mut(own * labels);
            let own_dlogits = if training { own * labels } else { 0 };
            let (own_dlogits, dlogits_tail) = std::mem::take(&mut dlogits).split_at_mut(own_dlogits);
            let (own_dx, dx_tail) = std::mem::take(&mut dx).split_at_mut(own * embedded);
            (rest, dlogits, dx) = (tail, dlogits_tail, dx_tail);
            let mut own_values = Vec::with_capacity(by_value.len());
            for (by_value, values) in by_value.iter_mut().zip(values(start..end)) {
                let (own, tail) = std::mem::take(by_value).split_at_mut(values * dim);
                own_values.push(own);
                *by_value = tail;
            }
            let pace = match run {
                Run::Predict => Pace::Predict,
                Run::Train => Pace::Train,
                Run::Vectors { training } => {
                    let of = vectors.each_mut().map(|vectors| {
                        let (own, tail) = std::mem::take(vectors).split_at_mut(own * vector_dim);
                        *vectors = tail;
                        own
                    });
                    Pace::Vectors { of, training }
                }
                Run::Back => Pace::Back(self.by_vectors.each_ref().map(|by| &by[start * vector_dim..end * vector_dim])),
            };
            let rows = MicroBatchRows {
                rows: start..end,
                logits,
                dlogits: own_dlogits,
                dx: own_dx,
                by_value: own_values,
                pace,
            };
            tasks.push((micro_batch, rows));
        }
        let is_packed = is_step && self.precision == MatmulPrecision::High && NativeModel::packed_copies(n) > 0;
        // On the way back, the packed weights of the same step's vectors are valid.
        if is_packed && run != Run::Back {
            self.step_weights.pack(&self.net, self.block.values(), &self.workers);
        }
        let weights = Weights {
            params: self.block.values(),
            packed: self.packed.as_ref().filter(|_| !is_step),
            of_step: is_packed.then_some(&self.step_weights),
        };
        let net = &self.net;
        let work =
            |(micro_batch, rows): (&mut MicroBatch, MicroBatchRows<'_>)| micro_batch.run(net, weights, batch, rows);
        if sharing > 1 { self.workers.each_within(tasks, work) } else { self.workers.each(threads, tasks, work) }
    }

    /// Forward and backward of the whole batch with in-batch softmax, whose candidates slot `item` names. Returns the mean loss.
    fn in_batch(&mut self, batch: &DenseBatch<'_>, logits: &mut [f32], item: usize, log_q: bool) -> f64 {
        self.run_micro_batches(batch, logits, Run::Vectors { training: true });
        let two = self.net.two_towers.as_ref().expect("this loss is of two towers");
        let sizes = (two.vector_dim(), 1.0 / two.spec.temperature);
        self.softmax.items.read(batch, (self.net.spec.slots, item), self.net.parts.row_dim, log_q);
        self.by_vectors.iter_mut().for_each(|by| by.resize(batch.rows * sizes.0, 0.0));
        let vectors = self.vectors.each_ref().map(Vec::as_slice);
        let by_vectors = self.by_vectors.each_mut().map(Vec::as_mut_slice);
        let loss = self.softmax.run(&self.workers, batch, vectors, sizes, by_vectors, self.precision);
        self.run_micro_batches(batch, logits, Run::Back);
        loss
    }

    /// How long scattering the gradients of the unique rows takes one thread, about.
    fn nanoseconds_to_scatter(&self, batch: &DenseBatch<'_>) -> usize {
        batch.inverse.len() * nanoseconds_per_value(self.net.parts.row_dim)
    }

    /// The binary logarithm of the number of parts of the unique rows: 0 on one or two threads, because listing their values takes time,
    /// too.
    fn part_bits(&self, batch: &DenseBatch<'_>) -> u32 {
        let threads = self.workers.worth(self.nanoseconds_to_scatter(batch));
        threads.min(self.workers.threads().div_ceil(2)).min(MOST_PARTS).next_power_of_two().ilog2()
    }

    /// Adds up the micro-batches' gradients, and scatters the gradients of the unique rows at the same time. Returns whether all are
    /// finite.
    fn collect(&self, batch: &DenseBatch<'_>, row_grads: &mut Vec<f32>, grads: &mut Vec<f32>) -> bool {
        enum Task<'a> {
            All(&'a mut [f32]),
            Part(PartGrads<'a>),
            Sum(usize, &'a mut [f32]),
        }
        // Each task clears its own part.
        row_grads.resize(batch.unique_rows.len(), 0.0);
        grads.resize(self.net.len(), 0.0);
        let bags = self.net.bags(batch, 0);
        let sums = grads.chunks_mut(SUM_LEN).enumerate().map(|(i, sum)| Task::Sum(i * SUM_LEN, sum));
        let (parts, part_bits) = (self.net.parts, self.part_bits(batch));
        let mut tasks: Vec<Task<'_>> = match part_bits {
            0 => vec![Task::All(row_grads)],
            _ => PartGrads::split(row_grads, parts.row_dim, part_bits).into_iter().map(Task::Part).collect(),
        };
        tasks.extend(sums);
        let largest = (0..bags.slots).any(|slot| bags.takes_largest(slot));
        // A number for each row: the gradients by the linear weights, which a model with several labels does not have.
        let (micro_batches, dlogits, dx) = (&self.micro_batches, &self.dlogits[..batch.rows], &self.dx);
        let others = |grads: &mut PartGrads<'_>| {
            if largest {
                scatter_largest(&bags, parts, batch.unique_rows, (dlogits, dx), grads);
            }
            for (unit, by_value) in self.net.attention.iter().zip(&self.by_value) {
                scatter_values(&bags, parts, unit.pair.history, dlogits.len(), by_value, grads);
            }
        };
        let finite = AtomicBool::new(true);
        let check = |sums: &[f32]| finite.fetch_and(kernels::all_finite(sums), Ordering::Relaxed);
        let to_sum = self.net.len() * micro_batches.len();
        let threads = self.workers.worth(self.nanoseconds_to_scatter(batch).max(to_sum)).max(1 << part_bits);
        self.workers.each(threads, tasks, |task| match task {
            Task::All(row_grads) => {
                row_grads.fill(0.0);
                scatter(&bags, parts, dlogits, dx, row_grads);
                if largest || !self.by_value.is_empty() {
                    PartGrads::split(row_grads, parts.row_dim, 0).iter_mut().for_each(others);
                }
                check(row_grads);
            }
            Task::Part(mut grads) => {
                grads.blocks().for_each(|block| block.fill(0.0));
                for micro_batch in micro_batches {
                    scatter_listed(micro_batch.values.of(grads.part()), &bags, parts, dlogits, dx, &mut grads);
                }
                others(&mut grads);
                grads.blocks().for_each(|block| _ = check(block));
            }
            Task::Sum(from, sum) => {
                let own = from..from + sum.len();
                sum.copy_from_slice(&micro_batches[0].grads[own.clone()]);
                for micro_batch in &micro_batches[1..] {
                    kernels::add(sum, &micro_batch.grads[own.clone()]);
                }
                check(sum);
            }
        });
        finite.into_inner()
    }

    /// The error of a step whose loss or gradients are not all finite.
    fn non_finite(&self, batch: &DenseBatch<'_>, out: &StepOutput, grads: &[f32]) -> ModelError {
        let loss = out.loss;
        let what = batch.first_non_finite(self.shape()).unwrap_or_else(|| {
            if !loss.is_finite() {
                return format!("the loss is {loss}, though every input is finite");
            }
            match grads.iter().position(|g| !g.is_finite()) {
                Some(at) => format!("the gradient of {} is {}", self.net.name_of(at), grads[at]),
                None => "the gradient of a unique row is not finite".to_owned(),
            }
        });
        ModelError::NonFinite(what)
    }
}

/// Micro-batches of a batch of `rows` rows, for a model with this many parameters.
fn micro_batches(parameters: usize, rows: usize) -> usize {
    let most = if parameters <= FEW_PARAMETERS { MOST_OF_FEW_PARAMETERS } else { MICRO_BATCHES };
    (rows / MICRO_BATCH_ROWS).clamp(1, most)
}

/// How many threads share each matrix product of `count` micro-batches that run side by side. Without sharing, each micro-batch
/// keeps one thread busy; that is cheaper if the micro-batches fill all threads.
fn threads_per_product(threads: usize, count: usize) -> usize {
    if count.is_multiple_of(threads) || count >= 2 * threads {
        1
    } else if threads.is_multiple_of(count) {
        threads / count
    } else {
        threads
    }
}

impl DenseModel for NativeModel {
    fn train(&mut self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<(), ModelError> {
        let mut grads = std::mem::take(&mut self.grads);
        let done = self.gradients(batch, out, &mut grads);
        if done.is_ok() {
            self.packed = None;
            // A parameter takes one or two nanoseconds.
            let threads = self.workers.worth(2 * grads.len());
            self.workers.each(threads, self.block.step(&grads), UpdateTask::run);
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
        out.logits.resize(batch.labels.len(), 0.0);
        let loss = self.net.two_towers.as_ref().map(|two| two.spec.loss);
        if let Some(TwoTowersLoss::InBatchSoftmax { item, log_q }) = loss {
            out.loss = self.in_batch(batch, &mut out.logits, item, log_q);
        } else {
            self.run_micro_batches(batch, &mut out.logits, Run::Train);
            out.loss = self.micro_batches.iter().map(|micro_batch| micro_batch.loss).sum::<f64>() / batch.rows as f64;
        }
        let finite = self.collect(batch, &mut out.row_grads, grads);
        if !finite || !out.loss.is_finite() {
            return Err(self.non_finite(batch, out, grads));
        }
        if let Some(most) = self.clip_norm {
            clip_norm::clip(most, [grads, &mut out.row_grads]);
        }
        if let Some(TwoTowersLoss::InBatchSoftmax { log_q: true, .. }) = loss {
            self.softmax.items.count(&mut out.row_grads, self.net.parts.row_dim);
        }
        Ok(())
    }

    fn set_clip_norm(&mut self, most: f64) -> Result<(), ModelError> {
        clip_norm::check(most)?;
        self.clip_norm = Some(most);
        Ok(())
    }

    fn threads(&self) -> Option<usize> {
        Some(self.workers.threads())
    }

    fn set_threads(&mut self, threads: usize) -> Result<(), ModelError> {
        self.workers = Workers::new(threads)?;
        Ok(())
    }

    fn reduce_lr(&mut self, reduction: LrReduction) -> Result<(), ModelError> {
        self.block.reduce_lr(reduction);
        Ok(())
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
        self.packed = None;
        self.block.set_values(values)
    }

    fn predict(&mut self, batch: &DenseBatch<'_>, logits: &mut Vec<f32>) -> Result<(), ModelError> {
        batch.check(self.shape())?;
        logits.resize(batch.labels.len(), 0.0);
        self.run_micro_batches(batch, logits, Run::Predict);
        if kernels::all_finite(logits) {
            return Ok(());
        }
        let what = batch.first_non_finite(self.shape());
        Err(ModelError::NonFinite(what.unwrap_or_else(|| "a logit, though every input is finite".to_owned())))
    }

    fn embed(&mut self, batch: &DenseBatch<'_>, side: TowerSide, vectors: &mut Vec<f32>) -> Result<(), ModelError> {
        self.compute_vectors(batch)?;
        self.copy_vectors(batch, side, vectors)
    }

    fn embed_both(&mut self, batch: &DenseBatch<'_>, vectors: &mut [Vec<f32>; 2]) -> Result<(), ModelError> {
        self.compute_vectors(batch)?;
        let mut copy = |side| self.copy_vectors(batch, side, &mut vectors[side as usize]);
        copy(TowerSide::User).and_then(|()| copy(TowerSide::Item))
    }

    fn parameters(&self) -> Vec<NamedTensor> {
        params::to_tensors(&self.net.layout, "", self.block.values())
    }

    fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let known: Vec<String> = self.net.layout.iter().map(|param| param.name.clone()).collect();
        params::refuse_unknown(&known, tensors)?;
        self.block.load(&self.net.layout, tensors)?;
        self.packed = None;
        Ok(())
    }

    fn has_independent_rows(&self) -> bool {
        true
    }

    fn pack_weights(&mut self) {
        self.packed = Some(PackedWeights::new(&self.net, self.block.values()));
    }

    fn optimizer(&self) -> Vec<NamedTensor> {
        params::save_optimizer(&self.net.layout, &self.block.optimizer(), self.block.steps(), self.block.state())
    }

    fn load_optimizer(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let (steps, state) = params::load_optimizer(&self.net.layout, &self.block.optimizer(), tensors)?;
        self.block.set_state(steps, state)
    }

    fn parts(&self) -> Vec<RowPart> {
        self.net.spec.parts()
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::{SplitMix64, signed_unit_f32};

    use super::*;
    use crate::TowerInputs;

    #[test]
    fn the_logit_of_a_row_has_the_same_bits_in_a_batch_of_any_size_with_packed_weights_or_without() {
        let (slots, dense, rows) = (5, 3, 300);
        let wide = ModelSpec::ctr_dnn(slots, dense, 120, &[32, 400]);
        for spec in [
            ModelSpec::wide_deep(slots, dense, 8, &[400, 24]),
            ModelSpec::deep_fm(slots, dense, 4, &[24, 12]),
            ModelSpec::ctr_dnn(slots, dense, 4, &[7, 2]),
            ModelSpec::ctr_dnn(slots, dense, 4, &[1, 3]),
            ModelSpec::dcn_v2(slots, 0, 2, 2, &[6]),
            ModelSpec::lr(slots, dense),
            ModelSpec::ctr_dnn(slots, dense, 4, &[24, 12]).with_activation(crate::Activation::Gelu),
            ModelSpec::wide_deep(slots, dense, 4, &[24, 12]).with_norm(crate::Norm::Layer).with_dropout(0.5),
            ModelSpec::din(slots, dense, 4, &[crate::AttentionPair { history: 1, target: 0 }], &[24], &[24, 12]),
            wide,
            ModelSpec::shared_bottom(slots, dense, 4, &[24, 12], &[7], &[1.0, 0.5]),
            ModelSpec::mmoe(slots, dense, 8, 3, &[24, 400], &[], &[1.0, 0.5]),
            ModelSpec::mmoe(slots, dense, 120, 2, &[32], &[24, 2], &[1.0, 0.5, 2.0]),
            ModelSpec::esmm(slots, dense, 4, &[24, 12], &[1.0, 0.5]).with_norm(crate::Norm::Layer),
            ModelSpec::final_mlp(slots, dense, 4, crate::FinalMlp::new(&[24, 12])),
            ModelSpec::final_mlp(
                slots,
                dense,
                4,
                crate::FinalMlp { heads: 12, gates: None, ..crate::FinalMlp::new(&[24]) },
            ),
            ModelSpec::final_mlp(slots, dense, 120, {
                let gates = crate::FeatureGates { hidden: vec![24], first: vec![0, 2], second: vec![4] };
                crate::FinalMlp { heads: 4, gates: Some(gates), ..crate::FinalMlp::new(&[32, 400]) }
            }),
        ] {
            let labels = spec.labels();
            let mut model = NativeModel::new(spec.clone(), DenseOptimizer::sgd(0.1), 3, 1).unwrap();
            let mut random = SplitMix64::new(1);
            let mut numbers = |n: usize| (0..n).map(|_| signed_unit_f32(random.next_u64())).collect::<Vec<f32>>();
            let (features, unique_rows) = (numbers(rows * spec.dense), numbers(40 * spec.row_dim()));
            // The values of the first slots are the same in all rows.
            let value = |i: usize| if i % slots < 3 { i % slots } else { i * 7 % 40 };
            let inverse: Vec<u32> = (0..rows * slots).map(|i| value(i) as u32).collect();
            let mut predict = |n: usize, packed: bool| {
                if packed {
                    model.pack_weights();
                }
                let batch = DenseBatch {
                    id: 0,
                    rows: n,
                    labels: &vec![0.0; n * labels],
                    weights: None,
                    dense: &features[..n * spec.dense],
                    unique_rows: &unique_rows,
                    inverse: &inverse[..n * slots],
                    offsets: None,
                    value_weights: None,
                };
                let mut logits = Vec::new();
                model.predict(&batch, &mut logits).unwrap();
                logits.iter().map(|logit| logit.to_bits()).collect::<Vec<u32>>()
            };
            let all = predict(rows, false);
            assert_eq!(predict(rows, true), all, "{spec:?}");
            for n in [1, 2, 3, 7, 8, 9, 10, 16, 33, 64, 65, 100, 129, 255, 256, 257, 299] {
                assert_eq!(predict(n, true), all[..n * labels], "{n} rows, {spec:?}");
            }
        }
    }

    /// On a machine without AMX both are f32.
    #[test]
    fn steps_of_high_precision_are_near_those_of_the_highest_and_predictions_are_f32() {
        let (slots, dense, rows) = (5, 3, 300);
        let inputs = |slots: &[usize], dense: &[usize]| TowerInputs {
            slots: slots.into(),
            dense: dense.into(),
            ..Default::default()
        };
        let (user, item) = (inputs(&[0, 1, 2], &[0, 1, 2]), inputs(&[3, 4], &[]));
        let mut in_batch = ModelSpec::two_towers(slots, dense, 32, user, item, &[64, 48], 48);
        in_batch.two_towers.as_mut().unwrap().loss = TwoTowersLoss::InBatchSoftmax { item: 4, log_q: false };
        for spec in [
            ModelSpec::wide_deep(slots, dense, 16, &[64, 48]),
            ModelSpec::dcn_v2(slots, dense, 16, 2, &[64]),
            ModelSpec::din(slots, dense, 16, &[crate::AttentionPair { history: 1, target: 0 }], &[64], &[64, 48]),
            ModelSpec::mmoe(slots, dense, 16, 3, &[64, 48], &[32], &[1.0, 0.5]),
            ModelSpec::final_mlp(slots, dense, 16, crate::FinalMlp::new(&[64, 48])),
            in_batch,
        ] {
            let mut random = SplitMix64::new(5);
            let mut numbers = |n: usize| (0..n).map(|_| signed_unit_f32(random.next_u64())).collect::<Vec<f32>>();
            let labels: Vec<f32> = numbers(rows * spec.labels()).iter().map(|x| f32::from(*x > 0.0)).collect();
            let (features, unique_rows) = (numbers(rows * dense), numbers(40 * spec.row_dim()));
            let inverse: Vec<u32> = (0..rows * slots).map(|i| (i * 7 % 40) as u32).collect();
            let batch = DenseBatch {
                id: 0,
                rows,
                labels: &labels,
                weights: None,
                dense: &features,
                unique_rows: &unique_rows,
                inverse: &inverse,
                offsets: None,
                value_weights: None,
            };
            let run = |precision| {
                let model = NativeModel::new(spec.clone(), DenseOptimizer::sgd(0.1), 3, 1).unwrap();
                let mut model = model.with_matmul_precision(precision);
                let (mut out, mut grads, mut logits) = (StepOutput::default(), Vec::new(), Vec::new());
                model.gradients(&batch, &mut out, &mut grads).unwrap();
                model.predict(&batch, &mut logits).unwrap();
                (grads, out.row_grads, logits)
            };
            let (high, highest) = (run(MatmulPrecision::High), run(MatmulPrecision::Highest));
            for (high, highest) in [(high.0, highest.0), (high.1, highest.1)] {
                let most = highest.iter().fold(0f32, |most, x| most.max(x.abs()));
                let differ = high.iter().zip(&highest).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                assert!(differ <= most * 1e-4, "{differ} of {most}, {spec:?}");
                assert_eq!(differ > 0.0, super::super::amx::is_available(), "{spec:?}");
            }
            assert_eq!(high.2, highest.2, "{spec:?}");
        }
    }

    #[test]
    fn packed_weights_are_dropped_when_the_parameters_change() {
        let spec = ModelSpec::ctr_dnn(2, 1, 4, &[24, 12]);
        let (unique_rows, inverse, labels) = ([0.5; 4 * 3], [0, 1, 2, 1], [0.0, 1.0]);
        let batch = DenseBatch {
            id: 0,
            rows: 2,
            labels: &labels,
            weights: None,
            dense: &[0.5, -0.5],
            unique_rows: &unique_rows,
            inverse: &inverse,
            offsets: None,
            value_weights: None,
        };
        let new = |seed| NativeModel::new(spec.clone(), DenseOptimizer::sgd(0.1), seed, 1).unwrap();
        let predict = |model: &mut NativeModel| {
            let mut logits = Vec::new();
            model.predict(&batch, &mut logits).unwrap();
            logits
        };
        let other = new(2);
        let mut flat = Vec::new();
        other.read_flat(&mut flat).unwrap();
        let changes: [&dyn Fn(&mut NativeModel); 3] = [
            &|model| model.train(&batch, &mut StepOutput::default()).unwrap(),
            &|model| model.load(&new(2).parameters()).unwrap(),
            &|model| model.set_flat(&flat).unwrap(),
        ];
        for change in changes {
            let (mut packed, mut plain) = (new(1), new(1));
            packed.pack_weights();
            let before = predict(&mut packed);
            change(&mut packed);
            change(&mut plain);
            assert_ne!(predict(&mut packed), before);
            assert_eq!(predict(&mut packed), predict(&mut plain));
        }
    }
}
