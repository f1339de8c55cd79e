//! Active health checks: requests of the gateway itself, which find out whether a target serves.
//!
//! One thread checks the targets of all upstreams, so that a target gets one check per interval, however many threads
//! serve. `Streak` decides, without I/O.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use oroshi_client::local::Client;
use oroshi_client::{Client as AnyClient, Deadlines};
use oroshi_lookup::Protocol;
use oroshi_net::Peer;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::secure::{TlsProtocol, TlsSettings};
use super::target::{Place, Target};

/// How the targets of an upstream are checked.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckSettings {
    /// The path and query to ask for, with GET.
    pub path: String,
    /// The value of `Host`; `None`: the target's.
    pub host: Option<String>,
    /// The time between the end of a check and the next one.
    pub interval: Duration,
    /// The random share by which each interval is longer or shorter, 0 to 1.
    pub jitter: f64,
    /// How long a check may take, from connecting to the end of the response's head.
    pub timeout: Duration,
    /// The statuses of a healthy target.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// How many checks in a row must pass before a target takes requests again.
    pub rise: u32,
    /// How many checks in a row must fail before a target is left out.
    pub fall: u32,
}

impl Default for CheckSettings {
    fn default() -> Self {
        CheckSettings {
            path: "/".to_owned(),
            host: None,
            interval: Duration::from_secs(5),
            jitter: 0.1,
            timeout: Duration::from_secs(2),
            statuses: vec![200..=399],
            rise: 2,
            fall: 3,
        }
    }
}

impl CheckSettings {
    /// Returns the time until the next check. `random` is between 0 and 1.
    fn pause(&self, random: f64) -> Duration {
        self.interval.mul_f64((1.0 + self.jitter * (2.0 * random - 1.0)).max(0.0))
    }
}

/// The findings of a target's checks. All threads read them.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    is_down: AtomicBool,
    passed: AtomicU64,
    failed: AtomicU64,
    /// The last failure; empty before the first.
    last: Mutex<String>,
}

/// The counts of a target's checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckCounts {
    pub(crate) is_down: bool,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// The last failure; empty before the first.
    pub(crate) last_failure: String,
}

impl Checked {
    /// Returns whether requests leave the target out.
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Relaxed)
    }

    pub(crate) fn counts(&self) -> CheckCounts {
        CheckCounts {
            is_down: self.is_down(),
            passed: self.passed.load(Relaxed),
            failed: self.failed.load(Relaxed),
            last_failure: self.last.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Counts checks with the same result in a row.
#[derive(Debug, Default)]
struct Streak {
    is_down: bool,
    /// Checks in a row that speak against the state.
    against: u32,
}

impl Streak {
    /// Notes a check. Returns whether it changes the state.
    fn note(&mut self, passed: bool, settings: &CheckSettings) -> bool {
        if passed != self.is_down {
            self.against = 0;
            return false;
        }
        self.against += 1;
        let changes = self.against >= if self.is_down { settings.rise } else { settings.fall };
        if changes {
            (self.is_down, self.against) = (!self.is_down, 0);
        }
        changes
    }
}

/// The checks of all targets, and their thread.
#[derive(Default)]
pub(crate) struct Checks(Mutex<State>);

#[derive(Default)]
struct State {
    /// The way to the thread, which ends when this is dropped.
    thread: Option<UnboundedSender<Check>>,
    known: HashMap<(u32, Target), Known>,
}

struct Known {
    settings: CheckSettings,
    tls: u64,
    checked: Weak<Checked>,
}

/// One target's checks, which go on until nobody asks for their result any more.
struct Check {
    /// The upstream's name.
    upstream: String,
    target: Target,
    settings: CheckSettings,
    tls: TlsSettings,
    checked: Weak<Checked>,
}

/// The upstream of a target to check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedUpstream<'u> {
    pub(crate) name: &'u str,
    /// The class of its pools.
    pub(crate) class: u32,
    pub(crate) settings: &'u CheckSettings,
    pub(crate) tls: &'u TlsSettings,
    /// [`UpstreamTls::id`](super::UpstreamTls::id); 0 without TLS.
    pub(crate) tls_id: u64,
}

impl Checks {
    /// Returns the result of a target's checks, which begin now. Checks with the same settings go on. With other ones,
    /// the target stays up or down until they say otherwise.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn of(&self, target: &Target, upstream: CheckedUpstream<'_>) -> io::Result<Arc<Checked>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.known.retain(|_, known| known.checked.strong_count() > 0);
        let CheckedUpstream { name, class, settings, tls, tls_id } = upstream;
        let before = state.known.get(&(class, target.clone()));
        let was = before.and_then(|known| known.checked.upgrade());
        if let (Some(known), Some(checked)) = (before, &was)
            && (&known.settings, known.tls) == (settings, tls_id)
        {
            return Ok(Arc::clone(checked));
        }
        let is_down = AtomicBool::new(was.is_some_and(|was| was.is_down()));
        let checked = Arc::new(Checked { is_down, ..Checked::default() });
        let check = Check {
            upstream: name.to_owned(),
            target: target.clone(),
            settings: settings.clone(),
            tls: tls.clone(),
            checked: Arc::downgrade(&checked),
        };
        if state.thread.is_none() {
            state.thread = Some(start()?);
        }
        if let Some(thread) = &state.thread {
            // The thread ends only when this sender is dropped.
            let _ = thread.send(check);
        }
        let known = Known { settings: settings.clone(), tls: tls_id, checked: Arc::downgrade(&checked) };
        state.known.insert((class, target.clone()), known);
        Ok(checked)
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checks")
    }
}

