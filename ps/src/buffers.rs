//! The buffers of one call: keys and values dealt out to all endpoints, handed over, and put back in their place.
//!
//! Comes in: keys and values of a caller. Goes out: the share of each way, then what came back. Handing over waits for room
//! at the endpoints, all at once, and [`Asked::answered`] for their answers; nothing blocks the thread.

use forebay_actors::Fault;
use futures::future::try_join_all;

use crate::endpoint::{Endpoint, PendingCall};
use crate::push::PushOutcome;
use crate::route::{Route, scatter};
use crate::shard::Call;

/// Buffers of one call, kept for the next.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) way_of: Vec<u32>,
    /// Per way.
    pub(crate) keys: Vec<Vec<u64>>,
    /// Per way.
    pub(crate) values: Vec<Vec<f32>>,
}

impl Buffers {
    /// Deals `keys` out to so many endpoints; with one there is nothing to split. Gives the first key that is none of theirs.
    pub(crate) fn split(&mut self, keys: &[u64], route: Route, endpoints: usize) -> Result<(), u64> {
        self.keys.resize_with(endpoints, Vec::new);
        self.values.resize_with(endpoints, Vec::new);
        match &mut self.keys[..] {
            [only] => {
                copy(keys, only);
                route.stray(keys).map_or(Ok(()), Err)
            }
            parts => route.split(keys, parts, &mut self.way_of),
        }
    }

    /// Deals rows of `dim` values out as [`split`](Self::split) did the keys.
    pub(crate) fn deal(&mut self, rows: &[f32], dim: usize) {
        deal(&self.way_of, rows, dim, &mut self.values);
    }

    /// Hands each way its share, all at once. Those without keys are asked when `all` are.
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
        Ok(Asked { calls: try_join_all(asked).await?, buffers: self })
    }
}

/// A call that every way has its share of. Dropped, it is answered all the same, to nobody.
pub(crate) struct Asked {
    /// With the number of the way.
    calls: Vec<(usize, PendingCall)>,
    buffers: Buffers,
}

impl Asked {
    /// Waits for all answers. A push is `Applied` when any of them applied it now.
    pub(crate) async fn answered(self) -> Result<(Buffers, PushOutcome), Fault> {
        let Self { calls, mut buffers } = self;
        let (places, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let answers: Vec<_> = calls.into_iter().map(PendingCall::buffers).collect();
        let mut became = PushOutcome::Already;
        for (i, (keys, values, pushed)) in places.into_iter().zip(try_join_all(answers).await?) {
            (buffers.keys[i], buffers.values[i]) = (keys, values);
            if pushed == PushOutcome::Applied {
                became = pushed;
            }
        }
        Ok((buffers, became))
    }
}

/// Deals rows of `dim` values out to `parts`; with one there is nothing to scatter.
pub(crate) fn deal(way_of: &[u32], rows: &[f32], dim: usize, parts: &mut [Vec<f32>]) {
    match parts {
        [only] => copy(rows, only),
        parts => scatter(way_of, rows, dim, parts),
    }
}

fn copy<T: Copy>(from: &[T], to: &mut Vec<T>) {
    to.clear();
    to.extend_from_slice(from);
}
