//! Clients that stop reading and go on: every rule for slow clients on every transport, counted to the last message.

use crate::hub::{End, Heard, Hub, Subscriber, TRANSPORTS, Transport};
use oroshi_push::{GroupRule, SlowPolicy};
use serde_json::{Value, json};

/// Bytes of a message.
const MESSAGE: usize = 16 * 1024;

/// How many messages wait for a session at most.
const QUEUED: usize = 8;

/// After the queue was full for the first time, so many more are published.
const BEYOND: u64 = 20;

/// A hub whose group `g` has this rule, and two members of it: one that will be slow, and one that reads.
struct Scene {
    slow: Subscriber,
    reader: Subscriber,
    // Goes last: it would wait for these two.
    hub: Hub,
    published: u64,
    /// Of how many the slow one has heard, be it that they are missing.
    known: u64,
    /// What the receipts say, in sessions.
    matched: u64,
}

impl Scene {
    fn new(rule: SlowPolicy, transport: Transport) -> Scene {
        let hub = Hub::start(|plan| {
            plan.threads = 2;
            plan.limits.session_queue_bytes = QUEUED * (MESSAGE + 100);
            // A question without an answer only acknowledges.
            plan.limits.poll_wait = std::time::Duration::from_millis(20);
            plan.groups =
                vec![GroupRule { pattern: "g".into(), slow: rule, client_may_join: true, ..GroupRule::default() }];
        });
        let [slow, reader] = [(); 2].map(|()| Subscriber::open(&hub, transport, "group=g"));
        Scene { slow, reader, hub, published: 0, known: 0, matched: 0 }
    }

    /// Publishes the next message, which the reader hears.
    fn publish(&mut self, mut envelope: Value) -> Value {
        let number = self.published;
        envelope["text"] = json!(format!("{number} {}", "x".repeat(MESSAGE)));
        let receipt = self.hub.publish(envelope);
        let count = |name: &str| receipt[name].as_u64().unwrap();
        let ends = count("written") + count("queued") + count("dropped") + count("closed");
        assert_eq!(count("matched"), ends, "{receipt}");
        self.published += 1;
        self.matched += count("matched");
        assert_eq!(number_of(&self.reader.text()), number);
        receipt
    }

    /// Publishes to the group until the slow one's queue is full, and some more.
    fn stall(&mut self, envelope: impl Fn(u64) -> Value) {
        let (dropped, mut beyond) = (self.count("dropped"), 0);
        while beyond < BEYOND {
            self.publish(envelope(self.published));
            beyond += u64::from(beyond > 0 || self.count("dropped") > dropped);
        }
    }

    /// What became of all messages so far, in sessions, however long ago their receipts were.
    fn count(&self, outcome: &str) -> u64 {
        self.hub.status()["deliveries"][outcome].as_u64().unwrap()
    }

    /// The slow client reads until each published message has come or is counted as missing.
    fn catch_up(&mut self) -> Vec<Result<u64, u64>> {
        let mut came = Vec::new();
        while self.known < self.published {
            came.push(match self.slow.next() {
                Heard::Gap(lost) => Err(lost),
                Heard::Text(text) => Ok(number_of(&text)),
                other => panic!("{other:?} after {came:?}"),
            });
            self.known += came.last().unwrap().map_or_else(|lost| lost, |_| 1);
        }
        came
    }

    /// Holds what the hub has counted against what came.
    fn adds_up(&mut self, got: u64, lost: u64) {
        self.slow.acknowledge();
        self.reader.acknowledge();
        let deliveries = json!({
            "matched": self.matched,
            "written": self.published + got,
            "dropped": lost,
            "closed": self.matched - self.published - got - lost,
        });
        self.hub.until("everything has ended", |status| status["deliveries"] == deliveries);
        assert_eq!(self.hub.status()["queues"]["bytes"], 0);
    }
}

fn number_of(text: &str) -> u64 {
    text.split_once(' ').unwrap_or_else(|| panic!("{text:.100}")).0.parse().unwrap()
}

#[test]
fn with_drop_oldest_each_gap_says_how_many_are_missing_in_its_place() {
    for transport in TRANSPORTS {
        let mut scene = Scene::new(SlowPolicy::DropOldest, transport);
        let (mut got, mut lost) = (0, 0);
        for _ in 0..2 {
            scene.stall(|_| json!({ "groups": ["g"] }));
            let before = lost;
            for came in scene.catch_up() {
                match came {
                    Ok(number) => {
                        assert_eq!(number, got + lost, "{transport:?}");
                        got += 1;
                    }
                    Err(missing) => lost += missing,
                }
            }
            assert!(lost >= before + BEYOND, "{transport:?}: {lost}");
        }
        scene.adds_up(got, lost);
    }
}

