//! HTTP/2 with clients that others wrote. A missing program skips its test.

use std::process::Command;

use oroshi_net::ServerTls;
use oroshi_net::tls::ServerTlsOptions;
use oroshi_server::{Error, Exchange};

use crate::support::{Running, patient};

/// Answers with the version and the length of the body; `/large` with a megabyte.
async fn answer(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let mut length = 0;
    while let Some(piece) = exchange.body.chunk().await? {
        length += piece.len();
    }
    if exchange.head.target == "/large" {
        return exchange.reply.send(200, [], &[b'x'; 1_000_000]).await;
    }
    let text = format!("{} {length}\n", exchange.head.version.number());
    exchange.reply.send(200, [("Content-Type", &b"text/plain"[..])], text.as_bytes()).await
}

/// Runs a command, and returns what it printed.
fn run(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{errors}", output.status);
    out
}

fn tls() -> ServerTls {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let options = ServerTlsOptions { alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()], ..ServerTlsOptions::default() };
    let key = certified.signing_key.serialize_der();
    ServerTls::from_der(vec![certified.cert.der().to_vec()], key, &options).unwrap()
}

#[test]
fn curl_chooses_a_version() {
    let Some(curl) = oroshi_testkit::need("curl_chooses_a_version", "curl") else { return };
    let features = run({
        let mut command = Command::new(&curl);
        command.arg("--version");
        command
    });
    if !features.contains("HTTP2") {
        return oroshi_testkit::skipped("curl_chooses_a_version", "curl was built without HTTP/2");
    }
    let (plain, secure) =
        (Running::start(patient(), answer), Running::start_at("127.0.0.1:0", Some(tls()), patient(), answer));
    let ask = |options: &[&str], url: String| {
        let mut command = Command::new(&curl);
        command.args(["-s", "-S", "-k", "--max-time", "60"]).args(options).arg(url);
        run(command)
    };
    let url = |target: &str| format!("http://{}{target}", plain.tcp());
    assert_eq!(ask(&[], url("/")), "1.1 0\n");
    assert_eq!(ask(&["--http2-prior-knowledge", "-d", "body"], url("/")), "2.0 4\n");
    assert_eq!(ask(&["--http2-prior-knowledge"], url("/large")).len(), 1_000_000);
    let url = format!("https://{}/", secure.tcp());
    assert_eq!(ask(&["--http1.1"], url.clone()), "1.1 0\n");
    assert_eq!(ask(&["--http2"], url), "2.0 0\n");
    plain.stop();
    secure.stop();
}

#[test]
fn h2load_has_all_its_answers() {
    let Some(h2load) = oroshi_testkit::need("h2load_has_all_its_answers", "h2load") else { return };
    let server = Running::start(patient(), answer);
    for (target, requests) in [("/", "10000"), ("/large", "200")] {
        let mut command = Command::new(&h2load);
        command.args(["-n", requests, "-c", "4", "-m", "32"]).arg(format!("http://{}{target}", server.tcp()));
        let printed = run(command);
        let expected = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
        assert!(printed.contains(&expected), "{printed}");
    }
    assert_eq!(server.stop().answers, 10_200);
}
