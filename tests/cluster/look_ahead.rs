//! A trainer that asks for rows ahead trains the model of one that does not, to the bit, wherever rows and tables are.

use std::sync::Arc;

use forebay::actors::counted;

use super::hosts::Hosts;
use super::jobs::{job, one_process};
use super::processes::{Ledger, Run, in_time};

const ROWS: u64 = 12_000;

const HOSTS: [&str; 5] = ["ps0", "ps1", "trainer0", "reader0", "reader1"];

/// The finished run of a job with two ps, and the trainer's output.
fn finished(hosts: &Arc<Hosts>, settings: &[&str]) -> (Run, Vec<String>, String) {
    in_time(|_| {
        let settings = job(ROWS, &[&["placement.ps=2"], settings].concat());
        let readers =
            settings.iter().find_map(|s| s.strip_prefix("placement.readers=")).map_or(0, |n| n.parse().unwrap());
        let processes = &["trainer 0", "ps 0", "ps 1", "reader 0", "reader 1"][..3 + readers];
        let mut run = Run::on_hosts(hosts, &HOSTS, "ps0", &settings);
        run.start(processes);
        let trainer = run.end_well(processes).swap_remove(0);
        assert_eq!(Ledger::of(&trainer).rows, ROWS, "{trainer}");
        (run, settings, trainer)
    })
}

#[test]
fn the_model_is_that_of_one_process_whatever_the_look_ahead_is() {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    let momentum = "table.embedding_optimizer={kind=\"momentum\",lr=0.01}";
    for (k, settings) in [
        (8, &["placement.readers=2"][..]),
        (1, &["placement.readers=0", "table.storage=f16"]),
        (2, &["placement.readers=1", "table.shards=3", momentum]),
        (64, &["placement.readers=2", "placement.in_flight=2", "model.kind=lr"]),
        (0, &["placement.readers=1"]),
    ] {
        let setting = format!("train.look_ahead={k}");
        let (run, settings, trainer) = finished(&hosts, &[&[setting.as_str()], settings].concat());
        assert_eq!(run.model().difference(&one_process(&settings).0), None, "{settings:?}");
        let said = format!("looked up to {} ahead: pulled ", counted(k, "batch"));
        assert_eq!(trainer.contains(&said), k > 0, "{trainer}");
    }
}

/// With f16, the values of a row that arrive depend on the rows that are sent with it.
#[test]
fn with_f16_on_the_wire_the_model_is_that_without_look_ahead() {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    let model = |settings: &[&str]| finished(&hosts, settings).0.model();
    let f16 = "placement.wire=f16";
    let in_turn = model(&[f16, "train.look_ahead=0"]);
    for more in [&["train.look_ahead=8"][..], &["train.look_ahead=3", "placement.readers=2"]] {
        assert_eq!(model(&[&[f16], more].concat()).difference(&in_turn), None, "{more:?}");
    }
    assert!(model(&["train.look_ahead=8"]).difference(&in_turn).is_some(), "the comparison can fail");
}
