//! The response that a connection is reading: what is kept of it until it is whole.

use oroshi_http1::Headers;

use crate::check::Checking;
use crate::failure::Failure;
use crate::rules::Rules;
use crate::script::ResponseView;

/// A body that is kept for a script and longer than this gives its memory back.
const LARGE_BODY: usize = 64 * 1024;

/// The response that a connection is reading.
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
    /// The parts that the script reads.
    response: Option<Box<ResponseView>>,
}

impl Answer {
    /// Notes the first byte, `wait` nanoseconds after its request was sent.
    #[inline]
    pub(crate) fn begin(&mut self, wait: u64) {
        (self.begun, self.status, self.reusable, self.wait, self.body_bytes) = (true, 0, false, wait, 0);
    }

    #[inline]
    pub(crate) fn head(&mut self, rules: &Rules, status: u16, headers: Headers<'_>, reusable: bool) {
        self.status = status;
        self.reusable = reusable;
        if !rules.checks.is_empty() {
            self.checking.begin(&rules.checks, status);
        }
        if let Some(wanted) = rules.wanted {
            let response = self.response.get_or_insert_default();
            response.begin(status);
            if wanted.headers {
                hear(response, headers);
            }
        }
    }

    /// Takes a piece of the body, and returns how many of its bytes it keeps for a script.
    #[inline]
    pub(crate) fn data(&mut self, rules: &Rules, data: &[u8]) -> usize {
        self.body_bytes += data.len() as u64;
        if !rules.checks.is_empty() {
            self.checking.data(&rules.checks, data);
        }
        match (&mut self.response, rules.wanted) {
            (Some(response), Some(wanted)) if wanted.body => {
                response.body.extend_from_slice(data);
                data.len()
            }
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn trailers(&mut self, rules: &Rules, trailers: Headers<'_>) {
        if let (Some(response), Some(wanted)) = (&mut self.response, rules.wanted)
            && wanted.headers
        {
            hear(response, trailers);
        }
    }

    /// The defect of the whole response.
    #[inline]
    pub(crate) fn failure(&self, rules: &Rules) -> Option<Failure> {
        // Where the plan says which statuses are right, it decides.
        if self.status >= 400 && !rules.status_checked {
            Some(Failure::Status)
        } else if !rules.checks.is_empty() && !self.checking.holds(&rules.checks) {
            Some(Failure::Check)
        } else {
            None
        }
    }

    /// The parts that a script reads; `None` if it reads none.
    #[inline]
    pub(crate) fn response(&self) -> Option<&ResponseView> {
        self.response.as_deref()
    }

    /// Forgets the body that was kept for a script, and returns its length.
    pub(crate) fn forget_body(&mut self) -> usize {
        let Some(response) = &mut self.response else { return 0 };
        let length = response.body.len();
        // The next body is likely to be as long. Many connections must not keep large ones.
        if response.body.capacity() > LARGE_BODY {
            response.body = Vec::new();
        }
        response.body.clear();
        length
    }
}

#[cold]
fn hear(response: &mut ResponseView, fields: Headers<'_>) {
    for field in fields.iter() {
        response.add_header(field.name.as_bytes(), field.value);
    }
}
