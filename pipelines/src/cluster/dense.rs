//! The dense parameters in the ps processes: blocks with the optimizer there, a [`DenseStore`] in the trainers.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_actors::{Fault, Host};
use forebay_base::LrReductions;
use forebay_job::Job;
use forebay_models::{DenseOptimizer, NamedTensor, ParamBlock};
use forebay_net::{Peer, Retry};
use forebay_ps::dense::NamedValues;
use forebay_ps::{PushId, Round, Trainer, dense};

use futures::executor::block_on;
use futures::future::{BoxFuture, ready};
use futures::{FutureExt, TryFutureExt};

use super::acknowledge::Acknowledger;
use crate::checkpoint::{CheckpointFolder, CheckpointManifest, dense_blocks};
use crate::context::Context;
use crate::dense_model::dense_store::DenseStore;
use crate::dense_model::job_model::JobModel;
use crate::fault::model_fault;
use crate::predecessor::Predecessor;

/// Applies the job's optimizer to a block.
struct Rule {
    block: ParamBlock,
    /// How far the learning rate is reduced.
    reductions: LrReductions,
}

impl dense::DenseRule for Rule {
    fn apply(&mut self, grads: &[f32]) -> Result<(), Fault> {
        self.block.reduce_lr(self.reductions.at(self.block.steps() + 1));
        self.block.apply(grads).map_err(model_fault)
    }

    fn reduce_lr(&mut self, reductions: &LrReductions) -> Result<(), Fault> {
        self.reductions = reductions.clone();
        Ok(())
    }

    fn set(&mut self, place: usize, value: f32) -> Result<(), Fault> {
        let mut values = self.block.values().to_vec();
        if let Some(old) = values.get_mut(place) {
            *old = value;
        }
        self.block = ParamBlock::new(self.block.optimizer(), values).map_err(model_fault)?;
        Ok(())
    }

    fn values(&self) -> &[f32] {
        self.block.values()
    }

    fn save(&self) -> Result<Vec<NamedValues>, Fault> {
        Ok(saved(&self.block))
    }

    fn restore(&mut self, saved: Vec<NamedValues>) -> Result<(), Fault> {
        let block = ParamBlock::restored(self.block.optimizer(), &tensors(saved)).map_err(model_fault)?;
        let (found, expected) = (block.values().len(), self.values().len());
        if found != expected {
            return Err(Fault::user(format!("a saved dense block has {found} values; expected {expected}")));
        }
        self.block = block;
        Ok(())
    }
}

/// What a block saves: its values, and the state of its optimizer.
fn saved(block: &ParamBlock) -> Vec<NamedValues> {
    block.save().into_iter().map(|NamedTensor { name, data, .. }| NamedValues { name, values: data }).collect()
}

/// The tensors of a saved block: `values`, and the state of the optimizer.
pub(crate) fn tensors(saved: Vec<NamedValues>) -> Vec<NamedTensor> {
    let tensor = |NamedValues { name, values }| NamedTensor { name, shape: vec![values.len()], data: values };
    saved.into_iter().map(tensor).collect()
}

/// Starts the dense block of the ps process of this rank. Returns its request handler, too.
pub(crate) fn serve(
    host: &Host,
    job: &Job,
    context: &Context,
    rank: usize,
) -> Result<(dense::DenseService, dense::DenseBlock), Fault> {
    let mut values = Vec::new();
    JobModel::on_cpu(job, &context.registry)?.read_flat(&mut values).map_err(model_fault)?;
    let (len, processes) = (values.len(), job.placement.ps);
    let range = dense::blocks(len, processes)[rank].clone();
    let (values, optimizer) = (values[range].to_vec(), job.dense_optimizer());
    let block = dense::DenseBlock::start(host, rank, values.len(), move || {
        let block = ParamBlock::new(optimizer, values).map_err(model_fault)?;
        Ok(Box::new(Rule { block, reductions: LrReductions::default() }))
    });
    let service = dense::DenseService::new(block.clone(), len, rank, processes)?;
    Ok((
        service.of_trainers(job.placement.trainers as u32).trainers_acknowledge(Acknowledger::is_left_to_trainers(job)),
        block,
    ))
}

/// Puts the values of a checkpoint, and the state of their optimizer, into the block of the ps process of this rank. The
/// checkpoint may be of another number of ps. Blocks on the store.
pub(crate) fn restore(
    block: &dense::DenseBlock,
    job: &Job,
    rank: usize,
    folder: &CheckpointFolder,
    manifest: &CheckpointManifest,
) -> Result<(), Fault> {
    restore_part(block, job, rank, &dense_blocks(folder, manifest, job.dense_optimizer())?)
}

