//! A trainer that looks up ahead through a [`RowCache`] sees the same rows as without, and leaves the same table, to the bit, for all
//! overlaps of batches under way.

use crate::cluster::*;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use forebay_ps::remote::{Wire, connect};
use forebay_ps::{
    Admission, CachedBatch, Init, Lifetime, LrReductions, Optimizer, PartConfig, PendingBatch, PendingPush, PushId,
    PushOutcome, RowCache, Storage, TableClient, TableConfig, Trainer,
};
use proptest::prelude::*;

/// Every optimizer, once beside a part that has no state.
fn table(optimizer: usize, storage: Storage) -> TableConfig {
    let lr = 0.1.into();
    let optimizers = [
        Optimizer::Sgd { lr, l2: 0.0 },
        Optimizer::Momentum { lr, momentum: 0.9, l2: 0.0 },
        Optimizer::Adagrad { lr, initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 },
        Optimizer::Adam { lr, beta1: 0.9, beta2: 0.99, eps: 1e-8, l2: 0.0 },
        Optimizer::Adamw { lr, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 },
        Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.001, l2: 0.01 },
    ];
    let parts = vec![
        PartConfig::new("linear", 1, Optimizer::Sgd { lr, l2: 0.0 }, Init::Zeros),
        PartConfig::new("embedding", DIM - 1, optimizers[optimizer], Init::Uniform { scale: 0.01 }),
    ];
    TableConfig { storage, ..TableConfig::new("ads", 3, parts) }
}

fn id(batch: usize) -> PushId {
    PushId { series: 7, index: batch as u32 }
}

/// One batch after the other: the rows that each has seen.
async fn in_turn(table: &TableClient, batches: &[Vec<u64>]) -> Vec<Vec<u32>> {
    let (mut rows, mut seen) = (Vec::new(), Vec::new());
    for (n, keys) in batches.iter().enumerate() {
        table.pull(keys, &mut rows).await.unwrap();
        seen.push(bits(&rows));
        table.push_once(id(n), keys, &grads(keys, &rows), n as u64 + 1).await.unwrap();
    }
    seen
}

/// A trainer with a cache. At most `k` batches are asked for while an earlier one is not known to be applied.
struct Ahead<'a> {
    cache: RowCache,
    batches: &'a [Vec<u64>],
    k: usize,
    asked: VecDeque<PendingBatch>,
    filled: VecDeque<CachedBatch>,
    pushed: VecDeque<(CachedBatch, PendingPush)>,
    /// Batches that were asked for, stepped, and released.
    counts: [usize; 3],
    seen: Vec<Vec<u32>>,
    already: usize,
}

impl<'a> Ahead<'a> {
    fn new(table: &TableClient, batches: &'a [Vec<u64>], k: usize) -> Self {
        let cache = RowCache::new(table).unwrap();
        let (asked, filled, pushed) = Default::default();
        Self { cache, batches, k, asked, filled, pushed, counts: [0; 3], seen: Vec::new(), already: 0 }
    }

    /// Carries out the event, if it is allowed.
    async fn does(&mut self, event: u8) {
        let [asked, stepped, released] = &mut self.counts;
        match event % 4 {
            0 if *asked < self.batches.len() && *asked - *released <= self.k => {
                self.asked.push_back(self.cache.ask(&self.batches[*asked]).await.unwrap());
                *asked += 1;
            }
            1 => {
                if let Some(pending) = self.asked.pop_front() {
                    self.filled.push_back(self.cache.fill(pending).await.unwrap());
                }
            }
            2 => {
                let Some(batch) = self.filled.pop_front() else { return };
                let (keys, n, mut rows) = (&self.batches[*stepped], *stepped, Vec::new());
                self.cache.read(keys, &batch, &mut rows).unwrap();
                self.seen.push(bits(&rows));
                let (grads, step) = (grads(keys, &rows), n as u64 + 1);
                self.cache.step(keys, &batch, &grads, step).unwrap();
                self.pushed.push_back((batch, self.cache.push(id(n), keys, &grads, step).await.unwrap()));
                *stepped += 1;
            }
            3 => {
                let Some((batch, pending)) = self.pushed.pop_front() else { return };
                self.already += usize::from(self.cache.applied(pending).await.unwrap() == PushOutcome::Already);
                self.cache.release(batch);
                *released += 1;
            }
            _ => {}
        }
    }

