//! Standard error: logs as text for people or as JSON for programs, and whether to show progress.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::IsTerminal as _;
use std::panic::PanicHookInfo;

use clap::{Args, ValueEnum};
use forebay_base::panic_is_expected;
use serde_json::json;
use tracing_subscriber::EnvFilter;

use crate::Fault;
use crate::actors::Report;
use crate::out;

/// Options of every command. The help lists them after the options of the command itself: without `display_order` they stand at the
/// number of commands.
#[derive(Args, Clone, Debug)]
pub(crate) struct Logs {
    /// Text for people, or JSON for programs: one object per line, logs and progress on standard error, and on standard output the results
    /// of train, launch, role, eval, data synth, data convert and data inspect and the address of serve. The results of other commands stay
    /// text
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", display_order = 100)]
    pub(crate) log_format: Format,

    /// What to log, for instance `debug` or `info,forebay_connectors=debug`; default `info`, or `warn` with --quiet
    #[arg(long, global = true, env = "FOREBAY_LOG", value_name = "FILTER", display_order = 101)]
    log: Option<String>,

    /// Write no plan, no progress and no report of a run that failed to standard error, and log warnings and errors only; results still go
    /// to standard output
    #[arg(long, short, global = true, display_order = 102)]
    pub(crate) quiet: bool,
}

/// Format of the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

type PanicHook = Box<dyn Fn(&PanicHookInfo<'_>) + Send + Sync>;

impl Format {
    /// Prints a line for people to standard error; in JSON, as a line of the log.
    pub(crate) fn note(self, line: impl Display) {
        match self {
            Self::Text => out::eprint_or_drop(line),
            Self::Json => tracing::info!("{line}"),
        }
    }

    /// Prints the report of a run to standard error, beside results that are on standard output.
    pub(crate) fn report(self, report: &Report) {
        match self {
            Self::Text => out::eprint_or_drop(report),
            Self::Json => out::eprint_or_drop(json!({ "report": report })),
        }
    }
}

impl Logs {
    /// Starts logging.
    pub(crate) fn start(&self) -> Result<(), String> {
        let filter = EnvFilter::try_new(self.filter()).map_err(|e| format!("--log {:?}: {e}", self.filter()))?;
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| out::LogWriter);
        let builder =
            builder.with_ansi(colours(std::io::stderr().is_terminal(), std::env::var_os("NO_COLOR").as_deref()));
        let tell = std::panic::take_hook();
        let tell: PanicHook = match self.log_format {
            Format::Text => tell,
            Format::Json => Box::new(|panic| tracing::error!("{panic}")),
        };
        out::as_json(self.is_json());
        std::panic::set_hook(Box::new(move |panic| {
            match panic_is_expected() {
                true => {}
                // The panic becomes a fault, which is printed.
                false if Fault::is_of_no_thread(panic.payload()) => tracing::debug!("{panic}"),
                false => tell(panic),
            }
        }));
        match self.log_format {
            Format::Text => builder.with_target(false).try_init(),
            Format::Json => builder.json().flatten_event(true).try_init(),
        }
        .map_err(|e| format!("logs cannot be started: {e}"))
    }

    fn filter(&self) -> &str {
        self.log.as_deref().unwrap_or(if self.quiet { "warn" } else { "info" })
    }

    /// Whether a progress line may be drawn.
    pub(crate) fn draws_progress(&self) -> bool {
        self.log_format == Format::Text && !self.quiet
    }

    /// Whether everything that is printed is JSON, results included.
    pub(crate) fn is_json(&self) -> bool {
        self.log_format == Format::Json
    }

    /// Arguments that give a child process the same options.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &str> {
        let json = self.is_json().then_some(["--log-format", "json"]);
        ["--log", self.filter()].into_iter().chain(self.quiet.then_some("--quiet")).chain(json.into_iter().flatten())
    }
}

/// Colours on a terminal, unless NO_COLOR is set and not empty (<https://no-color.org>).
fn colours(terminal: bool, no_color: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_turns_colours_off_on_a_terminal() {
        assert!(colours(true, None) && colours(true, Some(OsStr::new(""))));
        assert!(!colours(true, Some(OsStr::new("1"))) && !colours(false, None));
    }
}
