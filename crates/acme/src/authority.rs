//! The authority: the account, orders, renewal information.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, ExternalAccountKey, Identifier, Key,
    NewAccount, NewOrder, Order, OrderStatus, Problem,
};
use oroshi_certificates::Challenges;
use oroshi_words::with_causes;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::time::sleep;
use zeroize::Zeroizing;

use crate::http::Http;
use crate::material::{hex, key_as_pem, mac_key, proof, request};
use crate::schedule::Window;
use crate::settings::{AcmeSettings, ChallengeKind};
use crate::store::Store;

/// How often one step is repeated because the authority does not accept its nonce. `instant-acme` repeats each three
/// times by itself.
const NONCES: u32 = 5;

/// The shortest and the longest time between two looks at an order.
const LOOKS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// The most bytes of the file with the account's key.
const KEY_BYTES: u64 = 16 << 10;

/// Why an order, or another request, failed.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) fault: Fault,
    pub(crate) why: String,
    /// How long the authority wants to be left alone.
    pub(crate) wait: Option<Duration>,
}

/// The cause of a failure. It decides which orders wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The name: it alone waits.
    Name,
    /// The authority, the way to it, or the account: all names wait.
    Authority,
    /// The authority's limits: the name waits, and all others for a shorter time.
    Limit,
    /// The store of this machine's answers: all names wait.
    Store,
}

impl Trouble {
    fn name(why: impl Into<String>) -> Self {
        Trouble { fault: Fault::Name, why: why.into(), wait: None }
    }

    pub(crate) fn store(error: &oroshi_lookup::StoreError) -> Self {
        Trouble { fault: Fault::Store, why: format!("the store failed: {error}"), wait: None }
    }

    fn account(why: String) -> Self {
        Trouble { fault: Fault::Authority, why, wait: None }
    }
}

/// The account at the authority. Clones share it.
#[derive(Clone)]
pub(crate) struct Authority {
    account: Account,
    http: Http,
}

/// Repeats a step while the authority rejects its nonce: nothing has happened then (RFC 8555, section 6.5).
macro_rules! with_nonce {
    ($call:expr) => {{
        let mut left = NONCES;
        loop {
            match $call.await {
                Err(error) if left > 0 && problem_kind(&error) == Some("badNonce") => left -= 1,
                done => break done,
            }
        }
    }};
}

impl Authority {
    /// Finds the account of the key in the settings' file, or makes the key and the account.
    pub(crate) async fn connect(settings: &AcmeSettings, http: Http) -> Result<Self, Trouble> {
        let file = &settings.account_key;
        let key = read_key(file).map_err(|error| {
            Trouble::account(format!("cannot read the account's key `{}`: {error}", file.display()))
        })?;
        let trouble = |error: instant_acme::Error| Trouble { fault: Fault::Authority, ..trouble(&error, &http) };
        let builder = || Account::builder_with_http(Box::new(http.clone()));
        let directory = || settings.directory.clone();
        let contact: Vec<&str> = settings.contact.iter().map(String::as_str).collect();
        let account = match key {
            Some(key) => {
                let pair = || {
                    let der = PrivatePkcs8KeyDer::from(key.secret_pkcs8_der().to_vec());
                    let pair = Key::from_pkcs8_der(der.clone_key()).map_err(|_| {
                        Trouble::account(format!("`{}` has no key of ECDSA P-256 in PKCS#8", file.display()))
                    })?;
                    Ok((pair, der.into()))
                };
                match builder().from_key(pair()?, directory()).await {
                    Ok((account, _)) => account,
                    // Another authority's key, or an authority that has forgotten: a test server after its restart.
                    Err(error) if problem_kind(&error) == Some("accountDoesNotExist") => {
                        let made = builder().create_from_key(pair()?, directory()).await;
                        let (account, _) = made.map_err(trouble)?;
                        if !contact.is_empty() {
                            with_nonce!(account.update_contacts(&contact)).map_err(trouble)?;
                        }
                        account
                    }
                    Err(error) => return Err(trouble(error)),
                }
            }
            None => {
                let unwritable =
                    |error| Trouble::account(format!("cannot write the account's key `{}`: {error}", file.display()));
                // Before the account is made: without its key, each attempt would make another one.
                let place = KeyFile::prepare(file).map_err(unwritable)?;
                let new = NewAccount {
                    contact: &contact,
                    terms_of_service_agreed: settings.agrees_to_terms,
                    only_return_existing: false,
                };
                let external = settings.external_account.as_ref();
                let external =
                    external.and_then(|own| Some(ExternalAccountKey::new(own.key_id.clone(), &mac_key(&own.mac_key)?)));
                let made = builder().create(&new, directory(), external.as_ref()).await;
                let (account, credentials) = made.map_err(trouble)?;
                place.keep(credentials.private_key()).map_err(unwritable)?;
                tracing::info!("made an account at {}, whose key is in `{}`", settings.directory, file.display());
                account
            }
        };
        Ok(Authority { account, http })
    }

