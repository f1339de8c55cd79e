//! Tests of experiment files as people write them.

mod mistakes;

use std::path::Path;
use std::time::Duration;

use oroshi_bench::Load as Rhythm;
use oroshi_experiment::{ExperimentError, Machine, ParsedExperiment, RunOptions, Source, find};
use oroshi_lab::Metric;
use oroshi_lab::plan::{Command, Load, Ready, Stop};
use oroshi_net::Shutdown;
use oroshi_words::Mistake;

use super::flags::Flags;

mod scripts;

fn read(source: Source<'_>, options: &RunOptions, machine: &Machine) -> Result<ParsedExperiment, ExperimentError> {
    oroshi_experiment::read(source, options, machine, &Flags { script: crate::script_load::fake::load })
}

fn source<'s>(text: &'s str, folder: Option<&'s Path>) -> Source<'s> {
    Source { name: "my test", text, folder }
}

#[track_caller]
fn sound(text: &str) -> ParsedExperiment {
    asked(text, &RunOptions::default())
}

#[track_caller]
fn asked(text: &str, options: &RunOptions) -> ParsedExperiment {
    let machine = Machine::tried_out(Shutdown::new());
    read(source(text, Some(Path::new("."))), options, &machine).unwrap_or_else(|error| panic!("{error:?}"))
}

#[track_caller]
fn mistakes(text: &str) -> Vec<Mistake> {
    match read(source(text, Some(Path::new("."))), &RunOptions::default(), &Machine::this()) {
        Err(ExperimentError::File(mistakes)) => mistakes,
        other => panic!("{other:?}"),
    }
}

/// Returns the only mistake, as reported.
#[track_caller]
fn mistake(text: &str) -> String {
    let mistakes = mistakes(text);
    assert_eq!(mistakes.len(), 1, "{mistakes:#?}");
    mistakes[0].to_string()
}

const SMALL: &str = r#"title = "Small"
[[variant]]
name = "one"
url = "http://127.0.0.1:1/"
"#;

/// Returns [`SMALL`] with text before its variant, or in it.
fn small(top: &str, variant: &str) -> String {
    SMALL.replace("[[variant]]\n", &format!("{top}\n[[variant]]\n")) + variant
}

fn bench(load: &Load) -> &oroshi_bench::Draft {
    match load {
        Load::Bench(draft) => draft,
        other => panic!("{other:?}"),
    }
}

