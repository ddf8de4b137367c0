//! Weights, several paths and down-sampled negatives, from files of CSV to a trained and evaluated model.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::path::Path;

use forebay_base::mix64;
use forebay_pipelines::job::Paths;
use forebay_pipelines::{Job, Trained, Training};

/// Rows whose label is 1 with the probability `10% * (1 + word)`; `line` says how a row (number, label, word) is written.
fn rows(from: u64, to: u64, mut line: impl FnMut(&mut String, u64, bool, u64)) -> String {
    let mut text = "label,word,w\n".to_owned();
    for row in from..to {
        let word = mix64(row) % 3;
        line(&mut text, row, mix64(row + (1 << 40)) % 100 < 10 * (1 + word), word);
    }
    text
}

fn trained(data: &Path, settings: &[&str]) -> Trained {
    let text = format!(
        r#"
        data.train = ["{data}/a.csv", "{data}/b.csv"]
        model.kind = "lr"
        train.batch_rows = 128
        [columns]
        label = "label"
        dense = []
        slots = ["word"]
        "#,
        data = data.display()
    );
    let job = Job::with_settings(&text, settings).unwrap();
    Training::new(job).unwrap().run().unwrap()
}

#[test]
fn predictions_of_a_model_of_few_negatives_are_as_high_as_with_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    let plain = |text: &mut String, _, label: bool, word| writeln!(text, "{},{word},1", u8::from(label)).unwrap();
    std::fs::write(dir.path().join("a.csv"), rows(0, 10_000, plain)).unwrap();
    std::fs::write(dir.path().join("b.csv"), rows(10_000, 20_000, plain)).unwrap();
    let paths = Paths(["a.csv", "b.csv"].map(|name| dir.path().join(name).display().to_string()).to_vec());
    let settings = ["data.negatives=0.2", "data.epochs=3", "data.shuffle_rows=4096"];
    let some = trained(dir.path(), &settings);
    let rejected = &some.report.ledger.rejected["negative left out by data.negatives"];
    let (evaluation, _) = some.model.evaluate(&paths).unwrap();
    let negatives = (3 * (20_000 - evaluation.positives)) as f64;
    assert_eq!(evaluation.rows, 20_000, "all rows are evaluated on");
    assert!((*rejected as f64 / negatives - 0.8).abs() < 0.02, "{rejected} of {negatives}");
    let copc = evaluation.probability.unwrap().copc.unwrap();
    assert!((copc - 1.0).abs() < 0.08, "{copc}");
    // Without the correction, the odds would be five times as high.
    let mut model = some.model;
    model.job.data.negatives = 1.0;
    let copc = model.evaluate(&paths).unwrap().0.probability.unwrap().copc.unwrap();
    assert!(copc < 0.6, "{copc}");
}

#[test]
fn a_row_of_weight_2_is_evaluated_as_two_rows_and_one_of_weight_0_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let weighted = |text: &mut String, row, label: bool, word| {
        writeln!(text, "{},{word},{}", u8::from(label), row % 3).unwrap();
    };
    let counted = |text: &mut String, row, label: bool, word| {
        (0..row % 3).for_each(|_| writeln!(text, "{},{word},1", u8::from(label)).unwrap());
    };
    std::fs::write(path("a.csv"), rows(0, 2000, weighted)).unwrap();
    std::fs::write(path("b.csv"), rows(2000, 3000, weighted)).unwrap();
    std::fs::write(path("counted.csv"), rows(0, 2000, counted)).unwrap();
    let model = trained(dir.path(), &["columns.weight=w"]).model;
    let evaluation = |name: &str| model.evaluate(path(name).to_str().unwrap()).unwrap().0;
    let (weighted, counted) = (evaluation("a.csv"), evaluation("counted.csv"));
    assert_eq!((weighted.rows, counted.rows), (2000, (0..2000).map(|row| row % 3).sum::<u64>()));
    let [as_weights, as_counts] = [&weighted, &counted].map(|of| of.probability.clone().unwrap());
    for (a, b) in [
        (weighted.auc.unwrap(), counted.auc.unwrap()),
        (as_weights.logloss, as_counts.logloss),
        (weighted.positive_rate, counted.positive_rate),
        (as_weights.copc.unwrap(), as_counts.copc.unwrap()),
    ] {
        assert!((a - b).abs() < 1e-9, "{a} {b}");
    }
    // The weights change what is learned.
    let plain = trained(dir.path(), &[]).model;
    assert_ne!(plain.evaluate(path("counted.csv").to_str().unwrap()).unwrap().0.logloss(), counted.logloss());
}
