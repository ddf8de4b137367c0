//! Sends the rows of a model folder, a delta or a checkpoint to the shards.
//!
//! Slices are split and copied, a part for each shard. A checkpoint's rows come in buffers that the shards of this process read where
//! they are: each copies its own rows to their places, and nothing else is copied.

use std::ops::Range;
use std::sync::Arc;

use forebay_actors::Fault;
use futures::future::try_join_all;

use super::{TableClient, done};
use crate::buffers::scatter_or_copy;
use crate::endpoint::Endpoint;
use crate::imported_rows::ImportedRows;
use crate::lifetime::{Absent, RowUsage};
use crate::pending_import::PendingImport;
use crate::shard::Call;

impl TableClient {
    /// Sets the rows of `keys` to `weights`, `[keys x row_dim]`, and `state`, `[keys x state_dim]` (without: the state of a new row). Rows
    /// that exist are overwritten; if a key repeats, its last row counts. The rows may come from a table with another number of shards.
    ///
    /// Not cancel safe: dropped before it is ready, any number of shards may have set their share.
    ///
    /// # Errors
    /// A user fault, with nothing changed: a length that does not match, a value that training cannot reach (NaN,
    /// infinite, a negative sum of squares).
    pub async fn import(&self, keys: &[u64], weights: &[f32], state: Option<&[f32]>) -> Result<(), Fault> {
        self.import_with_usages(keys, weights, state, &[]).await
    }

    async fn import_with_usages(
        &self,
        keys: &[u64],
        weights: &[f32],
        state: Option<&[f32]>,
        usages: &[RowUsage],
    ) -> Result<(), Fault> {
        self.layout.check_import(keys, weights, state, usages)?;
        let mut buffers = self.split(keys)?;
        buffers.scatter_rows(weights, self.layout.row_dim);
        let mut states = vec![Vec::new(); self.endpoints.len()];
        if let Some(state) = state {
            scatter_or_copy(&buffers.endpoint_of, state, self.layout.state_dim, &mut states);
        }
        let mut lives_of = vec![Vec::new(); self.endpoints.len()];
        match &mut lives_of[..] {
            [only] => only.extend_from_slice(usages),
            parts => {
                usages.iter().zip(&buffers.endpoint_of).for_each(|(usage, part)| parts[*part as usize].push(*usage))
            }
        }
        let parts = buffers.keys.into_iter().zip(buffers.values).zip(states.into_iter().zip(lives_of));
        let mut asked = Vec::with_capacity(self.endpoints.len());
        for (endpoint, ((keys, weights), (states, usages))) in self.endpoints.iter().zip(parts) {
            asked.push(endpoint.call(Call::Import { keys, weights, state: state.map(|_| states), usages }));
        }
        done(&try_join_all(asked).await?)
    }

    /// As [`import`](Self::import), with the usages of the rows (none, or one for each key), and only for rows whose shards this client
    /// reaches. The client leaves out other rows, so that one of several processes can read the rows of all and take its own.
    ///
    /// # Errors
    /// As [`import`](Self::import). An internal fault: there are usages, and the shards are in other processes.
    pub async fn import_held(
        &self,
        keys: &[u64],
        weights: &[f32],
        state: Option<&[f32]>,
        usages: &[RowUsage],
    ) -> Result<(), Fault> {
        let held = self.route.held();
        if held == (0..self.route.shards()) {
            return self.import_with_usages(keys, weights, state, usages).await;
        }
        self.layout.check_import(keys, weights, state, usages)?;
        let (row_dim, state_dim) = (self.layout.row_dim, self.layout.state_dim);
        let (mut own_keys, mut own_weights, mut own_state) = (Vec::new(), Vec::new(), Vec::new());
        let mut own_usages = Vec::new();
        for (i, &key) in keys.iter().enumerate() {
            if held.contains(&self.route.shard(key)) {
                own_keys.push(key);
                own_weights.extend_from_slice(&weights[i * row_dim..][..row_dim]);
                if let Some(state) = state {
                    own_state.extend_from_slice(&state[i * state_dim..][..state_dim]);
                }
                own_usages.extend(usages.get(i));
            }
        }
        self.import_with_usages(&own_keys, &own_weights, state.map(|_| own_state.as_slice()), &own_usages).await
    }

