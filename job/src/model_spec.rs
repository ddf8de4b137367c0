//! From the options of a model and the columns of the rows to the structure of the model.

use forebay_actors::Fault;
use forebay_base::nearest;
use forebay_models::{Attention, AttentionPair, ModelSpec, Pooling, Tower};

use super::{Job, ModelKind};
use crate::columns::{Columns, WEIGHTS_OF_MAX};

impl Job {
    /// The structure of the job's model. The backend validates it. For an "own" model it has no parts.
    ///
    /// # Errors
    /// User: `[model]` and `[columns]` do not fit; the fault names the field.
    pub fn model_spec(&self) -> Result<ModelSpec, Fault> {
        let (model, columns) = (&self.model, &self.columns);
        let spec = match model.kind {
            ModelKind::TwoTowers => self.two_towers()?,
            ModelKind::FinalMlp => self.final_mlp()?,
            _ => model.spec(columns.slot_count(), columns.dense_inputs(), &columns.label.weights()),
        };
        if let Some(slot) = columns.slots.iter().find(|slot| slot.pooling.is_some() && model.kind == ModelKind::Own) {
            return Err(Fault::user(format!(
                "columns.slots: `{}` has a pooling, but model.kind is \"own\": such a model pools by itself; leave it \
                 out",
                slot.column
            )));
        }
        self.check_weights_of_values()?;
        let spec = self.with_widths(spec)?;
        let slots = columns.slots.iter().map(|slot| slot.pooling.unwrap_or(model.pooling));
        let pooling: Vec<Pooling> = slots.chain(columns.crosses.iter().map(|_| model.pooling)).collect();
        let alike = pooling.iter().all(|own| *own == model.pooling);
        let spec = if alike { spec } else { spec.with_slot_pooling(pooling) };
        if model.attention.is_empty() {
            return Ok(spec);
        }
        let unit = Tower { activation: model.attention_activation, ..Tower::new(&model.attention_hidden) };
        Ok(spec.with_attention(Attention { pairs: self.attention_pairs()?, unit }))
    }

    /// Refuses weights of values in slots where the model cannot use them.
    fn check_weights_of_values(&self) -> Result<(), Fault> {
        if !self.columns.has_value_weights() {
            return Ok(());
        }
        let of_attention = self.attention_pairs()?.into_iter().flat_map(|pair| {
            [(pair.history, "the history of an entry of model.attention"), (pair.target, "the target of one")]
        });
        let refused: Vec<(usize, &str)> =
            of_attention.chain(self.item_id_slot().map(|slot| (slot, "the item of in-batch softmax"))).collect();
        for (at, slot) in self.columns.slots.iter().enumerate().filter(|(_, slot)| slot.weights.is_some()) {
            let refuse = |what: &str| Err(Fault::user(format!("columns.slots: `{}`: {what}", slot.column)));
            if slot.pooling.is_none() && self.model.pooling == Pooling::Max && self.model.kind != ModelKind::Own {
                return refuse(WEIGHTS_OF_MAX);
            }
            if let Some((_, what)) = refused.iter().find(|(refused, _)| *refused == at) {
                return refuse(&format!("it has weights, which {what} cannot have: leave them out"));
            }
        }
        Ok(())
    }

    /// The slots in which a row may have at most one value: targets of attention, and the item of in-batch softmax.
    pub fn single_slots(&self) -> Vec<usize> {
        let targets = self.attention_pairs().unwrap_or_default().into_iter().map(|pair| pair.target);
        targets.chain(self.item_id_slot()).collect()
    }

    /// The slots of `model.attention`.
    fn attention_pairs(&self) -> Result<Vec<AttentionPair>, Fault> {
        let mut pairs: Vec<AttentionPair> = Vec::new();
        for entry in &self.model.attention {
            let history = slot_of(&self.columns, "history", &entry.history)?;
            let target = slot_of(&self.columns, "target", &entry.target)?;
            let refuse = |what: &str| Err(Fault::user(format!("model.attention: `{}` is {what}", entry.history)));
            if history == target {
                return refuse("both history and target, expected two slots");
            }
            if pairs.iter().any(|pair| pair.history == history) {
                return refuse("the history of two entries, expected one");
            }
            if self.columns.slots[history].pooling.is_some() {
                return refuse(
                    "a history, whose values attention makes one vector of, but its slot has a pooling: leave it out",
                );
            }
            pairs.push(AttentionPair { history, target });
        }
        match pairs.iter().find(|pair| pairs.iter().any(|other| other.target == pair.history)) {
            None => Ok(pairs),
            Some(pair) => Err(Fault::user(format!(
                "model.attention: `{}` is the history of one entry and the target of another, expected one of them",
                self.columns.slots[pair.history].column
            ))),
        }
    }
}

