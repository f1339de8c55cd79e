//! What RFC 9111 says of one request or response: may it be stored, how long is it fresh, what changes it.

use oroshi_client::Headers;
use oroshi_words::date::parse_http_date;

/// The longest time in seconds that a message can name (RFC 9111, section 1.2.2).
const LONGEST: u64 = 1 << 31;
/// The longest time without an explicit end of freshness, seconds: a day.
const LONGEST_GUESS: u64 = 86_400;
/// The most bytes of the request's fields that `Vary` names.
pub(super) const VARY_BYTES: usize = 4096;

/// What a request wants of the cache.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// The cache is not used, in either direction: `no-store`, a range, a condition of the script's own.
    pub(super) bypass: bool,
    /// A stored response must be validated.
    pub(super) validate: bool,
    /// The oldest response that will do, seconds.
    pub(super) max_age: Option<u64>,
}

impl Wish {
    pub(super) fn of(headers: &Headers) -> Wish {
        let (mut wish, mut controlled) = (Wish::default(), false);
        let mut pragma = false;
        for (name, value) in headers.iter() {
            if name.eq_ignore_ascii_case("Cache-Control") {
                let directives = Directives::of([value]);
                controlled = true;
                wish.bypass |= directives.no_store;
                wish.validate |= directives.no_cache;
                wish.max_age = wish.max_age.or(directives.max_age);
            } else if name.eq_ignore_ascii_case("Pragma") {
                pragma |= value.eq_ignore_ascii_case(b"no-cache");
            } else {
                let is_condition = name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("If-"));
                wish.bypass |= is_condition || name.eq_ignore_ascii_case("Range");
            }
        }
        // Section 5.4.
        wish.validate |= pragma && !controlled;
        wish
    }
}

/// The directives of `Cache-Control` that matter to a private cache that never uses what is stale: `must-revalidate`
/// then asks for nothing more, and `s-maxage` and `proxy-revalidate` are meant for shared caches.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Directives {
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    /// `public` or `private`: each allows this cache to store what is not cacheable by its status.
    allowed: bool,
    /// Seconds; 0 if it is not valid, or said twice with different values (section 4.2.1).
    pub(super) max_age: Option<u64>,
}

impl Directives {
    pub(super) fn of<'v>(values: impl IntoIterator<Item = &'v [u8]>) -> Directives {
        let mut found = Directives::default();
        for directive in values.into_iter().flat_map(members) {
            let equals = directive.iter().position(|&byte| byte == b'=').unwrap_or(directive.len());
            let (name, value) = directive.split_at(equals);
            let is = |known: &str| name.trim_ascii().eq_ignore_ascii_case(known.as_bytes());
            if is("no-store") {
                found.no_store = true;
            } else if is("no-cache") {
                // With field names it would allow to use the rest: it is no mistake to validate more.
                found.no_cache = true;
            } else if is("public") || is("private") {
                found.allowed = true;
            } else if is("max-age") {
                let age = seconds(value.get(1..).unwrap_or_default()).unwrap_or(0);
                found.max_age = Some(if found.max_age.is_none_or(|known| known == age) { age } else { 0 });
            }
        }
        found
    }
}

/// Splits a list at its commas; those within quotes belong to a value.
fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    let parts = value.split(move |&byte| {
        let was_escaped = std::mem::take(&mut escaped);
        match byte {
            b'"' if !was_escaped => quoted = !quoted,
            b'\\' if quoted && !was_escaped => escaped = true,
            _ => {}
        }
        byte == b',' && !quoted
    });
    parts.map(<[u8]>::trim_ascii).filter(|part| !part.is_empty())
}

/// Reads a number of seconds, with or without quotes.
fn seconds(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let value = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = value.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    Some(number.min(LONGEST))
}

/// How long a response may be used, seconds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Freshness {
    /// How long it is fresh after it was made; 0: it must be validated each time.
    pub(super) lifetime: u64,
    /// How old it was when it came (section 4.2.3).
    pub(super) age: u64,
}

