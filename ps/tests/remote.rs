//! Tables in other processes: the answers equal the answers of a local table, to the bit, for all faults of the connections.

use crate::cluster::*;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::{Domain, Fault, Host};
use forebay_net::{Caller, Handler, Incoming, Outgoing, Retry};
use forebay_ps::remote::{TableService, Wire, connect};
use forebay_ps::{
    Init, LrReductions, Optimizer, PartConfig, PushId, PushOutcome, Round, TableClient, TableConfig, Trainer,
    start_table,
};
use proptest::prelude::*;

fn id(index: u32) -> PushId {
    PushId { series: 3 << 40, index }
}

/// What a client does, with the keys it does it to.
#[derive(Clone, Debug)]
enum Act {
    Pull(Vec<u64>),
    Peek(Vec<u64>),
    Push(Vec<u64>, f32),
    /// With an id: of a few, so that they repeat.
    ExactlyOnce(u32, Vec<u64>, f32),
    Import(Vec<u64>, f32, bool),
    AcknowledgeBefore(u64),
    /// After this step.
    ReduceLr(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let keys = || prop::collection::btree_set(0u64..60, 0..30).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let act = prop_oneof![
        keys().prop_map(Act::Pull),
        keys().prop_map(Act::Peek),
        (keys(), -1f32..1.0).prop_map(|(keys, grad)| Act::Push(keys, grad)),
        (0u32..4, keys(), -1f32..1.0).prop_map(|(id, keys, grad)| Act::ExactlyOnce(id, keys, grad)),
        // Before the ids in use, or after.
        (2u64..5).prop_map(|epoch| Act::AcknowledgeBefore(epoch << 40)),
        (keys(), -1f32..1.0, any::<bool>()).prop_map(|(keys, value, state)| Act::Import(keys, value, state)),
        (0u64..12).prop_map(Act::ReduceLr),
    ];
    prop::collection::vec(act, 1..20)
}

/// Carries out the act, and returns the answer.
async fn act(table: &TableClient, act: &Act, step: u64) -> (Vec<u32>, Option<PushOutcome>) {
    let mut rows = Vec::new();
    let values = |keys: &[u64], value: f32| (0..keys.len() * DIM).map(|i| value + i as f32 * 1e-3).collect::<Vec<_>>();
    let mut pushed = None;
    match act {
        Act::Pull(keys) => table.pull(keys, &mut rows).await.unwrap(),
        Act::Peek(keys) => table.peek(keys, &mut rows).await.unwrap(),
        Act::Push(keys, grad) => table.push(keys, &values(keys, *grad), step).await.unwrap(),
        Act::ExactlyOnce(index, keys, grad) => {
            pushed = Some(table.push_once(id(*index), keys, &values(keys, *grad), step).await.unwrap());
        }
        Act::AcknowledgeBefore(before) => table.acknowledge_before(*before).await.unwrap(),
        Act::ReduceLr(after) => {
            table.reduce_lr(&LrReductions { factor: 0.1, min_lr: 0.0, after: vec![*after] }).await.unwrap();
        }
        Act::Import(keys, value, state) => {
            let states = vec![value.abs(); keys.len() * table.state_dim()];
            table.import(keys, &values(keys, *value), state.then_some(&states[..])).await.unwrap();
        }
    }
    (bits(&rows), pushed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Both sides have the same shards, because each shard knows only its own push ids.
    #[test]
    fn a_remote_table_is_a_local_one_to_the_bit(acts in acts(), processes in 1usize..4, per_process in 1usize..4) {
        block_on(async {
            let cluster = Cluster::start(processes, per_process).await;
            let remote = cluster.client(Wire::F32).await;
            let host = Host::start("local").unwrap();
            let local = start_table(&host, config(), processes * per_process).unwrap();
            prop_assert_eq!(remote.shards(), local.shards());
            for (step, one) in acts.iter().enumerate() {
                let step = step as u64 + 1;
                prop_assert_eq!(act(&remote, one, step).await, act(&local, one, step).await);
            }
            prop_assert!(dump(&remote).await == dump(&local).await);
            let counts = |stats: &forebay_ps::TableStats| {
                stats.shards.iter().map(|s| (s.rows, s.pulls, s.pushes, s.inserted)).collect::<Vec<_>>()
            };
            prop_assert_eq!(counts(&remote.stats().await.unwrap()), counts(&local.stats().await.unwrap()));
            drop((remote, local));
            host.stop().unwrap();
            cluster.stop().await;
            Ok(())
        })?;
    }
}

#[test]
fn processes_may_have_different_numbers_of_shards() {
    block_on(async {
        let (host, local) = local(config());
        let wanted = train(&local).await;
        let cluster = Cluster::serving(config(), &[3, 1, 2], |tables| tables).await;
        let remote = cluster.client(Wire::F32).await;
        assert_eq!(remote.shards(), 6);
        assert_eq!(train(&remote).await, wanted);
        assert!(dump(&remote).await == dump(&local).await);
        for shard in [0, 2, 3, 4, 5] {
            assert!(!remote.export(shard, 0, 1).await.unwrap().keys.is_empty());
        }
        refused(remote.export(6, 0, 1).await, &["the shards 0..6", "no shard 6"]);
        drop((remote, local));
        host.stop().unwrap();
        cluster.stop().await;
    });
}

/// Bits of the rows pulled at each step, and how many pushes were found applied.
async fn train(table: &TableClient) -> (Vec<Vec<u32>>, usize) {
    let (mut rows, mut seen, mut already) = (Vec::new(), Vec::new(), 0);
    for step in 1..=STEPS {
        let keys = keys(step);
        table.pull(&keys, &mut rows).await.unwrap();
        seen.push(bits(&rows));
        let pushed = table.push_once(id(step as u32), &keys, &grads(&keys, &rows), step).await.unwrap();
        already += usize::from(pushed == PushOutcome::Already);
    }
    (seen, already)
}

const STEPS: u64 = 40;

#[test]
fn connections_that_break_lose_nothing_and_apply_nothing_twice() {
    block_on(async {
        let (host, local) = local(config());
        let ((wanted, _), rows) = (train(&local).await, dump(&local).await);
        // A push is of about 26 KB, an answer to a pull of 22: cuts fall into both, and between them.
        let cuts = [
            Cut::Bytes(120_000),
            Cut::Answer(9),
            Cut::Bytes(61_000),
            Cut::Answer(10),
            Cut::Bytes(93_456),
            Cut::Answer(11),
            Cut::Bytes(78_900),
            Cut::Answer(12),
        ];
        // How answers are cut into pieces depends on the machine: the connections may break elsewhere.
        let mut between = false;
        for _ in 0..20 {
            // One process, so that a push is either applied or not.
            let cluster = Cluster::start(1, 2).await;
            let (address, cut) = cutting_proxy(cluster.servers[0].address(), cuts.to_vec()).await;
            let remote = connect(&[peer(address)], &config(), Wire::F32, retry()).await.unwrap();
            let (seen, already) = train(&remote).await;
            assert!(seen == wanted);
            // Counted without the proxies.
            let direct = cluster.client(Wire::F32).await;
            assert!(dump(&direct).await == rows);
            let pushes: u64 = direct.stats().await.unwrap().shards.iter().map(|s| s.pushes).sum();
            assert_eq!(pushes, STEPS * 500);
            drop((remote, direct));
            cluster.stop().await;
            between = already > 0 && cut.load(Ordering::Relaxed) >= 6;
            if between {
                break;
            }
        }
        assert!(between, "no cut came between a push and its answer");
        drop(local);
        host.stop().unwrap();
    });
}

/// A bug: the thread that saves a model has no runtime, so it panicked when it waited for a ps that could not be reached.
#[test]
fn a_caller_without_a_runtime_waits_for_a_connection_that_broke() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (cluster, table, cut) = runtime.block_on(async {
        let cluster = Cluster::start(1, 2).await;
        let direct = cluster.client(Wire::F32).await;
        train(&direct).await;
        // Two pages or so of 100 rows.
        let (address, cut) = cutting_proxy(cluster.servers[0].address(), vec![Cut::Bytes(30_000)]).await;
        let table = connect(&[peer(address)], &config(), Wire::F32, retry()).await.unwrap();
        (cluster, table, cut)
    });
    let mut rows = 0;
    for shard in 0..2 {
        let mut from = 0;
        loop {
            let page = futures::executor::block_on(table.export(shard, from, 100)).unwrap();
            if page.keys.is_empty() {
                break;
            }
            from += page.keys.len();
        }
        rows += from as u64;
    }
    assert_eq!(futures::executor::block_on(table.stats()).unwrap().rows(), rows);
    assert!(cut.load(Ordering::Relaxed) >= 3, "{cut:?} of {rows} rows");
    drop(table);
    runtime.block_on(cluster.stop());
}

/// Takes a push and leaves without an answer, so many times; before it is applied, or after.
struct Rude {
    table: TableService,
    client: TableClient,
    times: AtomicUsize,
}

#[async_trait]
impl Handler for Rude {
    fn name(&self) -> &'static str {
        "table"
    }
    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        self.table.action(caller, kind, body).await
    }
    async fn exchange(
        &self,
        caller: Caller,
        path: Vec<String>,
        mut incoming: Incoming,
        outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let rude = self.times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok();
        let Some(left) = rude else { return self.table.exchange(caller, path, incoming, outgoing).await };
        let message = incoming.next().await?.unwrap();
        if left % 2 == 0 {
            let batch = message.batch.unwrap();
            let keys = arrow::array::AsArray::as_primitive::<arrow::datatypes::UInt64Type>(batch.column(0));
            let grads = vec![0.5; keys.len() * DIM];
            self.client.push_once(id(7), keys.values(), &grads, 1).await.unwrap();
        }
        Err(Fault::external("the plug was pulled").retryable())
    }
}

