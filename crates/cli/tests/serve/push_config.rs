//! The configuration of `oroshi push`: every key, every kind of mistake, what `--check` shows, the command line.

use std::path::Path;
use std::process::{Command, Output};

const NATIVE: &str = include_str!("../push/every-key.toml");
const NATIVE_CHECKED: &str = include_str!("../push/every-key.checked.toml");
const KUIPERBELT: &str = include_str!("../push/every-key.yml");
const KUIPERBELT_CHECKED: &str = include_str!("../push/every-key.yml.checked.toml");
const SAMPLE: &str = include_str!("../../../../examples/push/config.yml");
const EXAMPLE: &str = include_str!("../../../../examples/push/push.toml");

/// A folder with files in it, in which the command is run.
struct Folder(tempfile::TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Folder(folder)
    }

    fn push(&self, args: &[&str], variables: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oroshi"));
        command.arg("push").args(args).current_dir(self.0.path()).env_clear().envs(variables.iter().copied());
        Ran::of(command.output().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn of(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// What it printed, with this machine's name taken out.
    #[track_caller]
    fn checked(&self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let here = format!("\"{name}");
        // How many descriptors it may have is this machine's too.
        let lines = self.out.lines().filter(|line| !line.starts_with("# the limit on descriptors here "));
        let shown = |line: &str| match line.starts_with("endpoint") {
            true => line.replace(&here, "\"HERE") + "\n",
            false => line.to_owned() + "\n",
        };
        lines.map(shown).collect()
    }

    /// Ended as wrong usage, with these lines.
    #[track_caller]
    fn refused(&self, lines: &[&str]) {
        assert_eq!(self.code, Some(2), "{}{}", self.out, self.err);
        let told: Vec<&str> = self.err.lines().filter(|line| line.starts_with("error: ")).collect();
        for (told, wanted) in told.iter().zip(lines) {
            assert!(told.contains(wanted), "`{wanted}` is not in `{told}`");
        }
        assert_eq!(told.len(), lines.len(), "{}", self.err);
    }
}

#[test]
fn every_key_of_ours_is_read_and_shown() {
    let folder = Folder::with(&[("a.toml", NATIVE), ("token", "s3cret\n")]);
    let identity = oroshi_testkit::Identity::new();
    for name in ["server.pem", "server.key"] {
        std::fs::copy(identity.path(name), folder.path().join(name)).unwrap();
    }
    let secret = "s3cret, of thirty-two bytes or more";
    let variables = [("NATS", "nats://me:s3cret@host:4222"), ("JWT_SECRET", secret), ("TICKETS", secret)];
    let checked = folder.push(&["--config", "a.toml", "--check"], &variables);
    assert_eq!(checked.checked(), NATIVE_CHECKED);
}

#[test]
fn every_key_of_kuiperbelts_is_read_and_shown_in_our_words() {
    let folder = Folder::with(&[("a.yml", KUIPERBELT)]);
    let checked = folder.push(&["-config", "a.yml", "-check"], &[]);
    assert_eq!(checked.checked(), KUIPERBELT_CHECKED);
}

#[test]
fn what_is_shown_is_a_configuration_of_the_same() {
    for (name, text) in [("a.toml", EXAMPLE), ("a.toml", "[listen]\neverything = \":1\"\n"), ("a.yml", SAMPLE)] {
        let folder = Folder::with(&[(name, text)]);
        let first = folder.push(&["--config", name, "--check"], &[]).checked();
        let again = Folder::with(&[("b.toml", &first)]).push(&["--config", "b.toml", "--check"], &[]).checked();
        assert_eq!(first, again);
    }
}

#[test]
fn the_sample_for_containers_takes_its_variables() {
    let folder = Folder::with(&[("config.yml", SAMPLE)]);
    let usual = folder.push(&["-check"], &[]);
    assert!(
        usual.out.contains("everything = [\":9180\"]") && usual.out.contains("idle = \"off\""),
        "{}{}",
        usual.out,
        usual.err
    );
    let set = folder.push(
        &["-check"],
        &[
            ("EKBO_PORT", "80"),
            ("EKBO_CONNECT_PATH", "/c"),
            ("EKBO_CONNECT_CALLBACK_URL", "http://app/connect"),
            ("EKBO_RECEIVE_CALLBACK_URL", "unix:/run/app.sock:/receive"),
            ("EKBO_CALLBACK_TIMEOUT", "1m30s"),
            ("EKBO_SESSION_HEADER_NAME", "X-Other"),
            ("EKBO_SELF_ENDPOINT_URL", "push-1:80"),
            ("EKBO_PROXY_SET_HEADER", "{X-Forwarded-For: \"\", X-A: b}"),
            ("EKBO_STRICT_BROADCAST_MODE_SWITCH", "true"),
            ("EKBO_SEND_TIMEOUT", "250ms"),
            ("EKBO_SEND_QUEUE_SIZE", "100"),
            ("EKBO_ORIGIN_POLICY", "same_hostname"),
            ("EKBO_IDLE_TIMEOUT", "2m"),
            ("EKBO_SUPPRESS_ACCESS_LOG", "true"),
        ],
    );
    for line in [
        "session-header = \"X-Other\"",
        "endpoint = \"push-1:80\"",
        "origins = \"same-hostname\"",
        "everything = [\":80\"]",
        "connect = \"/c\"",
        "connect = \"http://app/connect\"",
        "receive = \"unix:/run/app.sock:/receive\"",
        "timeout = \"90s\"",
        "X-Forwarded-For = \"\"",
        "X-A = \"b\"",
        "strict = true",
        "timeout = \"250ms\"",
        "session-queue-messages = 100",
        "idle = \"120s\"",
    ] {
        assert!(set.out.lines().any(|found| found == line), "{line} is not in\n{}{}", set.out, set.err);
    }
    let sock = folder.push(&["-check"], &[("EKBO_UNIX_DOMAIN_SOCKET_FILENAME", "/run/push.sock")]);
    assert!(sock.out.contains("everything = [\"unix:/run/push.sock\"]"), "{}", sock.out);
}

#[test]
fn every_mistake_of_ours_is_told_at_once_with_its_line() {
    let text = "\
threads = 0
cpus = \"zero\"
compat = \"nchan\"
echo = 1
thread = 2
origins = []
session-header = \"X Y\"
[listen]
public = \":1\"
admin = \":2\"
pubic = \":3\"
[paths]
send = \"send\"
[callbacks]
connect = \"example\"
timeout = \"soon\"
retries = \"some\"
headers = { Connection = \"close\" }
[limits]
sessions = 0
idle = \"0\"
ping = \"never\"
pong = { a = 1 }
[send]
strict = \"maybe\"
[[group]]
slow = \"hurry\"
[[group]]
pattern = \"a*b\"
[auth]
token-file = \"no/such/file\"
token-env = \"NO_SUCH\"
[drain]
timeout = -1
[cluster]
name = \"a b\"
";
    let folder = Folder::with(&[("a.toml", text)]);
    folder.push(&["--config", "a.toml"], &[]).refused(&[
        "a.toml: line 1: threads: `0` is no sensible number of threads: expected 1 to",
        "line 2: cpus: ",
        "line 3: compat: `nchan` is no compatibility mode: expected ekbo or none",
        "line 4: echo: `1` is no switch: expected true or false",
        "line 5: thread: there is no such key: did you mean `threads`?",
        "line 6: origins: the list is empty",
        "line 7: session-header: `X Y` is no header's name: expected",
        "line 10: listen.admin: `:2` would let anybody on the network publish: expected a token",
        "line 11: listen.pubic: there is no such key: did you mean `public`?",
        "line 13: paths.send: `send` is no path: expected one that begins with /",
        "line 15: callbacks.connect: this is no URL that can be called: expected",
        "line 16: callbacks.timeout: `soon` is no time: expected",
        "line 17: callbacks.retries: `some` is no whole number: expected",
        "line 18: callbacks.headers.Connection: `Connection` says how a message is sent",
        "line 20: limits.sessions: `0` is too little: expected at least 1",
        "line 21: limits.idle: `0` leaves no time at all: expected",
        "line 22: limits.ping: `never` is no time: expected a number with ns, us, ms, s, m or h, such as 30s or 1.5m, \
         or off",
        "line 23: limits.pong: is a table: expected text",
        "line 25: send.strict: `maybe` is no switch",
        "line 26: group[1]: `pattern` is missing",
        "line 27: group[1].slow: `hurry` is no rule for slow sessions: expected disconnect, drop-oldest",
        "line 29: group[2].pattern: `a*b` is no pattern: expected",
        "line 31: auth.token-file: cannot read `no/such/file`",
        "line 32: auth.token-env: the environment variable `NO_SUCH` is not set",
        "line 34: drain.timeout: `-1` is below 0: expected",
        "line 35: cluster: `nats` is missing",
    ]);
}

#[test]
fn every_mistake_in_kuiperbelts_file_is_told_in_its_words() {
    let text = "\
port: http
endpoint: \"a\\nb\"
session_header: a b
callback:
  connect: nowhere
  timeout: 10
  clsoe: x
proxy_set_header: {Upgrade: x}
path:
  send: /publish
origin_policy: sometimes
send_queue_size: many
idle_timeout: -1s
strict_broadcast: 2
suppress_access_log: x
send_timout: 1s
";
    let folder = Folder::with(&[("a.yml", text)]);
    folder.push(&["-config=a.yml"], &[]).refused(&[
        "a.yml: line 1: port: `http` is no port: expected",
        "line 2: endpoint: `a\\nb` cannot stand in a header: expected",
        "line 3: session_header: `a b` is no header's name: expected",
        "line 5: callback.connect: this is no URL that can be called",
        "line 6: callback.timeout: `10` is no time: expected one as Go writes it, such as 10s",
        "line 7: callback.clsoe: there is no such key: did you mean `close`?",
        "line 8: proxy_set_header.Upgrade: `Upgrade` says how a message is sent",
        "line 10: path.send: `/publish` is where the native API is: expected another path",
        "line 11: origin_policy: `sometimes` is no policy: expected none, same_origin or same_hostname",
        "line 12: send_queue_size: `many` is no whole number",
        "line 13: idle_timeout: `-1s` is no time",
        "line 14: strict_broadcast: `2` is no switch",
        "line 15: suppress_access_log: `x` is no switch",
        "line 16: send_timout: there is no such key: did you mean `send_timeout`?",
    ]);
}

#[test]
fn what_kuiperbelt_overlooks_is_told_and_overlooked_with_compat_ekbo() {
    let text = "port: 1\nport: 2\nunknown: x\n? [a, b]\n: c\ncallback:\n  conect: http://app/\n\
                callback:\n  close: http://app/\n";
    let folder = Folder::with(&[("none.yml", text), ("ekbo.yml", &format!("{text}compat: ekbo\n"))]);
    let wrong = [
        "line 2: port: the key is here twice",
        "line 3: unknown: there is no such key",
        "line 4: expected a key that is a text",
        "line 7: callback.conect: there is no such key: did you mean `connect`?",
        "line 8: callback: the key is here twice",
    ];
    folder.push(&["-config", "none.yml", "-check"], &[]).refused(&wrong);
    folder
        .push(&["-config", "none.yml", "-gops-addr", "127.0.0.1:0"], &[])
        .refused(&["--gops-addr 127.0.0.1:0: oroshi push has no such agent"]);
    folder
        .push(&["-gops-addr=127.0.0.1:0", "-port", "1"], &[])
        .refused(&["--gops-addr 127.0.0.1:0: oroshi push has no such agent"]);

    let checked = folder.push(&["-config", "ekbo.yml", "-gops-addr", "127.0.0.1:0", "-check"], &[]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    let told: Vec<&str> = checked.err.lines().collect();
    let overlooked = wrong.iter().chain(&["-gops-addr: oroshi push has no such agent"]);
    for (told, wanted) in told.iter().zip(overlooked) {
        assert!(told.contains("warn: ignored, as in kuiperbelt: ") && told.contains(wanted), "{wanted}: {told}");
    }
    assert_eq!(told.len(), wrong.len() + 1, "{}", checked.err);
    // The later of two counts, and of two tables each key.
    for line in ["everything = [\":2\"]", "close = \"http://app/\"", "# no connect", "transports = [\"websocket\"]"] {
        assert!(checked.out.lines().any(|found| found == line), "{line} is not in\n{}", checked.out);
    }
    // What is understood, and wrong, ends it as it ends kuiperbelt.
    let folder = Folder::with(&[("a.yml", "compat: ekbo\nport: http\nunknown: x\n")]);
    folder.push(&["-config", "a.yml"], &[]).refused(&["line 2: port: `http` is no port"]);
}

#[test]
fn what_the_file_says_goes_before_kuiperbelts_habits() {
    for (name, text) in [
        (
            "a.yml",
            "compat: ekbo\nlimits: {ping: 7s, message-bytes: 5, publish-bytes: 6}\n\
             callback: {retries: 2, timeout: 9s}\n",
        ),
        (
            "a.toml",
            "compat = \"ekbo\"\nlisten = { everything = \":1\" }\n\
             limits = { ping = \"7s\", message-bytes = 5, publish-bytes = 6 }\n\
             callbacks = { retries = 2, timeout = \"9s\" }\n",
        ),
    ] {
        let checked = Folder::with(&[(name, text)]).push(&["--config", name, "--check"], &[]).checked();
        for line in [
            "ping = \"7s\"",
            "message-bytes = 5",
            "publish-bytes = 6",
            "session-queue-bytes = 16777216",
            "retries = 2",
            "timeout = \"9s\"",
        ] {
            assert!(checked.lines().any(|found| found == line), "{name}: {line} is not in\n{checked}");
        }
    }
}

#[test]
fn transports_and_subprotocols_are_names() {
    let refused = |line: &str, wrong: &[&str]| {
        let text = format!("{line}\n[listen]\neverything = \":1\"\n");
        Folder::with(&[("a.toml", &text)]).push(&["--config", "a.toml", "--check"], &[]).refused(wrong);
    };
    let pigeon = "line 1: transports: `pigeon` is no transport: expected some of websocket, sse, stream and poll";
    refused("transports = [\"websocket\", \"pigeon\"]", &[pigeon]);
    refused("transports = []", &["line 1: transports: `[]` lets nobody connect: expected some of websocket"]);
    refused("subprotocols = [\"a b\"]", &["line 1: subprotocols: `a b` is no name of a subprotocol: expected"]);
    refused("subprotocols = [\"a\", \"a\"]", &["line 1: subprotocols: `a` is given twice"]);
}

#[test]
fn a_file_that_cannot_be_read_says_where() {
    let folder = Folder::with(&[
        ("a.toml", "a = \nb = 1\nb = 2\n"),
        ("a.yml", "port: 1\nport: 2\n"),
        ("b.yml", "port: {{ must_env \"NO_SUCH\" }}\nsock: {{ .Env }}\n"),
        ("c.yml", "port: [1\n"),
        ("a.json", "{}"),
    ]);
    folder.push(&["--config", "a.toml"], &[]).refused(&["a.toml: line 1: ", "a.toml: line 3: "]);
    folder.push(&["--config", "a.yml"], &[]).refused(&["a.yml: line 2: port: the key is here twice"]);
    folder
        .push(&["--config", "b.yml"], &[])
        .refused(&["line 1: the environment variable NO_SUCH is not set", "line 2: `{{ .Env }}`"]);
    folder.push(&["--config", "c.yml"], &[]).refused(&["c.yml: line "]);
    folder.push(&["--config", "a.json"], &[]).refused(&["`a.json` does not tell its language"]);
    folder.push(&["--config", "none.toml"], &[]).refused(&["cannot read `none.toml`"]);
}

#[test]
fn the_command_line_goes_before_the_file() {
    let folder = Folder::with(&[("a.toml", EXAMPLE), ("a.yml", "sock: /run/a.sock\n")]);
    for (args, line) in [
        (["-config", "a.toml", "-port", "7"], "everything = [\":7\"]"),
        (["-config", "a.yml", "-port", "7"], "everything = [\":7\"]"),
        (["--config", "a.yml", "--sock", "/x y"], "everything = [\"unix:/x y\"]"),
    ] {
        let out = folder.push(&[&args[..], &["--check"]].concat(), &[]).out;
        assert!(out.contains(line) && !out.contains("public = "), "{out}");
    }
    let out = folder.push(&["--port", "0", "--check"], &[]).out;
    assert!(out.contains("everything = [\":0\"]"), "without a file: {out}");
    folder
        .push(&["-port", "1", "-sock", "/x"], &[])
        .refused(&["--port 1, --sock /x: both are given: expected one of them"]);
    folder.push(&["-port", "x"], &[]).refused(&["--port: `x` is no port: expected a number from 0 to 65535"]);
    folder
        .push(&["-log-level", "loud", "-port", "1"], &[])
        .refused(&["--log-level: `loud` is no level: expected debug, info, warn or error"]);
    folder.push(&[], &[]).refused(&["nowhere to listen: give --port 9180"]);
    let version = folder.push(&["-version"], &[]);
    assert!(version.code == Some(0) && version.out.starts_with("oroshi "), "{}{}", version.out, version.err);
}

#[test]
fn secrets_do_not_show() {
    let text = "\
[listen]
everything = \":1\"
[auth]
token-env = \"TOKEN\"
[callbacks]
connect = \"http://app/c?key=s3cret\"
headers = { X-Api-Key = \"s3cret\", Authorization = \"s3cret\" }
[cluster]
nats-file = \"nats\"
";
    let folder = Folder::with(&[("a.toml", text), ("nats", "nats://me:s3cret@host\n")]);
    let checked = folder.push(&["--config", "a.toml", "--check"], &[("TOKEN", "s3cret")]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(!checked.out.contains("s3cret") && checked.out.contains("a token is set"), "{}", checked.out);
    let wrong = folder.push(&["--config", "a.toml", "--check"], &[("TOKEN", "s3cret s3cret")]);
    assert!(wrong.code == Some(2) && !wrong.err.contains("s3cret"), "{}", wrong.err);
    std::fs::write(folder.path().join("nats"), "s3cret").unwrap();
    let wrong = folder.push(&["--config", "a.toml", "--check"], &[("TOKEN", "s3cret")]);
    assert!(wrong.code == Some(2) && !wrong.err.contains("s3cret"), "{}", wrong.err);
}

#[test]
fn an_address_of_nats_is_looked_at_before_it_is_used() {
    let text = "[listen]\neverything = \":1\"\n[cluster]\nnats-env = \"NATS\"\n";
    let folder = Folder::with(&[("a.toml", text)]);
    let check = |nats: &str| folder.push(&["--config", "a.toml", "--check"], &[("NATS", nats)]);
    for sound in ["nats://h:4222", "tls://h:4222, nats://me:s3cret@h"] {
        assert_eq!(check(sound).code, Some(0), "{sound}: {}", check(sound).err);
    }
    for (wrong, why) in [
        (
            "wss://me:s3cret@h",
            "its value has a scheme that nodes do not speak to NATS: expected nats://host:4222, or tls://",
        ),
        ("nats://me:s3cret@h:66666", "its value is no address of NATS"),
        ("me:s3cret@h", "its value is no address of NATS"),
        ("nats://me:s3cr/et@h", "a `/`, `?` or `#` in its password that is not percent-encoded"),
    ] {
        let refused = check(wrong);
        refused.refused(&[why]);
        assert!(!refused.err.contains("s3cr"), "{}", refused.err);
    }
}
