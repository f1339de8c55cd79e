//! The client for everybody else: a thread of its own with a [`local::Client`](crate::local::Client) on it, reached by messages.

use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use oroshi_net::{Cores, CoresOptions, monotonic_ns};
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, oneshot};

use crate::core::{Core, Counts};
use crate::deadline::{Phase, Timings};
use crate::error::{Cause, Error};
use crate::headers::Headers;
use crate::incoming::Incoming;
use crate::local;
use crate::request::{Handle, IntoUrl, Request, RequestBuilder};
use crate::response::{self, Answer, sealed};
use crate::run::run;
use crate::settings::{BuildError, Builder};

/// A client for any thread and any runtime. Cheap to clone; clones share everything. It ends when the last clone and the last
/// response are dropped.
///
/// It starts one thread, on which a [`local::Client`] does the work; a request and its answer cross over as messages. So its pool is
/// one, with caps that are exact, and no lock is held anywhere. Who has a thread per core and wants one client on each takes
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
    jobs: mpsc::UnboundedSender<Job>,
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

/// What the thread is asked to do.
enum Job {
    Send(Asked),
    Count(oneshot::Sender<Counts>),
    CloseIdle,
}

/// A request on its way to the thread.
struct Asked {
    request: Box<Request<dyn AsyncRead + Send>>,
    /// When: its time runs from then on, not from when the thread gets to it.
    called: u64,
    reply: oneshot::Sender<Result<Response, Error>>,
}

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
        let (jobs, work) = mpsc::unbounded_channel();
        let work = Mutex::new(Some(work));
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
        })
        .map_err(BuildError::Thread)?;
        Ok(Client { jobs })
    }

    /// A request with any method but CONNECT.
    pub fn request(&self, method: impl Into<Cow<'static, str>>, url: impl IntoUrl) -> RequestBuilder<Self> {
        RequestBuilder::new(self.clone(), method.into(), url)
    }

    crate::methods!();

    /// What it holds now, and what it has done.
    pub async fn counts(&self) -> Counts {
        let (sender, counts) = oneshot::channel();
        // The thread is there for as long as `self` is.
        let _ = self.jobs.send(Job::Count(sender));
        counts.await.unwrap_or_default()
    }

    /// Closes the connections that are idle now.
    pub fn close_idle(&self) {
        let _ = self.jobs.send(Job::CloseIdle);
    }
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
        let (reply, answer) = oneshot::channel();
        let job = Job::Send(Asked { request: request?, called: monotonic_ns(), reply });
        let ended = || Error::new(Phase::Request, Cause::Ended);
        client.jobs.send(job).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
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
        let message = message.unwrap_or_else(|| Message::Failed(Error::new(Phase::BetweenBytes, Cause::Ended)));
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

/// The thread's work: until nobody is left who could ask for anything.
async fn serve(client: &local::Client, mut work: mpsc::UnboundedReceiver<Job>, jobs: &mpsc::WeakUnboundedSender<Job>) {
    while let Some(job) = work.recv().await {
        match job {
            Job::Send(asked) => {
                tokio::task::spawn_local(send(Rc::clone(client.core()), asked, jobs.clone()));
            }
            Job::Count(reply) => drop(reply.send(client.counts())),
            Job::CloseIdle => client.close_idle(),
        }
    }
}

/// One request, for as long as somebody waits for it.
async fn send(core: Rc<Core>, asked: Asked, jobs: mpsc::WeakUnboundedSender<Job>) {
    let Asked { request, called, mut reply } = asked;
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
        Some(Err(error)) => drop(reply.send(Err(error))),
        Some(Ok((answer, incoming))) => hand_over(&core, answer, incoming, reply, &jobs).await,
    }
}

/// Hands a response over, with its body as it comes.
async fn hand_over(
    core: &Core,
    answer: Box<Answer>,
    mut incoming: Incoming,
    reply: oneshot::Sender<Result<Response, Error>>,
    jobs: &mpsc::WeakUnboundedSender<Job>,
) {
    // Whoever waits for the answer has one.
    let Some(jobs) = jobs.upgrade() else { return };
    let limits = local::limits(core);
    let response = |state, incoming: &Incoming| {
        let (timings, trailers) = (incoming.timings(), incoming.trailers().cloned());
        Response::new(answer, Body { state, timings, trailers, _jobs: jobs }, limits)
    };
    if incoming.has_arrived() {
        let mut whole = Vec::new();
        // Nothing to wait for: one poll takes all of it.
        let _ = poll_fn(|context| incoming.poll(context, &mut whole)).await;
        drop(reply.send(Ok(response(State::Here(whole), &incoming))));
        return;
    }
    // One piece waits to be taken while the next is received.
    let (sender, messages) = mpsc::channel(1);
    if reply.send(Ok(response(State::Coming(messages), &incoming))).is_err() {
        return;
    }
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
        if sender.send(message).await.is_err() || last {
            return;
        }
    }
}
