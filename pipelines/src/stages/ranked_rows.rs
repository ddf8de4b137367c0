//! What `evaluate` keeps of the rows to rank their items after the last one: a vector of each item, and both vectors of each row with label
//! 1. Takes at most `(recall_items + 2 * recall_rows) * vector_dim` floats; ranking copies the items once more.

use forebay_base::mix64;
use forebay_batches::TrainBatch;
use forebay_job::EvaluationOptions;
use forebay_models::{ItemVectors, ModelSpec, TowerSide, TwoTowersLoss, rank_items};

use crate::metrics::retrieval::Retrieval;
use crate::metrics::sample_by_hash::SampleByHash;

/// The rows and items that are ranked. An item is what the slot of in-batch softmax says, or else all that the item tower reads. It has the
/// vector of its first row, by the order of the data.
pub(crate) struct RankedRows {
    /// Slots and dense features of the model.
    slots: usize,
    dense: usize,
    /// The slots, and the dense features, that say which item a row has.
    item_slots: Vec<usize>,
    item_dense: Vec<usize>,
    dim: usize,
    at: Vec<u32>,
    items: SampleByHash,
    /// `[items]` and `[items x dim]`.
    item_ids: Vec<u64>,
    item_vectors: Vec<f32>,
    rows: SampleByHash,
    /// `[rows]`, and `[rows x dim]` by user and item.
    row_items: Vec<u64>,
    weights: Vec<f64>,
    vectors: [Vec<f32>; 2],
    /// Rows so far, and those that may be ranked.
    seen: u64,
    positives: u64,
}

impl RankedRows {
    /// `None` if the model has no two towers.
    pub(crate) fn of(spec: Option<&ModelSpec>, options: &EvaluationOptions) -> Option<Self> {
        let spec = spec?;
        let two = spec.two_towers.as_ref()?;
        let inputs = two.inputs(TowerSide::Item);
        let (item_slots, item_dense) = match two.loss {
            TwoTowersLoss::InBatchSoftmax { item, .. } => (vec![item], Vec::new()),
            TwoTowersLoss::Logloss => (inputs.slots.clone(), inputs.dense.clone()),
        };
        Some(Self {
            slots: spec.slots,
            dense: spec.dense,
            item_slots,
            item_dense,
            dim: two.vector_dim,
            at: options.recall_at.clone(),
            items: SampleByHash::new(options.recall_items),
            item_ids: Vec::new(),
            item_vectors: Vec::new(),
            rows: SampleByHash::new(options.recall_rows),
            row_items: Vec::new(),
            weights: Vec::new(),
            vectors: Default::default(),
            seen: 0,
            positives: 0,
        })
    }

    /// Adds the rows of a batch, with the vectors of their users and items, `[n x dim]` each.
    pub(crate) fn add(&mut self, batch: &TrainBatch, [users, items]: &[Vec<f32>; 2]) {
        let dim = self.dim;
        for row in 0..batch.rows {
            let number = self.seen;
            self.seen += 1;
            let Some(item) = self.item_of(batch, row) else { continue };
            let of_row =
                |vectors: &[f32]| -> std::ops::Range<usize> { row * dim..((row + 1) * dim).min(vectors.len()) };
            if let Some(place) = self.items.add(item) {
                put(&mut self.item_ids, &[item], place);
                put(&mut self.item_vectors, &items[of_row(items)], place);
            }
            let weight = f64::from(batch.labels[row]) * batch.weights().map_or(1.0, |weights| f64::from(weights[row]));
            if weight > 0.0 {
                self.positives += 1;
                if let Some(place) = self.rows.add(number) {
                    put(&mut self.row_items, &[item], place);
                    put(&mut self.weights, &[weight], place);
                    put(&mut self.vectors[0], &users[of_row(users)], place);
                    put(&mut self.vectors[1], &items[of_row(items)], place);
                }
            }
        }
    }

    /// Which item a row has; `None` without a value in its slots.
    fn item_of(&self, batch: &TrainBatch, row: usize) -> Option<u64> {
        let (mut hash, mut values) = (0, 0);
        for &slot in &self.item_slots {
            let bag = row * self.slots + slot;
            let of_bag = match &batch.offsets {
                None => bag..bag + 1,
                Some(offsets) => offsets[bag] as usize..offsets[bag + 1] as usize,
            };
            for &at in &batch.inverse[of_bag] {
                hash = mix64(hash ^ batch.unique[at as usize]);
                values += 1;
            }
            // Where a list ends.
            hash = mix64(hash ^ slot as u64);
        }
        for &column in &self.item_dense {
            hash = mix64(hash ^ u64::from(batch.dense[row * self.dense + column].to_bits()));
        }
        (values > 0).then_some(hash)
    }

