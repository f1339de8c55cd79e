//! `Oroshi::Client::Native::Call`: waits for the outcomes of a Ruby thread's or fiber's requests.

use std::cell::RefCell;
use std::sync::Arc;

use magnus::{Error, RArray, RHash, RString, Ruby};
use oroshi_client::Bytes;

use crate::engine::{Engine, EngineHandle, Job, Shared, elsewhere, is_alive, is_out_of_descriptors};
use crate::inbox::{Inbox, RequestSummary, Ticket};
use crate::outcome::request_error;
use crate::process::ProcessLocal;
use crate::request::Request;
use crate::settings;

/// Requests with one common wait: a single one, or the thousands of a `fetch_all`. `finish` ends it; otherwise the
/// garbage collector does.
#[derive(Debug)]
#[magnus::wrap(class = "Oroshi::Client::Native::Call", free_immediately)]
pub(crate) struct Call {
    /// The thread that receives requests. `None` before `attach` and after `finish`, so that the thread can end before
    /// the garbage collector runs.
    handle: RefCell<Option<Shared>>,
    inbox: ProcessLocal<Arc<Inbox>>,
}

impl Call {
    /// Creates a call without a thread. Nil if no descriptor is left to wait with.
    pub(crate) fn new(ruby: &Ruby) -> Result<Option<Self>, Error> {
        match Inbox::new() {
            Ok(inbox) => Ok(Some(Call::detached(inbox))),
            Err(error) if is_out_of_descriptors(&error) => Ok(None),
            Err(error) => Err(request_error(ruby, "eventfd", &format!("no eventfd can be made: {error}"), true)),
        }
    }

    pub(crate) fn detached(inbox: Arc<Inbox>) -> Self {
        Call { handle: RefCell::new(None), inbox: ProcessLocal::new(inbox) }
    }

    /// Whether the call has a thread that runs.
    pub(crate) fn is_attached(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        this.inbox(ruby)?;
        Ok(this.is_alive())
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.handle.borrow().as_ref().is_some_and(is_alive)
    }

    /// Sends requests to this engine's thread from now on; to none if the engine is closed. Outcomes of a previous
    /// thread still arrive.
    pub(crate) fn attach(&self, engine: &Engine) {
        self.handle.replace(engine.handle());
    }

    /// Returns the descriptor that is readable when `take` has outcomes or `submit` has room again. The call owns it
    /// and closes it in `finish`.
    pub(crate) fn fileno(ruby: &Ruby, this: &Self) -> Result<i32, Error> {
        this.inbox(ruby)?.fileno().ok_or_else(|| elsewhere(ruby))
    }

    /// Sends a request; its outcome will carry `tag`. False if there is no room: send it again when the descriptor is
    /// readable.
    ///
    /// `headers` is an Array of pairs of Strings; `body` a String or nil; `options` a Hash that `settings::options`
    /// reads, or nil.
    pub(crate) fn submit(
        &self,
        tag: usize,
        method: RString,
        url: RString,
        headers: Option<RArray>,
        body: Option<RString>,
        options: Option<RHash>,
    ) -> Result<bool, Error> {
        let ruby = &Ruby::get_with(url);
        let shared = self.shared(ruby)?;
        let handle = handle(ruby, &shared)?;
        let inbox = self.inbox(ruby)?;
        let headers = headers.map(settings::fields).transpose()?.unwrap_or_default();
        let options = options.map(|options| settings::options(options, &handle.limits)).transpose()?;
        if !inbox.make_room() {
            return Ok(false);
        }
        let idempotent = options.as_ref().and_then(|options| options.idempotent);
        let summary = RequestSummary::new(settings::text(method), settings::text(url), idempotent);
        let ticket = Ticket::for_request(inbox, tag, summary);
        let body = body.map(|body| Bytes::from(settings::bytes(body)));
        handle.ask(Job::Send(Box::new(Request { ticket, headers, body, options })));
        Ok(true)
    }

    /// Asks for the client's counts.
    pub(crate) fn count(ruby: &Ruby, this: &Self) -> Result<(), Error> {
        let shared = this.shared(ruby)?;
        handle(ruby, &shared)?.ask(Job::Count(Ticket::for_question(this.inbox(ruby)?)));
        Ok(())
    }

    /// Returns the outcomes since the last call, perhaps none.
    pub(crate) fn take(ruby: &Ruby, this: &Self) -> Result<RArray, Error> {
        let outcomes = this.inbox(ruby)?.take();
        let all = ruby.ary_new_capa(outcomes.len());
        for (tag, outcome) in outcomes {
            all.push(outcome.to_ruby(ruby, tag))?;
        }
        Ok(all)
    }

    /// Cancels what is under way, and drops its outcomes.
    pub(crate) fn finish(&self) {
        if let Some(inbox) = self.inbox.get() {
            inbox.give_up();
        }
        drop(self.handle.take());
    }

    fn shared(&self, ruby: &Ruby) -> Result<Shared, Error> {
        self.handle.borrow().clone().ok_or_else(|| elsewhere(ruby))
    }

    fn inbox(&self, ruby: &Ruby) -> Result<&Arc<Inbox>, Error> {
        self.inbox.get().ok_or_else(|| elsewhere(ruby))
    }
}

#[cfg(test)]
impl Call {
    pub(crate) fn both(&self) -> (&Arc<Inbox>, Shared) {
        (self.inbox.get().unwrap(), self.handle.borrow().clone().unwrap())
    }
}

fn handle<'s>(ruby: &Ruby, shared: &'s Shared) -> Result<&'s EngineHandle, Error> {
    shared.get().ok_or_else(|| elsewhere(ruby))
}

impl Drop for Call {
    fn drop(&mut self) {
        self.finish();
    }
}
