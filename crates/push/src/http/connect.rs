//! `GET /connect`: from a request to a session, over whichever transport the client speaks.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};
use oroshi_http1::RequestHead;
use oroshi_net::Stream;
use oroshi_server::{Error, Exchange, RequestBody};
use oroshi_websocket::handshake::{Opening, Refusal};
use oroshi_websocket::{CloseCode, Kind};
use rustix::net::sockopt;

use crate::callbacks::{self, Welcome};
use crate::http::answer::Problem;
use crate::http::{poll, query};
use crate::hub::{Hub, NoSession};
use crate::message::{Framing, Message};
use crate::origin;
use crate::plan::{Plan, Transports};
use crate::session::{Connection, Reason, Session};

/// Opens a session.
pub(crate) async fn answer(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let (head, origins) = (exchange.head, &hub.plan().origins);
    let asked = match Asked::of(hub, &head) {
        Ok(asked) => asked,
        Err(problem) => {
            let errors = &hub.counters.connect_errors;
            errors.set(errors.get() + 1);
            return problem.for_page(origins, &head).send(exchange).await;
        }
    };
    if hub.is_full() {
        // Before the backend is asked, which would take it for a session. The connection is another client's.
        exchange.reply.close();
        return Problem::busy(FULL).for_page(origins, &head).send(exchange).await;
    }
    let Asked { framing, opening, mut groups, of_page } = asked;
    let Welcome { key, groups: backends, hello, protocol } = match ask(hub, &head, &mut exchange.body).await {
        Some(Ok(welcome)) => welcome,
        Some(Err(refusal)) => return refuse(hub, exchange, &refusal).await,
        None => return Err(Error::Io(io::ErrorKind::ConnectionAborted.into())),
    };
    let protocol = match opening.map_or(Ok(None), |opening| choose(hub, &opening, protocol.as_deref())) {
        Ok(protocol) => protocol,
        Err(Unspoken::Offered(problem)) => return problem.for_page(origins, &head).send(exchange).await,
        Err(Unspoken::Chosen(refusal)) => return refuse(hub, exchange, &refusal).await,
    };
    groups.extend(backends);
    let has_hello = hello.is_some();
    let session = match hub.open(&key, framing, of_page, first_words(hub, framing, hello), &groups) {
        Ok(session) => {
            if has_hello {
                hub.counters.word();
            }
            Opened { hub, session: Some(session) }
        }
        Err(why) => {
            if why == NoSession::Full {
                exchange.reply.close();
            }
            return not_opened(why).for_page(origins, &head).send(exchange).await;
        }
    };
    match framing {
        Framing::Poll => return poll::begin(hub, exchange, session).await,
        Framing::WebSocket => {
            let accept = opening.map(|opening| opening.accept()).unwrap_or_default();
            let mut fields = vec![("Upgrade", &b"websocket"[..]), ("Sec-WebSocket-Accept", accept.as_bytes())];
            fields.extend(protocol.map(|protocol| ("Sec-WebSocket-Protocol", protocol)));
            let (stream, ahead) = exchange.upgrade(101, &fields).await?;
            session.serve(Connection { stream, ahead, place: exchange.take_place() });
        }
        Framing::Events { .. } | Framing::Lines { .. } => {
            let kind: &[u8] = match framing {
                Framing::Events { .. } => b"text/event-stream; charset=utf-8",
                _ => b"text/plain; charset=utf-8",
            };
            let mut fields = vec![
                ("Content-Type", kind),
                ("Cache-Control", b"no-store"),
                // nginx would gather what is to go out at once.
                ("X-Accel-Buffering", b"no"),
            ];
            fields.extend(origin::fields(origins, &head));
            let (stream, _, _) = exchange.detach(200, &fields).await?;
            watch_peer(hub, &stream);
            session.serve(Connection { stream, ahead: Vec::new(), place: exchange.take_place() });
        }
    }
    Ok(())
}

/// A session whose connection is still to be made; it goes if that fails.
pub(crate) struct Opened<'h> {
    hub: &'h Rc<Hub>,
    session: Option<Rc<Session>>,
}

