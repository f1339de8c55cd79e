//! Reads the values of a frame.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oroshi_websocket::{CloseCode, Kind};

use super::{DecodeError, stamp};
use crate::message::Message;
use crate::session::channels::Member;

/// The longest reason that fits into a close frame, bytes (RFC 6455, section 5.5).
const REASON_BYTES: usize = 123;

/// A decoder over the rest of a frame.
pub(super) struct Reader<'f> {
    pub(super) rest: &'f [u8],
    /// The largest message, bytes.
    pub(super) most: u64,
}

impl Reader<'_> {
    pub(super) fn byte(&mut self) -> Result<u8, DecodeError> {
        let (&byte, rest) = self.rest.split_first().ok_or(CUT_OFF)?;
        self.rest = rest;
        Ok(byte)
    }

    pub(super) fn bytes(&mut self, count: u64) -> Result<&[u8], DecodeError> {
        let count = usize::try_from(count).map_err(|_| CUT_OFF)?;
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(CUT_OFF)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn fixed(&mut self) -> Result<u64, DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(CUT_OFF)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    pub(super) fn number(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits || (byte == 0 && shift > 0) {
                return Err(DecodeError::Malformed("a number that is not written as it should be"));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Malformed("a number that is too long"))
    }

    pub(super) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Malformed("a yes or no that is neither")),
        }
    }

    pub(super) fn time(&mut self) -> Result<Duration, DecodeError> {
        self.number().and_then(stamp).map(Duration::from_millis)
    }

    pub(super) fn text(&mut self) -> Result<Box<str>, DecodeError> {
        let length = self.number()?;
        str::from_utf8(self.bytes(length)?)
            .map(Box::from)
            .map_err(|_| DecodeError::Malformed("a text that is not UTF-8"))
    }

    /// Reads how a session ends: a code and a reason.
    pub(super) fn end(&mut self) -> Result<(CloseCode, Box<str>), DecodeError> {
        let code = u16::try_from(self.number()?).ok().map(CloseCode).filter(|code| code.may_be_sent());
        let code = code.ok_or(DecodeError::Malformed("a close code that cannot be sent"))?;
        let reason = self.text()?;
        if reason.len() > REASON_BYTES {
            return Err(DecodeError::Malformed("a reason that is too long"));
        }
        Ok((code, reason))
    }

    pub(super) fn texts(&mut self) -> Result<Vec<Box<str>>, DecodeError> {
        self.list(Reader::text)
    }

    /// Reads a list. It does not allocate by the announced length, which may be a lie.
    pub(super) fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.number()?;
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(one(self)?);
        }
        Ok(all)
    }

    pub(super) fn member(&mut self) -> Result<Member, DecodeError> {
        let client = self.fixed()?;
        let user = if self.flag()? { Some(Arc::from(self.text()?)) } else { None };
        Ok(Member { client, user })
    }

    pub(super) fn message(&mut self) -> Result<Message, DecodeError> {
        let kind = if self.flag()? { Kind::Binary } else { Kind::Text };
        let length = self.number()?;
        if length > self.most {
            return Err(DecodeError::Malformed("a message over limits.publish"));
        }
        // A copy, as the buffer behind it contains other messages too.
        let data = Bytes::copy_from_slice(self.bytes(length)?);
        if kind == Kind::Text && str::from_utf8(&data).is_err() {
            return Err(DecodeError::Malformed("a text that is not UTF-8"));
        }
        let key = if self.flag()? { Some(self.text()?) } else { None };
        let sender = if self.flag()? { Some(self.text()?) } else { None };
        // It is sent on to clients as it is.
        if sender.as_deref().is_some_and(|sender| serde_json::from_str::<serde_json::Map<_, _>>(sender).is_err()) {
            return Err(DecodeError::Malformed("a sender that is no object"));
        }
        // From its arrival on: clocks of other nodes say nothing here.
        let ttl = if self.flag()? { Some(self.time()?) } else { None };
        Ok(Message::data(kind, data).with_key(key).with_sender(sender).with_ttl(ttl))
    }
}

pub(super) const CUT_OFF: DecodeError = DecodeError::Malformed("less than there should be");
