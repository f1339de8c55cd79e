//! The state of one thread of a worker, in memory that the manager and its workers share. Plain stores and loads, no
//! calls: so the manager sees a stuck request even when the worker's Ruby is stuck.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, fence};

use magnus::{Error, RHash, Ruby};

use crate::clock;

/// Bytes kept of a request line.
pub(crate) const REQUEST_BYTES: usize = 256;

/// The activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// No worker, or none that has reported.
    Empty,
    /// It exists and does not accept yet.
    Starting,
    /// It waits.
    Idle,
    /// The application works on a request.
    App,
    /// An answer is being sent.
    Writing,
    /// It was told to stop and finishes what it has begun.
    Stopping,
    /// A thread that takes no connections until another thread's request leaves it room (`io_bound`).
    Resting,
}

impl State {
    const ALL: [State; 7] =
        [State::Empty, State::Starting, State::Idle, State::App, State::Writing, State::Stopping, State::Resting];

    /// Whether a worker in this state accepts connections, now or later.
    pub(crate) fn serves(self) -> bool {
        matches!(self, State::Idle | State::App | State::Writing)
    }

    pub(crate) fn name(self) -> &'static str {
        ["empty", "starting", "idle", "app", "writing", "stopping", "resting"][self as usize]
    }

    /// Whether a request is under way.
    pub(crate) fn is_busy(self) -> bool {
        matches!(self, State::App | State::Writing)
    }
}

/// The part of one thread of a worker: 1024 bytes. The thread writes all of it except `condemned`.
#[derive(Debug)]
#[repr(C, align(512))]
pub(crate) struct Slot {
    /// Odd while the request line changes.
    version: AtomicU32,
    state: AtomicU8,
    /// Whether the current request's client received a 504.
    pub(crate) told: AtomicBool,
    pub(crate) pid: AtomicI32,
    requests: AtomicU64,
    /// Counts requests from 1; 0 between requests.
    serial: AtomicU64,
    /// Start of the current request, in milliseconds of the monotonic clock.
    began_ms: AtomicU64,
    /// Since when the worker waits for the current request's client, on the same clock; 0 if it does not.
    waits_since_ms: AtomicU64,
    /// Connections that the worker keeps.
    pub(crate) kept: AtomicU32,
    /// Connections that it has handed over.
    pub(crate) handed_over: AtomicU32,
    /// The serial of the request that the manager wants ended with a 504.
    condemned: AtomicU64,
    request_bytes: AtomicU32,
    request: [AtomicU8; REQUEST_BYTES],
    /// Time since a proxy received the request (X-Request-Start), at the application's call.
    pub(crate) queue: QueueTimes,
    /// Time that a request waited for this worker, where the worker can know it.
    pub(crate) wait: QueueTimes,
    /// When the worker began to serve, in milliseconds of the monotonic clock.
    served_since_ms: AtomicU64,
    /// Time without work, in milliseconds, without the current pause.
    idle_ms: AtomicU64,
    /// Since when the worker has no work; 0 while it has.
    idle_since_ms: AtomicU64,
    /// The garbage collector's figures, at most a second old: runs, milliseconds, living objects, allocations.
    pub(crate) gc: [AtomicU64; GC_FIGURES.len()],
}

const _: () = assert!(size_of::<Slot>() == 1024);

/// The figures of Ruby's garbage collector in a slot: the key in `GC.stat`, and the name here.
pub(crate) const GC_FIGURES: [(&str, &str); 4] = [
    ("count", "runs"),
    ("time", "ms"),
    ("heap_live_slots", "live_objects"),
    ("total_allocated_objects", "allocations"),
];

/// The place of the allocations, which never decrease, in [`GC_FIGURES`].
pub(crate) const ALLOCATIONS: usize = 3;

/// Upper bounds of the buckets of [`QueueTimes`], in microseconds. Longer times are in none.
const BUCKETS_US: [u64; 9] = [1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000];