    /// Asks when a certificate should be renewed, and when to ask again. `None`: the authority gives no advice now.
    pub(crate) async fn advice(&self, leaf: &CertificateDer<'static>) -> Option<(Window, Duration)> {
        let id = CertificateIdentifier::try_from(leaf).ok()?;
        match self.account.renewal_info(&id).await {
            Ok((info, again)) => {
                let window = info.suggested_window;
                Some((Window { begin: window.start.unix_timestamp(), end: window.end.unix_timestamp() }, again))
            }
            Err(instant_acme::Error::Unsupported(_)) => None,
            Err(error) => {
                // The time of the renewal is known without it.
                tracing::debug!("no renewal information: {}", with_causes(&error));
                None
            }
        }
    }

    /// Orders a certificate: returns the chain and its key as PEM. `before`: the certificate that it replaces.
    pub(crate) async fn order(
        &self,
        name: &str,
        before: Option<&CertificateDer<'static>>,
        settings: &AcmeSettings,
        answers: &Answers,
    ) -> Result<Zeroizing<String>, Trouble> {
        let trouble = |error: instant_acme::Error| trouble(&error, &self.http);
        let mut order = self.new_order(name, before, settings).await?;
        let _entered = self.prove(&mut order, name, settings.challenge, answers).await?;
        let status = wait(&mut order, &[OrderStatus::Ready, OrderStatus::Valid]).await.map_err(trouble)?;
        if status == OrderStatus::Invalid {
            return Err(self.reason(&mut order).await);
        }
        let made = request(name).map_err(|error| Trouble::name(format!("cannot make a key: {error}")))?;
        with_nonce!(order.finalize_csr(&made.csr)).map_err(trouble)?;
        if wait(&mut order, &[OrderStatus::Valid]).await.map_err(trouble)? == OrderStatus::Invalid {
            return Err(self.reason(&mut order).await);
        }
        let chain = with_nonce!(order.certificate()).map_err(trouble)?;
        let chain = chain.ok_or_else(|| Trouble::name("the authority has no certificate for a valid order"))?;
        let end = if chain.ends_with('\n') { "" } else { "\n" };
        Ok(Zeroizing::new([&*chain, end, &made.key].concat()))
    }

    async fn new_order(
        &self,
        name: &str,
        before: Option<&CertificateDer<'static>>,
        settings: &AcmeSettings,
    ) -> Result<Order, Trouble> {
        let identifiers = [Identifier::Dns(name.to_owned())];
        let new = || {
            let new = NewOrder::new(&identifiers);
            settings.profile.iter().fold(new, |new, profile| new.profile(profile))
        };
        if let Some(id) = before.and_then(|leaf| CertificateIdentifier::try_from(leaf).ok()) {
            let replacing = new().replaces(id);
            match with_nonce!(self.account.new_order(&replacing)) {
                Ok(order) => return Ok(order),
                Err(error) => {
                    let trouble = trouble(&error, &self.http);
                    let is_unsupported = matches!(error, instant_acme::Error::Unsupported(_));
                    // Another authority's certificate, or one that was replaced already: an order without it may do.
                    if trouble.fault != Fault::Name && !is_unsupported {
                        return Err(trouble);
                    }
                }
            }
        }
        with_nonce!(self.account.new_order(&new())).map_err(|error| trouble(&error, &self.http))
    }

