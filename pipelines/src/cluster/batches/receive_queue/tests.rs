//! Orders, credits, terms and duplicates, without a network.

use arrow::array::RecordBatch;
use forebay_batches::WindowEnd;
use forebay_batches::wire::columns::schema;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;

const CREDITS: Credits = Credits { batches: 4, bytes: 100 };

fn id(window: u64, index: u32) -> BatchId {
    BatchId { epoch: 0, window, index }
}

fn header(id: BatchId) -> Header {
    Header { id, term: 0, split: 0, row: 0, closes: None, done_before: 0, urgent: false, labels: 1, other_rows: 0 }
}

fn last(id: BatchId) -> Header {
    Header { closes: Some(WindowEnd { batches: id.index + 1, rows: 0, rejected: 0 }), ..header(id) }
}

fn columns() -> RecordBatch {
    RecordBatch::new_empty(schema(Default::default()))
}

struct Reader {
    channel: u64,
    replies: UnboundedReceiver<Reply>,
}

impl Reader {
    fn new(receive_queue: &ReceiveQueue, name: &str) -> Self {
        let (sender, replies) = unbounded_channel();
        Self { channel: receive_queue.open(name, sender).unwrap(), replies }
    }

    fn put(&self, receive_queue: &ReceiveQueue, header: Header) -> Result<(), Fault> {
        receive_queue.put(self.channel, header, columns(), 10)
    }

    fn heard(&mut self) -> Vec<Reply> {
        std::iter::from_fn(|| self.replies.try_recv().ok()).collect()
    }
}

fn taken(receive_queue: &ReceiveQueue) -> Vec<BatchId> {
    std::iter::from_fn(|| receive_queue.take()).map(|queued| queued.header.id).collect()
}

const ONE_CREDIT: Reply = Reply::Grant { batches: 1, bytes: 10 };

#[test]
fn batches_are_taken_in_the_order_of_the_data_whatever_order_they_arrive_in() {
    let receive_queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, CREDITS);
    let (a, b) = (Reader::new(&receive_queue, "reader 0"), Reader::new(&receive_queue, "reader 1"));
    b.put(&receive_queue, header(id(1, 0))).unwrap();
    a.put(&receive_queue, header(id(0, 1))).unwrap();
    assert_eq!(taken(&receive_queue), []);
    a.put(&receive_queue, header(id(0, 0))).unwrap();
    assert_eq!(taken(&receive_queue), [id(0, 0), id(0, 1)]);
    a.put(&receive_queue, last(id(0, 2))).unwrap();
    assert_eq!(taken(&receive_queue), [id(0, 2), id(1, 0)]);
    b.put(&receive_queue, last(id(1, 1))).unwrap();
    b.put(&receive_queue, header(BatchId { epoch: 1, ..id(0, 0) })).unwrap();
    assert_eq!(taken(&receive_queue), [id(1, 1)]);
    receive_queue.update_status(Some(2), (0, 0));
    assert_eq!(taken(&receive_queue), [BatchId { epoch: 1, ..id(0, 0) }]);
}

#[test]
fn the_only_reader_without_a_batch_here_is_awaited() {
    let receive_queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, CREDITS);
    assert_eq!(receive_queue.awaited_reader(), None);
    let a = Reader::new(&receive_queue, "reader 0");
    assert_eq!(receive_queue.awaited_reader(), None, "there is no other reader");
    let (b, c) = (Reader::new(&receive_queue, "reader 1"), Reader::new(&receive_queue, "reader 2"));
    a.put(&receive_queue, header(id(1, 0))).unwrap();
    assert_eq!(receive_queue.awaited_reader(), None, "one of two");
    c.put(&receive_queue, Header { urgent: true, ..header(id(2, 0)) }).unwrap();
    assert_eq!(taken(&receive_queue), []);
    assert_eq!(receive_queue.awaited_reader().as_deref(), Some("reader 1"));
    b.put(&receive_queue, last(id(0, 0))).unwrap();
    assert_eq!(receive_queue.awaited_reader(), None);
    assert_eq!(taken(&receive_queue), [id(0, 0), id(1, 0)]);
    receive_queue.close(b.channel);
    assert_eq!(receive_queue.awaited_reader().as_deref(), Some("reader 0"));
}

