//! Scripts of scenarios with mistakes, and hostile servers.

use std::fmt::Write as _;
use std::process::Command;

use crate::common::support::peer::{Conn, Peer, Place, Request};
use crate::common::{OROSHI, Recorded as _, to_the_end};
use crate::scenarios::{Script, check, field, response, scenario, shop};

#[test]
fn mistakes_are_named_by_file_and_line() {
    let server = Peer::answering(shop);
    let cases = [
        ("options { userz = 3 }", "shop.lua:1: options: `userz` is unknown; did you mean `users`?"),
        ("options { users = 'many' }", "shop.lua:1: options: users is \"many\": expected a number"),
        ("options { users = 0 }", "shop.lua:1: options: users is 0: expected 1 to"),
        ("\noptions { ramp = {} }", "shop.lua:2: options: ramp is a table: expected stages"),
        ("scenario('a')", "shop.lua:1: scenario: expected a function"),
        ("scenario('a', function() end) scenario('a', function() end)", "two scenarios called \"a\""),
        ("scenario('a', { weigt = 1 }, function() end)", "`weigt` is unknown: expected `weight`"),
        ("scenario('a', { weight = -1 }, function() end)", "weight is -1: expected 0 to"),
        ("x = scenario 'a' (", "shop.lua:1:"),
        ("local s = scenario\nprint(1)\nscenario('a', function(user) user:get(nil) end)", "shop.lua:3"),
        (
            "scenario('a', function(user) user:get('/', { nam = 1 }) end)",
            "the option `nam` is unknown; did you mean `name`?",
        ),
        ("scenario('a', function(user) user:get('/', { form = {}, body = '' }) end)", "expected one of them"),
        ("scenario('a', function(user) user:get('/', { expect = 'ok' }) end)", "expect is \"ok\": expected a number"),
        ("scenario('a', function(user) user:get('ftp://x/') end)", "the URL \"ftp://x/\""),
        ("scenario('a', function(user) user:html(7) end)", "html: expected a response; this is 7"),
        ("scenario('a', function(user) user:html(user:get('/')):text('h1 +') end)", "shop.lua:1"),
        ("scenario('a', function(user) think { sometimes = 3 } end)", "`sometimes` is unknown"),
        ("scenario('a', function(user) think(-1) end)", "the pause is -1: expected 0 to"),
        ("scenario('a', function(user) user.nothing.x = 1 end)", "shop.lua:1: attempt to index field 'nothing'"),
        ("scenario('a', function(user) award('x') end)", "award: points is \"x\": expected a number"),
        ("data.csv('none.csv') scenario('a', function() end)", "none.csv"),
        ("data.csv('rows.csv') scenario('a', function() end)", "rows.csv"),
        ("check('x', true) scenario('a', function() end)", "check: there is no user here"),
        ("local user = 1 scenario('a', function() end) think(1)", "think: there is no user here"),
        ("scenario('a', function(user) scenario('b', function() end) end)", "expected it at the script's top level"),
        ("every(1, 2) scenario('a', function() end)", "every: expected a function"),
        ("scenario('a', function(user) shared.set({}, 1) end)", "shop.lua:1"),
        ("scenario('a', function(user) digest.md5() end)", "shop.lua:1"),
        (
            "scenario('a', function(user) check('x', true, user:get('/')) end)",
            "check: there is a third argument: expected a name and a condition",
        ),
        (
            "scenario('a', function(user) user:submit(user:html(user:get('/')), '#login', {}, { json = {} }) end)",
            "submit: the form is the body: expected no other",
        ),
        ("scenario('a', function(user) user:get('/', { headers = { ['bad name'] = 'x' } }) end)", "`bad name`"),
        ("scenario('a', function(user) user:get('/', { headers = { Expect = 'x' } }) end)", "the client's to write"),
        ("options { headers = { X = 'a\\nb' } } scenario('a', function(user) end)", "shop.lua:1: options: headers"),
        ("scenario('a', function(user) user:request('BAD METHOD', '/') end)", "the method is \"BAD METHOD\""),
        ("math.randomseed(7) scenario('a', function() end)", "shop.lua:1: math.randomseed: the run's seed decides"),
        ("scenario('a', function(user) math.random(0) end)", "random: there is no number from 1 to 0"),
        ("options { timeout = 0 } scenario('a', function() end)", "timeout is 0: expected a time"),
        ("options { rate = 5, ramp = {{'1s', 2}} } scenario('a', function() end)", "ramp, and rate or stages"),
    ];
    for (text, expected) in cases {
        // A script that calls `scenario` is one of scenarios.
        let text =
            if text.contains("scenario(") { text.to_owned() } else { format!("{text} scenario('z', function() end)") };
        let script = Script::new(&text).with("rows.csv", "a,b\n1\n");
        let ran = script.run(&["-n", "30", "-t1", &server.url]);
        assert_eq!(ran.code, Some(1), "{text}: {ran:?}");
        assert!(ran.err.contains(expected) && ran.err.contains("shop.lua"), "{text}: expected {expected}: {}", ran.err);
    }
    let refused = [
        (&["-c", "3"][..], "--connections: a script of scenarios makes the requests: --users N"),
        (&["--pipeline", "3"], "--pipeline"),
        (&["--users", "0"], "--users: `0`: expected at least 1"),
        (&["--ramp", "5s"], "--ramp"),
        (&["-m", "PUT"], "user:post"),
    ];
    let script = Script::new("options { rate = 5, iterations = 2 } scenario('a', function() end)");
    script
        .run(&[&server.url])
        .said(1, &["iterations (--iterations) are journeys of each user", "expected journeys (-n)"]);
    let script = Script::new("scenario('a', function(user) user:get('/') end)");
    for (flags, expected) in refused {
        let ran = script.run(&[flags, &[server.url.as_str()]].concat());
        assert!(ran.code == Some(2) && ran.err.contains(expected), "{flags:?}: {ran:?}");
    }
    let ran = script.run(&[]);
    ran.said(1, &["no URL", "options { url"]);
}

