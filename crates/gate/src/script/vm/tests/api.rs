//! Tests of stores, HTTP requests and responses in scripts.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use oroshi_lookup::{Allow, Lookup, LookupSettings, MemcachedSettings, SqlTier};

use super::*;
use crate::script::Reply;

#[test]
fn a_database_is_asked() {
    let database = peers::Sqlite::start();
    run(async {
        for statement in [
            "INSERT INTO domain VALUES ('a.example', '10.0.0.1:80'), ('b.example', NULL), ('c.example', '10.0.0.3')",
            "CREATE TABLE kinds (n INTEGER, f REAL, t TEXT, b BLOB)",
        ] {
            database.execute(statement).await;
        }
    });
    let bench = Bench::new().sqlite("main", &database);
    let asked = |shape: &str| body(&bench, &format!("local db = gate.sql('main') {shape}"));
    assert_eq!(asked("return db:value('SELECT host FROM domain WHERE domain = ?', 'a.example')"), "10.0.0.1:80");
    assert_eq!(asked("return db:value('SELECT host FROM domain WHERE domain = ?', 'b.example')"), "nil");
    assert_eq!(asked("return db:value('SELECT host FROM domain WHERE domain = ?', 'z.example')"), "nil");
    assert_eq!(
        asked("local r = db:row('SELECT * FROM domain WHERE domain = ?', 'a.example') return r.domain, r.host"),
        "a.example 10.0.0.1:80"
    );
    assert_eq!(asked("return db:row('SELECT * FROM domain WHERE domain = ?', 'z.example')"), "nil");
    assert_eq!(
        asked(
            "local r = db:query('SELECT * FROM domain ORDER BY domain') return #r, r[1].domain, r[2].host, r[3].host"
        ),
        "3 a.example nil 10.0.0.3"
    );
    let kinds = "db:query('INSERT INTO kinds VALUES (?, ?, ?, ?)', 7, 1.5, 'text', 'a\\0\\255') local r = \
        db:row('SELECT * FROM kinds')
        return r.n, r.f, r.t, r.b == 'a\\0\\255', db:value('SELECT typeof(n) FROM kinds'), db:value('SELECT ? IS \
        NULL', nil)";
    assert_eq!(asked(kinds), "7 1.5 text true integer 1");
    // One of the queries runs within pcall and a coroutine of the script.
    assert_eq!(asked("return pcall(coroutine.wrap(function() return db:value('SELECT 1 + ?', 2) end))"), "true 3");
    // Failures come with their kind.
    let refused = asked("return db:value('SELECT nothing')");
    assert!(refused.starts_with("nil store `main`: it refused: ") && refused.ends_with(" refused"), "{refused}");
    // Only one statement with as many placeholders as parameters: SQLite would run further statements and ignore
    // further parameters.
    let more = asked("return db:query('SELECT 1; DELETE FROM domain')");
    assert_eq!(more, "nil store `main`: it refused: the query is more than one statement: expected one refused");
    let more = asked("return db:query('SELECT ?', 1, 2)");
    assert!(more.contains("2 parameters were given for a query with places for 1"), "{more}");
    assert_eq!(asked("return db:value('SELECT count(*) FROM domain')"), "3");
    let many = asked(
        "return db:query('WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 101) SELECT i FROM n')",
    );
    assert!(many.starts_with("nil store `main`: ") && many.ends_with(" too-large"), "{many}");
    // Mistakes are errors at their lines.
    let wrong = [
        ("gate.sql('none')", "error a.lua:1: gate.sql: there is no SQL store `none` in the configuration"),
        (
            "gate.sql('main').value('SELECT 1')",
            "error a.lua:1: sql:value: it is a method: expected store:value(...), with a colon",
        ),
        (
            "gate.sql('main'):value('SELECT ?', {})",
            "error a.lua:1: sql:value: parameter 1 is a table: expected a string, a number, a boolean or nil",
        ),
        (
            "local s, t = ('x'):rep(1e6), {} for i = 1, 1000 do t[i] = s end gate.sql('main'):value('SELECT 1', \
             unpack(t))",
            "error a.lua:1: sql:value: the parameters are too large: expected at most 16777216 bytes",
        ),
        ("gate.sql('main'):value()", "error a.lua:1: sql:value: query is nil: expected a string"),
        (
            "gate.memcached('main')",
            "error a.lua:1: gate.memcached: there is no memcached store `main` in the configuration",
        ),
    ];
    for (shape, expected) in wrong {
        assert_eq!(body(&bench, shape), expected);
    }
    // A caught error is a string.
    assert_eq!(
        body(&bench, "local ok, why = pcall(gate.sql, 'none') return type(why), why"),
        "string gate.sql: there is no SQL store `none` in the configuration"
    );
}