/// A histogram of times in a queue.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct QueueTimes {
    count: AtomicU64,
    sum_us: AtomicU64,
    buckets: [AtomicU64; BUCKETS_US.len()],
}

impl QueueTimes {
    /// Counts a time.
    pub(crate) fn add(&self, us: u64) {
        // One writer: plain additions.
        let add = |place: &AtomicU64, more: u64| place.store(place.load(Relaxed) + more, Relaxed);
        add(&self.count, 1);
        add(&self.sum_us, us);
        if let Some(bucket) = BUCKETS_US.iter().position(|&most_us| us <= most_us) {
            add(&self.buckets[bucket], 1);
        }
    }

    fn clear(&self) {
        for number in [&self.count, &self.sum_us].into_iter().chain(&self.buckets) {
            number.store(0, Relaxed);
        }
    }

    /// Returns the sums of several: count, seconds, and pairs of a bucket's upper bound in seconds and its count.
    pub(crate) fn read<'t>(all: impl Iterator<Item = &'t QueueTimes> + Clone, ruby: &Ruby) -> Result<RHash, Error> {
        let sum = |number: fn(&QueueTimes) -> &AtomicU64| all.clone().map(|it| number(it).load(Relaxed)).sum::<u64>();
        let hash = ruby.hash_new();
        hash.aset(ruby.to_symbol("count"), sum(|it| &it.count))?;
        hash.aset(ruby.to_symbol("sum_s"), sum(|it| &it.sum_us) as f64 / 1e6)?;
        let buckets = ruby.ary_new();
        for (at, most_us) in BUCKETS_US.iter().enumerate() {
            let count = all.clone().map(|it| it.buckets[at].load(Relaxed)).sum::<u64>();
            buckets.push((*most_us as f64 / 1e6, count))?;
        }
        hash.aset(ruby.to_symbol("buckets"), buckets)?;
        Ok(hash)
    }
}