#[test]
fn a_push_without_an_id_is_not_made_again() {
    block_on(async {
        let (host, client) = local(config());
        let rude = Rude { table: TableService::new(vec![client.clone()]), client: client.clone(), times: 0.into() };
        let rude = Arc::new(rude);
        let server = serve(rude.clone()).await;
        let remote = connect(&[peer(server.address())], &config(), Wire::F32, retry()).await.unwrap();
        let (keys, grads) = (keys(1), vec![0.5; 500 * DIM]);
        let pushes = async || client.stats().await.unwrap().shards[0].pushes;

        rude.times.store(1, Ordering::Relaxed);
        let fault = remote.push(&keys, &grads, 1).await.unwrap_err();
        assert_eq!((fault.domain, fault.retryable), (Domain::External, false), "{fault}");
        assert!(fault.to_string().contains("applied or not"), "{fault}");
        assert_eq!(pushes().await, 0);
        // The stream can be used again.
        remote.push(&keys, &grads, 1).await.unwrap();
        assert_eq!(pushes().await, 500);

        // With an id the push is sent again, and found applied.
        let remote = connect(&[peer(server.address())], &config(), Wire::F32, retry()).await.unwrap();
        rude.times.store(4, Ordering::Relaxed);
        assert_eq!(remote.push_once(id(7), &keys, &grads, 1).await.unwrap(), PushOutcome::Already);
        assert_eq!(pushes().await, 1000);

        // The deadline of the retries passes.
        let short = Retry { within: Duration::from_millis(50), ..retry() };
        let remote = connect(&[peer(server.address())], &config(), Wire::F32, short).await.unwrap();
        rude.times.store(usize::MAX, Ordering::Relaxed);
        let fault = remote.pull(&keys, &mut Vec::new()).await.unwrap_err();
        assert!(
            fault.retryable && fault.to_string().contains("gave up waiting for table/ads/pull on ps 0 at 127.0.0.1:"),
            "{fault}"
        );
        drop((remote, client));
        server.stop(Duration::ZERO).await;
        drop(rude);
        host.stop().unwrap();
    });
}

