//! `docs/job.md` and `job/src/template.toml` say what the doc comments of the job's fields say. `make docs` (this test
//! with `FOREBAY_WRITE_DOCS=1`) writes both.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use forebay::Job;
use syn::{Attribute, Expr, ExprLit, Fields, GenericArgument, Item, Lit, Meta, PathArguments, Type};
use toml::{Table, Value};

const REFERENCE: &str = "docs/job.md";
const TEMPLATE: &str = "job/src/template.toml";

#[test]
fn the_job_reference_and_the_template_are_up_to_date() {
    let types = Types::of_the_workspace();
    let listed = BTreeMap::new();
    let mut writer = Writer { types: &types, listed, page: INTRODUCTION.to_owned(), template: String::new() };
    writer.section("Job", "", &values(&[]));
    for (file, text) in [(REFERENCE, &writer.page), (TEMPLATE, &writer.template)] {
        let path = root().join(file);
        if std::env::var_os("FOREBAY_WRITE_DOCS").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == *text, "{file} differs from the doc comments of the job's fields: run `make docs`");
    }
}

#[test]
fn every_line_of_the_template_is_a_field_that_a_job_accepts() {
    let text = Job::default().to_commented_toml();
    assert_eq!(Job::from_toml(&text, &[]).unwrap(), Job::default());
    // `# ` begins a sentence, `#` alone a field.
    let uncommented = text.replace("\n# ", "\n## ").replace("\n#", "\n");
    assert!(uncommented.contains("\ntrain = \"rows/train\" # for instance\n"), "{uncommented}");
    Job::from_toml(&uncommented, &[]).unwrap();
}

#[test]
fn the_job_of_the_page_on_running_is_accepted_and_the_page_names_every_kind_of_model() {
    let page = std::fs::read_to_string(root().join("docs/running.md")).unwrap();
    let (_, job) = page.split_once("```toml\n").expect("the page has a job");
    let (job, _) = job.split_once("```").expect("the job ends");
    assert_eq!(Job::from_toml(job, &[]).unwrap().model.hidden, [400, 400, 400]);
    let line = job.lines().find(|line| line.starts_with("kind = ")).expect("the job says its model");
    let words: Vec<&str> = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let refusal = Job::from_toml("", &["model.kind=none_of_these".into()]).unwrap_err().to_string();
    let kinds: Vec<&str> = refusal
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| !word.contains("none_of_these") && !word.contains('.'))
        .collect();
    assert!(kinds.len() > 10, "the refusal lists the kinds: {refusal}");
    for kind in kinds {
        assert!(words.contains(&kind), "docs/running.md does not name the kind {kind}");
    }
}

const INTRODUCTION: &str = "# The job file

A job is a TOML file. `forebay train JOB.toml` runs it, `--set SECTION.FIELD=VALUE` overrides a field, and
`forebay plan JOB.toml --job-file` prints all fields with their values; a field without a value is a comment there, with its default
and an example. A field without a default may be left out. `make docs` writes this page from the doc comments in `job/src`.

Text in quotes is TOML: `\"native\"`. Bytes are an integer or text such as `\"64MiB\"`. Times are text such as `\"10min\"`.
";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All values of the default job with these settings.
fn values(settings: &[String]) -> Table {
    toml::from_str(&Job::from_toml("", settings).unwrap().to_toml()).unwrap()
}

/// Public types by name.
struct Types(BTreeMap<String, Item>);

impl Types {
    /// The types of all crates that may stand in a job file.
    fn of_the_workspace() -> Self {
        let mut types = BTreeMap::new();
        for folder in ["connectors", "job", "models", "net", "ps"] {
            for file in sources(&root().join(folder).join("src")) {
                let parsed = syn::parse_file(&std::fs::read_to_string(&file).unwrap()).unwrap();
                for item in parsed.items {
                    let (Item::Struct(syn::ItemStruct { vis, ident, .. })
                    | Item::Enum(syn::ItemEnum { vis, ident, .. })) = &item
                    else {
                        continue;
                    };
                    if matches!(vis, syn::Visibility::Public(_)) {
                        types.insert(ident.to_string(), item);
                    }
                }
            }
        }
        Self(types)
    }

