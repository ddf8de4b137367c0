//! A run is killed and resumed: its model is that of an undisturbed run, to the bit.

use rustix::process::Signal;

use super::common;
use super::damage::flip;
use super::jobs::{ENDLESS, Job, ROWS};

/// The model of an undisturbed run of the job, without checkpoints.
pub(crate) fn undisturbed(job: &Job) -> super::bits::Bits {
    let job = job.undisturbed();
    job.run(&[]).with(0);
    job.model()
}

fn newest_manifest(job: &Job) -> String {
    std::fs::read_to_string(job.newest_manifest()).unwrap()
}

/// As [`resumed`], of a run that trains on all rows.
fn kill_and_resume(format: &str, more: &[&str], kills: u64) {
    let (said, epochs) = resumed(format, more, kills);
    assert!(said.contains(&format!("trained on {} rows", forebay::actors::commas(epochs * ROWS))), "{said}");
}

/// Kills the run `kills` times, each time after some more checkpoints, resumes it, and compares the model in the end. Returns what the
/// last process said, and the epochs of the job.
fn resumed(format: &str, more: &[&str], kills: u64) -> (String, u64) {
    let job = Job::new(format, more);
    let mut flags: &[&str] = &[];
    for kill in 0..kills {
        let next = job.newest() + 1 + kill % 2;
        job.kill_after(next, flags);
        flags = &["--resume"];
    }
    let ended = job.run(flags).with(0).saying(&["continues from checkpoint"]);
    assert_eq!(job.model().difference(&undisturbed(&job)), None, "{}", ended.said);
    (ended.said, job.epochs())
}

#[test]
fn parquet_with_adam() {
    kill_and_resume("parquet", &[], 3);
}

/// The rate continues from the step of the checkpoint.
#[test]
fn learning_rates_that_change_and_gradients_that_are_clipped() {
    let falls = "{peak=0.002,warmup_steps=40,decay={kind=\"cosine\",steps=300,end=0.1}}";
    let sparse = format!("table.embedding_optimizer={{kind=\"adam\",lr={falls}}}");
    let dense = format!("train.optimizer={{kind=\"adamw\",lr={falls}}}");
    kill_and_resume("parquet", &[&sparse, &dense, "train.clip_norm=0.05"], 2);
}

/// What is dropped depends on the batch, so it goes on where it was.
#[test]
fn dropout_and_slopes_that_are_learnt() {
    kill_and_resume(
        "parquet",
        &["model.kind=wide_deep", "model.dropout=0.3", "model.activation=prelu", "model.norm=layer"],
        2,
    );
}

/// The counts of items are in the rows of the table, and go on where they were.
#[test]
fn two_towers_with_the_items_of_the_batch() {
    let towers = [
        "model.kind=two_towers",
        "model.user={slots=['C1..C20'],dense=['I1..I13']}",
        "model.item={slots=['C21..C26'],hidden=[8]}",
        "model.loss=in_batch_softmax",
        "model.item_id=C21",
        "model.dropout=0.1",
    ];
    kill_and_resume("parquet", &towers, 2);
}

#[test]
fn several_labels() {
    let label = "columns.label=['label', { column = 'I2', positive = '>= 3', name = 'many' }]";
    kill_and_resume("parquet", &["model.kind=mmoe", "model.dropout=0.1", "model.task_hidden=[8]", label], 2);
}

