//! From a recording to calls: which entries are kept, where redirects lead, when the user paused.

use std::collections::{BTreeMap, HashMap};

use oroshi_words::units;
use url::Url;

use super::call::{Answer, Call, is_json};
use super::har::{Entry, Recording};
use super::script::Script;
use super::{Assets, ImportError, MOST_REQUESTS, Options};

/// How many entries after a redirect its target is looked for.
const REDIRECT_ENTRIES: usize = 200;
/// The most redirects that are folded into a call, as the scenario's default.
const MOST_REDIRECTS: u32 = 10;
/// The shortest pause that is one of the user, milliseconds.
const SHORTEST_PAUSE: f64 = 500.0;
/// The longest pause that is kept, seconds.
const LONGEST_PAUSE: f64 = 300.0;
/// The most hosts that the comment at the top names.
const MOST_NAMED: usize = 8;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Document,
    Asset,
    Other,
    /// Left out: why.
    Skipped(&'static str),
}

/// Plans the script of a recording.
///
/// # Errors
/// Nothing is left to request, or too much.
pub(super) fn plan(recording: &Recording, options: &Options) -> Result<Script, ImportError> {
    let entries = &recording.entries;
    let kinds: Vec<Kind> = entries.iter().map(kind).collect();
    let base = base(entries, &kinds, &redirects(entries, &kinds, &|_| true))?;
    let own = authority(&base);
    let is_kept = |url: &Url| authority(url) == own || options.hosts.iter().any(|host| is_host(url, host));
    let follow = redirects(entries, &kinds, &is_kept);
    let mut script = Script::new(base.clone());
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    let mut skipped: BTreeMap<&'static str, usize> = BTreeMap::new();
    let (mut busy_until, mut page) = (f64::NEG_INFINITY, None);
    // The last call that was a document, while its assets follow.
    let mut document: Option<usize> = None;
    let mut lonely_assets = 0;
    for (index, entry) in entries.iter().enumerate() {
        if !is_kept(&entry.url) {
            *others.entry(authority(&entry.url)).or_default() += 1;
            continue;
        }
        let pause = entry.began - busy_until;
        busy_until = busy_until.max(entry.began + entry.took);
        if follow.is_target[index] {
            continue;
        }
        match kinds[index] {
            Kind::Skipped(why) => {
                *skipped.entry(why).or_default() += 1;
                continue;
            }
            Kind::Asset if options.assets == Assets::None => continue,
            Kind::Asset if options.assets == Assets::Page => {
                match document {
                    Some(document) => script.calls[document].assets = true,
                    None => lonely_assets += 1,
                }
                continue;
            }
            _ => {}
        }
        if script.calls.len() == MOST_REQUESTS {
            let got = format!("more than {} requests to {own}", units::count(MOST_REQUESTS as u64));
            return Err(ImportError::TooLarge { what: "script", got, most: units::count(MOST_REQUESTS as u64) });
        }
        let mut call = call(entry, &base);
        let last = fold(&mut call, index, entries, &follow);
        if pause >= SHORTEST_PAUSE && !script.calls.is_empty() {
            call.think = Some(rounded(pause / 1000.0));
        }
        if page != entry.page.as_ref() || (kinds[index] == Kind::Document && entry.page.is_none()) {
            page = entry.page.as_ref();
            let title = entry.page.as_ref().and_then(|id| recording.titles.get(id)).map(|title| title.trim());
            call.page = Some(title.filter(|title| !title.is_empty()).unwrap_or(without_query(&entry.url)).to_owned());
        }
        let answered = &entries[last];
        let is_html = answered.kind.contains("html");
        if kinds[index] == Kind::Document || kinds[last] == Kind::Document {
            document = (is_html && (200..300).contains(&answered.status) || answered.status == 304)
                .then_some(script.calls.len());
        }
        call.answer = match &answered.answer {
            Some(text) if is_html => Answer::Html(text.clone().into_bytes()),
            Some(text) if is_json(&answered.kind) => serde_json::from_str(text).map_or(Answer::None, Answer::Json),
            _ => Answer::None,
        };
        script.calls.push(call);
    }
    if script.calls.is_empty() {
        return Err(ImportError::Nothing(format!(
            "the recording has no request to {own} that a script could make: expected one with a response"
        )));
    }
    if let Some(browser) = &recording.browser {
        script.about.push(format!("Recorded by {browser}."));
    }
    if !others.is_empty() {
        let count: usize = others.values().sum();
        let mut hosts: Vec<_> = others.into_iter().collect();
        hosts.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        let more = if hosts.len() > MOST_NAMED { ", ..." } else { "" };
        let named: Vec<_> = hosts.iter().take(MOST_NAMED).map(|(host, n)| format!("{host} ({n})")).collect();
        script.about.push(format!(
            "Left out: {} to other hosts: {}{more}. --host HOST keeps them.",
            units::plural(count as u64, "request"),
            named.join(", ")
        ));
    }
    for (why, count) in skipped {
        script.about.push(format!("Left out: {} ({why}).", units::plural(count as u64, "request")));
    }
    if lonely_assets > 0 {
        script.about.push(format!(
            "Left out: {}, which no recorded page loads. --assets list keeps them.",
            units::plural(lonely_assets, "asset")
        ));
    }
    Ok(script)
}