fn command(load: &Load) -> &Command {
    match load {
        Load::Command(command) => command,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_left_out_is_filled_in() {
    let ParsedExperiment { experiment, blocks } = sound(SMALL);
    assert_eq!((experiment.name.as_str(), experiment.title.as_str()), ("my-test", "Small"));
    assert_eq!(experiment.metrics, [Metric::Rps, Metric::Cpu]);
    assert_eq!(experiment.rules, oroshi_lab::plan::Rules::default());
    let [cell] = &experiment.cells[..] else { panic!("{:?}", experiment.cells) };
    assert!(cell.servers.is_empty() && cell.group.is_empty() && cell.point.is_none() && cell.rate_share.is_none());
    let draft = bench(&cell.variants[0].load);
    assert_eq!((draft.duration, draft.warmup), (Some(Duration::from_secs(1)), Duration::from_millis(250)));
    assert_eq!((draft.connections, draft.urls.len()), (10, 0));
    assert_eq!(cell.variants[0].load_words, "10 connections, closed loop, 1s after 250ms of warm-up");
    assert_eq!(blocks, [Duration::from_millis(1250)]);
    let machine = Machine::this();
    assert_eq!(experiment.server_cpus.is_some(), machine.cpu_pair.is_some(), "two sides need two CPUs");
    assert_eq!(experiment.source.as_deref(), Some(SMALL));
}

#[test]
fn rules_are_read() {
    let top = "metrics = \"p99\"\nsmallest-effect = \"5%\"\nprecision = \"1.5 %\"\nblocks = \"6-8\"\n\
               max-time = \"2m\"\n\
               blocks-per-start = \"all\"\nseed = 7\ncpus = \"any\"";
    let experiment = sound(&small(top, "")).experiment;
    let rules = &experiment.rules;
    assert_eq!((rules.smallest_effect, rules.precision), (0.05, 0.015));
    assert_eq!((rules.min_blocks, rules.max_blocks, rules.blocks_per_start, rules.seed), (6, 8, None, 7));
    assert_eq!((rules.max_time, experiment.metrics), (Some(Duration::from_secs(120)), vec![Metric::P99]));
    assert!(experiment.server_cpus.is_none() && experiment.load_cpus.is_none());
    let pinned = sound(&small("cpus = { load = \"0\" }", "")).experiment;
    assert_eq!((pinned.load_cpus.map(|c| c.to_string()), pinned.server_cpus), (Some("0".into()), None));
}

#[test]
fn a_variants_own_keys_replace_those_of_all() {
    let top = "[load]\nconnections = 7\nrequests-per-connection = 3\nheader = \"A: b\"\nduration = \"2s\"";
    let variant = "[[variant]]\nname = \"two\"\nurl = \"http://h/\"\n\
                   load = { close = true, header = [\"C: d\", \"E: f\"] }\n\
                   [[variant]]\nname = \"three\"\nurl = \"http://h/\"\n\
                   load = { requests-per-connection = \"unlimited\" }";
    let cell = &sound(&small(top, variant)).experiment.cells[0];
    let [one, two, three] = [0, 1, 2].map(|i| bench(&cell.variants[i].load));
    assert_eq!((one.connections, one.requests_per_connection, one.headers.len()), (7, Some(3), 1));
    assert_eq!((two.connections, two.requests_per_connection, two.headers.len()), (7, Some(1), 2));
    assert_eq!((three.requests_per_connection, three.duration), (None, Some(Duration::from_secs(2))));
    assert!(
        cell.variants[1].load_words.contains("one per request")
            && !cell.variants[1].load_words.contains('d'.to_string().repeat(2).as_str())
    );
}

#[test]
fn an_open_loop_compares_latency_first() {
    let open = sound(&small("[load]\nrate = 100", "")).experiment;
    assert_eq!(open.metrics, [Metric::P99, Metric::Cpu]);
    let share = sound(&small("[load]\nrate = \"60%\"", "")).experiment;
    assert_eq!((share.metrics.as_slice(), share.cells[0].rate_share), (&[Metric::P99, Metric::Cpu][..], Some(0.6)));
    assert_eq!(bench(&share.cells[0].variants[0].load).load, Rhythm::Closed, "until the rate is known");
}

const SWEPT: &str = r#"
title = "Swept"
[load]
connections = "{{n}}"
[sweep]
name = "n"
label = "connections"
values = [2, 20]
[[server]]
name = "both"
start = "{{oroshi}} target --listen 127.0.0.1:{{ port }} --listen unix:{{socket}} --backlog {{n}}"
env = { N = "{{n}}" }
files."a/b.conf" = "n {{n}} port {{port}} {{{{"
setup = ["first 'a b'", ["second", "c d"]]
teardown = "last"
stop = "SIGQUIT"
[[variant]]
group = "g"
name = "TCP"
server = "both"
url = "http://127.0.0.1:{{port}}/{{n}}"
[[variant]]
group = "h"
name = "alone"
start = ["sh", "-c", "exec x"]
ready = { line = 'ready (\d+)' }
url = ["http://127.0.0.1:7/", "http://127.0.0.1:8/"]
[[variant]]
group = "g"
name = "unix"
server = "both"
url = "unix:{{socket}}"
"#;

#[test]
fn each_group_has_a_cell_at_each_point_of_the_sweep() {
    let experiment = sound(SWEPT).experiment;
    let cells: Vec<_> =
        experiment.cells.iter().map(|c| (c.group.as_str(), c.point, c.variants.len(), c.servers.len())).collect();
    assert_eq!(cells, [("g", Some(0), 2, 1), ("g", Some(1), 2, 1), ("h", Some(0), 1, 1), ("h", Some(1), 1, 1)]);
    assert_eq!(experiment.sweep.unwrap().values, ["2", "20"]);
    let cell = &experiment.cells[1];
    assert_eq!(bench(&cell.variants[0].load).connections, 20);
    assert_eq!(cell.variants[0].urls, ["http://127.0.0.1:{{port}}/20"]);
    let server = &cell.servers[0];
    assert_eq!(server.start[2..4], ["--listen", "127.0.0.1:{{port}}"]);
    assert_eq!(server.start.last().unwrap(), "20");
    assert_eq!(server.env, [("N".to_owned(), "20".to_owned())]);
    assert_eq!(server.files, [("a/b.conf".to_owned(), "n 20 port {{port}} {{{{".to_owned())]);
    assert_eq!(server.setup, [vec!["first", "a b"], vec!["second", "c d"]]);
    assert_eq!((server.teardown.as_slice(), server.stop), (&[vec!["last".to_owned()]][..], Stop::Quit));
    let Ready::Answers(urls) = &server.ready else { panic!("{server:?}") };
    assert_eq!(urls, &["http://127.0.0.1:{{port}}/20", "unix:{{socket}}"], "all that will be asked");
    let alone = &experiment.cells[2].servers[0];
    assert_eq!((alone.name.as_str(), alone.start.len()), ("h / alone", 3));
    assert!(matches!(&alone.ready, Ready::Line(line) if line.is_match("ready 12")));
}

#[test]
fn variants_are_chosen_by_name_by_group_or_both() {
    let only = |names: &[&str]| RunOptions {
        only: names.iter().map(|&name| name.to_owned()).collect(),
        ..RunOptions::default()
    };
    let chosen = |names: &[&str]| {
        let cells = asked(SWEPT, &only(names)).experiment.cells;
        cells
            .iter()
            .filter(|c| c.point == Some(0))
            .flat_map(|c| &c.variants)
            .map(|v| v.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(chosen(&["g"]), ["TCP", "unix"]);
    assert_eq!(chosen(&["g/unix", "alone"]), ["alone", "unix"], "in the order of the file");
    assert_eq!(chosen(&["h / alone"]), ["alone"]);
    let error = read(source(SWEPT, None), &only(&["unxi"]), &Machine::this()).unwrap_err();
    assert!(matches!(&error, ExperimentError::Only(text) if text.contains("did you mean `unix`?")), "{error:?}");
}

#[test]
fn what_is_not_installed_is_left_out_by_name() {
    let text = r#"
title = "Some"
[[server]]
name = "s"
requires = ["surely-not-installed"]
start = "sh -c {{port}}"
[[variant]]
group = "a"
name = "shared"
server = "s"
url = "http://127.0.0.1:{{port}}/"
[[variant]]
group = "a"
name = "inline"
start = "not-installed-either -p {{port}}"
url = "http://127.0.0.1:{{port}}/"
[[variant]]
group = "a"
name = "tested"
requires = ["sh", "sh -c 'exit 3'"]
url = "http://h/"
[[variant]]
group = "a"
name = "loaded"
url = "http://h/"
load = { command = "no-such-generator {{url}}", figures.rps = '(x)' }
[[variant]]
group = "b"
name = "fine"
requires = "sh"
url = "http://h/"
"#;
    let experiment = sound(text).experiment;
    let skipped: Vec<_> = experiment.skipped.iter().map(|s| (s.name.as_str(), s.why.as_str())).collect();
    assert_eq!(
        skipped,
        [
            ("a / shared", "surely-not-installed is not installed"),
            ("a / inline", "not-installed-either is not installed"),
            ("a / tested", "`sh -c 'exit 3'` fails: it says nothing"),
            ("a / loaded", "no-such-generator is not installed"),
        ]
    );
    assert_eq!(experiment.cells.len(), 1);
    assert_eq!((experiment.cells[0].group.as_str(), experiment.cells[0].servers.len()), ("b", 0));
}

#[test]
fn commands_are_tried_for_what_is_asked_for_alone_and_not_for_a_file_with_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let touch = |name: &str| format!("requires = \"sh -c 'touch {}'\"", folder.path().join(name).display());
    let text = format!(
        "title = \"x\"\n[[server]]\nname = \"s\"\nstart = \"sh\"\n{}\n[[server]]\nname = \"t\"\nstart = \"sh\"\n{}\n\
         [[variant]]\nname = \"a\"\nserver = \"s\"\nurl = \"http://h/\"\n{}\n\
         [[variant]]\nname = \"b\"\nserver = \"t\"\nurl = \"http://h/\"\n{}\n",
        touch("of-s"),
        touch("of-t"),
        touch("of-a"),
        touch("of-b")
    );
    let ran = || {
        let mut ran: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        ran.sort();
        ran
    };
    let machine = || Machine::tried_out(Shutdown::new());
    let wrong = text.clone() + "urll = 1\n";
    assert!(read(source(&wrong, None), &RunOptions::default(), &machine()).is_err());
    assert!(ran().is_empty(), "{:?}", ran());
    for quick in [false, true] {
        let only = RunOptions { only: vec!["b".into()], quick, ..RunOptions::default() };
        read(source(&text, None), &only, &machine()).unwrap();
        assert_eq!(ran(), ["of-b", "of-t"]);
    }
    read(source(&text, None), &RunOptions::default(), &machine()).unwrap();
    assert_eq!(ran(), ["of-a", "of-b", "of-s", "of-t"]);
}

#[test]
fn what_only_a_servers_own_path_finds_is_there() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("only-there");
    std::fs::write(&program, "").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().display();
    let server = format!("start = \"only-there\"\nenv.PATH = \"{path}\"");
    let load = format!("load = {{ command = \"only-there\", env.PATH = \"{path}\", figures.rps = '(x)' }}");
    for text in [small("", &server), small("", &load)] {
        assert_eq!(sound(&text).experiment.skipped, []);
        let without = sound(&text.replace(&path.to_string(), "/nonexistent")).experiment;
        assert_eq!(without.skipped[0].why, "only-there is not installed");
    }
}

#[test]
fn what_may_be_secret_is_not_repeated() {
    let top = "[load]\nheader = [\"Authorization: Bearer s3cret\"]\nbody = \"s3cret\"";
    let experiment = sound(&small(top, "start = \"sh\"\nenv.TOKEN = \"s3cret\"")).experiment;
    let source = experiment.source.unwrap();
    assert!(!source.contains("s3cret") && source.contains("\"Authorization: ***\""), "{source}");
    let cell = &experiment.cells[0];
    assert_eq!(cell.servers[0].env[0].1, "s3cret", "to the server it is given");
    assert_eq!(bench(&cell.variants[0].load).headers[0].1, "Bearer s3cret");
    let load = "load = { command = \"sh -H 'X-Key: s3cret'\", figures.rps = '(x)' }";
    let variant = &sound(&small("", load)).experiment.cells[0].variants[0];
    assert_eq!(variant.load_words, "sh -H 'X-Key: ***', after 250ms of warm-up");
    assert_eq!(command(&variant.load).words[2], "X-Key: s3cret");
}

#[test]
fn a_program_as_load_is_told_connections_and_whole_seconds() {
    let text = r#"
title = "Generators"
metrics = ["rps", "p99", "load-cpu"]
[load]
connections = 30
duration = "1500ms"
timeout = "1s"
[[variant]]
name = "shell"
start = "sh -c {{port}}"
url = "http://127.0.0.1:{{port}}/"
[variant.load]
command = "sh -c 'load -c{{connections}} -d{{ duration }}' {{url}} {{socket.x}}"
figures = { rps = '(\d+)/s', p99 = { pattern = 'p99 (\d+)', unit = "ms" }, mean = 'mean (\S+)' }
requests = '(\d+) requests'
env = { SECONDS = "{{duration}}" }
[[variant]]
name = "ours"
url = "http://h/"
"#;
    // A load has no socket of its own: a socket at which its server does not listen is a mistake.
    assert!(mistake(text).contains("{{socket.x}}"));
    let cell = &sound(&text.replace(" {{socket.x}}", "")).experiment.cells[0];
    let load = command(&cell.variants[0].load);
    assert_eq!(load.words, ["sh", "-c", "load -c30 -d2", "{{url}}"]);
    assert_eq!(cell.variants[0].load_words, "sh -c 'load -c30 -d2' {{url}}, after 250ms of warm-up");
    let warmup = load.warmup.as_ref().unwrap();
    let (connections, duration) = (warmup.connections, warmup.duration);
    assert_eq!((connections, duration, warmup.warmup), (30, Some(Duration::from_millis(250)), Duration::ZERO));
    let reading = sound(&text.replace(" {{socket.x}}", "").replace("requests =", "warmup = \"2s\"\nrequests ="));
    let warmed = command(&reading.experiment.cells[0].variants[0].load);
    assert_eq!(warmed.warmup.as_ref().and_then(|warmup| warmup.duration), Some(Duration::from_secs(2)), "its own");
    assert_eq!(reading.blocks, [Duration::from_secs(4) + Duration::from_millis(1750)]);
    let cold = sound(&text.replace(" {{socket.x}}", "").replace("connections = 30", "warmup = \"0s\"")).experiment;
    let cold = &cold.cells[0].variants[0];
    assert!(command(&cold.load).warmup.is_none() && !cold.load_words.contains("warm-up"), "{cold:?}");
    assert_eq!(load.env, [("SECONDS".to_owned(), "2".to_owned())]);
    let figures: Vec<_> = load.figures.iter().map(|f| (f.metric, f.scale)).collect();
    assert_eq!(figures, [(Metric::Rps, 1.0), (Metric::P99, 1e6), (Metric::Mean, 1e9)]);
    assert!(load.requests.as_ref().unwrap().is_match("12 requests"));
    assert_eq!(load.timeout, Duration::from_secs(36), "and not that of a request");
    assert_eq!(bench(&cell.variants[1].load).timeout, Duration::from_secs(1));
}

#[test]
fn bursts_of_several_programs_share_what_is_said_of_them() {
    let text = r#"
title = "Bursts"
metrics = ["mean"]
[load]
burst = "{{burst}}"
requests = 'ok (\d+)'
timeout = "2m"
figures.mean = 'mean (\S+)'
[sweep]
name = "burst"
values = [10, "10k"]
[[variant]]
name = "one"
url = "http://h/"
load.command = "sh -c one {{url}} {{burst}}"
[[variant]]
name = "other"
url = "http://h/"
load = { command = "sh -c other", timeout = "1m" }
"#;
    let cells = sound(text).experiment.cells;
    let commands: Vec<&Command> = cells.iter().flat_map(|c| &c.variants).map(|v| command(&v.load)).collect();
    assert_eq!(commands.iter().map(|c| c.burst).collect::<Vec<_>>(), [10, 10, 10_000, 10_000].map(Some));
    assert_eq!(commands.iter().map(|c| c.timeout.as_secs()).collect::<Vec<_>>(), [120, 60, 120, 60]);
    assert_eq!(commands[2].words, ["sh", "-c", "one", "{{url}}", "10k"]);
}

#[test]
fn a_quick_look_is_short_in_every_way() {
    let quick = |text: &str, options: RunOptions| asked(text, &RunOptions { quick: true, ..options }).experiment;
    let experiment = quick(SWEPT, RunOptions::default());
    let rules = &experiment.rules;
    assert_eq!((rules.min_blocks, rules.max_blocks, rules.blocks_per_start), (5, 10, None));
    assert_eq!((rules.max_time, experiment.quick), (Some(Duration::from_secs(45)), true));
    // 6 variants in 5 blocks within 30 s.
    let draft = bench(&experiment.cells[0].variants[0].load);
    assert_eq!((draft.duration, draft.warmup), (Some(Duration::from_millis(800)), Duration::from_millis(100)));
    assert!(experiment.cells[0].variants[0].load_words.contains("800ms after 100ms"));
    let many = (0..60).map(|i| format!("[[variant]]\nname = \"{i}\"\nurl = \"http://h/\"\n")).collect::<String>();
    let least = quick(&small("[load]\nstages = \"1s:10,2s:20\"", &many), RunOptions::default());
    let draft = bench(&least.cells[0].variants[0].load);
    assert_eq!(draft.duration, Some(Duration::from_millis(300)));
    let Rhythm::Open { stages, .. } = &draft.load else { panic!("{draft:?}") };
    assert_eq!(stages.iter().map(|s| s.duration.as_millis()).collect::<Vec<_>>(), [100, 200], "the whole course");
    let own = RunOptions { max_time: Some(Duration::from_secs(90)), seed: Some(9), ..RunOptions::default() };
    let own = quick(&small("blocks = 4\nseed = 2", ""), own).rules;
    assert_eq!((own.min_blocks, own.max_blocks, own.max_time, own.seed), (4, 4, Some(Duration::from_secs(90)), 9));
}

#[test]
fn files_and_folders_begin_beside_the_experiment() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("app")).unwrap();
    std::fs::write(folder.path().join("app.conf.in"), "port {{port}}\n").unwrap();
    std::fs::write(folder.path().join("body"), "hello").unwrap();
    let text = small(
        "[load]\nbody-file = \"body\"",
        "start = \"sh\"\nfolder = \"app\"\nfiles.\"app.conf\" = { template = \"app.conf.in\" }",
    );
    let read_at = |folder| read(source(&text, folder), &RunOptions::default(), &Machine::this());
    let cell = &read_at(Some(folder.path())).unwrap().experiment.cells[0];
    assert_eq!(cell.servers[0].folder, Some(folder.path().canonicalize().unwrap().join("app")));
    assert_eq!(cell.servers[0].files[0].1, "port {{port}}\n");
    assert_eq!(&bench(&cell.variants[0].load).body[..], b"hello");
    let Err(ExperimentError::File(mistakes)) = read_at(None) else { panic!("built in, it has no folder") };
    assert_eq!(mistakes.len(), 3, "{mistakes:#?}");
}

