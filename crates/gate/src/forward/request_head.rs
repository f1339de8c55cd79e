//! The request's head for the upstream: the client's, without fields of its connection, and with the gateway's own
//! fields.
//!
//! One pass copies the fields. A second pass is needed only if `Connection` names fields, which browsers never do.

use std::io::Write;
use std::net::IpAddr;

use oroshi_http1::{Framing, Header, RequestHead, encode};
use oroshi_net::tls::ClientCertificate;

use super::edits::Edits;
use super::fields::{LOOP, LOOP_LINE, copy_kept, holds, is_named, is_plain_connection, named_by_connection};
use super::rules::{Forwarding, HostPolicy, Rules, Settings};
use super::trace::TraceParent;
use crate::route::readings;

/// The fields with the subject and the SHA-256 of a client's certificate.
pub(crate) const CLIENT_SUBJECT: &str = "X-Client-Certificate-Subject";
pub(crate) const CLIENT_FINGERPRINT: &str = "X-Client-Certificate-Fingerprint";

/// Facts about the client's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The client's address; `None` on a unix socket.
    pub(crate) address: Option<IpAddr>,
    /// The local port; `None` on a unix socket.
    pub(crate) port: Option<u16>,
    pub(crate) is_tls: bool,
}

/// The parts of a request's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'r> {
    pub(crate) head: &'r RequestHead<'r>,
    /// The path and query that replace the client's, before the prefixes change.
    pub(crate) target: Option<&'r str>,
    pub(crate) peer: Peer,
    pub(crate) rules: &'r Rules,
    /// Further edits for this request alone.
    pub(crate) edits: &'r Edits,
    /// The upstream's name, for `Host`.
    pub(crate) authority: &'r str,
    /// Whether to ask for the protocol that the client asks for.
    pub(crate) upgrade: bool,
    /// Whether to pass the client's `Expect: 100-continue` on; otherwise the gateway sends the 100.
    pub(crate) expect: bool,
    /// The id, if the gateway writes one.
    pub(crate) id: Option<&'r str>,
    /// The trace, if the gateway sees to one.
    pub(crate) trace: Option<&'r TraceParent>,
    /// Whether the upstream speaks HTTP/2.
    pub(crate) is_http2: bool,
    /// The client's certificate, if the route has accepted one.
    pub(crate) client: Option<&'r ClientCertificate>,
}

/// Facts found while copying the fields.
#[derive(Default)]
struct RequestFacts {
    trailers_wanted: bool,
    forwarded_for: bool,
    proto: bool,
    host: bool,
    port: bool,
    real_ip: bool,
    forwarded: bool,
    /// `Connection` names fields.
    named: bool,
}

/// Returns whether the gateway believes the peer about a request's origin.
pub(crate) fn is_trusted(forwarding: &Forwarding, address: Option<IpAddr>) -> bool {
    match address {
        Some(address) => forwarding.trusted.iter().any(|network| network.contains(address)),
        None => forwarding.trust_unix,
    }
}

