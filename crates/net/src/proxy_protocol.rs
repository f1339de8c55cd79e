//! The PROXY protocol, versions 1 and 2: the addresses of a client's connection, as a proxy in front tells them.
//!
//! A proxy that passes bytes on opens a connection of its own, and sends this header first. [`parse`] and the writers
//! do no I/O. [`ProxyHeader::read`] reads exactly the header from a socket, so that TLS or HTTP may follow. The rules
//! are those of <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>.
//!
//! We parse here because the crate proxy-header 0.1 is lenient. It takes any byte behind `PROXY`, and ports such as
//! `+80` or `080`. It waits for more bytes where the first ones already cannot be a header.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Poll, ready};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, ReadBuf};

use crate::stream::Stream;

/// The most bytes of a header of version 1, with its line end.
const LINE_BYTES: usize = 107;

/// The most bytes of a header of version 2 that [`parse`] accepts. Addresses take at most 232; the rest is for further
/// facts (TLVs), which are skipped. The format itself allows 65,551.
pub const HEADER_BYTES: usize = 4096;

const LINE_START: &[u8] = b"PROXY ";

/// The first bytes of version 2, which are valid in no other protocol.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The bytes of version 2 before its addresses.
const FIXED_BYTES: usize = 16;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

impl ProxyVersion {
    /// Both, with their stable names.
    pub const NAMED: [(&'static str, ProxyVersion); 2] = [("v1", ProxyVersion::V1), ("v2", ProxyVersion::V2)];

    /// Returns the stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ProxyVersion::V1 => "v1",
            ProxyVersion::V2 => "v2",
        }
    }
}

/// The contents of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyHeader {
    /// The connection is the proxy's own, such as a health check: its real addresses count. Version 2 alone.
    Local,
    /// The connection is a client's, whose addresses are not told: they are unknown, or those of a unix socket.
    Unknown,
    /// The connection is a client's, over TCP. Both addresses have the same family.
    Tcp {
        /// The client's address.
        source: SocketAddr,
        /// The address to which the client connected.
        destination: SocketAddr,
    },
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The first bytes belong to neither version: the peer speaks another protocol.
    #[error("the first bytes are no header of the PROXY protocol")]
    NotProxy,
    /// A line of version 1 is malformed.
    #[error("the line of the PROXY protocol is malformed")]
    Line,
    /// A header of version 2 has an unassigned version, command or family, or too few bytes for its addresses.
    #[error("the binary header of the PROXY protocol is malformed")]
    Binary,
    /// The checksum in a header of version 2 is not that of its bytes.
    #[error("the checksum of the PROXY protocol does not fit its header")]
    Checksum,
    /// The header is longer than [`HEADER_BYTES`].
    #[error("the header of the PROXY protocol is longer than {HEADER_BYTES} bytes")]
    TooLong,
}

/// Parses a header at the start of `bytes`. Returns it with its length, or `None` if it is incomplete.
///
/// # Errors
/// As soon as no further byte could make `bytes` a valid header.
pub fn parse(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
    if is_begin(bytes, LINE_START) {
        return line(bytes);
    }
    if is_begin(bytes, SIGNATURE) {
        return binary(bytes);
    }
    Err(ProxyError::NotProxy)
}

/// Returns whether one of both is the other's begin.
fn is_begin(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(one, other)| one == other)
}

fn line(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
    let window = &bytes[..bytes.len().min(LINE_BYTES)];
    let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
        return if bytes.len() >= LINE_BYTES { Err(ProxyError::Line) } else { Ok(None) };
    };
    let text = window[..end].strip_suffix(b"\r").and_then(|text| text.strip_prefix(LINE_START));
    let text = text.and_then(|text| str::from_utf8(text).ok()).ok_or(ProxyError::Line)?;
    // Behind UNKNOWN, the receiver ignores the rest of the line.
    let is_unknown = text.strip_prefix("UNKNOWN").is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let header = if is_unknown { ProxyHeader::Unknown } else { tcp_line(text).ok_or(ProxyError::Line)? };
    Ok(Some((header, end + 1)))
}

fn tcp_line(text: &str) -> Option<ProxyHeader> {
    let mut words = text.split(' ');
    let family = words.next()?;
    let mut address = || address(family, words.next()?);
    let (source, destination) = (address()?, address()?);
    let (from, to) = (port(words.next()?)?, port(words.next()?)?);
    words.next().is_none().then(|| ProxyHeader::Tcp {
        source: SocketAddr::new(source, from),
        destination: SocketAddr::new(destination, to),
    })
}

