use proptest::prelude::*;

use super::*;

fn tcp(source: &str, destination: &str) -> ProxyHeader {
    ProxyHeader::Tcp { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
}

#[test]
fn lines_are_read_strictly() {
    for (text, header) in [
        ("PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n", tcp("192.0.2.1:56324", "198.51.100.2:443")),
        ("PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", tcp("0.0.0.0:0", "255.255.255.255:65535")),
        ("PROXY TCP6 2001:db8::1 ::1 1 2\r\n", tcp("[2001:db8::1]:1", "[::1]:2")),
        ("PROXY UNKNOWN\r\n", ProxyHeader::Unknown),
        ("PROXY UNKNOWN ffff::1 whatever 1 2 3\r\n", ProxyHeader::Unknown),
    ] {
        assert_eq!(parse(text.as_bytes()), Ok(Some((header, text.len()))), "{text:?}");
        for end in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..end]), Ok(None), "{:?}", &text[..end]);
        }
        let with_more = format!("{text}GET / HTTP/1.1\r\n");
        assert_eq!(parse(with_more.as_bytes()), Ok(Some((header, text.len()))));
    }
    let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(LINE_BYTES));
    for text in [
        "PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 +56324 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 056324 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 65536 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 1\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 1 2 3\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 1 2 \r\n",
        "PROXY TCP4  192.0.2.1 198.51.100.2 1 2\r\n",
        "PROXY TCP4 192.0.2.01 198.51.100.2 1 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY TCP6 192.0.2.1 198.51.100.2 1 2\r\n",
        "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
        "PROXY UDP4 192.0.2.1 198.51.100.2 1 2\r\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY  TCP4 192.0.2.1 198.51.100.2 1 2\r\n",
        "PROXY \r\n",
        "PROXY TCP4\t192.0.2.1 198.51.100.2 1 2\r\n",
        &long,
        &long[..LINE_BYTES],
    ] {
        assert_eq!(parse(text.as_bytes()), Err(ProxyError::Line), "{text:?}");
    }
    for text in ["GET / HTTP/1.1\r\n", "PROXX", "proxy TCP4", "PROXYTCP4", "\r\n\r\nGET", "\x16\x03\x01"] {
        assert_eq!(parse(text.as_bytes()), Err(ProxyError::NotProxy), "{text:?}");
    }
}

fn binary_of(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
    bytes.extend(rest);
    bytes
}

#[test]
fn binary_headers_are_read_strictly() {
    let v4 = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 4, 1, 187];
    let with_facts = |facts: &[u8]| [&v4[..], facts].concat();
    let client = tcp("192.0.2.1:56324", "198.51.100.2:443");
    for (bytes, header) in [
        (binary_of(0x21, 0x11, &v4), client),
        (binary_of(0x21, 0x11, &with_facts(b"\x01\0\x02h2\x04\0\0")), client),
        (binary_of(0x21, 0x12, &v4), ProxyHeader::Unknown),
        (binary_of(0x21, 0x31, &[1; 216]), ProxyHeader::Unknown),
        (binary_of(0x21, 0, b""), ProxyHeader::Unknown),
        (binary_of(0x21, 0, b"anything"), ProxyHeader::Unknown),
        (binary_of(0x20, 0, b""), ProxyHeader::Local),
        (binary_of(0x20, 0x11, b"x"), ProxyHeader::Local),
    ] {
        assert_eq!(parse(&bytes), Ok(Some((header, bytes.len()))), "{bytes:?}");
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), Ok(None));
        }
    }
    for bytes in [
        binary_of(0x11, 0x11, &v4),
        binary_of(0x22, 0x11, &v4),
        binary_of(0x21, 0x41, &v4),
        binary_of(0x21, 0x13, &v4),
        binary_of(0x21, 0x11, &v4[..11]),
        binary_of(0x21, 0x21, &v4),
        binary_of(0x21, 0x31, &[0; 215]),
        binary_of(0x21, 0x11, &with_facts(b"\x01\0\x03h2")),
        binary_of(0x21, 0x11, &with_facts(b"\x01\0")),
    ] {
        assert_eq!(parse(&bytes), Err(ProxyError::Binary), "{bytes:?}");
    }
    assert_eq!(parse(&binary_of(0x21, 0x11, &[0; HEADER_BYTES])), Err(ProxyError::TooLong));
    // The length alone decides, before the bytes come.
    assert_eq!(parse(&binary_of(0x21, 0x11, &[0; HEADER_BYTES])[..16]), Err(ProxyError::TooLong));
}

/// The vectors of RFC 3720, appendix B.4, whose last four bytes are zeros.
#[test]
fn checksums_are_those_of_the_standard() {
    assert_eq!(crc32c(&[0; 28], b""), 0x8a91_36aa);
    assert_eq!(crc32c(b"", &[0; 28]), 0x8a91_36aa);
    // 123456789, a vector that all catalogues have, behind the zeros: the sum of four zeros is the start.
    assert_eq!(crc32c(b"", b""), 0x4867_4bc7);
}

