//! HTTP/2.
mod config;
mod connection;
mod error;
mod event;
mod frame;
mod head;
pub mod hpack;
mod stream;

pub use config::{Config, Grants, Limits};
pub use connection::{Connection, EncodedRequest, PeerSettings, Request, Role, SendError};
pub use error::{Defect, ErrorCode};
pub use event::{Event, StreamRef};
pub use frame::{FRAME_HEAD_BYTES, MAX_FRAME_BYTES, PREFACE};
pub use head::{HeadBuffer, RequestHead, ResponseHead};
pub use oroshi_http1::encode::EncodeError;
