//! What must hold for any bytes that a store sends; one function for each fuzz target. The fuzzer calls them with bytes
//! it makes up; a test of the crate lookup calls them with those in `corpus/`.
#![allow(dead_code)] // each target uses one of them

use oroshi_lookup::wire::{self, Reply, Request};
use oroshi_lookup::{Allow, Targets, key};

/// The largest value: small, so that bytes of the size that fuzzers like pass it.
const VALUE_BYTES: usize = 200;

/// A reply of memcached's. The first byte says to what.
pub(crate) fn memcached_reply(data: &[u8]) {
    let Some((&asked, bytes)) = data.split_first() else { return };
    let requests = match asked {
        ..128 => [Request::Get, Request::Set, Request::Delete],
        _ => [Request::Gets, Request::Cas, Request::Add],
    };
    let asked = requests[usize::from(asked % 3)];
    let whole = wire::decode(bytes, asked, VALUE_BYTES);
    if let Ok(Some((reply, taken))) = whole {
        assert!(taken <= bytes.len());
        if let Reply::Value { key, data, .. } = reply {
            assert!(wire::is_key(key) && data.len() <= VALUE_BYTES);
        }
        // What comes behind it changes nothing.
        let more = [bytes, b"END\r\n"].concat();
        assert_eq!(wire::decode(&more, asked, VALUE_BYTES), whole);
    }
    for cut in 0..bytes.len() {
        match wire::decode(&bytes[..cut], asked, VALUE_BYTES) {
            Ok(None) => {}
            early => assert_eq!(early, whole, "cut at {cut}"),
        }
    }
}

/// A value, as it stands in a store; read as a key as well.
pub(crate) fn lookup_value(data: &[u8]) {
    if let Ok(targets) = Targets::parse(data, &Allow::any()) {
        for (target, weight) in targets.iter() {
            let text = target.to_string();
            let again = Targets::parse(text.as_bytes(), &Allow::any()).expect("what was understood can be said again");
            assert_eq!((again, weight > 0), (Targets::One(target.clone()), true));
        }
        assert!(Targets::parse(data, &Allow::default()).is_err(), "nothing is allowed");
    }
    if let Ok(host) = key::host(data) {
        assert_eq!(key::host(host.as_bytes()).as_deref(), Ok(&*host), "the canonical form is its own");
    }
}
