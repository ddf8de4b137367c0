//! The `[tables]` of a job: tables of some slots, each with rows of its own kind.
//!
//! In the parameter server they are groups of one table ([`GroupConfig`]): a key says which group it is in.

use std::collections::BTreeMap;

use forebay_actors::Fault;
use forebay_base::nearest;
use forebay_models::{ModelSpec, RowPart};
use forebay_ps::{GroupConfig, Init, Optimizer, Storage, TableConfig};
use serde::{Deserialize, Serialize};

use super::table::TABLE;
use super::{AdmissionOptions, EvictionOptions, Job, ModelKind, TableOptions};

/// Tables by name.
pub type Tables = BTreeMap<String, SlotTable>;

/// A table of the slots that name it. What it does not say is as in `[table]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlotTable {
    /// Width of the embeddings, for instance `4`. Default: `model.embedding_dim`. Not used by "lr". With `0` the slots of this table
    /// have linear weights only: in "wide_deep" the tower does not read them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_dim: Option<usize>,
    /// The number format of the weights in memory, for instance `f16`. Default: `table.storage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Optimizer of the linear weights. Default: `table.linear_optimizer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_optimizer: Option<Optimizer>,
    /// Optimizer of the embeddings. Default: `table.embedding_optimizer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_optimizer: Option<Optimizer>,
    /// Initial values of a new embedding. Default: `table.embedding_init`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_init: Option<Init>,
    /// Which keys get a row. Default: `table.admission`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionOptions>,
    /// Which rows of this table are removed. Default: `table.eviction`, which must not have a cap then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction: Option<EvictionOptions>,
}

impl SlotTable {
    /// All its options, with the options of `[table]` for missing ones.
    fn options(&self, table: &TableOptions) -> TableOptions {
        TableOptions {
            shards: table.shards,
            storage: self.storage.unwrap_or(table.storage),
            linear_optimizer: self.linear_optimizer.or(table.linear_optimizer),
            embedding_optimizer: self.embedding_optimizer.or(table.embedding_optimizer),
            embedding_init: self.embedding_init.unwrap_or(table.embedding_init),
            admission: self.admission.clone().unwrap_or_else(|| table.admission.clone()),
            eviction: self.eviction.clone().unwrap_or_else(|| table.eviction.clone()),
        }
    }
}

impl Job {
    /// The configuration of the job's table, with these parts of the widest row.
    ///
    /// With `[tables]` the first group of the table has the slots that name no table.
    pub fn table_config(&self, parts: &[RowPart]) -> TableConfig {
        let names = self.columns.named_tables();
        let config = |options: &TableOptions, dim: Option<usize>| {
            let own = |part: &RowPart| match (part.name.as_str(), dim) {
                ("embedding", Some(0)) => None,
                ("embedding", Some(dim)) => Some(RowPart::new("embedding", dim)),
                _ => Some(part.clone()),
            };
            options.config(parts.iter().filter_map(own).collect(), self.seed, self.steps())
        };
        if names.is_empty() {
            return config(&self.table, None);
        }
        let built_in = self.model.kind != ModelKind::Own;
        // If no slot is in the first group, the group has no rows, and must not be the widest.
        let uses_first = self.columns.slot_tables().contains(&0);
        let mut all = config(&self.table, (built_in && uses_first).then_some(self.model.embedding_dim));
        all.groups = names
            .into_iter()
            .map(|name| {
                let table = self.tables.get(name).cloned().unwrap_or_default();
                let dim = table.embedding_dim.unwrap_or(self.model.embedding_dim);
                let TableConfig { parts, storage, lifetime, .. } =
                    config(&table.options(&self.table), built_in.then_some(dim));
                GroupConfig { name: name.to_owned(), parts, storage, lifetime }
            })
            .collect();
        all
    }

