//! Addresses: found, tried, and chosen for a thread.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use crate::common;
use crate::common::{case, peer};
use oroshi_net::UnixAddress;

#[test]
fn a_name_s_addresses_are_objects() {
    case(
        r#"
        local addrs = wrk.lookup("127.0.0.1", "http")
        assert(#addrs == 1 and tostring(addrs[1]) == "127.0.0.1:80", tostring(addrs[1]))
        assert(tostring(wrk.lookup("127.0.0.1", "https")[1]) == "127.0.0.1:443")
        assert(tostring(wrk.lookup("127.0.0.1", "8080")[1]) == "127.0.0.1:8080")
        assert(tostring(wrk.lookup("127.0.0.1", 8080)[1]) == "127.0.0.1:8080")
        assert(tostring(wrk.lookup("127.0.0.1")[1]) == "127.0.0.1:0")
        assert(tostring(wrk.lookup("::1", "81")[1]) == "[::1]:81")
        assert(tostring(wrk.lookup("unix:/run/app.sock", "http")[1]) == "unix:/run/app.sock")
        assert(tostring(wrk.lookup("unix:@name")[1]) == "unix:@name")
        assert(wrk.lookup("127.0.0.1", "80")[1] == addrs[1] and wrk.lookup("127.0.0.2", "80")[1] ~= addrs[1])
        local localhost = wrk.lookup("localhost", wrk.port or "http")
        assert(#localhost > 0)
        for _, addr in ipairs(localhost) do assert(tostring(addr):find(":8080", 1, true)) end
        "#,
        1,
    )
    .one(|_| ());
}

#[test]
fn what_is_not_found_is_an_error_that_can_be_caught() {
    for (call, told) in [
        ("wrk.lookup('no-such-host.invalid', '80')", "unable to resolve no-such-host.invalid:80: "),
        ("wrk.lookup('127.0.0.1', 'no-such-service')", "unable to resolve 127.0.0.1:no-such-service: the service"),
        ("wrk.lookup('127.0.0.1', '65536')", "`65536` is no port: expected a number up to 65535"),
        ("wrk.lookup('127.0.0.1', {})", "unable to resolve 127.0.0.1:table: "),
        ("wrk.lookup(nil, '80')", "wrk.lookup: the host is nil: expected a string"),
        ("wrk.lookup('unix:')", "the name of the unix socket is empty"),
        ("wrk.connect('127.0.0.1:80')", "a string is not an address: expected one of those that wrk.lookup returns"),
        ("wrk.connect()", "nil is not an address"),
    ] {
        let failing = case(&format!("\nlocal x = {call}"), 1);
        let error = failing.load().unwrap_err();
        let text = failing.without_folder(&error);
        assert!(text.starts_with("a.lua:2: ") && text.contains(told), "{call}: {text}");
        let caught =
            format!("local ok, why = pcall(function() return {call} end) assert(not ok and type(why) == 'string')");
        case(&caught, 1).load().unwrap();
    }
}

#[test]
fn connect_says_whether_somebody_listens() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let unix = UnixListener::bind(&path).unwrap();
    let (here, path) = (tcp.local_addr().unwrap(), path.display());
    let script = format!(
        "local function answers(host, service) return wrk.connect(wrk.lookup(host, service)[1]) end
         assert(answers('127.0.0.1', '{}') == true)
         assert(answers('127.0.0.1', '{}') == false)
         assert(answers('unix:{path}') == true)
         assert(answers('unix:{path}.not') == false)
         assert(answers('unix:@no-such-name-of-oroshi') == false)",
        here.port(),
        gone.port(),
    );
    case(&script, 1).load().unwrap();
    drop(unix);
    case(&format!("assert(wrk.connect(wrk.lookup('unix:{path}')[1]) == false)"), 1).load().unwrap();
}

#[test]
fn a_socket_with_a_full_backlog_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let script = "for _ = 1, 5 do assert(wrk.connect(wrk.lookup('unix:PATH')[1])) end";
    case(&script.replace("PATH", &path.display().to_string()), 1).load().unwrap();
}

#[test]
fn the_run_s_own_addresses_are_in_the_table() {
    let mut both = case(
        "function setup(thread)
             n = (n or 0) + 1
             assert(#wrk.addrs == 2 and tostring(thread.addr) == '127.0.0.1:8080' and thread.addr == wrk.addrs[1])
             if n == 2 then thread.addr = wrk.addrs[2] end
             if n == 3 then thread.addr = wrk.lookup('unix:@name')[1] end
         end
         function init() here = tostring(wrk.thread.addr) end
         function request() return wrk.format(nil, '/' .. here) end",
        3,
    );
    both.peers = vec![peer("127.0.0.1:8080"), peer("[::1]:8080")];
    let results = both.run(|_, part| (part.features().peer.unwrap(), common::next(part)));
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    let name = UnixAddress::parse("@name").unwrap();
    let expected = [peer("127.0.0.1:8080"), peer("[::1]:8080"), name.into()];
    for ((chosen, request), expected) in results.iter().zip(expected) {
        assert_eq!(*chosen, expected);
        assert!(request.starts_with(&format!("GET /{expected} ")), "{request}");
    }
}

#[test]
fn resolve_tries_other_hosts_itself() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let script = format!(
        "local resolve = wrk.resolve
         function wrk.resolve(host, service)
             assert(host == '127.0.0.1' and service == '8080')
             resolve('127.0.0.1', '{port}')
             assert(#wrk.addrs == 1)
         end"
    );
    let chosen = case(&script, 1).one(|part| part.features().peer);
    assert_eq!(chosen, Some(tcp.local_addr().unwrap().into()));
}

#[test]
fn a_thread_without_an_address_goes_everywhere() {
    let features = case("function wrk.setup(thread) assert(thread.addr == nil) end", 1).one(|part| part.features());
    assert_eq!(features.peer, None);
}

#[test]
fn it_is_too_late_to_choose_once_a_thread_has_begun() {
    let script = "n = 0 function request()
        n = n + 1
        if n == 2 then local ok, why = pcall(function() wrk.thread.addr = wrk.lookup('127.0.0.1', '81')[1] end) \
                  error(why, 0) end
        return wrk.request() end";
    let error = case(script, 1).one(|part| {
        common::next(part);
        part.request(&mut Vec::new()).unwrap_err()
    });
    assert!(error.what.contains("thread 1 has begun: its addr can be set in setup() and init()"), "{error}");
}
