//! `oroshi gate` with databases that are reached over TLS alone: the URL says what is asked of their certificates.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::gate::{Gate, HANG, server};
use crate::peers;
use crate::peers::{MariaDb, Postgres, run, sql};
use oroshi_lookup::Stores;
use oroshi_testkit::{Identity, Port};

#[test]
fn mariadb_over_tls() {
    let identity = Identity::new();
    let ((certificate, key), reserved) = (identity.files(), Port::reserve());
    let port = reserved.address().port();
    let options = [
        "--skip-networking=OFF".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        "--require-secure-transport=ON".to_owned(),
        format!("--port={port}"),
        format!("--ssl-cert={}", certificate.display()),
        format!("--ssl-key={}", key.display()),
    ];
    let Some(database) = MariaDb::start_with("mariadb_over_tls", &options) else { return };
    // Over TCP it is not `localhost` that asks.
    let statements = ["CREATE USER gate@'127.0.0.1'", "GRANT SELECT ON gate.domain TO gate@'127.0.0.1'"];
    let url = |scheme: &str| format!("mysql://gate@127.0.0.1:{port}/gate?{scheme}");
    let ca = |ca: &Path| format!("&ssl-ca={}", ca.display());
    let other = Identity::new();
    check(
        &database.url("root", "gate"),
        &statements,
        "SELECT host FROM domain WHERE domain = ?",
        &[
            (url("ssl-mode=DISABLED"), None, Some("Access denied")),
            (url("ssl-mode=REQUIRED"), Some("TLS"), None),
            (url("ssl-mode=VERIFY_CA") + &ca(&identity.ca()), Some("TLS"), None),
            (url("ssl-mode=VERIFY_IDENTITY") + &ca(&identity.ca()), Some("TLS"), None),
            (url("ssl-mode=VERIFY_IDENTITY") + &ca(&other.ca()), None, Some("certificate")),
            (url("ssl-mode=VERIFY_IDENTITY"), None, Some("certificate")),
        ],
    );
}

#[test]
fn postgresql_over_tls() {
    let identity = Identity::new();
    let ((certificate, key), reserved) = (identity.files(), Port::reserve());
    let port = reserved.address().port();
    // It wants its key for itself, and does not run as root.
    set_permissions(certificate.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    if rustix::process::geteuid().is_root() {
        let changed = Command::new("chown").arg("postgres").arg(&key).status();
        if !changed.is_ok_and(|changed| changed.success()) {
            return peers::skipped("postgresql_over_tls", "there is no user postgres");
        }
    }
    let settings = [
        "listen_addresses=127.0.0.1".to_owned(),
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", certificate.display()),
        format!("ssl_key_file={}", key.display()),
    ];
    let Some(database) = Postgres::start_with("postgresql_over_tls", port, &settings) else { return };
    std::fs::write(
        database.0.folder.path().join("data/pg_hba.conf"),
        "local all all trust\nhostssl all all 127.0.0.1/32 trust\n",
    )
    .unwrap();
    let statements = ["SELECT pg_reload_conf()"];
    let url = |scheme: &str| format!("postgres://gate@127.0.0.1:{port}/postgres?{scheme}");
    let ca = |ca: &Path| format!("&sslrootcert={}", ca.display());
    let other = Identity::new();
    check(
        &database.url("admin"),
        &statements,
        "SELECT host FROM domain WHERE domain = $1",
        &[
            (url("sslmode=disable"), None, Some("no encryption")),
            (url("sslmode=require"), Some("TLS"), None),
            (url("sslmode=verify-ca") + &ca(&identity.ca()), Some("TLS"), None),
            (url("sslmode=verify-full") + &ca(&identity.ca()), Some("TLS"), None),
            (url("sslmode=verify-full") + &ca(&other.ca()), None, Some("certificate")),
            (url("sslmode=verify-full"), None, Some("certificate")),
        ],
    );
}

/// Each URL works, or `explain` says why not.
fn check(admin: &str, statements: &[&str], query: &str, urls: &[(String, Option<&str>, Option<&str>)]) {
    let folder = tempfile::tempdir().unwrap();
    let _app = server(folder.path(), "app.sock", 11);
    let app = format!("unix:{}/", folder.path().display());
    let stores = Stores::start(vec![sql("admin", admin)]).unwrap();
    let admin = stores.sql("admin").unwrap();
    let row = format!("INSERT INTO domain VALUES ('a.example', '{app}app.sock')");
    for statement in statements.iter().copied().chain([&*row]) {
        run(admin.query(statement, vec![])).unwrap();
    }
    for (url, works, fails) in urls {
        let config = format!(
            "[sql.db]\nurl = \"{url}\"\nquery-timeout = \"30s\"\nconnect-timeout = \"30s\"\n[lookup.db]\n\
             allow = [\"{app}\"]\nwait = \"30s\"\n\
             sql = {{ store = \"db\", query = \"{query}\" }}\n[[route]]\nlookup = \"db\"\n"
        );
        let gate = Gate::start(tempfile::tempdir().unwrap(), &config);
        let began = Instant::now();
        let mut answer = gate.get("a.example", "/");
        // PostgreSQL takes a moment to read its rules anew.
        while (answer.status == 200) != works.is_some() && began.elapsed() < HANG / 2 {
            std::thread::sleep(Duration::from_millis(20));
            gate.ask(&["purge", "--all"]);
            answer = gate.get("a.example", "/");
        }
        let explained = gate.ask(&["explain", "b.example"]).out;
        match fails {
            None => {
                assert_eq!(answer.status, 200, "{url}: {answer:?} {explained}");
                assert!(explained.contains("negative"), "{url}: {explained}");
            }
            Some(why) => {
                assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")), "{url}: {answer:?}");
                assert!(explained.contains(why), "{url}: {explained}");
            }
        }
    }
}
