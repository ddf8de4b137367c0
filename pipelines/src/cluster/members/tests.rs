//! Joins, restarts, attempts and silence, without a network.

use super::*;

const EXPECTED: Expected = Expected { ps: 2, trainers: 1, readers: 2 };

#[test]
fn missing_members_are_named_and_one_reader_is_enough() {
    let (mut members, now) = (Members::new(EXPECTED, Instant::now()), Instant::now());
    assert_eq!(members.missing(), ["ps 0", "ps 1", "trainer 0", "any reader"]);
    members.join(Role::Ps, 1, Some("b:1".into()), 1, now).unwrap();
    members.join(Role::Reader, 7, None, 2, now).unwrap();
    assert_eq!(members.missing(), ["ps 0", "trainer 0"]);
    assert_eq!(members.addresses(Role::Ps), [None, Some((1, "b:1".into()))]);
    let said = members.join(Role::Trainer, 1, None, 3, now).unwrap_err().to_string();
    assert!(said.contains("trainer 1 wants to join, but the job has 1"), "{said}");
    let said = check_rank(Role::Ps, 0, 0).unwrap_err().to_string();
    assert!(said.contains("ps 0 wants to join, but the job has no process of this role"), "{said}");
}

#[test]
fn only_the_newest_process_of_a_rank_is_valid() {
    let (mut members, now) = (Members::new(EXPECTED, Instant::now()), Instant::now());
    assert!(!members.is_restart(Role::Reader, 0, 1));
    let Joined { incarnation: old, .. } = members.join(Role::Reader, 0, None, 1, now).unwrap();
    assert!(!members.is_restart(Role::Reader, 0, 1) && members.is_restart(Role::Reader, 0, 2));
    let Joined { incarnation: new, .. } = members.join(Role::Reader, 0, None, 2, now).unwrap();
    assert!(new > old);
    members.heartbeat(Role::Reader, 0, new, now).unwrap();
    let said = members.heartbeat(Role::Reader, 0, old, now).unwrap_err().to_string();
    assert!(said.contains("started again elsewhere"), "{said}");
    assert!(members.heartbeat(Role::Reader, 5, 1, now).unwrap_err().to_string().contains("which was restarted"));
}

#[test]
fn a_join_that_is_sent_again_is_the_same_process() {
    let (mut members, now) = (Members::new(EXPECTED, Instant::now()), Instant::now());
    let mut join = |nonce| members.join(Role::Trainer, 0, Some("b:1".into()), nonce, now);
    let first = join(7).unwrap();
    let again = join(7).unwrap();
    assert_eq!((again.incarnation, again.repeated), (first.incarnation, true));
    let next = join(8).unwrap();
    assert!(next.incarnation > first.incarnation && !next.repeated);
    let said = join(7).unwrap_err().to_string();
    assert!(said.contains("started again elsewhere"), "a late request of the first process: {said}");
    assert_eq!(join(8).unwrap().incarnation, next.incarnation);
}

/// A process sends its request to join and dies. The request arrives after the successor of the process has joined. The coordinator
/// once took it for a newer process of this rank and refused the successor, so the rank had no process any more.
#[test]
fn a_late_request_of_a_dead_process_does_not_take_the_place_of_its_successor() {
    let (mut members, now) = (Members::new(EXPECTED, Instant::now()), Instant::now());
    for (role, rank) in [(Role::Trainer, 0), (Role::Reader, 3)] {
        members.note_sign_of_life(role, rank, 7, now);
        members.note_sign_of_life(role, rank, 8, now);
        members.note_sign_of_life(role, rank, 7, now);
        let Joined { incarnation, .. } = members.join(role, rank, None, 8, now).unwrap();
        assert!(!members.is_restart(role, rank, 7) && members.is_restart(role, rank, 9));
        let said = members.join(role, rank, None, 7, now).unwrap_err().to_string();
        assert!(said.contains("started again elsewhere"), "{said}");
        members.heartbeat(role, rank, incarnation, now).unwrap();
        // A request that was overtaken by that of a successor says no more than the others.
        members.note_sign_of_life(role, rank, 6, now);
        assert!(members.join(role, rank, None, 8, now).unwrap().repeated);
    }
    members.note_sign_of_life(Role::Trainer, 1, 5, now);
    assert_eq!(members.starts.len(), 2, "the job has no trainer 1");
}

#[test]
fn in_a_new_attempt_all_join_again_but_not_those_that_were_replaced() {
    let (mut members, now) = (Members::new(EXPECTED, Instant::now()), Instant::now());
    let join = |members: &mut Members, rank, nonce| members.join(Role::Ps, rank, Some("b:1".into()), nonce, now);
    join(&mut members, 0, 1).unwrap();
    join(&mut members, 1, 2).unwrap();
    let Joined { incarnation, .. } = join(&mut members, 1, 3).unwrap();
    members.begin_attempt();
    assert_eq!(members.missing(), ["ps 0", "ps 1", "trainer 0", "any reader"]);
    assert_eq!(members.addresses(Role::Ps), [None, None]);
    assert_eq!(members.list(now).count(), 0);
    assert!(join(&mut members, 1, 2).unwrap_err().to_string().contains("started again elsewhere"));
    let again = join(&mut members, 1, 3).unwrap();
    assert!(!again.repeated && again.incarnation > incarnation);
    assert!(!members.is_restart(Role::Ps, 0, 4), "its predecessor took no part in this attempt");
}

