//! The worker: starts an order for each name that is due, and writes what became of it.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use oroshi_certificates::{Certificate, Challenges, Seal};
use oroshi_lookup::{Lookup, LookupResult, Outcome, StoreError};
use oroshi_words::date::http_date;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use zeroize::Zeroizing;

use crate::acme::{Running, Shared, locked, unix_now};
use crate::authority::{Answers, Authority, Fault, Trouble};
use crate::http::Http;
use crate::schedule::{Validity, advised, back_off, next_look, pause, renewal, seconds};
use crate::settings::{AcmeSettings, dns_name};
use crate::store::{Claimed, Verdict, is_refusal};

/// How often the table is looked at although nothing is due: another machine may have added a name.
const POLL: Duration = Duration::from_secs(10);

/// How long a name waits that is not allowed, while it has a certificate.
const NOT_ALLOWED: i64 = 6 * 3600;

/// How long a name waits while the look-up cannot say whether it is allowed.
const UNKNOWN: i64 = 60;

/// The longest pause while the store is down, in seconds.
const STORE: i64 = 60;

/// The most rows of other machines among which a machine without a look-up finds its own.
const OTHERS: usize = 200;

/// The most names of clients that are checked at the same time.
const CHECKS: usize = 16;

/// How often answers that machines left behind are removed, in seconds.
const SWEEP: i64 = 3600;

/// The begin of sealed rows, which only their key opens.
const SEALED: &[u8] = b"oroshi-sealed-";

pub(crate) struct Worker {
    pub(crate) settings: AcmeSettings,
    pub(crate) shared: Arc<Shared>,
    pub(crate) lookup: Option<Lookup>,
    pub(crate) seal: Option<Seal>,
    pub(crate) challenges: Arc<Challenges>,
    pub(crate) issued: Box<dyn Fn(&str) + Send>,
    pub(crate) http: Http,
}

/// The worker's state.
struct State {
    worker: Rc<Engine>,
    tasks: JoinSet<Done>,
    /// Names with an order under way here.
    active: HashSet<String>,
    checks: usize,
    /// Whether the tables exist, and have the names of the settings.
    is_prepared: bool,
    failures: i64,
    swept_at: i64,
}

/// State that the tasks share.
struct Engine {
    parts: Worker,
    /// Locked while the account is made, so that one is made.
    authority: Mutex<Option<Authority>>,
    running: Running,
}

/// A task that has ended.
enum Done {
    /// Whether a name was entered.
    Checked(bool),
    /// The name, and whether the authority did its work.
    Ordered(String, Result<bool, Trouble>),
}

/// The next step for a claimed row.
enum Decision {
    Issued { pem: Zeroizing<String>, due_at: i64, renew_at: i64 },
    Failed(Trouble, Option<i64>),
    Later(i64),
    Planned { due_at: i64, renew_at: i64 },
    Removed,
}

impl Worker {
    /// Works from the begin to the end.
    pub(crate) async fn run(self, mut wanted: mpsc::Receiver<Box<str>>, running: Running) {
        if !running.begun().await {
            return;
        }
        let engine = Engine { parts: self, authority: Mutex::default(), running: running.clone() };
        let mut state = State {
            worker: Rc::new(engine),
            tasks: JoinSet::new(),
            active: HashSet::new(),
            checks: 0,
            is_prepared: false,
            failures: 0,
            swept_at: 0,
        };
        let mut wake = Instant::now();
        loop {
            // Not for each name that a client brings: looking takes two queries.
            if Instant::now() >= wake {
                wake = Instant::now() + state.step().await;
            }
            tokio::select! {
                biased;
                () = running.ended() => break,
                done = state.tasks.join_next(), if !state.tasks.is_empty() => {
                    if state.ended(done) {
                        wake = Instant::now();
                    }
                }
                name = wanted.recv(), if state.checks < CHECKS => {
                    let Some(name) = name else { break };
                    state.check(name);
                }
                () = sleep_until(wake) => {}
            }
        }
        // Each task sees the end as well, and releases its lock.
        while state.tasks.join_next().await.is_some() {}
    }
}

impl State {
    /// Starts orders for names that are due. Returns when to look again.
    async fn step(&mut self) -> Duration {
        let now = unix_now();
        let shared = Arc::clone(&self.worker.parts.shared);
        let paused_until = shared.paused_until.load(Relaxed);
        if now < paused_until {
            return Duration::from_secs(u64::try_from(paused_until - now).unwrap_or(1));
        }
        match self.try_step(now).await {
            Ok(wake) => wake,
            Err(error) => {
                if is_refusal(&error) && !self.is_prepared {
                    tracing::warn!(
                        "the tables of ACME cannot be made, see docs/gate-tls.md for those that it expects: {error}"
                    );
                }
                self.trouble(&Trouble::store(&error));
                Duration::from_secs(1)
            }
        }
    }

