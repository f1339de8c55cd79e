//! Queries that a database refuses; configurations that could not serve, and those that are odd.

use std::fs;
use std::time::Instant;

use rustix::process::Signal;

use super::check;
use crate::gate::{Gate, HANG, Ran, oroshi};
use crate::peers;

// Queries.

const QUERY: &str = "SELECT host FROM domain WHERE domain = ";

fn with_query(url: &str, query: &str) -> String {
    format!(
        "[listen]\npublic = \"unix:{{dir}}/public.sock\"\nadmin = \"unix:{{dir}}/admin.sock\"\n[sql.s]\n\
         url = \"{url}\"\nquery-timeout = \"20s\"\nconnect-timeout = \"20s\"\n\
         [lookup.l]\nallow = \"any\"\nwait = \"30s\"\nmemory = {{ negative-ttl = \"1ms\" }}\n\
         sql = {{ store = \"s\", query = \"{query}\" }}\n[[route]]\nlookup = \"l\"\n"
    )
}

/// Waits until it has said something with these words so many times.
#[track_caller]
fn said(gate: &mut Gate, words: &str, times: usize) -> String {
    loop {
        let found: Vec<&String> = gate.process.said.iter().filter(|line| line.contains(words)).collect();
        if found.len() >= times {
            return found[times - 1].clone();
        }
        gate.process.until(words);
    }
}

/// What a database makes of queries, before the gateway serves, when it starts, at a reload, and while it serves.
fn refuses(url: &str, user: &str, good: &str, bad: &[(String, &str)], rename: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let fine = check(folder.path(), &with_query(url, good));
    assert!(fine.code == Some(0) && !fine.err.contains("sql"), "{good}: {fine:?}");
    for (query, words) in bad {
        let wrong = check(folder.path(), &with_query(url, query));
        assert_eq!(wrong.code, Some(2), "{query}: {wrong:?}");
        assert!(
            wrong.err.contains("lookup.l.sql.query: the database rejects it: ") && wrong.err.contains(words),
            "{query}: {wrong:?}"
        );
        assert!(wrong.err.contains("line 12: "), "{wrong:?}");
    }
    // It starts all the same, as the table may come later, and says it.
    let mut gate = Gate::start(folder, &with_query(url, &bad[0].0));
    let no_use = "the query of the look-up `l` is of no use: ";
    let line = said(&mut gate, no_use, 1);
    assert!(line.contains(bad[0].1), "{line}");
    gate.reload(&with_query(url, &bad[0].0));
    said(&mut gate, no_use, 2);
    gate.reload(&with_query(url, good));
    let before = gate.process.said.len();
    assert_eq!(gate.get("a.example", "/").status, 503, "there is no such row");
    // From here on it is refused: told once, however many ask; and again once it was taken meanwhile.
    rename("gone");
    let line = {
        for number in 0..5 {
            assert_eq!(gate.get(&format!("{number}.example"), "/").status, 503);
        }
        gate.process.until("refuses the query")
    };
    assert!(line.contains("domain"), "{line}");
    rename("back");
    assert_eq!(gate.get("b.example", "/").status, 503);
    gate.process.until("takes the query");
    rename("gone");
    // Where keys decide what is refused, this would be told for every other request: so not twice within a second.
    let (begun, mut keys) = (Instant::now(), 0..);
    // The trial after the reload may come upon it before a request does; then that is the second time.
    let told = |gate: &mut Gate| gate.process.heard(before, "refuses the query") + gate.process.heard(before, no_use);
    while told(&mut gate) < 2 {
        assert!(begun.elapsed() < HANG, "{:#?}", gate.process.said);
        assert_eq!(gate.get(&format!("c{}.example", keys.next().unwrap()), "/").status, 503);
    }
    assert_eq!(told(&mut gate), 2, "{:#?}", gate.process.said);
    rename("back");
    gate.process.signal(Signal::TERM);
    gate.process.ended();
    assert!(
        !gate.process.said.iter().any(|line| line.contains(user) || line.contains("hush")),
        "{:#?}",
        gate.process.said
    );
}

#[test]
fn what_sqlite_refuses_is_told() {
    let database = peers::Sqlite::start();
    let bad = [
        ("SELECT host FROM none WHERE domain = ?".to_owned(), "no such table: none"),
        ("SELECT hots FROM domain WHERE domain = ?".to_owned(), "no such column"),
        ("SELEC host FROM domain WHERE domain = ?".to_owned(), "syntax error"),
        ("DELETE FROM domain WHERE domain = ?".to_owned(), "brings no column"),
    ];
    refuses(&database.url(), "nobody-of-this-name", &format!("{QUERY}?"), &bad, |to| {
        let (from, to) = if to == "gone" { ("domain", "domain_gone") } else { ("domain_gone", "domain") };
        peers::run(database.execute(&format!("ALTER TABLE {from} RENAME TO {to}")));
    });
}

