//! A scan of `oroshi gate` with TLS, as operators make it: versions, suites, renegotiation; ClientHellos that are too
//! large; certificates whose time is over or has not come.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::gate::{Gate, HANG, Ran, oroshi, server};
use crate::gate_client_tls::{curl, openssl, put};
use oroshi_testkit::{Identity, Port, need};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};

const CONFIG: &str = r#"
threads = 1
[listen]
tls = ["127.0.0.1:{port}", "unix:{dir}/tls.sock"]
admin = "unix:{dir}/admin.sock"
[tls]
certificates = "site.pem"
[[route]]
host = "localhost"
to = "unix:{dir}/app.sock"
"#;

/// The suites that rustls has for a key of the kind of the test's.
const SUITES: [&str; 6] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

fn start(folder: tempfile::TempDir, port: &Port, more: &str) -> Gate {
    let config = CONFIG.replace("{port}", &port.address().port().to_string());
    Gate::start(folder, &format!("{config}{more}"))
}

/// The values of an attribute of all elements of a scan.
fn values<'x>(xml: &'x str, element: &str, attribute: &str) -> Vec<&'x str> {
    let lines = xml.lines().filter(|line| line.trim_start().starts_with(&format!("<{element} ")));
    lines.filter_map(|line| line.split(&format!(" {attribute}=\"")).nth(1)?.split('"').next()).collect()
}

#[test]
fn a_scan_finds_nothing_weak() {
    let test = "a_scan_finds_nothing_weak";
    let (Some(sslscan), Some(_)) = (need(test, "sslscan"), need(test, "openssl")) else { return };
    let (identity, folder, port) = (Identity::new(), tempfile::tempdir().unwrap(), Port::reserve());
    let _app = server(folder.path(), "app.sock", 11);
    put(&identity, &folder.path().join("site.pem"));
    let gate = start(folder, &port, "");
    let mut command = Command::new(sslscan);
    command.args(["--xml=-", "--no-colour", "--sni-name=localhost", &port.address().to_string()]);
    let scan = Ran::of(command.output().unwrap());
    let xml = &scan.out;
    assert_eq!(scan.code, Some(0), "{scan:?}");
    let versions = values(xml, "protocol", "version").into_iter().zip(values(xml, "protocol", "enabled"));
    let versions: Vec<_> = versions.collect();
    assert_eq!(
        versions,
        [("2", "0"), ("3", "0"), ("1.0", "0"), ("1.1", "0"), ("1.2", "1"), ("1.3", "1")],
        "the protocols ssl 2 and 3, and tls: {xml}"
    );
    let mut suites = values(xml, "cipher", "cipher");
    suites.sort_unstable();
    assert_eq!(suites, SUITES, "{xml}");
    assert!(
        values(xml, "cipher", "strength").iter().all(|strength| matches!(*strength, "strong" | "acceptable")),
        "{xml}"
    );
    assert_eq!(values(xml, "renegotiation", "supported"), ["0"], "{xml}");
    assert!(values(xml, "heartbleed", "vulnerable").iter().all(|is| *is == "0"), "{xml}");
    assert!(values(xml, "compression", "supported").iter().all(|is| *is == "0"), "{xml}");
    assert!(values(xml, "group", "bits").iter().all(|bits| bits.parse::<u32>().unwrap() >= 128), "{xml}");
    let said = openssl(&identity, &gate.path("tls.sock"), "/", &["-tls1_2"]);
    assert!(said.contains("Compression: NONE") && said.contains("200 OK"), "{said}");
}

/// A ClientHello in records as large as they may be, without its end.
fn hello(bytes: usize) -> Vec<u8> {
    let length = (bytes as u32).to_be_bytes();
    let message = [&[1, length[1], length[2], length[3], 3, 3][..], &vec![0; bytes - 2]].concat();
    let records =
        message.chunks(16_384).map(|part| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat());
    records.collect::<Vec<_>>().concat()
}

#[test]
fn client_hellos_beyond_all_measure_are_refused_in_bounded_memory() {
    let test = "client_hellos_beyond_all_measure_are_refused_in_bounded_memory";
    if need(test, "curl").is_none() {
        return;
    }
    let (identity, folder, port) = (Identity::new(), tempfile::tempdir().unwrap(), Port::reserve());
    let _app = server(folder.path(), "app.sock", 11);
    put(&identity, &folder.path().join("site.pem"));
    let gate = start(folder, &port, "");
    // 16 MB as one message is what its length can say.
    for bytes in [70_000, 1_000_000, 0xff_ffff] {
        let mut stream = TcpStream::connect(port.address()).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        // The gateway may close before it has read all of this.
        let _ = stream.write_all(&hello(bytes));
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert!(got.is_empty() || got[0] == 21, "an alert, or nothing: {got:?}");
    }
    let ran = curl(&identity, &gate.path("tls.sock"), &[], "https://localhost/");
    assert!(ran.out.ends_with(" 200"), "{ran:?}");
    assert_eq!(gate.status()["tls"]["handshakes"], 1);
}

/// Writes a certificate for `localhost` that is valid between the beginnings of these years.
fn dated(path: &Path, from: i32, to: i32) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
    let key = KeyPair::generate().unwrap();
    let text = [params.self_signed(&key).unwrap().pem(), key.serialize_pem()].concat();
    fs::write(path, text).unwrap();
}

/// An operator may want to serve it all the same: the clock may be the one that is wrong.
#[test]
fn certificates_that_are_not_valid_now_are_served_with_a_warning() {
    let test = "certificates_that_are_not_valid_now_are_served_with_a_warning";
    if need(test, "curl").is_none() {
        return;
    }
    for (from, to) in [(2001, 2002), (2998, 2999)] {
        let (folder, port) = (tempfile::tempdir().unwrap(), Port::reserve());
        let _app = server(folder.path(), "app.sock", 11);
        dated(&folder.path().join("site.pem"), from, to);
        let mut gate = start(folder, &port, "");
        let warned = "tls.certificates: the certificate of localhost in `site.pem` is not valid now: see its dates";
        gate.process.until_said(warned);
        let mut command = oroshi();
        let checked = Ran::of(command.args(["gate", "--check"]).current_dir(gate.folder.path()).output().unwrap());
        assert!(checked.code == Some(0) && checked.err.contains(warned), "{checked:?}");
        assert!(
            checked.out.contains("# localhost: the certificate of site.pem, NOT VALID NOW, its end is "),
            "{checked:?}"
        );
        let mut command = Command::new("curl");
        command.args(["--silent", "--insecure", "--write-out", "%{http_code}", "--unix-socket"]);
        let ran = Ran::of(command.arg(gate.path("tls.sock")).arg("https://localhost/").output().unwrap());
        assert!(ran.out.ends_with("200"), "{ran:?}");
        // A good one takes its place without a restart.
        let identity = Identity::new();
        put(&identity, &gate.path("site.pem"));
        gate.reload(&CONFIG.replace("{port}", &port.address().port().to_string()));
        let ran = curl(&identity, &gate.path("tls.sock"), &[], "https://localhost/");
        assert!(ran.out.ends_with(" 200"), "{ran:?}");
    }
}
