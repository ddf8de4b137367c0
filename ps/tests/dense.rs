//! Dense values in blocks: the same to the bit in this process and in others, for any cut.

use crate::cluster::*;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_actors::{Fault, Host};
use forebay_net::{Peer, Server};
use forebay_ps::dense::{DenseBlock, DenseClient, DenseRule, DenseService, FirstValue, NamedValues, blocks, connect};
use forebay_ps::remote::Wire;
use forebay_ps::{PushId, PushOutcome, Round, Trainer};

const LEN: usize = 1000;

/// Momentum, value by value.
struct Momentum {
    values: Vec<f32>,
    velocity: Vec<f32>,
}

impl DenseRule for Momentum {
    fn apply(&mut self, grads: &[f32]) -> Result<(), Fault> {
        assert_eq!(grads.len(), self.values.len());
        for ((w, v), g) in self.values.iter_mut().zip(&mut self.velocity).zip(grads) {
            *v = 0.9 * *v + g;
            *w -= 0.1 * *v;
        }
        Ok(())
    }
    fn values(&self) -> &[f32] {
        &self.values
    }
    fn set(&mut self, place: usize, value: f32) -> Result<(), Fault> {
        self.values[place] = value;
        Ok(())
    }
    fn save(&self) -> Result<Vec<NamedValues>, Fault> {
        let named = |name: &str, values: &[f32]| NamedValues { name: name.into(), values: values.to_vec() };
        Ok(vec![named("values", &self.values), named("velocity", &self.velocity)])
    }
    fn restore(&mut self, saved: Vec<NamedValues>) -> Result<(), Fault> {
        let [values, velocity] = saved.try_into().map_err(|_| Fault::user("not saved by this rule"))?;
        (self.values, self.velocity) = (values.values, velocity.values);
        Ok(())
    }
}

fn start(host: &Host, block: std::ops::Range<usize>) -> DenseBlock {
    start_at(host, 0, block)
}

fn start_at(host: &Host, rank: usize, block: std::ops::Range<usize>) -> DenseBlock {
    let values: Vec<f32> = block.clone().map(|i| (i as f32).sin()).collect();
    DenseBlock::start(host, rank, block.len(), move || {
        Ok(Box::new(Momentum { velocity: vec![0.0; values.len()], values }))
    })
}

fn grads(step: u32) -> Vec<f32> {
    (0..LEN).map(|i| ((i as u32 * 7 + step * 13) as f32).cos()).collect()
}

fn id(index: u32) -> PushId {
    PushId { series: 1, index }
}

async fn servers(host: &Host, processes: usize) -> Vec<Server> {
    let mut servers = Vec::new();
    for (rank, block) in blocks(LEN, processes).into_iter().enumerate() {
        let service = DenseService::new(start_at(host, rank, block), LEN, rank, processes).unwrap();
        servers.push(serve(Arc::new(service)).await);
    }
    servers
}

async fn stop(servers: Vec<Server>) {
    for server in servers {
        server.stop(std::time::Duration::from_secs(5)).await;
    }
}

/// Runs `test` with the host and the peers of this many ps processes, and stops them.
fn with_servers(processes: usize, test: impl AsyncFnOnce(&Host, Vec<Peer>)) {
    block_on(async {
        let host = Host::start("ps").unwrap();
        let servers = servers(&host, processes).await;
        test(&host, servers.iter().map(|server| peer(server.address())).collect()).await;
        stop(servers).await;
        host.stop().unwrap();
    });
}

