//! Checks that a source of a program keeps to its leases: a cluster waits for every window that was granted, so a source that leaves one
//! out would make it wait forever.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use forebay_actors::{Batch as _, Fault, FaultKind, commas, counted};
use forebay_connectors::{DataPlan, Lease, Leases, Rows};

/// The leases of one source, which notes what they grant.
pub(crate) struct NotedLeases {
    leases: Arc<dyn Leases>,
    source: String,
    window_rows: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Granted and not closed, in the order in which the source must return them.
    granted: VecDeque<Window>,
    /// Rows of the first granted window so far, with the rejected ones.
    rows: u64,
    /// Rows of an epoch; 0 if they are not known.
    rows_of_epoch: u64,
    /// There are no more leases, or the source may not return a window: it may end.
    may_end: bool,
    /// The source may not return a window, so it leaves granted windows out.
    is_cut_short: bool,
}

#[derive(Clone, Copy, PartialEq)]
struct Window {
    epoch: u32,
    number: u64,
    term: u32,
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "window {} of epoch {} (term {})", self.number, self.epoch, self.term)
    }
}

impl NotedLeases {
    /// The leases of the source `source`, whose windows have `window_rows` rows.
    pub(crate) fn new(source: &str, leases: Arc<dyn Leases>, window_rows: usize) -> Self {
        Self { leases, source: source.to_owned(), window_rows: window_rows.max(1) as u64, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A fault of the source, and what a leased source must do.
    fn wrong(&self, what: String) -> Fault {
        let source = &self.source;
        Fault::user(format!(
            "the source `{source}` {what}; a leased source returns the rows of the windows that request.leases grants, window after \
             window, and sets WindowMark::closes in the last batch of each"
        ))
        .kind(FaultKind::InvalidJob)
        .hide_lineage()
    }

    /// Windows of `window_rows` rows, only the last one shorter, are the same in every process and in a run of one process.
    fn check_plan(&self, plan: &DataPlan) -> Result<(), Fault> {
        let expected = plan.rows.div_ceil(self.window_rows);
        if plan.rows == 0 || plan.windows == expected {
            return Ok(());
        }
        let (rows, windows) = (counted(plan.rows, "row"), counted(plan.windows, "window"));
        Err(Fault::user(format!(
            "the source `{}` plans {windows} for {rows}, expected {}: a window has {}, which is request.options.window_rows, and only the \
             last one is shorter",
            self.source,
            commas(expected),
            counted(self.window_rows, "row"),
        ))
        .kind(FaultKind::InvalidJob))
    }

    /// Checks rows that the source returns.
    pub(crate) fn returned(&self, rows: &Rows) -> Result<(), Fault> {
        let state = &mut *self.state();
        let window = Window { epoch: rows.lineage.epoch, number: rows.window.window, term: rows.window.term };
        let Some(&first) = state.granted.front() else {
            return Err(self.wrong(format!("returned rows of {window}, which no lease grants")));
        };
        if window != first {
            let what = match state.rows {
                0 => "is granted next",
                _ => "is not closed",
            };
            return Err(self.wrong(format!("returned rows of {window}, but {first} {what}")));
        }
        state.rows += rows.rows() as u64 + u64::from(rows.rejected);
        if !rows.window.closes {
            return Ok(());
        }
        state.granted.pop_front();
        let found = std::mem::take(&mut state.rows);
        let expected = state.rows_of_epoch.saturating_sub(first.number * self.window_rows).min(self.window_rows);
        match state.rows_of_epoch > 0 && found != expected {
            true => {
                let rows = counted(found, "row");
                Err(self.wrong(format!("closed {first} after {rows}, expected {} by its plan", commas(expected))))
            }
            false => Ok(()),
        }
    }

    /// The granted window whose rows the run waits for, in words; `None`: the source has no window to return.
    pub(crate) fn awaited_window(&self) -> Option<String> {
        self.state().granted.front().map(Window::to_string)
    }

    /// Checks that the source may end.
    pub(crate) fn ended(&self) -> Result<(), Fault> {
        let state = self.state();
        match state.granted.front() {
            _ if state.is_cut_short => Ok(()),
            Some(first) => Err(self.wrong(format!("ended, but {first} is not closed"))),
            None if state.may_end => Ok(()),
            None => Err(self.wrong("ended before request.leases had no more leases".to_owned())),
        }
    }
}

#[async_trait]
impl Leases for NotedLeases {
    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        self.check_plan(data)?;
        let lease = self.leases.next(data).await?;
        let state = &mut *self.state();
        state.rows_of_epoch = data.rows;
        match &lease {
            Some(Lease { epoch, windows, term }) => {
                let window = |number| Window { epoch: *epoch, number, term: *term };
                state.granted.extend(windows.clone().map(window));
            }
            None => state.may_end = true,
        }
        Ok(lease)
    }

    fn wants(&self, epoch: u32, window: u64) -> bool {
        let wants = self.leases.wants(epoch, window);
        if !wants {
            self.state().is_cut_short = true;
        }
        wants
    }

    fn has_one_source(&self) -> bool {
        self.leases.has_one_source()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int32Array, RecordBatch};
    use forebay_actors::{Lineage, Source, StageCx};
    use forebay_connectors::{LocalLeases, ReadOptions, Synthetic, SyntheticSource, WindowMark};

    use super::super::own_rows::OwnRows;
    use super::super::source_progress::{SourceProgress, Watched};
    use super::*;

    const PLAN: DataPlan = DataPlan { epochs: 1, rows: 250, windows: 3, fingerprint: 7 };

    fn leases(plan: DataPlan) -> Arc<NotedLeases> {
        let leases = Arc::new(NotedLeases::new("clicks", Arc::new(LocalLeases::new(2)), 100));
        leases.state().rows_of_epoch = plan.rows;
        leases
    }

    fn rows(window: u64, n: usize, closes: bool) -> Rows {
        let column: ArrayRef = Arc::new(Int32Array::from(vec![0; n]));
        let window = WindowMark { window, term: 0, closes };
        let batch = RecordBatch::try_from_iter([("label", column)]).unwrap();
        Rows { batch, lineage: Lineage::default(), window, rejected: 0, places: None }
    }

    /// A source that asks for a lease when it has returned the rows of the one before, and returns `batches`.
    struct Scripted(Arc<NotedLeases>, VecDeque<Option<Rows>>);

    impl Source for Scripted {
        type Out = Rows;

        async fn next(&mut self, _cx: &StageCx) -> Result<Option<Rows>, Fault> {
            match self.1.pop_front() {
                Some(Some(rows)) => return Ok(Some(rows)),
                Some(None) => {}
                None => return Ok(None),
            }
            self.0.next(&PLAN).await?;
            Ok(self.1.pop_front().flatten())
        }
    }

    /// A source that is checked against its leases.
    fn watched<S>(source: S, leases: Arc<NotedLeases>) -> Watched<S> {
        Watched { source, progress: SourceProgress::default(), own: Some(OwnRows::named("clicks", Some(leases))) }
    }

    /// What is wrong with a source that returns `batches`; `None` asks for a lease.
    async fn said(batches: Vec<Option<Rows>>) -> Option<String> {
        let leases = leases(PLAN);
        let mut source = watched(Scripted(Arc::clone(&leases), batches.into()), leases);
        let cx = StageCx::detached("read");
        loop {
            match source.next(&cx).await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(fault) => {
                    assert_eq!(fault.kind, FaultKind::InvalidJob);
                    let said = fault.to_string();
                    assert!(said.contains("the source `clicks`"), "{said}");
                    return Some(said);
                }
            }
        }
    }