    /// Proves control over the name of an order. The answers stay for as long as the returned value lives.
    async fn prove(
        &self,
        order: &mut Order,
        name: &str,
        kind: ChallengeKind,
        answers: &Answers,
    ) -> Result<Vec<Entered>, Trouble> {
        let trouble = |error: instant_acme::Error| trouble(&error, &self.http);
        let mut entered = Vec::new();
        with_nonce!(fetch_authorizations(order)).map_err(trouble)?;
        let mut authorizations = order.authorizations();
        loop {
            let Some(authorization) = authorizations.next().await else { return Ok(entered) };
            let mut authorization = authorization.map_err(trouble)?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                other => return Err(Trouble::name(format!("its authorization is {other:?} from the start"))),
            }
            let wanted = match kind {
                ChallengeKind::Http01 => ChallengeType::Http01,
                ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
            };
            let mut challenge = authorization
                .challenge(wanted)
                .ok_or_else(|| Trouble::name(format!("the authority offers no challenge {} for it", kind.name())))?;
            let proof = challenge.key_authorization();
            let answer = match kind {
                ChallengeKind::Http01 => {
                    Answer::Http { token: challenge.token.clone(), proof: proof.as_str().to_owned() }
                }
                ChallengeKind::TlsAlpn01 => {
                    Answer::Tls { name: name.to_owned(), digest: proof.digest().as_ref().to_vec() }
                }
            };
            entered.push(answers.enter(answer).await?);
            with_nonce!(challenge.set_ready()).map_err(trouble)?;
        }
    }

    /// Returns why an order has become invalid: its authorization says so more often than the order itself.
    async fn reason(&self, order: &mut Order) -> Trouble {
        let mut why = order.state().error.as_ref().map(ToString::to_string);
        let mut authorizations = order.authorizations();
        while let Some(Ok(mut authorization)) = authorizations.next().await {
            if let Ok(state) = authorization.refresh().await {
                let error = state.challenges.iter().find_map(|challenge| challenge.error.as_ref());
                why = error.map(ToString::to_string).or(why);
            }
        }
        Trouble::name(
            why.unwrap_or_else(|| "the order has become invalid, and the authority does not say why".to_owned()),
        )
    }
}

/// Fetches the authorizations of an order, which keeps them.
async fn fetch_authorizations(order: &mut Order) -> Result<(), instant_acme::Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        authorization?;
    }
    Ok(())
}

/// Looks at an order until it has one of these states, or is invalid. The caller limits the time.
async fn wait(order: &mut Order, wanted: &[OrderStatus]) -> Result<OrderStatus, instant_acme::Error> {
    let mut pause = LOOKS.0;
    loop {
        let status = order.state().status;
        if status == OrderStatus::Invalid || wanted.contains(&status) {
            return Ok(status);
        }
        sleep(pause).await;
        pause = (pause * 3 / 2).min(LOOKS.1);
        with_nonce!(async { order.refresh().await.map(drop) })?;
    }
}

/// Where the answers to challenges go.
#[derive(Clone)]
pub(crate) struct Answers {
    pub(crate) challenges: Arc<Challenges>,
    pub(crate) store: Store,
    /// Until when other machines may give them, in seconds since 1970.
    pub(crate) until: i64,
}

enum Answer {
    Http { token: String, proof: String },
    Tls { name: String, digest: Vec<u8> },
}

impl Answer {
    fn id(&self) -> String {
        match self {
            Answer::Http { token, .. } => token.clone(),
            Answer::Tls { name, .. } => tls_id(name),
        }
    }
}

/// The name of an answer to TLS-ALPN-01 in the store. No token has a `:`.
pub(crate) fn tls_id(name: &str) -> String {
    format!("tls:{name}")
}

impl Answers {
    /// Enters an answer here and in the store, before the authority asks.
    async fn enter(&self, answer: Answer) -> Result<Entered, Trouble> {
        let full = || Trouble::account("too many answers to challenges are entered".to_owned());
        let written = match &answer {
            Answer::Http { token, proof } => {
                self.challenges.enter_http(token, proof).then_some(()).ok_or_else(full)?;
                proof.clone()
            }
            Answer::Tls { name, digest } => {
                let (certificate, key) =
                    proof(name, digest).map_err(|error| Trouble::name(format!("cannot make a proof: {error}")))?;
                let fits = self.challenges.enter_tls(name, certificate, &key);
                let fits = fits.map_err(|error| Trouble::name(format!("cannot make a proof: {error}")))?;
                fits.then_some(()).ok_or_else(full)?;
                hex(digest)
            }
        };
        let entered = Entered { answers: self.clone(), answer };
        let id = entered.answer.id();
        self.store.enter_answer(&id, &written, self.until).await.map_err(|error| Trouble::store(&error))?;
        Ok(entered)
    }
}

/// An answer that is entered. Dropping it removes it here, and soon in the store.
struct Entered {
    answers: Answers,
    answer: Answer,
}

impl Drop for Entered {
    fn drop(&mut self) {
        match &self.answer {
            Answer::Http { token, .. } => self.answers.challenges.remove_http(token),
            Answer::Tls { name, .. } => self.answers.challenges.remove_tls(name),
        }
        let (store, id) = (self.answers.store.clone(), self.answer.id());
        tokio::task::spawn_local(async move {
            // It ends by itself as well.
            let _ = store.remove_answer(&id).await;
        });
    }
}

