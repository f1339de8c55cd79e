//! The client of one core: nothing in it crosses threads, takes a lock or is shared with another core.

use std::borrow::Cow;
use std::rc::Rc;
use std::task::{Context, Poll};

use oroshi_net::monotonic_ns;
use tokio::io::AsyncRead;

use crate::core::{Core, Counts};
use crate::deadline::Timings;
use crate::error::{Cause, Error};
use crate::headers::Headers;
use crate::incoming::IncomingBody;
use crate::request::{Handle, IntoUrl, RequestBuilder};
use crate::response::{self, Limits, sealed};
use crate::run::run;
use crate::settings::{BuildError, Builder};

/// A client that belongs to one thread. Cheap to clone; clones share everything.
///
/// Requests are carried out by whoever polls them, so the answer to one costs no other task a wake-up. Its futures run on a
/// runtime whose tasks stay on their thread: tokio's `LocalRuntime`, as `oroshi_net::Cores` makes them, or a `LocalSet`.
///
/// ```no_run
/// use oroshi_net::{Cores, CoresOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // One client on each of two cores.
/// let statuses = Cores::run(&CoresOptions::new("fetch", 2), |_| async {
///     let client = oroshi_client::Client::builder().build_local().expect("sound settings");
///     match client.get("unix:/run/app.sock:/health").send().await {
///         Ok(response) => Some(response.status()),
///         Err(error) if error.retry_is_safe() => None,
///         Err(error) => panic!("{error} ({})", error.cause()),
///     }
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    core: Rc<Core>,
}

/// A response to a [`local::Client`](Client).
pub type Response = response::Response<Body>;

/// A response's body, from the connection itself.
#[derive(Debug)]
pub struct Body(IncomingBody);

impl Handle for Client {
    type Reader = dyn AsyncRead;
}

impl Client {
    /// A client with the default settings.
    pub fn new() -> Self {
        Client { core: Rc::new(Core::new(Builder::default())) }
    }

    pub(crate) fn build(settings: Builder) -> Result<Self, BuildError> {
        Ok(Client { core: Rc::new(Core::new(settings.checked()?)) })
    }

    /// A request with any method but CONNECT.
    pub fn request(&self, method: impl Into<Cow<'static, str>>, url: impl IntoUrl) -> RequestBuilder<Self> {
        RequestBuilder::new(self.clone(), method.into(), url)
    }

    crate::methods!();

    /// What it holds now, and what it has done.
    pub fn counts(&self) -> Counts {
        self.core.counts()
    }

    /// Closes the connections that are idle now.
    pub fn close_idle(&self) {
        self.core.pool.borrow_mut().close_idle();
    }

    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.core
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestBuilder<Client> {
    /// Sends what a reader gives as the body, while it is read: with `Content-Length` if its length is known, else in chunks. It cannot be
    /// sent again, neither for a redirect nor for a retry.
    pub fn reader(self, reader: impl AsyncRead + 'static, length: Option<u64>) -> Self {
        self.reader_body(Box::pin(reader), length)
    }

    /// Sends the request, and waits for the head of what it is answered with.
    ///
    /// # Errors
    /// [`Error`]: in which phase, of what, and whether it may be sent again. A status of 400 or more is no error.
    ///
    /// # Cancel safety
    /// Dropping the future ends the request: its connection is closed, and its place in line is given up. Nothing of it is left. The
    /// server may have carried it out.
    ///
    /// # Panics
    /// Outside a runtime whose tasks stay on their thread, with I/O and time enabled.
    pub async fn send(self) -> Result<Response, Error> {
        let RequestBuilder { client, request } = self;
        let (answer, incoming) = run(&client.core, request?, monotonic_ns()).await?;
        Ok(Response::new(answer, Body(incoming), limits(&client.core)))
    }
}

/// How much of a body may be read.
pub(crate) fn limits(core: &Core) -> Limits {
    Limits { collect: core.settings.collect_bytes, stream: core.settings.stream_bytes }
}

impl sealed::Source for Body {
    fn poll(&mut self, context: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Error>> {
        self.0.poll(context, into)
    }

    fn give_up(&mut self, cause: Cause) -> Error {
        self.0.give_up(cause)
    }

    fn timings(&self) -> Timings {
        self.0.timings()
    }

    fn trailers(&self) -> Option<&Headers> {
        self.0.trailers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Exchange;

    /// Requests by the ten thousand are mostly these; `tests/memory.rs` counts all of one.
    #[test]
    fn a_request_is_small() {
        let client = Client::new();
        let sending = client.get("http://127.0.0.1:1/").send();
        assert!(size_of_val(&sending) <= 480, "{}", size_of_val(&sending));
        assert!(size_of::<Exchange>() <= 488, "{}", size_of::<Exchange>());
    }
}
