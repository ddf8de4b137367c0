//! Buffers for a CUDA device: pinned host memory, a stream for each direction, events between them. This crate calls the
//! CUDA driver only here; libtorch makes all other calls.
//!
//! There are three streams. libtorch computes on its default stream, the legacy null stream of the device's primary context.
//! The upload and the download stream are non-blocking, so only these events order them against it:
//!
//! | event | recorded on | after | waited for by |
//! |---|---|---|---|
//! | `uploaded` | upload | the copy to the device | the compute stream, before the step's first kernel |
//! | `computed` | compute | the step's last kernel | the download stream, before the copy to the host |
//! | `downloaded` | download | the copy to the host | the host, in `wait`: the only wait of a step |
//!
//! So `downloaded` is after everything that touches the buffers, and free buffers need no further order. Two things remain.
//! libtorch reuses freed memory at once, in the order of the compute stream: so buffers keep their device memory, and when
//! they allocate it the upload stream waits for the compute stream. And no memory may be freed during a copy: buffers that
//! are dropped in between (the run failed) wait for their events first.
//!
//! CI has no device: run the tests of this crate with `FOREBAY_TEST_DEVICE=cuda:0` after changes here. docs/performance.md, "On a
//! GPU", has figures.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CUevent_flags};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, PinnedHostSlice, result};
use tch::{Kind, Tensor};

use super::buffers::{BufferAllocator, TransferBuffers, with_headroom};
use crate::ModelError;

/// Makes buffers for one device.
pub(super) struct CudaAllocator(Arc<Streams>);

struct Streams {
    number: usize,
    context: Arc<CudaContext>,
    /// libtorch's default stream.
    compute_stream: Arc<CudaStream>,
    upload_stream: Arc<CudaStream>,
    download_stream: Arc<CudaStream>,
}

struct CudaBuffers {
    streams: Arc<Streams>,
    staging: PinnedHostSlice<i32>,
    words: Tensor,
    results: Tensor,
    host_results: PinnedHostSlice<i32>,
    upload_words: usize,
    download_words: usize,
    uploaded: CudaEvent,
    /// On the compute stream, after its wait for `uploaded`. The time from here to `computed` is the step's.
    began: CudaEvent,
    computed: CudaEvent,
    downloaded: CudaEvent,
}

impl CudaAllocator {
    /// For a device that libtorch sees: with one, the driver's library is there.
    pub(super) fn new(number: usize) -> Result<CudaAllocator, ModelError> {
        // The primary context is the one that libtorch computes in.
        let context = CudaContext::new(number).map_err(driver_error("open the device"))?;
        let stream = || context.new_stream().map_err(driver_error("make a stream"));
        let (upload_stream, download_stream) = (stream()?, stream()?);
        Ok(CudaAllocator(Arc::new(Streams {
            number,
            compute_stream: context.default_stream(),
            upload_stream,
            download_stream,
            context,
        })))
    }
}

impl Streams {
    /// Zeros in page-locked memory, which a device copies from and to by itself.
    fn pinned(&self, words: usize) -> Result<PinnedHostSlice<i32>, ModelError> {
        // SAFETY: the memory is unset; the next lines write all of it before anything reads it.
        let pinned = unsafe { self.context.alloc_pinned_with_flags(words, CU_MEMHOSTALLOC_PORTABLE) };
        let mut pinned: PinnedHostSlice<i32> = pinned.map_err(driver_error("pin host memory"))?;
        let start = pinned.as_mut_ptr().map_err(driver_error("pin host memory"))?;
        // SAFETY: `start` is the beginning of `words` aligned words that nothing else refers to.
        unsafe { start.write_bytes(0, words) };
        Ok(pinned)
    }

    fn tensor(&self, words: usize) -> Result<Tensor, ModelError> {
        Ok(Tensor::f_empty([words as i64], (Kind::Int, tch::Device::Cuda(self.number)))?)
    }

    /// Makes the upload stream wait for the compute stream: kernels that still run there may use memory that libtorch has
    /// freed and allocated again.
    fn upload_after_compute(&self) -> Result<(), ModelError> {
        self.upload_stream.join(&self.compute_stream).map_err(driver_error("order the streams"))
    }
}

impl BufferAllocator for CudaAllocator {
    fn allocate(&self) -> Result<Box<dyn TransferBuffers>, ModelError> {
        let streams = &self.0;
        let event = |flags| streams.context.new_event(Some(flags)).map_err(driver_error("make an event"));
        let room = with_headroom(0);
        let buffers = CudaBuffers {
            streams: Arc::clone(streams),
            staging: streams.pinned(room)?,
            words: streams.tensor(room)?,
            results: streams.tensor(room)?,
            host_results: streams.pinned(room)?,
            upload_words: 0,
            download_words: 0,
            uploaded: event(CUevent_flags::CU_EVENT_DISABLE_TIMING)?,
            began: event(CUevent_flags::CU_EVENT_DEFAULT)?,
            computed: event(CUevent_flags::CU_EVENT_DEFAULT)?,
            // A thread that waits for the event sleeps, and leaves its core to others.
            downloaded: event(CUevent_flags::CU_EVENT_BLOCKING_SYNC)?,
        };
        streams.upload_after_compute()?;
        Ok(Box::new(buffers))
    }
}

