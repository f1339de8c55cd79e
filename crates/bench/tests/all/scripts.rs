//! Requests that a script makes: what is sent, what it is told, how it ends a run. The script is one of Rust functions;
//! those in Lua are tested where they are understood.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::support::load::{all_answered, draft, failed, requests, run, run_seen};
use crate::support::peer::{Peer, Place, answers};
use crate::support::{HANG, OK};
use oroshi_bench::{
    CoreScript, Draft, Failure, Load, Observer, RequestTimes, ResponseParts, ResponseView, RunError, Script,
    ScriptError, ScriptFeatures, Spacing, run_then,
};
use oroshi_net::Peer as Address;

/// A script that returns its batches in turn, and again from the first.
#[derive(Default)]
struct Turns {
    batches: Vec<String>,
    features: ScriptFeatures,
    pause: Duration,
    /// The first pause is none, and the others last a day.
    one_pause: bool,
    /// The n-th call of `request` fails, or stops its core.
    fails_at: Option<usize>,
    stops_at: Option<usize>,
    /// Calls of `request` block until they are interrupted.
    hangs: bool,
    calls: Mutex<Vec<String>>,
    interrupted: AtomicBool,
    released: (Mutex<bool>, Condvar),
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turns")
    }
}

impl Turns {
    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn called(&self, what: impl Into<String>) {
        self.calls.lock().unwrap().push(what.into());
    }
}

#[derive(Debug)]
struct Part {
    script: Arc<Turns>,
    next: VecDeque<String>,
    made: usize,
    stopped: bool,
}

/// The script, and the draft that has it.
fn scripted(draft: Draft, script: Turns) -> (Arc<Turns>, Draft) {
    let script = Arc::new(script);
    let shared = Shared(Arc::clone(&script));
    (script, Draft { script: Some(Arc::new(shared)), ..draft })
}

#[derive(Debug)]
struct Shared(Arc<Turns>);

impl Script for Shared {
    fn name(&self) -> String {
        "turns".into()
    }

    fn enter(&self, core: usize, peers: &[Address]) -> Result<Box<dyn CoreScript>, ScriptError> {
        assert!(!peers.is_empty());
        self.0.called(format!("enter {core}"));
        if self.0.fails_at == Some(0) {
            return Err(ScriptError { place: "turns:1".into(), what: "no".into() });
        }
        let next = self.0.batches.clone().into();
        Ok(Box::new(Part { script: Arc::clone(&self.0), next, made: 0, stopped: false }))
    }

    fn interrupt(&self) {
        self.0.interrupted.store(true, Ordering::SeqCst);
    }

    fn stuck(&self) -> Option<ScriptError> {
        None
    }

    fn release(&self) {
        *self.0.released.0.lock().unwrap() = true;
        self.0.released.1.notify_all();
    }
}

impl CoreScript for Part {
    fn features(&self) -> ScriptFeatures {
        self.script.features.clone()
    }

    fn begin(&mut self, end: Option<u64>) {
        self.script.called(format!("begin {}", end.is_some()));
    }

    fn delay(&mut self) -> Result<Duration, ScriptError> {
        self.script.called("delay");
        let first = self.script.calls().iter().filter(|call| *call == "delay").count() == 1;
        Ok(if self.script.one_pause && !first { Duration::from_secs(86_400) } else { self.script.pause })
    }

    fn request(&mut self, bytes: &mut Vec<u8>) -> Result<(), ScriptError> {
        self.script.called("request");
        self.made += 1;
        while self.script.hangs && !self.script.interrupted.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        if self.script.fails_at == Some(self.made) || self.script.hangs {
            return Err(ScriptError { place: "turns:7".into(), what: "it broke".into() });
        }
        self.stopped = self.script.stops_at == Some(self.made);
        let batch = self.next.pop_front().unwrap();
        bytes.extend_from_slice(batch.as_bytes());
        self.next.push_back(batch);
        Ok(())
    }