    /// The spec with the width that each slot has by its table.
    ///
    /// # Errors
    /// User: widths differ, and the model multiplies the embeddings of slots with each other.
    pub(super) fn with_widths(&self, spec: ModelSpec) -> Result<ModelSpec, Fault> {
        if !spec.uses_embeddings() || self.tables.is_empty() {
            return Ok(spec);
        }
        let names = self.columns.named_tables();
        let tables = self.columns.slot_tables();
        let own = |table: usize| self.tables.get(*names.get(table.checked_sub(1)?)?)?.embedding_dim;
        let dims: Vec<usize> = tables.iter().map(|&table| own(table).unwrap_or(self.model.embedding_dim)).collect();
        let embedded = |slot: &usize| dims[*slot] > 0;
        let Some(first) = (0..dims.len()).find(embedded) else {
            return Err(Fault::user(format!(
                "model.kind is \"{}\", and no slot has an embedding: give some slots a table with embedding_dim, or take model.kind = \"lr\"",
                self.model.kind
            )));
        };
        let width = dims[first];
        let Some(other) = (0..dims.len()).filter(embedded).find(|slot| dims[*slot] != width) else {
            let all = dims.iter().all(|dim| *dim == width);
            return Ok(if all { spec.with_embedding(width) } else { spec.with_slot_dims(dims) });
        };
        let why = match (spec.fm, self.model.attention.is_empty()) {
            (true, _) => "the factorization machine multiplies the embeddings of slots with each other",
            (_, false) => "attention compares embeddings of slots",
            _ => return Ok(spec.with_slot_dims(dims)),
        };
        let slots = self.columns.slot_names();
        let field = |slot: usize| match own(tables[slot]) {
            Some(_) => format!("tables.{}.embedding_dim", names[tables[slot] - 1]),
            None => "model.embedding_dim".to_owned(),
        };
        Err(Fault::user(format!(
            "model.kind is \"{}\": {why}, so all slots need one width, but `{}` has {width} ({}) and `{}` has {} ({})",
            self.model.kind,
            slots[first],
            field(first),
            slots[other],
            dims[other],
            field(other)
        )))
    }

    /// The number format of the rows of a slot, and the field that says it.
    pub(super) fn storage_of(&self, slot: Option<usize>) -> (Storage, String) {
        let table = slot.and_then(|slot| self.columns.slots.get(slot)?.table.as_ref());
        match table.and_then(|name| Some((name, self.tables.get(name)?.storage?))) {
            Some((name, storage)) => (storage, format!("tables.{name}.storage")),
            None => (self.table.storage, "table.storage".to_owned()),
        }
    }

    /// Checks the optimizers of embeddings of a model without embeddings: otherwise the table checks them.
    fn check_unused_optimizers(&self) -> Result<(), Fault> {
        if self.model.kind != ModelKind::Lr {
            return Ok(());
        }
        let named = self.tables.iter().filter_map(|(name, table)| {
            Some((format!("tables.{name}.embedding_optimizer"), table.embedding_optimizer?))
        });
        let first = self.table.embedding_optimizer.map(|first| ("table.embedding_optimizer".to_owned(), first));
        for (field, optimizer) in first.into_iter().chain(named) {
            if let Err(what) = optimizer.check() {
                return Err(Fault::user(format!(
                    "{field}: {what}; model.kind is \"lr\", which has no embeddings: leave {field} out"
                )));
            }
        }
        Ok(())
    }

    /// Checks `[tables]`, and the slots that name them.
    ///
    /// # Errors
    /// User: names the table or the slot, and the field.
    pub(super) fn check_tables(&self) -> Result<(), Fault> {
        self.check_unused_optimizers()?;
        let named = self.columns.named_tables();
        let (tables, slots) = (self.columns.slot_tables(), self.columns.slot_names());
        for (at, name) in named.iter().enumerate() {
            if !self.tables.contains_key(*name) {
                let slot = tables.iter().position(|table| *table == at + 1).map_or("", |slot| slots[slot].as_str());
                let near = nearest(name, self.tables.keys().map(String::as_str));
                let near = near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
                return Err(Fault::user(format!(
                    "columns: `{slot}` has table = \"{name}\", but there is no [tables.{name}]{near}"
                )));
            }
        }
        if named.len() > forebay_ps::MOST_GROUPS {
            return Err(Fault::user(format!(
                "tables has {} tables, expected at most {}",
                named.len(),
                forebay_ps::MOST_GROUPS
            )));
        }
        for (name, table) in &self.tables {
            if name.is_empty()
                || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
                || name == TABLE
            {
                return Err(Fault::user(format!(
                    "tables has a table `{name}`, expected a name of letters, digits, `_` and `-` other than `{TABLE}`"
                )));
            }
            if !named.contains(&name.as_str()) {
                return Err(Fault::user(format!(
                    "tables.{name} is the table of no slot: give a slot table = \"{name}\", or leave it out"
                )));
            }
            self.check_slot_table(name, table)?;
        }
        Ok(())
    }

