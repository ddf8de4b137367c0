//! Gradients from the model and steps in blocks outside of it give the numbers of `train`: with the native backend to the bit.
#![allow(clippy::unwrap_used)]

mod support;

use forebay_models::{DenseModel, DenseOptimizer, ModelError, ModelSpec, NativeModel, ParamBlock, StepOutput};
use proptest::prelude::*;
use support::{Owned, batch, bits, number, specs};

/// The flat parameters in blocks, as ps processes hold them.
struct Blocks(Vec<ParamBlock>);

impl Blocks {
    /// `cuts` in any order, beyond the end or twice.
    fn new(optimizer: DenseOptimizer, values: &[f32], cuts: &[usize]) -> Blocks {
        let mut ends: Vec<usize> = cuts.iter().map(|&cut| cut.min(values.len())).chain([values.len()]).collect();
        ends.sort_unstable();
        let mut start = 0;
        let block = |end: usize| ParamBlock::new(optimizer, values[std::mem::replace(&mut start, end)..end].to_vec());
        Blocks(ends.into_iter().map(block).collect::<Result<_, _>>().unwrap())
    }

    fn apply(&mut self, mut grads: &[f32]) -> Vec<f32> {
        for block in &mut self.0 {
            let (own, rest) = grads.split_at(block.values().len());
            block.apply(own).unwrap();
            grads = rest;
        }
        assert!(grads.is_empty());
        self.0.iter().flat_map(|block| block.values().to_vec()).collect()
    }

    /// The optimizer's state, buffer by buffer.
    fn state(&self) -> Vec<f32> {
        let buffers = self.0[0].state().len();
        (0..buffers).flat_map(|i| self.0.iter().flat_map(move |block| block.state()[i].clone())).collect()
    }
}

fn flat(model: &dyn DenseModel) -> Vec<f32> {
    let mut values = vec![f32::NAN; 3]; // their old content does not matter
    model.read_flat(&mut values).unwrap();
    values
}

/// The state as `optimizer()` saves it, without the number of steps, buffer by buffer.
fn saved_state(model: &dyn DenseModel) -> Vec<f32> {
    model.optimizer()[1..].iter().flat_map(|tensor| tensor.data.clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn blocks_step_to_the_bits_of_the_whole_model(
        which in 0..=specs().len(), kind in 0..DenseOptimizer::one_of_each(0.05).len(), threads in 1usize..4, steps in 1u64..6, rows in 1usize..700,
        bags: bool, coarse: bool, l2: bool, cuts in prop::collection::vec(0usize..30_000, 0..6),
    ) {
        // The last one has more parameters than a task takes.
        let large = ModelSpec::wide_deep(5, 3, 8, &[150, 80]).with_fm();
        let spec = specs().into_iter().map(|(_, spec)| spec).chain([large]).nth(which).unwrap();
        let plain = DenseOptimizer::one_of_each(0.05)[kind];
        let optimizer = if l2 { plain.with_l2(0.01).unwrap_or(plain) } else { plain };
        let mut whole = NativeModel::new(spec.clone(), optimizer, 3, threads).unwrap();
        let mut apart = NativeModel::new(spec.clone(), DenseOptimizer::default(), 3, 1).unwrap();
        let len = apart.flat_len();
        // At multiples of 16, as ps processes cut, or anywhere.
        let cuts: Vec<usize> = cuts.iter().map(|cut| if coarse { cut % (len + 1) / 16 * 16 } else { cut % (len + 1) }).collect();
        let mut values = flat(&whole);
        let mut blocks = Blocks::new(optimizer, &values, &cuts);
        let (mut left, mut right, mut grads) = (StepOutput::default(), StepOutput::default(), Vec::new());
        for step in 0..steps {
            let batch = batch(&spec, rows, 40, bags, step);
            whole.train(&batch.view(), &mut left).unwrap();
            apart.set_flat(&values).unwrap();
            apart.gradients(&batch.view(), &mut right, &mut grads).unwrap();
            prop_assert_eq!(grads.len(), len);
            prop_assert_eq!(&left, &right);
            // The step happened outside: the model keeps the values that it was given.
            prop_assert_eq!(bits(&flat(&apart)), bits(&values));
            values = blocks.apply(&grads);
            prop_assert_eq!(bits(&flat(&whole)), bits(&values));
        }
        prop_assert_eq!(saved_state(&whole), blocks.state());
        prop_assert!(blocks.0.iter().all(|block| block.steps() == steps));
    }
}

#[test]
fn flat_parameters_are_the_named_parameters_in_order() {
    for (name, spec) in specs() {
        let mut model = NativeModel::new(spec, DenseOptimizer::default(), 3, 1).unwrap();
        let joined = |model: &NativeModel| model.parameters().into_iter().flat_map(|t| t.data).collect::<Vec<f32>>();
        assert_eq!(flat(&model), joined(&model), "{name}");
        let values: Vec<f32> = (0..model.flat_len()).map(|i| i as f32).collect();
        model.set_flat(&values).unwrap();
        assert_eq!((flat(&model), joined(&model)), (values.clone(), values.clone()), "{name}");
        let error = model.set_flat(&vec![0.0; values.len() + 1]).unwrap_err();
        assert!(matches!(&error, ModelError::Load(what) if what.contains("numbers for")), "{name}: {error}");
        assert_eq!(flat(&model), values, "{name}");
    }
}

#[test]
fn a_block_with_the_saved_state_continues_to_the_same_bits() {
    for optimizer in DenseOptimizer::one_of_each(0.05) {
        let values: Vec<f32> = (0..100).map(|i| i as f32 / 10.0).collect();
        let grads = |step| (0..100).map(|i| number(1, step, i) as f32 / u64::MAX as f32 - 0.5).collect::<Vec<f32>>();
        let mut whole = ParamBlock::new(optimizer, values.clone()).unwrap();
        whole.apply(&grads(0)).unwrap();
        let mut second = ParamBlock::new(optimizer, values).unwrap();
        second.set_values(whole.values()).unwrap();
        second.set_state(whole.steps(), whole.state().to_vec()).unwrap();
        whole.apply(&grads(1)).unwrap();
        second.apply(&grads(1)).unwrap();
        assert_eq!(whole, second);
    }
}

/// A refused batch leaves the model as it was, and the model can go on.
fn check_refusals(mut model: Box<dyn DenseModel>, spec: &ModelSpec) {
    let before = flat(&*model);
    let (mut out, mut grads) = (StepOutput::default(), Vec::new());
    let good = batch(spec, 8, 6, false, 1);
    let mut bad = good.clone();
    bad.dense[3] = f32::NAN;
    let error = model.gradients(&bad.view(), &mut out, &mut grads).unwrap_err();
    assert_eq!(error, ModelError::NonFinite("dense feature 1 of row 1 is NaN".into()));
    let short = Owned { labels: vec![], ..good.clone() };
    assert!(matches!(model.gradients(&short.view(), &mut out, &mut grads), Err(ModelError::Batch(_))));
    model.gradients(&good.view(), &mut out, &mut grads).unwrap();
    assert!(grads.iter().all(|g| g.is_finite()) && grads.len() == model.flat_len());
    assert_eq!(flat(&*model), before);
}

#[test]
fn a_refused_batch_changes_nothing() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]);
    check_refusals(Box::new(NativeModel::new(spec.clone(), DenseOptimizer::default(), 3, 1).unwrap()), &spec);
}

