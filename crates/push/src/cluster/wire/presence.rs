//! What nodes tell each other about the subscribers of channels.
//!
//! A node that watches channels opens a feed at each other node, with a number of its own. Both count their messages in
//! it, so that each notices what was lost: the node that watches then opens another feed.

use super::reader::Reader;
use super::{DecodeError, number, text, texts};
use crate::presence::Part;
use crate::session::channels::Member;

/// The most bytes of a message beside its channels or parts.
pub(in crate::cluster) const HEAD_BYTES: usize = 128;

/// Channels of which the sender wants to be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cluster) struct Watch {
    /// The number of the feed, from 1; 0: the sender wants to be told nothing any more.
    pub(in crate::cluster) feed: u64,
    /// The number of the message in the feed, from 0.
    pub(in crate::cluster) number: u64,
    /// Channels that are no longer watched.
    pub(in crate::cluster) unwatched: Vec<Box<str>>,
    pub(in crate::cluster) watched: Vec<Box<str>>,
}

/// Who subscribes to channels that the receiver watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cluster) struct Presence {
    pub(in crate::cluster) feed: u64,
    /// The number of the message in the feed, from 1. A message without parts has that of the last one with parts.
    pub(in crate::cluster) number: u64,
    /// The number of the last [`Watch`] that the sender got in this feed.
    pub(in crate::cluster) last_watch: u64,
    pub(in crate::cluster) parts: Vec<(Box<str>, Part)>,
}

impl Watch {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        [self.feed, self.number].into_iter().for_each(|value| number(out, value));
        texts(out, &self.unwatched);
        texts(out, &self.watched);
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (feed, number) = (reader.number()?, reader.number()?);
        Ok(Watch { feed, number, unwatched: reader.texts()?, watched: reader.texts()? })
    }
}

impl Presence {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        [self.feed, self.number, self.last_watch].into_iter().for_each(|value| number(out, value));
        number(out, self.parts.len() as u64);
        for (channel, part) in &self.parts {
            text(out, channel);
            match part {
                Part::List(list) => {
                    out.push(0);
                    members(out, list);
                }
                Part::Count(count) => {
                    out.push(1);
                    number(out, *count);
                }
                Part::Joined(one) => {
                    out.push(2);
                    member(out, one);
                }
                Part::Left(client) => {
                    out.push(3);
                    out.extend_from_slice(&client.to_le_bytes());
                }
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (feed, number, last_watch) = (reader.number()?, reader.number()?, reader.number()?);
        let parts = reader.list(|reader| {
            let channel = reader.text()?;
            let part = match reader.byte()? {
                0 => Part::List(reader.list(Reader::member)?),
                1 => Part::Count(reader.number()?),
                2 => Part::Joined(reader.member()?),
                3 => Part::Left(reader.fixed()?),
                _ => return Err(DecodeError::Malformed("an unknown part of presence")),
            };
            Ok((channel, part))
        })?;
        Ok(Presence { feed, number, last_watch, parts })
    }
}

/// Writes a list of clients.
pub(super) fn members(out: &mut Vec<u8>, members: &[Member]) {
    number(out, members.len() as u64);
    members.iter().for_each(|one| member(out, one));
}

fn member(out: &mut Vec<u8>, Member { client, user }: &Member) {
    out.extend_from_slice(&client.to_le_bytes());
    super::flag(out, user.is_some());
    user.iter().for_each(|user| text(out, user));
}
