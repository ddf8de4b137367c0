//! Any stream of `RecordBatch`es as a source: a query's result, a network stream, or batches that a program pushes.

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;

use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Lineage, Source, StageCx};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;

use crate::rows::{Rows, WindowMark};

/// Rows of a stream. The stage `parse` checks its columns, at the first batch.
pub struct StreamSource<S> {
    name: String,
    stream: Pin<Box<S>>,
    /// Rows taken from the stream.
    rows: u64,
    seq: u64,
}

impl<S, E> StreamSource<S>
where
    S: Stream<Item = Result<RecordBatch, E>> + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    /// `name`: the name of the stream in reports and faults.
    pub fn new(name: impl Into<String>, stream: S) -> Self {
        Self { name: name.into(), stream: Box::pin(stream), rows: 0, seq: 0 }
    }

    /// An external fault. A fault among the causes of `error` says who can correct it and whether to try again.
    fn failed(&self, error: Box<dyn Error + Send + Sync>) -> Fault {
        let mut cause: Option<&(dyn Error + 'static)> = Some(error.as_ref());
        let mut told = None;
        while let (None, Some(e)) = (told, cause) {
            told = e.downcast_ref::<Fault>().map(|fault| (fault.domain, fault.kind, fault.retryable));
            cause = e.source();
        }
        // The message says the row; the place of the fault would be that of the batch before.
        let said = format!("the stream `{}` failed after row {}", self.name, self.rows);
        let mut fault = Fault::external(said).because(error).hide_lineage();
        if let Some(told) = told {
            (fault.domain, fault.kind, fault.retryable) = told;
        }
        fault
    }
}

/// Pushes batches into a pipeline; dropping it (and all its clones) ends the stream.
///
/// `Ok` of a `send` means that the batch waits in the channel, not that it is trained on. A run that is drained reads no more batches, and
/// those that wait are lost: the field `read` of the run's ledger ([`LedgerReport`](forebay_actors::LedgerReport)) has the rows that it
/// took.
#[derive(Clone, Debug)]
pub struct BatchSender(mpsc::Sender<Result<RecordBatch, Infallible>>);

impl BatchSender {
    /// Waits for room, then hands over. Gives the batch back when the pipeline has ended. Cancel safe: a dropped future
    /// has not sent.
    pub async fn send(&self, batch: RecordBatch) -> Result<(), RecordBatch> {
        match self.0.reserve().await {
            Ok(room) => {
                room.send(Ok(batch));
                Ok(())
            }
            Err(_) => Err(batch),
        }
    }

    /// As [`send`](Self::send), for a thread outside any runtime: blocks while there is no room.
    pub fn blocking_send(&self, batch: RecordBatch) -> Result<(), RecordBatch> {
        self.0.blocking_send(Ok(batch)).map_err(|mpsc::error::SendError(Ok(batch))| batch)
    }
}

/// The receiving end of [`channel`].
#[derive(Debug)]
pub struct ChannelStream(mpsc::Receiver<Result<RecordBatch, Infallible>>);

impl Stream for ChannelStream {
    type Item = Result<RecordBatch, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

/// A source for a program that pushes: at most `capacity` batches wait in between.
pub fn channel(name: impl Into<String>, capacity: usize) -> (BatchSender, StreamSource<ChannelStream>) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    (BatchSender(sender), StreamSource::new(name, ChannelStream(receiver)))
}

impl<S, E> Source for StreamSource<S>
where
    S: Stream<Item = Result<RecordBatch, E>> + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    type Out = Rows;

    fn describe(&self) -> String {
        format!("stream {}", self.name)
    }

    async fn next(&mut self, _cx: &StageCx) -> Result<Option<Rows>, Fault> {
        loop {
            let batch = match self.stream.next().await {
                None => return Ok(None),
                Some(Ok(batch)) => batch,
                Some(Err(e)) => return Err(self.failed(e.into())),
            };
            if batch.num_rows() == 0 {
                continue;
            }
            let lineage = Lineage { seq: self.seq, row: self.rows, ..Lineage::default() };
            self.seq += 1;
            self.rows += batch.num_rows() as u64;
            return Ok(Some(Rows { batch, lineage, window: WindowMark::default(), rejected: 0, places: None }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int32Array};
    use arrow::datatypes::Int32Type;
    use arrow::error::ArrowError;
    use forebay_actors::{Domain, FaultKind, Phase};

    use super::*;

    fn cx() -> StageCx {
        StageCx::detached("t")
    }

    fn batch(values: std::ops::Range<i32>) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int32Array::from_iter_values(values));
        RecordBatch::try_from_iter([("label", column)]).unwrap()
    }

    async fn rest(source: &mut impl Source<Out = Rows>) -> Vec<i32> {
        let mut all = Vec::new();
        for seq in 0.. {
            let Some(rows) = source.next(&cx()).await.unwrap() else { break };
            assert_eq!(rows.lineage.seq, seq);
            all.extend(rows.batch.column(0).as_primitive::<Int32Type>().values());
        }
        all
    }

    #[tokio::test]
    async fn every_row_comes_and_no_empty_batch() {
        let batches = [batch(0..3), batch(3..3), batch(3..4), batch(4..9)].map(Ok::<_, io::Error>);
        let mut source = StreamSource::new("query", futures::stream::iter(batches));
        source.open(&cx()).await.unwrap();
        assert_eq!(rest(&mut source).await, (0..9).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn an_error_in_the_stream_is_a_fault_that_names_it() {
        let batches = vec![Ok(batch(0..3)), Err(io::Error::other("the query was cancelled"))];
        let mut source = StreamSource::new("query", futures::stream::iter(batches));
        source.open(&cx()).await.unwrap();
        source.next(&cx()).await.unwrap().unwrap();
        let said = source.next(&cx()).await.unwrap_err().to_string();
        assert!(said.contains("`query` failed after row 3") && said.contains("cancelled"), "{said}");
    }

    #[tokio::test]
    async fn a_fault_in_the_stream_keeps_its_domain_its_kind_and_whether_to_try_again() {
        let token = Fault::user("the token is wrong").kind(FaultKind::Refused).retryable();
        let wrapped = ArrowError::ExternalError(Box::new(token.clone()));
        for error in [Box::from(token), Box::<dyn Error + Send + Sync>::from(wrapped)] {
            let mut source = StreamSource::new("query", futures::stream::iter([Err(error)]));
            let fault = source.next(&cx()).await.unwrap_err();
            assert_eq!((fault.domain, fault.kind, fault.retryable), (Domain::User, FaultKind::Refused, true));
            let said = fault.at("read", Phase::Batch, Some(&Lineage::default())).to_string();
            assert!(said.contains("after row 0") && said.ends_with("the token is wrong (stage `read`)"), "{said}");
        }
    }

    #[tokio::test]
    async fn pushing_waits_for_room_and_dropping_the_sender_ends_the_stream() {
        let (sender, mut source) = channel("program", 1);
        source.open(&cx()).await.unwrap();
        sender.send(batch(0..2)).await.unwrap();
        let full = tokio::time::timeout(std::time::Duration::from_millis(10), sender.send(batch(2..4))).await;
        assert!(full.is_err(), "there was no room");
        let pushing = std::thread::spawn(move || sender.blocking_send(batch(2..4)).unwrap());
        assert_eq!(rest(&mut source).await, [0, 1, 2, 3]);
        pushing.join().unwrap();
        let (sender, source) = channel("program", 1);
        drop(source);
        assert_eq!(sender.send(batch(0..1)).await.unwrap_err().num_rows(), 1);
    }
}
