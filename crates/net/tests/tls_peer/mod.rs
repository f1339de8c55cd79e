//! A client of TLS 1.3 that sends any records after its handshake.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oroshi_net::Stream;
use oroshi_testkit::Identity;
use ring::{aead, hkdf};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, KeyLog, RootCertStore};

/// The bytes of a secret, and of a hash: the suite has SHA-256.
const HASH_BYTES: usize = 32;

/// A client after its handshake. rustls reads what the server sends; records for the server are made here.
pub(crate) struct TlsPeer {
    pub(crate) socket: TcpStream,
    connection: ClientConnection,
    secret: [u8; HASH_BYTES],
    /// The number of the next record under this secret.
    sequence: u64,
}

/// Makes a session: both ends of a handshake. The server's end needs the runtime of this thread.
pub(crate) async fn meet(identity: &Identity) -> (Stream, TlsPeer) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let (to, ca) = (listener.local_addr().expect("bound"), identity.ca());
    let client = std::thread::spawn(move || TlsPeer::connect(to, &ca));
    let accepted = Stream::from(listener.accept().await.expect("the client connects").0);
    let stream = identity.server().accept(accepted).await.expect("a sound handshake");
    (stream, client.join().expect("a sound handshake"))
}

impl TlsPeer {
    fn connect(to: SocketAddr, ca: &std::path::Path) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca).expect("readable")).expect("a certificate");
        let cipher_suites = vec![provider::cipher_suite::TLS13_AES_128_GCM_SHA256];
        let crypto = CryptoProvider { cipher_suites, ..provider::default_provider() };
        let mut config = ClientConfig::builder_with_provider(Arc::new(crypto))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a version that the suite has")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let secret = Arc::new(SecretLog::default());
        config.key_log = Arc::clone(&secret) as Arc<dyn KeyLog>;
        let name = ServerName::try_from("localhost").expect("a name");
        let mut connection = ClientConnection::new(Arc::new(config), name).expect("a configuration");
        let mut socket = TcpStream::connect(to).expect("it listens");
        connection.complete_io(&mut socket).expect("a sound handshake");
        let secret = *secret.0.lock().expect("one thread");
        TlsPeer { socket, connection, secret, sequence: 0 }
    }

    /// Encrypts a record of this inner type: 21 alert, 22 handshake, 23 application data.
    pub(crate) fn record(&mut self, kind: u8, fragment: &[u8]) -> Vec<u8> {
        let mut nonce: [u8; aead::NONCE_LEN] = expand(&self.secret, "iv");
        nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        self.sequence += 1;
        let key = expand::<16>(&self.secret, "key");
        let key = aead::LessSafeKey::new(aead::UnboundKey::new(&aead::AES_128_GCM, &key).expect("16 bytes"));
        // RFC 8446, section 5.2: the length counts the inner type and the tag.
        let length = u16::try_from(fragment.len() + 17).expect("a short fragment");
        let head = [&[23, 3, 3][..], &length.to_be_bytes()].concat();
        let mut body = [fragment, &[kind]].concat();
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, aead::Aad::from(&head[..]), &mut body).expect("short");
        [head, body].concat()
    }

    /// Encrypts a key update, and uses the next key from then on. `asks`: the server shall do so too.
    pub(crate) fn key_update(&mut self, asks: bool) -> Vec<u8> {
        let record = self.record(22, &[24, 0, 0, 1, asks.into()]);
        self.secret = expand(&self.secret, "traffic upd");
        self.sequence = 0;
        record
    }

    /// Reads, without waiting, what the server has sent.
    pub(crate) fn take(&mut self, into: &mut Vec<u8>) {
        self.socket.set_nonblocking(true).expect("a socket");
        while matches!(self.connection.read_tls(&mut self.socket), Ok(1..)) {
            let is_sound = self.connection.process_new_packets().is_ok();
            let _ = self.connection.reader().read_to_end(into);
            if !is_sound {
                break;
            }
        }
    }

    /// Ends the connection by a reset.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO)).expect("a socket");
    }
}

#[derive(Debug, Default)]
struct SecretLog(Mutex<[u8; HASH_BYTES]>);

impl KeyLog for SecretLog {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if label == "CLIENT_TRAFFIC_SECRET_0" {
            self.0.lock().expect("one thread").copy_from_slice(secret);
        }
    }
}

/// HKDF-Expand-Label without a context (RFC 8446, section 7.1).
fn expand<const N: usize>(secret: &[u8], label: &str) -> [u8; N] {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let label = format!("tls13 {label}");
    let info = [&[0, N as u8, label.len() as u8][..], label.as_bytes(), &[0]].concat();
    let (info, prk) = ([&info[..]], hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret));
    let mut out = [0; N];
    prk.expand(&info, Length(N)).and_then(|expanded| expanded.fill(&mut out)).expect("short");
    out
}
