//! What the tests and benches of this crate share: generated numbers and batches, specs.
#![allow(dead_code, unreachable_pub)]

use forebay_base::{mix64, signed_unit_f32};
use forebay_models::{
    Activation, Attention, AttentionPair, Cross, CrossStructure, DenseBatch, DenseModel, FeatureGates, FinalMlp,
    ModelSpec, Norm, Pooling, Similarity, Tower, TowerInputs, TowerSide, TwoTowersLoss,
};

/// From -1 to 1 in steps that f32 holds exactly. `tests/golden/models.py` has the same.
pub fn unit(z: u64) -> f32 {
    signed_unit_f32(mix64(z))
}

/// A hash that all generated inputs come from: number `i` of a stream at a step.
pub fn number(stream: u64, step: u64, i: usize) -> u64 {
    mix64((stream << 48) ^ (step << 32) ^ i as u64)
}

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// A batch that owns its numbers.
#[derive(Debug, Clone)]
pub struct Owned {
    pub id: u64,
    pub rows: usize,
    pub labels: Vec<f32>,
    pub weights: Option<Vec<f32>>,
    pub dense: Vec<f32>,
    pub unique_rows: Vec<f32>,
    pub inverse: Vec<u32>,
    pub offsets: Option<Vec<u32>>,
    pub value_weights: Option<Vec<f32>>,
}

impl Owned {
    /// Two rows of two slots and a dense feature. Every bag is empty.
    pub fn without_values() -> Owned {
        Owned {
            id: 0,
            rows: 2,
            labels: vec![1.0, 0.0],
            weights: None,
            dense: vec![0.5, -0.5],
            unique_rows: vec![],
            inverse: vec![],
            offsets: Some(vec![0; 5]),
            value_weights: None,
        }
    }

    /// The same with weights of values, from 0 to 1.5, in the slots that can have some: those that are pooled by sum or mean, and by
    /// nothing else. Without offsets every value has its own bag. If no slot can have weights, the batch stays as it is.
    pub fn weighted(mut self, spec: &ModelSpec) -> Owned {
        if (0..spec.slots).all(|slot| spec.pooling_of(slot) == Pooling::Max) {
            return self;
        }
        let bags = self.rows * spec.slots;
        let offsets = self.offsets.get_or_insert_with(|| (0..=bags as u32).collect());
        let of_attention = |slot: usize| {
            let pairs = spec.attention.iter().flat_map(|attention| &attention.pairs);
            pairs.into_iter().any(|pair| pair.history == slot || pair.target == slot)
        };
        let weight = |slot: usize, value: usize| match spec.pooling_of(slot) {
            Pooling::Sum | Pooling::Mean if !of_attention(slot) => (number(8, self.id, value) % 4) as f32 * 0.5,
            _ => 1.0,
        };
        let of_bag = |bag: usize| (offsets[bag] as usize..offsets[bag + 1] as usize).map(move |value| (bag, value));
        self.value_weights =
            Some((0..bags).flat_map(of_bag).map(|(bag, value)| weight(bag % spec.slots, value)).collect());
        self
    }

    pub fn view(&self) -> DenseBatch<'_> {
        DenseBatch {
            id: self.id,
            rows: self.rows,
            labels: &self.labels,
            weights: self.weights.as_deref(),
            dense: &self.dense,
            unique_rows: &self.unique_rows,
            inverse: &self.inverse,
            offsets: self.offsets.as_deref(),
            value_weights: self.value_weights.as_deref(),
        }
    }
}