#[test]
fn any_cut_gives_the_same_bits_even_over_connections_that_break() {
    block_on(async {
        let host = Host::start("ps").unwrap();
        let local = DenseClient::local(&[start(&host, 0..LEN)]).unwrap();
        for processes in [1, 3] {
            let servers = servers(&host, processes).await;
            let cuts = [Cut::Bytes(19_000), Cut::Answer(9), Cut::Bytes(13_001), Cut::Answer(12), Cut::Bytes(27_777)];
            let (mut peers, mut cut) = (Vec::new(), Vec::new());
            for server in &servers {
                let (address, cuts) = cutting_proxy(server.address(), cuts.to_vec()).await;
                peers.push(peer(address));
                cut.push(cuts);
            }
            let remote = connect(&peers, LEN, Wire::F32, retry()).await.unwrap();
            let fresh = DenseClient::local(&[start(&host, 0..LEN)]).unwrap();
            let local = if processes == 1 { &local } else { &fresh };
            for step in 0..40 {
                let (here, there) = (local.pull().await.unwrap(), remote.pull().await.unwrap());
                assert_eq!(bits(&here), bits(&there));
                // Nothing new: nothing travels.
                assert!(Arc::ptr_eq(&there, &remote.pull().await.unwrap()));
                let grads: Vec<f32> = grads(step).iter().zip(&*here).map(|(g, w)| g + w).collect();
                local.push_once(id(step), &grads).await.unwrap();
                remote.push_once(id(step), &grads).await.unwrap();
                assert_eq!(remote.push_once(id(step), &grads).await.unwrap(), PushOutcome::Already);
            }
            assert!(cut.iter().all(|cut| cut.load(Ordering::Relaxed) >= 2), "{cut:?}");
            drop(remote);
            stop(servers).await;
        }
        drop(local);
        host.stop().unwrap();
    });
}

#[test]
fn several_pulls_and_pushes_are_under_way_and_values_never_go_back() {
    with_servers(2, async |_, peers| {
        let client = connect(&peers, LEN, Wire::F32, retry()).await.unwrap();
        let first = client.pull().await.unwrap();
        let (kept, all) = (bits(&first), (0..24).map(grads).collect::<Vec<_>>());
        let pushes = all.iter().zip(0..).map(async |(grads, step)| {
            client.push_once(id(step), grads).await?;
            client.pull().await
        });
        futures::future::try_join_all(pushes).await.unwrap();
        let last = client.pull().await.unwrap();
        assert!(Arc::ptr_eq(&last, &client.pull().await.unwrap()), "nothing is under way any more");
        // For every order of the pushes, the client's values equal the values of the processes.
        let fresh = connect(&peers, LEN, Wire::F32, retry()).await.unwrap();
        assert_eq!(bits(&last), bits(&fresh.pull().await.unwrap()));
        assert!(bits(&first) == kept && kept != bits(&last), "who computes with older values keeps them");
    });
}

#[test]
fn a_value_is_set_before_the_first_step_and_not_after_it() {
    with_servers(3, async |host, peers| {
        let client = connect(&peers, LEN, Wire::F32, retry()).await.unwrap();
        let local = DenseClient::local(&[start(host, 0..LEN)]).unwrap();
        let before = client.pull().await.unwrap();
        for client in [&client, &local] {
            for place in [0, 700, 700, LEN - 1] {
                client.set_first(FirstValue { place, value: -4.5 }).await.unwrap();
            }
            let values = client.pull().await.unwrap();
            let set = |place: usize| [0, 700, LEN - 1].contains(&place);
            assert!((0..LEN).all(|place| values[place] == if set(place) { -4.5 } else { before[place] }));
            client.push_once(id(1), &grads(1)).await.unwrap();
            let stepped = client.pull().await.unwrap();
            client.set_first(FirstValue { place: 700, value: 9.0 }).await.unwrap();
            assert_eq!(bits(&client.pull().await.unwrap()), bits(&stepped));
            let beyond = client.set_first(FirstValue { place: LEN, value: 0.0 }).await.unwrap_err();
            assert!(beyond.to_string().contains("there is no dense value 1000"), "{beyond}");
        }
        assert_eq!(bits(&client.pull().await.unwrap()), bits(&local.pull().await.unwrap()));
        let wrong = client.set_first(FirstValue { place: 3, value: f32::NAN }).await;
        assert!(wrong.is_err(), "no number");
    });
}

