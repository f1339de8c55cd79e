//! Scripts of whole recordings and commands. Each is read by LuaJIT, and played on a mock of the API.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Loads a script in LuaJIT, and returns the requests that its journey makes.
#[track_caller]
fn play(script: &str) -> String {
    let lua = mlua::Lua::new();
    lua.load(include_str!("recordings/mock.lua")).exec().unwrap();
    lua.load(script).set_name("=script").exec().unwrap_or_else(|error| panic!("{error}\n{script}"));
    let played: mlua::LuaString = lua.load("return played()").eval().unwrap();
    played.to_string_lossy()
}

fn har(entries: &[Value]) -> String {
    json!({"log": {"version": "1.2", "entries": entries}}).to_string()
}

/// A GET that is answered with 200, a second after the one before.
fn entry(second: usize, url: &str, more: &Value) -> Value {
    let mut entry = json!({
        "startedDateTime": format!("2026-05-21T10:{:02}:{:02}.000Z", second / 60, second % 60),
        "time": 1000,
        "request": {"method": "GET", "url": url, "headers": []},
        "response": {"status": 200, "headers": [], "content": {"mimeType": "application/json"}},
    });
    for (pointer, value) in more.as_object().into_iter().flatten() {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        entry.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(name.to_owned(), value.clone());
    }
    entry
}

fn post(kind: &str, text: &str) -> Value {
    json!({"/request/method": "POST", "/request/postData": {"mimeType": kind, "text": text},
           "/request/headers": [{"name": "Content-Type", "value": kind}]})
}

fn from(entries: &[Value]) -> String {
    from_har(&har(entries), &Options::default()).unwrap()
}

fn curl(text: &str) -> Result<String, ImportError> {
    let files = |path: &str| match path {
        "a.json" => Ok(b"{\"a\":\r\n1}".to_vec()),
        "b.bin" => Ok(vec![0, 255, b'"']),
        _ => no_files(path),
    };
    from_curl(Commands::Text(text), &Options { assets: Assets::None, ..Options::default() }, &files)
}

/// `OROSHI_WRITE=1 cargo test -p oroshi-scenario import` rewrites the scripts.
#[test]
fn recordings_of_three_browsers_become_these_scripts() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/import/recordings"));
    for browser in ["chromium", "firefox", "safari"] {
        let text = fs::read_to_string(folder.join(format!("{browser}.har"))).unwrap();
        let options = Options { source: format!("{browser}.har"), ..Options::default() };
        let script = from_har(&text, &options).unwrap();
        let played = play(&script);
        assert_eq!(from_har(&text, &options).unwrap(), script, "the same each time");
        for (ending, now) in [("lua", &script), ("played", &played)] {
            let path = folder.join(format!("{browser}.{ending}"));
            if std::env::var_os("OROSHI_WRITE").is_some() {
                fs::write(&path, now).unwrap();
            }
            assert_eq!(*now, fs::read_to_string(&path).unwrap_or_default(), "{browser}.{ending}");
        }
        for secret in ["correct", "eyJ", "abc.def", "4711", "sid=", "xyz-1"] {
            assert!(!script.contains(secret), "{browser}: {secret}\n{script}");
        }
        assert!(script.lines().all(|line| line.len() <= 160), "{script}");
        let kept = from_har(&text, &Options { keep_secrets: true, ..options }).unwrap();
        assert!(!kept.contains("CHANGE-ME"));
        play(&kept);
    }
}

#[test]
fn assets_are_listed_or_left_out() {
    let text = include_str!("recordings/chromium.har");
    let with = |assets| play(&from_har(text, &Options { assets, ..Options::default() }).unwrap());
    let (page, list, none) = (with(Assets::Page), with(Assets::List), with(Assets::None));
    assert!(page.contains("assets of top") && !page.contains("/shop.css"), "{page}");
    assert!(list.contains("shop.css: GET /shop.css {expect=200}") && !list.contains("assets of"), "{list}");
    assert!(!none.contains("shop.css") && !none.contains("assets of"), "{none}");
}

