//! Two accounts of one situation, by Debian's `start_server` and by `oroshi start`, which must agree.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;

use super::{Kind, World, have};

/// One row: its name, what is done, and where the two are meant to differ.
pub type Situation = (&'static str, fn(&mut World), &'static [Difference]);

/// A line of `start_server`'s account, and what stands there with `oroshi start` instead. Either may be missing.
pub type Difference = (Option<&'static str>, Option<&'static str>);

/// As many situations at once. They wait most of the time.
const LANES: usize = 16;

/// `start_server` knows by time alone whether a child is well: on a busy machine one may take longer to begin, or to
/// die, than it is given. Two accounts that differ are therefore taken again with more time, and must differ each time.
const INTERVALS: [u32; 3] = [1, 3, 9];

/// Runs the table, and fails with all that differs.
#[track_caller]
pub fn compare(test: &str, table: &[Situation]) {
    if !have(test, &["start_server", "perl"]) {
        return;
    }
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..LANES.min(table.len()) {
            scope.spawn(|| {
                while let Some(situation) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = same(situation) {
                        failures.lock().unwrap().insert(situation.0, why);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let text: String = failures.iter().map(|(name, why)| format!("\n== {name}\n{why}")).collect();
    assert!(failures.is_empty(), "{} of {} situations differ:{text}", failures.len(), table.len());
}

fn same(&(_, situation, differences): &Situation) -> Result<(), String> {
    let mut why = String::new();
    for interval in INTERVALS {
        let accounts = std::thread::scope(|scope| {
            [Kind::Theirs, Kind::Ours]
                .map(|kind| scope.spawn(move || account(kind, interval, situation)))
                .map(|thread| thread.join().unwrap())
        });
        let [theirs, ours] = accounts;
        why = match (theirs, ours) {
            (Ok(theirs), Ok(ours)) => match difference(&theirs, &ours, differences) {
                None => return Ok(()),
                Some(why) => why,
            },
            (theirs, ours) => {
                let told = |who: &str, account: Result<_, String>| account.err().map(|why| format!("{who}: {why}\n"));
                told("start_server", theirs).into_iter().chain(told("oroshi start", ours)).collect()
            }
        };
    }
    Err(why)
}

/// What a situation came to, or where it got stuck.
fn account(kind: Kind, interval: u32, situation: fn(&mut World)) -> Result<Vec<String>, String> {
    let mut world = World::new(kind);
    world.interval = interval;
    let done = catch_unwind(AssertUnwindSafe(|| situation(&mut world)));
    match done {
        Ok(()) => Ok(world.account()),
        Err(panic) => Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".into())),
    }
}

fn difference(theirs: &[String], ours: &[String], differences: &[Difference]) -> Option<String> {
    let (mut expected, mut ours) = (theirs.to_vec(), ours.to_vec());
    let gone = |lines: &[String], line| {
        Some(format!("  they were to differ in `{line}`, which is not there any more:\n{lines:#?}\n"))
    };
    for difference in differences {
        // The last such line: what comes first is alike.
        match *difference {
            (Some(line), instead) => match (expected.iter().rposition(|other| other == line), instead) {
                (Some(at), Some(instead)) => expected[at] = instead.to_owned(),
                (Some(at), None) => _ = expected.remove(at),
                (None, _) => return gone(&expected, line),
            },
            (None, Some(line)) => match ours.iter().rposition(|other| other == line) {
                Some(at) => _ = ours.remove(at),
                None => return gone(&ours, line),
            },
            (None, None) => {}
        }
    }
    if expected == ours {
        return None;
    }
    let only = |these: &[String], those: &[String], who: &str| {
        these.iter().filter(|line| !those.contains(line)).map(|line| format!("{who} {line}\n")).collect::<String>()
    };
    let text = only(&expected, &ours, "  start_server:") + &only(&ours, &expected, "  oroshi start:");
    Some(if text.is_empty() { format!("the same in another order:\n{expected:#?}\n{ours:#?}") } else { text })
}

/// Ends it by TERM.
pub fn ends(w: &mut World) {
    w.send(Signal::TERM);
    let code = w.end();
    w.note(format!("ended with {code:?}"));
}