#[test]
fn each_of_several_trainers_takes_its_share_of_a_window() {
    let receive_queue = ReceiveQueue::new(Order::Data { rank: 1, of: 3 }, CREDITS);
    let a = Reader::new(&receive_queue, "reader 0");
    for header in [header(id(0, 4)), last(id(0, 7)), header(id(0, 1)), header(id(1, 1))] {
        a.put(&receive_queue, header).unwrap();
    }
    assert_eq!(taken(&receive_queue), [id(0, 1), id(0, 4), id(0, 7), id(1, 1)]);
}

#[test]
fn a_duplicate_batch_is_taken_once_and_both_readers_are_told_that_it_is_done() {
    let receive_queue = ReceiveQueue::new(Order::Any, CREDITS);
    let (mut a, mut b) = (Reader::new(&receive_queue, "reader 0"), Reader::new(&receive_queue, "reader 1"));
    a.put(&receive_queue, header(id(3, 0))).unwrap();
    b.put(&receive_queue, Header { term: 1, ..header(id(3, 0)) }).unwrap();
    assert_eq!(taken(&receive_queue), [id(3, 0)]);
    receive_queue.batch_done(id(3, 0));
    let first = Reply::Grant { batches: 4, bytes: 100 };
    assert_eq!(a.heard(), [first, ONE_CREDIT, Reply::Done(id(3, 0))]);
    assert_eq!(b.heard(), [first, ONE_CREDIT, Reply::Done(id(3, 0))]);
    a.put(&receive_queue, header(id(3, 0))).unwrap();
    assert_eq!(a.heard(), [Reply::Done(id(3, 0)), ONE_CREDIT]);
    assert_eq!(taken(&receive_queue), []);
    // The window is with the other reader now.
    a.put(&receive_queue, header(id(3, 1))).unwrap();
    assert_eq!(a.heard(), [Reply::Stale(id(3, 1), 0), ONE_CREDIT]);
    assert_eq!(taken(&receive_queue), []);
}

#[test]
fn only_channels_that_sent_a_batch_are_told_that_it_is_done() {
    let receive_queue = ReceiveQueue::new(Order::Any, CREDITS);
    let a = Reader::new(&receive_queue, "reader 0");
    a.put(&receive_queue, header(id(0, 0))).unwrap();
    assert_eq!(taken(&receive_queue).len(), 1);
    receive_queue.close(a.channel);
    // One channel sends the batch again before it is done, one after, and one never sends it.
    let open = || Reader::new(&receive_queue, "reader 0");
    let (mut before, mut after, mut other) = (open(), open(), open());
    before.put(&receive_queue, header(id(0, 0))).unwrap();
    receive_queue.batch_done(id(0, 0));
    assert_eq!(before.heard()[1..], [ONE_CREDIT, Reply::Done(id(0, 0))]);
    assert_eq!(after.heard().len() + other.heard().len(), 2, "their first credits");
    after.put(&receive_queue, header(id(0, 0))).unwrap();
    assert_eq!(after.heard(), [Reply::Done(id(0, 0)), ONE_CREDIT]);
    assert_eq!(taken(&receive_queue), []);
}

#[test]
fn more_than_was_granted_ends_the_channel() {
    let receive_queue = ReceiveQueue::new(Order::Any, CREDITS);
    let a = Reader::new(&receive_queue, "reader 0");
    for index in 0..4 {
        a.put(&receive_queue, header(id(0, index))).unwrap();
    }
    assert!(a.put(&receive_queue, header(id(0, 4))).unwrap_err().to_string().contains("beyond its credits"));
    // A batch larger than all bytes may be sent alone. Its credit comes back in full.
    let mut b = Reader::new(&receive_queue, "reader 1");
    receive_queue.put(b.channel, header(id(1, 0)), columns(), 1000).unwrap();
    assert!(receive_queue.put(b.channel, header(id(1, 1)), columns(), 1).is_err());
    assert_eq!(taken(&receive_queue).len(), 5);
    assert_eq!(b.heard().last(), Some(&Reply::Grant { batches: 1, bytes: 100 }));
    let cannot_be = Header { done_before: 3, ..header(id(1, 2)) };
    assert!(b.put(&receive_queue, cannot_be).unwrap_err().to_string().contains("cannot be"));
    assert!(b.put(&receive_queue, header(id(1, u32::MAX))).unwrap_err().to_string().contains("cannot be"));
}

/// What the reader was granted, without its first credit.
fn granted(reader: &mut Reader) -> Vec<(u32, u64)> {
    let grants = reader.heard().into_iter().filter_map(|reply| match reply {
        Reply::Grant { batches, bytes } if batches < 16 => Some((batches, bytes)),
        _ => None,
    });
    grants.collect()
}

