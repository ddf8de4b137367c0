//! Checks that no schema makes: references between the objects of an overlay. Each mistake is one line.

use std::collections::BTreeSet;

use serde_json::Value;

use super::objects::{Objects, Pod, Secret, text};

pub(crate) fn mistakes(objects: &Objects, secret: &Secret) -> Vec<String> {
    let mut wrong = Vec::new();
    services(objects, &mut wrong);
    for pod in objects.pods() {
        let mut said = Vec::new();
        names(objects, &pod, &mut said);
        volumes(objects, secret, &pod, &mut said);
        environment(objects, secret, &pod, &mut said);
        counts(objects, &pod, &mut said);
        security(&pod, &mut said);
        wrong.extend(said.into_iter().map(|what| format!("{}: {what}", pod.name)));
    }
    let namespaces: BTreeSet<_> = objects.all().iter().map(|o| text(&o["metadata"]["namespace"])).collect();
    if namespaces.len() != 1 {
        wrong.push(format!("objects in several namespaces: {namespaces:?}"));
    }
    wrong
}

/// Whether all labels of a selector are on the pods.
fn selects(selector: &Value, pod: &Pod<'_>) -> bool {
    selector
        .as_object()
        .is_some_and(|labels| !labels.is_empty() && labels.iter().all(|(k, v)| pod.labels().get(k) == Some(v)))
}

fn ports<'a>(pod: &Pod<'a>) -> Vec<&'a Value> {
    pod.containers().into_iter().flat_map(|container| container["ports"].as_array().into_iter().flatten()).collect()
}

/// Services must select pods, name their ports, and give their names to pods that are not ready.
fn services(objects: &Objects, wrong: &mut Vec<String>) {
    for service in objects.of("Service") {
        let (name, spec) = (text(&service["metadata"]["name"]), &service["spec"]);
        if spec["clusterIP"] != "None" || spec["publishNotReadyAddresses"] != true {
            wrong.push(format!("service {name} is not headless, or names pods only when they are ready"));
        }
        let pods: Vec<Pod<'_>> = objects.pods().into_iter().filter(|pod| selects(&spec["selector"], pod)).collect();
        if pods.is_empty() {
            wrong.push(format!("service {name} selects nothing"));
        }
        for port in spec["ports"].as_array().into_iter().flatten() {
            for pod in pods.iter().filter(|pod| !ports(pod).iter().any(|p| p["name"] == port["targetPort"])) {
                wrong.push(format!("service {name}: {} has no port {}", pod.name, text(&port["targetPort"])));
            }
        }
    }
    for budget in objects.of("PodDisruptionBudget") {
        if !objects.pods().iter().any(|pod| selects(&budget["spec"]["selector"]["matchLabels"], pod)) {
            wrong.push(format!("disruption budget {} selects nothing", text(&budget["metadata"]["name"])));
        }
    }
}

/// A pod that listens needs a Service for its DNS name. Probes must name existing ports.
fn names(objects: &Objects, pod: &Pod<'_>, wrong: &mut Vec<String>) {
    let stateful = pod.maker["kind"] == "StatefulSet";
    if stateful && !selects(&pod.maker["spec"]["selector"]["matchLabels"], pod) {
        wrong.push("the selector does not match the labels of its own pods".to_owned());
    }
    if pod.listens() {
        let service = text(if stateful { &pod.maker["spec"]["serviceName"] } else { &pod.spec()["subdomain"] });
        let found = objects.get("Service", service);
        if !found.is_some_and(|found| selects(&found["spec"]["selector"], pod)) {
            wrong.push(format!("no service {service} that selects it"));
        }
    }
    for container in pod.containers() {
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            for port in ["httpGet", "tcpSocket"].iter().filter_map(|how| container[probe][how].get("port")) {
                if !container["ports"].as_array().is_some_and(|ports| ports.iter().any(|p| &p["name"] == port)) {
                    wrong.push(format!("{probe} asks port {}, which there is not", text(port)));
                }
            }
        }
        let http = &container["readinessProbe"]["httpGet"];
        if pod.listens()
            && container.get("ports").is_some()
            && (http["path"] != "/healthz" || http["scheme"] != "HTTPS")
        {
            wrong.push("readiness is not asked at https /healthz".to_owned());
        }
    }
    alive(pod, wrong);
}