impl Slot {
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Relaxed);
    }

    pub(crate) fn state(&self) -> State {
        let state = usize::from(self.state.load(Relaxed));
        *State::ALL.get(state).unwrap_or(&State::Empty)
    }

    /// Returns the slot's address, which tells slots apart.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Sets the number of kept connections.
    pub(crate) fn keep(&self, connections: usize) {
        self.kept.store(connections as u32, Relaxed);
    }

    /// Returns the number of kept connections.
    pub(crate) fn kept(&self) -> usize {
        self.kept.load(Relaxed) as usize
    }

    /// Counts a connection handed over.
    pub(crate) fn has_handed_over(&self) {
        self.handed_over.fetch_add(1, Relaxed);
    }

    /// Returns the current request's serial; 0 between requests.
    pub(crate) fn serial(&self) -> u64 {
        self.serial.load(Acquire)
    }

    /// Returns the number of requests.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Notes that the worker begins to serve.
    pub(crate) fn begins_to_serve(&self, now_ms: u64) {
        self.served_since_ms.store(now_ms, Relaxed);
    }

    /// Notes that the thread has no work.
    pub(crate) fn rests(&self) {
        self.rests_since(clock::coarse_ms());
    }

    /// Notes that the thread has had no work since then.
    pub(crate) fn rests_since(&self, now_ms: u64) {
        self.idle_since_ms.store(now_ms, Relaxed);
    }

    /// Notes that the pause has ended.
    pub(crate) fn goes_on(&self, now_ms: u64) {
        let since_ms = self.idle_since_ms.load(Relaxed);
        if since_ms != 0 {
            self.idle_ms.store(self.idle_ms.load(Relaxed) + now_ms.saturating_sub(since_ms), Relaxed);
            self.idle_since_ms.store(0, Relaxed);
        }
    }

    /// Publishes the garbage collector's figures, in the order of [`GC_FIGURES`].
    pub(crate) fn publish_gc(&self, figures: [u64; GC_FIGURES.len()]) {
        for (place, figure) in self.gc.iter().zip(figures) {
            place.store(figure, Relaxed);
        }
    }

    /// Returns how long the worker has served, and how long of that it had no work, in seconds.
    pub(crate) fn times(&self) -> (f64, f64) {
        let since_ms = self.served_since_ms.load(Relaxed);
        if since_ms == 0 {
            return (0.0, 0.0);
        }
        let now_ms = clock::coarse_ms();
        let idle_since_ms = self.idle_since_ms.load(Relaxed);
        let pause_ms = if idle_since_ms == 0 { 0 } else { now_ms.saturating_sub(idle_since_ms) };
        let served_ms = now_ms.saturating_sub(since_ms);
        let idle_ms = (self.idle_ms.load(Relaxed) + pause_ms).min(served_ms);
        (served_ms as f64 / 1000.0, idle_ms as f64 / 1000.0)
    }

    pub(crate) fn set_pid(&self, pid: i32) {
        self.pid.store(pid, Relaxed);
    }

    /// Begins a request. Returns its serial.
    pub(crate) fn begin(&self, method: &str, target: &str, http11: bool) -> u64 {
        let serial = self.requests.load(Relaxed) + 1;
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        fence(Release);
        let mut at = self.write(0, method.as_bytes());
        at = self.write(at, b" ");
        at = self.write(at, target.as_bytes());
        at = self.write(at, if http11 { b" HTTP/1.1" } else { b" HTTP/1.0" });
        self.request_bytes.store(at as u32, Relaxed);
        self.began_ms.store(clock::coarse_ms(), Relaxed);
        self.waits_since_ms.store(0, Relaxed);
        self.told.store(false, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
        self.requests.store(serial, Relaxed);
        self.state.store(State::App as u8, Relaxed);
        self.serial.store(serial, Release);
        serial
    }

    /// Ends the request.
    pub(crate) fn end(&self) {
        self.serial.store(0, Release);
    }

    /// Returns the application's time on the current request without waits for its client, in milliseconds.
    pub(crate) fn worked_ms(&self) -> u64 {
        clock::coarse_ms().saturating_sub(self.began_ms.load(Relaxed))
    }

    /// Begins a wait for the client, which is not the application's time.
    pub(crate) fn client_wait_begins(&self) {
        self.waits_since_ms.store(clock::coarse_ms(), Release);
    }

    /// Ends the wait, and moves the request's start by its length.
    pub(crate) fn client_wait_ends(&self) {
        let waited_ms = clock::coarse_ms().saturating_sub(self.waits_since_ms.load(Relaxed));
        self.began_ms.store(self.began_ms.load(Relaxed) + waited_ms, Relaxed);
        // After the new start, so that no reader counts the wait as the application's time.
        self.waits_since_ms.store(0, Release);
    }

    /// Returns the current request's serial, if the manager wants it ended. Safe in a signal handler.
    pub(crate) fn condemned(&self) -> Option<u64> {
        let serial = self.serial.load(Acquire);
        (serial != 0 && self.condemned.load(Acquire) == serial).then_some(serial)
    }

    /// Has the request of this serial ended.
    pub(crate) fn condemn(&self, serial: u64) {
        self.condemned.store(serial, Release);
    }

    /// Whether the current request's client received a 504.
    pub(crate) fn has_told(&self) -> bool {
        self.told.load(Acquire)
    }

    /// Notes that the client received its 504. Safe in a signal handler.
    pub(crate) fn tell(&self) {
        self.told.store(true, Release);
    }

    /// Returns the current request: serial, the application's time, request line. `None` between requests.
    pub(crate) fn present(&self) -> Option<(u64, f64, String)> {
        let serial = self.serial.load(Acquire);
        if serial == 0 {
            return None;
        }
        // The writer is another process and never waits: retry a few times, then take the bytes there are.
        let mut line = Vec::new();
        for _ in 0..100 {
            let version = self.version.load(Acquire);
            let length = (self.request_bytes.load(Relaxed) as usize).min(REQUEST_BYTES);
            line = self.request[..length].iter().map(|byte| byte.load(Relaxed)).collect();
            fence(Acquire);
            if version.is_multiple_of(2) && self.version.load(Relaxed) == version {
                break;
            }
        }
        let until_ms = match self.waits_since_ms.load(Acquire) {
            0 => clock::coarse_ms(),
            since_ms => since_ms,
        };
        let busy_ms = until_ms.saturating_sub(self.began_ms.load(Relaxed));
        Some((serial, busy_ms as f64 / 1000.0, String::from_utf8_lossy(&line).into_owned()))
    }

    pub(crate) fn clear(&self) {
        self.set_state(State::Empty);
        self.set_pid(0);
        self.keep(0);
        self.handed_over.store(0, Relaxed);
        let own = [&self.requests, &self.serial, &self.began_ms, &self.waits_since_ms, &self.condemned];
        let times = [&self.served_since_ms, &self.idle_ms, &self.idle_since_ms];
        for number in own.into_iter().chain(times).chain(&self.gc) {
            number.store(0, Relaxed);
        }
        self.queue.clear();
        self.wait.clear();
        // A killed worker may have left it odd.
        self.version.store(0, Relaxed);
        self.told.store(false, Relaxed);
        self.request_bytes.store(0, Release);
    }

    /// Writes as many bytes as there is room for, and returns their end.
    fn write(&self, at: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(REQUEST_BYTES - at);
        // SAFETY: within the array. Readers are other processes that check `version`; an AtomicU8 is a byte.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.request[at..].as_ptr().cast_mut().cast(), count);
        }
        at + count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoreboard::tests::slot;

    #[test]
    fn a_cleared_slot_is_as_new_whenever_its_worker_was_killed() {
        let slot = slot();
        slot.begin("GET", "/", true);
        slot.client_wait_begins();
        slot.version.store(3, Relaxed); // within the change of the request line
        slot.clear();
        assert_eq!((slot.version.load(Relaxed), slot.present()), (0, None));
        slot.begin("GET", "/next", true);
        assert_eq!(slot.present().map(|(serial, _, line)| (serial, line)), Some((1, "GET /next HTTP/1.1".to_owned())));
    }

    #[test]
    fn idle_time_counts_the_present_pause() {
        let slot = slot();
        let now_ms = clock::coarse_ms();
        slot.begins_to_serve(now_ms - 10_000);
        slot.idle_since_ms.store(now_ms - 9000, Relaxed);
        slot.goes_on(now_ms - 6000);
        slot.goes_on(now_ms);
        assert_eq!(slot.idle_ms.load(Relaxed), 3000);
        slot.idle_since_ms.store(now_ms - 1000, Relaxed);
        let (served_s, idle_s) = slot.times();
        assert!(served_s >= 10.0 && idle_s >= 4.0 && served_s - idle_s <= 6.0, "{served_s} {idle_s}");
    }

    #[test]
    fn a_time_is_in_one_bucket_or_in_none() {
        let slot = slot();
        for us in [0, 1000, 1001, 1_000_000, 1_000_001] {
            slot.queue.add(us);
        }
        let buckets: Vec<u64> = slot.queue.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        assert_eq!(buckets, [2, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((slot.queue.count.load(Relaxed), slot.queue.sum_us.load(Relaxed)), (5, 2_002_002));
        slot.clear();
        assert_eq!(slot.queue.count.load(Relaxed), 0);
    }

    #[test]
    fn time_that_the_client_takes_does_not_count() {
        let slot = slot();
        slot.begin("POST", "/", true);
        let began_ms = clock::coarse_ms() - 10_000;
        slot.began_ms.store(began_ms, Relaxed);
        slot.waits_since_ms.store(began_ms + 1000, Relaxed);
        assert_eq!(slot.present().map(|(_, busy_s, _)| busy_s), Some(1.0));
        slot.client_wait_ends();
        let waited_ms = slot.began_ms.load(Relaxed) - began_ms;
        assert!(waited_ms >= 9000, "{waited_ms}");
        assert_eq!(slot.waits_since_ms.load(Relaxed), 0);
    }
}
