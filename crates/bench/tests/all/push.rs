//! Loads of subscriptions against a hub that does what it should, or one of the things that it should not: exact
//! counts.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::HANG;
use crate::support::hub::{Does, Hub, Settings, Takes};
use crate::support::load::SHORT;
use oroshi_bench::follow::Stage;
use oroshi_bench::push::{Draft, Mode, Publishing, PublishingTo, Record, run};
use oroshi_bench::{Draft as Base, Failure, Load, Observer, Progress, Spacing, Watching};

/// `connections` at this hub, and `messages` for all, one at a time.
fn draft(hub: &Hub, mode: Mode, connections: usize, messages: u64) -> Draft {
    let publishing = Publishing { url: hub.publish("publish").parse().unwrap(), headers: Vec::new(), publishers: 1 };
    Draft {
        base: Base {
            urls: vec![hub.url(mode.name()).parse().unwrap()],
            connections,
            requests: Some(messages),
            timeout: HANG,
            watch: Watching::None,
            ..Base::default()
        },
        mode,
        publish: Some(publishing),
        ..Draft::default()
    }
}

/// Carries out a draft, and checks what is true of every record.
#[track_caller]
fn record(draft: Draft) -> Record {
    record_seen(draft, &mut ())
}

#[track_caller]
fn record_seen(draft: Draft, observer: &mut dyn Observer) -> Record {
    let record = run(draft.plan().unwrap(), observer).unwrap();
    let subscriptions = &record.subscriptions;
    assert_eq!(subscriptions.opened + subscriptions.failed(), record.plan.connections as u64);
    assert_eq!(subscriptions.opening.summary.count, subscriptions.opened);
    for posted in [&record.published, &record.published_to_one].into_iter().flatten() {
        assert_eq!(posted.due, posted.confirmed + posted.failed + posted.unsent);
        assert_eq!(posted.failures.values().sum::<u64>(), posted.failed, "{:?}", posted.failures);
    }
    let deliveries = &record.deliveries;
    assert_eq!(deliveries.delay.summary.count, deliveries.delivered);
    assert!(deliveries.lost_on_ended <= deliveries.lost);
    if let Some(to_one) = &record.deliveries_to_one {
        assert_eq!(to_one.delay.summary.count, to_one.delivered);
    }
    let json = serde_json::to_string(&record).unwrap();
    let back: Record = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), json);
    record
}

/// Delivered, lost, come twice, come late.
fn came(record: &Record) -> [u64; 4] {
    let deliveries = &record.deliveries;
    [deliveries.delivered, deliveries.lost, deliveries.duplicated, deliveries.reordered]
}

#[test]
fn every_message_comes_to_everybody_in_each_of_the_three_ways() {
    for mode in [Mode::Ws, Mode::Sse, Mode::Stream] {
        let hub = Hub::start(Settings::default());
        let record = record(draft(&hub, mode, 20, 50));
        assert_eq!(came(&record), [1000, 0, 0, 0], "{mode:?}");
        let Record { subscriptions, published, deliveries, .. } = &record;
        assert_eq!((subscriptions.opened, subscriptions.ended.len()), (20, 0));
        let published = published.as_ref().unwrap();
        assert_eq!((published.confirmed, &published.statuses), (50, &BTreeMap::from([(200, 50)])));
        assert_eq!(deliveries.expected, Some(1000));
        // The greeting came before anything was counted.
        assert_eq!((deliveries.messages, deliveries.unstamped, deliveries.foreign), (1000, 0, 0), "{mode:?}");
        assert!(deliveries.bytes >= 100 * 1000);
        if mode == Mode::Ws {
            assert_eq!(hub.pongs.load(Ordering::Relaxed), 20, "pings are answered");
        }
    }
}

