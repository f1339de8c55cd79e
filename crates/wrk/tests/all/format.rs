//! The bytes from `wrk.format`, and its effects on its tables.

use crate::common;
use crate::common::{Case, case, next};

/// Returns the request of a script that only sets values.
fn fixed(case: &Case) -> String {
    String::from_utf8(case.one(|part| part.features().request.unwrap())).unwrap()
}

fn made(script: &str) -> String {
    fixed(&case(script, 1))
}

/// Returns the header lines from a call.
fn lines(call: &str) -> Vec<String> {
    let text = case(&format!("function request() return {call} end"), 1).one(next);
    text.split("\r\n").map(str::to_owned).collect()
}

#[test]
fn without_anything_it_is_the_url_s_request() {
    assert_eq!(made(""), "GET /path?query HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n");
}

#[test]
fn host_and_path_are_read_off_the_url_as_wrk_reads_them() {
    for (url, line, host, port) in [
        ("http://localhost", "GET / ", "localhost", "nil"),
        ("http://localhost:80/", "GET / ", "localhost:80", "80"),
        ("https://localhost?a=b", "GET /?a=b ", "localhost", "nil"),
        ("http://[::1]:8080/x#y", "GET /x ", "[::1]:8080", "8080"),
        ("http://[::1]/", "GET / ", "[::1]", "nil"),
        ("unix:/run/app.sock:/x", "GET /x ", "localhost", "nil"),
        ("http://unix:/run/app.sock:/x", "GET /x ", "localhost", "nil"),
        ("http+unix://%2Frun%2Fapp.sock/x", "GET /x ", "localhost", "nil"),
    ] {
        let script = format!("function init() assert(tostring(wrk.port) == {port:?}, type(wrk.port)) end");
        let request = fixed(&case(&script, 1).at(url));
        assert!(request.starts_with(line), "{url}: {request}");
        assert!(request.contains(&format!("\r\nHost: {host}\r\n")), "{url}: {request}");
    }
    let v6 = "function init() assert(wrk.host == '::1' and wrk.port == '8080' and wrk.scheme == 'https') end";
    fixed(&case(v6, 1).at("https://[::1]:8080/"));
}

#[test]
fn another_socket_leaves_the_host_as_it_is() {
    let mut case = case("", 1).at("http://example.com:81/a");
    let socket = oroshi_net::UnixAddress::parse("/run/app.sock").unwrap();
    case.options.url = case.options.url.clone().with_unix(socket.clone());
    case.peers = vec![socket.clone().into()];
    let features = case.one(|part| part.features());
    assert_eq!(features.peer, Some(socket.into()));
    assert!(features.request.unwrap().starts_with(b"GET /a HTTP/1.1\r\nHost: example.com:81\r\n"));
}

#[test]
fn flags_are_in_the_table_before_the_script() {
    let mut case = case(
        "assert(wrk.method == 'PUT' and wrk.body == 'a\\0b' and wrk.headers['x-a'] == '2' and wrk.headers['X-A'] == \
         nil)",
        1,
    );
    case.options.method = Some("PUT".into());
    case.options.body = Some(b"a\0b".to_vec());
    case.options.headers = [("X-A", "1"), ("Host", "other"), ("x-a", "2")].map(|(n, v)| (n.into(), v.into())).to_vec();
    let expected = "PUT /path?query HTTP/1.1\r\nHost: other\r\nx-a: 2\r\nContent-Length: 3\r\n\r\na\0b";
    assert_eq!(fixed(&case), expected);
}

#[test]
fn a_script_that_only_sets_values_needs_no_call() {
    let script = "wrk.method = 'POST' wrk.body = '{\"a\":1}' wrk.headers['Content-Type'] = 'application/json'";
    let expected = "POST /path?query HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\n\
                    Content-Length: 7\r\n\r\n{\"a\":1}";
    assert_eq!(made(script), expected);
    let in_init = "function init() wrk.path = '/later' wrk.headers.Host = 'there' end";
    assert_eq!(made(in_init), "GET /later HTTP/1.1\r\nHost: there\r\n\r\n");
    // wrk.request() returns a request made before the run: later changes affect wrk.format only.
    let later = "function request() wrk.path = '/changed' return wrk.request() end";
    assert!(case(later, 1).one(next).starts_with("GET /path?query "));
}

