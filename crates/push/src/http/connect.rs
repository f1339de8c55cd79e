//! `GET /connect`: from a request to a session, over whichever transport the client speaks.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use oroshi_http1::RequestHead;
use oroshi_net::Stream;
use oroshi_server::{Error, Exchange};
use oroshi_websocket::handshake::{Opening, Refusal};
use oroshi_websocket::{CloseCode, Kind};
use rustix::net::sockopt;

use crate::callbacks::{self, Welcome};
use crate::http::answer::Problem;
use crate::http::{poll, query};
use crate::hub::{Hub, NoSession};
use crate::message::{Framing, Message};
use crate::origin;
use crate::session::{Reason, Session};

/// Opens a session.
pub(crate) async fn answer(hub: &Rc<Hub>, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let head = exchange.head;
    let asked = match Asked::of(hub, &head) {
        Ok(asked) => asked,
        Err(problem) => {
            let errors = &hub.counters.connect_errors;
            errors.set(errors.get() + 1);
            return problem.for_page(&head).send(exchange).await;
        }
    };
    if hub.is_full() {
        // Before the backend is asked, which would take it for a session. The connection is another client's.
        exchange.reply.close();
        return Problem::busy(FULL).for_page(&head).send(exchange).await;
    }
    let Asked { framing, opening, mut groups } = asked;
    let welcome = match ask(hub, &head).await {
        Ok(welcome) => welcome,
        Err(refusal) => {
            let again = refusal.is_busy.then_some(("Retry-After", &b"1"[..]));
            let fields = [("Content-Type", refusal.content_type.as_bytes())].into_iter().chain(again);
            return exchange.reply.send(refusal.status, fields, &refusal.body).await;
        }
    };
    groups.extend(welcome.groups);
    let session = match hub.open(&welcome.key, framing, first_words(hub, framing, welcome.hello), &groups) {
        Ok(session) => Opened { hub, session: Some(session) },
        Err(NoSession::Draining) => return Problem::busy(DRAINING).for_page(&head).send(exchange).await,
        Err(NoSession::Full) => {
            exchange.reply.close();
            return Problem::busy(FULL).for_page(&head).send(exchange).await;
        }
    };
    match framing {
        Framing::Poll => return poll::begin(hub, exchange, session).await,
        Framing::WebSocket => {
            let accept = opening.map(|opening| opening.accept()).unwrap_or_default();
            let fields = [("Upgrade", &b"websocket"[..]), ("Sec-WebSocket-Accept", accept.as_bytes())];
            let (stream, ahead) = exchange.upgrade(101, &fields).await?;
            session.serve(stream, ahead);
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
            fields.extend(origin::fields(&head));
            let (stream, _, _) = exchange.detach(200, &fields).await?;
            watch_peer(hub, &stream);
            session.serve(stream, Vec::new());
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
    fn serve(self, stream: Stream, ahead: Vec<u8>) {
        let hub = self.hub;
        let Some(session) = self.keep() else { return };
        hub.serve(&session, stream, ahead);
        if hub.plan().callbacks.establish.is_none() {
            return;
        }
        let hub = Rc::clone(hub);
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

const FULL: &str = "this hub holds as many sessions as it may";

const DRAINING: &str = "this hub is about to end";

/// What a client asks for.
struct Asked<'b> {
    framing: Framing,
    opening: Option<Opening<'b>>,
    groups: Vec<String>,
}

impl<'b> Asked<'b> {
    /// Reads a request, and sees whether it may be asked for, as far as the hub can tell by itself.
    fn of(hub: &Hub, head: &RequestHead<'b>) -> Result<Self, Problem> {
        if head.method != "GET" {
            return Err(Problem::method(head.method, "GET"));
        }
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
                    if !hub.plan().group_rule(&group).is_some_and(|rule| rule.client_may_join) {
                        let message = format!("clients may not join the group `{group}` by themselves");
                        return Err(Problem::new(403, "forbidden-group", message));
                    }
                    groups.push(group.into_owned());
                }
                _ => {}
            }
        }
        let (framing, opening) = transport(head, wanted.as_deref())?;
        if !origin::may_connect(&hub.plan().origins, head) {
            let message = "pages of this Origin may not connect here";
            return Err(Problem::new(403, "forbidden-origin", message));
        }
        if hub.draining.get() {
            return Err(Problem::busy(DRAINING));
        }
        if !hub.admit() {
            return Err(Problem::busy("more clients connect than this hub takes per second"));
        }
        Ok(Asked { framing, opening, groups })
    }
}

/// Which transport a client wants: `?transport=` says it, or what it asks for does.
fn transport<'b>(head: &RequestHead<'b>, wanted: Option<&str>) -> Result<(Framing, Option<Opening<'b>>), Problem> {
    let chunked = head.version == oroshi_http1::Version::Http11;
    let opening = Opening::of(head);
    Ok(match (wanted, opening) {
        (None | Some("websocket" | "ws"), Ok(opening)) => (Framing::WebSocket, Some(opening)),
        (None, Err(Refusal::NotAsked)) if accepts_events(head) => (Framing::Events { chunked }, None),
        (None, Err(Refusal::NotAsked)) | (Some("stream"), _) => (Framing::Lines { chunked }, None),
        (None | Some("websocket" | "ws"), Err(refusal)) => return Err(Problem::handshake(refusal)),
        (Some("sse"), _) => (Framing::Events { chunked }, None),
        (Some("poll"), _) => (Framing::Poll, None),
        (Some(other), _) => {
            let message = format!("there is no transport `{other}`: expected websocket, sse, stream or poll");
            return Err(Problem::bad(message));
        }
    })
}

fn accepts_events(head: &RequestHead<'_>) -> bool {
    let kinds = head.headers.get_all("Accept").flat_map(|value| value.split(|&byte| byte == b','));
    kinds
        .filter_map(|kind| kind.split(|&byte| byte == b';').next())
        .any(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
}

/// Asks the backend whether the client is welcome.
async fn ask(hub: &Rc<Hub>, head: &RequestHead<'_>) -> Result<Welcome, callbacks::Refusal> {
    let counters = &hub.counters;
    counters.connecting.set(counters.connecting.get() + 1);
    let _done = Done(hub);
    let asked = hub.callbacks.connect(head).await;
    if let Err(refusal) = &asked {
        // A backend that says no has done its work.
        let counter = if refusal.status == 403 { &counters.connect_refused } else { &counters.connect_errors };
        counter.set(counter.get() + 1);
    }
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
