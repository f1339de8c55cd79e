//! Templates of log lines, with nginx's variables: `$remote_addr "$request" $status`.

use std::io::Write;
use std::time::Duration;

use oroshi_words::Date;
use oroshi_words::access_line::{self, Spaces, escape, number};

use super::Line;

/// The format of a line, as a text with variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    escaping: Escaping,
    parts: Vec<Part>,
}

/// How values are escaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Escaping {
    /// Bytes that could end quotes or the line become `\xHH`; outside of quotes also spaces. An empty value is `-`.
    #[default]
    Text,
    /// As in strings of JSON. An empty value is `null` outside of quotes.
    Json,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value {
        variable: Variable,
        /// Whether it stands between double quotes.
        is_quoted: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Variable {
    Known(Known),
    /// A field of the request.
    Header(String),
}

/// Declares the variables with their names.
macro_rules! known {
    ($($variant:ident $name:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Known { $($variant),* }

        impl Known {
            const NAMED: &[(&str, Known)] = &[$(($name, Known::$variant)),*];
        }
    };
}

known! {
    BodyBytes "body_bytes_sent"
    Detail "detail"
    Failure "failure"
    Host "host"
    Msec "msec"
    RemoteAddr "remote_addr"
    RemoteUser "remote_user"
    Request "request"
    RequestId "request_id"
    RequestMethod "request_method"
    RequestTime "request_time"
    RequestUri "request_uri"
    Retries "retries"
    Route "route"
    Scheme "scheme"
    ServerProtocol "server_protocol"
    SslCipher "ssl_cipher"
    SslClientDn "ssl_client_s_dn"
    SslClientSha256 "ssl_client_sha256"
    SslProtocol "ssl_protocol"
    SslServerName "ssl_server_name"
    SslSessionReused "ssl_session_reused"
    Status "status"
    TimeIso "time_iso8601"
    TimeLocal "time_local"
    Trace "trace"
    UpstreamAddr "upstream_addr"
    UpstreamProtocol "upstream_protocol"
    UpstreamTime "upstream_response_time"
}

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// A message with the mistake and what was expected.
    pub fn parse(text: &str, escaping: Escaping) -> Result<Self, String> {
        let (mut parts, mut rest, mut quotes) = (Vec::new(), text, 0);
        while let Some((before, behind)) = rest.split_once('$') {
            let (name, after) = match behind.strip_prefix('{') {
                Some(braced) => braced.split_once('}').ok_or_else(|| format!("`{text}` has a `${{` without a `}}`"))?,
                None => {
                    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                    behind.split_at(behind.bytes().position(|byte| !is_name(byte)).unwrap_or(behind.len()))
                }
            };
            quotes += quotes_of(before, escaping);
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Value { variable: Variable::parse(name)?, is_quoted: quotes % 2 == 1 });
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        if text.chars().any(char::is_control) {
            return Err("a line has no line breaks and no other control characters: leave them out".to_owned());
        }
        if !parts.iter().any(|part| matches!(part, Part::Value { .. })) {
            return Err(format!("`{text}` has no variable such as $status: expected json, combined or a template"));
        }
        let template = Template { text: text.to_owned(), escaping, parts };
        match escaping {
            Escaping::Json if !template.is_json() => {
                Err("the lines would not be JSON: expected an object such as {\"host\":\"$host\",\"status\":$status}, \
                     with double quotes around texts"
                    .to_owned())
            }
            _ => Ok(template),
        }
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns how values are escaped.
    #[must_use]
    pub fn escaping(&self) -> Escaping {
        self.escaping
    }

    /// Returns whether it shows facts about TLS.
    pub(super) fn shows_tls(&self) -> bool {
        let is_tls = |part: &Part| {
            matches!(part, Part::Value { variable: Variable::Known(known), .. } if {
                let name = Known::NAMED.iter().find(|(_, other)| other == known);
                name.is_some_and(|(name, _)| name.starts_with("ssl_"))
            })
        };
        self.parts.iter().any(is_tls)
    }

    /// Whether lines are JSON, whatever clients send: outside of quotes there are only numbers.
    fn is_json(&self) -> bool {
        let is_safe = |part: &Part| match part {
            Part::Value { variable: Variable::Known(known), is_quoted } => *is_quoted || known.is_number(),
            Part::Value { variable: Variable::Header(_), is_quoted } => *is_quoted,
            Part::Text(_) => true,
        };
        let mut out = Vec::new();
        self.write(&mut out, &Line::default(), Duration::from_secs(1));
        self.parts.iter().all(is_safe) && serde_json::from_slice::<serde_json::Value>(&out).is_ok()
    }

    /// Appends a line without its end. `since`: the time since 1970.
    pub(super) fn write(&self, out: &mut Vec<u8>, line: &Line<'_>, since: Duration) {
        for part in &self.parts {
            let (variable, is_quoted) = match part {
                Part::Text(text) => {
                    out.extend_from_slice(text.as_bytes());
                    continue;
                }
                Part::Value { variable, is_quoted } => (variable, *is_quoted),
            };
            let start = out.len();
            let mut values = Values { out: &mut *out, escaping: self.escaping, is_quoted };
            match variable {
                Variable::Known(known) => known.write(&mut values, line, since),
                Variable::Header(name) => values.text(line.headers.get(name).unwrap_or_default()),
            }
            if out.len() == start {
                out.extend_from_slice(match (self.escaping, is_quoted) {
                    (Escaping::Text, _) => b"-",
                    (Escaping::Json, true) => b"",
                    (Escaping::Json, false) => b"null",
                });
            }
        }
    }
}

/// Counts the double quotes that begin or end a text.
fn quotes_of(text: &str, escaping: Escaping) -> usize {
    let mut bytes = text.bytes();
    let mut count = 0;
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => count += 1,
            b'\\' if escaping == Escaping::Json => drop(bytes.next()),
            _ => {}
        }
    }
    count
}

