//! `oroshi gate` as a client of ACME, with Pebble as the authority, which fails on purpose: rejected nonces,
//! authorizations that it uses again, names that it blocks. Two gateways share one store.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use oroshi_testkit::{Identity, Port, need, wait_for, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::process::Signal;

use crate::gate::{Gate, Process, Ran, oroshi, sqlite};

const SEAL: &str = "0123456789abcdef0123456789abcdef";

/// The gateway's answer to all requests.
const ROUTE: &str = "[[route]]\nanswer = { body = \"here\" }\n";

/// Pebble, and the names that it knows: those below `nowhere.test` have no address, all others are at 127.0.0.1.
struct Pebble {
    process: Option<Process>,
    command: Command,
    identity: Identity,
    directory: Port,
    management: Port,
    /// Where it asks for HTTP-01 and for TLS-ALPN-01.
    http: Port,
    tls: Port,
    folder: tempfile::TempDir,
}

impl Pebble {
    /// Prepares one. `None`: a program is missing.
    fn prepare(test: &str, variables: &[(&str, &str)]) -> Option<Pebble> {
        let program = need(test, "pebble")?;
        need(test, "curl")?;
        need(test, "sqlite3")?;
        let (identity, folder) = (Identity::new(), tempfile::tempdir().unwrap());
        let [directory, management, http, tls] = std::array::from_fn(|_| Port::reserve());
        let (certificate, key) = identity.files();
        let config = serde_json::json!({ "pebble": {
            "listenAddress": directory.address().to_string(),
            "managementListenAddress": management.address().to_string(),
            "certificate": certificate, "privateKey": key,
            "httpPort": http.address().port(), "tlsPort": tls.address().port(),
            "domainBlocklist": ["blocked.test"],
            "retryAfter": { "authz": 1, "order": 1 },
            "keyAlgorithm": "ecdsa",
            "profiles": {
                "default": { "description": "90 days", "validityPeriod": 7_776_000 },
                "shortlived": { "description": "6 days", "validityPeriod": 518_400 },
            },
        } });
        fs::write(folder.path().join("pebble.json"), config.to_string()).unwrap();
        let mut command = Command::new(program);
        command.arg("-config").arg(folder.path().join("pebble.json"));
        command.args(["-dnsserver", &name_server()]).env("PEBBLE_VA_NOSLEEP", "1");
        command.envs(variables.iter().copied());
        Some(Pebble { process: None, command, identity, directory, management, http, tls, folder })
    }

    fn started(test: &str, variables: &[(&str, &str)]) -> Option<Pebble> {
        let mut pebble = Pebble::prepare(test, variables)?;
        pebble.start();
        Some(pebble)
    }

    fn start(&mut self) {
        self.process = Some(Process::start(&mut self.command, "ACME directory available"));
        for port in [&self.directory, &self.management] {
            wait_until("Pebble listens", || TcpStream::connect(port.address()).is_ok());
        }
    }

    fn stop(&mut self) {
        self.process = None;
    }

    /// Returns the begin of a configuration: listeners at the ports that Pebble asks.
    fn listeners(&self) -> String {
        let (http, tls) = (self.http.address(), self.tls.address());
        let listen =
            format!("listen = {{ public = \"{http}\", tls = \"{tls}\", admin = \"unix:{{dir}}/admin.sock\" }}\n");
        format!("threads = 1\n{listen}{ROUTE}")
    }

    /// Returns the tables of ACME, with further keys. `database` is the file of the store.
    fn acme(&self, database: &Path, keys: &str) -> String {
        let (directory, ca) = (self.directory.address(), self.identity.ca());
        format!(
            "[sql.acme]\nurl = \"sqlite:{}?mode=rwc\"\nquery-timeout = \"20s\"\nconnections = 4\n[acme]\n\
             directory = \"https://{directory}/dir\"\nagree-to-terms = true\naccount-key = \"account.pem\"\n\
             ca = [\"{}\"]\nstore = \"acme\"\n{keys}\n",
            database.display(),
            ca.display()
        )
    }

