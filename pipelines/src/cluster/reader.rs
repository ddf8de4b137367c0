//! A reader: reads, parses and batches the windows that it is leased, and feeds them to the trainers.
//!
//! Comes in: a job and a [`Seat`]. Goes out: batches to the trainers. [`Reader::run`] blocks until every batch of this reader
//! is done, or the run is over.

use std::pin::pin;
use std::sync::Arc;

use forebay_actors::{Fault, Outcome, Pipeline, Report, Running, Source};
use forebay_connectors::Rows;
use forebay_net::runtime;
use forebay_ps::TableClient;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::TICK;
use super::batches::post::Post;
use super::batches::streams::{self, Line};
use super::member::Leaseholder;
use super::messages::Phase;
use super::seat::{Seat, Seated};
use crate::job::{Job, LookupAt};
use crate::model::table_config;
use crate::sources::{self, Visit};
use crate::staleness::Staleness;
use crate::wiring;

/// A reader that has joined.
pub struct Reader {
    seated: Seated,
    running: Running,
    post: Arc<Post>,
    holder: Leaseholder,
    streams: JoinSet<()>,
}

impl Reader {
    /// Joins, waits until all are there, and begins to read.
    ///
    /// # Errors
    /// The job does not fit together, its data is not there, or the coordinator refuses.
    pub fn start(job: &Job, seat: &Seat) -> Result<Self, Fault> {
        job.check()?;
        let seated = Seated::join(seat, job, Vec::new())?;
        match Self::begin(job, &seated) {
            Ok((running, post, holder, streams)) => Ok(Self { seated, running, post, holder, streams }),
            Err(fault) => {
                seated.fail(&fault);
                Err(fault)
            }
        }
    }

    fn begin(job: &Job, seated: &Seated) -> Result<(Running, Arc<Post>, Leaseholder, JoinSet<()>), Fault> {
        struct Wire<'a>(&'a Job, Arc<Post>, Leaseholder, Option<(TableClient, Staleness)>);
        impl Visit for Wire<'_> {
            type Out = Pipeline;
            fn visit<S: Source<Out = Rows>>(self, make: impl FnOnce() -> S + Send + 'static) -> Pipeline {
                match self.3 {
                    Some(table) => wiring::reading_ready(self.0, self.1, self.2, table, make),
                    None => wiring::reading(self.0, self.1, self.2, make),
                }
            }
        }
        let trainers = job.placement.trainers;
        let boxes = job.in_step();
        let post = Arc::new(Post::new(boxes, job.pipeline.links.lookup));
        let holder = Leaseholder::new(seated.member.clone());
        let leases = Arc::new(holder.clone());
        let table = Self::table(job, seated)?;
        let wire = Wire(job, Arc::clone(&post), holder.clone(), table);
        let pipeline = sources::open_windows(job, job.train_path()?, boxes, Some(leases), wire)?;
        seated.begun()?;
        let line = Line {
            post: Arc::clone(&post),
            holder: holder.clone(),
            member: seated.member.clone(),
            dialer: seated.dialer.clone(),
            patience: job.placement.patience(),
            streams: job.placement.streams,
        };
        let streams = streams::open(&line, trainers, boxes);
        Ok((pipeline.start()?, post, holder, streams))
    }

    /// The way to the rows, and the tickets for it, if this reader looks them up.
    fn table(job: &Job, seated: &Seated) -> Result<Option<(TableClient, Staleness)>, Fault> {
        if job.placement.lookup_at == LookupAt::Trainer {
            return Ok(None);
        }
        let rank = seated.member.me().rank;
        let Some(tickets) = job.placement.tickets(rank, job.train.staleness) else {
            return Err(Fault::user(format!(
                "reader {rank} joins a run whose tickets are shared out among {} readers: with placement.lookup_at = \
                 \"reader\" no more can be added",
                job.placement.readers
            )));
        };
        let news = seated.begun()?;
        let config = table_config(job, None)?;
        Ok(Some((seated.table(job, &news, &config)?, Staleness::new(tickets - 1))))
    }

    /// Reads until there is nothing left. `stop` is asked a few times a second: once true, the reader takes no more leases,
    /// works off what it has, and leaves; the other readers go on.
    pub fn run(self, stop: impl Fn() -> bool, mut show: impl FnMut(&Report)) -> Result<Report, Fault> {
        let Self { seated, running, post, holder, streams } = self;
        let (run, mut watch) = (running.control(), seated.member.watch());
        let mut failure = None;
        let Outcome { result, report, .. } = runtime().block_on(async {
            let mut ended = pin!(running.outcome());
            let mut drained = false;
            loop {
                if !drained && stop() {
                    holder.tracker().close();
                    drained = true;
                }
                match &watch.borrow_and_update().phase {
                    Phase::Failed(failed) if failure.is_none() => {
                        run.kill(failed.fault());
                        failure = Some(failed.clone());
                    }
                    // Whatever is still kept here is done elsewhere.
                    Phase::Finished | Phase::Over => post.forget(),
                    _ => {}
                }
                show(&run.snapshot());
                tokio::select! {
                    outcome = &mut ended => return outcome,
                    Ok(()) = watch.changed() => {}
                    () = sleep(TICK) => {}
                }
            }
        });
        drop(streams);
        let result = result.and_then(|()| runtime().block_on(holder.told()));
        match (result, failure) {
            (Ok(()), None) => {
                seated.leave();
                Ok(report)
            }
            (_, Some(failed)) => Err(failed.fault()),
            (Err(fault), None) => {
                seated.fail(&fault);
                Err(fault)
            }
        }
    }
}
