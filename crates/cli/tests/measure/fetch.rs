//! `oroshi fetch` from end to end: lists, requests, records, bodies, bursts.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common;
use crate::common::support::peer::{Conn, Peer, Place, Request};
use crate::common::support::tls::Identity;
use crate::common::support::{OK, wait_until};
use crate::common::{Recorded as _, Target, oroshi};
use crate::fetching::{Running, each, fetch, fetch_list, only, records, records_in};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A peer that answers with the head of the request that it got.
fn mirror() -> (Peer, Arc<Mutex<Vec<Request>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let peer = Peer::answering(move |request| {
        kept.lock().unwrap().push(request.clone());
        OK.into()
    });
    (peer, seen)
}

fn has(request: &Request, line: &str) -> bool {
    request.head.lines().any(|have| have.eq_ignore_ascii_case(line))
}

#[test]
fn every_url_gets_a_record() {
    let server = Target::start(&["--size", "7"]);
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    let url = |path: &str| format!("{}{path}", server.url());
    fs::write(&list, format!("# a comment\n\n{}\n{{\"url\":\"{}\",\"id\":[7]}}\n", url("c"), url("d"))).unwrap();
    let ran = fetch(&[&url("a"), &url("b"), "--input", list.to_str().unwrap(), "-c", "2"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let records = records(&ran.out);
    assert_eq!(each(&records, "n"), [1, 2, 5, 6]);
    let urls: Vec<Value> = ["a", "b", "c", "d"].map(|path| url(path).into()).into();
    assert_eq!(each(&records, "url"), urls.iter().collect::<Vec<_>>());
    assert_eq!(each(&records, "id"), [&Value::Null, &Value::Null, &Value::Null, &json!([7])]);
    let address = server.url().trim_start_matches("http://").trim_end_matches('/');
    for record in &records {
        let expected = json!({
            "ok": true, "method": "GET", "status": 200, "http": "1.1", "remote": address, "body_bytes": 7,
            "attempts": 1, "redirects": 0, "final_url": null, "headers": null, "coding": null, "body_file": null,
            "error": null,
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&record[field], value, "{field}");
        }
        let times = &record["timings"];
        assert!(times["total_ns"].as_u64() >= times["first_byte_ns"].as_u64(), "{times}");
        assert!(record["started_unix_s"].as_f64().unwrap() > 1.7e9);
    }
    for words in ["Requests    4 of 4 ok in ", "Bodies      28 B"] {
        assert!(ran.err.contains(words), "{ran:?}");
    }
    // The widths of the columns are those of the times in them.
    let columns = |line: &str| line.split_whitespace().collect::<Vec<_>>().windows(2).any(|two| two == ["mean", "p50"]);
    assert!(ran.err.lines().any(columns), "{ran:?}");
    let quiet = fetch(&["-q", &url("a")]);
    assert_eq!((quiet.code, &*quiet.err), (Some(0), ""));
}

#[test]
fn a_long_list_is_carried_out_whole_on_few_connections() {
    let server = Target::start(&["--threads", "1"]);
    let list: String = (0..5000).map(|i| format!("{}{i}\n", server.url())).collect();
    let ran = fetch_list(&list, &["-c", "20", "-q"]);
    assert_eq!((ran.code, &*ran.err), (Some(0), ""));
    let records = records(&ran.out);
    assert!(records.iter().zip(1..).all(|(record, n)| record["n"] == n && record["ok"] == true));
    assert_eq!(records.len(), 5000);
    let (requests, connections) = server.stop();
    assert_eq!(requests, 5000);
    assert!(connections <= 20, "{connections}");
}

#[test]
fn what_a_pipe_has_given_is_fetched_before_more_comes() {
    let (peer, _) = mirror();
    let mut running = Running::start(&["-c", "3", "-"]);
    for path in ["a", "b", "c"] {
        running.give(&format!("{}{path}\n", peer.url));
        assert_eq!(running.record()["url"], format!("{}{path}", peer.url));
    }
    drop(running.list.take());
    assert_eq!(running.end(), Some(0));
}

#[test]
fn whoever_has_read_enough_ends_it() {
    let (peer, _) = mirror();
    let mut running = Running::start(&["-"]);
    running.give(&format!("{0}\n{0}\n", peer.url));
    running.record();
    let (mut list, out) = (running.list.take().unwrap(), std::mem::replace(&mut running.out, empty_reader()));
    drop(out);
    // The list goes on: what is fetched from here on has no reader.
    let line = format!("{}\n", peer.url);
    while std::io::Write::write_all(&mut list, line.as_bytes()).is_ok() {
        if running.child.try_wait().unwrap().is_some() {
            break;
        }
    }
    assert_eq!(running.end(), Some(0));
}

/// The output of a process that says nothing.
fn empty_reader() -> std::io::BufReader<std::process::ChildStdout> {
    let mut child = std::process::Command::new("true").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    child.wait().unwrap();
    std::io::BufReader::new(out)
}

#[test]
fn requests_are_what_flags_and_lines_say() {
    let (peer, seen) = mirror();
    let last = || seen.lock().unwrap().pop().unwrap();
    assert_eq!(only(&fetch(&["-X", "DELETE", "-H", "X-A: 1", "-H", "Host: other", &peer.url]), 0)["method"], "DELETE");
    let request = last();
    assert!(request.method == "DELETE" && has(&request, "X-A: 1") && has(&request, "Host: other"), "{request:?}");
    assert_eq!(request.head.to_lowercase().matches("\r\nhost:").count(), 1, "{request:?}");
    assert!(request.head.contains("gzip"), "{request:?}");

    only(&fetch(&["--json", "{\"a\":1}", "--no-compression", "--close", &peer.url]), 0);
    let request = last();
    assert!(request.method == "POST" && request.length == 7, "{request:?}");
    for line in ["Content-Type: application/json", "Accept: application/json", "Connection: close"] {
        assert!(has(&request, line), "{line}: {request:?}");
    }
    assert!(!request.head.contains("gzip"), "{request:?}");

    let body = tempfile::NamedTempFile::new().unwrap();
    fs::write(body.path(), b"\xff\x00").unwrap();
    only(&fetch(&["--body-file", body.path().to_str().unwrap(), "-m", "PUT", &peer.url]), 0);
    assert_eq!((&*last().method, seen.lock().unwrap().len()), ("PUT", 0));

    let line =
        json!({"url": peer.url, "method": "PATCH", "headers": {"x-a": "own", "X-B": "2"}, "body": "abc", "id": "k"});
    let record = only(&fetch_list(&line.to_string(), &["-H", "X-A: of all", "-H", "X-C: 3", "-b", "of all"]), 0);
    assert_eq!((&record["id"], &record["method"]), (&json!("k"), &json!("PATCH")));
    let request = last();
    assert_eq!((&*request.method, request.length), ("PATCH", 3));
    assert!(has(&request, "x-a: own") && has(&request, "X-B: 2") && has(&request, "X-C: 3"), "{request:?}");
    assert!(!request.head.contains("of all"), "{request:?}");
    let line = json!({"url": peer.url, "headers": {"x-a": null, "X-B": null}});
    only(&fetch_list(&line.to_string(), &["-H", "X-A: of all"]), 0);
    let head = last().head.to_lowercase();
    assert!(!head.contains("x-a") && !head.contains("x-b"), "{head}");
}

#[test]
fn unix_sockets_and_tls_are_places_like_any_other() {
    let identity = Identity::new();
    let (cert, key) = identity.files();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("app.sock");
    let (socket, unix) = (socket.to_str().unwrap(), format!("unix:{}", socket.display()));
    let tls = ["--listen", "https://127.0.0.1:0/", "--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let server = Target::at(2, &[&tls[..], &["--listen", &unix]].concat());
    let ca = identity.ca();
    let record = only(&fetch(&["--cacert", ca.to_str().unwrap(), server.url()]), 0);
    assert!(record["timings"]["tls_ns"].as_u64().unwrap() > 0, "{record}");
    assert_eq!(only(&fetch(&["--insecure", server.url()]), 0)["status"], 200);
    let record = only(&fetch(&[server.url()]), 1);
    assert_eq!((&record["error"]["phase"], &record["error"]["kind"]), (&json!("tls"), &json!("tls")));
    for record in [only(&fetch(&[&unix]), 0), only(&fetch(&["-P", socket, "http://host/a"]), 0)] {
        assert_eq!((&record["status"], &record["remote"]), (&json!(200), &Value::Null));
    }
    fetch(&["--cacert", "/nonexistent/ca.pem", server.url()]).said(2, &["--cacert", "/nonexistent/ca.pem"]);
}

#[test]
fn the_version_of_http_is_the_servers_choice_or_that_of_a_flag() {
    let identity = Identity::new();
    let (cert, key) = identity.files();
    let folder = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", folder.path().join("app.sock").display());
    let tls = ["--listen", "https://127.0.0.1:0/", "--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let server = Target::at(2, &[&tls[..], &["--listen", &unix]].concat());
    for (url, flags, version) in [
        (server.url(), &["--insecure"][..], "2.0"),
        (server.url(), &["--insecure", "--http2-prior-knowledge"], "2.0"),
        (server.url(), &["--insecure", "--http1"], "1.1"),
        (server.url(), &["--insecure", "--close"], "1.1"),
        (&unix, &[], "1.1"),
        (&unix, &["--http2-prior-knowledge"], "2.0"),
    ] {
        let record = only(&fetch(&[&[url], flags].concat()), 0);
        assert_eq!((&record["http"], &record["status"]), (&json!(version), &json!(200)), "{url} {flags:?}");
    }
    // Many share a connection.
    let list = format!("{}\n", server.url()).repeat(200);
    let records = records(&fetch_list(&list, &["--insecure", "-c", "50"]).out);
    assert_eq!(records.len(), 200);
    assert!(each(&records, "http").iter().all(|version| **version == json!("2.0")));
    let connected = records.iter().filter(|record| !record["timings"]["connect_ns"].is_null()).count();
    assert_eq!(connected, 1, "one connection");
    fetch(&["--http1", "--http2-prior-knowledge", "http://h/"]).said(2, &["--http1"]);
}

#[test]
fn a_proxy_of_the_environment_or_of_a_flag_is_used() {
    // It answers itself, and the record says so.
    let proxy = Peer::answering(|request| {
        let status = if request.target == "http://server.invalid/a" { 207 } else { 400 };
        format!("HTTP/1.1 {status} By the proxy\r\nContent-Length: 0\r\n\r\n").into()
    });
    let run = |variables: &[(&str, &str)], flags: &[&str]| {
        let mut command = std::process::Command::new(common::OROSHI);
        for name in ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"] {
            command.env_remove(name);
        }
        command.arg("fetch").args(flags).arg("http://server.invalid/a").envs(variables.iter().copied());
        common::to_the_end(command)
    };
    for (variables, flags) in [
        (&[("http_proxy", &*proxy.url)][..], &[][..]),
        (&[("ALL_PROXY", &proxy.url)], &[]),
        (&[("no_proxy", "*")], &["--proxy", &proxy.url]),
    ] {
        assert_eq!(only(&run(variables, flags), 0)["status"], 207, "{variables:?} {flags:?}");
    }
    for (variables, flags) in [
        (&[("http_proxy", &*proxy.url), ("no_proxy", "invalid")][..], &[][..]),
        (&[("http_proxy", &proxy.url)], &["--proxy", "none"]),
        (&[("HTTP_PROXY", &proxy.url)], &[]),
        (&[], &["--proxy", &proxy.url, "--no-proxy", ".invalid"]),
    ] {
        assert_eq!(only(&run(variables, flags), 1)["error"]["phase"], "dns", "{variables:?} {flags:?}");
    }
    let wrong = "socks4://me:hidden@h";
    let ran = run(&[], &["--proxy", wrong]);
    ran.said(2, &["--proxy", "socks4 names no proxy that this client uses"]);
    assert!(!ran.err.contains("hidden"), "{ran:?}");
    // Only requests that would go through the environment's proxy fail.
    let error = only(&run(&[("http_proxy", wrong)], &[]), 1)["error"].to_string();
    assert!(error.contains("the environment's http_proxy is no proxy's URL"), "{error}");
    assert!(!error.contains("hidden"), "{error}");
    assert_eq!(only(&run(&[("https_proxy", wrong)], &[]), 1)["error"]["phase"], "dns");
}

/// A server that answers what it is asked in absolute form is proxy enough.
#[test]
fn a_proxy_behind_tls_needs_a_certificate_that_is_trusted() {
    let identity = Identity::new();
    let file = |name: &str| identity.path(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
    let proxy = Target::at(1, &["--listen", "https://127.0.0.1:0/", "--cert", &cert, "--key", &key]);
    let through = |flags: &[&str]| fetch(&[&["--proxy", proxy.url(), "http://server.invalid/a"], flags].concat());
    assert_eq!(only(&through(&["--proxy-cacert", &ca]), 0)["status"], 200);
    assert_eq!(only(&through(&["--proxy-insecure"]), 0)["status"], 200);
    // The others are for servers.
    for flags in [&["--proxy-cacert", &*cert][..], &["-k", "--proxy-cacert", &cert], &["--cacert", &ca]] {
        let error = &only(&through(flags), 1)["error"];
        assert_eq!(error["phase"], "connect", "{flags:?}: {error}");
        assert!(["proxy-tls", "tls-setup"].contains(&error["kind"].as_str().unwrap()), "{flags:?}: {error}");
    }
}

/// What `openssl req -x509` makes says CA:TRUE; curl and Ruby's Net::HTTP accept it where it is given.
#[test]
fn a_certificate_of_openssl_req_is_trusted_where_it_is_given() {
    let name = "a_certificate_of_openssl_req_is_trusted_where_it_is_given";
    if common::support::nginx::find("openssl").is_none() {
        return common::support::skipped(name, "openssl is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-keyout", &key, "-out", &cert])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let server = Target::at(1, &["--listen", "https://127.0.0.1:0/", "--cert", &cert, "--key", &key]);
    assert_eq!(only(&fetch(&["--cacert", &cert, server.url()]), 0)["status"], 200);
    let ran = common::bench(&["-n", "3", "--format", "json", "--cacert", &cert, server.url()]);
    assert_eq!((ran.code, ran.record().requests.completed), (Some(0), 3), "{ran:?}");
    only(&fetch(&[server.url()]), 1);
}

#[test]
fn redirects_are_followed_as_far_as_allowed() {
    let elsewhere = Peer::answering(|_| OK.into());
    let (to, seen) = (elsewhere.url.clone(), Arc::new(Mutex::new(String::new())));
    let peer = Peer::answering(move |request| {
        let location = if request.target == "/loop" { "/loop" } else { &to };
        format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n").into()
    });
    let record = only(&fetch(&[&peer.url, "-H", "Authorization: secret"]), 0);
    assert_eq!((&record["final_url"], &record["redirects"]), (&json!(elsewhere.url), &json!(1)));
    let record = only(&fetch(&["--redirects", "0", &peer.url]), 0);
    assert_eq!((&record["status"], &record["final_url"]), (&json!(302), &Value::Null));
    let record = only(&fetch(&["--redirects", "3", &format!("{}loop", peer.url)]), 1);
    assert_eq!(
        (&record["error"]["kind"], &record["error"]["phase"]),
        (&json!("too-many-redirects"), &json!("redirect"))
    );
    // It said 0.
    assert_eq!((&record["redirects"], &record["attempts"]), (&json!(3), &json!(1)), "{record}");

    let heads = Arc::clone(&seen);
    let target = Peer::answering(move |request| {
        *heads.lock().unwrap() = request.head.clone();
        OK.into()
    });
    let to = target.url.clone();
    let peer =
        Peer::answering(move |_| format!("HTTP/1.1 307 -\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into());
    only(&fetch(&[&peer.url, "-H", "Authorization: secret", "-H", "X-A: b"]), 0);
    let head = seen.lock().unwrap().clone();
    assert!(head.contains("X-A: b") && !head.contains("secret"), "{head}");
}

#[test]
fn bodies_become_files_that_are_whole_and_inside() {
    let peer = Peer::start(Place::Tcp, |mut conn: Conn| {
        while let Some(request) = conn.request() {
            if request.target == "/cut" {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
                return conn.close_gently();
            }
            let body = format!("body of {}", request.target);
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        }
    });
    let place = tempfile::tempdir().unwrap();
    let (inside, output) = (place.path().join("a/bodies"), place.path().join("out"));
    let paths = ["a/b.html", "../../../escape", "cut", "?q=1&r=/2"];
    let list: String = paths.iter().map(|path| format!("{}{path}\n", peer.url)).collect();
    let (bodies, output) = (inside.to_str().unwrap(), output.to_str().unwrap());
    let ran = fetch_list(&list, &["--bodies", bodies, "-o", output, "--headers"]);
    assert_eq!((ran.code, &*ran.out), (Some(1), ""), "{ran:?}");
    let records = records_in(output.as_ref());
    let mut files = BTreeSet::new();
    for (record, path) in records.iter().zip(paths) {
        if path == "cut" {
            assert_eq!(
                (&record["body_file"], &record["status"], &record["ok"]),
                (&Value::Null, &json!(200), &json!(false))
            );
            assert_eq!((&record["error"]["kind"], &record["body_bytes"]), (&json!("read-eof"), &json!(5)));
            continue;
        }
        let file = record["body_file"].as_str().unwrap();
        let body = fs::read_to_string(inside.join(file)).unwrap();
        assert_eq!(body, format!("body of /{path}"));
        assert_eq!(record["headers"], json!([["Content-Length", body.len().to_string()]]));
        files.insert(file.to_owned());
    }
    let there = fs::read_dir(&inside).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.collect::<BTreeSet<_>>(), files, "nothing unfinished, nothing else");
    let around: Vec<_> = fs::read_dir(place.path()).unwrap().collect();
    assert_eq!(around.len(), 2, "{around:?}");
}

#[test]
fn a_body_can_be_printed() {
    let peer = Peer::answering(|request| {
        let status = if request.target == "/missing" { 404 } else { 200 };
        format!("HTTP/1.1 {status} -\r\nContent-Length: 6\r\n\r\n{:<6}", request.target).into()
    });
    let ran = fetch(&["--bodies", "-", &format!("{}a", peer.url), &format!("{}b", peer.url)]);
    assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(0), "/a    /b    ", ""));
    let missing = format!("{}missing", peer.url);
    let ran = fetch(&["--bodies", "-", &missing]);
    assert_eq!((ran.code, &*ran.err), (Some(1), &*format!("error: GET {missing}: status 404\n")));
    for more in [["-c", "2"], ["--per-host", "2"]] {
        fetch(&[&["--bodies", "-", &peer.url][..], &more].concat()).said(2, &["--bodies", "--concurrency, --per-host"]);
    }
    let ran = fetch_list("{\n", &["--bodies", "-"]);
    assert!(ran.err.starts_with("error: line 1: the line is no request in JSON"), "{ran:?}");
}

#[test]
fn of_a_body_that_is_printed_only_the_last_attempt_is_seen_and_in_its_place() {
    let peer = Peer::start(Place::Tcp, |mut conn: Conn| {
        while let Some(request) = conn.request() {
            match (&*request.target, request.number) {
                ("/a", 0) => {
                    conn.send("HTTP/1.1 503 -\r\nContent-Length: 4\r\n\r\nbusy");
                }
                ("/a", 1) => {
                    conn.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n/a ");
                    return conn.close_gently();
                }
                (path, _) => {
                    conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n{path:<6}"));
                }
            }
        }
    });
    let list = format!("{0}a\n{0}b\n", peer.url);
    let ran = fetch_list(&list, &["--bodies", "-", "--retry", "3", "--retry-wait", "1ms"]);
    assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(0), "/a    /b    ", ""));
    assert_eq!(peer.seen().requests, 4, "two attempts of the first one failed");
    // The last attempt is printed also where it fails.
    let busy = Peer::answering(|_| "HTTP/1.1 503 -\r\nContent-Length: 4\r\n\r\nbusy".into());
    let ran = fetch(&["--bodies", "-", "--retry", "2", "--retry-wait", "1ms", &busy.url]);
    assert_eq!((ran.code, &*ran.out, busy.seen().requests), (Some(1), "busy", 3));
}

#[test]
fn a_full_host_holds_up_nobody_else() {
    const EACH: u64 = 4;
    let others = Arc::new(AtomicU64::new(0));
    let (counting, waiting) = (Arc::clone(&others), Arc::clone(&others));
    let quick = Peer::answering(move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
        OK.into()
    });
    let slow = Peer::answering(move |_| {
        wait_until("the other host is done", || waiting.load(Ordering::SeqCst) == EACH);
        OK.into()
    });
    let list: String = [&slow.url, &quick.url].iter().flat_map(|url| vec![format!("{url}\n"); EACH as usize]).collect();
    let ran = fetch_list(&list, &["-c", "2", "--per-host", "1"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(records(&ran.out).len(), 2 * EACH as usize);
    for peer in [slow, quick] {
        let seen = peer.seen();
        assert_eq!((seen.requests, seen.accepted), (EACH, 1), "one at a time, on one connection");
    }
}

#[test]
fn a_host_has_no_more_than_its_share_by_redirects_either() {
    const N: usize = 4;
    let sent = Arc::new(AtomicU64::new(0));
    let waiting = Arc::clone(&sent);
    let host = Peer::answering(move |_| {
        wait_until("all are on their way", || waiting.load(Ordering::SeqCst) == N as u64);
        OK.into()
    });
    let peers: Vec<Peer> = (0..N)
        .map(|_| {
            let (to, counting) = (host.url.clone(), Arc::clone(&sent));
            Peer::answering(move |_| {
                counting.fetch_add(1, Ordering::SeqCst);
                format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into()
            })
        })
        .collect();
    let list: String = peers.iter().map(|peer| format!("{}\n", peer.url)).collect();
    let ran = fetch_list(&list, &["-c", "4", "--per-host", "1"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let seen = host.seen();
    assert_eq!((seen.requests, seen.accepted), (N as u64, 1), "one at a time, on one connection");
}

#[test]
fn a_burst_is_under_way_all_at_once() {
    const N: usize = 40;
    let peer = Peer::start(Place::Tcp, |mut conn: Conn| {
        let Some(_) = conn.request() else { return };
        // Nobody is answered before all have asked.
        assert!(conn.wait_for(|seen| seen.requests == N as u64));
        conn.send(OK);
        conn.close_gently();
    });
    let urls = [format!("{}a", peer.url), format!("{}b", peer.url)];
    let ran = fetch(&["--burst", "-c", &N.to_string(), &urls[0], &urls[1]]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let records = records(&ran.out);
    assert!(records.iter().zip(1..).all(|(record, n)| record["n"] == n && record["timings"]["connect_ns"].is_u64()));
    assert!(ran.err.contains(&format!("Connections {N} opened")) && ran.err.contains("from burst"), "{ran:?}");
    let seen = peer.seen();
    assert_eq!((seen.accepted, seen.targets["/a"], seen.targets["/b"], seen.last_requests), (N, 20, 20, N as u64));

    let (peer, _) = mirror();
    let list = format!("{}\n", peer.url).repeat(3);
    let ran = fetch_list(&list, &["--burst"]);
    assert_eq!((ran.code, peer.seen().requests), (Some(0), 3), "{ran:?}");
    fetch_list(&list, &["--burst", "-c", "2"]).said(2, &["more than the 2 requests", "raise -c"]);
    assert_eq!(peer.seen().requests, 3);
}

#[test]
fn ctrl_c_ends_what_is_begun_and_begins_nothing_more() {
    let answered = Arc::new(AtomicU64::new(0));
    let gate = Arc::clone(&answered);
    let peer = Peer::answering(move |_| {
        wait_until("the gate opens", || gate.load(Ordering::SeqCst) > 0);
        OK.into()
    });
    let mut running = Running::start(&["-c", "2", "-"]);
    running.give(&format!("{}\n", peer.url).repeat(10));
    peer.wait_for("both requests", |seen| seen.requests == 2);
    running.signal(Signal::INT);
    // It has heard of it when it takes no more of the list, whose pipe stays open.
    answered.fetch_add(1, Ordering::SeqCst);
    let code = running.end();
    let mut out = String::new();
    std::io::Read::read_to_string(&mut running.out, &mut out).unwrap();
    let records = records(&out);
    assert_eq!(code, Some(130), "{out}");
    assert!((2..=10).contains(&records.len()) && records.iter().all(|record| record["ok"] == true), "{out}");
    assert_eq!(records.len() as u64, peer.seen().requests, "what was begun has its record");
}

#[test]
fn wrong_usage_is_2_and_says_what_was_expected() {
    for (args, words) in [
        (&[][..], &["nothing to fetch", "--input FILE"][..]),
        (&["ftp://h/", "-c", "0", "--retry", "x"], &["`ftp://h/`", "--concurrency", "at least 1", "--retry", "`x`"]),
        (&["-", "-"], &["give - once"]),
        (&["-T", "0", "http://h/"], &["--timeout", "more than 0"]),
        (&["--connect-timeout", "soon", "http://h/"], &["--connect-timeout", "`soon`"]),
        (&["--resume", "http://h/"], &["--output"]),
        (&["--burst", "--per-host", "1", "http://h/"], &["--burst", "--per-host"]),
        (&["-H", "no colon", "http://h/"], &["--header", "no colon"]),
        (&["-H", "Content-Length: 1", "http://h/"], &["--header", "Content-Length"]),
        (&["--json", "{", "http://h/"], &["--json", "no JSON"]),
        (&["--body-file", "/nonexistent/x", "http://h/"], &["/nonexistent/x"]),
        (&["--cert", "/nonexistent/c", "--key", "/nonexistent/k", "http://h/"], &["--cert", "/nonexistent/"]),
        (&["--max-body", "much", "http://h/"], &["--max-body", "`much`"]),
    ] {
        let ran = fetch(args);
        ran.said(2, words);
        assert_eq!(ran.out, "", "{args:?}");
    }
    let ran = fetch(&["-i", "/nonexistent/list", "http://h/"]);
    ran.said(2, &["--input: /nonexistent/list cannot be read: No such file"]);
    let ran = fetch(&["-o", "/nonexistent/out", "http://h/"]);
    ran.said(1, &["/nonexistent/out"]);
    assert!(!ran.err.contains("what has a record is done"), "nothing is: {ran:?}");
}

const PAGE: &str = include_str!("../../../../docs/fetch.md");

/// What stands in backticks in the first column of the table below a heading.
fn first_column(heading: &str) -> BTreeSet<String> {
    let section = PAGE.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let quoted = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    quoted.map(str::to_owned).collect()
}

#[test]
fn the_page_has_every_flag_and_no_other() {
    let help = oroshi(&["fetch", "--help"]).out;
    let words = help.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '-'));
    let flags_of_help = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let mut there: BTreeSet<String> = flags_of_help
        .flat_map(|line| line.split_whitespace().take_while(|word| word.starts_with('-')))
        .map(|word| word.trim_end_matches(',').to_owned())
        .collect();
    assert!(there.len() > 30, "{there:?}");
    for known in ["-h", "--help", "-v", "--version"] {
        there.remove(known);
    }
    let told: BTreeSet<String> =
        first_column("## Options").iter().flat_map(|cell| cell.split([',', ' ']).map(str::to_owned)).collect();
    let flags: BTreeSet<&String> = told.iter().filter(|word| word.starts_with('-') && *word != "-").collect();
    let missing: Vec<&String> = there.iter().filter(|flag| !flags.contains(flag)).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
    let words: BTreeSet<&str> = words.collect();
    let strange: Vec<&&String> =
        flags.iter().filter(|flag| !there.contains(**flag) && !words.contains(flag.as_str())).collect();
    assert!(strange.is_empty(), "there is no {strange:?}");
}

#[test]
fn the_page_has_every_field_and_no_other() {
    let (peer, _) = mirror();
    let record = only(&fetch(&[&peer.url]), 0);
    let failed = only(&fetch_list("nowhere", &[]), 1);
    let mut fields: BTreeSet<String> = record.as_object().unwrap().keys().cloned().collect();
    for part in ["timings", "error"] {
        let object = if part == "error" { &failed[part] } else { &record[part] };
        fields.extend(object.as_object().unwrap().keys().map(|name| format!("{part}.{name}")));
    }
    assert_eq!(first_column("## The lines"), fields);
    assert_eq!(
        (&failed["timings"], &failed["started_unix_s"], &failed["attempts"]),
        (&Value::Null, &Value::Null, &json!(0))
    );
}
