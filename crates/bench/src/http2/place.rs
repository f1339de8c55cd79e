//! The place of a stream: it outlives the streams, and has one request at a time.

use crate::answer::Answer;
use crate::batch::Batch;
use crate::flight::Flight;
use crate::scripting::Pause;

/// Where the request of a place is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Source {
    /// Among the origin's requests.
    Planned(usize),
    /// In the batch of the place: a script made it.
    #[default]
    Made,
}

/// The place of a stream.
#[derive(Default)]
pub(super) struct Place {
    /// The request on its way; `None`: the place is free.
    pub(super) flight: Option<Flight>,
    pub(super) stream: u32,
    pub(super) source: Source,
    /// Bytes of the body that went to the codec.
    pub(super) body_sent: usize,
    /// Whether all of the body did.
    pub(super) body_done: bool,
    pub(super) answer: Answer,
    pub(super) pause: Pause,
    /// The request that a script made, and its body without chunks.
    pub(super) made: Batch,
    pub(super) made_body: Vec<u8>,
}
