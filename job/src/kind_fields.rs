//! Which kinds of model read which fields of `[model]`. A field that the kind does not read is refused, because it would have
//! no effect.

use forebay_actors::Fault;
use forebay_models::{Activation, CrossStructure, Norm, Similarity};

use super::model::TowerUse;
use super::{ModelKind, ModelOptions, TowerLoss};

/// Whether a kind reads a field.
type Reads = fn(ModelKind) -> bool;

const TOWERS: Reads = |kind| kind.tower() != TowerUse::Never;
const LABEL_TOWERS: Reads = |kind| matches!(kind, ModelKind::SharedBottom | ModelKind::Mmoe);
const CROSSES: Reads = ModelKind::takes_cross_layers;
const ATTENTION: Reads = |kind| matches!(kind, ModelKind::Din | ModelKind::Custom);
const CUSTOM: Reads = |kind| kind == ModelKind::Custom;
const FINAL_MLP: Reads = |kind| kind == ModelKind::FinalMlp;
const TWO_TOWERS: Reads = |kind| kind == ModelKind::TwoTowers;

impl ModelOptions {
    /// The fields that a job gives and that not every kind reads: their names, and whether a kind reads them.
    fn fields_of_kinds(&self) -> Vec<(&'static str, Reads)> {
        let default = Self::default();
        let all: [(_, _, Reads); 25] = [
            ("linear", self.linear.is_some(), CUSTOM),
            ("fm", self.fm.is_some(), CUSTOM),
            ("activation", self.activation != default.activation, TOWERS),
            ("norm", self.norm != Norm::default(), TOWERS),
            ("dropout", self.dropout != default.dropout, TOWERS),
            ("cross_layers", self.cross_layers.is_some(), CROSSES),
            ("cross_rank", self.cross_rank.is_some(), CROSSES),
            ("cross_structure", self.cross_structure != CrossStructure::default(), CROSSES),
            ("experts", self.experts.is_some(), |kind| kind == ModelKind::Mmoe),
            ("task_hidden", self.task_hidden.is_some(), LABEL_TOWERS),
            ("second_hidden", self.second_hidden.is_some(), FINAL_MLP),
            ("heads", self.heads.is_some(), FINAL_MLP),
            ("feature_gates", self.feature_gates != default.feature_gates, FINAL_MLP),
            ("gate_hidden", self.gate_hidden.is_some(), FINAL_MLP),
            ("first_context", !self.first_context.is_empty(), FINAL_MLP),
            ("second_context", !self.second_context.is_empty(), FINAL_MLP),
            ("attention", !self.attention.is_empty(), ATTENTION),
            ("user", self.user.is_some(), TWO_TOWERS),
            ("item", self.item.is_some(), TWO_TOWERS),
            ("vector_dim", self.vector_dim.is_some(), TWO_TOWERS),
            ("similarity", self.similarity != Similarity::default(), TWO_TOWERS),
            ("temperature", self.temperature.is_some(), TWO_TOWERS),
            ("loss", self.loss != TowerLoss::default(), TWO_TOWERS),
            ("item_id", self.item_id.is_some(), TWO_TOWERS),
            ("log_q", self.log_q != default.log_q, TWO_TOWERS),
        ];
        all.into_iter().filter(|(_, given, _)| *given).map(|(name, _, reads)| (name, reads)).collect()
    }

