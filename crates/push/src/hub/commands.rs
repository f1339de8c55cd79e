//! Commands of clients that speak the protocol of channels.

use std::rc::Rc;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use oroshi_websocket::Kind;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::hub::Hub;
use crate::identity::{self, NO_KEYS, unix_time};
use crate::message::{Framing, Message, Place};
use crate::publish::{Publish, PublishError, ReceiptWait, StoreError, Targets};
use crate::rates::{LIMITS, What};
use crate::rights::{Right, prefix};
use crate::session::channels::{Channels, Member};
use crate::session::info::PollError;
use crate::session::{Reason, Session};

/// The most messages in the answer to `history`.
const HISTORY_MESSAGES: usize = 100;

/// The longest name of a channel that a client may use, bytes.
const NAME_BYTES: usize = 255;

/// The greatest integer that JavaScript has, and the greatest `id`.
const MOST_ID: u64 = 1 << 53;

/// A command as it came.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command<'a> {
    id: Option<u64>,
    subscribe: Option<Subscribe>,
    unsubscribe: Option<Named>,
    #[serde(borrow)]
    publish: Option<PublishCommand<'a>>,
    history: Option<History>,
    presence: Option<Named>,
    token: Option<String>,
    ping: Option<Empty>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    channel: String,
    since: Option<Since>,
    #[serde(default)]
    delta: bool,
    #[serde(default)]
    presence: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Since {
    epoch: String,
    offset: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    channel: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishCommand<'a> {
    channel: String,
    text: Option<String>,
    #[serde(borrow)]
    json: Option<&'a RawValue>,
    base64: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct History {
    channel: String,
    limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

/// What a subscription brings beside whole messages.
#[derive(Clone, Copy, Debug, Default)]
struct Wants {
    /// Who comes and goes.
    presence: bool,
    /// Deltas, where the channel has them.
    delta: bool,
}

/// The answer to a command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) frame: Value,
    /// Whether the session has got it.
    is_sent: bool,
}

/// The name of the answer to `subscribe`.
const SUBSCRIBED: &str = "subscribed";

/// Why a command failed, as the client learns it.
#[derive(Debug)]
struct Refused {
    name: &'static str,
    message: String,
    channel: Option<String>,
}

impl Refused {
    fn new(name: &'static str, message: impl Into<String>) -> Self {
        Refused { name, message: message.into(), channel: None }
    }

    fn of(self, channel: &str) -> Self {
        Refused { channel: Some(channel.to_owned()), ..self }
    }
}

impl Hub {
    /// Carries out the commands of a session that wait, one after the other, and answers them.
    pub(super) async fn command_all(self: &Rc<Self>, session: &Rc<Session>) {
        while let Some((_, data)) = session.pop_upstream() {
            if session.is_open()
                && let Some(Answer { frame, is_sent: false }) = self.command(session, &data).await
            {
                self.answer(session, &frame);
            }
        }
        self.ended.notify_waiters();
    }

    /// Carries out commands of a session beside its connection, on whatever node it is. Each answer is a frame or null.
    ///
    /// # Errors
    /// `Unknown` if no session has this key and token; others if its node does not answer.
    pub(crate) async fn commands(
        self: &Rc<Self>,
        key: &str,
        token: Box<str>,
        commands: Vec<Box<str>>,
    ) -> Result<Vec<Value>, PollError> {
        match &self.node.link {
            Some(link) if self.node.directory.find(key).is_none() => {
                let answers = link.commands(key, &token, commands).await?;
                serde_json::from_str(&answers).map_err(|_| PollError::Unreached)
            }
            _ => self.commands_of_node(key, token, commands).await.ok_or(PollError::Unknown),
        }
    }

    /// [`commands`](Self::commands) on this node; `None` if no session has this key and token.
    pub(crate) async fn commands_of_node(
        self: &Rc<Self>,
        key: &str,
        token: Box<str>,
        commands: Vec<Box<str>>,
    ) -> Option<Vec<Value>> {
        let location = self.node.directory.find(key)?;
        let asked = self.mailboxes.ask(location.thread, move |hub| async move {
            let session = hub.at(location)?;
            let is_its = session.channels(|channels| channels.has_token(&token));
            if is_its != Some(true) || !session.is_open() {
                return None;
            }
            let mut answers = Vec::with_capacity(commands.len());
            for command in &commands {
                let answer = hub.command(&session, command.as_bytes()).await;
                answers.push(answer.map_or(Value::Null, |Answer { frame, .. }| frame));
            }
            Some(answers)
        });
        asked.await.ok().flatten()
    }

    /// Carries out a command. `None`: the client wants no answer.
    pub(crate) async fn command(self: &Rc<Self>, session: &Rc<Session>, data: &[u8]) -> Option<Answer> {
        let command: Command<'_> = match read(data) {
            Ok(command) => command,
            Err(refused) => return Some(Answer { frame: failed(None, refused), is_sent: false }),
        };
        let id = command.id;
        if let Err(refused) = self.limit_message(session, data.len()) {
            return Some(Answer { frame: failed(id, refused), is_sent: false });
        }
        match self.perform(session, command).await {
            Ok((name, answer)) => {
                // A session gets the answer to this before the messages that it missed.
                let is_sent = name == SUBSCRIBED;
                id.map(|id| Answer { frame: json!({ "id": id, name: answer }), is_sent })
            }
            Err(refused) => Some(Answer { frame: failed(id, refused), is_sent: false }),
        }
    }

    /// Subscribes a session as its connect request says. The answer is a frame.
    pub(crate) fn subscribe_at_connect(
        &self,
        session: &Rc<Session>,
        channel: &str,
        since: Option<Place>,
        presence: bool,
    ) {
        let limited = self.limit(session, What::Subscribes, 1).map_err(|refused| refused.of(channel));
        let wants = Wants { presence, delta: false };
        if let Err(refused) = limited.and_then(|()| self.subscribe(session, None, channel, since, wants)) {
            self.answer(session, &failed(None, refused));
        }
    }

    /// Subscribes a session for the backend, if it speaks the protocol of channels, and tells it. Returns false if not.
    pub(super) fn subscribe_for_backend(&self, session: &Rc<Session>, channel: &str) -> bool {
        if !session.speaks_channels() {
            return false;
        }
        if let Some(subscribed) = self.subscribe_here(session, channel, None) {
            session.channels(|channels| channels.subscriptions.last_mut().map(|one| one.by_backend = true));
            self.answer(session, &json!({ SUBSCRIBED: subscribed.to_json(channel) }));
            self.catch_up(session, channel, subscribed);
        }
        true
    }

    /// Ends a session's subscription for the backend, if there is one, and tells it.
    pub(super) fn unsubscribe_for_backend(&self, session: &Rc<Session>, channel: &str) {
        if self.unsubscribe_here(session, channel) {
            self.answer(session, &json!({ "channel": channel, "unsubscribed": "forbidden" }));
        }
    }

    async fn perform(
        self: &Rc<Self>,
        session: &Rc<Session>,
        command: Command<'_>,
    ) -> Result<(&'static str, Value), Refused> {
        let Command { id, subscribe, unsubscribe, publish, history, presence, token, ping } = command;
        let count = [
            subscribe.is_some(),
            unsubscribe.is_some(),
            publish.is_some(),
            history.is_some(),
            presence.is_some(),
            token.is_some(),
            ping.is_some(),
        ];
        if count.into_iter().filter(|is| *is).count() != 1 {
            let expected = "expected exactly one of subscribe, unsubscribe, publish, history, presence, token and ping";
            return Err(Refused::new("bad-command", expected));
        }
        if let Some(Subscribe { channel, since, delta, presence }) = subscribe {
            let since = since.map(|Since { epoch, offset }| Place::read(&epoch, offset).unwrap_or(NOWHERE));
            // Before anything is asked of other threads and nodes.
            self.expect_room(session, &channel, presence)?;
            self.limit(session, What::Subscribes, 1).map_err(|refused| refused.of(&channel))?;
            self.expect_new(session, &channel)?;
            self.prepare(&channel, since).await;
            let _hold = if presence { Some(self.hold_presence(&channel).await) } else { None };
            if !session.is_open() {
                return Err(Refused::new("forbidden", "the session has ended"));
            }
            return Ok((SUBSCRIBED, self.subscribe(session, id, &channel, since, Wants { presence, delta })?));
        }
        if let Some(Named { channel }) = unsubscribe {
            if !self.unsubscribe_here(session, &channel) {
                return Err(Refused::new("not-subscribed", "there is no such subscription").of(&channel));
            }
            return Ok(("unsubscribed", json!({ "channel": channel })));
        }
        if let Some(publish) = publish {
            return Ok(("published", self.publish_for(session, publish).await?));
        }
        if let Some(History { channel, limit }) = history {
            self.expect(session, Right::History, &channel)?;
            let begin = Place { epoch: self.node.histories.stream_epoch(), offset: 0 };
            self.prepare(&channel, Some(begin)).await;
            return Ok(("history", self.history_for(&channel, limit)?));
        }
        if let Some(Named { channel }) = presence {
            self.expect(session, Right::Presence, &channel)?;
            return Ok(("presence", self.presence(&channel).await));
        }
        if let Some(token) = token {
            return Ok(("token", self.identify(session, &token).await?));
        }
        Ok(("pong", json!({})))
    }

    /// Subscribes a session, and sends it the answer and what it missed. The caller has counted it.
    fn subscribe(
        &self,
        session: &Rc<Session>,
        id: Option<u64>,
        channel: &str,
        since: Option<Place>,
        Wants { presence, delta }: Wants,
    ) -> Result<Value, Refused> {
        self.expect_room(session, channel, presence)?;
        let Some(subscribed) = self.subscribe_here(session, channel, since) else {
            return Err(already_subscribed(channel));
        };
        let mut answer = subscribed.to_json(channel);
        if delta && self.send_deltas(session, channel, &subscribed) {
            answer["delta"] = json!(true);
        }
        if presence {
            // This one is the last.
            session.channels(|channels| channels.subscriptions.last_mut().map(|one| one.watches = true));
            answer["presence"] = self.watch(session, channel).to_json();
        }
        let mut frame = json!({ SUBSCRIBED: answer });
        if let Some(id) = id {
            frame["id"] = json!(id);
        }
        // Before the messages that it missed, and those before all later ones.
        self.answer(session, &frame);
        self.catch_up(session, channel, subscribed);
        Ok(answer)
    }

    /// Replaces the token of a session. Subscriptions that the new one does not permit end.
    async fn identify(&self, session: &Rc<Session>, token: &str) -> Result<Value, Refused> {
        let Some(verifier) = &self.node.verifier else {
            return Err(Refused::new("forbidden", "this hub takes no tokens"));
        };
        let identity = match verifier.verify(token.as_bytes()).await {
            Ok(identity) => identity,
            Err(identity::Refused::Token(error)) => return Err(Refused::new(error.name(), error.to_string())),
            Err(identity::Refused::NoKeys) => return Err(Refused::new("busy", NO_KEYS)),
        };
        // It may have ended while keys were read.
        if !session.is_open() {
            return Err(Refused::new("forbidden", "the session has ended"));
        }
        if session.channels(|channels| channels.who.is_other(&identity)) != Some(false) {
            return Err(Refused::new("forbidden", "the token is another user's: connect again with it"));
        }
        let before = session.channels(|channels| channels.who.user.clone()).flatten();
        session.channels(|channels| channels.who.identify(&identity));
        if let Some(user) = &identity.user {
            self.set_user(session, user);
        }
        if before != session.channels(|channels| channels.who.user.clone()).flatten() {
            self.note_user(session);
        }
        self.expire_at(session, identity.expires);
        for channel in self.forbidden(session) {
            self.unsubscribe_for_backend(session, &channel);
        }
        Ok(identity.to_json(unix_time()))
    }

    /// Returns the channels that a session subscribes to, or watches, and has no right to any more.
    fn forbidden(&self, session: &Session) -> Vec<String> {
        let forbidden = |channels: &mut Channels| {
            let may = |right, name: &str| channels.who.may(self.plan(), right, name);
            let all = channels.subscriptions.iter().filter_map(|one| {
                let name = format!("{}{}", one.group.name, if one.is_pattern { "*" } else { "" });
                let is_permitted =
                    (one.by_backend || may(Right::Subscribe, &name)) && (!one.watches || may(Right::Presence, &name));
                (!is_permitted).then_some(name)
            });
            all.collect()
        };
        session.channels(forbidden).unwrap_or_default()
    }

    /// Publishes for a client.
    async fn publish_for(self: &Rc<Self>, session: &Session, publish: PublishCommand<'_>) -> Result<Value, Refused> {
        let PublishCommand { channel, text, json, base64 } = publish;
        if prefix(&channel).is_some() {
            return Err(Refused::new("bad-command", "a message goes to one channel: expected no *").of(&channel));
        }
        self.expect(session, Right::Publish, &channel)?;
        self.limit(session, What::Publishes, 1).map_err(|refused| refused.of(&channel))?;
        let (kind, data) = match (text, json, base64) {
            (Some(text), None, None) => (Kind::Text, Bytes::from(text)),
            (None, Some(json), None) => (Kind::Text, Bytes::copy_from_slice(json.get().as_bytes())),
            (None, None, Some(base64)) => {
                let wrong = |error| Refused::new("bad-command", format!("base64: {error}")).of(&channel);
                (Kind::Binary, BASE64.decode(base64).map_err(wrong)?.into())
            }
            _ => {
                return Err(Refused::new("bad-command", "expected exactly one of text, json and base64").of(&channel));
            }
        };
        if data.len() as u64 > self.plan().limits.publish_bytes {
            return Err(Refused::new("too-large", "expected at most limits.publish-bytes").of(&channel));
        }
        let member = session.channels(|channels| channels.member().to_json().to_string().into());
        let publish = Publish {
            message: Arc::new(Message::data(kind, data).with_sender(member)),
            to: Targets { groups: vec![channel.as_str().into()], ..Targets::default() },
            except: Vec::new(),
            wait: ReceiptWait::Queued,
            deadline: self.plan().send.timeout,
            stored: Vec::new(),
        };
        match self.publish(publish).await {
            Ok(_) => Ok(json!({ "channel": channel })),
            Err(PublishError::NotStored(StoreError::TooLarge)) => {
                Err(Refused::new("too-large", StoreError::TooLarge.to_string()).of(&channel))
            }
            Err(PublishError::NotStored(StoreError::Unconfirmed)) => {
                Err(Refused::new("unconfirmed", StoreError::Unconfirmed.to_string()).of(&channel))
            }
            Err(busy) => Err(Refused::new("busy", busy.to_string()).of(&channel)),
        }
    }

    /// Returns a channel's newest messages.
    fn history_for(&self, channel: &str, limit: Option<usize>) -> Result<Value, Refused> {
        let limit = limit.unwrap_or(HISTORY_MESSAGES).min(HISTORY_MESSAGES);
        if self.history_rule(channel).is_none() || prefix(channel).is_some() {
            return Err(Refused::new("forbidden", "the channel has no history").of(channel));
        }
        let Some((place, messages)) = self.node.histories.newest(channel, limit, self.node.now_ms()) else {
            return Ok(json!({ "channel": channel, "messages": [] }));
        };
        let mut room = self.plan().limits.session_queue_bytes / 2;
        let mut newest: Vec<Value> = Vec::new();
        for message in messages.iter().rev() {
            let frame = message.frame(Framing::Poll);
            let Some(left) = room.checked_sub(frame.len()) else { break };
            room = left;
            newest.extend(serde_json::from_slice(frame).ok());
        }
        newest.reverse();
        let (epoch, offset) = (place.epoch_text(), place.offset);
        Ok(json!({ "channel": channel, "epoch": epoch, "offset": offset, "messages": newest }))
    }

    /// Returns who subscribes to a channel.
    async fn presence(self: &Rc<Self>, channel: &str) -> Value {
        let (clients, members) = self.members(channel).await;
        let list: Vec<Value> = members.iter().map(Member::to_json).collect();
        json!({ "channel": channel, "clients": clients, "list": list })
    }

    /// Checks whether a session may do something in a channel.
    fn expect(&self, session: &Session, right: Right, channel: &str) -> Result<(), Refused> {
        if !is_name(channel) {
            return Err(Refused::new("bad-command", format!("a channel's name has 1 to {NAME_BYTES} bytes")));
        }
        let permitted = session.channels(|channels| channels.who.may(self.plan(), right, channel));
        match permitted {
            Some(true) => Ok(()),
            _ => Err(Refused::new("forbidden", "the client has no right to this").of(channel)),
        }
    }

    /// Checks whether a session may subscribe to a channel, and to one more.
    fn expect_room(&self, session: &Session, channel: &str, presence: bool) -> Result<(), Refused> {
        self.expect_subscription(session, channel, presence)?;
        let most = self.plan().limits.session_channels;
        if session.channels(|channels| channels.subscriptions.len()).is_none_or(|count| count >= most) {
            let message = format!("a session may subscribe to {most} channels (limits.session-channels)");
            return Err(Refused::new("too-many-channels", message).of(channel));
        }
        Ok(())
    }

    /// Checks that a session does not subscribe to a channel, or pattern, yet.
    fn expect_new(&self, session: &Session, channel: &str) -> Result<(), Refused> {
        let (name, is_pattern) = prefix(channel).map_or((channel, false), |prefix| (prefix, true));
        let is_it = |channels: &mut Channels| {
            channels.subscriptions.iter().any(|one| one.is_pattern == is_pattern && *one.group.name == *name)
        };
        if session.channels(is_it) == Some(true) { Err(already_subscribed(channel)) } else { Ok(()) }
    }

    /// Checks whether a session may subscribe to a channel, and be told who comes and goes if it asks for that.
    fn expect_subscription(&self, session: &Session, channel: &str, presence: bool) -> Result<(), Refused> {
        self.expect(session, Right::Subscribe, channel)?;
        if !presence {
            return Ok(());
        }
        if prefix(channel).is_some() {
            let message = "presence: true is for one channel, not for all with a prefix";
            return Err(Refused::new("forbidden", message).of(channel));
        }
        self.expect(session, Right::Presence, channel)?;
        if !self.has_events(channel) {
            let message = "the rule of the channel has no presence-events: ask for presence instead";
            return Err(Refused::new("forbidden", message).of(channel));
        }
        Ok(())
    }

    /// Counts a command of a client, and its bytes.
    fn limit_message(&self, session: &Session, bytes: usize) -> Result<(), Refused> {
        self.limit(session, What::Messages, 1)?;
        self.limit(session, What::Bytes, bytes)
    }

    /// Counts something that a client sends.
    fn limit(&self, session: &Session, what: What, cost: usize) -> Result<(), Refused> {
        session.count(&self.node.rates, what, cost).map_err(|(scope, what)| {
            self.counters.limited(scope, what);
            let message = format!("more than limits.{} per second", LIMITS[scope][what as usize]);
            Refused::new("too-fast", message)
        })
    }

    /// Sends a frame to a session. One that does not read its answers ends.
    fn answer(&self, session: &Rc<Session>, frame: &Value) {
        if session.outbox.borrow().bytes() > self.plan().limits.session_queue_bytes {
            return session.cut_off(Reason::Slow);
        }
        if session.is_open() {
            self.writer.send_control(session, Message::channel_frame(frame));
        }
    }
}

