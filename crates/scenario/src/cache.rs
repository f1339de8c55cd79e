//! The cache of one user: a private one (RFC 9111), like a browser's.
//!
//! - It stores responses to GET. A fresh response is used without the network; a stale one is validated first, always:
//!   a private cache may do more, but no browser does, so `must-revalidate` changes nothing.
//! - Without an explicit end, a response is fresh for a tenth of the time for which it had not changed, at most a day,
//!   where the status or the server allows such a guess (section 4.2.2).
//! - `Range`, conditions of the script's own and `no-store` pass by the cache.
//! - Bodies are shared: see [`Bodies`]. Stored fields lack `Date`, `Age`, `Set-Cookie` and those of the connection.
//!
//! The sequence: [`Cache::look_up`]; then nothing, or a request with [`Kept::conditions`]; then [`Cache::received`], or
//! for a status 304 [`Cache::validated`]. It does no I/O. Times are nanoseconds of the monotonic clock.

mod bodies;
mod policy;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use bytes::Bytes;
use oroshi_client::Headers;
use oroshi_net::Endpoint;

pub(crate) use bodies::Bodies;
use bodies::{Content, Stored};
use policy::{Freshness, Wish};

/// The most responses that a user keeps; those not used for the longest time give way.
pub(crate) const RESPONSES: usize = 200;

const SECOND: u64 = 1_000_000_000;

/// The cache of one user. An empty one takes eight bytes.
#[derive(Debug, Default)]
pub(crate) struct Cache(Option<Box<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    entries: Vec<Entry>,
    /// Counts uses.
    turn: u64,
}

/// A stored response, and what this user knows of it.
#[derive(Debug)]
struct Entry {
    /// Of the URL.
    hash: u64,
    stored: Rc<Stored>,
    /// The request's fields that the response depends on.
    variant: Box<[u8]>,
    /// When its age was 0; before the machine's start, if negative.
    born: i64,
    /// How long it is fresh, seconds.
    lifetime: u64,
    /// The turn of its last use.
    used: u64,
}

/// A request, as the cache sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'r> {
    pub(crate) method: &'r str,
    pub(crate) url: &'r Endpoint,
    /// The fields that differ between requests: the script's and `Cookie`, but not the conditions of [`Kept`].
    pub(crate) headers: &'r Headers,
}

/// A response, as the cache sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered<'r> {
    pub(crate) status: u16,
    pub(crate) headers: &'r Headers,
    /// When the request was sent.
    pub(crate) sent: u64,
    /// When the response was complete.
    pub(crate) done: u64,
}

/// What the cache has for a request.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing: send the request.
    Nothing,
    /// The response: send nothing.
    Fresh(Kept),
    /// A response that must be validated: send the request with its conditions.
    Stale(Kept),
}

/// A stored response with its body, which it keeps whatever becomes of the cache.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    stored: Rc<Stored>,
    body: Bytes,
}

impl Kept {
    pub(crate) fn status(&self) -> u16 {
        self.stored.status
    }

    /// Returns the stored fields.
    pub(crate) fn headers(&self) -> &Headers {
        &self.stored.headers
    }

    /// Returns the body, as decoded.
    pub(crate) fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the fields that ask the server whether the response is still the right one (section 4.3.1).
    pub(crate) fn conditions(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let fields = [("If-None-Match", "ETag"), ("If-Modified-Since", "Last-Modified")];
        fields.into_iter().filter_map(|(condition, validator)| Some((condition, self.headers().get(validator)?)))
    }
}

impl Cache {
    /// Returns what the cache has for a request at `now`.
    pub(crate) fn look_up(&mut self, asked: &Asked<'_>, now: u64) -> Found {
        let Some(entries) = self.0.as_deref_mut().filter(|_| asked.method == "GET") else { return Found::Nothing };
        let wish = Wish::of(asked.headers);
        let Some(place) = entries.find(asked).filter(|_| !wish.bypass) else { return Found::Nothing };
        entries.turn += 1;
        let entry = &mut entries.entries[place];
        entry.used = entries.turn;
        let Some(body) = entry.stored.body() else {
            // It gave way to others of the thread.
            entries.entries.swap_remove(place);
            return Found::Nothing;
        };
        let kept = Kept { stored: Rc::clone(&entry.stored), body };
        let age = entry.age(now);
        if age < entry.lifetime && !wish.validate && wish.max_age.is_none_or(|most| age <= most) {
            Found::Fresh(kept)
        } else if policy::can_be_validated(kept.status(), kept.headers()) {
            Found::Stale(kept)
        } else {
            Found::Nothing
        }
    }

    /// Notes a whole response with its decoded body: stores it, or forgets what it has changed. Not for a status 304
    /// after [`Found::Stale`].
    pub(crate) fn received(&mut self, asked: &Asked<'_>, answered: &Answered<'_>, body: &[u8], bodies: &mut Bodies) {
        if !matches!(asked.method, "GET" | "HEAD" | "OPTIONS" | "TRACE") {
            return self.changed(asked.url, answered);
        }
        if asked.method != "GET" || Wish::of(asked.headers).bypass || answered.status >= 500 {
            return;
        }
        self.forget(asked);
        let dated = answered.headers;
        let Some((freshness, variant)) = answered.storable(answered.headers, dated, asked, bodies) else { return };
        let headers = policy::storable(answered.headers);
        if let Some(stored) = bodies.intern(asked.url, answered.status, headers, &Content::Borrowed(body)) {
            self.put(Entry::new(stored, variant, &freshness, answered.done));
        }
    }

