//! The configuration of `oroshi gate`: every key, every kind of mistake, what `--check` shows; and docs/gate.md against
//! both.

use std::collections::BTreeSet;
use std::fs;

use crate::gate::{Ran, oroshi};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa, KeyIdMethod, KeyPair,
    SerialNumber, date_time_ymd,
};

const EVERY_KEY: &str = include_str!("../gate/every-key.toml");
const PAGE: &str = include_str!("../../../../docs/gate.md");

/// Checks a configuration, with these files beside it.
fn check(config: &str, files: &[(&str, &str)]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gate.toml"), config).unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mut command = oroshi();
    command
        .args(["gate", "--check"])
        .current_dir(folder.path())
        .env("GATE_PASSWORD", "hush")
        .env("GATE_SEAL", "hush".repeat(8));
    Ran::of(command.output().unwrap())
}

/// Makes the certificate of an authority, and its revocation list.
fn authority() -> (String, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2001, 1, 1),
        next_update: date_time_ymd(2999, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    (authority.pem(), list.signed_by(&authority).unwrap().pem().unwrap())
}

/// Where nothing is secret and no answer is a file, what is shown is a configuration, and means the same.
#[test]
fn what_is_shown_can_be_read_again() {
    let config = r#"
        [listen]
        public = "127.0.0.1:0"
        [forwarding]
        request-id = true
        trusted = ["10.0.0.0/8", "fd00::/8"]
        [upstream.app]
        targets = ["10.0.0.7:8080", "unix:/run/app.sock"]
        [[route]]
        name = "one"
        host = ["example.org", "*.example.org"]
        path = "/a\"quoted\"path"
        method = "GET"
        header = { X-Beta = "1", X-Any = "*" }
        to = "app"
        request.set = { X-From = "a: b", X-Empty = "" }
        request.add = { x-from = "c", X-More = "1" }
        request.remove = ["Cookie", "X-more"]
        [[route]]
        name = "two"
        to = "app"
        response = { remove = ["Server"] }
    "#;
    let first = check(config, &[]);
    assert_eq!(first.code, Some(0), "{}", first.err);
    let again = check(&first.out, &[]);
    assert_eq!(again.code, Some(0), "{}\n{}", again.err, first.out);
    assert_eq!(again.out, first.out);
    for line in ["X-From = \"a: b\"", "X-Empty = \"\"", "remove = [\"Server\"]", "path = \"/a\\\"quoted\\\"path\""] {
        assert!(first.out.lines().any(|shown| shown == line), "{line} is not in\n{}", first.out);
    }
}

