//! Lends our HTTP client to `instant-acme`.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use oroshi_client::{Client, Response};
use oroshi_net::tls::{ClientTlsOptions, Roots};

/// The most bytes of an authority's answer. Chains have a few thousand.
const ANSWER_BYTES: u64 = 1 << 20;

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(30);

/// What names us to the authority (RFC 8555, section 6.1).
const USER_AGENT: &str = concat!("oroshi/", env!("CARGO_PKG_VERSION"), " instant-acme");

/// Our client, as `instant-acme` wants it.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client,
    /// The `Retry-After` of the latest answer that refused for now.
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Http {
    /// Starts a client. Reads the files with roots when it first connects.
    pub(crate) fn new(roots: &Roots) -> Result<Self, oroshi_client::BuildError> {
        let tls = ClientTlsOptions { roots: roots.clone(), ..ClientTlsOptions::default() };
        let client = Client::builder().tls(tls).timeout(REQUEST).redirects(3).collect_bytes(ANSWER_BYTES).build()?;
        Ok(Http { client, retry_after: Arc::default() })
    }

    /// Returns the time that the authority asked to wait in its latest refusal, once.
    pub(crate) fn take_retry_after(&self) -> Option<Duration> {
        self.retry_after.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, response: &Response) {
        if matches!(response.status(), 429 | 503) {
            let seconds = response.headers().get_str("retry-after").and_then(|text| text.trim().parse().ok());
            let mut place = self.retry_after.lock().unwrap_or_else(PoisonError::into_inner);
            *place = seconds.map(Duration::from_secs);
        }
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<bytes::Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let http = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // Only as the body of a response does it give its bytes.
            let body = BytesResponse::from(http::Response::new(body)).body.into_bytes().await.map_err(Error::Other)?;
            let mut sent = http.client.request(parts.method.as_str().to_owned(), parts.uri.to_string());
            for (name, value) in &parts.headers {
                if name != http::header::USER_AGENT {
                    sent = sent.header(name.as_str(), value.as_bytes());
                }
            }
            sent = sent.header("User-Agent", USER_AGENT);
            if !body.is_empty() {
                sent = sent.body(body);
            }
            let answered = sent.send().await.map_err(|error| Error::Other(Box::new(error)))?;
            http.note(&answered);
            let answer = answered.whole().await.map_err(|error| Error::Other(Box::new(error)))?;
            let mut built = http::Response::builder().status(answer.status);
            for (name, value) in answer.headers.iter() {
                built = built.header(name, value);
            }
            let (parts, ()) = built.body(())?.into_parts();
            Ok(BytesResponse { parts, body: Box::new(bytes::Bytes::from(answer.body)) })
        })
    }
}
