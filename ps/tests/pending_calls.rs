//! Several calls under way on one connection: the shards take them in the order in which they were made. And pulls that are sent right
//! behind a push, and see its round.

use crate::cluster::*;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_actors::Fault;
use forebay_net::{Peer, Retry};
use forebay_ps::remote::{Wire, connect};
use forebay_ps::{PushId, PushOutcome, Round, TableClient, Trainer};
use futures::{StreamExt, TryStreamExt, stream};

const STEPS: u64 = 30;

/// Calls of one client under way at a time.
const UNDER_WAY: usize = 8;

fn id(step: u64, rank: u32) -> PushId {
    PushId { series: step, index: rank }
}

/// Gradients that lead elsewhere in another order.
fn push(step: u64, rank: u32) -> (Vec<u64>, Vec<f32>) {
    let keys = keys(step % 3 + u64::from(rank));
    let grads = (0..keys.len() * DIM).map(|i| ((i as u64 * 7 + step * 13) as f32).cos()).collect();
    (keys, grads)
}

/// All pushes of a trainer, several at a time.
async fn train(table: TableClient, rank: u32, trainers: u32) -> Result<Vec<PushOutcome>, Fault> {
    let table = &table.of_trainer(Trainer { rank, incarnation: 1 });
    let push = async |step| {
        let (keys, grads) = push(step, rank);
        match trainers {
            1 => table.push_once(id(step, rank), &keys, &grads, step).await,
            _ => table.push_round(id(step, rank), Round { trainers, rows: 1 }, &keys, &grads, step).await,
        }
    };
    stream::iter(1..=STEPS).map(push).buffered(UNDER_WAY).try_collect().await
}

async fn client(peers: &[Peer], wire: Wire) -> TableClient {
    connect(peers, &config(), wire, retry()).await.unwrap()
}

#[test]
fn pushes_that_follow_each_other_closely_are_applied_in_their_order() {
    block_on(async {
        let (host, local) = local(config());
        for step in 1..=STEPS {
            let (keys, grads) = push(step, 0);
            local.push_once(id(step, 0), &keys, &grads, step).await.unwrap();
        }
        let cluster = Cluster::start(2, 3).await;
        let table = client(&cluster.peers(), Wire::F32).await;
        // Pulls go on beside them.
        let pulls = async {
            let pull = async |step| table.pull(&keys(step), &mut Vec::new()).await;
            stream::iter(1..=STEPS).map(pull).buffered(UNDER_WAY).try_collect::<Vec<()>>().await
        };
        let (pushed, _) = futures::try_join!(train(table.clone(), 0, 1), pulls).unwrap();
        assert_eq!(pushed, vec![PushOutcome::Applied; STEPS as usize]);
        local.pull(&(1..=STEPS).flat_map(keys).collect::<Vec<_>>(), &mut Vec::new()).await.unwrap();
        assert!(dump(&table).await == dump(&local).await);
        drop((table, local));
        host.stop().unwrap();
        cluster.stop().await;
    });
}

#[test]
fn rounds_follow_each_other_however_far_ahead_a_trainer_asks() {
    block_on(async {
        let mut dumps = Vec::new();
        for ahead in [false, true] {
            let cluster = Cluster::start(2, 2).await;
            let (a, b) = (client(&cluster.peers(), Wire::F32).await, client(&cluster.peers(), Wire::F32).await);
            if ahead {
                let (a, b) = futures::try_join!(train(a, 0, 2), train(b, 1, 2)).unwrap();
                assert_eq!((a.len(), b.len()), (STEPS as usize, STEPS as usize));
            } else {
                let trainers = [a, b].into_iter().zip(0..2);
                let trainers: Vec<_> =
                    trainers.map(|(table, rank)| table.of_trainer(Trainer { rank, incarnation: 1 })).collect();
                for step in 1..=STEPS {
                    let round = Round { trainers: 2, rows: 1 };
                    let ((a, b), (c, d)) = (push(step, 0), push(step, 1));
                    let first = trainers[0].push_round(id(step, 0), round, &a, &b, step);
                    futures::try_join!(first, trainers[1].push_round(id(step, 1), round, &c, &d, step)).unwrap();
                }
            }
            let table = client(&cluster.peers(), Wire::F32).await;
            dumps.push(dump(&table).await);
            drop(table);
            cluster.stop().await;
        }
        assert!(!dumps[0].is_empty() && dumps[0] == dumps[1]);
    });
}

/// Keys that the trainers share in part.
fn keys_of(step: u64, rank: u32) -> Vec<u64> {
    keys(step % 3 + u64::from(rank))
}