#[test]
fn every_key_is_taken_and_shown_but_for_secrets() {
    let script = "function on_route(request) return nil end function on_key(request) return request.host end";
    let identity = oroshi_testkit::Identity::new();
    let [client, key] = ["client.pem", "client.key"].map(|name| fs::read_to_string(identity.path(name)).unwrap());
    let (ca, list) = authority();
    let certificates = [("ca.pem", &*ca), ("ca.crl", &list), ("client.pem", &client), ("client.key", &key)];
    let files = [[("body.txt", "back soon\n"), ("route.lua", script)].as_slice(), &certificates].concat();
    let checked = check(EVERY_KEY, &files);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(!checked.out.contains("hush") && !checked.out.contains("gate@127.0.0.1"), "{}", checked.out);
    // What is given comes back, where it is shown at all.
    let shown: BTreeSet<&str> = checked.out.lines().collect();
    for line in [
        "threads = 2",
        "drain = \"20s\"",
        "tls = [\"unix:tls.sock\"]",
        "min-version = \"1.3\"",
        "# rows may be sealed",
        "# a key is set",
        "names-in-flight = 101",
        "names-per-second = 102",
        "directory = \"https://acme.example/directory\"",
        "contact = [\"mailto:admin@example.org\"]",
        "agree-to-terms = true",
        "account-key = \"account.pem\"",
        "# an external account is set",
        "challenge = \"tls-alpn-01\"",
        "profile = \"shortlived\"",
        "store = \"domains\"",
        "names = [\"www.example.org\"]",
        "lookup = \"hosts\"",
        "orders = \"50/3600s\"",
        "new-names = \"5/600s\"",
        "orders-at-once = 3",
        "order-timeout = \"90s\"",
        "wildcards = false",
        "query = \"SELECT pem FROM certificate WHERE name = ?\"",
        "trusted = [\"192.0.2.0/24\", \"2001:db8::/32\"]",
        "proxy-protocol = \"v1\"",
        "proxy-protocol = \"v2\"",
        "key = [\"client\", \"host\", \"header X-Api-Key\"]",
        "rate = \"600/60000ms\"",
        "burst = 20",
        "entries = 5000",
        "prefix = \"limit:\"",
        "limit = [\"api\"]",
        "codings = [\"zstd\", \"gzip\"]",
        "types = [\"text/html\", \"application/*\"]",
        "min-bytes = 2000",
        "br = 7",
        "compress = true",
        "handshakes = 500",
        "crl = [\"ca.crl\"]",
        "crl-expired = \"accept\"",
        "per-host = 100",
        "body-bytes = 1000000",
        "body = \"6s\"",
        "body-pause = \"8s\"",
        "body-rate = 200",
        "body-rate-window = \"9s\"",
        "script-connections = 3",
        "buffer = 1000",
        "pause-max = \"20s\"",
        "format = \"$remote_addr \\\"$request\\\" $status\"",
        "escape = \"text\"",
        "sample = 0.5",
        "status = 421",
        "servers = [\"127.0.0.1:11211\", \"unix:/run/memcached.sock\"]",
        "value-bytes = 4096",
        "query-timeout = \"300ms\"",
        "script-cache = 1000000",
        "rows = 50",
        "row-bytes = 60000",
        "file = \"route.lua\"",
        "# its functions: on_route, on_key",
        "ca = [\"ca.pem\"]",
        "system-roots = true",
        "verify = false",
        "server-name = \"app.internal\"",
        "certificate = \"client.pem\"",
        "protocol = \"h2\"",
        "resume = false",
        "instructions = 200000",
        "wall = \"3s\"",
        "jit = true",
        "# allowed targets: Allow(10.0.0.0/8, unix:/run/apps/)",
        "balance = \"random-two\"",
        "failures = 7",
        "key = \"script tenants\"",
        "script = \"tenants\"",
        "key = \"header X-Tenant\"",
        "# allowed targets: Allow(10.0.0.0/8, .internal, unix:/run/apps/)",
        "keys-in-flight = 500",
        "refresh-ahead = \"off\"",
        "stale-if-error = \"600s\"",
        "prefix = \"route:\"",
        "write-back = false",
        "balance = \"consistent-hash\"",
        "hash = \"client\"",
        "hash = \"header X-User\"",
        "max-requests = 13",
        "failures = \"off\"",
        "targets = [{ to = \"10.0.0.7:8080\", weight = 1 }, { to = \"unix:/run/app.sock\", weight = 3 }]",
        "max-age = \"off\"",
        "mode = \"optional\"",
        "host-header = \"app.internal\"",
        "strip-prefix = \"/shop\"",
        "via = \"gate\"",
        "tunnel = \"off\"",
        "x-forwarded-port = true",
        "trusted = [\"10.0.0.0/8\", \"::1/128\"]",
        "trust-unix = true",
        "host = [\"example.org\", \"*.example.org\"]",
        "path = \"/shop\"",
        "method = [\"GET\", \"HEAD\"]",
        "X-Beta = \"1\"",
        "X-Any = \"*\"",
        "remove = [\"Cookie\"]",
        "X-From = \"gate\"",
        "X-More = \"1\"",
        "remove = [\"X-Powered-By\"]",
        "Server = \"gate\"",
        "# redirects with 301",
        "# answers 503",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{}", checked.out);
    }
}

