//! A table with five optimizers beside each other, in rows of an odd length.

use forebay_ps::{Init, Optimizer, PartConfig, Storage, TableConfig};

pub(crate) fn config(storage: Storage) -> TableConfig {
    let part = PartConfig::new;
    let parts = vec![
        part("ftrl", 1, Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.01, l2: 0.1 }, Init::Zeros),
        part(
            "adagrad",
            5,
            Optimizer::Adagrad { lr: 0.1.into(), initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 },
            Init::Uniform { scale: 0.1 },
        ),
        part(
            "adam",
            3,
            Optimizer::Adam { lr: 0.1.into(), beta1: 0.5, beta2: 0.75, eps: 1e-8, l2: 0.0 },
            Init::Normal { std: 0.1 },
        ),
        part("sgd", 2, Optimizer::Sgd { lr: 0.1.into(), l2: 0.0 }, Init::Uniform { scale: 1.0 }),
        part("momentum", 2, Optimizer::Momentum { lr: 0.1.into(), momentum: 0.5, l2: 0.0 }, Init::Normal { std: 1.0 }),
    ];
    TableConfig { storage, ..TableConfig::new("t", 5, parts) }
}

pub(crate) const DIM: usize = 13;
pub(crate) const STATE: usize = 15;
