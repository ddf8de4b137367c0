//! Tables behind shards: the same to the bit for any number of them, and clear faults.

use crate::cluster::*;

use forebay_actors::{Domain, Host};
use forebay_ps::{
    PushId, PushOutcome, Round, Route, Storage, TableClient, TableConfig, Trainer, start_shards, start_table,
};

/// Runs `test` against a table of `shards` shards, and stops them.
fn with_table<T>(shards: usize, storage: Storage, test: impl AsyncFnOnce(&TableClient) -> T) -> T {
    let host = Host::start("test").unwrap();
    let table = start_table(&host, TableConfig { storage, ..config() }, shards).unwrap();
    let result = block_on(test(&table));
    drop(table);
    host.stop().unwrap();
    result
}

async fn train(table: &TableClient) -> Vec<Vec<u32>> {
    let mut rows = vec![1.0; 3];
    let mut seen = Vec::new();
    for step in 1..=20 {
        let keys = keys(step);
        table.pull(&keys, &mut rows).await.unwrap();
        seen.push(bits(&rows));
        table.push(&keys, &grads(&keys, &rows), step).await.unwrap();
    }
    seen
}

#[test]
fn the_number_of_shards_changes_not_a_bit() {
    for storage in [Storage::F32, Storage::F16] {
        let run = |shards| with_table(shards, storage, async |table| (train(table).await, dump(table).await));
        let one = run(1);
        assert!(one.1.len() > 2000);
        for shards in [1, 2, 4] {
            assert!(run(shards) == one, "{shards} shards differ from one, {storage:?}");
        }
    }
}

#[test]
fn a_snapshot_moves_to_another_number_of_shards() {
    let (before, blocks) = with_table(2, Storage::F32, async |table| {
        train(table).await;
        let blocks = [table.export(0, 0, usize::MAX).await.unwrap(), table.export(1, 0, usize::MAX).await.unwrap()];
        (dump(table).await, blocks)
    });
    with_table(3, Storage::F32, async |table| {
        for block in &blocks {
            table.import(&block.keys, &block.weights, Some(&block.state)).await.unwrap();
        }
        assert!(dump(table).await == before);
    });
    // Without state: the weights, and state as of new rows.
    with_table(1, Storage::F32, async |table| {
        let block = &blocks[0];
        table.import(&block.keys, &block.weights, None).await.unwrap();
        let again = table.export(0, 0, usize::MAX).await.unwrap();
        assert_eq!((&again.keys, &again.weights), (&block.keys, &block.weights));
        assert!(again.state.iter().skip(2).take(10).all(|v| *v == 0.0));
    });
}

#[test]
fn peek_never_inserts_and_pull_takes_duplicates() {
    for shards in [1, 3] {
        with_table(shards, Storage::F32, async |table| {
            let mut rows = Vec::new();
            table.peek(&[1, 2, 1], &mut rows).await.unwrap();
            assert_eq!(rows, [0.0; 3 * DIM]);
            assert_eq!(table.stats().await.unwrap().rows(), 0);
            table.pull(&[1, 2, 1], &mut rows).await.unwrap();
            assert_eq!(rows[..DIM], rows[2 * DIM..]);
            assert_ne!(rows[..DIM], rows[DIM..2 * DIM]);
            assert_eq!(table.stats().await.unwrap().rows(), 2);
            let mut again = Vec::new();
            table.peek(&[1, 2, 1], &mut again).await.unwrap();
            assert_eq!(rows, again);
            // No keys at all.
            table.pull(&[], &mut rows).await.unwrap();
            assert!(rows.is_empty());
            table.push(&[], &[], 1).await.unwrap();
            // Shorter than the buffer that is used again.
            table.pull(&[2], &mut again).await.unwrap();
            assert_eq!(again.len(), DIM);
        });
    }
}

#[test]
fn stats_add_up() {
    with_table(4, Storage::F32, async |table| {
        train(table).await;
        let stats = table.stats().await.unwrap();
        let sum = |of: fn(&forebay_ps::ShardStats) -> u64| stats.shards.iter().map(of).sum::<u64>();
        assert_eq!((sum(|s| s.pulls), sum(|s| s.pushes)), (20 * 500, 20 * 500));
        assert_eq!((sum(|s| s.inserted), sum(|s| s.high_water)), (stats.rows(), stats.rows()));
        assert!(stats.shards.iter().all(|s| s.rows > stats.rows() / 5 && s.load_factor <= 0.76));
        assert!(stats.to_string().contains("table `ads`"));
        assert_eq!(stats.saturated(), 0);
    });
}

