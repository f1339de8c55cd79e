//! The client's thread, and the handle to it.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use magnus::{Error, Ruby};
use oroshi_client::{Builder, Deadlines, local};
use oroshi_net::threads::ThreadsError;
use oroshi_net::{Threads, ThreadsOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::inbox::{Notifier, Ticket};
use crate::outcome::{Outcome, request_error};
use crate::process::ProcessLocal;
use crate::request::{Request, carry_out};
use crate::settings::Settings;

/// A running client, as Ruby holds it. Its thread ends when the engine is closed or collected, and all its calls have
/// finished.
#[derive(Debug)]
#[magnus::wrap(class = "Oroshi::Client::Native::Engine", free_immediately)]
pub(crate) struct Engine(RefCell<Option<Shared>>);

/// A shared handle to the thread, which runs as long as one exists.
pub(crate) type Shared = Arc<ProcessLocal<EngineHandle>>;

/// Sends jobs to the thread.
#[derive(Debug)]
pub(crate) struct EngineHandle {
    jobs: UnboundedSender<Job>,
    /// The client's time limits, the defaults of a request's own.
    pub(crate) limits: Deadlines,
}

/// A job for the thread.
pub(crate) enum Job {
    Send(Box<Request>),
    Count(Ticket),
    CloseIdle,
    #[cfg(test)]
    Panic,
}

impl Engine {
    /// Starts the thread. Nil if no descriptor is left for it.
    pub(crate) fn start(ruby: &Ruby, settings: &Settings) -> Result<Option<Self>, Error> {
        match EngineHandle::start(settings.builder(), settings.limits) {
            Ok(handle) => Ok(Some(Engine(RefCell::new(Some(Arc::new(ProcessLocal::new(handle))))))),
            Err(ThreadsError::Runtime(error)) if is_out_of_descriptors(&error) => Ok(None),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                let message = format!("the client's thread cannot be started: {error}{cause}");
                Err(request_error(ruby, "thread", &message, true))
            }
        }
    }

    /// Returns the handle; `None` once closed.
    pub(crate) fn handle(&self) -> Option<Shared> {
        self.0.borrow().clone()
    }

    pub(crate) fn close_idle(&self) {
        if let Some(handle) = self.0.borrow().as_ref().and_then(|shared| shared.get()) {
            handle.ask(Job::CloseIdle);
        }
    }

    /// Drops this handle to the thread.
    pub(crate) fn close(&self) {
        drop(self.0.take());
    }

    /// Whether it belongs to this process, is not closed, and its thread runs.
    pub(crate) fn is_here(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(is_alive)
    }
}

/// Whether a handle belongs to this process and its thread runs.
pub(crate) fn is_alive(shared: &Shared) -> bool {
    shared.get().is_some_and(EngineHandle::is_alive)
}

/// Whether an error means that descriptors ran out, which may pass.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl EngineHandle {
    /// Starts a thread.
    fn start(builder: Builder, limits: Deadlines) -> Result<Self, ThreadsError> {
        let (jobs, work) = unbounded_channel();
        let work = Mutex::new(Some(work));
        let serve = move |_| {
            let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
            let client = builder.clone().build_local();
            async move {
                // The settings were tried when they were read.
                if let (Some(work), Ok(client)) = (work, client) {
                    serve(client, work).await;
                }
            }
        };
        without_signals(|| Threads::start(&ThreadsOptions::new("oroshi-client", 1), serve))?;
        Ok(EngineHandle { jobs, limits })
    }

    /// Whether the thread runs; it always does, unless a defect ended it.
    fn is_alive(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// Sends a job. If the thread has ended, the job's ticket reports it.
    pub(crate) fn ask(&self, job: Job) {
        let _ = self.jobs.send(job);
    }
}

/// Returns the error for an object that belongs to this process's parent.
pub(crate) fn elsewhere(ruby: &Ruby) -> Error {
    let message = "this call was begun before a fork, in the parent: its answers come there; begin another one here";
    request_error(ruby, "fork", message, false)
}