/// Trains in step with others, with gradients that depend on the rows. `behind`: each pull follows its push before the answer.
async fn in_step(table: TableClient, rank: u32, behind: bool) -> Result<(), Fault> {
    let table = &table.of_trainer(Trainer { rank, incarnation: 1 });
    let (round, mut rows) = (Round { trainers: 2, rows: 1 + u64::from(rank) }, Vec::new());
    table.pull(&keys_of(1, rank), &mut rows).await?;
    for step in 1..=STEPS {
        let (keys, next) = (keys_of(step, rank), keys_of(step + 1, rank));
        let grads = grads(&keys, &rows);
        let applied = table.begin_push_round(id(step, rank), round, &keys, &grads, step).await?;
        if behind {
            futures::try_join!(table.pull_after(step, &next, &mut rows), applied)?;
        } else {
            applied.await?;
            table.pull(&next, &mut rows).await?;
        }
    }
    Ok(())
}

#[test]
fn a_pull_behind_a_push_sees_its_round_and_no_other() {
    block_on(async {
        for wire in [Wire::F32, Wire::F16] {
            let mut dumps = Vec::new();
            // The last cuts the connections of one trainer again and again.
            for (behind, cuts) in [(false, None), (true, None), (true, Some(vec![Cut::Bytes(60_000), Cut::Answer(9)]))]
            {
                let cluster = Cluster::start(1, 3).await;
                let (address, made) = match cuts.clone() {
                    Some(cuts) => cutting_proxy(cluster.servers[0].address(), cuts).await,
                    None => (cluster.servers[0].address(), Arc::default()),
                };
                let (a, b) = (client(&[peer(address)], wire).await, client(&cluster.peers(), wire).await);
                futures::try_join!(in_step(a, 0, behind), in_step(b, 1, behind)).unwrap();
                assert!(cuts.is_none() || made.load(Ordering::Relaxed) > 2, "too few connections were cut");
                let table = client(&cluster.peers(), Wire::F32).await;
                dumps.push(dump(&table).await);
                drop(table);
                cluster.stop().await;
            }
            assert!(!dumps[0].is_empty() && dumps[0] == dumps[1] && dumps[0] == dumps[2], "{wire:?}");
        }
    });
}

#[test]
fn the_time_for_which_a_pull_is_held_is_no_time_of_the_ps() {
    block_on(async {
        let late = Duration::from_secs(1);
        let cluster = Cluster::start(1, 2).await;
        let trainer =
            async |rank| client(&cluster.peers(), Wire::F32).await.of_trainer(Trainer { rank, incarnation: 1 });
        let (a, b) = (trainer(0).await, trainer(1).await);
        let (round, keys, mut rows) = (Round { trainers: 2, rows: 1 }, keys(1), Vec::new());
        let grads = vec![1.0; keys.len() * DIM];
        let asked = Instant::now();
        let applied = a.begin_push_round(id(1, 0), round, &keys, &grads, 1).await.unwrap();
        let pull = async { a.pull_after(1, &keys, &mut rows).await.map(|()| asked.elapsed()) };
        let other = async {
            tokio::time::sleep(late).await;
            b.push_round(id(1, 1), round, &keys, &grads, 1).await
        };
        let (waited, ..) = futures::try_join!(pull, applied, other).unwrap();
        let replies = a.replies().swap_remove(0);
        assert_eq!(replies.count, 1);
        assert!(waited.saturating_sub(replies.total) > late / 2, "{waited:?} {replies:?}");
        drop((a, b));
        cluster.stop().await;
    });
}

#[test]
fn a_held_pull_holds_up_no_other_and_ends_with_its_shard() {
    block_on(async {
        let mut cluster = Cluster::start(1, 2).await;
        let short = Retry { within: Duration::from_millis(100), ..retry() };
        let table = connect(&cluster.peers(), &config(), Wire::F32, short).await.unwrap();
        let table = &table.of_trainer(Trainer { rank: 0, incarnation: 1 });
        let (round, keys, mut rows) = (Round { trainers: 2, rows: 1 }, keys(1), Vec::new());
        let grads = vec![1.0; keys.len() * DIM];
        let applied = table.begin_push_round(id(1, 0), round, &keys, &grads, 1).await.unwrap();
        let mut held_rows = Vec::new();
        let mut held = Box::pin(table.pull_after(1, &keys, &mut held_rows));
        assert!(futures::poll!(held.as_mut()).is_pending());
        table.pull(&keys, &mut rows).await.unwrap();
        assert_eq!(rows.len(), keys.len() * DIM);
        // No trainer pushes the other share. The server and its shards end without it.
        cluster.servers.pop().unwrap().stop(Duration::from_millis(100)).await;
        let (held, applied) = futures::join!(held, applied);
        assert!(held.is_err() && applied.is_err());
        cluster.stop().await;
    });
}
