//! Validates the parts of a draft one by one.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use oroshi_lookup::{Allow, LookupSettings, StoreKind, StoreSettings};

use super::{Findings, KeyDraft, LookupDraft, ScriptDraft, UpstreamDraft, check_answer, expected};
use crate::forward::{is_authority, is_path};
use crate::plan::{KeyFrom, Lookup, Script, Upstream};
use crate::script::{self, Hook, HookSet, ScriptSettings, StoreNames};
use crate::upstream::{CheckSettings, Ejection, PoolSettings, Protocol, Target, TlsSettings, UpstreamTls};

impl UpstreamDraft {
    pub(super) fn plan(&self, class: u32, findings: &mut Findings) -> Upstream {
        let at = format!("upstream.{}", self.name);
        let mut targets = Vec::new();
        for (text, weight) in &self.targets {
            match text.parse() {
                Ok(target) => targets.push((target, *weight)),
                Err(error) => findings.add(format!("{at}.targets"), format!("{error}")),
            }
            if !(1..=1000).contains(weight) {
                findings
                    .add(format!("{at}.targets"), format!("the weight of `{text}` is {weight}: expected 1 to 1000"));
            }
        }
        if self.targets.is_empty() {
            findings.add(
                format!("{at}.targets"),
                "there is none: expected at least one such as 10.0.0.7:8080 or unix:/run/app.sock",
            );
        }
        check_pool(&self.pool, &at, findings);
        if self.pool.proxy_protocol.is_some()
            && let Some((target, _)) =
                targets.iter().find(|(target, _): &&(Target, u32)| target.protocol != Protocol::Http1)
        {
            findings.add(
                format!("{at}.proxy-protocol"),
                format!(
                    "`{target}` is no target of HTTP/1.1 in cleartext, whose connections alone can name one client each: \
                     expected such targets, or proxy-protocol = \"off\""
                ),
            );
        }
        let is_secure = targets.iter().any(|(target, _): &(Target, u32)| target.protocol == Protocol::Https);
        let secure = secure(&self.pool.tls, is_secure, &at, findings);
        if let Some(check) = &self.check {
            check_health(check, self.pool.proxy_protocol.is_some(), &format!("{at}.health"), findings);
        }
        let pool = PoolSettings { class, secure, ..self.pool.clone() };
        let (policy, hash, check) = (self.policy, self.hash.clone(), self.check.clone());
        Upstream { name: self.name.clone(), targets, policy, hash, check, pool }
    }
}

