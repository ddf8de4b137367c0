//! The `[train]` section of a job.

use forebay_actors::Fault;
use forebay_models::{DenseOptimizer, MatmulPrecision};
use serde::{Deserialize, Serialize};

use super::{InitialBias, Knob, StalenessRule};

/// How the model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainOptions {
    /// The folder of a model to continue from, a path or a URL, for instance `monday/model`. Its rows and dense parameters are the initial
    /// values of this training; other keys are initialized as usual. If the model was saved with `output.state`, its optimizers continue,
    /// too; otherwise they start without state. Default: a new model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Rows of a batch. From 1 to 1048576.
    pub batch_rows: usize,
    /// Leave out the last batch of a window if it is short.
    pub drop_last: bool,
    /// How many earlier batches may be unapplied when a batch is looked up. 0 is sequential training, and gives the same model, bit for
    /// bit, in every run. On a GPU, or with tables on other machines, 2 to 8 hides the round trip. With `{ exactly = 4 }` the look-up of
    /// batch n sees the pushes of all batches before n - 4 and of no other, so every run also gives the same model, bit for bit. Look-ups
    /// and pushes then run beside dense compute, but not beside each other. At most 65536.
    pub staleness: StalenessRule,
    /// With staleness 0 and tables in other processes, how many batches ahead the trainer pulls rows. It keeps copies of the rows that
    /// batches under way change, and applies their gradients to the copies. So no batch waits for a round trip, and the model is the same,
    /// bit for bit, for any value. "auto": 8 if the round trip to a ps takes 2 ms or more; else 0, which switches look-ahead off. It needs
    /// one trainer that looks up rows and holds the dense parameters, one table for all slots, and no admission or eviction.
    /// A number is 0 to 64.
    pub look_ahead: Knob,
    /// Whether several trainers take each step together (synchronous SGD). The result is that of one trainer with batches of
    /// `placement.trainers` times `batch_rows` rows.
    pub sync: bool,
    /// The backend of dense compute.
    pub backend: Backend,
    /// The device of the torch backend: "cpu", "cuda:0", "cuda:1", and so on.
    pub device: String,
    /// Which stages copy batches to the device and results back. Default: "apart" on a CUDA device, "inline" on the CPU.
    /// "apart" needs a `staleness` of at least 2 to overlap copies with compute. A custom model on a device needs `backend`
    /// and `device` here, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfers: Option<Transfers>,
    /// Threads of dense compute. "auto" and 0 mean `pipeline.cores` at first; the native backend gets fewer if other stages need the cores.
    /// A number is at most 1024.
    pub threads: Knob,
    /// The least precision of matrix products in training steps, in the words of PyTorch's `set_float32_matmul_precision`: with "high", the
    /// native backend multiplies f32 numbers as sums of two bf16 numbers (16 of 24 bits) where the processor has a unit for it (AMX), and
    /// adds up in f32. "highest" is f32. Evaluation and predictions are always f32.
    pub matmul_precision: MatmulPrecision,
    /// The largest norm of the gradients of a batch, dense parameters and table rows together, for instance `10.0`. Larger gradients are
    /// scaled down. Default: no limit. Not with `sync`. A number above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// The bias of a new model's logit, for instance `-4.2`; with several labels a list with one for each. 0 leaves a bias as it is.
    /// Default: if at most a tenth, or at least nine tenths, of the labels in a sample of 65,536 rows at `data.train` are positive, the
    /// log-odds of their share ([quality.md](quality.md#rare-labels)); else 0. Only models with the log loss have it. The default is 0 with
    /// `data.source` and with custom stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_bias: Option<InitialBias>,
    /// Optimizer of the dense parameters. By default Adam with `lr = 0.001`, for the kinds `lr` and `fm` with 0.004, with several labels
    /// with 0.004, or 0.002 if a hidden layer has more than 256 units, and with more than 4,096 rows in a step with `sqrt(rows / 4096)`
    /// times this, at most 0.01 ([quality.md](quality.md#the-default-rate-of-adam)); Adam without `lr` has this one. Another optimizer is
    /// for instance `{ kind = "adamw", weight_decay = 0.01 }`. Every `lr` is a number, or a schedule: `{ peak = 0.001, warmup_steps = 1000,
    /// decay = { kind = "cosine", steps = 50000, end = 0.01 } }`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<DenseOptimizer>,
}

/// The backend of dense compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Rust code of this program, on the CPU.
    #[default]
    Native,
    /// libtorch, in a program built with the feature `torch`.
    Torch,
}

/// Which stages copy batches to the device and results back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transfers {
    /// Separate upload and download stages, beside compute.
    Apart,
    /// The train stage copies, before and after it computes.
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
            from: None,
            batch_rows: 2048,
            drop_last: false,
            staleness: StalenessRule::default(),
            look_ahead: Knob::AUTO,
            sync: false,
            backend: Backend::Native,
            device: "cpu".into(),
            transfers: None,
            threads: Knob::AUTO,
            matmul_precision: MatmulPrecision::High,
            clip_norm: None,
            initial_bias: None,
            optimizer: None,
        }
    }
}

impl TrainOptions {
    /// Which stages copy, with the default resolved.
    pub fn transfers(&self) -> Transfers {
        let on_cuda = self.backend == Backend::Torch && self.device.starts_with("cuda");
        self.transfers.unwrap_or(if on_cuda { Transfers::Apart } else { Transfers::Inline })
    }

    /// Checks combinations of values; the fault names the field.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.backend == Backend::Native && self.transfers == Some(Transfers::Apart) {
            return Err(Fault::user(
                "train.transfers is \"apart\", but train.backend is \"native\", which copies nothing: leave transfers out, or \
                 set backend to \"torch\"",
            ));
        }
        if let Some(norm) = self.clip_norm.filter(|norm| !(norm.is_finite() && *norm > 0.0)) {
            return Err(Fault::user(format!("train.clip_norm is {norm}, expected a finite number above 0")));
        }
        if self.clip_norm.is_some() && self.sync {
            return Err(Fault::user(
                "train.clip_norm is not for train.sync = true: each trainer would scale its own part of the gradients; leave one of \
                 them out",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_apart_by_default_on_cuda_only() {
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
    fn a_norm_that_clips_everything_or_nothing_is_refused() {
        let check = |norm| TrainOptions { clip_norm: Some(norm), ..Default::default() }.check();
        check(0.5).unwrap();
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let said = check(wrong).unwrap_err().to_string();
            assert!(said.contains(&format!("train.clip_norm is {wrong}, expected a finite")), "{said}");
        }
    }

    #[test]
    fn the_native_backend_refuses_transfers_apart() {
        let options = |transfers| TrainOptions { transfers, ..Default::default() };
        options(None).check().unwrap();
        options(Some(Transfers::Inline)).check().unwrap();
        let fault = options(Some(Transfers::Apart)).check().unwrap_err().to_string();
        assert!(fault.contains("train.transfers") && fault.contains("native") && fault.contains("torch"), "{fault}");
    }
}
