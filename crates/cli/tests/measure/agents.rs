//! `oroshi agent` and `oroshi bench --agents`, with a NATS server of the test's own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use oroshi_bench::record::AgentState;
use oroshi_bench::{Protocol, Record};
use oroshi_testkit::nats::Nats;
use oroshi_testkit::process::{Ran, to_the_end};
use tempfile::TempDir;

use crate::common::{OROSHI, Recorded as _, Target};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// A NATS server, a key, and agents.
pub(crate) struct Group {
    pub(crate) nats: Nats,
    pub(crate) folder: TempDir,
    pub(crate) agents: Vec<Process>,
    flags: Vec<String>,
}

/// A process whose standard error is read line by line.
pub(crate) struct Process {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (said, lines) = channel();
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
        Self { child, lines }
    }

    /// Waits for a line with this text, and returns it.
    pub(crate) fn says(&self, text: &str) -> String {
        self.lines.iter().find(|line| line.contains(text)).unwrap_or_else(|| panic!("it did not say `{text}`"))
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end: the exit code, and all that it said.
    pub(crate) fn end(&mut self) -> (Option<i32>, Vec<String>) {
        let said = self.lines.iter().collect();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Group {
    /// `None` if there is no NATS server.
    pub(crate) fn start(test: &str, names: &[&str], flags: &[&str]) -> Option<Self> {
        let nats = Nats::start(test, &[])?;
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("key"), KEY).unwrap();
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        let mut group = Self { nats, folder, agents: Vec::new(), flags };
        for name in names {
            let agent = group.agent(name);
            group.agents.push(agent);
        }
        Some(group)
    }

    fn agent(&self, name: &str) -> Process {
        let mut command = self.command("agent");
        command.args(["--name", name]).args(&self.flags);
        let agent = Process::start(command);
        agent.says("may connect to");
        agent
    }

    /// Ends an agent as `kill -9` does.
    pub(crate) fn kill(&mut self, index: usize) {
        self.agents[index].kill();
    }

    /// Starts an agent again whose name is a letter from `a` on.
    pub(crate) fn restart(&mut self, index: usize) {
        self.agents[index] = self.agent(&char::from(b'a' + index as u8).to_string());
    }

    /// Where the key is.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The key of all.
    pub(crate) fn key(&self) -> String {
        KEY.to_owned()
    }

    pub(crate) fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(OROSHI);
        command.args([subcommand, "--nats", &self.nats.url(), "--key-file"]).arg(self.folder.path().join("key"));
        command
    }

    /// Kills a coordinator once all agents have counted something, waits until their loads have ended, and collects the
    /// run.
    pub(crate) fn kill_and_collect(&self, mut run: Process) -> Ran {
        let line = run.says("--collect");
        let number = line.split_whitespace().nth(1).unwrap().trim_end_matches(':');
        self.agents.iter().for_each(|agent| assert!(!agent.says("the first counts").is_empty()));
        run.kill();
        self.agents.iter().for_each(|agent| assert!(!agent.says("the load has ended").is_empty()));
        self.bench(&["--collect", number])
    }

    pub(crate) fn bench(&self, args: &[&str]) -> Ran {
        let mut command = self.command("bench");
        command.args(["--format", "json"]).args(args);
        to_the_end(command)
    }
}

#[track_caller]
pub(crate) fn ledger(record: &Record) {
    let r = &record.requests;
    assert_eq!(r.started, r.completed + r.failed + r.cut_off + r.unsent, "{r:?}");
    assert_eq!(record.agents.iter().map(|agent| agent.completed).sum::<u64>(), r.completed);
}

