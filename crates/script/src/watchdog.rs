//! The thread that checks calls.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::guard::{Check, Watched};

/// Shortest and longest pause between two checks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// The most time counted between two checks: a stop of the whole process is no script's fault.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// Adds a state to the checks, until it is dropped.
pub(crate) fn watch(watched: &Arc<Watched>) {
    let mut list = WATCHDOG.list();
    list.watched.push(Arc::downgrade(watched));
    WATCHDOG.more.notify_one();
    if !list.is_awake {
        // Without the thread, limits have no effect; a script that needs none runs all the same.
        list.is_awake = thread::Builder::new().name("watchdog".into()).spawn(run).is_ok();
    }
}

/// Returns the memory of this process, bytes, beyond which its states check their shares: half of the machine's.
pub(crate) fn memory() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = machine.totalram as u64 * u64::from(machine.mem_unit);
    // In a container this is its own limit; elsewhere the file does not exist.
    let container = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    machine.min(container.unwrap_or(u64::MAX)) / 2
}

static WATCHDOG: Watchdog =
    Watchdog { list: Mutex::new(WatchList { watched: Vec::new(), is_awake: false }), more: Condvar::new() };

struct Watchdog {
    list: Mutex<WatchList>,
    more: Condvar,
}

struct WatchList {
    watched: Vec<Weak<Watched>>,
    is_awake: bool,
}

impl Watchdog {
    fn list(&self) -> MutexGuard<'_, WatchList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run() {
    let usage = File::open("/proc/self/statm");
    let mut list = WATCHDOG.list();
    let mut last = Instant::now();
    loop {
        let watched: Vec<_> = list.watched.iter().filter_map(Weak::upgrade).collect();
        list.watched.retain(|watched| watched.strong_count() > 0);
        let Some(shortest) = watched.iter().map(|watched| watched.limit).min() else {
            list = WATCHDOG.more.wait(list).unwrap_or_else(PoisonError::into_inner);
            last = Instant::now();
            continue;
        };
        drop(list);
        let memory = usage.as_ref().map_or(Ok(0), memory_used).unwrap_or_default();
        let check = Check { passed: last.elapsed().min(LONGEST_STEP), now_ns: now_ns(), memory };
        last = Instant::now();
        watched.iter().for_each(|watched| watched.check(&check));
        drop(watched);
        thread::sleep((shortest / 4).clamp(PAUSE.0, PAUSE.1));
        list = WATCHDOG.list();
    }
}

/// Returns the memory use of this process, bytes: the second number of `/proc/self/statm`, in pages.
fn memory_used(statm: &File) -> io::Result<u64> {
    let mut text = [0; 128];
    let length = statm.read_at(&mut text, 0)?;
    let pages = str::from_utf8(&text[..length]).ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    Ok(pages.unwrap_or_default() * rustix::param::page_size() as u64)
}

/// CLOCK_MONOTONIC, nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