#[test]
fn other_hosts_are_kept_if_they_are_named() {
    let entries = [
        entry(0, "http://a.example/", &json!({})),
        entry(1, "http://api.example:81/x", &json!({})),
        entry(2, "http://b.example/y", &json!({})),
    ];
    let with = |hosts: &[&str]| {
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        from_har(&har(&entries), &Options { hosts, ..Options::default() }).unwrap()
    };
    let script = with(&[]);
    assert!(
        script.contains("Left out: 2 requests to other hosts: api.example:81 (1), b.example (1). --host"),
        "{script}"
    );
    assert_eq!(play(&script), "options {url=\"http://a.example\" users=1}\ntop: GET / {expect=200}");
    for host in ["api.example", "API.example:81"] {
        assert!(play(&with(&[host])).ends_with("x: GET http://api.example:81/x {expect=200}"), "{host}");
    }
    assert!(!with(&["api.example:80"]).contains("/x"));
}

#[test]
fn redirects_are_folded_where_the_browser_followed() {
    let redirect = |status: u16, to: &str| json!({"/response/status": status, "/response/redirectURL": to});
    let entries = [
        entry(0, "http://a/", &redirect(302, "/login")),
        entry(1, "http://a/login#form", &redirect(301, "/login/")),
        entry(2, "http://a/login/", &json!({})),
        entry(3, "http://a/oauth", &redirect(302, "http://id/authorize")),
        entry(4, "http://id/authorize", &redirect(302, "http://a/back")),
        entry(5, "http://a/back", &json!({})),
        entry(6, "http://a/lost", &redirect(307, "/gone")),
    ];
    let played = play(&from(&entries));
    assert_eq!(
        played.lines().skip(1).collect::<Vec<_>>(),
        [
            "top: GET / {expect=200}",
            "oauth: GET /oauth {expect=302 redirects=0}",
            "think 1",
            "back: GET /back {expect=200}",
            "lost: GET /lost {expect=307 redirects=0}"
        ],
        "{played}"
    );
}

#[test]
fn pauses_of_the_user_are_rounded_and_bounded() {
    let quick = |second, took| entry(second, "http://a/", &json!({"/time": took}));
    let mut entries = vec![quick(0, 1000), quick(1, 1000), quick(4, 250), quick(30, 0), quick(3000, 0)];
    entries.reverse();
    let played = play(&from(&entries));
    let pauses: Vec<_> = played.lines().filter(|line| line.starts_with("think")).collect();
    assert_eq!(pauses, ["think 2", "think 26", "think 300"], "{played}");
}

