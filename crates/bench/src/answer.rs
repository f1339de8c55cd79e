//! The answer that is being read: what is kept of it until it is whole.

use std::sync::OnceLock;

use oroshi_http1::{Headers, ResponseHead};

use crate::check::Checking;
use crate::core::Core;
use crate::failure::Failure;
use crate::record::TlsRecord;
use crate::script::Heard;

/// What the first answer of a run was like, and TLS on its first connection; whichever core is first says so to all.
#[derive(Debug, Default)]
pub(crate) struct First {
    pub(crate) server: OnceLock<Option<String>>,
    pub(crate) body_bytes: OnceLock<u64>,
    pub(crate) tls: OnceLock<TlsRecord>,
    /// Where the first redirect led.
    pub(crate) location: OnceLock<String>,
    /// How the body of the first answer with status 400 began.
    pub(crate) complaint: OnceLock<Vec<u8>>,
}

/// Bytes that are kept of where a redirect led, and of an answer that complains.
const KEPT: usize = 200;

/// The answer that is being read.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) begun: bool,
    pub(crate) status: u16,
    /// Whether the connection can be used after it.
    pub(crate) reusable: bool,
    /// Nanoseconds from handing over the request to the first byte.
    pub(crate) wait: u64,
    pub(crate) body_bytes: u64,
    checking: Checking,
    /// What a script will be told of it.
    heard: Option<Box<Heard>>,
}

impl Answer {
    /// Its first byte is here, `wait` nanoseconds after its request was sent.
    #[inline]
    pub(crate) fn begin(&mut self, wait: u64) {
        (self.begun, self.status, self.reusable, self.wait, self.body_bytes) = (true, 0, false, wait, 0);
    }

    #[inline]
    pub(crate) fn head(&mut self, core: &Core, head: &ResponseHead<'_>) {
        self.status = head.status;
        self.reusable = head.keep_alive;
        if !core.rules.checks.is_empty() {
            self.checking.begin(&core.rules.checks, head.status);
        }
        if core.first.server.get().is_none() {
            let server = head.headers.get("Server").map(|value| String::from_utf8_lossy(value).into_owned());
            let _ = core.first.server.set(server);
        }
        if (300..400).contains(&head.status) && core.first.location.get().is_none() {
            let to = head.headers.get("Location").unwrap_or_default();
            let _ = core.first.location.set(to[..to.len().min(KEPT)].escape_ascii().to_string());
        }
        if let Some(wanted) = core.hears() {
            let heard = self.heard.get_or_insert_default();
            heard.begin(head.status);
            if wanted.headers {
                hear(heard, head.headers);
            }
        }
    }

    /// A piece of the body. False when a script wants bodies, and there is no room for this one.
    #[inline]
    pub(crate) fn data(&mut self, core: &Core, data: &[u8]) -> bool {
        self.body_bytes += data.len() as u64;
        if self.status == 400 && core.first.complaint.get().is_none() {
            let _ = core.first.complaint.set(data[..data.len().min(KEPT)].to_vec());
        }
        if !core.rules.checks.is_empty() {
            self.checking.data(&core.rules.checks, data);
        }
        match (&mut self.heard, core.hears()) {
            (Some(heard), Some(wanted)) if wanted.body => {
                heard.body.extend_from_slice(data);
                core.holds_bodies_of(data.len())
            }
            _ => true,
        }
    }

    #[inline]
    pub(crate) fn trailers(&mut self, core: &Core, trailers: Headers<'_>) {
        if let (Some(heard), Some(wanted)) = (&mut self.heard, core.hears())
            && wanted.headers
        {
            hear(heard, trailers);
        }
    }

    /// What is wrong with it, now that it is whole.
    #[inline]
    pub(crate) fn failure(&self, core: &Core) -> Option<Failure> {
        // Where the plan says which statuses are right, it decides.
        if self.status >= 400 && !core.rules.status_checked {
            Some(Failure::Status)
        } else if !core.rules.checks.is_empty() && !self.checking.holds(&core.rules.checks) {
            Some(Failure::Check)
        } else {
            None
        }
    }

    /// Whether its body is not as long as that of the run's first answer.
    #[inline]
    pub(crate) fn is_of_other_length(&self, core: &Core) -> bool {
        *core.first.body_bytes.get_or_init(|| self.body_bytes) != self.body_bytes
    }

    /// Tells the script, if it listens. False when that ended the run.
    #[inline]
    pub(crate) fn tell_script(&mut self, core: &Core) -> bool {
        let Some(heard) = &mut self.heard else { return true };
        let goes_on = core.tell_script(heard);
        self.forget_body(core);
        goes_on
    }

    /// Gives back the room of a body that no script will be told of, or has been.
    pub(crate) fn forget_body(&mut self, core: &Core) {
        if let Some(heard) = &mut self.heard {
            core.holds_no_body_of(heard.body.len());
            // The next one is likely to be like it; a large one is not to be held for each connection.
            if heard.body.capacity() > 64 * 1024 {
                heard.body = Vec::new();
            }
            heard.body.clear();
        }
    }
}

#[cold]
fn hear(heard: &mut Heard, fields: Headers<'_>) {
    for field in fields.iter() {
        heard.add_header(field.name.as_bytes(), field.value);
    }
}
