//! Certificates by ACME (RFC 8555): ordered, renewed, and shared between machines through a database.
//!
//! **What it knows**: when a certificate is due, which of many machines orders it, accounts and orders of an authority,
//! limits and back-off, the answers to challenges, the tables of the database.
//!
//! **What it does not know**: HTTP servers, handshakes, configuration files. `oroshi-certificates` serves what this
//! crate writes, and asks it for the answers to challenges ([`Issuer`](oroshi_certificates::Issuer)).
//!
//! # Where to read
//!
//! 1. [`Acme`] (`acme`): the interface, and [`AcmeSettings`] (`settings`).
//! 2. `schedule`: when a certificate is renewed, and when a failed order is repeated. No I/O; time and chance are
//!    arguments.
//! 3. `worker`: the names that are due, and the result of each order. `store`: the tables, and the lock in them.
//!    `answers`: answers that other machines entered, read for all that wait.
//! 4. `authority`: the account, orders and renewal information, on `http`, which lends our client to `instant-acme`.
//!    `material`: keys, requests and proofs.

mod acme;
mod answers;
mod authority;
mod http;
mod material;
mod schedule;
mod settings;
mod store;
mod worker;

pub use acme::{Acme, AcmeCounts, StartError, Tools};
pub use settings::{AcmeSettings, ChallengeKind, ExternalAccount, dns_name};