#[test]
fn patterns_and_json_that_would_take_for_ever_are_errors() {
    let server = Peer::answering(|request: &Request| match request.target.as_str() {
        "/json" => response("200 OK", "", &format!("[{}[]]", "[],".repeat(1_100_000))),
        _ => response("200 OK", "", &"a".repeat(50_000)),
    });
    let script = Script::new(
        "scenario('x', function(user)\n\
         local ok, why = pcall(string.find, user:get('/').body, ('.-'):rep(30) .. 'b')\n\
         check('pattern', not ok and tostring(why):match('too many steps'))\n\
         local value, why = user:get('/json'):json()\n\
         check('json', value == nil and why:match('more than 1000000 lists and objects'))\nend)",
    );
    let record = script.record(&["-n", "1", "-t1", "-T", "60s", &server.url]);
    assert_eq!(
        (check(&record, "pattern").failed, check(&record, "json").failed),
        (0, 0),
        "{:?}",
        scenario(&record).checks
    );
}

#[test]
fn scripts_that_loop_leak_or_never_yield_end_on_time_and_by_line() {
    let server = Peer::answering(shop);
    let cases = [
        (
            "scenario('a', function(user)\n user:get('/')\n while true do end\nend)",
            "shop.lua:3",
            "did not return within",
        ),
        (
            "scenario('a', function(user)\n local t = {}\n while true do t[#t + 1] = ('x'):rep(1e5) .. #t end\nend)",
            "shop.lua:1",
            "not enough memory",
        ),
        ("while true do end scenario('a', f)", "shop.lua:1", "did not return within"),
        ("scenario('a', function(user)\n coroutine.yield(1)\nend)", "shop.lua:2", "yield"),
        (
            "every(0.01, function()\n while true do end\nend)\nscenario('a', function(user) think(0.01) end)",
            "shop.lua:2",
            "did not return within",
        ),
        (
            "initialize(function()\n while true do end\nend)\nscenario('a', function(user) user:get('/') end)",
            "shop.lua:2",
            "did not return within",
        ),
        ("local function f(n)\n return 1 + f(n + 1)\nend\nscenario('a', function() f(1) end)", "shop.lua:2", "stack"),
    ];
    for (text, place, what) in cases {
        let script = Script::new(&format!("options {{ memory = 67108864, users = 2 }} {text}"));
        let ran = script.run(&["-d", "2s", "-t1", "--script-limit", "500ms", &server.url]);
        assert!(ran.code == Some(1) && ran.err.contains(place) && ran.err.contains(what), "{text}: {ran:?}");
    }
    // A script that never waits does not keep other users, nor the end, from coming.
    let script = Script::new("options { users = 2 } scenario('a', function(user) shared.add('n') end)");
    let record = script.run(&["-d", "300ms", "-t1", "--format", "json", &server.url]).record();
    assert!(
        scenario(&record).journeys[0].completed > 100 && record.elapsed_s < 20.0,
        "{:?}",
        scenario(&record).journeys
    );
}

