//! Keys that verify tokens, and sets of them (JWK, RFC 7517).
//!
//! ring verifies; only the form of the keys is read here.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use oroshi_words::Secret;
use ring::{hmac, signature};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

/// The largest set of keys, bytes.
pub(crate) const SET_BYTES: usize = 256 * 1024;

/// The most usable keys in a set.
const MOST_KEYS: usize = 100;

/// The shortest secret for HS256, bytes (RFC 7518, section 3.2).
pub(crate) const SECRET_BYTES: usize = 32;

/// An algorithm that signs tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Hs256,
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    /// Returns the algorithm with this name (RFC 7518, section 3.1; RFC 8037, section 3.1; RFC 9864, section 2.2).
    pub(crate) fn named(name: &str) -> Option<Algorithm> {
        match name {
            "HS256" => Some(Algorithm::Hs256),
            "RS256" => Some(Algorithm::Rs256),
            "ES256" => Some(Algorithm::Es256),
            "EdDSA" | "Ed25519" => Some(Algorithm::EdDsa),
            _ => None,
        }
    }
}

/// A key. Its kind decides the algorithm.
pub(crate) struct Key {
    id: Option<Box<str>>,
    material: Material,
}

enum Material {
    Secret(hmac::Key),
    Rsa {
        n: Box<[u8]>,
        e: Box<[u8]>,
    },
    /// The point, uncompressed.
    P256([u8; 65]),
    Ed25519([u8; 32]),
}

impl Key {
    /// Returns the key of HS256 with this secret; `None` if it is too short.
    pub(crate) fn secret(secret: &Secret) -> Option<Key> {
        Key::of_secret(None, secret.reveal().as_bytes())
    }

    fn of_secret(id: Option<Box<str>>, secret: &[u8]) -> Option<Key> {
        let is_long = secret.len() >= SECRET_BYTES;
        is_long.then(|| Key { id, material: Material::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret)) })
    }

    /// Returns its name, `kid`.
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the only algorithm that it is for.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Secret(_) => Algorithm::Hs256,
            Material::Rsa { .. } => Algorithm::Rs256,
            Material::P256(_) => Algorithm::Es256,
            Material::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    /// Returns whether a signature is this key's.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.material {
            Material::Secret(key) => hmac::verify(key, message, signature),
            Material::Rsa { n, e } => signature::RsaPublicKeyComponents { n, e }.verify(
                &signature::RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
            Material::P256(point) => {
                signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Material::Ed25519(point) => {
                signature::UnparsedPublicKey::new(&signature::ED25519, point).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).field("algorithm", &self.algorithm()).finish_non_exhaustive()
    }
}

/// A set of keys (RFC 7517, section 5).
#[derive(Debug)]
pub(crate) struct KeySet(Vec<Key>);

/// Why a set of keys cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum KeySetError {
    #[error("it is no set of keys: expected {{\"keys\": [...]}} (RFC 7517)")]
    Malformed,
    #[error("it has more than {MOST_KEYS} keys")]
    TooMany,
    #[error("it has more than {SET_BYTES} bytes")]
    TooLarge,
    #[error("it has no usable key: expected RSA of 2048 to 8192 bits, P-256 or Ed25519")]
    NoKey,
}

impl KeySet {
    /// Reads a set. Keys that cannot verify tokens are left out (RFC 7517, section 5).
    ///
    /// `takes_secrets`: whether keys of HS256 count. A secret that a URL gives away is none.
    pub(crate) fn read(data: &[u8], takes_secrets: bool) -> Result<KeySet, KeySetError> {
        if data.len() > SET_BYTES {
            return Err(KeySetError::TooLarge);
        }
        let all: RawSet = super::object(data).ok_or(KeySetError::Malformed)?;
        let keys = all.keys.into_iter().filter_map(|raw| key(serde_json::from_value(raw).ok()?));
        let keys: Vec<Key> =
            keys.filter(|key| takes_secrets || key.algorithm() != Algorithm::Hs256).take(MOST_KEYS + 1).collect();
        match keys.len() {
            0 => Err(KeySetError::NoKey),
            count if count > MOST_KEYS => Err(KeySetError::TooMany),
            _ => Ok(KeySet(keys)),
        }
    }

    /// Returns the keys, in their order.
    pub(crate) fn all(&self) -> &[Key] {
        &self.0
    }
}

fn key(raw: RawKey) -> Option<Key> {
    let is_for_tokens = raw.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
        && raw.key_ops.as_ref().is_none_or(|all| all.iter().any(|operation| operation == "verify"));
    if !is_for_tokens {
        return None;
    }
    let id = raw.kid.map(Box::from);
    let material = match (&*raw.kty, raw.crv.as_deref()) {
        ("oct", _) => Key::of_secret(None, &bytes(raw.k.as_deref())?)?.material,
        ("RSA", _) => {
            let (n, e) = (unsigned(raw.n.as_deref())?, unsigned(raw.e.as_deref())?);
            let bits = n.len() * 8 - n.first()?.leading_zeros() as usize;
            ((2048..=8192).contains(&bits) && e.len() <= 5).then_some(Material::Rsa { n, e })?
        }
        ("EC", Some("P-256")) => {
            let mut point = [4; 65];
            point[1..33].copy_from_slice(&coordinate(raw.x.as_deref())?);
            point[33..].copy_from_slice(&coordinate(raw.y.as_deref())?);
            Material::P256(point)
        }
        ("OKP", Some("Ed25519")) => Material::Ed25519(exact(raw.x.as_deref())?),
        _ => return None,
    };
    let key = Key { id, material };
    // A key may name its algorithm; no other will do.
    match raw.alg {
        Some(name) if Algorithm::named(&name) != Some(key.algorithm()) => None,
        _ => Some(key),
    }
}

fn bytes(text: Option<&str>) -> Option<Vec<u8>> {
    BASE64URL.decode(text?).ok()
}

fn exact(text: Option<&str>) -> Option<[u8; 32]> {
    bytes(text)?.try_into().ok()
}

/// Reads a coordinate of P-256. It has to have 32 bytes (RFC 7518, section 6.2.1.2), but PyJWT leaves out zeros before
/// it: in one key of 128.
fn coordinate(text: Option<&str>) -> Option<[u8; 32]> {
    let bytes = bytes(text)?;
    let mut coordinate = [0; 32];
    coordinate[32_usize.checked_sub(bytes.len())?..].copy_from_slice(&bytes);
    Some(coordinate)
}

/// Reads an unsigned integer. ring takes none with zeros before it, which some issuers write.
fn unsigned(text: Option<&str>) -> Option<Box<[u8]>> {
    let bytes = bytes(text)?;
    let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
    Some(bytes[zeros..].into())
}

#[derive(Debug, Deserialize)]
struct RawSet {
    keys: Vec<Value>,
}

/// A key as it stands in a set. Private members are not read.
#[derive(Deserialize)]
struct RawKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    k: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_may_lack_zeros_and_have_no_byte_too_many() {
        let text = |bytes: &[u8]| BASE64URL.encode(bytes);
        let mut padded = [7; 32];
        padded[0] = 0;
        assert_eq!(coordinate(Some(&text(&[7; 31]))), Some(padded));
        assert_eq!(coordinate(Some(&text(&padded))), Some(padded));
        assert_eq!(coordinate(Some(&text(&[0; 33]))), None);
        assert_eq!(coordinate(None), None);
    }
}