/// Tables of three widths, one with keys that wait and rows that go, in checkpoints of changes and after a change of the shards.
#[test]
fn tables_of_some_slots() {
    let tables = [
        "columns.slots=['C1..C9', { column = 'C10..C20', table = 'small' }, { column = 'C21..C26', table = 'wide' }]",
        "tables={ small = { embedding_dim = 2, embedding_optimizer = { kind = 'adagrad', l2 = 0.01 }, admission = { count = 2 }, eviction = \
         { unseen_rows = 20000, max_rows = 65536 } }, wide = { embedding_dim = 9, embedding_optimizer = { kind = 'adamw', weight_decay = 0.1 }, storage = 'f16' } }",
    ];
    kill_and_resume("parquet", &[&tables[..], &["table.shards=2", "output.state=true"]].concat(), 2);
    let job = Job::new("parquet", &tables);
    job.kill_after(4, &[]);
    let manifest = newest_manifest(&job);
    assert!(manifest.contains("\"version\": 5") && manifest.contains("\"groups\""), "{manifest}");
    job.start_with(&["--resume"], &["table.shards=3"]).end().with(0);
    assert_eq!(job.model().difference(&undisturbed(&job)), None);
}

#[test]
fn slots_without_embeddings() {
    let slots = "columns.slots=['C1..C20', { column = 'C21..C26', table = 'linear' }]";
    kill_and_resume("parquet", &[slots, "tables={ linear = { embedding_dim = 0 } }", "output.state=true"], 1);
}

/// Rows whose weight is missing are bad ones.
#[test]
fn weights_of_values() {
    let slots = "columns.slots=['C1..C9', { column = 'C10..C11', kind = 'hex', weights = 'I2..I3', pooling = 'mean' }, \
                 { column = 'C12', kind = 'hex', weights = 'I2' }]";
    let (said, _) = resumed("parquet", &[slots, "data.on_bad_row=\"skip\""], 2);
    assert!(said.contains("rejected (weight of a value is not a number from 0 to 1e30)"), "{said}");
}

#[test]
fn attention() {
    let attention = "model.attention=[{history=\"C2\",target=\"C1\"},{history=\"C3\",target=\"C1\"}]";
    kill_and_resume("parquet", &["model.kind=din", attention], 2);
}

#[test]
fn text_and_several_shards() {
    kill_and_resume("criteo", &["table.shards=3"], 2);
}

#[test]
fn rows_in_int8_of_several_shards() {
    kill_and_resume("parquet", &["table.storage=int8", "table.shards=2", "output.state=true"], 2);
}

#[test]
fn unshuffled_rows_in_f16_with_full_checkpoints() {
    kill_and_resume("parquet", &["data.shuffle_rows=0", "table.storage=f16", "checkpoint.full_every=1"], 1);
}

/// Keys are counted before they get rows, rows are removed by age, by score and by the cap, and counts and removals are in the
/// checkpoints: nearly all of these are of changes.
#[test]
fn keys_that_wait_and_rows_that_go() {
    let rules = ["table.admission.count=2", "table.eviction.unseen_rows=20000", "table.eviction.max_rows=65536"];
    let scored = ["table.eviction.half_life_rows=30000", "table.eviction.min_score=0.3"];
    kill_and_resume("parquet", &[&rules[..], &["table.shards=3"]].concat(), 3);
    kill_and_resume("parquet", &[&rules[..], &scored].concat(), 2);
    let chance = ["table.admission.probability=0.3", "table.eviction.max_rows=65536", "table.storage=f16"];
    kill_and_resume("criteo", &chance, 2);
    kill_and_resume("parquet", &[&FILTERED[..], &["table.shards=2"]].concat(), 3);
}

/// Keys are counted in a filter that is too small for them, so that blocks are cleared.
const FILTERED: [&str; 3] = [
    "table.admission.count=2",
    "table.admission.bloom={ keys = 1000, error = 0.3 }",
    "table.eviction.unseen_rows=20000",
];

#[test]
fn a_run_whose_rows_go_is_resumed_with_another_number_of_shards() {
    let exact = ["table.admission.count=2", "table.eviction.unseen_rows=20000", "table.eviction.max_rows=65536"];
    for rules in [exact, FILTERED] {
        let job = Job::new("parquet", &rules);
        job.kill_after(4, &[]);
        let manifest = newest_manifest(&job);
        assert!(manifest.contains("\"version\": 2") && manifest.contains("-absent-0000.arrow"), "{manifest}");
        job.start_with(&["--resume"], &["table.shards=4"]).end().with(0);
        assert_eq!(job.model().difference(&undisturbed(&job)), None);
    }
}

