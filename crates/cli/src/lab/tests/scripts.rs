//! Scripts with scenarios as the load of experiment files.

use std::fs;

use super::*;

const FILE: &str = r#"title = "Two servers under users"
[load]
script = "shop.lua"
users = "{{users}}"
[sweep]
name = "users"
values = [5, 50]
[[variant]]
name = "one"
url = "http://127.0.0.1:1/"
[[variant]]
name = "two"
url = "http://127.0.0.1:2/"
"#;

#[track_caller]
fn scripted(text: &str, options: &RunOptions) -> ParsedExperiment {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.lua"), "").unwrap();
    let machine = Machine::tried_out(Shutdown::new());
    let reading =
        read(source(text, Some(folder.path())), options, &machine).unwrap_or_else(|error| panic!("{error:?}"));
    for variant in reading.experiment.cells.iter().flat_map(|cell| &cell.variants) {
        let name = script(&variant.load).1;
        assert!(name.starts_with(&folder.path().join("shop.lua").display().to_string()), "beside the file: {name}");
    }
    reading
}

#[track_caller]
fn script(load: &Load) -> (&oroshi_bench::Draft, String) {
    match load {
        Load::Script(draft, script) => (draft, script.name()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn users_are_swept_and_the_score_comes_first() {
    let experiment = scripted(FILE, &RunOptions::default()).experiment;
    let users: Vec<usize> = experiment.cells.iter().map(|cell| script(&cell.variants[1].load).0.connections).collect();
    assert_eq!(users, [5, 50]);
    assert_eq!(
        (&experiment.metrics[..], experiment.score_if_any),
        (&[Metric::Score, Metric::Rps, Metric::Cpu][..], true)
    );
    assert!(experiment.cells[1].variants[0].load_words.ends_with("shop.lua users, 50 users"));
    let chosen = scripted(&format!("metrics = [\"score\"]\n{FILE}"), &RunOptions::default()).experiment;
    assert_eq!((&chosen.metrics[..], chosen.score_if_any), (&[Metric::Score][..], false));
}

#[test]
fn journeys_may_come_by_a_timetable() {
    let text = FILE.replace("users = \"{{users}}\"", "rate = \"{{users}}\"");
    let experiment = scripted(&text, &RunOptions::default()).experiment;
    let words = &experiment.cells[1].variants[0].load_words;
    assert!(words.ends_with("journeys by timetable at 50.0/s"), "{words}");
    assert_eq!(experiment.metrics, [Metric::Score, Metric::P99, Metric::Cpu]);
}

#[test]
fn the_length_of_a_run_is_the_script_s_or_the_file_s() {
    for quick in [false, true] {
        let options = RunOptions { quick, ..RunOptions::default() };
        let reading = scripted(FILE, &options);
        let draft = script(&reading.experiment.cells[0].variants[0].load).0;
        assert_eq!(
            (draft.duration, draft.warmup, draft.free_duration, draft.free_warmup),
            (None, Duration::ZERO, false, false)
        );
        let reading = scripted(&FILE.replace("[sweep]", "duration = \"30s\"\nwarmup = \"2s\"\n[sweep]"), &options);
        let draft = script(&reading.experiment.cells[0].variants[0].load).0;
        assert_eq!((draft.duration, draft.warmup), (Some(Duration::from_secs(30)), Duration::from_secs(2)));
    }
}

#[test]
fn what_a_script_decides_is_no_key_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.lua"), "").unwrap();
    for (key, expected) in [("pipeline = 2", "pipeline"), ("requests = 100", "requests"), ("rate = \"60%\"", "rate")] {
        let text = FILE.replace("[sweep]", &format!("{key}\n[sweep]"));
        let found = read(source(&text, Some(folder.path())), &RunOptions::default(), &Machine::this());
        let Err(ExperimentError::File(mistakes)) = found else { panic!("{key}: {found:?}") };
        assert!(mistakes[0].key.ends_with(expected), "{mistakes:?}");
    }
    assert!(mistake(&small("", "load.users = 5\n")).contains("`script`"));
}
