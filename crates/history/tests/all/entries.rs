//! Entries of results, and garbage.

use crate::made::entry;
use oroshi_history::entry::{MOST_FIGURES, Unit, digest, digest_of};
use oroshi_history::known::{Known, known};
use oroshi_history::{Commit, Entry, EntryError};
use oroshi_lab::baseline::SavedResult;
use oroshi_report::sample;

fn commit() -> Commit {
    Commit { id: "0123456789abcdef0123".into(), unix_s: 1.77e9, ..Commit::default() }
}

fn of(result: &SavedResult) -> Result<Entry, EntryError> {
    Entry::of(result, &digest("text"), commit(), None)
}

#[test]
fn a_run_of_bench_becomes_one_subject() {
    let record = sample::bench::closed();
    let entry = of(&SavedResult::Bench(vec![record.clone()])).unwrap();
    let [subject] = entry.subjects.as_slice() else { panic!("{entry:?}") };
    assert!(subject.name.starts_with("GET "), "{}", subject.name);
    let rps = subject.figures["rps"];
    assert_eq!((rps.value, rps.runs, rps.interval), (record.rates.requests_per_s, 1, None));
    assert!(rps.higher_is_better && rps.sensitive && rps.unit == Unit::PerSecond);
    assert_eq!(Entry::parse(&serde_json::to_string(&entry).unwrap()).unwrap(), entry);
    assert!(entry.file_name().starts_with("2026-02-02-0123456789ab-"), "{}", entry.file_name());
    let several = of(&SavedResult::Bench(vec![record.clone(), record.clone(), record])).unwrap();
    assert!(several.subjects[0].figures["rps"].interval.is_some());
    assert_eq!(several.subjects[0].plan, subject.plan);
}

#[test]
fn the_same_load_at_another_port_is_the_same_plan() {
    let record = sample::bench::closed();
    let mut elsewhere = record.clone();
    elsewhere.plan.origins[0].address = "127.0.0.1:49999".into();
    let mut more = record.clone();
    more.plan.connections += 1;
    let plan = |record| of(&SavedResult::Bench(vec![record])).unwrap().subjects[0].plan.clone();
    let first = plan(record);
    assert_eq!(plan(elsewhere), first);
    assert_ne!(plan(more), first);
}

#[test]
fn a_comparison_becomes_its_set_ups_and_its_ratios() {
    let entry = of(&SavedResult::Lab(sample::lab::two())).unwrap();
    let names: Vec<&str> = entry.subjects.iter().map(|subject| subject.name.as_str()).collect();
    assert_eq!(names, ["old", "new", "new / old"]);
    let ratio = entry.subjects[2].figures["rps"];
    assert_eq!((ratio.unit, ratio.value), (Unit::Ratio, 1.171));
    assert!(!entry.subjects[2].figures.contains_key("p99"), "it was not compared");
    let groups = of(&SavedResult::Lab(sample::lab::groups())).unwrap();
    assert!(groups.subjects.iter().any(|subject| subject.name == "kept connections: unix / tcp"), "{groups:?}");
}

#[test]
fn incomplete_results_are_refused() {
    let mut early = sample::bench::closed();
    early.cut_short = true;
    assert_eq!(of(&SavedResult::Bench(vec![early])).unwrap_err(), EntryError::CutShort);
    let mut early = sample::lab::two();
    early.cut_short = true;
    assert_eq!(of(&SavedResult::Lab(early)).unwrap_err(), EntryError::CutShort);
    assert_eq!(of(&SavedResult::Bench(vec![sample::bench::nothing()])).unwrap_err(), EntryError::NoFigure);
    assert_eq!(of(&SavedResult::Bench(Vec::new())).unwrap_err(), EntryError::NoFigure);
}

