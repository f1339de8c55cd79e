//! Binds and serves.

use std::io;
use std::sync::{Arc, Mutex};

use oroshi_net::inherit::InheritedSocket;
use oroshi_net::limits::ensure_descriptors;
use oroshi_net::listen::ListenError;
use oroshi_net::threads::ThreadsError;
use oroshi_net::tls::{ServerTlsOptions, TlsConfigError};
use oroshi_net::{BoundListener, Peer, ServerTls, Shutdown, Threads};
use oroshi_server::{Counts, HttpListener, Server};
use oroshi_service::{bind, is_wrong_address, share, thread_options, until_second_request};

use crate::plan::Plan;
use crate::responder::{Responder, Shared};

/// The reason why the target failed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The address cannot be listened on; see the cause.
    #[error("--listen {endpoint}: cannot listen")]
    Listen {
        /// The address as typed.
        endpoint: String,
        /// The cause.
        source: ListenError,
    },
    /// The certificate or the key is unusable; the cause names the file.
    #[error("--cert, --key: cannot use them for https")]
    Tls(#[source] TlsConfigError),
    /// The threads could not be started, or one of them panicked.
    #[error("cannot run the threads that serve")]
    Threads(#[source] ThreadsError),
    /// The system refused a descriptor or a thread.
    #[error("{what}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl TargetError {
    /// Whether the plan was wrong, rather than the machine.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Tls(_) => true,
            Self::Listen { source, .. } => is_wrong_address(source),
            Self::Threads(_) | Self::System { .. } => false,
        }
    }
}

/// A listening target that does not answer yet.
#[derive(Debug)]
pub struct Target {
    plan: Arc<Plan>,
    /// The listeners of each thread.
    listeners: Vec<Vec<(BoundListener, Option<ServerTls>)>>,
    addresses: Vec<String>,
}

impl Target {
    /// Listens at the plan's addresses and on inherited sockets. Inherited TCP sockets use TLS if the plan has a
    /// certificate.
    ///
    /// # Errors
    /// [`TargetError`]; then nothing listens.
    pub fn bind(plan: Plan, inherited: Vec<InheritedSocket>) -> Result<Self, TargetError> {
        let options =
            ServerTlsOptions { alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()], ..ServerTlsOptions::default() };
        let tls = plan.tls.as_ref().map(|files| ServerTls::from_files(&files.cert, &files.key, &options));
        let tls = tls.transpose().map_err(TargetError::Tls)?;
        // As far as the limit allows; if it is too low for the load, connections wait in the backlog.
        let _ = [200_000, 50_000, 12_000].into_iter().find(|&count| ensure_descriptors(count).is_ok());
        let mut listeners: Vec<Vec<(BoundListener, Option<ServerTls>)>> =
            (0..plan.threads).map(|_| Vec::new()).collect();
        let mut addresses = Vec::new();
        for address in &plan.listen {
            let all = bind(&address.address, plan.threads, None)
                .map_err(|source| TargetError::Listen { endpoint: address.typed.clone(), source })?;
            let tls = tls.clone().filter(|_| address.https);
            addresses.push(shown(&all[0], tls.is_some()));
            for (own, bound) in listeners.iter_mut().zip(all) {
                own.push((bound, tls.clone()));
            }
        }
        for socket in inherited {
            let tls = tls.clone().filter(|_| matches!(socket.listener.address(), Peer::Tcp(_)));
            addresses.push(shown(&socket.listener, tls.is_some()));
            let what = "cannot share an inherited socket";
            let all = share(socket.listener, plan.threads).map_err(|source| TargetError::System { what, source })?;
            for (own, bound) in listeners.iter_mut().zip(all) {
                own.push((bound, tls.clone()));
            }
        }
        Ok(Self { plan: Arc::new(plan), listeners, addresses })
    }

    /// Returns the listening addresses: `http://127.0.0.1:8080/`, `unix:/run/app.sock`.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Serves until the first shutdown, then finishes requests in progress; a second shutdown ends it at once.
    ///
    /// # Errors
    /// [`TargetError::Threads`] and [`TargetError::System`].
    pub fn serve(self, shutdown: &Shutdown) -> Result<Counts, TargetError> {
        let Self { plan, listeners, .. } = self;
        let options = thread_options("target", plan.threads, plan.cpus.as_ref(), shutdown);
        let (shutdown, shared) = (shutdown.clone(), Arc::new(Shared::default()));
        // The threads take them out: a listener left here would keep its socket open during the shutdown.
        let listeners = Mutex::new(listeners);
        let counts = Threads::run(&options, move |_| {
            let mine = listeners.lock().map(|mut listeners| listeners.pop()).ok().flatten().unwrap_or_default();
            let (plan, shutdown, shared) = (Arc::clone(&plan), shutdown.clone(), Arc::clone(&shared));
            async move {
                let (responder, timekeeper) = Responder::new(&plan, shared)?;
                if let Some(timekeeper) = timekeeper {
                    tokio::task::spawn_local(timekeeper);
                }
                let listeners: io::Result<Vec<HttpListener>> = mine
                    .into_iter()
                    .map(|(bound, tls)| Ok(HttpListener { listener: bound.into_listener()?, tls, proxied: None }))
                    .collect();
                let server = Server::new(responder, plan.settings());
                until_second_request(&shutdown, server.serve(listeners?, shutdown.reached(1))).await;
                io::Result::Ok(server.counters().counts())
            }
        });
        let counts: io::Result<Vec<Counts>> = counts.map_err(TargetError::Threads)?.into_iter().collect();
        let counts = counts
            .map_err(|source| TargetError::System { what: "cannot make what a thread needs to serve", source })?;
        Ok(counts.into_iter().sum())
    }
}

fn shown(bound: &BoundListener, https: bool) -> String {
    bound.local_address().shown(if https { "https" } else { "http" }).to_string()
}
