//! The thread on which requests are carried out, and the way to it.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use magnus::{Error, Ruby};
use oroshi_client::{Builder, Deadlines, local};
use oroshi_net::cores::CoresError;
use oroshi_net::{Cores, CoresOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::inbox::{Bell, Ticket};
use crate::order::{Order, carry_out};
use crate::outcome::{Outcome, request_error};
use crate::process::Here;
use crate::settings::Settings;

/// A running client, as Ruby holds it. Its thread ends when it was closed, or is gone, and all its calls have finished.
#[derive(Debug)]
#[magnus::wrap(class = "Oroshi::Client::Native::Engine", free_immediately)]
pub(crate) struct Engine(RefCell<Option<Shared>>);

/// The way to the thread, which goes on as long as somebody has one.
pub(crate) type Shared = Arc<Here<Way>>;

/// The way to the thread.
#[derive(Debug)]
pub(crate) struct Way {
    jobs: UnboundedSender<Job>,
    /// The client's limits in time, for requests that have some of their own.
    pub(crate) limits: Deadlines,
}

/// What the thread is asked to do.
pub(crate) enum Job {
    Send(Box<Order>),
    Count(Ticket),
    CloseIdle,
    #[cfg(test)]
    Panic,
}

impl Engine {
    /// Starts the thread. Nil if no descriptor is left for it.
    pub(crate) fn start(ruby: &Ruby, settings: &Settings) -> Result<Option<Self>, Error> {
        match Way::start(settings.builder.clone(), settings.limits) {
            Ok(way) => Ok(Some(Engine(RefCell::new(Some(Arc::new(Here::new(way))))))),
            Err(CoresError::Runtime(error)) if is_out_of_descriptors(&error) => Ok(None),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                let message = format!("the client's thread cannot be started: {error}{cause}");
                Err(request_error(ruby, "thread", &message, true))
            }
        }
    }

    /// The way to the thread; nothing once it was closed.
    pub(crate) fn way(&self) -> Option<Shared> {
        self.0.borrow().clone()
    }

    pub(crate) fn close_idle(&self) {
        if let Some(way) = self.0.borrow().as_ref().and_then(|shared| shared.get()) {
            way.ask(Job::CloseIdle);
        }
    }

    /// Lets go of the thread.
    pub(crate) fn close(&self) {
        drop(self.0.take());
    }

    /// Whether it belongs to this process, was not closed, and its thread is at work.
    pub(crate) fn is_here(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(leads_somewhere)
    }
}

/// Whether a way is one of this process, with a thread at its end.
pub(crate) fn leads_somewhere(shared: &Shared) -> bool {
    shared.get().is_some_and(Way::leads_somewhere)
}

/// Whether something could not be made for want of a descriptor, which another moment may bring.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl Way {
    /// Starts a thread.
    fn start(builder: Builder, limits: Deadlines) -> Result<Self, CoresError> {
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
        without_signals(|| Cores::start(&CoresOptions::new("oroshi-client", 1), serve))?;
        Ok(Way { jobs, limits })
    }

    /// Whether there is a thread at its end. There is, but for a defect.
    fn leads_somewhere(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// Asks the thread for something. Should it have ended, the job's ticket tells so.
    pub(crate) fn ask(&self, job: Job) {
        let _ = self.jobs.send(job);
    }
}

/// What is said of something that belongs to the parent of this process.
pub(crate) fn elsewhere(ruby: &Ruby) -> Error {
    let message = "this call was begun before a fork, in the parent: its answers come there; begin another one here";
    request_error(ruby, "fork", message, false)
}

/// The thread's work, until nobody is left who could ask for anything.
async fn serve(client: local::Client, mut work: UnboundedReceiver<Job>) {
    let bell = Rc::new(Bell::default());
    let ringing = Rc::clone(&bell);
    tokio::task::spawn_local(async move { ringing.ring().await });
    while let Some(job) = work.recv().await {
        match job {
            Job::Send(order) => drop(tokio::task::spawn_local(carry_out(client.clone(), order, Rc::clone(&bell)))),
            Job::Count(ticket) => ticket.tell(Outcome::Counts(client.counts()), &bell),
            Job::CloseIdle => client.close_idle(),
            #[cfg(test)]
            Job::Panic => panic!("a defect"),
        }
    }
}

/// Calls `start` while this thread takes no signals, so that the threads that it starts take none for good: signals
/// are for Ruby's own threads.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: sigfillset fills `all`, and pthread_sigmask `before`, or fails and changes nothing; `before` is then
    // not used.
    let changed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = start();
    if changed {
        // SAFETY: `before` is what the call above has filled.
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
    use crate::inbox::{Asked, Inbox};

    fn start() -> Engine {
        let way = Way::start(Builder::default(), Deadlines::default()).unwrap();
        Engine(RefCell::new(Some(Arc::new(Here::new(way)))))
    }

    fn ask(engine: &Engine, job: Job) {
        engine.way().unwrap().get().unwrap().ask(job);
    }

    fn order(inbox: &Arc<Inbox>, tag: usize, method: &str, url: &str) -> Job {
        assert!(inbox.make_room());
        let ticket = Ticket::for_order(inbox, tag, Asked::new(method.to_owned(), url.to_owned(), None));
        Job::Send(Box::new(Order { ticket, headers: Vec::new(), body: None, options: None }))
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

    /// Requests of a client whose thread had ended failed for ever after; and they said neither which they were, nor that
    /// they could be sent again.
    #[test]
    fn a_thread_that_ends_by_a_defect_tells_those_who_wait_and_leads_nowhere() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (engine, inbox) = (start(), Inbox::new().unwrap());
        assert!(engine.is_here());
        ask(&engine, order(&inbox, 7, "GET", &format!("{url}?secret=hidden")));
        ask(&engine, order(&inbox, 8, "POST", &url));
        let connections = [listener.accept().unwrap(), listener.accept().unwrap()];
        ask(&engine, Job::Panic);
        ask(&engine, Job::Count(Ticket::for_question(&inbox)));
        ask(&engine, order(&inbox, 9, "POST", &url));
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
        let call = Call::leading_nowhere(Inbox::new().unwrap());
        assert!(!call.leads_somewhere());
        let (first, second) = (start(), start());
        call.lead(&first);
        ask(&first, Job::Panic);
        while call.leads_somewhere() {
            thread::yield_now();
        }
        call.lead(&second);
        assert!(call.leads_somewhere());
        let (inbox, way) = call.both();
        way.get().unwrap().ask(order(inbox, 1, "GET", "nonsense"));
        assert!(matches!(wait_for(inbox, 1)[..], [(1, Outcome::Failure(_))]));
        second.close();
        assert!(call.leads_somewhere(), "what was begun goes on");
        call.lead(&second);
        assert!(!call.leads_somewhere(), "closed, so that another is asked for");
    }
}
