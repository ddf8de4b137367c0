//! The dictionaries of a file, loaded when the first of its batches needs them, and kept for the next ones.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use forebay_actors::Fault;
use futures::future::try_join_all;
use tokio::sync::OnceCell;

use super::blocks::Block;
use super::types::{decoded, loaded};
use super::unpack::{self, FetchedBuffers};
use crate::file::DataFile;

/// Sets of dictionaries that the cache keeps: with a shuffle, batches of several files alternate.
const KEPT: usize = 8;

/// A message with the values of a dictionary.
#[derive(Debug)]
pub(super) struct DictionaryBlock {
    pub(super) number: i64,
    /// The values are added to the earlier ones.
    pub(super) is_delta: bool,
    /// The type of the values in the file.
    pub(super) values: DataType,
    pub(super) block: Block,
}

/// The values of dictionaries, by their numbers.
pub(super) type Dictionaries = HashMap<i64, ArrayRef>;

/// The dictionaries that some batches of a file have, fetched at most once and decoded at most once.
#[derive(Default)]
pub(super) struct DictionarySet {
    state: OnceCell<Mutex<State>>,
}

enum State {
    Fetched(Vec<FetchedBuffers>),
    Decoded(Arc<Dictionaries>),
}

impl DictionarySet {
    /// Reads the buffers, unless they were read.
    pub(super) async fn fetch(&self, file: &DataFile, blocks: &[&DictionaryBlock]) -> Result<(), Fault> {
        let fetched = async || {
            let mut reads = Vec::with_capacity(blocks.len());
            for dictionary in blocks {
                reads.push(unpack::fetch(file, &dictionary.block));
            }
            Ok::<_, Fault>(Mutex::new(State::Fetched(try_join_all(reads).await?)))
        };
        self.state.get_or_try_init(fetched).await.map(|_| ())
    }

    /// The dictionaries. The first call decodes them; meanwhile calls of other threads wait.
    pub(super) fn decoded(&self, blocks: &[&DictionaryBlock]) -> Result<Arc<Dictionaries>, ArrowError> {
        let state = self.state.get().ok_or_else(|| ArrowError::IpcError("dictionaries were not fetched".to_owned()))?;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let fetched = match &mut *state {
            State::Decoded(dictionaries) => return Ok(Arc::clone(dictionaries)),
            State::Fetched(fetched) => std::mem::take(fetched),
        };
        if fetched.len() != blocks.len() {
            return Err(ArrowError::IpcError("its dictionaries cannot be read".to_owned()));
        }
        let mut dictionaries = Dictionaries::new();
        for (dictionary, fetched) in blocks.iter().zip(fetched) {
            let field = Arc::new(Field::new("", dictionary.values.clone(), true));
            // Dictionaries within a dictionary stand before it in the file.
            let schema = Schema::new(vec![decoded(&field)]);
            let values: RecordBatch = unpack::arrays(&dictionary.block, fetched, Arc::new(schema), &dictionaries)?;
            let mut values = cast(values.column(0), &loaded(&dictionary.values))?;
            if let Some(before) = dictionaries.get(&dictionary.number).filter(|_| dictionary.is_delta) {
                values = concat(&[before, &values])?;
            }
            dictionaries.insert(dictionary.number, values);
        }
        let dictionaries = Arc::new(dictionaries);
        *state = State::Decoded(Arc::clone(&dictionaries));
        Ok(dictionaries)
    }
}

/// Which batches have a set: (file, how many of its dictionaries stand before the batch).
type SetKey = (u32, usize);

/// The sets that were used last.
#[derive(Default)]
pub(super) struct DictionaryCache {
    /// Newest first.
    recent: Mutex<VecDeque<(SetKey, Arc<DictionarySet>)>>,
}

impl DictionaryCache {
    /// The set of these batches.
    pub(super) fn get(&self, file: u32, before: usize) -> Arc<DictionarySet> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let at = recent.iter().position(|(key, _)| *key == (file, before));
        let found = at.and_then(|at| recent.remove(at)).unwrap_or_else(|| ((file, before), Arc::default()));
        let set = Arc::clone(&found.1);
        recent.push_front(found);
        recent.truncate(KEPT);
        set
    }
}
