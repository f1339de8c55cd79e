//! The codec beside the PyPI packages hpack and h2, if Python has them. Their encoder's output is compared without
//! them, in `hpack.rs`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use oroshi_http2::hpack::{Compression, Encoder};
use oroshi_http2::{Config, Connection, Event, HeadBuffer};
use oroshi_testkit::{skipped, test_name};

/// A Python process that answers lines with lines.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts `tests/peer.py`, or notes that the test was left out.
    fn start(test: &str, role: &str) -> Option<Self> {
        // Another Python may stand before the system's, which has the system's packages.
        let has_packages = |python: &&str| {
            let status = Command::new(python).args(["-c", "import h2, hpack"]).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_packages) else {
            skipped(test, "python3 with the packages h2 and hpack is not installed");
            return None;
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peer.py");
        let mut command = Command::new(python);
        let command = command.args(["-B", script, role]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 starts");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Some(Peer { child, input, output: BufReader::new(output) })
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line from python");
        assert!(line.ends_with('\n'), "python ended early");
        line.trim_end().to_owned()
    }

    fn write(&mut self, bytes: &[u8]) {
        writeln!(self.input, "{}", hex(bytes)).expect("python reads");
    }

    fn end(self) {
        let Peer { mut child, input, .. } = self;
        drop(input);
        assert!(child.wait().expect("an exit").success());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The package hpack reads the blocks of our encoder: static and dynamic tables, Huffman, changes of the table's size.
#[test]
fn our_header_blocks_are_read_by_hpack() {
    for compression in [Compression::Static, Compression::Dynamic] {
        let Some(mut peer) = Peer::start(test_name!("our_header_blocks_are_read_by_hpack"), "hpack") else { return };
        let mut encoder = Encoder::new(compression);
        for round in 0..40usize {
            if round % 7 == 6 {
                encoder.set_peer_table_bytes([0, 200, 4096][round % 3]);
            }
            let fields: Vec<(String, Vec<u8>)> = (0..round % 9)
                .map(|n| {
                    let name = ["server", ":status", "x-a", "cookie", "date", "authorization"][(n + round) % 6];
                    let value: Vec<u8> = (0..n * 7).map(|byte| (byte * (round + 1) % 256) as u8).collect();
                    (name.to_owned(), if n % 2 == 0 { b"the same".to_vec() } else { value })
                })
                .collect();
            let mut block = Vec::new();
            encoder.begin(&mut block);
            fields.iter().for_each(|(name, value)| encoder.field(&mut block, name.as_bytes(), value));
            peer.write(&block);
            let expected: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("[\"{}\", \"{}\"]", hex(name.as_bytes()), hex(value)))
                .collect();
            assert_eq!(peer.read(), format!("[{}]", expected.join(", ")), "round {round}");
        }
        peer.end();
    }
}

/// A client of the package h2 sends 30 bodies on one connection; our server echoes each, in the windows of both sides.
#[test]
fn a_client_of_h2_gets_its_bodies_back() {
    let Some(mut peer) = Peer::start(test_name!("a_client_of_h2_gets_its_bodies_back"), "client") else { return };
    let (mut out, mut heads, mut kept) = (Vec::new(), HeadBuffer::default(), Vec::new());
    let config = Config { compression: Compression::Dynamic, stream_window: 20_000, ..Config::default() };
    let mut connection = Connection::server(Arc::new(config), &mut out);
    // Per stream: what was received, how much of it was sent back, and whether the request is complete.
    let mut echoes: BTreeMap<u32, (Vec<u8>, Option<usize>, bool)> = BTreeMap::new();
    let result = loop {
        let line = peer.read();
        if let Some(result) = line.strip_prefix("done ") {
            break result.to_owned();
        }
        kept.extend(unhex(&line));
        let mut input = &kept[..];
        while let Some(event) = connection.receive(&mut input, &mut heads, &mut out).expect("h2 keeps the rules") {
            match event {
                Event::Request { stream, head, .. } => {
                    assert_eq!(head.headers.get("x-same"), Some(&b"1"[..]));
                    echoes.insert(stream.id, Default::default());
                }
                Event::Data { stream, data, end } => {
                    let echo = echoes.get_mut(&stream.id).expect("a head came first");
                    echo.0.extend_from_slice(data);
                    echo.2 |= end;
                    connection.grant(&mut out, stream.id, data.len());
                }
                Event::Settings | Event::WindowOpen { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        let used = kept.len() - input.len();
        kept.drain(..used);
        echoes.retain(|&id, (body, sent, complete)| {
            if !*complete {
                return true;
            }
            if sent.is_none() {
                connection.send_response(&mut out, id, 200, [("X-Same", &b"1"[..])], false).expect("open");
            }
            let start = sent.unwrap_or_default();
            *sent = Some(start + connection.send_data(&mut out, id, &body[start..], false).expect("open"));
            let done = *sent == Some(body.len());
            if done {
                let sum = body.len().to_string();
                connection.send_trailers(&mut out, id, [("x-sum", sum.as_bytes())]).expect("open");
            }
            !done
        });
        peer.write(&std::mem::take(&mut out));
    };
    let expected: Vec<String> = (0..30).map(|number| format!("[{}, true]", number * 997)).collect();
    assert_eq!(result, format!("[{}]", expected.join(", ")));
    assert_eq!(connection.streams(), 0);
    peer.end();
}
