//! The step in three parts gives the bits of `train`, on CPU tensors.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::mpsc::sync_channel;

use forebay_models::torch::tch::{TchError, Tensor};
use forebay_models::torch::{ModuleShape, TorchBatch, TorchModel, TorchModule};
use forebay_models::transfer::{BatchUpload, DeviceOutput, QueuedStep, UploadedBatch};
use forebay_models::{
    DenseModel, DenseOptimizer, ModelError, ModelSpec, NativeModel, RowPart, StepOutput, TwoTowersLoss,
};
use support::{Owned, batch, bits, device, specs};

fn torch(spec: &ModelSpec, optimizer: DenseOptimizer) -> TorchModel {
    TorchModel::new(spec.clone(), optimizer, 3, 1, device()).unwrap()
}

/// A model and its uploader.
struct Apart {
    model: TorchModel,
    upload: Box<dyn BatchUpload>,
}

impl Apart {
    fn new(mut model: TorchModel) -> Apart {
        let upload = model.uploader().unwrap().unwrap();
        Apart { model, upload }
    }

    fn launch(&mut self, batch: &Owned) -> Box<dyn QueuedStep> {
        let uploaded = self.upload.upload(&batch.view(), None).unwrap();
        self.model.launch(uploaded).unwrap()
    }

    fn step(&mut self, batch: &Owned, out: &mut StepOutput) -> Result<DeviceOutput, ModelError> {
        self.launch(batch).wait(&batch.view(), out)
    }
}

fn assert_same(what: &str, a: (&StepOutput, &TorchModel), b: (&StepOutput, &TorchModel)) {
    assert_eq!(a.0.loss.to_bits(), b.0.loss.to_bits(), "{what}: loss");
    assert_eq!(bits(&a.0.logits), bits(&b.0.logits), "{what}: logits");
    assert_eq!(bits(&a.0.row_grads), bits(&b.0.row_grads), "{what}: gradients of rows");
    assert_eq!(a.1.parameters(), b.1.parameters(), "{what}: parameters");
    assert_eq!(a.1.optimizer(), b.1.optimizer(), "{what}: state");
}

/// Batches that grow and shrink, with and without bags: buffers are reused with other sizes.
fn batches(spec: &ModelSpec) -> Vec<Owned> {
    let sizes = [(9, 7), (40, 30), (3, 2), (300, 90), (41, 31), (9, 7)];
    let made = sizes.iter().zip(0..).map(|(&(rows, unique), i)| {
        let batch = batch(spec, rows, unique, i % 2 == 1, i);
        if i == 3 { batch.weighted(spec) } else { batch }
    });
    made.collect()
}

#[test]
fn a_step_in_three_parts_gives_the_bits_of_train() {
    for optimizer in DenseOptimizer::one_of_each(0.05) {
        for (name, spec) in specs() {
            if spec.two_towers.as_ref().is_some_and(|two| matches!(two.loss, TwoTowersLoss::InBatchSoftmax { .. })) {
                // The loss ties together the rows of a batch, so the step stays in one piece.
                assert!(torch(&spec, optimizer).uploader().unwrap().is_none(), "{name}");
                continue;
            }
            let (mut whole, mut apart) = (torch(&spec, optimizer), Apart::new(torch(&spec, optimizer)));
            let (mut left, mut right) = (StepOutput::default(), StepOutput::default());
            for (i, batch) in batches(&spec).iter().enumerate() {
                whole.train(&batch.view(), &mut left).unwrap();
                let output = apart.step(batch, &mut right).unwrap();
                assert_eq!(output.dense_grads, None);
                assert_same(&format!("{name}, batch {i}"), (&left, &whole), (&right, &apart.model));
            }
        }
    }
}

