//! A folder that cannot be read for a while, because its store cannot be reached: logs the beginning and the end, once each.

use std::fmt::Display;

use forebay_actors::{Domain, Fault};

/// Why a folder cannot be read. By default, it can.
#[derive(Default)]
pub(super) struct Outage(Option<Fault>);

impl Outage {
    /// Notes how a call on a folder ended, and logs it if the folder can be read again. While its store cannot be reached, each call ends
    /// with the same fault as the first one.
    pub(super) fn note<T>(&mut self, folder: impl Display, ended: Result<T, Fault>) -> Result<T, Fault> {
        let before = self.0.take();
        match ended {
            Ok(found) => {
                if before.is_some() {
                    tracing::info!("`{folder}` can be read now");
                }
                Ok(found)
            }
            Err(fault) => Err(self.0.insert(same_outage_or(before.as_ref(), fault)).clone()),
        }
    }
}

/// The fault to report of two faults of one folder, one after the other: the second one, unless both say that the disk or the store fails.
/// Their texts may differ, for instance by the seconds of a wait, and a new text would be reported again.
pub(super) fn same_outage_or(before: Option<&Fault>, now: Fault) -> Fault {
    match before {
        Some(before) if before.domain == Domain::External && now.domain == Domain::External => before.clone(),
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_away_has_one_fault_until_it_is_back_and_what_is_damaged_has_its_own() {
        let mut outage = Outage::default();
        let mut said = |ended: Result<(), Fault>| outage.note("deltas", ended).map_err(|fault| fault.to_string());
        let away = |seconds: u32| Err(Fault::external(format!("no answer for {seconds} s")));
        for seconds in 1..4 {
            assert_eq!(said(away(seconds)), Err("no answer for 1 s".to_owned()));
        }
        assert_eq!(said(Ok(())), Ok(()));
        assert_eq!(said(away(4)), Err("no answer for 4 s".to_owned()));
        assert_eq!(said(Err(Fault::user("it is a file"))), Err("it is a file".to_owned()));
        assert_eq!(said(Err(Fault::user("it is a pipe"))), Err("it is a pipe".to_owned()));
        assert_eq!(said(away(5)), Err("no answer for 5 s".to_owned()));
    }
}
