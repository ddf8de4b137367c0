//! The sizes of the parts of a model. The crate of the models checks them, too, in the words of its specs; here the fault names the field
//! of the job.

use forebay_actors::Fault;
use forebay_models::{MOST_CROSS_LAYERS, MOST_EXPERTS, ModelSpec, WIDEST_LAYER};
use forebay_ps::MAX_ROW_DIM;

use super::model::TowerUse;
use super::{Job, ModelOptions};

impl Job {
    /// Checks the sizes that the model reads; `spec` is the job's.
    pub(super) fn check_sizes(&self, spec: &ModelSpec) -> Result<(), Fault> {
        let model = &self.model;
        if spec.uses_embeddings() && self.tables.is_empty() {
            within("embedding_dim", model.embedding_dim, MAX_ROW_DIM)?;
        }
        for (field, size, most) in [
            ("experts", model.experts, MOST_EXPERTS),
            ("cross_layers", model.cross_layers.filter(|_| spec.cross.is_some()), MOST_CROSS_LAYERS),
            ("vector_dim", model.vector_dim, WIDEST_LAYER),
        ] {
            size.map_or(Ok(()), |size| within(field, size, most))?;
        }
        // With a table of absurd embeddings the width would overflow; the backend refuses that.
        let width = if spec.embedding_dim > WIDEST_LAYER { usize::MAX } else { spec.input_width() };
        if let Some(rank) = model.cross_rank.filter(|rank| spec.cross.is_some() && !(1..width.max(2)).contains(rank)) {
            return Err(Fault::user(format!(
                "model.cross_rank is {rank}, expected at least 1 and below {width}, the width of the input (embeddings and dense \
                 features): leave it out for square matrices"
            )));
        }
        model.layers().into_iter().try_for_each(|(field, widths, may_be_empty)| {
            if widths.is_empty() && !may_be_empty {
                return Err(Fault::user(format!(
                    "model.{field} is empty, expected the width of at least one hidden layer, for instance [64]"
                )));
            }
            let mut layers = widths.iter().enumerate();
            layers.try_for_each(|(layer, &width)| within(&format!("{field}[{layer}]"), width, WIDEST_LAYER))
        })
    }
}

impl ModelOptions {
    /// The widths of hidden layers that the model reads: the field, the widths, and whether there may be none.
    fn layers(&self) -> Vec<(&'static str, &[usize], bool)> {
        let hidden = match self.kind.tower() {
            TowerUse::Always | TowerUse::MayBeEmpty => Some(&self.hidden[..]),
            TowerUse::Never | TowerUse::OfProgram => None,
        };
        let [user, item] =
            [&self.user, &self.item].map(|tower| tower.as_ref().and_then(|tower| tower.hidden.as_deref()));
        let all = [
            ("hidden", hidden, self.kind.tower() == TowerUse::MayBeEmpty),
            ("task_hidden", self.task_hidden.as_deref(), true),
            ("second_hidden", self.second_hidden.as_deref(), false),
            ("gate_hidden", self.gate_hidden.as_deref(), true),
            ("attention_hidden", (!self.attention.is_empty()).then_some(&self.attention_hidden[..]), false),
            ("user.hidden", user, true),
            ("item.hidden", item, true),
        ];
        all.into_iter().filter_map(|(field, widths, may_be_empty)| Some((field, widths?, may_be_empty))).collect()
    }
}

