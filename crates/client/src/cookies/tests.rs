//! Tests of the jar: the rules of RFC 6265, the limits, and cookie_store's own store as the reference.

use cookie_store::CookieStore;
use proptest::prelude::*;

use super::*;

fn url(text: &str) -> Endpoint {
    text.parse().unwrap()
}

fn store(jar: &mut Jar, from: &str, fields: &[&str]) {
    jar.store(&url(from), fields.iter().map(|field| field.as_bytes()));
}

fn header(jar: &mut Jar, to: &str) -> String {
    jar.header(&url(to)).unwrap_or_default().to_owned()
}

#[test]
fn a_jar_without_cookies_is_a_pointer() {
    let mut jar = Jar::default();
    assert_eq!(size_of::<Jar>(), size_of::<usize>());
    store(&mut jar, "http://a/", &[]);
    store(&mut jar, "http://a/", &["gone=1; Max-Age=0", "", "=", "a\tb=c\0d", "x=1; Domain=other.org"]);
    assert!(jar.0.is_none() && jar.header(&url("http://a/")).is_none() && jar.get(&url("http://a/"), "x").is_none());
    store(&mut jar, "http://a/", &["a=1"]);
    store(&mut jar, "http://a/", &["a=; Max-Age=-5"]);
    assert!(jar.0.is_none(), "the last cookie is gone");
}

#[test]
fn hosts_paths_and_schemes_decide() {
    let mut jar = Jar::default();
    let fields = ["host=1", "all=2; Domain=example.org; Path=/", "deep=3; Path=/shop", "safe=4; Secure", "q=\"5\""];
    store(&mut jar, "http://www.example.org:8080/a/b", &fields);
    for (to, expected) in [
        ("http://www.example.org/a/", "host=1; q=\"5\"; all=2"),
        ("https://www.example.org:444/a/c?x", "host=1; safe=4; q=\"5\"; all=2"),
        ("http://www.example.org/shop/cart", "deep=3; all=2"),
        ("http://www.example.org/shop?x=/a/", "deep=3; all=2"),
        ("http://www.example.org/shopping", "all=2"),
        ("http://other.example.org/a/", "all=2"),
        ("http://notexample.org/a/", ""),
        ("http://org/", ""),
    ] {
        // Twice: the second time from memory.
        for _ in 0..2 {
            let sent = header(&mut jar, to);
            let set = |text: &str| text.split("; ").map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
            assert_eq!(set(&sent), set(expected), "{to}");
        }
    }
    // "/a" and "/shop" go before "/".
    assert!(header(&mut jar, "http://www.example.org/shop").starts_with("deep=3; "));
}

#[test]
fn addresses_and_sockets_are_hosts_too() {
    for (from, to, is_sent) in [
        ("http://127.0.0.1:1/", "http://127.0.0.1:2/", true),
        ("http://127.0.0.1:1/", "http://127.0.0.2:1/", false),
        ("http://LocalHost/", "http://localhost:1/", true),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/", true),
        ("https://a_b.example/", "https://a_b.example/", true),
        ("http://[::1]:1/", "http://[0:0::1]/", true),
        ("unix:/run/a.sock", "unix:/run/b.sock:/c", true),
        ("unix:/run/a.sock", "http://localhost/", true),
        ("unix:/run/a.sock", "http://a/", false),
    ] {
        let mut jar = Jar::default();
        store(&mut jar, from, &["a=b; Secure"]);
        assert_eq!(!header(&mut jar, to).is_empty(), is_sent, "{from} {to}");
    }
    let mut jar = Jar::default();
    store(&mut jar, "http://127.0.0.1/", &["a=b; Domain=0.0.1"]);
    assert_eq!(header(&mut jar, "http://127.0.0.1/"), "");
}

#[test]
fn a_cookie_keeps_its_place_and_loses_its_value() {
    let mut jar = Jar::default();
    store(&mut jar, "http://a/", &["a=1", "b=2", "c=3; Path=/"]);
    assert_eq!(header(&mut jar, "http://a/x?y"), "a=1; b=2; c=3");
    store(&mut jar, "http://a/", &["a=4", "b=; Max-Age=0"]);
    assert_eq!(header(&mut jar, "http://a/x"), "a=4; c=3");
    store(&mut jar, "http://a/", &["c=3; Expires=Thu, 01 Jan 1970 00:00:00 GMT"]);
    assert_eq!(header(&mut jar, "http://a/x"), "a=4");
    jar.clear();
    assert_eq!(header(&mut jar, "http://a/x"), "");
}