    /// A struct whose fields stand in a job file.
    fn table(&self, name: &str) -> Option<&syn::ItemStruct> {
        match self.0.get(name) {
            Some(Item::Struct(s)) if matches!(s.fields, Fields::Named(_)) && derives_deserialize(&s.attrs) => Some(s),
            _ => None,
        }
    }

    fn choice(&self, name: &str) -> Option<&syn::ItemEnum> {
        match self.0.get(name) {
            Some(Item::Enum(e)) => Some(e),
            _ => None,
        }
    }

    /// The name of a field's type on the page.
    fn kind(&self, ty: &Type) -> String {
        let (name, inner) = name_and_argument(ty);
        match (name.as_str(), inner) {
            ("Option", Some(inner)) => self.kind(inner),
            ("Vec", Some(inner)) => match self.kind(inner).as_str() {
                "table" => "list".into(),
                kind => format!("list of {kind}s"),
            },
            ("bool", _) => "true or false".into(),
            ("u64" | "usize" | "u32", _) => "integer".into(),
            ("f32" | "f64", _) => "number".into(),
            ("String" | "char" | "Predicate", _) => "text".into(),
            ("PathBuf", _) => "path".into(),
            ("Paths", _) => "path or list".into(),
            ("Positive", _) => "text or list".into(),
            ("Labels", _) => "text, table or list".into(),
            ("ByteSize", _) => "bytes".into(),
            ("Padding", _) => "integer or text".into(),
            ("Interval", _) => "time".into(),
            ("StalenessRule", _) => "integer or table".into(),
            ("InitialBias", _) => "number or list".into(),
            ("LearningRate", _) => "number or table".into(),
            ("Knob", _) => "\"auto\" or integer".into(),
            ("BTreeMap" | "Tables", _) => "table".into(),
            (name, _) if self.choice(name).is_some() => "one of these".into(),
            (name, _) if self.table(name).is_some() => "table".into(),
            (name, _) => panic!("{name} is the type of a job's field, but this test has no name for it"),
        }
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect()
}

/// Writes the page and the template side by side.
struct Writer<'a> {
    types: &'a Types,
    /// Where the values of a type are listed: the field by the name of the type.
    listed: BTreeMap<String, String>,
    page: String,
    template: String,
}

