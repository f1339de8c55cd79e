//! The link's limits.

use oroshi_words::Secret;

use super::*;
use crate::cluster::wire::{Presence, Watch, decode};
use crate::presence::Part;

/// Whoever polls keys that no session has must not have the nodes do nothing but answer each other.
#[test]
fn no_more_polls_wait_for_other_nodes_than_may() {
    let (name, receipt_timeout) = (String::new(), Duration::ZERO);
    let (link, _end) = Link::new(&Cluster { nats: Secret::new(""), name, receipt_timeout, history: None });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = || runtime.block_on(link.poll("key", "token", 0, Duration::ZERO));
    assert_eq!(ask(), Err(PollError::Unreached));
    let all = link.forwarded.try_acquire_many(MOST_FORWARDED as u32).unwrap();
    assert_eq!(ask(), Err(PollError::Crowded));
    let commands = runtime.block_on(link.commands("key", "token", Vec::new()));
    assert_eq!(commands, Err(PollError::Crowded));
    drop(all);
    assert_eq!(ask(), Err(PollError::Unreached), "each leaves its place");
}

/// Once each answer was a message of its own. Those to a node that watched very many channels filled the waiting room.
#[test]
fn answers_about_very_many_channels_leave_room_for_publishes() {
    const MANY: usize = 100_000;
    let (name, receipt_timeout) = (String::new(), Duration::ZERO);
    let (link, _end) = Link::new(&Cluster { nats: Secret::new(""), name, receipt_timeout, history: None });
    let watch = Watch { feed: 5, ..Watch::default() };
    assert_eq!(link.note_watch(2, &watch, 0), Watched::Opened);
    let (mut number, mut at) = (0, 0);
    for _ in 0..2 {
        for channel in 0..MANY {
            let part = Part::List(vec![Member { client: channel as u64, user: Some("ann".into()) }]);
            link.tell_presence(2, 5, &Arc::from(format!("room:{channel}")), part);
        }
        assert!(link.room.available_permits() > WAITING_KIB / 4 * 3);
        link.tell_numbers();
        let (frames, room) = link.take_presence(2);
        assert!(room.is_some_and(|room| room.num_permits() < WAITING_KIB / 4), "until they are sent");
        assert!(frames.len() < MANY / 500, "{} messages", frames.len());
        assert_eq!(link.room.available_permits(), WAITING_KIB, "all is taken");
        for frame in &frames {
            assert!(frame.len() <= 64 * 1024, "{} bytes", frame.len());
            let (_, Body::Presence(Presence { feed, number: its, parts, .. })) = decode(frame, 1000).unwrap() else {
                panic!("another message");
            };
            number += u64::from(!parts.is_empty());
            assert_eq!((feed, its), (5, number));
            for (channel, _) in parts {
                assert_eq!(*channel, *format!("room:{}", at % MANY));
                at += 1;
            }
        }
    }
    assert_eq!(at, 2 * MANY);
    link.tell_presence(2, 4, &Arc::from("room:0"), Part::Count(1));
    assert!(link.take_presence(2).0.is_empty(), "its feed has another number");
    // What is lost shows.
    link.tell_presence(2, 5, &Arc::from("room:0"), Part::Count(1));
    link.drop_presence();
    link.tell_presence(2, 5, &Arc::from("room:0"), Part::Count(1));
    let (_, Body::Presence(told)) = decode(&link.take_presence(2).0[0], 1000).unwrap() else {
        panic!("another message");
    };
    assert_eq!(told.number, number + 2);
}
