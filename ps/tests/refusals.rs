//! What a server of tables makes of those it does not know, of jobs that differ, and of messages that no client sends.

use crate::cluster::*;

use std::sync::Arc;
use std::time::Duration;

use forebay_actors::Fault;
use forebay_net::Retry;
use forebay_ps::remote::{TableService, Wire, connect};
use forebay_ps::{Optimizer, PushId, PushOutcome, Round, TableClient, TableConfig, Trainer};

#[test]
fn another_table_or_another_order_is_refused_at_once() {
    block_on(async {
        let cluster = Cluster::start(2, 3).await;
        let connect = async |peers: &[_], config: &TableConfig| connect(peers, config, Wire::F32, retry()).await;
        let mut other = config();
        other.parts[1].optimizer = Optimizer::Adagrad { lr: 0.2.into(), initial_accumulator: 0.0, eps: 1e-10, l2: 0.0 };
        refused(connect(&cluster.peers(), &other).await, &["`parts[1].optimizer.lr` is 0.1", "there and 0.2"]);
        let peers: Vec<_> = cluster.peers().into_iter().rev().collect();
        refused(
            connect(&peers, &config()).await,
            &["table `ads`", "ps 0 at 127", "process 1 of 2 that hold table", "expected process 0 of 2"],
        );
        refused(connect(&cluster.peers()[..1], &config()).await, &["process 0 of 2", "expected process 0 of 1"]);
        refused(connect(&[], &config()).await, &["no processes"]);
        let unknown = TableConfig { name: "users".into(), ..config() };
        refused(connect(&cluster.peers(), &unknown).await, &["no table `users`", "`ads`"]);
        // A client waits for a ps that is gone, but not forever.
        let gone = cluster.peers();
        cluster.stop().await;
        let short = Retry { within: Duration::from_millis(100), ..retry() };
        let fault = forebay_ps::remote::connect(&gone, &config(), Wire::F32, short).await.unwrap_err();
        assert!(fault.retryable && fault.to_string().contains("gave up waiting for table `ads` on ps "), "{fault}");
    });
}

/// A round of another size than the run's number of trainers would never be complete, and would keep the run's rounds out.
#[test]
fn a_trainer_may_push_as_itself_alone_and_for_rounds_of_all_trainers() {
    block_on(async {
        let cluster = Cluster::serving(config(), &[1, 1], |tables| tables.of_trainers(2)).await;
        // The peers call themselves trainer 0.
        let client = cluster.client(Wire::F32).await;
        let keys = keys(3);
        let grads = vec![1.0; keys.len() * DIM];
        let before = dump(&client).await;
        let id = PushId { series: 1, index: 0 };
        let push = async |rank: u32, trainers: u32| {
            let client = client.clone().of_trainer(Trainer { rank, incarnation: 1 });
            client.push_round(id, Round { trainers, rows: 1 }, &keys, &grads, 1).await
        };
        refused(push(1, 2).await, &["`trainer 0` pushed as trainer 1"]);
        for trainers in [0, 1, 3, 4096] {
            refused(push(0, trainers).await, &[&format!("a round of {trainers}"), "the run has 2 trainers"]);
        }
        let other = client.clone().of_trainer(Trainer { rank: 1, incarnation: 1 });
        refused(other.push_once(id, &keys, &grads, 1).await, &["`trainer 0` pushed as trainer 1"]);
        assert!(dump(&client).await == before);
        let own = client.clone().of_trainer(Trainer { rank: 0, incarnation: 1 });
        assert_eq!(own.push_once(id, &keys, &grads, 1).await.unwrap(), PushOutcome::Applied);
    });
}

