//! The bytes of a file that is being written, also while a NameNode cannot be reached or a DataNode fails.
//!
//! hdfs-native gives a file up when a call to the NameNode fails, and when a DataNode of a new block is down: the NameNode names a dead
//! DataNode for ten minutes. Here the file is then started again, if all its bytes are still in memory. If not, it is closed (the NameNode
//! recovers its lease, and the DataNodes agree on its last block), and a new writer appends what is missing. The bytes in memory are those
//! that some DataNode may not have.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_base::Backoff;
use hdfs_native::file::FileWriter;
use hdfs_native::{HdfsError, WriteOptions};
use object_store::{Error, Result};
use tokio::time::{Instant, sleep};

use super::cluster::Cluster;
use super::connection::Connection;
use super::errors::from_hdfs;
use super::explain::{not_written, short};
use super::retry::{Repeat, lacks_ticket, may_pass};
use super::silence::{ANSWER_WITHIN, Heard, timeout_unless_heard, warn_while_silent};

/// The first and the longest pause between requests to close a file. A NameNode takes a request as a reason to begin the recovery of its
/// last block anew, if that has taken long: with requests every second, a recovery that waits a minute for a frozen DataNode never ends.
const CLOSE_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// Bytes that are handed over at once. Each such piece that the DataNodes take shows that they are not silent.
const PIECE: usize = 256 << 10;

/// Bytes that hdfs-native has taken, and that the DataNodes may not have acknowledged: it queues 100 packets to send and 100 that wait for
/// their acknowledgements, of 64 KiB each, unless the cluster sets another size.
const UNACKNOWLEDGED: u64 = 16 << 20;

/// After so long without a sign of a DataNode, a file whose bytes are all in memory is started again, perhaps on other DataNodes: this, and
/// more for each MiB, which may be under way without a sign.
const SILENCE: Duration = Duration::from_secs(5);
const PER_MEBIBYTE: Duration = Duration::from_secs(1);

/// After so long without a sign, no write is waited for: as long as Hadoop's client waits for a DataNode. hdfs-native has no time limit to
/// send to a DataNode, so it waits for one that is frozen, and its own recovery waits for that.
const HUNG: Duration = Duration::from_secs(60);

/// The bytes of a block of a file that is started again: Hadoop's default.
const ONE_BLOCK: u64 = 128 << 20;

/// A file under its hidden name.
pub(super) struct GrowingFile {
    cluster: Arc<Cluster>,
    place: String,
    hidden: String,
    /// `None`: the file is closed.
    writer: Option<FileWriter>,
    recent: RecentBytes,
}

impl GrowingFile {
    /// Makes the file `hidden`. `place` is the name that it gets later, for messages.
    pub(super) async fn create(cluster: Arc<Cluster>, place: &str, hidden: &str) -> Result<Self> {
        let writer = create(&cluster, place, hidden, cluster.write_options()).await?;
        let (place, hidden) = (place.to_owned(), hidden.to_owned());
        Ok(Self { cluster, place, hidden, writer: Some(writer), recent: RecentBytes::default() })
    }

    /// Bytes of the parts that were written.
    pub(super) fn bytes(&self) -> u64 {
        self.recent.end
    }

    /// Writes the next part, or closes the file. Waits for a NameNode that cannot be reached.
    pub(super) async fn advance(&mut self, part: Option<Bytes>) -> Result<()> {
        let (cluster, place, since) = (Arc::clone(&self.cluster), self.place.clone(), Instant::now());
        let mut backoff = Backoff::equal_jitter(Duration::from_millis(100), Duration::from_secs(1));
        let mut warned: Option<Instant> = None;
        let (closes, mut missing) = (part.is_none(), Vec::from_iter(part.clone()));
        self.recent.add(part);
        loop {
            let heard = Heard::default();
            // Later attempts wait longer: the network may be slow.
            let may_start_again = self.recent.is_whole() && since.elapsed() < cluster.timeout() / 2;
            let silence = match may_start_again {
                true => SILENCE + PER_MEBIBYTE * (self.recent.len() >> 20) as u32,
                false => HUNG,
            };
            let step = warn_while_silent(cluster.root(), &place, &heard, self.step(missing, closes, &heard));
            let done = timeout_unless_heard(silence, &heard, step).await.unwrap_or_else(|| Err(silent_for(silence)));
            let Err(error) = done else { return Ok(()) };
            let (wait, waited) = (backoff.next_wait(), since.elapsed());
            if !may_go_on(&error) {
                return Err(cluster.explain(&place, from_hdfs(error), false));
            }
            if waited + wait > cluster.timeout() {
                return Err(self.late(error, waited));
            }
            if warned.is_none_or(|warned| warned.elapsed() > ANSWER_WITHIN) {
                warned = Some(Instant::now());
                let error = short(&error);
                tracing::warn!(store = cluster.root(), path = %place, ?waited, %error, "a write was broken off, going on with it");
            }
            sleep(wait).await;
            let there = self.reopen(&error, since).await?;
            let Some(bytes) = self.recent.after(there) else {
                return Err(self.late(error, waited));
            };
            missing = bytes;
        }
    }

