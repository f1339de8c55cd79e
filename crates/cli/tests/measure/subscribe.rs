//! `oroshi bench --mode`, from the command line to the report, against a hub of this test's own.

use crate::common;
use crate::common::bench;
use crate::common::support::hub::{Does, Hub, Settings, Takes};
use oroshi_bench::push::Record;

#[track_caller]
fn record(flags: &[&str]) -> Record {
    let ran = bench(&[flags, &["--watch", "none", "--format", "json"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

#[test]
fn connected_clients_and_a_broadcast_in_one_command() {
    let hub = Hub::start(Settings::default());
    let url = hub.url("ws").replace("http://", "ws://");
    let publish = hub.publish("publish");
    let of = record(&["--mode", "ws", "-c", "30", "-n", "40", "-R", "400", "--publish", &publish, &url]);
    assert_eq!((of.deliveries.expected, of.deliveries.delivered, of.deliveries.lost), (Some(1200), 1200, 0));
    // A text of one's own, in a PUT, and a header for each subscription.
    let own = ["-b", r#"{"text":"{stamp}","n":{seq}}"#, "-m", "PUT", "--publish-header", "X-Key: key-{n}"];
    let flags = ["--mode", "sse", "-c", "3", "-n", "10", "--publishers", "2", "--publish", &publish];
    let of = record(&[&flags[..], &own, &[&hub.url("sse")]].concat());
    assert_eq!((of.deliveries.delivered, of.deliveries.lost), (30, 0));
    assert_eq!(of.plan.publish.unwrap().request, "PUT /publish");
    assert!(of.environment.command.iter().any(|word| word == "X-Key: ***"), "{:?}", of.environment.command);
}

#[test]
fn the_report_tells_what_went_wrong_and_a_threshold_ends_with_its_code() {
    let hub = Hub::start(Settings {
        does: |index, n| match (index, n) {
            (3, 1) => Does::Drop,
            (5, 2) => Does::Close(1012),
            _ => Does::Deliver,
        },
        takes: |n| if n == 0 { Takes::Refuses(503) } else { Takes::Yes },
        ..Settings::default()
    });
    let publish = hub.publish("publish");
    let flags = ["--mode", "ws", "-c", "5", "-n", "10", "-T", "250ms", "--watch", "none", "--publish", &publish];
    let ran = bench(&[&flags[..], &["--fail-if", "lost>0", "--fail-if", "p99>1h", &hub.url("ws")]].concat());
    ran.said(3, &["FAILED  --fail-if lost>0: measured 6 of 40 deliveries", "passed  --fail-if p99>1h"]);
    // However its lines are broken.
    let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "5 subscriptions (ws) on 1 thread to http://127.0.0.1:",
        "1 publisher in a closed loop, POST /publish at 127.0.0.1:",
        "4 of 5 in",
        "10 confirmed",
        "34 of 40",
        "never came, 5 of them on subscriptions that had ended",
        "subscriptions were not opened: 1 x status (with 503)",
        "subscriptions ended: 1 x close-1012",
        "delivery",
        "Bottleneck",
    ] {
        assert!(text.contains(words), "`{words}` is not in\n{}", ran.out);
    }
}

#[test]
fn a_hub_that_takes_nobody_is_a_failure() {
    let hub = Hub::start(Settings { takes: |_| Takes::Refuses(403), ..Settings::default() });
    let ran = bench(&["--mode", "sse", "-c", "2", "-d", "10ms", "--watch", "none", &hub.url("sse")]);
    ran.said(1, &["not one subscription was opened: 2 x status"]);
}

#[test]
fn an_experiment_compares_subscriptions() {
    let hub = Hub::start(Settings::default());
    let folder = tempfile::tempdir().unwrap();
    let (ws, sse, publish) = (hub.url("ws"), hub.url("sse"), hub.publish("publish"));
    let experiment = format!(
        r#"
title = "Push"
metrics = ["rps", "p99"]
blocks = 3
cpus = "any"
[load]
mode = "ws"
connections = "{{{{connections}}}}"
requests = 20
warmup = "10ms"
publish = "{publish}"
publishers = 2
[sweep]
name = "connections"
values = [1, 4]
[[variant]]
name = "ws"
url = "{ws}"
[[variant]]
name = "sse"
url = "{sse}"
load.mode = "sse"
"#
    );
    std::fs::write(folder.path().join("push.toml"), experiment).unwrap();
    let mut command = std::process::Command::new(common::OROSHI);
    command.current_dir(folder.path()).args(["lab", "run", "push.toml", "--out", "out"]);
    let ran = common::to_the_end(command);
    let kept = std::fs::read(folder.path().join("out/result.json")).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let result: serde_json::Value = serde_json::from_slice(&kept).unwrap();
    for (cell, connections) in [(0, 1), (1, 4)] {
        let runs = result["cells"][cell]["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 6, "{ran:?}");
        for run in runs {
            assert_eq!(run["record"]["requests"]["completed"], 20 * connections, "{run}");
            assert!(run["figures"]["rps"].as_f64().unwrap() > 0.0 && run["figures"]["p99"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn a_mistake_in_an_experiment_has_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = r#"title = "Push"
[load]
mode = "wss"
publish = "http://127.0.0.1:{{port}}/pub"
[[variant]]
name = "one"
url = "http://127.0.0.1:1/{n}"
[[variant]]
name = "two"
url = "http://127.0.0.1:1/{n}"
load = { mode = "ws", publish = "ftp://h/", close = true }
"#;
    std::fs::write(folder.path().join("push.toml"), experiment).unwrap();
    let mut command = std::process::Command::new(common::OROSHI);
    command.current_dir(folder.path()).args(["lab", "run", "push.toml", "--out", "out"]);
    let ran = common::to_the_end(command);
    ran.said(2, &["line 3: load.mode", "expected ws", "{{port}}", "variant.load.publish", "variant.load.close"]);
}