impl Opened<'_> {
    /// The session; from here on it ends by itself.
    pub(crate) fn keep(mut self) -> Option<Rc<Session>> {
        self.session.take()
    }

    /// Serves its connection, and has the backend agree.
    fn serve(self, connection: Connection) {
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

    pub(crate) fn session(&self) -> Option<&Rc<Session>> {
        self.session.as_ref()
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.hub.remove(&session, Reason::Client);
        }
    }
}

/// As kuiperbelt does: nothing is written before the backend has agreed. What is sent to the session until then waits for it.
async fn serve_once_agreed(hub: Rc<Hub>, session: Rc<Session>, mut connection: Connection) {
    let is_websocket = session.framing == Framing::WebSocket;
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

const FULL: &str = "this hub holds as many sessions as it may";

const DRAINING: &str = "this hub is about to end";

fn not_opened(why: NoSession) -> Problem {
    match why {
        NoSession::Draining => Problem::busy(DRAINING),
        NoSession::Full => Problem::busy(FULL),
        NoSession::OfPage => {
            let message =
                "a page has a session with this key: expected the Origin of a page that may connect, as that one has";
            Problem::new(403, "forbidden-takeover", message)
        }
    }
}

/// Answers with the backend's words, or about them.
async fn refuse(hub: &Hub, exchange: &mut Exchange<'_>, refusal: &callbacks::Refusal) -> Result<(), Error> {
    let head = exchange.head;
    let mut fields = vec![("Content-Type", refusal.content_type.as_bytes())];
    fields.extend(refusal.is_busy.then_some(("Retry-After", &b"1"[..])));
    fields.extend(origin::fields(&hub.plan().origins, &head));
    exchange.reply.send(refusal.status, fields, &refusal.body).await
}

/// Why no subprotocol can be agreed on.
enum Unspoken {
    /// The client offers none of those that are configured.
    Offered(Problem),
    /// The backend has chosen one that the client does not offer.
    Chosen(callbacks::Refusal),
}

/// The subprotocol that is spoken (RFC 6455 section 4.2.2): the backend's choice, or the first that the client offers and the plan has. A
/// client that offers none, and one that no plan knows of, get none.
fn choose<'b>(hub: &Hub, opening: &Opening<'b>, chosen: Option<&str>) -> Result<Option<&'b [u8]>, Unspoken> {
    if opening.protocols().next().is_none() {
        return Ok(None);
    }
    let failed = || hub.counters.connect_errors.set(hub.counters.connect_errors.get() + 1);
    if let Some(chosen) = chosen {
        let offered = opening.protocols().find(|name| *name == chosen.as_bytes());
        return offered.map(Some).ok_or_else(|| {
            failed();
            let text = format!("the backend chose the subprotocol {chosen:?}, which the client does not offer");
            Unspoken::Chosen(callbacks::Refusal::text(502, text))
        });
    }
    let known = &hub.plan().subprotocols;
    let first = opening.protocols().find(|name| known.iter().any(|known| known.as_bytes() == *name));
    if first.is_none() && !known.is_empty() {
        failed();
        let message = format!("none of the subprotocols on offer is spoken here: expected {}", known.join(" or "));
        return Err(Unspoken::Offered(Problem::new(400, "bad-handshake", message)));
    }
    Ok(first)
}

/// What a client asks for.
struct Asked<'b> {
    framing: Framing,
    opening: Option<Opening<'b>>,
    groups: Vec<String>,
    /// A page has asked, whose origin was looked at.
    of_page: bool,
}

