//! Buffers for the CPU: plain copies, done when the call returns. The safe twin of `cuda.rs`; tests run on it.

use std::time::{Duration, Instant};

use tch::{Kind, Tensor};

use super::buffers::{BufferAllocator, TransferBuffers, with_headroom};
use crate::ModelError;

/// Makes buffers for a "device" that is the host.
pub(super) struct HostAllocator;

struct HostBuffers {
    staging: Vec<i32>,
    words: Tensor,
    results: Tensor,
    host_results: Vec<i32>,
    upload_words: usize,
    download_words: usize,
    began: Instant,
    took: Duration,
}

impl BufferAllocator for HostAllocator {
    fn allocate(&self) -> Result<Box<dyn TransferBuffers>, ModelError> {
        Ok(Box::new(HostBuffers {
            staging: Vec::new(),
            words: tensor(0)?,
            results: tensor(0)?,
            host_results: Vec::new(),
            upload_words: 0,
            download_words: 0,
            began: Instant::now(),
            took: Duration::ZERO,
        }))
    }
}

fn tensor(words: usize) -> Result<Tensor, ModelError> {
    Ok(Tensor::f_zeros([words as i64], (Kind::Int, tch::Device::Cpu))?)
}

impl TransferBuffers for HostBuffers {
    fn reserve(&mut self, upload_words: usize, download_words: usize) -> Result<&mut [i32], ModelError> {
        if upload_words > self.staging.len() {
            self.staging = vec![0; with_headroom(upload_words)];
            self.words = tensor(self.staging.len())?;
        }
        if download_words > self.host_results.len() {
            self.host_results = vec![0; with_headroom(download_words)];
            self.results = tensor(self.host_results.len())?;
        }
        (self.upload_words, self.download_words) = (upload_words, download_words);
        Ok(&mut self.staging[..upload_words])
    }

    fn start_upload(&mut self) -> Result<(), ModelError> {
        let staged = Tensor::f_from_slice(&self.staging[..self.upload_words])?;
        Ok(self.words.f_narrow(0, 0, self.upload_words as i64)?.f_copy_(&staged)?)
    }

    fn tensors(&mut self) -> Result<(Tensor, Tensor), ModelError> {
        self.began = Instant::now();
        Ok((self.words.shallow_clone(), self.results.shallow_clone()))
    }

    fn start_download(&mut self) -> Result<(), ModelError> {
        self.took = self.began.elapsed();
        Ok(self.results.f_copy_data(&mut self.host_results, self.download_words)?)
    }

    fn wait(&mut self) -> Result<(&[i32], Duration), ModelError> {
        Ok((&self.host_results[..self.download_words], self.took))
    }
}
