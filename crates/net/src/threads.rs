//! Runs one thread per core, each with its own runtime.

mod apart;
mod cpu_list;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, sched_setaffinity};
use thiserror::Error;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

pub use apart::two_cpus;
pub use cpu_list::{CpuList, CpuListError, available_cpus};

use crate::signal::Shutdown;

/// Options for a set of threads.
#[derive(Debug, Clone)]
pub struct ThreadsOptions {
    /// The number of threads, at least 1.
    pub count: usize,
    /// The threads' names: `name-0`, `name-1`... Linux shows 15 bytes of it.
    pub name: String,
    /// Pins thread `i` to the `i`-th CPU of the list, starting over if the list is shorter. None leaves the choice to
    /// the scheduler.
    pub cpus: Option<CpuList>,
    /// Number of tasks that run between two polls of the sockets; None is tokio's default, 61. A lower value answers
    /// new events sooner under load, a higher one calls epoll less often.
    pub event_interval: Option<u32>,
    /// Requested when a thread panics, so that the other threads end too.
    pub stop: Option<Shutdown>,
    /// Maximum stack size of each thread, bytes; None is Rust's default, 2 MiB. Unused stack costs nothing.
    pub stack_bytes: Option<usize>,
}

impl ThreadsOptions {
    /// Makes options for `count` threads named `name-0`...; the rest are defaults.
    pub fn new(name: impl Into<String>, count: usize) -> Self {
        ThreadsOptions { count, name: name.into(), cpus: None, event_interval: None, stop: None, stack_bytes: None }
    }
}

/// A thread's own position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadPosition {
    /// 0 for the first thread.
    pub index: usize,
    /// The number of threads.
    pub count: usize,
    /// The CPUs on which the thread may run, as the kernel reports them after any pinning.
    pub cpus: CpuList,
}

/// Running threads. Dropping it leaves them running; [`Threads::join`] waits for them.
#[derive(Debug)]
pub struct Threads<T> {
    threads: Vec<JoinHandle<Option<T>>>,
    positions: Vec<ThreadPosition>,
}

impl<T: Send + 'static> Threads<T> {
    /// Starts the threads. Each makes a [`LocalRuntime`] and runs the future from `work` to its end.
    ///
    /// The future need not be `Send`, and may use [`tokio::task::spawn_local`]. Tasks that remain at its end are
    /// dropped.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be made, or a CPU of the list is not available. Then no thread has called
    /// `work`.
    pub fn start<F, W>(options: &ThreadsOptions, work: W) -> Result<Self, ThreadsError>
    where
        F: Future<Output = T>,
        W: Fn(ThreadPosition) -> F + Send + Sync + 'static,
    {
        if let Some(cpus) = &options.cpus {
            let available = available_cpus().map_err(ThreadsError::Affinity)?;
            if let Some(cpu) = cpus.iter().find(|&cpu| !available.contains(cpu)) {
                return Err(ThreadsError::Cpu { cpu, available });
            }
        }
        let work = Arc::new(work);
        let mut started = Threads { threads: Vec::new(), positions: Vec::new() };
        let mut gates = Vec::new();
        for index in 0..options.count.max(1) {
            let (thread_options, work) = (options.clone(), Arc::clone(&work));
            let (ready, is_ready) = mpsc::channel();
            let (go, may_go) = mpsc::channel();
            let builder = thread::Builder::new().name(format!("{}-{index}", options.name));
            let builder = match options.stack_bytes {
                Some(bytes) => builder.stack_size(bytes),
                None => builder,
            };
            let thread = builder
                .spawn(move || run(index, &thread_options, &*work, &ready, &may_go))
                .map_err(ThreadsError::Thread)?;
            started.threads.push(thread);
            gates.push((is_ready, go));
        }
        // A thread begins when all are ready. An early return drops the gates, which ends every thread.
        for (is_ready, _) in &gates {
            started
                .positions
                .push(is_ready.recv().unwrap_or(Err(ThreadsError::Panicked { index: started.positions.len() }))?);
        }
        for (_, go) in &gates {
            // A ready thread waits for this.
            let _ = go.send(());
        }
        Ok(started)
    }

    /// Starts the threads and waits for them: [`Threads::start`], then [`Threads::join`].
    pub fn run<F, W>(options: &ThreadsOptions, work: W) -> Result<Vec<T>, ThreadsError>
    where
        F: Future<Output = T>,
        W: Fn(ThreadPosition) -> F + Send + Sync + 'static,
    {
        Self::start(options, work)?.join()
    }

    /// The threads' positions, in order.
    pub fn positions(&self) -> &[ThreadPosition] {
        &self.positions
    }

    /// Whether every thread has ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for every thread, and returns their results in order.
    ///
    /// # Errors
    /// [`ThreadsError::Panicked`] names the first thread that panicked, after all have ended.
    pub fn join(self) -> Result<Vec<T>, ThreadsError> {
        let ended: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        let values = ended.into_iter().enumerate();
        values.map(|(index, value)| value.ok().flatten().ok_or(ThreadsError::Panicked { index })).collect()
    }
}

