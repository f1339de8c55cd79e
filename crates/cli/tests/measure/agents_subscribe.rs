//! Loads on a hub (`--mode`) on agents: the first one publishes, and the others know what did not come.

use oroshi_bench::push::Record;
use oroshi_bench::record::AgentState;

use crate::agents::{Group, Process};
use crate::common::support::hub::{Does, Hub, Settings};

fn record(group: &Group, args: &[&str]) -> Record {
    let ran = group.bench(args);
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

#[test]
fn subscriptions_of_all_agents_are_one_crowd() {
    let test = "subscriptions_of_all_agents_are_one_crowd";
    let Some(group) = Group::start(test, &["a", "b", "c"], &[]) else { return };
    let hub = Hub::start(Settings::default());
    let (publish, send) = (hub.publish("publish"), hub.publish("send/{n}"));
    let flags = ["--agents", "3", "-c", "31", "-w", "300ms", "-d", "30m", "--publish", &publish, "--publishers", "2"];
    let of = record(&group, &[&flags[..], &["--mode", "ws", "-n", "40", "-R", "200", &hub.url("ws")]].concat());
    assert_eq!((of.subscriptions.opened, of.deliveries.expected), (31, Some(1240)));
    assert_eq!((of.deliveries.delivered, of.deliveries.lost, of.deliveries.duplicated), (1240, 0, 0));
    assert_eq!(of.deliveries.delay.histogram.len(), 1240);
    assert_eq!(of.published.as_ref().unwrap().confirmed, 40);
    let agents: Vec<_> = of.agents.iter().map(|agent| (&*agent.name, agent.state, agent.failed)).collect();
    assert_eq!(agents, [("a", AgentState::Done, 0), ("b", AgentState::Done, 0), ("c", AgentState::Done, 0)]);
    assert_eq!(of.agents.iter().map(|agent| agent.completed).sum::<u64>(), 1240);

    // Messages for one each, beside those for all, over server-sent events.
    let to = ["--mode", "sse", "-n", "30", "-R", "100", "--publish-to", &send, "--publish-to-rate", "100"];
    let of = record(&group, &[&flags[..], &to, &[&hub.url("sse/{n}")]].concat());
    let (posted, came) = (of.published_to_one.unwrap(), of.deliveries_to_one.unwrap());
    assert!(posted.confirmed > 0 && came.delivered == posted.confirmed, "{posted:?} {came:?}");
    assert_eq!((came.lost, came.misdirected, of.deliveries.lost), (0, 0, 0));
    assert_eq!(of.deliveries.delivered, 30 * 31);
}

#[test]
fn what_is_lost_on_one_agent_is_lost_of_the_whole() {
    let test = "what_is_lost_on_one_agent_is_lost_of_the_whole";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let hub = Hub::start(Settings {
        does: |message, subscription| match (message, subscription) {
            (1..=3, 1) => Does::Drop,
            (5, 2) => Does::Close(1012),
            _ => Does::Deliver,
        },
        ..Settings::default()
    });
    let publish = hub.publish("publish");
    let flags = ["--agents", "2", "--mode", "ws", "-c", "8", "-n", "10", "-d", "1h", "-T", "300ms"];
    let of = record(&group, &[&flags[..], &["--publish", &publish, &hub.url("ws")]].concat());
    // Three messages, and the last five of the one that was closed.
    assert_eq!((of.deliveries.expected, of.deliveries.delivered, of.deliveries.lost), (Some(80), 72, 8));
    assert_eq!((of.deliveries.lost_on_ended, of.subscriptions.ended["close-1012"]), (5, 1));
    assert_eq!(of.agents.iter().map(|agent| agent.failed).sum::<u64>(), 8);
}

#[test]
fn an_agent_that_publishes_and_is_killed_leaves_a_labelled_result() {
    let test = "an_agent_that_publishes_and_is_killed_leaves_a_labelled_result";
    let Some(mut group) = Group::start(test, &["a", "b"], &[]) else { return };
    let hub = Hub::start(Settings::default());
    let report = group.folder.path().join("report.json");
    let mut command = group.command("bench");
    command.args(["--agents", "2", "--mode", "ws", "-c", "8", "-R", "50", "-d", "6s", "--publish"]);
    command.args([&hub.publish("publish"), &hub.url("ws"), "--format", "json", "-o"]).arg(&report);
    let mut run = Process::start(command);
    group.agents.iter().for_each(|agent| assert!(!agent.says("the first counts").is_empty()));
    group.agents[0].kill();
    run.says("1 of 2 agents lost: a");
    assert_eq!(run.child.wait().unwrap().code(), Some(1));
    let of: Record = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((of.agents[0].state, of.agents[1].state), (AgentState::Lost, AgentState::Stopped));
    assert!(of.warnings.iter().any(|warning| warning.starts_with("short by 1/2 from ")), "{:?}", of.warnings);
    assert!(of.warnings.iter().any(|warning| warning.contains("the part that publishes was lost")));
    assert!(of.cut_short && of.deliveries.delivered > 0);
}

#[test]
fn a_load_on_a_hub_can_be_collected() {
    let test = "a_load_on_a_hub_can_be_collected";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let hub = Hub::start(Settings::default());
    let mut command = group.command("bench");
    command.args(["--agents", "2", "--mode", "ws", "-c", "8", "-R", "50", "-d", "10m", "--publish"]);
    command.args([&hub.publish("publish"), &hub.url("ws")]);
    let run = Process::start(command);
    let ran = group.kill_and_collect(run);
    let of: Record = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert!(of.agents.iter().all(|agent| agent.state == AgentState::Stopped), "{:?}", of.agents);
    assert!(of.deliveries.delivered > 0 && of.warnings[0].contains("collected from what the agents keep"));
}