/// A script is looked for beside the configuration, wherever one stands oneself.
/// Nobody is told to come back before the gateway can have found out that a store is back.
#[test]
fn clients_are_told_to_come_back_no_earlier_than_the_longest_pause_of_a_store() {
    let config = r#"
        [listen]
        public = "127.0.0.1:0"
        [memcached.quick]
        servers = ["127.0.0.1:1"]
        [memcached.seldom]
        servers = ["127.0.0.1:2"]
        breaker = { pause-max = "20100ms" }
        [memcached.seldom-too]
        servers = ["127.0.0.1:3"]
        breaker = { pause-max = "5s" }
        [lookup.a]
        memcached = { store = "quick" }
        allow = ["any"]
        [lookup.b]
        memcached = { store = "seldom" }
        allow = ["any"]
        [lookup.c]
        memcached = { store = "seldom" }
        allow = ["any"]
        down = { retry-after = "off" }
        [lookup.d]
        memcached = { store = "seldom-too" }
        allow = ["any"]
        down = { retry-after = "1m" }
        [lookup.e]
        memcached = { store = "seldom-too" }
        allow = ["any"]
        down = { retry-after = "2s" }
    "#;
    let routes = "abcde".chars().map(|name| format!("[[route]]\nhost = \"{name}.example\"\nlookup = \"{name}\"\n"));
    let checked = check(&format!("{config}{}", routes.collect::<String>()), &[]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    let shown: toml::Table = checked.out.parse().unwrap();
    for (name, told) in [("a", "1s"), ("b", "21s"), ("c", "off"), ("d", "60s"), ("e", "5s")] {
        assert_eq!(shown["lookup"][name]["down"]["retry-after"].as_str(), Some(told), "{name}");
    }
}

#[test]
fn the_example_is_sound() {
    let folder = tempfile::tempdir().unwrap();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/gate/gate.toml");
    let mut command = oroshi();
    command.args(["gate", "--check", "--config", example]).current_dir(folder.path());
    let checked = Ran::of(command.output().unwrap());
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(checked.out.contains("# its functions: on_route\n"), "{}", checked.out);
}

#[test]
fn every_mistake_is_told_with_its_line() {
    for (config, told) in [
        ("[listen]\nadmin = 'unix:@gate'\n", "line 2: listen.admin: `unix:@gate` would let others"),
        ("", "listen.public: there is nowhere to listen"),
        ("[listen]\npublic = ':1'\n", "route: there is no route"),
        ("lisen = 1\n", "line 1: lisen: there is no such key: did you mean `listen`?"),
        ("threads = 'x'\n", "line 1: threads: "),
        ("[listen]\nadmin = ':81'\n", "line 2: listen.admin: `:81` would let others purge and look"),
        (
            "[[route]]\nto = 'app'\n",
            "line 2: route[1].to: there is no upstream `app`: none is configured, or an address such as app:80",
        ),
        ("[[route]]\nto = 'a b:1'\n", "line 2: route[1].to: "),
        ("[[route]]\nlookup = 'x'\n", "line 2: route[1].lookup: there is no look-up `x`: none is configured"),
        ("[[route]]\n", "line 1: route[1]: expected exactly one of `to`, `lookup`, `redirect` and `answer`"),
        ("[[route]]\nto = '1.1.1.1'\nanswer = {}\n", "route[1]: expected exactly one of"),
        ("[[route]]\nto = '1.1.1.1'\nhost = 'a b'\n", "line 3: route[1].host: `a b` is no host"),
        (
            "[[route]]\nto = '1.1.1.1'\npath = '/a/../b'\n",
            "line 3: route[1].path: `/a/../b` is no path in its plain form",
        ),
        ("[[route]]\nto = '1.1.1.1'\nmethod = 'get'\n", "line 3: route[1].method: `get` is no method"),
        ("[[route]]\nto = '1.1.1.1'\nheader = { 'a b' = '' }\n", "route[1].header.a b: `a b` is no field name"),
        ("[[route]]\nto = '1.1.1.1'\nrequest = { set = { Host = 'x' } }\n", "Host is written by the gateway itself"),
        ("[[route]]\nto = '1.1.1.1'\nresponse = { remove = ['a:'] }\n", "line 3: route[1].response.remove: "),
        ("[[route]]\nto = '1.1.1.1'\nhost-header = 'a/b'\n", "line 3: route[1].host-header: \"a/b\" is not a host"),
        ("[[route]]\nto = '1.1.1.1'\nstrip-prefix = 'x'\n", "line 3: route[1].strip-prefix: \"x\" is not a path"),
        // One mistake does not hide another beside it.
        (
            "[[route]]\nrequest = { set = { Host = 'x' } }\nstrip-prefix = 'x'\n",
            "line 1: route[1]: expected exactly one of `to`",
        ),
        ("[[route]]\nto = 1\nstrip-prefix = 'x'\n", "line 3: route[1].strip-prefix: \"x\" is not a path"),
        (
            "[[route]]\nto = '1.1.1.1'\ntimeouts = { connect = '0s' }\n",
            "line 3: route[1].timeouts.connect: 0 leaves no time",
        ),
        ("[[route]]\nto = '1.1.1.1'\nname = '-'\n", "line 3: route[1].name: `-` stands for requests without a route"),
        (
            "[[route]]\nto = '1.1.1.1'\nname = 'a'\n[[route]]\nto = '1.1.1.1'\nname = 'a'\n",
            "line 6: route[2].name: the name `a` is given twice",
        ),
        (
            "[[route]]\nto = 'http://b/x'\n",
            "line 2: route[1].to: \"http://b/x\" is a URL: expected an address alone such as \"b\"",
        ),
        (
            "[upstream.a]\ntargets = ['a']\nejection = { back-off = '2m', longest = '1m' }\n",
            "line 3: upstream.a.ejection.longest: 60s is shorter than the first time, 120s",
        ),
        ("[[route]]\nredirect = { to = '{port}' }\n", "line 2: route[1].redirect.to: `{port}` is no part of a request"),
        (
            "[[route]]\nredirect = { to = '/', status = 200 }\n",
            "line 2: route[1].redirect.status: 200 sends nobody elsewhere",
        ),
        ("[[route]]\nanswer = { status = 199 }\n", "line 2: route[1].answer.status: 199 is no status"),
        (
            "[[route]]\nanswer = { status = 204, body = 'x' }\n",
            "line 2: route[1].answer.body: an answer of 204 has no body",
        ),
        ("[[route]]\nanswer = { body-file = 'none' }\n", "line 2: route[1].answer.body-file: cannot read `none`"),
        ("[upstream.a]\ntargets = []\n", "line 2: upstream.a.targets: there is none"),
        ("[upstream.a]\ntargets = ['1.1.1.1:0']\n", "line 2: upstream.a.targets: "),
        ("[upstream.a]\ntargets = [{ to = 'a', weight = 0 }]\n", "the weight of `a` is 0: expected 1 to 1000"),
        ("[upstream.a]\ntargets = ['a']\nbalance = 'best'\n", "line 3: upstream.a.balance: `best` is no way to choose"),
        ("[upstream.a]\ntargets = ['a']\nhash = 'x'\n", "line 3: upstream.a.hash: `x` is no key for hashing"),
        ("[lookup.a]\nallow = 'any'\n", "lookup.a.tiers: there is no store to look in"),
        ("[lookup.a]\nsql = { store = 'x', query = 'y' }\n", "lookup.a.allow: no target is allowed"),
        (
            "[lookup.a]\nallow = 'any'\nsql = { store = 'x', query = 'y' }\n",
            "line 3: lookup.a.sql.store: there is no such store `x`",
        ),
        (
            "[sql.s]\nurl = 'sqlite:x'\n[lookup.a]\nallow = 'any'\nsql = { store = 's', query = 'SELECT 1' }\n",
            "line 5: lookup.a.sql.query: 1 parameter was given for a query with places for 0",
        ),
        ("[lookup.a]\nallow = ['10.0.0.1/8']\n", "line 2: lookup.a.allow: "),
        ("[lookup.a]\nkey = 'cookie'\n", "line 2: lookup.a.key: `cookie` is no key of a look-up"),
        ("[sql.a]\nurl = 'oracle://x'\n", "line 2: sql.a.url: "),
        ("[sql.a]\nurl = 'sqlite:x'\nurl-env = 'Y'\n", "line 3: sql.a.url-env: it is given twice"),
        (
            "[sql.a]\nurl-env = 'NOT_SET_HERE'\n",
            "line 2: sql.a.url-env: the environment variable `NOT_SET_HERE` is not set",
        ),
        ("[memcached.a]\nservers = ['x y']\n", "line 2: memcached.a.servers: "),
        ("[script.a]\n", "line 1: script.a.file: there is none: expected a file of Lua"),
        ("[script.a]\nfile = 'none.lua'\n", "line 2: script.a.file: cannot read `none.lua`"),
        ("[script.a]\nfile = 'x.lua'\nwall = '1x'\n", "line 3: script.a.wall: "),
        ("[script.a]\nfile = 'x.lua'\ninstructions = 1\n", "line 3: script.a.instructions: 1 leaves room for nothing"),
        ("[script.a]\nfile = 'x.lua'\nallow = ['10.0.0.1/8']\n", "line 3: script.a.allow: "),
        ("[script.a]\nfile = 'bad.lua'\n", "line 2: script.a.file: bad.lua:2: "),
        ("[script.a]\nfile = 'raises.lua'\n", "line 2: script.a.file: raises.lua:3: not today"),
        ("[script.a]\nfile = 'empty.lua'\n", "line 2: script.a.file: `empty.lua` has no function that is called"),
        ("[[route]]\nscript = 'x'\n", "line 2: route[1].script: there is no script `x`: none is configured"),
        (
            "[script.a]\nfile = 'x.lua'\n[[route]]\nscript = 'a'\nto = '1.1.1.1'\nlookup = 'b'\n",
            "line 3: route[1]: expected exactly one of `to`, `lookup`, `redirect` and `answer`, or none beside \
             `script`",
        ),
        (
            "[script.a]\nfile = 'log.lua'\n[[route]]\nscript = 'a'\n",
            "line 4: route[1].script: its script has neither on_request nor on_route",
        ),
        (
            "[script.a]\nfile = 'log.lua'\n[lookup.b]\nkey = 'script a'\n",
            "line 4: lookup.b.key: the script `a` has no function on_key",
        ),
        ("script-cache = 0\n", "line 1: script-cache: 0 bytes leave room for nothing"),
        ("[limits]\nper-host = 1\n[listen]\npublic = ':1'\n", "limits.per-host: 1 cannot be divided among"),
        ("[access-log]\nsample = 2\n", "line 2: access-log.sample: 2 is no share"),
        ("[access-log]\nformat = 'common'\n", "line 2: access-log.format: `common` has no variable such as $status"),
        ("[access-log]\nformat = '$x'\n", "line 2: access-log.format: `$x` is no variable of a log"),
        (
            "[access-log]\nformat = '{\"a\":$host}'\nescape = 'json'\n",
            "line 2: access-log.format: the lines would not be JSON",
        ),
        ("[access-log]\nescape = 'json'\n", "line 2: access-log.escape: only templates are escaped"),
        ("[access-log]\nformat = '$host'\nescape = 'x'\n", "line 3: access-log.escape: `x` is no way to escape"),
        ("[compression]\ncodings = ['deflate']\n", "line 2: compression.codings: `deflate` is no coding"),
        ("[compression]\ntypes = ['html']\n", "line 2: compression.types: \"html\" is no media type"),
        ("[compression]\nlevels = { br = 12 }\n", "line 2: compression.levels: 12 is no level: expected 0 to 11"),
        ("[forwarding]\ntrusted = ['10.0.0.1/8']\n", "line 2: forwarding.trusted: "),
        ("[proxy-protocol]\ntrusted = ['10.0.0.1/8']\n", "line 2: proxy-protocol.trusted: "),
        ("[proxy-protocol]\ntrust = ['10.0.0.1']\n", "line 2: proxy-protocol.trust: "),
        (
            "[upstream.a]\ntargets = ['a']\nproxy-protocol = 'v3'\n",
            "line 3: upstream.a.proxy-protocol: `v3` is no version",
        ),
        (
            "[upstream.a]\ntargets = ['h2c://a']\nproxy-protocol = 'v2'\n",
            "line 3: upstream.a.proxy-protocol: `h2c://a:80` is no target of HTTP/1.1 in cleartext",
        ),
        ("[limit.a]\n", "line 1: limit.a.rate: there is none: expected requests per time such as 100/s"),
        ("[limit.a]\nrate = '100'\n", "line 2: limit.a.rate: `100` is no rate"),
        ("[limit.a]\nrate = '1/0s'\n", "line 2: limit.a.rate: 0 leaves no time at all"),
        ("[limit.a]\nrate = '1/s'\nburst = 0\n", "line 3: limit.a.burst: 0 leaves room for nothing"),
        ("[limit.a]\nrate = '1/s'\nkey = 'cookie'\n", "line 3: limit.a.key: `cookie` is no key of a limit"),
        ("[limit.a]\nrate = '1/s'\nentries = 0\n", "line 3: limit.a.entries: 0 keys: expected 1 to"),
        ("[[route]]\nto = '1.1.1.1'\nlimit = 'x'\n", "line 3: route[1].limit: there is no limit `x`"),
    ] {
        // Enough threads that they are too many to share among.
        let config = if config.contains("per-host") { format!("threads = 2\n{config}") } else { config.to_owned() };
        let files = [
            ("x.lua", "function on_route() end"),
            ("bad.lua", "function on_route()\n  return return\nend"),
            ("raises.lua", "local function f()\n  -- at once\n  error('not today')\nend\nf()"),
            ("empty.lua", "local x = 1"),
            ("log.lua", "function on_log() end"),
        ];
        let checked = check(&config, &files);
        assert_eq!(checked.code, Some(2), "{config}: {}", checked.out);
        assert!(checked.err.contains(told), "{config}: expected {told}:\n{}", checked.err);
    }
}

#[test]
fn the_page_has_every_key_and_no_other() {
    let documented: BTreeSet<String> = keys_of_the_page();
    let known: BTreeSet<String> = keys_of(&EVERY_KEY.parse().unwrap(), "");
    // In place of a URL, a password, a key; with certificates of files.
    let mut known: BTreeSet<String> = known.into_iter().collect();
    known.extend(
        ["url-file", "url-env", "password-file", "key-file", "mac-key-file", "default", "certificate"]
            .map(str::to_owned),
    );
    let missing: Vec<&String> = known.difference(&documented).collect();
    let unknown: Vec<&String> = documented.difference(&known).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not in docs/gate.md: {missing:?}; not known: {unknown:?}");
}

/// Last names of keys that hold no table.
fn keys_of(table: &toml::Table, path: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for (key, value) in table {
        // Fields of requests and answers are no keys of ours.
        if matches!(key.as_str(), "header" | "set" | "add") && path.contains("route") {
            keys.insert(key.clone());
            continue;
        }
        match value {
            toml::Value::Table(inner) => keys.extend(keys_of(inner, &format!("{path}.{key}"))),
            toml::Value::Array(elements) if elements.iter().any(toml::Value::is_table) => {
                let mut is_table_alone = true;
                for element in elements {
                    match element {
                        toml::Value::Table(inner) => keys.extend(keys_of(inner, &format!("{path}.{key}"))),
                        _ => is_table_alone = false,
                    }
                }
                if !is_table_alone {
                    keys.insert(key.clone());
                }
            }
            _ => drop(keys.insert(key.clone())),
        }
    }
    keys
}

/// The last names of what stands in backticks in the first column of the tables of keys.
fn keys_of_the_page() -> BTreeSet<String> {
    let mut keys: BTreeSet<String> =
        ["to", "weight", "set", "add", "remove", "status", "content-type", "body", "body-file", "retry-after"]
            .into_iter()
            .filter(|key| PAGE.contains(&format!("`{key}`")) || PAGE.contains(&format!("{key} = ")))
            .map(str::to_owned)
            .collect();
    let mut in_table = false;
    for line in PAGE.lines() {
        if line.starts_with("| key |") {
            in_table = true;
        } else if !line.starts_with('|') {
            in_table = false;
        } else if in_table && !line.starts_with("|---") {
            let column = line.trim_matches('|').split('|').next().unwrap();
            for name in column.split('`').skip(1).step_by(2) {
                let last = name.rsplit('.').next().unwrap();
                // Those that hold tables: their own keys are listed.
                if !matches!(
                    last,
                    "memcached"
                        | "sql"
                        | "no-route"
                        | "unknown"
                        | "down"
                        | "invalid"
                        | "request"
                        | "response"
                        | "redirect"
                        | "answer"
                        | "external-account"
                ) {
                    keys.insert(last.to_owned());
                }
            }
        }
    }
    keys
}
