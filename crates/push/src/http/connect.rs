//! `GET /connect`: from a request to a session, on any transport.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, join, join_all, select};
use oroshi_http1::RequestHead;
use oroshi_net::Stream;
use oroshi_server::{Error, Exchange};
use oroshi_websocket::deflate::Agreement;
use oroshi_websocket::handshake::{UpgradeRequest, UpgradeRequestError};
use oroshi_websocket::{CloseCode, Kind};
use rustix::net::sockopt;
use serde_json::{Value, json};

use crate::callbacks::{self, Accepted};
use crate::compression::Compression;
use crate::http::answer::Problem;
use crate::http::{identify, origin, poll, query};
use crate::hub::commands::{NOWHERE, is_name};
use crate::hub::connection::Connection;
use crate::hub::opening::Opened;
use crate::hub::{Hub, OpenError};
use crate::identity::{Verifier, unix_time};
use crate::jwt::Identity;
use crate::message::{Framing, Message, Place};
use crate::plan::{Plan, Transports};
use crate::rights::Right;
use crate::session::channels::Channels;

/// Opens a session.
pub(crate) async fn answer(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let (head, origins) = (exchange.head, &hub.plan().origins);
    let request = match ConnectRequest::of(hub, &head) {
        Ok(request) => ConnectRequest { address: address(hub, exchange), ..request },
        Err(problem) => {
            hub.counters.connect_error();
            return problem.for_page(origins, &head).send(exchange).await;
        }
    };
    if hub.is_full() {
        // Before the connect callback, as the backend would expect a session. The connection is closed, to make room.
        exchange.reply.close();
        return Problem::busy(FULL).for_page(origins, &head).send(exchange).await;
    }
    let identity = match identify(hub, &head, &request).await {
        Ok(Identification::Done(identity)) => identity,
        Ok(Identification::InFirstFrame(verifier, opening)) => {
            return Box::pin(answer_first_frame(hub, exchange, request, verifier, opening)).await;
        }
        Err(problem) => {
            hub.counters.connect_error();
            return problem.for_page(origins, &head).send(exchange).await;
        }
    };
    let user = identity.as_ref().and_then(|identity| identity.user.clone());
    let accepted = match call_backend(hub, &head, user.as_deref(), exchange.body.peer_closed()).await {
        Some(Ok(accepted)) => accepted,
        Some(Err(refusal)) => return refuse(hub, exchange, &refusal).await,
        None => return Err(Error::Io(io::ErrorKind::ConnectionAborted.into())),
    };
    let (framing, opening, deflate) = (request.framing, request.opening, request.deflate);
    let chosen = accepted.protocol.as_deref();
    let protocol = opening.map_or(Ok(None), |opening| choose_protocol(hub, &opening, chosen, &request.wish));
    let protocol = match protocol {
        Ok(protocol) => protocol,
        Err(ProtocolError::Offered(problem)) => return problem.for_page(origins, &head).send(exchange).await,
        Err(ProtocolError::Chosen(refusal)) => return refuse(hub, exchange, &refusal).await,
    };
    let speaks = request.wish.speaks(protocol);
    let session = match open(hub, request, accepted, identity.as_ref(), None, speaks).await {
        Ok(session) => session,
        Err(why) => {
            if why == OpenError::Full {
                exchange.reply.close();
            }
            return not_opened(why).for_page(origins, &head).send(exchange).await;
        }
    };
    match framing {
        Framing::Poll => return poll::begin(hub, exchange, session).await,
        Framing::WebSocket { .. } => {
            let (stream, ahead) = upgrade(exchange, opening.as_ref(), protocol, deflate).await?;
            session.serve(Connection { stream, ahead, permit: exchange.take_permit() });
        }
        Framing::Events { .. } | Framing::Lines { .. } => {
            let kind: &[u8] = match framing {
                Framing::Events { .. } => b"text/event-stream; charset=utf-8",
                _ => b"text/plain; charset=utf-8",
            };
            let mut fields = vec![
                ("Content-Type", kind),
                ("Cache-Control", b"no-store"),
                // nginx would buffer the stream.
                ("X-Accel-Buffering", b"no"),
            ];
            fields.extend(origin::fields(origins, &head));
            exchange.with_connection(|connection| watch_peer(hub, connection));
            let (stream, _, _) = exchange.detach(200, &fields).await?;
            session.serve(Connection { stream, ahead: Vec::new(), permit: exchange.take_permit() });
        }
    }
    Ok(())
}

