//! `forebay bench`: measures this machine. Ratios within one run; nothing passes or fails on a time.

mod feed;
mod overlap;

use clap::Subcommand;
use forebay::Fault;

/// Measure this machine: the feed, and how much of the IO hides behind compute
#[derive(Subcommand)]
pub(crate) enum Bench {
    Feed(feed::Feed),
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