/// What a reader acknowledges is not applied, and each later push would count as applied already.
#[test]
fn only_a_trainer_of_the_run_may_acknowledge_pushes() {
    block_on(async {
        let cluster = Cluster::serving(config(), &[1, 1], |tables| tables.of_trainers(2)).await;
        let acknowledge = async |role: &str| {
            let peer = peer_as(role, cluster.servers[0].address());
            let body = format!(r#"{{"table": "ads", "before": {}}}"#, u64::MAX);
            peer.raw_action("table.acknowledge", body, Duration::from_secs(60)).await
        };
        for role in ["reader 0", "ps 1", "trainer 2", "trainer", ""] {
            refused(acknowledge(role).await, &[&format!("`{role}` acknowledges pushes"), "of trainer 0 to 1"]);
        }
        let own = cluster.client(Wire::F32).await.of_trainer(Trainer { rank: 0, incarnation: 1 });
        let (keys, id) = (keys(3), PushId { series: 1, index: 0 });
        let push = async || own.push_once(id, &keys, &vec![1.0; keys.len() * DIM], 1).await.unwrap();
        assert_eq!(push().await, PushOutcome::Applied);
        acknowledge("trainer 1").await.unwrap();
        // It covers what is applied. A bug: each later push counted as applied, and its gradients were lost.
        let next = PushId { series: 2, index: 0 };
        let grads = vec![1.0; keys.len() * DIM];
        assert_eq!(push().await, PushOutcome::Already);
        for expected in [PushOutcome::Applied, PushOutcome::Already] {
            assert_eq!(own.push_once(next, &keys, &grads, 2).await.unwrap(), expected);
        }
        let asked = |tables: TableService| tables.of_trainers(2).trainers_acknowledge(false);
        let cluster = Cluster::serving(config(), &[1, 1], asked).await;
        let peer = peer_as("trainer 1", cluster.servers[0].address());
        let body = r#"{"table": "ads", "before": 1}"#.to_owned();
        let said = peer.raw_action("table.acknowledge", body, Duration::from_secs(60)).await;
        refused(said, &["`trainer 1` acknowledges pushes", "each ps acknowledges its own"]);
    });
}

#[test]
fn only_a_trainer_of_the_run_may_reduce_learning_rates_and_only_to_a_share() {
    block_on(async {
        let cluster = Cluster::serving(config(), &[1, 1], |tables| tables.of_trainers(2)).await;
        let reduce = async |role: &str, factor: f64, min_lr: f64| {
            let peer = peer_as(role, cluster.servers[0].address());
            let body = format!(
                r#"{{"table": "ads", "reductions": {{"factor": {factor}, "min_lr": {min_lr}, "after": [3]}}}}"#
            );
            peer.raw_action("table.reduce_lr", body, Duration::from_secs(60)).await
        };
        for role in ["reader 0", "ps 1", "trainer 2", ""] {
            let words = [&format!("`{role}` reduces learning rates"), "of trainer 0 to 1"];
            refused(reduce(role, 0.5, 0.0).await, &words);
        }
        for (factor, min_lr, words) in
            [(0.0, 0.0, "the factor of the learning rates is 0"), (1.5, 0.0, "rates is 1.5"), (0.5, -1.0, "rate is -1")]
        {
            refused(reduce("trainer 0", factor, min_lr).await, &[words]);
        }
        reduce("trainer 1", 0.5, 0.0).await.unwrap();
    });
}

#[test]
fn a_trainer_may_wait_in_its_own_name_for_the_next_round_alone() {
    block_on(async {
        let cluster = Cluster::serving(config(), &[1, 1], |tables| tables.of_trainers(1)).await;
        // The peers call themselves trainer 0.
        let client = cluster.client(Wire::F32).await;
        let (keys, own) = (keys(3), client.clone().of_trainer(Trainer { rank: 0, incarnation: 1 }));
        let pull = async |client: &TableClient, step| client.pull_after(step, &keys, &mut Vec::new()).await;
        refused(pull(&client, 1).await, &["table `ads`", "needs a trainer"]);
        let other = client.clone().of_trainer(Trainer { rank: 1, incarnation: 1 });
        refused(pull(&other, 1).await, &["`trainer 0` pulled as trainer 1 of 1"]);
        let (id, grads) = (PushId { series: 1, index: 0 }, vec![1.0; keys.len() * DIM]);
        own.push_round(id, Round { trainers: 1, rows: 1 }, &keys, &grads, 5).await.unwrap();
        pull(&own, 4).await.unwrap();
        pull(&own, 5).await.unwrap();
        for step in [7, u64::MAX] {
            let words = format!("waits for the round of step {step}, but the round of step 5 was the last");
            refused(pull(&own, step).await, &[&words]);
        }
        let heir = client.clone().of_trainer(Trainer { rank: 0, incarnation: 2 });
        pull(&heir, 5).await.unwrap();
        refused(pull(&own, 5).await, &["trainer 0 is fenced"]);
    });
}

/// Sends one message on an exchange, and gives what comes back.
async fn say(
    cluster: &Cluster,
    path: &[&str],
    message: forebay_net::Message,
) -> Result<Option<forebay_net::Message>, Fault> {
    let (mut outgoing, mut incoming) = cluster.peers()[0].exchange(path, Duration::from_secs(60)).await?;
    // What is refused by its path alone takes no message: the reason comes all the same.
    let _ = outgoing.send(message).await;
    incoming.next().await
}

#[test]
fn what_no_client_says_is_refused_and_hurts_nobody() {
    use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, UInt64Array};
    use arrow::datatypes::{DataType, Field};
    use forebay_net::Message;
    block_on(async {
        let cluster = Cluster::start(2, 1).await;
        let client = cluster.client(Wire::F32).await;
        client.pull(&keys(1), &mut Vec::new()).await.unwrap();
        let before = dump(&client).await;
        let route = forebay_ps::Route::new(2);
        let own = (0..).find(|key| route.shard(*key) == 0).unwrap();
        let other = (0..).find(|key| route.shard(*key) == 1).unwrap();
        let batch = |key: u64, dim: i32, grad: f32| {
            let values = Float32Array::from(vec![grad; dim as usize]);
            let item = Arc::new(Field::new("item", DataType::Float32, false));
            let list = FixedSizeListArray::new(item, dim, Arc::new(values), None);
            let columns = [("key", Arc::new(UInt64Array::from(vec![key])) as ArrayRef), ("grad", Arc::new(list))];
            RecordBatch::try_from_iter(columns).unwrap()
        };
        // A version, no flags, and a step of 1.
        let header = || [&[1, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 39]].concat();
        let with = |batch, metadata: Vec<u8>| Message { batch: Some(batch), metadata: metadata.into() };
        let dim = DIM as i32;
        let push = ["table", "ads", "push"];
        for (message, words) in [
            (Message::metadata(header()), "without columns"),
            (with(batch(own, dim, 1.0), vec![]), "0 bytes"),
            (with(batch(own, dim, 1.0), [&[9], &header()[1..]].concat()), "version 9"),
            (with(batch(own, 3, 1.0), header()), "lists of 11 Float32"),
            (with(batch(own, dim, f32::NAN), header()), "NaN"),
            (with(batch(own, dim, 1.0), vec![1].into_iter().chain([0; 47]).collect()), "step 0"),
            (with(batch(other, dim, 1.0), header()), "belongs to shard 1 of 2"),
        ] {
            refused(say(&cluster, &push, message).await, &[words]);
        }
        let halves = with(batch(own, dim, 1.0), header());
        refused(say(&cluster, &["table", "ads", "push", "f16"], halves).await, &["Float16"]);
        let strings = Arc::new(arrow::array::StringArray::from(vec!["a"])) as ArrayRef;
        let strings = Message::columns(RecordBatch::try_from_iter([("key", strings)]).unwrap());
        refused(say(&cluster, &["table", "ads", "pull"], strings).await, &["Utf8; expected UInt64"]);
        let many: ArrayRef = Arc::new(UInt64Array::from(vec![own; (60 << 20) / DIM + 1]));
        let many = Message::columns(RecordBatch::try_from_iter([("key", many)]).unwrap());
        refused(say(&cluster, &["table", "ads", "peek"], many).await, &["asked for at once"]);
        let nothing = || Message::metadata(header());
        refused(say(&cluster, &["table", "users", "pull"], nothing()).await, &["no table `users`"]);
        let after = || with(batch(own, dim, 1.0), [&[1, 1, 0, 0][..], &[0; 28]].concat());
        refused(say(&cluster, &["table", "ads", "peek"], after()).await, &["only the pull of a trainer"]);
        refused(say(&cluster, &["table", "ads", "pull"], with(batch(own, dim, 1.0), vec![1; 31])).await, &["31 bytes"]);
        refused(say(&cluster, &["table", "ads", "drop"], nothing()).await, &["table/ads/drop"]);
        let peer = &cluster.peers()[0];
        let action =
            async |kind: &str, body: &str| peer.raw_action(kind, body.to_owned(), Duration::from_secs(60)).await;
        refused(action("table.drop", "{}").await, &["no action `drop`"]);
        refused(action("table.stats", "{\"tables\": 1}").await, &["expected `table`"]);
        assert!(dump(&client).await == before);
        drop(client);
        cluster.stop().await;
    });
}