/// Returns the hash of the client's address. It costs a system call, if addresses have limits.
fn address(hub: &Hub, exchange: &Exchange<'_>) -> u64 {
    let rates = &hub.node.rates;
    if rates.needs_address() { rates.address(exchange.remote().map(|address| address.ip())) } else { 0 }
}

/// Who a client is, as far as its request says it.
enum Identification<'h, 'b> {
    /// It has shown a token, or needs none.
    Done(Option<Identity>),
    /// The token comes in the first frame of its WebSocket.
    InFirstFrame(&'h Verifier, UpgradeRequest<'b>),
}

/// Identifies the client of a request.
async fn identify<'h, 'b>(
    hub: &'h Hub,
    head: &RequestHead<'_>,
    request: &ConnectRequest<'b>,
) -> Result<Identification<'h, 'b>, Problem> {
    let Some(verifier) = &hub.node.verifier else { return Ok(Identification::Done(None)) };
    let identity = identify::of_request(verifier, head, request.opening.as_ref()).await?;
    if identity.is_some() || !hub.plan().jwt.as_ref().is_some_and(|jwt| jwt.required) {
        return Ok(Identification::Done(identity));
    }
    match request.opening {
        Some(opening) if request.wish.is_some() => Ok(Identification::InFirstFrame(verifier, opening)),
        _ => Err(identify::missing()),
    }
}

/// Upgrades to WebSocket, reads the client's token, and opens its session. The session is nowhere before that.
async fn answer_first_frame(
    hub: &Rc<Hub>,
    exchange: &mut Exchange<'_>,
    request: ConnectRequest<'_>,
    verifier: &Verifier,
    opening: UpgradeRequest<'_>,
) -> Result<(), Error> {
    let (head, origins) = (exchange.head, &hub.plan().origins);
    let protocol = match choose_protocol(hub, &opening, None, &request.wish) {
        Ok(protocol) => protocol,
        Err(ProtocolError::Offered(problem)) => return problem.for_page(origins, &head).send(exchange).await,
        Err(ProtocolError::Chosen(refusal)) => return refuse(hub, exchange, &refusal).await,
    };
    let (mut stream, ahead) = upgrade(exchange, Some(&opening), protocol, request.deflate).await?;
    let closing = exchange.closing();
    let first = match select(
        pin!(identify::first_frame(hub, verifier, request.deflate.is_some(), &mut stream, ahead)),
        pin!(closing.begun()),
    )
    .await
    {
        Either::Left((first, _)) => first,
        Either::Right(_) => None,
    };
    let Some(first) = first else {
        hub.counters.connect_error();
        return Ok(());
    };
    let identify::Identified { identity, id, ahead } = first;
    let mut connection = Connection { stream, ahead, permit: exchange.take_permit() };
    let left = poll_fn(|context| connection.poll_left(true, context));
    let accepted = call_backend(hub, &head, identity.user.as_deref(), left).await;
    let (code, why) = match accepted {
        Some(Ok(accepted)) => match open(hub, request, accepted, Some(&identity), id, true).await {
            Ok(session) => {
                session.serve(connection);
                return Ok(());
            }
            Err(OpenError::HeldByPage) => (CloseCode::POLICY, "a page has a session with this key"),
            Err(OpenError::Full) => (TRY_LATER, FULL),
            Err(OpenError::Draining) => (TRY_LATER, DRAINING),
        },
        Some(Err(refusal)) if refusal.status >= 500 => (TRY_LATER, "the backend cannot be asked"),
        Some(Err(_)) => (CloseCode::POLICY, "the backend did not agree"),
        None => return Ok(()),
    };
    identify::refuse::<()>(&mut connection.stream, code, why).await;
    Ok(())
}

/// The close code "try again later" (1013, in IANA's registry).
const TRY_LATER: CloseCode = CloseCode(1013);