    /// Returns the file with the authority's root, which Pebble makes anew at each start.
    fn root(&self) -> PathBuf {
        let file = self.folder.path().join("root.pem");
        let url = format!("https://{}/roots/0", self.management.address());
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "--cacert"]).arg(self.identity.ca());
        Ran::of(command.arg("--output").arg(&file).arg(url).output().unwrap()).said(0, &[]);
        file
    }

    /// Asks for a page over TLS, whose certificate must be this authority's.
    fn get(&self, name: &str, at: &Port) -> Ran {
        get(name, at, &self.root())
    }
}

/// Asks for a page over TLS, whose certificate an authority must have signed.
fn get(name: &str, at: &Port, ca: &Path) -> Ran {
    let port = at.address().port();
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--cacert"]).arg(ca);
    command.args(["--resolve", &format!("{name}:{port}:127.0.0.1"), &format!("https://{name}:{port}/")]);
    Ran::of(command.output().unwrap())
}

/// The gateway served a page with the wanted certificate.
#[track_caller]
fn serves(ran: &Ran) {
    assert!(ran.code == Some(0) && ran.out == "here", "{ran:?}");
}

/// Starts a name server for Pebble, which asks over TCP. Returns its address.
fn name_server() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer_names(stream.unwrap()));
        }
    });
    address
}

/// Answers questions (RFC 1035, sections 4.1 and 4.2.2) until the client closes.
fn answer_names(mut stream: TcpStream) {
    let mut length = [0; 2];
    while stream.read_exact(&mut length).is_ok() {
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut question).unwrap();
        let end = 12 + question[12..].iter().position(|&byte| byte == 0).unwrap() + 1;
        let is_nowhere = question[12..end].ends_with(b"\x07nowhere\x04test\0");
        // Type A; AAAA gets no answer.
        let has_address = !is_nowhere && question[end..end + 2] == [0, 1];
        let mut answer = question[..2].to_vec();
        answer.extend_from_slice(&[
            0x81,
            if is_nowhere { 0x83 } else { 0x80 },
            0,
            1,
            0,
            has_address.into(),
            0,
            0,
            0,
            0,
        ]);
        answer.extend_from_slice(&question[12..end + 4]);
        if has_address {
            answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
        }
        let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length[..], &answer].concat()).unwrap();
    }
}

/// Runs a statement in the store while gateways use it, and returns what it says.
fn sql(database: &Path, statement: &str) -> String {
    let mut command = Command::new("sqlite3");
    command.args(["-cmd", ".timeout 20000"]).arg(database).arg(statement).stdin(Stdio::null());
    let ran = Ran::of(command.output().unwrap());
    ran.said(0, &[]);
    ran.out.trim().to_owned()
}

/// Waits until a gateway's status of ACME is as wanted.
#[track_caller]
fn wait_for_status(gate: &Gate, wanted: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let mut last = serde_json::Value::Null;
    wait_for(
        || "the status of ACME is not as wanted".to_owned(),
        || {
            last = gate.status()["acme"].clone();
            wanted(&last).then(|| last.clone())
        },
    )
}

fn number(status: &serde_json::Value, key: &str) -> u64 {
    status[key].as_u64().unwrap_or_default()
}

