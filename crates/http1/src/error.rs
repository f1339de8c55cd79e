//! The errors of the decoders.

/// A defect for which this crate refuses a message.
///
/// An error is final for its connection, because the start of the next message is unknown or untrusted. A server
/// answers with [`status`](DecodeError::status) and closes; a client closes and reports [`name`](DecodeError::name).
/// Each variant's comment says what else to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    // The request line.
    /// The first line is not `method SP target SP version` (RFC 9112 section 3), or is blank or indented. Check the
    /// peer's protocol: TLS to a plain port looks like this.
    #[error("malformed request line")]
    BadRequestLine,
    /// The method is longer than 32 bytes (RFC 9112 section 3: 501). No registered method is that
    /// long.
    #[error("method longer than 32 bytes")]
    MethodTooLong,
    /// The request target is longer than `Limits::target_bytes`. Raise that limit to accept it.
    #[error("request target over the limit")]
    TargetTooLong,
    /// The method does not allow this form of target, or the target has a fragment, userinfo, or an unknown scheme
    /// (RFC 9112 section 3.2).
    #[error("request target not in a form its method allows")]
    BadTarget,
    /// The version is well-formed but neither HTTP/1.0 nor HTTP/1.1. HTTP/2 with prior knowledge begins like this.
    #[error("HTTP version is neither 1.0 nor 1.1")]
    UnsupportedVersion,
    // The status line.
    /// A response does not begin with `HTTP/1.x SP 3DIGIT` and an optional reason, or its status is below 100 (RFC
    /// 9112 section 4). Often the rest of an earlier response with a wrong length.
    #[error("malformed status line")]
    BadStatusLine,

    // Lines and fields.
    /// A line ends with LF alone. RFC 9112 section 2.2 lets a recipient accept it; an attacker can exploit two
    /// readers that disagree, so this crate refuses it.
    #[error("line feed without carriage return")]
    BareLf,
    /// A CR without a following LF (RFC 9112 section 2.2).
    #[error("carriage return without line feed")]
    BareCr,
    /// A NUL byte in a head, a chunk line or a trailer section (RFC 9110 section 5.5).
    #[error("NUL byte")]
    Nul,
    /// A field name is empty or has a byte that is not a token character, or a line has no colon (RFC 9110 section
    /// 5.1).
    #[error("field name is not a token")]
    BadFieldName,
    /// White space between a field's name and its colon (RFC 9112 section 5.1).
    #[error("white space before the colon of a field")]
    SpaceBeforeColon,
    /// A line that begins with white space: a folded value (RFC 9112 section 5.2), or an indented first field
    /// (section 2.2).
    #[error("line begins with white space")]
    ObsFold,
    /// A control character in a field value (RFC 9110 section 5.5).
    #[error("control character in a field value")]
    BadFieldValue,
    /// The head is larger than `Limits::head_bytes`. Raise that limit to accept it.
    #[error("head over the limit")]
    HeadTooLarge,
    /// More fields than `Limits::headers`. Raise that limit to accept them.
    #[error("more header fields than the limit")]
    TooManyHeaders,

    // Host, Expect.
    /// HTTP/1.1 without Host (RFC 9112 section 3.2).
    #[error("HTTP/1.1 request without Host")]
    MissingHost,
    /// More than one Host line, equal or not (RFC 9112 section 3.2).
    #[error("more than one Host")]
    RepeatedHost,
    /// Host is not `uri-host [":" port]` (RFC 9110 section 7.2): userinfo, a list, a path, a port over 65535.
    #[error("Host is not a host with an optional port")]
    BadHost,
    /// The target and Host name different authorities. RFC 9112 section 3.2.2 lets an origin server ignore Host;
    /// refusing is the only reading that no other hop can contradict.
    #[error("Host differs from the authority in the target")]
    HostMismatch,
    /// An expectation other than 100-continue (RFC 9110 section 10.1.1).
    #[error("expectation other than 100-continue")]
    UnknownExpectation,

    // Framing.
    /// Content-Length is not 1*DIGIT: a sign, a list, a prefix, an underscore, nothing (RFC 9112 section 6.3).
    #[error("Content-Length is not a number")]
    BadContentLength,
    /// Content-Length is more than 2^63-1 or written with more than 19 digits.
    #[error("Content-Length out of range")]
    ContentLengthOverflow,
    /// More than one Content-Length line, equal or not (RFC 9112 section 6.3 allows refusing equal ones too).
    #[error("more than one Content-Length")]
    RepeatedContentLength,
    /// Content-Length and Transfer-Encoding in one message (RFC 9112 section 6.3, item 3).
    #[error("Content-Length and Transfer-Encoding together")]
    LengthAndTransferEncoding,
    /// Transfer-Encoding is malformed, or chunked is not its final coding, or occurs twice (RFC 9112 section 6.3,
    /// item 4).
    #[error("Transfer-Encoding does not end in one chunked")]
    BadTransferEncoding,
    /// A well-formed Transfer-Encoding with a coding before chunked; this crate does not decode it (RFC 9112 section
    /// 6.1: 501).
    #[error("transfer coding other than chunked")]
    UnsupportedTransferEncoding,
    /// More than one Transfer-Encoding line.
    #[error("more than one Transfer-Encoding")]
    RepeatedTransferEncoding,
    /// Transfer-Encoding in an HTTP/1.0 message (RFC 9112 section 6.1).
    #[error("Transfer-Encoding in HTTP/1.0")]
    TransferEncodingInHttp10,
    /// `Content_Length` or `Transfer_Encoding`: readers that convert names to CGI variables take these for the real
    /// ones.
    #[error("framing field spelled with an underscore")]
    UnderscoreFraming,
    /// A CONNECT request that announces a body (RFC 9110 section 9.3.6).
    #[error("CONNECT with a body")]
    BodyOnConnect,
    /// The body is larger than `Limits::body_bytes`, announced or counted. Raise that limit to accept it.
    #[error("body over the limit")]
    BodyTooLarge,

    // Chunks and trailers.
    /// A chunk size is not 1*HEXDIG followed by CRLF or an extension (RFC 9112 section 7.1): nothing, a sign, 0x, a
    /// space.
    #[error("chunk size is not a hexadecimal number")]
    BadChunkSize,
    /// A chunk size is more than 2^63-1 or written with more than 16 digits.
    #[error("chunk size out of range")]
    ChunkSizeOverflow,
    /// A control character in a chunk extension.
    #[error("control character in a chunk extension")]
    BadChunkExtension,
    /// A chunk line is longer than `Limits::chunk_line_bytes`, or all extensions of a message are longer than
    /// `Limits::extension_bytes`.
    #[error("chunk extensions over the limit")]
    ChunkLineTooLong,
    /// No CRLF at the end of a chunk's data (RFC 9112 section 7.1): the size was wrong.
    #[error("chunk data not followed by CRLF")]
    BadChunkEnd,
    /// A trailer field that, merged into the header, would change framing, routing, authentication or the meaning of
    /// the body (RFC 9110 section 6.5.1).
    #[error("field not allowed in trailers")]
    ForbiddenTrailer,
    /// The trailer section is larger than `Limits::trailer_bytes`.
    #[error("trailer section over the limit")]
    TrailersTooLarge,
    /// More trailer fields than `Limits::trailers`.
    #[error("more trailer fields than the limit")]
    TooManyTrailers,

    // The exchange.
    /// Bytes from a server without an outstanding request: the rest of a message with a wrong length, or an attack.
    #[error("bytes that answer no request")]
    Unsolicited,
    /// The caller announced more responses with [`expect`](crate::ResponseDecoder::expect) than the decoder can hold.
    /// Announce each response later, at the latest before its first byte.
    #[error("too many responses expected at once")]
    TooManyExpected,
    /// A 101 that the request did not ask for (RFC 9110 section 15.2.2).
    #[error("101 without a request to upgrade")]
    UnsolicitedUpgrade,
    /// More interim (1xx) responses than `Limits::informational` before a final one.
    #[error("too many interim responses")]
    TooManyInformational,
    /// The peer closed within a message, or before the response it owed (RFC 9112 section 8).
    #[error("connection closed within a message")]
    UnexpectedEof,
}

