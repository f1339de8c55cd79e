//! Sec-WebSocket-Extensions (RFC 6455, section 9.1) with offers of permessage-deflate (RFC 7692, section 7.1).

use super::{Agreement, Window};

/// A field whose value is no list of extensions. The handshake fails (RFC 6455, section 9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Returns the agreement on the first of a client's offers that can be accepted; `None` if there is none.
///
/// An offer with a parameter that is unknown, repeated or has a wrong value is declined, and so is a window of 256
/// bytes: zlib has none.
pub(crate) fn accept<'b>(fields: impl Iterator<Item = &'b [u8]>) -> Result<Option<Agreement>, Malformed> {
    let mut accepted = None;
    for field in fields {
        for_each(field, |name, parameters| {
            if accepted.is_none() && name.eq_ignore_ascii_case(NAME) {
                accepted = parameters.agreement();
            }
        })?;
    }
    Ok(accepted)
}

/// Reads a server's answer to [`OFFER`](super::OFFER). Returns whether it accepts; `Err` if it has another extension,
/// or parameters that do not answer this offer.
pub(crate) fn check_answer<'b>(fields: impl Iterator<Item = &'b [u8]>) -> Result<bool, Malformed> {
    let (mut count, mut fits) = (0, true);
    for field in fields {
        for_each(field, |name, parameters| {
            count += 1;
            // A window of the client that was not offered may not be chosen (RFC 7692, section 7.1.2.2).
            fits &= name.eq_ignore_ascii_case(NAME)
                && parameters.is_valid
                && parameters.has_no_server_takeover
                && !parameters.has_client_window;
        })?;
    }
    if fits && count <= 1 { Ok(count == 1) } else { Err(Malformed) }
}

const NAME: &[u8] = b"permessage-deflate";

/// The parameters of one offer or answer.
#[derive(Debug)]
struct Parameters {
    is_valid: bool,
    has_no_server_takeover: bool,
    has_no_client_takeover: bool,
    server_window: Option<u8>,
    has_client_window: bool,
}

impl Parameters {
    fn none() -> Self {
        Parameters {
            is_valid: true,
            has_no_server_takeover: false,
            has_no_client_takeover: false,
            server_window: None,
            has_client_window: false,
        }
    }

    fn agreement(&self) -> Option<Agreement> {
        let (window, field) = match self.server_window {
            _ if !self.is_valid => return None,
            None => (Window::Full, super::OFFER),
            Some(15) => (
                Window::Full,
                "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=15",
            ),
            Some(9..) => (
                Window::Small,
                "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=9",
            ),
            Some(_) => return None,
        };
        Some(Agreement { window, field })
    }

    fn add(&mut self, name: &[u8], value: Option<&[u8]>) {
        let (is_repeated, is_valid) = match name {
            b"server_no_context_takeover" => {
                (std::mem::replace(&mut self.has_no_server_takeover, true), value.is_none())
            }
            b"client_no_context_takeover" => {
                (std::mem::replace(&mut self.has_no_client_takeover, true), value.is_none())
            }
            b"server_max_window_bits" => {
                let bits = value.and_then(window_bits);
                (
                    self.server_window.is_some(),
                    std::mem::replace(&mut self.server_window, bits).is_none() && bits.is_some(),
                )
            }
            b"client_max_window_bits" => {
                let is_valid = value.is_none_or(|value| window_bits(value).is_some());
                (std::mem::replace(&mut self.has_client_window, true), is_valid)
            }
            _ => (false, false),
        };
        self.is_valid &= is_valid && !is_repeated;
    }
}

/// Reads 8 to 15, without leading zeros.
fn window_bits(value: &[u8]) -> Option<u8> {
    match value {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

/// Calls `visit` with each extension of a field.
fn for_each(mut rest: &[u8], mut visit: impl FnMut(&[u8], &Parameters)) -> Result<(), Malformed> {
    loop {
        skip_space(&mut rest);
        // A list may have empty elements (RFC 9110, section 5.6.1.2).
        if rest.first().is_some_and(|&byte| byte != b',') {
            let name = token(&mut rest)?;
            let mut parameters = Parameters::none();
            while next_is(&mut rest, b';') {
                skip_space(&mut rest);
                let parameter = token(&mut rest)?;
                if next_is(&mut rest, b'=') {
                    skip_space(&mut rest);
                    with_value(&mut rest, |value| parameters.add(parameter, Some(value)))?;
                } else {
                    parameters.add(parameter, None);
                }
            }
            visit(name, &parameters);
        }
        if rest.is_empty() {
            return Ok(());
        }
        if !next_is(&mut rest, b',') {
            return Err(Malformed);
        }
    }
}

/// Reads a value: a token, also in quotes, where a backslash may precede any character.
fn with_value(rest: &mut &[u8], mut take: impl FnMut(&[u8])) -> Result<(), Malformed> {
    let Some(quoted) = rest.strip_prefix(b"\"") else {
        take(token(rest)?);
        return Ok(());
    };
    let (mut value, mut at) = (Vec::new(), 0);
    loop {
        match quoted.get(at) {
            Some(b'"') => break,
            Some(b'\\') => at += 1,
            _ => {}
        }
        value.push(*quoted.get(at).filter(|byte| is_token(**byte)).ok_or(Malformed)?);
        at += 1;
    }
    *rest = &quoted[at + 1..];
    if value.is_empty() {
        return Err(Malformed);
    }
    take(&value);
    Ok(())
}

/// Skips white space and this byte, if it comes next.
fn next_is(rest: &mut &[u8], byte: u8) -> bool {
    skip_space(rest);
    let found = rest.strip_prefix(&[byte]);
    *rest = found.unwrap_or(rest);
    found.is_some()
}

fn skip_space(rest: &mut &[u8]) {
    *rest = rest.trim_ascii_start();
}

fn token<'b>(rest: &mut &'b [u8]) -> Result<&'b [u8], Malformed> {
    let length = rest.iter().position(|&byte| !is_token(byte)).unwrap_or(rest.len());
    if length == 0 {
        return Err(Malformed);
    }
    let (token, after) = rest.split_at(length);
    *rest = after;
    Ok(token)
}

