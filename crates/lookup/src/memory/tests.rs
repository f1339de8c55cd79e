use super::*;
use crate::allow::Allow;

const SECOND: u64 = 1024; // a whole number of ticks, so that ages come out even

fn memory(change: impl FnOnce(&mut MemoryTier)) -> Memory {
    let mut settings = MemoryTier {
        ttl: Duration::from_millis(60 * SECOND),
        negative_ttl: Duration::from_millis(5 * SECOND),
        jitter: 0.0,
        refresh_ahead: None,
        stale_if_error: Duration::from_millis(600 * SECOND),
        ..MemoryTier::default()
    };
    change(&mut settings);
    Memory::new(settings)
}

fn targets(text: &str) -> Targets {
    Targets::parse(text.as_bytes(), &Allow::any()).unwrap()
}

fn keep(memory: &Memory, key: &str, now: u64) -> Duration {
    memory.keep(key, &StoreAnswer::Targets(targets("10.0.0.1:81")), Tier::Sql, now, 0.5, memory.purges())
}

fn refuse(memory: &Memory, key: &str, now: u64) {
    memory.keep(key, &StoreAnswer::Refusal(None), Tier::Sql, now, 0.5, memory.purges());
}

/// `hit`, `hit, refresh`, `negative`..., `expired`, `expired, asks`, `missing`.
fn find(memory: &Memory, key: &str, now: u64) -> String {
    match memory.find(key, || now) {
        MemoryResult::Fresh { answer, refresh: false } => answer.outcome.name().to_owned(),
        MemoryResult::Fresh { answer, refresh: true } => format!("{}, refresh", answer.outcome.name()),
        MemoryResult::Expired { ask: false, .. } => "expired".to_owned(),
        MemoryResult::Expired { ask: true, .. } => "expired, asks".to_owned(),
        MemoryResult::Missing => "missing".to_owned(),
    }
}

#[test]
fn an_answer_lives_as_long_as_its_ttl() {
    let memory = memory(|_| {});
    assert_eq!(memory.find("a", || 0), MemoryResult::Missing);
    keep(&memory, "a", SECOND);
    let expected = Answer {
        outcome: Outcome::Hit(targets("10.0.0.1:81")),
        tier: Tier::Memory,
        age: Duration::from_millis(20 * SECOND),
        ttl_left: Duration::from_millis(40 * SECOND),
    };
    assert_eq!(memory.find("a", || 21 * SECOND), MemoryResult::Fresh { answer: expected, refresh: false });
    assert_eq!(find(&memory, "a", 61 * SECOND - TICK_MS), "hit");
    assert_eq!(find(&memory, "a", 61 * SECOND), "expired, asks");
    assert_eq!(find(&memory, "a", 661 * SECOND - TICK_MS), "expired, asks");
    assert_eq!(find(&memory, "a", 661 * SECOND), "missing");
}

#[test]
fn a_clock_that_goes_round_changes_nothing() {
    let memory = memory(|_| {});
    let end = (u64::from(u32::MAX) + 1) * TICK_MS;
    keep(&memory, "a", end - SECOND);
    assert_eq!(find(&memory, "a", end + 58 * SECOND), "hit");
    assert_eq!(find(&memory, "a", end + 60 * SECOND), "expired, asks");
}

#[test]
fn who_has_an_older_clock_finds_what_is_new() {
    let memory = memory(|_| {});
    keep(&memory, "a", 10 * SECOND);
    assert_eq!(find(&memory, "a", 10 * SECOND - TICK_MS), "hit");
}

#[test]
fn refusals_have_their_own_ttl_and_reason() {
    let memory = memory(|_| {});
    refuse(&memory, "a", 0);
    assert_eq!(find(&memory, "a", 4 * SECOND), "negative");
    assert_eq!(find(&memory, "a", 5 * SECOND), "missing");
    let invalid = StoreAnswer::Refusal(Some("no target".into()));
    memory.keep("a", &invalid, Tier::Memcached, 0, 0.5, memory.purges());
    let MemoryResult::Fresh { answer, .. } = memory.find("a", || 0) else { panic!("it was kept") };
    assert_eq!(answer.outcome, Outcome::Invalid("no target".into()));
    // Each replaces the other, both ways.
    keep(&memory, "a", 0);
    assert_eq!(find(&memory, "a", 0), "hit");
    refuse(&memory, "a", 0);
    assert_eq!(find(&memory, "a", 0), "negative");
    let counts = memory.counts();
    assert_eq!((counts.entries, counts.negative_entries), (0, 1));
}

#[test]
fn unknown_keys_push_out_no_value() {
    let memory = memory(|settings| (settings.entries, settings.negative_entries) = (2000, 1000));
    for n in 0..1000 {
        keep(&memory, &format!("known-{n}"), 0);
    }
    (0..10_000).for_each(|n| refuse(&memory, &format!("unknown-{n}"), 0));
    assert!((0..1000).all(|n| find(&memory, &format!("known-{n}"), 0) == "hit"));
    let counts = memory.counts();
    assert_eq!((counts.entries, counts.evictions, counts.negative_evictions), (1000, 0, 9000));
}

