//! Slots of the CPU: plain copies, done when the call returns. The safe twin of `cuda.rs`, and what its users are tested on.

use std::time::{Duration, Instant};

use tch::{Kind, Tensor};

use super::slot::{Engine, Slot, grown};
use crate::ModelError;

/// Makes slots whose "device" is the host.
pub(super) struct HostEngine;

struct HostSlot {
    staging: Vec<i32>,
    words: Tensor,
    results: Tensor,
    landed: Vec<i32>,
    up: usize,
    down: usize,
    began: Instant,
    took: Duration,
}

impl Engine for HostEngine {
    fn slot(&self) -> Result<Box<dyn Slot>, ModelError> {
        Ok(Box::new(HostSlot {
            staging: Vec::new(),
            words: tensor(0)?,
            results: tensor(0)?,
            landed: Vec::new(),
            up: 0,
            down: 0,
            began: Instant::now(),
            took: Duration::ZERO,
        }))
    }
}

fn tensor(words: usize) -> Result<Tensor, ModelError> {
    Ok(Tensor::f_zeros([words as i64], (Kind::Int, tch::Device::Cpu))?)
}

impl Slot for HostSlot {
    fn stage(&mut self, up: usize, down: usize) -> Result<&mut [i32], ModelError> {
        if up > self.staging.len() {
            self.staging = vec![0; grown(up)];
            self.words = tensor(self.staging.len())?;
        }
        if down > self.landed.len() {
            self.landed = vec![0; grown(down)];
            self.results = tensor(self.landed.len())?;
        }
        (self.up, self.down) = (up, down);
        Ok(&mut self.staging[..up])
    }

    fn upload(&mut self) -> Result<(), ModelError> {
        let staged = Tensor::f_from_slice(&self.staging[..self.up])?;
        Ok(self.words.f_narrow(0, 0, self.up as i64)?.f_copy_(&staged)?)
    }

    fn arrived(&mut self) -> Result<(Tensor, Tensor), ModelError> {
        self.began = Instant::now();
        Ok((self.words.shallow_clone(), self.results.shallow_clone()))
    }

    fn download(&mut self) -> Result<(), ModelError> {
        self.took = self.began.elapsed();
        Ok(self.results.f_copy_data(&mut self.landed, self.down)?)
    }

    fn wait(&mut self) -> Result<(&[i32], Duration), ModelError> {
        Ok((&self.landed[..self.down], self.took))
    }
}
