//! `deploy/kubernetes` as `kubectl apply -k` would send it: built by kustomize, checked against Kubernetes' schemas,
//! and checked for names, ports, keys, certificates and counts that refer to each other. No cluster is needed.
//!
//! `make setup` gets what `scripts/check-manifests` needs.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod objects;
mod references;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use objects::{Objects, Pod, built, folder, secret, text};
use references::mistakes;

const OVERLAYS: [&str; 3] = ["base", "gpu", "local"];

fn overlay(name: &str) -> Objects {
    built(&folder().join(name)).unwrap_or_else(|said| panic!("{name}: {said}"))
}

#[test]
fn every_overlay_follows_the_schemas_and_its_references_exist() {
    let secret = secret("forebay").unwrap();
    for name in OVERLAYS {
        let objects = overlay(name);
        assert_eq!(mistakes(&objects, &secret), Vec::<String>::new(), "{name}");
        for (kind, name) in [("StatefulSet", "forebay-ps"), ("Job", "forebay-reader"), ("Job", "forebay-trainer")] {
            assert!(objects.get(kind, name).is_some(), "no {kind} {name}");
        }
    }
}

#[test]
fn the_program_accepts_the_job_of_every_overlay() {
    for name in OVERLAYS {
        let objects = overlay(name);
        let job = objects.of("ConfigMap")[0]["data"]["job.toml"].as_str().unwrap();
        let settings = objects.pods().iter().map(Pod::settings).collect::<Vec<_>>();
        assert!(settings.windows(2).all(|two| two[0] == two[1]), "{name}: one job for all: {settings:?}");
        forebay::Job::from_toml(job, &settings[0]).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    }
}

#[test]
fn only_trainers_of_the_gpu_overlay_ask_for_a_gpu() {
    for overlay_name in OVERLAYS {
        for pod in overlay(overlay_name).pods() {
            let limits = &pod.containers()[0]["resources"]["limits"];
            let wanted = overlay_name == "gpu" && pod.name == "forebay-trainer";
            assert_eq!(limits.get("nvidia.com/gpu").is_some(), wanted, "{} of {overlay_name}", pod.name);
            assert!(limits.get("memory").is_some(), "the limit of memory stays: {} of {overlay_name}", pod.name);
        }
    }
}

#[test]
fn the_certificate_holds_for_every_pod_that_listens_and_for_no_other_namespace() {
    let secret = secret("forebay").unwrap();
    let files = tempfile::tempdir().unwrap();
    for key in ["ca.pem", "server.pem", "server.key", "token"] {
        std::fs::write(files.path().join(key), secret.value(key)).unwrap();
    }
    let holds_for = |host: &str| {
        let verify = ["verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca.pem", "-verify_hostname", host];
        let output = Command::new("openssl").args(verify).arg("server.pem").current_dir(&files).output().unwrap();
        output.status.success()
    };
    let objects = overlay("base");
    for pod in objects.pods().into_iter().filter(|pod| pod.listens()) {
        for rank in 0..3 {
            let host = pod.environment(rank)["FOREBAY_ADVERTISE"].clone();
            assert!(holds_for(&host), "not for {host}");
        }
    }
    assert!(!holds_for("forebay-ps-0.forebay-ps.other.svc"));
    let token = String::from_utf8(secret.value("token")).unwrap();
    assert!(token.trim().len() >= 32, "{token}");
    let another = self::secret("forebay").unwrap();
    assert_ne!(another.value("token"), secret.value("token"), "each run has its own");
}

/// The command of the probe, with another process in the place of the reader.
#[test]
fn a_reader_that_is_stopped_fails_its_probe() {
    let objects = overlay("base");
    let reader = objects.pods().into_iter().find(|pod| pod.role() == "reader").unwrap();
    let command = reader.containers()[0]["livenessProbe"]["exec"]["command"].as_array().unwrap();
    let mut process = Command::new("sleep").arg("120").spawn().unwrap();
    let id = process.id();
    let words: Vec<String> =
        command.iter().map(|word| text(word).replace("/proc/1/", &format!("/proc/{id}/"))).collect();
    assert!(words.iter().any(|word| word.contains(&format!("/proc/{id}/"))), "{words:?}");
    let passes = || Command::new(&words[0]).args(&words[1..]).status().unwrap().success();
    for (signal, expected) in [("-CONT", true), ("-STOP", false), ("-CONT", true)] {
        assert!(Command::new("kill").args([signal, &id.to_string()]).status().unwrap().success());
        let begun = Instant::now();
        while passes() != expected {
            assert!(begun.elapsed() < Duration::from_secs(60), "after kill {signal} the probe does not say {expected}");
        }
    }
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn an_invalid_namespace_is_refused() {
    for bad in ["", "Forebay", "a b", "x; rm", "-"] {
        let said = secret(bad).err().unwrap();
        assert!(said.contains("which namespace?"), "{bad}: {said}");
    }
}

/// A copy of `deploy/kubernetes`, where the guide has it.
fn copy() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(copy.path().join("forebay/deploy")).unwrap();
    let done = Command::new("cp").arg("-r").arg(folder()).arg(copy.path().join("forebay/deploy")).status().unwrap();
    assert!(done.success());
    copy
}