#[test]
fn what_mariadb_refuses_is_told() {
    let Some(database) = peers::MariaDb::start("what_mariadb_refuses_is_told") else { return };
    let admin = oroshi_lookup::Stores::start(vec![peers::sql("admin", &database.url("root", "gate"))]).unwrap();
    let bad = [
        ("SELECT host FROM none WHERE domain = ?".to_owned(), "none' doesn't exist"),
        ("SELECT host FROM domain WHERE domain = $1".to_owned(), "lookup.l.sql.query"),
        ("SELECT host FROM domain WHERE domain = ? OR domain = ?".to_owned(), "places for 2 parameters: expected one"),
        ("SELECT authentication_string FROM mysql.user WHERE user = ?".to_owned(), "command denied to user '...'"),
    ];
    refuses(&database.url("gate", "gate"), "'gate'@", &format!("{QUERY}?"), &bad, |to| {
        let (from, to) = if to == "gone" { ("domain", "domain_gone") } else { ("domain_gone", "domain") };
        peers::run(async {
            admin.sql("admin").unwrap().query(format!("RENAME TABLE {from} TO {to}"), vec![]).await.unwrap()
        });
    });
}

#[test]
fn what_postgresql_refuses_is_told() {
    let Some(database) = peers::Postgres::start("what_postgresql_refuses_is_told") else { return };
    let admin = oroshi_lookup::Stores::start(vec![peers::sql("admin", &database.url("admin"))]).unwrap();
    let bad = [
        (format!("{QUERY}?"), "syntax error"),
        ("SELECT host FROM none WHERE domain = $1".to_owned(), "does not exist"),
        ("SELECT host FROM domain WHERE length(domain) = $1".to_owned(), "operator does not exist"),
        ("SELECT host FROM domain WHERE domain = $2".to_owned(), "lookup.l.sql.query"),
    ];
    refuses(&database.url("gate"), "\"gate\"", &format!("{QUERY}$1"), &bad, |to| {
        let (from, to) = if to == "gone" { ("domain", "domain_gone") } else { ("domain_gone", "domain") };
        peers::run(async {
            admin.sql("admin").unwrap().query(format!("ALTER TABLE {from} RENAME TO {to}"), vec![]).await.unwrap()
        });
    });
}

#[test]
fn a_query_that_cannot_be_tried_is_told_and_no_mistake() {
    let folder = tempfile::tempdir().unwrap();
    for (url, words) in [
        ("sqlite:{dir}/missing.db", "unable to open database file"),
        ("mysql://gate@localhost/gate?socket={dir}/nobody.sock", "cannot connect"),
    ] {
        let checked = check(folder.path(), &with_query(url, &format!("{QUERY}?")));
        assert_eq!(checked.code, Some(0), "{checked:?}");
        let told =
            checked.err.lines().find(|line| line.starts_with("warning: ")).unwrap_or_else(|| panic!("{checked:?}"));
        assert!(told.contains("lookup.l.sql.query: it could not be tried: ") && told.contains(words), "{told}");
    }
    let mut gate = Gate::start(folder, &with_query("sqlite:{dir}/missing.db", &format!("{QUERY}?")));
    said(&mut gate, "the query of the look-up `l` could not be tried: ", 1);
}

// Configurations.