/// Each part on a thread of its own, up to six batches in flight: the steps are still taken in order.
#[test]
fn batches_in_flight_do_not_disturb_each_other() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]).with_fm();
    let batches: Vec<Owned> = (0..8).flat_map(|_| batches(&spec)).collect();
    let mut whole = torch(&spec, DenseOptimizer::adam(0.01));
    let expected: Vec<StepOutput> = batches
        .iter()
        .map(|batch| {
            let mut out = StepOutput::default();
            whole.train(&batch.view(), &mut out).unwrap();
            out
        })
        .collect();
    let Apart { mut model, mut upload } = Apart::new(torch(&spec, DenseOptimizer::adam(0.01)));
    let found: Vec<StepOutput> = std::thread::scope(|scope| {
        let (to_train, uploaded) = sync_channel::<UploadedBatch>(2);
        let (to_host, launched) = sync_channel::<Box<dyn QueuedStep>>(2);
        scope.spawn(|| {
            let to_train = to_train;
            for batch in &batches {
                to_train.send(upload.upload(&batch.view(), None).unwrap()).unwrap();
            }
        });
        let waiting = scope.spawn(|| {
            let waits = launched.into_iter().zip(&batches).map(|(launched, batch)| {
                let mut out = StepOutput::default();
                launched.wait(&batch.view(), &mut out).unwrap();
                out
            });
            waits.collect()
        });
        for batch in uploaded {
            to_host.send(model.launch(batch).unwrap()).unwrap();
        }
        drop(to_host);
        waiting.join().unwrap()
    });
    assert_eq!(found, expected);
    assert_eq!(model.parameters(), whole.parameters());
}

#[test]
fn gradients_for_uploaded_parameters_take_no_step() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]).with_cross(1);
    let (mut whole, mut apart) =
        (torch(&spec, DenseOptimizer::adam(0.1)), Apart::new(torch(&spec, DenseOptimizer::adam(0.1))));
    let (mut left, mut right, mut grads, mut params) =
        (StepOutput::default(), StepOutput::default(), Vec::new(), Vec::new());
    whole.read_flat(&mut params).unwrap();
    for batch in &batches(&spec) {
        whole.set_flat(&params).unwrap();
        whole.gradients(&batch.view(), &mut left, &mut grads).unwrap();
        let uploaded = apart.upload.upload(&batch.view(), Some(&params)).unwrap();
        let output = apart.model.launch(uploaded).unwrap().wait(&batch.view(), &mut right).unwrap();
        assert_eq!(bits(&output.dense_grads.unwrap()), bits(&grads));
        assert_same("apart", (&left, &whole), (&right, &apart.model));
        params.iter_mut().zip(&grads).for_each(|(param, grad)| *param -= 0.1 * grad);
    }
    // None of this was a step: the next step begins with the last parameters.
    let batch = &batches(&spec)[0];
    whole.train(&batch.view(), &mut left).unwrap();
    apart.step(batch, &mut right).unwrap();
    assert_same("a step", (&left, &whole), (&right, &apart.model));
}

#[test]
fn a_number_that_is_not_finite_is_named_as_by_train() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]);
    let good = batch(&spec, 8, 6, false, 1);
    let edited = |edit: fn(&mut Owned)| {
        let mut bad = good.clone();
        edit(&mut bad);
        bad
    };
    let cases = [
        ("dense feature 1 of row 1 is NaN", edited(|bad| bad.dense[3] = f32::NAN)),
        ("weight 2 of unique row 1 is inf", edited(|bad| bad.unique_rows[7] = f32::INFINITY)),
        ("the loss is", edited(|bad| bad.unique_rows.iter_mut().for_each(|x| *x = f32::MAX))),
    ];
    for (words, bad) in cases {
        let (mut whole, mut apart) =
            (torch(&spec, DenseOptimizer::adam(0.01)), Apart::new(torch(&spec, DenseOptimizer::adam(0.01))));
        let mut out = StepOutput::default();
        whole.train(&good.view(), &mut out).unwrap();
        apart.step(&good, &mut out).unwrap();
        let error = whole.train(&bad.view(), &mut out).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        // The next batch is launched before the error is known.
        let (first, behind) = (apart.launch(&bad), apart.launch(&good));
        assert_eq!(first.wait(&bad.view(), &mut out).unwrap_err(), error);
        // Its result depends on what was bad, but the wait returns.
        let _ = behind.wait(&good.view(), &mut out);
    }
}

#[test]
fn a_parameter_that_is_not_finite_is_named_as_by_train() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]);
    let (mut whole, mut apart) =
        (torch(&spec, DenseOptimizer::sgd(0.1)), Apart::new(torch(&spec, DenseOptimizer::sgd(0.1))));
    let (mut poisoned, mut out) = (whole.parameters(), StepOutput::default());
    for name in ["tower.1.weight", "tower.0.bias"] {
        poisoned.iter_mut().find(|tensor| tensor.name == name).unwrap().data[3] = f32::NAN;
        whole.load(&poisoned).unwrap();
        apart.model.load(&poisoned).unwrap();
        let batch = batch(&spec, 8, 6, false, 1);
        let error = whole.train(&batch.view(), &mut out).unwrap_err();
        assert_eq!(error, ModelError::NonFinite(format!("parameter {name} is not finite")));
        assert_eq!(apart.step(&batch, &mut out).unwrap_err(), error);
    }
}

