//! The messages between nodes, as bytes.
//!
//! A message is a head of fixed size and a body; lengths and numbers are in LEB128. Each value has exactly one
//! encoding, and the decoder accepts no other. No length in a message makes the decoder allocate more than the message
//! contains.
//!
//! A message has the version in which its kind came. So nodes of the first version understand each other's requests,
//! and what JetStream keeps of them, and refuse only the kinds that they do not know.

mod presence;
mod reader;

use std::sync::Arc;
use std::time::Duration;

use oroshi_websocket::{CloseCode, Kind};
use thiserror::Error;

use crate::message::{Message, TRANSPORTS};
use crate::publish::{Publish, ReceiptWait, Targets};
use crate::session::channels::Member;
use crate::session::info::{Closed, PollError, SessionInfo};
pub(super) use presence::{HEAD_BYTES, Presence, Watch};
use reader::Reader;

/// The version of the protocol. Nodes refuse messages of another version.
const VERSION: u8 = 5;

/// The version of the messages that came with events of presence.
const PRESENCE_VERSION: u8 = 6;

/// The offset of the number in a frame.
const NUMBER_AT: usize = 10;

/// The offset of the broadcast counts in a frame.
const BROADCASTS_AT: usize = 26;

/// The length of a head, bytes.
const HEAD: usize = 42;

/// The largest time: nine thousand years in milliseconds, so that sums do not overflow.
const MOST_MS: u64 = 1 << 48;

/// The sender of a message, and when it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The node's number in this run of its process.
    pub(super) sender: u64,
    /// The number of a request, from 1. A reply repeats it; a heartbeat has the number of the last request.
    pub(super) number: u64,
    /// The sender's clock: milliseconds from an origin of its own.
    pub(super) sent_ms: u64,
    /// The number of the sender's publishes so far, including this request and those that it could not send.
    pub(super) broadcasts: BroadcastCounts,
}

/// How many publishes of a node were for all sessions, and how many for groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BroadcastCounts {
    pub(crate) all: u64,
    pub(crate) groups: u64,
}

impl BroadcastCounts {
    /// Returns what one publish to these targets adds.
    pub(crate) fn of(to: &Targets) -> Self {
        BroadcastCounts { all: to.all.into(), groups: (!to.groups.is_empty()).into() }
    }

    /// Returns whether both are 0.
    pub(crate) fn is_none(self) -> bool {
        self == BroadcastCounts::default()
    }
}

impl std::ops::AddAssign for BroadcastCounts {
    fn add_assign(&mut self, other: BroadcastCounts) {
        self.all = self.all.saturating_add(other.all);
        self.groups = self.groups.saturating_add(other.groups);
    }
}

/// The body of a message.
#[derive(Debug)]
pub(super) enum Body {
    /// To all, periodically: the sender is there or leaves, and has heard these nodes.
    Heartbeat { leaving: bool, heard: Vec<Echo> },
    /// To all: a request. The sender waits for `patience`.
    Request { patience: Duration, request: Request },
    /// To the asker: the reply takes longer, but will come.
    Working,
    /// To the asker: the reply.
    Reply(Reply),
    /// To a node: the sender wants to be told who subscribes to channels.
    Watch(Watch),
    /// To a node that wants to be told: who subscribes.
    Presence(Presence),
}

/// The last heartbeat that the sender heard of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) node: u64,
    /// By the clock of that node.
    pub(super) sent_ms: u64,
    /// By the clock of the node that heard it.
    pub(super) heard_ms: u64,
}

/// A request to all other nodes.
#[derive(Debug)]
pub(super) enum Request {
    Publish(Publish),
    Find {
        key: Box<str>,
    },
    Close {
        key: Box<str>,
        last: Option<Arc<Message>>,
        code: CloseCode,
        reason: Box<str>,
    },
    Join {
        key: Box<str>,
        group: Box<str>,
    },
    Leave {
        key: Box<str>,
        group: Box<str>,
    },
    GroupSize {
        group: Box<str>,
    },
    /// How many sessions a user has.
    UserSize {
        user: Box<str>,
    },
    /// All sessions of a user end.
    CloseUser {
        user: Box<str>,
        code: CloseCode,
        reason: Box<str>,
    },
    /// Who subscribes to a channel.
    Members {
        channel: Box<str>,
    },
    /// The messages of a polling session after a batch.
    Poll {
        key: Box<str>,
        token: Box<str>,
        after: u64,
    },
    /// Commands of a session, each as JSON.
    Commands {
        key: Box<str>,
        token: Box<str>,
        commands: Vec<Box<str>>,
    },
    /// Sessions with these keys were opened; older ones end. It has no reply.
    Claim {
        keys: Vec<Box<str>>,
    },
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// To a publish.
    Receipt(PartialReceipt),
    /// To `Find`.
    Session(Option<SessionInfo>),
    Closed(Closed),
    /// To `Join` and `Leave`: whether the node has the session.
    Known(bool),
    /// To `GroupSize`, `UserSize` and `CloseUser`: how many sessions.
    GroupSize(u64),
    /// To `Members`: how many sessions subscribe, and some of them.
    Members(u64, Vec<Member>),
    /// To `Poll`: the answer's JSON.
    Polled(Result<Box<str>, PollError>),
    /// To `Commands`: the answers as a JSON array; `None` if the node has no such session.
    Answers(Option<Box<str>>),
}

