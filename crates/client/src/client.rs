//! The client for any thread: a thread of its own runs a [`local::Client`](crate::local::Client), reached by messages.

use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use oroshi_net::threads::ThreadsError;
use oroshi_net::{Threads, ThreadsOptions, monotonic_ns};
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, oneshot};

use crate::core::{Core, Counts};
use crate::deadline::{Phase, Timings};
use crate::error::{Cause, Error};
use crate::headers::Headers;
use crate::incoming::IncomingBody;
use crate::local;
use crate::request::{Handle, IntoUrl, Request, RequestBuilder};
use crate::response::{self, ResponseParts, sealed};
use crate::run::run;
use crate::settings::{BuildError, Builder};

/// A client for any thread and any runtime. Cheap to clone; clones share everything. It ends when the last clone and
/// the last response are dropped.
///
/// It starts one thread, on which a [`local::Client`] does the work; requests and responses travel as messages. It
/// therefore has one pool with exact caps, and holds no lock while it works. A program with a thread per core can use
/// one `local::Client` on each, and saves the messages.
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

/// A response to a request of a [`Client`].
pub type Response = response::Response<Body>;

/// A response's body, received from the client's thread.
pub struct Body {
    state: State,
    /// The timings at the head, or at the body's end once it has come.
    timings: Timings,
    trailers: Option<Headers>,
    /// Keeps the thread alive until the body has come.
    _jobs: mpsc::UnboundedSender<Job>,
}

enum State {
    /// The whole body, which came with the head.
    Here(Vec<u8>),
    Coming(mpsc::Receiver<Message>),
    Ended,
    /// The body failed or was dropped. Further reads must not report a proper end.
    Broken,
}

/// The channel to the thread, and what is needed to replace a thread that a defect has ended.
struct Thread {
    settings: Builder,
    jobs: Mutex<mpsc::UnboundedSender<Job>>,
}

/// A message to the thread.
enum Job {
    Send(Asked),
    Count(oneshot::Sender<Counts>),
    CloseIdle,
    ClosePartition(u64),
    #[cfg(test)]
    Hold(Box<dyn FnOnce() + Send>),
    #[cfg(test)]
    Panic,
}

/// A request for the thread.
struct Asked {
    request: Box<Request<dyn AsyncRead + Send>>,
    /// The time of the call. Deadlines run from here, not from when the thread begins the request.
    called: u64,
    caller: Caller,
}

/// The result of a request. Boxed to keep requests under way small. `None` if the thread ended before it began the
/// request.
type Reply = Option<Result<Box<Response>, Error>>;

/// The sender of a request's result, until the thread begins the request. Dropping it reports that nothing was sent, so
/// the request can be sent again.
struct Caller(Option<oneshot::Sender<Reply>>);

/// A message of the thread about a body.
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
    /// Marks the request as begun; from now on the sender reports its result.
    fn begin(mut self) -> Option<oneshot::Sender<Reply>> {
        self.0.take()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(reply) = self.0.take() {
            // A caller that no longer waits need not know.
            let _ = reply.send(None);
        }
    }
}

impl Handle for Client {
    type Reader = dyn AsyncRead + Send;
}

impl Builder {
    /// Builds a client for any thread and any runtime. Starts its thread.
    ///
    /// # Errors
    /// [`BuildError`]: an invalid setting, or no thread.
    pub fn build(self) -> Result<Client, BuildError> {
        let settings = self.checked()?;
        let jobs = Mutex::new(start(&settings).map_err(BuildError::Thread)?);
        Ok(Client { thread: Arc::new(Thread { settings, jobs }) })
    }
}

impl Client {
    /// Returns the settings, all at their defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a request with any method but CONNECT.
    pub fn request(&self, method: impl Into<Cow<'static, str>>, url: impl IntoUrl) -> RequestBuilder<Self> {
        RequestBuilder::new(self.clone(), method.into(), url)
    }

    crate::methods!();

    /// Returns the client's gauges and counters.
    pub async fn counts(&self) -> Counts {
        let (sender, counts) = oneshot::channel();
        // Without a thread, all counts are zero.
        let _ = self.thread.ask(Job::Count(sender));
        counts.await.unwrap_or_default()
    }

    /// Closes all idle connections.
    pub fn close_idle(&self) {
        let _ = self.thread.ask(Job::CloseIdle);
    }

    /// Closes the idle connections of a partition; see [`RequestBuilder::partition`]. Requests under way keep theirs.
    pub fn close_partition(&self, partition: u64) {
        let _ = self.thread.ask(Job::ClosePartition(partition));
    }
}

impl Thread {
    /// Sends a job to the thread. Replaces a thread that has ended.
    fn ask(&self, job: Job) -> Result<(), Cause> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(mpsc::error::SendError(job)) = jobs.send(job) else { return Ok(()) };
        *jobs = start(&self.settings).map_err(Cause::Thread)?;
        jobs.send(job).map_err(|_| Cause::Ended)
    }
}

