//! What goes to the server behind, field by field.

use oroshi_http1::{Limits, RequestDecoder, RequestEvent};
use proptest::prelude::*;

use super::*;
use crate::forward::Settings;

/// The head that a request becomes, from a peer at this address.
fn written_with(request: &str, from: &str, settings: Settings, target: Option<&str>, id: Option<&str>) -> String {
    written_of_trace(request, from, settings, target, id, None)
}

fn written_of_trace(
    request: &str,
    from: &str,
    settings: Settings,
    target: Option<&str>,
    id: Option<&str>,
    trace: Option<&TraceParent>,
) -> String {
    let rules = Rules::new(settings).unwrap();
    let mut decoder = RequestDecoder::default();
    let mut input = request.as_bytes();
    let Ok(Some(RequestEvent::Head(head))) = decoder.decode(&Limits::default(), &mut input) else {
        panic!("{request}")
    };
    let edits = Edits::none();
    let request = Request {
        head: &head,
        target,
        peer: Peer { address: from.parse().ok(), port: Some(8080), is_tls: false },
        client: None,
        rules: &rules,
        edits: &edits,
        authority: "behind:81",
        upgrade: crate::forward::fields::is_websocket(head.upgrade) && rules.settings.upgrade,
        expect: true,
        id,
        trace,
        is_http2: false,
    };
    let mut out = Vec::new();
    request.write(&mut out);
    // Whatever is written must read as one request that ends where its head does.
    let mut again = &out[..];
    let read = RequestDecoder::default().decode(&Limits::default(), &mut again);
    assert!(matches!(read, Ok(Some(RequestEvent::Head(_)))) && again.is_empty(), "{}", out.escape_ascii());
    String::from_utf8(out).unwrap()
}

fn written(request: &str, from: &str, settings: Settings) -> String {
    written_with(request, from, settings, None, None)
}

/// Settings under which nothing is said of where a request comes from.
fn silent() -> Settings {
    let mut settings = Settings::default();
    settings.forwarding.x_forwarded = false;
    settings
}

fn trusting() -> Forwarding {
    Forwarding { trusted: vec!["10.0.0.0/8".parse().unwrap()], ..Forwarding::default() }
}

/// The request line and the Host that follows it.
fn first_lines(request: &str, settings: Settings, target: Option<&str>) -> (String, String) {
    let out = written_with(request, "1.2.3.4", settings, target, None);
    let mut lines = out.split("\r\n");
    (lines.next().unwrap().to_owned(), lines.next().unwrap().to_owned())
}

/// Frameworks believe them as they believe `X-Forwarded-Proto`.
#[test]
fn fields_that_say_where_a_request_comes_from_pass_only_from_trusted_peers() {
    for name in [
        "Front-End-Https",
        "True-Client-IP",
        "X-Client-IP",
        "X-Cluster-Client-IP",
        "X-Forwarded-Prefix",
        "X-Forwarded-Scheme",
        "X-Forwarded-Server",
        "X-Forwarded-Ssl",
        "X-Original-Host",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-Url-Scheme",
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: on\r\n\r\n");
        let settings = || Settings { forwarding: trusting(), ..Settings::default() };
        let line = format!("{name}: on\r\n");
        assert!(!written(&request, "1.2.3.4", settings()).contains(&line), "{name}");
        assert!(written(&request, "10.2.3.4", settings()).contains(&line), "{name}");
        assert!(is_left_out_of_trailers(name), "{name}");
    }
}

#[test]
fn a_received_trace_passes_on_and_a_new_one_takes_its_place() {
    let received = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nTraceparent: {received}\r\nTracestate: a=1\r\n\r\n");
    let lines = format!("Traceparent: {received}\r\n");
    let theirs = TraceParent::received(oroshi_http1::Headers::from_checked_lines(lines.as_bytes())).unwrap();
    let out = |trace| written_of_trace(&request, "1.2.3.4", silent(), None, None, trace);
    for trace in [None, Some(&theirs)] {
        assert!(out(trace).contains(&format!("\r\nTraceparent: {received}\r\nTracestate: a=1\r\n")), "{}", out(trace));
        assert_eq!(out(trace).to_ascii_lowercase().matches("traceparent").count(), 1);
    }
    let new = TraceParent::new();
    let begun = out(Some(&new));
    assert!(begun.contains(&format!("\r\ntraceparent: {}\r\n", new.as_str())), "{begun}");
    assert!(!begun.contains("Tracestate") && !begun.contains(received), "{begun}");
}

