//! The optimizers, with L2 and weight decay and without, against PyTorch's numbers: `tests/golden/ps_optimizers.json`, made by the script
//! beside it.

use std::collections::BTreeMap;

use forebay_ps::{Init, Optimizer, PartConfig, Table, TableConfig};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    rows: usize,
    dim: usize,
    steps: u64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    optimizer: Optimizer,
    /// Weights after some steps, `[rows x dim]`.
    weights: BTreeMap<u64, Vec<f64>>,
}

fn grad(t: u64, i: usize) -> f32 {
    let i = i as u64;
    (((t * 37 + i * 101 + t * i) % 129) as f32 - 64.0) / 64.0
}

fn start(i: usize) -> f32 {
    ((i * 89 % 128) as f32 - 64.0) / 256.0
}

/// A table of one part without rows.
fn table(dim: usize, optimizer: Optimizer) -> Table {
    let part = PartConfig::new("p", dim, optimizer, Init::Zeros);
    Table::new(&TableConfig::new("t", 0, vec![part])).expect("the configuration is right")
}

#[test]
fn a_hundred_steps_are_pytorchs() {
    let golden: Golden =
        serde_json::from_str(include_str!("../../tests/golden/ps_optimizers.json")).expect("the script wrote it");
    assert_eq!(golden.cases.len(), 14);
    let size = golden.rows * golden.dim;
    let keys: Vec<u64> = (0..golden.rows as u64).collect();
    for case in golden.cases {
        let mut table = table(golden.dim, case.optimizer);
        if !matches!(case.optimizer, Optimizer::Ftrl { .. }) {
            let weights: Vec<f32> = (0..size).map(start).collect();
            table.import(&keys, &weights, None).expect("lengths match");
        }
        let mut rows = Vec::new();
        let mut compared = 0;
        for t in 1..=golden.steps {
            let grads: Vec<f32> = (0..size).map(|i| grad(t, i)).collect();
            table.pull(&keys, &mut rows).expect("there is memory");
            table.push(&keys, &grads, t).expect("gradients are finite");
            let Some(wanted) = case.weights.get(&t) else { continue };
            table.peek(&keys, &mut rows);
            for (found, wanted) in rows.iter().zip(wanted) {
                let off = (f64::from(*found) - wanted).abs();
                assert!(off < 1e-5, "{:?} after {t} steps: {found}, PyTorch has {wanted}", case.optimizer);
            }
            compared += 1;
        }
        assert_eq!(compared, 4);
    }
}

/// Keys 0 to 3 have a row each; a batch pushes gradients of keys 1 and 3.
#[test]
fn l2_and_weight_decay_hold_for_pushed_rows_alone_whatever_their_gradient() {
    let lr = |lr: f64| lr.into();
    for (optimizer, expected) in [
        (Optimizer::Sgd { lr: lr(0.5), l2: 0.25 }, [0.875, 0.75]),
        (Optimizer::Momentum { lr: lr(0.5), momentum: 0.0, l2: 0.25 }, [0.875, 0.75]),
        // The square of 0.25, and of 0.5: both make a step of lr.
        (Optimizer::Adagrad { lr: lr(0.125), initial_accumulator: 0.0, eps: 1e-10, l2: 0.25 }, [0.875, 0.875]),
        (Optimizer::Adamw { lr: lr(0.5), beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.25 }, [0.875, 0.375]),
    ] {
        let mut table = table(1, optimizer);
        table.import(&[0, 1, 2, 3], &[1.0; 4], None).expect("lengths match");
        // The gradient of key 1 is 0: it is in the batch, and so it decays.
        table.push(&[1, 3], &[0.0, 0.25], 1).expect("gradients are finite");
        let mut rows = Vec::new();
        table.peek(&[0, 1, 2, 3], &mut rows);
        assert_eq!((rows[0], rows[2]), (1.0, 1.0), "{optimizer:?}");
        for (found, expected) in [rows[1], rows[3]].into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{optimizer:?}: {rows:?}");
        }
    }
}