#[test]
fn a_refresh_ahead_is_said_once() {
    let memory = memory(|settings| settings.refresh_ahead = Some(0.5));
    keep(&memory, "a", 0);
    assert_eq!(find(&memory, "a", 29 * SECOND), "hit");
    assert_eq!(find(&memory, "a", 30 * SECOND), "hit, refresh");
    assert_eq!(find(&memory, "a", 30 * SECOND), "hit");
    // The refresh brought no answer, so it is requested again later.
    assert_eq!(find(&memory, "a", 32 * SECOND), "hit, refresh");
    // This one did.
    keep(&memory, "a", 33 * SECOND);
    assert_eq!(find(&memory, "a", 62 * SECOND), "hit");
}

#[test]
fn after_a_failure_what_has_expired_is_used_without_asking() {
    let memory = memory(|_| {});
    keep(&memory, "a", 0);
    assert_eq!(find(&memory, "a", 70 * SECOND), "expired, asks");
    memory.could_not_ask("a", 70 * SECOND);
    assert_eq!(find(&memory, "a", 70 * SECOND), "expired");
    assert_eq!(find(&memory, "a", 71 * SECOND), "expired, asks");
}

#[test]
fn jitter_spreads_the_ends() {
    let memory = memory(|settings| settings.jitter = 0.1);
    for (chance, ttl) in [(0.0, 54), (0.5, 60), (1.0, 66)] {
        let kept = memory.keep("a", &StoreAnswer::Targets(targets("a")), Tier::Sql, 0, chance, 0);
        assert_eq!(kept, Duration::from_millis(ttl * SECOND));
        let left = memory.peek("a", 0).unwrap().ttl_left;
        assert!(kept - left < Duration::from_millis(TICK_MS), "{left:?}");
    }
}

#[test]
fn a_purge_is_not_undone_by_what_was_asked_before() {
    let memory = memory(|_| {});
    let before = memory.purges();
    keep(&memory, "a", 0);
    keep(&memory, "ab", 0);
    refuse(&memory, "b", 0);
    assert!(memory.purge("a") && !memory.purge("a"));
    memory.keep("a", &StoreAnswer::Targets(targets("old")), Tier::Sql, 0, 0.5, before);
    assert_eq!(find(&memory, "a", 0), "missing");
    keep(&memory, "a", 0);
    assert_eq!(memory.purge_prefix("a"), 2);
    assert_eq!((find(&memory, "ab", 0).as_str(), find(&memory, "b", 0).as_str()), ("missing", "negative"));
    assert_eq!(memory.purge_prefix(""), 1);
    assert_eq!(find(&memory, "b", 0), "missing");
}

#[test]
fn what_is_kept_can_be_looked_at() {
    let memory = memory(|_| {});
    assert_eq!(memory.peek("a", 0), None);
    keep(&memory, "a", 0);
    let kept = memory.peek("a", 70 * SECOND).unwrap();
    assert_eq!((kept.from, kept.value), (Tier::Sql, Ok(targets("10.0.0.1:81"))));
    assert_eq!((kept.age, kept.ttl_left), (Duration::from_millis(70 * SECOND), Duration::ZERO));
    assert_eq!(kept.stale_left, Duration::from_millis(590 * SECOND));
    assert_eq!(memory.counts().hits, 0, "looking is no use");
}

#[test]
fn times_are_a_word() {
    for asked in [false, true] {
        for (since, ttl) in [(0, 1), (u32::MAX, 1), (7, ASKED - 1)] {
            let times = Times { since, ttl, asked };
            assert_eq!(Times::from_word(times.to_word()), times);
        }
    }
    assert_eq!(ticks(Duration::MAX), ASKED - 1);
}

#[test]
fn notes_are_half_a_word() {
    for from in [Tier::Memory, Tier::Memcached, Tier::Sql, Tier::None] {
        for (age, asked_at) in [(0, 0), (1, 2), (2, 2), (u32::MAX, (1 << 31) - 2)] {
            let mut note = Note::new(from);
            note.set_ask_at(age);
            assert_eq!((note.from(), note.ask_at()), (from, asked_at));
        }
    }
}

/// Values that fit into a word survive it, and others are stored elsewhere.
#[test]
fn targets_come_out_as_they_went_in() {
    let memory = memory(|_| {});
    let cases = [
        "0.0.0.0:1",
        "255.255.255.255:65535",
        "h2c://0.0.0.0:1",
        "h2c://255.255.255.255:65535",
        "[::1]:80",
        "h2c://[::1]:80",
        "app.internal:81",
        "h2c+unix:/a",
        r#"["10.0.0.1", "h2c://10.0.0.1"]"#,
    ];
    for (n, case) in cases.into_iter().enumerate() {
        let targets = targets(case);
        assert_eq!(cache::Value::to_word(&targets).is_some(), n < 4, "{case}");
        for key in [format!("{n}"), format!("{n}-again")] {
            memory.keep(&key, &StoreAnswer::Targets(targets.clone()), Tier::Sql, 0, 0.5, 0);
            assert_eq!(memory.peek(&key, 0).unwrap().value, Ok(targets.clone()));
            let MemoryResult::Fresh { answer, .. } = memory.find(&key, || 0) else { panic!("it was kept") };
            assert_eq!(answer.outcome, Outcome::Hit(targets.clone()));
        }
    }
}
