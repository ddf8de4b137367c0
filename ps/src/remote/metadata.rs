//! The metadata beside the columns: what a push is, and what became of it. Fixed layouts, little-endian, with a version.
//!
//! Comes in: a [`Header`] or an [`Answer`] to send; bytes of anybody to read. Goes out: the other, or a user fault. Nothing
//! blocks.

use bytes::Bytes;
use forebay_actors::Fault;

use crate::push::{PushId, PushOutcome, Round, Stamp, Trainer};

const VERSION: u8 = 1;

/// Bytes of a [`Header`].
const HEADER: usize = 48;

/// Bytes of an [`Answer`].
const ANSWER: usize = 16;

const ONCE: u8 = 1;
const TRAINER: u8 = 2;
const ROUND: u8 = 4;

const APPLIED: u8 = 1;
const FLOATS: u8 = 2;

/// What a push says of itself. Exponents of f16 blocks may follow it.
///
/// ```text
///   0 version u8 | flags u8 | 0 u16 | trainers u32 | step u64 | source u64 | sequence u32 | rank u32 | incarnation u64 | rows u64
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) step: u64,
    pub(crate) stamp: Option<Stamp>,
}

impl Header {
    pub(crate) fn write(&self, exponents: &[i8]) -> Bytes {
        let id = self.stamp.map_or(PushId { source: 0, sequence: 0 }, |stamp| stamp.id);
        let trainer = self.stamp.and_then(|stamp| stamp.trainer);
        let round = self.stamp.and_then(|stamp| stamp.round);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.stamp.is_some(), ONCE) | flag(trainer.is_some(), TRAINER) | flag(round.is_some(), ROUND);
        let mut metadata = Vec::with_capacity(HEADER + exponents.len());
        metadata.extend([VERSION, flags, 0, 0]);
        metadata.extend(round.map_or(0, |round| round.trainers).to_le_bytes());
        metadata.extend(self.step.to_le_bytes());
        metadata.extend(id.source.to_le_bytes());
        metadata.extend(id.sequence.to_le_bytes());
        metadata.extend(trainer.map_or(0, |trainer| trainer.rank).to_le_bytes());
        metadata.extend(trainer.map_or(0, |trainer| trainer.incarnation).to_le_bytes());
        metadata.extend(round.map_or(0, |round| round.rows).to_le_bytes());
        metadata.extend(exponents.iter().map(|e| *e as u8));
        metadata.into()
    }

    /// The header, and the exponents after it.
    pub(crate) fn read(metadata: &[u8]) -> Result<(Self, Vec<i8>), Fault> {
        let (head, rest) = fixed::<HEADER>(metadata, "header")?;
        let flags = head[1];
        if flags & !(ONCE | TRAINER | ROUND) != 0 || (flags & ONCE == 0 && flags != 0) || flags & 6 == ROUND {
            return Err(Fault::user(format!("a push has the flags {flags:#x}, which no client gives")));
        }
        let (trainers, step) = (u32_at(head, 4), u64_at(head, 8));
        let id = PushId { source: u64_at(head, 16), sequence: u32_at(head, 24) };
        let trainer = Trainer { rank: u32_at(head, 28), incarnation: u64_at(head, 32) };
        let round = Round { trainers, rows: u64_at(head, 40) };
        let stamp = Stamp {
            id,
            trainer: (flags & TRAINER != 0).then_some(trainer),
            round: (flags & ROUND != 0).then_some(round),
        };
        let stamp = (flags & ONCE != 0).then_some(stamp);
        Ok((Self { step, stamp }, rest.iter().map(|e| *e as i8).collect()))
    }
}

/// What comes back. Exponents of f16 blocks may follow, or the values themselves when f16 cannot hold them.
///
/// ```text
///   0 version u8 | flags u8 | 0 u16 | 0 u32 | number u64
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) pushed: PushOutcome,
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
        let (floats, size) = match tail {
            Tail::Exponents(exponents) => (0, exponents.len()),
            Tail::Floats(floats) => (FLOATS, floats.len() * 4),
        };
        let mut metadata = Vec::with_capacity(ANSWER + size);
        metadata.extend([VERSION, applied | floats, 0, 0, 0, 0, 0, 0]);
        metadata.extend(self.number.to_le_bytes());
        match tail {
            Tail::Exponents(exponents) => metadata.extend(exponents.iter().map(|e| *e as u8)),
            Tail::Floats(floats) => metadata.extend(floats.iter().flat_map(|v| v.to_le_bytes())),
        }
        metadata.into()
    }

    pub(crate) fn read(metadata: &[u8]) -> Result<(Self, Tail), Fault> {
        let (head, rest) = fixed::<ANSWER>(metadata, "answer")?;
        let pushed = if head[1] & APPLIED != 0 { PushOutcome::Applied } else { PushOutcome::Already };
        let tail = match head[1] & FLOATS != 0 {
            true => Tail::Floats(rest.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect()),
            false => Tail::Exponents(rest.iter().map(|e| *e as i8).collect()),
        };
        Ok((Self { pushed, number: u64_at(head, 8) }, tail))
    }
}

fn fixed<'a, const N: usize>(metadata: &'a [u8], what: &str) -> Result<(&'a [u8; N], &'a [u8]), Fault> {
    let Some((head, rest)) = metadata.split_first_chunk::<N>() else {
        return Err(Fault::user(format!(
            "a metadata of {} bytes came where the {what} of {N} bytes belongs",
            metadata.len()
        )));
    };
    match head[0] {
        VERSION => Ok((head, rest)),
        found => {
            Err(Fault::user(format!("a metadata has version {found}; expected {VERSION}: run one version everywhere")))
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u64_at(bytes, at) as u32
}

/// The little-endian bytes from `at` on, as many as there are up to eight.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.iter().skip(at).take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(
            step: u64, source: u64, sequence: u32, rank: u32, incarnation: u64, trainers: u32, rows: u64,
            exponents: Vec<i8>, floats: Vec<u32>, kind in 0..4,
        ) {
            let trainer = (kind >= 2).then_some(Trainer { rank, incarnation });
            let round = (kind >= 3).then_some(Round { trainers, rows });
            let stamp = (kind >= 1).then_some(Stamp { id: PushId { source, sequence }, trainer, round });
            let header = Header { step, stamp };
            prop_assert_eq!(Header::read(&header.write(&exponents)).unwrap(), (header, exponents.clone()));

            let pushed = if kind == 0 { PushOutcome::Applied } else { PushOutcome::Already };
            let answer = Answer { pushed, number: source };
            for tail in [Tail::Exponents(exponents), Tail::Floats(floats.into_iter().map(|v| v as f32).collect())] {
                prop_assert_eq!(Answer::read(&answer.write(&tail)).unwrap(), (answer, tail));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut metadata: Vec<u8>, version: bool) {
            if let (Some(first), true) = (metadata.first_mut(), version) {
                *first = VERSION;
            }
            if let Ok((header, exponents)) = Header::read(&metadata) {
                prop_assert_eq!(Header::read(&header.write(&exponents)).unwrap(), (header, exponents));
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
    }
}
