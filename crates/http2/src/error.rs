//! Error codes of the protocol, and every defect for which this crate ends a stream or a connection.

use oroshi_http1::DecodeError;

/// An error code of RST_STREAM and GOAWAY (RFC 9113 section 7). Unknown codes are legal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error: a graceful end, or a request whose body is not needed.
    pub const NO_ERROR: Self = ErrorCode(0);
    /// The peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = ErrorCode(1);
    /// The sender of the code failed.
    pub const INTERNAL_ERROR: Self = ErrorCode(2);
    /// The peer sent more than the window allows.
    pub const FLOW_CONTROL_ERROR: Self = ErrorCode(3);
    /// The peer did not acknowledge settings in time.
    pub const SETTINGS_TIMEOUT: Self = ErrorCode(4);
    /// A frame for a stream that has ended.
    pub const STREAM_CLOSED: Self = ErrorCode(5);
    /// A frame with an invalid size.
    pub const FRAME_SIZE_ERROR: Self = ErrorCode(6);
    /// Nothing was processed: the request may be sent again.
    pub const REFUSED_STREAM: Self = ErrorCode(7);
    /// The stream is no longer needed.
    pub const CANCEL: Self = ErrorCode(8);
    /// The state of HPACK is lost.
    pub const COMPRESSION_ERROR: Self = ErrorCode(9);
    /// The connection behind a CONNECT failed.
    pub const CONNECT_ERROR: Self = ErrorCode(10);
    /// The peer causes excessive load.
    pub const ENHANCE_YOUR_CALM: Self = ErrorCode(11);
    /// The transport is not secure enough.
    pub const INADEQUATE_SECURITY: Self = ErrorCode(12);
    /// HTTP/1.1 is required.
    pub const HTTP_1_1_REQUIRED: Self = ErrorCode(13);

    /// Returns the name in the registry, or `UNKNOWN`.
    #[must_use]
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        usize::try_from(self.0).ok().and_then(|code| NAMES.get(code)).copied().unwrap_or("UNKNOWN")
    }
}