    fn response(&mut self, answer: &ResponseView) -> Result<(), ScriptError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers: Vec<String> = answer.headers().map(|(n, v)| format!("{}={}", text(n), text(v))).collect();
        self.script.called(format!("response {} {} {}", answer.status, headers.join(","), text(&answer.body)));
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.stopped
    }

    fn place(&self, function: &str) -> String {
        format!("turns:{function}")
    }

    fn leave(&mut self) {
        let mut released = self.script.released.0.lock().unwrap();
        while !*released {
            released = self.script.released.1.wait(released).unwrap();
        }
        drop(released);
        self.script.called("left");
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")
}

/// A script that always returns these, in turn.
fn turns(batches: &[&str]) -> Turns {
    Turns { batches: batches.iter().map(|batch| (*batch).to_owned()).collect(), ..Turns::default() }
}

#[test]
fn each_request_is_asked_for_and_sent_once() {
    let peer = Peer::answering(|_| OK.to_vec());
    let (script, draft) = scripted(requests(&peer.url, 5, 1), turns(&[&get("/a"), &get("/b")]));
    let record = run(draft);
    all_answered(&record, 5);
    let targets = peer.seen().targets;
    assert_eq!((targets["/a"], targets["/b"]), (3, 2));
    assert_eq!(script.calls().iter().filter(|call| *call == "request").count(), 5);
    assert_eq!(record.plan.script.as_deref(), Some("turns"));
    assert_eq!(record.plan.origins[0].requests, ["GET /a HTTP/1.1"]);
}

#[test]
fn what_a_script_always_sends_is_never_asked_for() {
    let peer = Peer::answering(|_| OK.to_vec());
    let fixed = "POST /fixed HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi";
    let features = ScriptFeatures { request: Some(fixed.into()), ..ScriptFeatures::default() };
    let (script, draft) = scripted(requests(&peer.url, 4, 2), Turns { features, ..Turns::default() });
    all_answered(&run(draft), 4);
    assert_eq!(peer.seen().targets["/fixed"], 4);
    assert_eq!(script.calls(), ["enter 0", "begin false", "begin false", "left"]);
}

#[test]
fn a_batch_goes_out_at_once_and_its_answers_are_counted_one_by_one() {
    let peer = Peer::answering(|_| OK.to_vec());
    let batch = get("/1") + &get("/2") + &get("/3");
    let (script, draft) = scripted(requests(&peer.url, 7, 1), turns(&[&batch]));
    all_answered(&run(draft), 7);
    let targets = peer.seen().targets;
    assert_eq!((targets["/1"], targets["/2"], targets["/3"]), (3, 2, 2));
    assert_eq!(script.calls().iter().filter(|call| *call == "request").count(), 3);
}