#[test]
fn silent_readers_are_lost_once_and_come_back() {
    let (mut members, start) = (Members::new(EXPECTED, Instant::now()), Instant::now());
    let Joined { incarnation, .. } = members.join(Role::Reader, 3, None, 1, start).unwrap();
    members.join(Role::Trainer, 0, None, 2, start).unwrap();
    let silence = Duration::from_secs(5);
    assert!(members.newly_lost(Role::Reader, silence, start + silence).is_empty());
    let late = start + silence + Duration::from_secs(1);
    assert_eq!(members.newly_lost(Role::Reader, silence, late), [3]);
    assert!(members.newly_lost(Role::Reader, silence, late).is_empty());
    members.heartbeat(Role::Reader, 3, incarnation, late).unwrap();
    assert!(members.newly_lost(Role::Reader, silence, late + silence).is_empty());
    assert_eq!(members.newly_lost(Role::Reader, silence, late + silence * 2), [3]);
}

#[test]
fn the_run_does_without_trainers_that_have_left_but_not_without_the_first() {
    let (expected, now) = (Expected { ps: 1, trainers: 3, readers: 0 }, Instant::now());
    let mut members = Members::new(expected, now).trainers_may_leave(true);
    let join = |members: &mut Members, rank, nonce| {
        members.join(Role::Trainer, rank, Some("b:1".into()), nonce, now).unwrap().incarnation
    };
    members.join(Role::Ps, 0, Some("a:1".into()), 9, now).unwrap();
    let incarnations = [0, 1, 2].map(|rank| join(&mut members, rank, 10 + u64::from(rank)));
    for rank in [0, 1] {
        members.leave(Role::Trainer, rank, incarnations[rank as usize]);
    }
    // A heartbeat that was sent before comes late.
    members.heartbeat(Role::Trainer, 1, incarnations[1], now).unwrap();
    assert!(members.has_left(Role::Trainer, 1));
    let there: Vec<bool> = members.addresses(Role::Trainer).iter().map(Option::is_some).collect();
    assert_eq!(there, [true, false, true], "the first trainer stays until its successor comes");
    assert_eq!(members.absent_trainers(), [0, 1].into());
    members.begin_attempt();
    assert_eq!(members.missing(), ["ps 0", "trainer 0", "trainer 2"]);
    assert_eq!(members.gone().collect::<Vec<_>>(), [(Role::Trainer, 1)]);
    // Its successor is waited for, until that ends, too.
    members.note_sign_of_life(Role::Trainer, 1, 77, now);
    assert_eq!(members.missing(), ["ps 0", "trainer 0", "trainer 1", "trainer 2"]);
    assert!(!members.ends_before_it_joins(Role::Trainer, 1, 11), "a late request of its predecessor");
    assert!(members.ends_before_it_joins(Role::Trainer, 1, 77));
    assert!(!members.ends_before_it_joins(Role::Trainer, 0, 10));
    assert_eq!(members.missing(), ["ps 0", "trainer 0", "trainer 2"]);
    // Steps that all trainers take together need all of them.
    let mut members = Members::new(expected, now);
    let incarnation = join(&mut members, 1, 11);
    members.leave(Role::Trainer, 1, incarnation);
    assert!(members.addresses(Role::Trainer)[1].is_some());
    members.begin_attempt();
    assert_eq!(members.missing(), ["ps 0", "trainer 0", "trainer 1", "trainer 2"]);
}

#[test]
fn a_member_leaves_until_it_has_left_or_is_silent() {
    let expected = Expected { ps: 1, trainers: 2, readers: 0 };
    let (mut members, now, silence) = (Members::new(expected, Instant::now()), Instant::now(), Duration::from_secs(5));
    let Joined { incarnation, .. } = members.join(Role::Trainer, 1, None, 1, now).unwrap();
    let is_leaving =
        |members: &Members, seconds| members.is_leaving(Role::Trainer, 1, silence, now + Duration::from_secs(seconds));
    assert!(!is_leaving(&members, 0));
    members.begins_to_leave(Role::Trainer, 1, incarnation + 1);
    assert!(!is_leaving(&members, 0), "another start of it");
    members.begins_to_leave(Role::Trainer, 1, incarnation);
    assert!(is_leaving(&members, 5) && !is_leaving(&members, 6));
    members.leave(Role::Trainer, 1, incarnation);
    assert!(!is_leaving(&members, 0));
}

/// A bug: the others counted steps and rows as if it were not there.
#[test]
fn a_trainer_that_reads_for_itself_takes_part_without_an_address() {
    let now = Instant::now();
    let mut members = Members::new(Expected { ps: 1, trainers: 2, readers: 0 }, now);
    members.join(Role::Trainer, 1, None, 7, now).unwrap();
    let there: Vec<bool> = members.addresses(Role::Trainer).iter().map(Option::is_some).collect();
    assert_eq!(there, [false, true]);
}