impl Request<'_> {
    /// Appends the head.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.head.method.as_bytes());
        out.push(b' ');
        self.write_target(out);
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(self.host());
        out.extend_from_slice(b"\r\n");
        self.write_fields(out);
        out.extend_from_slice(b"\r\n");
    }

    /// Appends path, authority and field lines for HTTP/2. Returns where the first two end.
    pub(crate) fn write_http2(&self, out: &mut Vec<u8>) -> (usize, usize) {
        self.write_target(out);
        let path_end = out.len();
        // An empty Host is valid over HTTP/1.1 alone.
        out.extend_from_slice(match self.host() {
            b"" => self.authority.as_bytes(),
            host => host,
        });
        let authority_end = out.len();
        self.write_fields(out);
        (path_end, authority_end)
    }

    fn host(&self) -> &[u8] {
        match &self.rules.settings.host {
            HostPolicy::Preserve => self.head.host.unwrap_or(self.authority.as_bytes()),
            HostPolicy::Target => self.authority.as_bytes(),
            HostPolicy::Fixed(host) => host.as_bytes(),
        }
    }

    /// Writes all field lines but Host.
    fn write_fields(&self, out: &mut Vec<u8>) {
        let fields = out.len();
        let trusted = is_trusted(&self.rules.settings.forwarding, self.peer.address);
        let mut seen = RequestFacts::default();
        copy_kept(self.head.headers, out, |field| self.keeps(field, trusted, &mut seen, &[]));
        if seen.named {
            out.truncate(fields);
            let named = named_by_connection(self.head.headers);
            seen = RequestFacts::default();
            copy_kept(self.head.headers, out, |field| self.keeps(field, trusted, &mut seen, &named));
        }
        self.write_origin(out, trusted, &seen);
        self.write_own(out, &seen);
    }

    /// Writes the path and query (RFC 9112, section 3.2.1), or `*` for OPTIONS of the whole server (section 3.2.4).
    fn write_target(&self, out: &mut Vec<u8>) {
        let settings = &self.rules.settings;
        let target = self.target.unwrap_or_else(|| origin_form(self.head.target));
        if target == "*" || (target.is_empty() && self.head.method == "OPTIONS") {
            out.push(b'*');
            return;
        }
        let rest = without(target, &settings.strip_prefix);
        out.extend_from_slice(settings.add_prefix.as_bytes());
        if settings.add_prefix.is_empty() && !rest.starts_with('/') {
            out.push(b'/');
        }
        out.extend_from_slice(rest.as_bytes());
    }

    /// Returns whether a field is copied unchanged.
    #[inline]
    fn keeps(&self, field: &Header<'_>, trusted: bool, seen: &mut RequestFacts, named: &[&[u8]]) -> bool {
        let forwarding = &self.rules.settings.forwarding;
        let name = field.name;
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        // The length first: it excludes most fields without comparing names.
        let kept = match name.len() {
            2 if is("te") => {
                seen.trailers_wanted |= holds(field.value, b"trailers");
                return false;
            }
            4 if is("host") => return false,
            // A CGI program would read it as HTTP_PROXY (CVE-2016-5385).
            5 if is("proxy") => return false,
            6 if is("expect") => return self.head.expect_continue && self.expect,
            7 if is("upgrade") => return false,
            9 if is("forwarded") => {
                seen.forwarded |= trusted;
                trusted && !forwarding.forwarded
            }
            9 if is("x-real-ip") => {
                seen.real_ip |= trusted;
                trusted
            }
            10 if is("connection") => {
                seen.named |= !is_plain_connection(field.value);
                return false;
            }
            10 if is("keep-alive") => return false,
            // A new trace has no state of the old one (W3C Trace Context, section 3.3.1).
            10 if is("tracestate") => self.trace.is_none_or(TraceParent::is_received),
            // Servers believe the proxy in front (RFC 9440, section 4).
            11 if is("client-cert") || is("x-client-ip") => trusted,
            11 if is("traceparent") => self.trace.is_none_or(TraceParent::is_received),
            12 if is("x-request-id") => self.id.is_none(),
            // Frameworks take these for the client's address, the scheme or the path: Rack reads `X-Forwarded-Ssl`,
            // others a path in `X-Original-URL`, around a route's rules.
            12 if is("x-url-scheme") => trusted,
            13 if is("x-rewrite-url") => trusted,
            14 if is("x-original-url") || is("true-client-ip") => trusted,
            14 if is("content-length") || is("http2-settings") => return false,
            15 if is("x-forwarded-for") => {
                seen.forwarded_for |= trusted;
                trusted && !forwarding.x_forwarded
            }
            15 if is("x-forwarded-ssl") || is("front-end-https") || is("x-original-host") => trusted,
            16 if is("proxy-connection") => return false,
            16 if is("x-forwarded-host") => {
                seen.host |= trusted;
                trusted
            }
            16 if is("x-forwarded-port") => {
                seen.port |= trusted;
                trusted
            }
            17 if is("client-cert-chain") => trusted,
            17 if is("transfer-encoding") => return false,
            // RFC 8441, section 5.
            17 if self.is_http2 && self.upgrade && is("sec-websocket-key") => return false,
            17 if is("x-forwarded-proto") => {
                seen.proto |= trusted;
                trusted
            }
            18 if is("x-forwarded-scheme") || is("x-forwarded-prefix") || is("x-forwarded-server") => trusted,
            19 if is("x-cluster-client-ip") => trusted,
            // Only for the next proxy that asked for it (RFC 9110, section 11.7.2), and no upstream is such a proxy.
            19 if is("proxy-authorization") => return false,
            // Only a gateway with the certificate itself writes them, so not even a trusted peer's pass.
            28 if is(CLIENT_SUBJECT) => return false,
            32 if is(CLIENT_FINGERPRINT) => return false,
            // CGI, WSGI and Rack read `X_Forwarded_For` as `X-Forwarded-For`, so such a name could forge a field that
            // the gateway sets.
            _ if memchr::memchr(b'_', name.as_bytes()).is_some() => false,
            _ => named.is_empty() || is_own(name) || !is_named(name, named),
        };
        kept && !self.rules.settings.request.drops(name) && !self.edits.drops(name)
    }

    /// Writes the fields about the request's origin.
    fn write_origin(&self, out: &mut Vec<u8>, trusted: bool, seen: &RequestFacts) {
        let forwarding = &self.rules.settings.forwarding;
        let headers = &self.head.headers;
        let scheme: &[u8] = if self.peer.is_tls { b"https" } else { b"http" };
        let host = self.head.host.unwrap_or_default();
        let drops = |name: &str| self.rules.settings.request.drops(name) || self.edits.drops(name);
        let address = self.peer.address.map(|address| address.to_canonical());
        if forwarding.x_forwarded {
            if (address.is_some() || seen.forwarded_for) && !drops("x-forwarded-for") {
                out.extend_from_slice(b"X-Forwarded-For: ");
                let mut comma = false;
                for value in headers.get_all("x-forwarded-for").filter(|value| trusted && !value.is_empty()) {
                    out.extend_from_slice(if comma { b", " } else { b"" });
                    out.extend_from_slice(value);
                    comma = true;
                }
                if let Some(address) = address {
                    out.extend_from_slice(if comma { b", " } else { b"" });
                    write_address(out, address);
                }
                out.extend_from_slice(b"\r\n");
            }
            if !seen.proto && !drops("x-forwarded-proto") {
                write_field(out, b"X-Forwarded-Proto", scheme);
            }
            if !seen.host && !host.is_empty() && !drops("x-forwarded-host") {
                write_field(out, b"X-Forwarded-Host", host);
            }
        }
        if let (true, false, Some(port)) = (forwarding.x_forwarded_port, seen.port, self.peer.port)
            && !drops("x-forwarded-port")
        {
            // Writing into memory cannot fail, here and below.
            let _ = write!(out, "X-Forwarded-Port: {port}\r\n");
        }
        if let (true, false, Some(address)) = (forwarding.x_real_ip, seen.real_ip, address)
            && !drops("x-real-ip")
        {
            out.extend_from_slice(b"X-Real-IP: ");
            write_address(out, address);
            out.extend_from_slice(b"\r\n");
        }
        if forwarding.forwarded && !drops("forwarded") {
            out.extend_from_slice(b"Forwarded: ");
            for value in headers.get_all("forwarded").filter(|value| seen.forwarded && !value.is_empty()) {
                out.extend_from_slice(value);
                out.extend_from_slice(b", ");
            }
            let _ = match address {
                Some(IpAddr::V4(address)) => write!(out, "for={address}"),
                Some(IpAddr::V6(address)) => write!(out, "for=\"[{address}]\""),
                None => write!(out, "for=unknown"),
            };
            out.extend_from_slice(b";proto=");
            out.extend_from_slice(scheme);
            if !host.is_empty() {
                // An authority contains neither quotes nor backslashes.
                out.extend_from_slice(b";host=\"");
                out.extend_from_slice(host);
                out.push(b'"');
            }
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Writes the fields for this connection, the message's framing and the route's edits.
    fn write_own(&self, out: &mut Vec<u8>, seen: &RequestFacts) {
        if let Some(id) = self.id {
            write_field(out, b"X-Request-Id", id.as_bytes());
        }
        if let Some(trace) = self.trace.filter(|trace| !trace.is_received()) {
            write_field(out, b"traceparent", trace.as_str().as_bytes());
        }
        if let Some(client) = self.client {
            let drops = |name: &str| self.rules.settings.request.drops(name) || self.edits.drops(name);
            for (name, value) in [(CLIENT_SUBJECT, &client.subject), (CLIENT_FINGERPRINT, &client.fingerprint)] {
                if !drops(name) {
                    write_field(out, name.as_bytes(), value.as_bytes());
                }
            }
        }
        if !self.rules.settings.via.is_empty() {
            write_via(out, self.head.version, &self.rules.settings.via);
        }
        if self.rules.settings.marks {
            out.extend_from_slice(LOOP_LINE);
        }
        out.extend_from_slice(self.rules.settings.request.lines());
        out.extend_from_slice(self.edits.lines());
        match self.head.framing {
            Framing::Length(length) => encode::content_length(out, length),
            Framing::Chunked if !self.is_http2 => encode::chunked(out),
            _ => {}
        }
        if self.is_http2 {
            if seen.trailers_wanted {
                out.extend_from_slice(b"TE: trailers\r\n");
            }
            return;
        }
        if self.upgrade {
            for value in self.head.headers.get_all("upgrade") {
                write_field(out, b"Upgrade", value);
            }
        }
        match (self.upgrade, seen.trailers_wanted) {
            (true, true) => out.extend_from_slice(b"TE: trailers\r\nConnection: upgrade, TE\r\n"),
            (true, false) => out.extend_from_slice(b"Connection: upgrade\r\n"),
            (false, true) => out.extend_from_slice(b"TE: trailers\r\nConnection: TE\r\n"),
            (false, false) => {}
        }
    }
}

/// Writes `Via: 1.1 name`, with the version of the received message.
pub(super) fn write_via(out: &mut Vec<u8>, version: oroshi_http1::Version, name: &str) {
    let _ = write!(out, "Via: {} {name}\r\n", version.number());
}

fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes an address in its usual spelling; IPv4 without the formatter, for speed.
fn write_address(out: &mut Vec<u8>, address: IpAddr) {
    let IpAddr::V4(address) = address else {
        let _ = write!(out, "{address}");
        return;
    };
    for (place, byte) in address.octets().into_iter().enumerate() {
        if place > 0 {
            out.push(b'.');
        }
        if byte >= 100 {
            out.push(b'0' + byte / 100);
        }
        if byte >= 10 {
            out.push(b'0' + byte / 10 % 10);
        }
        out.push(b'0' + byte % 10);
    }
}

/// Returns the path and query of a target in any form; empty if it has none.
pub(crate) fn origin_form(target: &str) -> &str {
    if target.starts_with('/') {
        return target;
    }
    match target.find("://") {
        None => target,
        Some(scheme) => {
            let rest = &target[scheme + 3..];
            &rest[rest.find(['/', '?']).unwrap_or(rest.len())..]
        }
    }
}

/// Strips a prefix of whole segments, if present.
#[inline]
fn without<'t>(target: &'t str, prefix: &str) -> &'t str {
    let rest = target.strip_prefix(prefix).or_else(|| without_escaped(target, prefix));
    let begins_segment = |rest: &&str| prefix.is_empty() || rest.is_empty() || rest.starts_with(['/', '?']);
    rest.filter(begins_segment).unwrap_or(target)
}