/// A position that no channel has.
pub(crate) const NOWHERE: Place = Place { epoch: u64::MAX, offset: u64::MAX };

fn read(data: &[u8]) -> Result<Command<'_>, Refused> {
    // serde would take an array as the fields in their order.
    if data.trim_ascii_start().first() != Some(&b'{') {
        return Err(Refused::new("bad-command", "expected an object such as {\"id\":1,\"ping\":{}}"));
    }
    let command: Command<'_> = serde_json::from_slice(data)
        .map_err(|error| Refused::new("bad-command", format!("the command cannot be read: {error}")))?;
    match command.id {
        Some(id) if !(1..=MOST_ID).contains(&id) => {
            Err(Refused::new("bad-command", format!("id: expected 1 to {MOST_ID}")))
        }
        _ => Ok(command),
    }
}

/// Returns whether clients may use this name of a channel.
pub(crate) fn is_name(channel: &str) -> bool {
    (1..=NAME_BYTES).contains(&channel.len())
}

fn already_subscribed(channel: &str) -> Refused {
    Refused::new("already-subscribed", "the session has this subscription").of(channel)
}

fn failed(id: Option<u64>, Refused { name, message, channel }: Refused) -> Value {
    let mut answer = json!({ "error": name, "message": message });
    if let Some(id) = id {
        answer["id"] = json!(id);
    }
    if let Some(channel) = channel {
        answer["channel"] = json!(channel);
    }
    answer
}