#[test]
fn garbage_is_no_entry() {
    let good = serde_json::to_value(entry(1, &[("a", 5.0)])).unwrap();
    let with = |path: &str, value: serde_json::Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(path).unwrap() = value;
        Entry::parse(&bad.to_string())
    };
    assert!(Entry::parse(&good.to_string()).is_ok());
    for text in ["", "[]", "{}", "null", "\0", "{\"schema\": 3}", "{\"schema\": \"oroshi-history/1.0\"}"] {
        assert!(matches!(Entry::parse(text), Err(EntryError::Malformed(_))), "{text}");
    }
    assert!(matches!(with("/schema", "oroshi-history/9.0".into()), Err(EntryError::Schema { .. })));
    for (path, value) in [
        ("/commit/unix_s", serde_json::json!(-1.0)),
        ("/commit/unix_s", serde_json::json!(1e300)),
        ("/commit/id", "".into()),
        ("/commit/id", "x".repeat(300).into()),
        ("/subjects/0/figures/cpu/value", serde_json::json!(0.0)),
        ("/subjects/0/figures/cpu/value", serde_json::json!(-3.0)),
        ("/subjects/0/figures/cpu/value", serde_json::json!(1e-300)),
        ("/subjects/0/figures/cpu/value", serde_json::json!(1e308)),
        ("/subjects/0/figures/cpu/interval", serde_json::json!([0.0, 1.0])),
        ("/subjects/0/figures/cpu/interval", serde_json::json!([6.0, 7.0])),
        ("/subjects/0/figures/cpu/interval", serde_json::json!([7.0, 4.0])),
        ("/subjects/0/plan", "".into()),
        ("/subjects/0/plan", "ééé".into()),
        ("/machine/fingerprint", "../..".into()),
        ("/source", "f".repeat(65).into()),
    ] {
        assert!(matches!(with(path, value.clone()), Err(EntryError::Malformed(_))), "{path} {value}");
    }
    assert!(with("/schema", "oroshi-history/1.9".into()).is_ok(), "a later version adds fields");
}

#[test]
fn an_entry_has_a_limited_number_of_figures() {
    let mut entry = entry(1, &[("a", 5.0)]);
    let figures = &mut entry.subjects[0].figures;
    let one = figures["cpu"];
    figures.extend((0..MOST_FIGURES).map(|index| (index.to_string(), one)));
    let error = Entry::parse(&serde_json::to_string(&entry).unwrap()).unwrap_err().to_string();
    assert!(error.contains("a has more than 1000 figures"), "{error}");
}

#[test]
fn a_result_counts_once_whatever_is_said_of_it() {
    let held = entry(1, &[("a", 5.0)]);
    assert_eq!(known(&held, &held), Known::Same);
    assert_eq!(known(&entry(2, &[("a", 5.0)]), &held), Known::New);
    let changed = |change: &dyn Fn(&mut Entry)| {
        let mut new = held.clone();
        change(&mut new);
        match known(&new, &held) {
            Known::Different(what) => what,
            other => panic!("{other:?}"),
        }
    };
    let other_commit = changed(&|new| new.commit.id = "v2".into());
    assert_eq!(other_commit, "of the commit 0000000000 instead of v2");
    assert!(changed(&|new| new.commit.changed = true).ends_with("instead of 0000000000+"));
    assert!(changed(&|new| new.commit.unix_s += 1.0).contains("with the date 1770003600 instead of 1770003601"));
    assert_eq!(changed(&|new| new.subjects[0].name = "b".into()), "with the name `a` instead of `b`");
    let direction = changed(&|new| new.subjects[0].figures.get_mut("cpu").unwrap().higher_is_better = true);
    assert_eq!(direction, "with another direction of cpu: lower is better");
    assert_eq!(changed(&|new| new.subjects[0].figures.get_mut("cpu").unwrap().value = 6.0), "with cpu 5 instead of 6");
    // A later version may know more figures.
    let mut more = held.clone();
    let one = more.subjects[0].figures["cpu"];
    more.subjects[0].figures.insert("memory".into(), one);
    assert_eq!(known(&more, &held), Known::Same);
}

#[test]
fn everything_that_a_reader_gives_is_digested() {
    let long = "a".repeat(200_000);
    assert_eq!(digest_of(long.as_bytes()).unwrap(), digest(&long));
}

#[test]
fn a_name_of_a_commit_makes_no_path() {
    let mut entry = entry(1, &[("a", 5.0)]);
    entry.commit.id = "../../etc/passwd".into();
    assert_eq!(entry.file_name(), format!("2026-02-02-etcpasswd-{}.json", "0".repeat(12)));
}
