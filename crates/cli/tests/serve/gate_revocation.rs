//! Revoked certificates of clients at `oroshi gate`: real lists of `openssl ca`, resumption, kept connections, reloads.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::echo::echo;
use crate::gate::{Gate, Ran, oroshi};
use crate::gate_client_certificates::Kept;
use crate::gate_client_tls::{openssl, put};
use oroshi_testkit::{Identity, need};
use rustix::process::Signal;

const CONFIG: &str = r#"
threads = 2
[listen]
tls = "unix:{dir}/tls.sock"
admin = "unix:{dir}/admin.sock"
[tls]
certificates = "site.pem"
[upstream.app]
targets = ["unix:{dir}/app.sock"]
[[route]]
host = "localhost"
path = "/staff"
to = "app"
client-certificate = { ca = ["root.pem"], crl = ["root.crl"] }
[[route]]
host = "localhost"
path = "/partner"
to = "app"
client-certificate = { ca = "partner.pem" }
[[route]]
host = "localhost"
to = "app"
"#;

/// The rule of the first route.
const RULE: &str = r#"{ ca = ["root.pem"], crl = ["root.crl"] }"#;

/// What openssl says of the alerts `certificate_revoked` and `unknown_ca`.
const REVOKED: &str = "SSL alert number 44";
const UNKNOWN: &str = "SSL alert number 48";

const LONG: [&str; 4] = ["-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", "20991231000000Z"];
const PAST: [&str; 4] = ["-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", "20200201000000Z"];

fn run(folder: &Path, args: &[&str]) {
    let ran = Ran::of(Command::new("openssl").args(args).current_dir(folder).output().unwrap());
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
}

/// Makes `NAME.pem` and `NAME.key`, signed by an authority or by itself.
fn certificate(folder: &Path, name: &str, issuer: Option<&str>, extensions: &[&str]) {
    let [subject, key, out] = [format!("/CN={name}"), format!("{name}.key"), format!("{name}.pem")];
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"];
    let mut args = [&["req", "-x509"][..], &curve, &["-subj", &subject, "-keyout", &key, "-out", &out]].concat();
    let by = issuer.map(|issuer| [format!("{issuer}.pem"), format!("{issuer}.key")]);
    if let Some([certificate, key]) = &by {
        args.extend(["-CA", certificate, "-CAkey", key]);
    }
    extensions.iter().for_each(|extension| args.extend(["-addext", extension]));
    run(folder, &args);
}

/// Makes an authority with its database of revoked certificates.
fn authority(folder: &Path, name: &str, issuer: Option<&str>) {
    certificate(folder, name, issuer, &["keyUsage=keyCertSign,cRLSign"]);
    fs::write(folder.join(format!("{name}.index")), "").unwrap();
    fs::write(folder.join(format!("{name}.number")), "01\n").unwrap();
    let config = format!(
        "[ca]\ndefault_ca = own\n[own]\ndatabase = {name}.index\ncrlnumber = {name}.number\ndefault_md = sha256\n\
         default_crl_days = 30\ncertificate = {name}.pem\nprivate_key = {name}.key\n"
    );
    fs::write(folder.join(format!("{name}.cnf")), config).unwrap();
}

fn client(folder: &Path, name: &str, issuer: &str) {
    certificate(folder, name, Some(issuer), &["basicConstraints=CA:FALSE"]);
}

fn revoke(folder: &Path, authority: &str, name: &str) {
    run(folder, &["ca", "-config", &format!("{authority}.cnf"), "-revoke", &format!("{name}.pem")]);
}

/// Writes `AUTHORITY.crl`.
fn publish(folder: &Path, authority: &str, times: &[&str]) {
    let (config, out) = (format!("{authority}.cnf"), format!("{authority}.crl"));
    run(folder, &[&["ca", "-config", &config, "-gencrl", "-out", &out], times].concat());
}

/// Makes a folder with the server's certificate, an authority with its clients `anna` and `bob`, and another one.
fn prepare(site: &Identity) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    put(site, &path.join("site.pem"));
    echo(path, "app");
    authority(path, "root", None);
    authority(path, "partner", None);
    ["anna", "bob"].iter().for_each(|name| client(path, name, "root"));
    client(path, "paul", "partner");
    publish(path, "root", &[]);
    folder
}

/// The arguments of `openssl s_client` for a client's certificate.
fn shown(folder: &Path, name: &str) -> [String; 4] {
    let file = |end: &str| folder.join(format!("{name}.{end}")).display().to_string();
    ["-cert".to_owned(), file("pem"), "-key".to_owned(), file("key")]
}

