//! A hub as somebody described it: typed, not yet checked for sense. [`Draft::plan`] finds all that is wrong with it.

mod check;

use std::borrow::Cow;

use oroshi_net::endpoint::EndpointError;
use oroshi_net::{CpuList, available_cpus};

use crate::plan::{
    Callbacks, Cluster, Door, Drain, GroupRule, Limits, Origins, Paths, Plan, Secret, Send, Serves, Transports,
};

/// A hub as somebody described it. `Default` is a hub that listens nowhere.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// How many threads hold sessions; `None`: one for each CPU of `cpus`, or of those available.
    pub threads: Option<usize>,
    /// The CPUs that the threads are pinned to, if any.
    pub cpus: Option<CpuList>,
    /// Where it listens, and what for.
    pub doors: Vec<Door>,
    /// Whether sockets are handed down as well, so that there need not be a door.
    pub inherits: bool,
    /// Where on HTTP things are found.
    pub paths: Paths,
    /// The header that names sessions; `None`: `X-Kuiperbelt-Session`.
    pub session_header: Option<String>,
    /// How backends reach this hub; `None`: this machine's name, and the port of the first TCP door that they may use.
    pub endpoint: Option<String>,
    /// What the backend is asked and told.
    pub callbacks: Callbacks,
    /// Whose pages may connect; `None`: everybody's.
    pub origins: Option<Origins>,
    /// How clients may connect; `None`: in every way.
    pub transports: Option<Transports>,
    /// The subprotocols of WebSocket that are agreed to.
    pub subprotocols: Vec<String>,
    /// Sizes, counts and times.
    pub limits: Limits,
    /// What `/send` does about sessions it does not know.
    pub send: Send,
    /// Rules for groups, in their order.
    pub groups: Vec<GroupRule>,
    /// What publishers must show, if anything.
    pub token: Option<Secret>,
    /// How the hub ends.
    pub drain: Drain,
    /// The other nodes, if there are any.
    pub cluster: Option<Cluster>,
    /// Whether kuiperbelt's habits are restored that are mended by default.
    pub compat_ekbo: bool,
    /// Whether every message is sent back to whoever sent it.
    pub echo: bool,
    /// Whether every request to the API is told.
    pub access_log: bool,
}

/// Where in a configuration a mistake is: the key's path, such as `callbacks.connect` or `group[2].pattern` (from 1).
pub type Key = Cow<'static, str>;

/// What is wrong with a draft.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Name a place to listen on.
    #[error("there is nowhere to listen: expected an address such as 127.0.0.1:9180, :9180 or unix:/run/push.sock")]
    Nowhere,
    /// Name a place for the clients too.
    #[error("there is no way in for clients: expected an address such as :9180 in it")]
    NoPublic,
    /// Name a place for backends too.
    #[error(
        "there is no way in for publishers: expected an address that only they reach, such as 127.0.0.1:9181 or \
         unix:/run/push-admin.sock"
    )]
    NoAdmin,
    /// Set a token, or listen where only this machine can connect.
    #[error(
        "`{address}` would let anybody on the network publish: expected a token (auth.token-file, auth.token-env), or an \
         address of this machine alone such as 127.0.0.1:9181 or unix:/run/push-admin.sock"
    )]
    Open {
        /// As it was given.
        address: String,
    },
    /// Leave out one of the two.
    #[error("`{value}` stands here twice: expected each only once")]
    Twice {
        /// Where the second is.
        key: Key,
        /// What is there twice.
        value: String,
    },
    /// Correct the URL; the cause says what is wrong with it.
    #[error(
        "this is no URL that can be called: expected one such as http://127.0.0.1:3000/path or unix:/run/app.sock:/path"
    )]
    Url {
        /// Which.
        key: Key,
        /// What is wrong with it.
        source: EndpointError,
    },
    /// Correct the value.
    #[error("`{value}` {why}: expected {expected}")]
    Value {
        /// Which.
        key: Key,
        /// As it was given.
        value: String,
        /// What is wrong with it.
        why: &'static str,
        /// What would have been right.
        expected: Cow<'static, str>,
    },
    /// Correct a value that is not to be shown.
    #[error("its value {why}: expected {expected}")]
    Hidden {
        /// Which.
        key: Key,
        /// What is wrong with it.
        why: &'static str,
        /// What would have been right.
        expected: &'static str,
    },
}

impl PlanError {
    /// The key that is wrong.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            PlanError::Nowhere => "listen",
            PlanError::NoPublic => "listen.public",
            PlanError::NoAdmin | PlanError::Open { .. } => "listen.admin",
            PlanError::Twice { key, .. }
            | PlanError::Url { key, .. }
            | PlanError::Value { key, .. }
            | PlanError::Hidden { key, .. } => key,
        }
    }
}

impl Draft {
    /// Checks it, and fills the defaults in.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn plan(self) -> Result<Plan, Vec<PlanError>> {
        let problems = check::all(&self);
        if !problems.is_empty() {
            return Err(problems);
        }
        let threads = self.threads.unwrap_or_else(|| match &self.cpus {
            Some(cpus) => cpus.len(),
            None => available_cpus().map_or(1, |cpus| cpus.len()),
        });
        let endpoint = self.endpoint.unwrap_or_else(|| endpoint(&self.doors));
        let usual = Plan::default();
        Ok(Plan {
            threads,
            cpus: self.cpus,
            doors: self.doors,
            paths: self.paths,
            session_header: self.session_header.unwrap_or(usual.session_header),
            endpoint,
            callbacks: self.callbacks,
            connections: usual.connections,
            admin_connections: usual.admin_connections,
            origins: self.origins.unwrap_or(usual.origins),
            transports: self.transports.unwrap_or(usual.transports),
            subprotocols: self.subprotocols,
            limits: self.limits,
            send: self.send,
            groups: self.groups,
            token: self.token,
            drain: self.drain,
            cluster: self.cluster,
            compat_ekbo: self.compat_ekbo,
            echo: self.echo,
            access_log: self.access_log,
        })
    }
}

/// This machine's name, with the port of the first TCP door that backends may use. A port up to 1023 is left out, as kuiperbelt has it.
fn endpoint(doors: &[Door]) -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let ports = doors.iter().filter(|door| door.serves != Serves::Sessions).filter_map(|door| port(&door.address));
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

    fn door(address: &str, serves: Serves) -> Door {
        Door { address: address.into(), serves }
    }

    #[test]
    fn the_endpoint_is_where_backends_come_in() {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let of = |doors: &[Door]| endpoint(doors);
        assert_eq!(of(&[door(":9180", Serves::Everything)]), format!("{name}:9180"));
        assert_eq!(of(&[door(":80", Serves::Everything)]), name);
        assert_eq!(of(&[door("/run/push.sock", Serves::Everything)]), name);
        let apart =
            [door(":9180", Serves::Sessions), door("unix:@a:1234", Serves::Admin), door("[::1]:9181", Serves::Admin)];
        assert_eq!(of(&apart), format!("{name}:9181"));
    }

    #[test]
    fn defaults_are_filled_in() {
        let draft = Draft { doors: vec![door(":9180", Serves::Everything)], ..Draft::default() };
        let plan = draft.plan().unwrap();
        assert_eq!(plan.threads, available_cpus().unwrap().len());
        assert_eq!((plan.session_header.as_str(), plan.origins), ("X-Kuiperbelt-Session", Origins::Any));
        let cpus: CpuList = "0".parse().unwrap();
        let draft = Draft { inherits: true, cpus: Some(cpus), ..Draft::default() };
        assert_eq!(draft.plan().unwrap().threads, 1);
    }
}
