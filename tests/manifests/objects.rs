//! The objects of an overlay, and of the Secret that belongs to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// `deploy/kubernetes`
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes")
}

/// The objects that kustomize makes of a folder, or the errors of the schemas.
pub(crate) fn built(folder: &Path) -> Result<Objects, String> {
    checked(Command::new(script("scripts/check-manifests")).arg(folder))
}

/// What `deploy/kubernetes/secrets` prints for a namespace.
pub(crate) fn secret(namespace: &str) -> Result<Secret, String> {
    let made = output(Command::new(folder().join("secrets")).arg(namespace))?;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), made).unwrap();
    let objects = checked(Command::new(script("scripts/check-manifests")).arg(file.path()))?;
    Ok(Secret(objects.0.into_iter().next().expect("one object")))
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn checked(command: &mut Command) -> Result<Objects, String> {
    Ok(Objects(serde_json::from_str(&output(command)?).unwrap()))
}

fn output(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    match status.success() {
        true => Ok(String::from_utf8(stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&stderr).into_owned()),
    }
}

/// All objects that `kubectl apply -k` would send.
pub(crate) struct Objects(Vec<Value>);

impl Objects {
    pub(crate) fn of(&self, kind: &str) -> Vec<&Value> {
        self.0.iter().filter(|object| object["kind"] == kind).collect()
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<&Value> {
        self.of(kind).into_iter().find(|object| object["metadata"]["name"] == name)
    }

    pub(crate) fn all(&self) -> &[Value] {
        &self.0
    }

    /// The objects that create pods.
    pub(crate) fn pods(&self) -> Vec<Pod<'_>> {
        let makers = self.0.iter().filter(|object| object["spec"]["template"].is_object());
        makers.map(|maker| Pod { maker, name: text(&maker["metadata"]["name"]), objects: self }).collect()
    }
}

/// A StatefulSet or Job, seen as the pods that it makes.
pub(crate) struct Pod<'a> {
    pub(crate) maker: &'a Value,
    pub(crate) name: &'a str,
    objects: &'a Objects,
}

impl<'a> Pod<'a> {
    pub(crate) fn spec(&self) -> &'a Value {
        &self.maker["spec"]["template"]["spec"]
    }

    pub(crate) fn labels(&self) -> &'a Value {
        &self.maker["spec"]["template"]["metadata"]["labels"]
    }

    /// The program's container first, then those that run before it.
    pub(crate) fn containers(&self) -> Vec<&'a Value> {
        let list = |field: &str| self.spec()[field].as_array().map(Vec::as_slice).unwrap_or_default();
        list("containers").iter().chain(list("initContainers")).collect()
    }

    /// `ps`, `reader` or `trainer`: the program's argument.
    pub(crate) fn role(&self) -> &'a str {
        text(&self.containers()[0]["args"][1])
    }

    /// The settings on top of the job.
    pub(crate) fn settings(&self) -> Vec<String> {
        let arguments = self.containers()[0]["args"].as_array().into_iter().flatten();
        arguments.filter_map(|argument| text(argument).strip_prefix("--set=")).map(str::to_owned).collect()
    }

    pub(crate) fn count(&self) -> &'a Value {
        let spec = &self.maker["spec"];
        if self.maker["kind"] == "Job" { &spec["completions"] } else { &spec["replicas"] }
    }

    pub(crate) fn listens(&self) -> bool {
        self.containers()[0]["ports"].is_array()
    }

    /// The container's environment as Kubernetes sets it for the pod of a rank. As there, a `$(NAME)` stays if the name
    /// is not set before it.
    pub(crate) fn environment(&self, rank: u32) -> BTreeMap<String, String> {
        let mut environment: BTreeMap<String, String> = BTreeMap::new();
        for variable in self.containers()[0]["env"].as_array().into_iter().flatten() {
            let mut value = match &variable["value"] {
                Value::String(value) => value.clone(),
                _ => self.reference(&variable["valueFrom"], rank),
            };
            for (name, known) in &environment {
                value = value.replace(&format!("$({name})"), known);
            }
            environment.insert(text(&variable["name"]).to_owned(), value);
        }
        environment
    }

    fn reference(&self, from: &Value, rank: u32) -> String {
        if let Some(key) = from.get("configMapKeyRef") {
            let map = self.objects.get("ConfigMap", text(&key["name"]));
            return map
                .map(|map| map["data"][text(&key["key"])].as_str().unwrap_or_default().to_owned())
                .unwrap_or_default();
        }
        match text(&from["fieldRef"]["fieldPath"]) {
            "metadata.namespace" => text(&self.maker["metadata"]["namespace"]).to_owned(),
            "metadata.name" => format!("{}-{rank}", self.name),
            "metadata.annotations['batch.kubernetes.io/job-completion-index']" => rank.to_string(),
            other => panic!("{}: what is {other}?", self.name),
        }
    }
}

/// A Secret's object.
pub(crate) struct Secret(Value);

impl Secret {
    pub(crate) fn name(&self) -> &str {
        text(&self.0["metadata"]["name"])
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0["data"].get(key).is_some()
    }

    /// The bytes of a key, decoded.
    pub(crate) fn value(&self, key: &str) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text(&self.0["data"][key])).unwrap();
        Command::new("base64").arg("-d").arg(file.path()).output().unwrap().stdout
    }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
