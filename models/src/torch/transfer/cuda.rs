//! Slots of a CUDA device: pinned host memory, a stream for each direction, events between them. All that this crate says
//! to the CUDA driver itself stands here; the rest is libtorch's.
//!
//! Three streams. libtorch computes on its default stream, the legacy null stream of the device's primary context; `up` and
//! `down` are non-blocking, so nothing orders them against it but these events of a slot:
//!
//! | event | recorded on | after | waited for by |
//! |---|---|---|---|
//! | `uploaded` | up | the copy to the device | the null stream, before the step's first kernel |
//! | `computed` | null | the step's last kernel | down, before the copy to the host |
//! | `downloaded` | down | the copy to the host | the host, in `wait`: the only wait of a step |
//!
//! So `downloaded` is after everything that touches the slot, and a slot that is free needs no further order. Two things
//! remain. libtorch hands out freed memory again at once, in the order of the null stream: hence a slot's device memory is
//! its own, allocated seldom, and `up` waits for the null stream when it is. And nothing may be freed while a copy is under
//! way: a slot that is dropped on the way (the run failed) waits for its events first.
//!
//! Not yet run on a device: docs/performance.md, "On a GPU", says how to.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CUevent_flags};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, PinnedHostSlice, result};
use tch::{Kind, Tensor};

use super::slot::{Engine, Slot, grown};
use crate::ModelError;

/// Makes slots of one device.
pub(super) struct CudaEngine(Arc<Streams>);

struct Streams {
    number: usize,
    context: Arc<CudaContext>,
    /// libtorch's default stream.
    null: Arc<CudaStream>,
    up: Arc<CudaStream>,
    down: Arc<CudaStream>,
}

struct CudaSlot {
    streams: Arc<Streams>,
    staging: PinnedHostSlice<i32>,
    words: Tensor,
    results: Tensor,
    landed: PinnedHostSlice<i32>,
    up: usize,
    down: usize,
    uploaded: CudaEvent,
    /// On the null stream, after its wait for `uploaded`; with `computed`, what the step took.
    began: CudaEvent,
    computed: CudaEvent,
    downloaded: CudaEvent,
}

impl CudaEngine {
    /// For a device that libtorch sees: with one, the driver's library is there.
    pub(super) fn new(number: usize) -> Result<CudaEngine, ModelError> {
        // The primary context is the one that libtorch computes in.
        let context = CudaContext::new(number).map_err(cuda("open the device"))?;
        let stream = || context.new_stream().map_err(cuda("make a stream"));
        let (up, down) = (stream()?, stream()?);
        Ok(CudaEngine(Arc::new(Streams { number, null: context.default_stream(), up, down, context })))
    }
}

impl Streams {
    /// Zeros in page-locked memory, which a device copies from and to by itself.
    fn pinned(&self, words: usize) -> Result<PinnedHostSlice<i32>, ModelError> {
        // SAFETY: the memory is unset; the next lines write all of it before anything reads it.
        let pinned = unsafe { self.context.alloc_pinned_with_flags(words, CU_MEMHOSTALLOC_PORTABLE) };
        let mut pinned: PinnedHostSlice<i32> = pinned.map_err(cuda("pin host memory"))?;
        let start = pinned.as_mut_ptr().map_err(cuda("pin host memory"))?;
        // SAFETY: `start` is the beginning of `words` aligned words that nobody else has.
        unsafe { start.write_bytes(0, words) };
        Ok(pinned)
    }

    fn tensor(&self, words: usize) -> Result<Tensor, ModelError> {
        Ok(Tensor::f_empty([words as i64], (Kind::Int, tch::Device::Cuda(self.number)))?)
    }

    /// Memory that libtorch gives was perhaps freed by kernels that still run on the null stream: nothing is copied there
    /// before they are done.
    fn up_after_null(&self) -> Result<(), ModelError> {
        self.up.join(&self.null).map_err(cuda("order the streams"))
    }
}

