//! Sealed rows: a chain with its key, encrypted with a key that the database does not have.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// The beginning of a sealed row. It is authenticated too.
const MARK: &str = "oroshi-sealed-1:";

/// The least characters of a secret.
const SECRET_CHARS: usize = 32;

/// Seals rows, and opens them.
pub struct Seal(LessSafeKey);

/// A secret that is too short.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret has {0} characters: expected at least {SECRET_CHARS}, for example the output of `openssl rand -base64 32`"
)]
pub struct SecretError(usize);

/// The reason why a sealed row cannot be opened. Check that the key is the one that sealed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is sealed, and this key does not open it")]
pub struct SealError;

/// Derives a key from a secret text for one purpose, so that one secret may serve several.
pub(crate) fn derive(secret: &str, purpose: &str) -> Result<Zeroizing<[u8; 32]>, SecretError> {
    let characters = secret.chars().count();
    if characters < SECRET_CHARS {
        return Err(SecretError(characters));
    }
    let mut key = Zeroizing::new([0; 32]);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), purpose.as_bytes());
    key.copy_from_slice(tag.as_ref());
    Ok(key)
}

/// An AEAD key.
pub(crate) fn aead(algorithm: &'static ring::aead::Algorithm, key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(algorithm, key).expect("the key has 32 bytes, as both algorithms take"))
}

/// Returns a nonce, or `None` if the system has no random numbers.
pub(crate) fn nonce() -> Option<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).ok().map(|()| nonce)
}

impl Seal {
    /// Makes a seal of a secret text.
    ///
    /// # Errors
    /// The secret has fewer than 32 characters.
    pub fn new(secret: &str) -> Result<Self, SecretError> {
        Ok(Seal(aead(&AES_256_GCM, &*derive(secret, "oroshi rows")?)))
    }

    /// Seals a text with AES-256-GCM under a random nonce.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn seal(&self, text: &[u8]) -> Result<String, SealError> {
        let nonce = nonce().ok_or(SealError)?;
        let mut bytes = Zeroizing::new(text.to_vec());
        let tag = self
            .0
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(MARK), &mut bytes)
            .map_err(|_| SealError)?;
        Ok(format!("{MARK}{}", STANDARD.encode([&nonce[..], &bytes, tag.as_ref()].concat())))
    }

    /// Opens a row.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn open(&self, row: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let coded = row.strip_prefix(MARK.as_bytes()).ok_or(SealError)?.trim_ascii();
        let mut bytes = Zeroizing::new(STANDARD.decode(coded).map_err(|_| SealError)?);
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN).ok_or(SealError)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError)?;
        let opened = self.0.open_in_place(nonce, Aad::from(MARK), sealed).map_err(|_| SealError)?;
        Ok(Zeroizing::new(opened.to_vec()))
    }
}

/// Whether a row is sealed.
pub(crate) fn is_sealed(row: &[u8]) -> bool {
    row.starts_with(MARK.as_bytes())
}

/// Shows no key.
impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn what_is_sealed_opens_with_the_same_secret_alone() {
        let seal = Seal::new(SECRET).unwrap();
        let row = seal.seal(b"a text").unwrap();
        assert!(is_sealed(row.as_bytes()) && !row.contains("a text"), "{row}");
        assert_eq!(&**seal.open(row.as_bytes()).unwrap(), b"a text");
        assert_eq!(&**Seal::new(SECRET).unwrap().open(format!("{row}\n").as_bytes()).unwrap(), b"a text");
        assert_ne!(seal.seal(b"a text").unwrap(), row, "each has a nonce of its own");
        assert_eq!(Seal::new(&SECRET.replace('0', "1")).unwrap().open(row.as_bytes()), Err(SealError));
        for at in MARK.len()..row.len() {
            let mut changed = row.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(seal.open(&changed), Err(SealError), "{at}");
            assert_eq!(seal.open(&row.as_bytes()[..at]), Err(SealError), "{at}");
        }
        assert_eq!(Seal::new("short").unwrap_err().to_string().split(':').next(), Some("the secret has 5 characters"));
    }
}
