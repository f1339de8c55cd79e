//! Events of a connection.

use oroshi_http1::Headers;

use crate::head::{RequestHead, ResponseHead};
use crate::{Defect, ErrorCode};

/// A stream, as events and commands name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamRef {
    /// The identifier on the wire.
    pub id: u32,
    /// The number that the caller gave it: with the request, or by [`set_tag`](crate::Connection::set_tag). Otherwise
    /// 0.
    pub tag: u32,
}

/// Something that has happened on a connection. Heads and data borrow the buffers that were passed to
/// [`receive`](crate::Connection::receive).
///
/// The messages of one stream come in order: interim responses, `Request` or `Response`, any number of `Data`, perhaps
/// `Trailers`. One of the last three says that the peer has ended its side, or `Reset` ends the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'e> {
    /// A request begins.
    Request {
        /// The new stream.
        stream: StreamRef,
        /// Its head.
        head: RequestHead<'e>,
        /// Whether the request has neither body nor trailers.
        end: bool,
    },
    /// A final response begins.
    Response {
        /// The stream of the request.
        stream: StreamRef,
        /// Its head.
        head: ResponseHead<'e>,
        /// Whether the response has neither body nor trailers.
        end: bool,
    },
    /// An interim (1xx) response.
    Informational {
        /// The stream of the request.
        stream: StreamRef,
        /// Its head.
        head: ResponseHead<'e>,
    },
    /// Bytes of a body. Empty only with `end`.
    Data {
        /// The stream.
        stream: StreamRef,
        /// The bytes, without padding. With [`Grants::Manual`](crate::Grants::Manual), grant them when consumed.
        data: &'e [u8],
        /// Whether the message ends here.
        end: bool,
    },
    /// The fields after a body. The message ends here.
    Trailers {
        /// The stream.
        stream: StreamRef,
        /// The fields; can be empty.
        headers: Headers<'e>,
    },
    /// A stream has ended early. Its work can stop; no other event and no command will follow.
    Reset {
        /// The stream.
        stream: StreamRef,
        /// The code. [`ErrorCode::REFUSED_STREAM`]: the peer has not processed the request, which may be sent again.
        code: ErrorCode,
        /// The peer's mistake for which this side has reset the stream; `None` if the peer did. With
        /// [`ErrorCode::NO_ERROR`], an answer with the defect's status came before the reset.
        defect: Option<Defect>,
    },
    /// A request was refused before it became an event. The answer is written.
    Refused {
        /// The identifier of the stream.
        id: u32,
        /// Why.
        defect: Defect,
    },
    /// A window has opened for which a [`send_data`](crate::Connection::send_data) fell short.
    WindowOpen {
        /// The stream, or `None` for all streams: the connection's window was short.
        stream: Option<StreamRef>,
    },
    /// The peer's settings have changed ([`peer`](crate::Connection::peer)). Windows may have opened.
    Settings,
    /// The peer has answered a [`ping`](crate::Connection::ping).
    Pong {
        /// The bytes of the ping.
        data: [u8; 8],
    },
    /// The peer accepts no more streams. `Reset` events follow for the streams that it has not processed.
    GoAway {
        /// The last stream that the peer has processed or will process.
        last_stream: u32,
        /// Why.
        code: ErrorCode,
        /// Text for people.
        debug: &'e [u8],
    },
}
