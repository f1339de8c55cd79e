//! New sessions: the guard of one without a connection yet, and the establish callback.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{Either, select};
use oroshi_websocket::CloseCode;

use crate::hub::connection::Connection;
use crate::hub::{Hub, OpenError};
use crate::message::{Framing, Message, Place};
use crate::session::channels::Channels;
use crate::session::directory::{HeldByPage, Location};
use crate::session::{Polling, Reason, Session};

/// An open session without a connection. Dropping this removes the session.
pub(crate) struct Opened<'h> {
    hub: &'h Rc<Hub>,
    session: Option<Rc<Session>>,
}

impl Hub {
    /// Opens a session under this key, with its first messages. It replaces an older session with the same key.
    ///
    /// Messages published from here on reach it, once it is served. `of_page`: a page with a permitted origin asks.
    /// `channels`: it speaks the protocol of channels.
    pub(crate) fn open<'h>(
        self: &'h Rc<Self>,
        key: &str,
        framing: Framing,
        of_page: bool,
        channels: Option<Channels>,
        first_messages: impl FnOnce(&Arc<str>) -> Vec<Message>,
        groups: &[String],
    ) -> Result<Opened<'h>, OpenError> {
        if self.draining.get() {
            return Err(OpenError::Draining);
        }
        // Others may have come since the request was let in.
        if !self.node.enter() {
            self.node.count_rejected();
            return Err(OpenError::Full);
        }
        self.generation.set(self.generation.get().wrapping_add(1));
        let (session, old) = {
            let mut sessions = self.sessions.borrow_mut();
            let entry = sessions.vacant_entry();
            let (slot, generation) = (entry.key() as u32, self.generation.get());
            let location = Location { thread: self.thread, slot, generation, of_page };
            let session = Rc::new(Session::new(key.into(), location, framing, self.clock.now()));
            let old = self.node.directory.insert(&session.key, location);
            let old = old.map_err(|HeldByPage| {
                self.node.leave();
                OpenError::HeldByPage
            })?;
            entry.insert(Rc::clone(&session));
            self.checks.soon(slot);
            (session, old)
        };
        self.counters.opened(framing);
        if let Some(channels) = channels {
            session.speak_channels(channels);
        }
        // Jobs of other threads that publish to it run after this one, so these messages come first.
        for message in first_messages(&session.key) {
            self.writer.send_control(&session, message);
        }
        if let Some(old) = old {
            self.mailboxes.tell(old.thread, Box::new(move |hub| hub.replace(old)));
        }
        if let Some(link) = &self.node.link {
            link.claim(&session.key);
        }
        for group in groups {
            self.join_here(&session, group);
        }
        Ok(Opened { hub: self, session: Some(session) })
    }
}

impl Opened<'_> {
    /// Keeps the session when this is dropped.
    pub(crate) fn keep(mut self) -> Option<Rc<Session>> {
        self.session.take()
    }

    /// Sets the session's user.
    pub(crate) fn set_user(&self, user: Option<&str>) {
        if let (Some(session), Some(user)) = (&self.session, user) {
            self.hub.set_user(session, user);
        }
    }

    /// Sets the hash of its client's address; 0 if addresses have no limits.
    pub(crate) fn set_address(&self, address: u64) {
        if let Some(session) = &self.session
            && address != 0
        {
            session.rare(|rare| rare.address = address);
        }
    }

    /// Ends the session at the end of its token, in seconds since 1970.
    pub(crate) fn expire_at(&self, seconds: u64) {
        if let Some(session) = &self.session {
            self.hub.expire_at(session, seconds);
        }
    }

    /// Returns the end of the session's token, in seconds since 1970, if it has one.
    pub(crate) fn expires(&self) -> Option<u64> {
        self.session.as_ref().map(|session| session.times.expires.get().into()).filter(|&expires| expires > 0)
    }

    /// Returns the session's user, if it is known.
    pub(crate) fn user(&self) -> Option<Box<str>> {
        self.session.as_ref()?.user()
    }

    /// Returns the session's key.
    pub(crate) fn key(&self) -> Option<Arc<str>> {
        self.session.as_ref().map(|session| Arc::clone(&session.key))
    }

    /// Returns the client's name for others and its token, if it speaks the protocol of channels.
    pub(crate) fn channels(&self) -> Option<(String, String)> {
        let session = self.session.as_ref()?;
        session.channels(|channels| (channels.client_text(), channels.token_text()))
    }

    /// Subscribes the session to a channel, as its request says.
    pub(crate) fn subscribe(&self, channel: &str, since: Option<Place>, presence: bool) {
        if let Some(session) = &self.session {
            self.hub.subscribe_at_connect(session, channel, since, presence);
        }
    }

    /// Prepares the session for polls that show `token`, and calls the establish callback. False: the backend refused.
    pub(crate) async fn establish_polling(&self, token: &str) -> bool {
        let Some(session) = &self.session else { return false };
        session.rare(|rare| {
            rare.polling = Some(Box::new(Polling { token: token.into(), batch: 0, turn: 0, waits: false }));
        });
        let agreed = self.hub.plan().callbacks.establish.is_none() || self.hub.callbacks.establish(&session.key).await;
        if !agreed {
            session.tells_close.set(false);
        }
        agreed
    }

    /// Serves the session's connection, and calls the establish callback.
    pub(crate) fn serve(self, connection: Connection) {
        let hub = Rc::clone(self.hub);
        let Some(session) = self.keep() else { return };
        let asks = hub.plan().callbacks.establish.is_some();
        if asks && hub.plan().compat_ekbo {
            tokio::task::spawn_local(serve_once_agreed(hub, session, connection));
            return;
        }
        hub.serve(&session, connection);
        if !asks {
            return;
        }
        tokio::task::spawn_local(async move {
            if !hub.callbacks.establish(&session.key).await {
                session.tells_close.set(false);
                hub.end(&session, Reason::Closed, CloseCode::POLICY, "the backend did not agree");
            }
        });
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.hub.remove(&session, Reason::Client);
        }
    }
}

/// Serves as kuiperbelt does: the hub writes nothing before the backend has agreed. Until then messages wait.
async fn serve_once_agreed(hub: Rc<Hub>, session: Rc<Session>, mut connection: Connection) {
    let is_websocket = session.framing.is_websocket();
    let agreed = {
        let agreed = pin!(session.unless_over(hub.callbacks.establish(&session.key)));
        let left = pin!(poll_fn(|context| connection.poll_left(is_websocket, context)));
        match select(agreed, left).await {
            Either::Left((agreed, _)) => agreed,
            Either::Right(_) => Err(Reason::Client),
        }
    };
    match agreed {
        Ok(true) => hub.serve(&session, connection),
        Ok(false) => {
            session.tells_close.set(false);
            hub.remove(&session, Reason::Closed);
        }
        Err(reason) => hub.remove(&session, reason),
    }
}
