//! Rotates statuses, and encodes responses in advance.

use std::rc::Rc;

use oroshi_http1::{Version, encode};

/// Statuses in a fixed order, each with its share, spread as evenly as possible.
#[derive(Debug, Clone)]
pub struct Rotation {
    statuses: Vec<u16>,
    /// Indices into `statuses`, for one round.
    round: Vec<u8>,
}

impl Rotation {
    /// The longest round.
    const LONGEST: u64 = 100_000;

    /// Parses `200=99,500=1`; without a share, `503`, a status has one part.
    ///
    /// # Errors
    /// A message for the user.
    pub fn parse(text: &str) -> Result<Rotation, String> {
        let expected = "expected statuses from 200 to 599, each with a share, such as 200=99,500=1";
        let mut shares: Vec<(u16, u64)> = Vec::new();
        for part in text.split(',') {
            let (status, share) = part.split_once('=').unwrap_or((part, "1"));
            let status = status.trim().parse().ok().filter(|status| (200..600).contains(status));
            let share = share.trim().parse().ok().filter(|share| (1..=Self::LONGEST).contains(share));
            let (Some(status), Some(share)) = (status, share) else {
                return Err(format!("`{part}` is no status with a share: {expected}"));
            };
            if shares.iter().any(|&(other, _)| other == status) {
                return Err(format!("`{text}` has {status} twice: {expected}"));
            }
            shares.push((status, share));
        }
        let sum: u64 = shares.iter().map(|(_, share)| share).sum();
        if sum > Self::LONGEST || shares.len() > usize::from(u8::MAX) {
            return Err(format!("`{text}` has {sum} parts: expected at most {}", Self::LONGEST));
        }
        Ok(Rotation::of(&shares))
    }

    /// Spreads the shares: each position gets the status that lags most behind its share.
    pub(crate) fn of(shares: &[(u16, u64)]) -> Rotation {
        let sum: u64 = shares.iter().map(|(_, share)| share).sum();
        let mut credit = vec![0_i64; shares.len()];
        let mut round = Vec::new();
        for _ in 0..sum {
            for (credit, (_, share)) in credit.iter_mut().zip(shares) {
                *credit += *share as i64;
            }
            let next = (0..shares.len()).rev().max_by_key(|&place| credit[place]).unwrap_or(0);
            credit[next] -= sum as i64;
            round.push(next as u8);
        }
        Rotation { statuses: shares.iter().map(|(status, _)| *status).collect(), round }
    }

    /// Returns the statuses, in the order given.
    #[must_use]
    pub fn statuses(&self) -> &[u16] {
        &self.statuses
    }

    /// Returns the index in [`statuses`](Self::statuses) for a response, counted from 0.
    pub(crate) fn at(&self, answer: u64) -> usize {
        usize::from(self.round[(answer % self.round.len() as u64) as usize])
    }
}

/// Only 200.
impl Default for Rotation {
    fn default() -> Self {
        Rotation::of(&[(200, 1)])
    }
}

/// The encoded response to an ordinary request, for one status.
#[derive(Debug, Clone)]
pub(crate) struct EncodedResponse {
    /// For HTTP/1.1.
    pub(crate) keep_alive: Rc<[u8]>,
    /// For HTTP/1.1, if the connection closes.
    pub(crate) close: Rc<[u8]>,
    /// The head for HTTP/2; `None` for one that HTTP/2 refuses.
    pub(crate) http2: Option<Rc<oroshi_http2::EncodedResponse>>,
}

/// The fields of every response.
pub(crate) const FIELDS: [(&str, &[u8]); 2] = [("Server", b"oroshi"), ("Content-Type", b"text/plain")];

