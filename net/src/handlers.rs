//! The handlers of a server, found by the names in descriptors, tickets and action types. The fault about an unknown name lists the
//! handlers.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::{FlightDescriptor, FlightInfo};
use forebay_actors::{Fault, FaultKind};
use serde::de::IgnoredAny;
use tonic::{Code, Status};

use crate::attempt::{Attempt, OpenedIn};
use crate::handler::{Handler, list};
use crate::identity::Caller;
use crate::status::{to_status, with_code};

#[derive(Clone)]
pub(crate) struct Handlers {
    all: Arc<Vec<Arc<dyn Handler>>>,
    attempt: Attempt,
}

impl Handlers {
    pub(crate) fn new(handlers: Vec<Arc<dyn Handler>>, attempt: Attempt) -> Result<Self, Fault> {
        for (i, handler) in handlers.iter().enumerate() {
            if handlers[..i].iter().any(|other| other.name() == handler.name()) {
                return Err(Fault::internal(format!("two handlers of the name `{}` in one server", handler.name())));
            }
        }
        Ok(Self { all: Arc::new(handlers), attempt })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Handler>> {
        self.all.iter()
    }

    /// Checks the caller's attempt, unless `handler` takes calls of any attempt. Returns the attempt that a stream of this call is bound
    /// to.
    pub(crate) fn admit(&self, handler: &dyn Handler, caller: &Caller) -> Result<Option<OpenedIn>, Status> {
        if handler.takes_any_attempt() {
            return Ok(None);
        }
        self.attempt.admit(caller).map_err(|fault| to_status(&fault))
    }

    fn by_name(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.all.iter().find(|handler| handler.name() == name)
    }

    fn names(&self) -> String {
        list(&self.all.iter().map(|handler| format!("`{}`", handler.name())).collect::<Vec<_>>())
    }

    fn unknown(&self, what: &str) -> Status {
        with_code(Code::NotFound, &Fault::user(format!("{what}: there is {}", self.names())).kind(FaultKind::Refused))
    }

    /// The handler and the kind of the action `handler.kind`.
    pub(crate) fn of_action<'a>(&self, action: &'a str) -> Result<(&Arc<dyn Handler>, &'a str), Status> {
        let (name, kind) = action.split_once('.').unwrap_or((action, ""));
        let handler = self.by_name(name);
        let unknown =
            || self.unknown(&format!("there is no action `{}` here, for no handler of its name", printed(action)));
        Ok((handler.ok_or_else(unknown)?, kind))
    }

    /// The handler and the path that an exchange is for.
    pub(crate) fn of_descriptor(
        &self,
        descriptor: Option<FlightDescriptor>,
    ) -> Result<(&Arc<dyn Handler>, Vec<String>), Status> {
        let path = path(descriptor)?;
        let handler = path.first().and_then(|name| self.by_name(name));
        let unknown = || self.unknown(&format!("nothing is found at the path `{}`", printed(&path.join("/"))));
        Ok((handler.ok_or_else(unknown)?, path))
    }

    /// The handler a ticket is for.
    pub(crate) fn of_ticket(&self, ticket: &[u8]) -> Result<&Arc<dyn Handler>, Status> {
        let keys: BTreeMap<String, IgnoredAny> = serde_json::from_slice(ticket).map_err(|e| {
            let fault = Fault::user("a ticket is a JSON object here, with the name of a handler among its keys")
                .kind(FaultKind::Refused);
            to_status(&fault.because(e))
        })?;
        let handler = keys.keys().find_map(|key| self.by_name(key));
        handler.ok_or_else(|| self.unknown("the ticket names no handler among its keys"))
    }

    /// What lies at a path, among all that the handlers list.
    pub(crate) async fn info(&self, descriptor: FlightDescriptor) -> Result<FlightInfo, Status> {
        let (handler, path) = self.of_descriptor(Some(descriptor))?;
        let infos = handler.list().await.map_err(|fault| to_status(&fault))?;
        let at = |info: &FlightInfo| info.flight_descriptor.as_ref().map(|d| d.path.clone()).unwrap_or_default();
        let there: Vec<_> = infos.iter().map(|info| format!("`{}`", at(info).join("/"))).collect();
        infos.into_iter().find(|info| at(info) == path).ok_or_else(|| {
            let what =
                format!("nothing is found at the path `{}`: there is {}", printed(&path.join("/")), list(&there));
            with_code(Code::NotFound, &Fault::user(what).kind(FaultKind::Refused))
        })
    }
}

fn path(descriptor: Option<FlightDescriptor>) -> Result<Vec<String>, Status> {
    match descriptor {
        Some(descriptor) if descriptor.r#type() == DescriptorType::Path => Ok(descriptor.path),
        Some(_) => Err(to_status(&Fault::user("a descriptor has a path here, no command").kind(FaultKind::Refused))),
        None => Err(to_status(
            &Fault::user("the first message of a stream must have a descriptor with a path").kind(FaultKind::Refused),
        )),
    }
}

/// A received word, shortened and escaped for a message.
fn printed(word: &str) -> String {
    word.escape_debug().take(200).collect()
}
