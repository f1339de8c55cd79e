//! The client for everybody else: a thread of its own with a [`local::Client`](crate::local::Client) on it, reached by messages.

use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use oroshi_net::cores::CoresError;
use oroshi_net::{Cores, CoresOptions, monotonic_ns};
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, oneshot};

use crate::core::{Core, Counts};
use crate::deadline::{Phase, Timings};
use crate::error::{Cause, Error};
use crate::headers::Headers;
use crate::incoming::IncomingBody;
use crate::local;
use crate::request::{Handle, IntoUrl, Request, RequestBuilder};
use crate::response::{self, Answer, sealed};
use crate::run::run;
use crate::settings::{BuildError, Builder};

/// A client for any thread and any runtime. Cheap to clone; clones share everything. It ends when the last clone and the last
/// response are dropped.
///
/// It starts one thread, on which a [`local::Client`] does the work; a request and its answer cross over as messages. So its pool is
/// one, with caps that are exact, and no lock is held while it works. Who has a thread per core and wants one client on each takes
/// `local::Client` itself, and saves the way.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let client = oroshi_client::Client::builder().connections(100).timeout(Duration::from_secs(5)).build()?;
/// let mut response = client.get("https://example.org/").query([("page", "1")]).send().await?;
/// let mut length = 0;
/// let mut chunks = response.chunks();
/// while let Some(piece) = chunks.next().await? {
///     length += piece.len();
/// }
/// assert!(length > 0 && response.timings().first_byte < Duration::from_secs(5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    thread: Arc<Thread>,
}

/// A response to a [`Client`].
pub type Response = response::Response<Body>;

/// A response's body, from the client's thread.
pub struct Body {
    state: State,
    /// As of the head, or of the body's end once that has come.
    timings: Timings,
    trailers: Option<Headers>,
    /// Keeps the thread until the body has come.
    _jobs: mpsc::UnboundedSender<Job>,
}

enum State {
    /// All of it came with the head.
    Here(Vec<u8>),
    Coming(mpsc::Receiver<Message>),
    Ended,
    /// It failed, or was given up. Whoever asks again is not told that this was its end.
    Broken,
}

/// The way to the thread, and what it takes to start another if it should end, which it does only by a defect.
struct Thread {
    settings: Builder,
    jobs: Mutex<mpsc::UnboundedSender<Job>>,
}

/// What the thread is asked to do.
enum Job {
    Send(Asked),
    Count(oneshot::Sender<Counts>),
    CloseIdle,
    #[cfg(test)]
    Hold(Box<dyn FnOnce() + Send>),
    #[cfg(test)]
    Panic,
}

/// A request on its way to the thread.
struct Asked {
    request: Box<Request<dyn AsyncRead + Send>>,
    /// When: its time runs from then on, not from when the thread gets to it.
    called: u64,
    caller: Caller,
}

/// Boxed, as a request under way keeps room for it. Nothing if the thread has ended before it got to the request.
type Reply = Option<Result<Box<Response>, Error>>;

/// Whoever waits for the answer to a request that has not been begun. Should it be dropped, it is told so: a request of which
/// nothing was sent can be sent again.
struct Caller(Option<oneshot::Sender<Reply>>);

/// What the thread says about a body.
enum Message {
    Piece(Vec<u8>),
    End(Timings, Option<Headers>),
    Failed(Error),
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("timings", &self.timings).finish_non_exhaustive()
    }
}

impl Caller {
    /// The request is begun: what becomes of it from now on, the sender tells.
    fn begin(mut self) -> Option<oneshot::Sender<Reply>> {
        self.0.take()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(reply) = self.0.take() {
            // Whoever does not wait any more need not know.
            let _ = reply.send(None);
        }
    }
}

impl Handle for Client {
    type Reader = dyn AsyncRead + Send;
}

impl Client {
    /// The settings, each with its default.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn build(settings: Builder) -> Result<Self, BuildError> {
        let settings = settings.checked()?;
        let jobs = Mutex::new(start(&settings).map_err(BuildError::Thread)?);
        Ok(Client { thread: Arc::new(Thread { settings, jobs }) })
    }

    /// A request with any method but CONNECT.
    pub fn request(&self, method: impl Into<Cow<'static, str>>, url: impl IntoUrl) -> RequestBuilder<Self> {
        RequestBuilder::new(self.clone(), method.into(), url)
    }

    crate::methods!();

    /// What it holds now, and what it has done.
    pub async fn counts(&self) -> Counts {
        let (sender, counts) = oneshot::channel();
        // Without a thread there is nothing to be counted.
        let _ = self.thread.ask(Job::Count(sender));
        counts.await.unwrap_or_default()
    }

    /// Closes the connections that are idle now.
    pub fn close_idle(&self) {
        let _ = self.thread.ask(Job::CloseIdle);
    }
}