#[test]
fn memcached_is_asked() {
    let Some(mut memcached) = peers::Memcached::start("memcached_is_asked") else { return };
    let mut bench = Bench::new();
    let kind = StoreKind::Memcached(MemcachedSettings::new(vec![memcached.address()]));
    bench.stores.push(StoreSettings { name: "cache".to_owned(), kind });
    let source = "local m = gate.memcached('cache')
function on_request() return m:get('k'), m:set('k', 'value', 60), m:get('k'), m:delete('k'), m:delete('k'), \
m:get('k') end
function on_route() return m:get('k') end
function on_key() return m:get('two words') end";
    let before = memcached.stat("total_connections");
    run(async {
        let script = bench.load(source).unwrap();
        assert_eq!(shown(script.call(Hook::Request, ()).await), "nil true value true false nil");
        let bad = shown(script.call(Hook::Key, ()).await);
        assert!(bad.starts_with("nil store `cache`: "), "{bad}");
        // One connection for all of this, and one for the test.
        assert_eq!(memcached.stat("total_connections"), before + 2);
        memcached.0.kill();
        let down = shown(script.call(Hook::Route, ()).await);
        assert!(
            down.starts_with("nil store `cache`: ")
                && (down.ends_with(" connection-lost") || down.ends_with(" connect")),
            "{down}"
        );
        // A missing key is no failure.
        memcached.0.restart();
        peers::until("it is up again", async || shown(script.call(Hook::Route, ()).await) == "nil").await;
    });
}

#[test]
fn declared_lookups_are_asked() {
    let database = peers::Sqlite::start();
    run(database.execute(
        "INSERT INTO domain VALUES ('a.example', '10.0.0.1:80'), ('b.example', '[\"10.0.0.1\", \
        \"10.0.0.2:81\"]'), ('c.example', 'ftp://x')",
    ));
    let mut bench = Bench::new().sqlite("main", &database);
    let stores = Stores::start(bench.stores.clone()).unwrap();
    for (name, by_host) in [("domains", true), ("keys", false)] {
        let settings = LookupSettings {
            sql: Some(SqlTier {
                store: "main".to_owned(),
                query: "SELECT host FROM domain WHERE domain = ?".to_owned(),
            }),
            allow: Allow::any(),
            ..LookupSettings::new(name)
        };
        bench
            .lookups
            .insert(name.to_owned(), DeclaredLookup { lookup: Lookup::start(settings, &stores).unwrap(), by_host });
    }
    let asked = |shape: &str| body(&bench, &format!("return gate.lookup({shape})"));
    for _ in 0..2 {
        assert_eq!(asked("'domains', 'A.Example:8080'"), "10.0.0.1:80 hit");
    }
    assert_eq!(asked("'keys', 'A.Example:8080'"), "nil negative");
    assert_eq!(asked("'keys', 'a.example'"), "10.0.0.1:80 hit");
    assert_eq!(asked("'domains', 'z.example'"), "nil negative");
    assert_eq!(asked("'domains', '///'"), "nil negative");
    assert_eq!(asked("'domains', 'c.example'"), "nil invalid");
    assert_eq!(asked("'none', 'a'"), "error a.lua:1: gate.lookup: there is no lookup `none` in the configuration");
    let list = "local list, outcome = gate.lookup('domains', 'b.example') return outcome, #list, list[1].to, \
        list[2].to, list[1].weight";
    assert_eq!(body(&bench, list), "hit 2 10.0.0.1:80 10.0.0.2:81 1");
}

