//! The backends against each other on random batches, and a module of a user's own.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

mod support;

use forebay_models::torch::tch::{TchError, Tensor};
use forebay_models::torch::{Device, ModuleShape, TorchBatch, TorchModel, TorchModule};
use forebay_models::{
    Activation, DenseModel, DenseOptimizer, ModelError, ModelSpec, NamedTensor, NativeModel, Norm, ParamBlock, Pooling,
    RowPart, StepOutput,
};
use support::{Owned, assert_close, batch, bits, device, specs};

fn torch(spec: &ModelSpec, optimizer: DenseOptimizer) -> TorchModel {
    TorchModel::new(spec.clone(), optimizer, 3, 1, device()).unwrap()
}

fn native(spec: &ModelSpec, optimizer: DenseOptimizer) -> NativeModel {
    NativeModel::new(spec.clone(), optimizer, 3, 1).unwrap()
}

fn assert_same(what: &str, a: &[NamedTensor], b: &[NamedTensor], tolerance: f32) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (a, b) in a.iter().zip(b) {
        assert_eq!((&a.name, &a.shape), (&b.name, &b.shape), "{what}");
        assert_close(&format!("{what}: {}", a.name), &a.data, &b.data, tolerance);
    }
}

#[test]
fn both_backends_give_the_same_loss_logits_and_gradients() {
    let large = ModelSpec::wide_deep(7, 5, 16, &[48, 32]).with_fm().with_cross(2).with_pooling(Pooling::Mean);
    let dropping = ModelSpec::ctr_dnn(7, 5, 16, &[47, 32])
        .with_activation(Activation::Gelu)
        .with_norm(Norm::Layer)
        .with_dropout(0.4);
    let large = [("large", large, 700, 900), ("large, dropout", dropping, 1300, 900)];
    let specs = specs().into_iter().map(|(name, spec)| (name, spec, 9, 7)).chain(large);
    for (name, spec, rows, unique) in specs {
        for (bags, weighted, seed) in
            [(false, false, 1), (true, false, 2), (true, false, 3), (false, true, 1), (true, true, 4)]
        {
            let what = format!("{name}, bags {bags}, weights of values {weighted}, seed {seed}");
            // Plain SGD with rate 1: the parameters after a step differ by the gradient.
            let (mut a, mut b) = (torch(&spec, DenseOptimizer::sgd(1.0)), native(&spec, DenseOptimizer::sgd(1.0)));
            assert_eq!(a.parameters(), b.parameters(), "{what}");
            assert_eq!(a.parts(), b.parts());
            let (mut left, mut right) = (StepOutput::default(), StepOutput::default());
            let batch = batch(&spec, rows, unique, bags, seed);
            let batch = if weighted { batch.weighted(&spec) } else { batch };
            let (mut predicted, mut predicted_right) = (Vec::new(), Vec::new());
            a.predict(&batch.view(), &mut predicted).unwrap();
            b.predict(&batch.view(), &mut predicted_right).unwrap();
            assert_close(&what, &predicted, &predicted_right, 1e-5);
            a.train(&batch.view(), &mut left).unwrap();
            b.train(&batch.view(), &mut right).unwrap();
            assert!((left.loss - right.loss).abs() < 1e-6, "{what}: loss {} and {}", left.loss, right.loss);
            assert_close(&what, &left.logits, &right.logits, 1e-5);
            assert_close(&what, &left.row_grads, &right.row_grads, 1e-6);
            assert_same(&what, &a.parameters(), &b.parameters(), 1e-5);
        }
    }
}