#[test]
fn stale_look_ups_train_on_every_row_once() {
    let job = Job::new("parquet", &["train.staleness=4"]);
    job.kill_after(2, &[]);
    let ended = job.run(&["--resume"]).with(0);
    ended.saying(&[&format!("trained on {} rows", forebay::actors::commas(job.epochs() * ROWS))]);
}

#[test]
fn exact_staleness() {
    kill_and_resume("parquet", &["train.staleness={ exactly = 3 }"], 3);
    kill_and_resume("criteo", &["train.staleness={ exactly = 7 }", "checkpoint.rows=700"], 2);
    let rules = ["table.admission.count=2", "table.eviction.unseen_rows=20000", "table.shards=3"];
    kill_and_resume("parquet", &[&rules[..], &["train.staleness={ exactly = 1 }"]].concat(), 1);
}

#[test]
fn exact_staleness_goes_on_with_another_number_of_shards_and_after_a_drain() {
    let exactly = ["train.staleness={ exactly = 4 }"];
    let job = Job::new("parquet", &exactly);
    job.kill_after(2, &[]);
    let manifest = newest_manifest(&job);
    assert!(manifest.contains("\"version\": 3") && manifest.contains("-kept-0000.safetensors"), "{manifest}");
    job.drain_after(job.newest() + 1, &["--resume"], &["table.shards=4"]);
    let newest = job.newest();
    let kept = |number| move |name: &String| name.starts_with(&format!("{number:06}-")) && name.contains("-kept-0000");
    let file = job.files().into_iter().find(kept(newest)).unwrap();
    assert_eq!(job.checkpoint("verify", &[]).0, Some(0));
    flip(&job.checkpoints().join(&file));
    common::exits(2, job.checkpoint("verify", &[]), &[&file]);
    let ended = job.start_with(&["--resume"], &["table.shards=2"]).end().with(0);
    ended.saying(&[&format!("continues from checkpoint {}", newest - 1)]);
    assert_eq!(job.model().difference(&undisturbed(&job)), None);
}

#[test]
fn a_drained_run_leaves_a_checkpoint_and_no_model() {
    let job = Job::new("parquet", &["checkpoint.rows=1000000000"]);
    // A run that is asked to shut down just after it has printed its plan may not have begun.
    let mut runs = (0..20).map(|_| {
        let running = job.start_with(&[], &[ENDLESS]);
        running.until_said("push: sink");
        running.signal(Signal::TERM);
        running.end().with(5)
    });
    let ended = runs.find(|_| job.newest() > 0).expect("one of 20 runs begins and makes a checkpoint");
    assert!(ended.said.contains("checkpoint 1 in"), "{}", ended.said);
    assert!(!job.folder.path().join("model").exists(), "{}", ended.said);
    job.go_beyond(&job.checkpoints());
    job.run(&["--resume"]).with(0);
    assert_eq!(job.model().difference(&undisturbed(&job)), None);
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let job = Job::new("parquet", &["checkpoint.full_every=1"]);
    job.kill_after(2, &[]);
    let newest = job.newest();
    let file = job.files().into_iter().find(|name| name.starts_with(&format!("{newest:06}-"))).unwrap();
    assert_eq!(job.checkpoint("verify", &[]).0, Some(0));
    flip(&job.checkpoints().join(&file));
    common::exits(2, job.checkpoint("verify", &[]), &[&file, ", whole"]);
    common::exits(0, job.checkpoint("list", &[]), &[&format!("checkpoint {newest}: ")]);
    let (not_used, older) =
        (format!("checkpoint {newest} is not used"), format!("continues from checkpoint {}", newest - 1));
    job.run(&["--resume"]).with(0).saying(&[&not_used, &file, &older]);
    assert_eq!(job.model().difference(&undisturbed(&job)), None);
}