#[test]
fn values_that_come_back_are_taken_from_responses() {
    let answer = |kind: &str, text: &str| json!({"/response/content": {"mimeType": kind, "text": text}});
    let token = "aGVsbG8gd29ybGQ9";
    let entries = [
        entry(
            0,
            "http://a/s",
            &answer(
                "application/json",
                &format!(r#"{{"session":{{"key":"{token}","n":[7,4812]}},"q":"typed-12345"}}"#),
            ),
        ),
        entry(1, &format!("http://a/x/{token}/4812?key={token}&z=1"), &json!({})),
        entry(
            2,
            "http://a/y",
            &post("application/json", &format!(r#"{{"key":"{token}","n":4812,"other":4812,"none":null}}"#)),
        ),
        entry(3, "http://a/z", &post("text/plain", &format!("before {token} after"))),
    ];
    let script = from(&entries);
    let played = play(&script);
    assert!(!script.contains(token), "{script}");
    assert!(script.contains("local key = answer.session.key -- comes back in "), "{script}");
    assert!(
        played.contains(
            "x key n: GET /x/s.session.key/s.session.n.2 {expect=200 query={key=\"<s.session.key>\" z=\"1\"}}"
        ),
        "{played}"
    );
    assert!(played.contains("body=\"before s.session.key after\""), "{played}");
    assert!(played.contains("\\\"n\\\":4812") && played.contains("\\\"key\\\":\\\"s.session.key\\\""), "{played}");
}

#[test]
fn what_the_user_typed_is_not_taken_from_its_echo() {
    let echo = json!({"/response/content": {"mimeType": "application/json", "text": r#"{"name":"alice-2000","new":"fresh-2000"}"#}});
    let mut first = entry(0, "http://a/1", &echo);
    first["request"]["url"] = json!("http://a/1?name=alice-2000");
    let script = from(&[first, entry(1, "http://a/2?name=alice-2000&new=fresh-2000", &json!({}))]);
    assert!(script.contains("query = { name = \"alice-2000\", new = new }"), "{script}");
}

#[test]
fn steps_have_readable_names_of_their_own() {
    let urls =
        ["/", "/items/42/edit", "/items/42/edit", "/?a", "/0123456789012345678901234567890123/x", "/%22%0a%2f", "/top"];
    let entries: Vec<_> =
        urls.iter().enumerate().map(|(n, url)| entry(n, &format!("http://a{url}"), &json!({}))).collect();
    let script = from(&entries);
    let names: Vec<_> = script.lines().filter_map(|line| line.split("name = \"").nth(1)?.split('"').next()).collect();
    assert_eq!(names, ["top", "items 42 edit", "items 42 edit 2", "top 2", "x", "top 3", "top 4"]);
}

#[test]
fn secrets_of_any_body_stay_out() {
    let form = "application/x-www-form-urlencoded";
    for (kind, text, expected) in [
        (form, "password=hunter2x&flag", "body=\"password=CHANGE-ME&flag\""),
        (form, "a=1&user[pass]=hunter2x", "form={a=\"1\" user[pass]=\"CHANGE-ME\"}"),
        (
            "application/json",
            r#"{"pass\u0077ord":"hunter2\u0078","a":null}"#,
            r#"{\"a\":null,\"password\":\"CHANGE-ME\"}"#,
        ),
        ("application/json", r#"[{"password":"hunter2x"}]"#, "json={1={password=\"CHANGE-ME\"}}"),
        ("application/json", r#"{"pin":77341}"#, "json={pin=0}"),
    ] {
        let script = from(&[entry(0, "http://a/", &post(kind, text))]);
        assert!(!script.contains("hunter2") && !script.contains("77341"), "{script}");
        assert!(play(&script).contains(expected), "{text}: {}", play(&script));
        assert!(script.contains("data.csv("), "{script}");
    }
    let script = from(&[entry(0, "http://a/", &post("text/xml", "<password>x</password>"))]);
    assert!(script.contains("A body may contain a password"), "{script}");
}

#[test]
fn large_recordings_become_scripts_within_luajits_limits() {
    let object = (0..900).map(|n| format!("\"key{n}\":[\"v{n}\"]")).collect::<Vec<_>>().join(",");
    let many: Vec<_> = (0..MOST_REQUESTS)
        .map(|n| entry(n, &format!("http://a/{n}"), &post("application/json", &format!("{{{object},\"n\":{n}}}"))))
        .collect();
    let script = from(&many);
    assert!(play(&script).lines().count() == MOST_REQUESTS + 1);
    assert!(script.contains("fillers of the same size replace"), "{}", &script[..1000]);

    let answers = (0..150).map(|n| format!("\"token{n}\":\"value-{n:06}\"")).collect::<Vec<_>>().join(",");
    let text = json!({"/response/content": {"mimeType": "application/json", "text": format!("{{{answers}}}")}});
    let mut entries = vec![entry(0, "http://a/", &text)];
    entries.extend((0..150).map(|n| entry(n + 1, &format!("http://a/x?t=value-{n:06}"), &json!({}))));
    let script = from(&entries);
    assert!(script.contains("More values come back") && play(&script).contains("t=\"<top.token99>\""), "{script}");

    let long = entry(0, "http://a/", &post("text/plain", &"y".repeat(BODY_BYTES + 1)));
    assert!(play(&from(&[long])).contains(&"x".repeat(BODY_BYTES + 1)));
    let deep = entry(0, "http://a/", &post("application/json", &("[".repeat(49) + &"]".repeat(49))));
    play(&from(&[deep]));
    let spans =
        entry(0, "http://a/", &post("application/json", &format!("[null{}]", ",{\"password\":\"x\"}".repeat(200))));
    play(&from(&[spans]));

    let too_many: Vec<_> = (0..=MOST_REQUESTS).map(|n| entry(n, "http://a/", &json!({}))).collect();
    let error = from_har(&har(&too_many), &Options::default()).unwrap_err().to_string();
    assert!(error.starts_with("the script has more than 2,000 requests to a: expected at most 2,000"), "{error}");
}

#[test]
fn a_recording_without_requests_says_what_was_expected() {
    let failed = entry(0, "http://a/", &json!({"/response/status": 0}));
    for entries in [&[][..], &[failed], &[entry(0, "data:text/html,x", &json!({}))]] {
        let error = from_har(&har(entries), &Options::default()).unwrap_err().to_string();
        assert!(error.contains("no request with a response: expected at least one"), "{error}");
    }
}

#[test]
fn commands_become_requests() {
    for (text, expected) in [
        ("curl http://a:1", "top: GET / {redirects=0}"),
        ("curl a/b?c=d -L --max-redirs 3 -m 2.5", "b: GET /b?c=d {redirects=3 timeout=2.5}"),
        ("curl -sSLI http://a/x", "head x: HEAD /x {}"),
        ("curl -L -XPUT -d a=1 -d 'b=2 3' http://a", "put top: PUT / {form={a=\"1\" b=\"2 3\"}}"),
        ("curl -L http://a -G -d q=1 --data-urlencode 'r=ä &' -H 'Accept: */*'", "top: GET /?q=1&r=%C3%A4+%26 {}"),
        (
            "curl -L http://a --data-urlencode =b",
            "{body=\"b\" headers={Content-Type=\"application/x-www-form-urlencoded\"}}",
        ),
        (
            "curl -L --json '{\"a\":[1]}' http://a",
            "post top: POST / {headers={Accept=\"application/json\"} json={a={1=1}}}",
        ),
        ("curl -L http://a -d @a.json -H content-type:application/json", "json={a=1}"),
        ("curl -L http://a --data-binary @a.json -H 'Content-Type: text/plain'", "body=\"{\\\"a\\\":\\13\\\n1}\""),
        ("curl -L http://a --data-binary @b.bin", "body=\"\\0\u{fffd}\\\"\""),
        (
            "curl -L http://a -F t=x -F 'f=@b.bin;type=image/png;filename=c' -F 'g=@a.json' --form-string h=@x",
            "multipart={f={body=\"\\0\u{fffd}\\\"\" filename=\"c\" type=\"image/png\"} g={body=",
        ),
        ("curl -L http://a -b 'a=b; c=d'", "cookie a=CHANGE-ME\ncookie c=CHANGE-ME\ntop: GET / {}"),
        ("curl -L http://a -H 'Cookie: a=b'", "cookie a=CHANGE-ME"),
        ("curl -L -u 'al:pw' http://a", "headers={Authorization=\"Basic base64(al:CHANGE-ME)\"}"),
        ("curl -L http://al:p%40@a", "headers={Authorization=\"Basic base64(al:CHANGE-ME)\"}"),
        ("curl -L http://a --oauth2-bearer t0k3n", "headers={Authorization=\"Bearer CHANGE-ME\"}"),
        ("curl -L 'http://a/?token=t0k3n&b'", "query={b=\"\" token=\"CHANGE-ME\"}"),
        ("curl -L http://127.0.0.1 -H 'Host: shop' -A me -e http://b -H 'X-Empty;' -H 'User-Agent:'", "Host=\"shop\""),
        ("curl -L -o /dev/null -w '%{http_code}' -k --compressed --no-progress-meter http://a", "top: GET / {}"),
        (
            "curl -L http://a --next -L http://a/2 -d x=1\ncurl -L http://b/3",
            "top: GET / {}\npost 2: POST /2 {form={x=\"1\"}}\n3: GET http://b/3 {}",
        ),
        (
            r"curl -L 'http://a/x' -H $'x-q: it\'s' --data-raw $'{\u0022a\u0022:\u0022\u0021\\n\u0022}' -H 'content-type: application/json'",
            "{headers={x-q=\"it's\"} json={a=\"!\\\n\"}}",
        ),
    ] {
        let script = curl(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let played = play(&script);
        assert!(played.contains(expected), "{text}\n{played}\n{script}");
        assert!(!script.contains("t0k3n") && !script.contains("pw\""), "{script}");
    }
    assert!(curl("curl -k --cacert a.pem http://a").unwrap().contains("-- Add to the command: -k --cacert a.pem."));
    let words = ["curl", "-L", "http://a", "curl", "-d", "x&y z", "http://a/b"].map(str::to_owned);
    let script = from_curl(Commands::Words(&words), &Options::default(), &no_files).unwrap();
    assert!(play(&script).contains("top: GET / {}\npost b: POST /b {body=\"x&y z\""), "{script}");
}

#[test]
fn mistakes_in_commands_name_the_line_and_what_to_do() {
    let cookies = |count| (0..count).map(|n| format!("a{n}=b;")).collect::<String>();
    for (text, expected) in [
        ("", "there is no command: expected one such as curl 'http://localhost:8080/'"),
        ("curl http://a\n\nwget b", "line 3: `wget` is no curl command"),
        (
            "curl http://a?b=1&c=2",
            "line 1: `c=2` is no curl command: expected `curl URL ...`; quote a URL that has & in it",
        ),
        ("curl -L", "line 1: the command has no URL"),
        ("curl a --haeder x", "line 1: `--haeder` is no flag of curl that a script can have: did you mean --header?"),
        ("curl a -!", "line 1: `-!` is no flag of curl"),
        ("curl a -H", "line 1: -H ends the command: expected its value"),
        ("curl a -H x", "line 1: -H is `x`: expected 'NAME: VALUE'"),
        ("curl a -d @nowhere", "line 1: -d: nowhere cannot be read: files are not read here"),
        ("curl a -d @-", "line 1: -d reads standard input"),
        ("curl a -b jar.txt", "line 1: -b is the file jar.txt"),
        ("curl a -x proxy:1", "line 1: -x: scenarios use no proxy: remove it"),
        ("curl a -F x", "line 1: -F is `x`: expected NAME=VALUE"),
        ("curl a -F x=1 -F x=2", "line 1: -F has several parts `x`"),
        ("curl a -F x=1 -d y", "line 1: -F and -d are both the body"),
        ("curl ftp://a", "line 1: the URL is `ftp://a`: expected http://"),
        (&*format!("curl a {}", "-H a:b ".repeat(201)), "line 1: there are more than 200 headers"),
        (&*format!("curl a -b '{}'", cookies(201)), "line 1: -b has more than 200 cookies"),
        ("curl 'http://['", "line 1: the URL is `http://[`"),
        ("curl a -m soon", "line 1: -m is `soon`: expected seconds"),
    ] {
        let said = curl(text).map(|script| panic!("{text}: {script}")).unwrap_err().to_string();
        assert!(said.starts_with(expected), "{text}: {said}");
    }
}

proptest! {
    #[test]
    fn any_field_of_a_recording_is_safe_in_the_script(
        words in proptest::collection::vec(any::<String>(), 8),
        kind in proptest::sample::select(vec!["application/json", "application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=b"]),
    ) {
        let body = match kind {
            "application/json" => json!({words[0].clone(): [words[1].clone(), {words[2].clone(): 1.5}]}).to_string(),
            "application/x-www-form-urlencoded" => url::form_urlencoded::Serializer::new(String::new()).append_pair(&words[0], &words[1]).finish(),
            "multipart/form-data; boundary=b" => format!("--b\r\nContent-Disposition: form-data; name=\"{}\"\r\n\r\n{}\r\n--b--\r\n", words[0], words[1]),
            _ => words[0].clone(),
        };
        let mut first = entry(0, "http://a/", &post(kind, &body));
        first["pageref"] = json!("p");
        first["request"]["headers"].as_array_mut().unwrap().push(json!({"name": "X-A", "value": words[3]}));
        first["response"]["content"] = json!({"mimeType": "text/html", "text": words[4]});
        let mut url = url::Url::parse("http://a/").unwrap();
        url.set_path(&words[5]);
        url.set_query(Some(&words[6]));
        let file = json!({"log": {"browser": {"name": words[7]}, "pages": [{"id": "p", "title": words[7]}], "entries": [first, entry(1, url.as_str(), &json!({}))]}});
        let script = from_har(&file.to_string(), &Options { source: words[7].clone(), ..Options::default() }).unwrap();
        play(&script);
    }

    #[test]
    fn any_text_is_an_error_or_a_script(text in any::<String>(), flags in "curl( (-[a-zA-Z]|'[^']{0,9}'|--data-raw|http://a/))*") {
        if let Ok(script) = from_har(&text, &Options::default()) {
            play(&script);
        }
        for text in [&*text, &*flags, &*format!("curl a -d '{text}'")] {
            if let Ok(script) = curl(text) {
                play(&script);
            }
        }
    }
}