/// The outcome of a publish on a node, in sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PartialReceipt {
    pub(super) matched: u64,
    pub(super) written: u64,
    pub(super) queued: u64,
    pub(super) dropped: u64,
    pub(super) closed: u64,
    /// The indexes of the keys that it knows, in the list of the request.
    pub(super) found: Vec<u64>,
    pub(super) refused: Vec<Box<str>>,
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum DecodeError {
    #[error(
        "another node speaks version {0} of the protocol, this one version {PRESENCE_VERSION}: run one version of \
         oroshi on all"
    )]
    Version(u8),
    #[error("a message from NATS is not from a node ({0}): check that nothing else uses the cluster's name")]
    Malformed(&'static str),
}

impl Body {
    /// Encodes a message.
    pub(super) fn encode(&self, head: Head) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        let kind = self.kind();
        out.extend_from_slice(&[version(kind), kind]);
        for field in [head.sender, head.number, head.sent_ms, head.broadcasts.all, head.broadcasts.groups] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        match self {
            Body::Heartbeat { leaving, heard } => {
                flag(&mut out, *leaving);
                number(&mut out, heard.len() as u64);
                for echo in heard {
                    out.extend_from_slice(&echo.node.to_le_bytes());
                    number(&mut out, echo.sent_ms);
                    number(&mut out, echo.heard_ms);
                }
            }
            Body::Request { patience, request } => {
                time(&mut out, *patience);
                request.encode(&mut out);
            }
            Body::Working => {}
            Body::Reply(reply) => reply.encode(&mut out),
            Body::Watch(watch) => watch.encode(&mut out),
            Body::Presence(presence) => presence.encode(&mut out),
        }
        out
    }

    fn kind(&self) -> u8 {
        match self {
            Body::Heartbeat { .. } => 0,
            Body::Request { .. } => 1,
            Body::Working => 2,
            Body::Reply(_) => 3,
            Body::Watch(_) => 4,
            Body::Presence(_) => 5,
        }
    }
}

/// Returns the version in which a kind of message came.
fn version(kind: u8) -> u8 {
    if kind < 4 { VERSION } else { PRESENCE_VERSION }
}

