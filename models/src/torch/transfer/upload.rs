//! Upload: checks a batch, packs it into host memory, and starts one copy. Waits only if the buffers have to grow.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::BatchInFlight;
use super::buffers::{BufferAllocator, TransferBuffers};
use super::cuda::CudaAllocator;
use super::host::HostAllocator;
use super::layout::{DownloadLayout, UploadLayout};
use crate::BatchShape;
use crate::params::check_len;
use crate::torch::batch::check_indices;
use crate::transfer::{BatchUpload, UploadedBatch};
use crate::{DenseBatch, ModelError};

/// The upload part of a model.
pub(in crate::torch) struct Uploader {
    allocator: Box<dyn BufferAllocator>,
    shape: BatchShape,
    /// Dense parameters of the model.
    params: usize,
    /// Buffers that are free again.
    free_buffers: Receiver<Box<dyn TransferBuffers>>,
    return_to: Sender<Box<dyn TransferBuffers>>,
}

impl Uploader {
    /// For a model of this shape on this device.
    pub(in crate::torch) fn new(device: tch::Device, shape: BatchShape, params: usize) -> Result<Uploader, ModelError> {
        let allocator: Box<dyn BufferAllocator> = match device {
            tch::Device::Cuda(number) => Box::new(CudaAllocator::new(number)?),
            _ => Box::new(HostAllocator),
        };
        let (return_to, free_buffers) = channel();
        Ok(Uploader { allocator, shape, params, free_buffers, return_to })
    }
}

impl BatchUpload for Uploader {
    fn upload(&mut self, batch: &DenseBatch<'_>, params: Option<&[f32]>) -> Result<UploadedBatch, ModelError> {
        batch.check(self.shape)?;
        check_indices(batch.unique(self.shape.row_dim), batch.inverse.len())?;
        if let Some(params) = params {
            check_len("values", params.len(), self.params)?;
        }
        let upload = UploadLayout::of(batch, params);
        let download = DownloadLayout::of(&upload);
        // No wait for free buffers: tickets and links bound the number of batches in flight.
        let mut buffers = self.free_buffers.try_recv().or_else(|_| self.allocator.allocate())?;
        upload.pack(batch, params, buffers.reserve(upload.words, download.words)?);
        buffers.start_upload()?;
        Ok(UploadedBatch::new(BatchInFlight {
            id: batch.id,
            buffers,
            upload,
            download,
            return_to: self.return_to.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepOutput;
    use crate::torch::{Device, TorchModel};
    use crate::{DenseModel, DenseOptimizer, ModelSpec};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts the buffers that it makes.
    struct CountingAllocator(Arc<AtomicUsize>);

    impl BufferAllocator for CountingAllocator {
        fn allocate(&self) -> Result<Box<dyn TransferBuffers>, ModelError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            HostAllocator.allocate()
        }
    }

    #[test]
    fn buffers_are_reused_when_their_batch_is_done() {
        let spec = ModelSpec::lr(2, 1);
        let mut model = TorchModel::new(spec, DenseOptimizer::sgd(0.1), 1, 1, Device::Cpu).unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        let shape = BatchShape { slots: 2, dense: 1, row_dim: 1, labels: 1 };
        let mut uploader = Uploader::new(tch::Device::Cpu, shape, model.flat_len()).unwrap();
        uploader.allocator = Box::new(CountingAllocator(Arc::clone(&made)));
        let batch = DenseBatch {
            id: 0,
            rows: 1,
            labels: &[1.0],
            weights: None,
            dense: &[0.5],
            unique_rows: &[0.1, 0.2],
            inverse: &[0, 1],
            offsets: None,
            value_weights: None,
        };
        for (in_flight, buffers) in [(1, 1), (3, 3), (2, 3), (3, 3)] {
            for _ in 0..3 {
                let uploads = (0..in_flight).map(|_| uploader.upload(&batch, None).unwrap());
                let launched: Vec<_> =
                    uploads.collect::<Vec<_>>().into_iter().map(|upload| model.launch(upload).unwrap()).collect();
                launched.into_iter().for_each(|step| drop(step.wait(&batch, &mut StepOutput::default()).unwrap()));
            }
            assert_eq!(made.load(Ordering::Relaxed), buffers, "with {in_flight} in flight");
        }
    }
}
