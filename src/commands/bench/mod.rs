//! `forebay bench`: measures this machine. One file per measurement.

mod device;
mod feed;
mod headspace;
mod overlap;
mod ready;
mod serve;

use crate::Fault;
use crate::pipelines::Context;
use clap::Subcommand;

/// Measure this machine: reading and parsing, training from memory, dense compute, overlap of IO and compute, and a server under load
#[derive(Subcommand)]
pub(crate) enum Bench {
    Device(device::Device),
    Feed(feed::Feed),
    Headspace(headspace::Headspace),
    Overlap(overlap::Overlap),
    Serve(serve::BenchServe),
}

impl Bench {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        match self {
            Self::Device(device) => device.run(),
            Self::Feed(feed) => feed.run(context),
            Self::Headspace(headspace) => headspace.run(context),
            Self::Overlap(overlap) => overlap.run(context),
            Self::Serve(serve) => serve.run(),
        }
    }
}