#[test]
fn a_round_is_one_step_with_the_mean() {
    with_servers(2, async |host, peers| {
        let mut trainers = Vec::new();
        for rank in 0..3 {
            let client = connect(&peers, LEN, Wire::F32, retry()).await.unwrap();
            trainers.push(client.of_trainer(Trainer { rank, incarnation: 1 }));
        }
        let round = |rows| Round { trainers: 3, rows };
        let (a, b) = (grads(1), grads(2));
        let pushed = futures::try_join!(
            trainers[2].push_round(id(2), round(0), &[], 1),
            trainers[1].push_round(id(1), round(8), &b, 1),
            trainers[0].push_round(id(0), round(24), &a, 1),
        );
        assert_eq!(pushed.unwrap(), (PushOutcome::Applied, PushOutcome::Applied, PushOutcome::Applied));
        assert_eq!(trainers[1].push_round(id(1), round(8), &b, 1).await.unwrap(), PushOutcome::Already);
        // A round without rows makes no step.
        let after = trainers[0].pull().await.unwrap();
        let none = futures::try_join!(
            trainers[0].push_round(id(10), round(0), &[], 2),
            trainers[1].push_round(id(11), round(0), &[], 2),
            trainers[2].push_round(id(12), round(0), &[], 2),
        );
        none.unwrap();
        assert!(Arc::ptr_eq(&after, &trainers[0].pull().await.unwrap()));
        let local = DenseClient::local(&[start(host, 0..LEN)]).unwrap();
        let mean: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a * 0.75 + b * 0.25).collect();
        local.push_once(id(0), &mean).await.unwrap();
        assert_eq!(bits(&local.pull().await.unwrap()), bits(&after));

        let heir =
            connect(&peers, LEN, Wire::F16, retry()).await.unwrap().of_trainer(Trainer { rank: 1, incarnation: 2 });
        heir.push_once(id(20), &a).await.unwrap();
        refused(trainers[1].push_once(id(21), &a).await, &["trainer 1 is fenced"]);
    });
}

#[test]
fn a_push_that_waits_for_its_round_holds_up_no_pull() {
    with_servers(2, async |_, peers| {
        let trainer = async |rank| {
            connect(&peers, LEN, Wire::F32, retry()).await.unwrap().of_trainer(Trainer { rank, incarnation: 1 })
        };
        let (one, other) = (trainer(0).await, trainer(1).await);
        let (round, grads) = (Round { trainers: 2, rows: 1 }, grads(1));
        let mut first = Box::pin(one.push_round(id(0), round, &grads, 1));
        assert!(futures::poll!(first.as_mut()).is_pending());
        let before = one.pull().await.unwrap();
        assert_eq!(before[1].to_bits(), 1f32.sin().to_bits());
        futures::try_join!(first, other.push_round(id(1), round, &grads, 1)).unwrap();
        assert!(bits(&before) != bits(&one.pull().await.unwrap()));
    });
}

#[test]
fn a_pull_behind_a_push_waits_for_its_round_and_holds_up_no_other() {
    with_servers(2, async |_, peers| {
        let trainer = async |rank| {
            connect(&peers, LEN, Wire::F32, retry()).await.unwrap().of_trainer(Trainer { rank, incarnation: 1 })
        };
        let (one, other) = (trainer(0).await, trainer(1).await);
        let (round, grads) = (Round { trainers: 2, rows: 1 }, grads(1));
        for step in 1..4 {
            let applied = one.begin_push_round(id(2 * step), round, &grads, step.into()).await.unwrap();
            let mut held = Box::pin(one.pull_after(step.into()));
            assert!(futures::poll!(held.as_mut()).is_pending());
            let before = one.pull().await.unwrap();
            let behind = async {
                let applied = other.begin_push_round(id(2 * step + 1), round, &grads, step.into()).await?;
                futures::try_join!(other.pull_after(step.into()), applied)
            };
            let ((theirs, _), after, _) = futures::try_join!(behind, held, applied).unwrap();
            assert!(bits(&before) != bits(&after) && bits(&after) == bits(&theirs));
            assert_eq!(bits(&after), bits(&one.pull().await.unwrap()));
        }
        refused(one.pull_after(5).await, &["waits for the round of step 5, but the round of step 3 was the last"]);
        let alone = connect(&peers, LEN, Wire::F32, retry()).await.unwrap();
        refused(alone.pull_after(3).await, &["dense values", "needs a trainer"]);
    });
}

