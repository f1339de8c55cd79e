//! The users of one thread: when they begin, what they wait for, how they end.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oroshi_bench::{Arrivals, CoreJourneys, ScriptError};
use oroshi_net::{Timer, monotonic_ns};
use oroshi_script::{Error, Kind};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};

use crate::fulfil::fulfil;
use crate::ramp::{self, Ramp};
use crate::random::Weights;
use crate::request::Last;
use crate::settings::Model;
use crate::state::{State, Step, script_error};
use crate::tally::{NO_STEP, Tally};
use crate::thread::{Stage, Thread};
use crate::user::User;

/// How often a thread looks whether the script has asked for other users, or ended the run.
const LOOK: u64 = 50_000_000;
/// Arrivals that a late timetable begins before others run.
const AT_ONCE: u32 = 100;
/// Journeys that may fail by errors of the script before any has come to its end; then the run ends.
const MOST_ERRORS: u64 = 20;

/// The users of a thread, for the load.
#[derive(Debug)]
pub(crate) struct Users(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    state: State,
    thread: Rc<Thread>,
    /// Which of the run's threads it is, over all parts.
    index: usize,
    weights: Weights,
    /// Users that are to be there now, of this thread.
    wanted: Cell<usize>,
    /// Tasks of users, by their place in the thread.
    tasks: RefCell<BTreeMap<usize, Task>>,
    /// Other tasks, which end with the measured part.
    helpers: RefCell<Vec<AbortHandle>>,
    /// Open model: arrivals that wait for a user, and users that wait for an arrival.
    queue: RefCell<VecDeque<u64>>,
    idle: RefCell<Vec<Rc<Notify>>>,
    /// A user has ended.
    changed: Notify,
    completed: Cell<u64>,
    errors: Cell<u64>,
    /// The error that ended the run.
    error: RefCell<Option<ScriptError>>,
    /// Whether no user can begin any more, and whether the load was told that all have ended.
    over: Cell<bool>,
    told: Cell<bool>,
}

/// The task of a user.
#[derive(Debug)]
struct Task {
    user: Rc<User>,
    /// None before it is spawned, and after its last journey.
    handle: Option<AbortHandle>,
}

impl Users {
    /// The users of thread `index`, of a script that was loaded in its state.
    pub(crate) fn new(state: State, index: usize) -> Result<Self, ScriptError> {
        let thread = Rc::clone(&state.thread);
        let weights = Weights::new(thread.scenarios.borrow().iter().map(|(_, weight)| *weight));
        let weights = weights.map_err(|what| ScriptError { place: state.file(), what })?;
        Ok(Users(Rc::new(Inner {
            state,
            thread,
            index,
            weights,
            wanted: Cell::new(0),
            tasks: RefCell::default(),
            helpers: RefCell::default(),
            queue: RefCell::default(),
            idle: RefCell::default(),
            changed: Notify::new(),
            completed: Cell::new(0),
            errors: Cell::new(0),
            error: RefCell::default(),
            over: Cell::new(false),
            told: Cell::new(false),
        })))
    }
}

impl CoreJourneys for Users {
    fn begin(&self, start: u64, end: Option<u64>) {
        let inner = &self.0;
        inner.thread.start.set(start);
        inner.state.engine.until(end);
        if let Err(error) = inner.prepare() {
            inner.end_with(error);
        }
        let dispatcher = Rc::clone(inner);
        inner.help(async move { dispatcher.dispatch(start, end.unwrap_or(u64::MAX)).await });
        // On the process's first thread.
        if inner.index < inner.thread.run.part.of {
            for watcher in 0..inner.thread.watchers.borrow().len() {
                let watching = Rc::clone(inner);
                inner.help(async move { watching.watch(watcher, start).await });
            }
        }
    }

    fn measure(&self, _from: u64) {
        self.0.thread.tally.borrow_mut().reset();
    }

