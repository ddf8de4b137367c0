//! Learning rates that are reduced when the metric does not improve: from the step after the evaluation on, as a schedule would make them
//! fall there, also in a run that was killed and goes on.

use serde_json::Value;

use super::evaluations::{few, kill_and_resume, run};
use super::jobs::Job;

/// No evaluation but the first is an improvement.
const NEVER_BETTER: &str = "evaluation.min_delta=0.5";

const EVERY_EPOCH: &str = "evaluation.every={ epochs = 1 }";

/// A run of three epochs, or as many as `more` says, with this learning rate of all parameters.
fn trained(lr: &str, more: &[&str]) -> (Job, String, Value) {
    let optimizers = ["train.optimizer", "table.embedding_optimizer", "table.linear_optimizer"];
    let optimizers = optimizers.map(|of| format!("{of}={{ kind = 'adam', lr = {lr} }}"));
    let job = few(&[&optimizers.each_ref().map(String::as_str)[..], &["data.epochs=3"], more].concat());
    let (said, report) = run(&job, &[]);
    (job, said, report)
}

/// The steps before each reduction.
fn reduced_after(report: &Value) -> Vec<u64> {
    let points = report["evaluations"]["points"].as_array().unwrap();
    points.iter().filter(|point| point["reduced_lr"] == true).map(|point| point["steps"].as_u64().unwrap()).collect()
}

#[test]
fn rates_are_reduced_from_the_step_after_the_evaluation_on_and_not_below_the_least() {
    let reduced = [EVERY_EPOCH, NEVER_BETTER, "evaluation.reduce_lr_on_plateau={ factor = 0.1 }"];
    let least = [EVERY_EPOCH, NEVER_BETTER, "evaluation.reduce_lr_on_plateau={ factor = 0.1, min_lr = 0.002 }"];
    for more in [&[][..], &["train.staleness={ exactly = 3 }", "table.shards=3"]] {
        let (job, said, report) = trained("0.002", &[&reduced[..], more].concat());
        // There is no step after the third evaluation.
        let after = reduced_after(&report);
        assert_eq!(after, [report["progress"]["steps"].as_u64().unwrap() / 3 * 2], "{said}");
        assert_eq!(said.matches("; the learning rates are multiplied by 0.1").count(), 1, "{said}");
        assert!(said.contains("the learning rates were multiplied by 0.1 after evaluation 2 ("), "{said}");
        let falls = format!("{{ peak = 0.002, decay = {{ kind = 'steps', every = {} }} }}", after[0] + 1);
        let by_hand = trained(&falls, more).0;
        assert_eq!(job.model().difference(&by_hand.model()), None, "{said}");
        let constant = trained("0.002", more).0;
        assert!(job.model().difference(&constant.model()).is_some(), "the rates were not reduced: {said}");
        let (at_least, said, _) = trained("0.002", &[&least[..], more].concat());
        assert_eq!(at_least.model().difference(&constant.model()), None, "{said}");
    }
}

/// 150,000 rows are trained on before the last kill, and each evaluation from that after 80,000 rows on reduces the rates.
#[test]
fn a_run_that_was_killed_after_reductions_goes_on_with_the_reduced_rates() {
    let reduce = "evaluation.reduce_lr_on_plateau={ factor = 0.5, min_lr = 0.0001 }";
    for more in [&[][..], &["table.shards=2", "train.staleness={ exactly = 2 }"]] {
        let report = kill_and_resume(&[&[NEVER_BETTER, reduce], more].concat(), 3);
        assert!(reduced_after(&report).len() > 2, "{}", report["evaluations"]);
    }
}

#[test]
fn a_run_from_a_model_whose_rates_were_reduced_begins_with_its_own_rates() {
    let reduced = [EVERY_EPOCH, NEVER_BETTER, "evaluation.reduce_lr_on_plateau={}", "output.state=true"];
    let (before, said, report) = trained("0.002", &reduced);
    assert_eq!(reduced_after(&report).len(), 1, "{said}");
    let from = format!("train.from={}", before.folder.path().join("model").display());
    let epochs = |epochs: &str, more: &[&str]| trained("0.002", &[&[from.as_str(), epochs], more].concat());
    let (constant, ..) = epochs("data.epochs=2", &["output.state=true"]);
    let (job, said, _) = epochs("data.epochs=2", &reduced);
    assert_eq!(job.model().difference(&constant.model()), None, "{said}");
    // Steps are counted from the first of the model on, and evaluations anew.
    let (job, said, report) = epochs("data.epochs=3", &reduced);
    assert_eq!(reduced_after(&report), [report["progress"]["steps"].as_u64().unwrap() / 6 * 5], "{said}");
    let (constant, ..) = epochs("data.epochs=3", &["output.state=true"]);
    assert!(job.model().difference(&constant.model()).is_some(), "{said}");
}