#[test]
fn credit_comes_back_for_several_batches_at_once_and_all_of_it_when_no_batch_is_left() {
    let receive_queue = ReceiveQueue::new(Order::Any, Credits { batches: 16, bytes: 1000 });
    let (mut a, mut b) = (Reader::new(&receive_queue, "reader 0"), Reader::new(&receive_queue, "reader 1"));
    (0..11).for_each(|index| a.put(&receive_queue, header(id(0, index))).unwrap());
    b.put(&receive_queue, header(id(1, 0))).unwrap();
    assert_eq!(taken(&receive_queue).len(), 12);
    assert_eq!(granted(&mut a), [(4, 40), (4, 40), (3, 30)], "a quarter, and the rest");
    assert_eq!(granted(&mut b), [(1, 10)], "its batches are its own");
    // A quarter of the bytes is as good as one of the batches. Every batch may be sent again.
    let put = |index, bytes| receive_queue.put(a.channel, header(id(2, index)), columns(), bytes);
    (0..16).for_each(|index| put(index, if index < 2 { 130 } else { 10 }).unwrap());
    assert!(put(16, 10).unwrap_err().to_string().contains("0 batches, 600 bytes"), "credit that is due is not granted");
    receive_queue.take();
    assert_eq!(granted(&mut a), []);
    assert!(a.put(&receive_queue, header(id(2, 16))).is_err(), "credit that is due is not granted");
    receive_queue.take();
    assert_eq!(granted(&mut a), [(2, 260)]);
}

/// In the order of the data the batches that are here may wait for one that the reader cannot send: it has no credit but what is due.
#[test]
fn credit_that_is_due_holds_up_no_batch_that_others_wait_for() {
    let receive_queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, Credits { batches: 16, bytes: 1000 });
    let mut a = Reader::new(&receive_queue, "reader 0");
    a.put(&receive_queue, header(id(0, 0))).unwrap();
    (2..17).for_each(|index| a.put(&receive_queue, header(id(0, index))).unwrap());
    assert_eq!(taken(&receive_queue), [id(0, 0)]);
    assert_eq!(granted(&mut a), [], "15 batches are here, and wait for batch 1");
    receive_queue.batch_done(id(0, 0));
    // Once batch 0 is done, batch 1 comes before all that the reader has sent.
    a.put(&receive_queue, Header { urgent: true, ..header(id(0, 1)) }).unwrap();
    assert_eq!(taken(&receive_queue).len(), 16);
    assert_eq!(granted(&mut a).iter().map(|(batches, _)| batches).sum::<u32>(), 16);
}

#[test]
fn an_urgent_batch_needs_no_credit() {
    let receive_queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, CREDITS);
    let mut a = Reader::new(&receive_queue, "reader 0");
    for index in 0..4 {
        a.put(&receive_queue, header(id(1, index))).unwrap();
    }
    assert_eq!(taken(&receive_queue), [], "window 0 was another reader's");
    a.heard();
    let urgent = |header| Header { urgent: true, ..header };
    a.put(&receive_queue, urgent(header(id(0, 0)))).unwrap();
    assert_eq!((taken(&receive_queue), a.heard()), (vec![id(0, 0)], vec![]), "no credit comes back for it");
    a.put(&receive_queue, urgent(last(id(0, 1)))).unwrap();
    assert_eq!(taken(&receive_queue).len(), 5);
    assert_eq!(a.heard(), [ONE_CREDIT; 4]);
    for index in (2..6).rev() {
        a.put(&receive_queue, urgent(header(id(2, index)))).unwrap();
    }
    let fault = a.put(&receive_queue, urgent(header(id(2, 1)))).unwrap_err();
    assert!(fault.retryable && fault.to_string().contains("without credit, and 4 such batches wait"), "{fault}");
}

/// Found by the simulation: the reader heard from another trainer that it had lost the lease of window 3, and forgot the batch of
/// it that waits here. This ended the run.
#[test]
fn an_urgent_batch_may_come_after_one_that_waits_and_that_the_reader_has_given_up() {
    let receive_queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, CREDITS);
    let a = Reader::new(&receive_queue, "reader 0");
    for window in [3, 9] {
        a.put(&receive_queue, header(id(window, 1))).unwrap();
    }
    a.put(&receive_queue, Header { urgent: true, ..header(id(7, 0)) }).unwrap();
    receive_queue.update_status(Some(10), (0, 7));
    assert_eq!(taken(&receive_queue), [id(7, 0)]);
}

