//! Verdicts on a commit.

use crate::made::{correlated, entry, noisy};
use oroshi_history::check::{CheckError, Checked, Judged};
use oroshi_history::series::undivided;
use oroshi_history::{Against, Entry, check};
use oroshi_stats::compare::Verdict;

fn judge(entries: &[Entry], commit: Option<&str>, against: &Against) -> Result<Judged, CheckError> {
    check(entries, &undivided(entries), commit, against, 0.03)
}

fn before(entries: &[Entry]) -> Vec<Checked> {
    judge(entries, None, &Against::Before).unwrap().figures
}

fn verdict_on_a(entries: &[Entry], commit: Option<&str>, against: &Against) -> Verdict {
    let found = judge(entries, commit, against).unwrap().figures;
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
    let entries = [entry(0, &[("a", 100.0)]), entry(1, &[("a", 200.0)]), entry(2, &[("a", 200.0)])];
    let found = before(&entries[..2]);
    assert_eq!((found[0].verdict, found[0].before, found[0].after), (Verdict::Undecided, 1, 1));
    let why = "and the noise of this machine is not known: 4 in all are needed";
    assert_eq!(found[0].words, format!("there is 1 earlier measurement and 1 of this commit, {why}"));
    let found = before(&entries);
    assert_eq!(found[0].words, format!("there are 2 earlier measurements and 1 of this commit, {why}"));
    let found = before(&entries[..1]);
    assert!(found[0].words.contains("no sound measurement"), "{}", found[0].words);
    assert!(!judge(&entries, None, &Against::Before).unwrap().has_verdict());
    let four = [&entries[..], &[entry(3, &[("a", 200.0)])]].concat();
    assert!(before(&four)[0].ratio.is_some(), "four are enough: {}", before(&four)[0].words);
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
    let against = |name: &str| judge(&entries, None, &Against::Commit(name.into()));
    assert!(against("v1").is_ok());
    assert_eq!(against("0000").unwrap_err(), CheckError::Ambiguous("0000".into()));
    assert_eq!(against("v2").unwrap_err(), CheckError::Unknown("v2".into()));
    assert_eq!(judge(&[], None, &Against::Before).unwrap_err(), CheckError::Empty);
}

#[test]
fn a_tree_with_changes_is_named_by_a_plus() {
    let mut entries = noisy(20, &[], 1);
    for (index, difference) in [(4, "1f3a0000"), (5, "2f3a0000")] {
        entries[index].commit =
            oroshi_history::Commit { changed: true, difference: Some(difference.into()), ..entries[3].commit.clone() };
    }
    let id = entries[3].commit.id.clone();
    let judged = |name: &str| judge(&entries, Some(name), &Against::Before);
    assert!(!judged(&id).unwrap().commit.changed, "the clean tree");
    let named = judged(&format!("{id}+2f")).unwrap();
    assert_eq!((named.commit.difference.as_deref(), named.figures[0].after), (Some("2f3a0000"), 1));
    let error = judged(&format!("{id}+")).unwrap_err().to_string();
    assert!(error.ends_with("expected one of 0000000000+1f3a, 0000000000+2f3a"), "{error}");
}

#[test]
fn a_set_up_that_broke_is_told() {
    let mut entries = noisy(20, &[], 1);
    entries[19].subjects.retain(|subject| subject.name != "b");
    let found = before(&entries);
    let b = found.iter().find(|one| one.subject == "b").expect("it is told");
    assert_eq!((b.verdict, b.after, b.p), (Verdict::Undecided, 0, None));
    assert_eq!(b.words, format!("not measured at {:010}; the last measurement is of {:010}", 0, 0));
    // On another machine nothing was to be expected; what was given up long ago, or begins later, is not missed.
    entries.extend((0..19).map(|commit| {
        let mut elsewhere = entry(commit, &[("d", 5.0)]);
        elsewhere.machine.fingerprint = "999999999999".into();
        elsewhere.source = format!("{:x}", 100 + commit);
        elsewhere
    }));
    let names = |entries: &[Entry]| before(entries).into_iter().map(|one| one.subject).collect::<Vec<_>>();
    assert_eq!(names(&entries), ["a", "b", "c"]);
    for entry in &mut entries[9..20] {
        entry.subjects.retain(|subject| subject.name != "b");
    }
    assert_eq!(names(&entries), ["a", "c"]);
}