#[test]
fn a_wrong_checksum_refuses_the_header() {
    let v4 = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 4, 1, 187];
    let facts = |sum: u32| [&b"\x01\0\x02h2\x03\0\x04"[..], &sum.to_be_bytes(), b"\x04\0\x01x"].concat();
    // As HAProxy 2.6 sends it with `send-proxy-v2 proxy-v2-options crc32c`: the sum is of the header with zeros.
    let signed = |family: u8, body: &[u8]| {
        let header = binary_of(0x21, family, &[body, &facts(0)].concat());
        let at = header.len() - 8;
        let sum = crc32c(&header[..at], &header[at + 4..]);
        (binary_of(0x21, family, &[body, &facts(sum)].concat()), sum)
    };
    let (right, sum) = signed(0x11, &v4);
    assert_eq!(parse(&right), Ok(Some((tcp("192.0.2.1:56324", "198.51.100.2:443"), right.len()))));
    let wrong = binary_of(0x21, 0x11, &[&v4[..], &facts(sum ^ 1)].concat());
    assert_eq!(parse(&wrong), Err(ProxyError::Checksum));
    for at in 16..right.len() - 12 {
        let mut changed = right.clone();
        changed[at] ^= 0x10;
        assert!(parse(&changed).is_err(), "byte {at}");
    }
    // One whose addresses are not told is a client's, too. The proxy's own connection is not looked at.
    let (unknown, sum) = signed(0, b"");
    assert_eq!(parse(&unknown), Ok(Some((ProxyHeader::Unknown, unknown.len()))));
    assert_eq!(parse(&binary_of(0x21, 0, &facts(sum ^ 1))), Err(ProxyError::Checksum));
    let own = binary_of(0x20, 0, &facts(sum ^ 1));
    assert_eq!(parse(&own), Ok(Some((ProxyHeader::Local, own.len()))));
    // Which of two would count?
    let twice = [&v4[..], &facts(0), &facts(0)].concat();
    assert_eq!(parse(&binary_of(0x21, 0x11, &twice)), Err(ProxyError::Binary));
    let short = [&v4[..], b"\x03\0\x02xx"].concat();
    assert_eq!(parse(&binary_of(0x21, 0x11, &short)), Err(ProxyError::Binary));
}

#[test]
fn addresses_of_two_families_are_told_as_ipv6() {
    let header = ProxyHeader::of("1.2.3.4:5".parse().ok(), "[2001:db8::1]:80".parse().ok());
    let mut line = Vec::new();
    header.write(ProxyVersion::V1, &mut line);
    assert_eq!(line, b"PROXY TCP6 ::ffff:102:304 2001:db8::1 5 80\r\n");
    assert_eq!(
        ProxyHeader::of("[::ffff:1.2.3.4]:5".parse().ok(), "127.0.0.1:80".parse().ok()),
        tcp("1.2.3.4:5", "127.0.0.1:80")
    );
    assert_eq!(ProxyHeader::of(None, "127.0.0.1:80".parse().ok()), ProxyHeader::Unknown);
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(source: SocketAddr, destination: SocketAddr, rest: Vec<u8>) {
        for header in [ProxyHeader::of(Some(source), Some(destination)), ProxyHeader::Unknown, ProxyHeader::Local] {
            for (_, version) in ProxyVersion::NAMED {
                let mut bytes = Vec::new();
                header.write(version, &mut bytes);
                let length = bytes.len();
                prop_assert!(version == ProxyVersion::V2 || length <= LINE_BYTES);
                bytes.extend(&rest);
                let expected = match (header, version) {
                    (ProxyHeader::Local, ProxyVersion::V1) => ProxyHeader::Unknown,
                    (header, _) => header,
                };
                prop_assert_eq!(parse(&bytes), Ok(Some((expected, length))));
            }
        }
    }

    #[test]
    fn no_bytes_panic_and_more_bytes_never_change_a_verdict(
        start in 0..3_usize, bytes in proptest::collection::vec(any::<u8>(), 0..300)
    ) {
        let all = [[&b""[..], LINE_START, SIGNATURE][start], &bytes[..]].concat();
        let mut verdict = Ok(None);
        for end in 0..=all.len() {
            let next = parse(&all[..end]);
            prop_assert!(verdict == Ok(None) || next == verdict, "{:?} then {:?}", verdict, next);
            verdict = next;
        }
    }

    #[test]
    fn a_header_is_read_to_its_end_however_it_comes(v2: bool, cut in 0..60_usize, rest: Vec<u8>) {
        let header = tcp("[2001:db8::1]:5", "[2001:db8::2]:80");
        let mut bytes = Vec::new();
        header.write(if v2 { ProxyVersion::V2 } else { ProxyVersion::V1 }, &mut bytes);
        let length = bytes.len();
        bytes.extend(&rest);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        let (read, left) = runtime.unwrap().block_on(async {
            use tokio::io::AsyncReadExt;
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            accepted.set_nonblocking(true).unwrap();
            let mut stream = Stream::from(tokio::net::TcpStream::from_std(accepted).unwrap());
            let cut = cut.min(bytes.len());
            client.write_all(&bytes[..cut]).unwrap();
            let read = tokio::task::spawn_local(async move {
                let read = ProxyHeader::read(&mut stream).await;
                (read, stream)
            });
            tokio::task::yield_now().await;
            client.write_all(&bytes[cut..]).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let (read, mut stream) = read.await.unwrap();
            let mut left = Vec::new();
            stream.read_to_end(&mut left).await.unwrap();
            (read.unwrap(), left)
        });
        prop_assert_eq!(read, header);
        prop_assert_eq!(left, &bytes[length..]);
    }
}
