//! `oroshi gate` with TLS towards clients: real peers (curl, openssl), resumption across a restart, rows of SQLite,
//! reloads,
//! clients that stop within a handshake.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::gate::{Gate, HANG, Ran, oroshi, server, sqlite};
use oroshi_testkit::{Identity, need, wait_until};
use rustix::process::Signal;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

const LISTEN: &str = r#"
threads = 2
[listen]
tls = "unix:{dir}/tls.sock"
admin = "unix:{dir}/admin.sock"
[[route]]
host = "localhost"
to = "unix:{dir}/app.sock"
"#;

/// Writes the identity's chain and key into a file of this folder.
pub(crate) fn put(identity: &Identity, path: &Path) {
    let (chain, key) = identity.files();
    let text = [fs::read_to_string(chain).unwrap(), fs::read_to_string(key).unwrap()].concat();
    fs::write(path, text).unwrap();
}

pub(crate) fn curl(identity: &Identity, socket: &Path, args: &[&str], url: &str) -> Ran {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--write-out", " %{http_version} %{http_code}", "--unix-socket"]);
    command.arg(socket).arg("--cacert").arg(identity.ca()).args(args).arg(url);
    Ran::of(command.output().unwrap())
}

/// Sends a request by `openssl s_client`, and returns what it printed.
pub(crate) fn openssl(identity: &Identity, socket: &Path, path: &str, args: &[&str]) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-ign_eof", "-servername", "localhost", "-unix"]).arg(socket);
    command.arg("-CAfile").arg(identity.ca()).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    // It may have ended already, if it was refused.
    let _ = child.stdin.take().unwrap().write_all(request.as_bytes());
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn clients_of_both_protocols_are_served_and_hup_brings_another_certificate() {
    let test = "clients_of_both_protocols_are_served_and_hup_brings_another_certificate";
    if need(test, "curl").is_none() {
        return;
    }
    let (first, second, folder) = (Identity::new(), Identity::new(), tempfile::tempdir().unwrap());
    let _app = server(folder.path(), "app.sock", 11);
    put(&first, &folder.path().join("site.pem"));
    let config = format!("{LISTEN}[tls]\ncertificates = [\"site.pem\"]\n");
    let mut gate = Gate::start(folder, &config);
    let socket = gate.path("tls.sock");
    for (flag, version) in [("--http2", " 2 200"), ("--http1.1", " 1.1 200")] {
        let ran = curl(&first, &socket, &[flag], "https://localhost/");
        assert!(ran.out.ends_with(version) && ran.out.len() == 11 + version.len(), "{flag}: {ran:?}");
    }
    let unknown = curl(&first, &socket, &["--insecure"], "https://other.example/");
    assert!(unknown.code == Some(35) && unknown.err.contains("unrecognized name"), "{unknown:?}");
    // Another authority of the same name: which words OpenSSL finds for the false signature depends on its version.
    let other = curl(&second, &socket, &[], "https://localhost/");
    assert!(matches!(other.code, Some(35 | 60)) && other.out.ends_with(" 000"), "{other:?}");
    put(&second, &gate.path("site.pem"));
    gate.reload(&config);
    let ran = curl(&second, &socket, &[], "https://localhost/");
    assert!(ran.out.ends_with(" 200"), "{ran:?}");
    // A file that is of no use changes nothing.
    fs::write(gate.path("site.pem"), "garbage").unwrap();
    gate.process.signal(Signal::HUP);
    gate.process.until("not reloaded");
    let ran = curl(&second, &socket, &[], "https://localhost/");
    assert!(ran.out.ends_with(" 200"), "{ran:?}");
    let status = gate.status();
    assert_eq!((&status["tls"]["handshakes"], &status["tls"]["refused"]), (&4.into(), &1.into()), "{status:#}");
    let metrics = gate.get_at("admin.sock", "a", "/metrics").body;
    assert!(metrics.contains("oroshi_gate_tls_handshakes_total{result=\"refused\"} 1"), "{metrics}");
}