#[test]
fn an_answer_to_head_has_no_body_whatever_it_says() {
    let peer = Peer::answering(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n".to_vec());
    let head = "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n";
    let (_, draft) = scripted(requests(&peer.url, 3, 1), turns(&[head]));
    all_answered(&run(draft), 3);
}

#[test]
fn the_calls_come_in_the_order_of_a_requests_life() {
    const ANSWER: &[u8] = b"HTTP/1.1 201 Created\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
          2\r\nhe\r\n3\r\nllo\r\n0\r\nX-T: 2\r\n\r\n";
    let peer = Peer::answering(|_| ANSWER.to_vec());
    let features = ScriptFeatures {
        delays: true,
        responses: Some(ResponseParts { headers: true, body: true }),
        ..ScriptFeatures::default()
    };
    let pause = Duration::from_millis(2);
    let (script, draft) = scripted(requests(&peer.url, 2, 1), Turns { features, pause, ..turns(&[&get("/")]) });
    let record = run(draft);
    assert_eq!(record.requests.completed, 2);
    let response = "response 201 X-A=1,Transfer-Encoding=chunked,X-T=2 hello";
    let calls = script.calls();
    let calls: Vec<_> = calls.iter().filter(|call| !call.starts_with("begin")).collect();
    assert_eq!(calls, ["enter 0", "delay", "request", response, "delay", "request", response, "left"]);
    // The pause is not part of any request's time.
    assert!(record.elapsed_s >= 0.004);
}

#[test]
fn only_what_is_wanted_is_kept() {
    let peer = Peer::answering(|_| OK.to_vec());
    let features =
        ScriptFeatures { responses: Some(ResponseParts { headers: false, body: false }), ..ScriptFeatures::default() };
    let (script, draft) = scripted(requests(&peer.url, 1, 1), Turns { features, ..turns(&[&get("/")]) });
    all_answered(&run(draft), 1);
    assert!(script.calls().contains(&"response 200  ".to_owned()), "{:?}", script.calls());
}

#[test]
fn pauses_hold_for_requests_that_are_always_the_same_too_and_for_a_connection_per_request() {
    let peer = Peer::answering(|_| OK.to_vec());
    for per_connection in [None, Some(1)] {
        let features = ScriptFeatures { request: Some(get("/").into()), delays: true, ..ScriptFeatures::default() };
        let draft = Draft { requests_per_connection: per_connection, ..requests(&peer.url, 4, 2) };
        let (script, draft) = scripted(draft, Turns { features, pause: Duration::from_millis(1), ..Turns::default() });
        all_answered(&run(draft), 4);
        assert!(script.calls().iter().filter(|call| *call == "delay").count() >= 4);
    }
}

#[test]
fn no_run_waits_for_a_pause_that_nothing_would_follow() {
    let peer = Peer::answering(|_| OK.to_vec());
    for per_connection in [None, Some(1)] {
        // The first pause is none, all others last a day: one of two connections sends what there is to send.
        let features = ScriptFeatures { request: Some(get("/").into()), delays: true, ..ScriptFeatures::default() };
        let draft = Draft { requests_per_connection: per_connection, ..requests(&peer.url, 1, 2) };
        let (_, draft) = scripted(draft, Turns { features, one_pause: true, ..Turns::default() });
        all_answered(&run(draft), 1);
    }
}

#[test]
fn in_an_open_loop_no_arrival_waits_for_a_connection_that_is_free() {
    let peer = Peer::answering(|_| OK.to_vec());
    // As many connections as requests: one is free though all answers come late.
    let open = Draft { load: Load::rate(200.0, Spacing::Constant, 0), ..requests(&peer.url, 5, 5) };
    let (_, draft) = scripted(open, turns(&[&get("/")]));
    let record = run(draft);
    all_answered(&record, 5);
    assert_eq!(record.requests.waited, 0);
}

#[test]
fn the_end_is_known_before_the_warm_up() {
    let peer = Peer::answering(|_| OK.to_vec());
    let (warmup, duration) = (Duration::from_millis(50), Some(Duration::from_millis(50)));
    let (script, draft) = scripted(Draft { warmup, duration, ..draft(&peer.url) }, turns(&[&get("/")]));
    run(draft);
    assert_eq!(script.calls()[..2], ["enter 0", "begin true"]);
}

#[test]
fn a_connection_per_request_says_so() {
    let peer = Peer::answering(|_| OK.to_vec());
    let draft = Draft { requests_per_connection: Some(1), ..requests(&peer.url, 3, 1) };
    let (_, draft) = scripted(draft, turns(&[&get("/a")]));
    let record = run(draft);
    all_answered(&record, 3);
    assert_eq!((peer.seen().last_requests, record.connections.opened), (3, 3));
}

#[test]
fn what_a_server_will_not_answer_is_sent_again_as_it_was() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        if let Some(request) = conn.request() {
            let close = if request.target == "/first" { "Connection: close\r\n" } else { "" };
            conn.send(format!("HTTP/1.1 200 OK\r\n{close}Content-Length: 0\r\n\r\n"));
            if close.is_empty() {
                answers(|_| OK.to_vec())(conn);
            } else {
                conn.close_gently();
            }
        }
    });
    let (script, draft) =
        scripted(requests(&peer.url, 3, 1), turns(&[&(get("/first") + &get("/second") + &get("/third"))]));
    let record = run(draft);
    all_answered(&record, 3);
    assert_eq!(record.connections.opened, 2);
    let targets = peer.seen().targets;
    assert_eq!((targets["/second"], targets["/third"]), (1, 1));
    assert_eq!(script.calls().iter().filter(|call| *call == "request").count(), 1);
}

