//! Steps in series of entries.

use crate::made::{entry, noisy};
use oroshi_history::all;

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
