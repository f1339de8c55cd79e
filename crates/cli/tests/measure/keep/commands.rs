//! Load programs, which run to their end.

use super::*;

#[test]
fn a_command_runs_to_its_end_and_is_accounted_for() {
    let bench = Bench::new();
    // The work is done by a grandchild whose parent does not wait for it.
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo worked >work";
    let text =
        format!("printf '%s' \"$GREETING\"; pwd; (sh -c '{busy}' &); while [ ! -e work ]; do sleep 0.01; done; exit 7");
    let finished = bench.run(&text, HANG).unwrap();
    assert_eq!((finished.code, finished.how.as_str()), (Some(7), "exit code 7"));
    assert_eq!(finished.output, format!("hello\tthere\n{}\n", bench.folder.path().display()));
    assert!(finished.cpu_s > 0.0 && finished.elapsed_s > 0.0, "{finished:?}");
    let killed = bench.run("echo once; kill -KILL $$", HANG).unwrap();
    assert_eq!((killed.code, killed.how.as_str(), killed.output.as_str()), (None, "ended by signal KILL", "once\n"));
    let long = bench.run("i=0; while [ $i -lt 2000 ]; do echo line $i of many; i=$((i+1)); done", HANG).unwrap();
    assert!(
        long.output.len() <= 16 * 1024
            && long.output.starts_with("line 1")
            && long.output.ends_with("line 1999 of many\n")
    );
}

#[test]
fn a_command_that_is_not_done_in_time_is_ended_with_all_that_it_started() {
    let bench = Bench::new();
    let file = bench.path("pid");
    let text = format!("echo begun; sh -c 'echo $$ >{}; sleep 1000'", file.display());
    let error = bench.run(&text, Duration::from_millis(300)).unwrap_err();
    let RunError::Timeout { output, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().ends_with("was not done within 0.3 s"), "{error}");
    // A busy machine may not have come to begin it.
    if let Some(pid) = written(&file) {
        assert_eq!(output[..], ["begun"]);
        assert!(gone(pid));
    }
    let _ = fs::remove_file(&file);

    let output = bench.path("load");
    let launch = Launch { keeper: &bench.keeper, cpus: None, output: &output, values: &bench.values };
    let command = words(&["sh", "-c", &text]);
    let ended = run_to_end(&command, &[], bench.folder.path(), &launch, HANG, &mut || written(&file).is_some());
    assert!(matches!(ended, Err(RunError::Cancelled)) && gone(pid_in(&file)));
    let missing =
        run_to_end(&words(&["no-such-program-of-oroshi"]), &[], bench.folder.path(), &launch, HANG, &mut || false);
    assert!(missing.unwrap_err().to_string().contains("in none of the folders of PATH"));
}

#[test]
fn what_a_command_leaves_behind_ends_with_it() {
    let bench = Bench::new();
    let file = bench.path("pid");
    let text = format!(
        "setsid sh -c 'echo $$ >{0}; exec sleep 1000' & while [ ! -s {0} ]; do sleep 0.01; done",
        file.display()
    );
    assert_eq!(bench.run(&text, HANG).unwrap().code, Some(0));
    assert!(gone(pid_in(&file)));
}
