//! Files and folders, resumption, challenges.

use std::fs;

use oroshi_certificates::{Catalogue, Certificate, CertificateError};
use rcgen::{CertificateParams, KeyPair};

use super::*;

#[test]
fn folders_serve_the_names_inside_their_files() {
    run(async {
        let authority = Authority::new();
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let (chain, key) = authority.sign(&["one.example", "www.one.example"]);
        put("one.pem", &format!("{key}{chain}"));
        let (chain, key) = authority.sign(&["*.two.example"]);
        put("two.crt", &chain);
        put("any-name.key", &key);
        // As certbot leaves them.
        let (chain, key) = authority.sign(&["three.example"]);
        put("live/three/fullchain.pem", &chain);
        put("live/three/chain.pem", &authority.issuer.pem());
        put("live/three/privkey.pem", &key);
        put("notes.txt", "no certificate");
        let mut settings = settings(catalogue(folder.path()));
        settings.default = Some("one.example".to_owned());
        let defaulted = in_force(settings);
        let current = in_force(super::settings(catalogue(folder.path())));
        for name in ["one.example", "www.one.example", "a.two.example", "three.example"] {
            let facts = shake(&current, &authority.client(name)).await.unwrap();
            assert_eq!((facts.version, facts.sni.as_deref()), ("TLSv1.3", Some(name)));
            assert!(facts.suite.starts_with("TLS_AES_") && !facts.resumed, "{facts:?}");
        }
        for name in ["other.example", "two.example", "a.b.two.example"] {
            let refused = shake(&current, &authority.client(name)).await;
            assert!(was_refused(&refused, "UnrecognisedName"), "{name}: {refused:?}");
            let other = shake(&defaulted, &authority.client(name)).await;
            assert!(matches!(other, Err(TlsError::Certificate(_))), "the default's certificate: {other:?}");
        }
        let counts = current.get().unwrap().counts();
        assert_eq!((counts.handshakes, counts.resumed, counts.refused, counts.failed), (4, 0, 3, 3));
    });
}

#[test]
fn files_that_cannot_be_used_say_why_and_show_no_key() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let ((chain, key), (other, _)) = (authority.sign(&["one.example"]), authority.sign(&["two.example"]));
    let path = folder.path().join("site.pem");
    let secret = key.lines().nth(1).unwrap();
    for (text, why) in [
        (chain.clone(), "no private key"),
        (key.clone(), "no certificate"),
        (format!("{other}{key}"), "another certificate"),
        (format!("{chain}{key}{key}"), "2 private keys"),
        ("garbage".to_owned(), "no certificate"),
        (format!("{chain}-----BEGIN PRIVATE KEY-----\n{secret}\n"), "not PEM"),
        (format!("{chain}-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), "no supported kind"),
    ] {
        fs::write(&path, text).unwrap();
        let errors = Catalogue::read(&[Source::Path(path.clone())]).unwrap_err();
        let said = format!("{} {errors:?}", errors[0]);
        assert!(said.contains(why), "{why}: {said}");
        assert!(!said.contains(secret), "{said}");
    }
    let empty = tempfile::tempdir().unwrap();
    let errors = Catalogue::read(&[Source::Path(empty.path().to_owned())]).unwrap_err();
    assert!(errors[0].to_string().contains("has no certificate"), "{errors:?}");
    let lonely = tempfile::tempdir().unwrap();
    fs::write(lonely.path().join("a.crt"), &chain).unwrap();
    let errors = Catalogue::read(&[Source::Path(lonely.path().to_owned())]).unwrap_err();
    assert!(errors[0].to_string().contains("no private key"), "{errors:?}");
    assert_eq!(Certificate::from_pem(b"").unwrap_err(), CertificateError::NoCertificate);
}

/// As after a restart, or on another machine: nothing is shared but the secret.
#[test]
fn sessions_resume_wherever_the_secret_is() {
    run(async {
        let authority = Authority::new();
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = authority.sign(&["one.example", "two.example"]);
        fs::write(folder.path().join("one.pem"), format!("{chain}{key}")).unwrap();
        let first = in_force(settings(catalogue(folder.path())));
        let client = authority.client("one.example");
        assert!(!shake(&first, &client).await.unwrap().resumed);
        assert!(shake(&first, &client).await.unwrap().resumed);
        let second = in_force(settings(catalogue(folder.path())));
        assert!(shake(&second, &client).await.unwrap().resumed, "another process with the secret");
        let mut others = settings(catalogue(folder.path()));
        others.tickets = Tickets::of_this_process(Duration::from_secs(3600)).unwrap();
        assert!(!shake(&in_force(others), &client).await.unwrap().resumed, "another secret");
        // A reload keeps the secret, the counters and so the sessions.
        assert!(!shake(&first, &client).await.unwrap().resumed, "its tickets are the other's now");
        let before = first.get().unwrap();
        let reloaded = Certificates::new(settings(catalogue(folder.path())), Some(&before), true);
        first.set(Some(Arc::new(reloaded)));
        assert!(shake(&first, &client).await.unwrap().resumed, "after a reload");
        assert_eq!(first.get().unwrap().counts().handshakes, 4);
    });
}

#[test]
fn an_authority_s_challenge_is_answered_over_its_protocol_alone() {
    run(async {
        let authority = Authority::new();
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = authority.sign(&["one.example"]);
        fs::write(folder.path().join("one.pem"), format!("{chain}{key}")).unwrap();
        let settings = settings(catalogue(folder.path()));
        let challenges = Arc::clone(&settings.challenges);
        let current = in_force(settings);
        let asks = |name: &str| {
            let options = ClientTlsOptions {
                roots: Roots::Insecure,
                alpn: vec![b"acme-tls/1".to_vec()],
                ..ClientTlsOptions::default()
            };
            ClientTls::new(&options, name).unwrap()
        };
        let refused = shake(&current, &asks("new.example")).await;
        assert!(was_refused(&refused, "UnrecognisedName"), "{refused:?}");
        let key = KeyPair::generate().unwrap();
        // Without the extension of RFC 8737: it is critical, and rustls as a client knows no such one.
        let mut params = CertificateParams::new(vec!["new.example".to_owned()]).unwrap();
        let proof = params.self_signed(&key).unwrap();
        // With it, as it is in truth, the proof is taken as well; the tests of `oroshi gate` let Pebble ask for it.
        params.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(&[7; 32])];
        let real = params.self_signed(&key).unwrap();
        let other = rustls::pki_types::PrivateKeyDer::try_from(KeyPair::generate().unwrap().serialize_der()).unwrap();
        assert!(challenges.enter_tls("new.example", real.der().clone(), &other).is_err(), "another key");
        let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        assert!(challenges.enter_tls("new.example", real.der().clone(), &key).unwrap());
        assert!(challenges.enter_tls("New.Example", proof.der().clone(), &key).unwrap());
        let facts = shake(&current, &asks("new.example")).await.unwrap();
        assert_eq!(facts.alpn.as_deref(), Some("acme-tls/1"));
        let refused = shake(&current, &authority.client("new.example")).await;
        assert!(was_refused(&refused, "UnrecognisedName"), "clients do not get the proof: {refused:?}");
        challenges.remove_tls("new.example");
        let refused = shake(&current, &asks("new.example")).await;
        assert!(was_refused(&refused, "UnrecognisedName"), "{refused:?}");

        assert_eq!(challenges.http_answer("token"), None);
        assert!(challenges.enter_http("token", "token.print"));
        assert_eq!(challenges.http_answer("token").as_deref(), Some("token.print"));
        challenges.remove_http("token");
        assert_eq!(challenges.http_answer("token"), None);
    });
}