impl Freshness {
    /// Returns the freshness of a response that may be stored and can be of use; `None` for all others.
    ///
    /// `delay`: from sending the request to the response, seconds. `unix_s`: now. `dated` has the `Date` and the `Age`,
    /// and is the same as `headers` unless the response was validated.
    pub(super) fn of(status: u16, headers: &Headers, dated: &Headers, delay: u64, unix_s: u64) -> Option<Freshness> {
        // The rest is no whole response by itself, or no final one.
        if status == 206 || status == 304 || !(200..600).contains(&status) {
            return None;
        }
        let (mut expires, mut modified, mut is_explicit) = (None, None, false);
        // In one pass, since most responses of an application end here.
        for (name, value) in headers.iter() {
            if name.eq_ignore_ascii_case("Expires") {
                expires = expires.or(Some(value));
            } else if name.eq_ignore_ascii_case("Last-Modified") {
                modified = modified.or(Some(value));
            } else {
                is_explicit |= name.eq_ignore_ascii_case("Cache-Control") || name.eq_ignore_ascii_case("ETag");
            }
        }
        if expires.is_none() && modified.is_none() && !is_explicit {
            return None; // neither fresh nor to be validated
        }
        let directives = Directives::of(headers.get_all("Cache-Control"));
        if directives.no_store {
            return None;
        }
        let date = dated.get("Date").and_then(parse_http_date);
        // Section 15.1 of RFC 9110.
        let by_status = matches!(status, 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501);
        let lifetime = match (directives.max_age, expires) {
            (Some(age), _) => age,
            // A date that is not valid, such as 0, has passed.
            (None, Some(expires)) => parse_http_date(expires).unwrap_or(0).saturating_sub(date.unwrap_or(unix_s)),
            (None, None) if by_status || directives.allowed => {
                let modified = modified.and_then(parse_http_date);
                let unchanged = modified.map_or(0, |modified| date.unwrap_or(unix_s).saturating_sub(modified));
                (unchanged / 10).min(LONGEST_GUESS)
            }
            (None, None) => return None,
        };
        let lifetime = if directives.no_cache { 0 } else { lifetime.min(LONGEST) };
        if lifetime == 0 && !can_be_validated(status, headers) {
            return None;
        }
        let apparent = unix_s.saturating_sub(date.unwrap_or(unix_s));
        let told = dated.get("Age").and_then(|age| seconds(members(age).next()?)).unwrap_or(0);
        Some(Freshness { lifetime, age: apparent.max(told + delay) })
    }
}

/// Whether the server can say that a stored response is still the right one.
pub(super) fn can_be_validated(status: u16, headers: &Headers) -> bool {
    matches!(status, 200 | 203) && (headers.contains("ETag") || headers.contains("Last-Modified"))
}

/// Whether a response "not modified" is about this stored response (section 4.3.4).
pub(super) fn is_about(not_modified: &Headers, stored: &Headers) -> bool {
    let opaque = |tag: &'_ [u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
    match (not_modified.get("ETag"), stored.get("ETag")) {
        (Some(new), Some(old)) => return opaque(new) == opaque(old),
        (Some(_), None) => return false,
        _ => {}
    }
    match (not_modified.get("Last-Modified"), stored.get("Last-Modified")) {
        (Some(new), Some(old)) => new == old,
        _ => true,
    }
}

/// Returns the fields that are stored: those of the message, but not those of the connection (section 3.1), nor those
/// that are the user's or the moment's, so that users can share the rest.
pub(super) fn storable(headers: &Headers) -> Headers {
    const NOT: [&str; 11] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authentication-info",
        "te",
        "transfer-encoding",
        "upgrade",
        "set-cookie",
        "date",
        "age",
    ];
    let of_connection: Vec<&[u8]> = headers.get_all("Connection").flat_map(members).collect();
    let mut stored = Headers::new();
    for (name, value) in headers.iter() {
        let stays_out = NOT.iter().any(|not| name.eq_ignore_ascii_case(not))
            || of_connection.iter().any(|named| named.eq_ignore_ascii_case(name.as_bytes()));
        if !stays_out {
            // The decoder has checked the field.
            let _ = stored.append(name, value);
        }
    }
    stored
}

/// Returns the stored fields after a response "not modified" (section 3.2): its fields replace those of their names,
/// except those about the body, which it does not have.
pub(super) fn updated(stored: &Headers, not_modified: &Headers) -> Headers {
    let about_body = |name: &str| {
        ["content-length", "content-type", "content-encoding", "content-range"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
    };
    let new = storable(not_modified);
    let mut updated = Headers::new();
    let replaces = |name: &str| !about_body(name) && new.contains(name);
    for (name, value) in stored.iter() {
        if !replaces(name) {
            let _ = updated.append(name, value);
        } else if !updated.contains(name) {
            // In its old place, so that a response that changes nothing leaves the same fields.
            for value in new.get_all(name) {
                let _ = updated.append(name, value);
            }
        }
    }
    for (name, value) in new.iter().filter(|(name, _)| !about_body(name) && !stored.contains(name)) {
        let _ = updated.append(name, value);
    }
    updated
}

/// Returns the request's fields that a response's `Vary` names, as one text; `None` if no other request can have the
/// same (`*`), or they are too long to be kept.
pub(super) fn variant(response: &Headers, request: &Headers) -> Option<Box<[u8]>> {
    let mut text = Vec::new();
    for name in response.get_all("Vary").flat_map(members) {
        let name = str::from_utf8(name).ok().filter(|name| *name != "*")?;
        text.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
        for value in request.get_all(name) {
            // A separator that no value has; a field without a value differs from none.
            text.push(0);
            text.extend_from_slice(value);
        }
        text.push(b'\n');
        if text.len() > VARY_BYTES {
            return None;
        }
    }
    Some(text.into())
}
