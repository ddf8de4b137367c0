//! Who calls: the headers `forebay-protocol`, `forebay-run`, `forebay-role`, `forebay-incarnation` and
//! `forebay-attempt` that a process sends with every call, and the server's check of them.

use std::net::SocketAddr;

use forebay_actors::{Fault, FaultKind};
use http::{HeaderMap, HeaderValue};

/// The version of the messages between Forebay's processes. Processes of different versions refuse each other.
pub const PROTOCOL: u32 = 20;

const HEADER_PROTOCOL: &str = "forebay-protocol";
const HEADER_RUN: &str = "forebay-run";
const HEADER_ROLE: &str = "forebay-role";
const HEADER_INCARNATION: &str = "forebay-incarnation";
const HEADER_ATTEMPT: &str = "forebay-attempt";

/// The identity of a process, which it sends with each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The run it belongs to. Processes of different runs refuse each other.
    pub run: String,
    /// What it does there, with its rank: `reader 3`.
    pub role: String,
    /// The number that the coordinator gave it when it joined, higher than all numbers before, of any role; 0: none yet.
    pub incarnation: u64,
    /// The attempt of the run that it is in; 0: none yet.
    pub attempt: u64,
}

/// Who makes a call.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its socket.
    pub peer: SocketAddr,
    /// Its own headers; `None`: a stock Flight client, which does not send these headers.
    pub identity: Option<Identity>,
}

impl Caller {
    /// `reader 3 at 10.0.0.7:40112`, for messages.
    pub fn describe(&self) -> String {
        match &self.identity {
            Some(identity) => format!("{} at {}", identity.role, self.peer),
            None => format!("a client at {}", self.peer),
        }
    }
}

impl Identity {
    /// The headers of each call.
    pub(crate) fn headers(&self, protocol: u32) -> Result<HeaderMap, Fault> {
        let value = |name: &str, text: &str| {
            HeaderValue::from_str(text).ok().filter(|_| text.is_ascii()).ok_or_else(|| {
                Fault::user(format!("{name} `{}` has characters other than printable ASCII", text.escape_debug()))
                    .kind(FaultKind::InvalidJob)
            })
        };
        let mut headers = HeaderMap::new();
        headers.insert(HEADER_PROTOCOL, HeaderValue::from(protocol));
        headers.insert(HEADER_RUN, value("the run", &self.run)?);
        headers.insert(HEADER_ROLE, value("the role", &self.role)?);
        headers.insert(HEADER_INCARNATION, HeaderValue::from(self.incarnation));
        headers.insert(HEADER_ATTEMPT, HeaderValue::from(self.attempt));
        Ok(headers)
    }

    /// Reads the identity a caller sends, and refuses one of another protocol or run. Callers without these headers
    /// pass: they are stock Flight clients.
    pub(crate) fn of_caller(headers: &HeaderMap, run: &str) -> Result<Option<Identity>, Fault> {
        let text = |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        if let Some(theirs) = text(HEADER_PROTOCOL)
            && theirs != PROTOCOL.to_string()
        {
            return Err(Fault::user(format!(
                "the server speaks protocol {PROTOCOL}, and the caller speaks {}: run the same version of Forebay \
                 everywhere",
                theirs.escape_debug()
            ))
            .kind(FaultKind::Refused));
        }
        let Some(theirs) = text(HEADER_RUN) else { return Ok(None) };
        if theirs != run {
            return Err(Fault::user(format!(
                "this is run `{run}`, and the caller belongs to run `{}`: give all processes of one run the same name, \
                 and runs that overlap other addresses",
                theirs.escape_debug()
            ))
            .kind(FaultKind::Refused));
        }
        let number = |name: &str| {
            let number = text(name).unwrap_or_else(|| "0".to_owned());
            number.parse().map_err(|_| {
                Fault::user(format!("the header {name} is `{}`, not a number", number.escape_debug()))
                    .kind(FaultKind::Refused)
            })
        };
        let (incarnation, attempt) = (number(HEADER_INCARNATION)?, number(HEADER_ATTEMPT)?);
        Ok(Some(Identity { run: theirs, role: text(HEADER_ROLE).unwrap_or_default(), incarnation, attempt }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { run: "monday".to_owned(), role: "reader 3".to_owned(), incarnation: 2, attempt: 6 }
    }

    #[test]
    fn headers_carry_the_identity() {
        let headers = identity().headers(PROTOCOL).unwrap();
        assert_eq!(Identity::of_caller(&headers, "monday").unwrap(), Some(identity()));
        assert_eq!(Identity::of_caller(&HeaderMap::new(), "monday").unwrap(), None);
    }

    #[test]
    fn another_run_or_protocol_is_refused_with_both_values() {
        let message = |headers: &HeaderMap| Identity::of_caller(headers, "tuesday").unwrap_err().to_string();
        let said = message(&identity().headers(PROTOCOL).unwrap());
        assert!(said.contains("`tuesday`") && said.contains("`monday`"), "{said}");
        let said = message(&identity().headers(PROTOCOL + 1).unwrap());
        assert!(
            said.contains(&format!("protocol {PROTOCOL}")) && said.contains(&format!("speaks {}", PROTOCOL + 1)),
            "{said}"
        );
    }

    #[test]
    fn names_and_numbers_that_cannot_be_headers_are_refused() {
        let broken = Identity { run: "mon\nday".to_owned(), ..identity() };
        assert!(broken.headers(PROTOCOL).unwrap_err().to_string().contains("the run `mon\\nday`"));
        let mut headers = identity().headers(PROTOCOL).unwrap();
        headers.insert(HEADER_INCARNATION, HeaderValue::from_static("many"));
        assert!(Identity::of_caller(&headers, "monday").unwrap_err().to_string().contains("`many`, not a number"));
    }
}