    /// A bug: the cluster waited forever for a window that the source had left out, or not closed.
    #[tokio::test]
    async fn a_source_that_breaks_its_leases_is_a_fault_that_names_the_window() {
        let whole = |window, n: usize| vec![Some(rows(window, n / 2, false)), Some(rows(window, n - n / 2, true))];
        let (first, second, third) = (whole(0, 100), whole(1, 100), whole(2, 50));
        let all = |parts: &[&[Option<Rows>]]| parts.concat();
        let ask = [None];
        assert_eq!(said(all(&[&ask, &first, &second, &ask, &third, &ask])).await, None);
        for (batches, expected) in [
            (all(&[&first]), "window 0 of epoch 0 (term 0), which no lease grants"),
            (all(&[&ask, &first, &second, &third]), "window 2 of epoch 0 (term 0), which no lease grants"),
            (
                all(&[&ask, &first[..1], &second]),
                "window 1 of epoch 0 (term 0), but window 0 of epoch 0 (term 0) is not closed",
            ),
            (all(&[&ask, &second]), "but window 0 of epoch 0 (term 0) is granted next"),
            (all(&[&ask, &first]), "ended, but window 1 of epoch 0 (term 0) is not closed"),
            (all(&[&ask, &first, &second]), "ended before request.leases had no more leases"),
            (all(&[&ask, &whole(0, 90)]), "closed window 0 of epoch 0 (term 0) after 90 rows, expected 100"),
        ] {
            let said = said(batches).await.expect(expected);
            assert!(said.contains(expected), "{said}");
        }
    }

    #[tokio::test]
    async fn a_plan_whose_windows_do_not_fit_its_rows_is_refused() {
        let next = async |plan: DataPlan| leases(plan.clone()).next(&plan).await;
        for plan in [PLAN, DataPlan { rows: 0, windows: 9, ..PLAN }, DataPlan { rows: 0, windows: 0, ..PLAN }] {
            assert!(next(plan).await.is_ok());
        }
        let said = next(DataPlan { windows: 10, ..PLAN }).await.unwrap_err().to_string();
        assert!(said.contains("`clicks` plans 10 windows for 250 rows, expected 3: a window has 100 rows"), "{said}");
    }

    #[tokio::test]
    async fn a_source_that_may_not_return_a_window_may_end() {
        struct Lost(LocalLeases);
        #[async_trait]
        impl Leases for Lost {
            async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
                self.0.next(data).await
            }
            fn wants(&self, _: u32, window: u64) -> bool {
                window < 1
            }
        }
        let lost: Arc<dyn Leases> = Arc::new(Lost(LocalLeases::new(3)));
        let leases = Arc::new(NotedLeases::new("clicks", lost, 100));
        let options = ReadOptions { window_rows: 100, ..ReadOptions::default() };
        let source = SyntheticSource::new(Synthetic { rows: 250, ..Synthetic::default() }, options);
        let mut source = watched(source.leasing(Arc::clone(&leases) as Arc<dyn Leases>), leases);
        let cx = StageCx::detached("read");
        source.open(&cx).await.unwrap();
        let mut n = 0;
        while let Some(rows) = source.next(&cx).await.unwrap() {
            n += rows.rows();
        }
        assert_eq!(n, 100);
    }
}
