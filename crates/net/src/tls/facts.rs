//! Facts about a TLS connection of a client, for logs and for upstreams.

use std::fmt::Write;

use ring::digest::{SHA256, digest};
use rustls::{CommonState, HandshakeKind};
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate, X509Name};

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
    pub(crate) fn of(session: &CommonState, sni: Option<&str>) -> Self {
        let suite = session.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()).unwrap_or_default();
        TlsFacts {
            version: match session.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3",
                Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "",
            },
            // rustls names the suites of TLS 1.3 with a prefix of its own.
            suite: suite.replacen("TLS13_", "TLS_", 1),
            sni: sni.map(str::to_ascii_lowercase),
            alpn: session.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned()),
            resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            client: client(session),
        }
    }
}

fn client(session: &CommonState) -> Option<ClientCertificate> {
    let certificate = session.peer_certificates()?.first()?;
    let subject = X509Certificate::from_der(certificate).map(|(_, parsed)| distinguished_name(parsed.subject()));
    let fingerprint = digest(&SHA256, certificate);
    Some(ClientCertificate {
        subject: subject.unwrap_or_default(),
        fingerprint: fingerprint.as_ref().iter().fold(String::with_capacity(64), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}"); // a String takes all
            hex
        }),
    })
}

/// The names of attributes, by their identifiers (RFC 4514, section 3, and two that clients' certificates often have).
const ATTRIBUTES: [(&str, &str); 11] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// Writes a name as RFC 4514 does, the most specific part first, in ASCII: `CN=client,O=A\, B`. Different names
/// have different texts.
pub(super) fn distinguished_name(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> =
        name.iter_rdn().map(|part| part.iter().map(attribute).collect::<Vec<_>>().join("+")).collect();
    parts.reverse();
    parts.join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let oid = attribute.attr_type().to_id_string();
    let known = ATTRIBUTES.iter().find(|(id, _)| *id == oid).map(|(_, name)| *name);
    match (known, attribute.as_str()) {
        (Some(name), Ok(value)) => format!("{name}={}", escaped(value)),
        // Section 2.4: a value of another type, or of an attribute without a name, in hexadecimal.
        _ => {
            let value = attribute.attr_value();
            let mut text = format!("{oid}=#{:02x}", value.tag().0);
            for byte in value.data {
                let _ = write!(text, "{byte:02x}"); // a String takes all
            }
            text
        }
    }
}

/// Escapes a value (RFC 4514, section 2.4), and bytes that are not visible ASCII: the text goes into a field.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let last = value.len().saturating_sub(1);
    for (at, byte) in value.bytes().enumerate() {
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' | b'=' => text.extend(['\\', char::from(byte)]),
            b' ' if at == 0 || at == last => text.push_str("\\ "),
            b'#' if at == 0 => text.push_str("\\#"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\{byte:02X}"); // a String takes all
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn subject(parts: &[(DnType, &str)]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let (_, parsed) = X509Certificate::from_der(made.der()).unwrap();
        distinguished_name(parsed.subject())
    }

    #[test]
    fn different_names_have_different_texts() {
        use DnType::{CommonName, OrganizationName};
        assert_eq!(subject(&[(OrganizationName, "Example"), (CommonName, "client")]), "CN=client,O=Example");
        let forged = subject(&[(OrganizationName, "x, CN=admin"), (CommonName, "mallory")]);
        assert_eq!(forged, "CN=mallory,O=x\\, CN\\=admin");
        assert_eq!(subject(&[(CommonName, "J\u{f6}rg \r\n")]), "CN=J\\C3\\B6rg \\0D\\0A");
        assert_eq!(subject(&[(CommonName, " #a+b ")]), "CN=\\ #a\\+b\\ ");
        let other = subject(&[(DnType::CustomDnType(vec![2, 5, 4, 65]), "p")]);
        assert!(other.starts_with("2.5.4.65=#") && other.ends_with("70"), "{other}");
    }
}