    async fn ends(&mut self) {
        while self.counts[2] < self.batches.len() {
            for event in 0..4 {
                self.does(event).await;
            }
        }
        let stats = self.cache.stats();
        assert_eq!((stats.rows, stats.keys), (0, self.batches.iter().map(|keys| keys.len() as u64).sum()));
    }
}

fn trainer() -> Trainer {
    Trainer { rank: 0, incarnation: 1 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Pulls and pushes of up to nine batches in any order that the batches allow. The learning rates fall after a step.
    #[test]
    fn rows_and_tables_are_those_of_one_batch_after_the_other(
        keys in prop::collection::vec(prop::collection::btree_set(0u64..50, 0..30), 1..30),
        events in prop::collection::vec(0u8..8, 0..150),
        k in 0usize..9, optimizer in 0usize..6, processes in 1usize..4, per_process in 1usize..4,
        half_wire: bool, half_rows: bool, after in 0u64..40,
    ) {
        let wire = if half_wire { Wire::F16 } else { Wire::F32 };
        let config = table(optimizer, if half_rows { Storage::F16 } else { Storage::F32 });
        let batches: Vec<Vec<u64>> = keys.into_iter().map(|keys| keys.into_iter().rev().collect()).collect();
        block_on(async {
            let plain = Cluster::of(config.clone(), processes, per_process).await;
            let ahead = Cluster::of(config.clone(), processes, per_process).await;
            let client = async |cluster: &Cluster| {
                connect(&cluster.peers(), &config, wire, retry()).await.unwrap().of_trainer(trainer())
            };
            let (one, other) = (client(&plain).await, client(&ahead).await);
            let reductions = LrReductions { factor: 0.1, min_lr: 0.0, after: vec![after] };
            one.reduce_lr(&reductions).await.unwrap();
            other.reduce_lr(&reductions).await.unwrap();
            let wanted = in_turn(&one, &batches).await;
            let mut trainer = Ahead::new(&other, &batches, k);
            trainer.cache.reduce_lr(&reductions);
            for event in events {
                // More asking than answering, so that much is under way.
                trainer.does(event.saturating_sub(4)).await;
            }
            trainer.ends().await;
            prop_assert!(trainer.seen == wanted, "a batch has seen other rows");
            prop_assert!(dump(&other).await == dump(&one).await, "the table is another");
            drop((trainer, one, other));
            plain.stop().await;
            ahead.stop().await;
            Ok(())
        })?;
    }
}

/// All batches of a table that is trained ahead by 8.
fn batches() -> Vec<Vec<u64>> {
    (0..40).map(keys).collect()
}

#[test]
fn pushes_under_way_are_applied_in_their_order_when_connections_break() {
    block_on(async {
        let plain = Cluster::start(1, 2).await;
        let one = plain.client(Wire::F32).await;
        let batches = batches();
        let (wanted, rows) = (in_turn(&one, &batches).await, dump(&one).await);
        let cuts = [120_000, 61_000, 93_456, 178_900, 45_678, 200_123].map(Cut::Bytes).into_iter();
        let cuts: Vec<Cut> = cuts.chain([9, 10, 11, 12].map(Cut::Answer)).collect();
        // How answers are cut into pieces depends on the machine: the connections may break elsewhere.
        let mut between = false;
        for _ in 0..20 {
            let cluster = Cluster::start(1, 2).await;
            let (address, cut) = cutting_proxy(cluster.servers[0].address(), cuts.clone()).await;
            let remote = connect(&[peer(address)], &config(), Wire::F32, retry()).await.unwrap().of_trainer(trainer());
            let mut trainer = Ahead::new(&remote, &batches, 8);
            // Ask for nine, then push as many before the first is known to be applied.
            while trainer.counts[2] < batches.len() {
                for event in [0, 1, 2, 3] {
                    for _ in 0..9 {
                        trainer.does(event).await;
                    }
                }
            }
            assert!(trainer.seen == wanted);
            let direct = cluster.client(Wire::F32).await;
            assert!(dump(&direct).await == rows);
            let pushes: u64 = direct.stats().await.unwrap().shards.iter().map(|s| s.pushes).sum();
            assert_eq!(pushes, batches.iter().map(|keys| keys.len() as u64).sum::<u64>());
            between = trainer.already > 0 && cut.load(Ordering::Relaxed) >= 6;
            drop((trainer, remote, direct));
            cluster.stop().await;
            if between {
                break;
            }
        }
        assert!(between, "no cut came between a push and its answer");
        drop(one);
        plain.stop().await;
    });
}

/// The cost: a row that a batch under way has is not pulled again.
#[test]
fn a_row_is_pulled_once_while_batches_under_way_have_it() {
    block_on(async {
        let cluster = Cluster::start(2, 1).await;
        let client = cluster.client(Wire::F32).await.of_trainer(trainer());
        let batches = [vec![1, 2, 3], vec![2, 3, 4], vec![4, 5], vec![1, 5]];
        let mut trainer = Ahead::new(&client, &batches, 1);
        for (event, rows, pulled) in
            [(0, 3, 3), (0, 4, 4), (1, 4, 4), (1, 4, 4), (2, 4, 4), (3, 3, 4), (0, 4, 5), (2, 4, 5), (3, 2, 5)]
        {
            trainer.does(event).await;
            let stats = trainer.cache.stats();
            assert_eq!((stats.rows, stats.pulled), (rows, pulled));
        }
        // Key 1 left with its batch.
        trainer.does(0).await;
        assert_eq!(trainer.cache.stats().pulled, 6);
        trainer.ends().await;
        let stats = trainer.cache.stats();
        assert_eq!((stats.most_rows, stats.keys), (4, 10));
        assert!(stats.bytes > 4 * 4 * DIM as u64);
        let counts: u64 = client.stats().await.unwrap().shards.iter().map(|s| s.pulls).sum();
        assert_eq!(counts, 6);
        drop((trainer, client));
        cluster.stop().await;
    });
}

#[test]
fn tables_whose_shards_admit_and_remove_keys_are_refused() {
    block_on(async {
        let lifetime = Lifetime { admission: Some(Admission::Count(2)), eviction: None };
        let (host, client) = local(TableConfig { lifetime, ..config() });
        refused(RowCache::new(&client).map(drop), &["table `ads`", "cannot be cached"]);
        drop(client);
        host.stop().unwrap();
    });
}

/// Measures. Asserts nothing.
#[test]
#[ignore = "a measurement: run it alone, on a quiet machine, with --nocapture"]
fn what_a_row_costs() {
    const KEYS: u64 = 14_000;
    for k in [0, 8] {
        block_on(async {
            let (host, client) = local(config());
            let client = client.of_trainer(trainer());
            let cache = RowCache::new(&client).unwrap();
            let (mut under_way, mut rows, mut spent) = (VecDeque::new(), Vec::new(), [0.0; 7]);
            let grads = vec![0.001; KEYS as usize * DIM];
            const BATCHES: u64 = 300;
            for n in 0..BATCHES {
                // A third are new.
                let keys: Vec<u64> = (0..KEYS).map(|i| if i % 3 == 0 { n * KEYS + i } else { i }).collect();
                let keys: Vec<u64> = keys.iter().map(|key| key.wrapping_mul(forebay_base::GOLDEN_GAMMA)).collect();
                let mut at = std::time::Instant::now();
                let mut took = |phase: usize| {
                    spent[phase] += at.elapsed().as_nanos() as f64;
                    at = std::time::Instant::now();
                };
                let pending = cache.ask(&keys).await.unwrap();
                took(0);
                let batch = cache.fill(pending).await.unwrap();
                took(1);
                cache.read(&keys, &batch, &mut rows).unwrap();
                took(2);
                cache.step(&keys, &batch, &grads, n + 1).unwrap();
                took(3);
                let pushed = cache.push(id(n as usize), &keys, &grads, n + 1).await.unwrap();
                took(4);
                cache.applied(pushed).await.unwrap();
                took(5);
                under_way.push_back(batch);
                if under_way.len() > k {
                    cache.release(under_way.pop_front().unwrap());
                }
                took(6);
            }
            let of_key = spent.map(|nanoseconds| nanoseconds / (BATCHES * KEYS) as f64);
            let names = ["ask", "fill", "read", "step", "push", "applied", "release"];
            let all: Vec<String> = names.iter().zip(of_key).map(|(name, ns)| format!("{name} {ns:.1}")).collect();
            println!("k = {k}, ns per key: {}; {:?}", all.join(", "), cache.stats());
            drop((cache, client));
            host.stop().unwrap();
        });
    }
}
