//! What `forebay eval` measures is what scikit-learn measures of the scores that `forebay predict` writes.

use crate::common;
use crate::rows::{model, python_says, rows};

const MEASURE: &str = r#"
import json, sys
import numpy as np, pyarrow.parquet as pq
from sklearn.metrics import log_loss, roc_auc_score
scores = pq.read_table(sys.argv[1])
label, score = scores["label"].to_numpy(), scores["score"].to_numpy().astype(float)
users = scores["user"].to_pylist()
groups = [np.array([user == other for other in users]) for user in set(users) - {None}]
mixed = [rows for rows in groups if 0 < label[rows].sum() < rows.sum()]
rate = label.mean()
loss = log_loss(label, score)
print(json.dumps({
    "auc": roc_auc_score(label, score),
    "logloss": loss,
    "normalized_entropy": loss / log_loss(label, np.full(len(label), rate)),
    "copc": rate / score.mean(),
    "gauc": np.average([roc_auc_score(label[rows], score[rows]) for rows in mixed], weights=[rows.sum() for rows in mixed]),
}))
"#;

#[test]
fn the_metrics_are_those_of_scikit_learn() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, data) = (model(dir.path(), "wide_deep", &[]), rows(dir.path(), 4000, 3000));
    let out = dir.path().join("scores");
    let [folder, data, out] = [&folder, &data, &out].map(|path| path.to_str().unwrap());
    let ran = common::run(&["predict", "--model", folder, "--data", data, "--out", out, "--keep", "label,user"]);
    common::exits(0, ran, &[]);
    let script = dir.path().join("measure.py");
    std::fs::write(&script, MEASURE).unwrap();
    let (code, said) = common::run(&["eval", "--model", folder, "--data", data, "--json", "--group", "user"]);
    assert_eq!(code, Some(0), "{said}");
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    let expected = python_says(&script, &[out.as_ref()]);
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    for metric in ["auc", "logloss", "normalized_entropy", "copc", "gauc"] {
        let found = if metric == "gauc" { &found["gauc"]["auc"] } else { &found[metric] };
        let (found, expected) = (found.as_f64().unwrap(), expected[metric].as_f64().unwrap());
        assert!((found - expected).abs() < 1e-6, "{metric}: {found}, scikit-learn has {expected}");
    }
}
