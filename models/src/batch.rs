//! The input and output of a dense model: a batch with its unique rows; loss, logits and gradients; named parameters.

use std::ops::Range;

use crate::ModelError;

/// One batch, borrowed: `n` rows, `t` labels (mostly 1), `s` slots, `d` dense features, `u` unique keys whose rows hold `row_dim` weights.
#[derive(Debug, Clone, Copy)]
pub struct DenseBatch<'a> {
    /// The name of the batch as a number: the same for every training on the batch. Dropout depends on this number and on the model's seed,
    /// so batches with one number lose the same units. Nothing else depends on the number.
    pub id: u64,
    /// `n`, the number of rows; at least 1.
    pub rows: usize,
    /// `[n x t]`, row-major, each from 0 to 1: `t` labels of each row. With several labels (`t > 1`), NaN is a label that the row lacks: it
    /// has no loss.
    pub labels: &'a [f32],
    /// `[n]`, each finite and at least 0: the factor of the loss of each row. `None`: 1 for every row.
    pub weights: Option<&'a [f32]>,
    /// `[n x d]`, row-major.
    pub dense: &'a [f32],
    /// `[u x row_dim]`, row-major: the table's rows of the keys in this batch, each key once.
    pub unique_rows: &'a [f32],
    /// For each value, its row in `unique_rows`. Bags lie row-major: row 0 slot 0, row 0 slot 1, ...
    pub inverse: &'a [u32],
    /// `None`: every bag holds one value, `inverse` is `[n * s]`. `Some`: `[n * s + 1]` offsets into `inverse`, the bag
    /// `b` holds the values `offsets[b]..offsets[b + 1]`, possibly none.
    pub offsets: Option<&'a [u32]>,
    /// `[values]`, each finite and at least 0: the factor of each value's row before the values of a bag are pooled, 1 for the values of
    /// slots without weights. A mean is divided by the sum of the weights, and is zeros if the sum is 0. Only with `offsets`; the largest
    /// of values (`max`) and attention do not read it. `None`: 1 for every value.
    pub value_weights: Option<&'a [f32]>,
}

/// The results of a training step. Pass the same value to each step: its buffers are reused.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutput {
    /// Mean over the rows of weight times binary cross-entropy, before the update; of several labels the weighted sum.
    pub loss: f64,
    /// `[n x t]`, before the update.
    pub logits: Vec<f32>,
    /// `[u x row_dim]`: gradient of the mean loss, summed per unique key.
    pub row_grads: Vec<f32>,
}

impl StepOutput {
    /// Checks that a model gave a finite loss, and logits and gradients for all of `batch`.
    ///
    /// # Errors
    /// [`ModelError::NonFinite`] and [`ModelError::Module`]. The text names `model`.
    pub fn check(&self, batch: &DenseBatch<'_>, model: &str) -> Result<(), ModelError> {
        batch.check_logits(&self.logits, model)?;
        if !self.loss.is_finite() {
            return Err(ModelError::NonFinite(format!("the loss of {model} is {}", self.loss)));
        }
        match (self.row_grads.len(), batch.unique_rows.len()) {
            (found, expected) if found != expected => {
                Err(ModelError::Module(format!("{model} gave {found} gradients of rows, expected {expected}")))
            }
            _ => Ok(()),
        }
    }
}

impl DenseBatch<'_> {
    /// Checks that a model gave a logit for each label of each row.
    ///
    /// # Errors
    /// [`ModelError::Module`]. The text names `model`.
    pub fn check_logits(&self, logits: &[f32], model: &str) -> Result<(), ModelError> {
        match (logits.len(), self.labels.len()) {
            (found, expected) if found != expected => Err(ModelError::Module(format!(
                "{model} gave {found} logits for a batch of {} rows, expected {expected}",
                self.rows
            ))),
            _ => Ok(()),
        }
    }
}

/// A dense parameter by name: `data` is row-major, as long as the product of `shape`.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// For example `tower.0.weight`.
    pub name: String,
    /// A linear layer's weight is `[outputs, inputs]`, as in PyTorch.
    pub shape: Vec<usize>,
    /// The numbers.
    pub data: Vec<f32>,
}

