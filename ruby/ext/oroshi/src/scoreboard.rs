//! The state of all workers, in memory that the manager and its workers share.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use magnus::scan_args::scan_args;
use magnus::{Error, RArray, RHash, Ruby, Value};

use crate::handover::Queue;
use crate::slot::{ALLOCATIONS, GC_FIGURES, QueueTimes, Slot, State};
use crate::waker::Waker;

/// Maximum number of threads of a worker.
pub(crate) const MOST_THREADS: usize = 256;
/// Maximum number of threads of all workers.
const MOST_SLOTS: usize = 65_536;

/// How many threads a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Threads {
    /// Threads for requests.
    pub(crate) usual: usize,
    /// Maximum number of threads: more than `usual` while requests have called `io_bound`.
    pub(crate) most: usize,
}

/// `Oroshi::Native::Scoreboard`: the slots of all workers. Created before the first fork; never unmapped, because a
/// worker may read its slot until its process ends. A worker's threads have neighbouring slots.
#[derive(Clone, Copy, Debug)]
#[magnus::wrap(class = "Oroshi::Native::Scoreboard", free_immediately, size)]
pub(crate) struct Scoreboard {
    slots: &'static [Slot],
    wakers: &'static [Waker],
    queue: &'static Queue,
    ending: &'static AtomicU32,
    threads: Threads,
}