/// Sets the number and the broadcast counts of a frame, which are known last.
pub(super) fn set_number(frame: &mut [u8], number: u64, broadcasts: BroadcastCounts) {
    for (at, value) in [(NUMBER_AT, number), (BROADCASTS_AT, broadcasts.all), (BROADCASTS_AT + 8, broadcasts.groups)] {
        if let Some(field) = frame.get_mut(at..at + 8) {
            field.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Decodes a frame. `most` is the size limit of a publisher's message, bytes.
pub(super) fn decode(frame: &[u8], most: u64) -> Result<(Head, Body), DecodeError> {
    let mut reader = Reader { rest: frame, most };
    let version = reader.byte()?;
    if !matches!(version, VERSION | PRESENCE_VERSION) {
        return Err(DecodeError::Version(version));
    }
    if frame.len() < HEAD {
        return Err(DecodeError::Malformed("a head that is cut off"));
    }
    let kind = reader.byte()?;
    if version != self::version(kind) {
        return Err(DecodeError::Malformed("a kind of another version"));
    }
    let (sender, number, sent_ms) = (reader.fixed()?, reader.fixed()?, stamp(reader.fixed()?)?);
    let head =
        Head { sender, number, sent_ms, broadcasts: BroadcastCounts { all: reader.fixed()?, groups: reader.fixed()? } };
    let body = match kind {
        0 => {
            let leaving = reader.flag()?;
            let heard = reader.list(|reader| {
                Ok(Echo {
                    node: reader.fixed()?,
                    sent_ms: stamp(reader.number()?)?,
                    heard_ms: stamp(reader.number()?)?,
                })
            })?;
            Body::Heartbeat { leaving, heard }
        }
        1 => Body::Request { patience: reader.time()?, request: Request::decode(&mut reader)? },
        2 => Body::Working,
        3 => Body::Reply(Reply::decode(&mut reader)?),
        4 => Body::Watch(Watch::decode(&mut reader)?),
        5 => Body::Presence(Presence::decode(&mut reader)?),
        _ => return Err(DecodeError::Malformed("an unknown kind")),
    };
    match reader.rest {
        [] => Ok((head, body)),
        _ => Err(DecodeError::Malformed("more than there should be")),
    }
}

impl Request {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Request::Publish(Publish { message: sent, to, except, wait, deadline, stored }) => {
                out.push(0);
                message(out, sent);
                flag(out, to.all);
                [&to.groups, &to.sessions, &to.users, except].into_iter().for_each(|names| texts(out, names));
                out.push(match wait {
                    ReceiptWait::Queued => 0,
                    ReceiptWait::Attempted => 1,
                    ReceiptWait::Written => 2,
                });
                time(out, *deadline);
                number(out, stored.len() as u64);
                stored.iter().for_each(|sequence| number(out, *sequence));
            }
            Request::Find { key } => {
                out.push(1);
                text(out, key);
            }
            Request::Close { key, last, code, reason } => {
                out.push(2);
                text(out, key);
                flag(out, last.is_some());
                last.iter().for_each(|last| message(out, last));
                number(out, code.0.into());
                text(out, reason);
            }
            Request::Join { key, group } => {
                out.push(3);
                [key, group].into_iter().for_each(|name| text(out, name));
            }
            Request::Leave { key, group } => {
                out.push(4);
                [key, group].into_iter().for_each(|name| text(out, name));
            }
            Request::GroupSize { group } => {
                out.push(5);
                text(out, group);
            }
            Request::Claim { keys } => {
                out.push(6);
                texts(out, keys);
            }
            Request::Members { channel } => {
                out.push(7);
                text(out, channel);
            }
            Request::UserSize { user } => {
                out.push(8);
                text(out, user);
            }
            Request::CloseUser { user, code, reason } => {
                out.push(9);
                text(out, user);
                number(out, code.0.into());
                text(out, reason);
            }
            Request::Poll { key, token, after } => {
                out.push(10);
                [key, token].into_iter().for_each(|name| text(out, name));
                number(out, *after);
            }
            Request::Commands { key, token, commands } => {
                out.push(11);
                [key, token].into_iter().for_each(|name| text(out, name));
                texts(out, commands);
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match reader.byte()? {
            0 => Request::Publish(Publish {
                message: Arc::new(reader.message()?),
                to: Targets {
                    all: reader.flag()?,
                    groups: reader.texts()?,
                    sessions: reader.texts()?,
                    users: reader.texts()?,
                },
                except: reader.texts()?,
                wait: match reader.byte()? {
                    0 => ReceiptWait::Queued,
                    1 => ReceiptWait::Attempted,
                    2 => ReceiptWait::Written,
                    _ => return Err(DecodeError::Malformed("an unknown wait")),
                },
                deadline: reader.time()?,
                stored: reader.list(Reader::number)?,
            }),
            1 => Request::Find { key: reader.text()? },
            2 => {
                let (key, has_last) = (reader.text()?, reader.flag()?);
                let last = if has_last { Some(Arc::new(reader.message()?)) } else { None };
                let (code, reason) = reader.end()?;
                Request::Close { key, last, code, reason }
            }
            3 => Request::Join { key: reader.text()?, group: reader.text()? },
            4 => Request::Leave { key: reader.text()?, group: reader.text()? },
            5 => Request::GroupSize { group: reader.text()? },
            6 => Request::Claim { keys: reader.texts()? },
            7 => Request::Members { channel: reader.text()? },
            8 => Request::UserSize { user: reader.text()? },
            9 => {
                let user = reader.text()?;
                let (code, reason) = reader.end()?;
                Request::CloseUser { user, code, reason }
            }
            10 => Request::Poll { key: reader.text()?, token: reader.text()?, after: reader.number()? },
            11 => Request::Commands { key: reader.text()?, token: reader.text()?, commands: reader.texts()? },
            _ => return Err(DecodeError::Malformed("an unknown request")),
        })
    }
}

impl Reply {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Receipt(PartialReceipt { matched, written, queued, dropped, closed, found, refused }) => {
                out.push(0);
                [matched, written, queued, dropped, closed].into_iter().for_each(|&count| number(out, count));
                number(out, found.len() as u64);
                found.iter().for_each(|index| number(out, *index));
                texts(out, refused);
            }
            Reply::Session(found) => {
                out.push(1);
                flag(out, found.is_some());
                if let Some(SessionInfo { transport, groups, user, queued_messages, queued_bytes, age }) = found {
                    out.push(TRANSPORTS.iter().position(|name| name == transport).unwrap_or(0) as u8);
                    texts(out, groups);
                    flag(out, user.is_some());
                    user.iter().for_each(|user| text(out, user));
                    [queued_messages, queued_bytes].into_iter().for_each(|&count| number(out, count as u64));
                    time(out, *age);
                }
            }
            Reply::Closed(closed) => out.extend_from_slice(&[
                2,
                match closed {
                    Closed::Done => 0,
                    Closed::Already => 1,
                    Closed::Unknown => 2,
                },
            ]),
            Reply::Known(known) => {
                out.push(3);
                flag(out, *known);
            }
            Reply::GroupSize(size) => {
                out.push(4);
                number(out, *size);
            }
            Reply::Members(count, members) => {
                out.push(5);
                number(out, *count);
                presence::members(out, members);
            }
            Reply::Polled(polled) => {
                out.push(6);
                match polled {
                    Ok(messages) => {
                        out.push(0);
                        text(out, messages);
                    }
                    Err(PollError::Unknown) => out.push(1),
                    Err(PollError::Gone) => out.push(2),
                    Err(PollError::Batch(next)) => {
                        out.push(3);
                        number(out, *next);
                    }
                    // A node replies to no request that it did not take.
                    Err(PollError::Unreached | PollError::Crowded) => out.push(4),
                    Err(PollError::TooLarge) => out.push(5),
                }
            }
            Reply::Answers(answers) => {
                out.push(7);
                flag(out, answers.is_some());
                answers.iter().for_each(|answers| text(out, answers));
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match reader.byte()? {
            0 => Reply::Receipt(PartialReceipt {
                matched: reader.number()?,
                written: reader.number()?,
                queued: reader.number()?,
                dropped: reader.number()?,
                closed: reader.number()?,
                found: reader.list(Reader::number)?,
                refused: reader.texts()?,
            }),
            1 if reader.flag()? => {
                let transport = TRANSPORTS.get(usize::from(reader.byte()?));
                Reply::Session(Some(SessionInfo {
                    transport: transport.ok_or(DecodeError::Malformed("an unknown transport"))?,
                    groups: reader.texts()?,
                    user: if reader.flag()? { Some(reader.text()?) } else { None },
                    queued_messages: reader.number()? as usize,
                    queued_bytes: reader.number()? as usize,
                    age: reader.time()?,
                }))
            }
            1 => Reply::Session(None),
            2 => Reply::Closed(match reader.byte()? {
                0 => Closed::Done,
                1 => Closed::Already,
                2 => Closed::Unknown,
                _ => return Err(DecodeError::Malformed("an unknown end")),
            }),
            3 => Reply::Known(reader.flag()?),
            4 => Reply::GroupSize(reader.number()?),
            5 => {
                let count = reader.number()?;
                Reply::Members(count, reader.list(Reader::member)?)
            }
            6 => Reply::Polled(match reader.byte()? {
                0 => Ok(reader.text()?),
                1 => Err(PollError::Unknown),
                2 => Err(PollError::Gone),
                3 => Err(PollError::Batch(reader.number()?)),
                4 => Err(PollError::Unreached),
                5 => Err(PollError::TooLarge),
                _ => return Err(DecodeError::Malformed("an unknown end of a poll")),
            }),
            7 => Reply::Answers(if reader.flag()? { Some(reader.text()?) } else { None }),
            _ => return Err(DecodeError::Malformed("an unknown reply")),
        })
    }
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn flag(out: &mut Vec<u8>, set: bool) {
    out.push(set.into());
}

fn time(out: &mut Vec<u8>, time: Duration) {
    number(out, u64::try_from(time.as_millis()).unwrap_or(MOST_MS).min(MOST_MS));
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn texts(out: &mut Vec<u8>, all: &[Box<str>]) {
    number(out, all.len() as u64);
    all.iter().for_each(|one| text(out, one));
}

fn message(out: &mut Vec<u8>, message: &Message) {
    let (kind, data) = message.payload().map_or((Kind::Text, &[][..]), |(kind, data)| (kind, data));
    out.push(u8::from(kind == Kind::Binary));
    number(out, data.len() as u64);
    out.extend_from_slice(data);
    flag(out, message.key().is_some());
    message.key().into_iter().for_each(|key| text(out, key));
    flag(out, message.sender().is_some());
    message.sender().into_iter().for_each(|sender| text(out, sender));
    flag(out, message.ttl().is_some());
    message.ttl().into_iter().for_each(|ttl| time(out, ttl));
}

fn stamp(value: u64) -> Result<u64, DecodeError> {
    if value > MOST_MS { Err(DecodeError::Malformed("a time that is too far")) } else { Ok(value) }
}

#[cfg(test)]
mod tests;
