//! Steps in series of entries.

use crate::made::{correlated, entry, noisy};
use oroshi_history::series::{Mixed, mixed, ordered, unclear_order};
use oroshi_history::{Entry, all};

#[test]
fn planted_steps_are_found_and_no_others() {
    let (mut found, mut false_alarms) = (0, 0);
    for seed in 0..20 {
        let entries = noisy(40, &[(25, 1.05)], seed);
        for series in all(&entries, 0.01) {
            match (series.subject, series.steps.as_slice()) {
                ("a", [step]) if step.at.abs_diff(25) <= 1 => {
                    found += 1;
                    assert!(!step.is_better && step.ratio.low > 1.0, "{step:?}");
                }
                (_, steps) => false_alarms += usize::from(!steps.is_empty()),
            }
        }
    }
    assert!(found >= 19 && false_alarms <= 2, "{found} of 20 found, {false_alarms} false alarms");
}

#[test]
fn a_level_history_has_no_step() {
    let alarms: usize = (100..140)
        .map(|seed| {
            let entries = noisy(30, &[], seed);
            all(&entries, 0.01).iter().map(|series| series.steps.len()).sum::<usize>()
        })
        .sum();
    assert!(alarms <= 3, "{alarms} steps in 120 series");
}

/// The rate holds for each series: of a page with fifty of them, more than one may show a step that is none.
#[test]
fn a_level_history_whose_noise_is_estimated_and_correlated_has_few_steps() {
    for autocorrelation in [0.0, 0.5] {
        let divided = |seed| {
            all(&correlated(30, &[], seed, autocorrelation), 0.01).iter().filter(|one| !one.steps.is_empty()).count()
        };
        let alarms: usize = (200..260).map(divided).sum();
        assert!(alarms <= 9, "autocorrelation {autocorrelation}: {alarms} of 180 series");
    }
}

#[test]
fn a_short_series_says_that_it_is_too_short() {
    let step = |count: usize| -> Vec<Entry> {
        let value = |index: usize| (if index < count / 2 { 1000.0 } else { 2000.0 }) + (index % 2) as f64;
        (0..count).map(|index| entry(index, &[("a", value(index))])).collect()
    };
    for (count, is_too_short) in [(1, true), (6, true), (7, true), (8, false), (20, false)] {
        let entries = step(count);
        let series = &all(&entries, 0.01)[0];
        assert_eq!(series.is_too_short(), is_too_short, "{count}");
        assert_eq!(series.steps.len(), usize::from(!is_too_short), "{count}: {series:?}");
    }
    let mut beside = noisy(4, &[(2, 1.3)], 1);
    beside.extend(noisy(30, &[], 2).into_iter().map(|mut other| {
        other.subjects.remove(0);
        other
    }));
    let series = &all(&beside, 0.01)[0];
    assert!(!series.is_too_short() && series.steps.len() == 1, "four with the machine's noise: {series:?}");
}

fn commits(entries: &[Entry]) -> String {
    ordered(entries).iter().map(|entry| entry.commit.id.as_str()).collect()
}

#[test]
fn commits_of_one_second_stand_in_the_order_of_git_or_of_measuring() {
    let mut entries: Vec<Entry> = (0..4).map(|index| entry(index, &[("a", 1.0)])).collect();
    for (entry, id) in entries.iter_mut().zip(["d", "a", "c", "b"]) {
        entry.commit.id = id.into();
        entry.commit.unix_s = 1.77e9;
    }
    assert_eq!(commits(&entries), "dacb", "the time of measuring");
    assert_eq!(unclear_order(&entries).len(), 3);
    for (entry, number) in entries.iter_mut().zip([4, 3, 2, 1]) {
        entry.commit.number = Some(number);
    }
    assert_eq!((commits(&entries).as_str(), unclear_order(&entries).len()), ("bcad", 0), "the number");
    // A later measurement of the first commit stands beside its first one.
    let mut again = entries[3].clone();
    again.measured_unix_s += 1e6;
    again.commit.number = None;
    let mut changed = again.clone();
    changed.commit.changed = true;
    changed.measured_unix_s = 0.0;
    entries.extend([changed, again]);
    assert_eq!(commits(&entries), "bbbcad");
    assert!(ordered(&entries)[2].commit.changed, "changes follow their commit");
}

