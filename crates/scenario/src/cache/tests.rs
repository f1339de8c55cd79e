//! Tests of the cache: the rules of RFC 9111 with time as an argument, sharing, limits.

use proptest::prelude::*;

use super::*;

/// Sunday, 6 November 1994 08:49:37, when the monotonic clock of these tests is 0.
const UNIX_S: u64 = 784_111_777;
const DATE: (&str, &str) = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");

fn bodies() -> Bodies {
    Bodies::new(1 << 20, UNIX_S * SECOND)
}

fn url(target: &str) -> Endpoint {
    format!("http://a.org{target}").parse().unwrap()
}

fn fields(pairs: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in pairs {
        headers.append(name, value).unwrap();
    }
    headers
}

/// A user with a cache, who asks in a second what the test says.
struct User<'b> {
    cache: Cache,
    bodies: &'b mut Bodies,
}

impl<'b> User<'b> {
    fn new(bodies: &'b mut Bodies) -> Self {
        User { cache: Cache::default(), bodies }
    }

    fn look_up(&mut self, target: &str, request: &[(&str, &str)], second: u64) -> Found {
        let (url, headers) = (url(target), fields(request));
        self.cache.look_up(&Asked { method: "GET", url: &url, headers: &headers }, second * SECOND)
    }

    fn received(
        &mut self,
        request: (&str, &str, &[(&str, &str)]),
        status: u16,
        response: &[(&str, &str)],
        second: u64,
    ) {
        let (method, target, request) = request;
        let (url, request, response) = (url(target), fields(request), fields(response));
        let answered = Answered { status, headers: &response, sent: second * SECOND, done: second * SECOND };
        let asked = Asked { method, url: &url, headers: &request };
        self.cache.received(&asked, &answered, format!("body of {target}").as_bytes(), self.bodies);
    }

    fn got(&mut self, target: &str, response: &[(&str, &str)], second: u64) {
        self.received(("GET", target, &[]), 200, response, second);
    }

    fn validated(&mut self, target: &str, kept: &Kept, response: &[(&str, &str)], second: u64) -> Option<Kept> {
        let (url, request, response) = (url(target), Headers::new(), fields(response));
        let answered = Answered { status: 304, headers: &response, sent: second * SECOND, done: second * SECOND };
        self.cache.validated(&Asked { method: "GET", url: &url, headers: &request }, kept, &answered, self.bodies)
    }

    /// `fresh`, `stale` or `nothing`.
    fn state(&mut self, target: &str, second: u64) -> &'static str {
        name(&self.look_up(target, &[], second))
    }
}

fn name(found: &Found) -> &'static str {
    match found {
        Found::Nothing => "nothing",
        Found::Fresh(_) => "fresh",
        Found::Stale(_) => "stale",
    }
}