/// A process that is stopped must fail its probe, and not get the time of a drain. An open port says nothing.
fn alive(pod: &Pod<'_>, wrong: &mut Vec<String>) {
    let probe = &pod.containers()[0]["livenessProbe"];
    let http = &probe["httpGet"];
    if pod.listens() && (http["path"] != "/livez" || http["scheme"] != "HTTPS") {
        wrong.push("liveness is not asked at https /livez".to_owned());
    }
    if !pod.listens() && !probe["exec"]["command"].is_array() {
        wrong.push("liveness is not asked by a command".to_owned());
    }
    let seconds = |of: &Value| of["terminationGracePeriodSeconds"].as_i64();
    if seconds(probe).is_none_or(|time| Some(time) >= seconds(pod.spec())) {
        wrong.push("a process that does not answer has as much time to end as one that drains".to_owned());
    }
}

/// Mounted objects must exist and have the keys that are mounted.
fn volumes(objects: &Objects, secret: &Secret, pod: &Pod<'_>, wrong: &mut Vec<String>) {
    let volumes: Vec<&Value> = pod.spec()["volumes"].as_array().into_iter().flatten().collect();
    for mount in pod.containers().iter().flat_map(|c| c["volumeMounts"].as_array().into_iter().flatten()) {
        if !volumes.iter().any(|volume| volume["name"] == mount["name"]) {
            wrong.push(format!("no volume {}", text(&mount["name"])));
        }
    }
    for volume in volumes {
        let keys = |from: &Value| -> Vec<String> {
            from["items"].as_array().into_iter().flatten().map(|item| text(&item["key"]).to_owned()).collect()
        };
        if let Some(from) = volume.get("configMap") {
            for key in keys(from) {
                map_key(objects, text(&from["name"]), &key, wrong);
            }
        }
        if let Some(from) = volume.get("secret") {
            if from["secretName"] != secret.name() {
                wrong.push(format!("no secret {}", text(&from["secretName"])));
            }
            wrong.extend(
                keys(from).iter().filter(|key| !secret.has(key)).map(|key| format!("the secret has no key {key}")),
            );
        }
    }
    let reference = |variable: &Value| variable["valueFrom"].get("configMapKeyRef").cloned();
    for key in pod.containers()[0]["env"].as_array().into_iter().flatten().filter_map(reference) {
        map_key(objects, text(&key["name"]), text(&key["key"]), wrong);
    }
}

fn map_key(objects: &Objects, name: &str, key: &str, wrong: &mut Vec<String>) {
    match objects.get("ConfigMap", name) {
        None => wrong.push(format!("no config map {name}")),
        Some(map) if map["data"].get(key).is_none() => wrong.push(format!("config map {name} has no key {key}")),
        Some(_) => {}
    }
}