/// Whether a token may contain the byte (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(field: &str) -> Result<Option<Agreement>, Malformed> {
        accept([field.as_bytes()].into_iter())
    }

    #[track_caller]
    fn agrees(field: &str, window: Window, answer: &str) {
        let agreement = accepted(field).unwrap().unwrap_or_else(|| panic!("{field} is declined"));
        assert_eq!((agreement.window, agreement.field), (window, answer), "{field}");
    }

    const NONE: &str = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

    #[test]
    fn offers_are_accepted_with_their_window() {
        let of = |bits: u8| format!("{NONE}; server_max_window_bits={bits}");
        agrees("permessage-deflate", Window::Full, NONE);
        // Chromium's and Firefox's.
        agrees("permessage-deflate; client_max_window_bits", Window::Full, NONE);
        agrees("Permessage-Deflate;client_max_window_bits=\"1\\0\"", Window::Full, NONE);
        agrees("permessage-deflate; server_max_window_bits=15", Window::Full, &of(15));
        for bits in 9..15 {
            agrees(&format!("permessage-deflate; server_max_window_bits = {bits}"), Window::Small, &of(9));
        }
        agrees(
            "permessage-deflate ; server_no_context_takeover ; client_no_context_takeover;\
             server_max_window_bits=\"12\"",
            Window::Small,
            &of(9),
        );
        // The first offer that can be accepted.
        agrees(
            "x-webkit-deflate-frame, , permessage-deflate; server_max_window_bits=8, permessage-deflate;\t\
             server_max_window_bits=10, permessage-deflate",
            Window::Small,
            &of(9),
        );
        let two = accept([&b"permessage-bzip2"[..], b"permessage-deflate"].into_iter());
        assert_eq!(two, Ok(Some(Agreement { window: Window::Full, field: NONE })));
    }

    #[test]
    fn offers_with_wrong_parameters_are_declined() {
        for parameters in [
            "server_max_window_bits",
            "server_max_window_bits=8",
            "server_max_window_bits=7",
            "server_max_window_bits=16",
            "server_max_window_bits=09",
            "server_max_window_bits=1",
            "server_max_window_bits=10; server_max_window_bits=10",
            "server_max_window_bits=x; server_max_window_bits=10",
            "client_max_window_bits=7",
            "client_max_window_bits=010",
            "client_max_window_bits; client_max_window_bits",
            "server_no_context_takeover=1",
            "client_no_context_takeover=true",
            "server_no_context_takeover; server_no_context_takeover",
            "client_no_context_takeover; client_no_context_takeover",
            "unknown",
            "SERVER_NO_CONTEXT_TAKEOVER",
        ] {
            assert_eq!(accepted(&format!("permessage-deflate; {parameters}")), Ok(None), "{parameters}");
        }
        assert_eq!(accepted(""), Ok(None));
        assert_eq!(accepted("permessage-foo; a=1; b=\"c\""), Ok(None));
    }

    #[test]
    fn what_is_no_list_of_extensions_fails() {
        for field in [
            "permessage-deflate client",
            "permessage-deflate;",
            "permessage-deflate; a=",
            "permessage-deflate; a=\"\"",
            "permessage-deflate; a=\"b c\"",
            "permessage-deflate; a=\"b",
            "permessage-deflate; a=\"b\\",
            "permessage-deflate; =1",
            "permessage-deflate; a=b=c",
            "permessage-deflate, (x)",
            "per/message",
            ";",
            "\u{e9}",
        ] {
            assert_eq!(accepted(field), Err(Malformed), "{field}");
        }
    }

    #[test]
    fn an_answer_fits_the_offer() {
        let answered = |field: &str| check_answer([field.as_bytes()].into_iter());
        assert_eq!(check_answer([].into_iter()), Ok(false));
        assert_eq!(answered(""), Ok(false));
        assert_eq!(answered(NONE), Ok(true));
        assert_eq!(answered("permessage-deflate; server_no_context_takeover; server_max_window_bits=8"), Ok(true));
        for field in [
            "permessage-deflate",
            "permessage-deflate; client_no_context_takeover",
            "permessage-deflate; server_no_context_takeover; client_max_window_bits=15",
            "permessage-deflate; server_no_context_takeover; server_max_window_bits",
            "permessage-deflate; server_no_context_takeover; other",
            "permessage-deflate; server_no_context_takeover, permessage-deflate; server_no_context_takeover",
            "x-webkit-deflate-frame; server_no_context_takeover",
        ] {
            assert_eq!(answered(field), Err(Malformed), "{field}");
        }
    }
}
