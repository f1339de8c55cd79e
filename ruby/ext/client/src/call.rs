//! What a Ruby thread or fiber holds while it waits for the outcomes of its requests.

use std::cell::RefCell;
use std::sync::Arc;

use magnus::{Error, RArray, RHash, RString, Ruby};
use oroshi_client::Bytes;

use crate::engine::{Engine, Job, Shared, Way, elsewhere, is_out_of_descriptors, leads_somewhere};
use crate::inbox::{Asked, Inbox, Ticket};
use crate::order::Order;
use crate::outcome::request_error;
use crate::process::Here;
use crate::settings;

/// Requests that are waited for together: one, or the thousands of a `fetch_all`. Whoever is done with it calls
/// `finish`; the collector does so otherwise.
#[derive(Debug)]
#[magnus::wrap(class = "Oroshi::Client::Native::Call", free_immediately)]
pub(crate) struct Call {
    /// To the thread that is asked; nothing before `lead`, and once it has finished, so that the thread can end before
    /// the collector comes.
    way: RefCell<Option<Shared>>,
    inbox: Here<Arc<Inbox>>,
}

impl Call {
    /// A call that leads to no thread yet. Nil if no descriptor is left to wait with.
    pub(crate) fn new(ruby: &Ruby) -> Result<Option<Self>, Error> {
        match Inbox::new() {
            Ok(inbox) => Ok(Some(Call::leading_nowhere(inbox))),
            Err(error) if is_out_of_descriptors(&error) => Ok(None),
            Err(error) => Err(request_error(ruby, "eventfd", &format!("no eventfd can be made: {error}"), true)),
        }
    }

    pub(crate) fn leading_nowhere(inbox: Arc<Inbox>) -> Self {
        Call { way: RefCell::new(None), inbox: Here::new(inbox) }
    }

    /// Whether there is a thread that can be asked.
    pub(crate) fn leads(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        this.inbox(ruby)?;
        Ok(this.leads_somewhere())
    }

    pub(crate) fn leads_somewhere(&self) -> bool {
        self.way.borrow().as_ref().is_some_and(leads_somewhere)
    }

    /// Asks an engine's thread from now on; nobody's if that was closed. What another one was asked for still comes.
    pub(crate) fn lead(&self, engine: &Engine) {
        self.way.replace(engine.way());
    }

    /// The number of the descriptor that is readable when `take` has something to give, or `submit` has room again.
    /// It is this object's own, which closes it when it finishes.
    pub(crate) fn fileno(ruby: &Ruby, this: &Self) -> Result<i32, Error> {
        this.inbox(ruby)?.fileno().ok_or_else(|| elsewhere(ruby))
    }

    /// Sends a request, whose outcome will carry `tag`. False if there is no room yet: it is to be sent again when
    /// the descriptor is readable.
    ///
    /// `headers` is an Array of pairs of Strings; `body` a String or nil; `options` a Hash of those that `Settings`
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
        let way = way(ruby, &shared)?;
        let inbox = self.inbox(ruby)?;
        let headers = headers.map(settings::fields).transpose()?.unwrap_or_default();
        let options = options.map(|options| settings::options(options, &way.limits)).transpose()?;
        if !inbox.make_room() {
            return Ok(false);
        }
        let idempotent = options.as_ref().and_then(|options| options.idempotent);
        let asked = Asked::new(settings::text(method), settings::text(url), idempotent);
        let ticket = Ticket::for_order(inbox, tag, asked);
        let body = body.map(|body| Bytes::from(settings::bytes(body)));
        way.ask(Job::Send(Box::new(Order { ticket, headers, body, options })));
        Ok(true)
    }

    /// Asks for the client's counts.
    pub(crate) fn count(ruby: &Ruby, this: &Self) -> Result<(), Error> {
        let shared = this.shared(ruby)?;
        way(ruby, &shared)?.ask(Job::Count(Ticket::for_question(this.inbox(ruby)?)));
        Ok(())
    }

    /// The outcomes that have come since the last time, perhaps none.
    pub(crate) fn take(ruby: &Ruby, this: &Self) -> Result<RArray, Error> {
        let outcomes = this.inbox(ruby)?.take();
        let all = ruby.ary_new_capa(outcomes.len());
        for (tag, outcome) in outcomes {
            all.push(outcome.to_ruby(ruby, tag))?;
        }
        Ok(all)
    }

    /// Wants no more outcomes: what is under way ends.
    pub(crate) fn finish(&self) {
        if let Some(inbox) = self.inbox.get() {
            inbox.give_up();
        }
        drop(self.way.take());
    }

    fn shared(&self, ruby: &Ruby) -> Result<Shared, Error> {
        self.way.borrow().clone().ok_or_else(|| elsewhere(ruby))
    }

    fn inbox(&self, ruby: &Ruby) -> Result<&Arc<Inbox>, Error> {
        self.inbox.get().ok_or_else(|| elsewhere(ruby))
    }
}

#[cfg(test)]
impl Call {
    pub(crate) fn both(&self) -> (&Arc<Inbox>, Shared) {
        (self.inbox.get().unwrap(), self.way.borrow().clone().unwrap())
    }
}

fn way<'s>(ruby: &Ruby, shared: &'s Shared) -> Result<&'s Way, Error> {
    shared.get().ok_or_else(|| elsewhere(ruby))
}

impl Drop for Call {
    fn drop(&mut self) {
        self.finish();
    }
}