#[test]
fn f16_gradients_are_near_and_what_is_wrong_is_refused() {
    with_servers(2, async |host, peers| {
        let half = connect(&peers, LEN, Wire::F16, retry()).await.unwrap();
        let (before, grads) = (half.pull().await.unwrap(), grads(3));
        half.push_once(id(0), &grads).await.unwrap();
        let after = half.pull().await.unwrap();
        let near = before.iter().zip(&*after).zip(&grads).all(|((b, a), g)| (b - a - 0.1 * g).abs() < 1e-4);
        assert!(near);
        refused(half.push_once(id(1), &grads[1..]).await, &["999 dense gradients came for 1000"]);
        let mut bad = grads.clone();
        bad[700] = f32::NAN;
        refused(half.push_once(id(1), &bad).await, &["1 of 1000 dense gradients"]);
        refused(half.push_round(id(1), Round { trainers: 1, rows: 1 }, &grads, 1).await, &["needs a trainer"]);
        assert!(Arc::ptr_eq(&after, &half.pull().await.unwrap()));
        half.acknowledge_before(2).await.unwrap();
        assert_eq!(half.push_once(id(77), &grads).await.unwrap(), PushOutcome::Already);
        refused(
            connect(&peers, LEN + 16, Wire::F32, retry()).await,
            &["ps 0 at 127.0.0.1:", "of 1000; expected", "of 1016"],
        );
        let turned: Vec<_> = peers.iter().rev().cloned().collect();
        refused(connect(&turned, LEN, Wire::F32, retry()).await, &["expected 0..496"]);
        refused(connect(&[], LEN, Wire::F32, retry()).await, &["no process"]);
        refused(DenseService::new(start(host, 0..LEN), LEN, 0, 2), &["1000 values"]);
        refused(DenseClient::local(&[start(host, 0..10), start(host, 10..LEN)]), &["10 values"]);
    });
}

