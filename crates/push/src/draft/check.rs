//! Finds the mistakes in a draft: one function for each part.

use std::collections::HashSet;
use std::time::Duration;

use oroshi_http1::{is_connection_field, is_field_value, is_token};
use oroshi_nats::address;
use oroshi_net::Endpoint;
use oroshi_words::{Mistake, Secret};

use super::{Draft, is_unix};
use crate::jwt::keys::SECRET_BYTES;
use crate::plan::{
    Access, Cluster, GroupRule, HistoryRule, Jwt, KeySource, Limits, Origins, Paths, Serves, StreamSettings, Transports,
};

/// More threads than this are a slip of the finger.
const MOST_THREADS: usize = 1024;

/// Clocks that differ by more are wrong.
const MOST_LEEWAY: Duration = Duration::from_secs(600);

/// Where the native API is; no other path may lie on or below these.
const NATIVE: [&str; 7] = ["/publish", "/sessions", "/groups", "/users", "/status", "/metrics", "/openapi.json"];

/// Everything that is wrong.
pub(super) fn all(draft: &Draft) -> Vec<Mistake> {
    let mut problems = Vec::new();
    if let Some(threads) = draft.threads
        && !(1..=MOST_THREADS).contains(&threads)
    {
        let expected = format!("1 to {MOST_THREADS}");
        problems.push(Mistake::value("threads", threads, "is no sensible number of threads", expected));
    }
    listeners(draft, &mut problems);
    paths(draft, &mut problems);
    if let Some(name) = &draft.session_header
        && let Some(why) = wrong_header_name(name)
    {
        problems.push(Mistake::value("session-header", name, why, "a name such as X-Kuiperbelt-Session"));
    }
    if let Some(endpoint) = &draft.endpoint
        && (endpoint.is_empty() || !is_field_value(endpoint.as_bytes()))
    {
        problems.push(Mistake::value(
            "endpoint",
            endpoint.escape_default(),
            "cannot stand in a header",
            "one such as host:9180",
        ));
    }
    callbacks(draft, &mut problems);
    origins(draft.origins.as_ref(), &mut problems);
    if draft.transports == Some(Transports::NONE) {
        problems.push(Mistake::value(
            "transports",
            "[]",
            "lets nobody connect",
            "some of websocket, sse, stream and poll",
        ));
    }
    subprotocols(&draft.subprotocols, &mut problems);
    limits(&draft.limits, &mut problems);
    least_time("send.timeout", draft.send.timeout, &mut problems);
    groups(&draft.groups, &mut problems);
    if let Some(token) = draft.token.as_ref().map(Secret::reveal)
        && (token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        let why = if token.is_empty() { "is empty" } else { "has a space or something else that cannot be sent" };
        let expected = "a token of letters, digits and signs in one piece (openssl rand -hex 32 makes a good one)";
        problems.push(Mistake::hidden("auth.token-file or auth.token-env", why, expected));
    }
    if let Some(jwt) = &draft.jwt {
        self::jwt(jwt, &mut problems);
    }
    if let Some(cluster) = &draft.cluster {
        self::cluster(cluster, &mut problems);
    }
    problems
}

fn listeners(draft: &Draft, problems: &mut Vec<Mistake>) {
    let listeners = &draft.listeners;
    if listeners.is_empty() && !draft.inherits {
        let expected = "expected an address such as 127.0.0.1:9180, :9180 or unix:/run/push.sock";
        problems.push(Mistake::new("listen", format!("there is nowhere to listen: {expected}")));
    } else if !draft.inherits {
        if listeners.iter().all(|listener| listener.serves == Serves::Admin) {
            let text = "there is no way in for clients: expected an address such as :9180 in it";
            problems.push(Mistake::new("listen.public", text).looking_at(["listen"]));
        }
        // Messages of other nodes need no listener.
        if draft.cluster.is_none() && listeners.iter().all(|listener| listener.serves.is_public()) {
            let text = "there is no way in for publishers: expected an address that only they reach, such as \
                        127.0.0.1:9181 or unix:/run/push-admin.sock";
            problems.push(Mistake::new("listen.admin", text).looking_at(["listen"]));
        }
    }
    let has_tls = listeners.iter().any(|listener| listener.serves == Serves::Tls);
    match &draft.tls {
        None if has_tls => {
            let text = "there is no certificate for it: expected [tls] with certificates = [...]";
            problems.push(Mistake::new("listen.tls", text).looking_at(["tls"]));
        }
        Some(tls) if tls.sources.is_empty() => {
            let text = "there is no certificate: expected a file with a chain and its key (PEM), or a folder of such";
            problems.push(Mistake::new("tls.certificates", text).looking_at(["tls"]));
        }
        // An inherited socket may be for it.
        Some(_) if !has_tls && !draft.inherits => {
            let text = "no listener uses it: expected an address such as :443 in listen.tls";
            problems.push(Mistake::new("tls", text));
        }
        _ => {}
    }
    let mut seen = HashSet::new();
    for listener in listeners {
        // Port 0 is another one each time.
        if !listener.address.ends_with(":0") && !seen.insert(&listener.address) {
            let key = match listener.serves {
                Serves::Everything => "listen.everything",
                Serves::Sessions => "listen.public",
                Serves::Tls => "listen.tls",
                Serves::Admin => "listen.admin",
            };
            problems.push(twice(key, &listener.address));
        }
        if listener.serves == Serves::Admin && draft.token.is_none() && !is_of_this_machine(&listener.address) {
            problems.push(Mistake::value(
                "listen.admin",
                &listener.address,
                "would let anybody on the network publish",
                "a token (auth.token-file, auth.token-env), or an address of this machine alone such as 127.0.0.1:9181 \
                 or unix:/run/push-admin.sock",
            ));
        }
    }
}