/// Starts the thread that checks.
fn start() -> io::Result<UnboundedSender<Check>> {
    let (sender, receiver) = unbounded_channel();
    thread::Builder::new().name("health".to_owned()).spawn(
        move || match tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()) {
            Ok(runtime) => runtime.block_on(take_checks(receiver)),
            Err(error) => tracing::error!("there are no health checks: {error}"),
        },
    )?;
    Ok(sender)
}

async fn take_checks(mut checks: UnboundedReceiver<Check>) {
    while let Some(check) = checks.recv().await {
        tokio::task::spawn_local(check.repeat());
    }
}

impl Check {
    async fn repeat(self) {
        let client = self.client();
        let Some(first) = self.checked.upgrade() else { return };
        let mut streak = Streak { is_down: first.is_down(), against: 0 };
        drop(first);
        while let Some(checked) = self.checked.upgrade() {
            let failure = match &client {
                Ok(client) => self.ask(client).await.err(),
                Err(why) => Some(why.clone()),
            };
            match &failure {
                None => checked.passed.fetch_add(1, Relaxed),
                Some(why) => {
                    checked.last.lock().unwrap_or_else(PoisonError::into_inner).clone_from(why);
                    checked.failed.fetch_add(1, Relaxed)
                }
            };
            if streak.note(failure.is_none(), &self.settings) {
                checked.is_down.store(streak.is_down, Relaxed);
                self.tell(failure.as_deref());
            }
            drop(checked);
            tokio::time::sleep(self.settings.pause(fastrand::f64())).await;
        }
    }

    /// Logs that the target is left out because of a failure, or takes requests again.
    fn tell(&self, failure: Option<&str>) {
        let Check { upstream, target, settings, .. } = self;
        match failure {
            Some(why) => tracing::warn!(
                "`{target}` of upstream `{upstream}` is left out: {} health checks in a row failed, the last one with \
                 {why}",
                settings.fall
            ),
            None => tracing::info!(
                "`{target}` of upstream `{upstream}` takes requests again: {} health checks in a row passed",
                settings.rise
            ),
        }
    }

