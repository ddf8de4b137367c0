//! A model on the local disk, and deltas beside it or in a store that fails.

use std::sync::Arc;

use forebay_actors::Host;
use forebay_job::Job;
use forebay_ps::{Storage, start_table};
use futures::executor::block_on;

use super::*;
use crate::checkpoint::{FaultyStore, StoreFailure};
use crate::dense_model::job_model::JobModel;
use crate::model::Model;

/// As many looks as there are at most between two tries of something, and some more.
const LOOKS: usize = 40;

/// The model of day 0 in a local folder, models of the days after it, and a store for deltas.
struct World {
    dir: tempfile::TempDir,
    days: Vec<Model>,
    store: FaultyStore,
}

fn day(number: usize) -> Model {
    let text = "model = { kind = 'lr' }\ncolumns = { label = 'y', dense = ['a'], slots = [{ column = 's' }] }";
    let job = Job::with_settings(text, &[]).unwrap();
    let of_job = JobModel::of(&job, &Context::default().registry).unwrap();
    let dense = JobModel::on_cpu(&job, &Context::default().registry).unwrap().parameters();
    let host = Host::start("ps").unwrap();
    let table = start_table(&host, of_job.table_config(&job), 1).unwrap();
    block_on(table.import(&[7], &vec![number as f32; table.row_dim()], None)).unwrap();
    Model::from_parts(job, host, table, dense).unwrap()
}

impl World {
    fn new(failure: StoreFailure) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let days: Vec<Model> = (0..5).map(day).collect();
        days[0].save(dir.path().join("model")).unwrap();
        Self { dir, days, store: FaultyStore::new(usize::MAX, failure) }
    }

    /// A folder of the store.
    fn folder(&self, path: &str) -> Folder {
        Folder::in_store(Arc::new(self.store.clone()), path.into())
    }

    /// Makes a file of the store.
    fn put(&self, folder: &str, file: &str, text: &str) {
        let folder = self.folder(folder).open().unwrap();
        folder.remove(file).unwrap();
        assert!(folder.put_new(file, text.as_bytes().to_vec()).unwrap());
    }

    /// Writes the delta between two days into the store, in the place of an earlier one of this name.
    fn write(&self, [from, to]: [usize; 2], name: &str) {
        let place = self.folder(&format!("deltas/{name}"));
        self.days[to].write_delta(&self.days[from], place, Storage::F32, true).unwrap();
    }

    /// Each call fails from now on.
    fn goes_away(&self) {
        self.store.fails_at(self.store.passed().len());
    }

    fn follow(&self, deltas: Folder) -> Follower {
        let model = self.dir.path().join("model");
        Follower::new(model.to_str().unwrap(), Some(deltas), &[], &Context::default())
    }

    #[track_caller]
    fn is_day(&self, model: &ServingModel, day: usize) {
        let expected = (self.days[day].version().unwrap(), day as u32);
        assert_eq!((model.version(), model.deltas()), expected, "day {day}, with so many deltas");
    }
}

/// What some looks tell that find nothing newer.
fn told(follower: &mut Follower, current: &ServingModel) -> Vec<String> {
    let look = |_| match follower.look(current) {
        Followed::Nothing => None,
        Followed::Newer(newer) => panic!("there is nothing newer, but {}", newer.versions()),
        Followed::Broken(fault) => Some(fault.to_string()),
    };
    (0..LOOKS).filter_map(look).collect()
}

/// The newer model that one of some looks finds.
#[track_caller]
fn newer(follower: &mut Follower, current: &ServingModel) -> ServingModel {
    let look = |_| match follower.look(current) {
        Followed::Newer(newer) => Some(*newer),
        Followed::Nothing | Followed::Broken(_) => None,
    };
    (0..LOOKS).find_map(look).expect("one of the looks finds the delta")
}

#[test]
fn a_store_that_is_away_is_told_once_and_its_deltas_are_applied_when_it_is_back() {
    let world = World::new(StoreFailure::Death);
    world.write([0, 1], "1");
    let mut follower = world.follow(world.folder("deltas"));
    let first = follower.load().unwrap();
    world.is_day(&first, 1);
    for _ in 0..2 {
        world.goes_away();
        let told = told(&mut follower, &first);
        assert!(told.len() == 1 && told[0].starts_with("cannot list `"), "{told:?}");
        world.store.heals();
        assert_eq!(self::told(&mut follower, &first), [""; 0]);
    }
    world.write([1, 2], "2");
    world.is_day(&newer(&mut follower, &first), 2);

    // A server that starts meanwhile serves the model of the folder. That says so, not the looks.
    world.goes_away();
    let mut follower = world.follow(world.folder("deltas"));
    let folder = follower.load().unwrap();
    world.is_day(&folder, 0);
    assert_eq!(told(&mut follower, &folder), [""; 0]);
    world.store.heals();
    let first = newer(&mut follower, &folder);
    world.is_day(&first, 1);
    world.is_day(&newer(&mut follower, &first), 2);
}

#[test]
fn a_fault_of_any_call_to_the_store_delays_a_delta_by_a_look_or_two() {
    let mut world = World::new(StoreFailure::Error);
    let mut calls = 0;
    for at in 0.. {
        world.store = FaultyStore::new(usize::MAX, StoreFailure::Error);
        world.write([0, 1], "1");
        let mut follower = world.follow(world.folder("deltas"));
        let first = follower.load().unwrap();
        world.write([1, 2], "2");
        let before = world.store.passed().len();
        world.store.fails_at(before + at);
        let (mut told, mut found) = (Vec::new(), None);
        for _ in 0..4 {
            match follower.look(&first) {
                Followed::Nothing => {}
                Followed::Broken(fault) => told.push(fault.to_string()),
                Followed::Newer(newer) => {
                    found = Some(newer);
                    break;
                }
            }
        }
        let passed = world.store.passed().split_off(before);
        assert!(told.len() <= 1, "call {at} of {passed:?}: {told:?}");
        world.is_day(&found.unwrap_or_else(|| panic!("call {at} of {passed:?}: {told:?}")), 2);
        calls = passed.len();
        if at >= calls {
            assert_eq!(told, [""; 0], "no call failed");
            break;
        }
    }
    assert!(calls > 5, "a delta has four files: {calls}");
}