#[test]
fn files_of_the_experiment_are_those_of_every_server_but_for_its_own() {
    let text = r#"
title = "t"
files."app.conf" = "listen {{socket.app}}"
files."other.conf" = "port {{port}}"

[[variant]]
name = "as it is"
start = "sh app.conf"
url = "http://127.0.0.1:{{port}}/"

[[variant]]
name = "its own"
start = "sh app.conf"
url = "http://127.0.0.1:{{port.own}}/"
files."other.conf" = "port {{port.own}}"
"#;
    let files = |variant: usize| sound(text).experiment.cells[0].servers[variant].files.clone();
    let file = |path: &str, content: &str| (path.to_owned(), content.to_owned());
    assert_eq!(files(0), [file("app.conf", "listen {{socket.app}}"), file("other.conf", "port {{port}}")]);
    assert_eq!(files(1), [file("other.conf", "port {{port.own}}"), file("app.conf", "listen {{socket.app}}")]);
    // A name that only an overridden file uses does not belong to that server.
    let wrong = text.replace("{{port.own}}/", "{{port}}/");
    assert!(mistake(&wrong).contains("{{port}}"), "{}", mistake(&wrong));
    assert!(mistake(&text.replace("app.conf\" =", "../app.conf\" =")).contains("leads out of the server's folder"));
}

