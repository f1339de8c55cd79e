//! Listeners of a plan, and their open sockets.

use std::fmt;
use std::io;

use oroshi_net::inherit::{InheritError, InheritedSocket};
use oroshi_net::listen::ListenError;
use oroshi_net::{BoundListener, ListenOptions};

/// The role of a listener.
pub trait Role: Copy + Eq + fmt::Debug + 'static {
    /// The names by which inherited sockets choose a role (systemd's FileDescriptorName), in the order in
    /// which messages list them.
    const NAMED: &'static [(&'static str, Self)];

    /// Whether operators use the listener. Only the user of this process may connect to its unix socket.
    fn is_admin(self) -> bool;

    /// The scheme of URLs that lead to the listener.
    fn scheme(self) -> &'static str {
        "http"
    }

    /// Describes the role for the log: `public: requests are forwarded`.
    fn description(self) -> &'static str;
}

/// A listener: an address, and what is served there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener<R> {
    /// The address, as [`BoundListener::bind`] takes it. For an inherited socket outside the plan: its name.
    pub address: String,
    /// Its role.
    pub serves: R,
}

/// An open listener, with a socket for each thread.
#[derive(Debug)]
pub struct OpenListener<R> {
    /// The listener of the plan, or of an inherited socket.
    pub listener: Listener<R>,
    /// As many as the plan has threads.
    pub sockets: Vec<BoundListener>,
}

/// The reason why a service has no sockets.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The sockets that the environment names cannot be used; the cause says which and why.
    #[error("cannot use the inherited sockets")]
    Inherit(#[source] InheritError),
    /// The configuration does not name an inherited socket. Name it there, or by its role.
    #[error(
        "{variable} passes a socket named `{name}` that matches no listener: expected its address in [listen], or one of \
         the names {names}"
    )]
    Unassigned {
        /// The supervisor's name of the socket.
        name: String,
        /// The variable that names it.
        variable: &'static str,
        /// The names of the roles.
        names: String,
    },
    /// An inherited socket cannot be shared among the threads: too many descriptors are open.
    #[error("cannot share an inherited socket among the threads")]
    Share(#[source] io::Error),
    /// An address cannot be bound; the cause says why.
    #[error("cannot listen on `{address}`")]
    Listen {
        /// The address in the plan.
        address: String,
        /// Why it cannot be bound.
        source: ListenError,
    },
}

impl SocketError {
    /// Whether the command line or the configuration is wrong, rather than the machine.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            SocketError::Unassigned { .. } => true,
            SocketError::Listen { source, .. } => is_wrong_address(source),
            SocketError::Inherit(_) | SocketError::Share(_) => false,
        }
    }

    /// Returns the next step, if the message does not name it.
    #[must_use]
    pub fn next_step(&self) -> Option<&'static str> {
        match self {
            SocketError::Listen { source: ListenError::InUse { .. }, .. } => {
                Some("find the process (ss -ltnp, ss -lxp), and end it or listen elsewhere")
            }
            _ => None,
        }
    }
}

/// Whether the address itself is wrong, so that nothing could listen there.
#[must_use]
pub fn is_wrong_address(error: &ListenError) -> bool {
    matches!(error, ListenError::Address { .. } | ListenError::Unix { .. })
}

impl<R: Role> OpenListener<R> {
    /// Binds listeners, each with a socket for each thread.
    ///
    /// # Errors
    /// [`SocketError::Listen`].
    pub fn bind<'a>(
        listeners: impl IntoIterator<Item = &'a Listener<R>>,
        threads: usize,
    ) -> Result<Vec<Self>, SocketError> {
        let bind = |listener: &Listener<R>| match bind(
            &listener.address,
            threads,
            listener.serves.is_admin().then_some(0o600),
        ) {
            Ok(sockets) => Ok(OpenListener { listener: listener.clone(), sockets }),
            Err(source) => Err(SocketError::Listen { address: listener.address.clone(), source }),
        };
        listeners.into_iter().map(bind).collect()
    }

    /// Takes over an inherited socket.
    ///
    /// It replaces the listener at its address. Without one, it serves what its name says ([`Role::NAMED`]), or else
    /// `unnamed`.
    ///
    /// # Errors
    /// [`SocketError::Unassigned`] if it matches no listener, [`SocketError::Share`].
    pub fn adopt(
        socket: InheritedSocket,
        listeners: &[Listener<R>],
        unnamed: Option<R>,
        threads: usize,
    ) -> Result<Self, SocketError> {
        let listener = match listeners.iter().find(|listener| socket.is_at(&listener.address)) {
            Some(listener) => listener.clone(),
            None => {
                let named = R::NAMED.iter().find(|(name, _)| *name == socket.name).map(|&(_, serves)| serves);
                let (name, variable) = (socket.name, socket.variable);
                match named.or(unnamed) {
                    Some(serves) => Listener { address: name, serves },
                    None => return Err(SocketError::Unassigned { name, variable, names: names::<R>() }),
                }
            }
        };
        let sockets = share(socket.listener, threads).map_err(SocketError::Share)?;
        Ok(OpenListener { listener, sockets })
    }

    /// Returns the address as text: `http://127.0.0.1:8080/`, `https://*:443/`, `unix:/run/app.sock`.
    #[must_use]
    pub fn address(&self) -> String {
        self.sockets
            .first()
            .map(|socket| socket.local_address().shown(self.listener.serves.scheme()))
            .unwrap_or_default()
    }
}

