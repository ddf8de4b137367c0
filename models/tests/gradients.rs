//! The native gradients against finite differences, the same bits for any number of threads, and errors that change nothing.
#![allow(clippy::unwrap_used)]

mod support;

use forebay_models::{
    Activation, DenseModel, DenseOptimizer, FeatureGates, FinalMlp, ModelError, ModelSpec, NamedTensor, NativeModel,
    Norm, Pooling, StepOutput, TowerInputs,
};
use support::{Owned, assert_close, batch, cross, specs, with_unit};

/// The mean loss in f64 from the logits of a training step, in f32, without the step.
fn loss(model: &mut NativeModel, spec: &ModelSpec, batch: &Owned) -> f64 {
    let (mut out, mut grads) = (StepOutput::default(), Vec::new());
    model.gradients(&batch.view(), &mut out, &mut grads).unwrap();
    match &spec.two_towers {
        // What a step drops is not in vectors.
        Some(two) if two.is_in_batch() && two.tower.dropout > 0.0 => return out.loss,
        Some(two) if two.is_in_batch() => return support::in_batch_loss(model, spec, batch),
        _ => {}
    }
    let of_labels = spec.tasks.as_ref().map_or(&[1.0][..], |tasks| &tasks.weights);
    forebay_models::losses_sum(&out.logits, &batch.labels, of_labels, batch.weights.as_deref()) / batch.rows as f64
}

/// The gradient of every parameter, read off one step of SGD with learning rate 1.
fn gradients(spec: &ModelSpec, batch: &Owned) -> (Vec<NamedTensor>, StepOutput) {
    let mut model = NativeModel::new(spec.clone(), DenseOptimizer::sgd(1.0), 3, 1).unwrap();
    let mut before = model.parameters();
    let mut out = StepOutput::default();
    model.train(&batch.view(), &mut out).unwrap();
    for (before, after) in before.iter_mut().zip(model.parameters()) {
        for (before, after) in before.data.iter_mut().zip(after.data) {
            *before -= after;
        }
    }
    (before, out)
}

/// Fails unless each gradient lies between the differences to the left and to the right. That holds where the loss is smooth
/// (the central difference is their mean), and where a ReLU flips within a step.
fn assert_between(what: &str, grads: &[f32], mut loss_with: impl FnMut(usize, f32) -> f64) {
    const H: f32 = 1.0 / 256.0;
    const TOLERANCE: f64 = 1e-4;
    for (i, &grad) in grads.iter().enumerate().filter(|(_, grad)| !grad.is_nan()) {
        let (below, here, above) = (loss_with(i, -H), loss_with(i, 0.0), loss_with(i, H));
        let (left, right) = ((here - below) / f64::from(H), (above - here) / f64::from(H));
        let bounds = left.min(right) - TOLERANCE..=left.max(right) + TOLERANCE;
        assert!(bounds.contains(&f64::from(grad)), "{what}: number {i} is {grad}, expected from {left} to {right}");
    }
}

