//! Bytes on the links between machines, per row trained on: arithmetic, checked by measurements in `docs/cluster-performance.md`.

use forebay_job::{Job, Wire};

use super::demand::Demand;

/// The most keys of a batch whose places take 2 bytes.
const NARROW: f64 = 65_536.0;

/// Numbers of a row or a gradient that share an exponent in f16.
const EXPONENT_EVERY: f64 = 128.0;

/// Bytes per row trained on, with headers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    /// From readers to trainers.
    pub(super) batches: f64,
    /// From trainers to ps: keys and gradients.
    pub(super) to_ps: f64,
    /// From ps to trainers: rows.
    pub(super) from_ps: f64,
}

/// The sizes of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batches {
    /// Rows of a batch.
    pub(super) rows: f64,
    /// Weights of a table row.
    pub(super) weights: f64,
    /// Floats of optimizer state of a table row.
    pub(super) state: f64,
    /// Dense parameters that travel with each batch both ways: all if the ps hold them, else 0.
    pub(super) dense: f64,
    /// Whether rows travel with their state, for look-ahead.
    pub(super) whole_rows: bool,
    /// The share that headers of TLS, HTTP/2 and TCP add.
    pub(super) headers: f64,
}

impl Traffic {
    /// The traffic of a job whose rows cost `demand`.
    pub(super) fn of(job: &Job, demand: &Demand, batches: Batches) -> Self {
        let Batches { rows, weights, state, dense, whole_rows, headers } = batches;
        let Demand { keys, batch_bytes, pulled, .. } = *demand;
        let numbers = |count: f64| match job.placement.wire {
            Wire::F32 => 4.0 * count,
            Wire::F16 => 2.0 * count + 2.0 * count / EXPONENT_EVERY,
        };
        let columns = &job.columns;
        let fixed = 4.0 * (columns.dense_inputs() + columns.label.len()) as f64 + 8.0 * keys;
        // Lists also have offsets, which this formula leaves out: with lists the result is a little low.
        let bytes_of_value = if columns.has_value_weights() { 8.0 } else { 4.0 };
        let places = ((batch_bytes - fixed) / bytes_of_value).max(0.0);
        let narrow = if keys * rows <= NARROW { 2.0 * places } else { 0.0 };
        let dense = 4.0 * dense / rows;
        let (asked, down) = match whole_rows {
            true => (pulled * keys, 4.0 * pulled * keys * (weights + state)),
            false => (keys, numbers(keys * weights)),
        };
        Self {
            batches: headers * (batch_bytes - narrow),
            to_ps: headers * (8.0 * asked + 8.0 * keys + numbers(keys * weights) + dense),
            from_ps: headers * (down + dense),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of docs/cluster-performance.md, "The arithmetic": a batch of 2,048 rows with 6.77 keys a row.
    #[test]
    fn bytes_are_those_that_were_counted_at_the_network() {
        let job = |wire: &str| {
            let columns = "[columns]\nlabel = 'label'\ndense = ['I1..I13']\nslots = [{ column = 'C1..C26' }]\n";
            Job::from_toml(&format!("{columns}[placement]\nwire = '{wire}'"), &[]).unwrap()
        };
        let demand =
            Demand { keys: 6.77, batch_bytes: 4.0 + 52.0 + 26.0 * 4.0 + 6.77 * 8.0, pulled: 1.0, ..Demand::default() };
        let batches = Batches { rows: 2048.0, weights: 17.0, state: 34.0, dense: 0.0, whole_rows: false, headers: 1.0 };
        let rounded = |wire| {
            let Traffic { batches, to_ps, from_ps } = Traffic::of(&job(wire), &demand, batches);
            [batches, to_ps, from_ps].map(|bytes| bytes.round() as u64)
        };
        assert_eq!(rounded("f32"), [162, 569, 460]);
        assert_eq!(rounded("f16"), [162, 340, 232]);
        let wide = Traffic::of(&job("f32"), &demand, Batches { rows: 20_000.0, ..batches });
        assert_eq!(wide.batches.round(), 214.0);
        let ahead =
            Traffic::of(&job("f32"), &Demand { pulled: 0.5, ..demand }, Batches { whole_rows: true, ..batches });
        assert_eq!(ahead.from_ps.round(), (6.77 * 0.5 * 4.0 * 51.0_f64).round());
        let dense = Traffic::of(&job("f32"), &demand, Batches { dense: 2048.0, ..batches });
        assert_eq!((dense.to_ps.round(), dense.from_ps.round()), (573.0, 464.0));
    }
}