impl<'b> Asked<'b> {
    /// Reads a request, and sees whether it may be asked for, as far as the hub can tell by itself.
    fn of(hub: &Hub, head: &RequestHead<'b>) -> Result<Self, Problem> {
        if head.method != "GET" {
            return Err(Problem::method(head.method, "GET, OPTIONS"));
        }
        let plan = hub.plan();
        let of_page = origin::check(&plan.origins, head, Opening::of(head).is_ok())?;
        // Such a connection cannot be handed to a session. To find that out later would cost whoever has the key theirs.
        if !matches!(head.framing, oroshi_http1::Framing::None | oroshi_http1::Framing::Length(0)) {
            let message = "the request has a body: expected none, so no Content-Length and no Transfer-Encoding";
            return Err(Problem::bad(message));
        }
        let (mut wanted, mut groups) = (None, Vec::new());
        // What else stands there is the backend's.
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
        let (framing, opening) = transport(plan, head, wanted.as_deref())?;
        if hub.draining.get() {
            return Err(Problem::busy(DRAINING));
        }
        if !hub.admit() {
            return Err(Problem::busy("more clients connect than this hub takes per second"));
        }
        Ok(Asked { framing, opening, groups, of_page })
    }
}

/// Which transport a client wants: `?transport=` says it, or what it asks for does.
fn transport<'b>(
    plan: &Plan,
    head: &RequestHead<'b>,
    wanted: Option<&str>,
) -> Result<(Framing, Option<Opening<'b>>), Problem> {
    let chunked = head.version == oroshi_http1::Version::Http11;
    let offered = plan.transports;
    let (framing, opening) = match (wanted, Opening::of(head)) {
        (None | Some("websocket" | "ws"), Ok(opening)) => (Framing::WebSocket, Some(opening)),
        (None, Err(Refusal::NotAsked)) if accepts_events(head) => (Framing::Events { chunked }, None),
        // Whoever asks for nothing in particular gets a stream, and WebSocket's answer where there is none.
        (None, Err(refusal @ Refusal::NotAsked)) if offered == Transports::WEBSOCKET => {
            return Err(Problem::handshake(refusal, plan.compat_ekbo));
        }
        (None, Err(Refusal::NotAsked)) | (Some("stream"), _) => (Framing::Lines { chunked }, None),
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

/// Asks the backend whether the client is welcome. `None`: the client has left before its turn came.
async fn ask(
    hub: &Rc<Hub>,
    head: &RequestHead<'_>,
    body: &mut RequestBody<'_>,
) -> Option<Result<Welcome, callbacks::Refusal>> {
    let counters = &hub.counters;
    counters.connecting.set(counters.connecting.get() + 1);
    let _done = Done(hub);
    let asked = hub.callbacks.connect(head, body.peer_closed()).await;
    let counter = match &asked {
        Some(Ok(_)) => return asked,
        // A backend that says no has done its work.
        Some(Err(refusal)) if refusal.status == 403 => &counters.connect_refused,
        _ => &counters.connect_errors,
    };
    counter.set(counter.get() + 1);
    asked
}

/// Counts a question to the backend out, also when the client does not wait for the answer.
struct Done<'h>(&'h Hub);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let connecting = &self.0.counters.connecting;
        connecting.set(connecting.get().saturating_sub(1));
    }
}

/// A new session's first words: its key where the client has no other way to know it, and what the backend has to say.
fn first_words(hub: &Hub, framing: Framing, hello: Option<(Kind, Bytes)>) -> impl FnOnce(&Arc<str>) -> Vec<Message> {
    let plan = hub.plan();
    let knows_key = match framing {
        // kuiperbelt's clients get the backend's words and no others.
        Framing::WebSocket => plan.callbacks.connect.is_some() || plan.echo,
        Framing::Poll => true,
        Framing::Events { .. } | Framing::Lines { .. } => false,
    };
    move |key| {
        let own = (!knows_key).then(|| Message::session(key, None));
        own.into_iter().chain(hello.map(|(kind, data)| Message::data(kind, data))).collect()
    }
}

/// Has the kernel find out that a client which says nothing by itself has gone.
fn watch_peer(hub: &Hub, stream: &Stream) {
    if matches!(stream, Stream::Tcp(_)) {
        let limits = &hub.plan().limits;
        let _ = sockopt::set_socket_keepalive(stream, true);
        if let Some(ping) = limits.ping {
            let _ = sockopt::set_tcp_keepidle(stream, ping.max(std::time::Duration::from_secs(1)));
        }
        let _ = sockopt::set_tcp_user_timeout(stream, limits.write.as_millis().try_into().unwrap_or(u32::MAX));
    }
}
