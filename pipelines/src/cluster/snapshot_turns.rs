//! The snapshots of a ps, one after the other: a state machine over the requests of the trainer, without a clock and without IO.
//!
//! A request may come twice, and late: a `begin` that arrives when another snapshot has begun must not take its place.

use std::collections::VecDeque;

use forebay_actors::Fault;

use super::ps_snapshots::SnapshotRequest;

/// This many earlier snapshots are remembered, so that their requests are not taken for new ones.
const REMEMBERED: usize = 256;

/// The snapshots of one ps in one attempt of the run. `F` is what a snapshot wrote.
#[derive(Debug)]
pub(super) struct SnapshotTurns<F> {
    turn: Turn<F>,
    /// The tries of earlier snapshots.
    over: VecDeque<u64>,
}

/// The last snapshot.
#[derive(Debug)]
enum Turn<F> {
    None,
    /// The shards begin.
    Beginning(SnapshotRequest),
    Writing(SnapshotRequest),
    Written(SnapshotRequest, Result<F, Fault>),
    Kept(SnapshotRequest),
}

impl<F> Default for SnapshotTurns<F> {
    fn default() -> Self {
        Self { turn: Turn::None, over: VecDeque::new() }
    }
}

impl<F> SnapshotTurns<F> {
    /// The trainer asks for a snapshot. Returns whether the snapshot must begin: false if an earlier copy of the request has begun it.
    ///
    /// # Errors
    /// A retryable fault if another snapshot is not written yet, or this one is about to begin. An external fault if another snapshot
    /// has taken its place.
    pub(super) fn begin(&mut self, request: SnapshotRequest) -> Result<bool, Fault> {
        if self.over.contains(&request.try_id) {
            let number = request.number;
            return Err(Fault::external(format!("a later snapshot than that for checkpoint {number} has begun here")));
        }
        let before = match &self.turn {
            Turn::Writing(known) | Turn::Written(known, _) | Turn::Kept(known) if *known == request => {
                return Ok(false);
            }
            // The trainer goes on after the answer, so a request that was sent again is answered when all shards have begun.
            Turn::Beginning(known) if *known == request => {
                return Err(Fault::external("the snapshot is about to begin").retryable());
            }
            Turn::Beginning(_) | Turn::Writing(_) => {
                return Err(Fault::external("an earlier snapshot is still written").retryable());
            }
            Turn::Written(known, _) | Turn::Kept(known) => Some(known.try_id),
            Turn::None => None,
        };
        self.over.extend(before);
        if self.over.len() > REMEMBERED {
            self.over.pop_front();
        }
        self.turn = Turn::Beginning(request);
        Ok(true)
    }

    /// The shards could not begin. The request may come again.
    pub(super) fn cannot_begin(&mut self) {
        self.turn = Turn::None;
    }

    /// All shards have begun.
    pub(super) fn begun(&mut self, request: SnapshotRequest) {
        self.turn = Turn::Writing(request);
    }

    /// The files are written, or could not be written.
    pub(super) fn wrote(&mut self, request: SnapshotRequest, files: Result<F, Fault>) {
        self.turn = Turn::Written(request, files);
    }

    /// What the snapshot wrote. `None`: it is still written.
    ///
    /// # Errors
    /// Why the files could not be written. An external fault if the snapshot is not the last one.
    pub(super) fn written(&self, request: SnapshotRequest) -> Result<Option<&F>, Fault> {
        match &self.turn {
            Turn::Beginning(known) | Turn::Writing(known) if *known == request => Ok(None),
            Turn::Written(known, files) if *known == request => files.as_ref().map(Some).map_err(Clone::clone),
            _ => Err(not_begun(request)),
        }
    }

    /// A checkpoint has the files. Returns what the snapshot wrote, once.
    ///
    /// # Errors
    /// An external fault if it is not the last one that was written.
    pub(super) fn keep(&mut self, request: SnapshotRequest) -> Result<Option<F>, Fault> {
        match std::mem::replace(&mut self.turn, Turn::Kept(request)) {
            Turn::Written(known, Ok(files)) if known == request => Ok(Some(files)),
            Turn::Kept(known) if known == request => Ok(None),
            other => {
                self.turn = other;
                Err(not_begun(request))
            }
        }
    }
}

fn not_begun(request: SnapshotRequest) -> Fault {
    Fault::external(format!("no snapshot for checkpoint {} is under way here", request.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64, try_id: u64) -> SnapshotRequest {
        SnapshotRequest { number, try_id, full: true }
    }

    fn taken(turns: &mut SnapshotTurns<u64>, request: SnapshotRequest) {
        assert!(turns.begin(request).unwrap());
        assert!(turns.begin(request).unwrap_err().retryable, "the shards have not begun");
        turns.begun(request);
        assert!(!turns.begin(request).unwrap() && turns.written(request).unwrap().is_none());
        turns.wrote(request, Ok(request.number));
        assert!(!turns.begin(request).unwrap());
        assert_eq!(turns.written(request).unwrap(), Some(&request.number));
    }

    /// Found by the simulation: the late copy replaced the snapshot that was written, and the checkpoint of this snapshot was lost.
    #[test]
    fn a_late_copy_of_an_earlier_request_does_not_take_the_place_of_a_later_snapshot() {
        let mut turns = SnapshotTurns::default();
        taken(&mut turns, request(1, 70));
        assert_eq!((turns.keep(request(1, 70)).unwrap(), turns.keep(request(1, 70)).unwrap()), (Some(1), None));
        // The first try of the second checkpoint is given up.
        taken(&mut turns, request(2, 71));
        taken(&mut turns, request(2, 72));
        for late in [request(1, 70), request(2, 71)] {
            let fault = turns.begin(late).unwrap_err();
            assert!(!fault.retryable && fault.to_string().contains("a later snapshot"), "{fault}");
            assert!(turns.written(late).is_err() && turns.keep(late).is_err());
        }
        assert_eq!(turns.keep(request(2, 72)).unwrap(), Some(2));
        taken(&mut turns, request(3, 73));
    }

    #[test]
    fn a_snapshot_that_could_not_begin_or_be_written_makes_way_for_the_next_try() {
        let mut turns: SnapshotTurns<u64> = SnapshotTurns::default();
        assert!(turns.begin(request(1, 70)).unwrap());
        assert!(turns.begin(request(1, 71)).unwrap_err().retryable, "one at a time");
        turns.cannot_begin();
        assert!(turns.written(request(1, 70)).is_err());
        assert!(turns.begin(request(1, 70)).unwrap(), "the same request again");
        turns.begun(request(1, 70));
        turns.wrote(request(1, 70), Err(Fault::external("the disk is full")));
        assert!(turns.written(request(1, 70)).unwrap_err().to_string().contains("the disk is full"));
        assert!(turns.keep(request(1, 70)).is_err());
        for try_id in 0..2 * REMEMBERED as u64 {
            taken(&mut turns, request(1, 1000 + try_id));
        }
        assert_eq!(turns.over.len(), REMEMBERED);
    }
}
