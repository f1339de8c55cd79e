//! `docs/push.md` against the hub: its requests, errors, receipts, metrics and close codes are those that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::push;
use crate::push::{Answer, Backend, Client, Got, Process, request};
use oroshi_websocket::Kind;
use rustix::process::Signal;
use serde_json::Value;

const PAGE: &str = include_str!("../../../../docs/push.md");
const OPENAPI: &str = include_str!("../../../push/openapi.json");

type Names = BTreeSet<String>;

/// What stands in backticks.
fn quoted(text: &str) -> Names {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Numbers of `digits` digits that stand alone.
fn numbers(text: &str, digits: usize) -> Names {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|number| number.len() == digits);
    numbers.map(str::to_owned).collect()
}

/// The rows of the table whose head begins so: their columns.
#[track_caller]
fn table(head: &str) -> Vec<Vec<&'static str>> {
    let rest = PAGE.split(&format!("\n{head}")).nth(1).unwrap_or_else(|| panic!("no table begins with {head}"));
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// The names in a column of a table.
#[track_caller]
fn column(head: &str, column: usize) -> Names {
    table(head).iter().flat_map(|row| quoted(row[column])).collect()
}

fn openapi() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

/// The keys of an object.
fn keys(value: &Value) -> Names {
    value.as_object().unwrap().keys().cloned().collect()
}

/// The texts of a list.
fn texts(value: &Value) -> Names {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn requests_and_their_answers() {
    let mut described = BTreeMap::new();
    for (path, methods) in openapi()["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
            let mut statuses = keys(&operation["responses"]);
            // Told below the table, of all that is for backends and operators.
            if operation.get("security").is_none() && statuses.remove("401") {
                statuses.remove("403");
            }
            described.insert(format!("{} {path}", method.to_uppercase()), statuses);
        }
    }
    let row = |row: &Vec<&str>| (row[0].trim_matches('`').to_owned(), numbers(row[2], 3));
    assert_eq!(table("| request | does |").iter().map(row).collect::<BTreeMap<_, _>>(), described);
}

#[test]
fn names_of_errors() {
    let described = texts(&openapi()["components"]["schemas"]["Error"]["properties"]["error"]["enum"]);
    assert_eq!(column("| `error` | status |", 0), described);
}

#[test]
fn what_a_publish_says_and_is_answered() {
    let openapi = openapi();
    let envelope = &openapi["components"]["schemas"]["Envelope"]["properties"];
    let name = |text: &String| text.trim_matches('"').split('"').next().unwrap().trim_end_matches('=').to_owned();
    let names = |at| column("| in `/publish` | in `/publish/raw` |", at).iter().map(name).collect::<Names>();
    assert_eq!(names(0), keys(envelope));
    let parameters = openapi["paths"]["/publish/raw"]["post"]["parameters"].as_array().unwrap();
    let in_query = parameters.iter().filter(|one| one["in"] == "query");
    let parameters: Names = in_query.map(|one| one["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names(1).iter().map(|text| text.replace("all=1", "all")).collect::<Names>(), parameters);
    assert_eq!(column("| field | what it says |", 0), texts(&openapi["components"]["schemas"]["Receipt"]["required"]));
    assert_eq!(column("| `wait` | the answer comes |", 0), texts(&envelope["wait"]["enum"]));
}

/// A hub on a unix socket.
struct Hub {
    folder: tempfile::TempDir,
    process: Process,
}

impl Hub {
    /// With these lines of TOML behind its listener's.
    fn start(config: &str) -> Hub {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("push.toml");
        let socket = Self::socket_in(folder.path());
        std::fs::write(&file, format!("[listen]\neverything = [\"unix:{}\"]\n{config}", socket.display())).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_oroshi"));
        let process = push::start(command.arg("push").arg("--config").arg(&file)).unwrap();
        Hub { folder, process }
    }

    fn socket_in(folder: &Path) -> PathBuf {
        folder.join("push.sock")
    }

    fn client(&self, target: &str) -> Client {
        Client::open(&Self::socket_in(self.folder.path()), target, &[]).unwrap()
    }

    fn request(&self, method: &str, target: &str, body: &[u8]) -> Answer {
        request(&Self::socket_in(self.folder.path()), method, target, &[], body)
    }
}

/// The code of the close frame that a client gets, whatever comes before; `None` where the connection ends without one.
fn code(mut client: Client) -> Option<u16> {
    loop {
        match client.next() {
            Got::Close(code, _) => return code,
            Got::End => return None,
            _ => {}
        }
    }
}

#[test]
fn metrics_with_their_labels() {
    let hub = Hub::start("");
    let text = hub.request("GET", "/metrics", b"").text().to_owned();
    let mut there = BTreeMap::<String, Names>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.strip_prefix("oroshi_push_").unwrap().split_once(['{', ' ']).unwrap();
        let labels = labels.split(['{', ',']).filter_map(|label| label.split_once("=\""));
        there.entry(name.to_owned()).or_default().extend(labels.map(|label| label.0.to_owned()));
    }
    let rows = table("| metric `oroshi_push_...` |");
    let told = rows.iter().flat_map(|row| quoted(row[0]).into_iter().map(|name| (name, quoted(row[1]))));
    assert_eq!(told.collect::<BTreeMap<_, _>>(), there);
    // Values of labels, where their names do not say enough.
    for (metric, label) in [("sessions_ended_total", "reason"), ("deliveries_total", "outcome")] {
        let row = rows.iter().find(|row| quoted(row[0]).contains(metric)).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(&format!("oroshi_push_{metric}{{")));
        let values: Names = lines
            .map(|line| line.split(&format!("{label}=\"")).nth(1).unwrap().split('"').next().unwrap().to_owned())
            .collect();
        assert_eq!(quoted(row[2]), values, "{metric}");
    }
}