impl Variable {
    fn parse(name: &str) -> Result<Self, String> {
        if let Some((_, known)) = Known::NAMED.iter().find(|(known, _)| *known == name) {
            return Ok(Variable::Known(*known));
        }
        match name.strip_prefix("http_").filter(|name| !name.is_empty()) {
            // As in nginx: the field's name in lower case, with `_` for `-`.
            Some(name) => Ok(Variable::Header(name.replace('_', "-"))),
            None => {
                let names: Vec<&str> = Known::NAMED.iter().map(|(name, _)| *name).collect();
                Err(format!("`${name}` is no variable of a log: expected http_NAME or one of {}", names.join(", ")))
            }
        }
    }
}

/// Writes the value of a variable.
struct Values<'o> {
    out: &'o mut Vec<u8>,
    escaping: Escaping,
    is_quoted: bool,
}

impl Values<'_> {
    /// Writes a text that a client may have chosen.
    fn text(&mut self, text: &[u8]) {
        match self.escaping {
            Escaping::Text => escape(self.out, text, if self.is_quoted { Spaces::Kept } else { Spaces::Escaped }),
            Escaping::Json => {
                let start = self.out.len();
                // Serializing a text into memory cannot fail.
                let _ = serde_json::to_writer(&mut *self.out, &String::from_utf8_lossy(text));
                // Without its quotes, which the template has.
                self.out.pop();
                self.out.remove(start);
            }
        }
    }

    fn number(&mut self, value: u64) {
        number(self.out, value, 1);
    }

    /// Writes seconds with milliseconds.
    fn seconds(&mut self, time: Duration) {
        self.number(time.as_secs());
        self.out.push(b'.');
        number(self.out, u64::from(time.subsec_millis()), 3);
    }
}

impl Known {
    /// Returns whether the value is a number, or nothing.
    fn is_number(self) -> bool {
        use Known::*;
        matches!(self, BodyBytes | Msec | RequestTime | Retries | Status | UpstreamTime)
    }

