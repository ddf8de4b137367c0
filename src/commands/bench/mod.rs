//! `forebay bench`: measures this machine. One file per measurement.

mod device;
mod feed;
mod overlap;
mod ready;

use crate::Fault;
use clap::Subcommand;

/// Measure this machine: reading and parsing, dense compute, and how much IO hides behind compute
#[derive(Subcommand)]
pub(crate) enum Bench {
    Device(device::Device),
    Feed(feed::Feed),
    Overlap(overlap::Overlap),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Fault> {
        match self {
            Self::Device(device) => device.run(),
            Self::Feed(feed) => feed.run(),
            Self::Overlap(overlap) => overlap.run(),
        }
    }
}
