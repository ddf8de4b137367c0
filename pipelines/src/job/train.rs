//! The `[train]` part of a job.

use forebay_actors::Fault;
use forebay_models::DenseOptimizer;
use serde::{Deserialize, Serialize};

/// How the model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainOptions {
    /// Rows of a batch. Default 2,048.
    pub batch_rows: usize,
    /// Leave out the last batch of a window of the shuffle if it is short. Default false.
    pub drop_last: bool,
    /// Batches that may be looked up before the gradients of the oldest are applied. 0, the default, is the sequential
    /// program: the same model to the bit on every run. On a GPU, or with tables on other machines, 2 to 8 hides the
    /// way there and back.
    pub staleness: usize,
    /// Of several trainers: whether they take each step together, as one trainer with a batch of `trainers` x
    /// `batch_rows` would (synchronous SGD), or each at its own pace. Default false.
    pub sync: bool,
    /// What computes: "native" (the default) or "torch" (when built with the feature `torch`).
    pub backend: Backend,
    /// "torch": where: "cpu" (the default) or "cuda:0", "cuda:1", ...
    pub device: String,
    /// "torch": whether batches go to the device and results come back in stages of their own, beside compute ("apart"), or
    /// within the train stage, one after the other ("inline"). Default: "apart" on a CUDA device, "inline" on the CPU. Takes
    /// `staleness` of at least 2 to be of use. (For a model of your own on a device, name `backend` and `device` here, too.)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfers: Option<Transfers>,
    /// Threads of dense compute. Default 0: as many as there are cores.
    pub threads: usize,
    /// Optimizer of the dense parameters. Default Adam with a learning rate of 0.001.
    pub optimizer: DenseOptimizer,
}

/// What computes the dense part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Pure Rust, in the program itself.
    #[default]
    Native,
    /// libtorch through tch.
    Torch,
}

/// Where batches and results cross to the device and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transfers {
    /// In stages of their own: upload, train, download.
    Apart,
    /// In the train stage, which waits for them.
    Inline,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Torch => "torch",
        })
    }
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            batch_rows: 2048,
            drop_last: false,
            staleness: 0,
            sync: false,
            backend: Backend::Native,
            device: "cpu".into(),
            transfers: None,
            threads: 0,
            optimizer: DenseOptimizer::adam(1e-3),
        }
    }
}

impl TrainOptions {
    /// Where batches and results cross, with the default resolved.
    pub fn transfers(&self) -> Transfers {
        let on_cuda = self.backend == Backend::Torch && self.device.starts_with("cuda");
        self.transfers.unwrap_or(if on_cuda { Transfers::Apart } else { Transfers::Inline })
    }

    /// Refuses what does not go together.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.backend == Backend::Native && self.transfers == Some(Transfers::Apart) {
            return Err(Fault::user(
                "train.transfers is \"apart\", but train.backend is \"native\", which computes where the batches are: leave \
                 transfers out, or set backend to \"torch\"",
            ));
        }
        Ok(())
    }

    /// Threads of dense compute, with 0 resolved.
    pub fn resolved_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_stand_apart_where_there_is_a_way_to_go() {
        let options = |backend, device: &str| TrainOptions { backend, device: device.into(), ..Default::default() };
        assert_eq!(options(Backend::Torch, "cuda:1").transfers(), Transfers::Apart);
        assert_eq!(options(Backend::Torch, "cuda").transfers(), Transfers::Apart);
        assert_eq!(options(Backend::Torch, "cpu").transfers(), Transfers::Inline);
        assert_eq!(options(Backend::Native, "cuda:1").transfers(), Transfers::Inline);
        for asked in [Transfers::Apart, Transfers::Inline] {
            for device in ["cpu", "cuda:0"] {
                let options = TrainOptions { transfers: Some(asked), ..options(Backend::Torch, device) };
                assert_eq!(options.transfers(), asked);
                options.check().unwrap();
            }
        }
    }

    #[test]
    fn the_native_backend_has_no_way_to_go() {
        let options = |transfers| TrainOptions { transfers, ..Default::default() };
        options(None).check().unwrap();
        options(Some(Transfers::Inline)).check().unwrap();
        let fault = options(Some(Transfers::Apart)).check().unwrap_err().to_string();
        assert!(fault.contains("train.transfers") && fault.contains("native") && fault.contains("torch"), "{fault}");
    }
}