    fn client(&self) -> Result<Client, String> {
        let limit = self.settings.timeout;
        let builder = AnyClient::builder().redirects(0).decode(false).connections(1);
        let builder = builder.deadlines(Deadlines { total: limit, ..Deadlines::default() }).tls(self.tls.options());
        let builder = builder.dns_ttl(Duration::from_secs(1)).dns_negative_ttl(Duration::from_secs(1));
        let builder = match self.target.protocol {
            Protocol::H2c => builder.http2_prior_knowledge(),
            Protocol::Http1 => builder.http2(false),
            Protocol::Https => match self.tls.protocol {
                TlsProtocol::Auto => builder,
                TlsProtocol::Http1 => builder.http2(false),
                TlsProtocol::Http2 => builder.http2_prior_knowledge(),
            },
        };
        builder.build_local().map_err(|error| error.to_string())
    }

    /// Makes one check.
    ///
    /// # Errors
    /// The status, or the failure's name.
    async fn ask(&self, client: &Client) -> Result<(), String> {
        // A connection for each check: a server that no longer accepts is down, whatever its old connections do.
        client.close_idle();
        let mut request = client.get(url(&self.target, &self.settings.path)).retries(0);
        request = request.header("User-Agent", "oroshi-gate-health");
        if let Some(host) = &self.settings.host {
            request = request.header("Host", host);
        }
        match request.send().await {
            Ok(response) if self.settings.statuses.iter().any(|range| range.contains(&response.status())) => Ok(()),
            Ok(response) => Err(format!("status {}", response.status())),
            Err(error) => Err(error.name().to_owned()),
        }
    }
}

/// Returns the URL of a path at a target.
fn url(target: &Target, path: &str) -> String {
    match (&target.place, target.protocol) {
        (Place::Peer(Peer::Unix(_)), _) => format!("{}:{path}", target.place),
        (place, Protocol::Https) => format!("https://{place}{path}"),
        (place, _) => format!("http://{place}{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_falls_and_rises_after_so_many_checks_in_a_row() {
        let settings = CheckSettings { rise: 2, fall: 3, ..CheckSettings::default() };
        let mut streak = Streak::default();
        let changes = |streak: &mut Streak, results: &str| -> Vec<usize> {
            let noted = results.bytes().enumerate().filter(|(_, result)| streak.note(*result == b'+', &settings));
            noted.map(|(place, _)| place).collect()
        };
        assert_eq!(changes(&mut streak, "+--+--+---"), [9]);
        assert!(streak.is_down);
        assert_eq!(changes(&mut streak, "-+-+-++"), [6]);
        assert!(!streak.is_down);
        assert_eq!(changes(&mut streak, "---++---"), [2, 4, 7]);
    }

    #[test]
    fn pauses_differ_by_the_jitter() {
        let settings = CheckSettings { interval: Duration::from_secs(10), jitter: 0.2, ..CheckSettings::default() };
        assert_eq!([0.0, 0.5, 1.0].map(|random| settings.pause(random).as_millis()), [8_000, 10_000, 12_000]);
        let all = CheckSettings { jitter: 1.0, ..settings };
        assert_eq!(all.pause(0.0), Duration::ZERO);
    }

    #[test]
    fn targets_have_urls_that_the_client_reads() {
        for (target, asked) in [
            ("10.0.0.7:8080", "http://10.0.0.7:8080/a?b"),
            ("[::1]:80", "http://[::1]:80/a?b"),
            ("app.internal", "http://app.internal:80/a?b"),
            ("https://app.internal", "https://app.internal:443/a?b"),
            ("h2c://10.0.0.7:1", "http://10.0.0.7:1/a?b"),
            ("unix:/run/app.sock", "unix:/run/app.sock:/a?b"),
            ("h2c+unix:/run/app.sock", "unix:/run/app.sock:/a?b"),
        ] {
            let url = url(&target.parse().unwrap(), "/a?b");
            assert_eq!(url, asked);
            assert_eq!(url.parse::<oroshi_net::Endpoint>().unwrap().target, "/a?b", "{url}");
        }
    }
}