#[test]
fn close_codes() {
    let backend = Backend::start();
    let mut hub = Hub::start(&format!(
        "[callbacks]\nconnect = \"http://{0}/connect\"\nestablish = \"http://{0}/establish\"\n[limits]\n\
         message-bytes = 100\n",
        backend.address
    ));
    let mut seen = vec![code(hub.client("/connect?key=unwanted"))];
    for (kind, data) in [(Kind::Text, &[0xff; 1][..]), (Kind::Binary, &[0; 101])] {
        let mut client = hub.client("/connect?key=a");
        client.send(kind, data);
        seen.push(code(client));
    }
    let mut client = hub.client("/connect?key=a");
    // No client may send this one.
    client.close(1005);
    seen.push(code(client));
    let first = hub.client("/connect?key=a");
    let second = hub.client("/connect?key=a");
    seen.push(code(first));
    assert_eq!(hub.request("DELETE", "/sessions/a", b"").status, 204);
    seen.push(code(second));
    let last = hub.client("/connect?key=a");
    hub.process.signal(Signal::TERM);
    seen.push(code(last));
    assert!(hub.process.ended().success());

    let hub = Hub::start("[limits]\nidle = \"100ms\"\n");
    seen.push(code(hub.client("/connect")));
    let secret = hub.folder.path().join("secret");
    std::fs::write(&secret, "x".repeat(32)).unwrap();
    let rule = "[[group]]\npattern = \"a\"\nsubscribe = \"users\"\n";
    let tokens = Hub::start(&format!("[jwt]\nsecret-file = \"{}\"\n{rule}", secret.display()));
    let mut client = tokens.client("/connect?protocol=oroshi.v1");
    client.send(Kind::Text, b"{\"token\":\"x\"}");
    seen.push(code(client));
    // For whoever missed messages of other machines: the library's tests of clusters, which have NATS, see it.
    seen.push(Some(4001));
    let seen: Names = seen.into_iter().map(|code| code.map_or("none".to_owned(), |code| code.to_string())).collect();
    assert_eq!(table("| code | when |").iter().flat_map(|row| numbers(row[0], 4)).collect::<Names>(), seen);
}

/// As the page says of `disconnect`: a close frame would not get through.
#[test]
fn who_is_too_slow_is_cut_off() {
    let hub = Hub::start("");
    let slow = hub.client("/connect");
    for _ in 0..4 {
        assert_eq!(hub.request("POST", "/publish/raw?all=1", &[b'x'; 900_000]).status, 200);
    }
    assert_eq!(code(slow), None);
}