    fn close(&self, now: u64) {
        let inner = &self.0;
        inner.thread.stage.set(Stage::Closed);
        inner.over.set(true);
        inner.helpers.borrow_mut().drain(..).for_each(|helper| helper.abort());
        for due in inner.queue.borrow_mut().drain(..) {
            let mut tally = inner.thread.tally.borrow_mut();
            if inner.thread.measures(due) {
                tally.unbegun += 1;
                tally.lateness.record_censored(now.saturating_sub(due));
            }
        }
        let pauses = |task: &&Task| task.user.under_way.get() == 0;
        inner.tasks.borrow().values().filter(pauses).for_each(Task::abort);
        inner.tell_if_ended();
    }

    fn finish(&self, _now: u64) {
        self.0.tasks.borrow().values().for_each(Task::abort);
        self.0.tell_if_ended();
    }

    fn hand_over(&self) {
        let counted = self.0.thread.tally.borrow_mut().split_off();
        self.0.thread.run.hand_in(counted);
    }

    fn leave(&self) -> Result<(), ScriptError> {
        let inner = &self.0;
        if let Some(client) = inner.thread.client.get() {
            inner.thread.tally.borrow_mut().retries += client.counts().retries;
        }
        inner.thread.run.hand_in(inner.thread.tally.take());
        inner.error.take().map_or(Ok(()), Err)
    }
}

impl Task {
    fn abort(&self) {
        if let Some(handle) = &self.handle {
            handle.abort();
        }
    }
}

impl Inner {
    /// Builds what needs the thread's runtime.
    fn prepare(self: &Rc<Self>) -> Result<(), ScriptError> {
        self.thread.build_client().map_err(|what| ScriptError { place: self.state.file(), what })?;
        let timer = Timer::new().map_err(|error| ScriptError {
            place: self.state.file(),
            what: format!("a timer could not be made: {error}"),
        })?;
        let thread = Rc::clone(&self.thread);
        // Lives as long as users do: those whose requests are awaited may still pause between redirects.
        spawn_local(async move { thread.sleeper.drive(timer).await });
        Ok(())
    }

    /// Spawns a task that ends with the measured part.
    fn help(self: &Rc<Self>, work: impl Future<Output = ()> + 'static) {
        self.helpers.borrow_mut().push(spawn_local(work).abort_handle());
    }

    /// Begins users, until no more will begin.
    async fn dispatch(self: Rc<Self>, start: u64, end: u64) {
        let model = self.thread.run.settings.model();
        match model {
            Model::Closed(ramp) => self.follow(&ramp, start).await,
            Model::Open { stages, spacing } => {
                let (index, threads) = (self.index, self.thread.run.threads);
                let seed = self.thread.run.seed.wrapping_add(index as u64);
                let arrivals = Arrivals::stages(&stages, 1.0 / threads as f64, spacing, seed);
                let mut arrivals = arrivals.phase(index as f64 / threads as f64);
                arrivals.start_at(start);
                self.await_arrivals(arrivals, end).await;
            }
        }
    }