/// From an empty folder to a served certificate, although every third nonce is rejected and half of all authorizations
/// are used again. The row is sealed; no key is shown. A second start, and a reload, order nothing.
#[test]
fn http_01_from_nothing() {
    let variables = [("PEBBLE_WFE_NONCEREJECT", "30"), ("PEBBLE_AUTHZREUSE", "50")];
    let Some(pebble) = Pebble::started("http_01_from_nothing", &variables) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (database, secret) = (folder.path().join("acme.db"), folder.path().join("seal"));
    fs::write(&secret, SEAL).unwrap();
    let keys = "names = [\"www.example.test\", \"Example.test\"]\ncontact = [\"mailto:admin@example.test\"]\n\
                profile = \"shortlived\"\n[tls]\nseal = { key-file = \"{dir}/seal\" }\n";
    let config = pebble.listeners() + &pebble.acme(&database, keys);
    let mut gate = Gate::start(folder, &config);
    let status = wait_for_status(&gate, |status| number(status, "issued") == 2);
    assert_eq!((number(&status, "failed"), &status["last_error"]), (0, &serde_json::Value::Null), "{status:#}");
    for name in ["www.example.test", "example.test"] {
        serves(&pebble.get(name, &pebble.tls));
    }
    let refused = pebble.get("other.test", &pebble.tls);
    assert!(refused.code == Some(35), "{refused:?}");
    // A look at the certificate within a day, and a renewal when a third of 6 days is left.
    let rows =
        sql(&database, "SELECT substr(pem, 1, 14), failures, lock_until, due_at < renew_at FROM acme_certificate");
    assert_eq!(rows, "oroshi-sealed-|0|0|1\noroshi-sealed-|0|0|1");
    let left = sql(&database, "SELECT max(renew_at) - strftime('%s', 'now') FROM acme_certificate").parse::<i64>();
    assert!((3 * 86_400..=4 * 86_400).contains(&left.unwrap()), "a third of 6 days is left then");
    wait_until("answers are removed", || sql(&database, "SELECT count(*) FROM acme_challenge") == "0");
    let key = gate.path("account.pem");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    gate.reload(&config);
    let metrics = gate.get_at("admin.sock", "a", "/metrics").body;
    for line in ["oroshi_gate_acme_attempts_total{result=\"issued\"} 2", "oroshi_gate_acme_paused_until_seconds 0"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    gate.process.signal(Signal::TERM);
    gate.process.until("ended");
    let said = gate.process.said.join("\n");
    let written = fs::read_to_string(&key).unwrap();
    let written: Vec<&str> = written.lines().filter(|line| !line.starts_with('-')).collect();
    assert!(!said.contains("PRIVATE KEY") && !written.iter().any(|line| said.contains(line)), "{said}");
    // The certificates and the account are there at the next start.
    let again = Gate::start(gate.folder, &config);
    serves(&pebble.get("www.example.test", &pebble.tls));
    let status = wait_for_status(&again, |status| status["next_due_unix_s"].is_u64());
    assert_eq!((number(&status, "orders"), number(&status, "troubles")), (0, 0), "{status:#}");
}

/// The authority asks the second gateway alone, which has no order under way: it answers for the first one.
fn answered_by_another(test: &str, challenge: &str) {
    let Some(pebble) = Pebble::started(test, &[("PEBBLE_AUTHZREUSE", "0")]) else { return };
    let shared = tempfile::tempdir().unwrap();
    let database = shared.path().join("acme.db");
    let keys = |name: &str| format!("challenge = \"{challenge}\"\nnames = [\"{name}\"]\n");
    let answering = pebble.listeners() + &pebble.acme(&database, &keys("second.test"));
    let answering = Gate::start(tempfile::tempdir().unwrap(), &answering);
    wait_for_status(&answering, |status| number(status, "issued") == 1);
    let elsewhere = "threads = 1\nlisten = { public = \"unix:{dir}/public.sock\", tls = \"unix:{dir}/tls.sock\", \
                     admin = \"unix:{dir}/admin.sock\" }\n";
    let ordering = format!("{elsewhere}{ROUTE}{}", pebble.acme(&database, &keys("first.test")));
    let ordering = Gate::start(tempfile::tempdir().unwrap(), &ordering);
    let status = wait_for_status(&ordering, |status| number(status, "issued") + number(status, "failed") > 0);
    assert_eq!((number(&status, "issued"), number(&status, "failed")), (1, 0), "{status:#}");
    // What one gateway got serves the clients of all.
    serves(&pebble.get("first.test", &pebble.tls));
    assert_eq!(number(&answering.status()["acme"], "orders"), 1);
    // Unknown tokens take their route.
    let token = "/.well-known/acme-challenge/0123456789012345678901234567890123456789012";
    assert_eq!(crate::gate::tcp(pebble.http.address().port(), "first.test", token).body, "here");
}

#[test]
fn http_01_is_answered_by_another_gateway() {
    answered_by_another("http_01_is_answered_by_another_gateway", "http-01");
}

#[test]
fn tls_alpn_01_is_answered_by_another_gateway() {
    answered_by_another("tls_alpn_01_is_answered_by_another_gateway", "tls-alpn-01");
}

#[test]
fn two_gateways_order_once() {
    let Some(pebble) = Pebble::started("two_gateways_order_once", &[]) else { return };
    let shared = tempfile::tempdir().unwrap();
    let database = shared.path().join("acme.db");
    let names: Vec<String> = (0..6).map(|number| format!("\"n{number}.test\"")).collect();
    let acme = pebble.acme(&database, &format!("names = [{}]\n", names.join(", ")));
    let here = Gate::start(tempfile::tempdir().unwrap(), &(pebble.listeners() + &acme));
    let elsewhere = "threads = 1\nlisten = { public = \"unix:{dir}/public.sock\", tls = \"unix:{dir}/tls.sock\", \
                     admin = \"unix:{dir}/admin.sock\" }\n";
    let there = Gate::start(tempfile::tempdir().unwrap(), &format!("{elsewhere}{ROUTE}{acme}"));
    let sum = |key: &str| number(&here.status()["acme"], key) + number(&there.status()["acme"], key);
    wait_until("all names have certificates", || sum("issued") >= 6);
    assert_eq!((sum("issued"), sum("orders"), sum("failed")), (6, 6, 0));
    assert_eq!(sql(&database, "SELECT count(*) FROM acme_certificate WHERE pem LIKE '%PRIVATE KEY%'"), "6");
}

/// Writes the row of a certificate that ends so many days from now, of 90. Returns the file of its authority.
fn put_row(database: &Path, name: &str, days: u32) -> PathBuf {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "the authority before");
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    let now = std::time::SystemTime::now();
    let day = std::time::Duration::from_secs(86_400);
    let end = now + day * days;
    (params.not_before, params.not_after) = ((end - 90 * day).into(), end.into());
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let pem = format!("{}{}", certificate.pem(), key.serialize_pem());
    let ca = database.with_file_name(format!("{name}.ca.pem"));
    fs::write(&ca, issuer.pem()).unwrap();
    sql(database, &format!("INSERT INTO acme_certificate VALUES ('{name}', '{pem}', 0, 0, 0, 0, '', 0, 0, '')"));
    ca
}