    /// Notes that the server answered the conditions of `kept` with a status 304. Returns the response to use; `None`
    /// if the answer is about another one: then send the request again, without conditions.
    pub(crate) fn validated(
        &mut self,
        asked: &Asked<'_>,
        kept: &Kept,
        answered: &Answered<'_>,
        bodies: &mut Bodies,
    ) -> Option<Kept> {
        self.forget(asked);
        if !policy::is_about(answered.headers, kept.headers()) {
            return None;
        }
        let headers = policy::updated(kept.headers(), answered.headers);
        let status = kept.status();
        let answered = Answered { status, ..*answered };
        let storable = answered.storable(&headers, answered.headers, asked, bodies);
        // Without room the user still gets the response, with the fields that were stored.
        let Some(stored) = bodies.intern(asked.url, status, headers, &Content::Shared(&kept.body)) else {
            return Some(kept.clone());
        };
        if let Some((freshness, variant)) = storable {
            self.put(Entry::new(Rc::clone(&stored), variant, &freshness, answered.done));
        }
        Some(Kept { stored, body: kept.body.clone() })
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Forgets what a successful unsafe request has changed: the URL itself, and those that the response names, within
    /// the origin (section 4.4).
    fn changed(&mut self, url: &Endpoint, answered: &Answered<'_>) {
        let Some(entries) = self.0.as_deref_mut().filter(|_| (200..400).contains(&answered.status)) else { return };
        entries.remove_url(url);
        for reference in ["Location", "Content-Location"].into_iter().filter_map(|name| answered.headers.get(name)) {
            if let Ok(other) = url.join(reference)
                && other.is_same_origin(url)
            {
                entries.remove_url(&other);
            }
        }
        self.shrink();
    }

    /// Forgets the responses that fit a request.
    fn forget(&mut self, asked: &Asked<'_>) {
        let Some(entries) = self.0.as_deref_mut() else { return };
        while let Some(place) = entries.find(asked) {
            entries.entries.swap_remove(place);
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        if self.0.as_ref().is_some_and(|entries| entries.entries.is_empty()) {
            self.0 = None;
        }
    }

    fn put(&mut self, entry: Entry) {
        let entries = self.0.get_or_insert_default();
        if entries.entries.len() >= RESPONSES
            && let Some((oldest, _)) = entries.entries.iter().enumerate().min_by_key(|(_, entry)| entry.used)
        {
            entries.entries.swap_remove(oldest);
        }
        entries.turn += 1;
        entries.entries.push(Entry { used: entries.turn, ..entry });
    }
}

impl Entries {
    /// Returns the place of the newest response that fits a request (section 4.1).
    fn find(&self, asked: &Asked<'_>) -> Option<usize> {
        let hash = hash(asked.url);
        let fits = |entry: &Entry| {
            entry.hash == hash
                && entry.stored.url == *asked.url
                && policy::variant(&entry.stored.headers, asked.headers).is_some_and(|variant| variant == entry.variant)
        };
        let fitting = self.entries.iter().enumerate().filter(|(_, entry)| fits(entry));
        fitting.max_by_key(|(_, entry)| entry.born).map(|(place, _)| place)
    }

    fn remove_url(&mut self, url: &Endpoint) {
        let hash = hash(url);
        self.entries.retain(|entry| entry.hash != hash || entry.stored.url != *url);
    }
}

impl Entry {
    fn new(stored: Rc<Stored>, variant: Box<[u8]>, freshness: &Freshness, done: u64) -> Entry {
        let age = freshness.age.saturating_mul(SECOND);
        let born = i64::try_from(done).unwrap_or(i64::MAX).saturating_sub_unsigned(age);
        Entry { hash: hash(&stored.url), stored, variant, born, lifetime: freshness.lifetime, used: 0 }
    }

    /// Returns the age in seconds (section 4.2.3).
    fn age(&self, now: u64) -> u64 {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        u64::try_from(now.saturating_sub(self.born)).unwrap_or(0) / SECOND
    }
}

impl Answered<'_> {
    /// Returns what the user keeps of a response beside it, if it may be stored.
    fn storable(
        &self,
        headers: &Headers,
        dated: &Headers,
        asked: &Asked<'_>,
        bodies: &Bodies,
    ) -> Option<(Freshness, Box<[u8]>)> {
        let delay = self.done.saturating_sub(self.sent) / SECOND;
        let freshness = Freshness::of(self.status, headers, dated, delay, bodies.unix_s(self.done))?;
        Some((freshness, policy::variant(headers, asked.headers)?))
    }
}

fn hash(url: &Endpoint) -> u64 {
    let mut hasher = DefaultHasher::new();
    url.target.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
