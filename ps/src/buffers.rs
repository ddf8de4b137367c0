//! The buffers of one call: its keys and values are split over the endpoints, sent, and returned.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_actors::Fault;
use futures::future::try_join_all;

use crate::endpoint::{Endpoint, PendingCall};
use crate::push::PushOutcome;
use crate::route::{Route, scatter};
use crate::shard::Call;

/// Buffers of one call, kept for the next.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The endpoint of each key.
    pub(crate) endpoint_of: Vec<u32>,
    /// Per endpoint.
    pub(crate) keys: Vec<Vec<u64>>,
    /// Per endpoint.
    pub(crate) values: Vec<Vec<f32>>,
}

impl Buffers {
    /// Splits `keys` over this many endpoints.
    ///
    /// # Errors
    /// The first key that belongs to no endpoint.
    pub(crate) fn split(&mut self, keys: &[u64], route: Route, endpoints: usize) -> Result<(), u64> {
        self.keys.resize_with(endpoints, Vec::new);
        self.values.resize_with(endpoints, Vec::new);
        match &mut self.keys[..] {
            [only] => {
                copy(keys, only);
                route.first_misrouted(keys).map_or(Ok(()), Err)
            }
            parts => route.split(keys, parts, &mut self.endpoint_of),
        }
    }

    /// Splits rows of `dim` values as [`split`](Self::split) did the keys.
    pub(crate) fn scatter_rows(&mut self, rows: &[f32], dim: usize) {
        scatter_or_copy(&self.endpoint_of, rows, dim, &mut self.values);
    }

    /// Sends each endpoint its share, all at once; endpoints without keys only if `all` is set. Waits for room in their
    /// mailboxes.
    pub(crate) async fn hand_over(
        mut self,
        endpoints: &[Endpoint],
        all: bool,
        call: impl Fn(Vec<u64>, Vec<f32>) -> Call,
    ) -> Result<Asked, Fault> {
        let mut asked = Vec::with_capacity(endpoints.len());
        for (i, (endpoint, (keys, values))) in
            endpoints.iter().zip(self.keys.iter_mut().zip(&mut self.values)).enumerate()
        {
            if keys.is_empty() && !all {
                values.clear();
            } else {
                let call = call(std::mem::take(keys), std::mem::take(values));
                asked.push(async move { Ok::<_, Fault>((i, endpoint.ask(call).await?)) });
            }
        }
        let at = Instant::now();
        Ok(Asked { calls: try_join_all(asked).await?, buffers: self, at })
    }
}

/// The buffers of calls that have ended.
///
/// At most [`MOST`](Self::MOST) are held: a burst of calls does not hold its memory for good.
#[derive(Default)]
pub(crate) struct SpareBuffers(Mutex<Vec<Buffers>>);

impl SpareBuffers {
    /// Twice the calls that wait in the mailbox of a shard.
    const MOST: usize = 16;

    pub(crate) fn take(&self) -> Buffers {
        self.lock().pop().unwrap_or_default()
    }

    pub(crate) fn keep(&self, buffers: Buffers) {
        let mut spare = self.lock();
        if spare.len() < Self::MOST {
            spare.push(buffers);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Buffers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call whose shares were sent. A drop does not stop the call.
pub(crate) struct Asked {
    /// Each call with the number of its endpoint.
    calls: Vec<(usize, PendingCall)>,
    buffers: Buffers,
    at: Instant,
}

/// What a call returns when all its shares have ended.
pub(crate) struct Answered {
    pub(crate) buffers: Buffers,
    pub(crate) pushed: PushOutcome,
    /// How long shards of this process held a pull for the end of a round.
    pub(crate) held: Duration,
}

impl Asked {
    /// Waits for all answers.
    pub(crate) async fn answered(self) -> Result<Answered, Fault> {
        let Self { calls, mut buffers, at } = self;
        let (places, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let answers: Vec<_> = calls.into_iter().map(PendingCall::buffers).collect();
        let (mut outcomes, mut held_until) = (Vec::with_capacity(places.len()), None);
        for (i, returned) in places.into_iter().zip(try_join_all(answers).await?) {
            (buffers.keys[i], buffers.values[i]) = returned.rows;
            outcomes.push(returned.pushed);
            held_until = held_until.max(returned.held_until);
        }
        let held = held_until.map_or(Duration::ZERO, |until| until - at);
        Ok(Answered { buffers, pushed: PushOutcome::of_all(&outcomes), held })
    }
}

/// Splits rows of `dim` values over `parts`, or copies them if there is one part.
pub(crate) fn scatter_or_copy(endpoint_of: &[u32], rows: &[f32], dim: usize, parts: &mut [Vec<f32>]) {
    match parts {
        [only] => copy(rows, only),
        parts => scatter(endpoint_of, rows, dim, parts),
    }
}

fn copy<T: Copy>(from: &[T], to: &mut Vec<T>) {
    to.clear();
    to.extend_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_calls_does_not_hold_its_buffers() {
        let spare = SpareBuffers::default();
        let burst: Vec<Buffers> = (0..100).map(|_| spare.take()).collect();
        for mut buffers in burst {
            buffers.endpoint_of.push(7);
            spare.keep(buffers);
        }
        let used = (0..100).filter(|_| spare.take().endpoint_of == [7]).count();
        assert_eq!(used, SpareBuffers::MOST);
    }
}
