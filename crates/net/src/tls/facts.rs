//! Facts about a TLS connection of a client, for logs and for upstreams.

use std::fmt::Write;

use ring::digest::{SHA256, digest};
use rustls::{CommonState, HandshakeKind, ServerConnection};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Facts about a client's TLS connection. They do not change after the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFacts {
    /// The protocol version, in OpenSSL's words: `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// The cipher suite, as IANA names it: `TLS_AES_256_GCM_SHA384`.
    pub suite: String,
    /// The server name that the client asked for, in lower case.
    pub sni: Option<String>,
    /// The protocol agreed on by ALPN: `h2`, `http/1.1`.
    pub alpn: Option<String>,
    /// Whether the handshake resumed an earlier session.
    pub resumed: bool,
    /// The client's certificate, verified in this handshake or in the one that it resumes.
    pub client: Option<ClientCertificate>,
}

/// A verified certificate of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The subject's name, as RFC 4514 writes it, with only visible ASCII: other characters are `?`.
    pub subject: String,
    /// The SHA-256 of the certificate in hexadecimal, lower case.
    pub fingerprint: String,
}

impl TlsFacts {
    pub(crate) fn of(session: &ServerConnection) -> Self {
        let suite = session.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()).unwrap_or_default();
        TlsFacts {
            version: match session.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3",
                Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "",
            },
            // rustls names the suites of TLS 1.3 with a prefix of its own.
            suite: suite.replacen("TLS13_", "TLS_", 1),
            sni: session.server_name().map(str::to_ascii_lowercase),
            alpn: session.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned()),
            resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            client: client(session),
        }
    }
}

fn client(session: &CommonState) -> Option<ClientCertificate> {
    let certificate = session.peer_certificates()?.first()?;
    let subject = X509Certificate::from_der(certificate).map(|(_, parsed)| parsed.subject().to_string());
    let visible = |char: char| if matches!(char, ' '..='~') { char } else { '?' };
    let fingerprint = digest(&SHA256, certificate);
    Some(ClientCertificate {
        subject: subject.unwrap_or_default().chars().map(visible).collect(),
        fingerprint: fingerprint.as_ref().iter().fold(String::with_capacity(64), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}"); // a String takes all
            hex
        }),
    })
}
