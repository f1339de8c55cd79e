//! The first response of a run: one copy for all workers, written once.

use std::sync::OnceLock;

use oroshi_http1::Headers;

use crate::record::TlsRecord;

/// Bytes kept of a redirect's location, and of an error response's body.
const KEPT: usize = 200;

/// The first response of a run, and TLS on its first connection; the first worker to know a value sets it for all.
#[derive(Debug, Default)]
pub(crate) struct FirstResponse {
    pub(crate) server: OnceLock<Option<String>>,
    pub(crate) body_bytes: OnceLock<u64>,
    pub(crate) tls: OnceLock<TlsRecord>,
    /// Location of the first redirect.
    pub(crate) location: OnceLock<String>,
    /// Beginning of the body of the first response with status 400.
    pub(crate) complaint: OnceLock<Vec<u8>>,
}

impl FirstResponse {
    /// Notes the `Server` field of the first response, and the `Location` of the first redirect.
    #[inline]
    pub(crate) fn head(&self, status: u16, headers: Headers<'_>) {
        if self.server.get().is_none() {
            let server = headers.get("Server").map(|value| String::from_utf8_lossy(value).into_owned());
            let _ = self.server.set(server);
        }
        if (300..400).contains(&status) && self.location.get().is_none() {
            let to = headers.get("Location").unwrap_or_default();
            let _ = self.location.set(to[..to.len().min(KEPT)].escape_ascii().to_string());
        }
    }

    /// Whether the `Server` field of the first response is known.
    #[inline]
    pub(crate) fn has_server(&self) -> bool {
        self.server.get().is_some()
    }

    /// Whether the `Location` of the first redirect is known.
    pub(crate) fn has_location(&self) -> bool {
        self.location.get().is_some()
    }

    /// Whether a body is not as long as that of the first response; the first call sets that length.
    #[inline]
    pub(crate) fn differs_in_length(&self, body_bytes: u64) -> bool {
        *self.body_bytes.get_or_init(|| body_bytes) != body_bytes
    }

    /// Notes how the first body of a response with status 400 begins.
    #[inline]
    pub(crate) fn data(&self, status: u16, data: &[u8]) {
        if status == 400 && self.complaint.get().is_none() {
            let _ = self.complaint.set(data[..data.len().min(KEPT)].to_vec());
        }
    }
}
