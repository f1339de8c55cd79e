//! The role and the calls of a script on one thread.

use std::time::Duration;

use crate::common::{Case, case, next};
use oroshi_bench::{CoreScript, ResponseParts, ResponseView, ScriptError, ScriptFeatures};

fn features(script: &str) -> ScriptFeatures {
    case(script, 1).one(|part| part.features())
}

fn request_error(script: &str, sent_before: usize) -> String {
    let case = case(script, 1);
    let error = case.one(move |part| {
        (0..sent_before).for_each(|_| drop(next(part)));
        part.request(&mut Vec::new()).unwrap_err()
    });
    case.without_folder(&error)
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> ResponseView {
    let mut response = ResponseView::default();
    response.begin(status);
    headers.iter().for_each(|(name, value)| response.add_header(name.as_bytes(), value.as_bytes()));
    response.body = body.as_bytes().to_vec();
    response
}

#[test]
fn terms_are_the_functions_that_there_are_after_init() {
    let nothing = features("request = 'no function' response = {} delay = 5");
    assert!(nothing.request.is_some() && !nothing.delays && nothing.responses.is_none());
    let all = features("function init() function request() return wrk.request() end function delay() return 1 end end");
    assert!(all.request.is_none() && all.delays && all.responses.is_none());
    let gone = features("function delay() end function response() end function init() delay, response = nil, nil end");
    assert!(gone.request.is_some() && !gone.delays && gone.responses.is_none());
}

#[test]
fn an_answer_s_parts_are_kept_as_far_as_there_are_parameters() {
    for (function, headers, body) in [
        ("function response() end", false, false),
        ("function response(status) end", false, false),
        ("function response(status, headers) end", true, false),
        ("function response(status, headers, body) end", true, true),
        ("function response(status, headers, body, more) end", true, true),
        ("function response(...) end", true, true),
        ("function response(status, ...) end", true, true),
        ("response = print", true, true),
        ("function init() response = function(status) end end", false, false),
    ] {
        assert_eq!(features(function).responses, Some(ResponseParts { headers, body }), "{function}");
    }
}

#[test]
fn each_core_decides_for_itself() {
    let case = case(
        "function setup(thread) n = (n or 0) + 1 thread:set('n', n) end
         function init() if n == 2 then request = function() return wrk.format(nil, '/two') end end end",
        2,
    );
    let fixed: Vec<bool> =
        case.run(|_, part| part.features().request.is_some()).into_iter().map(Result::unwrap).collect();
    assert_eq!(fixed, [true, false]);
}

#[test]
fn requests_are_appended_and_may_be_several() {
    let script = "
        function init() local r = {} for i = 1, 3 do r[i] = wrk.format(nil, '/?' .. i) end all = table.concat(r) end
        function request() return all end";
    let bytes = case(script, 1).one(|part| {
        let mut bytes = b"before".to_vec();
        part.request(&mut bytes).unwrap();
        part.request(&mut bytes).unwrap();
        bytes
    });
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.starts_with("beforeGET /?1 HTTP/1.1\r\n"));
    assert_eq!(text.matches("GET /?").count(), 6);
}

#[test]
fn functions_may_be_replaced_while_requests_flow() {
    let script = "
        local function other() return wrk.format(nil, '/other') end
        function request() request = other return wrk.format(nil, '/first') end
        function delay() delay = function() return 7 end return 3 end
        function response(status)
            response = function(s) if s == 500 then error('told ' .. s) end response = nil end
        end";
    case(script, 1).one(|part| {
        assert!(next(part).starts_with("GET /first "));
        assert!(next(part).starts_with("GET /other "));
        assert!(next(part).starts_with("GET /other "));
        assert_eq!([part.delay().unwrap(), part.delay().unwrap()], [3, 7].map(Duration::from_millis));
        part.response(&answer(200, &[], "")).unwrap();
        assert!(part.response(&answer(500, &[], "")).unwrap_err().what.contains("told 500"));
        part.response(&answer(200, &[], "")).unwrap();
        // The function is gone.
        part.response(&answer(500, &[], "")).unwrap();
    });
    // As in wrk: without the global, it is wrk.request.
    let gone = "function request() request = nil return wrk.format(nil, '/once') end";
    let lines = case(gone, 1).one(|part| [next(part), next(part)]);
    assert!(lines[0].starts_with("GET /once ") && lines[1].starts_with("GET /path?query "));
}