/// Whether only this machine can connect to the address.
fn is_of_this_machine(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    is_unix(address) || host.eq_ignore_ascii_case("localhost") || host.starts_with("127.") || host == "[::1]"
}

fn paths(draft: &Draft, problems: &mut Vec<Mistake>) {
    let Draft { paths, groups, .. } = draft;
    // There are no commands without channels.
    let has_commands = *paths != Paths { command: Paths::default().command, ..paths.clone() }
        || groups.iter().any(|rule| rule.subscribe != Access::Nobody);
    let all = [
        ("paths.connect", &paths.connect),
        ("paths.poll", &paths.poll),
        ("paths.command", &paths.command),
        ("paths.send", &paths.send),
        ("paths.close", &paths.close),
        ("paths.broadcast", &paths.broadcast),
        ("paths.ping", &paths.ping),
        ("paths.stats", &paths.stats),
    ];
    let mut seen = HashSet::new();
    for (key, path) in all.into_iter().filter(|(key, _)| has_commands || *key != "paths.command") {
        let is_path = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'?' | b'#'));
        if !is_path {
            problems.push(Mistake::value(key, path, "is no path", "one that begins with /, without ? and #"));
        } else if NATIVE
            .iter()
            .any(|native| path.strip_prefix(native).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
        {
            problems.push(Mistake::value(key, path, "is where the native API is", "another path"));
        } else if !seen.insert(path) {
            problems.push(twice(key, path));
        }
    }
}

fn callbacks(draft: &Draft, problems: &mut Vec<Mistake>) {
    let callbacks = &draft.callbacks;
    for (key, url) in [
        ("callbacks.connect", &callbacks.connect),
        ("callbacks.establish", &callbacks.establish),
        ("callbacks.receive", &callbacks.receive),
        ("callbacks.close", &callbacks.close),
    ] {
        if let Some(Err(source)) = url.as_ref().map(|url| url.parse::<Endpoint>()) {
            let expected = "expected one such as http://127.0.0.1:3000/path or unix:/run/app.sock:/path";
            problems.push(Mistake::new(key, format!("this is no URL that can be called: {expected} ({source})")));
        }
    }
    least_time("callbacks.timeout", callbacks.timeout, problems);
    least_time("callbacks.queue", callbacks.queue, problems);
    if callbacks.retries > 100 {
        problems.push(Mistake::value("callbacks.retries", callbacks.retries, "would go on for hours", "0 to 100"));
    }
    least("callbacks.connections", callbacks.connections as u64, problems);
    least("callbacks.answer-bytes", callbacks.answer_bytes as u64, problems);
    for (name, text) in &callbacks.headers {
        let key = || format!("callbacks.headers.{name}");
        if let Some(why) = wrong_header_name(name) {
            problems.push(Mistake::value(key(), name, why, "a name such as X-Forwarded-For"));
        } else if text.as_ref().is_some_and(|text| !is_field_value(text.as_bytes())) {
            let expected = "text without line breaks and other control characters";
            problems.push(Mistake::hidden(key(), "cannot stand in a header", expected));
        }
    }
}

fn subprotocols(names: &[String], problems: &mut Vec<Mistake>) {
    for (at, name) in names.iter().enumerate() {
        if !is_token(name.as_bytes()) {
            let expected = "letters, digits and signs such as . and -, as in chat.v1";
            problems.push(Mistake::value(
                "subprotocols",
                name.escape_default(),
                "is no name of a subprotocol",
                expected,
            ));
        } else if names[..at].contains(name) {
            problems.push(twice("subprotocols", name));
        }
    }
}

