//! Agents, their coordinator and NATS: killed at any moment, and what may be on the bus.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use oroshi_bench::Record;
use oroshi_bench::record::AgentState;
use oroshi_testkit::nats::Nats;
use oroshi_testkit::process::to_the_end;
use oroshi_testkit::tls::Identity;

use crate::agents::{Group, Process, ledger};
use crate::common::{OROSHI, Recorded as _, Target};

/// Who is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Agent,
    Nats,
    Coordinator,
}

/// `OROSHI_MOMENTS` sets how many moments (`make agent-faults`: 50).
#[test]
fn every_process_may_be_killed_at_any_moment() {
    let moments = std::env::var("OROSHI_MOMENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let test = "every_process_may_be_killed_at_any_moment";
    let Some(mut group) = Group::start(test, &["a", "b"], &[]) else { return };
    let target = Target::start(&[]);
    let report = group.folder().join("report.json");
    for moment in 0_u64..moments {
        let victim = [Victim::Agent, Victim::Nats, Victim::Coordinator][moment as usize % 3];
        // Of a run that takes some six seconds; the same moments each time.
        let after = Duration::from_millis(moment.wrapping_mul(2_654_435_761) % 6500);
        let _ = fs::remove_file(&report);
        let mut command = group.command("bench");
        command.args(["--agents", "2", "-c", "4", "-R", "200", "-d", "4s", "--on-agent-loss", "continue"]);
        command.args(["--format", "json", "-o"]).arg(&report).arg(target.url());
        let mut run = Process::start(command);
        thread::sleep(after);
        let place = format!("{victim:?} killed after {after:?}");
        match victim {
            Victim::Agent => group.kill(1),
            Victim::Nats => {
                group.nats.kill();
                thread::sleep(Duration::from_millis(moment * 997 % 6000));
                group.nats.restart();
            }
            Victim::Coordinator => run.kill(),
        }
        let (code, said) = run.end();
        let record = fs::read_to_string(&report).ok().and_then(|text| serde_json::from_str::<Record>(&text).ok());
        match (victim, record) {
            (Victim::Coordinator, record) => assert!(record.is_none_or(|record| !record.cut_short), "{place}"),
            (_, Some(record)) => is_labelled(&record, code, &place),
            (_, None) => assert!(code == Some(1) && !said.is_empty(), "{place}: {code:?}: {said:?}"),
        }
        if let Victim::Agent = victim {
            group.restart(1);
        }
        // Both agents are free again, so no load of the run before goes on.
        let ran = group.bench(&["--agents", "2", "-c", "2", "-n", "20", target.url()]);
        assert_eq!((ran.code, ran.record().requests.completed), (Some(0), 20), "{place}: {ran:?}");
    }
}

/// A record says how its run ended, and its counts agree.
#[track_caller]
fn is_labelled(record: &Record, code: Option<i32>, place: &str) {
    ledger(record);
    let lost = record.agents.iter().filter(|agent| agent.state == AgentState::Lost).count();
    let done = record.agents.iter().filter(|agent| agent.state == AgentState::Done).count();
    assert_eq!(code, Some(i32::from(lost > 0)), "{place}: {:?}", record.warnings);
    assert_eq!(record.cut_short, done < 2, "{place}: {:?}", record.agents);
    let short = record.warnings.iter().filter(|warning| warning.starts_with("short by 1/2 from ")).count();
    assert_eq!(short, lost, "{place}: {:?}", record.warnings);
}

#[test]
fn a_run_needs_little_of_the_bus() {
    let Some(group) = Group::start("a_run_needs_little_of_the_bus", &["a", "b"], &[]) else { return };
    let target = Target::start(&[]);
    let mut bus = BufReader::new(TcpStream::connect(("127.0.0.1", group.nats.port)).unwrap());
    let mut line = String::new();
    bus.read_line(&mut line).unwrap();
    bus.get_mut().write_all(b"CONNECT {\"verbose\":false}\r\nSUB oroshi.agents.> 1\r\nPING\r\n").unwrap();
    line.clear();
    bus.read_line(&mut line).unwrap();
    assert_eq!(line, "PONG\r\n");
    let (counted, bytes) = channel();
    thread::spawn(move || {
        let mut sum = 0;
        loop {
            line.clear();
            if bus.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            // MSG subject id bytes
            let Some(length) = line.strip_prefix("MSG ").and_then(|message| message.trim().rsplit(' ').next()) else {
                continue;
            };
            let length: usize = length.parse().unwrap();
            bus.read_exact(&mut vec![0; length + 2]).unwrap();
            sum += line.len() + length + 2;
            let _ = counted.send(sum);
        }
    });
    let seconds = 5;
    let flags = ["--agents", "2", "-c", "20", "-R", "4k", "-d", &format!("{seconds}s"), target.url()];
    let ran = group.bench(&flags);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    drop(group);
    let sum = bytes.iter().last().unwrap();
    let each = sum / seconds / 2;
    assert!(each < 20_000, "{each} bytes per second and agent");
}

/// Seeds and public keys of nkeys that were made for this test: of a coordinator, an agent, and a stranger.
const PAIRS: [(&str, &str); 3] = [
    (
        "SUAGZ3S4YNRGQUXO6X2CBFURQKRHQX4F3SQG33HUURLHDXC27GZLHAHXQY",
        "UD6OK2TUOTMICTL6RCMW6SYP55R6SJPUNRBPUVT6ZK5O5FFVD3Y365VT",
    ),
    (
        "SUAMVL6CPDXIQNFJ7AOWMDE7F447UZUANPNREBAJKKWTGWPJO43JIZMSLQ",
        "UBYTUKCVH2UURJE2AXISBRTUYDM5SBHSUQ3TCE25VHDKG7SPC4ZNHXZN",
    ),
    (
        "SUAIMNJE3CTPNNHZOPZVIBW53NJOEUQIEJWY54CFHWL33VKJY2N5QV7TFU",
        "UAUUM2QA26PH2L76SZIIU5INA5BF6MZ3SET23BNLL4TVI3M2ZJONZT75",
    ),
];

#[test]
fn nats_with_tls_and_a_password_carries_plans_signed_by_nkeys() {
    let test = "nats_with_tls_and_a_password_carries_plans_signed_by_nkeys";
    let identity = Identity::new();
    let (certificate, key) = identity.files();
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let arguments = ["--tls", "--tlscert", certificate, "--tlskey", key, "--user", "me", "--pass", "s3cret"];
    let Some(nats) = Nats::start(test, &arguments) else { return };
    let target = Target::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let [coordinator, agent, stranger] = PAIRS;
    let file = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let password = file("nats", &format!("tls://me:s3cret@127.0.0.1:{}\n", nats.port));
    let agents = file("agents", &format!("{}\n{}\n", stranger.1, agent.1));
    let command = |subcommand: &str, nats: &Path, seed: &Path, accept: &str| {
        let mut command = Command::new(OROSHI);
        command.env("SSL_CERT_FILE", identity.ca()).stdin(Stdio::null());
        command.args([subcommand, "--nats", &format!("@{}", nats.display()), "--accept", accept]);
        command.arg("--key-file").arg(seed);
        command
    };
    let mut lends = command("agent", &password, &file("agent.nk", agent.0), coordinator.1);
    lends.args(["--name", "a"]);
    let lends = Process::start(lends);
    lends.says("may connect to");
    let bench = |nats: &Path, seed: &Path| {
        let mut command = command("bench", nats, seed, &format!("@{}", agents.display()));
        command.args(["--agents", "a", "-c", "2", "-n", "100", "--format", "json", target.url()]);
        to_the_end(command)
    };
    let ran = bench(&password, &file("coordinator.nk", coordinator.0));
    assert_eq!((ran.code, ran.record().requests.completed), (Some(0), 100), "{ran:?}");
    let text = ran.out + &ran.err;
    assert!(!text.contains("s3cret") && !text.contains(coordinator.0), "{text}");
    // An agent obeys no coordinator that it does not know, and says so.
    let ran = bench(&password, &file("stranger.nk", stranger.0));
    assert!(ran.code == Some(1) && ran.err.contains("a wanted, and found: none"), "{ran:?}");
    lends.says("its signature is not by a key that is accepted here");
    let wrong = file("wrong", &format!("tls://me:guess@127.0.0.1:{}", nats.port));
    let ran = bench(&wrong, &folder.path().join("coordinator.nk"));
    let says = format!("cannot connect to NATS: tls://***@127.0.0.1:{}: ", nats.port);
    assert!(ran.code == Some(1) && ran.err.contains(&says), "{ran:?}");
    assert!(!ran.err.contains("guess"), "{ran:?}");
}
