//! What a Ruby thread or fiber holds while it waits for the outcomes of its requests.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use magnus::{Error, RArray, RHash, RString, Ruby};
use oroshi_client::Bytes;

use crate::engine::{Job, Shared, Way, elsewhere};
use crate::inbox::{Inbox, Ticket};
use crate::order::Order;
use crate::process::Here;
use crate::settings;

/// Requests that are waited for together: one, or the thousands of a `fetch_all`. Whoever is done with it calls
/// `finish`; the collector does so otherwise.
#[derive(Debug)]
#[magnus::wrap(class = "Oroshi::Client::Native::Call", free_immediately)]
pub(crate) struct Call {
    /// Nothing once it has finished, so that the thread can end before the collector comes.
    way: RefCell<Option<Shared>>,
    inbox: Here<Arc<Inbox>>,
}

impl Call {
    /// An error if no descriptor is left to wait with.
    pub(crate) fn new(way: Shared) -> io::Result<Self> {
        Ok(Call { way: RefCell::new(Some(way)), inbox: Here::new(Inbox::new()?) })
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
        if !inbox.make_room() {
            return Ok(false);
        }
        let ticket = Ticket::for_order(inbox, tag);
        let headers = headers.map(settings::fields).transpose()?.unwrap_or_default();
        let options = options.map(|options| settings::options(options, &way.limits)).transpose()?;
        let (method, url) = (settings::text(method), settings::text(url));
        let body = body.map(|body| Bytes::from(settings::bytes(body)));
        way.ask(Job::Send(Box::new(Order { ticket, method, url, headers, body, options })));
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

fn way<'s>(ruby: &Ruby, shared: &'s Shared) -> Result<&'s Way, Error> {
    shared.get().ok_or_else(|| elsewhere(ruby))
}

impl Drop for Call {
    fn drop(&mut self) {
        self.finish();
    }
}