#[test]
fn the_projects_own_experiments_read_well() {
    for found in find::all(None).unwrap() {
        for quick in [false, true] {
            let options = RunOptions { quick, ..RunOptions::default() };
            let source = Source { name: &found.name, text: &found.text, folder: None };
            let ParsedExperiment { experiment, .. } =
                read(source, &options, &Machine::this()).unwrap_or_else(|e| panic!("{}: {e:?}", found.name));
            assert!(!experiment.question.is_empty(), "{}", found.name);
        }
    }
}

/// A hub may answer a subscriber only with its first message, so the URL for messages is asked instead.
#[test]
fn a_hub_is_ready_when_it_takes_messages_and_names_stand_in_its_urls() {
    let text = r#"title = "Hubs"
[load]
mode = "ws"
connections = 5
publish = "http://127.0.0.1:{{port}}/pub"
publish-to = "http://127.0.0.1:{{port}}/send/{n}"
[[variant]]
name = "hub"
start = "sh hub {{port}}"
url = "http://127.0.0.1:{{port}}/sub/{n}"
"#;
    let experiment = sound(text).experiment;
    let cell = &experiment.cells[0];
    let Ready::Answers(urls) = &cell.servers[0].ready else { panic!("{:?}", cell.servers[0]) };
    assert_eq!(urls, &["http://127.0.0.1:{{port}}/pub"]);
    let Load::Subscribe(load) = &cell.variants[0].load else { panic!("{:?}", cell.variants[0].load) };
    assert_eq!(load.publish_to.as_deref(), Some("http://127.0.0.1:{{port}}/send/{n}"));
    assert_eq!(
        cell.variants[0].load_words,
        "5 subscriptions (ws), 1 publisher in a closed loop, 100/s to one each, 1s after 250ms of warm-up"
    );
}