#[test]
fn compressed_messages_are_read_if_the_headers_offer_that() {
    let hub = Hub::start(Settings::default());
    let bytes = |headers: Vec<(String, String)>| {
        let mut draft = draft(&hub, Mode::Ws, 5, 20);
        draft.base.headers = headers;
        draft.message_bytes = 2000;
        let record = record(draft);
        assert_eq!(came(&record), [100, 0, 0, 0]);
        record.deliveries.bytes
    };
    let offer = ("Sec-WebSocket-Extensions".to_owned(), oroshi_websocket::deflate::OFFER.to_owned());
    let (plain, compressed) = (bytes(Vec::new()), bytes(vec![offer]));
    assert!(compressed < plain / 4, "{compressed} of {plain} bytes");
}

#[test]
fn many_publishers_and_several_threads() {
    let hub = Hub::start(Settings::default());
    let mut draft = draft(&hub, Mode::Ws, 31, 200);
    draft.base.threads = Some(3);
    draft.publish.as_mut().unwrap().publishers = 16;
    draft.connecting = 4;
    // Subscriptions come from these, and posts from wherever they may.
    draft.base.sources = vec!["127.0.0.2".parse().unwrap(), "127.0.0.3".parse().unwrap()];
    let record = record(draft);
    assert_eq!(came(&record), [31 * 200, 0, 0, 0]);
    assert_eq!(record.generator.thread_cpu.len(), 3);
}

#[test]
fn a_timetable_is_kept_and_a_warm_up_is_not_counted() {
    let hub = Hub::start(Settings::default());
    let mut draft = draft(&hub, Mode::Sse, 5, 20);
    draft.base.load = Load::rate(500.0, Spacing::Constant, 0);
    draft.base.warmup = Duration::from_millis(30);
    let record = record(draft);
    assert_eq!(came(&record), [100, 0, 0, 0]);
    assert!(record.deliveries.messages >= 100 && record.plan.warmup_s > 0.0);
}

#[test]
fn what_is_dropped_is_missed() {
    let hub = Hub::start(Settings {
        does: |index, _| if index % 3 == 2 { Does::Drop } else { Does::Deliver },
        ..Settings::default()
    });
    let mut draft = draft(&hub, Mode::Ws, 10, 30);
    // Nothing says that what is missing will not come after all: but for the time.
    draft.base.timeout = SHORT;
    assert_eq!(came(&record(draft)), [200, 100, 0, 0]);
}

#[test]
fn what_comes_twice_or_late_is_told() {
    let hub = Hub::start(Settings {
        does: |index, n| match (index, n) {
            (5, 0) => Does::DeliverTwice,
            (7, 1) => Does::DeliverLate,
            _ => Does::Deliver,
        },
        ..Settings::default()
    });
    for mode in [Mode::Stream, Mode::Ws] {
        let (twice, late) = if mode == Mode::Stream { (1, 1) } else { (0, 0) };
        // Indices go on: the second run meets no fault.
        assert_eq!(came(&record(draft(&hub, mode, 4, 20))), [80, 0, twice, late], "{mode:?}");
    }
}

#[test]
fn subscriptions_that_the_hub_closes_are_told_with_what_they_missed() {
    for (mode, end) in [(Mode::Ws, "close-1012"), (Mode::Sse, "end-of-response"), (Mode::Stream, "end-of-response")] {
        let hub = Hub::start(Settings {
            does: |index, n| if index == 10 && n % 2 == 0 { Does::Close(1012) } else { Does::Deliver },
            ..Settings::default()
        });
        let record = record(draft(&hub, mode, 8, 30));
        assert_eq!(came(&record), [4 * 30 + 4 * 10, 4 * 20, 0, 0], "{mode:?}");
        assert_eq!(record.deliveries.lost_on_ended, 4 * 20);
        assert_eq!(record.subscriptions.ended, BTreeMap::from([(end.to_owned(), 4)]));
    }
}