#[test]
fn a_cookie_expires_although_its_field_is_remembered() {
    let mut jar = Jar::default();
    let fields = [&b"short=1; Max-Age=5"[..], b"long=2; Max-Age=99999999999999999999; Path=/", b"mine=3"];
    jar.store_at(&url("http://a/"), fields, 1_000);
    let cookies = jar.0.as_mut().unwrap();
    for (now, expected) in [
        (1_000, "short=1; long=2; mine=3"),
        (5_999, "short=1; long=2; mine=3"),
        (6_000, "long=2; mine=3"),
        (i64::MAX - 2, "long=2; mine=3"),
    ] {
        assert_eq!(cookies.header(&url("http://a/"), now), Some(expected), "{now}");
    }
    assert_eq!(jar.get(&url("http://a/"), "short"), None, "it expired in 1970");
}

#[test]
fn scripts_read_and_write_cookies() {
    let mut jar = Jar::default();
    let here = url("http://a.org/x");
    jar.set(&here, "a", "1").unwrap();
    assert_eq!((jar.get(&here, "a"), jar.get(&here, "b")), (Some("1"), None));
    assert_eq!(header(&mut jar, "http://a.org:81/other"), "a=1");
    assert_eq!(header(&mut jar, "http://b.org/"), "");
    // A cookie of the server keeps its attributes.
    store(&mut jar, "http://a.org/", &["b=2; Domain=a.org; HttpOnly", "far=3; Path=/far"]);
    jar.set(&here, "b", "=4 ä").unwrap();
    assert_eq!(header(&mut jar, "http://www.a.org/"), "b==4 ä");
    assert_eq!((jar.get(&here, "b"), jar.get(&here, "far")), (Some("=4 ä"), Some("3")));
    for (name, value) in [("", "1"), ("a b", "1"), ("a=", "1"), ("a", "1;2"), ("a", "1\r\nX: 2"), ("a\n", "1")] {
        let error = jar.set(&here, name, value).unwrap_err();
        assert!(!error.contains('\n'), "{error}");
    }
    assert!(jar.set(&here, "a", &"x".repeat(COOKIE_BYTES)).is_err());
    assert_eq!(jar.get(&here, "a"), Some("1"));
}

