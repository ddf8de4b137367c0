//! Faults as gRPC statuses, and the faults of broken connections.
//!
//! Domain, `retryable` and the kind travel in the header `forebay-fault`; without it they follow from the gRPC code.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_actors::{Domain, Fault, FaultKind, IoRuntime};
use http::HeaderMap;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

const HEADER_FAULT: &str = "forebay-fault";

const RETRYABLE: &str = "retryable";

/// Whether a process sends this kind to others. `Unreachable`, `Timeout` and `Stopped` describe the sender: its connections, its deadlines,
/// its end. A receiver would take such a kind for its own state, and call again or end.
fn travels(kind: FaultKind) -> bool {
    !matches!(kind, FaultKind::Unreachable | FaultKind::Timeout | FaultKind::Stopped | FaultKind::Other)
}

/// Longer ones would not fit the headers that HTTP/2 peers accept.
const MOST_MESSAGE: usize = 2 << 10;

/// The other end of a connection, for messages.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A server that we called: `host:port`, whether it is called with TLS, and whether it has ever answered. Streams keep the runtime
    /// alive with it.
    Server { address: String, tls: bool, answered: AtomicBool, _io: IoRuntime },
    /// A client that calls us.
    Client(String),
}

impl Origin {
    pub(crate) fn server(address: &str, tls: bool, io: &IoRuntime) -> Self {
        Self::Server { address: address.to_owned(), tls, answered: AtomicBool::new(false), _io: io.clone() }
    }

    /// The server has answered, so both ends speak TLS, or none does.
    pub(crate) fn has_answered(&self) {
        if let Self::Server { answered, .. } = self {
            answered.store(true, Ordering::Relaxed);
        }
    }

    /// The fault, with the name of the other end in front.
    pub(crate) fn name(&self, fault: Fault) -> Fault {
        fault.context(self.who())
    }

    pub(crate) fn fault(&self, what: &str) -> Fault {
        Fault::external(format!("{}: {what}", self.who()))
    }

    pub(crate) fn who(&self) -> &str {
        match self {
            Origin::Server { address, .. } => address,
            Origin::Client(who) => who,
        }
    }

    /// Whether its streams end with a status.
    pub(crate) fn answers(&self) -> bool {
        matches!(self, Origin::Server { .. })
    }

    /// The status at the end of a response, or instead of one.
    pub(crate) fn check_trailers(&self, mut trailers: HeaderMap) -> Result<(), Fault> {
        // tonic expects this header to be well formed, and it is not used here.
        trailers.remove("grpc-status-details-bin");
        match Status::from_header_map(&trailers) {
            Some(status) if status.code() == Code::Ok => Ok(()),
            Some(status) => Err(self.name(from_status(&status))),
            None if self.answers() => Err(self.fault("an answer without a status: is it a Flight server?")),
            None => Ok(()),
        }
    }
}

/// A fault to send.
pub(crate) fn to_status(fault: &Fault) -> Status {
    let code = match (fault.domain, fault.retryable) {
        (_, true) => Code::Unavailable,
        (Domain::User, _) => Code::InvalidArgument,
        (Domain::External, _) => Code::Aborted,
        (Domain::Internal, _) => Code::Internal,
    };
    with_code(code, fault)
}

/// A fault to send by a code that stock clients know.
pub(crate) fn with_code(code: Code, fault: &Fault) -> Status {
    let mut message = fault.to_string();
    message.truncate(message.floor_char_boundary(MOST_MESSAGE));
    let mut status = Status::new(code, message);
    let domain = match fault.domain {
        Domain::User => "user",
        Domain::External => "external",
        Domain::Internal => "internal",
    };
    let kind = travels(fault.kind).then(|| fault.kind.to_string());
    let words = [Some(domain), fault.retryable.then_some(RETRYABLE), kind.as_deref()];
    let words = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
    if let Ok(words) = MetadataValue::try_from(words) {
        status.metadata_mut().insert(HEADER_FAULT, words);
    }
    status
}

/// A fault as it was sent, by one of us or by another Flight server.
pub(crate) fn from_status(status: &Status) -> Fault {
    let message = if status.message().is_empty() { status.code().description() } else { status.message() };
    let words = status.metadata().get(HEADER_FAULT).and_then(|value| value.to_str().ok());
    if let Some(words) = words {
        let mut words = words.split(' ');
        let fault = match words.next() {
            Some("user") => Fault::user(message),
            Some("internal") => Fault::internal(message),
            _ => Fault::external(message),
        };
        return words.fold(fault, |fault, word| match FaultKind::from_name(word) {
            kind if travels(kind) => fault.kind(kind),
            _ if word == RETRYABLE => fault.retryable(),
            _ => fault,
        });
    }
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted | Code::ResourceExhausted => {
            Fault::external(message).kind(FaultKind::Unreachable).retryable()
        }
        Code::Unauthenticated
        | Code::PermissionDenied
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Fault::user(message).kind(FaultKind::Refused),
        _ => Fault::external(message),
    }
}

