// Batches for the examples in the documentation of `Flow`.

use forebay_actors::{Batch, Fault, Lineage, Sink, Source, StageCx};

#[derive(Clone)]
pub struct Bag {
    pub lineage: Lineage,
    pub rows: usize,
}

impl Batch for Bag {
    fn rows(&self) -> usize {
        self.rows
    }
    fn bytes(&self) -> usize {
        8 * self.rows
    }
    fn lineage(&self) -> &Lineage {
        &self.lineage
    }
}

/// Yields bags of 4 rows.
pub struct Bags(pub std::ops::Range<u64>);

impl Source for Bags {
    type Out = Bag;
    async fn next(&mut self, _cx: &StageCx) -> Result<Option<Bag>, Fault> {
        Ok(self.0.next().map(|seq| Bag { lineage: Lineage { seq, ..Lineage::default() }, rows: 4 }))
    }
}

pub struct Discard;

impl Sink for Discard {
    type In = Bag;
    async fn write(&mut self, _bag: Bag, _cx: &StageCx) -> Result<(), Fault> {
        Ok(())
    }
}