#[test]
fn what_belongs_to_one_connection_stays_there() {
    let out = written(
        "GET / HTTP/1.1\r\nAccept: */*\r\nConnection: keep-alive, X-Hop ,x-other\r\nKeep-Alive: 5\r\nX-Hop: 1\r\n\
         X-OTHER: 2\r\n\
         Proxy-Connection: x\r\nTE: gzip\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nProxy-Authorization: x\r\n\
         Proxy: evil\r\n\
         Host: a\r\nX-End:  1 \r\n\r\n",
        "1.2.3.4",
        silent(),
    );
    assert_eq!(out, "GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nX-End:  1 \r\n\r\n");
}

#[test]
fn connection_cannot_take_away_what_the_gateway_or_its_servers_go_by() {
    let out = written(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Forwarded-For, X-Forwarded-Proto, Host, Cookie, \
         Authorization\r\n\
         Cookie: c\r\nAuthorization: d\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n",
        "10.0.0.1",
        Settings { forwarding: trusting(), ..Settings::default() },
    );
    assert_eq!(
        out,
        "GET / HTTP/1.1\r\nHost: a\r\nCookie: c\r\nAuthorization: d\r\nX-Forwarded-For: 9.9.9.9, 10.0.0.1\r\n\
         X-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\n\r\n"
    );
}

#[test]
fn trailers_are_asked_for_on_this_connection_again() {
    let out = written("GET / HTTP/1.1\r\nHost: a\r\nTE: gzip, trailers;q=1\r\nConnection: TE\r\n\r\n", "::1", silent());
    assert_eq!(out, "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n");
}

#[test]
fn upgrades_are_asked_for_where_the_route_allows_it() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    assert_eq!(
        written(request, "::1", silent()),
        "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
    );
    assert_eq!(written(request, "::1", Settings { upgrade: false, ..silent() }), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
}