impl Engine for CudaEngine {
    fn slot(&self) -> Result<Box<dyn Slot>, ModelError> {
        let streams = &self.0;
        let event = |flags| streams.context.new_event(Some(flags)).map_err(cuda("make an event"));
        let room = grown(0);
        let slot = CudaSlot {
            streams: Arc::clone(streams),
            staging: streams.pinned(room)?,
            words: streams.tensor(room)?,
            results: streams.tensor(room)?,
            landed: streams.pinned(room)?,
            up: 0,
            down: 0,
            uploaded: event(CUevent_flags::CU_EVENT_DISABLE_TIMING)?,
            began: event(CUevent_flags::CU_EVENT_DEFAULT)?,
            computed: event(CUevent_flags::CU_EVENT_DEFAULT)?,
            // A thread that waits for it sleeps, and leaves its core to others.
            downloaded: event(CUevent_flags::CU_EVENT_BLOCKING_SYNC)?,
        };
        streams.up_after_null()?;
        Ok(Box::new(slot))
    }
}

impl Slot for CudaSlot {
    fn stage(&mut self, up: usize, down: usize) -> Result<&mut [i32], ModelError> {
        let grows = up > self.staging.len() || down > self.landed.len();
        if up > self.staging.len() {
            self.staging = self.streams.pinned(grown(up))?;
            self.words = self.streams.tensor(grown(up))?;
        }
        if down > self.landed.len() {
            self.landed = self.streams.pinned(grown(down))?;
            self.results = self.streams.tensor(grown(down))?;
        }
        if grows {
            self.streams.up_after_null()?;
        }
        (self.up, self.down) = (up, down);
        Ok(&mut self.staging.as_mut_slice().map_err(cuda("reach pinned memory"))?[..up])
    }

    fn upload(&mut self) -> Result<(), ModelError> {
        let Streams { context, up, .. } = &*self.streams;
        context.bind_to_thread().map_err(cuda("bind the device"))?;
        let from = &self.staging.as_slice().map_err(cuda("reach pinned memory"))?[..self.up];
        let to = self.words.data_ptr() as u64;
        // SAFETY: `to` is device memory of this context with room for `from`: `stage` made `words` as long as `staging`. Both
        // live, and nobody writes to them, until `downloaded`, which is after this copy: the slot is used by one owner, in the
        // order of the trait's methods, and its drop waits.
        unsafe { result::memcpy_htod_async(to, from, up.cu_stream()) }.map_err(cuda("copy to the device"))?;
        self.uploaded.record(up).map_err(cuda("record an event"))
    }

    fn arrived(&mut self) -> Result<(Tensor, Tensor), ModelError> {
        let null = &self.streams.null;
        null.wait(&self.uploaded).map_err(cuda("order the streams"))?;
        self.began.record(null).map_err(cuda("record an event"))?;
        Ok((self.words.shallow_clone(), self.results.shallow_clone()))
    }

    fn download(&mut self) -> Result<(), ModelError> {
        let Streams { context, null, down, .. } = &*self.streams;
        self.computed.record(null).map_err(cuda("record an event"))?;
        down.wait(&self.computed).map_err(cuda("order the streams"))?;
        context.bind_to_thread().map_err(cuda("bind the device"))?;
        let from = self.results.data_ptr() as u64;
        let to = &mut self.landed.as_mut_slice().map_err(cuda("reach pinned memory"))?[..self.down];
        // SAFETY: `from` is device memory of this context with at least as many words as `to`: `stage` made them of one length.
        // Both live, and nobody reads `to`, until `downloaded`: `wait` reads it after that, and the slot's drop waits.
        unsafe { result::memcpy_dtoh_async(to, from, down.cu_stream()) }.map_err(cuda("copy to the host"))?;
        self.downloaded.record(down).map_err(cuda("record an event"))
    }

    fn wait(&mut self) -> Result<(&[i32], Duration), ModelError> {
        // A kernel that failed shows here, too.
        self.downloaded.synchronize().map_err(cuda("wait for the device"))?;
        let milliseconds = self.began.elapsed_ms(&self.computed).map_err(cuda("read the device's clock"))?;
        let landed = self.landed.as_slice().map_err(cuda("reach pinned memory"))?;
        Ok((&landed[..self.down], Duration::from_secs_f32((milliseconds / 1e3).max(0.0))))
    }
}

impl Drop for CudaSlot {
    /// Nothing is given back while a copy is under way. An event that was never recorded is no wait.
    fn drop(&mut self) {
        for event in [&self.uploaded, &self.computed, &self.downloaded] {
            if let Err(error) = event.synchronize() {
                tracing::debug!(%error, "a device failed with a batch under way");
            }
        }
    }
}

/// What failed, in the driver's words.
fn cuda(what: &'static str) -> impl Fn(DriverError) -> ModelError {
    move |error| ModelError::Backend(format!("CUDA could not {what}: {error}"))
}
