//! The rules find the stages that break them.

use super::*;
use crate::batch::{Batch, Lineage};
use crate::context::StageCx;
use crate::outbox::Outbox;

pub(super) struct Bag {
    pub(super) lineage: Lineage,
    pub(super) rows: usize,
}

impl Batch for Bag {
    fn rows(&self) -> usize {
        self.rows
    }
    fn bytes(&self) -> usize {
        self.rows
    }
    fn lineage(&self) -> &Lineage {
        &self.lineage
    }
}

pub(super) fn bags() -> Vec<Bag> {
    (0..6).map(|seq| Bag { lineage: Lineage { seq, ..Lineage::default() }, rows: 10 }).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Vice {
    None,
    Loses,
    Turns,
    KeepsTheLast,
    GoesOnAfterAFault,
    FailsWithoutInput,
    HidesTheFault,
}

/// Holds one batch back. `vice` is what it does wrong.
struct Held {
    vice: Vice,
    held: Option<Bag>,
}

impl Stage for Held {
    type In = Bag;
    type Out = Bag;
    async fn on_batch(&mut self, mut batch: Bag, _cx: &StageCx, out: &mut Outbox<Bag>) -> Result<(), Fault> {
        if self.vice == Vice::Loses {
            batch.rows -= 1;
        }
        let first = match self.vice {
            Vice::Turns if batch.lineage.seq % 2 == 1 => Some(batch),
            _ => self.held.replace(batch),
        };
        if let Some(batch) = first {
            match (self.vice, out.send(batch).await) {
                (Vice::GoesOnAfterAFault, _) => {}
                (Vice::HidesTheFault, Err(_)) => return Err(Fault::user("hidden")),
                (_, result) => result?,
            }
        }
        Ok(())
    }
    async fn finish(&mut self, _cx: &StageCx, out: &mut Outbox<Bag>) -> Result<(), Fault> {
        match self.held.take() {
            Some(batch) if self.vice != Vice::KeepsTheLast => out.send(batch).await,
            Some(_) => Ok(()),
            None if self.vice == Vice::FailsWithoutInput => Err(Fault::user("no input")),
            None => Ok(()),
        }
    }
}

fn rules(vice: Vice) -> String {
    broken_rules(move || Held { vice, held: None }, bags).join("\n")
}

#[test]
fn a_good_stage_breaks_no_rule() {
    check_stage(|| Held { vice: Vice::None, held: None }, bags);
}

#[test]
fn vices_are_found() {
    assert!(rules(Vice::Loses).contains("rule 1"));
    assert!(rules(Vice::Turns).contains("rule 2"));
    assert!(rules(Vice::KeepsTheLast).contains("rule 1"));
    assert!(rules(Vice::FailsWithoutInput).contains("rule 3"));
}

#[test]
fn casualties_cannot_hide_the_root_cause() {
    // The switch keeps the root cause before the stage sees the fault.
    assert_eq!(rules(Vice::GoesOnAfterAFault), "");
    assert_eq!(rules(Vice::HidesTheFault), "");
}