#[test]
fn native_gradients_agree_with_finite_differences() {
    for (name, spec) in specs() {
        for (bags, weighted) in [(false, false), (true, false), (true, true)] {
            // Smooth where values have weights: which bends of a relu lie within the steps depends on the batch.
            let smooth = || spec.clone().with_activation(Activation::Gelu);
            let spec = if weighted { smooth() } else { spec.clone() };
            let batch = batch(&spec, 9, 7, bags, 11);
            let batch = if weighted { batch.weighted(&spec) } else { batch };
            let (grads, mut out) = gradients(&spec, &batch);
            let mut model = NativeModel::new(spec.clone(), DenseOptimizer::sgd(1.0), 3, 1).unwrap();
            let first = model.parameters();
            let first_loss = loss(&mut model, &spec, &batch);
            assert!((out.loss - first_loss).abs() < 1e-6, "{name} {bags}: {} {first_loss}", out.loss);
            for (t, grad) in grads.iter().enumerate() {
                assert_between(&format!("{name} {bags} {}", grad.name), &grad.data, |i, h| {
                    let mut moved = first.clone();
                    moved[t].data[i] += h;
                    model.load(&moved).unwrap();
                    loss(&mut model, &spec, &batch)
                });
            }
            model.load(&first).unwrap();
            let row_dim = spec.row_dim();
            if support::counts(&spec) {
                let items = support::items(&spec, &batch);
                for (row, grads) in out.row_grads.chunks_exact_mut(row_dim).enumerate() {
                    let occurrences = items.iter().filter(|item| **item == Some(row as u32)).count();
                    assert_eq!(
                        grads[0],
                        -(occurrences as f32),
                        "{name} {bags}: a step of 1 counts the items of row {row}"
                    );
                    // The loss does depend on counts, but they are not learnt.
                    grads[0] = f32::NAN;
                }
            }
            assert_between(&format!("{name} {bags} rows"), &out.row_grads, |i, h| {
                let mut moved = batch.clone();
                moved.unique_rows[i] += h;
                loss(&mut model, &spec, &moved)
            });
            assert!(out.row_grads.iter().any(|&x| x != 0.0), "{name} {bags}");
        }
    }
}

#[test]
fn weights_of_1_give_the_bits_of_values_without_weights() {
    for (name, spec) in specs() {
        let plain = batch(&spec, 300, 40, true, 4);
        let ones = Owned { value_weights: Some(vec![1.0; plain.inverse.len()]), ..plain.clone() };
        let train = |batch: &Owned| {
            let mut model = NativeModel::new(spec.clone(), DenseOptimizer::adam(0.1), 3, 1).unwrap();
            let mut out = StepOutput::default();
            model.train(&batch.view(), &mut out).unwrap();
            (out, model.parameters())
        };
        assert!(train(&plain) == train(&ones), "{name}");
    }
}

/// Logits, loss, row gradients and parameters of three steps, each on its number of threads, as bits. With bags, the values of the
/// second step have weights.
fn trace(spec: &ModelSpec, threads: [usize; 3], rows: usize, bags: bool) -> Vec<u64> {
    let mut model = NativeModel::new(spec.clone(), DenseOptimizer::adam(1e-2), 5, threads[0]).unwrap();
    let mut out = StepOutput::default();
    let mut bits = Vec::new();
    for step in 0..3 {
        if model.threads() != Some(threads[step as usize]) {
            model.set_threads(threads[step as usize]).unwrap();
        }
        let batch = batch(spec, rows, 300, bags, step);
        let batch = if bags && step == 1 { batch.weighted(spec) } else { batch };
        model.train(&batch.view(), &mut out).unwrap();
        bits.push(out.loss.to_bits());
        bits.extend(out.logits.iter().chain(&out.row_grads).map(|x| u64::from(x.to_bits())));
    }
    bits.extend(model.parameters().iter().flat_map(|tensor| &tensor.data).map(|x| u64::from(x.to_bits())));
    bits
}