#[test]
fn what_is_wrong_is_refused_before_any_shard_changes() {
    with_table(2, Storage::F32, async |table| {
        let keys: Vec<u64> = (0..50).collect();
        let mut rows = Vec::new();
        table.pull(&keys, &mut rows).await.unwrap();
        let before = dump(table).await;
        let mut grads = vec![0.5; keys.len() * DIM];
        grads[49 * DIM + 3] = f32::NAN;
        refused(table.push(&keys, &grads, 1).await, &["1 of 500", "`embedding`", "0x0000000000000031"]);
        refused(table.push(&keys, &grads[1..], 1).await, &["549 gradients came with 50 keys; expected 550"]);
        refused(table.push(&keys, &vec![0.5; keys.len() * DIM], 0).await, &["step 0"]);
        refused(table.import(&keys, &grads, None).await, &["1 of 500 weights"]);
        refused(table.import(&keys, &grads[DIM..], None).await, &["539 weights"]);
        let good = vec![0.5; keys.len() * DIM];
        refused(table.import(&keys, &good, Some(&good)).await, &["550 floats of state", "600"]);
        refused(table.import(&keys, &good, Some(&vec![-1.0; 600])).await, &["`linear`", "-1"]);
        refused(table.export(2, 0, 1).await, &["no shard 2"]);
        assert!(dump(table).await == before);
    });
}

#[test]
fn a_table_that_cannot_be_is_refused() {
    let host = Host::start("test").unwrap();
    refused(start_table(&host, config(), 0), &["0 shards"]);
    refused(start_table(&host, config(), 1 << 20), &["shards"]);
    let mut bad = config();
    bad.parts.clear();
    refused(start_table(&host, bad, 1), &["no parts"]);
    host.stop().unwrap();
}

#[test]
fn a_stopped_host_is_a_fault_and_not_a_hang() {
    let host = Host::start("test").unwrap();
    let table = start_table(&host, config(), 2).unwrap();
    host.stop().unwrap();
    block_on(async {
        let mut rows = Vec::new();
        assert_eq!(table.pull(&[1, 2, 3, 4], &mut rows).await.unwrap_err().domain, Domain::Internal);
        assert!(table.stats().await.is_err());
    });
}

#[test]
fn shards_started_apart_hold_their_own_keys_alone() {
    let host = Host::start("test").unwrap();
    let part = start_shards(&host, config(), Route::of_process(1, 3, 2)).unwrap();
    refused(start_shards(&host, config(), Route::of_process(3, 3, 2)), &["process 3", "below 3"]);
    refused(start_shards(&host, config(), Route::of_process(1, 3, 0)), &["0 shards"]);
    refused(start_shards(&host, config(), Route::of_process(0, 2, usize::MAX)), &["expected 1 to 1024"]);
    let one = start_shards(&host, config(), Route::of_process(5, 6, 1)).unwrap();
    block_on(async {
        let route = Route::new(6);
        let (own, other): (Vec<u64>, Vec<u64>) = (0..100).partition(|key| (2..4).contains(&route.shard(*key)));
        let mut rows = Vec::new();
        part.pull(&own, &mut rows).await.unwrap();
        assert_eq!(part.stats().await.unwrap().rows(), own.len() as u64);
        let block = part.export(3, 0, 100).await.unwrap();
        assert!(!block.keys.is_empty() && block.keys.iter().all(|key| route.shard(*key) == 3));
        assert_eq!((part.shards(), part.held()), (2, 2..4));
        refused(part.export(0, 0, 1).await, &["2..4", "no shard 0"]);
        for table in [&part, &one] {
            let all = [&own[..], &other].concat();
            let shard = route.shard(all.iter().copied().find(|k| !table.held().contains(&route.shard(*k))).unwrap());
            refused(table.pull(&all, &mut rows).await, &[&format!("belongs to shard {shard} of 6")]);
            refused(table.push(&all, &vec![0.1; all.len() * DIM], 1).await, &["belongs to shard"]);
        }
    });
    drop((part, one));
    host.stop().unwrap();
}

fn id(index: u32) -> PushId {
    PushId { series: 3 << 40, index }
}