#[test]
fn framing_is_written_anew() {
    for (framing, written_so) in [
        ("content-length:   007\r\n", "Content-Length: 7\r\n"),
        ("TRANSFER-ENCODING: Chunked\r\n", "Transfer-Encoding: chunked\r\n"),
        ("Content-Length: 0\r\n", "Content-Length: 0\r\n"),
        ("", ""),
    ] {
        let out = written(&format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n"), "::1", silent());
        assert_eq!(out, format!("POST / HTTP/1.1\r\nHost: a\r\n{written_so}\r\n"));
    }
}

#[test]
fn expectations_go_on_where_they_mean_something() {
    let with = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
    assert!(written(with, "::1", silent()).contains("\r\nExpect: 100-continue\r\n"));
    for without in [
        "POST / HTTP/1.0\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
    ] {
        assert!(!written(without, "::1", silent()).contains("Expect"), "{without}");
    }
}

#[test]
fn nobody_untrusted_says_where_a_request_comes_from() {
    let claims = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 9.9.9.9\r\nx-forwarded-PROTO: https\r\n\
        X-Forwarded-Host: evil\r\n\
                  X-Forwarded-Port: 1\r\nX-Real-IP: 9.9.9.9\r\nForwarded: for=9.9.9.9\r\nX-Other: 1\r\n\r\n";
    assert_eq!(written(claims, "1.2.3.4", silent()), "GET / HTTP/1.1\r\nHost: a\r\nX-Other: 1\r\n\r\n");
    let all = Forwarding { x_forwarded_port: true, x_real_ip: true, forwarded: true, ..trusting() };
    let settings = Settings { forwarding: all, ..Settings::default() };
    assert_eq!(
        written(claims, "1.2.3.4", settings.clone()),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Other: 1\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: http\r\n\
         X-Forwarded-Host: a\r\nX-Forwarded-Port: 8080\r\nX-Real-IP: 1.2.3.4\r\n\
         Forwarded: for=1.2.3.4;proto=http;host=\"a\"\r\n\r\n"
    );
    // Whoever is trusted is believed, and appended to.
    assert_eq!(
        written(claims, "10.0.0.1", settings.clone()),
        "GET / HTTP/1.1\r\nHost: a\r\nx-forwarded-PROTO: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\n\
         X-Real-IP: 9.9.9.9\r\nX-Other: 1\r\nX-Forwarded-For: 9.9.9.9, 10.0.0.1\r\n\
         Forwarded: for=9.9.9.9, for=10.0.0.1;proto=http;host=\"a\"\r\n\r\n"
    );
    // An IPv4 address inside an IPv6 one is the IPv4 one.
    assert!(written(claims, "::ffff:10.0.0.1", settings.clone()).contains("9.9.9.9, 10.0.0.1\r\n"));
    assert!(written(claims, "2001:db8::1", settings).contains("for=\"[2001:db8::1]\";"));
}

#[test]
fn several_lines_of_a_trusted_peer_become_one_list() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1, 2.2.2.2\r\nX-Forwarded-For:\r\n\
        X-Forwarded-For: 3.3.3.3\r\n\r\n";
    let settings = Settings { forwarding: trusting(), ..Settings::default() };
    assert!(
        written(request, "10.0.0.1", settings).contains("\r\nX-Forwarded-For: 1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.1\r\n")
    );
}

#[test]
fn clients_on_unix_sockets_have_no_address() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n";
    assert!(!written(request, "", Settings::default()).contains("X-Forwarded-For"));
    let forwarding = Forwarding { trust_unix: true, ..Forwarding::default() };
    let settings = Settings { forwarding, ..Settings::default() };
    assert!(written(request, "", settings).contains("\r\nX-Forwarded-For: 9.9.9.9\r\n"));
}

#[test]
fn ids_and_edits_and_via() {
    let mut request = Edits::none();
    request.set("X-Set", b"new").unwrap().remove("X-Gone").unwrap().add("X-Add", b"2").unwrap();
    request.set("X-Forwarded-For", b"hidden").unwrap();
    let settings = Settings { request, via: "gate".to_owned(), ..Settings::default() };
    let text = "GET / HTTP/1.0\r\nHost: a\r\nX-Request-Id: theirs\r\nX-Set: old\r\nX-Gone: 1\r\nX-Add: 1\r\n\
        Via: 1.1 x\r\n\r\n";
    assert_eq!(
        written_with(text, "1.2.3.4", settings, None, Some("ours")),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Add: 1\r\nVia: 1.1 x\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\n\
         X-Request-Id: ours\r\nVia: 1.0 gate\r\nX-Set: new\r\nX-Add: 2\r\nX-Forwarded-For: hidden\r\n\r\n"
    );
    assert!(written(text, "1.2.3.4", silent()).contains("X-Request-Id: theirs"));
}

#[test]
fn hosts_are_kept_or_replaced() {
    let host = |policy: HostPolicy, request: &str| first_lines(request, Settings { host: policy, ..silent() }, None).1;
    let request = "GET / HTTP/1.1\r\nHost: Example.org:80\r\n\r\n";
    assert_eq!(host(HostPolicy::Preserve, request), "Host: Example.org:80");
    assert_eq!(host(HostPolicy::Target, request), "Host: behind:81");
    assert_eq!(host(HostPolicy::Fixed("x".to_owned()), request), "Host: x");
    assert_eq!(host(HostPolicy::Preserve, "GET / HTTP/1.0\r\n\r\n"), "Host: behind:81");
}

