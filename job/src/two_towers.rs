//! From `[model]` and the columns of the rows to two towers: which slots and dense features each reads, and the loss.

use forebay_actors::Fault;
use forebay_base::nearest;
use forebay_models::{ModelSpec, Similarity, TowerInputs, TowerSide};
use forebay_ps::Storage;

use super::{Job, ModelKind, TowerLoss};
use crate::columns::{SlotCross, by_column};

/// By default: see `docs/quality.md`.
pub(super) const VECTOR_DIM: usize = 64;
const TEMPERATURE: f32 = 0.2;
const TEMPERATURE_IN_BATCH: f32 = 0.05;
/// The temperature of inner products, which have no largest value.
const TEMPERATURE_OF_DOT: f32 = 1.0;

impl Job {
    /// The two towers of the job's model, without pooling.
    pub(super) fn two_towers(&self) -> Result<ModelSpec, Fault> {
        let (model, columns) = (&self.model, &self.columns);
        let [user, item] = TowerSide::BOTH.map(|side| self.tower_inputs(side));
        let (user, item) = (user?, item?);
        let names: Vec<String> = columns.slots.iter().map(|slot| slot.column.clone()).collect();
        let names: Vec<String> = names.into_iter().chain(columns.crosses.iter().map(SlotCross::key_space)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        each_in_one("slots", &names, &user.slots, &item.slots)?;
        let mut dense_names = Vec::new();
        for dense in &columns.dense {
            dense_names.extend(std::iter::repeat_n(dense.column.as_str(), dense.inputs()));
        }
        each_in_one("dense", &dense_names, &user.dense, &item.dense)?;
        let temperature = model.temperature.unwrap_or(match (model.similarity, model.loss) {
            (Similarity::Cosine, TowerLoss::Logloss) => TEMPERATURE,
            (Similarity::Cosine, TowerLoss::InBatchSoftmax) => TEMPERATURE_IN_BATCH,
            (Similarity::Dot, _) => TEMPERATURE_OF_DOT,
        });
        let vector_dim = model.vector_dim.unwrap_or(VECTOR_DIM);
        let item_slot = self.item_slot(&item)?;
        let (slots, dense, dim) = (columns.slot_count(), columns.dense_inputs(), model.embedding_dim);
        let spec = ModelSpec::two_towers(slots, dense, dim, user, item, &model.hidden, vector_dim);
        let spec = spec.with_similarity(model.similarity, temperature);
        let spec = spec.with_activation(model.activation).with_norm(model.norm).with_dropout(model.dropout);
        let spec = match item_slot {
            Some(item) => spec.with_in_batch_softmax(item, model.log_q),
            None => spec,
        };
        Ok(spec.with_pooling(model.pooling))
    }

    /// The slot that says which item a row has, if the loss needs it. A row may have at most one value there.
    pub(crate) fn item_id_slot(&self) -> Option<usize> {
        let item = (self.model.kind == ModelKind::TwoTowers).then(|| self.tower_inputs(TowerSide::Item).ok())??;
        self.item_slot(&item).ok()?
    }

    fn item_slot(&self, item: &TowerInputs) -> Result<Option<usize>, Fault> {
        if self.model.loss != TowerLoss::InBatchSoftmax {
            return Ok(None);
        }
        // Crosses have no column of their own.
        let slots: Vec<usize> = item.slots.iter().copied().filter(|&slot| slot < self.columns.slots.len()).collect();
        let names = || slots.iter().map(|&slot| self.columns.slots[slot].column.as_str());
        let listed = names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let Some(wanted) = &self.model.item_id else {
            let [only] = slots[..] else {
                return Err(Fault::user(format!(
                    "model.loss is \"in_batch_softmax\" and the item tower has several slots: set model.item_id to the \
                     one that identifies the item, one of {listed}"
                )));
            };
            return Ok(Some(only));
        };
        match slots.iter().find(|&&slot| self.columns.slots[slot].column == *wanted) {
            Some(&slot) => Ok(Some(slot)),
            None => {
                let near = nearest(wanted, names());
                let near = near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
                Err(Fault::user(format!(
                    "model.item_id is `{wanted}`, which is not a slot of the item tower, expected one of {listed}{near}"
                )))
            }
        }
    }

    /// The slots and the inputs for dense features of a tower.
    fn tower_inputs(&self, side: TowerSide) -> Result<TowerInputs, Fault> {
        let columns = &self.columns;
        let side = side.name();
        let Some(of) = (if side == "user" { &self.model.user } else { &self.model.item }) else {
            return Err(Fault::user(format!(
                "model.kind is \"two_towers\", but model.{side} is not set: set it to the columns of this tower, for \
                     instance {{ slots = [\"{}\"] }}",
                if side == "user" { "user_id" } else { "item_id" }
            )));
        };
        if of.slots.is_empty() {
            return Err(Fault::user(format!(
                "model.{side}.slots is empty, expected at least one column of columns.slots"
            )));
        }
        let unknown = |field: &str, name: &str, names: Vec<&str>| {
            let near = nearest(name, names).map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
            Fault::user(format!("model.{side}.{field} has `{name}`, which is not a column of columns.{field}{near}"))
        };
        let of_columns = by_column(columns.slots.iter().enumerate().map(|(at, slot)| (&slot.column, at)));
        let mut slots: Vec<usize> = Vec::new();
        for name in &of.slots {
            let Some(named) = of_columns.get(name.as_str()) else {
                return Err(unknown("slots", name, columns.slots.iter().map(|slot| slot.column.as_str()).collect()));
            };
            slots.extend(named);
        }
        let crosses = columns.crosses.iter().enumerate();
        let own = crosses.filter(|(_, cross)| cross.slots(columns).iter().all(|slot| slots.contains(slot)));
        let own: Vec<usize> = own.map(|(at, _)| columns.slots.len() + at).collect();
        slots.extend(own);
        let mut input = 0;
        let of_columns = by_column(columns.dense.iter().map(|dense| {
            let first = input;
            input += dense.inputs();
            (&dense.column, first..input)
        }));
        let mut dense: Vec<usize> = Vec::new();
        for name in &of.dense {
            let Some(named) = of_columns.get(name.as_str()) else {
                return Err(unknown("dense", name, columns.dense.iter().map(|dense| dense.column.as_str()).collect()));
            };
            dense.extend(named.iter().cloned().flatten());
        }
        for (field, numbers) in [("slots", &mut slots), ("dense", &mut dense)] {
            let all = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            if numbers.len() < all {
                return Err(Fault::user(format!("model.{side}.{field} names a column twice, expected once")));
            }
        }
        Ok(TowerInputs { slots, dense, hidden: of.hidden.clone() })
    }

    /// Checks the fields of two towers, and the fields that cannot be used with a loss over the batch; the fault names the field.
    pub(super) fn check_two_towers(&self) -> Result<(), Fault> {
        let model = &self.model;
        let refuse = |what: String| Err(Fault::user(what));
        if model.kind != ModelKind::TwoTowers {
            return Ok(());
        }
        if let Some(temperature) = model.temperature
            && !(temperature.is_finite() && temperature > 0.0)
        {
            return refuse(format!("model.temperature is {temperature}, expected a number above 0, for instance 0.1"));
        }
        if model.vector_dim == Some(0) {
            return refuse("model.vector_dim is 0, expected at least 1, for instance 64".into());
        }
        let in_batch = model.loss == TowerLoss::InBatchSoftmax;
        match in_batch {
            false if model.item_id.is_some() => refuse(
                "model.item_id is for model.loss = \"in_batch_softmax\": leave it out, or set the loss".into(),
            ),
            true if self.data.negatives < 1.0 => refuse(
                "data.negatives leaves rows of label 0 out, but model.loss is \"in_batch_softmax\", whose negatives are the items of \
                 the batch: set it to 1. To train on rows of label 1 alone, write them to a folder of their own, such as label=1, which \
                 data.where = \"label = 1\" selects"
                    .into(),
            ),
            true if self.train.sync => refuse(
                "train.sync is true, but model.loss is \"in_batch_softmax\": each trainer would see the items of its own part of the \
                 batch alone; set it to false, or model.loss to \"logloss\""
                    .into(),
            ),
            true if model.log_q && self.storage_of(self.item_id_slot()).0 == Storage::F16 => refuse(format!(
                "{} is \"f16\", but model.log_q keeps counts in the rows of the table, and f16 counts only up to \
                 2,048: set storage to \"f32\", or log_q to false",
                self.storage_of(self.item_id_slot()).1
            )),
            true if self.train.transfers == Some(super::Transfers::Apart) => refuse(
                "train.transfers is \"apart\", but model.loss is \"in_batch_softmax\", whose steps are taken in one piece: leave \
                 transfers out"
                    .into(),
            ),
            _ => Ok(()),
        }
    }

    /// The job with only the columns of one of the towers of `spec`.
    pub fn for_tower(&self, spec: &ModelSpec, side: TowerSide) -> Self {
        let mut job = self.clone();
        let Some(two) = &spec.two_towers else { return job };
        let inputs = two.inputs(side);
        let (columns, slots) = (&self.columns, self.columns.slots.len());
        let own = |first: usize, at: usize| inputs.slots.binary_search(&(first + at)).is_ok();
        let (mut input, mut dense) = (0, Vec::new());
        for column in &columns.dense {
            if inputs.dense.binary_search(&input).is_ok() {
                dense.push(column.clone());
            }
            input += column.inputs();
        }
        job.columns.dense = dense;
        // Keys contain the number of their table.
        job.columns.tables = columns.named_tables().into_iter().map(str::to_owned).collect();
        job.columns.slots = (0..slots).filter(|&at| own(0, at)).map(|at| columns.slots[at].clone()).collect();
        let crosses = columns.crosses.iter().enumerate().filter(|(at, _)| own(slots, *at));
        job.columns.crosses = crosses.map(|(_, cross)| cross.clone()).collect();
        job
    }
}

/// Fails unless each of the columns `names` is in one of the towers, whose numbers ascend.
fn each_in_one(field: &str, names: &[&str], user: &[usize], item: &[usize]) -> Result<(), Fault> {
    for (at, name) in names.iter().enumerate() {
        match (user.binary_search(&at).is_ok(), item.binary_search(&at).is_ok()) {
            (true, true) => {
                return Err(Fault::user(format!(
                    "`{name}` is in model.user.{field} and in model.item.{field}, expected one of them"
                )));
            }
            (false, false) if name.contains(" x ") => {
                return Err(Fault::user(format!(
                    "columns.crosses: `{name}` has columns of both towers, expected columns of one: model.kind is \"two_towers\""
                )));
            }
            (false, false) => {
                return Err(Fault::user(format!(
                    "`{name}` of columns.{field} is in neither tower: add it to model.user.{field} or to model.item.{field}, or leave \
                     it out of columns.{field}"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_models::TwoTowersLoss;

    use super::*;

    const COLUMNS: &str = "[columns]\ndense = ['age', { column = 'price', indicator = true }]\n\
                           slots = ['user', 'item', 'seen', 'brand']\n[model]\nkind = 'two_towers'\nembedding_dim = 4\n";
    const TOWERS: &str = "user = { slots = ['seen', 'user'], dense = ['age'] }\nitem = { slots = ['item', 'brand'], dense = ['price'], hidden = [] }\n";

    fn job(model: &str, settings: &[&str]) -> Result<Job, Fault> {
        Job::with_settings(&format!("{COLUMNS}{model}"), settings)
    }

    #[test]
    fn names_of_columns_become_the_inputs_of_towers() {
        let job = job(&format!("{TOWERS}hidden = [6]\nloss = 'in_batch_softmax'\nitem_id = 'item'"), &[]).unwrap();
        job.check().unwrap();
        let spec = job.model_spec().unwrap();
        spec.validate().unwrap();
        let two = spec.two_towers.as_ref().unwrap();
        assert_eq!((&two.user.slots[..], &two.user.dense[..]), (&[0, 2][..], &[0][..]));
        assert_eq!((&two.item.slots[..], &two.item.dense[..]), (&[1, 3][..], &[1, 2][..]), "with its indicator");
        assert_eq!((two.item.hidden.as_deref(), &two.tower.hidden[..]), (Some(&[][..]), &[6][..]));
        assert_eq!(two.loss, TwoTowersLoss::InBatchSoftmax { item: 1, log_q: true });
        let defaults = (VECTOR_DIM, TEMPERATURE_IN_BATCH, Similarity::Cosine);
        assert_eq!((two.vector_dim, two.temperature, two.similarity), defaults);
        assert_eq!(job.item_id_slot(), Some(1));
        assert_eq!(Job::from_toml(&job.to_toml(), &[]).unwrap(), job);
        let vector = "columns.dense=[{ column = 'age', length = 3 }, { column = 'price', indicator = true }]";
        let two = self::job(TOWERS, &[vector]).unwrap().model_spec().unwrap().two_towers.unwrap();
        assert_eq!(
            (&two.user.dense[..], &two.item.dense[..]),
            (&[0, 1, 2][..], &[3, 4][..]),
            "each number is an input"
        );
    }

    #[test]
    fn a_cross_goes_where_its_columns_are() {
        let with = |columns: &str| {
            let job = job(TOWERS, &[&format!("columns.crosses=[{{ columns = [{columns}] }}]")]).unwrap();
            job.check().map(|()| job.model_spec().unwrap().two_towers.unwrap())
        };
        assert_eq!(with("'item', 'brand'").unwrap().item.slots, [1, 3, 4]);
        assert_eq!(with("'seen', 'user'").unwrap().user.slots, [0, 2, 4]);
        let said = with("'user', 'item'").unwrap_err().to_string();
        assert!(said.contains("`user x item` has columns of both towers"), "{said}");
    }

    #[test]
    fn towers_that_mean_nothing_are_refused_by_name() {
        let user = "user = { slots = ['seen', 'user'], dense = ['age'] }\n";
        let softmax = &format!("{TOWERS}loss = 'in_batch_softmax'\nitem_id = 'item'");
        for (model, settings, words) in [
            ("", &[][..], "model.user is not set: set it to the columns of this tower"),
            (user, &[], "model.item is not set"),
            (&format!("{user}item = {{ dense = ['price'] }}"), &[], "model.item.slots is empty"),
            (
                &format!("{user}item = {{ slots = ['itme', 'brand'] }}"),
                &[],
                "`itme`, which is not a column of columns.slots, did you mean `item`?",
            ),
            (
                &format!("{user}item = {{ slots = ['item'], dense = ['price'] }}"),
                &[],
                "`brand` of columns.slots is in neither tower",
            ),
            (
                &format!("{user}item = {{ slots = ['item', 'brand'] }}"),
                &[],
                "`price` of columns.dense is in neither tower",
            ),
            (
                &format!("{user}item = {{ slots = ['item', 'brand', 'user'] }}"),
                &[],
                "`user` is in model.user.slots and in model.item.slots",
            ),
            (&format!("{user}item = {{ slots = ['item', 'item'] }}"), &[], "model.item.slots names a column twice"),
            (
                TOWERS,
                &["model.loss=in_batch_softmax"],
                "set model.item_id to the one that identifies the item, one of `item`, `brand`",
            ),
            (
                TOWERS,
                &["model.loss=in_batch_softmax", "model.item_id=user"],
                "model.item_id is `user`, which is not a slot of the item tower",
            ),
            (TOWERS, &["model.item_id=item"], "model.item_id is for model.loss"),
            (TOWERS, &["model.temperature=0"], "model.temperature is 0, expected a number above 0"),
            (TOWERS, &["model.vector_dim=0"], "model.vector_dim is 0"),
            (
                TOWERS,
                &["columns.label=['click', 'buy']"],
                "columns.label has 2 labels, but model.kind is \"two_towers\"",
            ),
            (softmax, &["columns.label=['click', 'buy']"], "columns.label has 2 labels"),
            (softmax, &["data.negatives=0.5"], "whose negatives are the items of the batch"),
            (softmax, &["train.sync=true", "placement.trainers=2", "placement.ps=1"], "train.sync is true"),
            (softmax, &["table.storage=f16"], "table.storage is \"f16\", but model.log_q keeps counts"),
            (
                softmax,
                &[
                    "tables.items.storage=f16",
                    "columns.slots=['user', { column = 'item', table = 'items' }, 'seen', 'brand']",
                ],
                "tables.items.storage is \"f16\", but model.log_q keeps counts",
            ),
            (softmax, &["train.transfers=apart", "train.backend=torch"], "train.transfers is \"apart\""),
            (
                TOWERS,
                &["model.kind=ctr_dnn"],
                "model.user is for the kind \"two_towers\", but model.kind is \"ctr_dnn\"",
            ),
        ] {
            let said = job(model, settings).and_then(|job| job.check()).expect_err(words).to_string();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
    }
}
