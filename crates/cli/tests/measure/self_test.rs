//! `oroshi bench --self-test`.

use serde_json::Value;

use crate::common::bench;

/// The ladder over HTTP/2 within TLS, with runs that are too short for its figures to mean something.
#[test]
fn the_self_test_speaks_http2() {
    let ran = bench(&["--self-test", "--http2", "--streams", "8", "-d", "100ms", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["protocol"], &report["tls"]), (&"h2".into(), &true.into()), "{report}");
    let rungs = report["rungs"].as_array().unwrap();
    assert!(rungs.len() >= 9, "three delays, and three numbers of connections or more: {report}");
    for rung in rungs {
        assert_eq!((rung["streams"].as_u64(), rung["errors"].as_u64()), (Some(8), Some(0)), "{rung}");
        assert!(rung["requests"].as_u64() > Some(0), "{rung}");
    }
}