    fn write(self, to: &mut Values<'_>, line: &Line<'_>, since: Duration) {
        let tls = line.tls;
        let client = tls.and_then(|tls| tls.client.as_ref());
        match self {
            Known::BodyBytes => to.number(line.bytes),
            Known::Detail => to.text(line.detail.as_bytes()),
            Known::Failure => to.text(line.failure.as_bytes()),
            Known::Host => to.text(line.host),
            Known::Msec => to.seconds(since),
            Known::RemoteAddr => {
                if let Some(client) = line.client {
                    // Writing into memory cannot fail.
                    let _ = write!(to.out, "{client}");
                }
            }
            // The gateway checks no passwords.
            Known::RemoteUser => {}
            Known::Request if line.method.is_empty() => {}
            Known::Request => {
                to.text(line.method.as_bytes());
                to.text(b" ");
                to.text(line.target.as_bytes());
                to.text(b" ");
                Known::ServerProtocol.write(to, line, since);
            }
            Known::RequestId => to.text(line.request_id),
            Known::RequestMethod => to.text(line.method.as_bytes()),
            Known::RequestTime => to.seconds(line.took),
            Known::RequestUri => to.text(line.target.as_bytes()),
            Known::Retries => to.number(u64::from(line.retries)),
            Known::Route => to.text(line.route.as_bytes()),
            Known::Scheme => to.out.extend_from_slice(if line.is_tls { b"https" } else { b"http" }),
            Known::ServerProtocol => protocol(to.out, line.version),
            Known::SslCipher => to.text(tls.map_or("", |tls| &tls.suite).as_bytes()),
            Known::SslClientDn => to.text(client.map_or("", |client| &client.subject).as_bytes()),
            Known::SslClientSha256 => to.text(client.map_or("", |client| &client.fingerprint).as_bytes()),
            Known::SslProtocol => to.text(tls.map_or("", |tls| tls.version).as_bytes()),
            Known::SslServerName => to.text(tls.and_then(|tls| tls.sni.as_deref()).unwrap_or_default().as_bytes()),
            Known::SslSessionReused => to.text(tls.map_or("", |tls| if tls.resumed { "r" } else { "." }).as_bytes()),
            Known::Status => number(to.out, line.status.into(), if to.escaping == Escaping::Json { 1 } else { 3 }),
            Known::TimeIso => {
                let Date { year, month, day, hour, minute, second, .. } = Date::at(since.as_secs());
                let _ = write!(to.out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00");
            }
            Known::TimeLocal => to.out.extend_from_slice(&access_line::time(Date::at(since.as_secs()))),
            Known::Trace => to.text(line.trace.as_bytes()),
            Known::UpstreamAddr => to.text(line.upstream.as_bytes()),
            Known::UpstreamProtocol => protocol(to.out, line.upstream_version),
            Known::UpstreamTime => {
                if let Some(took) = line.upstream_took {
                    to.seconds(took);
                }
            }
        }
    }
}

/// Writes a protocol as in a request line: `HTTP/1.1`.
fn protocol(out: &mut Vec<u8>, version: &str) {
    if !version.is_empty() {
        out.extend_from_slice(b"HTTP/");
        out.extend_from_slice(version.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use oroshi_http1::Headers;
    use oroshi_net::tls::{ClientCertificate, TlsFacts};

    use super::*;

    fn written(text: &str, escaping: Escaping, line: &Line<'_>) -> String {
        let mut out = Vec::new();
        Template::parse(text, escaping).unwrap().write(&mut out, line, Duration::from_millis(1_000_000_000_123));
        String::from_utf8(out).unwrap()
    }

    fn line(tls: Option<&TlsFacts>) -> Line<'_> {
        Line {
            client: Some([192, 0, 2, 1].into()),
            method: "GET",
            target: "/a?b=\"c\"",
            version: "2.0",
            host: b"a.example",
            status: 200,
            bytes: 12,
            took: Duration::from_micros(1_500_900),
            headers: Headers::from_checked_lines(b"User-Agent: curl 8 \"x\" \xff\r\nX-Two: 2\r\n"),
            is_tls: tls.is_some(),
            tls,
            ..Line::default()
        }
    }

    #[test]
    fn a_line_has_the_values_in_their_places() {
        let client = ClientCertificate { subject: "CN=a, O=\"b\"".to_owned(), fingerprint: "00ff".to_owned() };
        let tls = TlsFacts {
            version: "TLSv1.3",
            suite: "TLS_AES_256_GCM_SHA384".to_owned(),
            sni: Some("a.example".to_owned()),
            alpn: None,
            resumed: true,
            client: Some(client),
        };
        assert_eq!(
            written(
                "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_user_agent\" \
                 $http_user_agent ${request_time}s $msec $time_iso8601 $http_x_two$http_x_none",
                Escaping::Text,
                &line(None)
            ),
            [
                r#"192.0.2.1 - - [09/Sep/2001:01:46:40 +0000] "GET /a?b=\x22c\x22 HTTP/2.0" 200 12 "#,
                r#""curl 8 \x22x\x22 \xFF" curl\x208\x20\x22x\x22\x20\xFF 1.500s 1000000000.123 "#,
                "2001-09-09T01:46:40+00:00 2-",
            ]
            .concat()
        );
        assert_eq!(
            written(
                "$scheme $ssl_protocol $ssl_cipher $ssl_server_name $ssl_session_reused \"$ssl_client_s_dn\" \
                 $ssl_client_sha256",
                Escaping::Text,
                &line(Some(&tls))
            ),
            r#"https TLSv1.3 TLS_AES_256_GCM_SHA384 a.example r "CN=a, O=\x22b\x22" 00ff"#
        );
        assert_eq!(written("$scheme $ssl_protocol \"$ssl_client_s_dn\"", Escaping::Text, &line(None)), r#"http - "-""#);
        // As for bytes that never became a request.
        assert_eq!(written("\"$request\" $status", Escaping::Text, &Line::default()), r#""-" 000"#);
    }

    #[test]
    fn a_line_of_json_is_one_whatever_clients_send() {
        let text = "{\"agent\":\"$http_user_agent\",\"uri\":\"$request_uri\",\"status\":$status,\"took\":$request_time,\
                    \"upstream\":$upstream_response_time,\"none\":\"$http_x\"}";
        let value: serde_json::Value = serde_json::from_str(&written(text, Escaping::Json, &line(None))).unwrap();
        assert_eq!(value["agent"], "curl 8 \"x\" \u{fffd}");
        assert_eq!((&value["uri"], &value["status"], &value["took"]), (&"/a?b=\"c\"".into(), &200.into(), &1.5.into()));
        assert_eq!((&value["upstream"], &value["none"]), (&serde_json::Value::Null, &"".into()));
        for text in [
            "{\"a\":$http_x}",
            "{\"a\":$host}",
            "$status,$status",
            "{\"a\":\"$host}",
            "{\"t\":$time_local}",
            "{\"a\":\"\\\"$host\":1}",
        ] {
            assert!(Template::parse(text, Escaping::Json).unwrap_err().contains("would not be JSON"), "{text}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        for (text, part) in [
            ("$statu", "`$statu` is no variable of a log: expected http_NAME or one of body_bytes_sent, "),
            ("a $", "`$` is no variable"),
            ("${status", "has a `${` without a `}`"),
            ("$http_", "is no variable"),
            ("common", "has no variable such as $status"),
            ("$status\n$host", "line breaks"),
        ] {
            let error = Template::parse(text, Escaping::Text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let tls = |text: &str| Template::parse(text, Escaping::Text).unwrap().shows_tls();
        assert!(tls("$host $ssl_protocol") && !tls("$host $scheme $http_ssl_x"));
    }
}
