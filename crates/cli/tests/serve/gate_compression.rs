//! Compressed responses of `oroshi gate`: nginx behind it, over both versions of HTTP; curl in front.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use crate::gate::Gate;
use oroshi_testkit::need;
use oroshi_testkit::nginx::{Nginx, Setup};

const SERVER: &str = "types { text/plain txt; image/png png; }
    server { listen unix:@UNIX@; listen @TCP@ http2; root @FOLDER@;
    location /fixed { alias @FOLDER@/page.txt; add_header Cache-Control no-transform; }
    location /encoded { alias @FOLDER@/page.txt; add_header Content-Encoding br; }
    location /none { return 204; } location /error { error_page 404 /page.txt; return 404; } }";

/// A text of some hundred thousand bytes that is no mere repetition.
fn page() -> String {
    (0..20_000_u64).map(|number| format!("{} bottles, {:x}\n", number, number.wrapping_mul(0x9e37_79b9))).collect()
}

fn start(test: &str) -> Option<(Nginx, Gate, String)> {
    need(test, "curl")?;
    let page = page();
    let files: [(&str, &[u8]); 3] =
        [("page.txt", page.as_bytes()), ("page.png", page.as_bytes()), ("small.txt", b"small")];
    let nginx = Setup { http: SERVER, files: &files, ..Setup::default() }.start(test)?;
    let config = format!(
        r#"
        [compression]
        [[route]]
        host = "two.test"
        to = "h2c://{}"
        [[route]]
        host = "off.test"
        to = "unix:{unix}"
        compress = false
        [[route]]
        to = "unix:{unix}"
        "#,
        nginx.tcp,
        unix = nginx.unix.display(),
    );
    let gate = Gate::start(tempfile::tempdir().unwrap(), &config);
    Some((nginx, gate, page))
}

/// Asks by curl. Returns head and body.
fn curl(gate: &Gate, args: &[&str], url: &str) -> (String, Vec<u8>) {
    let head = gate.path("head");
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--unix-socket"]).arg(gate.path("public.sock"));
    command.arg("--dump-header").arg(&head).args(args).arg(url);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?} {url}: {}", String::from_utf8_lossy(&output.stderr));
    (fs::read_to_string(head).unwrap().to_ascii_lowercase(), output.stdout)
}

#[test]
fn clients_get_each_coding_and_the_same_bytes() {
    let Some((_nginx, gate, page)) = start("clients_get_each_coding_and_the_same_bytes") else { return };
    for host in ["one.test", "two.test"] {
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let url = format!("http://{host}/page.txt");
            let (plain, body) = curl(&gate, &[version], &url);
            assert!(body == page.as_bytes() && plain.contains("vary: accept-encoding\r\n"), "{plain}");
            assert!(!plain.contains("content-encoding") && plain.contains("accept-ranges: bytes"), "{plain}");
            let etag = plain.split("etag: ").nth(1).unwrap().lines().next().unwrap();
            for coding in ["gzip", "br", "zstd"] {
                let accept = format!("Accept-Encoding: {coding}");
                let (head, body) = curl(&gate, &[version, "--compressed", "--header", &accept], &url);
                assert!(head.contains(&format!("content-encoding: {coding}\r\n")), "{head}");
                assert!(head.contains("vary: accept-encoding\r\n") && !head.contains("content-length"), "{head}");
                assert!(head.contains(&format!("etag: w/{etag}\r\n")) && !head.contains("accept-ranges"), "{head}");
                assert!(body == page.as_bytes(), "{coding}: {} bytes", body.len());
                let (_, raw) = curl(&gate, &[version, "--header", &accept], &url);
                assert!(raw.len() < page.len() / 2, "{coding}: {}", raw.len());
                // A weak validator is good for that.
                let none = format!("If-None-Match: W/{etag}");
                let (head, body) = curl(&gate, &[version, "--header", &accept, "--header", &none], &url);
                assert!(head.contains(" 304") && body.is_empty(), "{head}");
            }
        }
    }
}