impl TransferBuffers for CudaBuffers {
    fn reserve(&mut self, upload_words: usize, download_words: usize) -> Result<&mut [i32], ModelError> {
        let grows = upload_words > self.staging.len() || download_words > self.host_results.len();
        if upload_words > self.staging.len() {
            self.staging = self.streams.pinned(with_headroom(upload_words))?;
            self.words = self.streams.tensor(with_headroom(upload_words))?;
        }
        if download_words > self.host_results.len() {
            self.host_results = self.streams.pinned(with_headroom(download_words))?;
            self.results = self.streams.tensor(with_headroom(download_words))?;
        }
        if grows {
            self.streams.upload_after_compute()?;
        }
        (self.upload_words, self.download_words) = (upload_words, download_words);
        Ok(&mut self.staging.as_mut_slice().map_err(driver_error("reach pinned memory"))?[..upload_words])
    }

    fn start_upload(&mut self) -> Result<(), ModelError> {
        let Streams { context, upload_stream, .. } = &*self.streams;
        context.bind_to_thread().map_err(driver_error("bind the device"))?;
        let from = &self.staging.as_slice().map_err(driver_error("reach pinned memory"))?[..self.upload_words];
        let to = self.words.data_ptr() as u64;
        // SAFETY: `to` is device memory of this context with room for `from`: `stage` made `words` as long as `staging`. Both
        // live, and nothing writes to them, until `downloaded`, which is after this copy: one owner uses the buffers, in the
        // order of the trait's methods, and its drop waits.
        unsafe { result::memcpy_htod_async(to, from, upload_stream.cu_stream()) }
            .map_err(driver_error("copy to the device"))?;
        self.uploaded.record(upload_stream).map_err(driver_error("record an event"))
    }

    fn tensors(&mut self) -> Result<(Tensor, Tensor), ModelError> {
        let compute_stream = &self.streams.compute_stream;
        compute_stream.wait(&self.uploaded).map_err(driver_error("order the streams"))?;
        self.began.record(compute_stream).map_err(driver_error("record an event"))?;
        Ok((self.words.shallow_clone(), self.results.shallow_clone()))
    }

    fn start_download(&mut self) -> Result<(), ModelError> {
        let Streams { context, compute_stream, download_stream, .. } = &*self.streams;
        self.computed.record(compute_stream).map_err(driver_error("record an event"))?;
        download_stream.wait(&self.computed).map_err(driver_error("order the streams"))?;
        context.bind_to_thread().map_err(driver_error("bind the device"))?;
        let from = self.results.data_ptr() as u64;
        let to =
            &mut self.host_results.as_mut_slice().map_err(driver_error("reach pinned memory"))?[..self.download_words];
        // SAFETY: `from` is device memory of this context with at least as many words as `to`: `stage` made them of one length.
        // Both live, and nothing reads `to`, until `downloaded`: `wait` reads it after that, and the buffers's drop waits.
        unsafe { result::memcpy_dtoh_async(to, from, download_stream.cu_stream()) }
            .map_err(driver_error("copy to the host"))?;
        self.downloaded.record(download_stream).map_err(driver_error("record an event"))
    }

    fn wait(&mut self) -> Result<(&[i32], Duration), ModelError> {
        // A kernel that failed shows here, too.
        self.downloaded.synchronize().map_err(driver_error("wait for the device"))?;
        let milliseconds = self.began.elapsed_ms(&self.computed).map_err(driver_error("read the device's clock"))?;
        let host_results = self.host_results.as_slice().map_err(driver_error("reach pinned memory"))?;
        Ok((&host_results[..self.download_words], Duration::from_secs_f32((milliseconds / 1e3).max(0.0))))
    }
}

impl Drop for CudaBuffers {
    /// Waits for copies before the memory is freed. An event that was never recorded is no wait.
    fn drop(&mut self) {
        for event in [&self.uploaded, &self.computed, &self.downloaded] {
            if let Err(error) = event.synchronize() {
                tracing::debug!(%error, "a device failed with a batch in flight");
            }
        }
    }
}

/// An error of the driver, and what it could not do.
fn driver_error(what: &'static str) -> impl Fn(DriverError) -> ModelError {
    move |error| ModelError::Device(format!("CUDA could not {what}: {error}"))
}
