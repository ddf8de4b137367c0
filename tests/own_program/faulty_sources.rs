//! A program with leased sources that break their rules, each in its own way, for the tests. `data.source` names one of them.

use std::process::ExitCode;

use arrow::compute::concat_batches;
use forebay::actors::{Source, StageCx};
use forebay::connectors::{Rows, Synthetic, SyntheticSource};
use forebay::pipelines::SourceRequest;
use forebay::{Fault, Registry};

#[global_allocator]
static ALLOCATOR: forebay::cli::MiMalloc = forebay::cli::MiMalloc;

/// What is wrong with a source.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    /// Behind the first window come rows of a window that no lease grants.
    Beyond,
    /// Windows lack their last row.
    Fewer,
    /// Windows have a row too many.
    More,
    /// Each process has other rows. After its first window it waits, so that the other process must ask for the rest.
    OtherPlan,
    /// After the first window it blocks its thread forever.
    Blocks,
    /// After the first window it waits forever.
    Waits,
}

const ALL: [(&str, Wrong); 6] = [
    ("beyond", Wrong::Beyond),
    ("fewer", Wrong::Fewer),
    ("more", Wrong::More),
    ("other_plan", Wrong::OtherPlan),
    ("blocks", Wrong::Blocks),
    ("waits", Wrong::Waits),
];

struct Faulty {
    source: SyntheticSource,
    wrong: Wrong,
    /// The last rows of the first window, once they were returned.
    first: Option<Rows>,
}

impl Faulty {
    fn new(wrong: Wrong, request: SourceRequest) -> Self {
        let seed = if wrong == Wrong::OtherPlan { u64::from(std::process::id()) } else { 7 };
        let source = SyntheticSource::new(Synthetic { rows: 20_000, seed, ..Synthetic::default() }, request.options);
        let source = match request.leases {
            Some(leases) => source.leasing(leases),
            None => source,
        };
        Self { source, wrong, first: None }
    }
}

impl Source for Faulty {
    type Out = Rows;

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.source.open(cx).await
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<Rows>, Fault> {
        match (self.wrong, &mut self.first) {
            (Wrong::Beyond, Some(first)) => {
                first.window.window += 1_000;
                return Ok(Some(first.clone()));
            }
            #[allow(clippy::disallowed_methods, reason = "it blocks on purpose")]
            (Wrong::Blocks, Some(_)) => loop {
                std::thread::park();
            },
            (Wrong::Waits | Wrong::OtherPlan, Some(_)) => std::future::pending().await,
            _ => {}
        }
        let Some(mut rows) = self.source.next(cx).await? else { return Ok(None) };
        let batch = &rows.batch;
        match self.wrong {
            Wrong::Fewer if rows.window.closes => rows.batch = batch.slice(0, batch.num_rows() - 1),
            Wrong::More if rows.window.closes => {
                let more = concat_batches(&batch.schema(), [batch, &batch.slice(0, 1)]);
                rows.batch = more.map_err(|e| Fault::internal("a row cannot be repeated").because(e))?;
            }
            _ => {}
        }
        if rows.window.closes && self.first.is_none() {
            self.first = Some(rows.clone());
        }
        Ok(Some(rows))
    }
}

fn main() -> ExitCode {
    let registry = ALL.into_iter().fold(Registry::default(), |registry, (name, wrong)| {
        registry.leased_source(name, move |request| Faulty::new(wrong, request))
    });
    forebay::cli::main(registry)
}