/// Opens the session of a request that the backend accepted.
///
/// `id`: that of the command with the client's token, which is answered behind the first frame.
async fn open<'h>(
    hub: &'h Rc<Hub>,
    request: ConnectRequest<'_>,
    accepted: Accepted,
    identity: Option<&Identity>,
    id: Option<u64>,
    speaks: bool,
) -> Result<Opened<'h>, OpenError> {
    let ConnectRequest { address, framing, mut groups, of_page, wish, .. } = request;
    let Accepted { key, groups: from_backend, mut who, first_message, .. } = accepted;
    groups.extend(from_backend);
    if let Some(identity) = identity {
        who.identify(identity);
    }
    let has_first = first_message.is_some();
    let user = who.user.clone();
    // All at once, so that many channels take no longer than one.
    let may = |right, one: &ChannelWish| speaks && is_name(&one.name) && who.may(hub.plan(), right, &one.name);
    let permitted = wish.channels.iter().filter(|one| may(Right::Subscribe, one));
    let permitted: Vec<_> = permitted.take(hub.plan().limits.session_channels).collect();
    let watched = permitted.iter().filter(|one| one.presence && may(Right::Presence, one));
    let (_, _holds) = join(
        join_all(permitted.iter().map(|one| hub.prepare(&one.name, one.since))),
        join_all(watched.filter(|one| hub.has_events(&one.name)).map(|one| hub.hold_presence(&one.name))),
    )
    .await;
    let channels = speaks.then(|| Channels::new(who));
    let identity_json = identity.map(|identity| identity.to_json(unix_time()));
    let first_messages = first_messages(hub, framing, first_message, channels.as_ref(), identity_json, id);
    let session = hub.open(&key, framing, of_page, channels, first_messages, &groups)?;
    if has_first {
        hub.counters.direct_message();
    }
    session.set_user(user.as_deref());
    session.set_address(address);
    if let Some(identity) = identity {
        session.expire_at(identity.expires);
    }
    if speaks {
        wish.channels.iter().for_each(|one| session.subscribe(&one.name, one.since, one.presence));
    }
    Ok(session)
}

/// Answers a handshake: the connection is a WebSocket from here on.
async fn upgrade(
    exchange: &mut Exchange<'_>,
    opening: Option<&UpgradeRequest<'_>>,
    protocol: Option<&[u8]>,
    deflate: Option<Agreement>,
) -> Result<(Stream, Vec<u8>), Error> {
    let accept = opening.map(UpgradeRequest::accept).unwrap_or_default();
    let mut fields = vec![("Upgrade", &b"websocket"[..]), ("Sec-WebSocket-Accept", accept.as_bytes())];
    fields.extend(protocol.map(|protocol| ("Sec-WebSocket-Protocol", protocol)));
    fields.extend(deflate.map(|deflate| ("Sec-WebSocket-Extensions", deflate.field.as_bytes())));
    exchange.upgrade(101, &fields).await
}

const FULL: &str = "this hub holds as many sessions as it may";

const DRAINING: &str = "this hub is about to end";

fn not_opened(why: OpenError) -> Problem {
    match why {
        OpenError::Draining => Problem::busy(DRAINING),
        OpenError::Full => Problem::busy(FULL),
        OpenError::HeldByPage => {
            let message =
                "a page has a session with this key: expected the Origin of a page that may connect, as that one has";
            Problem::new(403, "forbidden-takeover", message)
        }
    }
}

/// Sends the backend's refusal, or an error about its answer.
async fn refuse(hub: &Hub, exchange: &mut Exchange<'_>, refusal: &callbacks::Refusal) -> Result<(), Error> {
    let head = exchange.head;
    let mut fields = vec![("Content-Type", refusal.content_type.as_bytes())];
    fields.extend(refusal.is_busy.then_some(("Retry-After", &b"1"[..])));
    fields.extend(origin::fields(&hub.plan().origins, &head));
    exchange.reply.send(refusal.status, fields, &refusal.body).await
}

/// Why client and hub agree on no subprotocol.
enum ProtocolError {
    /// The client offers none of the configured ones.
    Offered(Problem),
    /// The backend chose one that the client does not offer.
    Chosen(callbacks::Refusal),
}

