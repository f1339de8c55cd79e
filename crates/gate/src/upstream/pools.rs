//! All pools of one core, by target, and their counters for any thread to read.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oroshi_core::{Deadline, Deadlines, HasDeadlines, after, sweep_pause};
use oroshi_net::monotonic_ns;

use super::counters::{Counters, Counts};
use super::engine::Engine;
use super::pool::{Pool, PoolSettings};
use super::recent::Recent;
use super::target::Target;

/// The shortest and the longest pause between sweeps; in between, an eighth of the shortest idle timeout.
const SWEEP_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// How many pools `make_room` checks.
const STEPS: usize = 16;

/// Limits on a core's pools.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The most pools. For a further target, the least recently used pool goes, with its idle connections and its
    /// health. If the pools that come into question are in use, the further target gets a temporary pool, which closes
    /// its connections after each request. Default 10,000.
    pub pools: usize,
    /// How long an unused pool without connections is kept, with its health. Default ten minutes.
    pub unused: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { pools: 10_000, unused: Duration::from_secs(600) }
    }
}

/// All pools of one core. Cheap to clone; dropping the last clone closes idle connections.
#[derive(Clone)]
pub struct Pools(Rc<Inner>);

struct Inner {
    settings: Settings,
    engine: Rc<Engine>,
    registry: Arc<Registry>,
    /// By class, then target, so that a search builds no key.
    map: RefCell<HashMap<u32, HashMap<Target, Rc<Pool>>>>,
    /// The number of pools in `map`.
    count: Cell<usize>,
    /// All pools, the least recently used first.
    recent: RefCell<Recent<Weak<Pool>>>,
    /// The pause between sweeps; `next_sweep` is the time of the next one.
    pause: Cell<Duration>,
    next_sweep: Cell<u64>,
}

impl Pools {
    /// Makes an empty set of pools. The registry, which all cores share, publishes the counters.
    pub fn new(settings: Settings, registry: Arc<Registry>) -> Self {
        Pools(Rc::new(Inner {
            settings,
            engine: Rc::new(Engine::new()),
            registry,
            map: RefCell::default(),
            count: Cell::new(0),
            recent: RefCell::new(Recent::new()),
            pause: Cell::new(SWEEP_PAUSES.1),
            next_sweep: Cell::new(u64::MAX),
        }))
    }

    /// Returns the target's pool, or makes one. An existing pool takes over the settings.
    ///
    /// # Panics
    /// The first call panics outside a local runtime.
    pub fn pool(&self, target: &Target, settings: &Rc<PoolSettings>) -> Rc<Pool> {
        let inner = &*self.0;
        let now = monotonic_ns();
        if let Some(pool) = inner.map.borrow().get(&settings.class).and_then(|class| class.get(target)) {
            pool.used.set(now);
            inner.recent.borrow_mut().touch(pool.place.get());
            pool.configure(settings);
            return Rc::clone(pool);
        }
        Deadlines::watch(&self.0);
        let pool = Rc::new(Pool::new(target.clone(), Rc::clone(settings), Rc::clone(&inner.engine)));
        if inner.count.get() >= inner.settings.pools && !inner.make_room() {
            return pool; // kept by nobody
        }
        pool.place.set(inner.recent.borrow_mut().push(Rc::downgrade(&pool)));
        inner.map.borrow_mut().entry(settings.class).or_default().insert(target.clone(), Rc::clone(&pool));
        inner.count.set(inner.count.get() + 1);
        inner.registry.enter(target, settings.class, &pool.counters);
        inner.pause.set(inner.pause.get().min(sweep_pause(settings.idle_timeout, SWEEP_PAUSES)));
        let next = after(now, inner.pause.get());
        if next < inner.next_sweep.get() {
            inner.next_sweep.set(next);
            inner.engine.deadlines.sweep_by(next);
        }
        pool
    }

    /// Returns the number of pools.
    pub fn len(&self) -> usize {
        self.0.count.get()
    }

    /// Returns whether there are no pools.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools").field("pools", &self.len()).finish_non_exhaustive()
    }
}

impl Inner {
    /// Removes the pools for which `keep` returns false.
    fn retain(&self, keep: impl Fn(&Rc<Pool>) -> bool) {
        let (mut map, mut recent) = (self.map.borrow_mut(), self.recent.borrow_mut());
        map.retain(|_, class| {
            class.retain(|_, pool| {
                let stays = keep(pool);
                if !stays {
                    recent.remove(pool.place.get());
                }
                stays
            });
            !class.is_empty()
        });
        self.count.set(map.values().map(HashMap::len).sum());
    }

