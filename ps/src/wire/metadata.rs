//! The metadata beside the columns: the [`Header`] of a push, the [`PullHeader`] of a pull, and the [`Answer`] to a request.

use std::time::Duration;

use bytes::Bytes;
use forebay_actors::Fault;
use forebay_net::{MetadataReader, MetadataWriter};

use crate::push::{AfterRound, PushId, PushOutcome, Round, Sender, Stamp, Trainer};

const ONCE: u8 = 1;
const TRAINER: u8 = 2;
const ROUND: u8 = 4;

const AFTER: u8 = 1;

const APPLIED: u8 = 1;
const FLOATS: u8 = 2;

/// The name of a push. Exponents of f16 blocks may follow it.
///
/// ```text
///   flags | trainers u32 | step u64 | series u64 | index u32 | rank u32 | incarnation u64 | rows u64
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) step: u64,
    pub(crate) stamp: Option<Stamp>,
}

impl Header {
    pub(crate) fn write(&self, exponents: &[i8]) -> Bytes {
        let id = self.stamp.map_or(PushId { series: 0, index: 0 }, |stamp| stamp.id);
        let trainer = self.stamp.and_then(|stamp| stamp.trainer);
        let round = self.stamp.and_then(|stamp| stamp.round);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        MetadataWriter::new(
            flag(self.stamp.is_some(), ONCE) | flag(trainer.is_some(), TRAINER) | flag(round.is_some(), ROUND),
        )
        .u32(round.map_or(0, |round| round.trainers))
        .u64(self.step)
        .u64(id.series)
        .u32(id.index)
        .u32(trainer.map_or(0, |trainer| trainer.rank))
        .u64(trainer.map_or(0, |trainer| trainer.incarnation))
        .u64(round.map_or(0, |round| round.rows))
        .finish(exponents.iter().map(|e| *e as u8))
    }

    /// The header, and the exponents after it.
    pub(crate) fn read(metadata: &[u8]) -> Result<(Self, Vec<i8>), Fault> {
        let mut fields = MetadataReader::new(metadata, "header", 44)?;
        let flags = fields.tag();
        if flags & !(ONCE | TRAINER | ROUND) != 0 || (flags & ONCE == 0 && flags != 0) || flags & 6 == ROUND {
            return Err(Fault::user(format!("a push has the flags {flags:#x}, which no client gives")));
        }
        let (trainers, step) = (fields.u32(), fields.u64());
        let id = PushId { series: fields.u64(), index: fields.u32() };
        let trainer = Trainer { rank: fields.u32(), incarnation: fields.u64() };
        let round = Round { trainers, rows: fields.u64() };
        let stamp = Stamp {
            id,
            trainer: (flags & TRAINER != 0).then_some(trainer),
            round: (flags & ROUND != 0).then_some(round),
        };
        let stamp = (flags & ONCE != 0).then_some(stamp);
        Ok((Self { step, stamp }, fields.tail().iter().map(|e| *e as i8).collect()))
    }
}

/// What a pull says beside its keys. A table's pull that waits for no round has no header.
///
/// ```text
///   flags | rank u32 | seen u64 | step u64 | incarnation u64
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PullHeader {
    /// The version of the dense values that the caller has; 0 if it has none.
    pub(crate) seen: u64,
    /// The round that the pull must see.
    pub(crate) after: Option<AfterRound>,
}

impl PullHeader {
    pub(crate) fn write(&self) -> Bytes {
        let (step, trainer) = self.after.map_or((0, Trainer { rank: 0, incarnation: 0 }), |a| (a.step, a.trainer));
        let flags = if self.after.is_some() { AFTER } else { 0 };
        MetadataWriter::new(flags).u32(trainer.rank).u64(self.seen).u64(step).u64(trainer.incarnation).finish([])
    }

    /// The header, or the default if there is no metadata. `sender`: the sender of the pull, if it is to be checked.
    pub(crate) fn read(metadata: &[u8], sender: Option<&Sender>) -> Result<Self, Fault> {
        if metadata.is_empty() {
            return Ok(Self::default());
        }
        let mut fields = MetadataReader::new(metadata, "header of a pull", 28)?;
        let flags = fields.tag();
        let (rank, seen, step, incarnation) = (fields.u32(), fields.u64(), fields.u64(), fields.u64());
        let after = match flags {
            0 => None,
            AFTER => Some(AfterRound { step, trainer: Trainer { rank, incarnation } }),
            _ => return Err(Fault::user(format!("a pull has the flags {flags:#x}, which no client gives"))),
        };
        if let (Some(after), Some(sender)) = (after, sender) {
            sender.check_pull(after)?;
        }
        Ok(Self { seen, after })
    }
}