    /// Removes the rows of these keys and sets the counts of their pushes, for the keys whose shards this client reaches.
    ///
    /// # Errors
    /// An internal fault: the shards are in other processes, or one died.
    pub async fn import_absent_held(&self, absent: &[Absent]) -> Result<(), Fault> {
        let mut parts = vec![Vec::new(); self.endpoints.len()];
        for absent in absent {
            if let Some(part) = parts.get_mut(self.held_endpoint(absent.key)) {
                part.push(*absent);
            }
        }
        let calls = self.endpoints.iter().zip(parts);
        let asked = calls.map(|(endpoint, absent)| endpoint.call(Call::ImportAbsent { absent }));
        done(&try_join_all(asked).await?)
    }

    /// Begins to set rows, as [`import_held`](Self::import_held) does, without a copy on their way: the shards of this process read the
    /// same buffers. The next rows may be begun meanwhile: each shard sets them in this order.
    ///
    /// # Errors
    /// As [`import_held`](Self::import_held).
    pub async fn begin_import(&self, rows: ImportedRows) -> Result<PendingImport, Fault> {
        let ImportedRows { keys, weights, state, usages } = &rows;
        let own_actors = self.endpoints.iter().all(|endpoint| matches!(endpoint, Endpoint::Shard(_)));
        if !own_actors || !self.layout.groups.is_empty() || u32::try_from(keys.len()).is_err() {
            self.import_held(keys, weights, state.as_deref(), usages).await?;
            return Ok(PendingImport(Vec::new()));
        }
        self.layout.check_import(keys, weights, state.as_deref(), usages)?;
        let (parts, rows) = (self.parts_of(keys), Arc::new(rows));
        let calls = parts.into_iter().map(|(endpoint, own)| {
            let rows = Arc::clone(&rows);
            self.endpoints[endpoint].ask(Call::ImportShared { rows, own })
        });
        Ok(PendingImport(try_join_all(calls).await?))
    }

    /// The endpoint of a key, if each is a shard of this process; a number that no endpoint has if another process holds the key.
    fn held_endpoint(&self, key: u64) -> usize {
        self.route.shard(key).wrapping_sub(self.route.held().start)
    }

    /// The endpoints, one for each shard, that hold any of the keys, with the places of their keys; `None`: all of them.
    fn parts_of(&self, keys: &[u64]) -> Vec<(usize, Option<Vec<u32>>)> {
        let Some(first) = keys.first().map(|key| self.held_endpoint(*key)) else { return Vec::new() };
        if keys.iter().all(|key| self.held_endpoint(*key) == first) {
            return if first < self.endpoints.len() { vec![(first, None)] } else { Vec::new() };
        }
        let mut parts = vec![Vec::new(); self.endpoints.len()];
        for (at, key) in keys.iter().enumerate() {
            if let Some(part) = parts.get_mut(self.held_endpoint(*key)) {
                part.push(at as u32);
            }
        }
        let own = |(endpoint, own): (usize, Vec<u32>)| (!own.is_empty()).then_some((endpoint, Some(own)));
        parts.into_iter().enumerate().filter_map(own).collect()
    }

    /// Tells the shards of this process how many rows are about to come, so that an empty index does not have to grow on the way. `rows`
    /// gives the number of the keys in a range of cells, about; a wrong number costs memory or time, and changes nothing else.
    ///
    /// # Errors
    /// An internal fault: a shard died.
    pub async fn expect_rows(&self, rows: impl Fn(Range<usize>) -> usize) -> Result<(), Fault> {
        for (endpoint, shard) in self.endpoints.iter().zip(self.route.held()) {
            if matches!(endpoint, Endpoint::Shard(_)) {
                endpoint.call(Call::ExpectRows { rows: rows(self.route.cells_of(shard)) }).await?;
            }
        }
        Ok(())
    }
}