    async fn try_step(&mut self, now: i64) -> Result<Duration, StoreError> {
        let worker = Rc::clone(&self.worker);
        let (settings, store) = (&worker.parts.settings, worker.parts.shared.store());
        if !self.is_prepared {
            store.create_tables().await?;
            for name in settings.names.iter().filter_map(|name| dns_name(name)) {
                store.add(&name, now, 0).await?;
            }
            self.is_prepared = true;
        }
        if now - self.swept_at >= SWEEP {
            store.remove_old_answers(now).await?;
            self.swept_at = now;
        }
        let free = settings.orders_at_once.saturating_sub(self.active.len());
        if free > 0 {
            // Without a look-up, other rows are those of other machines. (Names under way here are locked, but their
            // lock may have ended.)
            let is_ours = |name: &String| settings.lookup.is_some() || settings.has_name(name);
            let others = if settings.lookup.is_some() { 0 } else { OTHERS };
            let due = store.due(now, free + self.active.len() + others).await?;
            let names = due.into_iter().filter(|name| is_ours(name) && !self.active.contains(name));
            let names: Vec<String> = names.take(free).collect();
            for name in names {
                let worker = Rc::clone(&self.worker);
                self.active.insert(name.clone());
                self.tasks.spawn_local(async move {
                    let result = worker.attend(&name).await;
                    Done::Ordered(name, result)
                });
            }
        }
        worker.parts.shared.under_way.store(self.active.len() as u64, Relaxed);
        let next = store.next_due(now).await?;
        worker.parts.shared.next_due.store(next.unwrap_or_default(), Relaxed);
        let until = next.map_or(POLL, |next| Duration::from_secs(u64::try_from(next - now).unwrap_or_default()));
        Ok(until.clamp(Duration::from_secs(1), POLL))
    }

    /// Checks a name that a client brought, and adds it to the table if it is allowed.
    fn check(&mut self, name: Box<str>) {
        self.checks += 1;
        let worker = Rc::clone(&self.worker);
        self.tasks.spawn_local(async move {
            let added = worker.add(&name).await.unwrap_or_else(|error| {
                tracing::warn!("`{name}` could not be entered for a certificate: {error}");
                false
            });
            Done::Checked(added)
        });
    }

    /// Notes that a task has ended. Returns whether the table may have work now.
    fn ended(&mut self, done: Option<Result<Done, tokio::task::JoinError>>) -> bool {
        match done {
            Some(Ok(Done::Checked(added))) => {
                self.checks = self.checks.saturating_sub(1);
                return added;
            }
            Some(Ok(Done::Ordered(name, result))) => {
                self.active.remove(&name);
                match result {
                    Ok(true) => self.failures = 0,
                    Ok(false) => {}
                    Err(trouble) => self.trouble(&trouble),
                }
            }
            Some(Err(error)) => tracing::error!("a task of ACME has failed: {error}"),
            None => {}
        }
        true
    }

    /// Pauses all orders of this machine. Several that fail together count once.
    fn trouble(&mut self, trouble: &Trouble) {
        let (now, shared) = (unix_now(), &self.worker.parts.shared);
        shared.troubles.fetch_add(1, Relaxed);
        *locked(&shared.last_error) = Some(trouble.why.clone());
        if now < shared.paused_until.load(Relaxed) {
            return;
        }
        self.failures += 1;
        // A limit may concern the one name, which waits for as long as the authority asks.
        let wait = trouble.wait.filter(|_| trouble.fault != Fault::Limit);
        let pause = pause(self.failures, wait, fastrand::f64());
        let pause = if trouble.fault == Fault::Store { pause.min(STORE) } else { pause };
        shared.paused_until.store(now + pause, Relaxed);
        tracing::warn!("no certificate is ordered for {pause} s: {}", trouble.why);
    }
}

impl Engine {
    /// Adds a name to the table, within the limits, if the look-up has it. Returns whether it did.
    async fn add(&self, name: &str) -> Result<bool, StoreError> {
        let shared = &self.parts.shared;
        if self.is_allowed(name).await != Some(true) {
            shared.refused.fetch_add(1, Relaxed);
            return Ok(false);
        }
        let (store, now, settings) = (shared.store(), unix_now(), &self.parts.settings);
        if store.added(now - seconds(settings.new_names_window)).await? >= i64::from(settings.new_names) {
            shared.limited.fetch_add(1, Relaxed);
            return Ok(false);
        }
        store.add(name, now, now).await.map(|()| true)
    }