/// Writes where the service listens, and what it serves there.
impl<R: Role> fmt::Display for OpenListener<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listening on {} ({})", self.address(), self.listener.serves.description())
    }
}

/// Binds an address with the longest backlog; returns a socket for each thread.
///
/// `unix_mode` is the mode of a unix socket's file; `None` leaves it to the umask.
///
/// # Errors
/// [`ListenError`].
pub fn bind(address: &str, threads: usize, unix_mode: Option<u32>) -> Result<Vec<BoundListener>, ListenError> {
    let options =
        ListenOptions { backlog: u32::from(u16::MAX), reuse_port: threads > 1, unix_mode, ..ListenOptions::default() };
    BoundListener::bind_for_cores(address, &options, threads)
}

/// Returns a clone of a socket for each thread.
///
/// # Errors
/// When the process may open no more descriptors.
pub fn share(socket: BoundListener, threads: usize) -> io::Result<Vec<BoundListener>> {
    let mut sockets = (1..threads).map(|_| socket.try_clone()).collect::<io::Result<Vec<_>>>()?;
    sockets.push(socket);
    Ok(sockets)
}

/// Lists the names of the roles: `public, admin or everything`.
fn names<R: Role>() -> String {
    let names: Vec<&str> = R::NAMED.iter().map(|(name, _)| *name).collect();
    match names.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Serves {
        Public,
        Admin,
        All,
    }

    impl Role for Serves {
        const NAMED: &'static [(&'static str, Self)] =
            &[("public", Serves::Public), ("admin", Serves::Admin), ("everything", Serves::All)];

        fn is_admin(self) -> bool {
            self == Serves::Admin
        }

        fn description(self) -> &'static str {
            "something"
        }
    }

    fn inherited(name: &str) -> InheritedSocket {
        let listener = bind("127.0.0.1:0", 1, None).unwrap().remove(0);
        InheritedSocket { name: name.to_owned(), variable: "LISTEN_FDS", listener }
    }

    #[test]
    fn an_inherited_socket_serves_what_its_address_its_name_or_nothing_else_says() {
        let listeners = [Listener { address: ":8080".to_owned(), serves: Serves::Admin }];
        let adopt = |name: &str, unnamed| OpenListener::adopt(inherited(name), &listeners, unnamed, 3);
        let of = |name: &str, unnamed| adopt(name, unnamed).map(|bound| bound.listener).unwrap();
        assert_eq!(of("8080", None), listeners[0]);
        assert_eq!(of("public", None), Listener { address: "public".to_owned(), serves: Serves::Public });
        assert_eq!(of("everything", Some(Serves::Public)).serves, Serves::All);
        assert_eq!(of("x", Some(Serves::Public)).serves, Serves::Public);
        let error = adopt("x", None).unwrap_err();
        assert!(error.is_usage());
        assert_eq!(
            error.to_string(),
            "LISTEN_FDS passes a socket named `x` that matches no listener: expected its address in [listen], or one of \
             the names public, admin or everything"
        );
        let bound = adopt("x", Some(Serves::All)).unwrap();
        assert_eq!(bound.sockets.len(), 3);
        let line = bound.to_string();
        assert!(line.starts_with("listening on http://127.0.0.1:") && line.ends_with("/ (something)"), "{line}");
    }

    #[test]
    fn only_the_user_may_connect_to_an_admin_socket() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str, serves| Listener { address: folder.path().join(name).display().to_string(), serves };
        let listeners = [at("public", Serves::Public), at("admin", Serves::Admin)];
        let bound = OpenListener::bind(&listeners, 2).unwrap();
        let mode = |bound: &OpenListener<Serves>| std::fs::metadata(&bound.listener.address).unwrap().mode() & 0o777;
        assert_eq!(mode(&bound[1]), 0o600);
        assert_ne!(mode(&bound[0]), 0o600);
        assert_eq!(bound.iter().map(|bound| bound.sockets.len()).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn a_wrong_address_is_the_users_mistake_and_one_in_use_is_not() {
        let bind = |address: &str| {
            OpenListener::bind(&[Listener { address: address.to_owned(), serves: Serves::All }], 1)
                .map(drop)
                .unwrap_err()
        };
        let wrong = bind("nonsense:-1");
        assert!(wrong.is_usage() && wrong.next_step().is_none(), "{wrong:?}");
        let held = inherited("x");
        let used = bind(&held.listener.local_address().to_string());
        assert_eq!(used.to_string(), format!("cannot listen on `{}`", held.listener.local_address()));
        assert!(!used.is_usage() && used.next_step().unwrap().contains("ss -ltnp"), "{used:?}");
    }
}
