//! Tests of experiment files as people write them.

use std::path::Path;
use std::time::Duration;

use oroshi_bench::Load as Rhythm;
use oroshi_experiment::{Machine, Reading, Source, Unreadable, Wishes, find};
use oroshi_lab::Metric;
use oroshi_lab::plan::{Command, Load, Ready, Stop};
use oroshi_net::Shutdown;
use oroshi_words::Mistake;

use super::flags::Flags;

mod scripts;

fn read(source: Source<'_>, wishes: &Wishes, machine: &Machine) -> Result<Reading, Unreadable> {
    oroshi_experiment::read(source, wishes, machine, &Flags { script: crate::bench::fake::load })
}

fn source<'s>(text: &'s str, folder: Option<&'s Path>) -> Source<'s> {
    Source { name: "my test", text, folder }
}

#[track_caller]
fn sound(text: &str) -> Reading {
    asked(text, &Wishes::default())
}

#[track_caller]
fn asked(text: &str, wishes: &Wishes) -> Reading {
    let machine = Machine::tried_out(Shutdown::new());
    read(source(text, Some(Path::new("."))), wishes, &machine).unwrap_or_else(|error| panic!("{error:?}"))
}

#[track_caller]
fn mistakes(text: &str) -> Vec<Mistake> {
    match read(source(text, Some(Path::new("."))), &Wishes::default(), &Machine::this()) {
        Err(Unreadable::File(mistakes)) => mistakes,
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
fn five_mistakes_of_five_kinds_are_told_at_once_each_with_its_line() {
    let text = r#"title = "Wrong"
metrics = ["rps", "p95"]

[load]
conections = 10
duration = "soon"

[[server]]
name = "app"
start = "app --port {{prot}}"

[[variant]]
name = "one"
server = "apq"
url = "http://127.0.0.1:{{port}}/"
"#;
    let found = mistakes(text);
    let expected = [
        (2, "metrics", "`p95`"),
        (5, "load.conections", "did you mean `connections`?"),
        (6, "load.duration", "`soon`"),
        (10, "server.start", "did you mean {{port}}?"),
        (14, "variant.server", "did you mean `app`?"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (mistake, (line, key, text)) in found.iter().zip(expected) {
        assert_eq!((mistake.line, mistake.key.as_str()), (line, key), "{mistake}");
        assert!(mistake.text.contains(text), "{mistake}");
    }
}

#[test]
fn what_is_no_toml_does_not_hide_what_is_wrong_elsewhere() {
    let found = mistakes(
        "title = \"Wrong\nblocks = \"9-5\"\nseed = \n[[variant]]\nname = \"a\"\nurl = \"http://h/\"\nurl = \"http://i/\"\n",
    );
    let lines: Vec<usize> = found.iter().map(|mistake| mistake.line).collect();
    assert_eq!(lines, [1, 2, 3, 7], "{found:#?}");
    assert!(found[1].text.contains("`9-5`") && found[3].text.contains("duplicate"), "{found:#?}");
    // Everything after an array that is not closed is part of it, and is not reported.
    let found = mistakes("title = 7\nmetrics = [\"rps\", \n[load]\nconnections = 1\n[[variant]]\nname = \"a\"\n");
    assert!(found.len() == 1 && found[0].line == 2 && found[0].text.contains("not closed"), "{found:#?}");
}

#[test]
fn each_mistake_says_what_was_expected() {
    let server = "[[server]]\nname = \"s\"\nstart = \"s {{port}}\"\n";
    for (top, variant, words) in [
        ("smallest-effect = 3", "", &["line 2: smallest-effect: `3`", "such as 3%"][..]),
        ("precision = \"0%\"", "", &["more than 0 %"]),
        ("blocks = 2", "", &["fewer than 3 blocks"]),
        ("blocks-per-start = 0", "", &["blocks-per-start", "all"]),
        ("max-time = \"0\"", "", &["max-time", "10s"]),
        ("seed = true", "", &["seed", "true or false stands here", "a text"]),
        ("question = 2026-01-01", "", &["a date or time stands here"]),
        ("cpus = { server = \"1000\" }", "", &["cpus.server: CPU 1000 is not available here"]),
        ("cpus = \"all\"", "", &["cpus", "\"any\""]),
        ("cpus = { sever = \"0\" }", "", &["cpus.sever", "did you mean `server`?"]),
        ("conections = 3", "", &["there is no such key"]),
        ("connections = 3", "", &["line 2: connections", "it belongs into [load]"]),
        ("start = \"x\"", "", &["[[server]] or a [[variant]]"]),
        ("metrics = [\"rps\", \"rps\"]", "", &["twice"]),
        (
            "[sweep]\nname = \"n\"\nvalues = [1]",
            "",
            &["line 3: sweep.name: `{{n}}` stands nowhere", "connections = \"{{n}}\""],
        ),
        ("[sweep]\nname = \"port\"\nvalues = [1]", "", &["stands for something else"]),
        ("[sweep]\nvalues = [1]", "", &["line 2: sweep: `name` is missing"]),
        ("[load]\nclose = 1", "", &["load.close: expected true or false"]),
        ("[load]\nclose = true\nrequests-per-connection = 2", "", &["exclude each other"]),
        ("[load]\nconnections = 0", "", &["line 3: load.connections: the number of connections is 0"]),
        ("[load]\nthreads = 20", "", &["load.threads: 10 connections on 20 threads"]),
        ("[load]\ncpus = \"0\"", "", &["load.cpus", "cpus = { load"]),
        ("[load]\nunix = \"/x\"", "", &["load.unix", "unix:{{socket}}"]),
        ("[load]\nheader = [\"A: b\", \"C\"]", "", &["load.header", "no colon"]),
        ("[load]\nrate = \"200%\"", "", &["load.rate", "below 100 %"]),
        ("[load]\narrivals = \"poisson\"", "", &["load.arrivals", "`rate`"]),
        ("[load]\ncert = \"c.pem\"", "", &["load.cert", "`key`"]),
        ("[load]\nbody-file = \"not-here\"", "", &["load.body-file", "not-here", "cannot be read"]),
        ("[load]\nconnections = [1, 2]", "", &["an array stands here"]),
        ("[load]\nfigures.rps = '(x)'", "", &["`command`"]),
        ("", "url = \"x\"", &["duplicate key"]),
        ("", "urls = \"x\"", &["did you mean `url`?"]),
        ("", "rate = 5", &["it belongs into the load: load.rate"]),
        ("", "server = \"s\"", &["there is no [[server]] named `s`"]),
        ("", "stop = \"QUITE\"\nstart = \"x\"", &["did you mean QUIT?"]),
        ("", "stop = \"QUIT\"", &["line 3: variant: `start` is missing"]),
        ("", "start = \"x 'y\"", &["cannot be split into words"]),
        ("", "start = []", &["the command is empty"]),
        ("", "start = \"x\"\nenv = { A = 1, B = true }", &["variant.env.B"]),
        ("", "start = \"x\"\nfiles.\"../x\" = \"\"", &["leads out of the server's folder"]),
        ("", "start = \"x\"\nfiles.\"x\" = { template = \"not-here.in\" }", &["not-here.in cannot be read"]),
        ("", "start = \"x\"\nfolder = \"not-here\"", &["not-here is no folder"]),
        ("", "start = \"x\"\nready = { line = \"(\" }", &["variant.ready.line"]),
        ("", "start = \"x\"\nready-timeout = \"0s\"", &["it is 0"]),
        ("", "load.command = \"x {{urll}}\"\nload.figures.rps = '(x)'", &["did you mean {{url}}?"]),
        ("", "load.command = \"x\"\nload.figures.rps = 'x'", &["has no group"]),
        ("", "load.command = \"x\"", &["rps is compared first", "`figures.rps`"]),
        ("metrics = [\"cpu\"]", "load.command = \"x\"", &["`requests`, the number"]),
        ("", "load = { command = \"x\", figures.rps = '(x)', close = true }", &["load.close", "does not follow it"]),
        ("", "load.burst = 5", &["line 6: variant.load.burst", "give its `command` as well"]),
        ("", "load = { command = \"x\", figures.rps = '(x)', burst = 5 }", &["load.burst", "a pattern for `requests`"]),
        (
            "",
            "load = { command = \"x\", figures.rps = '(x)', requests = '(x)', burst = \"0\" }",
            &["load.burst", "it is 0", "at the same moment"],
        ),
        (
            "[load]\nclose = true",
            "load = { command = \"x\", figures.rps = '(x)' }",
            &["line 3: load.close", "of the other variants"],
        ),
        (
            "",
            "load = { command = \"x\", figures = { rps = '(x)', p99 = { pattern = '(x)', unit = \"m\" } } }",
            &["ns, us, ms, s"],
        ),
        (
            "",
            "[[variant]]\nname = \"one\"\nurl = \"http://h/\"",
            &["line 6: variant: there is another variant named `one`"],
        ),
        ("", "[[variant]]\nname = \"two\"\nurl = \"ftp://h/\"", &["line 8: variant.url", "`ftp://h/`"]),
        ("", "[[variant]]\nname = \"two\"\nurl = \"http://h:{{port}}/\"", &["line 8: variant.url", "{{port}}"]),
        ("", "[[variant]]\nurl = \"http://h/\"", &["line 6: variant: `name` is missing"]),
        ("", "[[variant]]\nname = \"two\"", &["line 6: variant: `url` is missing"]),
        ("", "[[variant]]\nname = \"two\"\nurl = []", &["no URL here"]),
        ("", "[[variant]]\nname = \"two\"\nurl = \"http://h/\"\nload.rate = \"50%\"", &["the same rate"]),
        ("", "[variant.load]\nrate = 0", &["variant.load.rate: a rate of 0"]),
        ("[[server]]\nname = \"s\"", "", &["line 2: server: `start` is missing"]),
        (&format!("{server}{server}"), "", &["there is another [[server]] named `s`"]),
        (server, "start = \"x\"\nserver = \"s\"", &["leave one out"]),
        (&server.replace("{{port}}", "{{socket"), "", &["server.start", "closing braces"]),
    ] {
        let text = small(top, variant);
        let told = mistake(&text);
        for word in words {
            assert!(told.contains(word), "`{word}` is not in `{told}` for\n{text}");
        }
    }
    assert_eq!(
        mistake("[[variant]]\nname = \"one\"\nurl = \"http://h/\"\n"),
        "line 1: `title` is missing: expected what it is about, in a line"
    );
    assert!(mistake("title = \"x\"\n").contains("no [[variant]]"));
}

#[test]
fn what_is_left_out_is_filled_in() {
    let Reading { experiment, blocks } = sound(SMALL);
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
    assert_eq!(experiment.server_cpus.is_some(), machine.apart.is_some(), "two sides need two CPUs");
    assert_eq!(experiment.source.as_deref(), Some(SMALL));
}

#[test]
fn rules_are_read() {
    let top = "metrics = \"p99\"\nsmallest-effect = \"5%\"\nprecision = \"1.5 %\"\nblocks = \"6-8\"\nmax-time = \"2m\"\n\
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
    let variant = "[[variant]]\nname = \"two\"\nurl = \"http://h/\"\nload = { close = true, header = [\"C: d\", \"E: f\"] }\n\
                   [[variant]]\nname = \"three\"\nurl = \"http://h/\"\nload = { requests-per-connection = \"unlimited\" }";
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
    let only =
        |names: &[&str]| Wishes { only: names.iter().map(|&name| name.to_owned()).collect(), ..Wishes::default() };
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
    assert!(matches!(&error, Unreadable::Only(text) if text.contains("did you mean `unix`?")), "{error:?}");
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
    assert!(read(source(&wrong, None), &Wishes::default(), &machine()).is_err());
    assert!(ran().is_empty(), "{:?}", ran());
    for quick in [false, true] {
        let only = Wishes { only: vec!["b".into()], quick, ..Wishes::default() };
        read(source(&text, None), &only, &machine()).unwrap();
        assert_eq!(ran(), ["of-b", "of-t"]);
    }
    read(source(&text, None), &Wishes::default(), &machine()).unwrap();
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
    let quick = |text: &str, wishes: Wishes| asked(text, &Wishes { quick: true, ..wishes }).experiment;
    let experiment = quick(SWEPT, Wishes::default());
    let rules = &experiment.rules;
    assert_eq!((rules.min_blocks, rules.max_blocks, rules.blocks_per_start), (5, 10, None));
    assert_eq!((rules.max_time, experiment.quick), (Some(Duration::from_secs(45)), true));
    // 6 variants in 5 blocks within 30 s.
    let draft = bench(&experiment.cells[0].variants[0].load);
    assert_eq!((draft.duration, draft.warmup), (Some(Duration::from_millis(800)), Duration::from_millis(100)));
    assert!(experiment.cells[0].variants[0].load_words.contains("800ms after 100ms"));
    let many = (0..60).map(|i| format!("[[variant]]\nname = \"{i}\"\nurl = \"http://h/\"\n")).collect::<String>();
    let least = quick(&small("[load]\nstages = \"1s:10,2s:20\"", &many), Wishes::default());
    let draft = bench(&least.cells[0].variants[0].load);
    assert_eq!(draft.duration, Some(Duration::from_millis(300)));
    let Rhythm::Open { stages, .. } = &draft.load else { panic!("{draft:?}") };
    assert_eq!(stages.iter().map(|s| s.duration.as_millis()).collect::<Vec<_>>(), [100, 200], "the whole course");
    let own = Wishes { max_time: Some(Duration::from_secs(90)), seed: Some(9), ..Wishes::default() };
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
    let read_at = |folder| read(source(&text, folder), &Wishes::default(), &Machine::this());
    let cell = &read_at(Some(folder.path())).unwrap().experiment.cells[0];
    assert_eq!(cell.servers[0].folder, Some(folder.path().canonicalize().unwrap().join("app")));
    assert_eq!(cell.servers[0].files[0].1, "port {{port}}\n");
    assert_eq!(&bench(&cell.variants[0].load).body[..], b"hello");
    let Err(Unreadable::File(mistakes)) = read_at(None) else { panic!("built in, it has no folder") };
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
            let wishes = Wishes { quick, ..Wishes::default() };
            let source = Source { name: &found.name, text: &found.text, folder: None };
            let Reading { experiment, .. } =
                read(source, &wishes, &Machine::this()).unwrap_or_else(|e| panic!("{}: {e:?}", found.name));
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
