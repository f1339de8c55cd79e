//! What must hold for any bytes at the start of a connection from a proxy. The fuzzer calls it with bytes it makes up;
//! a test of the crate net calls it with those in `corpus/`.

use oroshi_net::proxy_protocol::{HEADER_BYTES, ProxyHeader, ProxyVersion, parse};

/// A header of either version of the PROXY protocol.
pub(crate) fn proxy_header(data: &[u8]) {
    // The longest header, and a byte behind it.
    let data = &data[..data.len().min(HEADER_BYTES + 1)];
    let whole = parse(data);
    if let Ok(Some((header, length))) = whole {
        assert!((1..=data.len().min(HEADER_BYTES)).contains(&length));
        assert_eq!(parse(&data[..length]), whole, "what comes behind changes nothing");
        for (_, version) in ProxyVersion::NAMED {
            let mut written = Vec::new();
            header.write(version, &mut written);
            let said = match (header, version) {
                (ProxyHeader::Local, ProxyVersion::V1) => ProxyHeader::Unknown,
                _ => header,
            };
            assert_eq!(parse(&written), Ok(Some((said, written.len()))), "what was understood can be said again");
        }
    }
    // Once there is a verdict, more bytes do not change it.
    for cut in 0..data.len() {
        match parse(&data[..cut]) {
            Ok(None) => {}
            early => assert_eq!(early, whole, "cut at {cut}"),
        }
    }
}
