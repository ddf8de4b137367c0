//! A stage's view of its run: its name, its replica number, the ledger, its meter, and whether the run is stopping.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::adjustment::{Adjustment, Adjustments, ScaledStage, TunedKnob};
use crate::ledger::Ledger;
use crate::meter::StageMeter;
use crate::results::Results;
use crate::switch::Switch;

/// A stage's view of its run. Cheap to clone, and may be kept.
#[derive(Clone)]
pub struct StageCx {
    inner: Arc<Inner>,
    results: Results,
    adjustments: Adjustments,
}

struct Inner {
    name: String,
    replica: usize,
    arrival: AtomicU64,
    ledger: Ledger,
    meter: Arc<StageMeter>,
    switch: Switch,
}

impl fmt::Debug for StageCx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageCx").field("name", &self.inner.name).field("replica", &self.inner.replica).finish()
    }
}

impl StageCx {
    /// A context without a run, for tests. It has a ledger and a meter of its own, and is never stopped.
    pub fn detached(name: &str) -> Self {
        Self::new(name, 0, Ledger::default(), Arc::default(), Switch::default())
    }

    pub(crate) fn new(name: &str, replica: usize, ledger: Ledger, meter: Arc<StageMeter>, switch: Switch) -> Self {
        let arrival = AtomicU64::new(0);
        Self {
            results: Results::default(),
            adjustments: Adjustments::default(),
            inner: Arc::new(Inner { name: name.to_owned(), replica, arrival, ledger, meter, switch }),
        }
    }

    /// The name given at wiring.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Number of this replica, from 0.
    pub fn replica(&self) -> usize {
        self.inner.replica
    }

    /// Number of the current batch in the order of arrival at the stage, from 0. All replicas share the count.
    pub fn arrival(&self) -> u64 {
        self.inner.arrival.load(Ordering::Relaxed)
    }

    pub(crate) fn arrives(&self, number: u64) {
        self.inner.arrival.store(number, Ordering::Relaxed);
    }

    pub(crate) fn leaving(mut self, results: &Results) -> Self {
        self.results = results.clone();
        self
    }

    pub(crate) fn adjusting(mut self, adjustments: &Adjustments) -> Self {
        self.adjustments = adjustments.clone();
        self
    }

    /// Adds a change that this stage makes to itself to the run's report, and logs it: `knob` goes from one number to another because of
    /// `why`, at this many rows per second.
    pub fn adjust(&self, knob: TunedKnob, (from, to): (usize, usize), why: impl Into<String>, rows_per_second: f64) {
        let stages = vec![ScaledStage { stage: self.name().to_owned(), from, to, knob }];
        let at = self.meter().time();
        let made = Adjustment { at, stages, why: why.into(), rows_per_second, ..Adjustment::default() };
        tracing::info!("{made}");
        self.adjustments.add(&self.part(knob), made);
    }

    /// Says what came of the newest change of this knob: the rows per second since, and whether the change was undone.
    pub fn adjusted(&self, knob: TunedKnob, rows_per_second: f64, rolled_back: bool) {
        self.adjustments.verified(&self.part(knob), rows_per_second, rolled_back);
    }

    /// The changes of this run so far, in the order of time.
    pub fn adjustments(&self) -> Vec<Adjustment> {
        self.adjustments.all()
    }

    fn part(&self, knob: TunedKnob) -> String {
        format!("{} {knob:?}", self.name())
    }

    /// Stores a value under the stage's name for the program: see [`Outcome::results`](crate::Outcome::results).
    pub fn leave<T: Any + Send>(&self, value: T) {
        self.results.put(self.name(), value);
    }

    /// The ledger of the run.
    pub fn ledger(&self) -> &Ledger {
        &self.inner.ledger
    }

    /// The meter of this stage, or of this replica if there are several.
    pub fn meter(&self) -> &StageMeter {
        &self.inner.meter
    }

    /// Whether drain or kill was asked for.
    pub fn draining(&self) -> bool {
        self.inner.switch.is_stopping()
    }

    /// Resolves when drain or kill is asked for. Cancel safe.
    pub async fn stopped(&self) {
        self.inner.switch.stopping().await;
    }

    pub(crate) fn meter_arc(&self) -> Arc<StageMeter> {
        Arc::clone(&self.inner.meter)
    }

    pub(crate) fn switch(&self) -> &Switch {
        &self.inner.switch
    }
}
