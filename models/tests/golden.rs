//! Both backends against PyTorch: 100 steps of each model with each dense optimizer, to 1e-5; with libtorch to 5e-5. Adam magnifies the
//! different rounding of libtorch on different processors: a case is 1.8e-5 off with AVX-512 of an AMD EPYC, and 1.5e-5 to the other side
//! with AVX2.
//!
//! `tests/golden/models.py` wrote the numbers, over the same inputs. The looked-up rows are under plain SGD, done here.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::mem::discriminant;

use forebay_models::{
    Activation, Attention, AttentionPair, DenseModel, DenseOptimizer, ModelError, ModelSpec, NativeModel, Norm,
    Pooling, Similarity, StepOutput, Tower,
};
use serde::Deserialize;
use support::{Owned, assert_close, number, towers, unit};

const STEPS: u64 = 100;
const ROWS: usize = 16;
const SLOTS: usize = 3;
const DENSE: usize = 2;
const DIM: usize = 4;
const KEYS: usize = 20;
const HIDDEN: [usize; 2] = [6, 5];
const UNIT: [usize; 2] = [5, 3];
const SEED: u64 = 7;
const ROW_LR: f32 = 0.5;

#[derive(Deserialize)]
struct File {
    steps: Vec<u64>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    model: String,
    optimizer: DenseOptimizer,
    bags: String,
    pooling: Pooling,
    #[serde(default)]
    activation: Activation,
    #[serde(default)]
    norm: Norm,
    #[serde(default)]
    dropout: f64,
    /// The activation of attention.
    unit: Option<Activation>,
    losses: Vec<f32>,
    parameters: BTreeMap<String, Vec<f32>>,
    rows: Vec<f32>,
}

impl Case {
    fn spec(&self) -> ModelSpec {
        let spec = match self.model.as_str() {
            "lr" => ModelSpec::lr(SLOTS, DENSE),
            "fm" => ModelSpec::fm(SLOTS, DENSE, DIM),
            "wide_deep" => ModelSpec::wide_deep(SLOTS, DENSE, DIM, &HIDDEN),
            "ctr_dnn" => ModelSpec::ctr_dnn(SLOTS, DENSE, DIM, &HIDDEN),
            "dcn_v2" => ModelSpec::dcn_v2(SLOTS, DENSE, DIM, 2, &HIDDEN),
            "dcn_v2, rank 3" => {
                ModelSpec::ctr_dnn(SLOTS, DENSE, DIM, &HIDDEN).with_cross_network(support::cross(Some(3), false))
            }
            "dcn_v2, stacked" => {
                ModelSpec::ctr_dnn(SLOTS, DENSE, DIM, &HIDDEN).with_cross_network(support::cross(None, true))
            }
            "dcn_v2, stacked, rank 3" => {
                ModelSpec::wide_deep(SLOTS, DENSE, DIM, &HIDDEN).with_cross_network(support::cross(Some(3), true))
            }
            "all" => ModelSpec::wide_deep(SLOTS, DENSE, DIM, &HIDDEN).with_fm().with_cross(2),
            "shared_bottom" => ModelSpec::shared_bottom(SLOTS, DENSE, DIM, &HIDDEN, &[3], &[1.0, 0.5, 2.0]),
            "mmoe" => ModelSpec::mmoe(SLOTS, DENSE, DIM, 3, &HIDDEN, &[3], &[1.0, 0.5]),
            "esmm" => ModelSpec::esmm(SLOTS, DENSE, DIM, &HIDDEN, &[1.0, 0.5]),
            "din" => ModelSpec::ctr_dnn(SLOTS, DENSE, DIM, &HIDDEN),
            "two_towers" => towers(),
            "two_towers, dot" => towers().with_similarity(Similarity::Dot, 0.5),
            "in_batch_softmax" => towers().with_in_batch_softmax(1, false),
            "in_batch_softmax, log_q" => towers().with_in_batch_softmax(1, true),
            "final_mlp" => support::final_mlp(&HIDDEN, &HIDDEN, 1, Some((&[4], &[], &[]))),
            "final_mlp, slots, heads" => support::final_mlp(&HIDDEN, &[4, 10], 5, Some((&[], &[], &[0, 2]))),
            "final_mlp, no gates" => support::final_mlp(&[4], &[6, 8], 2, None),
            "fm over din" => ModelSpec::builder(SLOTS, DENSE).with_embedding(DIM).with_fm().with_cross(2),
            other => panic!("model {other}"),
        };
        let spec = match self.unit {
            None => spec,
            Some(activation) => {
                let pairs = [2, 1].map(|history| AttentionPair { history, target: 0 }).to_vec();
                spec.with_attention(Attention { pairs, unit: Tower { activation, ..Tower::new(&UNIT) } })
            }
        };
        spec.with_pooling(self.pooling).with_activation(self.activation).with_norm(self.norm).with_dropout(self.dropout)
    }