#[test]
fn a_stock_client_may_look_and_not_touch() {
    use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt64Array};
    use arrow::datatypes::Float32Type;
    use arrow_flight::encode::FlightDataEncoderBuilder;
    use arrow_flight::{Action, FlightClient, FlightDescriptor, Ticket};
    use futures::{StreamExt, TryStreamExt};
    block_on(async {
        let cluster = Cluster::start(1, 2).await;
        let client = cluster.client(Wire::F32).await;
        let (keys, mut rows) = (keys(1), Vec::new());
        client.pull(&keys, &mut rows).await.unwrap();
        let url = format!("http://{}", cluster.servers[0].address());
        let mut stock = FlightClient::new(tonic::transport::Endpoint::from_shared(url).unwrap().connect_lazy());

        let infos: Vec<_> = stock.list_flights("").await.unwrap().try_collect().await.unwrap();
        assert_eq!((infos.len(), infos[0].total_records), (1, 500));
        let schema = infos[0].clone().try_decode_schema().unwrap();
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["key", "weight", "state"]);
        let stats = Action::new("table.stats", r#"{"table": "ads"}"#);
        let stats = stock.do_action(stats).await.unwrap().next().await.unwrap().unwrap();
        let stats: forebay_ps::TableStats = serde_json::from_slice(&stats).unwrap();
        assert_eq!(stats.rows(), 500);

        let mut exchange = async |kind: &str, keys: Vec<u64>| {
            let column = Arc::new(UInt64Array::from(keys)) as ArrayRef;
            let batch = RecordBatch::try_from_iter([("key", column)]).unwrap();
            let path = ["table", "ads", kind].map(str::to_owned).to_vec();
            let sent = FlightDataEncoderBuilder::new()
                .with_flight_descriptor(Some(FlightDescriptor::new_path(path)))
                .build(futures::stream::iter([Ok(batch)]))
                .map(|data| data.unwrap());
            stock.do_exchange(sent.map(Ok)).await?.try_collect::<Vec<_>>().await
        };
        for kind in ["pull", "peek"] {
            // The last key has no row, and gets none.
            let batches = exchange(kind, [&keys[..], &[1]].concat()).await.unwrap();
            let lists = batches[0].column_by_name("row").unwrap().as_fixed_size_list().clone();
            let values = lists.values().as_primitive::<Float32Type>();
            assert_eq!(bits(&values.values()[..500 * DIM]), bits(&rows));
            assert_eq!(&values.values()[500 * DIM..], [0.0; DIM]);
        }
        for kind in ["push", "import"] {
            let said = exchange(kind, keys.clone()).await.unwrap_err().to_string();
            assert!(
                said.contains(
                    "is not a process of this run, and only those may change anything here; others may only read"
                ),
                "{said}"
            );
        }
        assert_eq!(client.stats().await.unwrap().rows(), 500);
        let reductions = r#"{"table": "ads", "reductions": {"factor": 0.5, "min_lr": 0.0, "after": []}}"#;
        for (kind, body) in [("table.acknowledge", r#"{"table": "ads", "before": 1}"#), ("table.reduce_lr", reductions)]
        {
            let said = match stock.do_action(Action::new(kind, body)).await {
                Ok(mut answers) => answers.next().await.unwrap().unwrap_err().to_string(),
                Err(said) => said.to_string(),
            };
            assert!(
                said.contains(
                    "is not a process of this run, and only those may change anything here; others may only read"
                ),
                "{said}"
            );
        }

        for (ticket, count) in [(r#"{"table": "ads"}"#, 500), (r#"{"table": "ads", "from": 100000}"#, 0)] {
            let batches: Vec<_> = stock.do_get(Ticket::new(ticket)).await.unwrap().try_collect().await.unwrap();
            assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), count);
        }
        drop(client);
        cluster.stop().await;
    });
}