impl LookupDraft {
    pub(super) fn plan(
        mut self,
        stores: &[StoreSettings],
        scripts: &Scripts,
        class: u32,
        findings: &mut Findings,
    ) -> Lookup {
        let at = format!("lookup.{}", self.settings.name);
        for error in self.settings.validate() {
            findings.add(format!("{at}.{}", error.key), error.text);
        }
        let mut store = |key: &str, name: &str, is_it: fn(&StoreKind) -> bool| {
            let fit: Vec<&str> = stores.iter().filter(|store| is_it(&store.kind)).map(|store| &*store.name).collect();
            if !fit.contains(&name) {
                findings.add(format!("{at}.{key}.store"), format!("there is no such store `{name}`{}", expected(&fit)));
            }
        };
        if let Some(tier) = &self.settings.memcached {
            store("memcached", &tier.store, |kind| matches!(kind, StoreKind::Memcached(_)));
        }
        if let Some(tier) = &self.settings.sql {
            store("sql", &tier.store, |kind| matches!(kind, StoreKind::Sql(_)));
            let settings = stores.iter().find(|store| store.name == tier.store).map(|store| &store.kind);
            if let Some(StoreKind::Sql(sql)) = settings
                && let Some(why) = sql.objection(&tier.query, 1)
            {
                findings.add(format!("{at}.sql.query"), why);
            }
        }
        let key = match self.key {
            KeyDraft::Request(key) => key,
            KeyDraft::Script(name) => {
                let key = format!("{at}.key");
                let place = scripts.find(&name, &key, findings);
                let script = place.and_then(|place| scripts.planned[place].as_ref());
                if script.is_some_and(|script| !script.hooks.has(Hook::Key)) {
                    findings.add(key, format!("the script `{name}` has no function on_key, which makes the key"));
                }
                KeyFrom::Script(place.unwrap_or(0))
            }
        };
        if key == KeyFrom::Segment(0) {
            findings.add(format!("{at}.key"), "segments of a path are counted from 1");
        }
        for (key, answer) in [("unknown", &self.unknown), ("down", &self.down), ("invalid", &self.invalid)] {
            check_answer(answer, &format!("{at}.{key}"), findings);
        }
        check_pool(&self.pool, &at, findings);
        // `Retry-After` is at least the time in which the gateway notices that a store is back.
        let longest = stores
            .iter()
            .filter(|store| asks(&self.settings, &store.name))
            .map(longest_pause)
            .max()
            .unwrap_or_default();
        let least = u32::try_from(longest.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        self.down.retry_after = self.down.retry_after.map(|told| told.max(least));
        let secure = secure(&self.pool.tls, false, &at, findings);
        let pool = PoolSettings { secure, ..restricted(self.pool, class, self.settings.allow.clone()) };
        Lookup {
            settings: self.settings,
            key,
            policy: self.policy,
            hash: self.hash,
            pool,
            unknown: self.unknown,
            down: self.down,
            invalid: self.invalid,
        }
    }
}

/// Returns the settings of pools that connect only to allowed addresses.
fn restricted(pool: PoolSettings, class: u32, allow: Allow) -> PoolSettings {
    PoolSettings { class, allow: Some(Arc::new(move |address: SocketAddr| allow.resolved(address))), ..pool }
}

/// Prepares TLS, if `needed` or if the settings are not the usual ones.
pub(super) fn secure(
    settings: &TlsSettings,
    needed: bool,
    at: &str,
    findings: &mut Findings,
) -> Option<Arc<UpstreamTls>> {
    if !settings.verify {
        findings.warn(
            format!("{at}.tls.verify"),
            "CERTIFICATES ARE NOT CHECKED: anyone between this gateway and its https:// targets can read and change \
             all that passes; expected `ca` with the file of the authority or of the server's own certificate",
        );
    }
    if !needed && *settings == TlsSettings::default() {
        return None;
    }
    match UpstreamTls::new(settings) {
        Ok(tls) => Some(Arc::new(tls)),
        Err(mistake) => {
            findings.add(format!("{at}.tls.{}", mistake.key()), mistake.to_string());
            None
        }
    }
}

/// Returns whether the look-up uses this store.
fn asks(lookup: &LookupSettings, store: &str) -> bool {
    lookup.memcached.as_ref().is_some_and(|tier| tier.store == store)
        || lookup.sql.as_ref().is_some_and(|tier| tier.store == store)
}

/// Returns the longest delay until the gateway notices that a store is back.
fn longest_pause(store: &StoreSettings) -> Duration {
    match &store.kind {
        StoreKind::Memcached(memcached) => memcached.breaker.pause_max,
        StoreKind::Sql(sql) => sql.breaker.pause_max,
    }
}

impl ScriptDraft {
    /// Returns `None` if there is no script to run.
    pub(super) fn plan(self, class: u32, stores: &StoreNames, findings: &mut Findings) -> Option<Script> {
        let at = format!("script.{}", self.name);
        for (key, answer) in [("unknown", &self.unknown), ("invalid", &self.invalid)] {
            check_answer(answer, &format!("{at}.{key}"), findings);
        }
        check_pool(&self.pool, &at, findings);
        let Some(settings) = self.settings else {
            findings.add(format!("{at}.file"), "there is none: expected a file of Lua such as route.lua");
            return None;
        };
        let mut too_small = |key: &str, value: String, least: &str| {
            findings.add(format!("{at}.{key}"), format!("{value} leaves room for nothing: expected at least {least}"));
        };
        if settings.instructions < LEAST_INSTRUCTIONS {
            too_small("instructions", settings.instructions.to_string(), &LEAST_INSTRUCTIONS.to_string());
        }
        if settings.wall < LEAST_WALL {
            too_small("wall", format!("{:?}", settings.wall), &format!("{LEAST_WALL:?}"));
        }
        if settings.memory < LEAST_MEMORY {
            too_small("memory", settings.memory.to_string(), &format!("{LEAST_MEMORY} bytes"));
        }
        let hooks = match hooks(&settings, stores) {
            Ok(hooks) => hooks,
            Err(why) => {
                findings.add(format!("{at}.file"), why);
                return None;
            }
        };
        if !Hook::ALL.into_iter().any(|hook| hook != Hook::Init && hooks.has(hook)) {
            let known: Vec<&str> = Hook::ALL.into_iter().filter(|&hook| hook != Hook::Init).map(Hook::name).collect();
            let file = settings.file.display();
            findings.add(
                format!("{at}.file"),
                format!("`{file}` has no function that is called: expected one of {}", known.join(", ")),
            );
        }
        let secure = secure(&self.pool.tls, false, &at, findings);
        let pool = PoolSettings { secure, ..restricted(self.pool, class, self.allow.clone()) };
        Some(Script {
            settings,
            hooks,
            allow: self.allow,
            policy: self.policy,
            hash: self.hash,
            pool,
            unknown: self.unknown,
            invalid: self.invalid,
        })
    }
}

/// With less, a script could not even start.
const LEAST_INSTRUCTIONS: u64 = 1000;
const LEAST_WALL: Duration = Duration::from_millis(10);
const LEAST_MEMORY: usize = 1 << 20;

/// Runs a script's top level without stores, and returns the hooks that it defines.
fn hooks(settings: &ScriptSettings, stores: &StoreNames) -> Result<HookSet, String> {
    // A thread with as much stack as the serving threads.
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("check".to_owned()).stack_size(oroshi_script::STACK_BYTES);
        let checked = builder.spawn_scoped(scope, || script::Script::check(settings, Some(stores)));
        let checked = checked.map_err(|error| format!("cannot start a thread to check it: {error}"))?;
        match checked.join() {
            Ok(hooks) => hooks.map_err(|error| error.to_string()),
            Err(_) => Err("the thread that checked it panicked".to_owned()),
        }
    })
}