/// Returns whether a path leads out of the prefix that the route adds, because `..` removes segments of the stripped
/// prefix.
pub(crate) fn leads_out(rules: &Rules, path: &str) -> bool {
    let Settings { strip_prefix, add_prefix, .. } = &rules.settings;
    !strip_prefix.is_empty() && !add_prefix.is_empty() && readings(without(path, strip_prefix)).is_err()
}

/// Strips a prefix that may contain escapes: routes read `/%61pi` as `/api`, as servers do.
fn without_escaped<'t>(target: &'t str, prefix: &str) -> Option<&'t str> {
    let mut rest = target;
    for byte in prefix.bytes() {
        let (first, length) = match rest.as_bytes() {
            [b'%', high, low, ..] => {
                let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
                (digit(*high)? << 4 | digit(*low)?, 3)
            }
            [first, ..] => (*first, 1),
            [] => return None,
        };
        if first != byte {
            return None;
        }
        rest = rest.get(length..)?;
    }
    Some(rest)
}

/// Returns whether naming a field in `Connection` cannot remove it: the gateway's own fields, and those that servers
/// decide by.
fn is_own(name: &str) -> bool {
    const OWN: [&str; 6] = ["authorization", "cookie", "via", "x-request-id", "cache-control", LOOP];
    OWN.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Returns whether a trailer is dropped although http1 allows it, because an upstream might read it as one of the
/// gateway's fields.
pub(crate) fn is_left_out_of_trailers(name: &str) -> bool {
    const LEFT_OUT: [&str; 24] = [
        "client-cert",
        "client-cert-chain",
        CLIENT_FINGERPRINT,
        CLIENT_SUBJECT,
        "forwarded",
        "front-end-https",
        "proxy",
        "true-client-ip",
        "via",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-forwarded-scheme",
        "x-forwarded-server",
        "x-forwarded-ssl",
        "x-original-host",
        "x-original-url",
        "x-real-ip",
        "x-rewrite-url",
        "x-url-scheme",
    ];
    // As in a head, many servers read `X_Forwarded_For` as `X-Forwarded-For`.
    name.contains('_') || LEFT_OUT.iter().any(|left_out| left_out.eq_ignore_ascii_case(name)) || is_own(name)
}

#[cfg(test)]
mod tests;
