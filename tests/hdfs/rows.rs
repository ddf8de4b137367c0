//! Rows with the ids `0..n`, on the cluster and through a pipeline: a test can check that each came once.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, Int64Array, RecordBatch, UInt64Array};
use arrow::datatypes::Int64Type;
use forebay::actors::{Fault, Place, Report, Sink, StageCx, Topology};
use forebay::connectors::{Input, ParquetSource, ReadOptions, Rows};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::cluster::{Cluster, write_in_blocks};
use super::common;

/// Rows of a row group; 16 bytes each, which do not compress.
const GROUP: usize = 40_000;

/// A Parquet file of `rows` rows from `first` on.
pub(crate) fn file(first: i64, rows: usize) -> Vec<u8> {
    let ids = Int64Array::from_iter_values(first..first + rows as i64);
    let noise = (0..rows as u64).map(|i| (i + first as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
    let noise = UInt64Array::from_iter_values(noise);
    let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as _), ("noise", Arc::new(noise) as _)]).unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(GROUP))
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// Writes `files` files of `rows` rows each below `folder`, with consecutive ids.
pub(crate) async fn write_files(cluster: &Cluster, folder: &str, files: usize, rows: usize, block: u64) {
    let client = cluster.client();
    for i in 0..files {
        let path = format!("{folder}/part-{i}.parquet");
        write_in_blocks(&client, &path, &file((i * rows) as i64, rows), Some(block)).await;
    }
}

/// Little is fetched ahead, so that a run reads most bytes after the test broke something.
pub(crate) fn options() -> ReadOptions {
    ReadOptions { batch_rows: 16_000, read_ahead_bytes: 4 << 20, decode_ahead_bytes: 1 << 18, ..ReadOptions::default() }
}

/// Keeps the ids. Halts once, at a row, until a message comes. Each batch takes `pause`.
struct Tally {
    ids: Arc<Mutex<Vec<i64>>>,
    pause: Duration,
    halt: Option<(usize, Sender<()>, Receiver<()>)>,
    /// When it began to wait for the next batch, and the longest such wait.
    since: Option<Instant>,
    longest_wait: Arc<Mutex<Duration>>,
}

impl Sink for Tally {
    type In = Rows;

    fn describe(&self) -> String {
        "keeps the ids".into()
    }

    async fn write(&mut self, rows: Rows, _cx: &StageCx) -> Result<(), Fault> {
        if let Some(since) = self.since {
            let mut longest = self.longest_wait.lock().unwrap();
            *longest = longest.max(since.elapsed());
        }
        let all = {
            let mut ids = self.ids.lock().unwrap();
            ids.extend(rows.batch.column_by_name("id").unwrap().as_primitive::<Int64Type>().values());
            ids.len()
        };
        if let Some((_, reached, go_on)) = self.halt.take_if(|(at, ..)| all >= *at) {
            reached.send(()).unwrap();
            let _ = go_on.recv();
        }
        std::thread::sleep(self.pause);
        self.since = Some(Instant::now());
        Ok(())
    }
}

/// What a run left.
pub(crate) struct Run {
    pub(crate) result: Result<(), Fault>,
    pub(crate) report: Report,
    /// In the order in which they came.
    pub(crate) ids: Vec<i64>,
    /// The longest time between two batches, without the work for them and the halt.
    pub(crate) longest_wait: Duration,
}

impl Run {
    /// Each of the ids `0..rows` came once, and the ledger says the same.
    pub(crate) fn is_whole(&self, rows: usize) {
        self.result.as_ref().unwrap();
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        assert!(ids == (0..rows as i64).collect::<Vec<_>>(), "{} of {rows} rows, some twice or lost", ids.len());
        assert_eq!(self.report.ledger.read, rows as u64);
        assert_eq!(self.report.ledger.delivered, rows as u64);
    }

    /// What it failed with.
    pub(crate) fn fault(&self) -> String {
        format!("{:#}", self.result.as_ref().expect_err("the run should have failed"))
    }
}

/// Reads all rows at a URL through a pipeline. After `at` rows the pipeline halts while `then` breaks something; `then`
/// may send a message to let it continue earlier.
pub(crate) fn run(url: &str, pause: Duration, at: usize, then: impl FnOnce(&Sender<()>)) -> Run {
    let (input, ids) = (Input::from(url), Arc::new(Mutex::new(Vec::new())));
    let ((reached, halted), (release, go_on)) = (channel(), channel());
    let longest_wait = Arc::new(Mutex::new(Duration::ZERO));
    let halt = Some((at, reached, go_on));
    let tally = Tally { ids: Arc::clone(&ids), pause, halt, since: None, longest_wait: Arc::clone(&longest_wait) };
    let running = Topology::new("hdfs")
        .source("read", Place::Shared, move || ParquetSource::new(input, options()))
        .link(1)
        .sink("tally", Place::Own, move || tally)
        .start()
        .unwrap();
    match halted.recv_timeout(common::DEADLINE) {
        Ok(()) => then(&release),
        Err(RecvTimeoutError::Disconnected) => {}
        Err(RecvTimeoutError::Timeout) => panic!("no {at} rows after {:?}", common::DEADLINE),
    }
    drop(release);
    let outcome = running.wait();
    let ids = std::mem::take(&mut *ids.lock().unwrap());
    let longest_wait = *longest_wait.lock().unwrap();
    Run { result: outcome.result, report: outcome.report, ids, longest_wait }
}