    /// Writes bytes, and closes the file if asked to. After an error the file may have some of the bytes, and has no writer.
    async fn step(&mut self, missing: Vec<Bytes>, closes: bool, heard: &Heard) -> hdfs_native::Result<()> {
        let mut open = self.writer.take();
        for mut bytes in missing {
            while !bytes.is_empty() {
                let writer = match &mut open {
                    Some(writer) => writer,
                    None => open.insert(self.cluster.connection().client.append(&self.hidden).await?),
                };
                writer.write_bytes(bytes.split_to(bytes.len().min(PIECE))).await?;
                heard.add();
            }
        }
        match open {
            Some(mut writer) if closes => writer.close().await,
            open => {
                self.writer = open;
                Ok(())
            }
        }
    }

    /// Makes a file whose writer is gone ready for more: anew and empty, if a connection failed and all bytes are in memory; otherwise
    /// closed. Returns its length.
    async fn reopen(&mut self, error: &HdfsError, since: Instant) -> Result<u64> {
        if self.recent.is_whole() && matches!(error, HdfsError::IOError(_) | HdfsError::DataTransferError(_)) {
            // One block, if that is possible: the NameNode may name the same DataNode for each block.
            let options = self.cluster.write_options();
            let block_bytes = options.block_size.unwrap_or(ONE_BLOCK).max(ONE_BLOCK);
            let options = options.block_size(block_bytes);
            self.writer = Some(create(&self.cluster, &self.place, &self.hidden, options).await?);
            return Ok(0);
        }
        self.close(since).await
    }

    /// Closes a file whose writer is gone, and returns its length.
    async fn close(&self, since: Instant) -> Result<u64> {
        let Self { cluster, place, hidden, .. } = self;
        let recover = |connection: Arc<Connection>| {
            let hidden = hidden.to_owned();
            async move {
                match connection.client.recover_lease(&hidden).await {
                    // The last block is complete as soon as a DataNode has reported it.
                    Err(HdfsError::AlreadyExists(_)) => Ok(false),
                    closed => closed.map_err(from_hdfs),
                }
            }
        };
        let (mut warned, mut pause) = (Instant::now(), CLOSE_AGAIN.0);
        while !cluster.call(place, Repeat::UntilAnswered, recover).await? {
            let waited = since.elapsed();
            if waited > cluster.timeout() {
                let open = "the DataNodes do not agree on its last block, so the NameNode does not close it";
                return Err(self.late(HdfsError::OperationFailed(open.into()), waited));
            }
            if warned.elapsed() > ANSWER_WITHIN {
                warned = Instant::now();
                tracing::warn!(store = cluster.root(), path = %place, ?waited, "the DataNodes do not agree yet on the last block, waiting for them");
            }
            sleep(pause).await;
            pause = (pause * 2).min(CLOSE_AGAIN.1);
        }
        let length = |connection: Arc<Connection>| {
            let hidden = hidden.to_owned();
            async move {
                let found = connection.client.get_file_info(&hidden).await;
                found.map(|file| file.length as u64).map_err(from_hdfs)
            }
        };
        cluster.call(place, Repeat::Always, length).await
    }

    /// The error of a write that was broken off and did not go on for that long.
    fn late(&self, error: HdfsError, waited: Duration) -> Error {
        match error {
            HdfsError::IOError(_) | HdfsError::DataTransferError(_) | HdfsError::OperationFailed(_) => {
                not_written(self.cluster.root(), &self.place, waited, &error)
            }
            error => self.cluster.explain(&self.place, from_hdfs(error), true),
        }
    }
}

/// Makes an empty file, in place of one that is being written.
async fn create(cluster: &Cluster, place: &str, hidden: &str, options: WriteOptions) -> Result<FileWriter> {
    let create = |connection: Arc<Connection>| {
        // An earlier call may have made the file, if its answer was lost.
        let (hidden, options) = (hidden.to_owned(), options.clone().overwrite(true));
        async move { connection.client.create(&hidden, options).await.map_err(from_hdfs) }
    };
    cluster.call(place, Repeat::UntilAnswered, create).await
}