/// The answer to a request. Exponents of f16 blocks may follow, or the values themselves when f16 cannot hold them.
///
/// ```text
///   flags | held u32, microseconds | number u64
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) pushed: PushOutcome,
    /// How long a pull of rows was held for the end of a round.
    pub(crate) held: Duration,
    /// The version of dense values.
    pub(crate) number: u64,
}

/// What follows an [`Answer`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tail {
    Exponents(Vec<i8>),
    Floats(Vec<f32>),
}

impl Answer {
    pub(crate) fn write(&self, tail: &Tail) -> Bytes {
        let applied = if self.pushed == PushOutcome::Applied { APPLIED } else { 0 };
        let held = u32::try_from(self.held.as_micros()).unwrap_or(u32::MAX);
        let fields = |flags| MetadataWriter::new(flags).u32(held).u64(self.number);
        match tail {
            Tail::Exponents(exponents) => fields(applied).finish(exponents.iter().map(|e| *e as u8)),
            Tail::Floats(floats) => fields(applied | FLOATS).finish(floats.iter().flat_map(|v| v.to_le_bytes())),
        }
    }

    pub(crate) fn read(metadata: &[u8]) -> Result<(Self, Tail), Fault> {
        let mut fields = MetadataReader::new(metadata, "answer", 12)?;
        let (flags, held, number) = (fields.tag(), fields.u32(), fields.u64());
        let held = Duration::from_micros(held.into());
        let pushed = if flags & APPLIED != 0 { PushOutcome::Applied } else { PushOutcome::Already };
        let rest = fields.tail();
        let tail = match flags & FLOATS != 0 {
            true => Tail::Floats(rest.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect()),
            false => Tail::Exponents(rest.iter().map(|e| *e as i8).collect()),
        };
        Ok((Self { pushed, held, number }, tail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn metadata_survives_writing_and_reading(
            step: u64, series: u64, index: u32, rank: u32, incarnation: u64, trainers: u32, rows: u64,
            exponents: Vec<i8>, floats: Vec<u32>, kind in 0..4,
        ) {
            let trainer = (kind >= 2).then_some(Trainer { rank, incarnation });
            let round = (kind >= 3).then_some(Round { trainers, rows });
            let stamp = (kind >= 1).then_some(Stamp { id: PushId { series, index }, trainer, round });
            let header = Header { step, stamp };
            prop_assert_eq!(Header::read(&header.write(&exponents)).unwrap(), (header, exponents.clone()));

            let after = (kind >= 2).then_some(AfterRound { step, trainer: Trainer { rank, incarnation } });
            let pull = PullHeader { seen: series, after };
            prop_assert_eq!(PullHeader::read(&pull.write(), None).unwrap(), pull);

            let pushed = if kind == 0 { PushOutcome::Applied } else { PushOutcome::Already };
            let answer = Answer { pushed, held: Duration::from_micros(rank.into()), number: series };
            for tail in [Tail::Exponents(exponents), Tail::Floats(floats.into_iter().map(|v| v as f32).collect())] {
                prop_assert_eq!(Answer::read(&answer.write(&tail)).unwrap(), (answer, tail));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut metadata: Vec<u8>, version: bool) {
            if let (Some(first), true) = (metadata.first_mut(), version) {
                *first = 1;
            }
            if let Ok((header, exponents)) = Header::read(&metadata) {
                prop_assert_eq!(Header::read(&header.write(&exponents)).unwrap(), (header, exponents));
            }
            if let Ok(pull) = PullHeader::read(&metadata, None) {
                prop_assert_eq!(PullHeader::read(&pull.write(), None).unwrap(), pull);
            }
            let _ = Answer::read(&metadata);
        }
    }

    #[test]
    fn a_refusal_says_what_was_found() {
        let said = |metadata: &[u8]| Header::read(metadata).unwrap_err().to_string();
        assert!(said(&[1; 47]).contains("47 bytes"));
        assert!(said(&[2; 48]).contains("version 2"));
        let mut metadata = Header { step: 1, stamp: None }.write(&[]).to_vec();
        metadata[1] = ROUND | ONCE;
        assert!(said(&metadata).contains("flags 0x5"));
        let said = |metadata: &[u8]| PullHeader::read(metadata, None).unwrap_err().to_string();
        assert!(said(&[1; 31]).contains("31 bytes; expected a header of a pull of 32"));
        assert!(said(&[1, 2].into_iter().chain([0; 30]).collect::<Vec<_>>()).contains("flags 0x2"));
    }
}