/// What a hostile server sends, and what the command may use for it: 1 GiB of address space beyond its own.
#[test]
fn hostile_servers_cost_a_bounded_amount() {
    let page = |body: String| response("200 OK", "Content-Type: text/html\r\n", &body);
    let mut cookies = String::new();
    for number in 0..10_000 {
        writeln!(cookies, "Set-Cookie: c{number}={}; Path=/", "x".repeat(3)).unwrap();
    }
    let server = Peer::start(Place::Tcp, move |mut conn: Conn| {
        while let Some(request) = conn.request() {
            let answer = match request.target.split('?').next().unwrap() {
                "/loop" => response("302 Found", "Location: /loop\r\n", ""),
                "/cookies" => {
                    let few = cookies.lines().skip(request.number as usize % 50 * 200).take(60);
                    let few = few.fold(String::new(), |text, line| text + line + "\r\n");
                    response("200 OK", &few, &field(&request, "Cookie").map_or(0, str::len).to_string())
                }
                "/deep" => page("<div class=a>".repeat(600_000)),
                "/attributes" => page(format!("<p {}>x</p>", "a=b ".repeat(1_000_000))),
                "/assets" => page((0..5_000).fold(String::new(), |text, n| text + &format!("<img src=/i/{n}>"))),
                "/endless" => page((0..200_000).fold(String::new(), |text, n| text + &format!("<img src=/i/{n}>"))),
                "/huge" => {
                    // A gigabyte, unless somebody stops reading.
                    let piece = vec![b'x'; 1 << 20];
                    conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n");
                    while conn.send(piece.clone()) {}
                    return;
                }
                "/bomb" => {
                    // Zeros that inflate a thousand times: 64 KiB of gzip of 64 MiB.
                    let body = gzip_of_zeros(64 << 20);
                    let mut answer =
                        format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", body.len())
                            .into_bytes();
                    answer.extend_from_slice(&body);
                    answer
                }
                _ => response("200 OK", "", "x"),
            };
            if !conn.send(answer) {
                return;
            }
        }
    });
    let script = Script::new(
        r#"
options { users = 2, iterations = 3, timeout = "60s", body_limit = 16000000 }
scenario("hostile", function(user)
  local loop = user:get("/loop")
  check("loop ends", loop.error == "too-many-redirects" and loop.redirects == 10)
  for i = 1, 50 do user:get("/cookies?" .. i, { name = "cookies" }) end
  check("cookies are bounded", tonumber(user:get("/cookies", { name = "cookies" }).body) < 5000)
  for _, path in ipairs { "/deep", "/attributes" } do
    local page = user:html(user:get(path))
    local ok, why = pcall(function() return page:text("p") or page:count("div.a b") end)
    check(path .. " is answered or refused", ok or why:find("nest too deep") or why:find("attributes"))
  end
  check("assets are bounded", #user:assets(user:html(user:get("/assets"))) == 100)
  local ok, why = pcall(function() user:assets(user:html(user:get("/endless"))) end)
  check("endless assets are refused", not ok and why:find("more than 10000 links"))
  check("a gigabyte is refused", user:get("/huge").error == "body-too-large")
  check("a bomb is refused", user:get("/bomb").error == "body-too-large")
end)
"#,
    );
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh", OROSHI, "bench", "-t1", "--format", "json", "-s"]);
    command.arg(script.path()).arg(&server.url);
    let ran = to_the_end(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let record = ran.record();
    for check in &scenario(&record).checks {
        assert_eq!((check.passed, check.failed), (6, 0), "{check:?}");
    }
    assert_eq!(scenario(&record).journeys[0].completed, 6, "{:?}", scenario(&record).fails);
}

/// So many zeros in gzip: stored by deflate's own run lengths.
fn gzip_of_zeros(bytes: usize) -> Vec<u8> {
    use std::io::Write as _;
    use std::process::Stdio;
    let mut gzip = Command::new("gzip").arg("-9c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = gzip.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let zeros = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            input.write_all(&zeros).unwrap();
        }
    });
    let out = gzip.wait_with_output().unwrap().stdout;
    writer.join().unwrap();
    out
}