/// Says what an entry is, by the browser's word or by its headers.
fn kind(entry: &Entry) -> Kind {
    let fetched = super::call::find(&entry.headers, "Sec-Fetch-Dest").map(str::to_ascii_lowercase);
    let resource = entry.resource.as_deref().unwrap_or_default();
    let is_socket = entry.url.scheme().starts_with("ws") || resource == "websocket" || entry.status == 101;
    if is_socket {
        return Kind::Skipped("WebSocket, which scenarios do not speak");
    }
    if resource == "eventsource" || entry.kind == "text/event-stream" {
        return Kind::Skipped("an event stream, which has no end");
    }
    let asks = |name: &str| super::call::find(&entry.headers, name).is_some();
    if resource == "preflight" || (entry.method == "OPTIONS" && asks("Access-Control-Request-Method")) {
        return Kind::Skipped("a preflight of the browser's own");
    }
    if entry.method == "CONNECT" {
        return Kind::Skipped("a tunnel of a proxy");
    }
    if entry.status == 0 {
        return Kind::Skipped("without a response");
    }
    let is_get = entry.method == "GET";
    let word = if resource.is_empty() { fetched.as_deref().unwrap_or_default() } else { resource };
    match word {
        "document" => return Kind::Document,
        "image" | "img" | "stylesheet" | "style" | "script" | "font" | "media" | "audio" | "video" | "track"
        | "texttrack" | "manifest"
            if is_get =>
        {
            return Kind::Asset;
        }
        "xhr" | "fetch" | "ping" | "iframe" | "subdocument" => return Kind::Other,
        _ => {}
    }
    let path = entry.url.path().to_ascii_lowercase();
    let ending = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, ending)| ending);
    let is_static = match &*entry.kind {
        "text/css"
        | "text/javascript"
        | "application/javascript"
        | "application/x-javascript"
        | "application/manifest+json"
        | "application/font-woff" => true,
        "" | "application/octet-stream" | "application/x-unknown" => matches!(
            ending,
            "css"
                | "js"
                | "mjs"
                | "map"
                | "png"
                | "jpg"
                | "jpeg"
                | "gif"
                | "svg"
                | "webp"
                | "avif"
                | "ico"
                | "woff"
                | "woff2"
                | "ttf"
                | "otf"
                | "eot"
                | "mp4"
                | "webm"
                | "mp3"
        ),
        kind => ["image/", "font/", "audio/", "video/"].iter().any(|start| kind.starts_with(start)),
    };
    let accepts_html =
        super::call::find(&entry.headers, "Accept").is_some_and(|accept| accept.starts_with("text/html"));
    match (is_get && is_static, accepts_html && !asks("X-Requested-With")) {
        (true, _) => Kind::Asset,
        (false, true) => Kind::Document,
        (false, false) => Kind::Other,
    }
}

/// Where redirects lead.
struct Redirects {
    /// The entry that a redirect led to.
    next: HashMap<usize, usize>,
    /// Whether an entry is one that a browser fetched because of a redirect.
    is_target: Vec<bool>,
}

fn redirects(entries: &[Entry], kinds: &[Kind], is_kept: &dyn Fn(&Url) -> bool) -> Redirects {
    let mut found = Redirects { next: HashMap::new(), is_target: vec![false; entries.len()] };
    let is_usable = |index: usize| !matches!(kinds[index], Kind::Skipped(_)) && is_kept(&entries[index].url);
    for (index, entry) in entries.iter().enumerate() {
        if !is_usable(index) {
            continue;
        }
        let Some(target) = target(entry).filter(|url| is_kept(url)) else { continue };
        let same_method = matches!(entry.status, 307 | 308);
        let candidates = entries.iter().enumerate().skip(index + 1).take(REDIRECT_ENTRIES);
        let is_it = |&(place, candidate): &(usize, &Entry)| {
            is_usable(place)
                && !found.is_target[place]
                && same_page(&candidate.url, &target)
                && (candidate.method == "GET"
                    || candidate.method == "HEAD"
                    || same_method && candidate.method == entry.method)
        };
        if let Some((place, _)) = candidates.into_iter().find(is_it) {
            found.next.insert(index, place);
            found.is_target[place] = true;
        }
    }
    found
}

/// Returns the URL to which an entry redirects.
fn target(entry: &Entry) -> Option<Url> {
    let is_redirect = matches!(entry.status, 301 | 302 | 303 | 307 | 308);
    entry.location.as_ref().filter(|_| is_redirect).and_then(|location| entry.url.join(location).ok())
}

/// Whether two URLs are the same to a server.
fn same_page(one: &Url, other: &Url) -> bool {
    one[..url::Position::AfterQuery] == other[..url::Position::AfterQuery]
}