    /// Returns whether a name may have a certificate; `None`: the look-up cannot say.
    async fn is_allowed(&self, name: &str) -> Option<bool> {
        if self.parts.settings.has_name(name) {
            return Some(true);
        }
        let Some(lookup) = &self.parts.lookup else { return Some(false) };
        let answer = match lookup.get(name) {
            LookupResult::Now(answer) => answer,
            LookupResult::Later(later) => later.await,
        };
        match answer.outcome {
            Outcome::Hit(_) | Outcome::Stale(..) => Some(true),
            Outcome::Negative | Outcome::Invalid(_) => Some(false),
            Outcome::StoreDown(_) | Outcome::Overloaded => None,
        }
    }

    /// Claims a name that is due, decides what it needs, does that and writes the result. Returns whether the authority
    /// did its work.
    async fn attend(&self, name: &str) -> Result<bool, Trouble> {
        let (store, settings, shared) = (self.parts.shared.store(), &self.parts.settings, &self.parts.shared);
        let now = unix_now();
        let until = now + 2 * seconds(settings.order_timeout);
        let Some(row) = store.claim(name, now, until).await.map_err(|error| Trouble::store(&error))? else {
            return Ok(false);
        };
        let decision = tokio::select! {
            biased;
            () = self.running.ended() => Decision::Later(now),
            decision = self.decide(&row, now, until) => decision,
        };
        let mut result = Ok(matches!(decision, Decision::Issued { .. } | Decision::Failed(..)));
        let finished = match decision {
            Decision::Issued { pem, due_at, renew_at } => {
                let finished = store.finish(&row, Verdict::Issued { pem: &pem, due_at, renew_at }).await;
                if finished.is_ok() {
                    shared.issued.fetch_add(1, Relaxed);
                    *locked(&shared.last_error) = None;
                    let date = http_date(u64::try_from(renew_at).unwrap_or_default());
                    tracing::info!(
                        "issued a certificate for `{name}`, to be renewed {}",
                        String::from_utf8_lossy(&date)
                    );
                    (self.parts.issued)(name);
                }
                finished
            }
            Decision::Failed(trouble, life) if matches!(trouble.fault, Fault::Name | Fault::Limit) => {
                let failures = row.failures.saturating_add(1);
                let wait = back_off(failures, life, trouble.wait, fastrand::f64());
                tracing::warn!("`{name}` got no certificate, and waits for {wait} s: {}", trouble.why);
                shared.failed.fetch_add(1, Relaxed);
                *locked(&shared.last_error) = Some(format!("{name}: {}", trouble.why));
                let due_at = unix_now() + wait;
                let verdict = Verdict::Failed { due_at, failures, error: &trouble.why };
                let finished = store.finish(&row, verdict).await;
                if trouble.fault == Fault::Limit {
                    result = Err(trouble);
                }
                finished
            }
            Decision::Failed(trouble, _) => {
                // Another machine may reach the authority.
                let finished = store.finish(&row, Verdict::Later { due_at: unix_now() + 1 }).await;
                result = Err(trouble);
                finished
            }
            Decision::Later(due_at) => store.finish(&row, Verdict::Later { due_at }).await,
            Decision::Planned { due_at, renew_at } => store.finish(&row, Verdict::Planned { due_at, renew_at }).await,
            Decision::Removed => store.finish(&row, Verdict::Removed).await,
        };
        finished.map_err(|error| Trouble::store(&error)).and(result)
    }

    async fn decide(&self, row: &Claimed, now: i64, until: i64) -> Decision {
        let name = &*row.name;
        let before = match self.read(row) {
            Ok(before) => before,
            Err(trouble) => return Decision::Failed(trouble, None),
        };
        match self.is_allowed(name).await {
            Some(true) => {}
            Some(false) if before.as_ref().is_some_and(|before| before.is_valid(now)) => {
                return Decision::Later(now + NOT_ALLOWED);
            }
            Some(false) => return Decision::Removed,
            None => return Decision::Later(now + UNKNOWN),
        }
        let life = before.as_ref().map(|before| before.not_after() - before.not_before());
        match self.order_if_due(row, before.as_ref(), now, until).await {
            Ok(decision) => decision,
            Err(trouble) => {
                if trouble.fault == Fault::Authority {
                    // The next attempt reads the directory again.
                    *self.authority.lock().await = None;
                }
                Decision::Failed(trouble, life)
            }
        }
    }

