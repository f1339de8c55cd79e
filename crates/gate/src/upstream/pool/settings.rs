//! The settings of one core's connections to one target.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oroshi_http1::Limits;
use oroshi_net::proxy_protocol::ProxyVersion;

use crate::upstream::health::Ejection;
use crate::upstream::own::OwnSockets;
use crate::upstream::secure::{TlsSettings, UpstreamTls};
use crate::upstream::slots::Caps;

/// Returns whether the gateway may connect to an address. IPv4-mapped IPv6 addresses are passed as IPv4.
pub type Allow = Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// Settings of a target's connections, for each core.
#[derive(Clone)]
pub struct PoolSettings {
    /// Separates pools of the same target whose routes have different settings.
    pub class: u32,
    /// For one pool, the settings with the higher version win. A request from before a reload therefore cannot restore
    /// old settings.
    pub version: u64,
    /// The most connections, including idle and upgraded ones. Further requests queue. Default 1,024.
    pub connections: usize,
    /// The most idle connections. Default 256.
    pub idle_connections: usize,
    /// The most queued requests; further ones fail at once. Default 1,024.
    pub queue: usize,
    /// How long a connection may be idle; shorter if the server says so (`Keep-Alive: timeout=`). Default 30 s.
    pub idle_timeout: Duration,
    /// The age after which a connection takes no further requests. Default one hour.
    pub max_age: Duration,
    /// The most requests on one connection. Default no limit.
    pub max_requests: u64,
    /// When to eject a failing target.
    pub ejection: Ejection,
    /// How long the addresses of a name are cached. Default 30 s.
    pub name_ttl: Duration,
    /// How long a failed name resolution is cached. Default 1 s.
    pub name_negative_ttl: Duration,
    /// Limits on heads of responses over HTTP/2, for connections opened from now on. A route's own limits apply too.
    pub limits: Limits,
    /// TLS towards targets that are reached by it.
    pub tls: TlsSettings,
    /// The same, prepared; `None`: prepared when it is first needed, which is only possible with the default settings.
    pub secure: Option<Arc<UpstreamTls>>,
    /// The addresses that the gateway may connect to; `None`: all.
    pub allow: Option<Allow>,
    /// The version of the PROXY protocol whose header each connection begins with; `None`: no header. A connection then
    /// carries requests of one client's connection only.
    pub proxy_protocol: Option<ProxyVersion>,
    /// This process's own listeners, which are refused as targets whatever `allow` says. `None` if the configuration
    /// names the targets.
    pub own: Option<OwnSockets>,
}

impl Default for PoolSettings {
    fn default() -> Self {
        PoolSettings {
            class: 0,
            version: 0,
            connections: 1024,
            idle_connections: 256,
            queue: 1024,
            idle_timeout: Duration::from_secs(30),
            max_age: Duration::from_secs(3600),
            max_requests: u64::MAX,
            ejection: Ejection::default(),
            name_ttl: Duration::from_secs(30),
            name_negative_ttl: Duration::from_secs(1),
            limits: Limits::default(),
            tls: TlsSettings::default(),
            secure: None,
            allow: None,
            proxy_protocol: None,
            own: None,
        }
    }
}

impl PoolSettings {
    pub(in crate::upstream) fn caps(&self) -> Caps {
        // With a limit of 0 the queue would never move.
        Caps { open: self.connections.max(1), idle: self.idle_connections, waiting: self.queue }
    }
}

impl fmt::Debug for PoolSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSettings").field("class", &self.class).field("caps", &self.caps()).finish_non_exhaustive()
    }
}