impl Writer<'_> {
    /// The fields of a section, then the sections within it.
    fn section(&mut self, name: &str, path: &str, values: &Table) {
        let types = self.types;
        let section = types.table(name).expect("a section is a struct");
        let text = doc(&section.attrs);
        if !path.is_empty() {
            writeln!(self.page, "\n## `[{path}]`\n\n{text}").unwrap();
            writeln!(self.template, "\n# {}\n[{path}]", first_sentence(&text)).unwrap();
        }
        self.page.push('\n');
        let (mut sections, mut named) = (Vec::new(), Vec::new());
        for field in section.fields.iter().filter(|field| !serde_values(&field.attrs).contains_key("skip")) {
            let key = key(field);
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let (name, _) = name_and_argument(&field.ty);
            if name == "Tables" {
                self.template_field(&key, field, None);
                named.push((format!("{path}.NAME"), field));
                continue;
            }
            match values.get(&key) {
                Some(Value::Table(values)) if self.types.table(&name).is_some() => sections.push((name, path, values)),
                value => {
                    self.field(0, &path, field, value);
                    self.template_field(&key, field, value);
                }
            }
        }
        for (name, path, values) in sections {
            self.section(&name, &path, values);
        }
        for (path, field) in named {
            writeln!(self.page, "\n## `[{path}]`\n\n{}\n", doc(&field.attrs)).unwrap();
            for field in &types.table("SlotTable").expect("the type of these tables").fields {
                self.field(0, &path, field, None);
            }
        }
    }

    fn field(&mut self, depth: usize, path: &str, field: &syn::Field, value: Option<&Value>) {
        let default = match value {
            Some(Value::Array(list)) if list.first().is_some_and(Value::is_table) => String::new(),
            Some(value) => format!(", default `{value}`"),
            None if name_and_argument(&field.ty).0 == "Vec" => ", default `[]`".into(),
            None => String::new(),
        };
        let (kind, doc) = (self.types.kind(&field.ty), doc(&field.attrs));
        let indent = "  ".repeat(depth);
        writeln!(self.page, "{indent}- `{}` ({kind}{default}): {doc}", key(field)).unwrap();
        let (mut name, mut inner) = name_and_argument(&field.ty);
        while let Some(ty) = inner {
            (name, inner) = name_and_argument(ty);
        }
        let place = if depth == 0 { format!("`{path}`") } else { format!("`{}` of `{path}`", key(field)) };
        // Its entries are tables.
        let name = if name == "Labels" { "LabelColumn".to_owned() } else { name };
        self.values(depth + 1, path, &place, &name);
    }

    /// The values that a type allows, one a line. `place`: the field, as the page names it at the next field of this type.
    fn values(&mut self, depth: usize, path: &str, place: &str, name: &str) {
        let indent = "  ".repeat(depth);
        let types = self.types;
        if let Some(table) = types.table(name) {
            for field in &table.fields {
                let (name, _) = name_and_argument(&field.ty);
                let default = types.choice(&name).and_then(default_variant);
                self.field(depth, path, field, default.map(Value::String).as_ref());
            }
        }
        let Some(choice) = types.choice(name) else { return };
        if let Some(above) = self.listed.get(name) {
            writeln!(self.page, "{indent}- as for {above}").unwrap();
            return;
        }
        self.listed.insert(name.to_owned(), place.to_owned());
        let tagged = serde_values(&choice.attrs).contains_key("tag");
        for variant in &choice.variants {
            let word = snake_case(&variant.ident.to_string());
            let text = match &variant.fields {
                Fields::Unnamed(fields) => {
                    format!("{{ {word} = {} }}", self.types.kind(&fields.unnamed[0].ty).to_uppercase())
                }
                _ if tagged => {
                    let set = values(&[format!("{path}.kind={word}")]);
                    path.split('.').fold(&Value::Table(set), |at, key| &at[key]).to_string()
                }
                _ => format!("\"{word}\""),
            };
            writeln!(self.page, "{indent}- `{text}`: {}", doc(&variant.attrs)).unwrap();
            for field in variant.fields.iter().filter(|field| field.ident.is_some()) {
                writeln!(self.page, "{indent}  - `{}`: {}", key(field), doc(&field.attrs)).unwrap();
            }
        }
    }

    /// `key =` for a field with a value; for one without, the sentence about its default, and `#key = example # for instance`.
    fn template_field(&mut self, key: &str, field: &syn::Field, value: Option<&Value>) {
        let doc = doc(&field.attrs);
        let sentence = first_sentence(&doc);
        let sentence = without_links(sentence.split(", for instance `").next().unwrap_or_default());
        if value.is_some() {
            return writeln!(self.template, "# {sentence}\n{key} =").unwrap();
        }
        let default = default_sentence(&doc).map(|default| format!(". {}", without_links(default)));
        writeln!(self.template, "# {sentence}{}", default.unwrap_or_default()).unwrap();
        let (name, inner) = name_and_argument(&field.ty);
        if name == "Vec" {
            return writeln!(self.template, "#{key} = []").unwrap();
        }
        if name == "Tables" {
            return writeln!(self.template, "#{key} = {{}}").unwrap();
        }
        let inner = inner.expect("a field without a default is an Option");
        let example = match self.types.choice(&name_and_argument(inner).0) {
            Some(choice) if choice.variants[0].fields.is_empty() => {
                format!("\"{}\"", snake_case(&choice.variants[0].ident.to_string()))
            }
            _ => {
                let example = doc.split_once("for instance `").and_then(|(_, rest)| rest.split('`').next());
                let example = example.unwrap_or_else(|| panic!("{key} has no default and no \"for instance `VALUE`\""));
                match self.types.kind(inner).as_str() {
                    "integer" | "number" | "number or list" | "true or false" | "table" | "one of these" => {
                        example.to_owned()
                    }
                    kind if kind.starts_with("list") => example.to_owned(),
                    _ => format!("{example:?}"),
                }
            }
        };
        writeln!(self.template, "#{key} = {example} # for instance").unwrap();
    }
}