    /// Removes the least recently used pool that nobody uses. Checks a fixed number of pools; those in use become the
    /// most recently used.
    fn make_room(&self) -> bool {
        let mut recent = self.recent.borrow_mut();
        for _ in 0..STEPS {
            let Some((place, pool)) = recent.oldest() else { return false };
            // Only the map holds it.
            if let Some(pool) = pool.upgrade().filter(|pool| Rc::strong_count(pool) == 2 && pool.is_at_rest()) {
                recent.remove(place);
                let (mut map, class) = (self.map.borrow_mut(), pool.class());
                if let Some(pools) = map.get_mut(&class) {
                    pools.remove(pool.target());
                    if pools.is_empty() {
                        map.remove(&class);
                    }
                }
                self.count.set(self.count.get() - 1);
                return true;
            }
            recent.touch(place);
        }
        false
    }
}

impl HasDeadlines for Inner {
    type Value = Deadline;

    fn deadlines(&self) -> &Deadlines {
        &self.engine.deadlines
    }

    /// Sweeps idle connections.
    fn sweep(&self, now: u64) -> u64 {
        if self.next_sweep.get() <= now {
            let unused = |pool: &Rc<Pool>| {
                let alone = Rc::strong_count(pool) == 1;
                alone && now.saturating_sub(pool.used.get()) > after(0, self.settings.unused)
            };
            self.retain(|pool| pool.sweep(now) || !unused(pool));
            self.next_sweep.set(if self.count.get() == 0 { u64::MAX } else { after(now, self.pause.get()) });
        }
        self.next_sweep.get()
    }
}

/// Counters of all targets on all cores, readable from any thread.
#[derive(Debug, Default)]
pub struct Registry(Mutex<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    target: Arc<str>,
    class: u32,
    counters: std::sync::Weak<Counters>,
}

/// One target's counts, over all cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetCounts {
    /// The target, as text.
    pub target: Arc<str>,
    /// [`PoolSettings::class`].
    pub class: u32,
    /// The counts.
    pub counts: Counts,
}