impl EncodedResponse {
    pub(crate) fn new(status: u16, date: &[u8], body: &[u8], chunked: bool) -> EncodedResponse {
        let message = |close: bool| {
            let date = Some(("Date", date));
            let close = close.then_some(("Connection", &b"close"[..]));
            let fields = FIELDS.into_iter().chain(date).chain(close);
            let mut message = Vec::new();
            // The parser has checked statuses, and the fields are ours.
            let written = encode::status_line(&mut message, Version::Http11, status, None).and_then(|()| {
                fields.into_iter().try_for_each(|(name, value)| encode::header(&mut message, name, value))
            });
            debug_assert_eq!(written, Ok(()));
            match status {
                _ if has_no_body(status) => encode::end_of_head(&mut message),
                _ if chunked => {
                    encode::chunked(&mut message);
                    encode::end_of_head(&mut message);
                    encode::chunk(&mut message, body);
                    message.extend_from_slice(encode::LAST_CHUNK);
                }
                _ => {
                    encode::content_length(&mut message, body.len() as u64);
                    encode::end_of_head(&mut message);
                    message.extend_from_slice(body);
                }
            }
            message.into()
        };
        let length = body.len().to_string();
        let length = (!chunked && !has_no_body(status)).then_some(("content-length", length.as_bytes()));
        let fields = FIELDS.into_iter().chain([("date", date)]).chain(length);
        let http2 = oroshi_http2::EncodedResponse::new(status, fields).ok().map(Rc::new);
        EncodedResponse { keep_alive: message(false), close: message(true), http2 }
    }
}

/// Whether a status has no body (RFC 9110 sections 15.3.5 and 15.4.5).
pub(crate) fn has_no_body(status: u16) -> bool {
    matches!(status, 204 | 304)
}

/// Makes a body of recognizable lines.
pub(crate) fn body(length: usize) -> Vec<u8> {
    b"oroshi\n".iter().copied().cycle().take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> Vec<u16> {
        let rotation = Rotation::parse(text).unwrap();
        (0..rotation.round.len() as u64).map(|answer| rotation.statuses()[rotation.at(answer)]).collect()
    }

    #[test]
    fn shares_are_exact_in_every_round() {
        let rotation = Rotation::parse("200=99,500=1").unwrap();
        for start in [0, 1, 100, 12_345] {
            let failures = (start..start + 100).filter(|&answer| rotation.at(answer) == 1).count();
            assert_eq!(failures, 1, "from {start}");
        }
        let mixed = round("200=5,404=3,503");
        let count = |status| mixed.iter().filter(|&&other| other == status).count();
        assert_eq!((mixed.len(), count(200), count(404), count(503)), (9, 5, 3, 1));
    }

    #[test]
    fn shares_are_spread() {
        assert_eq!(round("200=2,500=2"), [200, 500, 200, 500]);
        assert_eq!(round("200"), [200]);
        assert_eq!(round("200=3,500"), [200, 200, 500, 200]);
    }

    #[test]
    fn what_is_no_status_is_refused() {
        for text in
            ["", "abc", "100", "600", "200=0", "200=-1", "200=x", "200,", "200=1=2", "200,200", "200=100000,500"]
        {
            let problem = Rotation::parse(text).unwrap_err();
            assert!(problem.contains("expected"), "{text}: {problem}");
        }
    }

    #[test]
    fn answers_are_framed() {
        let text = |message: &[u8]| String::from_utf8(message.to_vec()).unwrap();
        let plain = EncodedResponse::new(200, b"D", &body(12), false);
        let expected = "HTTP/1.1 200 OK\r\nServer: oroshi\r\nContent-Type: text/plain\r\nDate: D\r\n\
                        Content-Length: 12\r\n\r\noroshi\norosh";
        assert_eq!(text(&plain.keep_alive), expected);
        assert!(text(&plain.close).contains("\r\nConnection: close\r\n"));
        let chunked = text(&EncodedResponse::new(500, b"D", &body(12), true).keep_alive);
        assert!(chunked.ends_with("Transfer-Encoding: chunked\r\n\r\nc\r\noroshi\norosh\r\n0\r\n\r\n"), "{chunked}");
        let empty = text(&EncodedResponse::new(200, b"D", b"", true).keep_alive);
        assert!(empty.ends_with("\r\n\r\n0\r\n\r\n"), "{empty}");
        let encoded = oroshi_http2::EncodedResponse::new(204, [FIELDS[0], FIELDS[1], ("date", b"D")]).unwrap();
        assert_eq!(EncodedResponse::new(204, b"D", &body(12), false).http2.as_deref(), Some(&encoded));
        let none = text(&EncodedResponse::new(204, b"D", &body(12), false).keep_alive);
        assert!(none.ends_with("Date: D\r\n\r\n") && !none.contains("Length"), "{none}");
    }
}
