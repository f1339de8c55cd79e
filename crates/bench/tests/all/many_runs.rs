//! Many short runs in one process, as an experiment makes them; and records of earlier versions.

use std::time::Duration;

use crate::support::load::{draft, run};
use crate::support::peer::{Peer, Place, answers};
use crate::support::{OK, in_a_process, must_pass, wait_until};
use oroshi_bench::{Draft, Load, Record, Spacing, Watching};
use oroshi_testkit::test_name;

const URLS: &str = "OROSHI_BENCH_TEST_URLS";

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Open descriptors (the one that this look needs among them) and threads of this process.
fn held() -> (usize, usize) {
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

#[test]
fn hundreds_of_runs_in_one_process_leave_nothing_behind() {
    let peers = [Place::Tcp, Place::Unix].map(|place| Peer::start(place, answers(|_| OK.into())));
    let mut command = in_a_process(&[], test_name!("sixty_short_runs"));
    command.env(URLS, peers.each_ref().map(|peer| peer.url.as_str()).join(" "));
    must_pass(command);
}

/// In a process of its own: the peer's threads, and other tests', are not to be counted.
#[test]
#[ignore = "run by the test above, as a process of its own"]
fn sixty_short_runs() {
    let Ok(urls) = std::env::var(URLS) else { return };
    let (tcp, unix) = urls.split_once(' ').unwrap();
    let short = Draft {
        threads: Some(2),
        connections: 8,
        duration: Some(Duration::from_millis(30)),
        // Our parent, who is the server.
        watch: Watching::Pid(std::os::unix::process::parent_id()),
        ..draft(tcp)
    };
    let drafts = [
        short.clone(),
        Draft { warmup: Duration::from_millis(10), urls: vec![unix.parse().unwrap()], ..short.clone() },
        Draft { load: Load::rate(2000.0, Spacing::Constant, 1), hold: 3, interval_histograms: true, ..short.clone() },
    ];
    // What is made once and kept, such as the look at the machine's settings.
    run(short);
    let before = held();
    let (mut answered, mut watched) = (0, 0);
    for _ in 0..20 {
        for draft in &drafts {
            let record = run(draft.clone());
            answered += record.requests.answered;
            watched += usize::from(record.server.is_some());
            // A thread that was joined may be listed for a moment longer.
            wait_until("as many descriptors and threads as before", || held() == before);
        }
    }
    assert!(answered > 0 && watched > 0);
}

/// A record as version 1.0 wrote it: what has been added since is missing, and all else is there.
#[test]
fn a_record_of_version_1_0_is_read() {
    let text = include_str!("../records/oroshi-bench-1.0.json");
    let record: Record = serde_json::from_str(text).unwrap();
    assert_eq!(record.schema, "oroshi-bench/1.0");
    assert_eq!((record.requests.answered, record.latency.service.histogram.len()), (300, 300));
    assert_eq!(record.series.heat, None);
    assert!(record.series.points.iter().all(|point| point.alive.is_none()) && record.series.points.len() == 1);
    let server = record.server.unwrap();
    assert!(server.samples.is_empty() && server.cpu_seconds > 0.0);
}