/// Answers each request with its own text, and counts connections.
fn server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&connections);
    thread_of(move || {
        for stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            thread_of(move || drop(serve(stream)));
        }
    });
    (format!("http://{address}"), connections)
}

fn thread_of(work: impl FnOnce() + Send + 'static) {
    drop(std::thread::spawn(work));
}

fn serve(stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let (mut head, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
            head.push(line.to_owned());
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        if head[0].contains("/never") {
            // Until the client closes.
            let _ = reader.read_line(&mut String::new())?;
            return Ok(());
        }
        let x = head.iter().filter(|line| line.starts_with("X-A: ")).map(String::as_str).collect::<Vec<_>>().join(",");
        let mut answer = format!("{} {x} {}", head[0], String::from_utf8_lossy(&body));
        if head[0].contains("/large") {
            answer = "x".repeat(5 << 20);
        }
        let more = "X-B: 1\r\nx-b: 2\r\nSet-Cookie: a=1, b\r\nSet-Cookie: c=2\r\nLocation: /elsewhere\r\n";
        let status = if head[0].contains("/moved") { "302 Found" } else { "200 OK" };
        write!(writer, "HTTP/1.1 {status}\r\n{more}Content-Length: {}\r\n\r\n{answer}", answer.len())?;
    }
}

#[test]
fn other_servers_are_asked() {
    let (url, connections) = server();
    let bench = Bench::new();
    let asked = |shape: &str| body(&bench, &shape.replace("URL", &url));
    assert_eq!(asked("local r = gate.http('URL/a?b') return r.status, r.body"), "200 GET /a?b HTTP/1.1  ");
    let fields = "local h = gate.http('URL').headers return h['x-b'], h['X-B'], h['set-cookie'][1], \
        h['Set-Cookie'][2], h['none'], h[1]";
    assert_eq!(asked(fields), "1, 2 1, 2 a=1, b c=2 nil nil");
    let sent =
        "return gate.http{ url = 'URL/p', method = 'post', body = 'hello', headers = { ['X-A'] = { 'one', 2 } } }.body";
    assert_eq!(asked(sent), "POST /p HTTP/1.1 X-A: one,X-A: 2 hello");
    assert_eq!(
        asked("return gate.http('URL/moved').status, gate.http{ url = 'URL/moved', redirects = 1 }.status"),
        "302 200"
    );
    let failures = [
        ("return gate.http{ url = 'URL/never', timeout = 0.05 }", "total-timeout"),
        ("return gate.http('URL/large')", "body-too-large"),
        ("return gate.http('http://127.0.0.1:1/')", "connect-refused"),
        ("return gate.http('unix:/no/such/socket')", "connect-not-found"),
        ("return gate.http('not a url')", "request"),
        ("return gate.http{ url = 'URL', headers = { ['Content-Length'] = 7 } }", "request"),
        ("return gate.http{ url = 'URL', headers = { ['X-A'] = 'a\\r\\nb: c' } }", "request"),
    ];
    for (shape, kind) in failures {
        let told = asked(shape);
        assert!(told.starts_with("nil ") && told.ends_with(&format!(" {kind}")), "{shape}: {told}");
    }
    let wrong = [
        ("gate.http()", "request is nil: expected a URL or a table"),
        ("gate.http{}", "url is missing"),
        ("gate.http{ url = 7 }", "url cannot be a number"),
        ("gate.http{ url = 'URL', timeout = 0 }", "timeout is 0: expected more than 0 seconds"),
        (
            "gate.http{ url = 'URL', verb = 'GET' }",
            "`verb` is not known: expected url, method, headers, body, timeout or redirects",
        ),
    ];
    for (shape, what) in wrong {
        assert_eq!(asked(shape), format!("error a.lua:1: gate.http: {what}"));
    }
    let before = connections.load(Ordering::SeqCst);
    assert_eq!(asked("for i = 1, 50 do assert(gate.http('URL')) end return 'fine'"), "fine");
    assert_eq!(connections.load(Ordering::SeqCst), before + 1, "one connection serves them all");
}

