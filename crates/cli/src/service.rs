//! Errors, signals and output that `gate`, `push` and `target` share.

use std::error::Error;
use std::io::{self, Write};

use crate::CommandError;
use oroshi_config::ConfigError;
use oroshi_net::Shutdown;
use oroshi_net::inherit::{InheritedSocket, inherited};
use oroshi_service::SocketError;

/// An error of one service, beside those that all services have.
pub(crate) trait RoleError: Error + 'static {
    /// Whether the command line or the configuration is wrong, rather than the machine.
    fn is_usage(&self) -> bool;

    /// Returns the next step for a wrong configuration file, if the service has one.
    fn config_step(_: &ConfigError) -> Option<&'static str> {
        None
    }
}

/// The reasons why a service did not run, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError<E: RoleError> {
    /// Some options are wrong: each line names one, its value, and what was expected. Correct them.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// The configuration cannot be read, or is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The sockets cannot be opened; the message says which and why.
    #[error(transparent)]
    Sockets(#[from] SocketError),
    /// The service itself failed; the message says why.
    #[error(transparent)]
    Role(E),
    /// The system refused what every service needs.
    #[error("{what}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl<E: RoleError> CommandError for ServiceError<E> {
    fn exit_code(&self) -> u8 {
        let is_usage = match self {
            ServiceError::Usage(_) | ServiceError::Config(_) => true,
            ServiceError::Sockets(error) => error.is_usage(),
            ServiceError::Role(error) => error.is_usage(),
            ServiceError::System { .. } => false,
        };
        if is_usage { 2 } else { 1 }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            ServiceError::Config(error) => E::config_step(error),
            ServiceError::Sockets(error) => error.next_step(),
            ServiceError::Usage(_) | ServiceError::Role(_) | ServiceError::System { .. } => None,
        }
    }
}

/// Takes the inherited sockets. Call it first, because a descriptor opened earlier could take the number of one.
pub(crate) fn take_inherited() -> Result<Vec<InheritedSocket>, SocketError> {
    inherited().map_err(SocketError::Inherit)
}

/// Returns the shutdown that INT and TERM request.
pub(crate) fn shutdown_on_signals<E: RoleError>() -> Result<Shutdown, ServiceError<E>> {
    Shutdown::on_signals().map_err(|source| ServiceError::System { what: "cannot take signals", source })
}

/// Starts a thread that calls `reload` at each HUP, until it returns false.
///
/// # Errors
/// The signal cannot be taken, or no thread started.
#[cfg(any(feature = "gate", feature = "push"))]
pub(crate) fn on_hangup(mut reload: impl FnMut() -> bool + Send + 'static) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut hangup = signal(SignalKind::hangup())?;
    drop(entered);
    let read = move || while runtime.block_on(hangup.recv()).is_some() && reload() {};
    std::thread::Builder::new().name("reload".to_owned()).spawn(read)?;
    Ok(())
}

/// Returns the beginning of a URL for a listener's address.
#[cfg(any(feature = "gate", feature = "push"))]
pub(crate) fn admin_url(address: &str) -> String {
    let path = address.strip_prefix("unix:").or_else(|| address.starts_with(['/', '@']).then_some(address));
    match path {
        Some(path) => format!("unix:{path}:"),
        None => {
            let address = address.strip_prefix("http://").unwrap_or(address);
            let host = if address.starts_with(':') { "127.0.0.1" } else { "" };
            format!("http://{host}{}", address.trim_end_matches('/'))
        }
    }
}

/// Prints and flushes: a parent process may wait for a line.
pub(crate) fn print<E: RoleError>(text: &str) -> Result<(), ServiceError<E>> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.map_err(|source| ServiceError::System { what: "cannot write to standard output", source })
}