impl Thread {
    /// Asks the thread for something. If it has ended, another is started.
    fn ask(&self, job: Job) -> Result<(), Cause> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(mpsc::error::SendError(job)) = jobs.send(job) else { return Ok(()) };
        *jobs = start(&self.settings).map_err(Cause::Thread)?;
        jobs.send(job).map_err(|_| Cause::Ended)
    }
}

/// Starts a thread. It ends when nobody is left who could ask it for anything.
fn start(settings: &Builder) -> Result<mpsc::UnboundedSender<Job>, CoresError> {
    let (jobs, work) = mpsc::unbounded_channel();
    let work = Mutex::new(Some(work));
    let settings = settings.clone();
    // A sender of the thread's own would keep it from ever ending.
    let weak = jobs.downgrade();
    Cores::start(&CoresOptions::new("oroshi-client", 1), move |_| {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (settings, weak) = (settings.clone(), weak.clone());
        async move {
            if let (Some(work), Ok(client)) = (work, local::Client::build(settings)) {
                serve(&client, work, &weak).await;
            }
        }
    })?;
    Ok(jobs)
}

impl RequestBuilder<Client> {
    /// Sends what a reader gives as the body, while it is read: with `Content-Length` if its length is known, else in chunks. It cannot be
    /// sent again, neither for a redirect nor for a retry. It is read on the client's thread: a reader that needs a runtime of its own (a
    /// socket, a file of tokio's) is handed over through `tokio::io::simplex` or the like.
    pub fn reader(self, reader: impl AsyncRead + Send + 'static, length: Option<u64>) -> Self {
        self.reader_body(Box::pin(reader), length)
    }

    /// Sends the request, and waits for the head of what it is answered with.
    ///
    /// # Errors
    /// [`Error`]: in which phase, of what, and whether it may be sent again. A status of 400 or more is no error.
    ///
    /// # Cancel safety
    /// Dropping the future ends the request, as soon as the client's thread gets to it: its connection is closed, and its place in
    /// line is given up. Nothing of it is left. The server may have carried it out.
    pub async fn send(self) -> Result<Response, Error> {
        let RequestBuilder { client, request } = self;
        let (request, called) = (request?, monotonic_ns());
        // What the thread cannot tell if it has ended.
        let (method, endpoint) = (request.method.clone(), request.endpoint.clone());
        let idempotent = request.is_idempotent();
        let lost = |cause, retry_is_safe| {
            let total = Duration::from_nanos(monotonic_ns() - called);
            let error = Error::new(Phase::Request, cause).after(Timings { total, ..Timings::default() });
            error.about(&method, &endpoint).retry_is(retry_is_safe)
        };
        let (reply, answer) = oneshot::channel();
        let job = Job::Send(Asked { request, called, caller: Caller(Some(reply)) });
        client.thread.ask(job).map_err(|cause| lost(cause, true))?;
        match answer.await {
            Ok(Some(answered)) => answered.map(|response| *response),
            Ok(None) => Err(lost(Cause::Ended, true)),
            Err(_) => Err(lost(Cause::Ended, idempotent)),
        }
    }
}

