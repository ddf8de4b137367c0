//! Stages made of a closure: [`Flow::map`], [`Flow::filter`], [`Flow::inspect`] and [`Flow::flat_map`].
//!
//! Each runs in one replica at [`Place::Shared`], unless [`Flow::on`] and [`Flow::times`] come before it. Every replica
//! has its own clone of the closure. To await, to return a fault or to keep state that is not `Clone`, write a
//! [`Stage`].

use std::marker::PhantomData;

use crate::batch::Batch;
use crate::context::StageCx;
use crate::fault::Fault;
use crate::outbox::Outbox;
use crate::place::Place;
use crate::replicas::Replicas;
use crate::stage::Stage;
use crate::topology::Flow;

/// Sends what the closure returns for each batch.
pub(crate) struct Each<T, F> {
    pub(crate) what: &'static str,
    pub(crate) each: F,
    pub(crate) takes: PhantomData<fn(T)>,
}

impl<T: Batch, I: IntoIterator<Item: Batch> + 'static, F: FnMut(T, &StageCx) -> I + 'static> Stage for Each<T, F> {
    type In = T;
    type Out = I::Item;

    fn describe(&self) -> String {
        self.what.to_owned()
    }

    async fn on_batch(&mut self, batch: T, cx: &StageCx, out: &mut Outbox<I::Item>) -> Result<(), Fault> {
        for batch in (self.each)(batch, cx) {
            out.send(batch).await?;
        }
        Ok(())
    }
}

impl<T: Batch> Flow<T> {
    /// Sets the place of the next [`map`](Self::map), [`filter`](Self::filter), [`inspect`](Self::inspect) or
    /// [`flat_map`](Self::flat_map). The default is [`Place::Shared`].
    pub fn on(mut self, place: Place) -> Self {
        self.closure.0 = place;
        self
    }

    /// Sets the replicas of the next [`map`](Self::map), [`filter`](Self::filter), [`inspect`](Self::inspect) or
    /// [`flat_map`](Self::flat_map). The default is one.
    pub fn times(mut self, replicas: Replicas) -> Self {
        self.closure.1 = Some(replicas);
        self
    }

    fn each<I: IntoIterator<Item: Batch> + 'static>(
        self,
        name: &str,
        what: &'static str,
        each: impl FnMut(T, &StageCx) -> I + Clone + Send + Sync + 'static,
    ) -> Flow<I::Item> {
        match self.closure {
            (place, None) => self.stage(name, place, move || Each { what, each, takes: PhantomData }),
            (place, Some(replicas)) => {
                self.replicated(name, place, replicas, move |_| Each { what, each: each.clone(), takes: PhantomData })
            }
        }
    }

    /// Turns each batch into another one.
    ///
    /// ```
    /// # mod bags { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/bags.rs")); }
    /// # use bags::{Bag, Bags, Discard};
    /// use forebay_actors::{Lineage, Place, Replicas, Topology};
    ///
    /// let report = Topology::new("two epochs")
    ///     .source("bags", Place::Own, || Bags(0..10))
    ///     .on(Place::Own)
    ///     .times(Replicas::ordered(2))
    ///     .map("later", |bag: Bag| Bag { lineage: Lineage { epoch: 1, ..bag.lineage }, ..bag })
    ///     .sink("drop", Place::Shared, || Discard)
    ///     .run()?;
    /// assert_eq!(report.ledger.delivered, 40);
    /// # Ok::<(), forebay_actors::Fault>(())
    /// ```
    pub fn map<U: Batch>(self, name: &str, mut map: impl FnMut(T) -> U + Clone + Send + Sync + 'static) -> Flow<U> {
        self.each(name, "map", move |batch, _| Some(map(batch)))
    }

    /// Keeps the batches for which `keep` is true. The rows of the others are counted in the ledger as rejected, under
    /// the stage's name. It drops whole batches: to drop rows, write a stage, or use a method of the batch if it has one.
    ///
    /// ```
    /// # mod bags { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/bags.rs")); }
    /// # use bags::{Bag, Bags, Discard};
    /// use forebay_actors::{Place, Topology};
    ///
    /// let report = Topology::new("every other")
    ///     .source("bags", Place::Own, || Bags(0..10))
    ///     .filter("even", |bag| bag.lineage.seq % 2 == 0)
    ///     .sink("drop", Place::Shared, || Discard)
    ///     .run()?;
    /// assert_eq!((report.ledger.delivered, report.ledger.rejected["even"]), (20, 20));
    /// # Ok::<(), forebay_actors::Fault>(())
    /// ```
    pub fn filter(self, name: &str, mut keep: impl FnMut(&T) -> bool + Clone + Send + Sync + 'static) -> Flow<T> {
        self.each(name, "filter", move |batch, cx| {
            let kept = keep(&batch);
            if !kept {
                cx.ledger().reject(cx.name(), batch.rows() as u64);
            }
            kept.then_some(batch)
        })
    }

    /// Calls `look` with each batch and sends the batch on.
    ///
    /// ```
    /// # mod bags { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/bags.rs")); }
    /// # use bags::{Bag, Bags, Discard};
    /// use forebay_actors::{Place, Topology};
    ///
    /// let (sender, seen) = std::sync::mpsc::channel();
    /// Topology::new("watched")
    ///     .source("bags", Place::Own, || Bags(0..3))
    ///     .inspect("watch", move |bag| drop(sender.send(bag.lineage.seq)))
    ///     .sink("drop", Place::Shared, || Discard)
    ///     .run()?;
    /// assert_eq!(seen.iter().collect::<Vec<_>>(), [0, 1, 2]);
    /// # Ok::<(), forebay_actors::Fault>(())
    /// ```
    pub fn inspect(self, name: &str, mut look: impl FnMut(&T) + Clone + Send + Sync + 'static) -> Flow<T> {
        self.each(name, "inspect", move |batch, _| {
            look(&batch);
            Some(batch)
        })
    }

    /// Turns each batch into any number of batches with the same rows in total. The run fails if a row is neither sent
    /// nor rejected in the ledger.
    ///
    /// ```
    /// # mod bags { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/bags.rs")); }
    /// # use bags::{Bag, Bags, Discard};
    /// use forebay_actors::{Place, Topology};
    ///
    /// let report = Topology::new("halves")
    ///     .source("bags", Place::Own, || Bags(0..10))
    ///     .flat_map("halve", |bag: Bag| {
    ///         let half = Bag { rows: bag.rows / 2, ..bag.clone() };
    ///         [half, Bag { rows: bag.rows.div_ceil(2), ..bag }]
    ///     })
    ///     .sink("drop", Place::Shared, || Discard)
    ///     .run()?;
    /// assert_eq!((report.links[1].items, report.ledger.delivered), (20, 40));
    /// # Ok::<(), forebay_actors::Fault>(())
    /// ```
    pub fn flat_map<I: IntoIterator<Item: Batch> + 'static>(
        self,
        name: &str,
        mut map: impl FnMut(T) -> I + Clone + Send + Sync + 'static,
    ) -> Flow<I::Item> {
        self.each(name, "flat_map", move |batch, _| map(batch))
    }
}