/// Reads the account's key; `None`: there is no file.
fn read_key(file: &Path) -> io::Result<Option<PrivatePkcs8KeyDer<'static>>> {
    let mut text = Zeroizing::new(Vec::new());
    match std::fs::File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?.take(KEY_BYTES).read_to_end(&mut text)?,
    };
    let wrong = |_| io::Error::other("expected a private key in PEM, with BEGIN PRIVATE KEY (PKCS#8)");
    PrivatePkcs8KeyDer::from_pem_slice(&text).map(Some).map_err(wrong)
}

/// The file of a new account's key, for the owner of this process alone.
struct KeyFile {
    file: PathBuf,
    /// A file beside it, which takes its name once it is complete.
    made: PathBuf,
    opened: std::fs::File,
}

impl KeyFile {
    fn prepare(file: &Path) -> io::Result<Self> {
        let mut made = file.as_os_str().to_owned();
        // Random: other processes may make a key for the same file.
        made.push(format!(".{:016x}.new", fastrand::u64(..)));
        let made = PathBuf::from(made);
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&made)?;
        Ok(KeyFile { file: file.to_owned(), made, opened })
    }

    /// Writes the key. An existing file stays, and is an error.
    fn keep(mut self, key: &PrivatePkcs8KeyDer<'_>) -> io::Result<()> {
        self.opened.write_all(key_as_pem(key).as_bytes())?;
        self.opened.sync_all()?;
        std::fs::hard_link(&self.made, &self.file)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.made);
    }
}

/// Returns the last part of a problem's type, such as `badNonce` (RFC 8555, section 6.7).
fn problem_kind(error: &instant_acme::Error) -> Option<&str> {
    match error {
        instant_acme::Error::Api(problem) => kind_of(problem),
        _ => None,
    }
}

fn kind_of(problem: &Problem) -> Option<&str> {
    problem.r#type.as_deref()?.strip_prefix("urn:ietf:params:acme:error:")
}

fn trouble(error: &instant_acme::Error, http: &Http) -> Trouble {
    let fault = match error {
        instant_acme::Error::Api(problem) => match kind_of(problem) {
            Some("rateLimited") => Fault::Limit,
            // The last ones concern the account.
            Some("badNonce" | "serverInternal" | "accountDoesNotExist" | "userActionRequired") => Fault::Authority,
            Some("externalAccountRequired" | "badSignatureAlgorithm" | "badPublicKey") => Fault::Authority,
            _ if problem.status.is_some_and(|status| status >= 500) => Fault::Authority,
            _ => Fault::Name,
        },
        instant_acme::Error::Timeout(_) | instant_acme::Error::Unsupported(_) => Fault::Name,
        // No connection, or an answer that is not ACME's.
        _ => Fault::Authority,
    };
    let wait = http.take_retry_after().filter(|_| fault != Fault::Name);
    Trouble { fault, why: with_causes(error), wait }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_accounts_key_is_for_its_owner_alone_and_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("account.pem");
        assert!(read_key(&file).unwrap().is_none());
        let (_, key) = Key::generate_pkcs8().unwrap();
        KeyFile::prepare(&file).unwrap().keep(&key).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_key(&file).unwrap().unwrap().secret_pkcs8_der(), key.secret_pkcs8_der());
        let (_, other) = Key::generate_pkcs8().unwrap();
        assert!(KeyFile::prepare(&file).unwrap().keep(&other).is_err());
        assert_eq!(read_key(&file).unwrap().unwrap().secret_pkcs8_der(), key.secret_pkcs8_der());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
        assert!(KeyFile::prepare(&folder.path().join("none/account.pem")).is_err());
        std::fs::write(&file, "garbage").unwrap();
        assert!(read_key(&file).unwrap_err().to_string().contains("BEGIN PRIVATE KEY"));
    }

    #[test]
    fn faults_are_told_apart() {
        let http = Http::new(&oroshi_net::tls::Roots::Only(Vec::new())).unwrap();
        let fault = |kind: &str| {
            let text = format!("{{\"type\": \"urn:ietf:params:acme:error:{kind}\", \"detail\": \"x\"}}");
            let problem: Problem = serde_json::from_str(&text).unwrap();
            trouble(&instant_acme::Error::Api(problem), &http).fault
        };
        assert_eq!(fault("rateLimited"), Fault::Limit);
        assert_eq!((fault("badNonce"), fault("serverInternal")), (Fault::Authority, Fault::Authority));
        assert_eq!((fault("rejectedIdentifier"), fault("connection")), (Fault::Name, Fault::Name));
        let down = instant_acme::Error::Other("no connection".into());
        assert_eq!(trouble(&down, &http).fault, Fault::Authority);
    }
}