#[test]
fn f16_on_the_wire_is_near_and_falls_back() {
    block_on(async {
        let (sgd, init) = (Optimizer::Sgd { lr: 1.0.into(), l2: 0.0 }, Init::Normal { std: 0.1 });
        let config = TableConfig::new("ads", 1, vec![PartConfig::new("embedding", DIM, sgd, init)]);
        let cluster = Cluster::of(config.clone(), 2, 1).await;
        let exact = connect(&cluster.peers(), &config, Wire::F32, retry()).await.unwrap();
        let half = connect(&cluster.peers(), &config, Wire::F16, retry()).await.unwrap();
        let keys = keys(1);
        let (mut rows, mut near) = (Vec::new(), Vec::new());
        let close = |rows: &[f32], near: &[f32]| {
            let pairs = || rows.iter().zip(near);
            rows.len() == near.len() && pairs().all(|(r, n)| (r - n).abs() <= r.abs() / 2048.0 + 1e-9)
        };
        half.pull(&keys, &mut near).await.unwrap();
        exact.pull(&keys, &mut rows).await.unwrap();
        assert!(close(&rows, &near) && rows != near);
        half.peek(&keys, &mut near).await.unwrap();
        assert!(close(&rows, &near));

        let grads: Vec<f32> = rows.iter().map(|w| w * 0.3).collect();
        assert_eq!(half.push_once(id(1), &keys, &grads, 1).await.unwrap(), PushOutcome::Applied);
        let mut after = Vec::new();
        exact.pull(&keys, &mut after).await.unwrap();
        let moved: Vec<f32> = rows.iter().zip(&after).map(|(a, b)| a - b).collect();
        assert!(grads.iter().zip(&moved).all(|(g, m)| (g - m).abs() <= g.abs() / 1024.0 + 1e-7));

        // A weight that has overflowed arrives as it is.
        exact.push(&keys[..1], &[-3e38; DIM], 2).await.unwrap();
        exact.push(&keys[..1], &[-3e38; DIM], 3).await.unwrap();
        half.pull(&keys, &mut near).await.unwrap();
        exact.pull(&keys, &mut rows).await.unwrap();
        assert!(near[0] == f32::INFINITY);
        assert!(rows.iter().zip(&near).all(|(r, n)| r == n || (r - n).abs() <= r.abs() / 2048.0 + 1e-9));
        // The next rows that f16 can hold are f16 again, on the same stream.
        half.pull(&keys[400..], &mut near).await.unwrap();
        assert!(close(&rows[400 * DIM..], &near));
        drop((exact, half));
        cluster.stop().await;
    });
}