/// All pods must have ps 0 as their coordinator. Their files must be mounted.
fn environment(objects: &Objects, secret: &Secret, pod: &Pod<'_>, wrong: &mut Vec<String>) {
    let environment = pod.environment(0);
    let mut needed = vec!["FOREBAY_COORDINATOR", "FOREBAY_RUN", "FOREBAY_TOKEN_FILE", "FOREBAY_TLS_CA"];
    if pod.listens() {
        needed.extend(["FOREBAY_LISTEN", "FOREBAY_ADVERTISE", "FOREBAY_TLS_CERT", "FOREBAY_TLS_KEY"]);
    }
    for name in needed.iter().filter(|name| environment.get(**name).is_none_or(String::is_empty)) {
        wrong.push(format!("{name} is not set"));
    }
    wrong.extend(
        environment.iter().filter(|(_, v)| v.contains("$(")).map(|(k, v)| format!("{k} is {v}: not known by then")),
    );
    let coordinator = objects.pods().iter().find(|pod| pod.role() == "ps").map(|ps| {
        let ps = ps.environment(0);
        let port =
            ps.get("FOREBAY_LISTEN").and_then(|listen| listen.rsplit_once(':')).map_or("", |(_, port)| port).to_owned();
        format!("{}:{port}", ps.get("FOREBAY_ADVERTISE").map_or("", String::as_str))
    });
    if environment.get("FOREBAY_COORDINATOR") != coordinator.as_ref() {
        wrong.push(format!(
            "FOREBAY_COORDINATOR is {:?}, and ps 0 {coordinator:?}",
            environment.get("FOREBAY_COORDINATOR")
        ));
    }
    let container = pod.containers()[0];
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let folders: Vec<(&str, &str)> = mounts.map(|mount| (text(&mount["mountPath"]), text(&mount["name"]))).collect();
    for name in ["FOREBAY_TOKEN_FILE", "FOREBAY_TLS_CA", "FOREBAY_TLS_CERT", "FOREBAY_TLS_KEY"] {
        let Some((folder, file)) = environment.get(name).and_then(|path| path.rsplit_once('/')) else { continue };
        let volume = folders.iter().find(|(path, _)| *path == folder).map(|(_, volume)| *volume);
        let volumes = pod.spec()["volumes"].as_array().into_iter().flatten();
        let volume = volumes.into_iter().find(|v| volume.is_some_and(|name| v["name"] == name)).map(|v| &v["secret"]);
        let there = volume.is_some_and(|volume| match volume["items"].as_array() {
            Some(items) => items.iter().any(|item| item["path"] == file),
            None => secret.has(file),
        });
        if !there {
            wrong.push(format!("{name}: nothing is mounted at {folder}/{file}"));
        }
    }
}

/// The job and the objects must have the same number of processes for each role.
fn counts(objects: &Objects, pod: &Pod<'_>, wrong: &mut Vec<String>) {
    let maps = objects.of("ConfigMap");
    let job: toml::Table = maps.iter().find_map(|map| text(&map["data"]["job.toml"]).parse().ok()).unwrap_or_default();
    let field = if pod.role() == "ps" { "ps".to_owned() } else { format!("{}s", pod.role()) };
    let said = job.get("placement").and_then(|placement| placement.get(&field)).and_then(toml::Value::as_integer);
    if said != pod.count().as_i64() {
        wrong.push(format!("placement.{field} of the job is {said:?}, and of these there are {}", pod.count()));
    }
    if pod.maker["kind"] == "Job" && pod.maker["spec"]["parallelism"] != *pod.count() {
        wrong.push("parallelism and completions differ: some would wait for others to end".to_owned());
    }
}

/// Pods must not run as root, must drop all capabilities, and must have a memory limit.
fn security(pod: &Pod<'_>, wrong: &mut Vec<String>) {
    if pod.spec()["securityContext"]["runAsNonRoot"] != true || pod.spec()["automountServiceAccountToken"] != false {
        wrong.push("runAsNonRoot, and automountServiceAccountToken: false".to_owned());
    }
    for container in pod.containers() {
        let context = &container["securityContext"];
        let sound = context["allowPrivilegeEscalation"] == false
            && context["readOnlyRootFilesystem"] == true
            && context["capabilities"]["drop"] == serde_json::json!(["ALL"]);
        if !sound {
            wrong.push(format!("container {} may do more than it needs", text(&container["name"])));
        }
        if container["resources"]["limits"].get("memory").is_none() {
            wrong.push(format!("container {} has no limit of memory", text(&container["name"])));
        }
    }
}