#[test]
fn a_restarted_trainer_continues_where_the_old_one_ended() {
    let receive_queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, CREDITS);
    let mut a = Reader::new(&receive_queue, "reader 0");
    a.put(&receive_queue, Header { done_before: 5, ..header(id(2, 6)) }).unwrap();
    a.put(&receive_queue, header(id(1, 9))).unwrap();
    assert_eq!(taken(&receive_queue), []);
    receive_queue.update_status(Some(10), (0, 2));
    assert_eq!(a.heard()[1..], [Reply::Done(id(1, 9)), ONE_CREDIT], "it was in a window that is done");
    assert_eq!(taken(&receive_queue), [], "batch 5 is not done yet");
    a.put(&receive_queue, Header { done_before: 5, ..header(id(2, 5)) }).unwrap();
    assert_eq!(taken(&receive_queue), [id(2, 5), id(2, 6)]);
    a.put(&receive_queue, header(id(2, 3))).unwrap();
    assert!(a.heard().contains(&Reply::Done(id(2, 3))));
}

#[test]
fn both_readers_of_a_waiting_batch_are_told_that_another_trainer_has_done_it() {
    let receive_queue = ReceiveQueue::new(Order::Any, CREDITS);
    let (mut a, mut b) = (Reader::new(&receive_queue, "reader 0"), Reader::new(&receive_queue, "reader 1"));
    a.put(&receive_queue, header(id(1, 0))).unwrap();
    b.put(&receive_queue, Header { term: 1, ..header(id(1, 0)) }).unwrap();
    receive_queue.update_status(Some(10), (0, 2));
    assert_eq!(a.heard()[1..], [Reply::Done(id(1, 0)), ONE_CREDIT]);
    assert_eq!(b.heard()[1..], [ONE_CREDIT, Reply::Done(id(1, 0))]);
    assert_eq!(taken(&receive_queue), []);
}

#[test]
fn windows_that_are_done_take_no_memory_and_their_batches_are_answered_at_once() {
    for order in [Order::Any, Order::Data { rank: 0, of: 1 }] {
        let receive_queue = ReceiveQueue::new(order, CREDITS);
        let mut reader = Reader::new(&receive_queue, "reader 0");
        for window in 0..100 {
            reader.put(&receive_queue, last(id(window, 0))).unwrap();
            assert_eq!(taken(&receive_queue), [id(window, 0)]);
            receive_queue.batch_done(id(window, 0));
            receive_queue.update_status(None, (0, window));
            let state = receive_queue.state();
            assert_eq!((state.window_states.len(), state.received.len()), (1, 0), "only the open window has state");
        }
        reader.heard();
        // Late, and with a term that is older than that of the reader that did the window.
        reader.put(&receive_queue, header(id(50, 0))).unwrap();
        receive_queue.batch_done(id(50, 1));
        assert_eq!(reader.heard(), [Reply::Done(id(50, 0)), ONE_CREDIT]);
        assert_eq!(receive_queue.state().window_states.len(), 1);
        // A batch that waits here while another trainer does its window.
        reader.put(&receive_queue, header(id(101, 0))).unwrap();
        receive_queue.update_status(None, (0, 102));
        assert_eq!(reader.heard(), [Reply::Done(id(101, 0)), ONE_CREDIT]);
        assert_eq!(taken(&receive_queue), []);
    }
}

#[test]
fn a_trainer_that_leaves_takes_no_more_and_still_reports_what_it_has_taken() {
    let receive_queue = ReceiveQueue::new(Order::Any, CREDITS);
    let mut reader = Reader::new(&receive_queue, "reader 0");
    let id = |index| id(0, index);
    for index in 0..2 {
        reader.put(&receive_queue, header(id(index))).unwrap();
    }
    assert_eq!(receive_queue.take().map(|queued| queued.header.id), Some(id(0)));
    receive_queue.end();
    assert!(receive_queue.has_ended() && receive_queue.take().is_none());
    reader.heard();
    receive_queue.batch_done(id(0));
    assert_eq!(reader.heard(), [Reply::Done(id(0))]);
    // A stream broke meanwhile: the reader asks for what it has not heard.
    let mut again = Reader::new(&receive_queue, "reader 0");
    again.heard();
    again.put(&receive_queue, header(id(0))).unwrap();
    assert!(again.heard().contains(&Reply::Done(id(0))));
    receive_queue.close_all();
    assert!(reader.replies.is_closed() && again.replies.is_closed(), "the readers send the rest to others");
    let (sender, _replies) = unbounded_channel();
    assert!(receive_queue.open("reader 0", sender).unwrap_err().retryable);
}
