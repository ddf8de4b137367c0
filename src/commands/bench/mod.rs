//! `forebay bench`: measures this machine. Ratios within one run; nothing passes or fails on a time.

mod feed;
mod overlap;

use clap::Subcommand;
use forebay::Fault;

/// Measurements.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Rows per second and core, from files to batches that are ready to look up
    Feed(feed::Feed),
    /// How much of the IO hides behind compute: stand-ins for a slow store and a device
    Overlap(overlap::Overlap),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Fault> {
        match self {
            Self::Feed(feed) => feed.run(),
            Self::Overlap(overlap) => overlap.run(),
        }
    }
}
