//! The addresses of NATS servers, and the credentials in them.

use async_nats::ServerAddr;
use oroshi_words::{Secret, query};

/// The form of an address, for error messages.
pub const EXPECTED: &str = "nats://host:4222, or tls://host:4222 to insist on TLS, several with commas";

/// Parses a list of servers with commas. An error quotes nothing of the text, as it may contain a password.
///
/// # Errors
/// The text says what is wrong.
pub fn servers(nats: &Secret) -> Result<Vec<ServerAddr>, &'static str> {
    nats.reveal().split(',').map(|address| server(address.trim())).collect()
}

/// Returns the name and password, or the token alone, of the first server that has any.
pub fn credentials(servers: &[ServerAddr]) -> Option<(String, Option<String>)> {
    let plain = |text: &str| query::segment(text).map_or_else(|_| text.to_owned(), std::borrow::Cow::into_owned);
    let server = servers.iter().find(|server| server.has_user_pass())?;
    Some((plain(server.username()?), server.password().map(plain)))
}

fn server(address: &str) -> Result<ServerAddr, &'static str> {
    // async-nats takes any text without a scheme as a host name, even a password.
    let Some((scheme, rest)) = address.split_once("://") else { return Err("is no address of NATS") };
    if !["nats", "tls"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err("has a scheme that nodes do not speak to NATS");
    }
    // In a password, each of these would end the address.
    if rest.contains(['/', '?', '#']) {
        return Err("has something behind the port, or a `/`, `?` or `#` in its password that is not percent-encoded");
    }
    let server: ServerAddr = address.parse().map_err(|_| "is no address of NATS")?;
    if server.host().is_empty() { Err("names no host") } else { Ok(server) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_the_client_can_connect_to() {
        let of = |text: &str| servers(&Secret::new(text)).map(|servers| servers.len());
        for (text, count) in [
            ("nats://h", 1),
            ("nats://h:4222, tls://[::1]:4222", 2),
            ("NATS://u:p%2Fw@h:1", 1),
            ("nats://t@192.0.2.1", 1),
        ] {
            assert_eq!(of(text), Ok(count), "{text}");
        }
        for (text, why) in [
            ("", "is no address"),
            ("h:4222", "is no address"),
            ("nats://h,", "is no address"),
            ("nats://h:70000", "is no address"),
            ("nats://h h", "is no address"),
            ("http://h", "scheme"),
            ("wss://h", "scheme"),
            ("nats://", "names no host"),
            ("nats://u:p@", "no"),
            ("nats://h/x", "behind the port"),
            ("nats://u:p/w@h", "percent-encoded"),
        ] {
            let refused = of(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn credentials_stand_in_the_address_and_are_unescaped() {
        let of = |addresses: &str| credentials(&servers(&Secret::new(addresses)).unwrap());
        assert_eq!(of("nats://h:1"), None);
        assert_eq!(of("nats://u:p%40ss@h:1"), Some(("u".to_owned(), Some("p@ss".to_owned()))));
        assert_eq!(of("nats://h:1,nats://s3cret@h:2"), Some(("s3cret".to_owned(), None)));
    }
}