/// The scripts, by index.
pub(super) struct Scripts {
    pub(super) names: Vec<String>,
    /// `None`: the script has mistakes, which are already recorded.
    pub(super) planned: Vec<Option<Script>>,
}

impl Scripts {
    pub(super) fn find(&self, name: &str, key: &str, findings: &mut Findings) -> Option<usize> {
        let place = self.names.iter().position(|known| known == name);
        if place.is_none() {
            let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
            findings.add(key, format!("there is no script `{name}`{}", expected(&names)));
        }
        place
    }
}

fn check_health(check: &CheckSettings, names_clients: bool, at: &str, findings: &mut Findings) {
    let mut wrong = |key: &str, problem: String| findings.add(format!("{at}.{key}"), problem);
    if names_clients {
        let problem = "checks have no client that a header of the PROXY protocol could name: expected no `health`, or \
                       proxy-protocol = \"off\"";
        wrong("path", problem.to_owned());
    }
    if !is_path(&check.path) {
        wrong("path", format!("{:?} is no path: expected one such as /health", check.path));
    }
    if let Some(host) = &check.host
        && !is_authority(host)
    {
        wrong("host", format!("{host:?} is not a host with an optional port, such as app.example.org"));
    }
    for (key, time) in [("interval", check.interval), ("timeout", check.timeout)] {
        if time.is_zero() {
            wrong(key, "0 leaves no time at all: expected more".to_owned());
        }
    }
    if !(0.0..=1.0).contains(&check.jitter) {
        wrong("jitter", format!("{} is no share: expected 0 to 1", check.jitter));
    }
    for (key, count) in [("rise", check.rise), ("fall", check.fall)] {
        if count == 0 {
            wrong(key, "0 checks decide nothing: expected at least 1".to_owned());
        }
    }
    let is_range = |range: &RangeInclusive<u16>| *range.start() >= 200 && *range.end() < 600 && !range.is_empty();
    if check.statuses.is_empty() || !check.statuses.iter().all(is_range) {
        wrong("statuses", "expected statuses from 200 to 599, such as 200 or 200-399".to_owned());
    }
}

fn check_pool(pool: &PoolSettings, at: &str, findings: &mut Findings) {
    if pool.connections == 0 {
        findings.add(format!("{at}.connections"), "0 leaves room for nothing: expected at least 1");
    }
    if pool.max_requests == 0 {
        findings.add(format!("{at}.max-requests"), "0 leaves room for nothing: expected at least 1, or off");
    }
    let Ejection { failures, back_off, longest, .. } = pool.ejection;
    if failures > 0 && back_off.is_zero() {
        findings.add(format!("{at}.ejection.back-off"), "0 leaves nobody out: expected more, or failures = \"off\"");
    }
    if back_off > longest {
        let problem = format!("{longest:?} is shorter than the first time, {back_off:?}: expected at least that");
        findings.add(format!("{at}.ejection.longest"), problem);
    }
}