fn address(family: &str, text: &str) -> Option<IpAddr> {
    match family {
        "TCP4" => Ipv4Addr::from_str(text).ok().map(IpAddr::V4),
        "TCP6" => Ipv6Addr::from_str(text).ok().map(IpAddr::V6),
        _ => None,
    }
}

/// Parses a decimal port without sign and without leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_plain { text.parse().ok() } else { None }
}

fn binary(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
    let (command, family) = (bytes.get(12), bytes.get(13));
    if command.is_some_and(|command| !matches!(command, 0x20 | 0x21)) {
        return Err(ProxyError::Binary);
    }
    // The upper half is the address family, the lower one the transport; 0 in either says nothing about the other.
    let is_assigned = |family: u8| matches!(family, 0x00 | 0x11 | 0x12 | 0x21 | 0x22 | 0x31 | 0x32);
    if family.is_some_and(|&family| !is_assigned(family)) {
        return Err(ProxyError::Binary);
    }
    let Some(&[high, low]) = bytes.get(14..FIXED_BYTES) else { return Ok(None) };
    let end = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if end > HEADER_BYTES {
        return Err(ProxyError::TooLong);
    }
    let is_local = command == Some(&0x20);
    let family = family.copied().unwrap_or_default();
    let needed = match family {
        _ if is_local => 0,
        0x11 | 0x12 => 12,
        0x21 | 0x22 => 36,
        0x31 | 0x32 => 216,
        _ => 0,
    };
    if end < FIXED_BYTES + needed {
        return Err(ProxyError::Binary);
    }
    let Some(rest) = bytes.get(FIXED_BYTES..end) else { return Ok(None) };
    let (addresses, facts) = rest.split_at(needed);
    // Of the proxy's own connection, and of one whose addresses are not told, the receiver may ignore what follows.
    match check_facts(&bytes[..end], facts) {
        Err(error @ ProxyError::Binary) if !is_local && needed > 0 => return Err(error),
        Err(error @ ProxyError::Checksum) if !is_local => return Err(error),
        _ => {}
    }
    let header = match family {
        _ if is_local => ProxyHeader::Local,
        0x11 => tcp::<4>(addresses).ok_or(ProxyError::Binary)?,
        0x21 => tcp::<16>(addresses).ok_or(ProxyError::Binary)?,
        // A transport that no stream of ours can have, and unix sockets, say nothing that could be used.
        _ => ProxyHeader::Unknown,
    };
    Ok(Some((header, end)))
}

/// Reads two addresses of `N` bytes and two ports.
fn tcp<const N: usize>(bytes: &[u8]) -> Option<ProxyHeader>
where
    IpAddr: From<[u8; N]>,
{
    let (source, rest) = bytes.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let (from, rest) = rest.split_first_chunk::<2>()?;
    let (to, _) = rest.split_first_chunk::<2>()?;
    Some(ProxyHeader::Tcp {
        source: SocketAddr::new(IpAddr::from(*source), u16::from_be_bytes(*from)),
        destination: SocketAddr::new(IpAddr::from(*destination), u16::from_be_bytes(*to)),
    })
}

/// The type of the TLV with a checksum of the whole header (PP2_TYPE_CRC32C).
const CHECKSUM: u8 = 0x03;

/// Checks that the end of a header is a sequence of TLVs: a type, two bytes of length, and as many bytes. If one is a
/// checksum, it must be the only one, and right.
fn check_facts(header: &[u8], mut facts: &[u8]) -> Result<(), ProxyError> {
    let mut checksum = None;
    while !facts.is_empty() {
        let Some((&[kind, high, low], rest)) = facts.split_first_chunk() else { return Err(ProxyError::Binary) };
        let Some((value, rest)) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low]))) else {
            return Err(ProxyError::Binary);
        };
        if kind == CHECKSUM {
            let (Ok(value), None) = (<[u8; 4]>::try_from(value), checksum) else { return Err(ProxyError::Binary) };
            checksum = Some((header.len() - rest.len() - 4, u32::from_be_bytes(value)));
        }
        facts = rest;
    }
    match checksum {
        Some((at, said)) if crc32c(&header[..at], &header[at + 4..]) != said => Err(ProxyError::Checksum),
        _ => Ok(()),
    }
}