#[test]
fn rounds_and_fences_hold_across_processes() {
    block_on(async {
        let cluster = Cluster::start(2, 2).await;
        let trainer = |rank, incarnation| Trainer { rank, incarnation };
        let mut trainers = Vec::new();
        for rank in 0..2 {
            trainers.push(cluster.client(Wire::F32).await.of_trainer(trainer(rank, 1)));
        }
        let (host, local) = local(config());
        let (mut rows, mut other) = (Vec::new(), Vec::new());
        for step in 1..=5u64 {
            let keys = [keys(step), keys(step + 1)];
            let round = |rows| Round { trainers: 2, rows };
            trainers[0].pull(&keys[0], &mut rows).await.unwrap();
            trainers[1].pull(&keys[1], &mut other).await.unwrap();
            let grads = [grads(&keys[0], &rows), grads(&keys[1], &other)];
            let push = |rank: usize, rows| {
                let id = PushId { series: step, index: rank as u32 };
                trainers[rank].push_round(id, round(rows), &keys[rank], &grads[rank], step)
            };
            // Either trainer may push first.
            let pushed = match step % 2 {
                0 => futures::try_join!(push(0, 48), push(1, 16)),
                _ => futures::try_join!(push(1, 16), push(0, 48)),
            };
            assert_eq!(pushed.unwrap(), (PushOutcome::Applied, PushOutcome::Applied));
            // The same by hand.
            let mut sum = std::collections::BTreeMap::<u64, Vec<f32>>::new();
            for (keys, grads, weight) in [(&keys[0], &grads[0], 0.75), (&keys[1], &grads[1], 0.25)] {
                for (key, grad) in keys.iter().zip(grads.chunks(DIM)) {
                    let row = sum.entry(*key).or_insert_with(|| vec![-0.0; DIM]);
                    row.iter_mut().zip(grad).for_each(|(s, g)| *s += g * weight);
                }
            }
            let (keys, grads): (Vec<u64>, Vec<Vec<f32>>) = sum.into_iter().unzip();
            local.push(&keys, &grads.concat(), step).await.unwrap();
        }
        assert!(dump(&trainers[0]).await == dump(&local).await);

        let (keys, grads) = (keys(9), vec![0.5; 500 * DIM]);
        let heir = cluster.client(Wire::F32).await.of_trainer(trainer(1, 2));
        heir.push_once(id(100), &keys, &grads, 9).await.unwrap();
        refused(trainers[1].push_once(id(101), &keys, &grads, 9).await, &["trainer 1 is fenced", "taken over"]);
        drop((trainers, heir, local));
        host.stop().unwrap();
        cluster.stop().await;
    });
}