/// Puts the values of a model, and the state of their optimizer if the model has it, into the block of the ps process of this
/// rank. Blocks on the store.
pub(crate) fn continue_from(
    block: &dense::DenseBlock,
    job: &Job,
    context: &Context,
    rank: usize,
    predecessor: &Predecessor,
) -> Result<(), Fault> {
    let model = JobModel::on_cpu(job, &context.registry)?;
    let whole = ParamBlock::of_model(job.dense_optimizer(), &*model, &predecessor.dense()?).map_err(model_fault)?;
    restore_part(block, job, rank, &whole)
}

/// Puts the part of the ps process of this rank into its block.
fn restore_part(block: &dense::DenseBlock, job: &Job, rank: usize, whole: &ParamBlock) -> Result<(), Fault> {
    let range = dense::blocks(whole.values().len(), job.placement.ps)[rank].clone();
    block_on(block.restore(saved(&whole.part(range))))
}

/// A trainer's client of the dense parameters in the ps processes.
pub(crate) struct PsDenseStore {
    client: dense::DenseClient,
    round: Option<u32>,
    optimizer: DenseOptimizer,
}

impl PsDenseStore {
    pub(crate) async fn connect(
        peers: &[Peer],
        job: &Job,
        dense_len: usize,
        first: Vec<dense::FirstValue>,
        trainer: Trainer,
        retry: Retry,
    ) -> Result<Self, Fault> {
        let client = dense::connect(peers, dense_len, job.placement.wire, retry).await?.of_trainer(trainer);
        for first in first {
            client.set_first(first).await?;
        }
        Ok(Self { client, round: job.round(), optimizer: job.dense_optimizer() })
    }
}

#[async_trait]
impl DenseStore for PsDenseStore {
    async fn pull(&self, after: Option<u64>) -> Result<Arc<Vec<f32>>, Fault> {
        match after {
            Some(step) => self.client.pull_after(step).await,
            None => self.client.pull().await,
        }
    }

    async fn optimizer(&self, parameters: &[NamedTensor]) -> Result<Vec<NamedTensor>, Fault> {
        let blocks = self.client.save().await?.into_iter().map(tensors);
        let blocks: Result<Vec<_>, _> = blocks.map(|saved| ParamBlock::restored(self.optimizer, &saved)).collect();
        let whole = blocks.and_then(|blocks| ParamBlock::joined(&blocks)).map_err(model_fault)?;
        whole.optimizer_of_model(parameters).map_err(model_fault)
    }

    async fn begin_push(
        &self,
        id: PushId,
        step: u64,
        rows: u64,
        grads: Vec<f32>,
    ) -> Result<BoxFuture<'static, Result<(), Fault>>, Fault> {
        Ok(match self.round {
            Some(trainers) => {
                let round = Round { trainers, rows };
                self.client.begin_push_round(id, round, &grads, step).await?.map_ok(drop).boxed()
            }
            None if grads.is_empty() => ready(Ok(())).boxed(),
            None => self.client.begin_push_once(id, &grads).await?.map_ok(drop).boxed(),
        })
    }

    async fn reduce_lr(&self, reductions: &LrReductions) -> Result<(), Fault> {
        self.client.reduce_lr(reductions).await
    }

    async fn acknowledge_before(&self, source: u64) -> Result<(), Fault> {
        self.client.acknowledge_before(source).await
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::{Decay, LearningRate};
    use forebay_ps::dense::DenseRule;

    use super::*;

    fn rule(lr: LearningRate) -> Rule {
        let optimizer = DenseOptimizer::Sgd { lr, l2: 0.0 };
        Rule { block: ParamBlock::new(optimizer, vec![1.0, 2.0]).unwrap(), reductions: LrReductions::default() }
    }

    /// The reduction comes before the steps that have the earlier rate, as in an exact order, and the block is restored between.
    #[test]
    fn steps_after_a_reduction_have_the_rate_of_a_schedule_that_falls_there() {
        let falls = LearningRate { decay: Decay::Steps { every: 4, factor: 0.1 }, ..0.5.into() };
        let mut rules = [rule(0.5.into()), rule(falls), rule(0.5.into())];
        rules[0].reduce_lr(&LrReductions { factor: 0.1, min_lr: 0.0, after: vec![3] }).unwrap();
        for step in 1..7 {
            let [reduced, by_hand, constant] = rules.each_mut().map(|rule| {
                rule.apply(&[0.5, -0.25]).unwrap();
                let saved = rule.save().unwrap();
                rule.restore(saved).unwrap();
                rule.values().to_vec()
            });
            assert_eq!(reduced, by_hand, "step {step}");
            assert_eq!(reduced == constant, step < 4, "step {step}");
        }
    }
}
