//! `oroshi gate` in front of nginx with TLS: targets of routes and of rows, reloads, what `--check` says.

use std::fs;

use oroshi_testkit::Identity;
use oroshi_testkit::nginx::Setup;

use crate::gate::{Gate, Ran, oroshi, sqlite};

const SERVER: &str = "server { listen @TLS@ ssl http2; ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@;
    location / { return 200 '$server_protocol $ssl_server_name'; } }";

#[test]
fn targets_of_routes_and_of_rows_are_reached_by_tls() {
    let test = "targets_of_routes_and_of_rows_are_reached_by_tls";
    let Some(nginx) = (Setup { http: SERVER, ..Setup::default() }).start(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let port = nginx.tls.port();
    let rows = format!(
        "CREATE TABLE domain (domain TEXT PRIMARY KEY, host TEXT);
        INSERT INTO domain VALUES ('good.test', 'https://localhost:{port}'), ('address.test', 'https://127.0.0.1:{port}/'),
            ('forbidden.test', 'https://127.0.0.1'), ('path.test', 'https://localhost:{port}/x');"
    );
    if !sqlite(test, &folder.path().join("domains.db"), &rows) {
        return;
    }
    fs::copy(nginx.identity.ca(), folder.path().join("ca.pem")).unwrap();
    let config = format!(
        r#"
        [sql.domains]
        url = "sqlite:{{dir}}/domains.db"
        [lookup.domains]
        allow = ["127.0.0.0/8:{port}", "[::1]:{port}"]
        sql = {{ store = "domains", query = "SELECT host FROM domain WHERE domain = ?" }}
        tls = {{ ca = "ca.pem" }}
        [upstream.app]
        targets = ["https://localhost:{port}"]
        max-requests = 1
        tls = {{ ca = "ca.pem", protocol = "http/1.1" }}
        [[route]]
        host = "*.test"
        lookup = "domains"
        [[route]]
        host = "system.example"
        to = "https://localhost:{port}"
        [[route]]
        to = "app"
        "#
    );
    let mut gate = Gate::start(folder, &config);
    for (host, status, body) in [
        ("good.test", 200, "HTTP/2.0 localhost"),
        ("address.test", 200, "HTTP/2.0 "),
        ("forbidden.test", 502, "the server of this host is not set up correctly\n"),
        ("path.test", 502, "the server of this host is not set up correctly\n"),
        ("a.example", 200, "HTTP/1.1 localhost"),
        // This machine's authorities have not signed the certificate.
        ("system.example", 502, "no secure connection to the server behind this gateway could be made\n"),
    ] {
        let answer = gate.get(host, "/");
        assert_eq!((answer.status, &*answer.body), (status, body), "{host}");
    }
    let upstream = |gate: &Gate, of: &str| {
        let status = gate.status();
        let all = status["targets"].as_array().cloned().unwrap_or_default();
        let targets: Vec<_> = all.into_iter().filter(|target| target["of"] == of).collect();
        assert_eq!(targets.len(), 1, "{status}");
        targets[0].clone()
    };
    // The sessions survive a reload that changes nothing about TLS, on both threads.
    gate.reload(&config);
    for _ in 0..10 {
        assert_eq!(gate.get("a.example", "/").status, 200);
    }
    let counts = upstream(&gate, "app");
    assert_eq!((&counts["tls_handshakes"], &counts["tls_resumed"]), (&11.into(), &10.into()), "{counts}");
    // Other contents of the CA's file hold from the next reload on, also for connections that were kept.
    assert_eq!(gate.get("good.test", "/").status, 200);
    fs::copy(Identity::new().ca(), gate.path("ca.pem")).unwrap();
    gate.reload(&config);
    for host in ["a.example", "good.test", "good.test", "good.test"] {
        assert_eq!(gate.get(host, "/").status, 502, "{host}");
    }
    let counts = upstream(&gate, "app");
    assert_eq!(counts["failures"]["tls-certificate"], 1, "{counts}");
    // Without a check all is well, and the gateway says what that means.
    gate.reload(&config.replace("tls = { ca = \"ca.pem\" }", "tls = { verify = false }"));
    assert_eq!(gate.get("good.test", "/").status, 200);
}

fn check(config: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let route = "listen = { public = \"127.0.0.1:0\" }\n[[route]]\nto = \"app\"\n[upstream.app]\n";
    fs::write(folder.path().join("gate.toml"), format!("{route}{config}")).unwrap();
    fs::write(folder.path().join("empty.pem"), "").unwrap();
    let mut command = oroshi();
    command.args(["gate", "--check"]).current_dir(folder.path());
    Ran::of(command.output().unwrap())
}

#[test]
fn mistakes_name_their_key_and_no_check_is_loud() {
    for (tls, part) in [
        ("ca = \"none.pem\"", "upstream.app.tls.ca"),
        ("ca = \"empty.pem\"", "upstream.app.tls.ca"),
        ("certificate = \"empty.pem\"", "upstream.app.tls.key: there is none beside `certificate`"),
        ("protocol = \"h3\"", "expected auto, http/1.1 or h2"),
        ("verify = false, ca = \"empty.pem\"", "upstream.app.tls.verify"),
        ("system-roots = false", "upstream.app.tls.system-roots"),
        ("verfy = false", "did you mean `verify`?"),
    ] {
        let checked = check(&format!("targets = [\"https://app.internal\"]\ntls = {{ {tls} }}\n"));
        assert_eq!(checked.code, Some(2), "{tls}: {}", checked.out);
        assert!(checked.err.contains(part), "{tls}: {}", checked.err);
    }
    let checked = check("targets = [\"https://app.internal/x\"]\n");
    assert!(checked.err.contains("expected an address alone such as \"https://app.internal\""), "{}", checked.err);
    let checked = check("targets = [\"https://app.internal\"]\ntls = { verify = false }\n");
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(checked.err.contains("CERTIFICATES ARE NOT CHECKED"), "{}", checked.err);
    assert!(checked.out.contains("https://app.internal:443"), "{}", checked.out);
}
