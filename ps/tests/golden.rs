//! The optimizers against PyTorch's numbers: `tests/golden/ps_optimizers.json`, made by the script beside it.

use std::collections::BTreeMap;

use forebay_ps::{Init, Lifetime, Optimizer, PartConfig, Storage, Table, TableConfig};
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

#[test]
fn a_hundred_steps_are_pytorchs() {
    let golden: Golden =
        serde_json::from_str(include_str!("../../tests/golden/ps_optimizers.json")).expect("the script wrote it");
    assert_eq!(golden.cases.len(), 8);
    let size = golden.rows * golden.dim;
    let keys: Vec<u64> = (0..golden.rows as u64).collect();
    for case in golden.cases {
        let part = PartConfig { name: "p".into(), dim: golden.dim, optimizer: case.optimizer, init: Init::Zeros };
        let config = TableConfig {
            name: "t".into(),
            seed: 0,
            parts: vec![part],
            storage: Storage::F32,
            lifetime: Lifetime::default(),
            groups: Vec::new(),
        };
        let mut table = Table::new(&config).expect("the configuration is right");
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