#[test]
fn the_overlay_in_the_guide_works() {
    let guide = std::fs::read_to_string(folder().join("../../docs/cluster-kubernetes.md")).unwrap();
    let (_, rest) = guide.split_once("```yaml\n").expect("an overlay in the guide");
    let (overlay, _) = rest.split_once("```").unwrap();
    let job = std::fs::read_to_string(folder().join("base/job.toml")).unwrap();
    let job = job.replace("readers = 4", "readers = 10").replace("ps = 2", "ps = 4");
    let copy = copy();
    let run = copy.path().join("run");
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("kustomization.yaml"), overlay).unwrap();
    std::fs::write(run.join("job.toml"), job).unwrap();
    let objects = built(&run).unwrap();
    assert_eq!(mistakes(&objects, &secret("ads-42").unwrap()), Vec::<String>::new());
    let images: Vec<_> = objects.pods().iter().map(|pod| pod.containers()[0]["image"].clone()).collect();
    assert!(images.iter().all(|image| image.as_str().unwrap().starts_with("registry.example.com/")), "{images:?}");
}

/// Changes one line of a copy. Returns the errors that are found.
fn broken(file: &str, from: &str, to: &str) -> String {
    let copy = copy();
    let root = copy.path().join("forebay/deploy/kubernetes");
    let path = root.join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{file} has no `{from}` to break");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
    let overlay = Path::new(file).parent().unwrap();
    match built(&root.join(overlay)) {
        Ok(objects) => mistakes(&objects, &secret("forebay").unwrap()).join("\n"),
        Err(said) => said,
    }
}

#[test]
fn every_broken_line_is_named_in_an_error() {
    for (file, from, to, named) in [
        // The schemas see these.
        ("base/ps.yaml", "serviceName: forebay-ps", "serviceNam: forebay-ps", "serviceNam"),
        ("base/reader.yaml", "backoffLimit: 50", "backoffLimit: many", "backoffLimit"),
        ("base/trainer.yaml", "  scheme: HTTPS", "  schema: HTTPS", "schema"),
        ("base/trainer.yaml", "kind: Job", "kind: Jobb", "Jobb"),
        ("base/kustomization.yaml", "  - reader.yaml", "  - readers.yaml", "readers.yaml"),
        ("local/kustomization.yaml", "memory: 256Mi }", "memory: [256Mi] }", "memory"),
        // The checks of references see these.
        ("base/ps.yaml", "serviceName: forebay-ps", "serviceName: forebay", "service forebay"),
        ("base/ps.yaml", "clusterIP: None", "type: ClusterIP", "headless"),
        ("base/ps.yaml", "component: ps\n  ports", "component: pss\n  ports", "selects nothing"),
        ("base/ps.yaml", "targetPort: flight", "targetPort: http", "port http"),
        (
            "base/ps.yaml",
            "port: flight\n            periodSeconds: 2",
            "port: fligt\n            periodSeconds: 2",
            "port fligt",
        ),
        ("base/ps.yaml", "path: /livez", "path: /healthz", "https /livez"),
        (
            "base/trainer.yaml",
            "            terminationGracePeriodSeconds: 30\n",
            "",
            "as much time to end as one that drains",
        ),
        (
            "base/reader.yaml",
            "exec:\n              command: [sh, -c, \"! grep -q '^State:.T' /proc/1/status\"]",
            "tcpSocket:\n              port: 7600",
            "by a command",
        ),
        ("base/ps.yaml", "replicas: 2", "replicas: 3", "placement.ps"),
        ("base/ps.yaml", "forebay-ps-0.forebay-ps.$", "forebay-ps-0.forebay-pss.$", "FOREBAY_COORDINATOR"),
        ("base/ps.yaml", "key: run", "key: runs", "key runs"),
        ("base/ps.yaml", "secretName: forebay", "secretName: forebays", "secret forebays"),
        ("base/ps.yaml", "value: /run/forebay/server.key", "value: /run/forebay/server.kez", "server.kez"),
        (
            "base/ps.yaml",
            "- name: tmp\n              mountPath",
            "- name: temp\n              mountPath",
            "volume temp",
        ),
        ("base/ps.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "runAsNonRoot"),
        ("base/reader.yaml", "name: FOREBAY_RUN", "name: FOREBAY_RUNS", "FOREBAY_RUN"),
        ("base/reader.yaml", "parallelism: 4", "parallelism: 2", "parallelism"),
        (
            "base/reader.yaml",
            "- key: ca.pem\n                path: ca.pem",
            "- key: ca.crt\n                path: ca.pem",
            "key ca.crt",
        ),
        ("base/trainer.yaml", "subdomain: forebay-trainer", "subdomain: trainer", "service trainer"),
        ("base/trainer.yaml", "forebay-trainer-$(JOB_COMPLETION_INDEX)", "forebay-trainer-$(INDEX)", "$(INDEX)"),
        ("base/job.toml", "ps = 2", "ps = 1", "placement.ps"),
        ("base/job.toml", "readers = 4", "readers = 5", "placement.readers"),
    ] {
        let said = broken(file, from, to);
        assert!(said.contains(named), "{file}: `{from}` became `{to}`, and this was said, without `{named}`:\n{said}");
    }
}