/// Returns the subprotocol of a session (RFC 6455, section 4.2.2).
///
/// It is the backend's choice, else the first of the client's offers that the plan has. `None` if the client offers
/// none, or the plan has none.
fn choose_protocol<'b>(
    hub: &Hub,
    opening: &UpgradeRequest<'b>,
    chosen: Option<&str>,
    wish: &Wish,
) -> Result<Option<&'b [u8]>, ProtocolError> {
    if opening.protocols().next().is_none() {
        return Ok(None);
    }
    if let Some(chosen) = chosen {
        let offered = opening.protocols().find(|name| *name == chosen.as_bytes());
        return offered.map(Some).ok_or_else(|| {
            hub.counters.connect_error();
            let text = format!("the backend chose the subprotocol {chosen:?}, which the client does not offer");
            ProtocolError::Chosen(callbacks::Refusal::text(502, text))
        });
    }
    if wish.by_subprotocol {
        return Ok(Some(CHANNELS.as_bytes()));
    }
    let known = &hub.plan().subprotocols;
    let first = opening.protocols().find(|name| known.iter().any(|known| known.as_bytes() == *name));
    if first.is_none() && !known.is_empty() {
        hub.counters.connect_error();
        let message = format!("none of the subprotocols on offer is spoken here: expected {}", known.join(" or "));
        return Err(ProtocolError::Offered(Problem::new(400, "bad-handshake", message)));
    }
    Ok(first)
}

/// A checked request for a session.
struct ConnectRequest<'b> {
    /// The hash of the client's address; 0 if addresses have no limits.
    address: u64,
    framing: Framing,
    opening: Option<UpgradeRequest<'b>>,
    /// The agreement on compression.
    deflate: Option<Agreement>,
    groups: Vec<String>,
    /// Whether a page with a permitted origin sent it.
    of_page: bool,
    /// The protocol of channels.
    wish: Wish,
}

/// The name of the protocol of channels: a subprotocol, and the value of `?protocol=`.
const CHANNELS: &str = "oroshi.v1";

/// The most channels in a request.
const MOST_CHANNELS: usize = 100;

/// A client's wish to speak the protocol of channels.
#[derive(Debug, Default)]
struct Wish {
    by_subprotocol: bool,
    by_query: bool,
    /// The channels to subscribe to at once.
    channels: Vec<ChannelWish>,
}

/// A channel to subscribe to at once.
#[derive(Debug)]
struct ChannelWish {
    name: String,
    /// The position to recover from.
    since: Option<Place>,
    /// Whether the client wants to be told who comes and goes.
    presence: bool,
}

impl Wish {
    /// Returns whether there is a wish.
    fn is_some(&self) -> bool {
        self.by_query || self.by_subprotocol
    }

    /// Returns whether the session speaks the protocol, given the subprotocol that was agreed on.
    fn speaks(&self, agreed: Option<&[u8]>) -> bool {
        self.by_query || (self.by_subprotocol && agreed == Some(CHANNELS.as_bytes()))
    }

    /// Reads a request whose other parameters are checked.
    fn of(plan: &Plan, head: &RequestHead<'_>, opening: Option<&UpgradeRequest<'_>>) -> Result<Wish, Problem> {
        if !plan.has_channels() {
            return Ok(Wish::default());
        }
        let offers = |opening: &UpgradeRequest<'_>| opening.protocols().any(|name| name == CHANNELS.as_bytes());
        let mut wish = Wish { by_subprotocol: opening.is_some_and(offers), ..Wish::default() };
        for pair in query::pairs(query::split(head.target).1) {
            let (name, value) = pair?;
            match &*name {
                "protocol" => wish.by_query |= value == CHANNELS,
                "channel" => {
                    wish.channels.push(ChannelWish { name: value.into_owned(), since: None, presence: false });
                }
                "since" => {
                    if let Some(last) = wish.channels.last_mut() {
                        last.since = Some(value.parse().unwrap_or(NOWHERE));
                    }
                }
                "presence" => {
                    if let Some(last) = wish.channels.last_mut() {
                        last.presence = value == "1";
                    }
                }
                _ => {}
            }
        }
        if !wish.is_some() {
            return Ok(Wish::default());
        }
        if wish.channels.len() > MOST_CHANNELS {
            return Err(Problem::bad(format!("a request may name {MOST_CHANNELS} channels")));
        }
        // With several channels the field does not say for which one it is.
        if let (Some(id), [ChannelWish { since: since @ None, .. }]) =
            (head.headers.get("Last-Event-ID"), &mut wish.channels[..])
        {
            *since = Some(str::from_utf8(id).ok().and_then(|id| id.parse().ok()).unwrap_or(NOWHERE));
        }
        Ok(wish)
    }
}