#[test]
fn what_may_not_be_compressed_goes_as_it_is() {
    let Some((_nginx, gate, page)) = start("what_may_not_be_compressed_goes_as_it_is") else { return };
    let accept = ["--header", "Accept-Encoding: gzip, br, zstd"];
    let ask = |args: &[&str], url: &str| curl(&gate, &[&accept[..], args].concat(), url);
    for host in ["one.test", "two.test"] {
        for (path, own) in [("fixed", true), ("page.png", true), ("small.txt", false)] {
            let (head, body) = ask(&[], &format!("http://{host}/{path}"));
            assert!(!head.contains("content-encoding") && !head.contains("vary"), "{path}: {head}");
            assert!(!own || body == page.as_bytes(), "{path}");
        }
        let (head, body) = ask(&[], &format!("http://{host}/encoded"));
        assert!(head.matches("content-encoding").count() == 1 && body == page.as_bytes(), "{head}");
        let (head, body) = ask(&["--range", "10-19"], &format!("http://{host}/page.txt"));
        assert!(
            head.contains(" 206") && body == page.as_bytes()[10..20] && !head.contains("content-encoding"),
            "{head}"
        );
        // The fields of the response to GET. curl prints the head of a response to HEAD.
        let (head, body) = ask(&["--head"], &format!("http://{host}/page.txt"));
        assert!(head.contains("content-encoding: br") && head.contains("vary: accept-encoding"), "{head}");
        assert!(head.contains("etag: w/") && !head.contains("content-length") && body.len() < 1000, "{head}");
        let (head, _) = ask(&[], &format!("http://{host}/none"));
        assert!(head.contains(" 204") && !head.contains("content-encoding"), "{head}");
        let (head, _) = ask(&[], &format!("http://{host}/error"));
        assert!(head.contains(" 404") && head.contains("content-encoding: br"), "{head}");
    }
    let (head, body) = ask(&[], "http://off.test/page.txt");
    assert!(!head.contains("content-encoding") && !head.contains("vary") && body == page.as_bytes(), "{head}");
}

/// A server that sends a line, and the next one when the test says so.
fn dripping(socket: &Path, content_type: &'static str) -> mpsc::Sender<()> {
    let listener = UnixListener::bind(socket).unwrap();
    let (go, may_go) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            assert!(oroshi_testkit::http::read(&mut stream, &mut byte).unwrap() > 0);
            head.push(byte[0]);
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        for line in ["6\r\nfirst\n\r\n", "7\r\nsecond\n\r\n", "0\r\nContent-Digest: x\r\nX-End: 1\r\n\r\n"] {
            stream.write_all(line.as_bytes()).unwrap();
            let _ = may_go.recv();
        }
    });
    go
}

#[test]
fn a_slow_response_arrives_line_by_line_and_events_stay_as_they_are() {
    let test = "a_slow_response_arrives_line_by_line_and_events_stay_as_they_are";
    if need(test, "curl").is_none() {
        return;
    }
    for (content_type, coding) in [
        ("text/plain", Some("gzip")),
        ("text/plain", Some("br")),
        ("text/plain", Some("zstd")),
        ("text/event-stream", None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let go = dripping(&folder.path().join("app.sock"), content_type);
        let gate = Gate::start(folder, "[compression]\n[[route]]\nto = \"unix:{dir}/app.sock\"\n");
        let head = gate.path("head");
        let mut command = Command::new("curl");
        command.args(["--silent", "--no-buffer", "--compressed", "--header", "TE: trailers", "--header"]);
        command.arg(format!("Accept-Encoding: {}", coding.unwrap_or("gzip")));
        command.arg("--dump-header").arg(&head).arg("--unix-socket").arg(gate.path("public.sock"));
        let mut curl = command.arg("http://a.test/").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(curl.stdout.take().unwrap());
        let mut line = String::new();
        for expected in ["first\n", "second\n"] {
            line.clear();
            lines.read_line(&mut line).unwrap();
            assert_eq!(line, expected, "{content_type} {coding:?}");
            go.send(()).unwrap();
        }
        drop(go);
        lines.read_to_string(&mut line).unwrap();
        assert!(line == "second\n" && curl.wait().unwrap().success());
        let head = fs::read_to_string(head).unwrap().to_ascii_lowercase();
        let found = head.split("content-encoding: ").nth(1).and_then(|rest| rest.lines().next());
        assert_eq!(found, coding, "{head}");
        // Trailers come behind it, without a digest of what is no longer sent.
        assert!(head.contains("x-end: 1") && head.contains("content-digest") == coding.is_none(), "{head}");
    }
}

/// A script that looks at responses changes them before they are compressed.
#[test]
fn responses_that_a_script_has_seen_are_compressed_too() {
    let test = "responses_that_a_script_has_seen_are_compressed_too";
    let Some((nginx, gate, page)) = start(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "function on_response(request, response)\n  response.headers[\"X-Seen\"] = \"1\"\n  \
                  if request.path == \"/encoded\" then response.headers[\"Content-Encoding\"] = nil end\nend\n";
    fs::write(folder.path().join("seen.lua"), script).unwrap();
    drop(gate);
    let config = format!(
        "[compression]\n[script.seen]\nfile = \"seen.lua\"\n[[route]]\nscript = \"seen\"\nto = \"unix:{}\"\n",
        nginx.unix.display()
    );
    let gate = Gate::start(folder, &config);
    for path in ["page.txt", "encoded"] {
        let url = format!("http://a.test/{path}");
        let (head, body) = curl(&gate, &["--compressed", "--header", "Accept-Encoding: gzip"], &url);
        assert!(head.contains("content-encoding: gzip\r\n") && head.contains("x-seen: 1"), "{head}");
        assert!(body == page.as_bytes(), "{path}");
    }
}