/// The number of the slot of this column.
fn slot_of(columns: &Columns, field: &str, name: &str) -> Result<usize, Fault> {
    let named: Vec<usize> = (0..columns.slots.len()).filter(|&at| columns.slots[at].column == name).collect();
    match named[..] {
        [slot] => Ok(slot),
        [] => {
            let near = nearest(name, columns.slots.iter().map(|slot| slot.column.as_str()));
            let near = near.map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
            Err(Fault::user(format!(
                "model.attention: {field} is `{name}`, which is not a column of columns.slots{near}"
            )))
        }
        _ => Err(Fault::user(format!(
            "model.attention: {field} is `{name}`, a column that has {} slots, expected one",
            named.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: &str = "[columns]\nslots = ['item', 'city', { column = 'city', key_space = 'town' }, \
                         { column = 'items', key_space = 'item' }, { column = 'seen', pooling = 'mean' }]\n[model]\n";

    fn job(model: &str) -> Job {
        Job::from_toml(&format!("{SLOTS}{model}"), &[]).unwrap()
    }

    #[test]
    fn names_of_columns_become_slots() {
        let spec = job("kind = 'din'\nattention = [{ history = 'items', target = 'item' }]").model_spec().unwrap();
        let attention = spec.attention.as_ref().unwrap();
        assert_eq!(attention.pairs, [AttentionPair { history: 3, target: 0 }]);
        assert_eq!((&attention.unit.hidden[..], spec.linear), (&[64][..], false));
        assert_eq!(spec.slot_pooling, [Pooling::Sum, Pooling::Sum, Pooling::Sum, Pooling::Sum, Pooling::Mean]);
        spec.validate().unwrap();
        let custom = "kind = 'custom'\nattention = [{ history = 'items', target = 'item' }]";
        assert_eq!(job(custom).model_spec().unwrap(), spec);
        let plain = Job::from_toml("[columns]\nslots = [{ column = 'a', pooling = 'sum' }, 'b']", &[]).unwrap();
        assert!(plain.model_spec().unwrap().slot_pooling.is_empty(), "all slots have that of the model");
    }

    #[test]
    fn attention_that_means_nothing_is_refused_by_name() {
        for (model, words) in [
            ("kind = 'din'", "model.attention is empty"),
            ("kind = 'fm'\nattention = [{ history = 'items', target = 'item' }]", "model.kind is \"fm\""),
            (
                "kind = 'din'\nattention = [{ history = 'itms', target = 'item' }]",
                "history is `itms`, which is not a column of",
            ),
            ("kind = 'din'\nattention = [{ history = 'itms', target = 'item' }]", "did you mean `items`?"),
            (
                "kind = 'din'\nattention = [{ history = 'items', target = 'city' }]",
                "target is `city`, a column that has 2 slots",
            ),
            (
                "kind = 'din'\nattention = [{ history = 'items', target = 'items' }]",
                "`items` is both history and target",
            ),
            (
                "kind = 'din'\nattention = [{ history = 'items', target = 'item' }, { history = 'items', target = 'seen' }]",
                "`items` is the history of two entries",
            ),
            (
                "kind = 'din'\nattention = [{ history = 'items', target = 'item' }, { history = 'item', target = 'seen' }]",
                "`item` is the history of one entry and the target of another",
            ),
            ("kind = 'din'\nattention = [{ history = 'seen', target = 'item' }]", "its slot has a pooling"),
        ] {
            let said = job(model).check().unwrap_err().to_string();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
    }

    #[test]
    fn weights_of_values_are_refused_where_the_model_has_no_use_for_them() {
        let slots = |item: &str, items: &str| {
            format!(
                "columns.slots=[{{ column = 'item'{item} }}, {{ column = 'items', key_space = 'item'{items} }}, 'user']"
            )
        };
        let weights = ", weights = 'w'";
        let din = "model={ kind = 'din', attention = [{ history = 'items', target = 'item' }] }";
        let towers = "model={ kind = 'two_towers', loss = 'in_batch_softmax', user = { slots = ['user', 'items'] }, \
                      item = { slots = ['item'] } }";
        let check = |slots: String, model: &str| {
            let settings = ["columns.label=y".to_owned(), "columns.dense=[]".to_owned(), slots, model.to_owned()];
            Job::from_toml("", &settings).map_err(|fault| fault.to_string())?.check().map_err(|fault| fault.to_string())
        };
        for (slots, model) in [
            (slots(weights, weights), "model={ kind = 'fm', pooling = 'mean' }"),
            (slots("", ", weights = 'w', pooling = 'sum'"), "model={ kind = 'fm', pooling = 'max' }"),
            (slots("", weights), towers),
        ] {
            check(slots, model).unwrap();
        }
        for (slots, model, words) in [
            (
                slots("", weights),
                "model={ kind = 'fm', pooling = 'max' }",
                "`items`: it has weights, which need the pooling",
            ),
            (
                slots("", weights),
                din,
                "`items`: it has weights, which the history of an entry of model.attention cannot have",
            ),
            (slots(weights, ""), din, "`item`: it has weights, which the target"),
            (slots(weights, ""), towers, "`item`: it has weights, which the item of in-batch softmax cannot have"),
        ] {
            let said = check(slots, model).unwrap_err();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
    }
}