impl<'b> ConnectRequest<'b> {
    /// Reads a request, and makes all checks that need no backend.
    fn of(hub: &Hub, head: &RequestHead<'b>) -> Result<Self, Problem> {
        if head.method != "GET" {
            return Err(Problem::method(head.method, "GET, OPTIONS"));
        }
        let plan = hub.plan();
        let of_page = origin::check(&plan.origins, head, UpgradeRequest::of(head).is_ok())?;
        // A connection with a body cannot become a session. A later check would end the older session with this key.
        if !matches!(head.framing, oroshi_http1::Framing::None | oroshi_http1::Framing::Length(0)) {
            let message = "the request has a body: expected none, so no Content-Length and no Transfer-Encoding";
            return Err(Problem::bad(message));
        }
        let (mut wanted, mut groups) = (None, Vec::new());
        // Other parameters are for the backend.
        for pair in query::pairs(query::split(head.target).1) {
            match pair? {
                (name, value) if name == "transport" => wanted = Some(value),
                (name, group) if name == "group" => {
                    if !plan.group_rule(&group).is_some_and(|rule| rule.client_may_join) {
                        let message = format!("clients may not join the group `{group}` by themselves");
                        return Err(Problem::new(403, "forbidden-group", message));
                    }
                    groups.push(group.into_owned());
                }
                _ => {}
            }
        }
        let (mut framing, opening) = transport(plan, head, wanted.as_deref())?;
        let deflate = match (&opening, plan.compress_from_bytes) {
            (Some(opening), Some(from_bytes)) => {
                let agreement = opening.deflate().map_err(|error| Problem::handshake(error, plan.compat_ekbo))?;
                let compression = agreement.map(|Agreement { window, .. }| Compression { window, from_bytes });
                framing = Framing::WebSocket { compression };
                agreement
            }
            _ => None,
        };
        let wish = Wish::of(plan, head, opening.as_ref())?;
        if hub.draining.get() {
            return Err(Problem::busy(DRAINING));
        }
        if !hub.admit() {
            return Err(Problem::busy("more clients connect than this hub takes per second"));
        }
        Ok(ConnectRequest { address: 0, framing, opening, deflate, groups, of_page, wish })
    }
}

/// Returns the transport that a client wants, by `?transport=` or by its header fields.
fn transport<'b>(
    plan: &Plan,
    head: &RequestHead<'b>,
    wanted: Option<&str>,
) -> Result<(Framing, Option<UpgradeRequest<'b>>), Problem> {
    let chunked = head.version == oroshi_http1::Version::Http11;
    let offered = plan.transports;
    let (framing, opening) = match (wanted, UpgradeRequest::of(head)) {
        (None | Some("websocket" | "ws"), Ok(opening)) => (Framing::WebSocket { compression: None }, Some(opening)),
        (None, Err(UpgradeRequestError::NotAsked)) if accepts_events(head) => (Framing::Events { chunked }, None),
        // A client that states no wish gets a stream. If only WebSocket is offered, it gets WebSocket's error.
        (None, Err(refusal @ UpgradeRequestError::NotAsked)) if offered == Transports::WEBSOCKET => {
            return Err(Problem::handshake(refusal, plan.compat_ekbo));
        }
        (None, Err(UpgradeRequestError::NotAsked)) | (Some("stream"), _) => (Framing::Lines { chunked }, None),
        (None | Some("websocket" | "ws"), Err(refusal)) if offered.websocket => {
            return Err(Problem::handshake(refusal, plan.compat_ekbo));
        }
        (None | Some("websocket" | "ws"), Err(_)) => return Err(not_offered(plan, "websocket")),
        (Some("sse"), _) => (Framing::Events { chunked }, None),
        (Some("poll"), _) => (Framing::Poll, None),
        (Some(other), _) => {
            let expected = offered.names().collect::<Vec<_>>().join(" or ");
            return Err(Problem::bad(format!("there is no transport `{other}`: expected {expected}")));
        }
    };
    let name = framing.name();
    if offered.names().any(|offered| offered == name) { Ok((framing, opening)) } else { Err(not_offered(plan, name)) }
}