    /// Closed model: as many users as the ramp says, or the script.
    async fn follow(self: &Rc<Self>, ramp: &Ramp, start: u64) {
        let (run, threads) = (&self.thread.run, self.thread.run.threads);
        loop {
            if run.has_ended() {
                self.halt();
            }
            let now = monotonic_ns();
            let elapsed = Duration::from_nanos(now.saturating_sub(start));
            let all = run.asked_users().unwrap_or_else(|| ramp.users_at(elapsed) as usize);
            let wanted = ramp::share(all as u64, self.index, threads) as usize;
            self.wanted.set(wanted);
            let mut working = 0;
            for place in 0..wanted {
                working += usize::from(self.keep(place));
            }
            let change = ramp.next_change(elapsed).map(|after| start + after.as_nanos() as u64);
            // Without a number of journeys the end comes by time alone: the script may ask for more users until then.
            let counted = run.settings.iterations.is_some() || run.settings.journeys.is_some();
            if counted && working == 0 && change.is_none() && self.active() == 0 {
                self.over.set(true);
                self.tell_if_ended();
                return;
            }
            let until = (now + LOOK).min(change.unwrap_or(u64::MAX));
            tokio::select! {
                () = self.thread.sleeper.sleep_until(until) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Begins the user of a place unless it is there. False where it has made all of its journeys.
    fn keep(self: &Rc<Self>, place: usize) -> bool {
        let run = &self.thread.run;
        let mut tasks = self.tasks.borrow_mut();
        let task = tasks.entry(place).or_insert_with(|| {
            let id = ramp::user(place as u64, self.index, run.threads);
            Task { user: User::new(id, run.seed), handle: None }
        });
        if task.handle.is_some() {
            return true;
        }
        let done = run.settings.iterations.is_some_and(|most| task.user.journey.get() >= most);
        if done || run.is_exhausted() {
            return false;
        }
        let (inner, user) = (Rc::clone(self), Rc::clone(&task.user));
        let live = Live::new(self, place);
        task.handle = Some(
            spawn_local(async move {
                inner.live(&user, place).await;
                drop(live);
            })
            .abort_handle(),
        );
        true
    }

    /// Closed model: journeys of a user, one after the other.
    async fn live(self: &Rc<Self>, user: &Rc<User>, place: usize) {
        let run = &self.thread.run;
        let iterations = run.settings.iterations.unwrap_or(u64::MAX);
        while self.thread.stage.get() == Stage::Running && place < self.wanted.get() && !run.has_ended() {
            if user.journey.get() >= iterations || !run.take_journey() {
                return;
            }
            if !self.journey(user).await {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Open model: a user for each arrival, as long as fewer than the most are busy.
    async fn await_arrivals(self: &Rc<Self>, mut arrivals: Arrivals, end: u64) {
        let run = &self.thread.run;
        let most = ramp::share(run.settings.most_users() as u64, self.index, run.threads).max(1) as usize;
        self.wanted.set(most);
        for number in 1u32.. {
            if number.is_multiple_of(AT_ONCE) {
                tokio::task::yield_now().await;
            }
            // A busy thread closes late, and nothing is due from the end on.
            let due = Some(arrivals.next_due()).filter(|&due| due < end).unwrap_or(u64::MAX);
            self.thread.sleeper.sleep_until(due.min(monotonic_ns() + LOOK)).await;
            if run.has_ended() {
                self.halt();
                return;
            }
            if due > monotonic_ns() {
                continue;
            }
            if !run.take_journey() {
                break;
            }
            arrivals.take();
            let measured = self.thread.measures(due);
            self.thread.tally.borrow_mut().due += u64::from(measured);
            self.queue.borrow_mut().push_back(due);
            if let Some(user) = self.idle.borrow_mut().pop() {
                user.notify_one();
            } else if self.tasks.borrow().len() < most {
                self.admit();
            } else if measured {
                self.thread.tally.borrow_mut().late += 1;
            }
        }
        // The last journeys are awaited.
        loop {
            if self.queue.borrow().is_empty() && self.idle.borrow().len() == self.tasks.borrow().len() {
                self.over.set(true);
                self.tasks.borrow().values().for_each(Task::abort);
                self.tell_if_ended();
                return;
            }
            if run.has_ended() {
                self.halt();
                return;
            }
            tokio::select! {
                () = self.thread.sleeper.sleep_until(monotonic_ns() + LOOK) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Open model: one more user.
    fn admit(self: &Rc<Self>) {
        let place = self.tasks.borrow().len();
        let run = &self.thread.run;
        let user = User::new(ramp::user(place as u64, self.index, run.threads), run.seed);
        let (inner, this) = (Rc::clone(self), Rc::clone(&user));
        let live = Live::new(self, place);
        let handle = spawn_local(async move {
            inner.serve(&this).await;
            drop(live);
        });
        self.tasks.borrow_mut().insert(place, Task { user, handle: Some(handle.abort_handle()) });
    }

    /// Open model: journeys of a user, one for each arrival that it takes.
    async fn serve(self: &Rc<Self>, user: &Rc<User>) {
        let wake = Rc::new(Notify::new());
        while self.thread.stage.get() == Stage::Running {
            let due = self.queue.borrow_mut().pop_front();
            let Some(due) = due else {
                self.idle.borrow_mut().push(Rc::clone(&wake));
                self.changed.notify_one();
                wake.notified().await;
                continue;
            };
            if self.thread.measures(due) {
                let late = monotonic_ns().saturating_sub(due);
                self.thread.tally.borrow_mut().lateness.record(late);
            }
            user.due.set(Some(due));
            if !self.journey(user).await {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Makes one journey. Returns whether it waited for anything.
    async fn journey(self: &Rc<Self>, user: &Rc<User>) -> bool {
        let (thread, run) = (&self.thread, &self.thread.run);
        user.begin(run.seed, run.settings.fresh.unwrap_or(true));
        if run.settings.reconnect.unwrap_or(false)
            && let Some(client) = thread.client.get()
        {
            client.close_partition(user.id);
        }
        let scenario = self.weights.choose(&mut user.choices.borrow_mut());
        user.scenario.set(scenario as u16);
        let mut journey = Journey::begin(self, user, scenario);
        let mut waited = false;
        let mut step = self.state.begin_journey(user, scenario);
        let error = loop {
            match step {
                Err(error) => break Some(error),
                Ok((_, Step::Ended)) => break None,
                Ok((call, Step::Waits(wish))) => {
                    waited = true;
                    let got = {
                        let _waiting = Waiting::new(&self.state);
                        fulfil(thread, user, wish).await
                    };
                    if thread.stage.get() != Stage::Running {
                        // Cut off: the call goes with its end.
                        return true;
                    }
                    step = self.state.resume(call, user, got);
                }
            }
        };
        match error {
            // The script caught the error of its own `fail`.
            None if user.failed.borrow().is_some() => {
                journey.end(false);
                let reason = user.failed.take().unwrap_or_default();
                thread.fail(user, &reason, || Last::sample(thread, user, String::new()));
            }
            None => {
                self.completed.set(self.completed.get() + 1);
                journey.end(true);
            }
            Some(error) => {
                journey.end(false);
                self.failed(user, error);
            }
        }
        waited
    }

    /// Counts a journey that failed, and ends the run where going on makes no sense.
    fn failed(self: &Rc<Self>, user: &Rc<User>, error: Error) {
        let thread = &self.thread;
        let sample = |place: &str| Last::sample(thread, user, place.to_owned());
        let reason = user.failed.take();
        // Otherwise the script has caught the error of its `fail`, and this is another one.
        if let Some(reason) = reason.filter(|reason| error.what.starts_with(reason.as_str())) {
            thread.fail(user, &reason, || sample(&error.place));
            return;
        }
        let ends = matches!(error.kind, Kind::Interrupted | Kind::Instructions | Kind::Memory | Kind::Stuck);
        let first = error.what.lines().next().unwrap_or_default();
        thread.fail(user, &format!("{}: {first}", error.place), || sample(&error.place));
        self.errors.set(self.errors.get() + 1);
        if ends || (self.completed.get() == 0 && self.errors.get() >= MOST_ERRORS) {
            self.end_with(script_error(error));
        }
    }

    /// Ends the run with an error.
    fn end_with(&self, error: ScriptError) {
        self.error.borrow_mut().get_or_insert(error);
        self.thread.run.end();
        self.halt();
    }

    /// Ends the measured part of this thread.
    fn halt(&self) {
        if let Some(meter) = &self.thread.meter {
            meter.halt();
        }
    }

    /// Calls a function of `every`.
    async fn watch(self: Rc<Self>, index: usize, start: u64) {
        let period = self.thread.watchers.borrow()[index];
        for turn in 1.. {
            let due = start + (period * 1e9 * f64::from(turn)) as u64;
            self.thread.sleeper.sleep_until(due).await;
            let called = self.progress().and_then(|progress| self.state.watch(index, progress));
            if let Err(error) = called {
                if self.thread.run.is_aborted() {
                    self.thread.run.end();
                } else {
                    self.end_with(error);
                }
                return;
            }
        }
    }

    /// The table that a function of `every` gets.
    fn progress(&self) -> Result<mlua::Table, ScriptError> {
        let (thread, progress) = (&self.thread, &self.thread.run.progress);
        let made = self.state.engine.with_room(|lua| {
            let table = lua.create_table()?;
            table.raw_set("elapsed", thread.elapsed_s())?;
            // A part of a run takes the others to do as it does.
            let all = |own: u64| own as f64 * thread.run.part.of as f64;
            table.raw_set("requests", all(progress.requests.load(Ordering::Relaxed)))?;
            table.raw_set("errors", all(progress.errors.load(Ordering::Relaxed)))?;
            table.raw_set("checks_failed", all(progress.checks_failed.load(Ordering::Relaxed)))?;
            let points = progress.points.load(Ordering::Relaxed) as f64 / 1e3;
            table.raw_set("points", points * thread.run.part.of as f64)?;
            table.raw_set("users", thread.run.users())?;
            Ok(table)
        });
        made.map_err(|error| ScriptError { place: self.state.file(), what: error.to_string() })
    }

    /// Users whose tasks are there.
    fn active(&self) -> usize {
        self.tasks.borrow().values().filter(|task| task.handle.is_some()).count()
    }

    /// Tells the load once that all users have ended.
    fn tell_if_ended(&self) {
        if self.over.get()
            && self.active() == 0
            && !self.told.replace(true)
            && let Some(meter) = &self.thread.meter
        {
            meter.all_ended();
        }
    }
}

/// A user whose task is there.
struct Live {
    inner: Rc<Inner>,
    place: usize,
}

impl Live {
    fn new(inner: &Rc<Inner>, place: usize) -> Self {
        let before = inner.thread.run.progress.users.fetch_add(1, Ordering::Relaxed);
        inner.thread.run.progress.most.fetch_max(before + 1, Ordering::Relaxed);
        Live { inner: Rc::clone(inner), place }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let inner = &self.inner;
        inner.thread.run.progress.users.fetch_sub(1, Ordering::Relaxed);
        if let Some(task) = inner.tasks.borrow_mut().get_mut(&self.place) {
            task.handle = None;
        }
        inner.changed.notify_one();
        inner.tell_if_ended();
    }
}

/// A journey that waits.
struct Waiting<'s>(&'s State);

impl<'s> Waiting<'s> {
    fn new(state: &'s State) -> Self {
        state.count_waiting(true);
        Waiting(state)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.count_waiting(false);
    }
}

/// A journey under way. Dropped before its end, it was cut off.
struct Journey<'a> {
    inner: &'a Inner,
    user: &'a User,
    scenario: usize,
    began: u64,
    is_over: bool,
}

impl<'a> Journey<'a> {
    fn begin(inner: &'a Inner, user: &'a User, scenario: usize) -> Self {
        let began = user.due.get().unwrap_or_else(monotonic_ns);
        if inner.thread.measures(began) {
            inner.thread.tally.borrow_mut().journeys[scenario].begun += 1;
        }
        Journey { inner, user, scenario, began, is_over: false }
    }

    fn end(&mut self, completed: bool) {
        self.is_over = true;
        self.inner.thread.end_blocks(self.user, 0);
        self.count(|tally, scenario, took| {
            let journeys = &mut tally.journeys[scenario];
            journeys.completed += u64::from(completed);
            journeys.failed += u64::from(!completed);
            journeys.duration.record(took);
        });
        let mut tally = self.inner.thread.tally.borrow_mut();
        tally.flow(self.scenario as u16, self.user.step.get(), NO_STEP);
        drop(tally);
        self.user.leases.borrow_mut().clear();
        self.user.due.set(None);
    }

    fn count(&self, count: impl FnOnce(&mut Tally, usize, u64)) {
        let thread = &self.inner.thread;
        if thread.measures(self.began) {
            let took = monotonic_ns().saturating_sub(self.began);
            count(&mut thread.tally.borrow_mut(), self.scenario, took);
        }
    }
}

impl Drop for Journey<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.inner.thread.end_blocks(self.user, 0);
            self.count(|tally, scenario, took| {
                tally.journeys[scenario].cut_off += 1;
                tally.journeys[scenario].duration.record_censored(took);
            });
            self.user.leases.borrow_mut().clear();
        }
    }
}