impl Scoreboard {
    /// `Scoreboard.new(workers, wakers, threads = 1, io_threads = 0)`: wakers: how many workers others can wake.
    pub(crate) fn new(ruby: &Ruby, arguments: &[Value]) -> Result<Self, Error> {
        let arguments = scan_args::<(usize, usize), (Option<usize>, Option<usize>), (), (), (), ()>(arguments)?;
        let ((workers, wakers), (threads, io_threads)) = (arguments.required, arguments.optional);
        let usual = threads.unwrap_or(1);
        let threads = Threads { usual, most: usual.saturating_add(io_threads.unwrap_or(0)) };
        if !(1..=MOST_THREADS).contains(&usual) || threads.most > MOST_THREADS {
            let message =
                format!("a worker has 1 to {MOST_THREADS} threads, not {} with {usual} usual ones", threads.most);
            return Err(Error::new(ruby.exception_arg_error(), message));
        }
        let (slots, wakers) = (workers.saturating_mul(threads.most), wakers.saturating_mul(threads.most));
        if workers == 0 || slots > MOST_SLOTS {
            let message = format!("a scoreboard has 1 to {MOST_SLOTS} threads, not {workers} times {}", threads.most);
            return Err(Error::new(ruby.exception_arg_error(), message));
        }
        // One more slot, with the state common to all.
        let length = (slots + 1) * size_of::<Slot>();
        // SAFETY: fresh memory, unknown to anything else.
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
        };
        if memory == libc::MAP_FAILED {
            let cause = std::io::Error::last_os_error();
            let message = format!("cannot map {length} bytes for a scoreboard of {slots} slots: {cause}");
            return Err(Error::new(ruby.exception_no_mem_error(), message));
        }
        // If descriptors are few, so are connections; a worker without a waker works as if alone.
        let wakers: Vec<Waker> = (0..wakers.min(slots)).map_while(|_| Waker::new().ok()).collect();
        // SAFETY: page-aligned, of the right length, all zeros, which is a valid Slot; mapped until the process ends.
        let all: &'static [Slot] = unsafe { std::slice::from_raw_parts(memory.cast(), slots + 1) };
        let queue = Queue::new().map_err(|error| {
            let message = format!("no socket for connections between workers: {error}; allow more open files");
            Error::new(ruby.exception_io_error(), message)
        })?;
        let (of_all, slots) = (&all[slots], &all[..slots]);
        let queue = Box::leak(Box::new(queue));
        Ok(Scoreboard { slots, wakers: wakers.leak(), queue, ending: &of_all.kept, threads })
    }

    /// Returns how many threads each worker has.
    pub(crate) fn threads(&self) -> Threads {
        self.threads
    }

    /// Returns the slots of the worker that has the slot of this index.
    pub(crate) fn siblings(&self, index: usize) -> &'static [Slot] {
        let first = index - index % self.threads.most;
        &self.slots[first..first + self.threads.most]
    }

    /// Returns the queue by which workers hand connections over.
    pub(crate) fn queue(&self) -> &'static Queue {
        self.queue
    }

    /// `#ending(refuses_new)`: all workers are about to stop. refuses_new: listeners refuse new clients; those that
    /// have connected are still served.
    pub(crate) fn end(&self, refuses_new: bool) {
        self.ending.store(1 + u32::from(refuses_new), Release);
    }

    /// Whether all workers stop, so that no other worker takes this one's connections.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Acquire) > 0
    }

    /// Whether the listeners refuse new clients.
    pub(crate) fn refuses_new(&self) -> bool {
        self.ending.load(Acquire) > 1
    }

    /// Returns all slots.
    pub(crate) fn all(&self) -> &'static [Slot] {
        self.slots
    }

    /// Returns the wakers of the workers of the first slots.
    pub(crate) fn wakers(&self) -> &'static [Waker] {
        self.wakers
    }

    /// Returns the index of a worker's thread in all slots.
    pub(crate) fn index(&self, ruby: &Ruby, worker: usize, thread: usize) -> Result<usize, Error> {
        let (workers, threads) = (self.workers(), self.threads.most);
        if worker < workers && thread < threads {
            return Ok(worker * threads + thread);
        }
        let message = format!("there is no slot {worker}: the scoreboard has {workers} with {threads} threads, from 0");
        Err(Error::new(ruby.exception_index_error(), message))
    }

    /// Returns the slots of a worker's threads.
    fn of_worker(&self, ruby: &Ruby, worker: usize) -> Result<&'static [Slot], Error> {
        self.index(ruby, worker, 0).map(|index| self.siblings(index))
    }

    /// `#slots`: for how many workers.
    pub(crate) fn workers(&self) -> usize {
        self.slots.len() / self.threads.most
    }

    /// `#clear(worker)`
    pub(crate) fn clear(ruby: &Ruby, board: &Self, worker: usize) -> Result<(), Error> {
        board.of_worker(ruby, worker)?.iter().for_each(Slot::clear);
        Ok(())
    }

    /// `#read(worker)`: the sums of its threads. `request`, `busy_s`, `serial`: the request that has run longest.
    pub(crate) fn read(ruby: &Ruby, board: &Self, worker: usize) -> Result<RHash, Error> {
        let slots = board.of_worker(ruby, worker)?;
        let present = slots.iter().enumerate().filter_map(|(thread, slot)| Some((thread, slot, slot.present()?)));
        let longest = present.max_by(|(.., one), (.., other)| one.1.total_cmp(&other.1));
        let told = longest.as_ref().map_or(&slots[0], |(_, slot, _)| *slot).told.load(Acquire);
        let serial = longest.as_ref().map_or(0, |(thread, _, (serial, ..))| board.number_of(*thread, *serial));
        let states = || slots.iter().map(Slot::state);
        let hash = ruby.hash_new();
        hash.aset(ruby.to_symbol("state"), ruby.to_symbol(state_of(states()).name()))?;
        hash.aset(ruby.to_symbol("threads"), states().filter(|&state| state != State::Empty).count())?;
        hash.aset(ruby.to_symbol("busy_threads"), states().filter(|state| state.is_busy()).count())?;
        hash.aset(ruby.to_symbol("pid"), slots[0].pid.load(Relaxed))?;
        hash.aset(ruby.to_symbol("handed_over"), slots.iter().map(|it| it.handed_over.load(Relaxed)).sum::<u32>())?;
        hash.aset(ruby.to_symbol("requests"), slots.iter().map(Slot::requests).sum::<u64>())?;
        hash.aset(ruby.to_symbol("busy_s"), longest.as_ref().map(|(.., (_, busy_s, _))| *busy_s))?;
        hash.aset(ruby.to_symbol("serial"), serial)?;
        hash.aset(ruby.to_symbol("request"), longest.map(|(.., (.., line))| line))?;
        hash.aset(ruby.to_symbol("told"), told)?;
        hash.aset(ruby.to_symbol("connections"), slots.iter().map(Slot::kept).sum::<usize>())?;
        let (served_s, idle_s) = board.times(slots);
        hash.aset(ruby.to_symbol("served_s"), served_s)?;
        hash.aset(ruby.to_symbol("idle_s"), idle_s)?;
        hash.aset(ruby.to_symbol("queue"), QueueTimes::read(slots.iter().map(|it| &it.queue), ruby)?)?;
        hash.aset(ruby.to_symbol("wait"), QueueTimes::read(slots.iter().map(|it| &it.wait), ruby)?)?;
        let gc = ruby.hash_new();
        for (at, (_, name)) in GC_FIGURES.iter().enumerate() {
            // All threads publish the same figures, of different moments.
            let latest = slots.iter().max_by_key(|slot| slot.gc[ALLOCATIONS].load(Relaxed)).unwrap_or(&slots[0]);
            gc.aset(ruby.to_symbol(name), latest.gc[at].load(Relaxed))?;
        }
        hash.aset(ruby.to_symbol("gc"), gc)?;
        Ok(hash)
    }

    /// Returns how long a worker has served, and how long of that it had no work, in seconds: the mean of its threads.
    fn times(&self, slots: &[Slot]) -> (f64, f64) {
        let times = || slots.iter().map(Slot::times);
        let served_s = times().map(|(served_s, _)| served_s).fold(0.0, f64::max);
        let busy_s = times().map(|(served_s, idle_s)| served_s - idle_s).sum::<f64>() / self.threads.usual as f64;
        (served_s, (served_s - busy_s).max(0.0))
    }

    /// Returns one number for a thread and the serial of its request.
    fn number_of(&self, thread: usize, serial: u64) -> u64 {
        serial * self.threads.most as u64 + thread as u64
    }

    /// `#overdue(limit_s)`: worker, serial, seconds and line of each request that takes longer.
    pub(crate) fn overdue(ruby: &Ruby, board: &Self, limit_s: f64) -> Result<RArray, Error> {
        let all = ruby.ary_new();
        for (index, slot) in board.slots.iter().enumerate() {
            if let Some((serial, busy_s, line)) = slot.present()
                && busy_s > limit_s
            {
                let (worker, thread) = (index / board.threads.most, index % board.threads.most);
                all.push((worker, board.number_of(thread, serial), busy_s, line))?;
            }
        }
        Ok(all)
    }

    /// `#condemn(worker, serial)`
    pub(crate) fn condemn(ruby: &Ruby, board: &Self, worker: usize, serial: u64) -> Result<(), Error> {
        let threads = board.threads.most as u64;
        let slots = board.of_worker(ruby, worker)?;
        slots[(serial % threads) as usize].condemn(serial / threads);
        Ok(())
    }

    /// `#condemned(worker)`: thread, serial, seconds, line of each request that the manager wants ended, and whether
    /// its client received a 504.
    pub(crate) fn condemned(ruby: &Ruby, board: &Self, worker: usize) -> Result<RArray, Error> {
        let all = ruby.ary_new();
        for (thread, slot) in board.of_worker(ruby, worker)?.iter().enumerate() {
            if let Some((serial, busy_s, line)) = slot.present()
                && slot.condemned() == Some(serial)
            {
                all.push((thread, serial, busy_s, line, slot.has_told()))?;
            }
        }
        Ok(all)
    }
}

