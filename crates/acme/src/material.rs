//! Keys, requests and proofs.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use oroshi_words::Secret;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

/// A new key, with the request for a certificate.
pub(crate) struct Request {
    /// PEM.
    pub(crate) key: Zeroizing<String>,
    /// DER (RFC 2986).
    pub(crate) csr: Vec<u8>,
}

/// Makes a key (ECDSA P-256) and the request for a name's certificate.
pub(crate) fn request(name: &str) -> Result<Request, rcgen::Error> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate()?;
    let csr = params.serialize_request(&key)?.der().to_vec();
    Ok(Request { key: Zeroizing::new(key.serialize_pem()), csr })
}

/// Makes the certificate that proves control over a name: `digest` is the SHA-256 of the key authorization (RFC 8737,
/// section 3). The authority checks the digest; the key protects nothing.
pub(crate) fn proof(
    name: &str,
    digest: &[u8],
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), rcgen::Error> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.der().clone(), PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
}

/// Writes an account's key as PEM.
pub(crate) fn key_as_pem(key: &PrivatePkcs8KeyDer<'_>) -> Zeroizing<String> {
    let coded = Zeroizing::new(STANDARD.encode(key.secret_pkcs8_der()));
    let mut pem = Zeroizing::new(String::from("-----BEGIN PRIVATE KEY-----\n"));
    for line in coded.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END PRIVATE KEY-----\n");
    pem
}

/// Decodes the MAC key of an external account: authorities give it with and without padding.
pub(crate) fn mac_key(secret: &Secret) -> Option<Zeroizing<Vec<u8>>> {
    let text = secret.reveal().trim().trim_end_matches('=').replace('+', "-").replace('/', "_");
    URL_SAFE_NO_PAD.decode(text).ok().filter(|key| !key.is_empty()).map(Zeroizing::new)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads what [`hex`] wrote of a SHA-256.
pub(crate) fn digest_of(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (place, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let (key, der) = instant_acme::Key::generate_pkcs8().unwrap();
        drop(key);
        let pem = key_as_pem(&der);
        let read = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).unwrap();
        assert_eq!(read.secret_pkcs8_der(), der.secret_pkcs8_der());
        let digest = [0xab; 32];
        assert_eq!(digest_of(&hex(&digest)), Some(digest));
        assert_eq!((digest_of("ab"), digest_of(&"é".repeat(32)), digest_of(&"x".repeat(64))), (None, None, None));
        for text in ["-_8=", "+/8=", "-_8"] {
            assert_eq!(mac_key(&Secret::new(text)).unwrap().as_slice(), [0xfb, 0xff], "{text}");
        }
        assert!(mac_key(&Secret::new("")).is_none() && mac_key(&Secret::new("a b")).is_none());
    }

    #[test]
    fn a_proof_carries_the_digest() {
        let (certificate, _) = proof("www.example.org", &[7; 32]).unwrap();
        // id-pe-acmeIdentifier, 1.3.6.1.5.5.7.1.31 (RFC 8737, section 6.1).
        let oid = [0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x1f];
        let has = |wanted: &[u8]| certificate.windows(wanted.len()).any(|window| window == wanted);
        assert!(has(&oid) && has(&[7; 32]));
    }
}
