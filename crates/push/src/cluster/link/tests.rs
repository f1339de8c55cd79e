//! The link's limits.

use oroshi_words::Secret;

use super::*;

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
