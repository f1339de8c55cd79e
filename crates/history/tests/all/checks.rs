//! Verdicts on a commit.

use crate::made::{entry, noisy};
use oroshi_history::check::CheckError;
use oroshi_history::{Against, all, check};
use oroshi_stats::compare::Verdict;

fn verdict_on_a(entries: &[oroshi_history::Entry], commit: Option<&str>, against: &Against) -> Verdict {
    let series = all(entries, 0.015);
    let found = check(&series, commit, against, 0.03).unwrap();
    found.iter().find(|one| one.subject == "a").unwrap().verdict
}

#[test]
fn the_last_commit_is_compared_with_the_level_before_it() {
    let mut slower = 0;
    let mut false_alarms = 0;
    for seed in 0..20 {
        slower += usize::from(verdict_on_a(&noisy(30, &[(29, 1.08)], seed), None, &Against::Before) == Verdict::Slower);
        let found = verdict_on_a(&noisy(30, &[], seed), None, &Against::Before);
        false_alarms += usize::from(matches!(found, Verdict::Slower | Verdict::Faster));
    }
    assert!(slower >= 19 && false_alarms <= 1, "{slower} of 20 found, {false_alarms} false alarms");
}

#[test]
fn an_earlier_step_is_not_the_last_commit_s_fault() {
    let entries = noisy(40, &[(20, 1.3)], 4);
    assert!(!matches!(verdict_on_a(&entries, None, &Against::Before), Verdict::Slower));
    let first = Against::Commit(format!("{:040x}", 10));
    assert_eq!(verdict_on_a(&entries, None, &first), Verdict::Slower, "beside the level before the step");
    let at = format!("{:040x}", 20);
    assert_eq!(verdict_on_a(&entries, Some(&at), &Against::Before), Verdict::Slower, "and that is the commit");
}

#[test]
fn what_becomes_better_is_told_from_what_becomes_worse() {
    assert_eq!(verdict_on_a(&noisy(30, &[(29, 0.9)], 1), None, &Against::Before), Verdict::Faster);
    let mut entries = noisy(30, &[(29, 0.9)], 1);
    for entry in &mut entries {
        entry.subjects[0].figures.get_mut("cpu").unwrap().higher_is_better = true;
    }
    assert_eq!(verdict_on_a(&entries, None, &Against::Before), Verdict::Slower);
}

#[test]
fn what_cannot_be_known_is_undecided_and_says_why() {
    let entries = [entry(0, &[("a", 100.0)]), entry(1, &[("a", 200.0)])];
    let series = all(&entries, 0.01);
    let found = check(&series, None, &Against::Before, 0.03).unwrap();
    assert_eq!((found[0].verdict, found[0].before, found[0].after), (Verdict::Undecided, 1, 1));
    assert!(found[0].words.contains("three measurements are needed"), "{}", found[0].words);
    let alone = &entries[..1];
    let found = check(&all(alone, 0.01), None, &Against::Before, 0.03).unwrap();
    assert!(found[0].words.contains("no sound measurement"), "{}", found[0].words);
}

#[test]
fn a_disturbed_measurement_has_no_verdict() {
    let mut entries = noisy(20, &[], 1);
    let subject = &mut entries[19].subjects[0];
    subject.disturbed = Some("other-processes".into());
    subject.figures.get_mut("cpu").unwrap().sensitive = true;
    assert_eq!(verdict_on_a(&entries, None, &Against::Before), Verdict::Disturbed);
}

#[test]
fn commits_are_found_by_their_beginning() {
    let mut entries = noisy(20, &[], 1);
    entries[3].commit.id = "v1.0".into();
    let series = all(&entries, 0.01);
    let against = |name: &str| check(&series, None, &Against::Commit(name.into()), 0.03);
    assert!(against("v1").is_ok());
    assert_eq!(against("0000").unwrap_err(), CheckError::Ambiguous("0000".into()));
    assert_eq!(against("v2").unwrap_err(), CheckError::Unknown("v2".into()));
    assert_eq!(check(&[], None, &Against::Before, 0.03).unwrap_err(), CheckError::Empty);
}