/// Starts a thread. It ends with the last sender of jobs.
fn start(settings: &Builder) -> Result<mpsc::UnboundedSender<Job>, ThreadsError> {
    let (jobs, work) = mpsc::unbounded_channel();
    let work = Mutex::new(Some(work));
    let settings = settings.clone();
    // A sender that the thread held itself would keep it alive for ever.
    let weak = jobs.downgrade();
    Threads::start(&ThreadsOptions::new("oroshi-client", 1), move |_| {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (settings, weak) = (settings.clone(), weak.clone());
        async move {
            if let (Some(work), Ok(client)) = (work, settings.build_local()) {
                serve(&client, work, &weak).await;
            }
        }
    })?;
    Ok(jobs)
}

impl RequestBuilder<Client> {
    /// Sends a reader's bytes as the body while it is read: with `Content-Length` if its length is known, otherwise in
    /// chunks. The body cannot be sent again, neither for a redirect nor for a retry. The client's thread polls the
    /// reader: pass a reader that needs its own runtime (a socket, a tokio file) through `tokio::io::simplex` or the
    /// like.
    pub fn reader(self, reader: impl AsyncRead + Send + 'static, length: Option<u64>) -> Self {
        self.reader_body(Box::pin(reader), length)
    }

    /// Sends the request, and waits for the response's head.
    ///
    /// # Errors
    /// [`Error`]: the phase, the cause, and whether the request may be sent again. A status of 400 or more is no error.
    ///
    /// # Cancel safety
    /// Dropping the future ends the request as soon as the client's thread handles it: it closes the request's
    /// connection, and removes the request from the queue. The server may have processed the request.
    pub async fn send(self) -> Result<Response, Error> {
        let RequestBuilder { client, request } = self;
        let (request, called) = (request?, monotonic_ns());
        // Kept here for the error if the thread has ended.
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
        // Dropping the receiver makes the thread close the connection.
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

/// Jobs that the thread starts before it polls the sockets. Without a limit, it would start all requests of a burst
/// before it saw the first response.
const TURN: usize = 32;

/// Runs the thread until the last sender of jobs is gone.
async fn serve(client: &local::Client, mut work: mpsc::UnboundedReceiver<Job>, jobs: &mpsc::WeakUnboundedSender<Job>) {
    let mut turn = 0;
    while let Some(job) = work.recv().await {
        match job {
            Job::Send(asked) => {
                tokio::task::spawn_local(send(Rc::clone(client.core()), asked, jobs.clone()));
            }
            Job::Count(reply) => drop(reply.send(client.counts())),
            Job::CloseIdle => client.close_idle(),
            Job::ClosePartition(partition) => client.close_partition(partition),
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

/// Runs one request while its caller waits.
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
                // Boxed, so that a request that waits for its response reserves no space for the body.
                Box::pin(pass_on(incoming, messages)).await;
            }
        }
    }
}

/// Delivers a response, with its body if it has come. Otherwise returns the body's source and its channel.
fn hand_over(
    core: &Core,
    answer: Box<ResponseParts>,
    mut incoming: IncomingBody,
    reply: oneshot::Sender<Reply>,
    jobs: &mpsc::WeakUnboundedSender<Job>,
) -> Option<(IncomingBody, mpsc::Sender<Message>)> {
    // A caller that waits for a response holds one.
    let jobs = jobs.upgrade()?;
    let (state, rest) = if incoming.has_arrived() {
        let mut whole = Vec::new();
        // One poll takes all of it without waiting.
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

/// Forwards a body as it comes.
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
        // While the caller takes nothing, only the total deadline counts.
        let mut giving = pin!(sender.send(message));
        let given = poll_fn(|context| match giving.as_mut().poll(context) {
            Poll::Ready(given) => Poll::Ready(Ok(given.is_ok())),
            Poll::Pending => incoming.poll_total(context).map(Err),
        });
        match given.await {
            Ok(true) if !last => {}
            Ok(_) => return,
            Err(overdue) => {
                drop(incoming); // closes the connection: a caller that does not read learns it later
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

    /// The thread's memory per waiting request, beside a local client's; space for the body once added 800 bytes.
    #[test]
    fn a_request_is_small_on_the_thread_too() {
        let client = Client::builder().build().unwrap();
        let request = client.get("http://127.0.0.1:1/").request.unwrap();
        let (core, (jobs, _work)) = (local::Client::new(), mpsc::unbounded_channel());
        let asked = Asked { request, called: 0, caller: Caller(Some(oneshot::channel().0)) };
        let sending = send(Rc::clone(core.core()), asked, jobs.downgrade());
        assert!(size_of_val(&sending) <= 560 && size_of::<Reply>() <= 16, "{}", size_of_val(&sending));
    }

    /// The thread died, and every later request failed with "the client has ended".
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
            // The next request, which the ended thread did not answer.
            let next = tokio::task::spawn_local(client.get(&url).send());
            while client.counts().await.requests == 0 {}
            assert_eq!(client.counts().await.in_flight, 1);
            next.abort();
        });
    }

    /// The thread never began this POST, so nothing was sent. The error once said that it may have been processed,
    /// without its URL or its waiting time.
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