fn within(field: &str, size: usize, most: usize) -> Result<(), Fault> {
    match (1..=most).contains(&size) {
        true => Ok(()),
        false => Err(Fault::user(format!("model.{field} is {size}, expected 1 to {most}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &str = "label = 'y'\ndense = ['age']\nslots = ['user', 'item', 'seen']";
    const LABELS: &str = "label = ['click', 'buy']\nslots = ['user', 'item']";
    const DIN: &str = "kind = 'din'\nattention = [{ history = 'seen', target = 'item' }]\n";
    const TOWERS: &str = "kind = 'two_towers'\nvector_dim = 8\nuser = { slots = ['user', 'seen'], dense = ['age'] }\n";

    fn check(columns: &str, model: &str) -> Result<(), String> {
        let job = Job::from_toml(&format!("[columns]\n{columns}\n[model]\n{model}"), &[]).unwrap();
        job.check().map_err(|fault| fault.to_string())
    }

    #[test]
    fn sizes_that_no_model_can_have_are_refused_by_the_field_of_the_job() {
        let item = |hidden: &str| format!("{TOWERS}item = {{ slots = ['item'], hidden = {hidden} }}");
        for (columns, model, words) in [
            (COLUMNS, "hidden = []".into(), "model.hidden is empty, expected the width of at least one hidden layer"),
            (COLUMNS, "hidden = [8, 0]".into(), "model.hidden[1] is 0, expected 1 to 1048576"),
            (COLUMNS, "hidden = [1048577]".into(), "model.hidden[0] is 1048577, expected 1 to 1048576"),
            (COLUMNS, "embedding_dim = 0".into(), "model.embedding_dim is 0, expected 1 to 65536"),
            (COLUMNS, "kind = 'fm'\nembedding_dim = 65537".into(), "model.embedding_dim is 65537"),
            (COLUMNS, format!("{DIN}attention_hidden = []"), "model.attention_hidden is empty"),
            (COLUMNS, format!("{DIN}attention_hidden = [4, 0]"), "model.attention_hidden[1] is 0"),
            (LABELS, "kind = 'esmm'\nhidden = []".into(), "model.hidden is empty"),
            (LABELS, "kind = 'shared_bottom'\nhidden = []".into(), "model.hidden is empty"),
            (LABELS, "kind = 'mmoe'\nhidden = [0]".into(), "model.hidden[0] is 0"),
            (LABELS, "kind = 'mmoe'\ntask_hidden = [8, 0]".into(), "model.task_hidden[1] is 0"),
            (LABELS, "kind = 'mmoe'\nexperts = 0".into(), "model.experts is 0, expected 1 to 64"),
            (LABELS, "kind = 'mmoe'\nexperts = 65".into(), "model.experts is 65, expected 1 to 64"),
            (COLUMNS, "kind = 'final_mlp'\nsecond_hidden = [0, 400]".into(), "model.second_hidden[0] is 0"),
            (COLUMNS, "kind = 'final_mlp'\ngate_hidden = [0]".into(), "model.gate_hidden[0] is 0"),
            (COLUMNS, item("[0]"), "model.item.hidden[0] is 0"),
            (COLUMNS, "kind = 'dcn_v2'\ncross_layers = 65".into(), "model.cross_layers is 65, expected 1 to 64"),
            (
                COLUMNS,
                "kind = 'dcn_v2'\ncross_rank = 49".into(),
                "model.cross_rank is 49, expected at least 1 and below 49",
            ),
        ] {
            let said = check(columns, &model).unwrap_err();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
    }

    #[test]
    fn lists_may_be_empty_where_a_model_without_these_layers_is_one() {
        for (columns, model) in [
            (COLUMNS, "kind = 'lr'\nembedding_dim = 0\nhidden = []".to_owned()),
            (COLUMNS, "kind = 'custom'\nfm = true\nhidden = []\ncross_layers = 0".into()),
            (COLUMNS, "kind = 'final_mlp'\ngate_hidden = []".into()),
            (COLUMNS, "kind = 'dcn_v2'\ncross_rank = 48".into()),
            (COLUMNS, format!("{TOWERS}hidden = []\nitem = {{ slots = ['item'], hidden = [] }}")),
            (LABELS, "kind = 'mmoe'\ntask_hidden = []\nexperts = 64".into()),
        ] {
            check(columns, &model).unwrap_or_else(|said| panic!("{model}: {said}"));
        }
    }
}
