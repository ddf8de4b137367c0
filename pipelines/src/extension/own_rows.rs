//! The rows of a source of a program, checked against its leases. A source that returns nothing for long is named in the log: it may wait
//! for rows that do not exist yet, so this is no fault. A source that blocks its thread is found by the meters of its stage.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_actors::Fault;
use forebay_base::next_reminder;
use forebay_connectors::Rows;

use super::noted_leases::NotedLeases;

/// After this time without rows a source is warned of.
const SILENT: Duration = Duration::from_secs(60);

/// What a run knows of a source of a program.
pub(crate) struct OwnRows {
    /// Its name in the registry.
    name: Option<String>,
    leases: Option<Arc<NotedLeases>>,
}

impl OwnRows {
    /// A source without a name.
    pub(crate) fn unnamed() -> Self {
        Self { name: None, leases: None }
    }

    /// A source with its name in the registry. Its rows are checked against its leases, if it has any.
    pub(crate) fn named(name: &str, leases: Option<Arc<NotedLeases>>) -> Self {
        Self { name: Some(name.to_owned()), leases }
    }

    /// What the log and the report call the source that describes itself so.
    pub(crate) fn describe(&self, described: String) -> String {
        match &self.name {
            Some(name) => format!("{name}: {described}"),
            None => described,
        }
    }

    /// What a warning calls the source: its name, or else how it describes itself.
    pub(crate) fn name_or(&self, describe: impl FnOnce() -> String) -> Cow<'_, str> {
        self.name.as_deref().map_or_else(|| Cow::Owned(describe()), Cow::Borrowed)
    }

    /// Waits for the next rows of the source that a warning calls so, and checks them. Cancel safe if `next` is.
    ///
    /// # Errors
    /// That of `next`. The source breaks its leases.
    pub(crate) async fn checked(
        &self,
        called: &str,
        next: impl Future<Output = Result<Option<Rows>, Fault>>,
    ) -> Result<Option<Rows>, Fault> {
        let leases = self.leases.as_deref();
        let rows = warn_while_silent(|waited| silence(called, leases, waited), next).await?;
        if let Some(leases) = leases {
            rows.as_ref().map_or_else(|| leases.ended(), |rows| leases.returned(rows))?;
        }
        Ok(rows)
    }
}

/// Waits for the end of `next`, and warns again and again with what `silence` says of the time waited; `None`: there is nothing to say.
/// Cancel safe if `next` is.
async fn warn_while_silent<T>(silence: impl Fn(Duration) -> Option<String>, next: impl Future<Output = T>) -> T {
    let (mut next, mut last) = (pin!(next), None);
    loop {
        let waited = next_reminder(SILENT, last);
        if let Ok(rows) = tokio::time::timeout(waited - last.unwrap_or_default(), &mut next).await {
            return rows;
        }
        last = Some(waited);
        if let Some(warning) = silence(waited) {
            tracing::warn!("{warning}");
        }
    }
}

/// What is said of a source that has returned nothing for this long. `None`: it has leases, and no window to return.
fn silence(source: &str, leases: Option<&NotedLeases>, waited: Duration) -> Option<String> {
    let said = format!("the source `{source}` has returned no rows for {} s", waited.as_secs());
    match leases {
        Some(leases) => Some(format!("{said}, and the run waits for its {}", leases.awaited_window()?)),
        None => Some(said),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use forebay_connectors::{DataPlan, Leases, LocalLeases};

    use super::*;

    #[tokio::test]
    async fn a_source_with_leases_is_silent_only_while_it_has_a_window_to_return() {
        let leases = NotedLeases::new("clicks", Arc::new(LocalLeases::new(2)), 100);
        let hour = Duration::from_secs(3600);
        let said = "the source `clicks` has returned no rows for 3600 s";
        assert_eq!(silence("clicks", None, hour).as_deref(), Some(said));
        assert_eq!(silence("clicks", Some(&leases), hour), None, "it waits for a lease");
        leases.next(&DataPlan { epochs: 1, rows: 250, windows: 3, fingerprint: 7 }).await.unwrap();
        let said = format!("{said}, and the run waits for its window 0 of epoch 0 (term 0)");
        assert_eq!(silence("clicks", Some(&leases), hour), Some(said));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_source_is_warned_of_with_growing_pauses() {
        let warned = RefCell::new(Vec::new());
        let note = |waited: Duration| {
            warned.borrow_mut().push(waited.as_secs());
            None
        };
        let late = async {
            tokio::time::sleep(Duration::from_secs(6000)).await;
            7
        };
        assert_eq!(warn_while_silent(note, late).await, 7);
        assert_eq!(*warned.borrow(), [60, 120, 240, 480, 960, 1920, 3720, 5520]);
    }
}