fn silent_for(time: Duration) -> HdfsError {
    HdfsError::IOError(std::io::Error::new(ErrorKind::TimedOut, format!("nothing was heard for {time:?}")))
}

/// The last bytes of a file: those of the newest part, and those before it that DataNodes may lack.
#[derive(Default)]
struct RecentBytes {
    parts: VecDeque<Bytes>,
    /// Where the first of these parts begins, and where the last one ends.
    begin: u64,
    end: u64,
}

impl RecentBytes {
    fn add(&mut self, part: Option<Bytes>) {
        while let Some(first) = self.parts.front()
            && self.begin + first.len() as u64 + UNACKNOWLEDGED <= self.end
        {
            self.begin += first.len() as u64;
            self.parts.pop_front();
        }
        self.end += part.as_ref().map_or(0, Bytes::len) as u64;
        self.parts.extend(part);
    }

    fn len(&self) -> u64 {
        self.end - self.begin
    }

    /// Whether these are all bytes of the file.
    fn is_whole(&self) -> bool {
        self.begin == 0
    }

    /// The bytes after the first `there` of the file; `None` if some of them are not here.
    fn after(&self, there: u64) -> Option<Vec<Bytes>> {
        let mut at = self.begin;
        let mut after = Vec::new();
        for part in &self.parts {
            let begin = there.saturating_sub(at).min(part.len() as u64) as usize;
            after.push(part.slice(begin..));
            at += part.len() as u64;
        }
        (self.begin..=self.end).contains(&there).then_some(after)
    }
}

/// Whether the write can go on later: the NameNode cannot be reached, or waits for reports of its DataNodes (just after its start, or
/// because they are slow), a DataNode has failed, or the Kerberos ticket of the file has expired.
fn may_go_on(error: &HdfsError) -> bool {
    let said = match error {
        HdfsError::RPCError(_, said) | HdfsError::FatalRPCError(_, said) | HdfsError::OperationFailed(said) => {
            said.as_str()
        }
        _ => "",
    };
    let waits = [
        "is not sufficiently replicated yet",
        "Not replicated yet",
        "There are 0 datanode(s) running",
        "complete file in time",
    ];
    matches!(error, HdfsError::DataTransferError(_))
        || may_pass(error, Repeat::UntilAnswered)
        || lacks_ticket(error)
        || waits.iter().any(|text| said.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_that_datanodes_may_lack_are_kept_and_no_others() {
        let part = |byte: u8| Bytes::from(vec![byte; 6 << 20]);
        let mut recent = RecentBytes::default();
        for byte in 0..3 {
            recent.add(Some(part(byte)));
            assert!(recent.is_whole());
        }
        assert_eq!(recent.after(0).unwrap().concat(), [part(0), part(1), part(2)].concat());
        recent.add(Some(part(3)));
        assert!(recent.is_whole(), "18 MiB before the newest part, and without the first one only 12");
        recent.add(Some(part(4)));
        assert_eq!((recent.begin, recent.end), (6 << 20, 30 << 20));
        for (there, expected) in [
            (0, None),
            ((6 << 20) - 1, None),
            (6 << 20, Some([part(1), part(2), part(3), part(4)].concat())),
            ((25 << 20) + 1, Some(vec![4; (5 << 20) - 1])),
            (30 << 20, Some(Vec::new())),
            ((30 << 20) + 1, None),
        ] {
            assert_eq!(recent.after(there).map(|parts| parts.concat()), expected, "{there}");
        }
        recent.add(None);
        assert_eq!((recent.begin, recent.end), (12 << 20, 30 << 20), "18 MiB before the end");
    }

    #[test]
    fn a_write_goes_on_if_the_namenode_was_away_and_not_if_it_refused() {
        let rpc = |name: &str, said: &str| HdfsError::RPCError(format!("org.apache.hadoop.{name}"), said.into());
        for error in [
            HdfsError::IOError(ErrorKind::ConnectionAborted.into()),
            rpc("hdfs.server.namenode.SafeModeException", "Cannot complete file /a"),
            rpc("io.IOException", "append: lastBlock=blk_1 of src=/a is not sufficiently replicated yet."),
            rpc("hdfs.server.namenode.NotReplicatedYetException", "Not replicated yet: /a"),
            HdfsError::OperationFailed("Failed to complete file in time".into()),
            HdfsError::NoSASLMechanism,
            HdfsError::DataTransferError("All nodes failed for write".into()),
        ] {
            assert!(may_go_on(&error), "{error}");
        }
        for error in [
            rpc("hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota of /q is exceeded"),
            rpc("security.AccessControlException", "Permission denied"),
        ] {
            assert!(!may_go_on(&error), "{error}");
        }
    }
}
