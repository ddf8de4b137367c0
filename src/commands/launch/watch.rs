//! Watches for processes that run but do nothing: stopped, or hung. The coordinator says which members send no heartbeat; a
//! coordinator that does not answer is such a process itself.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Fault;
use crate::pipelines::cluster::StatusClient;

/// The time between two questions.
const EVERY: Duration = Duration::from_secs(1);

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// The thread that asks. Dropping it ends the thread after its question.
pub(super) struct Watch {
    /// The names of the processes that are silent.
    silent: Arc<Mutex<Vec<String>>>,
    _alive: Sender<()>,
}

impl Watch {
    /// Asks from now on. A `coordinator` is silent when it gives no answer for `most_silence`.
    pub(super) fn start(client: StatusClient, coordinator: String, most_silence: Duration) -> Result<Self, Fault> {
        let (silent, (alive, ended)) = (Arc::default(), channel());
        let shared = Arc::clone(&silent);
        let ask = move || watch(&client, &coordinator, most_silence, &shared, &ended);
        std::thread::Builder::new()
            .name("watch".into())
            .spawn(ask)
            .map_err(|e| Fault::external("cannot start a thread").because(e))?;
        Ok(Self { silent, _alive: alive })
    }

    /// The names of the processes that are silent.
    pub(super) fn silent(&self) -> Vec<String> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn watch(
    client: &StatusClient,
    coordinator: &str,
    most_silence: Duration,
    silent: &Mutex<Vec<String>>,
    ended: &Receiver<()>,
) {
    let mut unanswered: Option<Instant> = None;
    while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let asked = Instant::now();
        let now = match client.status(DEADLINE) {
            Ok(Some(status)) => {
                unanswered = None;
                status.silent
            }
            // It is starting, or ending: `launch` sees that by itself.
            Err(_) => {
                unanswered = None;
                Vec::new()
            }
            Ok(None) => {
                let silence = unanswered.get_or_insert(asked).elapsed();
                if silence > most_silence { vec![coordinator.to_owned()] } else { Vec::new() }
            }
        };
        *silent.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}