fn wrong_header_name(name: &str) -> Option<&'static str> {
    if !is_token(name.as_bytes()) {
        Some("is no header's name")
    } else if name.eq_ignore_ascii_case("expect") || is_connection_field(name) {
        Some("says how a message is sent, which is not to be set")
    } else {
        None
    }
}

fn origins(origins: Option<&Origins>, problems: &mut Vec<Mistake>) {
    let Some(Origins::List(list)) = origins else { return };
    for origin in list {
        let authority = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        let is_origin =
            |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@".contains(&b));
        if !authority.is_some_and(is_origin) {
            let expected = "one as browsers write it, such as https://example.org, without a path";
            problems.push(Mistake::value("origins", origin, "is no origin", expected));
        }
    }
}

fn limits(limits: &Limits, problems: &mut Vec<Mistake>) {
    for (key, number) in [
        ("limits.sessions", limits.sessions as u64),
        ("limits.connects-per-second", limits.connects_per_second.map_or(1, u64::from)),
        ("limits.message-bytes", limits.message_bytes as u64),
        ("limits.publish-bytes", limits.publish_bytes),
        ("limits.session-queue-bytes", limits.session_queue_bytes as u64),
        ("limits.session-queue-messages", limits.session_queue_messages as u64),
        ("limits.total-queue-bytes", limits.total_queue_bytes as u64),
        ("limits.client-publishes", limits.client_publishes.map_or(1, u64::from)),
        ("limits.session-channels", limits.session_channels as u64),
        ("limits.history-bytes", limits.history_bytes as u64),
    ] {
        least(key, number, problems);
    }
    for (key, time) in [
        ("limits.idle", limits.idle.unwrap_or(Duration::MAX)),
        ("limits.ping", limits.ping.unwrap_or(Duration::MAX)),
        ("limits.pong", limits.pong),
        ("limits.write", limits.write),
        ("limits.poll-absence", limits.poll_absence),
        ("limits.poll-wait", limits.poll_wait),
        ("limits.close", limits.close),
    ] {
        least_time(key, time, problems);
    }
    for (scope, rates) in [("client", limits.client), ("user", limits.user), ("address", limits.address)] {
        let all = [("messages", rates.messages), ("bytes", rates.bytes), ("subscribes", rates.subscribes)];
        for (what, _) in all.into_iter().filter(|(_, rate)| *rate == Some(0)) {
            problems.push(Mistake::value(format!("limits.{scope}-{what}"), 0, "is too little", "at least 1, or off"));
        }
    }
    // A message that never fits the queue could never be delivered.
    if limits.publish_bytes > limits.session_queue_bytes as u64 {
        let expected = format!("at most limits.session-queue-bytes, {}", limits.session_queue_bytes);
        problems.push(Mistake::value(
            "limits.publish-bytes",
            limits.publish_bytes,
            "is more than a session's queue holds",
            expected,
        ));
    }
    if limits.session_queue_bytes > limits.total_queue_bytes {
        let expected = format!("at most limits.total-queue-bytes, {}", limits.total_queue_bytes);
        let given = limits.session_queue_bytes;
        problems.push(Mistake::value(
            "limits.session-queue-bytes",
            given,
            "is more than all queues together hold",
            expected,
        ));
    }
}

fn groups(groups: &[GroupRule], problems: &mut Vec<Mistake>) {
    for (place, GroupRule { pattern, keeps, .. }) in groups.iter().enumerate() {
        let key = || format!("group[{}].pattern", place + 1);
        if let Some(HistoryRule { messages, bytes, time, .. }) = keeps {
            for (name, number) in [("messages", *messages), ("bytes", *bytes), ("time", time.as_millis() as usize)] {
                if number == 0 {
                    let key = format!("group[{}].history-{name}", place + 1);
                    problems.push(Mistake::value(key, number, "keeps nothing", "more, or no history-... at all"));
                }
            }
        }
        let prefix = pattern.strip_suffix('*').unwrap_or(pattern);
        if pattern.is_empty() || prefix.contains('*') || !is_field_value(pattern.as_bytes()) {
            let expected = "a group's name, or the beginning of one with * behind it, such as chat:*";
            problems.push(Mistake::value(key(), pattern.escape_default(), "is no pattern", expected));
        } else if let Some(earlier) = groups[..place].iter().find(|earlier| earlier.fits(pattern)) {
            let expected = "the narrower of two patterns to stand first";
            let why = "is never reached, as an earlier pattern fits all that it fits";
            problems.push(Mistake::value(key(), format!("{pattern}` (behind `{})", earlier.pattern), why, expected));
        }
    }
}