/// Takes the redirects that followed into the call. Returns the entry that ended them.
fn fold(call: &mut Call, first: usize, entries: &[Entry], follow: &Redirects) -> usize {
    let (mut last, mut hops) = (first, 0);
    while let Some(&next) = follow.next.get(&last) {
        if hops == MOST_REDIRECTS {
            break;
        }
        (last, hops) = (next, hops + 1);
    }
    let status = entries[last].status;
    if let Some(target) = target(&entries[last]) {
        call.redirects = Some(hops);
        call.notes
            .push(format!("The browser went on to {}, which is not part of this script.", without_query(&target)));
    }
    // A browser's cache asks with a condition, and a new user has nothing to compare.
    call.expect = if status == 304 { vec![200, 304] } else { vec![status] };
    last
}

/// A query may have a secret.
fn without_query(url: &Url) -> &str {
    &url[url::Position::BeforeScheme..url::Position::AfterPath]
}

/// Returns the origin of the script: where the first document stands, after its redirects.
fn base(entries: &[Entry], kinds: &[Kind], follow: &Redirects) -> Result<Url, ImportError> {
    let usable = || (0..entries.len()).filter(|&index| !matches!(kinds[index], Kind::Skipped(_)));
    let Some(mut found) = usable().find(|&index| kinds[index] == Kind::Document).or_else(|| usable().next()) else {
        let why = "the recording has no request with a response: expected at least one; reload the page while the \
                   network panel is open, then save again";
        return Err(ImportError::Nothing(why.into()));
    };
    for _ in 0..MOST_REDIRECTS {
        // A redirect to another host leads to a login or to an advertisement, and away from what is measured.
        let here = |&&next: &&usize| authority(&entries[next].url) == authority(&entries[found].url);
        let Some(&next) = follow.next.get(&found).filter(here) else { break };
        found = next;
    }
    Ok(origin(&entries[found].url))
}

/// Returns a URL without path, query and names of users.
pub(super) fn origin(url: &Url) -> Url {
    let mut origin = url.clone();
    origin.set_path("/");
    origin.set_query(None);
    origin.set_fragment(None);
    let _ = (origin.set_username(""), origin.set_password(None));
    origin
}

/// Returns host and port; without the port if it is the scheme's own.
pub(super) fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Whether a URL is at a host that a flag names.
fn is_host(url: &Url, named: &str) -> bool {
    url.host_str().is_some_and(|host| host.eq_ignore_ascii_case(named)) || authority(url).eq_ignore_ascii_case(named)
}

/// Rounds a pause: to half a second, from ten seconds on to seconds.
fn rounded(seconds: f64) -> f64 {
    let rounded = if seconds < 10.0 { (seconds * 2.0).round() / 2.0 } else { seconds.round() };
    rounded.min(LONGEST_PAUSE)
}

fn call(entry: &Entry, base: &Url) -> Call {
    let mut url = entry.url.clone();
    url.set_fragment(None);
    let _ = (url.set_username(""), url.set_password(None));
    let mut call = Call::new(entry.method.clone(), url);
    for (name, value) in entry.headers.iter().filter(|(name, value)| matters(name, value, &entry.method, base)) {
        // A query may have a secret.
        let is_url = name.eq_ignore_ascii_case("referer");
        let value = if is_url { value.split('?').next().unwrap_or_default() } else { value };
        call.headers.push((name.clone(), value.to_owned()));
    }
    if let Some((bytes, kind)) = &entry.body {
        call.set_body(bytes.clone(), kind.as_deref());
    }
    if entry.cut {
        call.notes.push("The recording lacks the content of the files: put it into `body`.".into());
    }
    call
}

/// Whether a header of a browser says something that the client or the scenario does not say itself.
fn matters(name: &str, value: &str, method: &str, base: &Url) -> bool {
    const NOT: [&str; 21] = [
        "host",
        "cookie",
        "cookie2",
        "upgrade-insecure-requests",
        "accept-encoding",
        "if-none-match",
        "if-modified-since",
        "if-match",
        "if-unmodified-since",
        "if-range",
        "cache-control",
        "pragma",
        "priority",
        "dnt",
        "purpose",
        "x-client-data",
        "expect",
        "alt-used",
        "save-data",
        "http2-settings",
        "proxy-authorization",
    ];
    if oroshi_http1::is_connection_field(name) {
        return false;
    }
    let name = name.to_ascii_lowercase();
    let is_token =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte));
    if !is_token || NOT.contains(&&*name) || name.starts_with("sec-") || value.contains(['\r', '\n', '\0']) {
        return false;
    }
    match &*name {
        "accept" => value != "*/*" && !value.starts_with("text/html"),
        // Protection against forged requests looks at them, and at no others.
        "origin" | "referer" => {
            method != "GET" && method != "HEAD" && value.starts_with(base.as_str().trim_end_matches('/'))
        }
        _ => true,
    }
}