#[test]
fn a_stock_client_may_look_and_not_touch() {
    use arrow::array::{ArrayRef, AsArray, Float32Array, RecordBatch};
    use arrow::datatypes::Float32Type;
    use arrow_flight::encode::FlightDataEncoderBuilder;
    use arrow_flight::{Action, FlightClient, FlightDescriptor};
    use futures::{StreamExt, TryStreamExt};
    block_on(async {
        let host = Host::start("ps").unwrap();
        let servers = servers(&host, 1).await;
        let url = format!("http://{}", servers[0].address());
        let channel = tonic::transport::Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        let mut stock = FlightClient::new(channel);
        let mut exchange = async |kind: &str, grads: Vec<f32>| {
            let column = Arc::new(Float32Array::from(grads)) as ArrayRef;
            let batch = RecordBatch::try_from_iter([("grad", column)]).unwrap();
            let sent = FlightDataEncoderBuilder::new()
                .with_flight_descriptor(Some(FlightDescriptor::new_path(vec!["dense".to_owned(), kind.to_owned()])))
                .build(futures::stream::iter([Ok(batch)]))
                .map(|data| data.unwrap());
            stock.do_exchange(sent.map(Ok)).await?.try_collect::<Vec<_>>().await
        };
        let refused = "is not a process of this run, and only those may change anything here; others may only read";
        let said = exchange("push", grads(1)).await.unwrap_err().to_string();
        assert!(said.contains(refused), "{said}");
        let batches = exchange("pull", vec![0.0]).await.unwrap();
        let values = batches[0].column_by_name("value").unwrap().as_primitive::<Float32Type>();
        let first: Vec<f32> = (0..LEN).map(|i| (i as f32).sin()).collect();
        assert_eq!(bits(values.values()), bits(&first));
        let acknowledge = Action::new("dense.acknowledge", r#"{"before": 1}"#);
        let said = match stock.do_action(acknowledge).await {
            Ok(mut answers) => answers.next().await.unwrap().unwrap_err().to_string(),
            Err(said) => said.to_string(),
        };
        assert!(said.contains(refused), "{said}");
        drop(stock);
        stop(servers).await;
        host.stop().unwrap();
    });
}

#[tokio::test]
async fn a_restored_block_goes_on_to_the_same_bits_and_is_pulled_anew() {
    let host = Host::start("test").unwrap();
    let (block, other) = (start(&host, 0..LEN), start(&host, 0..LEN));
    let clients = [
        DenseClient::local(std::slice::from_ref(&block)).unwrap(),
        DenseClient::local(std::slice::from_ref(&other)).unwrap(),
    ];
    for step in 0..3 {
        clients[0].push_once(id(step), &grads(step)).await.unwrap();
    }
    // The other client has pulled the values that are replaced.
    let before = clients[1].pull().await.unwrap();
    other.restore(block.save().await.unwrap()).await.unwrap();
    for step in 3..6 {
        let values = clients[1].pull().await.unwrap();
        assert_ne!(bits(&values), bits(&before));
        assert_eq!(bits(&values), bits(&clients[0].pull().await.unwrap()));
        for client in &clients {
            client.push_once(id(step), &grads(step)).await.unwrap();
        }
    }
    assert!(other.restore(Vec::new()).await.unwrap_err().to_string().contains("not saved by this rule"));
    // Another number of values.
    let few = start(&host, 0..10).save().await.unwrap();
    assert!(other.restore(few).await.unwrap_err().to_string().contains("has 10 values"));
    drop((block, other, clients));
    host.stop().unwrap();
}

#[test]
fn what_all_processes_save_comes_in_the_order_of_the_blocks() {
    with_servers(3, async |host, peers| {
        let whole = DenseClient::local(&[start(host, 0..LEN)]).unwrap();
        let apart = connect(&peers, LEN, Wire::F32, retry()).await.unwrap();
        for client in [&whole, &apart] {
            client.push_once(id(0), &grads(0)).await.unwrap();
        }
        let joined = |saved: Vec<Vec<NamedValues>>, at: usize, name: &str| -> Vec<u32> {
            assert!(saved.iter().all(|block| block[at].name == name), "{saved:?}");
            saved.iter().flat_map(|block| bits(&block[at].values)).collect()
        };
        for (at, name) in ["values", "velocity"].into_iter().enumerate() {
            let saved = (whole.save().await.unwrap(), apart.save().await.unwrap());
            assert_eq!(joined(saved.1, at, name), joined(saved.0, at, name));
        }
        let other = peers[0].get(r#"{"dense": "all"}"#, std::time::Duration::from_secs(60)).await.unwrap().next().await;
        assert!(other.unwrap_err().to_string().contains("has the ticket"));
    });
}

#[test]
fn the_blocks_of_several_ps_have_names_of_their_own() {
    let host = Host::start("test").unwrap();
    let started: Vec<DenseBlock> =
        blocks(LEN, 3).into_iter().enumerate().map(|(rank, block)| start_at(&host, rank, block)).collect();
    let names: Vec<String> = host.report().into_iter().map(|service| service.name).collect();
    assert_eq!(names, ["ps0-dense", "ps1-dense", "ps2-dense"]);
    drop(started);
    host.stop().unwrap();
}

#[tokio::test]
async fn a_rule_that_cannot_be_saved_says_so() {
    struct Plain([f32; 1]);
    impl DenseRule for Plain {
        fn apply(&mut self, _: &[f32]) -> Result<(), Fault> {
            Ok(())
        }
        fn values(&self) -> &[f32] {
            &self.0
        }
    }
    let host = Host::start("test").unwrap();
    let block = DenseBlock::start(&host, 0, 1, || Ok(Box::new(Plain([0.0]))));
    assert!(block.save().await.unwrap_err().to_string().contains("cannot be saved"));
    assert!(block.restore(Vec::new()).await.unwrap_err().to_string().contains("cannot be restored"));
    drop(block);
    host.stop().unwrap();
}
