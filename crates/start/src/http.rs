//! One HTTP request and its response over an open connection: for readiness probes and the control socket.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use oroshi_http1::encode::{content_length, request_head};
use oroshi_http1::{DecodeError, ExpectedResponse, Limits, ResponseDecoder, ResponseEvent, Version};
use oroshi_net::Stream;
use oroshi_net::stream::nonzero_write;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest response, bytes; none of ours is longer.
const LONGEST: usize = 4 << 20;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// The reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The target or the Host is invalid: correct the URL.
    #[error("the request cannot be written")]
    Encode(#[from] oroshi_http1::encode::EncodeError),
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// The response is not HTTP.
    #[error("the answer is no HTTP")]
    Decode(#[from] DecodeError),
    /// The response is too long.
    #[error("the answer is longer than {LONGEST} bytes")]
    Long,
}

/// Encodes a request without a body, with `Connection: close`.
pub(crate) fn request(method: &str, authority: &str, target: &str) -> Result<Vec<u8>, HttpError> {
    let mut out = Vec::new();
    let fields = [("Host", authority), ("User-Agent", "oroshi-start"), ("Accept", "*/*"), ("Connection", "close")];
    let fields = fields.map(|(name, value)| (name, value.as_bytes()));
    request_head(&mut out, method, target, Version::Http11, fields)?;
    if method == "POST" {
        out.truncate(out.len() - 2);
        content_length(&mut out, 0);
        out.extend_from_slice(b"\r\n");
    }
    Ok(out)
}

pub(crate) async fn write(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = poll_fn(|context| nonzero_write(Pin::new(&mut *stream).poll_write(context, bytes))).await?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Reads the response to the only request sent.
pub(crate) async fn answer(stream: &mut Stream) -> Result<Answer, HttpError> {
    let limits = Limits::default();
    let mut decoder = ResponseDecoder::default();
    decoder.expect(ExpectedResponse::Body);
    let mut answer = Answer { status: 0, body: Vec::new() };
    let mut held: Vec<u8> = Vec::new();
    loop {
        let mut input = &held[..];
        while let Some(event) = decoder.decode(&limits, &mut input)? {
            if take(event, &mut answer)? {
                return Ok(answer);
            }
        }
        let used = held.len() - input.len();
        held.drain(..used);
        let before = held.len();
        poll_fn(|context| read(stream, &mut held, context)).await?;
        if held.len() == before {
            if let Some(event) = decoder.eof()? {
                take(event, &mut answer)?;
            }
            return Ok(answer);
        }
    }
}

/// Returns whether the response is complete.
fn take(event: ResponseEvent<'_>, answer: &mut Answer) -> Result<bool, HttpError> {
    match event {
        ResponseEvent::Head(head) => answer.status = head.status,
        ResponseEvent::Data(data) if answer.body.len() + data.len() > LONGEST => return Err(HttpError::Long),
        ResponseEvent::Data(data) => answer.body.extend_from_slice(data),
        ResponseEvent::Informational(_) | ResponseEvent::Trailers(_) => {}
        ResponseEvent::End => return Ok(true),
    }
    Ok(false)
}

/// Appends the received bytes; nothing at the end.
fn read(stream: &mut Stream, held: &mut Vec<u8>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
    let mut room = [0; 16 * 1024];
    let mut buffer = ReadBuf::new(&mut room);
    match Pin::new(stream).poll_read(context, &mut buffer) {
        Poll::Ready(result) => Poll::Ready(result.map(|()| held.extend_from_slice(buffer.filled()))),
        Poll::Pending => Poll::Pending,
    }
}