#[test]
fn all_runs_and_numbers_of_threads_give_the_same_bits() {
    let plain = ModelSpec::wide_deep(5, 3, 8, &[64, 40]).with_fm().with_cross(1);
    let largest = plain.clone().with_pooling(Pooling::Max);
    let learned = ModelSpec::ctr_dnn(5, 3, 8, &[64, 40])
        .with_activation(Activation::Prelu)
        .with_norm(Norm::Layer)
        .with_dropout(0.2);
    let mixed = plain
        .clone()
        .with_slot_pooling([Pooling::Max, Pooling::Mean, Pooling::Sum, Pooling::Max, Pooling::Mean].to_vec());
    let din = with_unit(ModelSpec::ctr_dnn(5, 3, 8, &[64, 40]), &[(1, 0), (4, 3)], Activation::Prelu);
    // Enough work for many threads: shared products, several scatters, more micro-batches.
    let (large, many) = (ModelSpec::ctr_dnn(5, 3, 8, &[400, 300]), ModelSpec::fm(20, 3, 8));
    let low_rank = ModelSpec::ctr_dnn(5, 3, 8, &[64, 40]).with_cross_network(cross(Some(7), true));
    let mmoe = ModelSpec::mmoe(5, 3, 8, 3, &[300, 200], &[40], &[1.0, 0.5]);
    let esmm = ModelSpec::esmm(5, 3, 8, &[64, 40], &[1.0, 0.5]).with_dropout(0.2);
    let many_largest = many.clone().with_pooling(Pooling::Max);
    let side =
        |slots: &[usize], dense: &[usize]| TowerInputs { slots: slots.into(), dense: dense.into(), hidden: None };
    let towers = ModelSpec::two_towers(5, 3, 8, side(&[0, 2, 4], &[1]), side(&[1, 3], &[0, 2]), &[64, 40], 16);
    let in_batch = towers.clone().with_in_batch_softmax(3, true).with_dropout(0.2);
    let wide = |gates| FinalMlp { heads: 4, gates, second_hidden: Some(vec![80]), ..FinalMlp::new(&[64, 40]) };
    let of_slots = FeatureGates { hidden: vec![24], first: vec![1], second: vec![0, 3] };
    let gated = ModelSpec::final_mlp(5, 3, 8, wide(Some(of_slots))).with_dropout(0.2);
    let final_mlp = ModelSpec::final_mlp(5, 3, 8, FinalMlp { gates: FinalMlp::new(&[1]).gates, ..wide(None) });
    for (spec, rows, bags) in [
        (&final_mlp, 1, false),
        (&final_mlp, 2500, true),
        (&gated, 700, true),
        (&gated, 2500, false),
        (&plain, 1, false),
        (&plain, 300, false),
        (&plain, 700, true),
        (&plain, 2500, false),
        (&learned, 700, true),
        (&largest, 700, true),
        (&mixed, 700, true),
        (&din, 700, true),
        (&din, 2500, true),
        (&low_rank, 700, true),
        (&low_rank, 2500, false),
        (&din, 2500, false),
        (&large, 2500, false),
        (&mmoe, 2500, false),
        (&mmoe, 300, true),
        (&esmm, 700, true),
        (&towers, 700, true),
        (&in_batch, 700, true),
        (&in_batch, 2500, false),
        (&many, 10_000, false),
        (&many_largest, 10_000, true),
    ] {
        let alone = trace(spec, [1; 3], rows, bags);
        for threads in [1, 2, 3, 4, 5, 8, 16] {
            assert!(trace(spec, [threads; 3], rows, bags) == alone, "{rows} rows on {threads} threads");
        }
        // The tuner changes the number between two steps.
        assert!(trace(spec, [16, 3, 8], rows, bags) == alone, "{rows} rows on 16, 3 and 8 threads");
    }
}