/// On both backends, a step with clipping equals a step without it whose gradients are scaled by hand.
#[test]
fn both_backends_clip_all_gradients_of_a_batch_together() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]);
    let batch = batch(&spec, 9, 7, true, 3);
    let (mut out, mut grads) = (StepOutput::default(), Vec::new());
    native(&spec, DenseOptimizer::sgd(1.0)).gradients(&batch.view(), &mut out, &mut grads).unwrap();
    let norm = grads.iter().chain(&out.row_grads).map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    for (most, share) in [(norm / 4.0, 0.25), (norm * 1.01, 1.0)] {
        let scaled = |grads: &[f32]| grads.iter().map(|g| g * share).collect::<Vec<f32>>();
        let models: [Box<dyn DenseModel>; 2] =
            [Box::new(native(&spec, DenseOptimizer::sgd(1.0))), Box::new(torch(&spec, DenseOptimizer::sgd(1.0)))];
        for mut model in models {
            model.set_clip_norm(most).unwrap();
            assert!(model.set_clip_norm(0.0).is_err());
            let (mut clipped, mut dense, mut before, mut after) = Default::default();
            model.read_flat(&mut before).unwrap();
            model.gradients(&batch.view(), &mut clipped, &mut dense).unwrap();
            assert_close("dense gradients", &dense, &scaled(&grads), 1e-6);
            assert_close("row gradients", &clipped.row_grads, &scaled(&out.row_grads), 1e-6);
            model.train(&batch.view(), &mut clipped).unwrap();
            assert_close("row gradients of a step", &clipped.row_grads, &scaled(&out.row_grads), 1e-6);
            model.read_flat(&mut after).unwrap();
            let step: Vec<f32> =
                before.iter().zip(&after).map(|(before, after): (&f32, &f32)| before - after).collect();
            assert_close("the step", &step, &scaled(&grads), 1e-6);
        }
    }
}

#[test]
fn a_saved_model_moves_between_the_backends() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]).with_cross(1);
    for optimizer in DenseOptimizer::one_of_each(0.02) {
        let (mut a, mut b) = (torch(&spec, optimizer), native(&spec, optimizer));
        let mut out = StepOutput::default();
        for step in 0..4 {
            a.train(&batch(&spec, 8, 6, true, step).view(), &mut out).unwrap();
        }
        b.load(&a.parameters()).unwrap();
        b.load_optimizer(&a.optimizer()).unwrap();
        assert_eq!((a.parameters(), a.optimizer()), (b.parameters(), b.optimizer()));
        for step in 4..8 {
            a.train(&batch(&spec, 8, 6, true, step).view(), &mut out).unwrap();
            b.train(&batch(&spec, 8, 6, true, step).view(), &mut out).unwrap();
        }
        assert_same("after", &a.parameters(), &b.parameters(), 1e-5);
        assert_same("state", &a.optimizer(), &b.optimizer(), 1e-5);
        a.load(&b.parameters()).unwrap();
        a.load_optimizer(&b.optimizer()).unwrap();
        assert_eq!((a.parameters(), a.optimizer()), (b.parameters(), b.optimizer()));
    }
}

/// If the loss does not depend on a parameter, only L2 moves it: both backends shrink it in the same way, biases too.
#[test]
fn l2_of_dense_parameters_is_the_same_on_both_backends() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]).with_cross(1).with_norm(Norm::Layer);
    for plain in DenseOptimizer::one_of_each(0.02) {
        let Some(optimizer) = plain.with_l2(0.1) else { continue };
        let (mut a, mut b, mut without) = (torch(&spec, optimizer), native(&spec, optimizer), torch(&spec, plain));
        let mut out = StepOutput::default();
        for step in 0..8 {
            let batch = batch(&spec, 8, 6, true, step);
            a.train(&batch.view(), &mut out).unwrap();
            b.train(&batch.view(), &mut out).unwrap();
            without.train(&batch.view(), &mut out).unwrap();
        }
        assert_same("after", &a.parameters(), &b.parameters(), 1e-5);
        assert_same("state", &a.optimizer(), &b.optimizer(), 1e-5);
        for (with, without) in a.parameters().iter().zip(without.parameters()) {
            assert_ne!(with.data, without.data, "{}: L2 changed nothing", with.name);
        }
    }
}