#[test]
fn limits_hold_and_the_oldest_give_way() {
    let mut jar = Jar::default();
    let long = format!("long={}", "x".repeat(COOKIE_BYTES));
    store(&mut jar, "http://a/", &[&long]);
    assert!(jar.0.is_none());

    let many: Vec<String> = (0..SET_COOKIES + 1).map(|number| format!("c{number}=1; Path=/")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    store(&mut jar, "http://a/", &many);
    let sent = header(&mut jar, "http://a/");
    assert_eq!(sent.split("; ").count(), COOKIES_PER_HOST);
    assert!(sent.starts_with("c14=1; ") && sent.ends_with("c63=1"), "{sent}");

    // One that expired goes before an older one.
    let mut jar = Jar::default();
    let now = now_ms();
    let fields: Vec<String> = (0..50).map(|number| format!("c{number}=1; Max-Age={}", 100 - number)).collect();
    jar.store_at(&url("http://a/"), fields.iter().map(String::as_bytes), now - 51_500);
    store(&mut jar, "http://a/", &["new=1"]);
    let sent = header(&mut jar, "http://a/");
    assert!(sent.starts_with("c0=1; ") && sent.contains("c48=1; new=1") && !sent.contains("c49"), "{sent}");

    let mut jar = Jar::default();
    for host in 0..5 {
        store(&mut jar, &format!("http://h{host}/"), &many[..50]);
    }
    assert_eq!(jar.0.as_ref().unwrap().kept.len(), COOKIES);
    assert_eq!(header(&mut jar, "http://h0/"), "");
    assert_eq!(header(&mut jar, "http://h4/").split("; ").count(), 50);

    let mut jar = Jar::default();
    for number in 0..40 {
        store(&mut jar, "http://a/", &[&format!("c{number}={}", "x".repeat(4000))]);
    }
    let cookies = jar.0.as_ref().unwrap();
    assert!(cookies.bytes <= JAR_BYTES && cookies.kept.len() == 16, "{} {}", cookies.bytes, cookies.kept.len());
    assert!(cookies.kept.last().unwrap().name() == "c39");
}

/// Servers send the session's cookie with each response: only a change costs anything.
#[test]
fn the_same_cookie_again_changes_nothing() {
    let mut jar = Jar::default();
    let remembered = |jar: &Jar| jar.0.as_ref().unwrap().remembered.len();
    for now in [1_000, 2_000] {
        jar.store_at(&url("http://a/"), [&b"a=1; Max-Age=5"[..]], now);
        let cookies = jar.0.as_mut().unwrap();
        assert_eq!(cookies.header(&url("http://a/"), now), Some("a=1"));
        jar.store_at(&url("http://a/"), [&b"a=1; Max-Age=6"[..]], now);
        assert_eq!(remembered(&jar), 1);
    }
    // It lives as long as its last Max-Age says, not as long as its first.
    assert_eq!(jar.0.as_mut().unwrap().header(&url("http://a/"), 7_999), Some("a=1"));
    assert_eq!(jar.0.as_mut().unwrap().header(&url("http://a/"), 8_000), None);
    for other in [&b"a=2; Max-Age=6"[..], b"a=2; Max-Age=5", b"a=2; Max-Age=5; Secure"] {
        jar.0.as_mut().unwrap().header(&url("http://a/"), 2_000);
        jar.store_at(&url("http://a/"), [other], 2_000);
        assert_eq!(remembered(&jar), 0);
    }
}

/// The remembered fields are few, however many paths a user visits.
#[test]
fn few_fields_are_remembered() {
    let mut jar = Jar::default();
    store(&mut jar, "http://a/", &["a=1; Path=/p", "b=2"]);
    for number in 0..100 {
        assert_eq!(header(&mut jar, &format!("http://a/p/{number}")), "a=1; b=2");
        assert_eq!(header(&mut jar, &format!("http://a/{number}")), "b=2");
    }
    assert_eq!(jar.0.as_ref().unwrap().remembered.len(), REMEMBERED);
}

/// Returns what cookie_store's own store would send, sorted: it keeps no order, and has no limits.
fn reference(store: &CookieStore, to: &str) -> Vec<String> {
    let mut sent: Vec<String> =
        store.get_request_values(&Url::parse(to).unwrap()).map(|(name, value)| format!("{name}={value}")).collect();
    sent.sort();
    sent
}

const HOSTS: [&str; 5] = ["a.org", "www.a.org", "b.org", "127.0.0.1", "localhost"];
const PATHS: [&str; 6] = ["/", "/a", "/a/", "/a/b", "/ab", "/a/b/c?q=/a"];
const DOMAINS: [&str; 6] =
    ["", "; Domain=a.org", "; Domain=.WWW.a.org", "; Domain=org", "; Domain=", "; domain=127.0.0.1"];
const AT: [&str; 6] = ["", "; Path=/", "; Path=/a", "; path=/a/", "; Path=a", "; Path=/a/b"];
const REST: [&str; 5] = ["", "; Secure", "; HttpOnly; SameSite=Lax", "; Max-Age=0", "; Max-Age=1000"];

proptest! {
    #[test]
    fn the_jar_sends_what_the_reference_sends(
        steps in proptest::collection::vec(
            (0usize..2, 0usize..5, 0usize..6, (0u8..4, 0u8..3), (0usize..6, 0usize..6, 0usize..5)), 1..30),
    ) {
        let (mut jar, mut store) = (Jar::default(), CookieStore::default());
        for (scheme, host, path, (name, value), (domain, at, rest)) in steps {
            let from = format!("{}://{}{}", ["http", "https"][scheme], HOSTS[host], PATHS[path]);
            let field = format!("n{name}=v{value}{}{}{}", DOMAINS[domain], AT[at], REST[rest]);
            jar.store(&url(&from), [field.as_bytes()]);
            let _ = store.parse(&field, &Url::parse(&from).unwrap());
            for to in HOSTS.iter().flat_map(|host| PATHS.iter().map(move |path| format!("http://{host}{path}"))) {
                let sent = header(&mut jar, &to);
                let mut sent: Vec<&str> = sent.split("; ").filter(|pair| !pair.is_empty()).collect();
                sent.sort_unstable();
                prop_assert_eq!(sent, reference(&store, &to), "{} after {} from {}", to, field, from);
            }
        }
    }

    #[test]
    fn whatever_a_server_sets_can_be_sent_and_is_bounded(
        fields in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..80),
        texts in proptest::collection::vec("[ -~ä]{0,40}", 0..40),
    ) {
        let mut jar = Jar::default();
        let here = url("http://a.org/x/y");
        jar.store(&here, fields.iter().map(Vec::as_slice));
        for text in &texts {
            jar.store(&here, [format!("n={text}").as_bytes(), text.as_bytes()]);
        }
        if let Some(value) = jar.header(&here) {
            prop_assert!(!value.chars().any(|letter| letter.is_ascii_control()));
            let mut headers = crate::Headers::new();
            prop_assert!(headers.append("Cookie", value).is_ok());
        }
        prop_assert!(jar.0.is_none_or(|cookies| cookies.kept.len() <= COOKIES_PER_HOST));
    }
}
