//! Finds processes that exist but do nothing: they are stopped, or hang. The coordinator names the silent processes. A coordinator that
//! does not answer counts as such a process.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Fault;
use crate::pipelines::cluster::StatusClient;

/// The time between two questions.
const EVERY: Duration = Duration::from_secs(1);

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// What the coordinator last said.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// The names of the processes that are silent.
    pub(super) silent: Vec<String>,
    /// The attempt of the run, and its windows that are done.
    pub(super) progress: Option<(u64, u64)>,
}

/// The thread that asks the coordinator. Dropping this ends the thread after its current question.
pub(super) struct Watch {
    seen: Arc<Mutex<Seen>>,
    _alive: Sender<()>,
}

impl Watch {
    /// Starts to ask. A `coordinator` is silent when it gives no answer for `most_silence`, or cannot be reached for twice as long: it
    /// listens at no address when it has just been started, and for a moment between two attempts.
    pub(super) fn start(client: StatusClient, coordinator: String, most_silence: Duration) -> Result<Self, Fault> {
        let (seen, (alive, ended)) = (Arc::default(), channel());
        let shared = Arc::clone(&seen);
        let ask = move || watch(&client, &coordinator, most_silence, &shared, &ended);
        std::thread::Builder::new()
            .name("watch".into())
            .spawn(ask)
            .map_err(|e| Fault::no_thread("the thread `watch`", e))?;
        Ok(Self { seen, _alive: alive })
    }

    /// What the coordinator last said.
    pub(super) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn watch(client: &StatusClient, coordinator: &str, most_silence: Duration, seen: &Mutex<Seen>, ended: &Receiver<()>) {
    let (mut unanswered, mut unreached) = (None::<Instant>, None::<Instant>);
    while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let asked = Instant::now();
        let is_silent = |since: &mut Option<Instant>, most: Duration| {
            let silence = since.get_or_insert(asked).elapsed();
            let silent = if silence > most { vec![coordinator.to_owned()] } else { Vec::new() };
            Seen { silent, progress: None }
        };
        let now = match client.status(DEADLINE) {
            Ok(Some(status)) => {
                (unanswered, unreached) = (None, None);
                Seen { progress: Some((status.attempt, status.windows_done)), silent: status.silent }
            }
            Ok(None) => {
                unreached = None;
                is_silent(&mut unanswered, most_silence)
            }
            Err(_) => {
                unanswered = None;
                is_silent(&mut unreached, most_silence * 2)
            }
        };
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}
