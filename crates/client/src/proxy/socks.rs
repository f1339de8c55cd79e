//! SOCKS 5: asks a proxy for a connection to a server (RFC 1928; passwords by RFC 1929).

use std::net::IpAddr;

use oroshi_net::Stream;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::ProxyCause;

const VERSION: u8 = 5;
const NO_PASSWORD: u8 = 0;
const PASSWORD: u8 = 2;

/// Opens a connection to a server. `user`: name and password, at most 255 bytes each. `host`: an address, or a name
/// that the proxy looks up.
pub(super) async fn open(
    stream: &mut Stream,
    user: Option<(&[u8], &[u8])>,
    host: &str,
    port: u16,
) -> Result<(), ProxyCause> {
    let address = address(host)?;
    let methods: &[u8] = if user.is_some() { &[VERSION, 2, NO_PASSWORD, PASSWORD] } else { &[VERSION, 1, NO_PASSWORD] };
    stream.write_all(methods).await?;
    match read::<2>(stream).await? {
        [VERSION, NO_PASSWORD] => {}
        [VERSION, PASSWORD] => {
            let Some((name, password)) = user else { return Err(SocksError::User.into()) };
            let length = |text: &[u8]| u8::try_from(text.len()).map_err(|_| SocksError::User);
            let asked = [&[1, length(name)?], name, &[length(password)?], password].concat();
            stream.write_all(&asked).await?;
            if read::<2>(stream).await?[1] != 0 {
                return Err(SocksError::User.into());
            }
        }
        [VERSION, _] => return Err(SocksError::User.into()),
        _ => return Err(SocksError::Protocol.into()),
    }
    let request = [&[VERSION, 1, 0], &*address, &port.to_be_bytes()].concat();
    stream.write_all(&request).await?;
    let [VERSION, code, _, kind] = read::<4>(stream).await? else { return Err(SocksError::Protocol.into()) };
    if code != 0 {
        return Err(SocksError::Refused { why: reason(code), code }.into());
    }
    // The proxy's own address and port, which nobody needs.
    let length = match kind {
        1 => 4,
        3 => usize::from(read::<1>(stream).await?[0]),
        4 => 16,
        _ => return Err(SocksError::Protocol.into()),
    };
    stream.read_exact(&mut [0; 257][..length + 2]).await?;
    Ok(())
}

/// Returns the server's address as a request has it (RFC 1928, section 5), without the port.
fn address(host: &str) -> Result<Vec<u8>, SocksError> {
    Ok(match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => [&[1], &ip.octets()[..]].concat(),
        Ok(IpAddr::V6(ip)) => [&[4], &ip.octets()[..]].concat(),
        Err(_) => {
            let length = u8::try_from(host.len()).map_err(|_| SocksError::Name)?;
            [&[3, length], host.as_bytes()].concat()
        }
    })
}

async fn read<const N: usize>(stream: &mut Stream) -> Result<[u8; N], ProxyCause> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// RFC 1928, section 6.
fn reason(code: u8) -> &'static str {
    match code {
        1 => "it failed",
        2 => "its rules do not permit it",
        3 => "the network is unreachable",
        4 => "the server is unreachable",
        5 => "the server has refused the connection",
        6 => "its time to live is over",
        7 => "it knows no CONNECT",
        8 => "it knows no addresses of this kind",
        _ => "for a reason that SOCKS does not name",
    }
}

/// Why a SOCKS proxy has not connected to the server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SocksError {
    /// Give the user and the password that the proxy knows, in its URL.
    #[error("it wants a user and a password that it knows: give them in the proxy's URL")]
    User,
    /// The proxy says that it cannot connect, and why.
    #[error("it could not connect to the server: {why} (code {code})")]
    Refused {
        /// The reason in words.
        why: &'static str,
        /// The reply's code (RFC 1928, section 6).
        code: u8,
    },
    /// The name is too long for SOCKS.
    #[error("the server's name is longer than 255 bytes, which SOCKS cannot carry")]
    Name,
    /// What answers there speaks no SOCKS 5.
    #[error("its answer is not SOCKS 5")]
    Protocol,
}