fn stale(found: Found) -> Kept {
    match found {
        Found::Stale(kept) => kept,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_empty_cache_is_a_pointer() {
    let mut bodies = bodies();
    let mut user = User::new(&mut bodies);
    assert_eq!(size_of::<Cache>(), size_of::<usize>());
    assert_eq!(user.state("/", 0), "nothing");
    user.got("/", &[("Cache-Control", "no-store, max-age=60")], 0);
    user.got("/", &[("Set-Cookie", "a=b")], 0);
    assert!(user.cache.0.is_none());
    user.got("/", &[("Cache-Control", "max-age=60")], 0);
    assert_eq!(user.state("/", 0), "fresh");
    user.received(("POST", "/", &[]), 200, &[], 1);
    assert!(user.cache.0.is_none() && user.bodies.bytes() == 0);
}

/// A response's fields, until which second it is fresh, and what it is then.
type Case<'c> = (&'c [(&'c str, &'c str)], u64, &'c str);

#[test]
fn freshness_is_as_the_server_says() {
    const TAG: (&str, &str) = ("ETag", "\"1\"");
    let cases: &[Case<'_>] = &[
        (&[("Cache-Control", "max-age=60")], 60, "nothing"),
        (&[("Cache-Control", "max-age=60"), TAG], 60, "stale"),
        (&[("cache-control", "public, MAX-AGE=\"60\""), TAG], 60, "stale"),
        (&[("Cache-Control", "private=\"a, max-age=9\", max-age=60"), TAG], 60, "stale"),
        (&[("Cache-Control", "s-maxage=60"), TAG], 0, "stale"),
        (&[("Cache-Control", "max-age=60, no-cache"), TAG], 0, "stale"),
        (&[("Cache-Control", "no-cache=\"Set-Cookie\", max-age=60"), TAG], 0, "stale"),
        (&[("Cache-Control", "max-age=60, must-revalidate"), TAG], 60, "stale"),
        (&[("Cache-Control", "max-age=60"), ("Cache-Control", "max-age=60"), TAG], 60, "stale"),
        (&[("Cache-Control", "max-age=60, max-age=10"), TAG], 0, "stale"),
        (&[("Cache-Control", "max-age=1.5"), TAG], 0, "stale"),
        (&[("Cache-Control", "max-age=-5"), TAG], 0, "stale"),
        (&[("Cache-Control", "max-age=99999999999999999999"), TAG], 1 << 31, "stale"),
        (&[("Cache-Control", "max-age=60"), ("Age", "50"), TAG], 10, "stale"),
        (&[("Cache-Control", "max-age=60"), ("Age", "50, 9"), TAG], 10, "stale"),
        (&[("Cache-Control", "max-age=60"), ("Age", "x"), TAG], 60, "stale"),
        (&[("Cache-Control", "max-age=60"), ("Date", "Sun, 06 Nov 1994 08:49:07 GMT")], 30, "nothing"),
        (&[("Cache-Control", "max-age=60"), ("Date", "Sun, 06 Nov 1994 09:49:07 GMT")], 60, "nothing"),
        (&[("Expires", "Sun, 06 Nov 1994 08:50:37 GMT"), DATE], 60, "nothing"),
        (&[("Expires", "Sun, 06 Nov 1994 08:50:37 GMT")], 60, "nothing"),
        (&[("Expires", "Sun, 06 Nov 1994 08:50:37 GMT"), ("Cache-Control", "max-age=9"), DATE], 9, "nothing"),
        (&[("Expires", "0"), TAG], 0, "stale"),
        (&[("Expires", "0"), DATE], 0, "nothing"),
        (&[("Last-Modified", "Sun, 06 Nov 1994 08:39:37 GMT"), DATE], 60, "stale"),
        (&[("Last-Modified", "Sun, 06 Nov 1904 08:39:37 GMT"), DATE], 86_400, "stale"),
        (&[("Last-Modified", "Sun, 06 Nov 2094 08:39:37 GMT"), DATE], 0, "stale"),
        (&[("Last-Modified", "Sun, 06 Nov 1994 08:39:37 GMT"), ("Expires", "0"), DATE], 0, "stale"),
        (&[TAG], 0, "stale"),
        (&[DATE], 0, "nothing"),
    ];
    for (response, until, then) in cases {
        let mut bodies = bodies();
        let mut user = User::new(&mut bodies);
        user.got("/", response, 0);
        if *until > 0 {
            assert_eq!(user.state("/", until - 1), "fresh", "{response:?}");
        }
        assert_eq!(user.state("/", *until), *then, "{response:?}");
    }
}

#[test]
fn a_status_decides_whether_to_guess_and_what_to_ask() {
    let modified = ("Last-Modified", "Sun, 06 Nov 1994 08:39:37 GMT");
    for (status, guessed, told) in [
        (200, "fresh", "fresh"),
        (404, "fresh", "fresh"),
        (301, "fresh", "fresh"),
        (302, "nothing", "fresh"),
        (403, "nothing", "fresh"),
        (206, "nothing", "nothing"),
        (304, "nothing", "nothing"),
        (500, "nothing", "nothing"),
        (501, "nothing", "nothing"), // a server's failure takes the place of nothing
    ] {
        let mut bodies = bodies();
        let mut user = User::new(&mut bodies);
        user.received(("GET", "/guess", &[]), status, &[modified, DATE], 0);
        user.received(("GET", "/told", &[]), status, &[("Cache-Control", "max-age=9"), modified, DATE], 0);
        assert_eq!((user.state("/guess", 1), user.state("/told", 1)), (guessed, told), "{status}");
        let then = if status == 200 { "stale" } else { "nothing" };
        assert_eq!(user.state("/told", 9), then, "{status}");
    }
    // "public" allows a guess.
    let mut bodies = bodies();
    let mut user = User::new(&mut bodies);
    user.received(("GET", "/", &[]), 302, &[("Cache-Control", "public"), modified, DATE], 0);
    assert_eq!(user.state("/", 1), "fresh");
}

#[test]
fn requests_have_wishes() {
    let mut bodies = bodies();
    let mut user = User::new(&mut bodies);
    user.got("/", &[("Cache-Control", "max-age=60"), ("ETag", "\"1\"")], 0);
    let cases: [(&[(&str, &str)], &str); 9] = [
        (&[], "fresh"),
        (&[("Cache-Control", "no-cache")], "stale"),
        (&[("Cache-Control", "max-age=0")], "stale"),
        (&[("Cache-Control", "max-age=20")], "fresh"),
        (&[("Pragma", "no-cache")], "stale"),
        (&[("Pragma", "no-cache"), ("Cache-Control", "max-age=20")], "fresh"),
        (&[("Cache-Control", "no-store")], "nothing"),
        (&[("range", "bytes=0-9")], "nothing"),
        (&[("if-none-match", "\"2\"")], "nothing"),
    ];
    for (request, expected) in cases {
        assert_eq!(name(&user.look_up("/", request, 20)), expected, "{request:?}");
    }
    let head = Asked { method: "HEAD", url: &url("/"), headers: &Headers::new() };
    assert_eq!(name(&user.cache.look_up(&head, 0)), "nothing");
    assert_eq!(user.state("/?", 0), "nothing");
    // A response to a request that passes by is not stored, and replaces nothing.
    user.received(("GET", "/", &[("Range", "bytes=0-")]), 200, &[("Cache-Control", "max-age=9")], 0);
    user.received(("HEAD", "/", &[]), 200, &[("Cache-Control", "no-store")], 0);
    assert_eq!(user.state("/", 59), "fresh");
    user.received(("GET", "/b", &[("Cache-Control", "no-store")]), 200, &[("Cache-Control", "max-age=9")], 0);
    assert_eq!(user.state("/b", 0), "nothing");
    // A failure of the server leaves what was stored; any other response replaces it.
    user.received(("GET", "/", &[]), 503, &[("Cache-Control", "max-age=9")], 0);
    assert_eq!(user.state("/", 59), "fresh");
    user.received(("GET", "/", &[]), 403, &[], 0);
    assert_eq!(user.state("/", 0), "nothing");
}

#[test]
fn what_was_validated_is_fresh_again() {
    let mut bodies = bodies();
    let mut user = User::new(&mut bodies);
    let modified = ("Last-Modified", "Sun, 06 Nov 1994 08:00:00 GMT");
    let first = [
        ("Cache-Control", "max-age=10"),
        ("ETag", "W/\"1\""),
        modified,
        ("Content-Type", "text/css"),
        ("Set-Cookie", "a=b"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("X-Old", "1"),
        DATE,
    ];
    user.got("/a.css", &first, 0);
    let kept = stale(user.look_up("/a.css", &[], 10));
    assert_eq!(
        kept.conditions().collect::<Vec<_>>(),
        [("If-None-Match", &b"W/\"1\""[..]), ("If-Modified-Since", modified.1.as_bytes())]
    );
    assert_eq!((kept.status(), kept.body().as_ref()), (200, &b"body of /a.css"[..]));
    for absent in ["Set-Cookie", "Date", "Connection", "X-Hop"] {
        assert!(!kept.headers().contains(absent), "{absent}");
    }
    let bytes = user.bodies.bytes();
    let new = [("Cache-Control", "max-age=10"), ("ETag", "\"1\""), ("Content-Length", "0"), ("Set-Cookie", "c=d")];
    let again = user.validated("/a.css", &kept, &new, 10).unwrap();
    assert_eq!((again.status(), again.body().as_ref()), (200, &b"body of /a.css"[..]));
    assert_eq!(again.body().as_ptr(), kept.body().as_ptr(), "not copied");
    assert_eq!(again.headers().get_str("Content-Type"), Some("text/css"));
    assert_eq!((again.headers().get_str("ETag"), again.headers().get_str("X-Old")), (Some("\"1\""), Some("1")));
    assert!(!again.headers().contains("Content-Length") && !again.headers().contains("Set-Cookie"));
    assert_eq!((user.state("/a.css", 19), user.state("/a.css", 20)), ("fresh", "stale"));

    // One that changes no field leaves the same response.
    drop(kept);
    let kept = stale(user.look_up("/a.css", &[], 20));
    let same = user.validated("/a.css", &kept, &[("ETag", "\"1\""), ("Cache-Control", "max-age=10")], 20).unwrap();
    assert!(Rc::ptr_eq(&same.stored, &kept.stored));
    drop((again, kept, same));
    // The first fields had a longer tag.
    assert_eq!(user.bodies.bytes(), bytes - 2);

    // About another response, or not to be stored any more.
    let kept = stale(user.look_up("/a.css", &[], 30));
    assert!(user.validated("/a.css", &kept, &[("ETag", "\"2\"")], 30).is_none());
    assert_eq!(user.state("/a.css", 30), "nothing");
    drop(kept);
    assert_eq!(user.bodies.bytes(), 0);
    user.got("/a.css", &first, 30);
    let kept = stale(user.look_up("/a.css", &[], 40));
    assert!(user.validated("/a.css", &kept, &[("Cache-Control", "no-store")], 40).is_some());
    assert_eq!(user.state("/a.css", 40), "nothing");
    drop(kept);
    assert_eq!(user.bodies.bytes(), 0);
}

#[test]
fn a_response_fits_requests_with_the_same_fields() {
    let mut bodies = bodies();
    let mut user = User::new(&mut bodies);
    let vary = |value| [("Cache-Control", "max-age=9"), ("Vary", value)];
    let german: &[(&str, &str)] = &[("Accept-Language", "de"), ("X-Other", "1")];
    let both: &[(&str, &str)] = &[("accept-language", "de"), ("Accept-Language", "fr")];
    for request in [german, both, &[]] {
        user.received(("GET", "/", request), 200, &vary("accept-language"), 0);
    }
    for (request, expected) in [
        (german, "fresh"),
        (both, "fresh"),
        (&[], "fresh"),
        (&[("Accept-Language", "de")], "fresh"),
        (&[("Accept-Language", "")], "nothing"),
        (&[("Accept-Language", "fr")], "nothing"),
    ] {
        assert_eq!(name(&user.look_up("/", request, 0)), expected, "{request:?}");
    }
    assert_eq!(user.cache.0.as_ref().unwrap().entries.len(), 3);
    // They differ by that alone, and share everything.
    let bytes = user.bodies.bytes();
    user.cache.clear();
    user.received(("GET", "/", german), 200, &vary("accept-language"), 0);
    assert_eq!(user.bodies.bytes(), bytes);

    user.received(("GET", "/star", &[]), 200, &vary("Accept, *"), 0);
    assert_eq!(user.state("/star", 0), "nothing");
    let long = "x".repeat(policy::VARY_BYTES);
    user.received(("GET", "/long", &[("Accept", &long)]), 200, &vary("Accept"), 0);
    assert_eq!(name(&user.look_up("/long", &[("Accept", &long)], 0)), "nothing");
    // All variants are forgotten together.
    user.received(("GET", "/", both), 200, &vary("accept-language"), 0);
    user.received(("PUT", "/", &[]), 204, &[], 0);
    assert!(user.cache.0.is_none());
}

#[test]
fn unsafe_requests_forget_what_they_change() {
    let mut bodies = bodies();
    let mut user = User::new(&mut bodies);
    let fill = |user: &mut User<'_>| {
        for target in ["/items", "/items/1", "/items/2", "/other"] {
            user.got(target, &[("Cache-Control", "max-age=60")], 0);
        }
    };
    let states = |user: &mut User<'_>| {
        ["/items", "/items/1", "/items/2", "/other"].map(|target| user.state(target, 0) == "fresh")
    };
    fill(&mut user);
    user.received(("POST", "/items", &[]), 422, &[("Location", "/other")], 0);
    assert_eq!(states(&mut user), [true; 4]);
    user.received(("POST", "/items", &[]), 303, &[("Location", "/items/1"), ("Content-Location", "items/2")], 0);
    assert_eq!(states(&mut user), [false, false, false, true]);
    fill(&mut user);
    user.received(("DELETE", "/items/1", &[]), 200, &[("Location", "http://b.org/items")], 0);
    assert_eq!(states(&mut user), [true, false, true, true]);
}

#[test]
fn users_share_what_is_the_same_and_nothing_else() {
    let mut bodies = bodies();
    let css = &[("Cache-Control", "max-age=60"), ("ETag", "\"1\""), DATE];
    let mut users: Vec<Cache> = Vec::new();
    let mut bytes = 0;
    for number in 0..1000 {
        let mut user = User::new(&mut bodies);
        user.got("/a.css", css, 0);
        if number == 0 {
            bytes = user.bodies.bytes();
        }
        users.push(user.cache);
    }
    assert_eq!(bodies.bytes(), bytes);
    // Other fields, the same body: the body is shared.
    let mut user = User::new(&mut bodies);
    user.got("/a.css", &[("Cache-Control", "max-age=60"), ("ETag", "\"1\""), ("X-Request-Id", "17")], 0);
    let more = user.bodies.bytes() - bytes;
    assert!(more < 256, "{more}");
    // The same tag for another body.
    let (url, headers, none) = (url("/a.css"), fields(css), Headers::new());
    let asked = Asked { method: "GET", url: &url, headers: &none };
    let answered = Answered { status: 200, headers: &headers, sent: 0, done: 0 };
    user.cache.received(&asked, &answered, b"body of /a.cSS", user.bodies);
    let Found::Fresh(kept) = user.look_up("/a.css", &[], 0) else { panic!("not stored") };
    assert_eq!(kept.body().as_ref(), b"body of /a.cSS");
    let other = users[0].look_up(&asked, 0);
    assert!(matches!(other, Found::Fresh(kept) if kept.body().as_ref() == b"body of /a.css"));
    drop((users, kept));
    user.cache.clear();
    assert_eq!(bodies.bytes(), 0);
}

#[test]
fn a_user_keeps_the_responses_used_last() {
    let mut bodies = bodies();
    let mut user = User::new(&mut bodies);
    for number in 0..RESPONSES + 50 {
        user.got(&format!("/{number}"), &[("Cache-Control", "max-age=60")], 0);
        assert_eq!(user.state("/0", 0), "fresh", "used all the time");
    }
    assert_eq!(user.cache.0.as_ref().unwrap().entries.len(), RESPONSES);
    assert_eq!((user.state("/50", 0), user.state("/51", 0)), ("nothing", "fresh"));
}

#[test]
fn a_thread_keeps_the_bodies_used_last() {
    const LIMIT: usize = 64 * 1024;
    let mut bodies = Bodies::new(LIMIT, UNIX_S * SECOND);
    let mut cache = Cache::default();
    let headers = fields(&[("Cache-Control", "max-age=60"), ("ETag", "\"1\"")]);
    let none = Headers::new();
    let answered = Answered { status: 200, headers: &headers, sent: 0, done: 0 };
    let urls: Vec<Endpoint> = (0..100).map(|number| url(&format!("/{number}"))).collect();
    let mut held = Vec::new();
    for url in &urls {
        let asked = Asked { method: "GET", url, headers: &none };
        cache.received(&asked, &answered, &[b'x'; 4000], &mut bodies);
        assert!(bodies.bytes() <= LIMIT, "{}", bodies.bytes());
        let first = Asked { method: "GET", url: &urls[0], headers: &none };
        let Found::Fresh(kept) = cache.look_up(&first, 0) else { panic!("the first gave way at {url}") };
        held.push(kept);
    }
    let fresh =
        |cache: &mut Cache, url| name(&cache.look_up(&Asked { method: "GET", url, headers: &none }, 0)) == "fresh";
    assert!(!fresh(&mut cache, &urls[50]) && fresh(&mut cache, &urls[99]));
    assert!(cache.0.as_ref().unwrap().entries.len() < 100, "what gave way is forgotten when it is looked for");
    // A stale one that gives way while the server is asked is still there for who asked.
    cache.clear();
    drop(held);
    assert_eq!(bodies.bytes(), 0);
    let no_cache = fields(&[("Cache-Control", "no-cache")]);
    let asked = Asked { method: "GET", url: &urls[0], headers: &no_cache };
    cache.received(&asked, &answered, b"first", &mut bodies);
    let kept = stale(cache.look_up(&asked, 0));
    let mut others = Cache::default();
    for url in &urls[1..] {
        others.received(&Asked { method: "GET", url, headers: &none }, &answered, &[b'x'; 4000], &mut bodies);
    }
    let again = cache.validated(&asked, &kept, &answered, &mut bodies).unwrap();
    assert_eq!(again.body().as_ref(), b"first");
    assert!(fresh(&mut cache, &urls[0]) && bodies.bytes() <= LIMIT);
    // One that would take more than its share is not stored.
    cache.received(&asked, &answered, &[b'x'; LIMIT / 8], &mut bodies);
    assert!(cache.0.is_none());
}

/// Caches come and go for as long as the run lasts: what they leave behind does not grow.
#[test]
fn nothing_is_left_of_users_who_went() {
    let mut bodies = bodies();
    for number in 0..5000 {
        let mut user = User::new(&mut bodies);
        user.got(&format!("/{number}"), &[("Cache-Control", "max-age=60")], 0);
    }
    assert_eq!(bodies.bytes(), 0);
    assert!(bodies.places() < 200, "{}", bodies.places());
}

proptest! {
    /// Whatever servers send: no panic, limits hold, and all bytes are given back.
    #[test]
    fn hostile_responses_cost_a_bounded_amount(
        steps in proptest::collection::vec(
            (
                (0usize..6, 0usize..4, 0usize..4),
                prop::sample::select(vec![200u16, 301, 304, 404, 503]),
                proptest::collection::vec(("[ -~]{0,30}", 0usize..8), 0..4),
                0u64..100_000,
                0usize..3000,
            ),
            0..60,
        ),
    ) {
        const NAMES: [&str; 8] =
            ["Cache-Control", "Age", "Date", "Expires", "Vary", "ETag", "Last-Modified", "Connection"];
        const CONTROLS: [&str; 4] = ["max-age=100", "no-cache", "public", "max-age=\"5"];
        let mut bodies = Bodies::new(16 * 1024, u64::MAX - 5);
        let mut caches = [Cache::default(), Cache::default()];
        for ((target, control, who), status, random, second, length) in steps {
            let mut response = Headers::new();
            response.append("Cache-Control", CONTROLS[control]).unwrap();
            for (value, name) in random {
                response.append(NAMES[name], value).unwrap();
            }
            let (url, none) = (url(&format!("/{target}")), Headers::new());
            let asked = Asked { method: if who == 3 { "POST" } else { "GET" }, url: &url, headers: &none };
            let now = second.saturating_mul(SECOND * 1_000);
            let answered = Answered { status, headers: &response, sent: now / 2, done: now };
            let cache = &mut caches[who % 2];
            let found = cache.look_up(&asked, now);
            match found {
                Found::Stale(kept) if status == 304 => {
                    if let Some(kept) = cache.validated(&asked, &kept, &answered, &mut bodies) {
                        prop_assert_ne!(kept.status(), 304);
                    }
                }
                Found::Fresh(kept) => prop_assert!(kept.body().iter().all(|&byte| byte == b'x')),
                _ => cache.received(&asked, &answered, &vec![b'x'; length], &mut bodies),
            }
            prop_assert!(bodies.bytes() <= 16 * 1024);
        }
        drop(caches);
        prop_assert_eq!(bodies.bytes(), 0);
    }
}