#[test]
fn one_series_has_one_unit_and_one_direction() {
    let mut entries = noisy(5, &[], 1);
    assert_eq!(mixed(&entries), None);
    entries[3].subjects[1].figures.get_mut("cpu").unwrap().higher_is_better = true;
    assert_eq!(mixed(&entries), Some(Mixed { one: 0, other: 3, name: "b: cpu".into(), what: "direction" }));
    entries[2].subjects[1].figures.get_mut("cpu").unwrap().unit = oroshi_history::entry::Unit::Plain;
    assert_eq!(mixed(&entries), Some(Mixed { one: 0, other: 2, name: "b: cpu".into(), what: "unit" }));
}

#[test]
fn trees_with_different_changes_are_different_commits() {
    let mut entries: Vec<Entry> = (0..2).map(|index| entry(0, &[("a", 1.0 + index as f64)])).collect();
    for (entry, difference) in entries.iter_mut().zip(["12", "34"]) {
        entry.commit.changed = true;
        entry.commit.difference = Some(difference.into());
    }
    assert!(!entries[0].commit.is_same(&entries[1].commit));
    assert!(entries[0].commit.is_same(&entries[0].clone().commit));
}

/// Six thousand subjects took a quarter of a minute, because each one read all others.
#[test]
fn many_subjects_are_read_once() {
    let names: Vec<String> = (0..3000).map(|index| format!("{index:04}")).collect();
    let figures: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 5.0)).collect();
    let entries: Vec<Entry> = (0..3).map(|commit| entry(commit, &figures)).collect();
    let series = all(&entries, 0.01);
    assert_eq!(series.len(), 3000);
    assert!(series.iter().all(|series| series.noise.is_some_and(|noise| noise.freedom == 2999 * 2)));
}

#[test]
fn entries_stand_in_the_order_of_their_commits_however_they_are_read() {
    let mut entries = noisy(12, &[(6, 1.2)], 3);
    let sorted: Vec<f64> = all(&entries, 0.01)[0].points.iter().map(|point| point.figure.value).collect();
    entries.reverse();
    let series = &all(&entries, 0.01)[0];
    assert_eq!(series.points.iter().map(|point| point.figure.value).collect::<Vec<_>>(), sorted);
    assert_eq!(series.steps.iter().map(|step| step.at).collect::<Vec<_>>(), [6]);
}

#[test]
fn machines_and_loads_have_series_of_their_own() {
    let mut entries = noisy(3, &[], 1);
    entries[1].machine.fingerprint = "999999999999".into();
    entries[2].subjects[0].plan = "other".into();
    let series = all(&entries, 0.01);
    assert_eq!(series.len(), 7, "three on each machine, and one under another load");
    assert!(series.iter().all(|series| series.steps.is_empty()));
}

#[test]
fn a_step_says_what_else_changed_there() {
    let mut entries = noisy(20, &[(10, 1.3)], 5);
    for (index, entry) in entries.iter_mut().enumerate() {
        let kernel = if index < 10 { "6.1" } else { "6.2" };
        entry.machine.conditions.insert("kernel".into(), kernel.into());
        entry.machine.conditions.insert("oroshi".into(), "0.1.0".into());
    }
    let series = &all(&entries, 0.01)[0];
    assert_eq!(series.steps[0].changed, ["kernel: 6.1 to 6.2"]);
}

#[test]
fn disturbed_measurements_belong_to_no_level() {
    let mut entries = noisy(20, &[], 7);
    for entry in &mut entries[8..12] {
        let subject = &mut entry.subjects[0];
        subject.disturbed = Some("steal".into());
        let figure = subject.figures.get_mut("cpu").unwrap();
        figure.sensitive = true;
        figure.value *= 3.0;
    }
    let series = &all(&entries, 0.01)[0];
    assert_eq!((series.points.len(), series.sound().len(), series.steps.len()), (20, 16, 0));
    for entry in &mut entries {
        entry.subjects[0].figures.get_mut("cpu").unwrap().sensitive = false;
    }
    assert_eq!(all(&entries, 0.01)[0].steps.len(), 2, "CPU time counts even then");
}

#[test]
fn several_measurements_of_a_commit_are_no_place_for_a_step() {
    let mut entries: Vec<_> = (0..24).map(|index| entry(index / 3, &[("a", 1000.0)])).collect();
    for (index, entry) in entries.iter_mut().enumerate() {
        entry.measured_unix_s += index as f64;
        let value = 1000.0 + (index % 2) as f64 + if index >= 13 { 200.0 } else { 0.0 };
        entry.subjects[0].figures.get_mut("cpu").unwrap().value = value;
    }
    let series = &all(&entries, 0.01)[0];
    assert!(
        series.steps.iter().all(|step| step.at.is_multiple_of(3)) && !series.steps.is_empty(),
        "{:?}",
        series.steps
    );
}
