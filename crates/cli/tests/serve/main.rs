//! The command where it serves: `gate` and `push`.
//!
//! All modules share one process, and run at the same time. A test that changes limits, variables or signals of its
//! process, or counts its memory or descriptors, runs in another process (`oroshi_testkit::in_a_process`) or stands in
//! another binary.

#[path = "../gate/echo.rs"]
mod echo;
#[path = "../gate/mod.rs"]
mod gate;
mod gate_access_log;
mod gate_acme;
mod gate_client_certificates;
mod gate_client_tls;
mod gate_compression;
mod gate_config;
mod gate_faults;
mod gate_health;
mod gate_hostile;
mod gate_limits;
mod gate_peers;
mod gate_proxy_protocol;
mod gate_revocation;
mod gate_scripts;
mod gate_serve;
mod gate_stores;
mod gate_stores_tls;
mod gate_tiers;
mod gate_tls;
mod gate_tls_peers;
mod gate_tls_scan;
mod http2_conformance;
#[path = "../gate/metrics.rs"]
mod metrics;
#[path = "../../../lookup/tests/peers/mod.rs"]
mod peers;
#[path = "../push/mod.rs"]
mod push;
mod push_chat;
mod push_client;
mod push_config;
mod push_kuiperbelt;
mod push_limits;
mod push_page;
mod push_pages;
mod push_serve;
mod push_tls;
#[path = "../gate/relay.rs"]
mod relay;
#[path = "../gate/servers.rs"]
mod servers;
#[path = "../gate/stores.rs"]
mod stores;
#[path = "../../../gate/tests/support/mod.rs"]
mod support;