impl DecodeError {
    /// Returns the status with which a server answers such a request. For such a response, a gateway always answers
    /// 502.
    pub const fn status(self) -> u16 {
        match self {
            DecodeError::BodyTooLarge => 413,
            DecodeError::TargetTooLong => 414,
            DecodeError::UnknownExpectation => 417,
            DecodeError::HeadTooLarge
            | DecodeError::TooManyHeaders
            | DecodeError::TrailersTooLarge
            | DecodeError::TooManyTrailers => 431,
            DecodeError::MethodTooLong | DecodeError::UnsupportedTransferEncoding => 501,
            DecodeError::UnsupportedVersion => 505,
            _ => 400,
        }
    }

    /// Returns a stable name in kebab case, as in the conformance table, reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DecodeError::BadRequestLine => "bad-request-line",
            DecodeError::MethodTooLong => "method-too-long",
            DecodeError::TargetTooLong => "target-too-long",
            DecodeError::BadTarget => "bad-target",
            DecodeError::UnsupportedVersion => "unsupported-version",
            DecodeError::BadStatusLine => "bad-status-line",
            DecodeError::BareLf => "bare-lf",
            DecodeError::BareCr => "bare-cr",
            DecodeError::Nul => "nul",
            DecodeError::BadFieldName => "bad-field-name",
            DecodeError::SpaceBeforeColon => "space-before-colon",
            DecodeError::ObsFold => "obs-fold",
            DecodeError::BadFieldValue => "bad-field-value",
            DecodeError::HeadTooLarge => "head-too-large",
            DecodeError::TooManyHeaders => "too-many-headers",
            DecodeError::MissingHost => "missing-host",
            DecodeError::RepeatedHost => "repeated-host",
            DecodeError::BadHost => "bad-host",
            DecodeError::HostMismatch => "host-mismatch",
            DecodeError::UnknownExpectation => "unknown-expectation",
            DecodeError::BadContentLength => "bad-content-length",
            DecodeError::ContentLengthOverflow => "content-length-overflow",
            DecodeError::RepeatedContentLength => "repeated-content-length",
            DecodeError::LengthAndTransferEncoding => "length-and-transfer-encoding",
            DecodeError::BadTransferEncoding => "bad-transfer-encoding",
            DecodeError::UnsupportedTransferEncoding => "unsupported-transfer-encoding",
            DecodeError::RepeatedTransferEncoding => "repeated-transfer-encoding",
            DecodeError::TransferEncodingInHttp10 => "transfer-encoding-in-http-1.0",
            DecodeError::UnderscoreFraming => "underscore-framing",
            DecodeError::BodyOnConnect => "body-on-connect",
            DecodeError::BodyTooLarge => "body-too-large",
            DecodeError::BadChunkSize => "bad-chunk-size",
            DecodeError::ChunkSizeOverflow => "chunk-size-overflow",
            DecodeError::BadChunkExtension => "bad-chunk-extension",
            DecodeError::ChunkLineTooLong => "chunk-line-too-long",
            DecodeError::BadChunkEnd => "bad-chunk-end",
            DecodeError::ForbiddenTrailer => "forbidden-trailer",
            DecodeError::TrailersTooLarge => "trailers-too-large",
            DecodeError::TooManyTrailers => "too-many-trailers",
            DecodeError::Unsolicited => "unsolicited",
            DecodeError::TooManyExpected => "too-many-expected",
            DecodeError::UnsolicitedUpgrade => "unsolicited-upgrade",
            DecodeError::TooManyInformational => "too-many-informational",
            DecodeError::UnexpectedEof => "unexpected-eof",
        }
    }
}
