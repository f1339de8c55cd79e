//! `oroshi gate` with TLS towards clients, beside more peers: `oroshi start`, memcached, Chromium.

use std::fs;
use std::process::Command;

use crate::gate::{Gate, oroshi};
use crate::gate_client_tls::{openssl, put};
use crate::peers::Memcached;
use oroshi_testkit::{Identity, Process, chromium, need, skipped, wait_until};
use rustix::process::Signal;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Sessions of the old generation open in the new one, which derives the same keys.
#[test]
fn a_restart_by_oroshi_start_loses_no_session() {
    let test = "a_restart_by_oroshi_start_loses_no_session";
    if need(test, "openssl").is_none() {
        return;
    }
    let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    let dir = folder.path();
    put(&identity, &dir.join("site.pem"));
    fs::write(dir.join("tickets.key"), SECRET).unwrap();
    let config = "threads = 2\nlisten = { tls = \"unix:tls.sock\" }\n[tls]\ncertificates = \"site.pem\"\n\
                  tickets = { key-file = \"tickets.key\" }\n[[route]]\nanswer = { body = \"served\" }\n";
    fs::write(dir.join("gate.toml"), config).unwrap();
    let mut command = oroshi();
    command.args(["start", "--path", "tls.sock", "--ready", "notify", "--pid-file", "gate.pid", "--"]);
    command.arg(oroshi().get_program()).args(["gate", "--config", "gate.toml"]).current_dir(dir);
    let mut master = Process::start(&mut command, "serving");
    let ask = |args: &[&str]| openssl(&identity, &dir.join("tls.sock"), "/", args);
    let sessions: Vec<_> = [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")]
        .into_iter()
        .flat_map(|(flag, version)| (0..4).map(move |number| (flag, version, format!("{flag}{number}"))))
        .map(|(flag, version, name)| (flag, version, dir.join(name).display().to_string()))
        .collect();
    for (flag, version, file) in &sessions {
        let said = ask(&[flag, "-sess_out", file]);
        assert!(said.contains(&format!("New, {version}")) && said.contains("served"), "{said}");
    }
    let restarted = oroshi().args(["start", "--restart", "--wait", "--pid-file", "gate.pid"]).current_dir(dir).output();
    assert!(restarted.unwrap().status.success());
    for (flag, version, file) in &sessions {
        let said = ask(&[flag, "-sess_in", file]);
        assert!(said.contains(&format!("Reused, {version}")) && said.contains("served"), "{said}");
    }
    master.signal(Signal::TERM);
    assert_eq!(master.ended().code(), Some(0));
}

#[test]
fn memcached_has_certificates_sealed_and_plain() {
    let test = "memcached_has_certificates_sealed_and_plain";
    let (Some(_), Some(memcached)) = (need(test, "openssl"), Memcached::start(test)) else { return };
    let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    let dir = folder.path().to_owned();
    put(&identity, &dir.join("site.pem"));
    fs::write(dir.join("seal.key"), SECRET).unwrap();
    let config = format!(
        "[listen]\ntls = \"unix:{{dir}}/tls.sock\"\nadmin = \"unix:{{dir}}/admin.sock\"\n[memcached.cache]\n\
         servers = [\"{}\"]\n[tls]\nseal = {{ key-file = \"{{dir}}/seal.key\" }}\n[tls.lookup.memcached]\n\
         store = \"cache\"\nprefix = \"pem:\"\n[[route]]\nanswer = {{ body = \"served\" }}\n",
        memcached.address()
    );
    let gate = Gate::start(folder, &config);
    let ask = || openssl(&identity, &gate.path("tls.sock"), "/", &["-verify_return_error"]);
    assert!(ask().contains("unrecognized name"), "{}", ask());
    let sealed = oroshi().args(["gate", "seal", "site.pem"]).current_dir(&dir).output().unwrap().stdout;
    let sealed = String::from_utf8(sealed).unwrap();
    for row in [&fs::read_to_string(dir.join("site.pem")).unwrap(), sealed.trim()] {
        memcached.set("pem:localhost", row);
        // Also the missing name is remembered.
        gate.ask(&["purge", "--certificate", "localhost"]).said(0, &[]);
        let said = ask();
        assert!(said.contains("served") && said.contains("Verify return code: 0 (ok)"), "{said}");
    }
    assert_eq!(gate.status()["tls"]["lookup"]["asked"], 3, "{:#}", gate.status()["tls"]);
}

#[test]
fn chromium_speaks_http2_over_tls() {
    let test = "chromium_speaks_http2_over_tls";
    let Some(program) = chromium::need(test) else { return };
    if need(test, "timeout").is_none() {
        return;
    }
    let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    let dir = folder.path().to_owned();
    put(&identity, &dir.join("site.pem"));
    let config = "[listen]\ntls = \"127.0.0.1:0\"\n[tls]\ncertificates = \"site.pem\"\n[access-log]\n\
                  file = \"{dir}/access.log\"\nformat = '$server_protocol $ssl_protocol $request_uri'\n[[route]]\n\
                  answer = { body = \"<p id=seen>served over TLS</p>\", content-type = \"text/html\" }\n";
    let mut gate = Gate::start(folder, config);
    let address = gate.process.said.iter().find_map(|line| line.split_once("127.0.0.1:")).unwrap().1;
    let port: String = address.chars().take_while(char::is_ascii_digit).collect();
    let mut browser = Command::new("timeout");
    browser.args(["300", program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    browser.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    browser.args(["--ignore-certificate-errors", "--dump-dom"]);
    browser.arg(format!("--user-data-dir={}", dir.join("profile").display()));
    let seen = browser.arg(format!("https://localhost:{port}/page")).output().unwrap();
    let page = String::from_utf8_lossy(&seen.stdout);
    if page.is_empty() && !seen.status.success() {
        return skipped(test, "chromium does not start here");
    }
    assert!(page.contains("served over TLS"), "{page} {}", String::from_utf8_lossy(&seen.stderr));
    gate.process.signal(Signal::TERM);
    assert!(gate.process.ended().success());
    let log = || fs::read_to_string(dir.join("access.log")).unwrap_or_default();
    wait_until("the log", || log().contains("/page"));
    assert!(log().contains("HTTP/2.0 TLSv1.3 /page"), "{}", log());
}
