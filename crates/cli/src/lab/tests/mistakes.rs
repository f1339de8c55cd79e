//! Mistakes in experiment files, and what is said of them.

use super::*;

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
        "title = \"Wrong\nblocks = \"9-5\"\nseed = \n[[variant]]\nname = \"a\"\nurl = \"http://h/\"\n\
         url = \"http://i/\"\n",
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
        ("seed = true", "", &["seed", "is true or false: expected text"]),
        ("question = 2026-01-01", "", &["is a date or time"]),
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
        ("[load]\nconnections = [1, 2]", "", &["is an array: expected"]),
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