/// A generated batch for a spec: `unique` keys, some of them in many bags. With `bags`, each bag has 0 to 3 values,
/// the rows have weights from 0 to 2, and of several labels a quarter is missing.
pub fn batch(spec: &ModelSpec, rows: usize, unique: usize, bags: bool, seed: u64) -> Owned {
    let count = rows * spec.slots;
    let mut offsets = vec![0u32];
    for bag in 0..count {
        let values = if bags { number(1, seed, bag) % 4 } else { 1 };
        offsets.push(offsets[bag] + values as u32);
    }
    let values = offsets[count] as usize;
    Owned {
        id: seed,
        rows,
        labels: (0..rows * spec.labels())
            .map(|row| match bags && spec.labels() > 1 && number(7, seed, row).is_multiple_of(4) {
                true => f32::NAN,
                false => f32::from(u8::from(number(2, seed, row).is_multiple_of(3))),
            })
            .collect(),
        weights: bags.then(|| (0..rows).map(|row| (number(6, seed, row) % 5) as f32 * 0.5).collect()),
        dense: (0..rows * spec.dense).map(|i| unit(number(3, seed, i))).collect(),
        unique_rows: (0..unique * spec.row_dim())
            .map(
                |i| {
                    if counts(spec) && i % spec.row_dim() == 0 {
                        (i % 11) as f32
                    } else {
                        0.5 * unit(number(4, seed, i))
                    }
                },
            )
            .collect(),
        inverse: (0..values).map(|i| (number(5, seed, i) % unique as u64) as u32).collect(),
        offsets: bags.then_some(offsets),
        value_weights: None,
    }
}

