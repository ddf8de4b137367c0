//! `forebay serve`: scores for requests over HTTP and Arrow Flight, with the newest version of a model.

mod routes;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::sync::watch;

use self::routes::{Routes, count, refusal};
use super::security_args::SecurityArgs;
use crate::actors::{IoRuntime, counted};
use crate::connectors::staged::Folder;
use crate::exit::{self, Ended};
use crate::logs::Logs;
use crate::metrics::ServeMetrics;
use crate::net::{Health, HttpLimits, HttpServer, HttpService, Security, SecurityFiles, raise_descriptor_limit};
use crate::pipelines::{Context, Followed, Follower, ScoreExchange, ScoringThreads, ServingModel};
use crate::stop::Stop;
use crate::{Fault, listen_address, out};

/// Where it listens by default.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7700);

/// Files and sockets that are left for other things than connections.
const DESCRIPTORS: u64 = 64;

/// Requests that are under way at a SIGTERM have this long to end.
const GRACE: Duration = Duration::from_secs(10);

/// Time between two looks at whether the user asked to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Serve the scores of a model over HTTP and Arrow Flight: forebay serve --model FOLDER
///
/// POST /v1/score takes rows as JSON and returns the scores that `forebay predict` would write. The Flight exchange `score` takes record
/// batches at the same port. GET /v1/model returns the version of the model, /healthz whether it is loaded, /metrics metrics for
/// Prometheus. See docs/serve.md.
///
/// The server loads a replaced model folder, and deltas of `forebay export --delta-from`, without a pause. One version scores all rows of a
/// request. If it cannot load a model or a delta, it logs this and keeps the current version.
///
/// SIGTERM or Ctrl-C ends the server after the current requests; the exit code is 0.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay serve --model rows/model
  forebay serve --model rows/model --deltas rows/deltas
  forebay serve --model hdfs://nameservice/models/ctr --deltas hdfs://nameservice/deltas/ctr
  forebay serve --model rows/model --listen 0.0.0.0:7700 --token-file token --tls-cert cert.pem --tls-key key.pem
  curl -d '{\"rows\": [{\"user\": 5, \"item\": 7}]}' http://127.0.0.1:7700/v1/score")]
pub(crate) struct Serve {
    /// The model folder: a path or a URL (hdfs://, s3://, file://).
    #[arg(long, value_name = "FOLDER")]
    model: String,
    /// A folder whose subfolders are deltas: a path or a URL, as for --model. The server applies deltas that begin at the current version.
    /// While it cannot list the folder, it keeps its version.
    #[arg(long, value_name = "FOLDER")]
    deltas: Option<String>,
    /// The address to listen on. Addresses beyond this machine need a token and TLS.
    #[arg(long, env = "FOREBAY_LISTEN", value_name = "HOST:PORT", default_value_t = LISTEN, value_parser = listen_address::parse)]
    listen: SocketAddr,
    /// Threads that compute scores, from 1 to 1024. Default: one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Seconds between two checks for a newer version; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    watch: f64,
    /// Override a field of the model's job; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    security: SecurityArgs,
}

