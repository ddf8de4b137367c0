//! A real Prometheus reads `/metrics`, and every query of the Grafana dashboard finds something there.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{LONG, Run, free_address, get, rows};

/// A Prometheus of its own, which asks `target` twice a second.
struct Prometheus {
    child: Child,
    address: std::net::SocketAddr,
}

impl Prometheus {
    fn start(dir: &Path, target: &str) -> Self {
        let address = free_address();
        let configuration = format!(
            "global: {{ scrape_interval: 500ms }}\nscrape_configs:\n  - job_name: forebay\n    static_configs: [{{ targets: ['{target}'] }}]\n"
        );
        std::fs::write(dir.join("prometheus.yml"), configuration).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Prometheus is not there: make setup-prometheus");
        Self { child, address }
    }

    /// The result of a query; empty while Prometheus starts.
    fn query(&self, query: &str) -> Vec<Value> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let Some((_, _, body)) = get(self.address, &format!("/api/v1/query?query={escaped}")) else {
            return Vec::new();
        };
        let reply: Value = serde_json::from_str(&body).unwrap_or_default();
        assert_ne!(reply["status"], "error", "{query}: {reply}");
        reply["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until a query finds something.
    fn until(&self, query: &str) -> Vec<Value> {
        let begun = Instant::now();
        loop {
            let found = self.query(query);
            if !found.is_empty() {
                return found;
            }
            assert!(begun.elapsed() < LONG, "nothing is found: {query}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_real_prometheus_reads_the_metrics_and_every_panel_of_the_dashboard_finds_some() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, address) = (rows(dir.path()), free_address());
    let placement = ["placement.readers=1", "placement.ps=2", "placement.dense=ps", "placement.lease_rows=1024"];
    let run = Run::start("launch", &rows, address, &placement);
    let prometheus = Prometheus::start(dir.path(), &run.address.to_string());

    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana/forebay.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            prometheus.until(&query.replace("$__rate_interval", "5s").replace("$job", "forebay"));
            queries += 1;
        }
    }
    assert!(queries >= 12, "{queries}");

    let trained = &prometheus.until("forebay_train_rows_total > 0")[0]["metric"];
    assert_eq!(trained["job"], "forebay");
    let busy = prometheus.until("forebay_stage_seconds_total{stage=\"parse\", state=\"busy\"}");
    assert_eq!(busy[0]["metric"]["process"], "reader 0");
    // Every metric that is described exists, and every metric that exists is described.
    let (_, head, text) = get(run.address, "/metrics").unwrap();
    assert!(head.contains("content-type: application/openmetrics-text"), "{head}");
    assert!(text.ends_with("# EOF\n"));
    let mut samples: Vec<&str> = text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    samples.retain(|sample| !sample.starts_with('#'));
    samples.sort_unstable();
    let twice = samples.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(twice.is_none(), "a sample that is there twice is refused by stricter readers: {twice:?}");
    let documented = include_str!("../../docs/metrics.md");
    for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(documented.contains(&format!("`{name}")), "docs/metrics.md lacks {name}");
    }
}
