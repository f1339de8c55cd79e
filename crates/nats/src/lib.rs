//! NATS as its users here need it: addresses with credentials, and options of a connection.
//!
//! It knows how addresses are written, and that an error never shows a password. It does not know subjects, messages or
//! when to connect again. [`address`] reads addresses; [`options`] and [`connect`] make connections.

pub mod address;

use std::time::Duration;

pub use async_nats::{Client, ConnectOptions, Event, jetstream};
use oroshi_words::{Secret, hidden, with_causes};

/// How long making a connection may take.
const CONNECT: Duration = Duration::from_secs(2);

/// Options of a connection that other clients see under this name. It uses the given servers only.
pub fn options(name: String) -> ConnectOptions {
    ConnectOptions::new().name(name).connection_timeout(CONNECT).ignore_discovered_servers()
}

/// Connects to one of the servers of an address list, with the credentials in it.
///
/// # Errors
/// The list is wrong, or no server can be reached. The text names the addresses, without their credentials.
pub async fn connect(nats: &Secret, options: ConnectOptions) -> Result<Client, String> {
    let servers = address::servers(nats)?;
    let options = match address::credentials(&servers) {
        Some((user, Some(password))) => options.user_and_password(user, password),
        Some((token, None)) => options.token(token),
        None => options,
    };
    let shown = hidden::addresses(nats.reveal());
    options.connect(servers).await.map_err(|error| format!("{shown}: {}", with_causes(&error)))
}