#[test]
fn targets_become_paths_and_prefixes_change() {
    let line = |strip: &str, add: &str, target: &str| {
        let settings = Settings { strip_prefix: strip.to_owned(), add_prefix: add.to_owned(), ..silent() };
        let method = if target == "*" { "OPTIONS" } else { "GET" };
        let (line, _) = first_lines(&format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n"), settings, None);
        line.split(' ').nth(1).unwrap().to_owned()
    };
    for (strip, add, target, written) in [
        ("", "", "/x?y", "/x?y"),
        ("", "", "http://a", "/"),
        ("", "", "http://a?x=http://b/", "/?x=http://b/"),
        ("", "", "http://a/x", "/x"),
        ("", "", "*", "*"),
        ("/api", "", "/api/x", "/x"),
        ("/api", "", "/api", "/"),
        ("/api", "", "/api?x", "/?x"),
        ("/api", "", "/apix", "/apix"),
        ("/api/", "", "/api/x", "/x"),
        ("", "/v1", "/x", "/v1/x"),
        ("/api", "/v1", "/api", "/v1"),
        ("/api", "/v1", "/api?x", "/v1?x"),
        ("/api", "/v1/", "http://a/api/x", "/v1/x"),
        // As routes read it.
        ("/api", "/v1", "/%61pi/x%2Fy?/api", "/v1/x%2Fy?/api"),
        ("/é/b", "", "/%c3%A9/%62/%é", "/%é"),
        ("/é", "", "/%c3", "/%c3"),
        ("/api", "", "/%6", "/%6"),
        ("/api", "", "/%61pix/y", "/%61pix/y"),
        ("/api", "", "/../api", "/../api"),
    ] {
        assert_eq!(line(strip, add, target), written, "{strip} {add} {target}");
    }
    let (line, _) = first_lines("OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n", silent(), None);
    assert_eq!(line, "OPTIONS * HTTP/1.1");
    let (line, _) = first_lines("GET /x HTTP/1.1\r\nHost: a\r\n\r\n", silent(), Some("/other?y"));
    assert_eq!(line, "GET /other?y HTTP/1.1");
}

#[test]
fn addresses_are_spelled_as_usual() {
    for address in ["0.0.0.0", "1.20.100.255", "10.9.99.199", "2001:db8::1"] {
        let mut out = Vec::new();
        write_address(&mut out, address.parse().unwrap());
        assert_eq!(out, address.as_bytes());
    }
}

/// Names that mean something to the gateway, and some that do not; in any case.
fn name() -> impl Strategy<Value = String> {
    const KNOWN: [&str; 20] = [
        "Connection",
        "Keep-Alive",
        "TE",
        "Upgrade",
        "Proxy-Connection",
        "Proxy",
        "Proxy-Authorization",
        "X-Forwarded-For",
        "X-Forwarded-Proto",
        "X-Forwarded-Host",
        "X-Forwarded-Port",
        "X-Real-IP",
        "Forwarded",
        "X-Request-Id",
        "Via",
        "Cookie",
        "X-Hop",
        "X-Other",
        "Accept",
        "HTTP2-Settings",
    ];
    (proptest::sample::select(&KNOWN[..]), any::<u32>()).prop_map(|(name, upper)| {
        let flip = |(place, letter): (usize, char)| match upper >> (place % 32) & 1 {
            0 => letter.to_ascii_lowercase(),
            _ => letter.to_ascii_uppercase(),
        };
        name.chars().enumerate().map(flip).collect()
    })
}

proptest! {
    /// For any request of an untrusted client, the new head reads as the same request, has no fields of the client's
    /// connection, and only the gateway's claims about the origin.
    #[test]
    fn whatever_comes_in_only_the_gateway_speaks_for_its_connection(
        fields in proptest::collection::vec((name(), "[ -~]{0,12}"), 0..12),
        named in proptest::collection::vec(name(), 0..3),
        length in proptest::option::of(0..1000_u32),
    ) {
        let mut text = "POST /x HTTP/1.1\r\nHost: a\r\n".to_owned();
        for (name, value) in &fields {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("Connection: {}\r\n", named.join(","));
        text += &length.map(|length| format!("Content-Length: {length}\r\n")).unwrap_or_default();
        text += "\r\n";
        let out = written(&text, "1.2.3.4", Settings::default());
        let mut input = out.as_bytes();
        let Ok(Some(RequestEvent::Head(head))) = RequestDecoder::default().decode(&Limits::default(), &mut input) else {
            panic!("{out}")
        };
        prop_assert_eq!((head.method, head.target, head.host), ("POST", "/x", Some(&b"a"[..])));
        prop_assert_eq!(head.framing, length.map_or(Framing::None, |length| Framing::Length(length.into())));
        for gone in [
            "keep-alive", "proxy-connection", "proxy", "proxy-authorization", "http2-settings", "x-real-ip",
            "forwarded",
        ] {
            prop_assert!(head.headers.get(gone).is_none(), "{}", out);
        }
        for (own, value) in [("x-forwarded-for", "1.2.3.4"), ("x-forwarded-proto", "http"), ("x-forwarded-host", "a")] {
            prop_assert_eq!(head.headers.get_all(own).collect::<Vec<_>>(), [value.as_bytes()]);
        }
        let connection: Vec<&[u8]> = head.headers.get_all("connection").collect();
        let own = [&b"upgrade"[..], b"TE", b"upgrade, TE"];
        prop_assert!(connection.iter().all(|value| own.contains(value)), "{}", out);
        if named.iter().any(|name| name.eq_ignore_ascii_case("x-hop")) {
            prop_assert!(head.headers.get("x-hop").is_none(), "{}", out);
        }
        // What belongs to nobody's connection is there as often as it came.
        let accepts = |name: &str| name.eq_ignore_ascii_case("cookie");
        let cookies = fields.iter().filter(|(name, _)| accepts(name)).count();
        prop_assert_eq!(head.headers.get_all("cookie").count(), cookies);
    }
}

#[test]
fn a_path_cannot_lead_out_of_the_prefix_that_it_is_given() {
    let rules = |strip: &str, add: &str| {
        Rules::new(Settings { strip_prefix: strip.to_owned(), add_prefix: add.to_owned(), ..Settings::default() })
            .unwrap()
    };
    let both = rules("/api", "/tenant");
    for path in
        ["/api/../x", "/api/..", "/api/%2e%2e/x", "/%61pi/x/../../y", "/api/..;/x", "/api/..%20/x", "/api\\..\\x"]
    {
        assert_eq!(leads_out(&both, path), path != "/api\\..\\x", "{path}");
        assert!(!leads_out(&rules("", "/tenant"), path) && !leads_out(&rules("/api", ""), path), "{path}");
    }
    for path in ["/api", "/api/", "/api/x/../y", "/x", "/apix/../y", "/api/...", "/api/x/..", "*", ""] {
        assert!(!leads_out(&both, path), "{path}");
    }
}

#[test]
fn clients_cannot_forge_certificates() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nx-CLIENT-certificate-subject: CN=root\r\n\
                   X-Client-Certificate-Fingerprint: 0\r\n\
                   Client-Cert: :AA==:\r\nclient-cert-chain: :AA==:\r\nX-End: 1\r\n\r\n";
    let settings = || Settings { forwarding: trusting(), ..silent() };
    let out = written(request, "1.2.3.4", settings());
    assert!(!out.to_ascii_lowercase().contains("cert") && out.contains("X-End: 1\r\n"), "{out}");
    // A trusted proxy in front may have the certificate, which RFC 9440 has fields for; ours are this gateway's alone.
    let out = written(request, "10.1.2.3", settings());
    assert!(out.contains("\r\nClient-Cert: :AA==:\r\nclient-cert-chain: :AA==:\r\n"), "{out}");
    assert!(!out.to_ascii_lowercase().contains("x-client"), "{out}");
    for name in [CLIENT_SUBJECT, CLIENT_FINGERPRINT, "Client-Cert", "client-cert-chain"] {
        assert!(is_left_out_of_trailers(name), "{name}");
    }
}