#[test]
fn a_push_with_an_id_is_applied_once() {
    let keys = keys(1);
    let grads = vec![0.5; keys.len() * DIM];
    let twice = with_table(3, Storage::F32, async |table| {
        assert_eq!(table.push_once(id(0), &keys, &grads, 1).await.unwrap(), PushOutcome::Applied);
        let before = dump(table).await;
        assert_eq!(table.push_once(id(0), &keys, &grads, 1).await.unwrap(), PushOutcome::Already);
        assert!(dump(table).await == before);
        assert_eq!(table.stats().await.unwrap().push_ids(), 3, "one in each shard");
        // All pushes of an acknowledged series count as applied.
        table.acknowledge_before(3 << 40).await.unwrap();
        let late = PushId { series: (3 << 40) - 1, index: 7 };
        assert_eq!(table.push_once(late, &keys, &grads, 1).await.unwrap(), PushOutcome::Already);
        assert!(dump(table).await == before);
        // A share that some shards have applied: the others follow.
        let route = Route::new(3);
        let some: Vec<u64> = keys.iter().copied().filter(|key| route.shard(*key) == 1).collect();
        table.push_once(id(1), &some, &grads[..some.len() * DIM], 2).await.unwrap();
        assert_eq!(table.push_once(id(1), &keys, &grads, 2).await.unwrap(), PushOutcome::Applied);
        assert_eq!(table.stats().await.unwrap().push_ids(), 6);
        table.acknowledge_before((3 << 40) + 1).await.unwrap();
        assert_eq!(table.stats().await.unwrap().push_ids(), 0, "acknowledged pushes take no memory");
        dump(table).await
    });
    with_table(3, Storage::F32, async |table| {
        table.push(&keys, &grads, 1).await.unwrap();
        table.push(&keys, &grads, 2).await.unwrap();
        assert!(dump(table).await == twice);
    });
}

fn trainer(rank: u32, incarnation: u64) -> Trainer {
    Trainer { rank, incarnation }
}

#[test]
fn a_trainer_that_was_replaced_is_fenced() {
    with_table(2, Storage::F32, async |table| {
        let keys = keys(1);
        let grads = vec![0.5; keys.len() * DIM];
        let (old, new) = (table.clone().of_trainer(trainer(1, 4)), table.clone().of_trainer(trainer(1, 5)));
        old.push_once(id(0), &keys, &grads, 1).await.unwrap();
        new.push_once(id(1), &keys, &grads, 2).await.unwrap();
        let before = dump(table).await;
        refused(old.push_once(id(2), &keys, &grads, 3).await, &["trainer 1 is fenced", "4", "5"]);
        assert!(dump(table).await == before);
    });
}

#[test]
fn a_round_applies_the_mean_of_its_trainers_once() {
    let (first, second) = (keys(1), keys(2));
    let whole = with_table(2, Storage::F32, async |table| {
        let trainers = [0, 1, 2].map(|rank| table.clone().of_trainer(trainer(rank, 1)));
        let round = |rows| Round { trainers: 3, rows };
        let (a, b) = (vec![0.5; first.len() * DIM], vec![-1.0; second.len() * DIM]);
        // The first sends twice, as after a lost connection, and the last has no rows.
        let (one, again, two, three) = futures::join!(
            trainers[0].push_round(id(0), round(30), &first, &a, 1),
            trainers[0].push_round(id(0), round(30), &first, &a, 1),
            trainers[1].push_round(id(1), round(10), &second, &b, 1),
            trainers[2].push_round(id(2), round(0), &[], &[], 1),
        );
        assert!([one, again, two, three].iter().all(|pushed| *pushed.as_ref().unwrap() == PushOutcome::Applied));
        let late = trainers[1].push_round(id(1), round(10), &second, &b, 1).await.unwrap();
        assert_eq!(late, PushOutcome::Already);
        refused(table.push_round(id(9), round(1), &first, &a, 2).await, &["needs a trainer"]);
        refused(trainers[0].push_round(id(9), round(1), &first, &a, 1).await, &["is over"]);
        dump(table).await
    });
    let alone = with_table(4, Storage::F32, async |table| {
        let only =
            |keys: &[u64], other: &[u64]| keys.iter().copied().filter(|k| !other.contains(k)).collect::<Vec<_>>();
        let both: Vec<u64> = first.iter().copied().filter(|k| second.contains(k)).collect();
        assert!(!both.is_empty());
        for (keys, grad) in [(only(&first, &second), 0.375), (both, 0.125), (only(&second, &first), -0.25)] {
            table.push(&keys, &vec![grad; keys.len() * DIM], 1).await.unwrap();
        }
        dump(table).await
    });
    assert!(whole == alone);
}