impl sealed::Source for Body {
    fn poll(&mut self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>> {
        let message = match &mut self.state {
            State::Ended => return Poll::Ready(Ok(false)),
            State::Broken => {
                let gone = Cause::Io(io::ErrorKind::NotConnected.into());
                return Poll::Ready(Err(Error::new(Phase::BetweenBytes, gone).after(self.timings)));
            }
            State::Here(bytes) => {
                let mut bytes = std::mem::take(bytes);
                self.state = State::Ended;
                if into.is_empty() {
                    std::mem::swap(into, &mut bytes);
                } else {
                    into.append(&mut bytes);
                }
                return Poll::Ready(Ok(!into.is_empty()));
            }
            State::Coming(messages) => std::task::ready!(messages.poll_recv(context)),
        };
        let message = message
            .unwrap_or_else(|| Message::Failed(Error::new(Phase::BetweenBytes, Cause::Ended).after(self.timings)));
        Poll::Ready(match message {
            Message::Piece(mut piece) => {
                if into.is_empty() {
                    std::mem::swap(into, &mut piece);
                } else {
                    into.append(&mut piece);
                }
                Ok(true)
            }
            Message::End(timings, trailers) => {
                self.state = State::Ended;
                self.timings = timings;
                self.trailers = trailers;
                Ok(false)
            }
            Message::Failed(error) => {
                self.state = State::Broken;
                self.timings = error.timings();
                Err(error)
            }
        })
    }

    fn give_up(&mut self, cause: Cause) -> Error {
        // Nobody to receive it: the thread closes the connection.
        self.state = State::Broken;
        Error::new(Phase::BetweenBytes, cause).after(self.timings)
    }

    fn timings(&self) -> Timings {
        self.timings
    }

    fn trailers(&self) -> Option<&Headers> {
        self.trailers.as_ref()
    }
}

/// After how many jobs the thread looks at the sockets. It would begin all requests of a burst before it saw the first answer.
const TURN: usize = 32;

/// The thread's work: until nobody is left who could ask for anything.
async fn serve(client: &local::Client, mut work: mpsc::UnboundedReceiver<Job>, jobs: &mpsc::WeakUnboundedSender<Job>) {
    let mut turn = 0;
    while let Some(job) = work.recv().await {
        match job {
            Job::Send(asked) => {
                tokio::task::spawn_local(send(Rc::clone(client.core()), asked, jobs.clone()));
            }
            Job::Count(reply) => drop(reply.send(client.counts())),
            Job::CloseIdle => client.close_idle(),
            #[cfg(test)]
            Job::Hold(hold) => hold(),
            #[cfg(test)]
            Job::Panic => panic!("a defect"),
        }
        turn = (turn + 1) % TURN;
        if turn == 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// One request, for as long as somebody waits for it.
async fn send(core: Rc<Core>, asked: Asked, jobs: mpsc::WeakUnboundedSender<Job>) {
    let Asked { request, called, caller } = asked;
    let Some(mut reply) = caller.begin() else { return };
    let answered = {
        let mut running = pin!(run(&core, Box::new(request.into_local()), called));
        poll_fn(|context| {
            if let Poll::Ready(answered) = running.as_mut().poll(context) {
                return Poll::Ready(Some(answered));
            }
            reply.poll_closed(context).map(|()| None)
        })
        .await
    };
    match answered {
        None => {}
        Some(Err(error)) => drop(reply.send(Some(Err(error)))),
        Some(Ok((answer, incoming))) => {
            let messages = hand_over(&core, answer, incoming, reply, &jobs);
            if let Some((incoming, messages)) = messages {
                // Boxed: while the answer is waited for, there is no room kept for its body.
                Box::pin(pass_on(incoming, messages)).await;
            }
        }
    }
}

/// Hands a response over, with its body if that is here. Otherwise gives what it comes from, and where it is to go.
fn hand_over(
    core: &Core,
    answer: Box<Answer>,
    mut incoming: IncomingBody,
    reply: oneshot::Sender<Reply>,
    jobs: &mpsc::WeakUnboundedSender<Job>,
) -> Option<(IncomingBody, mpsc::Sender<Message>)> {
    // Whoever waits for the answer has one.
    let jobs = jobs.upgrade()?;
    let (state, rest) = if incoming.has_arrived() {
        let mut whole = Vec::new();
        // Nothing to wait for: one poll takes all of it.
        let _ = incoming.poll(&mut Context::from_waker(Waker::noop()), &mut whole);
        (State::Here(whole), None)
    } else {
        // One piece waits to be taken while the next is received.
        let (sender, messages) = mpsc::channel(1);
        (State::Coming(messages), Some(sender))
    };
    let body = Body { state, timings: incoming.timings(), trailers: incoming.trailers().cloned(), _jobs: jobs };
    reply.send(Some(Ok(Box::new(Response::new(answer, body, local::limits(core)))))).ok()?;
    rest.map(|sender| (incoming, sender))
}

/// Passes a body on as it comes.
async fn pass_on(mut incoming: IncomingBody, sender: mpsc::Sender<Message>) {
    let mut gone = pin!(sender.closed());
    loop {
        let mut piece = Vec::new();
        let polled = poll_fn(|context| {
            if let Poll::Ready(polled) = incoming.poll(context, &mut piece) {
                return Poll::Ready(Some(polled));
            }
            gone.as_mut().poll(context).map(|()| None)
        })
        .await;
        let message = match polled {
            None => return,
            Some(Ok(true)) => Message::Piece(piece),
            Some(Ok(false)) => Message::End(incoming.timings(), incoming.trailers().cloned()),
            Some(Err(error)) => Message::Failed(error),
        };
        let last = !matches!(message, Message::Piece(_));
        // Until somebody takes it, no time limit counts but the total.
        let mut giving = pin!(sender.send(message));
        let given = poll_fn(|context| match giving.as_mut().poll(context) {
            Poll::Ready(given) => Poll::Ready(Ok(given.is_ok())),
            Poll::Pending => incoming.poll_total(context).map(Err),
        });
        match given.await {
            Ok(true) if !last => {}
            Ok(_) => return,
            Err(overdue) => {
                drop(incoming); // closes the connection: whoever does not read learns it later
                if giving.await.is_ok() {
                    let _ = sender.send(Message::Failed(overdue)).await;
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Barrier;

    use super::*;

    /// What the thread keeps for a request while it waits for the answer, beside what a local client keeps; the body's end of it took 800
    /// bytes more.
    #[test]
    fn a_request_is_small_on_the_thread_too() {
        let client = Client::builder().build().unwrap();
        let request = client.get("http://127.0.0.1:1/").request.unwrap();
        let (core, (jobs, _work)) = (local::Client::new(), mpsc::unbounded_channel());
        let asked = Asked { request, called: 0, caller: Caller(Some(oneshot::channel().0)) };
        let sending = send(Rc::clone(core.core()), asked, jobs.downgrade());
        assert!(size_of_val(&sending) <= 560 && size_of::<Reply>() <= 16, "{}", size_of_val(&sending));
    }

    /// It died, and every later request failed with "the client has ended".
    #[test]
    fn a_thread_that_has_ended_by_a_defect_is_followed_by_another() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let client = Client::builder().build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build_local(Default::default()).unwrap();
        runtime.block_on(async {
            let waiting = ["GET", "POST"].map(|method| tokio::task::spawn_local(client.request(method, &url).send()));
            while client.counts().await.requests < 2 {}
            client.thread.ask(Job::Panic).unwrap();
            for (waiting, (method, safe)) in waiting.into_iter().zip([("GET", true), ("POST", false)]) {
                let error = waiting.await.unwrap().unwrap_err();
                assert_eq!((error.name(), error.cause().to_string().contains("defect")), ("ended", true), "{error:?}");
                assert_tells_all(&error, method, &url, safe);
            }
            // The next one, which was not answered by anybody before.
            let next = tokio::task::spawn_local(client.get(&url).send());
            while client.counts().await.requests == 0 {}
            assert_eq!(client.counts().await.in_flight, 1);
            next.abort();
        });
    }

    /// Nothing of a POST that the thread never got to was sent. It was told as one that may have been carried out, without a word of what
    /// it was and how long it had waited.
    #[test]
    fn a_request_that_the_thread_never_got_to_can_be_sent_again() {
        let (client, url) = (Client::builder().build().unwrap(), "http://127.0.0.1:1/");
        let runtime = tokio::runtime::Builder::new_current_thread().build_local(Default::default()).unwrap();
        let (is_held, release) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let on_the_thread = [Arc::clone(&is_held), Arc::clone(&release)];
        let hold = move || {
            for barrier in on_the_thread {
                barrier.wait();
            }
        };
        client.thread.ask(Job::Hold(Box::new(hold))).unwrap();
        is_held.wait();
        client.thread.ask(Job::Panic).unwrap();
        runtime.block_on(async {
            let mut sending = pin!(client.post(format!("{url}?secret=hidden")).send());
            assert!(poll_fn(|context| Poll::Ready(sending.as_mut().poll(context).is_pending())).await);
            release.wait();
            let error = sending.await.unwrap_err();
            assert_eq!(error.name(), "ended");
            assert_tells_all(&error, "POST", url, true);
        });
    }

    fn assert_tells_all(error: &Error, method: &str, url: &str, safe: bool) {
        let told = error.to_string();
        assert!(told.starts_with(&format!("{method} {url}: ")) && !told.contains("hidden"), "{told}");
        assert_eq!((error.retry_is_safe(), error.timings().total.is_zero()), (safe, false), "{told}");
    }
}