#[test]
fn connections_go_where_the_script_says() {
    let (asked, other) = (Peer::answering(|_| OK.to_vec()), Peer::answering(|_| OK.to_vec()));
    let address = other.url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let features = ScriptFeatures { peer: Some(Address::Tcp(address)), ..ScriptFeatures::default() };
    let (_, draft) = scripted(requests(&asked.url, 3, 1), Turns { features, ..turns(&[&get("/")]) });
    all_answered(&run(draft), 3);
    assert_eq!((asked.seen().requests, other.seen().requests), (0, 3));
}

#[test]
fn a_script_may_end_its_cores_part() {
    let peer = Peer::answering(|_| OK.to_vec());
    let long = Draft { duration: Some(HANG * 10), ..draft(&peer.url) };
    let (_, draft) = scripted(long, Turns { stops_at: Some(3), ..turns(&[&get("/")]) });
    let record = run(draft);
    assert!((2..=3).contains(&record.requests.completed), "{:?}", record.requests);
    assert!(!record.cut_short);
}

/// The run ends with the script's error, and says this.
#[track_caller]
fn fails(draft: Draft, script: Turns, text: &str) {
    let (_, draft) = scripted(draft, script);
    match oroshi_bench::run(draft.plan().unwrap(), &mut ()).unwrap_err() {
        RunError::Script(error) => assert!(error.to_string().contains(text), "{error}"),
        error => panic!("{error}"),
    }
}

#[test]
fn what_is_wrong_with_a_script_ends_the_run() {
    let peer = Peer::answering(|_| OK.to_vec());
    let few = || requests(&peer.url, 5, 1);
    fails(few(), Turns { fails_at: Some(0), ..turns(&[&get("/")]) }, "turns:1: no");
    fails(few(), Turns { fails_at: Some(3), ..turns(&[&get("/")]) }, "turns:7: it broke");
    let two = Draft { threads: Some(2), duration: Some(HANG * 10), connections: 2, ..draft(&peer.url) };
    fails(two, Turns { fails_at: Some(3), ..turns(&[&get("/")]) }, "turns:7: it broke");
    fails(few(), turns(&["garbage"]), "turns:request: request() returned ");
    fails(few(), turns(&[""]), "request() returned nothing");
    fails(few(), turns(&[&get("/ x")]), "request() returned what is no HTTP request");
    let close = || Draft { requests_per_connection: Some(1), ..few() };
    fails(close(), turns(&[&get("/"), &(get("/") + &get("/"))]), "request() returned 2 requests at once");
    fails(Draft { pipeline: 2, ..few() }, turns(&[&get("/")]), "leave out --pipeline");
    let open = || Draft { load: Load::rate(100.0, Spacing::Constant, 0), ..few() };
    fails(open(), turns(&[&(get("/") + &get("/"))]), "--rate");
    let delays = ScriptFeatures { delays: true, ..ScriptFeatures::default() };
    fails(open(), Turns { features: delays, ..turns(&[&get("/")]) }, "turns:delay: delay() and an open loop");
    let twice = ScriptFeatures { request: Some((get("/") + &get("/")).into()), ..ScriptFeatures::default() };
    fails(few(), Turns { features: twice, ..Turns::default() }, "several requests at once");
}

#[test]
fn one_request_at_a_time_can_be_sent_in_an_open_loop() {
    let peer = Peer::answering(|_| OK.to_vec());
    let open = Draft { load: Load::rate(1000.0, Spacing::Constant, 0), ..requests(&peer.url, 20, 2) };
    let (_, draft) = scripted(open, turns(&[&get("/a"), &get("/b")]));
    all_answered(&run(draft), 20);
    let targets = peer.seen().targets;
    assert_eq!((targets["/a"], targets["/b"]), (10, 10));
}