/// A spec for each part alone and for combinations, small enough for finite differences.
pub fn specs() -> Vec<(&'static str, ModelSpec)> {
    let all = ModelSpec::wide_deep(3, 2, 4, &[6, 5]).with_fm().with_cross(2);
    vec![
        ("lr", ModelSpec::lr(3, 2)),
        ("lr without dense", ModelSpec::lr(3, 0)),
        ("fm", ModelSpec::fm(3, 2, 4)),
        ("fm alone", ModelSpec::builder(3, 0).with_embedding(5).with_fm()),
        ("wide & deep", ModelSpec::wide_deep(3, 2, 4, &[6, 5])),
        ("deep_fm", ModelSpec::deep_fm(3, 2, 4, &[6, 5])),
        ("dcn_v2", ModelSpec::dcn_v2(3, 2, 4, 2, &[6, 5])),
        ("ctr-dnn", ModelSpec::ctr_dnn(3, 2, 4, &[6, 5])),
        ("ctr-dnn without dense", ModelSpec::ctr_dnn(3, 0, 4, &[6])),
        ("cross", ModelSpec::builder(3, 2).with_embedding(4).with_cross(2)),
        ("cross of low rank", ModelSpec::dcn_v2(3, 2, 4, 1, &[6, 5]).with_cross_network(cross(Some(3), false))),
        (
            "tower on a cross",
            ModelSpec::wide_deep(3, 2, 4, &[6, 5])
                .with_fm()
                .with_activation(Activation::Gelu)
                .with_cross_network(cross(None, true)),
        ),
        (
            "tower on a cross of low rank",
            ModelSpec::ctr_dnn(3, 0, 4, &[6])
                .with_activation(Activation::Silu)
                .with_cross_network(cross(Some(2), true)),
        ),
        ("gelu", ModelSpec::ctr_dnn(3, 2, 4, &[6, 5]).with_activation(Activation::Gelu)),
        ("silu", ModelSpec::wide_deep(3, 2, 4, &[6, 5]).with_activation(Activation::Silu)),
        ("prelu", ModelSpec::dcn_v2(3, 2, 4, 1, &[6, 5]).with_activation(Activation::Prelu)),
        ("dropout", ModelSpec::wide_deep(3, 2, 4, &[7, 5]).with_dropout(0.3)),
        // Not relu: behind a layer norm its kinks make finite differences useless.
        ("layer norm", ModelSpec::wide_deep(3, 2, 4, &[7, 5]).with_norm(Norm::Layer).with_activation(Activation::Gelu)),
        (
            "layer norm, silu, dropout",
            ModelSpec::ctr_dnn(3, 2, 4, &[6, 5])
                .with_norm(Norm::Layer)
                .with_activation(Activation::Silu)
                .with_dropout(0.2),
        ),
        ("dropout, prelu", ModelSpec::ctr_dnn(3, 0, 4, &[6, 5]).with_activation(Activation::Prelu).with_dropout(0.5)),
        ("shared bottom", ModelSpec::shared_bottom(3, 2, 4, &[6, 5], &[3], &[1.0, 0.5, 2.0])),
        ("shared bottom, linear heads", ModelSpec::shared_bottom(3, 0, 4, &[6], &[], &[1.0, 0.25])),
        ("mmoe", ModelSpec::mmoe(3, 2, 4, 3, &[6, 5], &[3], &[1.0, 0.5])),
        ("mmoe, linear heads", ModelSpec::mmoe(3, 2, 4, 2, &[5], &[], &[0.5, 1.0]).with_pooling(Pooling::Max)),
        ("mmoe, all settings", {
            let mmoe = ModelSpec::mmoe(3, 2, 4, 2, &[6, 5], &[4], &[1.0, 1.0, 0.5]).with_norm(Norm::Layer);
            mmoe.with_activation(Activation::Silu).with_dropout(0.2)
        }),
        ("esmm", ModelSpec::esmm(3, 2, 4, &[6, 5], &[1.0, 0.5])),
        ("esmm, prelu, dropout", {
            ModelSpec::esmm(3, 0, 4, &[6], &[1.0, 2.0]).with_activation(Activation::Prelu).with_dropout(0.3)
        }),
        ("all", all.clone()),
        ("all, mean", all.clone().with_pooling(Pooling::Mean)),
        ("all, max", all.clone().with_pooling(Pooling::Max)),
        ("din", din(4, 4).with_activation(Activation::Gelu)),
        ("din, sigmoid, two pairs", with_unit(din(5, 3), &[(1, 0), (2, 0)], Activation::Sigmoid)),
        (
            "fm and cross over attention",
            with_unit(ModelSpec::builder(3, 2).with_embedding(4).with_fm().with_cross(1), &[(0, 2)], Activation::Silu),
        ),
        ("din on a cross", {
            let stacked = din(4, 4).with_cross_network(cross(None, true)).with_activation(Activation::Gelu);
            with_unit(stacked, &[(2, 0)], Activation::Silu)
        }),
        ("widths", ModelSpec::wide_deep(3, 2, 4, &[6, 5]).with_cross(1).with_slot_dims(vec![2, 4, 1])),
        ("widths, mean", ModelSpec::ctr_dnn(3, 0, 4, &[6]).with_slot_dims(vec![4, 1, 3]).with_pooling(Pooling::Mean)),
        ("widths, max", {
            let max = vec![Pooling::Max, Pooling::Sum, Pooling::Max];
            ModelSpec::dcn_v2(3, 2, 4, 1, &[6, 5]).with_slot_dims(vec![3, 2, 4]).with_slot_pooling(max)
        }),
        ("wide and deep, a slot without an embedding", {
            ModelSpec::wide_deep(3, 2, 4, &[6, 5]).with_slot_dims(vec![2, 0, 4]).with_activation(Activation::Gelu)
        }),
        ("fm, slots without embeddings", ModelSpec::fm(4, 2, 4).with_slot_dims(vec![0, 4, 4, 0])),
        ("deep fm, max, a slot without an embedding", {
            let sum = ModelSpec::deep_fm(3, 2, 4, &[6]).with_slot_dims(vec![4, 4, 0]);
            sum.with_pooling(Pooling::Max).with_activation(Activation::Gelu)
        }),
        ("mmoe, widths", { ModelSpec::mmoe(3, 2, 4, 3, &[6, 5], &[3], &[1.0, 0.5]).with_slot_dims(vec![1, 4, 3]) }),
        ("two towers, widths", towers().with_slot_dims(vec![2, 4, 3])),
        ("two towers", towers()),
        ("two towers, dot, no hidden layer of items", {
            let mut dot = towers().with_similarity(Similarity::Dot, 0.5).with_activation(Activation::Prelu);
            dot.two_towers.as_mut().expect("two towers").item.hidden = Some(Vec::new());
            dot
        }),
        (
            "two towers, all settings",
            towers()
                .with_norm(Norm::Layer)
                .with_activation(Activation::Silu)
                .with_dropout(0.2)
                .with_pooling(Pooling::Mean),
        ),
        ("in-batch softmax", towers().with_in_batch_softmax(1, false)),
        ("in-batch softmax, log-Q", towers().with_in_batch_softmax(1, true)),
        (
            "in-batch softmax, log-Q, dot, dropout",
            towers().with_in_batch_softmax(1, true).with_similarity(Similarity::Dot, 1.0).with_dropout(0.2),
        ),
        ("in-batch softmax, log-Q, max", towers().with_in_batch_softmax(1, true).with_pooling(Pooling::Max)),
        ("final mlp", final_mlp(&[6, 5], &[6, 5], 1, Some((&[4], &[], &[]))).with_activation(Activation::Gelu)),
        (
            "final mlp, gates of slots, heads",
            final_mlp(&[6, 4], &[5, 8], 4, Some((&[], &[1], &[0, 2]))).with_activation(Activation::Silu),
        ),
        ("final mlp, gates of slots, prelu, dropout, max", {
            let gates = final_mlp(&[6], &[5, 4], 2, Some((&[5], &[], &[0, 1])));
            gates.with_activation(Activation::Prelu).with_dropout(0.3).with_pooling(Pooling::Max)
        }),
        (
            "final mlp, no gates, layer norm",
            final_mlp(&[10], &[15], 5, None).with_norm(Norm::Layer).with_activation(Activation::Gelu),
        ),
        ("final mlp, widths", {
            let gates = final_mlp(&[6, 4], &[5, 8], 2, Some((&[4], &[1], &[])));
            gates.with_slot_dims(vec![2, 4, 3]).with_activation(Activation::Gelu)
        }),
        ("all, each in its way", all.with_slot_pooling(vec![Pooling::Max, Pooling::Sum, Pooling::Mean])),
    ]
}