/// Challenges, and clients that a trusted proxy received by TLS, are not sent away.
#[test]
fn clients_of_plain_http_are_sent_to_tls() {
    let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    let _app = server(folder.path(), "app.sock", 11);
    put(&identity, &folder.path().join("site.pem"));
    let config = LISTEN.replace("[listen]", "[listen]\npublic = \"unix:{dir}/public.sock\"")
        + "[tls]\ncertificates = [\"site.pem\"]\nredirect-http = true\n[forwarding]\ntrust-unix = true\n";
    let gate = Gate::start(folder, &config);
    let ask = |request: &str| {
        let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.write_all(format!("{request}Connection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let sent = ask("POST /a/b?c=d HTTP/1.1\r\nHost: LOCALHOST:8080\r\nContent-Length: 0\r\n");
    assert!(
        sent.starts_with("HTTP/1.1 308 ") && sent.contains("\r\nLocation: https://localhost/a/b?c=d\r\n"),
        "{sent}"
    );
    for (scheme, status) in [("https", 200), ("http", 308), ("https\r\nX-Forwarded-Proto: http", 308)] {
        let answer = ask(&format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Proto: {scheme}\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{scheme}: {answer}");
    }
    // No route.
    assert!(ask("GET / HTTP/1.1\r\nHost: other.example\r\n").starts_with("HTTP/1.1 404 "));
    let ran = curl(&identity, &gate.path("tls.sock"), &[], "https://localhost/");
    assert!(ran.out.ends_with(" 200"), "{ran:?}");
}

#[test]
fn sessions_of_both_versions_survive_a_restart_and_early_data_is_refused() {
    let test = "sessions_of_both_versions_survive_a_restart_and_early_data_is_refused";
    if need(test, "openssl").is_none() {
        return;
    }
    let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    let _app = server(folder.path(), "app.sock", 11);
    put(&identity, &folder.path().join("site.pem"));
    fs::write(folder.path().join("tickets.key"), SECRET).unwrap();
    let keys = folder.path().join("tickets.key").display().to_string();
    let config =
        format!("{LISTEN}[tls]\ncertificates = \"site.pem\"\ntickets = {{ key-file = \"{keys}\", window = \"1h\" }}\n");
    let mut gate = Gate::start(folder, &config);
    let socket = gate.path("tls.sock");
    let session = |version: &str| gate.path(version).display().to_string();
    let sessions: Vec<(&str, &str, String)> =
        [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")].map(|(flag, name)| (flag, name, session(name))).into();
    for (flag, name, file) in &sessions {
        let said = openssl(&identity, &socket, "/", &[flag, "-sess_out", file]);
        assert!(said.contains(&format!("New, {name}")) && said.contains("200 OK"), "{said}");
    }
    gate.process.signal(Signal::TERM);
    assert!(gate.process.ended().success());
    let Gate { folder, .. } = gate;
    let gate = Gate::start(folder, &config);
    for (flag, name, file) in &sessions {
        let said = openssl(&identity, &socket, "/", &[flag, "-sess_in", file]);
        assert!(said.contains(&format!("Reused, {name}")) && said.contains("200 OK"), "{said}");
    }
    assert_eq!(gate.status()["tls"]["resumed"], 2);
    let early = gate.path("early");
    fs::write(&early, "GET /early HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let file = gate.path("fresh").display().to_string();
    openssl(&identity, &socket, "/", &["-tls1_3", "-sess_out", &file]);
    let said =
        openssl(&identity, &socket, "/", &["-tls1_3", "-sess_in", &file, "-early_data", early.to_str().unwrap()]);
    assert!(said.contains("Early data was not sent") && !said.contains("Early data was accepted"), "{said}");
    let old = openssl(&identity, &socket, "/", &["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"]);
    assert!(!old.contains("200 OK"), "{old}");
}

#[test]
fn sealed_rows_serve_names_and_check_names_the_certificate_of_each_host() {
    let test = "sealed_rows_serve_names_and_check_names_the_certificate_of_each_host";
    if need(test, "curl").is_none() {
        return;
    }
    let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    let dir = folder.path().to_owned();
    put(&identity, &dir.join("site.pem"));
    fs::write(dir.join("seal.key"), SECRET).unwrap();
    let config = format!(
        "{LISTEN}[sql.c]\nurl = \"sqlite:{{dir}}/c.db\"\n[tls]\nseal = {{ key-file = \"{{dir}}/seal.key\" }}\n[tls.lookup.sql]\nstore = \
         \"c\"\nquery = \"SELECT pem FROM c WHERE name = ?\"\n"
    );
    fs::write(dir.join("gate.toml"), config.replace("{dir}", dir.to_str().unwrap())).unwrap();
    let seal = |file: &str| {
        let mut command = oroshi();
        command.args(["gate", "seal", file]).current_dir(&dir);
        Ran::of(command.output().unwrap())
    };
    let row = seal("site.pem");
    assert!(
        row.code == Some(0) && row.out.starts_with("oroshi-sealed-1:") && !row.out.contains("PRIVATE KEY"),
        "{row:?}"
    );
    let wrong = seal("seal.key");
    assert!(wrong.code == Some(2) && wrong.err.contains("no certificate") && !wrong.err.contains(SECRET), "{wrong:?}");
    // A secret that is not there is named.
    let of_a_variable = config.replace("key-file = \"{dir}/seal.key\"", "key-env = \"OROSHI_NO_SUCH_SEAL\"");
    fs::write(dir.join("gate.toml"), of_a_variable.replace("{dir}", dir.to_str().unwrap())).unwrap();
    let unset = seal("site.pem");
    assert!(unset.code == Some(2) && unset.err.contains("`OROSHI_NO_SUCH_SEAL` is not set"), "{unset:?}");
    let row = row.out.trim();
    let statements = format!("CREATE TABLE c (name TEXT, pem TEXT); INSERT INTO c VALUES ('localhost', '{row}')");
    if !sqlite(test, &dir.join("c.db"), &statements) {
        return;
    }
    let _app = server(&dir, "app.sock", 11);
    let gate = Gate::start(folder, &config);
    let ran = curl(&identity, &gate.path("tls.sock"), &[], "https://localhost/");
    assert!(ran.out.ends_with(" 200"), "{ran:?}");
    assert_eq!(gate.status()["tls"]["lookup"]["entries"], 1);
    let purge = || gate.ask(&["purge", "--certificate", "localhost"]).out;
    assert_eq!(purge(), "forgotten: 1\n");
    assert_eq!(gate.status()["tls"]["lookup"]["entries"], 0);
    assert_eq!(purge(), "forgotten: 0\n");
    gate.ask(&["purge", "--certificate", "localhost", "--all"]).said(2, &[]);
    let check = |config: &str| {
        fs::write(dir.join("gate.toml"), config.replace("{dir}", dir.to_str().unwrap())).unwrap();
        let mut command = oroshi();
        command.args(["gate", "--check"]).current_dir(&dir);
        Ran::of(command.output().unwrap())
    };
    let shown = check(&config);
    let found = "# localhost: the certificate that tls.lookup finds in the handshake";
    assert!(shown.code == Some(0) && shown.out.contains(found), "{shown:?}");
    assert!(!shown.out.contains(SECRET), "{shown:?}");
    let shown = check(&format!("{LISTEN}[tls]\ncertificates = \"site.pem\"\n"));
    assert!(shown.out.contains("# localhost: the certificate of site.pem, valid until "), "{shown:?}");
    let shown = check(&format!("{LISTEN}[tls]\ncertificates = \"seal.key\"\n"));
    assert!(shown.code == Some(2) && shown.err.contains("no certificate"), "{shown:?}");
    let shown = check(LISTEN);
    assert!(shown.code == Some(2) && shown.err.contains("expected a table [tls]"), "{shown:?}");
}

#[test]
fn clients_that_stop_within_a_handshake_are_ended_and_others_are_served() {
    let test = "clients_that_stop_within_a_handshake_are_ended_and_others_are_served";
    if need(test, "curl").is_none() {
        return;
    }
    let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    let _app = server(folder.path(), "app.sock", 11);
    put(&identity, &folder.path().join("site.pem"));
    let config =
        format!("limits = {{ head = \"2s\", handshakes = 100 }}\n{LISTEN}[tls]\ncertificates = \"site.pem\"\n");
    let gate = Gate::start(folder, &config);
    let socket = gate.path("tls.sock");
    // The header of a record, and the beginning of a ClientHello of 500 bytes.
    let begun = [22, 3, 1, 1, 244, 1, 0, 1, 240, 3, 3];
    let stopped: Vec<UnixStream> = (0..300)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(HANG)).unwrap();
            stream.write_all(&begun).unwrap();
            stream
        })
        .collect();
    let ran = curl(&identity, &socket, &[], "https://localhost/");
    assert!(ran.out.ends_with(" 200"), "{ran:?}");
    // A ClientHello of 16 MB, plain HTTP, and nothing that TLS knows.
    let huge = [&[22, 3, 1, 64, 0, 1, 255, 255, 255][..], &[0; 16380]].concat();
    for bytes in [&huge[..], b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", &[0xff; 100]] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got); // an alert and the end, or a reset
        assert!(!got.windows(4).any(|four| four == b"HTTP"), "{got:?}");
    }
    for mut stream in stopped {
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert!(got.len() < 100, "{got:?}");
    }
    // A connection ends shortly before it is counted.
    let errors = || gate.status()["clients"]["errors"].clone();
    wait_until("300 ends", || {
        let counts = errors();
        counts["head-timeout"].as_u64().unwrap() + counts["crowded"].as_u64().unwrap() == 300
    });
    // At most 100 were there at a time, so others had to make room.
    assert!(errors()["crowded"].as_u64().unwrap() > 0, "{:#}", errors());
}
