//! The error that stops a pipeline: what happened, where, who can correct it, and whether a retry can help.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use forebay_base::panic_message;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};
use tokio::task::JoinError;

use crate::batch::Lineage;

/// Who can correct a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Domain {
    /// The job, its data, or its configuration.
    User,
    /// A disk, a network, a cluster.
    External,
    /// Forebay itself.
    Internal,
}

/// The kind of a fault, for programs and tests; the message is for people.
///
/// `Display` prints its name, such as `non_finite`; [`from_name`](Self::from_name) takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FaultKind {
    /// The job, an argument or the wiring is wrong, contradicts another one, or does not fit the checkpoint or the model that it names.
    InvalidJob,
    /// The data is not what the job says. Or a file of the data is corrupt, was cut short, or cannot be unpacked.
    BadData,
    /// The data looks like data of another format.
    OtherFormat,
    /// A value is not of the type of its column.
    OtherType,
    /// A file lacks a column.
    MissingColumn,
    /// A file that Forebay wrote is not what its manifest says.
    Damaged,
    /// A file is not there, or a folder has no checkpoint or not the one that was asked for.
    NotFound,
    /// A disk is full, or a quota of it is used up.
    NoSpace,
    /// A file that another version of the program wrote, and this one cannot read. It is not damaged.
    OtherVersion,
    /// A number is NaN or infinite.
    NonFinite,
    /// The device, or the library that drives it, failed.
    Device,
    /// Another process cannot be reached, or the connection to it broke.
    Unreachable,
    /// A deadline passed.
    Timeout,
    /// Another run, or another process of this run, writes to the same place or has taken over.
    Overtaken,
    /// A process refused the request of another one, or the two do not trust each other: a token, TLS.
    Refused,
    /// The ledger of a run does not add up.
    LedgerMismatch,
    /// The code of a stage or of a service panicked.
    Panic,
    /// The run or the service has ended or is ending.
    Stopped,
    /// The run was asked to end before its last row. A checkpoint has the rows that it trained on.
    Drained,
    /// The run of several processes began a new attempt: this process joins again.
    RolledBack,
    /// The run of several processes has ended, and its model is saved: this process has nothing to do.
    RunOver,
    /// The training has ended, but its model could not be saved at `output.model`. Or the training was asked to end, and its last
    /// checkpoint could not be written: then its model is saved instead, if the job saves one after a drain. To train again would not help.
    /// Or the checkpoints of a run cannot be reached: to start again from row 0 would train again on all rows.
    Unsaved,
    /// None of these, or one that this version of the program does not know.
    #[default]
    #[serde(other)]
    Other,
}

impl FaultKind {
    /// The kind of a name, [`Other`](Self::Other) if it is the name of none.
    pub fn from_name(name: &str) -> Self {
        let name: StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
        Self::deserialize(name).unwrap_or_default()
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What the stage was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before the first batch.
    Open,
    /// On a batch (or, for a source, producing one).
    Batch,
    /// On a barrier.
    Barrier,
    /// After the last batch.
    Finish,
}

/// What tokio and the standard library say in a panic if the operating system starts no thread. [`Fault::of_panic`] and the panic hook of
/// the program know these texts.
const NO_THREAD: [&str; 2] = ["OS can't spawn worker thread", "failed to spawn thread"];

/// Why the operating system starts no thread, and which limits to look at.
const NO_MORE_THREADS: &str = "the machine, or a limit of the process or container (`ulimit -u`, `ulimit -v`, the limit on pids), allows no \
                               more threads";

/// The root cause of a stopped pipeline.
///
/// A stage makes one with [`Fault::user`], [`Fault::external`] or [`Fault::internal`]. The runtime adds the stage, the
/// phase and the lineage of the batch.
///
/// `Debug` prints the same text as `Display`, because `fn main() -> Result<(), Fault>` and `unwrap` print with it; `{:#?}` prints the
/// fields.
#[derive(Clone)]
pub struct Fault {
    /// Who can correct it.
    pub domain: Domain,
    /// What went wrong.
    pub kind: FaultKind,
    /// Whether the same run may succeed when tried again.
    pub retryable: bool,
    /// Name of the stage, once known.
    pub stage: Option<String>,
    /// What the stage was doing, once known.
    pub phase: Option<Phase>,
    /// The batch that the stage worked on, once known.
    pub lineage: Option<Lineage>,
    /// Whether the place of its batch is not printed.
    hides_lineage: bool,
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
    /// Whether the message says the cause, which is then not printed after it.
    says_source: bool,
}

impl Fault {
    fn new(domain: Domain, message: impl Into<String>) -> Self {
        Self {
            domain,
            kind: FaultKind::Other,
            retryable: false,
            stage: None,
            phase: None,
            lineage: None,
            hides_lineage: false,
            message: message.into(),
            source: None,
            says_source: false,
        }
    }

