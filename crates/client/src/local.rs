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
/// The task that polls a request also runs it, so a response wakes no other task. Its futures need a runtime whose
/// tasks stay on their thread: tokio's `LocalRuntime`, as `oroshi_net::Threads` makes them, or a `LocalSet`.
///
/// ```no_run
/// use oroshi_net::{Threads, ThreadsOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // One client on each of two cores.
/// let statuses = Threads::run(&ThreadsOptions::new("fetch", 2), |_| async {
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

/// A response to a request of a [`local::Client`](Client).
pub type Response = response::Response<Body>;

/// A response's body, read from the connection.
#[derive(Debug)]
pub struct Body(IncomingBody);

impl Handle for Client {
    type Reader = dyn AsyncRead;
}

impl Builder {
    /// Builds a client for this thread alone.
    ///
    /// # Errors
    /// [`BuildError`]: an invalid setting.
    pub fn build_local(self) -> Result<Client, BuildError> {
        Ok(Client { core: Rc::new(Core::new(self.checked()?)) })
    }
}

impl Client {
    /// Creates a client with the default settings.
    pub fn new() -> Self {
        Client { core: Rc::new(Core::new(Builder::default())) }
    }

    /// Starts a request with any method but CONNECT.
    pub fn request(&self, method: impl Into<Cow<'static, str>>, url: impl IntoUrl) -> RequestBuilder<Self> {
        RequestBuilder::new(self.clone(), method.into(), url)
    }

    crate::methods!();

    /// Returns the client's gauges and counters.
    pub fn counts(&self) -> Counts {
        self.core.counts()
    }

    /// Closes all idle connections.
    pub fn close_idle(&self) {
        self.core.pool.borrow_mut().close_idle();
    }

    /// Closes the idle connections of a partition; see [`RequestBuilder::partition`]. Requests under way keep theirs.
    pub fn close_partition(&self, partition: u64) {
        self.core.pool.borrow_mut().close_partition(partition);
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
    /// Sends a reader's bytes as the body while it is read: with `Content-Length` if its length is known, otherwise in
    /// chunks. The body cannot be sent again, neither for a redirect nor for a retry.
    pub fn reader(self, reader: impl AsyncRead + 'static, length: Option<u64>) -> Self {
        self.reader_body(Box::pin(reader), length)
    }

    /// Sends the request, and waits for the response's head.
    ///
    /// # Errors
    /// [`Error`]: the phase, the cause, and whether the request may be sent again. A status of 400 or more is no error.
    ///
    /// # Cancel safety
    /// Dropping the future ends the request: it closes the request's connection, and removes the request from the
    /// queue. The server may have processed the request.
    ///
    /// # Panics
    /// Outside a runtime whose tasks stay on their thread, with I/O and time enabled.
    pub async fn send(self) -> Result<Response, Error> {
        let RequestBuilder { client, request } = self;
        let (answer, incoming) = run(&client.core, request?, monotonic_ns()).await?;
        Ok(Response::new(answer, Body(incoming), limits(&client.core)))
    }
}

/// Returns the limits on a body.
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

    /// With tens of thousands of requests, these futures take most of the memory; `tests/memory.rs` counts everything.
    #[test]
    fn a_request_is_small() {
        let client = Client::new();
        let sending = client.get("http://127.0.0.1:1/").send();
        assert!(size_of_val(&sending) <= 480, "{}", size_of_val(&sending));
        assert!(size_of::<Exchange>() <= 488, "{}", size_of::<Exchange>());
    }
}