/// Long histories are computed in several blocks, histories of single rows in one.
#[test]
fn the_gradients_of_long_histories_are_the_mean_of_those_of_the_rows() {
    let spec = with_unit(ModelSpec::ctr_dnn(3, 2, 4, &[6, 5]), &[(2, 0)], Activation::Prelu);
    let rows = 50;
    let mut whole = batch(&spec, rows, 30, true, 4);
    let counts = (0..rows * 3).map(|bag| if bag % 3 == 2 { (bag * 13 % 101) as u32 } else { 1 });
    let mut offsets = vec![0];
    counts.for_each(|count| offsets.push(offsets[offsets.len() - 1] + count));
    whole.inverse = (0..offsets[rows * 3]).map(|value| value * value % 97 % 30).collect();
    assert!(whole.inverse.len() > 2 * 1024 && whole.weights.is_some());
    whole.offsets = Some(offsets.clone());
    let mut model = NativeModel::new(spec.clone(), DenseOptimizer::sgd(1.0), 3, 1).unwrap();
    let mut of = |batch: &Owned| {
        let (mut out, mut grads) = (StepOutput::default(), Vec::new());
        model.gradients(&batch.view(), &mut out, &mut grads).unwrap();
        [grads, out.row_grads, out.logits]
    };
    let [grads, row_grads, logits] = of(&whole);
    let (mut mean_grads, mut mean_row_grads) = (vec![0.0; grads.len()], vec![0.0; row_grads.len()]);
    for row in 0..rows {
        let (first, end) = (offsets[row * 3], offsets[row * 3 + 3]);
        let one = Owned {
            rows: 1,
            labels: vec![whole.labels[row]],
            weights: whole.weights.as_ref().map(|weights| vec![weights[row]]),
            dense: whole.dense[row * 2..][..2].to_vec(),
            inverse: whole.inverse[first as usize..end as usize].to_vec(),
            offsets: Some(offsets[row * 3..=row * 3 + 3].iter().map(|offset| offset - first).collect()),
            ..whole.clone()
        };
        let [grads, row_grads, logit] = of(&one);
        assert_close("logit", &logit, &logits[row..=row], 1e-5);
        for (mean, one) in [(&mut mean_grads, grads), (&mut mean_row_grads, row_grads)] {
            mean.iter_mut().zip(one).for_each(|(mean, one)| *mean += one / rows as f32);
        }
    }
    let scale = |numbers: &[f32]| 1.0 / numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (what, found, expected) in [("parameters", grads, mean_grads), ("rows", row_grads, mean_row_grads)] {
        let scale = scale(&expected);
        let scaled = |numbers: Vec<f32>| numbers.iter().map(|x| x * scale).collect::<Vec<f32>>();
        assert_close(what, &scaled(found), &scaled(expected), 1e-5);
    }
}

#[test]
fn a_failed_step_changes_nothing() {
    for (name, spec) in specs() {
        let mut model = NativeModel::new(spec.clone(), DenseOptimizer::adam(1e-2), 3, 1).unwrap();
        let mut out = StepOutput::default();
        let good = batch(&spec, 8, 6, true, 1);
        model.train(&good.view(), &mut out).unwrap();
        let (parameters, optimizer) = (model.parameters(), model.optimizer());
        let mut bad = good.clone();
        let value = good.inverse[0] as usize;
        bad.unique_rows[(value + 1) * spec.row_dim() - 1] = f32::NAN;
        let error = model.train(&bad.view(), &mut out).unwrap_err();
        assert!(
            matches!(&error, ModelError::NonFinite(cause) if cause.contains(&format!("unique row {value}"))),
            "{name}: {error}"
        );
        assert!(matches!(model.predict(&bad.view(), &mut out.logits), Err(ModelError::NonFinite(_))), "{name}");
        let short = Owned { labels: vec![0.0], ..good.clone() };
        assert!(matches!(model.train(&short.view(), &mut out), Err(ModelError::Batch(_))), "{name}");
        assert_eq!((model.parameters(), model.optimizer()), (parameters, optimizer), "{name}");
    }
}

#[test]
fn training_continues_from_a_saved_model() {
    let spec = ModelSpec::wide_deep(3, 2, 4, &[6, 5]);
    for optimizer in DenseOptimizer::one_of_each(0.1) {
        let mut out = StepOutput::default();
        let mut whole = NativeModel::new(spec.clone(), optimizer, 3, 1).unwrap();
        for step in 0..3 {
            whole.train(&batch(&spec, 8, 6, false, step).view(), &mut out).unwrap();
        }
        let mut second = NativeModel::new(spec.clone(), optimizer, 99, 1).unwrap();
        second.load(&whole.parameters()).unwrap();
        second.load_optimizer(&whole.optimizer()).unwrap();
        for step in 3..6 {
            whole.train(&batch(&spec, 8, 6, false, step).view(), &mut out).unwrap();
            second.train(&batch(&spec, 8, 6, false, step).view(), &mut out).unwrap();
        }
        assert_eq!(whole.parameters(), second.parameters());
        assert_eq!(whole.optimizer(), second.optimizer());
    }
}

