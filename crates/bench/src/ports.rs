//! Local ports: how soon a plan that opens many connections runs out of them.

use std::net::IpAddr;

use oroshi_net::ports::TimeWaitReuse;
use oroshi_net::{Address, LocalPorts};

use crate::plan::Plan;

/// Returns a warning for the user before a run, or `None` if ports cannot run out.
#[must_use]
pub fn forecast(plan: &Plan) -> Option<String> {
    let ports = LocalPorts::read_or_default();
    let many = plan.connects_per_request() || plan.requests_per_connection.is_some_and(|n| n < 100);
    plan.origins.iter().find_map(|origin| {
        let Address::Tcp { host, .. } = &origin.address else { return None };
        let sources = plan.sources.len().max(1);
        let available = ports.count().saturating_mul(sources);
        let connections = origin.connections + plan.hold;
        if connections > available {
            return Some(format!(
                "{connections} connections to {} need more local ports than there are ({available}): give --source \
                 addresses, as in --source 127.0.0.2-127.0.0.20, or widen net.ipv4.ip_local_port_range",
                origin.name()
            ));
        }
        let loopback = **host == *"localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        many.then(|| per_second(&ports, available, loopback, &origin.name()))
    })
}

fn per_second(ports: &LocalPorts, available: usize, loopback: bool, origin: &str) -> String {
    // A port that may be reused waits a second; one that may not, a minute.
    let reused = match ports.reuse {
        TimeWaitReuse::Always => true,
        TimeWaitReuse::Loopback => loopback,
        TimeWaitReuse::Never => false,
    };
    let (wait, rate) = if reused { ("1 s", available) } else { ("60 s", available / 60) };
    format!(
        "new connections to {origin} use {available} local ports, each of them again after {wait} at the earliest \
         where this side closes first: above about {rate} new connections/s they can run out (counted as \
         ports-exhausted); --source addresses multiply them, a unix socket needs none"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Draft;

    fn plan(url: &str, per_connection: Option<u64>, connections: usize) -> Plan {
        let urls = vec![url.parse().unwrap()];
        Draft { urls, requests_per_connection: per_connection, connections, ..Draft::default() }.plan().unwrap()
    }

    #[test]
    fn only_tcp_with_many_new_connections_is_warned_of() {
        assert!(forecast(&plan("http://127.0.0.1:1/", Some(1), 10)).unwrap().contains("new connections/s"));
        assert_eq!(forecast(&plan("http://127.0.0.1:1/", None, 10)), None);
        assert_eq!(forecast(&plan("unix:/x", Some(1), 10)), None);
        assert!(forecast(&plan("http://127.0.0.1:1/", None, 100_000)).unwrap().contains("--source"));
    }
}
