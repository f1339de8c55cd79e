//! A hub as somebody described it: typed, not yet checked for sense. [`Draft::plan`] finds all that is wrong with it.

mod check;

use std::sync::Arc;

use oroshi_certificates::HandshakeSettings;
use oroshi_net::{CpuList, available_cpus};
use oroshi_service::Proxies;
use oroshi_words::{Mistake, Secret};

use crate::plan::{
    Callbacks, Cluster, Drain, GroupRule, Jwt, Limits, Listener, Origins, Paths, Plan, SendSettings, Transports,
};
use crate::tls::Tls;

/// A hub as somebody described it. `Default` is a hub that listens nowhere.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// How many threads hold sessions; `None`: one for each CPU of `cpus`, or of those available.
    pub threads: Option<usize>,
    /// The CPUs that the threads are pinned to, if any.
    pub cpus: Option<CpuList>,
    /// Where it listens, and what for.
    pub listeners: Vec<Listener>,
    /// Whether there are inherited sockets too; then `listeners` may be empty.
    pub inherits: bool,
    /// TLS towards clients, if any.
    pub tls: Option<HandshakeSettings>,
    /// The load balancers in front that send a header of the PROXY protocol.
    pub proxies: Proxies,
    /// Where on HTTP things are found.
    pub paths: Paths,
    /// The header that names sessions; `None`: `X-Kuiperbelt-Session`.
    pub session_header: Option<String>,
    /// The address by which backends reach this hub; `None`: this machine's name, with the port of the first TCP
    /// listener that they may use.
    pub endpoint: Option<String>,
    /// The callbacks to the backend.
    pub callbacks: Callbacks,
    /// Whose pages may connect; `None`: everybody's.
    pub origins: Option<Origins>,
    /// How clients may connect; `None`: in every way.
    pub transports: Option<Transports>,
    /// The subprotocols of WebSocket that are agreed to.
    pub subprotocols: Vec<String>,
    /// The length of the shortest message that is compressed for WebSockets, bytes; `None`: nothing is compressed.
    pub compress_from_bytes: Option<u32>,
    /// Sizes, counts and times.
    pub limits: Limits,
    /// The action of `/send` for unknown sessions.
    pub send: SendSettings,
    /// Rules for groups, in their order.
    pub groups: Vec<GroupRule>,
    /// The token that publishers must send, if any.
    pub token: Option<Secret>,
    /// The check of clients' tokens, if the hub takes any.
    pub jwt: Option<Jwt>,
    /// How the hub ends.
    pub drain: Drain,
    /// The other nodes, if there are any.
    pub cluster: Option<Cluster>,
    /// Whether kuiperbelt's habits are restored that are mended by default.
    pub compat_ekbo: bool,
    /// Whether every message is sent back to its sender.
    pub echo: bool,
    /// Whether every request to the API is told.
    pub access_log: bool,
}

impl Draft {
    /// Checks it, and fills the defaults in.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn plan(mut self) -> Result<Plan, Vec<Mistake>> {
        let mut problems = check::all(&self);
        let tls = self.tls.take().and_then(|settings| tls(settings, &mut problems));
        if !problems.is_empty() {
            return Err(problems);
        }
        let threads = self.threads.unwrap_or_else(|| match &self.cpus {
            Some(cpus) => cpus.len(),
            None => available_cpus().map_or(1, |cpus| cpus.len()),
        });
        let endpoint = self.endpoint.unwrap_or_else(|| endpoint(&self.listeners));
        let usual = Plan::default();
        Ok(Plan {
            threads,
            cpus: self.cpus,
            listeners: self.listeners,
            tls,
            proxies: self.proxies,
            paths: self.paths,
            session_header: self.session_header.unwrap_or(usual.session_header),
            endpoint,
            callbacks: self.callbacks,
            connections: usual.connections,
            admin_connections: usual.admin_connections,
            origins: self.origins.unwrap_or(usual.origins),
            transports: self.transports.unwrap_or(usual.transports),
            subprotocols: self.subprotocols,
            compress_from_bytes: self.compress_from_bytes,
            limits: self.limits,
            send: self.send,
            groups: self.groups,
            token: self.token,
            jwt: self.jwt,
            drain: self.drain,
            cluster: self.cluster,
            compat_ekbo: self.compat_ekbo,
            echo: self.echo,
            access_log: self.access_log,
        })
    }
}

/// Reads the certificates, and puts the settings in force. `None` with a mistake.
fn tls(settings: HandshakeSettings, problems: &mut Vec<Mistake>) -> Option<Arc<Tls>> {
    let checked = settings.check();
    if !checked.mistakes.is_empty() {
        problems.extend(checked.mistakes.into_iter().map(|(key, why)| Mistake::new(key, why)));
        return None;
    }
    let tls = Tls::new(settings, checked);
    if tls.is_none() {
        problems.push(Mistake::new("tls.tickets", "the system has no random numbers (getrandom)"));
    }
    tls.map(Arc::new)
}

/// Returns this machine's name, with the port of the first TCP listener that backends may use.
///
/// A port up to 1023 is left out, as in kuiperbelt.
fn endpoint(listeners: &[Listener]) -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let ports =
        listeners.iter().filter(|listener| !listener.serves.is_public()).filter_map(|listener| port(&listener.address));
    match { ports }.next() {
        Some(port) if port > 1023 => format!("{name}:{port}"),
        _ => name,
    }
}

/// The port of an address to listen on; `None` for unix sockets.
fn port(address: &str) -> Option<u16> {
    if is_unix(address) {
        return None;
    }
    address.rsplit(':').next()?.parse().ok()
}

fn is_unix(address: &str) -> bool {
    address.starts_with(['/', '@']) || address.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Serves;

    fn listener(address: &str, serves: Serves) -> Listener {
        Listener { address: address.into(), serves }
    }

    #[test]
    fn the_endpoint_is_where_backends_come_in() {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let of = |listeners: &[Listener]| endpoint(listeners);
        assert_eq!(of(&[listener(":9180", Serves::Everything)]), format!("{name}:9180"));
        assert_eq!(of(&[listener(":80", Serves::Everything)]), name);
        assert_eq!(of(&[listener("/run/push.sock", Serves::Everything)]), name);
        let apart = [
            listener(":9180", Serves::Sessions),
            listener("unix:@a:1234", Serves::Admin),
            listener("[::1]:9181", Serves::Admin),
        ];
        assert_eq!(of(&apart), format!("{name}:9181"));
    }

    #[test]
    fn defaults_are_filled_in() {
        let draft = Draft { listeners: vec![listener(":9180", Serves::Everything)], ..Draft::default() };
        let plan = draft.plan().unwrap();
        assert_eq!(plan.threads, available_cpus().unwrap().len());
        assert_eq!((plan.session_header.as_str(), plan.origins), ("X-Kuiperbelt-Session", Origins::Any));
        let cpus: CpuList = "0".parse().unwrap();
        let draft = Draft { inherits: true, cpus: Some(cpus), ..Draft::default() };
        assert_eq!(draft.plan().unwrap().threads, 1);
    }
}
