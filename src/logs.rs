//! Logs: text for people, JSON for machines, on standard error.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How logs look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging; `filter` as in `info,forebay_connectors=debug`.
pub(crate) fn start(format: Format, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|e| format!("--log {filter:?}: {e}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        Format::Text => builder.with_target(false).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|e| format!("logs cannot be started: {e}"))
}
