//! BatchUpload: checks a batch, packs it into one stretch of host memory, starts one copy. Waits only where a slot grows.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::OnDevice;
use super::cuda::CudaEngine;
use super::host::HostEngine;
use super::layout::{Down, Up};
use super::slot::{Engine, Slot};
use crate::dense::BatchShape;
use crate::params::check_len;
use crate::torch::batch::check_indices;
use crate::transfer::{BatchUpload, Uploaded};
use crate::{DenseBatch, ModelError};

/// The uploading part of a model.
pub(in crate::torch) struct Uploader {
    engine: Box<dyn Engine>,
    shape: BatchShape,
    /// Dense parameters of the model.
    params: usize,
    /// Slots that are free again.
    free: Receiver<Box<dyn Slot>>,
    home: Sender<Box<dyn Slot>>,
}

impl Uploader {
    /// For a model of this shape on this device.
    pub(in crate::torch) fn new(device: tch::Device, shape: BatchShape, params: usize) -> Result<Uploader, ModelError> {
        let engine: Box<dyn Engine> = match device {
            tch::Device::Cuda(number) => Box::new(CudaEngine::new(number)?),
            _ => Box::new(HostEngine),
        };
        let (home, free) = channel();
        Ok(Uploader { engine, shape, params, free, home })
    }
}

impl BatchUpload for Uploader {
    fn upload(&mut self, batch: &DenseBatch<'_>, params: Option<&[f32]>) -> Result<Uploaded, ModelError> {
        batch.check(self.shape)?;
        check_indices(batch.unique(self.shape.row_dim), batch.inverse.len())?;
        if let Some(params) = params {
            check_len("values", params.len(), self.params)?;
        }
        let up = Up::of(batch, params);
        let down = Down::of(&up);
        // Not worth a wait: whoever hands out batches bounds how many are under way.
        let mut slot = self.free.try_recv().or_else(|_| self.engine.slot())?;
        up.pack(batch, params, slot.stage(up.words, down.words)?);
        slot.upload()?;
        Ok(Uploaded::new(OnDevice { slot, up, down, home: self.home.clone() }))
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

    /// Counts the slots it makes.
    struct Counting(Arc<AtomicUsize>);

    impl Engine for Counting {
        fn slot(&self) -> Result<Box<dyn Slot>, ModelError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            HostEngine.slot()
        }
    }

    #[test]
    fn there_are_as_many_slots_as_batches_were_under_way() {
        let spec = ModelSpec::lr(2, 1);
        let mut model = TorchModel::new(spec, DenseOptimizer::sgd(0.1), 1, 1, Device::Cpu).unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        let shape = BatchShape { slots: 2, dense: 1, row_dim: 1 };
        let mut uploader = Uploader::new(tch::Device::Cpu, shape, model.flat_len()).unwrap();
        uploader.engine = Box::new(Counting(Arc::clone(&made)));
        let batch = DenseBatch {
            rows: 1,
            labels: &[1.0],
            dense: &[0.5],
            unique_rows: &[0.1, 0.2],
            inverse: &[0, 1],
            offsets: None,
        };
        for (under_way, slots) in [(1, 1), (3, 3), (2, 3), (3, 3)] {
            for _ in 0..3 {
                let uploads = (0..under_way).map(|_| uploader.upload(&batch, None).unwrap());
                let launched: Vec<_> =
                    uploads.collect::<Vec<_>>().into_iter().map(|up| model.launch(up).unwrap()).collect();
                launched.into_iter().for_each(|step| drop(step.wait(&batch, &mut StepOutput::default()).unwrap()));
            }
            assert_eq!(made.load(Ordering::Relaxed), slots, "with {under_way} under way");
        }
    }
}