/// Only training steps drop units, and the id of the batch decides which.
#[test]
fn dropout_is_not_in_predictions_and_depends_on_the_batch_and_the_seed() {
    let plain = ModelSpec::ctr_dnn(3, 2, 4, &[40]);
    let dropping = plain.clone().with_dropout(0.5);
    let model = |spec: &ModelSpec, seed| NativeModel::new(spec.clone(), DenseOptimizer::sgd(0.0), seed, 1).unwrap();
    let first = batch(&plain, 30, 7, false, 1);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    model(&plain, 3).predict(&first.view(), &mut without).unwrap();
    model(&dropping, 3).predict(&first.view(), &mut with).unwrap();
    assert_eq!(with, without);
    let trained = |model: &mut NativeModel, batch: &Owned| {
        let mut out = StepOutput::default();
        model.gradients(&batch.view(), &mut out, &mut Vec::new()).unwrap();
        out.logits
    };
    let other = Owned { id: 2, ..first.clone() };
    let (mut plain, mut dropping) = (model(&plain, 3), model(&dropping, 3));
    assert_eq!(trained(&mut plain, &first), trained(&mut plain, &other));
    let logits = trained(&mut dropping, &first);
    assert_ne!(logits, trained(&mut plain, &first));
    assert_ne!(logits, trained(&mut dropping, &other));
    assert_eq!(logits, trained(&mut dropping, &first), "no state is left behind");
}

/// The slow twin: each row by itself, with the label that it has as the only one that counts.
#[test]
fn a_label_that_a_row_lacks_takes_no_part_in_the_loss_and_its_gradients() {
    let spec = ModelSpec::mmoe(3, 2, 4, 2, &[6, 5], &[3], &[1.0, 0.5]);
    let whole = Owned { labels: vec![1.0, f32::NAN, f32::NAN, 0.0, 1.0, 1.0], ..batch(&spec, 3, 7, false, 5) };
    let mut model = NativeModel::new(spec.clone(), DenseOptimizer::sgd(1.0), 3, 1).unwrap();
    let names: Vec<(String, usize)> =
        model.parameters().into_iter().map(|tensor| (tensor.name, tensor.data.len())).collect();
    let mut of = |labels: Vec<f32>| {
        let (mut out, mut grads) = (StepOutput::default(), Vec::new());
        model.gradients(&Owned { labels, ..whole.clone() }.view(), &mut out, &mut grads).unwrap();
        (out, grads)
    };
    let nan = f32::NAN;
    let (out, grads) = of(whole.labels.clone());
    let mut plain = 0.0;
    for (at, label) in whole.labels.iter().enumerate().filter(|(_, label)| !label.is_nan()) {
        let (z, weight) = (f64::from(out.logits[at]), [1.0, 0.5][at % 2]);
        plain += weight * ((1.0 + z.exp()).ln() - f64::from(*label) * z) / 3.0;
    }
    assert!((out.loss - plain).abs() < 1e-6, "{} {plain}", out.loss);
    let (mut sum, mut row_sum) = (vec![0.0; grads.len()], vec![0.0; out.row_grads.len()]);
    for at in (0..6).filter(|&at| !whole.labels[at].is_nan()) {
        let (one, one_grads) = of((0..6).map(|other| if other == at { whole.labels[at] } else { nan }).collect());
        assert_eq!(one.logits, out.logits);
        sum.iter_mut().zip(one_grads).for_each(|(sum, one)| *sum += one);
        row_sum.iter_mut().zip(one.row_grads).for_each(|(sum, one)| *sum += one);
    }
    assert_close("parameters", &grads, &sum, 1e-6);
    assert_close("rows", &out.row_grads, &row_sum, 1e-6);
    // Without the second label its tower and its gate learn nothing, and the rest learns.
    let (_, grads) = of(vec![1.0, nan, 0.0, nan, 1.0, nan]);
    let mut from = 0;
    for (name, len) in names {
        let learns = grads[from..from + len].iter().any(|&grad| grad != 0.0);
        assert_eq!(learns, !name.starts_with("task.1.") && !name.starts_with("gate.1."), "{name}");
        from += len;
    }
}