/// Serves jobs until no handle is left.
async fn serve(client: local::Client, mut work: UnboundedReceiver<Job>) {
    let notifier = Rc::new(Notifier::default());
    let running = Rc::clone(&notifier);
    tokio::task::spawn_local(async move { running.run().await });
    while let Some(job) = work.recv().await {
        match job {
            Job::Send(request) => {
                drop(tokio::task::spawn_local(carry_out(client.clone(), request, Rc::clone(&notifier))));
            }
            Job::Count(ticket) => ticket.tell(Outcome::Counts(client.counts()), &notifier),
            Job::CloseIdle => client.close_idle(),
            #[cfg(test)]
            Job::Panic => panic!("a defect"),
        }
    }
}

/// Calls `start` with all signals blocked, which its threads inherit: signals are for Ruby's own threads.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: sigfillset fills `all`, and pthread_sigmask `before`. If they fail, they change nothing, and `before` is
    // not used.
    let changed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = start();
    if changed {
        // SAFETY: the call above has filled `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::call::Call;
    use crate::inbox::{Inbox, RequestSummary};

    fn start() -> Engine {
        let handle = EngineHandle::start(Builder::default(), Deadlines::default()).unwrap();
        Engine(RefCell::new(Some(Arc::new(ProcessLocal::new(handle)))))
    }

    fn ask(engine: &Engine, job: Job) {
        engine.handle().unwrap().get().unwrap().ask(job);
    }

    fn request(inbox: &Arc<Inbox>, tag: usize, method: &str, url: &str) -> Job {
        assert!(inbox.make_room());
        let ticket = Ticket::for_request(inbox, tag, RequestSummary::new(method.to_owned(), url.to_owned(), None));
        Job::Send(Box::new(Request { ticket, headers: Vec::new(), body: None, options: None }))
    }

    fn wait_for(inbox: &Inbox, count: usize) -> Vec<(usize, Outcome)> {
        let mut outcomes = Vec::new();
        while outcomes.len() < count {
            outcomes.extend(inbox.take());
            thread::yield_now();
        }
        outcomes.sort_by_key(|(tag, _)| *tag);
        outcomes
    }

    /// Once a client's thread had ended, its requests failed for ever, without naming themselves or telling whether a
    /// retry is safe.
    #[test]
    fn a_thread_that_ends_by_a_defect_tells_those_who_wait_and_leads_nowhere() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (engine, inbox) = (start(), Inbox::new().unwrap());
        assert!(engine.is_here());
        ask(&engine, request(&inbox, 7, "GET", &format!("{url}?secret=hidden")));
        ask(&engine, request(&inbox, 8, "POST", &url));
        let connections = [listener.accept().unwrap(), listener.accept().unwrap()];
        ask(&engine, Job::Panic);
        ask(&engine, Job::Count(Ticket::for_question(&inbox)));
        ask(&engine, request(&inbox, 9, "POST", &url));
        let lost = wait_for(&inbox, 4).into_iter().map(|(tag, outcome)| match outcome {
            Outcome::Lost(lost) => (tag, lost.what, lost.retry_is_safe, lost.after.is_zero()),
            other => panic!("{other:?}"),
        });
        assert_eq!(
            lost.collect::<Vec<_>>(),
            [
                (0, String::new(), true, true),
                (7, format!("GET {url}: "), true, false),
                (8, format!("POST {url}: "), false, false),
                (9, format!("POST {url}: "), true, false),
            ]
        );
        assert!(!engine.is_here(), "so that another is started");
        drop(connections);
    }

    /// The rest of a `fetch_all` was lost with the thread.
    #[test]
    fn a_call_goes_on_with_another_thread() {
        let call = Call::detached(Inbox::new().unwrap());
        assert!(!call.is_alive());
        let (first, second) = (start(), start());
        call.attach(&first);
        ask(&first, Job::Panic);
        while call.is_alive() {
            thread::yield_now();
        }
        call.attach(&second);
        assert!(call.is_alive());
        let (inbox, handle) = call.both();
        handle.get().unwrap().ask(request(inbox, 1, "GET", "nonsense"));
        assert!(matches!(wait_for(inbox, 1)[..], [(1, Outcome::Failure(_))]));
        second.close();
        assert!(call.is_alive(), "what was begun goes on");
        call.attach(&second);
        assert!(!call.is_alive(), "closed, so that another is asked for");
    }
}
