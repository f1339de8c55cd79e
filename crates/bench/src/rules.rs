//! The values of a plan that the hot path reads, in the form in which it reads them.

use std::sync::Arc;

use oroshi_http1::Limits;

use crate::check::Check;
use crate::plan::{Load, Plan, Protocol};
use crate::script::ResponseParts;
use crate::shared::nanos;

/// Longest response head, bytes. Bodies are not kept.
const HEAD_LIMIT: usize = 64 * 1024;

/// The values of a plan that the hot path reads.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Timeout of a request, and of a connect, nanoseconds.
    pub(crate) timeout: u64,
    pub(crate) pipeline: usize,
    /// Streams at once per connection; 0: the load speaks HTTP/1.1.
    pub(crate) streams: usize,
    pub(crate) per_connection: u64,
    /// A ticket is taken before its connection is made.
    pub(crate) connect_per_request: bool,
    pub(crate) checks: Arc<[Check]>,
    /// One of the checks is about the status.
    pub(crate) status_checked: bool,
    pub(crate) limits: Limits,
    pub(crate) interval_histograms: bool,
    pub(crate) connection_times: bool,
    pub(crate) each_request: bool,
    pub(crate) open: bool,
    /// Users send the requests.
    pub(crate) journeys: bool,
    /// Parts of each response that a script reads.
    pub(crate) wanted: Option<ResponseParts>,
}

impl Rules {
    /// The rules of `plan`; `connect_per_request` as the plan or its script asks for.
    pub(crate) fn new(plan: &Plan, connect_per_request: bool, wanted: Option<ResponseParts>) -> Self {
        Self {
            timeout: nanos(plan.timeout),
            pipeline: plan.pipeline,
            streams: if plan.protocol == Protocol::Http2 { plan.streams } else { 0 },
            per_connection: if connect_per_request { 1 } else { plan.requests_per_connection.unwrap_or(u64::MAX) },
            connect_per_request,
            checks: plan.checks.clone().into(),
            status_checked: plan.checks.iter().any(|check| matches!(check, Check::Status(_))),
            limits: Limits { head_bytes: HEAD_LIMIT, ..Limits::default() },
            interval_histograms: plan.interval_histograms,
            connection_times: plan.connection_times,
            each_request: plan.each_request,
            open: plan.load != Load::Closed,
            journeys: plan.journeys.is_some(),
            wanted,
        }
    }
}