/// Returns the state of a worker whose threads have these.
fn state_of(threads: impl Iterator<Item = State> + Clone) -> State {
    let order = [State::App, State::Writing, State::Stopping, State::Idle, State::Starting];
    order.into_iter().find(|state| threads.clone().any(|one| one == *state)).unwrap_or(State::Empty)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A slot of its own.
    pub(crate) fn slot() -> &'static Slot {
        &board(1).all()[0]
    }

    /// A scoreboard of its own.
    pub(crate) fn board(slots: usize) -> Scoreboard {
        // SAFETY: all zeros is a valid Slot.
        let all: Vec<Slot> = (0..slots).map(|_| unsafe { std::mem::zeroed() }).collect();
        let wakers: Vec<Waker> = (0..slots).map(|_| Waker::new().expect("an eventfd")).collect();
        let queue = Box::leak(Box::new(Queue::new().expect("a pair of sockets")));
        let ending = Box::leak(Box::new(AtomicU32::new(0)));
        Scoreboard { slots: all.leak(), wakers: wakers.leak(), queue, ending, threads: Threads { usual: 1, most: 1 } }
    }

    /// The same, for workers with this many threads.
    pub(crate) fn board_of_threads(workers: usize, threads: usize) -> Scoreboard {
        Scoreboard { threads: Threads { usual: threads, most: threads }, ..board(workers * threads) }
    }

    #[test]
    fn a_worker_is_busy_while_one_of_its_threads_is() {
        use State::{App, Empty, Idle, Resting, Starting, Stopping, Writing};
        for (threads, state) in [
            (&[Empty, Empty][..], Empty),
            (&[Starting, Empty], Starting),
            (&[Idle, Starting, Resting], Idle),
            (&[Idle, App, Writing], App),
            (&[Stopping, Idle], Stopping),
        ] {
            assert_eq!(state_of(threads.iter().copied()), state, "{threads:?}");
        }
    }

    #[test]
    fn the_time_of_a_worker_is_the_mean_of_its_threads() {
        let board = board_of_threads(2, 2);
        let siblings = board.siblings(3);
        assert_eq!(siblings.len(), 2);
        assert!(std::ptr::eq(&raw const siblings[1], &raw const board.all()[3]));
        let now_ms = crate::clock::coarse_ms();
        siblings.iter().for_each(|slot| slot.begins_to_serve(now_ms - 10_000));
        // The first had no work for four seconds, the second for all ten.
        siblings[0].rests_since(now_ms - 4000);
        siblings[0].goes_on(now_ms);
        siblings[1].rests_since(now_ms - 10_000);
        let (served_s, idle_s) = board.times(siblings);
        assert!((9.9..11.0).contains(&served_s) && (6.9..7.6).contains(&idle_s), "{served_s} {idle_s}");
    }
}