    fn check_slot_table(&self, name: &str, table: &SlotTable) -> Result<(), Fault> {
        if table.embedding_dim == Some(0) {
            self.check_linear_only(name, table)?;
        }
        if table.embedding_dim.is_some() && self.model.kind == ModelKind::Own {
            return Err(Fault::user(format!(
                "tables.{name}.embedding_dim is for built-in models, but model.kind is \"own\", which sets the width \
                 of rows itself: leave it out"
            )));
        }
        let cap = &self.table.eviction;
        if table.eviction.is_none() && (cap.max_rows.is_some() || cap.max_bytes.is_some()) {
            return Err(Fault::user(format!(
                "tables.{name} has no eviction, and the cap of table.eviction is only for slots without a table: set \
                 one for `{name}`, for instance with [tables.{name}.eviction] and max_rows"
            )));
        }
        table.options(&self.table).check().map_err(|fault| of_table(name, fault))
    }

    /// Checks a table whose slots have a linear weight and no embedding.
    fn check_linear_only(&self, name: &str, table: &SlotTable) -> Result<(), Fault> {
        let kind = &self.model.kind;
        let refused = |why: String| Err(Fault::user(format!("tables.{name}.embedding_dim is 0, {why}")));
        if !self.model.has_linear() {
            return refused(format!(
                "expected at least 1: model.kind is \"{kind}\" without a linear part, so no part would read the slots of this table"
            ));
        }
        let fields = [
            ("embedding_optimizer", table.embedding_optimizer.is_some()),
            ("embedding_init", table.embedding_init.is_some()),
        ];
        match fields.iter().find(|(_, is_set)| *is_set) {
            Some((field, _)) => refused(format!("so its slots have no embeddings: leave tables.{name}.{field} out")),
            None => Ok(()),
        }
    }

    /// Checks the caps in bytes, which are too small for some rows and not for others.
    ///
    /// # Errors
    /// User: names the least value that is expected.
    pub fn check_table_bytes(&self, parts: &[RowPart]) -> Result<(), Fault> {
        let config = self.table_config(parts);
        let mut all = config.of_groups().into_iter();
        if let Some(first) = all.next() {
            self.table.check_bytes(&first)?;
        }
        for config in all {
            let Some(table) = self.tables.get(&config.name) else { continue };
            let checked = table.options(&self.table).check_bytes(&config);
            checked.map_err(|fault| of_table(&config.name, fault))?;
        }
        Ok(())
    }
}