/// Returns the CRC32C (RFC 3720, appendix B.4) of `before`, four zeros, and `after`.
fn crc32c(before: &[u8], after: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let (mut table, mut byte) = ([0; 256], 0);
        while byte < 256 {
            let (mut value, mut bit) = (byte as u32, 0);
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0x82f6_3b78 } else { value >> 1 };
                bit += 1;
            }
            table[byte] = value;
            byte += 1;
        }
        table
    };
    let step = |sum: u32, byte: &u8| TABLE[usize::from(sum as u8 ^ byte)] ^ sum >> 8;
    !before.iter().chain(&[0; 4]).chain(after).fold(u32::MAX, step)
}

impl ProxyHeader {
    /// Returns the header for a connection between these addresses. IPv4-mapped addresses become IPv4, if both are.
    #[must_use]
    pub fn of(source: Option<SocketAddr>, destination: Option<SocketAddr>) -> Self {
        let (Some(source), Some(destination)) = (source, destination) else { return ProxyHeader::Unknown };
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let mapped = |address: SocketAddr| match address.ip() {
            IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            // Without flow label and scope, which the protocol cannot tell.
            IpAddr::V6(_) => SocketAddr::new(address.ip(), address.port()),
        };
        let (source, destination) = (plain(source), plain(destination));
        match source.is_ipv4() && destination.is_ipv4() {
            true => ProxyHeader::Tcp { source, destination },
            false => ProxyHeader::Tcp { source: mapped(source), destination: mapped(destination) },
        }
    }

    /// Appends the header. Version 1 has no [`Local`](Self::Local), and writes it as unknown.
    pub fn write(&self, version: ProxyVersion, out: &mut Vec<u8>) {
        match version {
            ProxyVersion::V1 => self.write_line(out),
            ProxyVersion::V2 => self.write_binary(out),
        }
    }

    fn write_line(&self, out: &mut Vec<u8>) {
        let ProxyHeader::Tcp { source, destination } = self else {
            return out.extend_from_slice(b"PROXY UNKNOWN\r\n");
        };
        let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
        let (from, to) = (source.port(), destination.port());
        // Writing into memory cannot fail.
        let _ = write!(out, "PROXY {family} {} {} {from} {to}\r\n", Plain(source.ip()), Plain(destination.ip()));
    }

    fn write_binary(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(SIGNATURE);
        match self {
            ProxyHeader::Local => out.extend_from_slice(&[0x20, 0, 0, 0]),
            ProxyHeader::Unknown => out.extend_from_slice(&[0x21, 0, 0, 0]),
            ProxyHeader::Tcp { source, destination } => {
                let is_v4 = source.is_ipv4();
                out.extend_from_slice(if is_v4 { &[0x21, 0x11, 0, 12] } else { &[0x21, 0x21, 0, 36] });
                for address in [source, destination] {
                    match address.ip() {
                        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
                        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
                    }
                }
                out.extend_from_slice(&source.port().to_be_bytes());
                out.extend_from_slice(&destination.port().to_be_bytes());
            }
        }
    }

    /// Reads a header from a new connection, and not a byte behind it. The caller limits the time.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] with a [`ProxyError`]; [`io::ErrorKind::UnexpectedEof`]; the socket's errors.
    pub async fn read(stream: &mut Stream) -> io::Result<ProxyHeader> {
        let mut taken: Vec<u8> = Vec::new();
        poll_fn(|context| {
            loop {
                // The header is looked at first, because bytes behind it must stay in the kernel.
                ready!(stream.poll_peer(context))?;
                let (before, mut room) = (taken.len(), [0; 512]);
                let (_, count) = recv(&*stream, &mut room, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                taken.extend_from_slice(&room[..count.min(room.len())]);
                let parsed = parse(&taken).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                // All bytes of an incomplete header belong to it.
                let own = parsed.map_or(taken.len(), |(_, length)| length) - before;
                let mut left = ReadBuf::new(&mut room[..own]);
                while left.remaining() > 0 {
                    let before = left.filled().len();
                    ready!(Pin::new(&mut *stream).poll_read(context, &mut left))?;
                    if left.filled().len() == before {
                        return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                    }
                }
                if let Some((header, _)) = parsed {
                    return Poll::Ready(Ok(header));
                }
            }
        })
        .await
    }
}

/// Writes an IPv6 address without IPv4 in it, as all receivers read it.
struct Plain(IpAddr);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
                let [.., high, low] = address.segments();
                write!(f, "::ffff:{high:x}:{low:x}")
            }
            address => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
