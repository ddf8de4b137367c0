//! The file of the gradients that a trainer keeps at a cut. It is written while all trainers stand still, and a store may hang: then the
//! coordinator gives the cut up, and the trainer goes on.

use std::sync::Arc;

use forebay_actors::Fault;
use tokio::task::JoinHandle;

use crate::checkpoint::KeptWriter;
use crate::model_folder::FileEntry;

/// Writes the file for a checkpoint of this number and a cut of this number. Blocks on the store.
type Write = dyn Fn(u64, u64) -> Result<FileEntry, Fault> + Send + Sync;

/// Writes the kept gradients of this trainer, one file at a time.
pub(super) struct KeptFile {
    /// `None`: this trainer keeps no gradients.
    write: Option<Arc<Write>>,
    under_way: Option<UnderWay>,
}

/// A file that is being written. Its thread goes on for as long as the store hangs.
struct UnderWay {
    checkpoint: u64,
    cut: u64,
    thread: JoinHandle<Result<FileEntry, Fault>>,
}

impl KeptFile {
    /// Files that `keeper` writes.
    pub(super) fn of(keeper: Option<KeptWriter>) -> Self {
        let write =
            keeper.map(|keeper| Arc::new(move |checkpoint: u64, cut: u64| keeper.write(checkpoint, cut)) as Arc<Write>);
        Self { write, under_way: None }
    }

    /// The file for this cut, once it is written. `None`: this trainer keeps no gradients. Cancel safe: the next call for the same cut
    /// waits for the same file.
    ///
    /// # Errors
    /// The store fails, or has not taken the file of an earlier cut yet: no thread waits for a store that hangs beside another one.
    pub(super) async fn written(&mut self, checkpoint: u64, cut: u64) -> Result<Option<FileEntry>, Fault> {
        let Some(write) = &self.write else { return Ok(None) };
        if self.under_way.as_ref().is_some_and(|earlier| earlier.cut != cut && earlier.thread.is_finished()) {
            self.under_way = None;
        }
        let under_way = self.under_way.get_or_insert_with(|| {
            let write = Arc::clone(write);
            UnderWay { checkpoint, cut, thread: tokio::task::spawn_blocking(move || write(checkpoint, cut)) }
        });
        if under_way.cut != cut {
            let earlier = under_way.checkpoint;
            return Err(Fault::external(format!("the store has still not taken its part of checkpoint {earlier}")));
        }
        let written = (&mut under_way.thread).await;
        self.under_way = None;
        written.map_err(|e| Fault::of_task("the thread that writes gradients panicked", e))?.map(Some)
    }

    /// The number of the checkpoint whose file is being written.
    pub(super) fn under_way(&self) -> Option<u64> {
        self.under_way
            .as_ref()
            .filter(|under_way| !under_way.thread.is_finished())
            .map(|under_way| under_way.checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn entry(path: String) -> FileEntry {
        FileEntry { path, bytes: 0, xxh3: String::new(), rows: None, absent: None, group: None, cells: None }
    }

    /// Writes files to a store that takes one for each message of `takes`.
    fn hanging_until(takes: Receiver<()>) -> KeptFile {
        let takes = Mutex::new(takes);
        let write = move |checkpoint: u64, cut: u64| {
            takes.lock().unwrap().recv().map_err(|e| Fault::external("the store is gone").because(e))?;
            Ok(entry(format!("{checkpoint}-{cut}")))
        };
        KeptFile { write: Some(Arc::new(write)), under_way: None }
    }

    /// A bug: a trainer whose store hung stood still forever, and with it the run.
    #[tokio::test]
    async fn a_trainer_may_stop_waiting_for_a_store_that_hangs_and_no_second_thread_hangs() {
        let (take, takes) = channel();
        let mut file = hanging_until(takes);
        let moment = Duration::from_millis(20);
        for _ in 0..3 {
            assert!(timeout(moment, file.written(1, 70)).await.is_err(), "the store takes nothing");
            assert_eq!(file.under_way(), Some(1));
        }
        let fault = file.written(2, 71).await.unwrap_err().to_string();
        assert!(fault.contains("has still not taken its part of checkpoint 1"), "{fault}");
        // The call for the first cut is the only one, so one message ends it.
        take.send(()).unwrap();
        assert_eq!(file.written(1, 70).await.unwrap().unwrap().path, "1-70");
        assert_eq!(file.under_way(), None);
    }

    #[tokio::test]
    async fn a_file_that_comes_too_late_is_not_that_of_the_next_cut() {
        let (take, takes) = channel();
        let mut file = hanging_until(takes);
        assert!(timeout(Duration::from_millis(20), file.written(1, 70)).await.is_err());
        (0..2).for_each(|_| take.send(()).unwrap());
        let late = async {
            while file.under_way().is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), late).await.expect("the first file is written");
        assert_eq!(file.written(2, 71).await.unwrap().unwrap().path, "2-71");
        drop(take);
        let fault = file.written(3, 72).await.unwrap_err().to_string();
        assert!(fault.contains("the store is gone"), "{fault}");
        assert_eq!(KeptFile::of(None).written(4, 73).await.unwrap().map(|file| file.path), None);
    }
}