#[test]
fn several_agents_are_one_load_whose_counts_are_the_servers() {
    let Some(group) = Group::start("several_agents_are_one_load_whose_counts_are_the_servers", &["a", "b", "c"], &[])
    else {
        return;
    };
    let target = Target::start(&[]);
    let ran = group.bench(&["--agents", "3", "-c", "9", "-n", "5003", "-d", "1h", target.url()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let record = ran.record();
    assert_eq!((record.requests.completed, record.latency.service.histogram.len()), (5003, 5003));
    let names: Vec<_> = record.agents.iter().map(|agent| (&*agent.name, agent.state)).collect();
    assert_eq!(names, [("a", AgentState::Done), ("b", AgentState::Done), ("c", AgentState::Done)]);
    assert!(record.agents.iter().all(|agent| agent.clock_bound_ns == Some(0) && agent.start_late_ns.is_some()));
    ledger(&record);
    // A run by names, and one alone, on the same agents.
    let one = group.bench(&["--agents", "b", "-c", "2", "-n", "100", "-d", "1h", target.url()]);
    assert_eq!((one.code, one.record().requests.completed), (Some(0), 100), "{one:?}");
    assert_eq!(target.stop().0, 5103, "the server counts as many");
}

#[test]
fn agents_speak_http2_by_streams_and_their_scripts_too() {
    let test = "agents_speak_http2_by_streams_and_their_scripts_too";
    let Some(group) = Group::start(test, &["a", "b"], &["--wrk-scripts"]) else { return };
    let target = Target::start(&[]);
    let http2 = ["--agents", "2", "--http2-prior-knowledge", "--streams", "8", "-c", "3", "-d", "1h", target.url()];
    let closed = group.bench(&[&http2[..], &["-n", "2001"]].concat());
    let open = group.bench(&[&http2[..], &["-n", "301", "-R", "600"]].concat());
    let script = group.folder().join("own.lua");
    let source = "local n = 0\nfunction request() n = n + 1 return wrk.format('POST', '/' .. n, nil, 'body') end\n\
        function response(status, headers, body) assert(status == 200 and #body == 12) end";
    std::fs::write(&script, source).unwrap();
    let scripted = group.bench(&[&http2[..], &["-n", "500", "-s", script.to_str().unwrap()]].concat());
    for (ran, expected) in [(closed, 2001), (open, 301), (scripted, 500)] {
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let record = ran.record();
        assert_eq!((record.plan.protocol, record.plan.streams), (Protocol::Http2, 8));
        assert_eq!((record.requests.completed, record.errors, record.connections.opened), (expected, 0, 3));
        assert!(record.agents.iter().all(|agent| agent.completed > 0), "{:?}", record.agents);
        ledger(&record);
    }
    assert_eq!(target.stop().0, 2001 + 301 + 500, "the server counts as many");
}

#[test]
fn plans_beyond_a_message_travel_in_pieces_up_to_the_agents_limit() {
    let test = "plans_beyond_a_message_travel_in_pieces_up_to_the_agents_limit";
    let Some(group) = Group::start(test, &["a", "b"], &["--max-plan", "6M"]) else { return };
    let target = Target::start(&[]);
    let path = group.folder().join("body");
    let file = |bytes: usize| {
        let mut random = fastrand::Rng::with_seed(5);
        std::fs::write(&path, (0..bytes).map(|_| random.u8(..)).collect::<Vec<_>>()).unwrap();
    };
    let bench = || {
        let body = ["--agents", "2", "-c", "2", "-n", "5", "-d", "1h", "--body-file", path.to_str().unwrap()];
        group.bench(&[&body[..], &[target.url()]].concat())
    };
    file(5_000_000);
    let ran = bench();
    let record = ran.record();
    assert_eq!((ran.code, record.requests.completed), (Some(0), 5), "{ran:?}");
    assert!(record.rates.written_bytes >= 5 * 5_000_000, "{:?}", record.rates);
    file(6_100_000);
    let ran = bench();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for agent in ["a", "b"] {
        assert!(ran.err.contains(&format!("{agent}: a plan of 6100")) && ran.err.contains("--max-plan is 6000000"));
    }
    // The agents are free again.
    file(10);
    assert_eq!(bench().record().requests.completed, 5);
}

#[test]
fn agents_refuse_what_they_may_not_do_and_all_say_so() {
    let test = "agents_refuse_what_they_may_not_do_and_all_say_so";
    let Some(group) =
        Group::start(test, &["a", "b"], &["--max-connections", "5", "--max-duration", "1m", "--allow", "127.0.0.1"])
    else {
        return;
    };
    let refused = |args: &[&str]| {
        let ran = group.bench(&[&["--agents", "2"], args].concat());
        assert_eq!(ran.code, Some(1), "{ran:?}");
        ran.err
    };
    let text = refused(&["-c", "20", "-d", "2m", "http://127.0.0.1:1/"]);
    for agent in ["a", "b"] {
        assert!(text.contains(&format!("{agent}: 10 connections: this agent's --max-connections is 5")), "{text}");
        assert!(text.contains(&format!("{agent}: 120s")), "{text}");
    }
    // The agents permit one address.
    let text = refused(&["-c", "2", "-d", "1s", "http://127.0.0.2:1/"]);
    assert!(text.contains("connections to 127.0.0.2:1 are not permitted here"), "{text}");
    for (args, flag) in [(&["--hdr", "x"][..], "--hdr"), (&["-g", "x"], "--gnuplot")] {
        let ran = group.bench(&[&["--agents", "2", "http://127.0.0.1:1/"], args].concat());
        assert!(ran.code == Some(2) && ran.err.contains(&format!("{flag}: ")), "{ran:?}");
    }
}

#[test]
fn a_load_that_ends_with_its_requests_ends_by_the_agents_time_at_the_latest() {
    let test = "a_load_that_ends_with_its_requests_ends_by_the_agents_time_at_the_latest";
    let Some(group) = Group::start(test, &["a", "b"], &["--max-duration", "1s"]) else { return };
    let target = Target::start(&[]);
    let ran = group.bench(&["--agents", "2", "-c", "4", "-n", "301", target.url()]);
    assert_eq!((ran.code, ran.record().requests.completed, ran.record().cut_short), (Some(0), 301, false), "{ran:?}");
    let ran = group.bench(&["--agents", "2", "-c", "4", "-n", "100k", "-R", "100", target.url()]);
    let record = ran.record();
    assert!(record.cut_short && record.requests.started < 200, "{:?}", record.requests);
    assert!(record.warnings.iter().any(|text| text.contains("of 100000 requests were sent")), "{:?}", record.warnings);
    ledger(&record);
}

#[test]
fn the_coordinator_watches_the_server_where_it_can_and_an_agent_otherwise() {
    let test = "the_coordinator_watches_the_server_where_it_can_and_an_agent_otherwise";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let target = Target::start(&[]);
    let run = |flags: &[&str]| {
        let fixed = ["--agents", "2", "-c", "4", "-d", "2s", "-w", "100ms", target.url()];
        let ran = group.bench(&[&fixed, flags].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.record()
    };
    for flags in [&[][..], &["--watch", &target.pid().to_string()]] {
        let record = run(flags);
        assert_eq!(record.server_watched_by.as_deref(), Some("coordinator"), "{:?}", record.server_unknown);
        let server = record.server.as_ref().unwrap();
        assert_eq!((server.process_count, server.processes[0].pid), (1, target.pid()));
        assert!(record.server_cpu_us_per_request().is_some_and(|us| us > 0.1), "{server:?}");
    }
    let record = run(&["--watch", "none"]);
    assert_eq!((record.server_watched_by, record.server.is_none()), (None, true));
    let gone = Command::new("true").spawn().map(|mut child| (child.id(), child.wait())).unwrap().0;
    let ran = group.bench(&["--agents", "2", "-c", "4", "--watch", &gone.to_string(), target.url()]);
    assert!(ran.code == Some(1) && ran.err.contains(&format!("there is no process {gone}")), "{ran:?}");
}

#[test]
fn an_agent_that_is_killed_shortens_the_run_and_the_report_says_so() {
    let test = "an_agent_that_is_killed_shortens_the_run_and_the_report_says_so";
    let Some(mut group) = Group::start(test, &["a", "b"], &[]) else { return };
    let target = Target::start(&[]);
    let mut command = group.command("bench");
    let report = group.folder.path().join("report.json");
    command.args(["--agents", "2", "-c", "4", "-R", "100", "-d", "12s", "--format", "json", "-o"]).arg(&report);
    let mut run = Process::start({
        command.args(["--on-agent-loss", "continue", target.url()]);
        command
    });
    group.agents[1].says("the first counts");
    group.agents[1].kill();
    run.says("1 of 2 agents lost: b");
    assert_eq!(run.child.wait().unwrap().code(), Some(1));
    let record: Record = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((record.agents[0].state, record.agents[1].state), (AgentState::Done, AgentState::Lost));
    assert!(record.warnings[0].starts_with("short by 1/2 from ") && record.cut_short, "{:?}", record.warnings);
    ledger(&record);
}

#[test]
fn a_coordinator_that_is_killed_ends_the_load_and_another_collects_it() {
    let test = "a_coordinator_that_is_killed_ends_the_load_and_another_collects_it";
    let Some(group) = Group::start(test, &["a", "b"], &[]) else { return };
    let target = Target::start(&[]);
    let mut command = group.command("bench");
    command.args(["--agents", "2", "-c", "4", "-R", "100", "-d", "10m", target.url()]);
    let run = Process::start(command);
    let ran = group.kill_and_collect(run);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let record = ran.record();
    assert!(record.agents.iter().all(|agent| agent.state == AgentState::Stopped && agent.completed > 0), "{record:?}");
    assert!(record.warnings[0].contains("collected from what the agents keep"), "{:?}", record.warnings);
    ledger(&record);
}