#[test]
fn what_is_damaged_in_a_store_is_told_once_and_what_is_no_delta_never() {
    let world = World::new(StoreFailure::Error);
    world.write([0, 1], "bad");
    world.put("deltas/bad", "changed.parquet", "damaged");
    world.put("deltas/cut", "manifest.json", "{ this is cut");
    world.put("deltas/other", "file", "x");
    world.put("deltas/.2.partial-1-2", "manifest.json", "{");
    world.put("deltas", "file", "x");
    let mut follower = world.follow(world.folder("deltas"));
    let first = follower.load().unwrap();
    world.is_day(&first, 0);
    let mut told = told(&mut follower, &first);
    told.sort();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].contains("deltas/bad is not applied: ") && told[0].contains("changed.parquet is damaged"),
        "{told:?}"
    );
    assert!(told[1].contains("deltas/cut is left out: ") && told[1].contains("manifest.json is damaged"), "{told:?}");

    world.write([0, 1], "bad");
    let first = newer(&mut follower, &first);
    world.is_day(&first, 1);
    world.write([1, 2], "cut");
    world.is_day(&newer(&mut follower, &first), 2);
}

#[test]
fn a_look_at_a_store_lists_it_once_and_reads_few_manifests_of_many_deltas() {
    let world = World::new(StoreFailure::Error);
    for to in 1..4 {
        world.write([to - 1, to], &to.to_string());
    }
    world.put("deltas/other", "file", "x");
    let mut follower = world.follow(world.folder("deltas"));
    let current = follower.load().unwrap();
    world.is_day(&current, 3);
    for _ in 0..LOOKS {
        let before = world.store.passed().len();
        assert!(matches!(follower.look(&current), Followed::Nothing));
        let calls = world.store.passed().split_off(before);
        let lists = calls.iter().filter(|call| call.as_str() == "list").count();
        // One manifest again, and perhaps the one that is not there.
        assert!(lists == 1 && calls.len() <= 3, "{calls:?}");
    }
    // One in the place of another one is found, too.
    world.write([3, 4], "1");
    world.is_day(&newer(&mut follower, &current), 4);
}

#[test]
fn a_local_delta_whose_manifest_cannot_be_read_is_told_once_and_a_folder_without_one_never() {
    let world = World::new(StoreFailure::Error);
    let deltas = world.dir.path().join("deltas");
    let mut follower = world.follow(Folder::from(&deltas));
    let first = follower.load().unwrap();
    let said = told(&mut follower, &first);
    assert!(said.len() == 1 && said[0].ends_with("there is no such folder"), "{said:?}");
    for folder in ["bad", "other"] {
        std::fs::create_dir_all(deltas.join(folder)).unwrap();
    }
    std::fs::write(deltas.join("bad/manifest.json"), "{ this is cut").unwrap();
    let said = told(&mut follower, &first);
    assert!(said.len() == 1 && said[0].contains("deltas/bad is left out: "), "{said:?}");
    let delta = deltas.join("bad");
    world.days[1].write_delta(&world.days[0], delta, Storage::F32, true).unwrap();
    world.is_day(&newer(&mut follower, &first), 1);
}

/// Servers that start at different times may then serve different versions forever.
#[test]
fn deltas_from_one_version_to_several_are_told_once_and_the_first_by_name_counts() {
    let world = World::new(StoreFailure::Error);
    world.write([0, 1], "b");
    let mut running = world.follow(world.folder("deltas"));
    let day_1 = running.load().unwrap();
    world.is_day(&day_1, 1);
    world.write([0, 2], "a");
    world.write([1, 0], "back");
    let told = told(&mut running, &day_1);
    let said = "deltas `a` and `b` both lead on from version ";
    assert!(told.len() == 1 && told[0].starts_with(said), "{told:?}");
    let mut starting = world.follow(world.folder("deltas"));
    let found = starting.load().unwrap();
    assert_eq!((found.version(), found.deltas()), (world.days[2].version().unwrap(), 1));
    let told = self::told(&mut starting, &found);
    assert!(told.len() == 1 && told[0].starts_with(said), "{told:?}");
}

/// A bug: of ten damaged deltas each look tried one, so a good one was applied 24 s late.
#[test]
fn a_delta_that_cannot_be_applied_does_not_hold_up_another_of_the_same_version() {
    let world = World::new(StoreFailure::Error);
    let mut follower = world.follow(world.folder("deltas"));
    let first = follower.load().unwrap();
    for name in ["a", "b", "c"] {
        world.write([0, 1], name);
        world.put(&format!("deltas/{name}"), "changed.parquet", "damaged");
    }
    world.write([0, 1], "d");
    match follower.look(&first) {
        Followed::Newer(newer) => world.is_day(&newer, 1),
        Followed::Nothing => panic!("nothing newer"),
        Followed::Broken(fault) => panic!("{fault}"),
    }
}

#[test]
fn deltas_at_a_url_without_a_store_are_refused_at_the_start() {
    let world = World::new(StoreFailure::Error);
    let said = world.follow(Folder::from("ftp://host/deltas")).load().err().unwrap().to_string();
    assert!(said.contains("no store for `ftp://`"), "{said}");
}