    /// Ranks the rows. `None` if no row with label 1 has an item. Blocks.
    pub(crate) fn measure(&self) -> Option<Retrieval> {
        let items = ItemVectors { ids: &self.item_ids, vectors: &self.item_vectors };
        let own = ItemVectors { ids: &self.row_items, vectors: &self.vectors[1] };
        let ranks = rank_items(items, &self.vectors[0], own, self.dim);
        let measured = Retrieval::of(&ranks, &self.weights, &self.at)?;
        let items = self.item_ids.len() as u64;
        // An estimate may be too low.
        let all_items = self.items.distinct().max(items + u64::from(self.items.is_partial()));
        Some(Retrieval { all_rows: self.positives, items, all_items, ..measured })
    }
}

/// Writes `values` at a place of a list of such values, or appends them if the place is its end.
fn put<T: Copy>(list: &mut Vec<T>, values: &[T], place: usize) {
    let at = place * values.len();
    match list.get_mut(at..at + values.len()) {
        Some(old) => old.copy_from_slice(values),
        None => list.extend_from_slice(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two towers over a slot each, without hidden layers, with vectors of 1 number.
    fn rows(loss: bool, settings: EvaluationOptions) -> RankedRows {
        let side = |slot| forebay_models::TowerInputs { slots: vec![slot], ..Default::default() };
        let spec = ModelSpec::two_towers(2, 0, 2, side(0), side(1), &[], 1);
        let spec = if loss { spec.with_in_batch_softmax(1, false) } else { spec };
        RankedRows::of(Some(&spec), &settings).unwrap()
    }

    /// Rows of user, item and label.
    fn batch(rows: &[(u64, Option<u64>, f32)]) -> TrainBatch {
        let (mut unique, mut offsets) = (Vec::new(), vec![0]);
        for &(user, item, _) in rows {
            for value in [Some(user), item] {
                unique.extend(value);
                offsets.push(unique.len() as u32);
            }
        }
        let inverse = (0..unique.len() as u32).collect();
        let labels = rows.iter().map(|row| row.2).collect();
        TrainBatch { rows: rows.len(), labels, unique, inverse, offsets: Some(offsets), ..TrainBatch::default() }
    }

    #[test]
    fn each_item_is_a_candidate_once_and_rows_without_one_are_left_out() {
        let some = [(1, Some(7), 1.0), (1, Some(8), 0.0), (2, None, 1.0), (2, Some(7), 0.5), (3, Some(9), 0.0)];
        let vectors = [vec![1.0, 1.0, 1.0, -1.0, 1.0], vec![0.1, 0.2, 9.0, 0.1, 0.3]];
        for loss in [true, false] {
            let mut rows = rows(loss, EvaluationOptions { recall_at: vec![1, 3], ..EvaluationOptions::default() });
            rows.add(&batch(&some[..2]), &vectors.each_ref().map(|of| of[..2].to_vec()));
            rows.add(&batch(&some[2..]), &vectors.each_ref().map(|of| of[2..].to_vec()));
            let found = rows.measure().unwrap();
            assert_eq!((found.rows, found.all_rows, found.items, found.all_items), (2, 2, 3, 3));
            // The first row's item is the last of three; the other user likes it most, and weighs half.
            let expected = [0.5 / 1.5, 1.0];
            assert!(found.recall.iter().zip(expected).all(|(found, is)| (found.recall - is).abs() < 1e-12), "{found}");
            assert!((found.mrr - (1.0 / 3.0 + 0.5) / 1.5).abs() < 1e-12, "{found}");
        }
    }

    #[test]
    fn samples_are_bounded_and_deterministic() {
        let options = EvaluationOptions { recall_items: 20, recall_rows: 30, ..EvaluationOptions::default() };
        let of = |cuts: usize| {
            let all: Vec<(u64, Option<u64>, f32)> = (0..400).map(|at| (at, Some(at % 90), 1.0)).collect();
            let mut rows = rows(true, options.clone());
            for some in all.chunks(cuts) {
                let numbers = |of: fn(u64) -> f32| some.iter().map(|row| of(row.0)).collect::<Vec<f32>>();
                rows.add(&batch(some), &[numbers(|at| at as f32 / 50.0 - 4.0), numbers(|at| (at % 90) as f32 / 9.0)]);
            }
            assert_eq!((rows.item_ids.len(), rows.vectors[0].len(), rows.vectors[1].len()), (20, 30, 30));
            rows.measure().unwrap()
        };
        let found = of(400);
        assert_eq!((found.rows, found.all_rows, found.items), (30, 400, 20));
        assert!((60..130).contains(&found.all_items), "{}", found.all_items);
        assert_eq!(of(7), found, "whatever the batches");
    }

    #[test]
    fn without_a_row_of_label_1_there_is_no_recall() {
        let mut rows = rows(true, EvaluationOptions::default());
        rows.add(&batch(&[(1, Some(7), 0.0)]), &[vec![1.0], vec![1.0]]);
        assert_eq!(rows.measure(), None);
        assert!(RankedRows::of(Some(&ModelSpec::ctr_dnn(1, 0, 2, &[3])), &EvaluationOptions::default()).is_none());
    }
}