impl Serve {
    pub(crate) fn run(self, logs: &Logs, context: &Context) -> Result<Ended, Fault> {
        let watch = self.watch_every()?;
        let files = self.security.files(SecurityFiles::default());
        let security = Security::load_for_server(&files)?;
        let stop = Stop::listen_and_say(logs.log_format, "answers the requests under way", exit::DONE)?;
        let (health, metrics, scoring) = (Health::new(), Arc::new(ServeMetrics::new()), Arc::new(OnceLock::new()));
        health.waiting("loading the model");
        let routes = Arc::new(Routes::new(&self.model, Arc::clone(&scoring), Arc::clone(&metrics)));
        let (close, closing) = watch::channel(false);
        let of_exchange = Arc::clone(&metrics);
        let exchange =
            ScoreExchange::new(Arc::clone(&scoring), closing, move |scored, took| count(&of_exchange, scored, took));
        let service = HttpService {
            handler: Arc::new(move |request| routes.answer(request)),
            refusal,
            flight: vec![Arc::new(exchange)],
        };
        let io = IoRuntime::new("forebay-http", 1);
        // The server listens before the model is loaded, so that a wrong address is known at once and /healthz tells why the server waits.
        let limits = within_descriptors(HttpLimits::default());
        let server = HttpServer::start(&io, self.listen, &security, &limits, health.clone(), service)?;

        let deltas = self.deltas.as_deref().map(Folder::from);
        let mut follower = Follower::new(&self.model, deltas, &self.settings, context);
        let model = follower.load()?;
        stop.has_begun();
        let threads = self.threads.map_or_else(|| IoRuntime::cores(64), usize::from);
        let (versions, rows) = (model.versions(), model.table_rows());
        let started = scoring.set(ScoringThreads::start(model, threads)?);
        debug_assert!(started.is_ok(), "it is set once");
        health.ready();
        let scheme = if files.tls_cert.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://{}", server.address());
        let line = format!("serving {} at {address}: {}, {versions}", self.model, counted(rows, "row"));
        let version = versions.version;
        match logs.is_json() {
            true => {
                out::print_or_drop(json!({ "serving": line, "address": address, "version": version, "rows": rows }))
            }
            false => out::print_or_drop(line),
        }

        if let Some(every) = watch {
            let follow = move || follow(follower, every, &scoring, &metrics);
            let started = std::thread::Builder::new().name("follow".into()).spawn(follow);
            started.map_err(|e| Fault::no_thread("the thread `follow`", e))?;
        }
        io.clone().block_on(async {
            while !stop.asked() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            health.waiting("stopping");
            close.send_replace(true);
            server.stop(GRACE).await;
        });
        Ok(Ended::Done)
    }

    fn watch_every(&self) -> Result<Option<Duration>, Fault> {
        match Duration::try_from_secs_f64(self.watch) {
            Ok(every) => Ok(Some(every).filter(|every| !every.is_zero())),
            Err(_) => Err(Fault::user(format!("--watch is {}, expected seconds, or 0 for never", self.watch))),
        }
    }
}

/// The limits with fewer connections if this process may not have a socket for each.
fn within_descriptors(limits: HttpLimits) -> HttpLimits {
    let most = raise_descriptor_limit(limits.connections as u64 + DESCRIPTORS);
    let left = most.map_or(usize::MAX, |most| most.saturating_sub(DESCRIPTORS).max(1) as usize);
    HttpLimits { connections: limits.connections.min(left), ..limits }
}

/// Looks for newer versions for as long as the process runs.
fn follow(mut follower: Follower, every: Duration, scoring: &OnceLock<ScoringThreads>, metrics: &ServeMetrics) {
    let Some(scoring) = scoring.get() else { return };
    loop {
        std::thread::park_timeout(every);
        let current = scoring.model();
        match follower.look(&current) {
            Followed::Nothing => {}
            Followed::Newer(model) => {
                let (versions, deltas, rows) = (model.versions(), model.deltas(), model.table_rows());
                let warning = other_columns(&current, &model);
                metrics.changed();
                scoring.replace(*model);
                tracing::info!(
                    version = %versions.version,
                    deltas,
                    "serving {versions}: {}, {} since the folder",
                    counted(rows, "row"),
                    counted(deltas, "delta")
                );
                if let Some(warning) = warning {
                    tracing::warn!("{warning}");
                }
            }
            Followed::Broken(fault) => {
                tracing::warn!("version {} stays: {fault}", current.version());
                metrics.failed();
            }
        }
    }
}

/// Why the server may refuse requests that it answered with the model before: the newer model has other columns.
fn other_columns(before: &ServingModel, newer: &ServingModel) -> Option<String> {
    let columns = |model: &ServingModel| model.columns().map(str::to_owned).collect::<BTreeSet<_>>();
    let (before, newer) = (columns(before), columns(newer));
    let named = |one: &BTreeSet<String>, without: &BTreeSet<String>| {
        let names: Vec<_> = one.difference(without).map(|name| format!("`{name}`")).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    (before != newer).then(|| {
        let (added, gone) = (named(&newer, &before), named(&before, &newer));
        format!("the newer model has other columns than the one before: added {added}; gone {gone}. Requests with the old columns may be refused")
    })
}