    /// Refuses a field that the model does not read, by its name.
    pub(super) fn check_fields_of_kinds(&self) -> Result<(), Fault> {
        if let Some((name, reads)) = self.fields_of_kinds().into_iter().find(|(_, reads)| !reads(self.kind)) {
            let kinds = ModelKind::ALL.into_iter().filter(|&kind| reads(kind));
            let quoted: Vec<String> = kinds.map(|kind| format!("\"{kind}\"")).collect();
            let (noun, first) = (if quoted.len() > 1 { "kinds" } else { "kind" }, &quoted[0]);
            return Err(Fault::user(format!(
                "model.{name} is for the {noun} {}, but model.kind is \"{}\": leave it out, or set kind to {first}",
                match quoted.len() {
                    3.. => quoted.join(", "),
                    _ => quoted.join(" and "),
                },
                self.kind
            )));
        }
        let default = Self::default();
        let without = |name: &str, part: &str, of: &str| {
            Err(Fault::user(format!("model.{name} is for {part}, but {of}: leave it out, or add what it is for")))
        };
        let crosses = self.cross_layer_count() > 0;
        for (name, given) in [
            ("cross_rank", self.cross_rank.is_some()),
            ("cross_structure", self.cross_structure != CrossStructure::default()),
        ] {
            if given && !crosses {
                return without(name, "cross layers", "model.cross_layers gives none");
            }
        }
        for (name, given) in [
            ("attention_hidden", self.attention_hidden != default.attention_hidden),
            ("attention_activation", self.attention_activation != Activation::Prelu),
        ] {
            if given && self.attention.is_empty() {
                return without(name, "attention over histories", "model.attention is empty");
            }
        }
        if self.kind == ModelKind::Custom && self.hidden.is_empty() {
            for (name, given) in [
                ("activation", self.activation != default.activation),
                ("norm", self.norm != Norm::default()),
                ("dropout", self.dropout != default.dropout),
            ] {
                if given {
                    return without(name, "a tower", "model.hidden is empty");
                }
            }
        }
        if self.gate_hidden.is_some() && !self.feature_gates {
            return without("gate_hidden", "the gates of features", "model.feature_gates is false");
        }
        if !self.log_q && self.loss != TowerLoss::InBatchSoftmax {
            return without("log_q", "model.loss = \"in_batch_softmax\"", "model.loss is \"logloss\"");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::Job;

    /// A value of each field, and the kinds that read it.
    const FIELDS: [(&str, &[&str]); 27] = [
        ("linear=true", &["custom"]),
        ("linear=false", &["custom"]),
        ("fm=true", &["custom"]),
        ("fm=false", &["custom"]),
        ("activation=gelu", TOWERS),
        ("norm=layer", TOWERS),
        ("dropout=0.5", TOWERS),
        ("cross_layers=2", &["dcn_v2", "custom"]),
        ("cross_rank=2", &["dcn_v2"]),
        ("cross_structure=stacked", &["dcn_v2"]),
        ("experts=2", &["mmoe"]),
        ("task_hidden=[4]", &["shared_bottom", "mmoe"]),
        ("second_hidden=[400]", &["final_mlp"]),
        ("heads=2", &["final_mlp"]),
        ("feature_gates=false", &["final_mlp"]),
        ("gate_hidden=[4]", &["final_mlp"]),
        ("first_context=['C1']", &["final_mlp"]),
        ("second_context=['C1']", &["final_mlp"]),
        ("attention=[{ history = 'C1', target = 'C2' }]", &["din", "custom"]),
        ("attention_hidden=[4]", &["din"]),
        ("attention_activation=relu", &["din"]),
        ("user={ slots = ['C1..C13'], dense = ['I1..I13'] }", &["two_towers"]),
        ("item={ slots = ['C14..C26'] }", &["two_towers"]),
        ("vector_dim=8", &["two_towers"]),
        ("similarity=dot", &["two_towers"]),
        ("temperature=0.3", &["two_towers"]),
        ("loss=in_batch_softmax", &["two_towers"]),
    ];

    const TOWERS: &[&str] = &[
        "wide_deep",
        "deep_fm",
        "dcn_v2",
        "ctr_dnn",
        "shared_bottom",
        "mmoe",
        "esmm",
        "din",
        "final_mlp",
        "two_towers",
        "custom",
    ];

    fn check(kind: &str, fields: &[&str]) -> Result<(), String> {
        let mut settings = vec![format!("model.kind={kind}")];
        settings.extend(fields.iter().map(|field| format!("model.{field}")));
        match kind {
            "din" => settings.insert(1, "model.attention=[{ history = 'C3', target = 'C4' }]".into()),
            "two_towers" => {
                settings.insert(1, "model.user={ slots = ['C1..C13'], dense = ['I1..I13'] }".into());
                settings.insert(2, "model.item={ slots = ['C14..C26'] }".into());
                settings.push("model.item_id=C14".into());
                settings.push("model.loss=in_batch_softmax".into());
            }
            "shared_bottom" | "mmoe" | "esmm" => settings.push("columns.label=['a', 'b']".into()),
            _ => {}
        }
        let job = Job::from_toml("", &settings).expect("it can be read");
        job.check().map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_field_is_refused_by_every_kind_that_does_not_read_it() {
        let kinds_of_models = [&["lr", "fm"][..], TOWERS].concat();
        for kind in &kinds_of_models {
            assert_eq!(check(kind, &[]), Ok(()), "{kind}");
        }
        let more = [("item_id=C14", &["two_towers"][..]), ("log_q=false", &["two_towers"])];
        for (field, kinds) in FIELDS.into_iter().chain(more) {
            let name = field.split('=').next().unwrap();
            for &kind in &kinds_of_models {
                let said = check(kind, &[field]);
                if kinds.contains(&kind) {
                    assert_eq!(said, Ok(()), "{field} of {kind}");
                    continue;
                }
                let Err(said) = said else { panic!("{field} is not read by {kind}") };
                assert!(said.contains(&format!("model.{name} is ")) && said.contains("leave "), "{said}");
                if !(kind == "custom" || name.starts_with("attention_")) {
                    assert!(said.contains(&format!("but model.kind is \"{kind}\"")), "{said}");
                    assert!(kinds.iter().all(|reads| said.contains(&format!("\"{reads}\""))), "{said}");
                }
            }
        }
    }

    #[test]
    fn a_field_of_a_part_that_the_model_lacks_is_refused() {
        for (kind, fields, words) in [
            (
                "custom",
                &["cross_rank=2"][..],
                "model.cross_rank is for cross layers, but model.cross_layers gives none",
            ),
            ("custom", &["cross_structure=stacked", "cross_layers=0"], "model.cross_structure is for cross layers"),
            (
                "custom",
                &["dropout=0.5", "hidden=[]", "fm=true"],
                "model.dropout is for a tower, but model.hidden is empty",
            ),
            ("custom", &["attention_hidden=[4]"], "model.attention_hidden is for attention over histories"),
            ("wide_deep", &["attention_activation=relu"], "model.attention is empty"),
            ("final_mlp", &["gate_hidden=[4]", "feature_gates=false"], "model.feature_gates is false"),
        ] {
            let said = check(kind, fields).expect_err(words);
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        assert_eq!(check("custom", &["cross_rank=2", "cross_layers=1"]), Ok(()));
        let towers =
            ["user={ slots = ['C1..C13'], dense = ['I1..I13'] }", "item={ slots = ['C14..C26'] }", "log_q=false"];
        let settings: Vec<String> = towers.iter().map(|field| format!("model.{field}")).collect();
        let job = Job::from_toml("model.kind = 'two_towers'", &settings).unwrap();
        let said = job.check().unwrap_err().to_string();
        assert!(said.contains("model.log_q is for model.loss = \"in_batch_softmax\""), "{said}");
    }
}