    /// The batch of a step with its unique rows from `table`, and their keys.
    fn batch(&self, step: u64, table: &[f32], (row_dim, labels): (usize, usize)) -> (Owned, Vec<usize>) {
        let mut keys = Vec::new();
        let mut offsets = vec![0u32];
        for bag in 0..ROWS * SLOTS {
            let count = if self.bags == "single" { 1 } else { number(3, step, bag) % 4 };
            keys.extend((0..count as usize).map(|i| (number(4, step, 4 * bag + i) % KEYS as u64) as usize));
            offsets.push(keys.len() as u32);
        }
        let mut unique = keys.clone();
        unique.sort_unstable();
        unique.dedup();
        let place = |key: &usize| unique.binary_search(key).expect("each key is among the unique ones") as u32;
        let batch = Owned {
            id: step,
            rows: ROWS,
            weights: None,
            labels: (0..ROWS * labels).map(|i| if number(1, step, i).is_multiple_of(3) { 1.0 } else { 0.0 }).collect(),
            dense: (0..ROWS * DENSE).map(|i| unit(number(2, step, i))).collect(),
            unique_rows: unique.iter().flat_map(|key| table[key * row_dim..][..row_dim].to_vec()).collect(),
            inverse: keys.iter().map(place).collect(),
            offsets: (self.bags == "bags").then_some(offsets),
            value_weights: None,
        };
        (batch, unique)
    }
}

/// Trains every case on the models of `make`, and compares within `tolerance`.
fn check(tolerance: f32, make: impl Fn(ModelSpec, DenseOptimizer, u64) -> Result<Box<dyn DenseModel>, ModelError>) {
    let file: File = serde_json::from_str(include_str!("../../tests/golden/models.json")).unwrap();
    for kind in DenseOptimizer::one_of_each(0.1) {
        let cases = file.cases.iter().filter(|case| discriminant(&case.optimizer) == discriminant(&kind));
        assert!(cases.count() >= 5, "a case for each of the five models: {kind:?}");
    }
    for case in &file.cases {
        let name = format!(
            "{} {:?} {} {:?} {:?} {:?} {} {:?}",
            case.model, case.optimizer, case.bags, case.pooling, case.activation, case.norm, case.dropout, case.unit
        );
        let spec = case.spec();
        let (row_dim, labels) = (spec.row_dim(), spec.labels());
        let mut model = make(spec, case.optimizer, SEED).unwrap();
        let mut table: Vec<f32> = (0..KEYS * row_dim).map(|i| 0.25 * unit(number(5, 0, i))).collect();
        let (mut out, mut losses) = (StepOutput::default(), Vec::new());
        for step in 1..=STEPS {
            let (batch, keys) = case.batch(step, &table, (row_dim, labels));
            model.train(&batch.view(), &mut out).unwrap();
            for (key, grads) in keys.iter().zip(out.row_grads.chunks_exact(row_dim)) {
                for (weight, grad) in table[key * row_dim..].iter_mut().zip(grads) {
                    *weight -= ROW_LR * grad;
                }
            }
            if file.steps.contains(&step) {
                losses.push(out.loss as f32);
            }
        }
        assert_close(&format!("{name}: losses"), &losses, &case.losses, tolerance);
        let parameters = model.parameters();
        assert_eq!(parameters.len(), case.parameters.len(), "{name}");
        for tensor in parameters {
            assert_close(&format!("{name}: {}", tensor.name), &tensor.data, &case.parameters[&tensor.name], tolerance);
        }
        assert_close(&format!("{name}: rows"), &table, &case.rows, tolerance);
    }
}

#[test]
fn native_trains_as_pytorch_does() {
    check(1e-5, |spec, optimizer, seed| Ok(Box::new(NativeModel::new(spec, optimizer, seed, 1)?)));
}

#[cfg(feature = "torch")]
#[test]
fn torch_trains_as_pytorch_does() {
    use forebay_models::torch::TorchModel;
    check(5e-5, |spec, optimizer, seed| Ok(Box::new(TorchModel::new(spec, optimizer, seed, 1, support::device())?)));
}