#[test]
fn a_failed_step_changes_nothing() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]);
    let mut model = torch(&spec, DenseOptimizer::adam(0.01));
    let mut out = StepOutput::default();
    let good = batch(&spec, 8, 6, false, 1);
    model.train(&good.view(), &mut out).unwrap();
    let (parameters, optimizer) = (model.parameters(), model.optimizer());
    let mut bad = good.clone();
    bad.dense[3] = f32::NAN;
    let error = model.train(&bad.view(), &mut out).unwrap_err();
    assert_eq!(error, ModelError::NonFinite("dense feature 1 of row 1 is NaN".into()));
    assert!(matches!(model.predict(&bad.view(), &mut out.logits), Err(ModelError::NonFinite(_))));
    let short = Owned { labels: vec![], ..good.clone() };
    assert!(matches!(model.train(&short.view(), &mut out), Err(ModelError::Batch(_))));
    assert!(matches!(model.load(&parameters[1..]), Err(ModelError::Load(_))));
    assert_eq!((model.parameters(), model.optimizer()), (parameters, optimizer));
    model.train(&good.view(), &mut out).unwrap();
}

#[test]
fn empty_bags_are_zeros() {
    let spec = ModelSpec::wide_deep(2, 1, 4, &[6]);
    let empty = Owned::without_values();
    let (mut left, mut right) = (StepOutput::default(), StepOutput::default());
    torch(&spec, DenseOptimizer::sgd(0.1)).train(&empty.view(), &mut left).unwrap();
    native(&spec, DenseOptimizer::sgd(0.1)).train(&empty.view(), &mut right).unwrap();
    assert_close("logits", &left.logits, &right.logits, 1e-6);
    assert_eq!(left.row_grads, right.row_grads);
}

#[test]
fn wrong_settings_are_refused() {
    let make = |spec, optimizer, threads, device| TorchModel::new(spec, optimizer, 1, threads, device).err();
    let spec = ModelSpec::lr(2, 1);
    let sgd = DenseOptimizer::sgd(0.1);
    assert!(matches!(make(ModelSpec::lr(0, 1), sgd, 1, Device::Cpu), Some(ModelError::Spec(_))));
    assert!(matches!(make(spec.clone(), DenseOptimizer::sgd(-1.0), 1, Device::Cpu), Some(ModelError::Optimizer(_))));
    assert!(matches!(make(spec.clone(), sgd, 0, Device::Cpu), Some(ModelError::Setting(_))));
    assert!(matches!(make(spec, sgd, 1, Device::Cuda(4096)), Some(ModelError::Setting(_))));
}

/// Logistic regression by hand, with a weight that nothing uses and a count of the batches seen.
struct Own {
    weight: Tensor,
    bias: Tensor,
    seen: Tensor,
    wrong_shape: bool,
}

impl Own {
    fn make(wrong_shape: bool) -> Result<TorchModel, ModelError> {
        let shape = ModuleShape { slots: 3, dense: 2, parts: vec![RowPart::new("linear", 1)] };
        TorchModel::from_module(shape, DenseOptimizer::adam(0.1), 1, 1, device(), |root| {
            let _unused = root.zeros("unused", &[3]);
            Ok(Own {
                weight: (root / "linear").zeros("weight", &[1, 2]),
                bias: (root / "linear").zeros("bias", &[1]),
                seen: root.zeros_no_train("seen", &[1]),
                wrong_shape,
            })
        })
    }
}

impl TorchModule for Own {
    fn forward(&self, batch: &TorchBatch) -> Result<Tensor, TchError> {
        if batch.training() {
            let _ = self.seen.shallow_clone().f_add_scalar_(1.0)?;
        }
        if self.wrong_shape {
            return Ok(batch.dense().shallow_clone());
        }
        let wide = batch.pooled(Pooling::Sum)?.f_view([batch.rows(), batch.slots()])?.f_sum_dim_intlist(
            [1i64].as_slice(),
            true,
            None,
        )?;
        batch.dense().f_linear(&self.weight, Some(&self.bias))?.f_add(&wide)
    }
}