#[cfg(feature = "torch")]
mod torch {
    use forebay_models::TwoTowersLoss::InBatchSoftmax;
    use forebay_models::{Similarity, TorchModel};

    use super::support::assert_close;
    use super::*;

    fn make(spec: &ModelSpec, optimizer: DenseOptimizer, seed: u64) -> TorchModel {
        TorchModel::new(spec.clone(), optimizer, seed, 1, support::device()).unwrap()
    }

    #[test]
    fn a_refused_batch_changes_nothing() {
        let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]);
        check_refusals(Box::new(make(&spec, DenseOptimizer::default(), 3)), &spec);
    }

    #[test]
    fn blocks_step_as_libtorch_does() {
        for (name, spec) in specs() {
            for optimizer in DenseOptimizer::one_of_each(0.02) {
                let what = format!("{name} {optimizer:?}");
                let (mut whole, mut apart) = (make(&spec, optimizer, 3), make(&spec, DenseOptimizer::default(), 3));
                let mut native = NativeModel::new(spec.clone(), optimizer, 3, 1).unwrap();
                let mut values = flat(&whole);
                let mut blocks = Blocks::new(optimizer, &values, &[16, 48]);
                let (mut out, mut grads, mut expected) = (StepOutput::default(), Vec::new(), Vec::new());
                for step in 0..5 {
                    let batch = batch(&spec, 9, 7, step % 2 == 1, step);
                    native.set_flat(&values).unwrap();
                    apart.set_flat(&values).unwrap();
                    native.gradients(&batch.view(), &mut out, &mut expected).unwrap();
                    apart.gradients(&batch.view(), &mut out, &mut grads).unwrap();
                    // The cosine of short vectors divides by their length, and makes differences of rounding larger.
                    let tolerance = if spec.two_towers.is_some() { 4e-6 } else { 1e-6 };
                    assert_close(&what, &grads, &expected, tolerance);
                    assert_eq!(bits(&flat(&apart)), bits(&values), "{what}");
                    whole.train(&batch.view(), &mut out).unwrap();
                    values = blocks.apply(&grads);
                }
                // A softmax over items does not depend on the last bias of their tower if vectors are compared by the inner product. The
                // gradient is what rounding leaves, which Adam divides by its own size.
                let item_bias = match &spec.two_towers {
                    Some(two) if two.similarity == Similarity::Dot && matches!(two.loss, InBatchSoftmax { .. }) => {
                        two.vector_dim
                    }
                    _ => 0,
                };
                let compared = values.len() - item_bias;
                assert_close(&what, &flat(&whole)[..compared], &values[..compared], 1e-5);
                assert!(matches!(apart.set_flat(&vec![0.0; values.len() + 1]), Err(ModelError::Load(_))), "{what}");
            }
        }
    }
}
