//! CSV of Apache Otava.

use crate::made::{entry, noisy};
use oroshi_history::all;
use oroshi_history::known::{Known, known};
use oroshi_history::otava::{Import, OtavaError, export, import, parse_time};

fn how() -> Import {
    Import {
        name: "local".into(),
        machine: "ci".into(),
        time_column: "time".into(),
        commit_column: "commit".into(),
        lower: vec!["metric2".into()],
    }
}

/// The sample of Otava's documentation, with a column of text.
const SAMPLE: &str = "time,commit,branch,metric1,metric2\n\
    2021.01.01 3:00:00 +0100,aaa0,main,154023,10.43\n\
    2021.01.02 3:00:00 +0100,aaa1,main,138455,10.23\n\
    2021-01-03T02:00:00Z,aaa2,main,143112,10.29\n";

#[test]
fn a_file_is_read() {
    let imported = import(SAMPLE, &how()).unwrap();
    assert_eq!((imported.left_out.as_slice(), imported.empty_rows), (&["branch".to_owned()][..], 0));
    let entries = imported.entries;
    assert_eq!(entries.len(), 3);
    assert_eq!((entries[0].commit.id.as_str(), entries[0].commit.unix_s), ("aaa0", 1_609_466_400.0));
    assert_eq!(entries[2].commit.unix_s - entries[0].commit.unix_s, 2.0 * 86_400.0);
    let figures = &entries[1].subjects[0].figures;
    assert_eq!(figures.keys().collect::<Vec<_>>(), ["metric1", "metric2"]);
    assert!(figures["metric1"].higher_is_better && !figures["metric2"].higher_is_better);
    assert_eq!(import(SAMPLE, &how()).unwrap().entries, entries, "the same text makes the same entries");
}

#[test]
fn mistakes_are_named() {
    let error = |text: &str| import(text, &how()).unwrap_err().to_string();
    assert!(error("time,x\n1,2\n").contains("no column `commit`: expected one of time, x"));
    assert!(error("time,commit,metric2\nsoon,a,1\n").contains("line 2: `soon` is no time"));
    assert!(error("time,commit,metric2\n1,a,-1\n").contains("line 2: metric2 is not positive"));
    assert!(error("time,commit,metric2\n1,,1\n").contains("line 2: the commit has no name"));
    assert!(error("time,commit,metric2\n1,a,x\n").contains("no column of numbers"));
    assert!(error("time,commit,metric2\n").contains("no column of numbers"));
    assert!(matches!(import("time,commit,metric2\n1,a\n", &how()), Err(OtavaError::Csv(_))), "a short row");
    let text = error("time,commit,metric2\n1,a,5\n2,b,fast\n");
    assert!(text.contains("line 3: `fast` in the column metric2 is no number"), "{text}");
    assert!(
        error("time,commit,metric2\n1,a,1e-300\n").contains("line 2: `1e-300` in the column metric2: expected 1e-30")
    );
}

#[test]
fn what_is_exported_can_be_imported() {
    let entries = noisy(12, &[(6, 1.2)], 2);
    let series = all(&entries, 0.01);
    let files = export(&series).unwrap();
    assert_eq!(files.len(), 3, "a file for each subject");
    let first = &files[0];
    assert_eq!(first.csv.lines().count(), 13);
    assert!(first.csv.starts_with("time,commit,cpu\n2026-02-02 02:40:00 +0000,"), "{}", first.csv);
    assert!(first.yaml.contains("type: csv") && first.yaml.contains("direction: -1"), "{}", first.yaml);
    let back = import(&first.csv, &Import { lower: vec!["cpu".into()], ..how() }).unwrap().entries;
    let again = all(&back, 0.01);
    assert_eq!(again[0].steps.iter().map(|step| step.at).collect::<Vec<_>>(), [6]);
    let values = |series: &oroshi_history::Series<'_>| series.points.iter().map(|p| p.figure.value).collect::<Vec<_>>();
    assert_eq!(values(&again[0]), values(&series[0]));
}