impl std::fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Defines `Defect` with its names, codes and messages in one table.
macro_rules! defects {
    ($($(#[$doc:meta])+ $variant:ident, $name:literal, $code:ident, $message:literal;)+) => {
        /// A defect of what the peer sent.
        ///
        /// A connection that [`receive`](crate::Connection::receive) refuses is over: the GOAWAY with
        /// [`code`](Defect::code) is written. Other defects end one stream, and the events tell of them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[non_exhaustive]
        pub enum Defect {
            $($(#[$doc])+ #[error($message)] $variant,)+
            /// A defect that HTTP/1.1 has too. The stream ends, with a status if HTTP has one for it.
            #[error(transparent)]
            Message(#[from] DecodeError),
        }

        impl Defect {
            /// Returns a stable name in kebab case, as in the conformance table, reports and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Defect::$variant => $name,)+
                    Defect::Message(error) => error.name(),
                }
            }

            /// Returns the code of the RST_STREAM or GOAWAY that answers the defect.
            #[must_use]
            pub const fn code(self) -> ErrorCode {
                match self {
                    $(Defect::$variant => ErrorCode::$code,)+
                    Defect::Message(_) => ErrorCode::PROTOCOL_ERROR,
                }
            }
        }
    };
}

defects! {
    // Frames.
    /// The connection does not begin with the client's preface (RFC 9113 section 3.4).
    BadPreface, "bad-preface", PROTOCOL_ERROR, "no HTTP/2 preface";
    /// The first frame is not SETTINGS (RFC 9113 section 3.4).
    SettingsExpected, "settings-expected", PROTOCOL_ERROR, "the first frame is not SETTINGS";
    /// A frame longer than the announced SETTINGS_MAX_FRAME_SIZE (RFC 9113 section 4.2).
    FrameTooLarge, "frame-too-large", FRAME_SIZE_ERROR, "frame longer than SETTINGS_MAX_FRAME_SIZE";
    /// A frame whose type does not allow its length (RFC 9113 section 6).
    BadFrameSize, "bad-frame-size", FRAME_SIZE_ERROR, "frame with a length that its type does not allow";
    /// Padding as long as the frame or longer (RFC 9113 section 6.1).
    BadPadding, "bad-padding", PROTOCOL_ERROR, "padding longer than the frame";
    /// A frame on stream 0 whose type belongs to a stream, or the reverse, or a stream of the wrong side (RFC 9113
    /// sections 5.1.1 and 6).
    BadStreamId, "bad-stream-id", PROTOCOL_ERROR, "stream identifier that the frame must not have";
    /// A new stream whose identifier is below an earlier one (RFC 9113 section 5.1.1).
    StreamIdReused, "stream-id-reused", PROTOCOL_ERROR, "stream identifier is not above all earlier ones";
    /// A frame for a stream that was never opened (RFC 9113 section 5.1).
    IdleStream, "idle-stream", PROTOCOL_ERROR, "frame for a stream that is not open yet";
    /// A frame for a stream that the peer has ended (RFC 9113 section 5.1).
    StreamClosed, "stream-closed", STREAM_CLOSED, "frame for a stream that has ended";
    /// Another frame within a header block (RFC 9113 section 6.10).
    ContinuationExpected, "continuation-expected", PROTOCOL_ERROR, "header block interrupted by another frame";
    /// A CONTINUATION outside a header block (RFC 9113 section 6.10).
    UnexpectedContinuation, "unexpected-continuation", PROTOCOL_ERROR, "CONTINUATION without a header block";
    /// A PUSH_PROMISE: this crate never enables push (RFC 9113 section 8.4).
    PushPromise, "push-promise", PROTOCOL_ERROR, "PUSH_PROMISE although push is disabled";
    /// A stream depends on itself (RFC 7540 section 5.3.1).
    SelfDependency, "self-dependency", PROTOCOL_ERROR, "stream depends on itself";
    /// A setting with an invalid value (RFC 9113 section 6.5.2).
    BadSetting, "bad-setting", PROTOCOL_ERROR, "setting with an invalid value";
    /// SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1 (RFC 9113 section 6.5.2).
    WindowSettingTooLarge, "window-setting-too-large", FLOW_CONTROL_ERROR, "initial window above 2^31-1";
    /// An acknowledgement of settings that were not sent.
    UnexpectedSettingsAck, "unexpected-settings-ack", PROTOCOL_ERROR, "acknowledgement without settings";
    /// A WINDOW_UPDATE by 0 (RFC 9113 section 6.9).
    ZeroIncrement, "zero-increment", PROTOCOL_ERROR, "WINDOW_UPDATE by 0";
    /// A window above 2^31-1 (RFC 9113 section 6.9.1).
    WindowOverflow, "window-overflow", FLOW_CONTROL_ERROR, "window above 2^31-1";
    /// More DATA than the window allows (RFC 9113 section 6.9.1).
    WindowExceeded, "window-exceeded", FLOW_CONTROL_ERROR, "more DATA than the window allows";

    // HPACK.
    /// An index without an entry (RFC 7541 section 2.3.3).
    BadIndex, "bad-index", COMPRESSION_ERROR, "HPACK index without an entry";
    /// An integer above 2^28 or written in more than 5 bytes (RFC 7541 section 5.1).
    IntegerOverflow, "integer-overflow", COMPRESSION_ERROR, "HPACK integer out of range";
    /// A string that is no Huffman code (RFC 7541 section 5.2).
    BadHuffman, "bad-huffman", COMPRESSION_ERROR, "HPACK string with an invalid Huffman code";
    /// A header block that ends within a field (RFC 7541 section 3.1).
    TruncatedBlock, "truncated-block", COMPRESSION_ERROR, "header block ends within a field";
    /// A dynamic table size above SETTINGS_HEADER_TABLE_SIZE (RFC 7541 section 6.3).
    TableTooLarge, "table-too-large", COMPRESSION_ERROR, "HPACK table size above the setting";
    /// A dynamic table size after the first field of a block, or a third one (RFC 7541 section 4.2).
    MisplacedTableSize, "misplaced-table-size", COMPRESSION_ERROR, "HPACK table size not at the start of a block";
    /// A use of the dynamic table after the setting shrank, without the size update that must come first (RFC 7541
    /// section 4.2).
    MissingTableSize, "missing-table-size", COMPRESSION_ERROR, "HPACK table used without the size update that is due";

    // Excess.
    /// A header block above `Limits::block_bytes`. Raise that limit to accept it.
    BlockTooLarge, "block-too-large", ENHANCE_YOUR_CALM, "header block over the limit";
    /// A header block in more than `Limits::continuations` CONTINUATION frames (CVE-2024-27316).
    TooManyContinuations, "too-many-continuations", ENHANCE_YOUR_CALM, "header block in too many frames";
    /// More streams were reset than `Limits::resets` allows (CVE-2023-44487, CVE-2025-8671).
    ResetFlood, "reset-flood", ENHANCE_YOUR_CALM, "too many streams reset";
    /// More PING and SETTINGS frames than `Limits::answered_frames` allows (CVE-2019-9512, CVE-2019-9515).
    PingFlood, "ping-flood", ENHANCE_YOUR_CALM, "too many frames that demand an answer";
    /// More frames without use than `Limits::idle_frames` allows: empty or tiny DATA, window updates, priorities,
    /// unknown types (CVE-2019-9511, CVE-2019-9518).
    FrameFlood, "frame-flood", ENHANCE_YOUR_CALM, "too many frames without use";
    /// A stream above the announced SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113 section 5.1.2).
    TooManyStreams, "too-many-streams", REFUSED_STREAM, "more streams than SETTINGS_MAX_CONCURRENT_STREAMS";

    // Messages.
    /// A field name with an upper-case letter (RFC 9113 section 8.2).
    UpperCaseName, "upper-case-name", PROTOCOL_ERROR, "field name with an upper-case letter";
    /// White space at the start or end of a field value (RFC 9113 section 8.2.1).
    SpaceAroundValue, "space-around-value", PROTOCOL_ERROR, "white space around a field value";
    /// A field that concerns one HTTP/1.1 connection, as Connection or Transfer-Encoding (RFC 9113 section 8.2.2).
    ConnectionField, "connection-field", PROTOCOL_ERROR, "field of an HTTP/1.1 connection";
    /// A TE other than `trailers` (RFC 9113 section 8.2.2).
    BadTe, "bad-te", PROTOCOL_ERROR, "TE other than trailers";
    /// A pseudo-header after a field (RFC 9113 section 8.3).
    PseudoAfterField, "pseudo-after-field", PROTOCOL_ERROR, "pseudo-header after a field";
    /// A pseudo-header twice (RFC 9113 section 8.3).
    RepeatedPseudo, "repeated-pseudo", PROTOCOL_ERROR, "pseudo-header twice";
    /// A pseudo-header that this kind of message does not have (RFC 9113 section 8.3).
    UnknownPseudo, "unknown-pseudo", PROTOCOL_ERROR, "pseudo-header that the message must not have";
    /// A pseudo-header in trailers (RFC 9113 section 8.1).
    PseudoInTrailers, "pseudo-in-trailers", PROTOCOL_ERROR, "pseudo-header in trailers";
    /// A head without `:method`, `:scheme`, `:path` or `:status`, or a CONNECT with one too many or without
    /// `:authority` (RFC 9113 sections 8.3 and 8.5, RFC 8441 section 4).
    WrongPseudos, "wrong-pseudos", PROTOCOL_ERROR, "pseudo-headers do not fit the message";
    /// A `:status` that is not a number from 100 to 999, or is 101 (RFC 9113 sections 8.3.2 and 8.6).
    BadStatus, "bad-status", PROTOCOL_ERROR, "status that HTTP/2 does not have";
    /// A body whose length is not its Content-Length (RFC 9113 section 8.1.1).
    LengthMismatch, "length-mismatch", PROTOCOL_ERROR, "body differs from Content-Length";
    /// A second head that does not end the stream (RFC 9113 section 8.1).
    TrailersWithoutEnd, "trailers-without-end", PROTOCOL_ERROR, "trailers that do not end the stream";
    /// An interim response that ends the stream (RFC 9113 section 8.1).
    InterimEnd, "interim-end", PROTOCOL_ERROR, "interim response ends the stream";
    /// DATA before the head of the response (RFC 9113 section 8.1).
    DataBeforeHead, "data-before-head", PROTOCOL_ERROR, "DATA before the head";
}

impl Defect {
    /// Returns the status with which a server answers such a request, or `None` if it only resets the stream.
    #[must_use]
    pub const fn status(self) -> Option<u16> {
        match self {
            Defect::Message(error) if error.status() != 400 => Some(error.status()),
            _ => None,
        }
    }
}
