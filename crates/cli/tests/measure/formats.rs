//! Reports of `oroshi bench` for other programs: CSV, OpenMetrics, JUnit, Prometheus' remote write.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use oroshi_testkit::Port;
use oroshi_testkit::{http, need, wait_until};

use crate::common::{Target, bench, oroshi, to_the_end};

/// A folder with a path for each name.
struct Files(tempfile::TempDir);

impl Files {
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }
}

#[test]
fn one_run_is_written_in_every_format() {
    let (files, target) = (Files(tempfile::tempdir().unwrap()), Target::start(&[]));
    let names = ["text", "json", "wrk", "ab", "csv", "prometheus", "junit"];
    let also = names.map(|name| format!("{name}={}", files.path(name)));
    let mut args = vec!["-n", "300", "-c", "2", "--fail-if", "errors>0", "--fail-if", "rps>0"];
    also.iter().for_each(|also| args.extend(["--also", also]));
    args.push(target.url());
    let ran = bench(&args);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(files.text("text").contains("requests/s") && files.text("wrk").contains("Requests/sec:"));
    assert!(files.text("ab").contains("Requests per second:"));
    let record: oroshi_bench::Record = serde_json::from_str(&files.text("json")).unwrap();
    assert_eq!(record.fail_if.len(), 2);
    let csv = files.text("csv");
    let counts: Vec<u64> = csv.lines().skip(1).map(|line| line.split(',').nth(3).unwrap().parse().unwrap()).collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (record.series.points.len(), 300), "{csv}");
    let metrics = files.text("prometheus");
    assert!(metrics.contains(&format!("target=\"{}\"", target.url())) && metrics.ends_with("# EOF\n"), "{metrics}");
    let junit = files.text("junit");
    assert!(junit.contains("tests=\"3\" failures=\"1\""), "{junit}");
    assert!(junit.contains("name=\"--fail-if errors&gt;0\" time=\"0\"><system-out>passed: "), "{junit}");
}

#[test]
fn promtool_reads_a_run() {
    const NAME: &str = "promtool_reads_a_run";
    let Some(promtool) = need(NAME, "promtool") else { return };
    let (files, target) = (Files(tempfile::tempdir().unwrap()), Target::start(&[]));
    let out = files.path("run.txt");
    let ran = bench(&["-n", "300", "--format", "prometheus", "-o", &out, target.url()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut command = Command::new(promtool);
    command.args(["tsdb", "create-blocks-from", "openmetrics", &out, &files.path("blocks")]);
    let ran = to_the_end(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(std::fs::read_dir(files.path("blocks")).unwrap().next().is_some(), "{ran:?}");
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn prometheus_receives_a_run() {
    const NAME: &str = "prometheus_receives_a_run";
    let Some(prometheus) = need(NAME, "prometheus") else { return };
    let (files, port, target) = (Files(tempfile::tempdir().unwrap()), Port::reserve(), Target::start(&[]));
    std::fs::write(files.path("prometheus.yml"), "").unwrap();
    let mut command = Command::new(prometheus);
    command.arg("--web.enable-remote-write-receiver").stdout(Stdio::null()).stderr(Stdio::null());
    command.arg(format!("--config.file={}", files.path("prometheus.yml")));
    command.arg(format!("--storage.tsdb.path={}", files.path("data")));
    command.arg(format!("--web.listen-address={}", port.address()));
    let _running = Ended(command.spawn().unwrap());
    let get = |path: &str| {
        let mut client = http::Client::new(TcpStream::connect(port.address()).ok()?);
        Some(client.send(http::head("GET", path, "h", &[])).answer())
    };
    wait_until("Prometheus is ready", || get("/-/ready").is_some_and(|answer| answer.status == 200));
    let to = format!("{}api/v1/write", port.url());
    let ran = bench(&["-n", "300", "--remote-write", &to, target.url()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let found = get("/api/v1/query?query=count_over_time(oroshi_bench_requests_per_second%5B1h%5D)").unwrap();
    assert!(found.text().contains(&format!("\"target\":\"{}\"", target.url())), "{}", found.text());
    let latency = get("/api/v1/series?match%5B%5D=oroshi_bench_latency_seconds").unwrap();
    for quantile in ["0.5", "0.99", "1"] {
        assert!(latency.text().contains(&format!("\"quantile\":\"{quantile}\"")), "{}", latency.text());
    }
}

#[test]
fn a_receiver_gets_a_snappy_body_and_may_refuse_it() {
    let (listener, target) = (TcpListener::bind("127.0.0.1:0").unwrap(), Target::start(&[]));
    let url = format!("http://{}/write", listener.local_addr().unwrap());
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
        let (end, length) = loop {
            let n = stream.read(&mut buffer).unwrap();
            assert!(n > 0, "it ended early");
            got.extend_from_slice(&buffer[..n]);
            if let Some(end) = http::end_of_head(&got) {
                let head = String::from_utf8_lossy(&got[..end]).to_lowercase();
                let length = head
                    .split("content-length: ")
                    .nth(1)
                    .unwrap()
                    .split('\r')
                    .next()
                    .unwrap()
                    .parse::<usize>()
                    .unwrap();
                // Behind the empty line.
                break (end + 4, length);
            }
        };
        while got.len() < end + length {
            let n = stream.read(&mut buffer).unwrap();
            got.extend_from_slice(&buffer[..n]);
        }
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 13\r\n\r\nout of bounds").unwrap();
        (String::from_utf8_lossy(&got[..end]).to_lowercase(), got[end..].to_vec())
    });
    let header = "Authorization: Bearer geheim";
    let ran = bench(&["-n", "50", "--remote-write", &url, "--remote-write-header", header, target.url()]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("the receiver answered with 400: out of bounds"), "{ran:?}");
    assert!(!ran.out.contains("geheim") && !ran.err.contains("geheim"), "{ran:?}");
    assert!(ran.out.contains("requests/s"), "the report comes all the same: {ran:?}");
    let (head, body) = receiver.join().unwrap();
    for line in ["post /write http/1.1", "content-encoding: snappy", "authorization: bearer geheim"] {
        assert!(head.contains(line), "{line}: {head}");
    }
    let message = snap::raw::Decoder::new().decompress_vec(&body).unwrap();
    let text = String::from_utf8_lossy(&message);
    assert!(text.contains("__name__") && text.contains("oroshi_bench_latency_seconds"), "{text}");
}

#[test]
fn a_receiver_that_is_not_there_is_an_error_and_no_url_is_refused() {
    let (port, target) = (Port::reserve(), Target::start(&[]));
    let ran = bench(&["-n", "50", "--remote-write", &format!("{}w", port.url()), target.url()]);
    assert!(ran.code == Some(1) && ran.err.contains("--remote-write: the series could not be sent"), "{ran:?}");
    let ran = oroshi(&["bench", "--remote-write", "localhost:9090", target.url()]);
    assert!(ran.code == Some(2) && ran.err.contains("expected a URL such as"), "{ran:?}");
    let ran = oroshi(&["bench", "--mode", "ws", "--remote-write", "http://h/", target.url()]);
    assert!(ran.code == Some(2) && ran.err.contains("--remote-write: it has no meaning with --mode"), "{ran:?}");
    let same = oroshi(&["bench", "-o", "x", "--also", "csv=x", target.url()]);
    assert!(same.code == Some(2) && same.err.contains("the same file as --output"), "{same:?}");
}