/// The reason why the threads could not start, or did not end well.
#[derive(Debug, Error)]
pub enum ThreadsError {
    /// The list has a CPU that this process may not use: choose from those in the message.
    #[error("CPU {cpu} is not available to this process: available are {available}")]
    Cpu {
        /// The first such CPU.
        cpu: usize,
        /// The CPUs that sched_getaffinity(2) allows.
        available: CpuList,
    },
    /// The kernel refused to get or set the threads' CPUs: omit pinning.
    #[error("could not read or set the CPUs of a thread")]
    Affinity(#[source] io::Error),
    /// The system cannot start another thread: raise `ulimit -u` or the cgroup's pids.max, or use fewer threads.
    #[error("could not start a thread")]
    Thread(#[source] io::Error),
    /// The thread's runtime needs three file descriptors: raise `ulimit -n` if they are used up.
    #[error("could not start a thread's runtime")]
    Runtime(#[source] io::Error),
    /// A defect: the thread's own message is on standard error.
    #[error("thread {index} panicked")]
    Panicked {
        /// The thread's number, from 0.
        index: usize,
    },
}

/// The body of a thread: prepares, reports readiness, waits for the others, runs the work.
fn run<T, F: Future<Output = T>>(
    index: usize,
    options: &ThreadsOptions,
    work: &(impl Fn(ThreadPosition) -> F + ?Sized),
    ready: &Sender<Result<ThreadPosition, ThreadsError>>,
    may_go: &Receiver<()>,
) -> Option<T> {
    let (core, runtime) = match prepare(index, options) {
        Ok(prepared) => prepared,
        Err(error) => {
            // The starter waits for this; if the starter has gone, the error has no recipient.
            let _ = ready.send(Err(error));
            return None;
        }
    };
    let _ = ready.send(Ok(core.clone()));
    // An error means that another thread failed to start.
    may_go.recv().ok()?;
    let _stop = StopOnPanic(options.stop.clone());
    let value = runtime.block_on(async { work(core).await });
    // A hanging name look-up must not block the end of the thread.
    runtime.shutdown_background();
    Some(value)
}

fn prepare(index: usize, options: &ThreadsOptions) -> Result<(ThreadPosition, LocalRuntime), ThreadsError> {
    if let Some(cpus) = &options.cpus {
        let cpu = cpus.at(index);
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).map_err(|errno| ThreadsError::Affinity(errno.into()))?;
    }
    let cpus = available_cpus().map_err(ThreadsError::Affinity)?;
    let mut builder = Builder::new_current_thread();
    builder.enable_io().enable_time();
    if let Some(interval) = options.event_interval {
        builder.event_interval(interval.max(1));
    }
    let runtime = builder.build_local(LocalOptions::default()).map_err(ThreadsError::Runtime)?;
    Ok((ThreadPosition { index, count: options.count.max(1), cpus }, runtime))
}

/// Requests a shutdown of the other threads when this one unwinds.
struct StopOnPanic(Option<Shutdown>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if let (true, Some(stop)) = (thread::panicking(), &self.0) {
            stop.request();
        }
    }
}
