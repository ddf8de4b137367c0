//! From `[model]` and the columns of the rows to FinalMLP: which slots its gates read.

use forebay_actors::Fault;
use forebay_base::nearest;
use forebay_models::{FeatureGates, FinalMlp, ModelSpec};

use super::{Job, ModelKind, ModelOptions};
use crate::columns::by_column;

/// By default: FuxiCTR's defaults.
const HEADS: usize = 1;
const GATE_HIDDEN: [usize; 1] = [64];

impl ModelOptions {
    /// FinalMLP, with gates that read no slot.
    pub(super) fn final_mlp(&self) -> FinalMlp {
        let hidden = self.gate_hidden.clone().unwrap_or_else(|| GATE_HIDDEN.to_vec());
        FinalMlp {
            second_hidden: self.second_hidden.clone(),
            heads: self.heads.unwrap_or(HEADS),
            gates: self.feature_gates.then(|| FeatureGates { hidden, ..FeatureGates::default() }),
            ..FinalMlp::new(&self.hidden)
        }
    }
}

impl Job {
    /// The FinalMLP of the job's model.
    ///
    /// # Errors
    /// User: a context column that is no slot.
    pub(super) fn final_mlp(&self) -> Result<ModelSpec, Fault> {
        let (model, columns) = (&self.model, &self.columns);
        let mut spec = model.spec(columns.slot_count(), columns.dense_inputs(), &columns.label.weights());
        let (first, second) = (self.context("first_context")?, self.context("second_context")?);
        if let Some(gates) = spec.final_mlp.as_mut().and_then(|parts| parts.gates.as_mut()) {
            (gates.first, gates.second) = (first, second);
        }
        Ok(spec)
    }

    /// The slots of the columns that a gate reads, ascending.
    fn context(&self, field: &str) -> Result<Vec<usize>, Fault> {
        let names = if field == "first_context" { &self.model.first_context } else { &self.model.second_context };
        let slots = &self.columns.slots;
        let of_columns = by_column(slots.iter().enumerate().map(|(at, slot)| (&slot.column, at)));
        let mut context: Vec<usize> = Vec::new();
        for name in names {
            let Some(named) = of_columns.get(name.as_str()) else {
                let near = nearest(name, slots.iter().map(|slot| slot.column.as_str()));
                let near = near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
                return Err(Fault::user(format!(
                    "model.{field} has `{name}`, which is not a column of columns.slots{near}"
                )));
            };
            context.extend(named);
        }
        let all = context.len();
        context.sort_unstable();
        context.dedup();
        if context.len() < all {
            return Err(Fault::user(format!("model.{field} names a column twice, expected once")));
        }
        Ok(context)
    }

    /// Checks the fields of FinalMLP; the fault names the field.
    pub(super) fn check_final_mlp(&self) -> Result<(), Fault> {
        let model = &self.model;
        let refuse = |what: String| Err(Fault::user(what));
        let contexts = [("first_context", &model.first_context), ("second_context", &model.second_context)];
        let named = contexts.into_iter().find(|(_, context)| !context.is_empty()).map(|(field, _)| field);
        if model.kind != ModelKind::FinalMlp {
            return Ok(());
        }
        if let (Some(field), false) = (named, model.feature_gates) {
            return refuse(format!(
                "model.{field} is the input of a gate, but model.feature_gates is false: leave one of them out"
            ));
        }
        let lists = [("hidden", Some(&model.hidden)), ("second_hidden", model.second_hidden.as_ref())];
        for (field, widths) in lists {
            if widths.is_some_and(Vec::is_empty) {
                return refuse(format!(
                    "model.{field} is empty, but each tower of \"final_mlp\" has hidden layers, for instance [400, 400]"
                ));
            }
        }
        let parts = model.final_mlp();
        let last = |widths: &[usize]| widths.last().copied().unwrap_or(0);
        let widths = [last(&model.hidden), last(model.second_hidden.as_ref().unwrap_or(&model.hidden))];
        if parts.heads == 0 || widths.iter().any(|width| !width.is_multiple_of(parts.heads)) {
            let [first, second] = widths;
            let most = (1..=parts.heads.min(first).min(second)).rev();
            let near = most.into_iter().find(|heads| first.is_multiple_of(*heads) && second.is_multiple_of(*heads));
            return refuse(format!(
                "model.heads is {}, expected a number that divides the last widths of both towers, {first} and {second}, for instance {}",
                parts.heads,
                near.unwrap_or(1)
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(model: &str) -> Job {
        let slots = "[columns]\nslots = ['user', 'item', 'city', { column = 'city', key_space = 'towns' }]";
        Job::from_toml(&format!("{slots}\n[model]\nkind = 'final_mlp'\nhidden = [8, 6]\n{model}"), &[]).unwrap()
    }

    #[test]
    fn fields_become_towers_gates_and_heads() {
        let spec = job("").model_spec().unwrap();
        assert_eq!(spec.final_mlp, Some(FinalMlp::new(&[8, 6])));
        let all = job("second_hidden = [4, 12]\nheads = 3\ngate_hidden = []\nfirst_context = ['city']\n\
                       second_context = ['item', 'user']\nactivation = 'gelu'\ndropout = 0.1");
        all.check().unwrap();
        assert_eq!(Job::from_toml(&all.to_toml(), &[]).unwrap(), all);
        let spec = all.model_spec().unwrap();
        spec.validate().unwrap();
        let parts = spec.final_mlp.unwrap();
        assert_eq!((parts.heads, parts.second_hidden), (3, Some(vec![4, 12])));
        let gates = FeatureGates { hidden: vec![], first: vec![2, 3], second: vec![0, 1] };
        assert_eq!((parts.gates, parts.tower.dropout), (Some(gates), 0.1));
        assert_eq!(job("feature_gates = false").model_spec().unwrap().final_mlp.unwrap().gates, None);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (model, words) in [
            ("heads = 0", "model.heads is 0, expected a number that divides the last widths of both towers, 6 and 6"),
            (
                "heads = 4",
                "model.heads is 4, expected a number that divides the last widths of both towers, 6 and 6, for instance 3",
            ),
            ("heads = 3\nsecond_hidden = [4]", "6 and 4, for instance 2"),
            ("second_hidden = []", "model.second_hidden is empty"),
            (
                "first_context = ['itm']",
                "model.first_context has `itm`, which is not a column of columns.slots, did you mean `item`?",
            ),
            ("second_context = ['item', 'item']", "model.second_context names a column twice"),
            ("second_context = ['item']\nfeature_gates = false", "model.feature_gates is false"),
        ] {
            let said = job(model).check().expect_err(model).to_string();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        let other = Job::from_toml("[model]\nfirst_context = ['C1']", &[]).unwrap().check().unwrap_err().to_string();
        assert!(
            other.contains("model.first_context is for the kind \"final_mlp\", but model.kind is \"wide_deep\""),
            "{other}"
        );
    }
}