/// The fault of `[table]` as one of a named table.
fn of_table(name: &str, fault: Fault) -> Fault {
    Fault::user(fault.message().replace("table.", &format!("tables.{name}."))).kind(fault.kind).with_source(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &str =
        "[columns]\nlabel = 'y'\nslots = ['a', { column = 'b', table = 'small' }, { column = 'c', table = 'big' }]\n";

    fn job(text: &str) -> Job {
        Job::from_toml(&format!("{COLUMNS}{text}"), &[]).unwrap()
    }

    #[test]
    fn a_table_has_what_it_says_and_the_rest_of_the_first() {
        let job = job(
            "[model]\nkind = 'wide_deep'\n[table]\nstorage = 'f16'\n[table.admission]\ncount = 2\n[tables.small]\nembedding_dim = 4\n\
             embedding_optimizer = { kind = 'adagrad' }\nstorage = 'f32'\n[tables.big]\nembedding_dim = 32\n\
             eviction = { max_rows = 70000 }",
        );
        job.check().unwrap();
        let spec = job.model_spec().unwrap();
        assert_eq!((spec.embedding_dim, &spec.slot_dims[..]), (32, &[16, 4, 32][..]));
        let config = job.table_config(&spec.parts());
        config.check().unwrap();
        assert_eq!((config.row_dim(), config.state_dim()), (33, 2 + 64));
        let dims = |parts: &[forebay_ps::PartConfig]| parts.iter().map(|part| part.dim).collect::<Vec<_>>();
        assert_eq!(dims(&config.parts), [1, 16]);
        let [small, big] = &config.groups[..] else { panic!("two groups") };
        assert_eq!((dims(&small.parts), dims(&big.parts)), (vec![1, 4], vec![1, 32]));
        assert_eq!((config.storage, small.storage, big.storage), (Storage::F16, Storage::F32, Storage::F16));
        assert!(matches!(small.parts[1].optimizer, Optimizer::Adagrad { .. }));
        assert!(matches!(big.parts[1].optimizer, Optimizer::Adam { .. }));
        assert_eq!(big.lifetime.eviction.unwrap().max_rows, Some(70_000));
        assert!(small.lifetime.eviction.is_none() && small.lifetime.admission.is_some());
        assert_eq!(Job::from_toml(&job.to_toml(), &[]).unwrap(), job);
    }

    #[test]
    fn one_width_of_all_slots_is_a_width_of_the_model() {
        let text =
            "[columns]\nslots = [{ column = 'a', table = 't' }]\n[tables.t]\nembedding_dim = 4\n[model]\nkind = 'fm'";
        let job = Job::from_toml(text, &[]).unwrap();
        job.check().unwrap();
        let spec = job.model_spec().unwrap();
        assert_eq!((spec.embedding_dim, spec.slot_dims.len()), (4, 0));
        assert_eq!(job.table_config(&spec.parts()).row_dim(), 5);
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let both = "[tables.small]\n[tables.big]\n";
        for (text, words) in [
            ("[tables.small]\n", "`c` has table = \"big\", but there is no [tables.big]"),
            ("[tables.smal]\n[tables.big]\n", "no [tables.small], did you mean `smal`?"),
            ("[tables.small]\n[tables.big]\n[tables.other]\n", "tables.other is the table of no slot"),
            (
                "[tables.small]\nembedding_dim = 0\n[tables.big]\n[model]\nkind = 'dcn_v2'\n",
                "tables.small.embedding_dim is 0, expected at least 1: model.kind is \"dcn_v2\" without a linear part",
            ),
            (
                "[tables.small]\nembedding_dim = 0\nembedding_init = { kind = 'zeros' }\n[tables.big]\n",
                "leave tables.small.embedding_init out",
            ),
            (
                "[tables.small]\nembedding_dim = 4\n[tables.big]\n[model]\nkind = 'deep_fm'\n",
                "`a` has 16 (model.embedding_dim) and `b` has 4 (tables.small.embedding_dim)",
            ),
            (
                "[tables.small]\nembedding_dim = 4\n[tables.big]\n[model]\nkind = 'din'\nattention = [{ history = 'a', target = 'b' }]\n",
                "attention compares embeddings",
            ),
            ("[table.eviction]\nmax_rows = 70000\n[tables.small]\n[tables.big]\n", "tables.big has no eviction"),
            ("[tables.small.admission]\ncount = 1\n[tables.big]\n", "tables.small.admission.count is 1"),
            ("[tables.small.eviction]\nmax_rows = 10\n[tables.big]\n", "tables.small.eviction.max_rows is 10"),
            ("[tables.small]\n[tables.big]\n[train]\nlook_ahead = 3\n", "train.look_ahead is 3, but [tables]"),
        ] {
            let said = job(text).check().unwrap_err().to_string();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        job(both).check().unwrap();
        for (text, words) in [
            ("[table]\nembedding_optimizer = { kind = 'adam', lr = -1.0 }\n", "table.embedding_optimizer: lr is -1"),
            (
                "[tables.small]\nembedding_optimizer = { kind = 'adagrad', lr = -2.0 }\n",
                "tables.small.embedding_optimizer: lr is -2",
            ),
        ] {
            let small = if text.contains("[tables.small]") { "" } else { "[tables.small]\n" };
            let said =
                job(&format!("{text}{small}[tables.big]\n[model]\nkind = 'lr'\n")).check().unwrap_err().to_string();
            assert!(said.contains(words) && said.contains("\"lr\", which has no embeddings"), "{said}");
        }
        let spaces = "[columns]\nslots = ['a', { column = 'b', table = 't', key_space = 'a' }]\n[tables.t]\n";
        let said = Job::from_toml(spaces, &[]).unwrap().check().unwrap_err().to_string();
        assert!(said.contains("`a` and `b` share the key space `a`") && said.contains("one table"), "{said}");
    }
}