#[test]
fn json_and_digests_are_what_they_are_elsewhere() {
    let bench = Bench::new();
    let fine = [
        (
            "return gate.json_encode({ b = 1, a = { true, 1.5, 'x\"\\n' }, c = {}, d = gate.array() })",
            r#"{"a":[true,1.5,"x\"\n"],"b":1,"c":{},"d":[]}"#,
        ),
        (
            "return gate.json_encode(nil), gate.json_encode(1e15), gate.json_encode({ [2] = 'two' })",
            r#"null 1000000000000000 {"2":"two"}"#,
        ),
        (
            "local t = gate.json_decode('{\"a\": [1, null, {\"b\": \"\\\\u00e9\"}], \"c\": []}') return t.a[1], \
             t.a[2], t.a[3].b, gate.json_encode(t.c)",
            "1 nil é []",
        ),
        ("return gate.json_decode('7'), gate.json_decode('null'), gate.json_decode('\"x\"')", "7 nil x"),
        ("return gate.md5('abc')", "900150983cd24fb0d6963f7d28e17f72"),
        ("return gate.sha1('abc')", "a9993e364706816aba3e25717850c26c9cd0d89d"),
        ("return gate.sha256('abc')", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        // RFC 4231, section 4.3
        (
            "return gate.hmac_sha256('Jefe', 'what do ya want for nothing?')",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        ),
        (
            "return gate.base64_encode('\\255\\254a'), gate.base64_encode('\\255\\254a?', true), \
             gate.base64_decode('//5h') == '\\255\\254a', gate.base64_decode('__5hPw', true) == '\\255\\254a?'",
            "//5h __5hPw true true",
        ),
        (
            "return gate.now() > 1.7e9, gate.monotonic() >= 0, gate.version",
            concat!("true true ", env!("CARGO_PKG_VERSION")),
        ),
    ];
    for (shape, expected) in fine {
        let told = body(&bench, shape);
        assert_eq!(told, expected, "{shape}");
    }
    // More values than Rust can hold at once.
    let many = "local list, named = {}, {} for i = 1, 20000 do list[i] = 'v' .. i named['k' .. i] = 'v' .. i end
        local a, b = gate.json_decode(gate.json_encode(list)), gate.json_decode(gate.json_encode(named))
        return #a, a[20000], b.k20000, gate.json_encode(b) == gate.json_encode(named)";
    assert_eq!(body(&bench, many), "20000 v20000 v20000 true");
    let failures = [
        ("return gate.json_decode('{')", " json"),
        ("return gate.json_decode('1 2')", " json"),
        ("return gate.json_decode(('['):rep(200))", " json"),
        ("return gate.base64_decode('*')", " base64"),
    ];
    for (shape, kind) in failures {
        let told = body(&bench, shape);
        assert!(told.starts_with("nil ") && told.ends_with(kind), "{shape}: {told}");
    }
    let wrong = [
        ("local t = {} t.t = t gate.json_encode(t)", "value: a table contains itself"),
        (
            "local t = {} for i = 1, 100 do t = { t } end gate.json_encode(t)",
            "value: there are more than 100 tables within tables",
        ),
        (
            "local t = {} for i = 1, 20000 do t[('x'):rep(500) .. i] = 1 end gate.json_encode(t)",
            "value: it is too large: expected at most 8388608 bytes of JSON",
        ),
        ("gate.json_encode(print)", "value: a function cannot be written as JSON"),
        ("gate.json_encode(0/0)", "value: NaN cannot be written as JSON"),
        (
            "local t = { 1 } for i = 1, 90 do t = { t, t } end gate.json_encode(t)",
            "value: it is too large: expected at most 8388608 bytes of JSON",
        ),
        ("gate.json_encode('\\255')", "value: a string is not UTF-8, which JSON is"),
    ];
    for (shape, what) in wrong {
        assert_eq!(body(&bench, shape), format!("error a.lua:1: gate.json_encode: {what}"));
    }
}

#[test]
fn what_takes_long_counts_as_instructions() {
    let bench = Bench::with(|settings| settings.instructions = 100_000);
    for shape in [
        "local s = ('x'):rep(1e5) while true do gate.sha256(s) end",
        "local s = ('x'):rep(1e5) while true do pcall(gate.hmac_sha256, 'k', s) end",
        "local s = ('x'):rep(1e5) while true do gate.base64_encode(s) end",
        "local s = '[' .. ('1,'):rep(1e4) .. '1]' while true do gate.json_decode(s) end",
        "local t = {} for i = 1, 1000 do t[i] = 'value' end while true do gate.json_encode(t) end",
        "local t = { 1 } for i = 1, 90 do t = { t, t } end while true do pcall(gate.json_encode, t) end",
        "gate.cache.set('k', ('x'):rep(1e5)) while true do gate.cache.get('k') end",
        "local t = { 1 } for i = 1, 90 do t = { t, t } end while true do gate.cache.set('k', t) end",
    ] {
        let expected = "instructions a.lua:1: on_request() took more than 100000 instructions";
        assert_eq!(body(&bench, shape), expected, "{shape}");
    }
}

#[test]
fn answers_can_be_sent() {
    let bench = Bench::new();
    let replied = |shape: &str| -> Result<Reply, String> {
        run(async {
            let script = bench.load(&format!("function on_request() return {shape} end")).unwrap();
            let value: mlua::Value = script.call(Hook::Request, ()).await.map_err(|error| told(&error))?;
            Ok(Reply::of(&value).unwrap().unwrap())
        })
    };
    let plain = Reply { status: 404, headers: Vec::new(), body: b"gone".to_vec() };
    assert_eq!(replied("gate.answer(404, 'gone')"), Ok(plain.clone()));
    assert_eq!(replied("gate.answer{ status = 404, body = 'gone' }"), Ok(plain));
    let full = replied("gate.answer{ body = 7, headers = { ['X-A'] = { 'one', 2 } } }").unwrap();
    let fields = vec![("X-A".to_owned(), b"one".to_vec()), ("X-A".to_owned(), b"2".to_vec())];
    assert_eq!(full, Reply { status: 200, headers: fields, body: b"7".to_vec() });
    let redirect = replied("gate.redirect('https://a.example/b?c', 301)").unwrap();
    assert_eq!(
        (redirect.status, &*redirect.headers),
        (301, &[("Location".to_owned(), b"https://a.example/b?c".to_vec())][..])
    );
    assert_eq!(replied("gate.redirect('/b')").unwrap().status, 302);
    let wrong = [
        ("gate.answer(99)", "gate.answer: status is 99: expected 200 to 599"),
        ("gate.answer('x')", "gate.answer: status is a string: expected 200 to 599"),
        ("gate.answer{ stats = 200 }", "gate.answer: expected status, headers and body in the table, and nothing else"),
        (
            "gate.answer{ headers = { ['Transfer-Encoding'] = 'chunked' } }",
            "gate.answer: the header `Transfer-Encoding` says how the message is sent, which is the gateway's to write",
        ),
        (
            "gate.redirect('/a b')",
            "gate.redirect: url is empty or has bytes that a URL cannot have: expected them percent-encoded",
        ),
        (
            "gate.redirect('/a\\r\\nX: y')",
            "gate.redirect: url is empty or has bytes that a URL cannot have: expected them percent-encoded",
        ),
        (
            "gate.answer{ headers = { ['X-A'] = (function() local s, t = ('x'):rep(1e6), {} for i = 1, 1000 do t[i] = \
             s end return t end)() } }",
            "gate.answer: headers are too large: expected at most 65536 bytes",
        ),
        ("gate.redirect(('/'):rep(1e6))", "gate.redirect: url is too large: expected at most 65536 bytes"),
        ("gate.redirect('/a', 200)", "gate.redirect: status is 200: expected 301, 302, 303, 307 or 308"),
    ];
    for (shape, what) in wrong {
        assert_eq!(replied(shape), Err(format!("error a.lua:1: {what}")));
    }
    for shape in [
        "gate.answer{ headers = { ['X-A'] = 'a\\r\\nb: c' } }",
        "gate.answer{ headers = { ['X A'] = 'a' } }",
        "gate.answer{ headers = { ['X-A'] = 'a\\0' } }",
    ] {
        assert!(replied(shape).unwrap_err().contains("cannot be sent"), "{shape}");
    }
}