const TABLES: &str = "CREATE TABLE acme_certificate (name VARCHAR(255) NOT NULL PRIMARY KEY, pem TEXT, \
    due_at BIGINT NOT NULL, renew_at BIGINT NOT NULL, failures BIGINT NOT NULL, lock_until BIGINT NOT NULL, \
    lock_owner VARCHAR(64) NOT NULL, ordered_at BIGINT NOT NULL, added_at BIGINT NOT NULL, \
    last_error VARCHAR(1000) NOT NULL);";

/// While the authority is down, the certificate that is due goes on, and attempts back off. When it is back, it is
/// renewed. A certificate that is not due stays.
#[test]
fn the_old_certificate_goes_on_while_the_authority_is_down() {
    let test = "the_old_certificate_goes_on_while_the_authority_is_down";
    let Some(mut pebble) = Pebble::prepare(test, &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("acme.db");
    sqlite(test, &database, TABLES);
    let ca = put_row(&database, "due.test", 10);
    put_row(&database, "later.test", 60);
    let config = pebble.listeners() + &pebble.acme(&database, "names = [\"due.test\", \"later.test\"]\n");
    let gate = Gate::start(folder, &config);
    let status = wait_for_status(&gate, |status| number(status, "troubles") > 0);
    assert!(status["paused_until_unix_s"].is_u64(), "{status:#}");
    serves(&get("due.test", &pebble.tls, &ca));
    assert_eq!(number(&gate.status()["acme"], "orders"), 0, "there was no order to begin");
    let failures = sql(&database, "SELECT failures, pem IS NOT NULL FROM acme_certificate WHERE name = 'due.test'");
    assert_eq!(failures, "0|1", "the name is not at fault");
    pebble.start();
    wait_for_status(&gate, |status| number(status, "issued") == 1);
    serves(&pebble.get("due.test", &pebble.tls));
    wait_until("the other name is looked at", || {
        sql(
            &database,
            "SELECT renew_at - strftime('%s', 'now') > 2300000 FROM acme_certificate WHERE name = 'later.test'",
        ) == "1"
    });
    assert_eq!(number(&gate.status()["acme"], "orders"), 1);
    pebble.stop();
}

/// Names that cannot get a certificate wait, and block no others.
#[test]
fn names_that_fail_wait_alone() {
    let Some(pebble) = Pebble::started("names_that_fail_wait_alone", &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("acme.db");
    let keys = "names = [\"blocked.test\", \"a.nowhere.test\", \"good.test\"]\norders-at-once = 1\n";
    let gate = Gate::start(folder, &(pebble.listeners() + &pebble.acme(&database, keys)));
    let status = wait_for_status(&gate, |status| number(status, "issued") == 1 && number(status, "failed") == 2);
    assert_eq!(status["paused_until_unix_s"], serde_json::Value::Null, "{status:#}");
    serves(&pebble.get("good.test", &pebble.tls));
    let rows = "SELECT failures, due_at - ordered_at BETWEEN 30 AND 600, last_error FROM acme_certificate \
                WHERE name = ";
    let blocked = sql(&database, &format!("{rows}'blocked.test'"));
    assert!(blocked.starts_with("1|1|") && blocked.contains("rejectedIdentifier"), "{blocked}");
    let nowhere = sql(&database, &format!("{rows}'a.nowhere.test'"));
    assert!(nowhere.starts_with("1|1|") && nowhere.contains("could not resolve"), "{nowhere}");
}

/// Clients bring names. Only those that the look-up has are ordered, no more than the limit permits, and a name that it
/// does not have any more is not renewed.
#[test]
fn clients_bring_names_that_the_look_up_allows() {
    let test = "clients_bring_names_that_the_look_up_allows";
    let Some(pebble) = Pebble::started(test, &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (database, domains) = (folder.path().join("acme.db"), folder.path().join("domains.db"));
    let rows = "CREATE TABLE domain (domain TEXT PRIMARY KEY, host TEXT); INSERT INTO domain VALUES
        ('one.test', '127.0.0.1:1'), ('two.test', '127.0.0.1:1'), ('three.test', '127.0.0.1:1');";
    sqlite(test, &domains, rows);
    let keys = "lookup = \"domains\"\nnew-names = \"2/h\"\n[tls.lookup]\nnegative-ttl = \"1ms\"\n\
        sql = { store = \"acme\", query = \"SELECT pem FROM acme_certificate WHERE name = ?\" }\n\
        [sql.domains]\nurl = \"sqlite:{dir}/domains.db\"\nquery-timeout = \"20s\"\n[lookup.domains]\nallow = \"any\"\n\
        memory = \"off\"\nwait = \"20s\"\n\
        sql = { store = \"domains\", query = \"SELECT host FROM domain WHERE domain = ?\" }\n";
    let gate = Gate::start(folder, &(pebble.listeners() + &pebble.acme(&database, keys)));
    wait_until("the tables are made", || {
        sql(&database, "SELECT count(*) FROM sqlite_master WHERE name = 'acme_challenge'") == "1"
    });
    for (place, name) in ["one.test", "two.test"].into_iter().enumerate() {
        let refused = pebble.get(name, &pebble.tls);
        assert_eq!(refused.code, Some(35), "{refused:?}");
        wait_for_status(&gate, |status| number(status, "issued") == place as u64 + 1);
        serves(&pebble.get(name, &pebble.tls));
    }
    for (name, count) in [("three.test", "limited"), ("unknown.test", "refused")] {
        assert_eq!(pebble.get(name, &pebble.tls).code, Some(35));
        wait_for_status(&gate, |status| number(status, count) > 0);
    }
    assert_eq!(sql(&database, "SELECT group_concat(name) FROM acme_certificate ORDER BY name"), "one.test,two.test");
    // One row is due, and the name is gone.
    sql(&domains, "DELETE FROM domain WHERE domain = 'one.test'");
    sql(&database, "UPDATE acme_certificate SET due_at = 1, renew_at = 1 WHERE name = 'one.test'");
    wait_until("the name waits", || {
        sql(&database, "SELECT due_at - strftime('%s', 'now') > 3600 FROM acme_certificate WHERE name = 'one.test'")
            == "1"
    });
    assert_eq!(number(&gate.status()["acme"], "orders"), 2);
}

/// The authority's advice (ARI) brings a renewal forward; advice that is garbage changes nothing.
#[test]
fn advice_brings_a_renewal_forward() {
    let Some(pebble) = Pebble::started("advice_brings_a_renewal_forward", &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("acme.db");
    let gate = Gate::start(folder, &(pebble.listeners() + &pebble.acme(&database, "names = [\"www.test\"]\n")));
    wait_for_status(&gate, |status| number(status, "issued") == 1);
    let advise = |advice: &str| {
        let pem = sql(&database, "SELECT pem FROM acme_certificate");
        let end = "-----END CERTIFICATE-----\n";
        let leaf = &pem[..pem.find(end).unwrap() + end.len()];
        let body = serde_json::json!({ "certificate": leaf, "ariResponse": advice }).to_string();
        let url = format!("https://{}/set-renewal-info/", pebble.management.address());
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "--cacert"]).arg(pebble.identity.ca());
        Ran::of(command.args(["--data", &body, &url]).output().unwrap()).said(0, &[]);
    };
    advise("{\"suggestedWindow\": 7}");
    sql(&database, "UPDATE acme_certificate SET due_at = 1");
    wait_until("it is looked at", || {
        sql(&database, "SELECT due_at > 1 AND due_at = renew_at FROM acme_certificate") == "1"
    });
    assert_eq!(number(&gate.status()["acme"], "orders"), 1);
    advise("{\"suggestedWindow\": {\"start\": \"2020-01-01T00:00:00Z\", \"end\": \"2020-01-02T00:00:00Z\"}}");
    sql(&database, "UPDATE acme_certificate SET due_at = 1");
    wait_for_status(&gate, |status| number(status, "issued") == 2);
    serves(&pebble.get("www.test", &pebble.tls));
}

#[test]
fn mistakes_of_the_table_are_told() {
    let check = |keys: &str| {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "[listen]\npublic = \"127.0.0.1:0\"\ntls = \"unix:tls.sock\"\n{ROUTE}[sql.acme]\nurl = \"sqlite:acme.db\"\n\
             [acme]\n{keys}\n"
        );
        fs::write(folder.path().join("gate.toml"), config).unwrap();
        let mut command = oroshi();
        Ran::of(command.args(["gate", "--check"]).current_dir(folder.path()).output().unwrap())
    };
    let good = "directory = \"https://127.0.0.1/dir\"\nagree-to-terms = true\naccount-key = \"account.pem\"\n\
                store = \"acme\"\nnames = [\"www.test\"]\n";
    let checked = check(good);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(checked.out.contains("orders = \"250/10800s\""), "{}", checked.out);
    for (from, to, told) in [
        ("https:", "http:", "acme.directory: `http://127.0.0.1/dir` is no directory"),
        ("true", "false", "acme.agree-to-terms: the authority issues only if you agree"),
        ("\"acme\"", "\"other\"", "acme.store: there is no SQL store `other`: expected one of acme"),
        ("\"www.test\"", "\"*.test\"", "acme.names: `*.test` cannot be ordered: only DNS-01"),
        (
            "names = [\"www.test\"]",
            "lookup = \"x\"",
            "acme.lookup: there is no look-up `x` by host: none is configured",
        ),
        ("names = [\"www.test\"]", "", "acme.names: no name is allowed"),
        ("names", "challenge = \"dns-01\"\nnames", "acme.challenge: `dns-01` is no challenge"),
    ] {
        let checked = check(&good.replace(from, to));
        assert_eq!(checked.code, Some(2), "{to}: {}", checked.out);
        assert!(checked.err.contains(told), "{to}: {}", checked.err);
    }
}
