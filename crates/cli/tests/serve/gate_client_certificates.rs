//! `oroshi gate` on routes that ask their clients for a certificate: curl and openssl, both versions of HTTP, forged
//! fields, resumption, reloads.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::echo::echo;
use crate::gate::{Gate, Ran, oroshi};
use crate::gate_client_tls::{curl, openssl, put};
use oroshi_testkit::{Identity, need};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};

const CONFIG: &str = r#"
threads = 2
[listen]
tls = "unix:{dir}/tls.sock"
public = "unix:{dir}/public.sock"
admin = "unix:{dir}/admin.sock"
[tls]
certificates = "site.pem"
default = "localhost"
[upstream.app]
targets = ["unix:{dir}/app.sock"]
[[route]]
host = "localhost"
path = "/staff"
to = "app"
client-certificate = { ca = "staff.pem" }
[[route]]
host = "localhost"
path = "/partner"
to = "app"
client-certificate = { mode = "optional", ca = "partner.pem" }
[[route]]
to = "app"
"#;

const SUBJECT: &str = "X-Client-Certificate-Subject: CN=client\r\n";

/// Makes a folder with the server's certificate and the authorities of two groups of clients.
fn prepare(site: &Identity, staff: &Identity, partner: &Identity) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    put(site, &folder.path().join("site.pem"));
    fs::copy(staff.ca(), folder.path().join("staff.pem")).unwrap();
    fs::copy(partner.ca(), folder.path().join("partner.pem")).unwrap();
    echo(folder.path(), "app");
    folder
}

/// The arguments of curl, or with one dash those of openssl, for a client's certificate.
fn identity(dash: &str, client: &Identity) -> [String; 4] {
    let file = |name: &str| client.path(name).display().to_string();
    [format!("{dash}cert"), file("client.pem"), format!("{dash}key"), file("client.key")]
}

fn fingerprint(test: &str, client: &Path) -> Option<String> {
    let openssl = need(test, "openssl")?;
    let mut command = Command::new(openssl);
    let printed = command.args(["x509", "-noout", "-sha256", "-fingerprint", "-in"]).arg(client).output().unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    Some(text.split('=').nth(1).unwrap().trim().replace(':', "").to_ascii_lowercase())
}

#[test]
fn upstreams_learn_of_certificates_that_their_route_accepts_and_of_no_others() {
    let test = "upstreams_learn_of_certificates_that_their_route_accepts_and_of_no_others";
    if need(test, "curl").is_none() {
        return;
    }
    let [site, staff, partner, stranger] = [(); 4].map(|()| Identity::new());
    let Some(fingerprint) = fingerprint(test, &staff.path("client.pem")) else { return };
    let gate = Gate::start(prepare(&site, &staff, &partner), CONFIG);
    let socket = gate.path("tls.sock");
    let forged = [
        "x-client-certificate-subject: CN=root",
        "X-Client-Certificate-Fingerprint: 00",
        "X_Client_Certificate_Subject: CN=root",
        "Client-Cert: :AAAA:",
        "Client-Cert-Chain: :AAAA:",
        "Connection: X-Client-Certificate-Subject",
    ];
    let ask = |version: &str, client: Option<&Identity>, path: &str| {
        let mut args = vec![version.to_owned()];
        // Over HTTP/2 curl does not send fields of the connection.
        forged.iter().for_each(|line| args.extend(["--header".to_owned(), (*line).to_owned()]));
        args.extend(client.into_iter().flat_map(|client| identity("--", client)));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        curl(&site, &socket, &args, &format!("https://localhost{path}"))
    };
    for version in ["--http1.1", "--http2"] {
        let shown = |ran: &Ran| ran.out.matches("lient-").count() + ran.out.matches("lient_").count();
        let ran = ask(version, Some(&staff), "/staff");
        assert!(ran.out.ends_with(" 200") && ran.out.contains(SUBJECT), "{ran:?}");
        assert!(ran.out.contains(&format!("X-Client-Certificate-Fingerprint: {fingerprint}\r\n")), "{ran:?}");
        assert_eq!(shown(&ran), 2, "{ran:?}");
        // Without one, with that of another group, and where nobody asks for one.
        for (client, path, status) in [
            (None, "/staff", 403),
            (Some(&partner), "/staff", 403),
            (None, "/partner", 200),
            (Some(&staff), "/partner", 200),
            (Some(&staff), "/", 200),
        ] {
            let ran = ask(version, client, path);
            assert!(ran.out.ends_with(&format!(" {status}")) && shown(&ran) == 0, "{path}: {ran:?}");
        }
        assert!(ask(version, Some(&partner), "/partner").out.contains(SUBJECT));
        // An authority that no route knows: the handshake fails, wherever the request would have gone.
        for path in ["/staff", "/partner", "/"] {
            let ran = ask(version, Some(&stranger), path);
            assert!(ran.code != Some(0) && ran.out.ends_with(" 000"), "{path}: {ran:?}");
        }
    }
    // Nobody shows a certificate without TLS.
    let plain = gate.get("localhost", "/staff");
    assert_eq!((plain.status, &*plain.body), (403, "a client certificate is required here\n"));
    assert_eq!(gate.get("localhost", "/partner").status, 200);
    let status = gate.status();
    assert_eq!(
        (&status["tls"]["client_certificates"], &status["tls"]["failed"]),
        (&10.into(), &6.into()),
        "{status:#}"
    );
    let metrics = gate.get_at("admin.sock", "a", "/metrics").body;
    assert!(metrics.contains("oroshi_gate_tls_client_certificates_total 10"), "{metrics}");
}