#[test]
fn a_check_refuses_what_the_start_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let long = format!("unix:{}/{}", folder.path().display(), "x".repeat(110));
    fs::write(folder.path().join("store.lua"), "local m = gate.memcached('nope')\nfunction on_route() end").unwrap();
    fs::write(folder.path().join("base.lua"), "local m = gate.sql('cache')\nfunction on_route() end").unwrap();
    let route = "[[route]]\nanswer = { status = 200 }\n";
    let listen = "[listen]\npublic = \"unix:{dir}/public.sock\"\n";
    for (config, told) in [
        (
            format!("[listen]\npublic = \"127.0.0.1\"\n{route}"),
            "line 2: listen.public: `127.0.0.1` is no address to listen on",
        ),
        (
            format!("[listen]\npublic = \"127.0.0.1:70000\"\n{route}"),
            "line 2: listen.public: `127.0.0.1:70000` is no address",
        ),
        (format!("[listen]\npublic = [\":0\", \"a b:80\"]\n{route}"), "line 2: listen.public: `a b:80` is no address"),
        (format!("[listen]\npublic = \"{long}\"\n{route}"), "line 2: listen.public: "),
        (format!("[listen]\npublic = \":0\"\nadmin = \"{long}\"\n{route}"), "line 3: listen.admin: "),
        (format!("[listen]\npublic = \"unix:{{dir}}/none/a.sock\"\n{route}"), "does not exist"),
        (
            format!("threads = 1\n[listen]\npublic = [\":8080\", \"127.0.0.1:8080\"]\n{route}"),
            "are one place to listen",
        ),
        (
            format!("threads = 2\n[listen]\npublic = [\"127.0.0.1:8080\", \"localhost:8080\"]\n{route}"),
            "are one place to listen",
        ),
        (
            format!("{listen}[access-log]\nfile = \"{{dir}}/none/access.log\"\n{route}"),
            "line 4: access-log.file: cannot append to",
        ),
        (format!("{listen}[access-log]\nfile = \"{{dir}}\"\n{route}"), "line 4: access-log.file: cannot append to"),
        (
            format!("{listen}[script.s]\nfile = \"store.lua\"\n[[route]]\nscript = \"s\"\n"),
            "there is no memcached store `nope`",
        ),
        (
            format!(
                "{listen}[memcached.cache]\nservers = [\"unix:/x\"]\n[script.s]\nfile = \"base.lua\"\n[[route]]\n\
                 script = \"s\"\n"
            ),
            "line 6: script.s.file: base.lua:1: gate.sql: there is no SQL store `cache` in the configuration",
        ),
        (
            format!("{listen}[[route]]\npath = \"/a;b\"\nanswer = {{}}\n"),
            "line 4: route[1].path: `/a;b` is no path in its plain form",
        ),
        (format!("{listen}[limits]\nhops = 0\n{route}"), "limits.hops: 0 leaves room for nothing"),
    ] {
        let checked = check(folder.path(), &config);
        assert_eq!(checked.code, Some(2), "{config}: {checked:?}");
        assert!(checked.err.contains(told), "{config}: expected {told}: {}", checked.err);
        let started = Ran::of(oroshi().arg("gate").current_dir(folder.path()).output().unwrap());
        assert_eq!(started.code, Some(2), "{config}: {started:?}");
    }
}

#[test]
fn a_check_tells_what_is_odd() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"[listen]
public = "unix:{dir}/public.sock"
[limits]
connections = 5000
[memcached.lonely]
servers = ["unix:/x"]
[upstream.used]
targets = ["unix:/x"]
[upstream.unused]
targets = ["unix:/x"]
[[route]]
host = ["a.example", "b.example:8080"]
method = ["GET", "PUT"]
to = "used"
[[route]]
name = "never"
host = "A.example"
path = "/"
method = ["PUT", "GET"]
answer = { status = 200 }
[[route]]
host = ["a.example", "c.example"]
method = ["PUT", "GET"]
answer = { status = 200 }
"#;
    let checked = check(folder.path(), config);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let warnings: Vec<&str> = checked.err.lines().collect();
    let expected = [
        "line 12: route[1].host: `b.example:8080` has a port, which is not looked at",
        "line 15: route[2]: no request takes it: route `route-1` stands before it",
        "line 9: upstream.unused: no route uses it",
        "line 5: memcached.lonely: no look-up and no limit uses it",
    ];
    for told in expected {
        assert!(
            warnings.iter().any(|line| line.starts_with("warning: gate.toml: ") && line.contains(told)),
            "{told}: {}",
            checked.err
        );
    }
    assert_eq!(warnings.len(), expected.len(), "{}", checked.err);
    // The start says the same.
    let mut gate = Gate::start(folder, config);
    for told in ["upstream.unused: no route uses it", "route[2]: no request takes it"] {
        assert!(gate.process.said.iter().any(|line| line.contains(told)), "{told}: {:?}", gate.process.said);
    }
    gate.reload(config);
}

#[test]
fn a_check_shows_the_limits_that_are_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let config =
        "threads = 2\n[listen]\npublic = \":0\"\nadmin = \"unix:a.sock\"\n[[route]]\nanswer = { status = 200 }\n";
    fs::write(folder.path().join("gate.toml"), config).unwrap();
    let limited = |command: &str| {
        let script = format!("ulimit -n 1000 && {command}");
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_oroshi")]).current_dir(folder.path());
        Ran::of(shell.output().unwrap())
    };
    if limited("ulimit -n 300000 2>/dev/null").code == Some(0) {
        return peers::skipped("a_check_shows_the_limits_that_are_in_force", "this user may raise every limit");
    }
    let checked = limited("exec \"$0\" gate --check");
    assert_eq!(checked.code, Some(0), "{checked:?}");
    // How many descriptors are open when it starts is not its doing alone.
    let in_force = checked.out.lines().find_map(|line| line.strip_prefix("connections = ")).unwrap();
    let told = format!("limits.connections is lowered to {in_force}, beside 64 of operators: ");
    assert!(checked.err.contains(&told), "{}", checked.err);
    assert!((370..=400).contains(&in_force.parse::<u32>().unwrap()), "{in_force}");
}