fn derives_deserialize(attrs: &[Attribute]) -> bool {
    let mut derives = attrs.iter().filter(|attr| attr.path().is_ident("derive"));
    derives.any(|attr| matches!(&attr.meta, Meta::List(list) if list.tokens.to_string().contains("Deserialize")))
}

/// The doc comment as Markdown on one line, without links to Rust items.
fn doc(attrs: &[Attribute]) -> String {
    let mut words = String::new();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("doc")) {
        if let Meta::NameValue(doc) = &attr.meta
            && let Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) = &doc.value
        {
            words.push_str(&line.value());
        }
    }
    assert!(!words.is_empty(), "a type, field or value of a job has no doc comment");
    // A link [`Item`](path) becomes `Item`.
    let mut parts = words.trim().split("`](");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| text + "`" + part.split_once(')').map_or("", |(_, rest)| rest));
    text.replace("[`", "`").replace("`]", "`")
}

/// `see [tables.md](tables.md)` as `see tables.md`: TOML has no links.
fn without_links(text: &str) -> String {
    match text.split_once("](") {
        Some((before, rest)) => {
            let (text, name) = before.rsplit_once('[').expect("a link begins with a bracket");
            format!("{text}{name}{}", without_links(rest.split_once(')').expect("a link ends with a bracket").1))
        }
        None => text.to_owned(),
    }
}

fn first_sentence(doc: &str) -> &str {
    doc.find(". ").map_or(doc, |end| &doc[..=end]).trim_end_matches('.')
}

/// What a field is if it is left out.
fn default_sentence(doc: &str) -> Option<&str> {
    let mut sentences = doc.split(". ").skip(1);
    let default =
        sentences.find(|sentence| ["Default: ", "By default "].iter().any(|begin| sentence.starts_with(begin)));
    default.map(|sentence| sentence.trim_end_matches('.'))
}

/// `key = "value"` pairs and words of `#[serde(...)]`.
fn serde_values(attrs: &[Attribute]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("serde")) {
        attr.parse_nested_meta(|meta| {
            let name = meta.path.get_ident().expect("serde's attributes are words").to_string();
            let value = meta.value().and_then(|value| value.parse::<syn::LitStr>()).map(|text| text.value());
            found.insert(name, value.unwrap_or_default());
            Ok(())
        })
        .unwrap();
    }
    found
}

fn key(field: &syn::Field) -> String {
    let name = field.ident.as_ref().expect("a field of a job has a name").to_string();
    serde_values(&field.attrs).remove("rename").unwrap_or(name)
}

fn default_variant(choice: &syn::ItemEnum) -> Option<String> {
    let is_default = |variant: &&syn::Variant| variant.attrs.iter().any(|attr| attr.path().is_ident("default"));
    choice.variants.iter().find(is_default).map(|variant| snake_case(&variant.ident.to_string()))
}

/// As serde's `rename_all = "snake_case"`.
fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// `Vec` and `T` of `Vec<T>`.
fn name_and_argument(ty: &Type) -> (String, Option<&Type>) {
    let Type::Path(path) = ty else { panic!("the type of a job's field is not a path") };
    let last = path.path.segments.last().expect("a path has a segment");
    let argument = match &last.arguments {
        PathArguments::AngleBracketed(list) => list.args.first().and_then(|argument| match argument {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        }),
        _ => None,
    };
    (last.ident.to_string(), argument)
}