    /// The job, its data or its configuration is at fault: the message says what was found, what was expected, and
    /// what to do.
    pub fn user(message: impl Into<String>) -> Self {
        Self::new(Domain::User, message)
    }

    /// Something outside failed: a disk, a network, a cluster.
    pub fn external(message: impl Into<String>) -> Self {
        Self::new(Domain::External, message)
    }

    /// Forebay itself has a bug.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Domain::Internal, message)
    }

    /// A thread does not start, or the threads of a runtime or pool do not. `what` names them, for instance "the thread `watch`". If
    /// `error` says that there are no more file descriptors, which a runtime needs, too, the message does not speak of limits on threads.
    pub fn no_thread(what: impl fmt::Display, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        let no_more = |e: &io::Error| matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory);
        let fault = match error.downcast_ref::<io::Error>().is_none_or(no_more) {
            true => Self::external(format!("cannot start {what}: {NO_MORE_THREADS}")),
            false => Self::external(format!("cannot start {what}")),
        };
        fault.because(error)
    }

    /// The fault of a panic, from what `catch_unwind` or `JoinHandle::join` returned: a defect of Forebay, or an external fault if the
    /// panic says that no thread could be started. `what` is what panicked, for instance `"a decode job panicked"`.
    pub fn of_panic(what: &str, panic: &(dyn Any + Send)) -> Self {
        let said = panic_message(panic);
        if said.contains(NO_MORE_THREADS) {
            // `no_thread` made the text of this panic, so it is complete.
            return Self::external(said);
        }
        if NO_THREAD.iter().any(|text| said.contains(text)) {
            return Self::no_thread("a thread", said);
        }
        Self::internal(format!("{what}: {said}")).kind(FaultKind::Panic)
    }

    /// For a panic hook: whether this panic says that no thread could be started. A fault says the same in words for the user.
    pub fn is_of_no_thread(panic: &(dyn Any + Send)) -> bool {
        let said = panic_message(panic);
        said.contains(NO_MORE_THREADS) || NO_THREAD.iter().any(|text| said.contains(text))
    }

    /// As [`of_panic`](Self::of_panic), of a task of tokio, which has panicked or was cancelled.
    pub fn of_task(what: &str, error: JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => Self::of_panic(what, &*panic),
            Err(error) => Self::internal(what).because(error),
        }
    }

    /// Sets the kind.
    #[must_use]
    pub fn kind(mut self, kind: FaultKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the kind, unless one is set.
    #[must_use]
    pub fn kind_if_none(self, kind: FaultKind) -> Self {
        if self.kind == FaultKind::Other { self.kind(kind) } else { self }
    }

    /// Marks the fault as retryable.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// Makes `Display` leave out the lineage of the batch. Either the message names the file and its row, which are counted in another way;
    /// or the fault is not about the rows of the batch that the stage worked on, for instance a full disk.
    #[must_use]
    pub fn hide_lineage(mut self) -> Self {
        self.hides_lineage = true;
        self
    }

    /// Whether the place of the batch is not printed: see [`hide_lineage`](Self::hide_lineage).
    pub fn hides_lineage(&self) -> bool {
        self.hides_lineage
    }

    /// Sets the cause, which is printed after the message.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self.says_source = false;
        self
    }

    /// Sets the cause, which the message already says as far as it is for people: it is not printed again.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self.says_source = true;
        self
    }

    /// Sets the stage, the phase and the lineage. A value that is set already stays: the innermost place wins.
    #[must_use]
    pub fn at(mut self, stage: &str, phase: Phase, lineage: Option<&Lineage>) -> Self {
        self.stage.get_or_insert_with(|| stage.to_owned());
        self.phase.get_or_insert(phase);
        if self.lineage.is_none() {
            self.lineage = lineage.cloned();
        }
        self
    }

    /// A fault with `text` in front of this one, which becomes its cause. `text` says what the fault prevented, or what it is about.
    /// Domain, kind, `retryable` and the place stay.
    #[must_use]
    pub fn context(self, text: impl Into<String>) -> Self {
        self.around(|_| text.into(), false)
    }

    /// A fault with `text` behind this one and its causes; this one becomes its cause. `text` says what to do, or what else happened.
    /// Domain, kind, `retryable` and the place stay.
    #[must_use]
    pub fn followed_by(self, text: impl fmt::Display) -> Self {
        self.around(|fault| format!("{fault}{text}"), true)
    }

    /// A fault in the same place, whose message is made of this one without its place.
    fn around(mut self, message: impl FnOnce(&Self) -> String, says_source: bool) -> Self {
        let Self { domain, kind, retryable, hides_lineage, .. } = self;
        let (stage, phase, lineage) = (self.stage.take(), self.phase.take(), self.lineage.take());
        let message = message(&self);
        let source: Option<Arc<dyn Error + Send + Sync>> = Some(Arc::new(self));
        Self { domain, kind, retryable, stage, phase, lineage, hides_lineage, message, source, says_source }
    }

    /// The message alone, without place and cause.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let (mut cause, mut before) = (self.source().filter(|_| !self.says_source), self.message.clone());
        while let Some(e) = cause {
            let text = e.to_string();
            // Many errors print their cause themselves.
            if !before.ends_with(&text) {
                write!(f, ": {text}")?;
                before = text;
            }
            // A fault has printed its causes already.
            cause = if e.is::<Self>() { None } else { e.source() };
        }
        match (&self.stage, self.phase) {
            (Some(stage), Some(Phase::Open)) => write!(f, " (stage `{stage}`, opening")?,
            (Some(stage), Some(Phase::Barrier)) => write!(f, " (stage `{stage}`, at a barrier")?,
            (Some(stage), Some(Phase::Finish)) => write!(f, " (stage `{stage}`, finishing")?,
            (Some(stage), _) => write!(f, " (stage `{stage}`")?,
            (None, _) => return Ok(()),
        }
        match &self.lineage {
            Some(lineage) if !self.hides_lineage => write!(f, ", {lineage})"),
            _ => f.write_str(")"),
        }
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Fault")
            .field("domain", &self.domain)
            .field("kind", &self.kind)
            .field("retryable", &self.retryable)
            .field("text", &self.to_string())
            .finish_non_exhaustive()
    }
}