/// The sizes a batch must have to fit a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Categorical columns.
    pub slots: usize,
    /// Dense features.
    pub dense: usize,
    /// Weights per key.
    pub row_dim: usize,
    /// Labels of a row.
    pub labels: usize,
}

impl DenseBatch<'_> {
    /// Some rows of a batch that fits its model, as a batch with the same unique rows. `offsets` holds the offsets of the part, if the
    /// batch has offsets. Panics if `rows` are not within the batch.
    pub fn part<'b>(&'b self, rows: Range<usize>, offsets: &'b mut Vec<u32>) -> DenseBatch<'b> {
        let of = |values: usize| rows.start * values..rows.end * values;
        let (labels, dense) = (self.labels.len() / self.rows, self.dense.len() / self.rows);
        let values = match self.offsets {
            None => of(self.inverse.len() / self.rows),
            Some(all) => {
                let bags = of((all.len() - 1) / self.rows);
                let (first, end) = (all[bags.start], all[bags.end]);
                offsets.clear();
                offsets.extend(all[bags.start..=bags.end].iter().map(|offset| offset - first));
                first as usize..end as usize
            }
        };
        DenseBatch {
            id: self.id,
            rows: rows.len(),
            labels: &self.labels[of(labels)],
            weights: self.weights.map(|weights| &weights[rows.clone()]),
            dense: &self.dense[of(dense)],
            unique_rows: self.unique_rows,
            inverse: &self.inverse[values.clone()],
            offsets: self.offsets.map(|_| &**offsets),
            value_weights: self.value_weights.map(|weights| &weights[values]),
        }
    }

    /// `u`, the number of unique keys, for rows of `row_dim` weights.
    pub fn unique(&self, row_dim: usize) -> usize {
        self.unique_rows.len() / row_dim.max(1)
    }

    /// Checks every length and index once, so that the inner loops need no checks: after `Ok`, each value names a unique row, each bag lies
    /// within `inverse`, and each label is from 0 to 1, or, with several labels, NaN.
    ///
    /// # Errors
    /// [`ModelError::Batch`] with what was found and what was expected.
    pub fn check(&self, shape: BatchShape) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Batch(what));
        let BatchShape { slots, dense, row_dim, labels } = shape;
        let n = self.rows;
        if n == 0 {
            return refuse("no rows, at least one is needed".into());
        }
        let Some(bags) = n.checked_mul(slots).filter(|&bags| bags < u32::MAX as usize) else {
            return refuse(format!(
                "{n} rows of {slots} slots are more bags than 32 bits can number: use smaller batches"
            ));
        };
        if Some(self.labels.len()) != n.checked_mul(labels) {
            let of = if labels == 1 { String::new() } else { format!(" of {labels} labels") };
            return refuse(format!("{} labels for {n} rows{of}", self.labels.len()));
        }
        if let Some(weights) = self.weights {
            if weights.len() != n {
                return refuse(format!("{} weights for {n} rows", weights.len()));
            }
            if let Some(row) = weights.iter().position(|weight| !(weight.is_finite() && *weight >= 0.0)) {
                return refuse(format!("the weight of row {row} is {}, expected a number of at least 0", weights[row]));
            }
        }
        if Some(self.dense.len()) != n.checked_mul(dense) {
            return refuse(format!("{} dense numbers, expected {n} rows of {dense}", self.dense.len()));
        }
        if row_dim == 0 || !self.unique_rows.len().is_multiple_of(row_dim) {
            return refuse(format!("{} weights are no whole number of rows of {row_dim}", self.unique_rows.len()));
        }
        let unique = self.unique(row_dim);
        match self.offsets {
            None if self.inverse.len() != bags => {
                return refuse(format!("{} values for {n} rows of {slots} slots, expected {bags}", self.inverse.len()));
            }
            None => {}
            Some(offsets) => check_offsets(offsets, bags, self.inverse.len())?,
        }
        if let Some(weights) = self.value_weights {
            if self.offsets.is_none() || weights.len() != self.inverse.len() {
                let bags = if self.offsets.is_none() { ", which are in no bags" } else { "" };
                return refuse(format!("{} weights for {} values{bags}", weights.len(), self.inverse.len()));
            }
            if let Some(value) = weights.iter().position(|weight| !(weight.is_finite() && *weight >= 0.0)) {
                let found = weights[value];
                return refuse(format!("the weight of value {value} is {found}, expected a number of at least 0"));
            }
        }
        // The maximum is one vectorised pass. Only the message needs the slow search.
        if self.inverse.iter().copied().max().is_some_and(|largest| largest as usize >= unique) {
            let at = self.inverse.iter().position(|&row| row as usize >= unique).unwrap_or_default();
            return refuse(format!("value {at} names unique row {}, but there are {unique}", self.inverse[at]));
        }
        let lacks = |label: &f32| labels > 1 && label.is_nan();
        if let Some(at) = self.labels.iter().position(|label| !(0.0..=1.0).contains(label) && !lacks(label)) {
            let which = if labels == 1 { String::new() } else { format!(" {}", at % labels) };
            return refuse(format!("the label{which} of row {} is {}, expected 0 to 1", at / labels, self.labels[at]));
        }
        Ok(())
    }

    /// Finds the first number of the inputs that is not finite, for an error that names the cause.
    pub fn first_non_finite(&self, shape: BatchShape) -> Option<String> {
        let bad = |numbers: &[f32]| numbers.iter().position(|x| !x.is_finite());
        if let Some(at) = bad(self.dense) {
            let (row, column) = (at / shape.dense, at % shape.dense);
            return Some(format!("dense feature {column} of row {row} is {}", self.dense[at]));
        }
        bad(self.unique_rows).map(|at| {
            let (row, column) = (at / shape.row_dim, at % shape.row_dim);
            format!("weight {column} of unique row {row} is {}", self.unique_rows[at])
        })
    }
}

