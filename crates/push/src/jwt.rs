//! JSON Web Tokens of clients (RFC 7519): signature, claims, identity. No I/O; the time is an argument.
//!
//! A token is a JWS in compact form (RFC 7515, section 7.1) with HS256, RS256, ES256 (RFC 7518) or EdDSA with Ed25519
//! (RFC 8037). The type of a key decides its algorithm; a token's `alg` can only agree with it (RFC 8725, section 3.1).

pub(crate) mod keys;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use thiserror::Error;

use crate::plan::Jwt;
use crate::rights::{Right, Rights};
use keys::{Algorithm, Key, KeySet};

/// The longest token, bytes. A longer one is refused unread.
pub(crate) const MOST_BYTES: usize = 16 * 1024;

/// The longest user, bytes. Others see it in presence and beside messages.
const USER_BYTES: usize = 255;

/// The most keys that a token without `kid` is tried with.
const TRIES: usize = 4;

/// The client that a token describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `sub`.
    pub(crate) user: Option<Arc<str>>,
    /// `rights`.
    pub(crate) rights: Arc<Rights>,
    /// The end of the token, with the leeway, in seconds since 1970.
    pub(crate) expires: u64,
}

/// Why a token was refused. Its `Display` is for the client, and repeats nothing of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum TokenError {
    #[error("the token is no JWT: expected a JWS in compact form with HS256, RS256, ES256 or EdDSA")]
    Malformed,
    #[error("the token is too large: expected at most {MOST_BYTES} bytes")]
    TooLarge,
    #[error("the token has an algorithm that is not accepted: expected HS256, RS256, ES256 or EdDSA")]
    Algorithm,
    /// The keys may have been rotated: read them again.
    #[error("no key of the issuer has the token's kid and algorithm")]
    UnknownKey,
    #[error("the token's signature is not that of its key")]
    Signature,
    #[error("a claim of the token has a wrong type: expected sub as text, exp and nbf as numbers of seconds")]
    Claims,
    #[error(
        "`rights` of the token is wrong: expected {{\"chat:*\": [\"subscribe\", \"publish\"]}}, with history, presence"
    )]
    Rights,
    #[error("the token has no exp: expected the time of its end")]
    NoEnd,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    Early,
    #[error("the token's issuer is not accepted here")]
    Issuer,
    #[error("the token is for another audience")]
    Audience,
}

impl Identity {
    /// Returns it as its client gets it, at `now` in seconds since 1970.
    pub(crate) fn to_json(&self, now: u64) -> Value {
        let mut identity = json!({ "expires_in": self.expires.saturating_sub(now) });
        if let Some(user) = &self.user {
            identity["user"] = json!(&**user);
        }
        identity
    }
}

impl TokenError {
    /// Returns its name for clients.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TokenError::Expired => "expired-token",
            _ => "bad-token",
        }
    }

    /// Returns its name in metrics.
    pub(crate) fn result(self) -> TokenResult {
        match self {
            TokenError::Malformed | TokenError::TooLarge | TokenError::Algorithm => TokenResult::Malformed,
            TokenError::UnknownKey => TokenResult::UnknownKey,
            TokenError::Signature => TokenResult::Signature,
            TokenError::Expired => TokenResult::Expired,
            TokenError::Claims | TokenError::Rights | TokenError::NoEnd => TokenResult::Claims,
            TokenError::Early | TokenError::Issuer | TokenError::Audience => TokenResult::Claims,
        }
    }
}

/// The results of checks, as metrics tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenResult {
    Accepted,
    Expired,
    Malformed,
    UnknownKey,
    Signature,
    Claims,
    /// No key was ever read.
    NoKeys,
}

/// The names of [`TokenResult`]'s variants in metrics, in their order.
pub(crate) const TOKEN_RESULTS: [&str; 7] =
    ["accepted", "expired", "malformed", "unknown-key", "signature", "claims", "no-keys"];

