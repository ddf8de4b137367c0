//! Which buffers of a message hold the wanted columns.

use std::ops::Range;

use arrow::datatypes::{DataType, Fields, UnionMode};
use arrow::ipc::{self, CompressionType, MetadataVersion};

use crate::nested::fields_within;
use crate::requests::coalesce;

/// The most rows of a batch, and elements of a column: columns without bytes, such as null, could claim any number.
const MOST_ROWS: i64 = i32::MAX as i64;

/// The wanted columns of one message, checked against its body.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) rows: u64,
    pub(super) version: MetadataVersion,
    /// Elements and nulls of each array.
    pub(super) nodes: Vec<(i64, i64)>,
    /// Places in the file of the buffers, in the order in which the arrays need them.
    pub(super) buffers: Vec<Range<u64>>,
    /// How many buffers each array of views has beyond its views.
    pub(super) views: Vec<i64>,
    pub(super) packed: Option<CompressionType>,
}

impl Block {
    /// The wanted columns of `batch`: the `places` of `fields`. `body` is the place of the batch's body in the file.
    ///
    /// # Errors
    /// What is wrong with the message.
    pub(super) fn new(
        batch: ipc::RecordBatch<'_>,
        version: MetadataVersion,
        body: &Range<u64>,
        fields: &Fields,
        places: &[usize],
    ) -> Result<Self, String> {
        if !(0..=MOST_ROWS).contains(&batch.length()) {
            return Err(format!("{} rows, from 0 to {MOST_ROWS} can be", batch.length()));
        }
        let all = Parts {
            nodes: batch.nodes().into_iter().flatten().map(|node| (node.length(), node.null_count())).collect(),
            buffers: batch.buffers().into_iter().flatten().map(|buffer| (buffer.offset(), buffer.length())).collect(),
            views: batch.variadicBufferCounts().into_iter().flatten().collect(),
        };
        let mut block = Self {
            rows: batch.length() as u64,
            version,
            nodes: Vec::new(),
            buffers: Vec::new(),
            views: Vec::new(),
            packed: batch.compression().map(|compression| compression.codec()),
        };
        let mut at = MessageCounts::default();
        for (place, field) in fields.iter().enumerate() {
            let from = at;
            at.add(field.data_type(), version, &all.views)?;
            if at.nodes > all.nodes.len() || at.buffers > all.buffers.len() {
                return Err(format!("it has no column `{}`, which its schema has", field.name()));
            }
            if !places.contains(&place) {
                continue;
            }
            let nodes = &all.nodes[from.nodes..at.nodes];
            if nodes.first().is_some_and(|node| node.0 != batch.length()) {
                return Err(format!("column `{}` has {} of {} rows", field.name(), nodes[0].0, batch.length()));
            }
            for &(elements, nulls) in nodes {
                if !(0..=MOST_ROWS).contains(&elements) || !(0..=elements).contains(&nulls) {
                    return Err(format!("column `{}` has {elements} elements, {nulls} of them null", field.name()));
                }
                block.nodes.push((elements, nulls));
            }
            for &(offset, length) in &all.buffers[from.buffers..at.buffers] {
                let range = || {
                    let from = body.start.checked_add(u64::try_from(offset).ok()?)?;
                    let to = from.checked_add(u64::try_from(length).ok()?)?;
                    (to <= body.end).then_some(from..to)
                };
                block.buffers.push(range().ok_or_else(|| {
                    let (name, body) = (field.name(), body.end - body.start);
                    format!("column `{name}` has {length} bytes at {offset} of {body}")
                })?);
            }
            block.views.extend(&all.views[from.views..at.views]);
        }
        Ok(block)
    }

    /// The requests for the buffers.
    pub(super) fn requests(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = self.buffers.iter().filter(|range| !range.is_empty()).cloned().collect();
        ranges.sort_by_key(|range| range.start);
        coalesce(&ranges)
    }

    /// Bytes of these requests.
    pub(super) fn cost(&self) -> u64 {
        self.requests().iter().map(|request| request.end - request.start).sum()
    }
}

struct Parts {
    nodes: Vec<(i64, i64)>,
    buffers: Vec<(i64, i64)>,
    views: Vec<i64>,
}

/// Arrays, buffers and arrays of views before a place of a message.
#[derive(Clone, Copy, Default)]
struct MessageCounts {
    nodes: usize,
    buffers: usize,
    views: usize,
}

impl MessageCounts {
    /// Passes over a column of this type.
    fn add(&mut self, kind: &DataType, version: MetadataVersion, views: &[i64]) -> Result<(), String> {
        self.nodes += 1;
        self.buffers += match kind {
            DataType::Null | DataType::RunEndEncoded(..) => 0,
            DataType::Struct(_) | DataType::FixedSizeList(..) => 1,
            DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => 3,
            DataType::ListView(_) | DataType::LargeListView(_) => 3,
            DataType::Utf8View | DataType::BinaryView => {
                let more = views.get(self.views).and_then(|&more| usize::try_from(more).ok());
                self.views += 1;
                more.and_then(|more| more.checked_add(2)).ok_or("the counts of its buffers of views")?
            }
            DataType::Union(_, mode) => {
                1 + usize::from(*mode == UnionMode::Dense) + usize::from(version < MetadataVersion::V5)
            }
            _ => 2,
        };
        fields_within(kind).into_iter().try_for_each(|field| self.add(field.data_type(), version, views))
    }
}