fn check_offsets(offsets: &[u32], bags: usize, values: usize) -> Result<(), ModelError> {
    let refuse = |what: String| Err(ModelError::Batch(what));
    if offsets.len() != bags + 1 {
        return refuse(format!("{} offsets for {bags} bags, expected {}", offsets.len(), bags + 1));
    }
    if offsets[0] != 0 || offsets[bags] as usize != values {
        return refuse(format!("offsets run from {} to {}, expected 0 to {values}", offsets[0], offsets[bags]));
    }
    if let Some(bag) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        return refuse(format!("offsets of bag {bag} run backwards, from {} to {}", offsets[bag], offsets[bag + 1]));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: BatchShape = BatchShape { slots: 2, dense: 1, row_dim: 3, labels: 1 };

    fn good() -> DenseBatch<'static> {
        DenseBatch {
            id: 0,
            rows: 2,
            labels: &[0.0, 1.0],
            weights: None,
            dense: &[0.5, -1.0],
            unique_rows: &[0.0; 9],
            inverse: &[0, 2, 1, 0],
            offsets: None,
            value_weights: None,
        }
    }

    fn message(batch: DenseBatch<'_>) -> String {
        batch.check(SHAPE).expect_err("must be refused").to_string()
    }

    #[test]
    fn a_batch_that_fits_passes() {
        good().check(SHAPE).unwrap();
        DenseBatch { offsets: Some(&[0, 0, 4, 4, 4]), ..good() }.check(SHAPE).unwrap();
        DenseBatch { offsets: Some(&[0, 0, 4, 4, 4]), value_weights: Some(&[0.0, 0.5, 1.0, 2.0]), ..good() }
            .check(SHAPE)
            .unwrap();
        assert_eq!(good().unique(3), 3);
    }

    #[test]
    fn a_part_has_the_values_of_its_rows() {
        let mut offsets = vec![7];
        let single = DenseBatch { weights: Some(&[2.0, 3.0]), ..good() };
        let part = single.part(1..2, &mut offsets);
        part.check(SHAPE).unwrap();
        assert_eq!((part.rows, part.labels, part.weights), (1, &[1.0][..], Some(&[3.0][..])));
        assert_eq!((part.dense, part.inverse, part.offsets), (&[-1.0][..], &[1, 0][..], None));
        let bags = DenseBatch { offsets: Some(&[0, 1, 2, 2, 4]), value_weights: Some(&[1.0, 2.0, 3.0, 4.0]), ..good() };
        let part = bags.part(1..2, &mut offsets);
        part.check(SHAPE).unwrap();
        assert_eq!((part.inverse, part.offsets), (&[1, 0][..], Some(&[0, 0, 2][..])));
        assert_eq!(part.value_weights, Some(&[3.0, 4.0][..]));
        assert_eq!(bags.part(0..2, &mut offsets).offsets, bags.offsets);
    }

    #[test]
    fn each_contradiction_is_named() {
        assert!(message(DenseBatch { rows: 0, ..good() }).contains("no rows"));
        assert!(message(DenseBatch { rows: usize::MAX, ..good() }).contains("32 bits"));
        assert!(message(DenseBatch { labels: &[0.0], ..good() }).contains("1 labels for 2 rows"));
        assert!(message(DenseBatch { labels: &[0.0, 2.0], ..good() }).contains("label of row 1 is 2"));
        assert!(message(DenseBatch { labels: &[f32::NAN, 1.0], ..good() }).contains("label of row 0 is NaN"));
        assert!(message(DenseBatch { weights: Some(&[1.0]), ..good() }).contains("1 weights for 2 rows"));
        let two = |labels: &[f32]| {
            let shape = BatchShape { labels: 2, ..SHAPE };
            DenseBatch { labels, ..good() }.check(shape).map_err(|error| error.to_string())
        };
        assert_eq!(two(&[0.0, 1.0, 1.0, 0.5]), Ok(()));
        assert_eq!(two(&[0.0, f32::NAN, 1.0, 0.5]), Ok(()), "a row may lack one of several labels");
        assert!(two(&[0.0, 1.0]).unwrap_err().contains("2 labels for 2 rows of 2 labels"));
        assert!(two(&[0.0, 1.0, 1.0, 1.5]).unwrap_err().contains("label 1 of row 1 is 1.5"));
        for (weight, shown) in [(-1.0, "-1"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
            let said = message(DenseBatch { weights: Some(&[0.0, weight]), ..good() });
            assert!(said.contains(&format!("weight of row 1 is {shown}")), "{said}");
        }
        assert!(message(DenseBatch { dense: &[0.0], ..good() }).contains("2 rows of 1"));
        assert!(message(DenseBatch { unique_rows: &[0.0; 8], ..good() }).contains("no whole number"));
        assert!(message(DenseBatch { inverse: &[0, 0, 0], ..good() }).contains("3 values"));
        assert!(message(DenseBatch { inverse: &[0, 0, 3, 0], ..good() }).contains("value 2 names unique row 3"));
        let offsets = |offsets| message(DenseBatch { offsets: Some(offsets), ..good() });
        assert!(offsets(&[0, 4]).contains("2 offsets for 4 bags"));
        assert!(offsets(&[0, 1, 2, 3, 5]).contains("from 0 to 5"));
        assert!(offsets(&[0, 3, 2, 3, 4]).contains("bag 1 run backwards"));
        let weighted = |weights, offsets| message(DenseBatch { value_weights: Some(weights), offsets, ..good() });
        assert!(weighted(&[1.0; 4], None).contains("4 weights for 4 values, which are in no bags"));
        assert!(weighted(&[1.0; 3], Some(&[0, 0, 4, 4, 4])).contains("3 weights for 4 values"));
        for (weight, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-0.5, "-0.5")] {
            let batch = DenseBatch { offsets: Some(&[0, 0, 4, 4, 4]), ..good() };
            let said = message(DenseBatch { value_weights: Some(&[1.0, 1.0, weight, 1.0]), ..batch });
            assert!(said.contains(&format!("the weight of value 2 is {shown}")), "{said}");
        }
    }

    #[test]
    fn the_first_bad_number_is_named_with_row_and_column() {
        assert_eq!(good().first_non_finite(SHAPE), None);
        let named = DenseBatch { dense: &[0.0, f32::INFINITY], ..good() }.first_non_finite(SHAPE).unwrap();
        assert_eq!(named, "dense feature 0 of row 1 is inf");
        let mut rows = [0.0; 9];
        rows[7] = f32::NAN;
        let named = DenseBatch { unique_rows: &rows, ..good() }.first_non_finite(SHAPE).unwrap();
        assert_eq!(named, "weight 1 of unique row 2 is NaN");
    }
}
