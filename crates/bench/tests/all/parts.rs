//! Runs that several processes share: here, threads of one process.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use oroshi_bench::part::{PartFate, Parts as _};
use oroshi_bench::record::{AgentState, Record};
use oroshi_bench::{Delta, Draft, Load, Observer, Part, PartObserver, Spacing, Whole, run_part};
use oroshi_net::monotonic_ns;

use crate::support::load::draft;
use crate::support::peer::Peer;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// One part's end of the channel to the test.
struct Sends {
    index: usize,
    deltas: Sender<(usize, Delta)>,
    starts: Receiver<u64>,
    readies: Sender<usize>,
}

impl Observer for Sends {}

impl PartObserver for Sends {
    fn ready(&mut self) -> Option<u64> {
        self.readies.send(self.index).unwrap();
        self.starts.recv().ok()
    }

    fn delta(&mut self, delta: Delta) {
        self.deltas.send((self.index, delta)).unwrap();
    }
}

/// Carries out a draft in `of` parts, whose deltas travel as bytes. `lost`: a part of which only the first delta comes.
fn shared(draft: &Draft, of: usize, lost: Option<usize>) -> Record {
    let (deltas, all) = channel();
    let (readies, ready) = channel();
    let part = |index| Some(Part { index, of });
    let mut starts = Vec::new();
    let parts: Vec<_> = (0..of)
        .map(|index| {
            let (start, starting) = channel();
            starts.push(start);
            let plan = Draft { part: part(index), ..draft.clone() }.plan().unwrap();
            let mut sends = Sends { index, deltas: deltas.clone(), starts: starting, readies: readies.clone() };
            thread::spawn(move || run_part(plan, &mut sends).unwrap())
        })
        .collect();
    drop(deltas);
    (0..of).for_each(|_| assert!(ready.recv().unwrap() < of));
    let moment = monotonic_ns() + 20_000_000;
    starts.iter().for_each(|start| start.send(moment).unwrap());
    let mut whole = Whole::new(Draft { part: part(0), ..draft.clone() }.plan().unwrap());
    let mut heard = vec![0; of];
    for (index, delta) in all {
        heard[index] += 1;
        if Some(index) == lost && heard[index] > 1 {
            continue;
        }
        let bytes = postcard::to_stdvec(&delta).unwrap();
        whole.add(index, postcard::from_bytes(&bytes).unwrap()).unwrap();
    }
    parts.into_iter().for_each(|part| drop(part.join().unwrap()));
    let fate = |index| PartFate { name: format!("a{index}"), state: AgentState::Done, clock_bound_ns: None };
    whole.finish(&(0..of).map(fate).collect::<Vec<_>>(), Vec::new()).unwrap().unwrap()
}

fn ledger(record: &Record) {
    let r = &record.requests;
    assert_eq!(r.started, r.completed + r.failed + r.cut_off + r.unsent, "{r:?}");
    assert_eq!(record.agents.iter().map(|agent| agent.completed).sum::<u64>(), r.completed);
}

#[test]
fn a_number_of_requests_is_exact_over_all_parts() {
    let peer = Peer::answering(|_| OK.into());
    for (of, n, connections) in [(1, 50, 3), (3, 1000, 7), (4, 1003, 9)] {
        let before = peer.seen().requests;
        let draft =
            Draft { requests: Some(n), connections, threads: Some(2.min(connections / of)), ..draft(&peer.url) };
        let record = shared(&draft, of, None);
        assert_eq!((record.requests.completed, record.requests.started), (n, n));
        assert_eq!(peer.seen().requests - before, n, "the server counts as many");
        assert_eq!(record.latency.service.histogram.len(), n, "histograms merge without loss");
        assert_eq!((record.agents.len(), record.plan.connections), (of, connections));
        assert!(record.agents.iter().all(|agent| agent.state == AgentState::Done && agent.start_late_ns.is_some()));
        ledger(&record);
    }
}

#[test]
fn one_timetable_is_shared_and_its_arrivals_are_all_there() {
    let peer = Peer::answering(|_| OK.into());
    let load = Load::rate(200.0, Spacing::Constant, 0);
    let draft = Draft { load, duration: Some(Duration::from_secs(2)), connections: 8, ..draft(&peer.url) };
    for of in [1, 4] {
        let record = shared(&draft, of, None);
        let due = record.requests.started;
        assert!((398..=402).contains(&due), "{due} due of 400 in {of} parts");
        assert_eq!(record.series.points.iter().map(|point| point.requests).sum::<u64>(), record.requests.answered);
        ledger(&record);
    }
}

#[test]
fn a_part_that_is_lost_counts_as_far_as_it_was_heard_of() {
    let peer = Peer::answering(|_| OK.into());
    let load = Load::rate(200.0, Spacing::Constant, 0);
    let draft = Draft { load, duration: Some(Duration::from_millis(2500)), connections: 4, ..draft(&peer.url) };
    let record = shared(&draft, 2, Some(1));
    let states: Vec<AgentState> = record.agents.iter().map(|agent| agent.state).collect();
    assert_eq!(states, [AgentState::Done, AgentState::Lost]);
    assert!(record.cut_short && record.agents[1].elapsed_s < record.agents[0].elapsed_s);
    assert!(record.agents[1].completed > 0 && record.agents[1].completed < record.agents[0].completed);
    ledger(&record);
}