/// The fault of an error of the transport: a retry may help, unless the ends speak different protocols or distrust each other.
pub(crate) fn broken(origin: &Origin, error: &(dyn Error + 'static)) -> Fault {
    let mut words: Vec<String> = Vec::new();
    let mut cause = Some(error);
    while let Some(e) = cause {
        let said = match e.downcast_ref::<Status>() {
            Some(status) => status.message().to_owned(),
            None => e.to_string(),
        };
        if !words.last().is_some_and(|last| last.contains(&said)) {
            words.push(said);
        }
        cause = e.source();
    }
    let said = words.join(": ");
    if let Origin::Server { tls, answered, .. } = origin {
        if said.contains("invalid peer certificate") {
            let advice = "its certificate is not trusted: tls_ca must name the authority that signed it, and the \
                          certificate must name the host as it is dialed";
            return origin.name(Fault::user(format!("{advice} ({said})")).kind(FaultKind::Refused));
        }
        if *tls && said.contains("InvalidContentType") {
            let advice = "it does not speak TLS, and is called with it: give it tls_cert and tls_key, or leave out \
                          tls_ca here";
            return origin.name(Fault::user(format!("{advice} ({said})")).kind(FaultKind::Refused));
        }
        if !*tls && said.contains("frame with invalid size") {
            let advice = "it does not answer in HTTP/2: if it speaks TLS, name the authority of its certificate by \
                          tls_ca";
            return origin.name(Fault::user(format!("{advice} ({said})")).kind(FaultKind::Refused));
        }
        // The texts of errors when a TLS server drops a plain caller, or any server ends during a call.
        const ENDS: [&str; 3] = ["broken pipe", "reset", "connection closed"];
        if !*tls && !answered.load(Ordering::Relaxed) && ENDS.iter().any(|end| said.contains(end)) {
            return origin
                .fault(&format!("{said} (if it speaks TLS, name the authority of its certificate by tls_ca)"))
                .kind(FaultKind::Unreachable)
                .retryable();
        }
    }
    origin.fault(&said).kind(FaultKind::Unreachable).retryable()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A bug: a process of a run without TLS that was killed was said to speak TLS, perhaps.
    #[test]
    fn a_server_that_has_answered_and_goes_away_is_not_said_to_speak_tls() {
        let origin = Origin::server("ps0:7600", false, &IoRuntime::new("io", 1));
        let said = || broken(&origin, &io::Error::from(io::ErrorKind::ConnectionReset)).to_string();
        let hint = "if it speaks TLS";
        assert!(said().contains(hint), "{}", said());
        origin.has_answered();
        assert!(said().contains("reset") && !said().contains(hint), "{}", said());
    }

    /// A bug: a trainer that asked for rows of a run that had been drained ended with the exit code of a lost network.
    #[test]
    fn a_fault_arrives_as_it_was_sent() {
        let faults = [
            Fault::user("a"),
            Fault::internal("b").retryable(),
            Fault::external("c").kind(FaultKind::Drained),
            Fault::external("d").kind(FaultKind::RolledBack).retryable(),
            Fault::user("e").kind(FaultKind::NonFinite),
            Fault::user("f").kind(FaultKind::Damaged),
            Fault::external("g").kind(FaultKind::NoSpace).retryable(),
        ];
        for sent in faults {
            let came = from_status(&to_status(&sent));
            assert_eq!((came.domain, came.retryable, came.kind), (sent.domain, sent.retryable, sent.kind), "{came}");
        }
        let unreachable = Fault::external("of another process").kind(FaultKind::Unreachable);
        assert_eq!(from_status(&to_status(&unreachable)).kind, FaultKind::Other);
    }

    #[test]
    fn a_kind_of_a_later_version_and_one_about_the_sender_arrive_as_another_kind() {
        for word in ["of_a_later_version", "timeout", "stopped", "other"] {
            let mut status = Status::new(Code::Aborted, "a");
            let words = MetadataValue::try_from(format!("external {word}")).unwrap();
            status.metadata_mut().insert(HEADER_FAULT, words);
            let came = from_status(&status);
            assert_eq!((came.domain, came.retryable, came.kind), (Domain::External, false, FaultKind::Other), "{word}");
        }
    }
}