/// A cross network of two layers.
pub fn cross(rank: Option<usize>, stacked: bool) -> Cross {
    let structure = if stacked { CrossStructure::Stacked } else { CrossStructure::Parallel };
    Cross { layers: 2, rank, structure }
}

/// FinalMLP over three slots and two dense features: hidden layers of both towers, heads, and the gates' hidden layers and slots.
pub fn final_mlp(
    first: &[usize],
    second: &[usize],
    heads: usize,
    gates: Option<(&[usize], &[usize], &[usize])>,
) -> ModelSpec {
    let gates = gates.map(|(hidden, first, second)| FeatureGates {
        hidden: hidden.into(),
        first: first.into(),
        second: second.into(),
    });
    let parts = FinalMlp { second_hidden: Some(second.into()), heads, gates, ..FinalMlp::new(first) };
    ModelSpec::final_mlp(3, 2, 4, parts)
}

/// Two towers over three slots and two dense features, with the slot 1 in the item tower.
pub fn towers() -> ModelSpec {
    let side =
        |slots: &[usize], dense: &[usize]| TowerInputs { slots: slots.into(), dense: dense.into(), hidden: None };
    ModelSpec::two_towers(3, 2, 4, side(&[0, 2], &[1]), side(&[1], &[0]), &[6, 5], 3)
        .with_activation(Activation::Gelu)
        .with_similarity(Similarity::Cosine, 0.5)
}

/// Whether the first number of each unique row is a count.
pub fn counts(spec: &ModelSpec) -> bool {
    spec.two_towers.as_ref().is_some_and(|two| two.counts_items())
}

