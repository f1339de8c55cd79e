//! The main state, which runs `setup` and `done`, on its own thread named `script`.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use mlua::{Table, Value};
use oroshi_bench::ScriptError;
use oroshi_net::Shutdown;

use crate::state::{Source, State};
use crate::stats::Stats;
use crate::summary::{Errors, Summary};
use crate::threads::Message;

/// Interval at which a waiting thread checks whether the main state can still answer.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A task for the main state.
#[derive(Debug)]
pub(crate) enum Task {
    /// Find the addresses, for the first thread to set up.
    Resolve(usize),
    /// Call `setup` for a load thread.
    Setup(usize),
    /// Flush the output.
    Flush(Sender<()>),
    /// Report whether there is a function of this name.
    Has(&'static str, Sender<bool>),
    /// Call `done`.
    Done(Box<Summary>, Sender<Result<(), ScriptError>>),
}

/// Controls the main state.
#[derive(Debug)]
pub(crate) struct MainState {
    source: Arc<Source>,
    tasks: Sender<Task>,
}

impl MainState {
    /// Starts its thread and runs the script there.
    pub(crate) fn start(source: &Arc<Source>) -> Result<Self, ScriptError> {
        let (tasks, queue) = channel();
        let (reply, loaded) = channel();
        let main = Self { source: Arc::clone(source), tasks };
        let work = {
            let source = Arc::clone(source);
            move || run(&source, &reply, &queue)
        };
        let thread = thread::Builder::new().name("script".into()).stack_size(oroshi_script::STACK_BYTES);
        let started: io::Result<_> = thread.spawn(work);
        started.map_err(|error| source.threads.error(format!("no thread can be started for it: {error}")))?;
        main.answer(&loaded)?;
        Ok(main)
    }

    /// Sends a task.
    pub(crate) fn send(&self, task: Task) -> Result<(), ScriptError> {
        self.tasks.send(task).map_err(|_| self.source.threads.end_reason())
    }

    /// Writes out the output of all states.
    pub(crate) fn flush(&self) {
        let (reply, answer) = channel();
        // If it is stuck, another call reports that.
        let _ = self.send(Task::Flush(reply)).and_then(|()| self.wait(&answer));
    }

    /// Whether the script has a function of this name.
    pub(crate) fn has(&self, function: &'static str) -> bool {
        let (reply, answer) = channel();
        self.send(Task::Has(function, reply)).and_then(|()| self.wait(&answer)).unwrap_or(false)
    }

    /// Calls `done`.
    pub(crate) fn done(&self, summary: Summary) -> Result<(), ScriptError> {
        let (reply, answer) = channel();
        self.send(Task::Done(Box::new(summary), reply))?;
        self.answer(&answer)
    }

    fn answer(&self, answer: &Receiver<Result<(), ScriptError>>) -> Result<(), ScriptError> {
        self.wait(answer)?
    }

    fn wait<T>(&self, answer: &Receiver<T>) -> Result<T, ScriptError> {
        let raised = || self.source.options.shutdown.as_ref().map_or(0, Shutdown::count);
        let before = raised();
        loop {
            if raised() > before {
                self.source.threads.interrupt();
            }
            match answer.recv_timeout(POLL_INTERVAL) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(self.source.threads.end_reason()),
                Err(RecvTimeoutError::Timeout) => self.source.threads.stuck().map_or(Ok(()), Err)?,
            }
        }
    }
}

/// Runs the thread until no more tasks can come.
fn run(source: &Arc<Source>, loaded: &Sender<Result<(), ScriptError>>, tasks: &Receiver<Task>) {
    let state = State::new(source).and_then(|state| state.load().map(|()| state));
    let state = match state {
        Ok(state) => state,
        Err(error) => {
            let _ = loaded.send(Err(error));
            return;
        }
    };
    let _ = loaded.send(Ok(()));
    for task in tasks {
        match task {
            Task::Resolve(core) => source.threads.tell(core, Message::Done(resolve(&state, source))),
            Task::Setup(core) => {
                let done = state.thread(core).and_then(|thread| state.call_wrk("setup", thread));
                source.threads.tell(core, Message::Done(done));
            }
            Task::Flush(reply) => {
                state.engine.flush();
                let _ = reply.send(());
            }
            Task::Has(function, reply) => {
                let _ = reply.send(state.global(function).is_some());
            }
            Task::Done(summary, reply) => {
                let _ = reply.send(done(&state, *summary));
            }
        }
    }
}

fn resolve(state: &State, source: &Source) -> Result<(), ScriptError> {
    let (host, service) = source.options.host_and_service();
    state.call_wrk("resolve", (host, service))?;
    let addrs = state.wrk("addrs")?;
    if addrs.as_table().is_some_and(|addrs| addrs.raw_len() > 0) {
        return Ok(());
    }
    Err(source
        .threads
        .error("wrk.resolve has left no address in wrk.addrs: expected a list of those that wrk.lookup returns"))
}

fn done(state: &State, summary: Summary) -> Result<(), ScriptError> {
    let lua = state.engine.lua();
    let stats = state.own("stats")?;
    let made = || -> mlua::Result<(Table, Value, Value)> {
        let errors = lua.create_table()?;
        let Errors { connect, read, write, status, timeout } = summary.errors;
        let counts = [("connect", connect), ("read", read), ("write", write), ("status", status), ("timeout", timeout)];
        for (name, count) in counts {
            errors.raw_set(name, count)?;
        }
        let table = lua.create_table()?;
        table.raw_set("duration", summary.duration_us)?;
        table.raw_set("requests", summary.requests)?;
        table.raw_set("bytes", summary.bytes)?;
        table.raw_set("errors", errors)?;
        let latency = Stats::of_latency(summary.latency).into_lua(lua, &stats)?;
        let rates = Stats::of_samples(summary.rates).into_lua(lua, &stats)?;
        Ok((table, latency, rates))
    };
    let args = made().map_err(|error| state.ours(&error))?;
    state.call_global("done", args)
}