fn not_offered(plan: &Plan, name: &str) -> Problem {
    let expected = plan.transports.names().collect::<Vec<_>>().join(" or ");
    Problem::bad(format!("this hub does not offer the transport {name}: expected {expected} (transports)"))
}

fn accepts_events(head: &RequestHead<'_>) -> bool {
    let kinds = head.headers.get_all("Accept").flat_map(|value| value.split(|&byte| byte == b','));
    kinds
        .filter_map(|kind| kind.split(|&byte| byte == b';').next())
        .any(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
}

/// Calls the connect callback. `None`: the client left before its turn came.
async fn call_backend(
    hub: &Rc<Hub>,
    head: &RequestHead<'_>,
    user: Option<&str>,
    left: impl Future<Output = ()>,
) -> Option<Result<Accepted, callbacks::Refusal>> {
    let counters = &hub.counters;
    counters.connecting.set(counters.connecting.get() + 1);
    let _guard = Connecting(hub);
    let asked = hub.callbacks.connect(head, user, left).await;
    match &asked {
        Some(Ok(_)) => {}
        // A refusal is the backend's decision, not an error.
        Some(Err(refusal)) if refusal.status == 403 => counters.connect_refused(),
        _ => counters.connect_error(),
    }
    asked
}

/// Ends the count of a connect callback, even if the client does not wait for it.
struct Connecting<'h>(&'h Hub);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        let connecting = &self.0.counters.connecting;
        connecting.set(connecting.get().saturating_sub(1));
    }
}

/// Returns a new session's first messages: its key, if it cannot learn it otherwise, then the backend's message.
fn first_messages(
    hub: &Hub,
    framing: Framing,
    from_backend: Option<(Kind, Bytes)>,
    channels: Option<&Channels>,
    identity: Option<Value>,
    id: Option<u64>,
) -> impl FnOnce(&Arc<str>) -> Vec<Message> + use<> {
    let plan = hub.plan();
    let knows_key = match framing {
        // kuiperbelt sends its clients only the backend's message.
        Framing::WebSocket { .. } => plan.callbacks.connect.is_some() || plan.echo,
        Framing::Poll => true,
        Framing::Events { .. } | Framing::Lines { .. } => false,
    };
    let channels = channels.map(|channels| (channels.client_text(), channels.token_text()));
    move |key| {
        if let Some((client, token)) = channels {
            let mut frame = json!({ "session": &**key, "client": client, "token": token });
            let members = identity.as_ref().and_then(Value::as_object);
            members.into_iter().flatten().for_each(|(name, value)| frame[name] = value.clone());
            let answer = id.map(|id| Message::channel_frame(&json!({ "id": id, "token": identity })));
            let own = (framing != Framing::Poll).then(|| Message::channel_frame(&frame));
            let first = from_backend.map(|(kind, data)| Message::data(kind, data).to_publication(None, None));
            return own.into_iter().chain(answer).chain(first).collect();
        }
        let own = (!knows_key).then(|| Message::session(key, None));
        own.into_iter().chain(from_backend.map(|(kind, data)| Message::data(kind, data))).collect()
    }
}

/// Lets the kernel detect that a client has gone. On these transports the client sends nothing by itself. Over HTTP/2,
/// `stream` is the connection that carries the session.
fn watch_peer(hub: &Hub, stream: &Stream) {
    if !matches!(stream, Stream::Unix(_)) {
        let limits = &hub.plan().limits;
        let _ = sockopt::set_socket_keepalive(stream, true);
        if let Some(ping) = limits.ping {
            let _ = sockopt::set_tcp_keepidle(stream, ping.max(std::time::Duration::from_secs(1)));
        }
        let _ = sockopt::set_tcp_user_timeout(stream, limits.write.as_millis().try_into().unwrap_or(u32::MAX));
    }
}