#[test]
fn a_user_module_trains_like_the_same_spec() {
    let spec = ModelSpec::lr(3, 2);
    let (mut own, mut model) = (Own::make(false).unwrap(), native(&spec, DenseOptimizer::adam(0.1)));
    let (mut left, mut right) = (StepOutput::default(), StepOutput::default());
    for step in 0..5 {
        let batch = batch(&spec, 8, 6, step % 2 == 1, step);
        own.train(&batch.view(), &mut left).unwrap();
        model.train(&batch.view(), &mut right).unwrap();
        assert!((left.loss - right.loss).abs() < 1e-6);
        assert_close("rows", &left.row_grads, &right.row_grads, 1e-6);
    }
    let parameters = own.parameters();
    let names: Vec<&str> = parameters.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["linear.bias", "linear.weight", "unused", "seen"]);
    assert_close("weight", &parameters[1].data, &model.parameters()[0].data, 1e-5);
    assert_eq!((parameters[2].data.as_slice(), parameters[3].data.as_slice()), ([0.0; 3].as_slice(), [5.0].as_slice()));

    // A failed step leaves the buffer as it was. Loading restores everything.
    let mut bad = batch(&spec, 8, 6, false, 1);
    bad.dense[0] = f32::INFINITY;
    own.train(&bad.view(), &mut left).unwrap_err();
    assert_eq!(own.parameters(), parameters);
    let mut second = Own::make(false).unwrap();
    second.load(&parameters).unwrap();
    second.load_optimizer(&own.optimizer()).unwrap();
    let batch = batch(&spec, 8, 6, false, 9);
    own.train(&batch.view(), &mut left).unwrap();
    second.train(&batch.view(), &mut right).unwrap();
    assert_eq!(left, right);
    assert_eq!(own.parameters(), second.parameters());
}

#[test]
fn only_the_trained_variables_of_a_user_module_are_flat() {
    let (mut own, mut apart) = (Own::make(false).unwrap(), Own::make(false).unwrap());
    let spec = ModelSpec::lr(3, 2);
    let (mut out, mut grads, mut values) = (StepOutput::default(), Vec::new(), Vec::new());
    apart.read_flat(&mut values).unwrap();
    // Bias, weight, and what nothing uses; not the count of batches.
    assert_eq!((apart.flat_len(), values.len()), (6, 6));
    let mut block = ParamBlock::new(DenseOptimizer::adam(0.1), values).unwrap();
    for step in 0..5 {
        let batch = batch(&spec, 8, 6, step % 2 == 1, step);
        own.train(&batch.view(), &mut out).unwrap();
        apart.gradients(&batch.view(), &mut out, &mut grads).unwrap();
        block.apply(&grads).unwrap();
        apart.set_flat(block.values()).unwrap();
    }
    assert_same("own", &apart.parameters(), &own.parameters(), 1e-6);
    assert_eq!(grads[3..], [0.0; 3]);
    let mut bad = batch(&spec, 8, 6, false, 1);
    bad.dense[0] = f32::INFINITY;
    apart.gradients(&bad.view(), &mut out, &mut grads).unwrap_err();
    assert_eq!(apart.parameters()[3].data, [5.0], "the buffer is as it was, too");
}

#[test]
fn a_user_module_with_logits_of_a_wrong_shape_is_refused() {
    let batch = batch(&ModelSpec::lr(3, 2), 8, 6, false, 1);
    let error = Own::make(true).unwrap().train(&batch.view(), &mut StepOutput::default()).unwrap_err();
    assert!(error.to_string().contains("logits of shape [8, 2], expected [8] or [8, 1]"), "{error}");
}

/// A bug on CUDA: where some hundred values add to the gradient of a row, atomic additions gave other last bits in each run.
#[test]
fn two_models_take_the_same_steps_to_the_bit() {
    for pooling in [Pooling::Sum, Pooling::Mean, Pooling::Max] {
        let spec = ModelSpec::wide_deep(7, 5, 16, &[48, 32]).with_fm().with_pooling(pooling);
        for (bags, weighted) in [(false, false), (true, false), (true, true)] {
            let steps = || {
                let mut model = torch(&spec, DenseOptimizer::sgd(0.1));
                let steps = (0..3).map(|seed| {
                    let batch = batch(&spec, 4096, 60, bags, seed);
                    let batch = if weighted { batch.weighted(&spec) } else { batch };
                    let mut output = StepOutput::default();
                    model.train(&batch.view(), &mut output).unwrap();
                    bits(&output.row_grads)
                });
                steps.collect::<Vec<_>>()
            };
            let first = steps();
            (0..3).for_each(|_| assert!(steps() == first, "{pooling:?}, bags {bags}, weights {weighted}"));
        }
    }
}