fn jwt(jwt: &Jwt, problems: &mut Vec<Mistake>) {
    if jwt.secret.is_none() && jwt.keys.is_none() {
        let expected = "expected secret-file, secret-env, keys-file or keys-url";
        problems.push(Mistake::new("jwt", format!("there is no key that could verify a token: {expected}")));
    }
    if let Some(secret) = &jwt.secret
        && secret.reveal().len() < SECRET_BYTES
    {
        let expected = format!("at least {SECRET_BYTES} bytes (openssl rand -hex 32 makes a good one)");
        problems.push(Mistake::hidden("jwt.secret-file or jwt.secret-env", "is too short for HS256", &expected));
    }
    if let Some(KeySource::Url(url)) = &jwt.keys
        && let Err(source) = url.parse::<Endpoint>()
    {
        let expected = "expected one such as https://login.example.org/.well-known/jwks.json";
        problems.push(Mistake::new("jwt.keys-url", format!("this is no URL of keys: {expected} ({source})")));
    }
    if jwt.issuer.as_deref() == Some("") || jwt.audience.iter().any(String::is_empty) {
        let key = if jwt.issuer.as_deref() == Some("") { "jwt.issuer" } else { "jwt.audience" };
        problems.push(Mistake::value(key, "", "is empty", "the text that tokens have"));
    }
    for (key, time) in [("jwt.keys-refresh", jwt.refresh), ("jwt.wait", jwt.wait)] {
        least_time(key, time, problems);
    }
    if jwt.leeway > MOST_LEEWAY {
        let expected = format!("at most {} s", MOST_LEEWAY.as_secs());
        problems.push(Mistake::value("jwt.leeway", format!("{} s", jwt.leeway.as_secs()), "is too long", expected));
    }
}

fn cluster(cluster: &Cluster, problems: &mut Vec<Mistake>) {
    if let Err(why) = address::servers(&cluster.nats) {
        problems.push(Mistake::hidden("cluster.nats", why, address::EXPECTED));
    }
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if cluster.name.is_empty() || !cluster.name.bytes().all(is_name) {
        problems.push(Mistake::value("cluster.name", &cluster.name, "is no name", "one of letters, digits, - and _"));
    }
    least_time("cluster.receipt-timeout", cluster.receipt_timeout, problems);
    if let Some(StreamSettings { replicas, .. }) = cluster.history
        && !(1..=5).contains(&replicas)
    {
        let key = "cluster.history-replicas";
        problems.push(Mistake::value(key, replicas, "is more or less than NATS makes", "1 to 5"));
    }
}

fn least(key: &'static str, number: u64, problems: &mut Vec<Mistake>) {
    if number == 0 {
        problems.push(Mistake::value(key, number, "is too little", "at least 1"));
    }
}

fn least_time(key: &'static str, time: Duration, problems: &mut Vec<Mistake>) {
    if time.is_zero() {
        problems.push(Mistake::value(key, "0", "leaves no time at all", "a time such as 10s"));
    }
}