#[test]
fn those_who_are_refused_or_kept_waiting_are_told_by_name() {
    let hub = Hub::start(Settings {
        takes: |n| match n % 4 {
            0 => Takes::Refuses(503),
            1 => Takes::Stalls,
            _ => Takes::Yes,
        },
        ..Settings::default()
    });
    for mode in [Mode::Ws, Mode::Sse] {
        let mut draft = draft(&hub, mode, 8, 5);
        draft.base.timeout = SHORT;
        let record = record(draft);
        let expected = BTreeMap::from([(Failure::Status, 2), (Failure::Timeout, 2)]);
        assert_eq!(record.subscriptions.failures, expected);
        assert_eq!(record.subscriptions.statuses, BTreeMap::from([(503, 2)]));
        assert_eq!(came(&record), [4 * 5, 0, 0, 0]);
    }
    // A WebSocket that is asked for in another way is none.
    let mut wrong = draft(&hub, Mode::Sse, 4, 1);
    wrong.base.urls = vec![hub.url("stream").parse().unwrap()];
    wrong.base.timeout = SHORT;
    assert_eq!(record(wrong).subscriptions.failures[&Failure::Check], 2);
}

#[test]
fn what_was_not_confirmed_is_not_expected() {
    let hub = Hub::start(Settings {
        answers: |index| if index % 4 == 0 { 500 } else { 201 },
        does: |index, _| if index % 8 == 0 { Does::Drop } else { Does::Deliver },
        ..Settings::default()
    });
    let mut draft = draft(&hub, Mode::Ws, 3, 40);
    draft.base.timeout = SHORT;
    let record = record(draft);
    // Of the ten that failed, five came all the same.
    assert_eq!(came(&record), [3 * 35, 0, 0, 0]);
    assert_eq!(record.deliveries.expected, Some(3 * 30));
    let published = record.published.unwrap();
    assert_eq!((published.confirmed, published.failed), (30, 10));
    assert_eq!(published.statuses, BTreeMap::from([(201, 30), (500, 10)]));
}

#[test]
fn messages_for_one_go_beside_those_for_all() {
    let to_one = |hub: &Hub| PublishingTo {
        url: hub.publish("send/{n}").parse().unwrap(),
        headers: Vec::new(),
        body: Vec::new(),
        rate: 400.0,
    };
    let hub = Hub::start(Settings::default());
    let mut beside = draft(&hub, Mode::Ws, 6, 100);
    beside.base.load = Load::rate(500.0, Spacing::Constant, 0);
    beside.publish_to = Some(to_one(&hub));
    let record_beside = record(beside);
    assert_eq!(came(&record_beside), [600, 0, 0, 0]);
    let (posted, came_to_one) = (record_beside.published_to_one.unwrap(), record_beside.deliveries_to_one.unwrap());
    assert!(posted.confirmed > 20, "{}", posted.confirmed);
    assert_eq!((came_to_one.delivered, came_to_one.lost), (posted.confirmed, 0));
    assert_eq!((came_to_one.duplicated, came_to_one.misdirected), (0, 0));

    // They are the requests where nothing goes to all.
    let mut alone = draft(&hub, Mode::Ws, 6, 100);
    (alone.publish, alone.publish_to) = (None, Some(to_one(&hub)));
    alone.base.requests = None;
    alone.base.duration = Some(Duration::from_millis(200));
    let record_alone = record(alone);
    let (to_one_alone, requests) = (record_alone.deliveries_to_one.clone().unwrap(), record_alone.as_requests());
    assert!(to_one_alone.delivered > 20, "{to_one_alone:?}");
    assert_eq!((requests.requests.completed, requests.requests.failed), (to_one_alone.delivered, 0));
    assert_eq!(requests.latency.response.summary.count, to_one_alone.delivered);

    let hub = Hub::start(Settings { routes: |n| (n + 1) % 6, ..Settings::default() });
    let mut wrong = draft(&hub, Mode::Ws, 6, 100);
    wrong.base.load = Load::rate(500.0, Spacing::Constant, 0);
    wrong.base.timeout = SHORT;
    wrong.publish_to = Some(to_one(&hub));
    let record_wrong = record(wrong);
    let came_to_one = record_wrong.deliveries_to_one.unwrap();
    assert_eq!(came_to_one.misdirected, record_wrong.published_to_one.unwrap().confirmed);
    assert_eq!((came_to_one.delivered, came_to_one.lost), (0, came_to_one.misdirected));
}

