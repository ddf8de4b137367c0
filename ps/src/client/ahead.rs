//! The part of a table's client for look-ahead: whole rows, the rounding of values on the wire, and the round trip.

use std::time::Duration;

use forebay_actors::Fault;
use futures::future::try_join_all;

use super::TableClient;
use crate::buffers::Asked;
use crate::endpoint::Endpoint;
use crate::half_block;
use crate::push::{PushId, Stamp};
use crate::route::gather;
use crate::shard::Call;
use crate::wire::messages::Wire;

impl TableClient {
    /// The round trip of a small request to the farthest process that holds shards.
    ///
    /// # Errors
    /// External: a process does not answer.
    pub async fn round_trip(&self) -> Result<Duration, Fault> {
        let all = try_join_all(self.endpoints.iter().map(Endpoint::round_trip)).await?;
        Ok(all.into_iter().max().unwrap_or_default())
    }

    /// Floats of a whole row: its weights, then its state.
    pub(crate) fn whole_dim(&self) -> usize {
        self.layout.whole_dim()
    }

    /// The first half of a pull of whole rows, `[keys x whole_dim]`. They are exact, even with f16 on the wire.
    ///
    /// # Errors
    /// As [`pull`](Self::pull). A user fault: the table has rules of admission or eviction, so a key may have no row.
    pub(crate) async fn ask_whole(&self, keys: &[u64]) -> Result<Asked, Fault> {
        self.check_not_read_only("pulls")?;
        let table = &self.layout.table;
        if self.config.has_lifetime() {
            return Err(Fault::user(format!(
                "whole rows of table `{table}` were asked for, but its keys are admitted or its rows removed by rules: a key may \
                 have no row; pull the weights instead"
            )));
        }
        if !self.config.groups.is_empty() {
            return Err(Fault::user(format!(
                "whole rows of table `{table}` were asked for, but it has groups whose rows differ; pull the weights instead"
            )));
        }
        self.split(keys)?.hand_over(&self.endpoints, false, |keys, rows| Call::PullWhole { keys, rows }).await
    }

    /// The second half: waits for the rows.
    pub(crate) async fn take_whole(&self, asked: Asked, rows: &mut Vec<f32>) -> Result<(), Fault> {
        self.take(asked, self.layout.whole_dim(), rows).await?;
        Ok(())
    }

    /// Whether the wire to ps processes rounds values: rows that [`peek`](Self::peek) returns are then not exact, rows of
    /// [`export`](Self::export) are.
    pub fn rounds_values(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.wire() == Some(Wire::F16))
    }

    /// Checks what [`push`](Self::push) checks before it asks a shard.
    pub(crate) fn check_push(&self, keys: &[u64], grads: &[f32], step: u64) -> Result<(), Fault> {
        Ok(self.layout.check_push(keys, grads, step)?)
    }

    /// Rounds `values`, `[keys x row_dim]`, as the wire does: pulled values or pushed gradients. With f16 the result depends on which
    /// values travel to a process together.
    pub(crate) fn as_sent(&self, keys: &[u64], values: &mut Vec<f32>) -> Result<(), Fault> {
        if !self.rounds_values() {
            return Ok(());
        }
        let (mut buffers, dim) = (self.split(keys)?, self.layout.row_dim);
        buffers.scatter_rows(values, dim);
        let (mut halves, mut exponents) = (Vec::new(), Vec::new());
        for part in &mut buffers.values {
            // Values that are not all finite travel as they are.
            if half_block::encode(part, &mut halves, &mut exponents) {
                half_block::decode(&halves, &exponents, part).map_err(Fault::internal)?;
            }
        }
        match &mut buffers.values[..] {
            [only] => std::mem::swap(only, values),
            parts => gather(&buffers.endpoint_of, parts, dim, values),
        }
        self.spare.keep(buffers);
        Ok(())
    }

    /// The name of a push of this client.
    pub(crate) fn stamp(&self, id: PushId) -> Stamp {
        Stamp { id, trainer: self.trainer, round: None }
    }
}