/// The unique row of each row's item, with in-batch softmax.
pub fn items(spec: &ModelSpec, batch: &Owned) -> Vec<Option<u32>> {
    let Some(TwoTowersLoss::InBatchSoftmax { item, .. }) = spec.two_towers.as_ref().map(|two| two.loss) else {
        panic!("no in-batch softmax");
    };
    let values = |bag: usize| match &batch.offsets {
        None => &batch.inverse[bag..=bag],
        Some(offsets) => &batch.inverse[offsets[bag] as usize..offsets[bag + 1] as usize],
    };
    (0..batch.rows).map(|row| values(row * spec.slots + item).first().copied()).collect()
}

/// The loss of in-batch softmax, without dropout: in f64 and in plain loops over the vectors. The slow twin of both backends.
pub fn in_batch_loss(model: &mut dyn DenseModel, spec: &ModelSpec, batch: &Owned) -> f64 {
    let two = spec.two_towers.as_ref().expect("two towers");
    let items = items(spec, batch);
    let mut vectors = [Vec::new(), Vec::new()];
    for (vectors, side) in vectors.iter_mut().zip(TowerSide::BOTH) {
        model.embed(&batch.view(), side, vectors).expect("a batch that fits");
    }
    let dim = two.vector_dim;
    let dot = |i: usize, j: usize| -> f64 {
        let (user, item) = (&vectors[0][i * dim..][..dim], &vectors[1][j * dim..][..dim]);
        user.iter().zip(item).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() / f64::from(two.temperature)
    };
    let log_q = |item: u32| -> f64 {
        let occurrences = items.iter().filter(|other| **other == Some(item)).count() as f64;
        let before = f64::from(batch.unique_rows[item as usize * spec.row_dim()]);
        if counts(spec) { (before + occurrences).ln() } else { 0.0 }
    };
    let mut sum = 0.0;
    for (row, item) in items.iter().enumerate() {
        let weight = batch.labels[row] * batch.weights.as_ref().map_or(1.0, |weights| weights[row]);
        let Some(item) = *item else { continue };
        let logit = |(j, other): (usize, &Option<u32>)| match *other {
            Some(other) if other != item || j == row => Some(dot(row, j) - log_q(other)),
            _ => None,
        };
        let total: f64 = items.iter().enumerate().filter_map(logit).map(f64::exp).sum();
        sum += f64::from(weight) * (total.ln() - (dot(row, row) - log_q(item)));
    }
    sum / batch.rows as f64
}

/// A model with attention over slot 2, with the target slot 0, and one hidden layer of `units` units.
pub fn din(units: usize, dim: usize) -> ModelSpec {
    ModelSpec::din(3, 2, dim, &[AttentionPair { history: 2, target: 0 }], &[units], &[6, 5])
}

/// The model with attention over pairs of a history and a target, and two hidden layers in each unit.
pub fn with_unit(spec: ModelSpec, pairs: &[(usize, usize)], activation: Activation) -> ModelSpec {
    let pairs = pairs.iter().map(|&(history, target)| AttentionPair { history, target }).collect();
    spec.with_attention(Attention { pairs, unit: Tower { activation, ..Tower::new(&[5, 3]) } })
}

/// Fails, and names the first difference, unless each `a` is within `tolerance` of `b`, relative to the largest `b` (or 1).
pub fn assert_close(what: &str, a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len(), "{what}: lengths");
    let scale = b.iter().fold(1.0f32, |largest, x| largest.max(x.abs()));
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= tolerance * scale, "{what}: number {i} is {a}, expected {b}");
    }
}

/// The device that the tests of the torch backend compute on: the CPU, or what the environment variable `FOREBAY_TEST_DEVICE`
/// says, for instance `cuda:0`.
///
/// # Panics
/// If the device is asked for and not there.
#[cfg(feature = "torch")]
pub fn device() -> forebay_models::torch::Device {
    use forebay_models::torch::{Device, init_cuda};
    let Ok(text) = std::env::var("FOREBAY_TEST_DEVICE") else { return Device::Cpu };
    assert!(init_cuda(), "{text} needs libtorch_cuda.so of an installed torch on LD_LIBRARY_PATH");
    text.parse().expect("FOREBAY_TEST_DEVICE")
}