#[test]
fn an_empty_cell_costs_one_figure_and_no_column() {
    let text = "time,commit,metric1,metric2\n1,a,5,\n2,b,,\n3,c,6,7\n";
    let imported = import(text, &how()).unwrap();
    let figures = |index: usize| imported.entries[index].subjects[0].figures.keys().cloned().collect::<Vec<_>>();
    assert_eq!((figures(0), figures(1)), (vec!["metric1".to_owned()], vec!["metric1".into(), "metric2".into()]));
    assert_eq!((imported.entries.len(), imported.empty_rows, imported.left_out.len()), (2, 1, 0));
}

#[test]
fn equal_rows_are_two_measurements() {
    let text = "time,commit,metric2\n1,a,5\n1,a,5\n";
    let first = import(text, &how()).unwrap().entries;
    assert_ne!(first[0].source, first[1].source);
    let longer = import(&format!("{text}2,b,6\n"), &how()).unwrap().entries;
    assert_eq!(longer[..2], first, "a longer file adds its new rows");
}

#[test]
fn another_direction_or_figure_of_a_row_is_told() {
    let text = "time,commit,metric1,metric2\n1,a,5,6\n";
    let held = &import(text, &Import { lower: Vec::new(), ..how() }).unwrap().entries[0];
    let again = |text: &str| known(&import(text, &how()).unwrap().entries[0], held);
    let different = |what: &str| Known::Different(what.into());
    assert_eq!(again(text), different("with another direction of metric2: higher is better"));
    let held = &import(text, &how()).unwrap().entries[0];
    let again = |text: &str| known(&import(text, &how()).unwrap().entries[0], held);
    assert_eq!(again(text), Known::Same);
    assert_eq!(again("time,commit,metric1,metric2\n1,a,5,7\n"), different("with metric2 6 instead of 7"));
    assert_eq!(again("time,commit,x,metric1,metric2\n1,a,1,5,6\n"), different("without the figure x"));
    assert_eq!(again("time,commit,metric1,metric2\n1,a,,6\n"), different("with the figure metric1"));
}

#[test]
fn names_that_look_alike_have_files_of_their_own() {
    let entries: Vec<_> = (0..3).map(|index| entry(index, &[("a b", 5.0), ("a-b", 6.0), ("a/b", 7.0)])).collect();
    let files = export(&all(&entries, 0.01)).unwrap();
    let names: std::collections::BTreeSet<&str> = files.iter().map(|file| file.file.as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

/// An entry that somebody edited may hold any text.
#[test]
fn no_name_breaks_an_export() {
    let mut entry = entry(0, &[("é".repeat(300).as_str(), 5.0)]);
    entry.subjects[0].plan = "aéééééé".into();
    entry.machine.fingerprint = "ééééééé".into();
    let files = export(&all(&[entry], 0.01)).unwrap();
    assert!(files[0].file.len() < 100 && files[0].file.is_ascii(), "{}", files[0].file);
}

#[test]
fn times_are_read_as_people_write_them() {
    for (text, seconds) in [
        ("1609466400", 1_609_466_400.0),
        ("2021-01-01 02:00:00", 1_609_466_400.0),
        ("2021/01/01 02:00", 1_609_466_400.0),
        ("2021-01-01T03:00:00+01:00", 1_609_466_400.0),
        ("2020-12-31 21:00:00 -0500", 1_609_466_400.0),
        ("2021-01-01", 1_609_459_200.0),
        ("2021-01-01 02:00:00.5", 1_609_466_400.5),
    ] {
        assert_eq!(parse_time(text), Some(seconds), "{text}");
    }
    for wrong in [
        "",
        "x",
        "-1",
        "2021-13-01",
        "2021-01-01 25:00",
        "2021-01-01 02:00:00 +1",
        "1e300",
        "NaN",
        "é-1-1 é",
        "2026-02-31",
        "2025-02-29",
        "2026-04-31",
        "2021-01-01 02:00 +9900",
    ] {
        assert_eq!(parse_time(wrong), None, "{wrong}");
    }
}