#[test]
fn a_call_that_does_not_return_is_interrupted_when_the_run_is_given_up() {
    struct GiveUp(Instant);
    impl Observer for GiveUp {
        fn cancelled(&mut self) -> bool {
            self.0.elapsed() > Duration::from_millis(50)
        }
    }
    let peer = Peer::answering(|_| OK.to_vec());
    let (_, draft) =
        scripted(Draft { duration: Some(HANG * 10), ..draft(&peer.url) }, Turns { hangs: true, ..turns(&[]) });
    let error = oroshi_bench::run(draft.plan().unwrap(), &mut GiveUp(Instant::now())).unwrap_err();
    assert!(matches!(error, RunError::Script(_) | RunError::Cancelled), "{error}");
}

#[test]
fn values_can_be_asked_for_after_the_run() {
    let peer = Peer::answering(|_| OK.to_vec());
    let two = Draft { threads: Some(2), ..requests(&peer.url, 4, 2) };
    let (script, draft) = scripted(two, turns(&[&get("/")]));
    let mut seen = None;
    let record = run_then(draft.plan().unwrap(), &mut (), |record| {
        seen = Some((record.requests.completed, script.calls().contains(&"left".to_owned())));
    })
    .unwrap();
    assert_eq!((seen, record.requests.completed), (Some((4, false)), 4));
    assert_eq!(script.calls().iter().filter(|call| *call == "left").count(), 2);
}

/// Keeps what it is handed.
#[derive(Default)]
struct Each(Vec<RequestTimes>);

impl Observer for Each {
    fn requests(&mut self, times: &[RequestTimes]) {
        self.0.extend_from_slice(times);
    }
}

#[test]
fn each_request_has_its_times_in_the_order_of_their_beginnings() {
    let peer = Peer::answering(|_| OK.to_vec());
    for per_connection in [None, Some(1), Some(2)] {
        let draft = Draft {
            connection_times: true,
            each_request: true,
            requests_per_connection: per_connection,
            ..requests(&peer.url, 40, 4)
        };
        let mut each = Each::default();
        let record = run_seen(draft, &mut each);
        all_answered(&record, 40);
        let times = record.connection_times.unwrap();
        assert_eq!((each.0.len(), times.total.summary.count, times.connect.summary.count), (40, 40, 40));
        assert!(each.0.is_sorted_by_key(|times| times.began));
        assert!(each.0.iter().all(|times| times.connect_ns + times.wait_ns <= times.total_ns));
        let connects = each.0.iter().filter(|times| times.connect_ns > 0).count();
        // One may have been opened in vain.
        let least = per_connection.map_or(1, |most| 40 / most);
        assert!((least..=record.connections.opened).contains(&(connects as u64)), "{per_connection:?}: {connects}");
        let sum = |of: fn(&RequestTimes) -> u64| each.0.iter().map(|times| u128::from(of(times))).sum::<u128>();
        assert_eq!(sum(|times| times.total_ns), times.total.histogram.sum());
        assert_eq!(sum(|times| times.total_ns - times.connect_ns), record.latency.service.histogram.sum());
    }
}

#[test]
fn answers_are_told_by_length_by_server_and_by_what_becomes_of_the_connection() {
    let peer = Peer::answering(|request| match request.target.as_str() {
        "/short" => b"HTTP/1.1 200 OK\r\nServer: test/1\r\nContent-Length: 2\r\n\r\nhi".to_vec(),
        "/long" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 404 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_vec(),
    });
    let base = peer.url.trim_end_matches('/');
    let urls = ["/short", "/long", "/none"].map(|path| format!("{base}{path}").parse().unwrap()).to_vec();
    let record = run(Draft { urls, ..requests(&peer.url, 6, 1) });
    assert_eq!(failed(&record, Failure::Status), 2);
    let answers = record.answers;
    assert_eq!((answers.server.as_deref(), answers.first_body_bytes), (Some("test/1"), Some(2)));
    assert_eq!((answers.body_bytes, answers.other_lengths, answers.kept, answers.tls), (14, 4, 4, None));
}
