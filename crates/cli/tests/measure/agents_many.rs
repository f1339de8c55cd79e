//! A coordinator with two hundred agents. They are simulated: real messages over a real NATS server, the counts of one
//! real load.

use std::fs;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use oroshi_agents::agent::{Action, Agent};
use oroshi_agents::bus::{Arrival, Bus, Settings};
use oroshi_agents::parcel::PLAN_BYTES;
use oroshi_agents::wire::{self, Direction, Key};
use oroshi_bench::{Delta, Draft, Load, Observer, Part, PartObserver, Record, Spacing, run_part};
use oroshi_net::monotonic_ns;
use oroshi_words::Secret;

use crate::agents::{Group, Process};
use crate::common::Target;

const AGENTS: usize = 200;
const SECONDS: u64 = 6;
/// Requests per second of an agent.
const RATE: f64 = 500.0;

/// Takes the deltas of a load.
#[derive(Default)]
struct Deltas(Vec<Vec<u8>>);

impl Observer for Deltas {}

impl PartObserver for Deltas {
    fn ready(&mut self) -> Option<u64> {
        Some(0)
    }

    fn delta(&mut self, delta: Delta) {
        self.0.push(wire::encode(&delta).unwrap());
    }
}

/// The deltas of a real load of one agent, and how many requests it completed.
fn recorded(url: &str) -> (Vec<Vec<u8>>, u64) {
    let draft = Draft {
        urls: vec![url.parse().unwrap()],
        load: Load::rate(RATE, Spacing::Constant, 0),
        duration: Some(Duration::from_secs(SECONDS)),
        connections: 1,
        threads: Some(1),
        part: Some(Part { index: 0, of: 1 }),
        ..Draft::default()
    };
    let mut deltas = Deltas::default();
    let record = run_part(draft.plan().unwrap(), &mut deltas).unwrap();
    (deltas.0, record.requests.completed)
}

/// An agent whose load is a recorded one.
fn simulate(settings: Settings, key: &Key, deltas: &[Vec<u8>], over: &AtomicBool) {
    let (group, name) = (settings.group.clone(), settings.agent.clone().unwrap());
    let bus = Bus::connect(settings).unwrap();
    let mut agent = Agent::new(name, wire::random, PLAN_BYTES);
    // When the load began, and how many deltas it has handed over.
    let mut load: Option<(u64, usize)> = None;
    while !over.load(Ordering::Relaxed) {
        let arrival = bus.arrivals().recv_timeout(Duration::from_millis(100));
        let now = monotonic_ns();
        let mut actions = match arrival {
            Ok(Arrival::Frame(frame, at)) => match wire::open(key, Direction::Down, &group, &frame) {
                Ok(down) => agent.message(down, at),
                Err(error) => panic!("{error}"),
            },
            _ => agent.tick(now),
        };
        if let Some((began, handed)) = load
            && now >= began + (handed as u64 + 1) * 1_000_000_000
        {
            let last = handed + 1 == deltas.len();
            actions.extend(agent.delta(deltas[handed].clone(), last));
            load = (!last).then_some((began, handed + 1));
        }
        while let Some(action) = actions.pop() {
            match action {
                Action::Send(up) => bus.send(None, wire::seal(key, Direction::Up, &group, &up).unwrap()),
                Action::Prepare(_) => actions.extend(agent.prepared()),
                Action::Start(at) => load = Some((at, 0)),
                Action::Published(_) => panic!("a load of requests has no publisher"),
                Action::Stop => {
                    load = None;
                    actions.extend(agent.delta(deltas[deltas.len() - 1].clone(), true));
                }
            }
        }
    }
}

/// CPU seconds and the most resident memory, bytes, of a process that has not ended.
fn used(pid: u32) -> Option<(f64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = most.trim().trim_end_matches(" kB").parse().ok()?;
    Some((ticks as f64 / 100.0, kib * 1024))
}

/// CPU time depends on the machine and its other work. `make agent-cost` sets `OROSHI_CPU_LIMIT`, the largest share of
/// a core, and builds with optimisation. Without it the memory and the counts alone are tested;
/// `simulation::a_run_has_few_messages_per_agent` counts the coordinator's messages.
#[test]
fn a_coordinator_adds_up_two_hundred_agents_in_100_mb() {
    let test = "a_coordinator_adds_up_two_hundred_agents_in_100_mb";
    let Some(group) = Group::start(test, &[], &[]) else { return };
    let target = Target::start(&[]);
    let (deltas, completed) = recorded(target.url());
    let key = Key::new(group.key().as_bytes()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let report = group.folder().join("report.json");
    let (cpu, memory, began, ended) = thread::scope(|scope| {
        for number in 0..AGENTS {
            let (nats, agent) = (Secret::new(group.nats.url()), Some(format!("n{number:03}")));
            let settings = Settings { nats, group: "default".to_owned(), agent };
            let (key, deltas, over) = (&key, &deltas, &over);
            scope.spawn(move || simulate(settings, key, deltas, over));
        }
        let mut command = group.command("bench");
        let (agents, rate) = (AGENTS.to_string(), (RATE * AGENTS as f64).to_string());
        command.args(["--agents", &agents, "-c", &agents, "-t1", "-R", &rate, "-d", &format!("{SECONDS}s")]);
        command.args(["--format", "json", "-o"]).arg(&report).arg(target.url());
        let began = monotonic_ns();
        let mut run = Process::start(command);
        let mut last = (0.0, 0);
        while let Some(now) = used(run.pid()).filter(|now| now.1 > 0) {
            last = now;
            thread::sleep(Duration::from_millis(50));
        }
        over.store(true, Ordering::Relaxed);
        (last.0, last.1, began, run.end())
    });
    let elapsed = (monotonic_ns() - began) as f64 / 1e9;
    assert_eq!(ended.0, Some(0), "{ended:?}");
    let record: Record = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((record.agents.len(), record.requests.completed), (AGENTS, AGENTS as u64 * completed));
    assert_eq!(record.latency.service.histogram.len(), AGENTS as u64 * completed);
    assert!(!record.cut_short, "{:?}", record.warnings);
    let _ = writeln!(io::stderr(), "{AGENTS} agents: {cpu} s of CPU time in {elapsed:.1} s, {memory} bytes at most");
    if let Ok(limit) = std::env::var("OROSHI_CPU_LIMIT") {
        let limit: f64 = limit.parse().expect("OROSHI_CPU_LIMIT is a number");
        assert!(cpu / elapsed < limit, "{cpu} s of CPU time in {elapsed} s");
    }
    assert!(memory < 100_000_000, "{memory} bytes");
}
