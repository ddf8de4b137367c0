//! Finds processes that exist but do nothing: they are stopped, or hang. The coordinator names the silent processes. A coordinator that
//! does not answer counts as such a process. The same thread tells the coordinator which processes have ended for good.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Fault;
use crate::pipelines::cluster::{Role, SupervisorClient};

/// The time between two questions.
const EVERY: Duration = Duration::from_secs(1);

/// The time before the next try to say which processes have ended, if the coordinator could not be reached.
const AGAIN: Duration = Duration::from_millis(100);

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// The last answer of the coordinator.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// The names of the processes that are silent.
    pub(super) silent: Vec<String>,
    /// The attempt of the run, and its windows that are done.
    pub(super) progress: Option<(u64, u64)>,
    /// The run has made checkpoints.
    pub(super) has_checkpoints: bool,
}

/// The thread that asks, and tells the coordinator which processes have ended. A drop ends the thread after its current question.
pub(super) struct Watch {
    seen: Arc<Mutex<Seen>>,
    /// The processes that the thread knows to have ended for good.
    told: Vec<(Role, u32)>,
    processes_ended: Sender<Vec<(Role, u32)>>,
}

impl Watch {
    /// Starts to ask. A `coordinator` is silent when it gives no answer for `most_silence`, or cannot be reached for twice as long: it
    /// listens at no address when it has just been started, and for a moment between two attempts.
    pub(super) fn start(client: SupervisorClient, coordinator: String, most_silence: Duration) -> Result<Self, Fault> {
        let (seen, (processes_ended, ended)) = (Arc::default(), channel());
        let shared = Arc::clone(&seen);
        let ask = move || watch(&client, &coordinator, most_silence, &shared, &ended);
        std::thread::Builder::new()
            .name("watch".into())
            .spawn(ask)
            .map_err(|e| Fault::no_thread("the thread `watch`", e))?;
        Ok(Self { seen, told: Vec::new(), processes_ended })
    }

    /// The last answer of the coordinator.
    pub(super) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the coordinator, at once and after each question, that these processes have ended and are not started again. Does not block.
    pub(super) fn processes_ended(&mut self, processes: Vec<(Role, u32)>) {
        if self.told != processes {
            self.told.clone_from(&processes);
            // An error means that the thread is gone, after a panic.
            let _ = self.processes_ended.send(processes);
        }
    }
}

fn watch(
    client: &SupervisorClient,
    coordinator: &str,
    most_silence: Duration,
    seen: &Mutex<Seen>,
    processes_ended: &Receiver<Vec<(Role, u32)>>,
) {
    let (mut silence, mut ended, mut every) = (Silence::default(), Vec::new(), EVERY);
    loop {
        match processes_ended.recv_timeout(every) {
            Ok(processes) => ended = processes,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        every = EVERY;
        // Again and again, because a coordinator that was started again does not know it.
        if !ended.is_empty() && client.processes_ended(&ended, DEADLINE).is_err() {
            every = AGAIN;
        }
        let asked = Instant::now();
        let answer = client.status(DEADLINE);
        let heard = match &answer {
            Ok(Some(_)) => Heard::Answer,
            Ok(None) => Heard::Nothing,
            Err(_) => Heard::Unreached,
        };
        let is_silent = silence.after(heard, asked, Instant::now(), most_silence);
        let now = match answer {
            Ok(Some(status)) => Seen {
                progress: Some((status.attempt, status.windows_done)),
                silent: status.silent,
                has_checkpoints: status.has_checkpoints,
            },
            _ => Seen { silent: if is_silent { vec![coordinator.to_owned()] } else { Vec::new() }, ..Seen::default() },
        };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = Seen { has_checkpoints: seen.has_checkpoints || now.has_checkpoints, ..now };
    }
}

/// The result of a question.
#[derive(Clone, Copy, PartialEq)]
enum Heard {
    Answer,
    /// The coordinator takes the call and does not answer.
    Nothing,
    Unreached,
}

/// For how long the coordinator has not answered.
#[derive(Default)]
struct Silence {
    /// When the first question was asked that it did not answer.
    since: Option<Instant>,
    /// Whether it has taken a call since then.
    listens: bool,
}

impl Silence {
    /// Whether the coordinator is silent after a question that was `asked` then, and heard `now`. Only an answer ends the silence: a
    /// stopped process may take one call, and be out of reach for the next, after a connection that it does not serve has ended.
    fn after(&mut self, heard: Heard, asked: Instant, now: Instant, most_silence: Duration) -> bool {
        if heard == Heard::Answer {
            *self = Self::default();
            return false;
        }
        self.listens |= heard == Heard::Nothing;
        let most = if self.listens { most_silence } else { most_silence * 2 };
        now.duration_since(*self.since.get_or_insert(asked)) > most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(30);

    /// `launch` asks the coordinator once a second, and `heard` says what comes of the question of a second. Returns the first second at
    /// which the coordinator counts as silent.
    fn silent_after(heard: impl Fn(u64) -> Heard) -> Option<u64> {
        let (mut silence, begun) = (Silence::default(), Instant::now());
        let at = |second| begun + Duration::from_secs(second);
        (0..200).find(|&second| silence.after(heard(second), at(second), at(second + 1), MOST))
    }

    /// A bug: a coordinator that was stopped was never killed, because each kind of failure counted anew after one of the other kind.
    #[test]
    fn only_an_answer_ends_the_silence_of_a_coordinator() {
        assert_eq!(silent_after(|_| Heard::Nothing), Some(30));
        assert_eq!(silent_after(|_| Heard::Unreached), Some(60));
        let stopped = |second| if second % 10 == 9 { Heard::Unreached } else { Heard::Nothing };
        assert_eq!(silent_after(stopped), Some(30));
        let late = |second| if second < 40 { Heard::Unreached } else { Heard::Nothing };
        assert_eq!(silent_after(late), Some(40), "it listens, and the time in which it did not counts");
        assert_eq!(silent_after(|second| if second % 29 == 28 { Heard::Answer } else { Heard::Nothing }), None);
        assert_eq!(silent_after(|second| if second == 20 { Heard::Answer } else { Heard::Nothing }), Some(51));
    }
}