fn twice(key: &str, value: &str) -> Mistake {
    Mistake::new(key, format!("`{value}` is given twice: expected each only once"))
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Callbacks, Listener};

    fn listener(address: &str, serves: Serves) -> Listener {
        Listener { address: address.into(), serves }
    }

    /// A draft with nothing wrong.
    fn sound() -> Draft {
        Draft { listeners: vec![listener(":9180", Serves::Everything)], ..Draft::default() }
    }

    /// The keys that are wrong.
    fn keys(draft: &Draft) -> Vec<String> {
        all(draft).iter().map(|problem| problem.key.clone()).collect()
    }

    #[test]
    fn doors_let_in_who_must_come_in_and_nobody_else() {
        assert!(keys(&sound()).is_empty());
        let of = |listeners: &[(&str, Serves)]| {
            keys(&Draft {
                listeners: listeners.iter().map(|(address, serves)| listener(address, *serves)).collect(),
                ..Draft::default()
            })
        };
        assert_eq!(of(&[]), ["listen"]);
        assert_eq!(of(&[("127.0.0.1:1", Serves::Admin)]), ["listen.public"]);
        assert_eq!(of(&[(":1", Serves::Sessions)]), ["listen.admin"]);
        assert_eq!(of(&[(":1", Serves::Sessions), ("@a", Serves::Admin), (":1", Serves::Sessions)]), ["listen.public"]);
        assert!(of(&[("127.0.0.1:0", Serves::Sessions), ("127.0.0.1:0", Serves::Admin)]).is_empty());
        for open in [":2", "2", "0.0.0.0:2", "[::]:2", "192.0.2.1:2", "example.org:2"] {
            assert_eq!(of(&[(":1", Serves::Sessions), (open, Serves::Admin)]), ["listen.admin"], "{open}");
        }
        for closed in ["127.0.0.1:2", "[::1]:2", "localhost:2", "unix:/a", "/a", "@a", "UNIX:@a"] {
            assert!(of(&[(":1", Serves::Sessions), (closed, Serves::Admin)]).is_empty(), "{closed}");
        }
        let listeners = vec![listener(":1", Serves::Sessions), listener(":2", Serves::Admin)];
        let guarded = Draft { listeners, token: Some(Secret::new("t")), ..Draft::default() };
        assert!(keys(&guarded).is_empty());
    }

    #[test]
    fn tokens_need_a_key() {
        assert_eq!(keys(&Draft { jwt: Some(Jwt::default()), ..sound() }), ["jwt"]);
        let jwt = Jwt { secret: Some(Secret::new("x".repeat(32))), ..Jwt::default() };
        assert!(keys(&Draft { jwt: Some(jwt), ..sound() }).is_empty());
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once_with_the_value_and_what_was_expected() {
        let group = |pattern: &str| GroupRule { pattern: pattern.into(), ..GroupRule::default() };
        let keeps = HistoryRule { messages: 0, time: Duration::ZERO, ..HistoryRule::default() };
        let empty = GroupRule { keeps: Some(keeps), ..group("d") };
        let draft = Draft {
            threads: Some(0),
            paths: Paths {
                connect: "connect".into(),
                poll: "/sessions/poll".into(),
                send: "/ping".into(),
                ..Paths::default()
            },
            session_header: Some("a b".into()),
            endpoint: Some("a\nb".into()),
            callbacks: Callbacks {
                connect: Some("example.org".into()),
                retries: 1000,
                connections: 0,
                headers: vec![("Connection".into(), None), ("X-A".into(), Some("a\r\nb".into()))],
                ..Callbacks::default()
            },
            origins: Some(Origins::List(vec!["example.org".into(), "https://a/b".into(), "https://a.b:1".into()])),
            transports: Some(Transports::NONE),
            subprotocols: vec!["chat.v1".into(), "a b".into(), String::new(), "chat.v1".into()],
            limits: Limits { sessions: 0, publish_bytes: 1 << 40, pong: Duration::ZERO, ..Limits::default() },
            groups: vec![group("a*"), group("ab"), group(""), group("*c"), empty],
            token: Some(Secret::new("hid den")),
            jwt: Some(Jwt {
                secret: Some(Secret::new("hidden")),
                keys: Some(KeySource::Url("keys.example.org".into())),
                audience: vec![String::new()],
                wait: Duration::ZERO,
                leeway: Duration::from_secs(3600),
                ..Jwt::default()
            }),
            cluster: Some(Cluster {
                nats: Secret::new("http://hidden"),
                name: String::new(),
                receipt_timeout: Duration::from_secs(1),
                history: Some(StreamSettings { replicas: 6, in_memory: false }),
            }),
            ..sound()
        };
        let expected = [
            "threads",
            "paths.connect",
            "paths.poll",
            "paths.ping",
            "session-header",
            "endpoint",
            "callbacks.connect",
            "callbacks.retries",
            "callbacks.connections",
            "callbacks.headers.Connection",
            "callbacks.headers.X-A",
            "origins",
            "origins",
            "transports",
            "subprotocols",
            "subprotocols",
            "subprotocols",
            "limits.sessions",
            "limits.pong",
            "limits.publish-bytes",
            "group[2].pattern",
            "group[3].pattern",
            "group[4].pattern",
            "group[5].history-messages",
            "group[5].history-time",
            "auth.token-file or auth.token-env",
            "jwt.secret-file or jwt.secret-env",
            "jwt.keys-url",
            "jwt.audience",
            "jwt.wait",
            "jwt.leeway",
            "cluster.nats",
            "cluster.name",
            "cluster.history-replicas",
        ];
        assert_eq!(keys(&draft), expected);
        for problem in all(&draft) {
            let text = problem.to_string();
            assert!(text.contains("expected"), "{text}");
            assert!(!text.contains("hid"), "a secret shows: {text}");
        }
    }
}
