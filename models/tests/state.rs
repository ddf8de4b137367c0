//! A model that is restored from a saved state goes on to the bits of the model that was saved.
#![allow(clippy::unwrap_used)]

mod support;

use forebay_models::{DenseModel, DenseOptimizer, ModelError, ModelSpec, NamedTensor, NativeModel, StepOutput};
use support::{batch, bits};

/// Losses, gradients of rows and the whole state after some more steps, as bits.
fn go_on(model: &mut dyn DenseModel, spec: &ModelSpec, steps: std::ops::Range<u64>) -> Vec<Vec<u32>> {
    let (mut seen, mut out) = (Vec::new(), StepOutput::default());
    for step in steps {
        model.train(&batch(spec, 300, 40, step % 2 == 0, step).view(), &mut out).unwrap();
        seen.push(bits(&[out.loss as f32]));
        seen.push(bits(&out.row_grads));
    }
    seen.extend(model.state().unwrap().iter().map(|tensor| bits(&tensor.data)));
    seen
}

fn spec() -> ModelSpec {
    ModelSpec::wide_deep(3, 2, 4, &[6, 5]).with_fm().with_cross(2)
}

/// `make` with another seed gives another model.
fn goes_on<M: DenseModel>(name: &str, make: impl Fn(u64) -> Result<M, ModelError>) {
    let spec = spec();
    let (mut model, mut restored, mut weights_only) = (make(1).unwrap(), make(2).unwrap(), make(2).unwrap());
    go_on(&mut model, &spec, 0..3);
    let state = model.state().unwrap();
    weights_only.load(&model.parameters()).unwrap();
    let expected = go_on(&mut model, &spec, 3..6);
    restored.restore(state.clone()).unwrap();
    assert!(go_on(&mut restored, &spec, 3..6) == expected, "{name}: the restored model goes on otherwise");
    // The state is more than the parameters.
    assert!(go_on(&mut weights_only, &spec, 3..6) != expected, "{name}");
    // A state of another model is refused.
    let error = make(1).unwrap().restore(state[1..].to_vec()).unwrap_err().to_string();
    assert!(error.contains("is missing"), "{name}: {error}");
    let other = [state, vec![NamedTensor { name: "optimizer.other".into(), shape: vec![1], data: vec![0.0] }]].concat();
    assert!(make(1).unwrap().restore(other).unwrap_err().to_string().contains("optimizer.other is unknown"), "{name}");
}

#[test]
fn a_native_model_continues_from_its_state_to_the_bit() {
    for optimizer in DenseOptimizer::one_of_each(0.1) {
        goes_on(&format!("{optimizer:?}"), |seed| NativeModel::new(spec(), optimizer, seed, 2));
    }
}

#[cfg(feature = "torch")]
mod torch {
    use forebay_models::torch::tch::{TchError, Tensor, nn};
    use forebay_models::torch::{ModuleShape, TorchBatch, TorchModel, TorchModule};
    use forebay_models::{Pooling, RowPart};

    use super::*;

    /// A linear layer over the slots, with dropout and a count of the batches seen.
    struct Dropout {
        linear: nn::Linear,
        seen: Tensor,
    }

    impl TorchModule for Dropout {
        fn forward(&self, batch: &TorchBatch) -> Result<Tensor, TchError> {
            let _ = self.seen.shallow_clone().f_add_scalar_(1.0)?;
            let slots = batch.pooled(Pooling::Sum)?.f_reshape([batch.rows(), 15])?;
            slots.f_dropout(0.5, batch.training())?.f_linear(&self.linear.ws, self.linear.bs.as_ref())
        }
    }

    fn dropout(seed: u64) -> Result<TorchModel, ModelError> {
        let shape = ModuleShape { slots: 3, dense: 2, parts: vec![RowPart::new("linear", 1), RowPart::new("e", 4)] };
        TorchModel::from_module(shape, forebay_models::DenseOptimizer::adam(0.1), seed, 1, support::device(), |root| {
            let linear = nn::linear(root / "out", 15, 1, nn::LinearConfig::default());
            Ok(Dropout { linear, seen: root.zeros_no_train("seen", &[1]) })
        })
    }

    #[test]
    fn a_torch_model_continues_from_its_state_to_the_bit() {
        for optimizer in DenseOptimizer::one_of_each(0.1) {
            goes_on(&format!("{optimizer:?}"), |seed| TorchModel::new(spec(), optimizer, seed, 1, support::device()));
        }
        // libtorch has one generator of random numbers for all models, which `state` and `restore` start again.
        goes_on("dropout", |_| dropout(7));
    }
}