/// Its loss is finite, but the gradient of the square root at zero is not.
struct Root(Tensor, Tensor);

impl TorchModule for Root {
    fn forward(&self, batch: &TorchBatch) -> Result<Tensor, TchError> {
        batch.dense().f_matmul(&self.0)?.f_add(&self.1.f_sqrt()?)
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_named_as_by_train() {
    let make = || {
        let shape = ModuleShape { slots: 3, dense: 2, parts: vec![RowPart::new("embedding", 1)] };
        TorchModel::from_module(shape, DenseOptimizer::sgd(0.1), 1, 1, device(), |root| {
            Ok(Root(root.zeros("plain", &[2, 1]), root.zeros("rooted", &[1])))
        })
        .unwrap()
    };
    let (mut whole, mut apart) = (make(), Apart::new(make()));
    let (batch, mut out) = (batch(&ModelSpec::lr(3, 2), 8, 6, false, 1), StepOutput::default());
    let error = whole.train(&batch.view(), &mut out).unwrap_err();
    assert!(error.to_string().contains("the gradient of rooted is not finite"), "{error}");
    assert_eq!(apart.step(&batch, &mut out).unwrap_err(), error);
    assert!(out.row_grads.iter().all(|&x| x == 0.0), "the module does not look at the rows");
}

#[test]
fn batches_with_empty_bags_only() {
    let spec = ModelSpec::wide_deep(2, 1, 4, &[6]);
    let empty = Owned::without_values();
    let (mut whole, mut apart) =
        (torch(&spec, DenseOptimizer::sgd(0.1)), Apart::new(torch(&spec, DenseOptimizer::sgd(0.1))));
    let (mut left, mut right) = (StepOutput::default(), StepOutput::default());
    whole.train(&empty.view(), &mut left).unwrap();
    apart.step(&empty, &mut right).unwrap();
    assert_same("empty", (&left, &whole), (&right, &apart.model));
}

#[test]
fn a_refused_batch_changes_nothing() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]);
    let (mut whole, mut apart) =
        (torch(&spec, DenseOptimizer::adam(0.1)), Apart::new(torch(&spec, DenseOptimizer::adam(0.1))));
    let good = batch(&spec, 8, 6, false, 1);
    let refused = |result: Result<UploadedBatch, ModelError>| result.err().expect("must be refused").to_string();
    let short = Owned { labels: vec![], ..good.clone() };
    assert!(refused(apart.upload.upload(&short.view(), None)).contains("0 labels for 8 rows"));
    assert!(refused(apart.upload.upload(&good.view(), Some(&[1.0]))).contains("values: 1 numbers"));
    // A batch may be dropped on its way, as when a run is stopped.
    drop(apart.upload.upload(&good.view(), None).unwrap());
    let mut out = StepOutput::default();
    let other = batch(&spec, 7, 6, false, 1);
    let launched = apart.launch(&good);
    assert!(launched.wait(&other.view(), &mut out).unwrap_err().to_string().contains("another batch"));
    whole.train(&good.view(), &mut out).unwrap();
    for batch in &batches(&spec) {
        whole.train(&batch.view(), &mut out).unwrap();
        let launched = apart.launch(batch);
        let mut right = StepOutput::default();
        launched.wait(&batch.view(), &mut right).unwrap();
        assert_same("after", (&out, &whole), (&right, &apart.model));
    }
    let error = apart.model.launch(UploadedBatch::new("no batch")).err().unwrap().to_string();
    assert!(error.contains("another backend"), "{error}");
}

#[test]
fn the_native_backend_has_nothing_to_upload() {
    let mut native = NativeModel::new(ModelSpec::lr(3, 2), DenseOptimizer::sgd(0.1), 3, 1).unwrap();
    assert!(native.uploader().unwrap().is_none());
    let error = native.launch(UploadedBatch::new(())).err().unwrap().to_string();
    assert!(error.contains("call `train`"), "{error}");
}
