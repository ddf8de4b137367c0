//! A server with toy handlers, and peers of it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::Schema;
use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::{Fault, IoRuntime};
use forebay_net::{
    Caller, Dialer, FlightInfo, Handler, Health, Identity, Incoming, Limits, Message, Outgoing, Peer, Security,
    SecurityFiles, Server, flight_info,
};
use tokio::sync::{mpsc, watch};

/// Far longer than anything takes: only a hang gets there.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A runtime for one server or peer, which keeps it.
pub(crate) fn io() -> IoRuntime {
    IoRuntime::new("net", 1)
}

pub(crate) fn numbers(from: i64, rows: i64) -> RecordBatch {
    let column = Int64Array::from_iter_values(from..from + rows);
    RecordBatch::try_from_iter([("n", Arc::new(column) as _)]).unwrap()
}

pub(crate) fn identity(role: &str) -> Identity {
    Identity { run: "monday".to_owned(), role: role.to_owned(), incarnation: 3, attempt: 5 }
}

/// What the toy saw happen, for tests to wait for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    /// An exchange of this caller ended at the toy, because of this.
    Ended(String, Result<(), String>),
}

pub(crate) struct Toy {
    seen: mpsc::UnboundedSender<Seen>,
    flooded: watch::Sender<usize>,
    asked: AtomicUsize,
}

impl Toy {
    async fn serve(&self, path: &[String], mut incoming: Incoming, mut outgoing: Outgoing) -> Result<(), Fault> {
        match path.get(1).map(String::as_str) {
            Some("echo") => {
                while let Some(message) = incoming.next().await? {
                    outgoing.send(message).await?;
                }
                Ok(())
            }
            // Sends until no receiver takes more.
            Some("flood") => loop {
                outgoing.send(Message::columns(numbers(0, 1 << 15))).await?;
                self.flooded.send_modify(|sent| *sent += 1);
            },
            // Sends one message back, then fails.
            Some("fail") => {
                if let Some(message) = incoming.next().await? {
                    outgoing.send(message).await?;
                }
                Err(Fault::external("the disk is full").retryable())
            }
            Some("panic") => panic!("as was asked for"),
            // Waits forever.
            Some("wait") => {
                outgoing.send(Message::metadata("waiting")).await?;
                std::future::pending().await
            }
            _ => Err(Fault::user(format!("there is no exchange {path:?}"))),
        }
    }
}

#[async_trait]
impl Handler for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn actions(&self) -> Vec<(String, String)> {
        let kinds = [("who", "who asks"), ("big", "as many bytes as asked for"), ("fail", "fails"), ("wait", "waits")];
        kinds.map(|(kind, text)| (kind.to_owned(), text.to_owned())).into()
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match kind {
            "who" => Ok(format!("{:?}", caller.identity.as_ref().map(|i| (&i.run, &i.role, i.incarnation))).into()),
            "big" => {
                Ok(vec![b'0'; serde_json::from_slice(&body).map_err(|e| Fault::user("no number").because(e))?].into())
            }
            "fail" => Err(Fault::internal(String::from_utf8_lossy(&body)).retryable()),
            "wait" => std::future::pending().await,
            "panic" => panic!("as was asked for"),
            _ => Err(Fault::user(format!("no `{kind}`"))),
        }
    }

    async fn list(&self) -> Result<Vec<FlightInfo>, Fault> {
        let schema: Arc<Schema> = numbers(0, 0).schema();
        Ok(vec![flight_info(&["toy", "numbers"], &schema, r#"{"toy": "numbers", "rows": 5}"#, Some(5))?])
    }

    async fn exchange(
        &self,
        caller: Caller,
        path: Vec<String>,
        incoming: Incoming,
        outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let result = self.serve(&path, incoming, outgoing).await;
        let role = caller.identity.map_or_else(String::new, |identity| identity.role);
        let said = result.as_ref().map_err(|fault| fault.to_string()).copied();
        let _ = self.seen.send(Seen::Ended(role, said));
        result
    }

    async fn get(&self, _: Caller, ticket: Bytes, mut outgoing: Outgoing) -> Result<(), Fault> {
        let ticket: serde_json::Value =
            serde_json::from_slice(&ticket).map_err(|e| Fault::user("ticket").because(e))?;
        let rows = ticket["rows"].as_i64().ok_or_else(|| Fault::user("the ticket has no rows"))?;
        for from in 0..rows {
            outgoing.send(Message::columns(numbers(from, 1))).await?;
        }
        Ok(())
    }
}

pub(crate) struct Toys {
    pub(crate) server: Server,
    pub(crate) health: Health,
    pub(crate) flooded: watch::Receiver<usize>,
    pub(crate) seen: mpsc::UnboundedReceiver<Seen>,
}

impl Toys {
    pub(crate) async fn start(security: &Security, limits: &Limits) -> Toys {
        Self::listen("127.0.0.1:0".parse().unwrap(), security, limits).await.unwrap()
    }

    pub(crate) async fn plain() -> Toys {
        Self::start(&Security::none(), &Limits::default()).await
    }

    pub(crate) async fn listen(at: SocketAddr, security: &Security, limits: &Limits) -> Result<Toys, Fault> {
        let (seen_sender, seen) = mpsc::unbounded_channel();
        let (flooded_sender, flooded) = watch::channel(0);
        let toy = Toy { seen: seen_sender, flooded: flooded_sender, asked: AtomicUsize::new(0) };
        let health = Health::new();
        let handlers: Vec<Arc<dyn Handler>> = vec![Arc::new(toy)];
        let server = Server::start(&io(), at, security, identity("ps 0"), limits, handlers, health.clone()).await?;
        Ok(Toys { server, health, flooded, seen })
    }

    pub(crate) fn address(&self) -> String {
        self.server.address().to_string()
    }

    pub(crate) fn peer(&self) -> Peer {
        dial(&self.address(), &Security::none(), &Limits::default())
    }
}

pub(crate) fn dial(address: &str, security: &Security, limits: &Limits) -> Peer {
    Dialer::new(&io(), security, &identity("reader 1"), limits).unwrap().peer(address).unwrap()
}

/// Files of secrets in a folder of their own.
pub(crate) struct Files(pub(crate) tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    }

    /// A certificate for `host` that is its own authority, and perhaps a token.
    pub(crate) fn security(&self, host: &str, token: Option<&str>) -> SecurityFiles {
        let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
        SecurityFiles {
            token_file: token.map(|token| self.file(&format!("{host}.token"), token)),
            tls_cert: Some(self.file(&format!("{host}.cert"), &made.cert.pem())),
            tls_key: Some(self.file(&format!("{host}.key"), &made.signing_key.serialize_pem())),
            tls_ca: Some(self.file(&format!("{host}.ca"), &made.cert.pem())),
        }
    }

    pub(crate) fn token(&self, token: &str) -> Security {
        let token_file = Some(self.file(token, token));
        Security::load(&SecurityFiles { token_file, ..SecurityFiles::default() }).unwrap()
    }
}