#[test]
fn arguments_take_the_place_of_the_table_s_values() {
    assert_eq!(lines("wrk.format('PUT', '/x')")[..2], ["PUT /x HTTP/1.1", "Host: 127.0.0.1:8080"]);
    assert_eq!(lines("wrk.format(nil, nil, {})"), ["GET /path?query HTTP/1.1", "Host: 127.0.0.1:8080", "", ""]);
    let posted = lines("wrk.format('POST', '/', { A = 'b' }, 'body')");
    assert_eq!(posted, ["POST / HTTP/1.1", "Host: 127.0.0.1:8080", "A: b", "Content-Length: 4", "", "body"]);
    assert_eq!(
        lines("wrk.format(nil, 5, {}, '')"),
        ["GET 5 HTTP/1.1", "Host: 127.0.0.1:8080", "Content-Length: 0", "", ""]
    );
    assert_eq!(lines("wrk.format(nil, '/', {}, 12.5)")[2..], ["Content-Length: 4", "", "12.5"]);
}

#[test]
fn headers_come_in_the_table_s_order_behind_host() {
    let script = "
        names = {} for i = 1, 30 do names[i] = 'X-' .. i wrk.headers['X-' .. i] = 'v' .. i end
        function request()
            -- What wrk.format adds to the table is there already, and changes its order no more.
            wrk.headers['Content-Length'] = 1
            local order = {}
            for name in pairs(wrk.headers) do if name:sub(1, 2) == 'X-' then order[#order + 1] = name end end
            return wrk.format(nil, '/', nil, table.concat(order, ','))
        end";
    let text = case(script, 1).one(next);
    let (head, order) = text.split_once("\r\n\r\n").unwrap();
    let sent: Vec<&str> = head.lines().skip(1).map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!((sent[0], sent[31]), ("Host", "Content-Length"));
    assert_eq!(sent[1..31].join(","), order);
}

#[test]
fn values_are_written_as_lua_writes_them() {
    let script = "
        local ip = setmetatable({}, { __tostring = function() return '1.2.3.4' end })
        function request()
            return wrk.format(nil, '/', { A = 1, B = 1.5, C = true, D = 1e15, E = 2LL, F = ip, G = '', H = \
                  wrk.thread.addr })
        end";
    let text = case(script, 1).one(next);
    for line in ["A: 1", "B: 1.5", "C: true", "D: 1e+15", "E: 2LL", "F: 1.2.3.4", "G: ", "H: 127.0.0.1:8080"] {
        assert!(text.contains(&format!("\r\n{line}\r\n")), "{line}: {text}");
    }
}

#[test]
fn a_value_may_make_requests_of_its_own() {
    let object = "setmetatable({}, { __tostring = function() \
        return tostring(#wrk.format('PUT', '/inner', { I = 1, Host = 'inner' }, 'body')) end })";
    let expected = ["GET /outer HTTP/1.1", "Host: 127.0.0.1:8080", "A: 1", "O: 65", "Z: 2", "", ""];
    let mut found = lines(&format!("wrk.format('GET', '/outer', {{ A = 1, O = {object}, Z = 2 }})"));
    // After Host they are in the table's order.
    let end = found.len() - 2;
    found[2..end].sort();
    assert_eq!(found, expected);
    let host = lines(&format!("wrk.format('GET', '/outer', {{ Host = {object} }})"));
    assert_eq!(host, ["GET /outer HTTP/1.1", "Host: 65", "", ""]);
}

#[test]
fn host_is_sent_once_however_it_is_written() {
    assert_eq!(lines("wrk.format(nil, '/', { hOST = 'a' })"), ["GET / HTTP/1.1", "Host: a", "", ""]);
    assert_eq!(lines("wrk.format(nil, '/', { host = 'a', Host = 'b' })"), ["GET / HTTP/1.1", "Host: b", "", ""]);
    let flag = "function request() return wrk.format(nil, '/', { A = 'b' }) end";
    let mut case = case(flag, 1);
    case.options.headers = vec![("host".into(), "c".into())];
    assert_eq!(case.one(next), "GET / HTTP/1.1\r\nHost: c\r\nA: b\r\n\r\n");
    // wrk has no Host before wrk.init, and then sends none.
    let early = "local early = wrk.format('GET', '/early') function request() return early end";
    assert!(common::case(early, 1).one(next).contains("\r\nHost: 127.0.0.1:8080\r\n"));
    let gone = "function init() wrk.headers.Host = nil end function request() return wrk.format() end";
    assert!(common::case(gone, 1).one(next).contains("\r\nHost: 127.0.0.1:8080\r\n"));
}

#[test]
fn the_length_is_the_body_s() {
    let script = "
        local headers = { ['content-length'] = 99, ['Content-Length'] = 5 }
        function request()
            n = (n or 0) + 1
            local text = wrk.format('POST', '/', headers, n % 2 == 1 and 'four' or nil)
            assert(headers['Content-Length'] == (n % 2 == 1 and 4 or nil) and headers.Host == '127.0.0.1:8080')
            return text
        end";
    let texts = case(script, 1).one(|part| [next(part), next(part), next(part)]);
    assert_eq!(texts[0], "POST / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Length: 4\r\n\r\nfour");
    assert_eq!(texts[1], "POST / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n");
    assert_eq!(texts[2], texts[0]);
}

#[test]
fn no_change_of_the_headers_is_missed() {
    // Every kind of change between two calls: each must take effect, and be reversible.
    let changes = [
        ("", ""),
        ("h.B = '9'", "h.B = '2'"),
        ("h.C = '3'", "h.C = nil"),
        ("h.A = nil", "h.A = '1'"),
        ("h.Host = 'x'", "h.Host = nil"),
        ("rawset(h, 'D', 4)", "h.D = nil"),
        ("h.A, h.Z = nil, '1'", "h.A, h.Z = '1', nil"),
        ("wrk.headers.Host = 'y'; h.Host = nil", "wrk.headers.Host = '127.0.0.1:8080'; h.Host = nil"),
        ("h = { B = '2', A = '1' }", "h = { A = '1', B = '2' }"),
        ("h = {}", "h = { A = '1', B = '2' }"),
        ("pcall(wrk.format, nil, nil, { A = '1', B = 'a\\n' })", ""),
        ("pcall(wrk.format, nil, nil, { A = '1', ['B '] = '' })", ""),
        ("for i = 1, 17 do h['X' .. i] = i end", "for i = 1, 17 do h['X' .. i] = nil end"),
    ];
    let script = changes.iter().fold("h = { A = '1', B = '2' } steps = {".to_owned(), |text, (there, back)| {
        text + &format!("function() {there} end, function() {back} end,")
    });
    let script = script
        + "} n = 0
        function request()
            n = n + 1
            if steps[n] then steps[n]() end
            local expected, host = {}, h.Host or wrk.headers.Host
            for name, value in pairs(h) do
                if name ~= 'Host' then table.insert(expected, name .. ': ' .. value .. '\\r\\n') end
            end
            local text = wrk.format('GET', '/', h)
            expected = 'GET / HTTP/1.1\\r\\nHost: ' .. host .. '\\r\\n' .. table.concat(expected) .. '\\r\\n'
            assert(text == expected, n .. ': ' .. text .. ' is not ' .. expected)
            return text
        end";
    case(&script, 1).one(move |part| (0..2 * changes.len() + 3).for_each(|_| drop(next(part))));
}

#[test]
fn many_different_names_are_all_checked() {
    let script = "
        n = 0
        function request()
            n = n + 1
            return wrk.format(nil, '/', { ['X-' .. n] = n, ['X-Bad' .. (n == 2500 and ' ' or '')] = 1 })
        end";
    let error = case(script, 1).one(|part| {
        (1..2500).for_each(|n| assert!(next(part).contains(&format!("\r\nX-{n}: {n}\r\n"))));
        part.request(&mut Vec::new()).unwrap_err()
    });
    assert!(error.what.starts_with("header `X-Bad ` cannot be sent"), "{error}");
}

#[test]
fn what_would_break_the_head_is_an_error_that_names_the_header_and_not_its_value() {
    for (call, what) in [
        (
            "wrk.format(nil, nil, { ['X-A'] = 'secret\\r\\nB: c' })",
            "header `X-A` cannot be sent: a line break or a NUL",
        ),
        ("wrk.format(nil, nil, { ['X-A'] = 'secret\\n' })", "header `X-A` cannot be sent"),
        ("wrk.format(nil, nil, { ['X-A'] = 'secret\\0' })", "header `X-A` cannot be sent"),
        ("wrk.format(nil, nil, { Host = 'secret\\r' })", "header `Host` cannot be sent"),
        ("wrk.format(nil, nil, { ['X A'] = 'secret' })", "header `X A` cannot be sent: a name has letters"),
        ("wrk.format(nil, nil, { [''] = 'secret' })", "header `` cannot be sent"),
        ("wrk.format(nil, nil, { ['A\\r\\nB'] = 'secret' })", "header `A\\x0d\\x0aB` cannot be sent"),
        ("wrk.format(nil, nil, { ['ä'] = 'secret' })", "header `\\xc3\\xa4` cannot be sent"),
        ("wrk.format(nil, nil, { 'A: secret' })", "a header's name is a number (1): expected wrk.headers[\"Name\"]"),
        ("wrk.format(nil, nil, { A = {} })", "header `A` cannot be sent: its value is a table"),
        ("wrk.format(nil, nil, { A = print })", "header `A` cannot be sent: its value is a function"),
        ("wrk.format(nil, nil, 'A: secret')", "the headers are a string: expected a table"),
        ("wrk.format({})", "the method is a table: expected a string"),
        ("wrk.format(nil, print)", "the path is a function: expected a string"),
        ("wrk.format(nil, nil, nil, {})", "the body is a table: expected a string"),
    ] {
        for wrap in ["local text = {} return text", "return {}"] {
            let body = wrap.replace("{}", call);
            let case = case(&format!("\n\nfunction request()\n{body}\nend"), 1);
            let error = case.error();
            let told = case.without_folder(&error);
            // A call in tail position leaves no trace of its line: then the error has its function's line.
            let place = if wrap.starts_with("local") { "a.lua:4: " } else { "a.lua:3: " };
            assert!(told.starts_with(place) && told.contains(what), "{body}: {told}");
            assert!(!told.contains("secret"), "{told}");
        }
    }
}

#[test]
fn values_of_the_table_that_no_request_can_be_made_of() {
    for (line, what) in [
        ("wrk.path = nil", "the path is nil: expected a string"),
        ("wrk.method = true", "the method is a boolean: expected a string"),
        ("wrk.headers = nil", "the headers are nil: expected a table"),
        ("wrk.headers['A B'] = 1", "header `A B` cannot be sent"),
        ("wrk.host = nil", "wrk.host is nil: expected a string"),
    ] {
        let told = case(line, 1).told();
        assert!(told.starts_with("a.lua") && told.contains(what), "{line}: {told}");
        // A script that makes all its requests itself may leave them so, except for the needs of wrk.init.
        if !line.contains("host") && !line.contains("headers") {
            let case = case(&format!("{line} function request() return wrk.format('GET', '/') end"), 1);
            assert!(case.one(next).starts_with("GET / "));
        }
    }
}
