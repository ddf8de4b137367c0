//! `forebay bench`: measures this machine. One file per measurement.

mod device;
mod feed;
mod overlap;
mod ready;
mod serve;

use crate::Fault;
use clap::Subcommand;

/// Measure this machine: reading and parsing, dense compute, how much IO hides behind compute, and a server under load
#[derive(Subcommand)]
pub(crate) enum Bench {
    Device(device::Device),
    Feed(feed::Feed),
    Overlap(overlap::Overlap),
    Serve(serve::Serve),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Fault> {
        match self {
            Self::Device(device) => device.run(),
            Self::Feed(feed) => feed.run(),
            Self::Overlap(overlap) => overlap.run(),
            Self::Serve(serve) => serve.run(),
        }
    }
}