#[test]
fn the_newest_commit_is_that_of_the_history_and_not_of_the_chosen_series() {
    let mut entries = noisy(20, &[], 1);
    entries[19].subjects.retain(|subject| subject.name != "b");
    let chosen: Vec<_> = undivided(&entries).into_iter().filter(|series| series.subject == "b").collect();
    let found = check(&entries, &chosen, None, &Against::Before, 0.03).unwrap();
    assert_eq!((found.commit.id.as_str(), found.figures.len()), (entries[19].commit.id.as_str(), 1));
    assert!(!found.has_verdict());
}

#[test]
fn the_judged_commit_says_nothing_about_the_noise() {
    // All subjects of the commit are worse by 30 %, in three measurements that scatter: as noise of the machine they
    // would hide that.
    let mut entries = noisy(16, &[], 3);
    for (index, factor) in [(13, 1.2), (14, 1.3), (15, 1.4)] {
        entries[index].commit = entries[15].commit.clone();
        for subject in &mut entries[index].subjects {
            subject.figures.get_mut("cpu").unwrap().value *= factor;
        }
    }
    let all: Vec<f64> = before(&entries).iter().map(|one| one.ratio.unwrap().half_width_share()).collect();
    for entry in &mut entries[13..] {
        entry.subjects.retain(|subject| subject.name == "a");
    }
    let alone: f64 = before(&entries)[0].ratio.unwrap().half_width_share();
    assert!((all[0] / alone - 1.0).abs() < 1e-9, "{all:?} {alone}: the other subjects' new points do not matter");
}

#[test]
fn words_say_with_what_a_commit_was_compared() {
    let entries = noisy(30, &[(15, 1.3)], 1);
    let judged = |commit: usize, against: &Against| {
        judge(&entries, Some(&format!("{commit:040x}")), against).unwrap().figures[0].words.clone()
    };
    assert!(judged(15, &Against::Before).contains(" before: +"), "{}", judged(15, &Against::Before));
    let later = Against::Commit(format!("{:040x}", 20));
    let words = judged(10, &later);
    assert!(words.starts_with("better: ") && words.contains(" at 0000000000: -"), "{words}");
    assert_eq!(verdict_on_a(&entries, Some(&format!("{:040x}", 20)), &later), Verdict::Undecided, "with itself");
}

/// The whole way: levels by the search for steps, noise estimated from the other series.
#[test]
fn false_alarms_of_checks_are_rare_with_estimated_noise_too() {
    for autocorrelation in [0.0, 0.5] {
        let (mut checks, mut figures) = (0, 0);
        for seed in 0..100 {
            let found = before(&correlated(30, &[], seed, autocorrelation));
            let alarms = found.iter().filter(|one| matches!(one.verdict, Verdict::Slower | Verdict::Faster)).count();
            checks += usize::from(alarms > 0);
            figures += alarms;
        }
        // 5 of 100 checks are to be expected, however many figures they have.
        assert!(checks <= 9, "autocorrelation {autocorrelation}: {checks} of 100 checks, {figures} of 300 figures");
    }
}

/// Five measurements of the newest commit within an hour, in a series that stands alone.
#[test]
fn several_measurements_of_a_commit_that_vary_together_are_no_change() {
    let mut alarms = 0;
    for seed in 0..100 {
        let mut entries = correlated(35, &[], seed, 0.7);
        for entry in &mut entries {
            entry.subjects.truncate(1);
        }
        let newest = entries[34].commit.clone();
        entries[30..].iter_mut().for_each(|entry| entry.commit = newest.clone());
        alarms += usize::from(matches!(before(&entries)[0].verdict, Verdict::Slower | Verdict::Faster));
    }
    assert!(alarms <= 9, "{alarms} of 100");
}