    async fn order_if_due(
        &self,
        row: &Claimed,
        before: Option<&Certificate>,
        now: i64,
        until: i64,
    ) -> Result<Decision, Trouble> {
        let (settings, shared) = (&self.parts.settings, &self.parts.shared);
        let store = shared.store();
        if let Some(before) = before {
            let validity = validity(before);
            // A row that another program wrote has no time.
            let planned = if row.renew_at > 0 { row.renew_at } else { renewal(validity, fastrand::f64()) };
            if now < planned {
                let (due_at, renew_at) = self.plan(before, planned, now).await;
                if now < renew_at {
                    return Ok(Decision::Planned { due_at, renew_at });
                }
            }
        }
        let window = seconds(settings.orders_window);
        let ordered = store.ordered(now - window).await.map_err(|error| Trouble::store(&error))?;
        // Names that clients bring leave half of the orders to renewals and to the operator's own names.
        let is_new = before.is_none() && !settings.has_name(&row.name);
        let most = if is_new { (settings.orders / 2).max(1) } else { settings.orders };
        if ordered >= i64::from(most) {
            shared.limited.fetch_add(1, Relaxed);
            return Ok(Decision::Later(now + (window / 10).clamp(1, 600)));
        }
        let authority = self.authority().await?;
        store.begin(row, now, now - window).await.map_err(|error| Trouble::store(&error))?;
        shared.orders.fetch_add(1, Relaxed);
        let answers = Answers { challenges: Arc::clone(&self.parts.challenges), store, until };
        let ordering = authority.order(&row.name, before.map(Certificate::leaf), settings, &answers);
        let pem = match timeout(settings.order_timeout, ordering).await {
            Ok(ordered) => ordered?,
            Err(_) => {
                let why = format!("the order was not done within {:?}", settings.order_timeout);
                return Err(Trouble { fault: Fault::Name, why, wait: None });
            }
        };
        let unusable = |why: String| Trouble { fault: Fault::Name, why, wait: None };
        let issued = Certificate::from_pem(pem.as_bytes())
            .map_err(|error| unusable(format!("what the authority issued cannot be used: {error}")))?;
        if !issued.covers(&row.name) {
            return Err(unusable("what the authority issued is for another name".to_owned()));
        }
        let (due_at, renew_at) = self.plan(&issued, renewal(validity(&issued), fastrand::f64()), now).await;
        let pem = match &self.parts.seal {
            Some(seal) => Zeroizing::new(seal.seal(pem.as_bytes()).map_err(|error| unusable(error.to_string()))?),
            None => pem,
        };
        Ok(Decision::Issued { pem, due_at, renew_at })
    }

    /// Returns when to look at a certificate again and when to renew it, with the authority's advice if there is any.
    async fn plan(&self, certificate: &Certificate, planned: i64, now: i64) -> (i64, i64) {
        let advice = match self.authority().await {
            Ok(authority) => authority.advice(certificate.leaf()).await,
            // The plan stands without it.
            Err(_) => None,
        };
        let Some((window, again)) = advice else { return (next_look(planned, now, None), planned) };
        // A plan within the window stays, so that asking again does not move it each time.
        let stays = (window.begin..=window.end).contains(&planned);
        let advised = advised(validity(certificate), window, now, fastrand::f64()).filter(|_| !stays);
        let renew_at = advised.unwrap_or(planned);
        (next_look(renew_at, now, Some(again)), renew_at)
    }

    /// Returns the account, which the first caller makes.
    async fn authority(&self) -> Result<Authority, Trouble> {
        let mut place = self.authority.lock().await;
        if let Some(authority) = &*place {
            return Ok(authority.clone());
        }
        let made = Authority::connect(&self.parts.settings, self.parts.http.clone()).await?;
        Ok(place.insert(made).clone())
    }

    /// Reads the certificate of a row. A row that no key opens is a mistake of the settings: ordering again would
    /// replace all of them.
    fn read(&self, row: &Claimed) -> Result<Option<Certificate>, Trouble> {
        let Some(text) = row.pem.as_deref() else { return Ok(None) };
        let opened = match (text.starts_with(SEALED), &self.parts.seal) {
            (false, _) => None,
            (true, Some(seal)) => Some(seal.open(text).map_err(|error| error.to_string())),
            (true, None) => Some(Err("it is sealed, and tls.seal names no key".to_owned())),
        };
        let wrong = |why| Trouble { fault: Fault::Name, why: format!("its row cannot be read: {why}"), wait: None };
        let opened = opened.transpose().map_err(wrong)?;
        // Garbage is replaced by a new certificate.
        Ok(Certificate::from_pem(opened.as_deref().map_or(text, |text| &text[..])).ok())
    }
}

fn validity(certificate: &Certificate) -> Validity {
    Validity { begin: certificate.not_before(), end: certificate.not_after() }
}