#[test]
fn with_keep_latest_the_newest_of_each_key_arrives() {
    for transport in TRANSPORTS {
        let mut scene = Scene::new(SlowPolicy::KeepLatest, transport);
        let (mut got, mut lost) = (Vec::new(), 0);
        for _ in 0..2 {
            // Each message has one of three keys in turn.
            scene.stall(|number| json!({ "groups": ["g"], "key": (number % 3).to_string() }));
            let came = scene.catch_up();
            lost += came.iter().filter_map(|came| came.err()).sum::<u64>();
            got.extend(came.iter().filter_map(|came| came.ok()));
            assert!(got.is_sorted_by(|a, b| a < b), "{transport:?}: {got:?}");
            let newest = scene.published - 3..scene.published;
            assert!(got.ends_with(&newest.collect::<Vec<_>>()), "{transport:?}: {got:?}");
        }
        scene.adds_up(got.len() as u64, lost);
    }
}

#[test]
fn with_refuse_everything_arrives_but_what_the_publisher_was_told_of() {
    for transport in TRANSPORTS {
        let mut scene = Scene::new(SlowPolicy::Disconnect, transport);
        let (mut queued, mut refused, mut got) = (Vec::new(), 0, 0);
        for _ in 0..2 {
            let until = refused + 3;
            while refused < until {
                let number = scene.published;
                // By name, which refuses whatever the rule of its groups.
                let both = json!([scene.slow.key, scene.reader.key]);
                let receipt = scene.publish(json!({ "sessions": both, "deadline": "10ms" }));
                if receipt["refused"] == json!([scene.slow.key]) {
                    assert_eq!(receipt["dropped"], 1, "{receipt}");
                    refused += 1;
                } else {
                    assert_eq!(receipt["dropped"], 0, "{receipt}");
                    queued.push(number);
                }
            }
            // No gap: what was refused was never the session's.
            for number in &queued[got..] {
                assert_eq!(number_of(&scene.slow.text()), *number, "{transport:?}");
            }
            got = queued.len();
        }
        scene.adds_up(got as u64, refused);
    }
}

#[test]
fn with_disconnect_a_slow_session_ends_and_begins_afresh() {
    for transport in TRANSPORTS {
        let mut scene = Scene::new(SlowPolicy::Disconnect, transport);
        while scene.count("closed") == 0 {
            scene.publish(json!({ "groups": ["g"] }));
        }
        let status = scene.hub.until("it has ended", |status| status["sessions"]["current"] == 1);
        assert_eq!(status["sessions"]["ended"]["slow"], 1, "{transport:?}: {status}");
        // Nobody but the reader is there.
        scene.publish(json!({ "groups": ["g"] }));

        let mut got = 0;
        let end = loop {
            match scene.slow.next() {
                Heard::Text(text) => assert_eq!(number_of(&text), got, "{transport:?}"),
                other => break other,
            }
            got += 1;
        };
        match transport {
            // To whoever polls it is merely unknown.
            Transport::Poll => assert_eq!(end, Heard::End(End::Clean { retry_ms: None })),
            _ => assert_eq!(end, Heard::End(End::Cut), "{transport:?}"),
        }
        // What the kernel had taken may have been lost with the connection; nothing else counts as written.
        scene.reader.acknowledge();
        let written = scene.count("written") - scene.published;
        assert!(got <= written, "{transport:?}: {got} of {written}");
        scene.adds_up(written, 0);

        scene.slow = Subscriber::open(&scene.hub, transport, "group=g");
        scene.publish(json!({ "groups": ["g"] }));
        assert_eq!(number_of(&scene.slow.text()), scene.published - 1, "{transport:?}");
    }
}

/// Readers that are slower than the publishers, but keep reading: publishers wait for them, and nobody loses anything.
#[test]
fn publishers_go_no_faster_than_readers_that_keep_reading() {
    const PUBLISHERS: u64 = 4;
    const EACH: u64 = 300;
    let hub = Hub::start(|plan| {
        plan.threads = 2;
        // However little of this machine a reader has, it takes half of that in a second.
        plan.limits.session_queue_messages = 16;
    });
    let readers: Vec<Subscriber> = (0..4).map(|_| Subscriber::open(&hub, Transport::WebSocket, "")).collect();
    let padding = "x".repeat(2000);
    std::thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            let (hub, padding) = (&hub, &padding);
            scope.spawn(move || {
                for number in 0..EACH {
                    let receipt =
                        hub.publish(json!({ "all": true, "text": format!("{publisher} {number} {padding}") }));
                    assert_eq!((&receipt["matched"], &receipt["closed"]), (&json!(4), &json!(0)), "{receipt}");
                }
            });
        }
        for mut reader in readers {
            scope.spawn(move || {
                let mut next = [0; PUBLISHERS as usize];
                while next.iter().sum::<u64>() < PUBLISHERS * EACH {
                    let text = reader.text();
                    let mut words = text.split(' ').map_while(|word| word.parse::<u64>().ok());
                    let (publisher, number) = (words.next().unwrap() as usize, words.next().unwrap());
                    assert_eq!(number, next[publisher], "of publisher {publisher}");
                    next[publisher] += 1;
                    // What it does with a message.
                    let begun = std::time::Instant::now();
                    while begun.elapsed() < std::time::Duration::from_micros(200) {
                        std::hint::spin_loop();
                    }
                }
            });
        }
    });
    let status = hub.status();
    assert_eq!(status["sessions"]["ended"]["slow"], 0, "{status}");
    assert_eq!(status["deliveries"]["written"], 4 * PUBLISHERS * EACH, "{status}");
}