#[test]
fn a_response_that_takes_more_than_the_first_one_did_is_an_error() {
    let script = "\nfunction response(status)\nresponse = function(status, headers) end end";
    let case = case(script, 1);
    let error = case.one(|part| {
        part.response(&answer(200, &[], "")).unwrap();
        part.response(&answer(200, &[], "")).unwrap_err()
    });
    let told = case.without_folder(&error);
    assert!(told.starts_with("a.lua:3: ") && told.contains("(2 arguments, not 1)"), "{told}");
}

#[test]
fn headers_are_told_as_received_and_the_last_of_a_name_counts() {
    let script = "
        function response(status, headers, body)
            local n = 0
            for _ in pairs(headers) do n = n + 1 end
            seen = table.concat({ status, n, headers['Set-Cookie'] or '-', headers['X-a'] or '-', headers['X-A'] or \
                  '-', #body, body }, ' ')
            headers.mine = true
        end
        function request() return wrk.format(nil, '/', { Seen = seen or 'nothing' }) end";
    case(script, 1).one(|part| {
        next(part);
        let cookies = [("Set-Cookie", "a"), ("X-a", "1"), ("Set-Cookie", "b"), ("X-A", "")];
        let mut tell = |answer: ResponseView| {
            part.response(&answer).unwrap();
            let text = next(part);
            text.split_once("Seen: ").unwrap().1.split_once("\r\n").unwrap().0.to_owned()
        };
        assert_eq!(tell(answer(200, &cookies, "a b")), "200 3 b 1  3 a b");
        assert_eq!(tell(answer(204, &cookies, "")), "204 3 b 1  0 ");
        assert_eq!(tell(answer(200, &[], "x")), "200 0 - - - 1 x");
        assert_eq!(tell(answer(200, &cookies[..2], "")), "200 2 a 1 - 0 ");
    });
    let many: Vec<(String, String)> = (0..40).map(|i| (format!("N{i}"), format!("v{i}"))).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for n in [1, 7, 8, 9, 15, 16, 17, 18, 40] {
        let script = format!(
            "function response(status, headers, body)
                 for i = 0, 39 do assert(headers['N' .. i] == (i < {n} and 'v' .. i or nil), i) end
             end"
        );
        let response = answer(200, &many[..n], "");
        case(&script, 1).one(move |part| part.response(&response).unwrap());
    }
    let zeros = "function response(s, h, body) assert(#body == 3 and body:byte(2) == 0) end";
    case(zeros, 1).one(|part| part.response(&answer(200, &[], "a\0b")).unwrap());
}

#[test]
fn wrk_s_own_examples_work() {
    let auth = "
        token = nil path = '/authenticate'
        request = function() return wrk.format('GET', path) end
        response = function(status, headers, body)
           if not token and status == 200 then token = headers['X-Token'] path = '/resource' wrk.headers['X-Token'] = \
                token end
        end";
    case(auth, 1).one(|part| {
        assert!(next(part).starts_with("GET /authenticate "));
        part.response(&answer(200, &[("X-Token", "t")], "")).unwrap();
        assert_eq!(next(part), "GET /resource HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nX-Token: t\r\n\r\n");
    });
    let counter = "
        counter = 0
        request = function() path = '/' .. counter wrk.headers['X-Counter'] = counter counter = counter + 1 return \
                   wrk.format(nil, path) end";
    case(counter, 1).one(|part| {
        for n in 0..3 {
            assert_eq!(next(part), format!("GET /{n} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nX-Counter: {n}\r\n\r\n"));
        }
    });
    let stop = "
        local counter = 1
        function response() if counter == 100 then wrk.thread:stop() end counter = counter + 1 end";
    case(stop, 1).one(|part| {
        for _ in 0..99 {
            part.response(&answer(200, &[], "")).unwrap();
            assert!(!part.stopped());
        }
        part.response(&answer(200, &[], "")).unwrap();
        assert!(part.stopped());
    });
}

#[test]
fn a_delay_is_a_number_of_milliseconds() {
    let delay = |value: &str| {
        let case = case(&format!("\nfunction delay() return {value} end"), 1);
        case.one(|part| part.delay()).map_err(|error| case.without_folder(&error))
    };
    for (value, micros) in [("0", 0), ("10", 10_000), ("0.5", 500), ("'20'", 20_000), ("86400000", 86_400_000_000)] {
        assert_eq!(delay(value).unwrap(), Duration::from_micros(micros), "{value}");
    }
    for (value, what) in [
        ("-1", "returned -1: expected"),
        ("0/0", "returned NaN: expected"),
        ("math.huge", "returned inf: expected"),
        ("86400001", "returned 86400001: expected a number of milliseconds, from 0 to 86400000"),
        ("nil", "returned nil: expected"),
        ("{}", "returned a table: expected"),
        ("'soon'", "returned a string: expected"),
    ] {
        let told = delay(value).unwrap_err();
        assert!(told.starts_with("a.lua:2: delay() ") && told.contains(what), "{value}: {told}");
    }
}

#[test]
fn what_is_no_request_is_said_where_it_comes_from() {
    for (value, what) in [
        ("", "returned nil: expected a string"),
        ("5", "returned a number (5): expected a string"),
        ("0.5", "returned a number (0.5): expected a string"),
        ("{}", "returned a table: expected a string"),
        ("true", "returned a boolean: expected a string"),
        ("''", "returned an empty string: expected a string"),
    ] {
        // The first thread reports it before the run.
        let told = case(&format!("\n\nfunction request() return {value} end"), 1).told();
        assert!(told.starts_with("a.lua:3: request() ") && told.contains(what), "{value}: {told}");
        let later = format!(
            "\n\nfunction request() n = (n or 0) + 1 if n > 2 then return {value} end return wrk.request() end"
        );
        let told = request_error(&later, 2);
        assert!(told.starts_with("a.lua:3: request() ") && told.contains(what), "{value}: {told}");
    }
    let told = case("local init = wrk.init function wrk.init() wrk.request = function() end end", 1).told();
    assert!(told.starts_with("a.lua") && told.contains("wrk.request() returned nil"), "{told}");
}

#[test]
fn an_error_on_one_core_harms_no_other() {
    let case = case(
        "function setup(thread) n = (n or 0) + 1 thread:set('n', n) end
         function request() m = (m or 0) + 1
         if n == 2 and m == 2 then local x = nil + 1 end
         return wrk.request() end
         function done() end",
        3,
    );
    let calls = |_: usize, part: &mut dyn CoreScript| -> Result<(), ScriptError> {
        (0..5).try_for_each(|_| part.request(&mut Vec::new()))
    };
    let results: Vec<_> = case.run(calls).into_iter().map(Result::unwrap).collect();
    assert!(results[0].is_ok() && results[2].is_ok());
    let told = case.without_folder(results[1].as_ref().unwrap_err());
    assert!(told.starts_with("a.lua:3: attempt to perform arithmetic on a nil value"), "{told}");
}

#[test]
fn places_of_functions() {
    let case: Case = case("\nfunction request()\nreturn wrk.request()\nend\nresponse = print", 1);
    let file = case.file().display().to_string();
    let places = case.one(|part| ["request", "response", "delay"].map(|name| part.place(name)));
    assert_eq!(places, [format!("{file}:2"), file.clone(), file]);
}