impl Registry {
    /// Returns the counts of all targets that have a pool, each over all cores, sorted by name.
    pub fn counts(&self) -> Vec<TargetCounts> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<TargetCounts> = Vec::new();
        for entry in &*entries {
            if let Some(counters) = entry.counters.upgrade() {
                let counts = counters.counts();
                found.push(TargetCounts { target: Arc::clone(&entry.target), class: entry.class, counts });
            }
        }
        drop(entries);
        found.sort_by(|one, other| (&one.target, one.class).cmp(&(&other.target, other.class)));
        found.dedup_by(|later, first| {
            let same = (&later.target, later.class) == (&first.target, first.class);
            if same {
                first.counts += later.counts;
            }
            same
        });
        found
    }

    fn enter(&self, target: &Target, class: u32, counters: &Arc<Counters>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes entries of dropped pools, but only when the list is full.
        if entries.len() == entries.capacity() {
            entries.retain(|entry| entry.counters.strong_count() > 0);
            // The next clean-up is after as many new entries.
            let left = entries.len();
            entries.reserve(left);
        }
        entries.push(Entry { target: target.to_string().into(), class, counters: Arc::downgrade(counters) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_a_core(test: impl FnOnce(&Pools)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.unwrap().block_on(async {
            let settings = Settings { pools: 3, unused: Duration::from_secs(600) };
            test(&Pools::new(settings, Arc::default()));
        });
    }

    fn target(number: usize) -> Target {
        format!("10.0.0.{number}:80").parse().unwrap()
    }

    fn of_class(class: u32) -> Rc<PoolSettings> {
        Rc::new(PoolSettings { class, ..PoolSettings::default() })
    }

    #[test]
    fn a_target_has_one_pool_in_each_class() {
        on_a_core(|pools| {
            let first = pools.pool(&target(1), &of_class(0));
            assert!(Rc::ptr_eq(&first, &pools.pool(&target(1), &of_class(0))));
            assert!(!Rc::ptr_eq(&first, &pools.pool(&target(1), &of_class(1))));
            assert!(!Rc::ptr_eq(&first, &pools.pool(&target(2), &of_class(0))));
            assert_eq!(pools.len(), 3);
        });
    }

    #[test]
    fn pools_that_nobody_holds_make_room_and_those_in_use_stay() {
        on_a_core(|pools| {
            let held: Vec<Rc<Pool>> = (0..2).map(|number| pools.pool(&target(number), &of_class(0))).collect();
            for number in 2..100 {
                pools.pool(&target(number), &of_class(0));
                assert!(pools.len() <= 3);
            }
            for (number, pool) in held.iter().enumerate() {
                assert!(Rc::ptr_eq(pool, &pools.pool(&target(number), &of_class(0))));
            }
            // With all pools in use, a further pool belongs to its user alone.
            let third = pools.pool(&target(2), &of_class(0));
            let beyond = pools.pool(&target(3), &of_class(0));
            assert!(!Rc::ptr_eq(&beyond, &pools.pool(&target(3), &of_class(0))));
            assert!(Rc::ptr_eq(&third, &pools.pool(&target(2), &of_class(0))));
        });
    }

    #[test]
    fn the_one_that_was_not_asked_for_the_longest_makes_room() {
        on_a_core(|pools| {
            let there = |number| pools.0.map.borrow()[&0].contains_key(&target(number));
            (1..=3).for_each(|number| drop(pools.pool(&target(number), &of_class(0))));
            pools.pool(&target(1), &of_class(0));
            pools.pool(&target(4), &of_class(0));
            assert_eq!([1, 2, 3, 4].map(there), [true, false, true, true]);
            pools.pool(&target(5), &of_class(0));
            assert_eq!([1, 2, 3, 4, 5].map(there), [true, false, false, true, true]);
        });
    }

    #[test]
    fn a_target_too_many_costs_a_few_steps_however_many_pools_there_are() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.unwrap().block_on(async {
            let pools = Pools::new(Settings { pools: 1000, ..Settings::default() }, Arc::default());
            let path = |number: usize| format!("unix:/{number}").parse::<Target>().unwrap();
            let held: Vec<Rc<Pool>> = (0..1000).map(|number| pools.pool(&path(number), &of_class(0))).collect();
            let front = || pools.0.recent.borrow().oldest().unwrap().1.upgrade().unwrap();
            for round in 1..=100 {
                pools.pool(&path(1000 + round), &of_class(0));
                assert!(Rc::ptr_eq(&front(), &held[round * STEPS % 1000]));
            }
            assert_eq!(pools.len(), 1000);
            // With no pool in use, the least recently used one goes.
            drop(held);
            for number in 2000..22_000 {
                pools.pool(&path(number), &of_class(0));
            }
            assert_eq!(pools.len(), 1000);
            let kept = (21_000..22_000).filter(|&number| pools.0.map.borrow()[&0].contains_key(&path(number))).count();
            assert_eq!(kept, 1000);
        });
    }

    #[test]
    fn connections_to_what_is_not_allowed_any_more_are_closed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target: Target = format!("localhost:{}", listener.local_addr().unwrap().port()).parse().unwrap();
        let settings = |version, allowed| {
            Rc::new(PoolSettings { version, allow: Some(Arc::new(move |_| allowed)), ..PoolSettings::default() })
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.unwrap().block_on(async {
            let pools = Pools::new(Settings::default(), Arc::default());
            let pool = pools.pool(&target, &settings(1, true));
            let limits = super::super::pool::AcquireLimits {
                queue: Duration::from_secs(60),
                connect: Duration::from_secs(60),
                total: u64::MAX,
            };
            let registration = pool.engine().register();
            let wanted = super::super::pool::Wanted { fresh: true, tunnel: false };
            let connect =
                async || pool.acquire(wanted, &None, &registration, limits, b"").await.map(|it| it.lease).unwrap();
            let (idle, used, again) = (connect().await, connect().await, connect().await);
            idle.give_back(None, monotonic_ns());
            // New settings that allow the address keep the connection.
            pools.pool(&target, &settings(2, true));
            assert_eq!(pool.counters.counts().idle, 1);
            again.give_back(None, monotonic_ns());
            assert_eq!(pool.counters.counts().idle, 2);
            pools.pool(&target, &settings(3, false));
            assert_eq!((pool.counters.counts().idle, pool.counters.counts().open), (0, 1));
            used.give_back(None, monotonic_ns());
            assert_eq!(pool.counters.counts().open, 0);
        });
    }

    #[test]
    fn pools_that_are_not_asked_for_are_forgotten() {
        on_a_core(|pools| {
            let held = pools.pool(&target(1), &of_class(0));
            pools.pool(&target(2), &of_class(0));
            let later = monotonic_ns() + after(0, Duration::from_secs(601));
            pools.0.sweep(later);
            assert_eq!(pools.len(), 1);
            drop(held);
            // The next sweep is a second away.
            assert_eq!(pools.0.sweep(later + after(0, Duration::from_secs(1))), u64::MAX);
            assert!(pools.is_empty());
        });
    }

    #[test]
    fn figures_of_all_cores_add_up_until_their_pools_are_gone() {
        let registry: Arc<Registry> = Arc::default();
        let core = |requests| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
            runtime.unwrap().block_on(async {
                let pools = Pools::new(Settings::default(), Arc::clone(&registry));
                let pool = pools.pool(&target(1), &of_class(0));
                pool.counters.requests.add(requests);
                pools.pool(&target(2), &of_class(0));
                (pools, pool)
            })
        };
        let (one, other) = (core(1), core(2));
        let counts = registry.counts();
        let found: Vec<(&str, u64)> = counts.iter().map(|target| (&*target.target, target.counts.requests)).collect();
        assert_eq!(found, [("10.0.0.1:80", 3), ("10.0.0.2:80", 0)]);
        drop(one);
        assert_eq!(registry.counts()[0].counts.requests, 2);
        drop(other);
        assert!(registry.counts().is_empty());
    }
}
