//! Access logs of `oroshi gate` by templates: hostile clients, TLS with certificates of clients, both escapings.

use std::fs;

use crate::echo::echo;
use crate::gate::Gate;
use crate::gate_client_tls::{curl, put};
use oroshi_testkit::{Identity, need};
use rustix::process::Signal;

const CONFIG: &str = r#"
threads = 1
[listen]
public = "unix:{dir}/public.sock"
tls = "unix:{dir}/tls.sock"
admin = "unix:{dir}/admin.sock"
[tls]
certificates = "site.pem"
[[route]]
name = "app"
host = "localhost"
to = "unix:{dir}/app.sock"
client-certificate = { mode = "optional", ca = "ca.pem" }
[access-log]
file = "{dir}/access.log"
"#;

/// Sends three requests to a gateway with this format, and returns the lines of its log.
fn lines(test: &str, format: &str) -> Option<Vec<String>> {
    need(test, "curl")?;
    let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    put(&identity, &folder.path().join("site.pem"));
    fs::copy(identity.ca(), folder.path().join("ca.pem")).unwrap();
    echo(folder.path(), "app");
    let mut gate = Gate::start(folder, &format!("{CONFIG}{format}\n"));
    let [certificate, key] = ["client.pem", "client.key"].map(|name| identity.path(name).display().to_string());
    let agent = "User-Agent: a\" 200 \\ \u{e9}";
    let ask = |args: &[&str]| {
        let ran = curl(&identity, &gate.path("tls.sock"), args, "https://localhost/a?b=\"c\"");
        assert!(ran.out.ends_with(" 200"), "{ran:?}");
    };
    ask(&["--http2", "--tlsv1.3", "--cert", &certificate, "--key", &key, "--header", agent]);
    ask(&["--http1.1", "--tls-max", "1.2", "--header", agent]);
    assert_eq!(gate.get("localhost", "/plain").status, 200);
    gate.process.signal(Signal::TERM);
    assert!(gate.process.ended().success());
    let log = fs::read_to_string(gate.path("access.log")).unwrap();
    Some(log.lines().map(str::to_owned).collect())
}

#[test]
fn templates_show_tls_and_keep_clients_in_their_quotes() {
    let test = "templates_show_tls_and_keep_clients_in_their_quotes";
    let format = "format = '$scheme \"$request\" $status \"$http_user_agent\" $http_user_agent $ssl_protocol \
                  $ssl_server_name $ssl_session_reused \"$ssl_client_s_dn\" $route ${upstream_protocol}'";
    let Some(lines) = lines(test, format) else { return };
    let agent = r#""a\x22 200 \x5C \xC3\xA9" a\x22\x20200\x20\x5C\x20\xC3\xA9"#;
    assert_eq!(
        lines,
        [
            format!(r#"https "GET /a?b=\x22c\x22 HTTP/2.0" 200 {agent} TLSv1.3 localhost . "CN=client" app HTTP/1.1"#),
            format!(r#"https "GET /a?b=\x22c\x22 HTTP/1.1" 200 {agent} TLSv1.2 localhost . "-" app HTTP/1.1"#),
            r#"http "GET /plain HTTP/1.1" 200 "-" - - - - "-" app HTTP/1.1"#.to_owned(),
        ]
    );
}

#[test]
fn both_kinds_of_json_show_tls() {
    let test = "both_kinds_of_json_show_tls";
    let own = "escape = \"json\"\nformat = '{\"agent\":\"$http_user_agent\",\"status\":$status,\
               \"tls\":\"$ssl_protocol\",\"subject\":\"$ssl_client_s_dn\",\"up\":$upstream_response_time}'";
    let Some(own) = lines(test, own) else { return };
    let parse =
        |line: &String| serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|why| panic!("{why}: {line}"));
    let own: Vec<_> = own.iter().map(parse).collect();
    assert_eq!((&own[0]["agent"], &own[0]["subject"]), (&"a\" 200 \\ \u{e9}".into(), &"CN=client".into()));
    assert!(own[0]["up"].is_number() && own[0]["status"] == 200, "{own:?}");
    assert_eq!((&own[1]["tls"], &own[1]["subject"], &own[2]["tls"]), (&"TLSv1.2".into(), &"".into(), &"".into()));
    let Some(all) = lines(test, "") else { return };
    let all: Vec<_> = all.iter().map(parse).collect();
    let tls = &all[0]["tls"];
    assert_eq!(
        (&tls["protocol"], &tls["server_name"], &tls["resumed"]),
        (&"TLSv1.3".into(), &"localhost".into(), &false.into())
    );
    assert_eq!((&tls["client_subject"], tls["client_sha256"].as_str().map(str::len)), (&"CN=client".into(), Some(64)));
    assert!(tls["cipher"].as_str().unwrap().starts_with("TLS_"), "{tls}");
    assert_eq!((all[1]["tls"].get("client_subject"), all[2].get("tls")), (None, None));
}