/// A run without an end of its own is not to go on for nobody.
#[test]
fn when_nobody_is_left_the_run_ends() {
    let hub = Hub::start(Settings {
        does: |index, _| if index == 10 { Does::Close(1001) } else { Does::Deliver },
        ..Settings::default()
    });
    let record = record(draft(&hub, Mode::Ws, 3, 1_000_000));
    assert!(record.cut_short && record.warnings.iter().any(|warning| warning.contains("no subscription left")));
    assert_eq!(record.deliveries.delivered, 30);
    let nobody = Hub::start(Settings { takes: |_| Takes::Refuses(403), ..Settings::default() });
    let record = self::record(draft(&nobody, Mode::Ws, 3, 1_000_000));
    assert!(record.cut_short && record.subscriptions.opened == 0 && record.deliveries.expected == Some(0));
}

/// Ends a run when so much has come.
struct UntilCame(u64);

impl Observer for UntilCame {
    fn progress(&mut self, progress: &Progress) {
        if progress.stage == Stage::Measuring && progress.done >= self.0 {
            self.0 = 0;
        }
    }

    fn cancelled(&mut self) -> bool {
        self.0 == 0
    }
}

/// Ends a run when the thread has ended.
struct UntilEnded<'t, T>(&'t std::thread::JoinHandle<T>);

impl<T> Observer for UntilEnded<'_, T> {
    fn progress(&mut self, _: &Progress) {}

    fn cancelled(&mut self) -> bool {
        self.0.is_finished()
    }
}

/// Somebody else publishes: another run, whose messages the first takes for what they are.
#[test]
fn messages_of_others_are_measured_too() {
    let hub = Hub::start(Settings {
        does: |index, n| if index == 4 && n < 100 { Does::Drop } else { Does::Deliver },
        ..Settings::default()
    });
    let mut listening = draft(&hub, Mode::Ws, 5, 1);
    listening.publish = None;
    listening.base.requests = None;
    listening.base.duration = Some(HANG);
    let listener = std::thread::spawn(move || record_seen(listening, &mut UntilCame(5 * 9)));
    // It hears them only once it listens, so one run publishes until it has enough: it counts the run that it hears
    // first.
    let mut publishing = draft(&hub, Mode::Sse, 1, 1);
    publishing.base.urls = vec![hub.url("sse").replace("{n}", "10{n}").parse().unwrap()];
    publishing.base.requests = None;
    publishing.base.duration = Some(HANG);
    publishing.base.load = Load::rate(200.0, Spacing::Constant, 0);
    assert!(record_seen(publishing, &mut UntilEnded(&listener)).cut_short);
    let record = listener.join().unwrap();
    assert!(record.cut_short && record.deliveries.expected.is_none());
    assert!(record.deliveries.delivered >= 45 && record.deliveries.foreign == 0, "{:?}", record.deliveries);
    assert!(record.deliveries.duplicated + record.deliveries.reordered == 0);
}

#[test]
fn what_makes_no_sense_is_said_at_once() {
    let hub = Hub::start(Settings::default());
    let mut wrong = draft(&hub, Mode::Ws, 0, 0);
    wrong.base.body = b"no stamp".to_vec().into();
    wrong.publish.as_mut().unwrap().url = hub.publish("send/{n}").parse().unwrap();
    wrong.connect_rate = Some(0.0);
    let problems: Vec<String> = wrong.plan().unwrap_err().iter().map(ToString::to_string).collect();
    for part in ["number of connections", "number of requests", "{stamp}", "--connect-rate"] {
        assert!(problems.iter().any(|problem| problem.contains(part)), "{part}: {problems:#?}");
    }
    let mut nobody = draft(&hub, Mode::Ws, 1, 1);
    nobody.publish = None;
    assert!(nobody.plan().unwrap_err()[0].to_string().contains("--publish URL"));
}