/// A client of openssl that keeps its connection.
pub(crate) struct Kept(Child);

impl Kept {
    pub(crate) fn open(site: &Identity, socket: &Path, args: &[String]) -> Kept {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-servername", "localhost", "-unix"]).arg(socket);
        command.arg("-CAfile").arg(site.ca()).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Kept(command.spawn().unwrap())
    }

    /// Sends a request, and returns its response's status line.
    pub(crate) fn ask(&mut self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.0.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        let (out, mut got) = (self.0.stdout.as_mut().unwrap(), Vec::new());
        loop {
            let text = String::from_utf8_lossy(&got).into_owned();
            let body = text.split_once("\r\n\r\n");
            let length = text.split("Content-Length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
            if body.is_some_and(|(_, body)| Some(body.len()) == length) {
                return text.lines().next().unwrap().to_owned();
            }
            let mut room = [0; 4096];
            let count = out.read(&mut room).unwrap();
            assert!(count > 0, "{text}");
            got.extend_from_slice(&room[..count]);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn neither_resumption_nor_a_kept_connection_goes_round_the_check() {
    let test = "neither_resumption_nor_a_kept_connection_goes_round_the_check";
    if need(test, "openssl").is_none() {
        return;
    }
    let [site, staff, partner, other] = [(); 4].map(|()| Identity::new());
    let mut gate = Gate::start(prepare(&site, &staff, &partner), CONFIG);
    let socket = gate.path("tls.sock");
    let session = |name: &str| gate.folder.path().join(name).display().to_string();
    let ask = |args: &[&str], own: bool| {
        let own = if own { identity("-", &staff).to_vec() } else { Vec::new() };
        let args: Vec<&str> = args.iter().copied().chain(own.iter().map(String::as_str)).collect();
        openssl(&site, &socket, "/staff", &args)
    };
    let mut sessions = Vec::new();
    for (flag, version) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let [with, without, elsewhere] = ["with", "without", "elsewhere"].map(|name| session(&format!("{name}{flag}")));
        assert!(ask(&[flag, "-sess_out", &with], true).contains("200 Fine"));
        // The session has the certificate; a session without one has none later either.
        let said = ask(&[flag, "-sess_in", &with], false);
        assert!(said.contains(&format!("Reused, {version}")) && said.contains(SUBJECT.trim()), "{said}");
        assert!(ask(&[flag, "-sess_out", &without], false).contains("403 Forbidden"));
        let said = ask(&[flag, "-sess_in", &without], true);
        assert!(said.contains(&format!("Reused, {version}")) && said.contains("403 Forbidden"), "{said}");
        // A name whose clients are not asked.
        let said = ask(&[flag, "-servername", "other.example", "-sess_out", &elsewhere], true);
        assert!(said.contains("421 Misdirected Request"), "{said}");
        let said = ask(&[flag, "-sess_in", &elsewhere], true);
        assert!(said.contains(&format!("New, {version}")) && said.contains("200 Fine"), "{said}");
        sessions.push((flag, version, with));
    }
    let mut kept = Kept::open(&site, &socket, &identity("-", &staff));
    assert_eq!(kept.ask("/staff"), "HTTP/1.1 200 Fine");
    // Other authorities hold from the next request on.
    fs::copy(other.ca(), gate.folder.path().join("staff.pem")).unwrap();
    gate.reload(CONFIG);
    assert_eq!(kept.ask("/staff"), "HTTP/1.1 403 Forbidden");
    assert_eq!(kept.ask("/partner"), "HTTP/1.1 200 Fine");
    for (flag, version, with) in sessions {
        let said = openssl(&site, &socket, "/staff", &[flag, "-sess_in", &with]);
        assert!(said.contains(&format!("New, {version}")) && said.contains("403 Forbidden"), "{said}");
    }
}

/// As `openssl req -x509` makes them: a certificate that may sign others, of nobody but itself.
#[test]
fn a_certificate_that_is_named_itself_is_accepted_while_it_is_valid() {
    let test = "a_certificate_that_is_named_itself_is_accepted_while_it_is_valid";
    if need(test, "curl").is_none() {
        return;
    }
    let (site, partner) = (Identity::new(), Identity::new());
    let folder = prepare(&site, &partner, &partner);
    let make = |name: &str, year: i32| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "Caf\u{e9}, \"Quoted\"");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(year, 1, 1));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        fs::write(folder.path().join(format!("{name}.pem")), &certificate).unwrap();
        fs::write(folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
        certificate
    };
    let certificates = [make("valid", 2999), make("expired", 2002)].concat();
    fs::write(folder.path().join("staff.pem"), certificates).unwrap();
    let gate = Gate::start(folder, CONFIG);
    let ask = |name: &str| {
        let file = |end: &str| gate.path(&format!("{name}.{end}")).display().to_string();
        let args = ["--cert", &file("pem"), "--key", &file("key")];
        curl(&site, &gate.path("tls.sock"), &args, "https://localhost/staff")
    };
    let ran = ask("valid");
    assert!(ran.out.ends_with(" 200") && ran.out.contains("-Subject: ") && ran.out.contains("CN=valid"), "{ran:?}");
    assert!(ran.out.is_ascii(), "{ran:?}");
    let ran = ask("expired");
    assert!(ran.code != Some(0) && ran.out.ends_with(" 000"), "{ran:?}");
}

#[test]
fn mistakes_name_their_key() {
    let identity = Identity::new();
    let folder = prepare(&identity, &identity, &identity);
    fs::write(folder.path().join("empty.pem"), "").unwrap();
    let check = |config: String| {
        fs::write(folder.path().join("gate.toml"), config.replace("{dir}", folder.path().to_str().unwrap())).unwrap();
        let mut command = oroshi();
        command.args(["gate", "--check"]).current_dir(folder.path());
        Ran::of(command.output().unwrap())
    };
    let own = "client-certificate = { ca = \"staff.pem\" }";
    for (given, part) in [
        ("client-certificate = {}", "line 16: route[1].client-certificate.ca: there is none: expected a PEM file"),
        ("client-certificate = { ca = \"none.pem\" }", "route[1].client-certificate.ca: could not read"),
        ("client-certificate = { ca = \"empty.pem\" }", "route[1].client-certificate.ca: could not read a certificate"),
        ("client-certificate = { ca = \"staff.pem\", mode = \"some\" }", "expected required or optional"),
        ("client-certificate = { cas = \"staff.pem\" }", "did you mean `ca`?"),
    ] {
        let checked = check(CONFIG.replace(own, given));
        assert!(checked.code == Some(2) && checked.err.contains(part), "{given}: {checked:?}");
    }
    let plain = "listen = { public = \"unix:{dir}/public.sock\" }\n[[route]]\nto = \"unix:/run/app.sock\"\n";
    let checked = check(format!("{plain}{own}\n"));
    let told = "line 4: route[1].client-certificate: clients show certificates over TLS alone";
    assert!(checked.code == Some(2) && checked.err.contains(told), "{checked:?}");
    let checked = check(CONFIG.to_owned());
    for line in ["[route.client-certificate]", "mode = \"required\"", "mode = \"optional\"", "ca = [\"staff.pem\"]"] {
        assert!(checked.out.lines().any(|shown| shown == line), "{line}: {checked:?}");
    }
}