/// Asks for a path with a client's certificate, and returns what `openssl s_client` said.
fn ask(gate: &Gate, site: &Identity, name: &str, path: &str, args: &[&str]) -> String {
    let own = if name.is_empty() { Vec::new() } else { shown(gate.folder.path(), name).to_vec() };
    let args: Vec<&str> = args.iter().copied().chain(own.iter().map(String::as_str)).collect();
    openssl(site, &gate.path("tls.sock"), path, &args)
}

/// Reads the same configuration again, and expects a line in the log.
fn hup(gate: &mut Gate, line: &str) {
    gate.process.signal(Signal::HUP);
    gate.process.until(line);
}

#[test]
fn a_new_list_holds_from_a_reload_on_for_handshakes_sessions_and_kept_connections() {
    let test = "a_new_list_holds_from_a_reload_on_for_handshakes_sessions_and_kept_connections";
    if need(test, "openssl").is_none() {
        return;
    }
    let site = Identity::new();
    let mut gate = Gate::start(prepare(&site), CONFIG);
    let folder = gate.folder.path().to_owned();
    let versions = [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")];
    let session = |name: &str, flag: &str| folder.join(format!("{name}{flag}")).display().to_string();
    let mut sessions = Vec::new();
    for (flag, version) in versions {
        for name in ["anna", "bob"] {
            let file = session(name, flag);
            assert!(ask(&gate, &site, name, "/staff", &[flag, "-sess_out", &file]).contains("200 Fine"));
            sessions.push((name, flag, version, file));
        }
    }
    let resumed = |gate: &Gate, version: &str, said: &str| {
        assert!(said.contains(&format!("Reused, {version}")) && said.contains("200 Fine"), "{said}");
        assert!(said.contains("X-Client-Certificate-Subject: CN="), "{said} {}", gate.status());
    };
    // Without a new list, a reload keeps sessions.
    hup(&mut gate, "is in force");
    for (_, flag, version, file) in &sessions {
        resumed(&gate, version, &ask(&gate, &site, "", "/staff", &[flag, "-sess_in", file]));
    }
    let [mut anna, mut bob] = ["anna", "bob"].map(|name| {
        let mut kept = Kept::open(&site, &gate.path("tls.sock"), &shown(&folder, name));
        assert_eq!(kept.ask("/staff"), "HTTP/1.1 200 Fine");
        kept
    });
    let failed = gate.status()["tls"]["failed"].as_u64().unwrap();

    revoke(&folder, "root", "anna");
    publish(&folder, "root", &[]);
    hup(&mut gate, "is in force");
    // The alert, wherever the request would have gone: in a new handshake, and in one that offers a session.
    for (flag, _) in versions {
        for path in ["/staff", "/partner", "/"] {
            let said = ask(&gate, &site, "anna", path, &[flag]);
            assert!(said.contains(REVOKED) && !said.contains("HTTP/1.1 "), "{said}");
        }
        assert!(ask(&gate, &site, "bob", "/staff", &[flag]).contains("200 Fine"));
        assert!(ask(&gate, &site, "paul", "/partner", &[flag]).contains("200 Fine"), "an authority without a list");
    }
    for (name, flag, version, file) in &sessions {
        let said = ask(&gate, &site, name, "/staff", &[flag, "-sess_in", file]);
        let (is_revoked, is_served) = (said.contains(REVOKED), said.contains("200 Fine"));
        assert!((is_revoked, is_served) == (*name == "anna", *name == "bob"), "{said}");
        // A session alone has no certificate any more.
        let said = ask(&gate, &site, "", "/staff", &[flag, "-sess_in", file]);
        assert!(said.contains(&format!("New, {version}")) && said.contains("403 Forbidden"), "{said}");
    }
    assert_eq!((anna.ask("/staff"), bob.ask("/staff")), ("HTTP/1.1 403 Forbidden".into(), "HTTP/1.1 200 Fine".into()));
    assert_eq!(gate.status()["tls"]["failed"], failed + 8, "{:#}", gate.status());

    // A file that is of no use changes nothing.
    fs::write(gate.path("root.crl"), "garbage").unwrap();
    hup(&mut gate, "not reloaded");
    assert!(ask(&gate, &site, "anna", "/staff", &[]).contains(REVOKED));
    let file = session("bob", "-again");
    assert!(ask(&gate, &site, "bob", "/staff", &["-sess_out", &file]).contains("200 Fine"));
    resumed(&gate, "TLSv1.3", &ask(&gate, &site, "", "/staff", &["-sess_in", &file]));
}

#[test]
fn each_certificate_below_the_root_needs_a_list() {
    let test = "each_certificate_below_the_root_needs_a_list";
    if need(test, "openssl").is_none() {
        return;
    }
    let (site, folder) = (Identity::new(), tempfile::tempdir().unwrap());
    let path = folder.path().to_owned();
    put(&site, &path.join("site.pem"));
    echo(&path, "app");
    authority(&path, "root", None);
    authority(&path, "partner", None);
    authority(&path, "issuing", Some("root"));
    ["anna", "bob"].iter().for_each(|name| client(&path, name, "issuing"));
    revoke(&path, "issuing", "anna");
    ["root", "issuing"].iter().for_each(|name| publish(&path, name, &[]));
    let with = |rule: &str| CONFIG.replace(RULE, rule);
    let whole = r#"{ ca = ["root.pem", "issuing.pem"], crl = ["root.crl", "issuing.crl"] }"#;
    let mut gate = Gate::start(folder, &with(whole));
    let chain = path.join("issuing.pem").display().to_string();
    for args in [&[][..], &["-cert_chain", &chain]] {
        assert!(ask(&gate, &site, "anna", "/staff", args).contains(REVOKED));
        assert!(ask(&gate, &site, "bob", "/staff", args).contains("200 Fine"));
    }
    // The list of one authority alone says nothing about the certificates of the other one.
    for rule in [
        r#"{ ca = ["root.pem", "issuing.pem"], crl = ["issuing.crl"] }"#,
        r#"{ ca = ["root.pem", "issuing.pem"], crl = ["root.crl"] }"#,
        r#"{ ca = "root.pem", crl = "root.crl" }"#,
    ] {
        gate.reload(&with(rule));
        let said = ask(&gate, &site, "bob", "/staff", &["-cert_chain", &chain]);
        assert!(said.contains(UNKNOWN), "{rule}: {said}");
    }
    // The root revokes the authority between, which is no client of its own either.
    revoke(&path, "root", "issuing");
    publish(&path, "root", &[]);
    gate.reload(&with(whole));
    assert!(ask(&gate, &site, "bob", "/staff", &[]).contains(REVOKED));
    assert!(!ask(&gate, &site, "issuing", "/staff", &[]).contains("200 Fine"));
    // Certificates that are their own root need no list.
    certificate(&path, "own", None, &[]);
    certificate(&path, "plain", None, &["basicConstraints=CA:FALSE"]);
    gate.reload(&with(r#"{ ca = ["root.pem", "own.pem", "plain.pem"], crl = ["root.crl"] }"#));
    for name in ["own", "plain"] {
        assert!(ask(&gate, &site, name, "/staff", &[]).contains("200 Fine"), "{name}");
    }
}

#[test]
fn an_expired_list_refuses_unless_it_may_still_count() {
    let test = "an_expired_list_refuses_unless_it_may_still_count";
    if need(test, "openssl").is_none() {
        return;
    }
    let site = Identity::new();
    let folder = prepare(&site);
    let path = folder.path().to_owned();
    revoke(&path, "root", "anna");
    publish(&path, "root", &PAST);
    // DER, as authorities publish lists.
    run(&path, &["crl", "-in", "root.crl", "-outform", "DER", "-out", "root.der"]);
    let mut gate = Gate::start(folder, &CONFIG.replace("root.crl", "root.der"));
    let said = ask(&gate, &site, "bob", "/staff", &[]);
    assert!(said.contains(UNKNOWN), "{said}");
    assert_eq!(gate.status()["tls"]["crl_expires"], 1_580_515_200);
    let metrics = gate.get_at("admin.sock", "a", "/metrics").body;
    assert!(metrics.contains("oroshi_gate_tls_crl_expires_seconds 1580515200\n"), "{metrics}");
    let accepting = r#"{ ca = "root.pem", crl = "root.der", crl-expired = "accept" }"#;
    gate.reload(&CONFIG.replace(RULE, accepting));
    assert!(ask(&gate, &site, "bob", "/staff", &[]).contains("200 Fine"));
    assert!(ask(&gate, &site, "anna", "/staff", &[]).contains(REVOKED));
    let checked = gate.ask(&["--check"]);
    let told = "root.der` has expired, and it still counts, as crl-expired = \"accept\" says: fetch the next list";
    assert!(checked.err.contains(told), "{checked:?}");
    // The latest list of an authority counts, in whichever order the files come.
    publish(&path, "root", &[]);
    for rule in [r#"{ ca = "root.pem", crl = ["root.der", "root.crl"] }"#, RULE] {
        gate.reload(&CONFIG.replace(RULE, rule));
        assert!(ask(&gate, &site, "bob", "/staff", &[]).contains("200 Fine"), "{rule}");
        assert!(ask(&gate, &site, "anna", "/staff", &[]).contains(REVOKED), "{rule}");
    }
    // Also of lists that one second has seen.
    publish(&path, "root", &LONG);
    fs::rename(path.join("root.crl"), path.join("first.crl")).unwrap();
    revoke(&path, "root", "bob");
    publish(&path, "root", &LONG);
    for lists in [r#"["first.crl", "root.crl"]"#, r#"["root.crl", "first.crl"]"#] {
        gate.reload(&CONFIG.replace(r#"["root.crl"]"#, lists));
        assert!(ask(&gate, &site, "bob", "/staff", &[]).contains(REVOKED), "{lists}");
    }
    // Another route of the host trusts the authority without its list: the handshake passes, and the route refuses.
    gate.reload(&CONFIG.replace("ca = \"partner.pem\"", "ca = \"root.pem\""));
    assert!(ask(&gate, &site, "anna", "/partner", &[]).contains("200 Fine"));
    assert!(ask(&gate, &site, "anna", "/staff", &[]).contains("403 Forbidden"));
}

#[test]
fn mistakes_name_the_file_and_the_next_step() {
    let test = "mistakes_name_the_file_and_the_next_step";
    if need(test, "openssl").is_none() {
        return;
    }
    let site = Identity::new();
    let folder = prepare(&site);
    let path = folder.path();
    publish(path, "partner", &[]);
    // Another authority of the same name.
    fs::create_dir(path.join("other")).unwrap();
    authority(&path.join("other"), "root", None);
    publish(&path.join("other"), "root", &[]);
    let list = fs::read_to_string(path.join("root.crl")).unwrap();
    run(path, &["crl", "-in", "root.crl", "-outform", "DER", "-out", "root.der"]);
    let der = fs::read(path.join("root.der")).unwrap();
    fs::write(path.join("short.der"), &der[..der.len() / 2]).unwrap();
    fs::write(path.join("short.crl"), &list[..list.len() / 2]).unwrap();
    fs::write(path.join("empty.crl"), "").unwrap();
    let unnumbered = fs::read_to_string(path.join("root.cnf")).unwrap().replace("crlnumber", "# crlnumber");
    fs::write(path.join("root.cnf"), unnumbered).unwrap();
    run(path, &["ca", "-config", "root.cnf", "-gencrl", "-out", "old.crl"]);
    let check = |rule: &str| {
        let config = CONFIG.replace(RULE, rule).replace("{dir}", path.to_str().unwrap());
        fs::write(path.join("gate.toml"), config).unwrap();
        Ran::of(oroshi().args(["gate", "--check"]).current_dir(path).output().unwrap())
    };
    for (file, problem) in [
        ("none.crl", "the file cannot be read"),
        ("short.crl", "the file is damaged PEM"),
        ("short.der", "the list is damaged or of an unsupported kind: expected a complete X.509 list of version 2"),
        ("old.crl", "the list is damaged or of an unsupported kind: expected a complete X.509 list of version 2"),
        ("empty.crl", "the file has no list: expected PEM (`BEGIN X509 CRL`) or DER"),
        ("root.pem", "the file has no list: expected PEM (`BEGIN X509 CRL`) or DER"),
        ("partner.crl", "its issuer `CN=partner` is unknown: add the issuer's certificate to the authorities, or"),
        ("other/root.crl", "no certificate of its issuer `CN=root` has the key that signed it, or the algorithm is"),
    ] {
        let checked = check(&format!("{{ ca = \"root.pem\", crl = [\"root.crl\", \"{file}\"] }}"));
        let told =
            format!("route[1].client-certificate.crl: revoked certificates cannot be read from {file}: {problem}");
        assert!(checked.code == Some(2) && checked.err.contains(&told), "{file}: {checked:?}");
    }
    for (rule, told) in [
        (r#"{ ca = "root.pem", crl-expired = "accept" }"#, "crl-expired: there is no list that could expire"),
        (r#"{ ca = "root.pem", crl = "root.crl", crl-expired = "no" }"#, "expected refuse or accept"),
        (r#"{ ca = "root.pem", crls = "root.crl" }"#, "did you mean `crl`?"),
        (
            r#"{ ca = ["root.pem", "other/root.pem"], crl = ["root.crl", "other/root.crl"] }"#,
            "its issuer `CN=root` has lists of several keys: name those of one key",
        ),
        (r#"{ crl = "root.crl" }"#, "route[1].client-certificate.ca: there is none"),
    ] {
        let checked = check(rule);
        assert!(checked.code == Some(2) && checked.err.contains(told), "{rule}: {checked:?}");
    }
    let checked = check(r#"{ ca = "root.pem", crl = ["root.crl"] }"#);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for line in ["crl = [\"root.crl\"]", "crl-expired = \"refuse\""] {
        assert!(checked.out.lines().any(|shown| shown == line), "{line}: {checked:?}");
    }
    assert!(checked.out.contains("# root.crl: the list of CN=root, 0 revoked, the next one is due on "), "{checked:?}");
}