/// Checks a token at `now`, in seconds since 1970, and returns its client.
pub(crate) fn check(
    token: &[u8],
    secret: Option<&Key>,
    keys: Option<&KeySet>,
    rules: &Jwt,
    now: u64,
) -> Result<Identity, TokenError> {
    let claims = verify(token, secret, keys)?;
    let claims: Claims = object(&claims).ok_or(TokenError::Claims)?;
    let (now, leeway) = (now as f64, rules.leeway.as_secs_f64());
    let end = claims.exp.ok_or(TokenError::NoEnd)? + leeway;
    if now >= end {
        return Err(TokenError::Expired);
    }
    if claims.nbf.is_some_and(|begin| now + leeway < begin) {
        return Err(TokenError::Early);
    }
    if rules.issuer.is_some() && claims.iss != rules.issuer {
        return Err(TokenError::Issuer);
    }
    // A token that names audiences is for nobody else (RFC 7519, section 4.1.3).
    let is_for_us = match &claims.aud {
        None => rules.audience.is_empty(),
        Some(Audience::One(one)) => rules.audience.contains(one),
        Some(Audience::Several(all)) => all.iter().any(|one| rules.audience.contains(one)),
    };
    if !is_for_us {
        return Err(TokenError::Audience);
    }
    let is_user = |user: &str| !user.is_empty() && user.len() <= USER_BYTES && !user.chars().any(char::is_control);
    if claims.sub.as_deref().is_some_and(|user| !is_user(user)) {
        return Err(TokenError::Claims);
    }
    let rights = Arc::new(rights(claims.rights)?);
    Ok(Identity { user: claims.sub.map(Arc::from), rights, expires: end.ceil() as u64 })
}

/// Checks the signature of a token, and returns its payload.
fn verify(token: &[u8], secret: Option<&Key>, keys: Option<&KeySet>) -> Result<Vec<u8>, TokenError> {
    if token.len() > MOST_BYTES {
        return Err(TokenError::TooLarge);
    }
    let signed = token.iter().rposition(|&byte| byte == b'.').ok_or(TokenError::Malformed)?;
    let (signed, signature) = (&token[..signed], &token[signed + 1..]);
    let header = signed.iter().position(|&byte| byte == b'.').ok_or(TokenError::Malformed)?;
    let (header, payload) = (&signed[..header], &signed[header + 1..]);
    let decode = |part: &[u8]| BASE64URL.decode(part).map_err(|_| TokenError::Malformed);
    let header = decode(header)?;
    let header: Header = object(&header).ok_or(TokenError::Malformed)?;
    // No extension is understood here (RFC 7515, section 4.1.11), nor are the keys that a header carries.
    if header.crit.is_some() {
        return Err(TokenError::Malformed);
    }
    let algorithm = Algorithm::named(&header.alg).ok_or(TokenError::Algorithm)?;
    let (payload, signature) = (decode(payload)?, decode(signature)?);
    let kid = header.kid.as_deref();
    let known = keys.map_or(&[][..], KeySet::all).iter();
    let of_set = known.filter(|key| key.algorithm() == algorithm && kid.is_none_or(|kid| key.id() == Some(kid)));
    // The secret of the configuration has no name.
    let own = secret.filter(|_| algorithm == Algorithm::Hs256);
    let mut tries = own.into_iter().chain(of_set).take(TRIES).peekable();
    if tries.peek().is_none() {
        return Err(TokenError::UnknownKey);
    }
    if tries.any(|key| key.verifies(signed, &signature)) { Ok(payload) } else { Err(TokenError::Signature) }
}

/// Reads an object of JSON. serde would take an array as the fields in their order.
fn object<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Option<T> {
    data.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(data).ok()).flatten()
}

fn rights(claim: Option<RightsClaim>) -> Result<Rights, TokenError> {
    let mut rights = Rights::default();
    for (pattern, names) in claim.map(|claim| claim.0).unwrap_or_default() {
        for name in names {
            rights.grant(&pattern, Right::named(&name).ok_or(TokenError::Rights)?);
        }
    }
    Ok(rights)
}

/// The protected header. Other members mean nothing here.
#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

/// The claims that mean something here.
#[derive(Debug, Deserialize)]
struct Claims {
    sub: Option<String>,
    exp: Option<f64>,
    nbf: Option<f64>,
    iss: Option<String>,
    aud: Option<Audience>,
    rights: Option<RightsClaim>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

/// Patterns of channels, each with names of rights.
#[derive(Debug, Deserialize)]
struct RightsClaim(std::collections::BTreeMap<String, Vec<String>>);

#[cfg(test)]
mod tests;
