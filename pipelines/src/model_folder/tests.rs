//! What the tables of loaded models hold: the state of optimizers, or weights alone.

use forebay_job::Job;
use forebay_ps::TableClient;

use super::*;

const ROWS: u64 = 50_000;

/// A model whose rows have 17 weights and 34 floats of state.
fn trained() -> Model {
    let text = "model = { kind = 'deep_fm', embedding_dim = 16, hidden = [2] }\n\
                table.embedding_optimizer = { kind = 'adam', lr = 0.1 }\n\
                table.linear_optimizer = { kind = 'ftrl' }\n\
                columns = { label = 'y', dense = ['a'], slots = [{ column = 's' }] }";
    let (job, context) = (Job::from_toml(text, &[]).unwrap(), Context::default());
    let of_job = JobModel::of(&job, &context.registry).unwrap();
    let dense = JobModel::on_cpu(&job, &context.registry).unwrap().parameters();
    let host = Host::start("ps").unwrap();
    let table = start_table(&host, of_job.table_config(&job), 1).unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    block_on(table.pull(&keys, &mut Vec::new())).unwrap();
    block_on(table.push(&keys, &vec![0.5; keys.len() * table.row_dim()], 1)).unwrap();
    let mut model = Model::from_parts(job, host, table, dense).unwrap();
    model.optimizer = Some(vec![NamedTensor { name: "optimizer.x".into(), shape: vec![1], data: vec![1.0] }]);
    model
}

fn bytes_per_row(table: &TableClient) -> f64 {
    block_on(table.stats()).unwrap().bytes_per_key()
}

fn push(model: &Model) -> Result<(), Fault> {
    block_on(model.table.push(&[1], &vec![1.0; model.table.row_dim()], 2))
}

#[test]
fn a_model_that_is_loaded_for_its_weights_has_no_state_in_memory_and_is_saved_like_one_without_state() {
    let dir = tempfile::tempdir().unwrap();
    let [with_state, without, again] = ["state", "without", "again"].map(|name| dir.path().join(name));
    let mut model = trained();
    model.save(with_state.as_path()).unwrap();
    let whole = Model::load(with_state.as_path(), 1).unwrap();
    let weights = Model::load_weights(with_state.as_path(), 1, &Context::default()).unwrap();
    assert_eq!(weights.version().unwrap(), whole.version().unwrap());
    // 20 floats, 52 with the state, and for so few rows about 64 bytes of the index and of pages that are not full.
    let bytes = [&whole, &weights].map(|model| bytes_per_row(&model.table));
    assert!(bytes[0] > 208.0 && (80.0..160.0).contains(&bytes[1]), "{bytes:?}");
    assert!(whole.optimizer.is_some() && weights.optimizer.is_none());
    push(&whole).unwrap();
    let said = push(&weights).unwrap_err().to_string();
    assert!(said.contains("without the state of optimizers"), "{said}");

    model.optimizer = None;
    let saved = [model.save(without.as_path()).unwrap(), weights.save(again.as_path()).unwrap()];
    let [expected, found] =
        saved.map(|manifest| format!("{:?}", (manifest.tables, manifest.dense, manifest.optimizer)));
    assert_eq!(found, expected, "the same files, and the table as the job has it");
    let back = Model::load(without.as_path(), 1).unwrap();
    assert!(bytes_per_row(&back.table) < 160.0, "a folder without state is loaded for its weights");
    assert!(push(&back).is_err());
}