/// The text of a fault contains the texts of its sources: print the fault or the chain of sources, not both.
impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_main_is_printed_as_text() {
        let fault = Fault::user("cannot read \"a\"\n  a hint").kind(FaultKind::NotFound);
        assert_eq!(format!("{fault:?}"), "cannot read \"a\"\n  a hint");
        assert!(format!("{fault:#?}").contains("kind: NotFound"));
    }

    #[test]
    fn a_cause_prints_once_however_deep_and_a_clone_keeps_it() {
        let disk = std::io::Error::other("disk full");
        let inner = Fault::external("cannot write a.txt").because(disk).kind(FaultKind::Timeout);
        let outer = Fault::internal("no checkpoint").because(inner).clone();
        assert_eq!(outer.to_string(), "no checkpoint: cannot write a.txt: disk full");
        let cause = outer.source().and_then(|e| e.downcast_ref::<Fault>()).unwrap();
        assert_eq!(cause.kind, FaultKind::Timeout);
        assert_eq!(cause.source().unwrap().to_string(), "disk full");
    }

    #[test]
    fn a_cause_that_the_text_before_ends_with_is_not_printed_again() {
        #[derive(Debug)]
        struct Wrapped(&'static str, std::io::Error);
        impl fmt::Display for Wrapped {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}: {}", self.0, self.1)
            }
        }
        impl Error for Wrapped {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.1)
            }
        }
        let disk = || std::io::Error::other("disk full");
        let fault = Fault::external("cannot list `a`").because(Wrapped("error of the store", disk()));
        assert_eq!(fault.to_string(), "cannot list `a`: error of the store: disk full");
        let other = std::io::Error::other(Wrapped("error of the store", disk()));
        let fault = Fault::external("cannot list `a`").because(other);
        assert_eq!(fault.to_string(), "cannot list `a`: error of the store: disk full");
    }

    #[test]
    fn a_cause_that_the_message_says_is_kept_and_not_printed() {
        let full = || io::Error::new(io::ErrorKind::StorageFull, "no space");
        let fault = Fault::external("cannot write `a` (no space): make room").with_source(full());
        assert_eq!(fault.to_string(), "cannot write `a` (no space): make room");
        let cause = fault.source().and_then(|e| e.downcast_ref::<io::Error>()).unwrap();
        assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fault.context("no model").to_string(), "no model: cannot write `a` (no space): make room");
        assert_eq!(Fault::user("a").with_source("b").because("c").to_string(), "a: c");
    }

    #[test]
    fn a_kind_has_a_name_and_a_name_that_is_unknown_is_that_of_another_kind() {
        for kind in [FaultKind::NonFinite, FaultKind::RolledBack, FaultKind::NoSpace, FaultKind::Other] {
            assert_eq!(FaultKind::from_name(&kind.to_string()), kind);
        }
        assert_eq!(FaultKind::NonFinite.to_string(), "non_finite");
        assert_eq!(FaultKind::from_name("of_a_later_version"), FaultKind::Other);
        assert_eq!(serde_json::from_str::<FaultKind>("\"of_a_later_version\"").unwrap(), FaultKind::Other);
    }

    #[test]
    fn a_panic_is_a_defect_but_a_thread_that_cannot_start_is_a_fault_of_the_machine() {
        let caught = |text: &'static str| std::panic::catch_unwind(|| panic!("{text}")).unwrap_err();
        let fault = Fault::of_panic("a job panicked", &*caught("no such row"));
        assert_eq!(fault.to_string(), "a job panicked: no such row");
        assert_eq!((fault.domain, fault.kind), (Domain::Internal, FaultKind::Panic));
        assert!(!Fault::is_of_no_thread(&*caught("no such row")));
        for text in [
            "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)",
            "failed to spawn thread: Os { code: 11, kind: WouldBlock, message: \"Resource temporarily unavailable\" }",
        ] {
            let fault = Fault::of_panic("a job panicked", &*caught(text));
            assert_eq!((fault.domain, fault.kind), (Domain::External, FaultKind::Other), "{fault}");
            assert!(
                fault.to_string().starts_with("cannot start a thread") && fault.to_string().ends_with(text),
                "{fault}"
            );
            // As `IoRuntime::handle` panics with it.
            let said = fault.to_string();
            let again = std::panic::catch_unwind(|| panic!("{said}")).unwrap_err();
            assert!(Fault::is_of_no_thread(&*again) && Fault::is_of_no_thread(&*caught(text)));
            let again = Fault::of_panic("another job panicked", &*again);
            assert_eq!((again.domain, again.to_string()), (Domain::External, said));
        }
    }

    #[test]
    fn the_fault_of_a_thread_speaks_of_limits_on_threads_only_if_these_are_the_reason() {
        let said = |kind: io::ErrorKind| Fault::no_thread("the thread `watch`", io::Error::new(kind, "no")).to_string();
        let limits = format!("cannot start the thread `watch`: {NO_MORE_THREADS}: no");
        assert_eq!([io::ErrorKind::WouldBlock, io::ErrorKind::OutOfMemory].map(said), [limits.clone(), limits.clone()]);
        assert_eq!(said(io::ErrorKind::Other), "cannot start the thread `watch`: no");
        assert_eq!(Fault::no_thread("the thread `watch`", "no").to_string(), limits);
    }

    /// A bug: two numbers of rows, of the file and of the batch, looked like a contradiction.
    #[test]
    fn a_message_that_names_its_row_is_not_followed_by_the_row_of_the_batch() {
        let at = |fault: Fault| fault.at("parse", Phase::Batch, Some(&Lineage::default()));
        let fault = at(Fault::user("row 9: x is NaN").hide_lineage());
        assert_eq!(fault.to_string(), "row 9: x is NaN (stage `parse`)");
        assert_eq!(fault.lineage, Some(Lineage::default()), "the report has it");
        assert_eq!(fault.context("no model").to_string(), "no model: row 9: x is NaN (stage `parse`)");
        let full = at(Fault::external("the disk is full").hide_lineage()).to_string();
        assert_eq!(full, "the disk is full (stage `parse`)");
        let other = at(Fault::user("x is NaN")).to_string();
        assert_eq!(other, "x is NaN (stage `parse`, epoch 0, split 0, row 0 (batch 0))");
    }

    #[test]
    fn context_comes_first_and_all_else_stays() {
        let disk = std::io::Error::other("disk full");
        let fault = Fault::user("cannot write a.txt").because(disk).kind(FaultKind::Timeout).retryable();
        let fault = fault.at("save", Phase::Finish, None).context("no checkpoint");
        assert_eq!(fault.to_string(), "no checkpoint: cannot write a.txt: disk full (stage `save`, finishing)");
        assert_eq!((fault.domain, fault.kind, fault.retryable), (Domain::User, FaultKind::Timeout, true));
        assert_eq!((fault.message(), fault.stage.as_deref()), ("no checkpoint", Some("save")));
        let cause = fault.source().and_then(|e| e.downcast_ref::<Fault>()).unwrap();
        assert_eq!(cause.source().unwrap().to_string(), "disk full");
    }

    #[test]
    fn what_follows_comes_after_the_causes_and_all_else_stays() {
        let disk = std::io::Error::other("disk full");
        let fault = Fault::external("cannot write a.txt").because(disk).kind(FaultKind::Timeout).retryable();
        let fault = fault.at("save", Phase::Finish, None).followed_by("; make room").context("no checkpoint");
        let said = "no checkpoint: cannot write a.txt: disk full; make room (stage `save`, finishing)";
        assert_eq!(fault.to_string(), said);
        assert_eq!((fault.domain, fault.kind, fault.retryable), (Domain::External, FaultKind::Timeout, true));
        let mut cause = fault.source().unwrap();
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        assert_eq!(cause.to_string(), "disk full");
    }
}
