//! What must hold for any bytes that a server sends, and for any text that is given as a URL; one function for each
//! fuzz target. The fuzzer calls them with bytes it makes up; a test of the crate client calls them with those in
//! `corpus/`.
#![allow(dead_code)] // each target uses one of them

use std::cell::OnceCell;
use std::rc::Rc;

use oroshi_client::{Client, local};
use oroshi_net::{Address, Endpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::LocalRuntime;

/// How much of a body is gathered at most, unpacked.
const BODY_BYTES: u64 = 100_000;

/// A response, head and body. The first byte says whether it answers a HEAD (its lowest bit) and how it is cut (the
/// others).
pub(crate) fn client_response(data: &[u8]) {
    let Some((&how, response)) = data.split_first() else { return };
    let method = if how & 1 == 1 { "HEAD" } else { "GET" };
    with_stage(|stage| {
        let whole = stage.answered(method, response, response.len());
        let cut = stage.answered(method, response, usize::from(how >> 1) + 1);
        assert_eq!(cut, whole, "in pieces");
    });
}

/// Text that a caller gives as a URL.
pub(crate) fn client_url(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let endpoint: Endpoint = match text.parse() {
        Ok(endpoint) => endpoint,
        Err(error) => {
            assert!(error.to_string().chars().all(|character| !character.is_control()), "{error:?}");
            return;
        }
    };
    let Endpoint { address, authority, target, .. } = &endpoint;
    assert!(target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#'), "{target}");
    assert!(!authority.is_empty() && authority.bytes().all(|byte| byte.is_ascii_graphic() && !b"@/?#".contains(&byte)));
    if let Address::Tcp { host, port } = address {
        assert!(*port > 0 && !host.contains(['@', '%', '/', ' ']), "{host}");
    }
    assert_eq!(endpoint.to_string().parse(), Ok(endpoint), "{text} reads back");
}

/// A status and a body, or nothing where the response could not be used.
type Outcome = Option<(u16, Vec<u8>)>;

/// A client, and the socket at which it is answered, on one runtime.
struct Stage {
    runtime: LocalRuntime,
    client: local::Client,
    listener: Rc<UnixListener>,
    url: Endpoint,
}

/// Runs with the stage of this thread, which is set up once.
fn with_stage(run: impl FnOnce(&Stage)) {
    thread_local! {
        static STAGE: OnceCell<Stage> = const { OnceCell::new() };
    }
    STAGE.with(|stage| run(stage.get_or_init(Stage::new)));
}

impl Stage {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        let runtime = runtime.expect("a runtime");
        let name = format!("@oroshi-fuzz-{}-{:?}", std::process::id(), std::thread::current().id());
        let (client, listener) = runtime.block_on(async {
            // No redirects: whatever the bytes say, nobody else is spoken to.
            let client = Client::builder().redirects(0).keep_alive(false).collect_bytes(BODY_BYTES);
            let listener = UnixListener::bind(name.replace('@', "\0")).expect("a name that nobody else has");
            (client.build_local().expect("sound settings"), Rc::new(listener))
        });
        Stage { runtime, client, listener, url: format!("unix:{name}:/").parse().expect("an endpoint") }
    }

    /// What a request comes to that is answered with these bytes, in pieces of this size, and the end.
    fn answered(&self, method: &'static str, response: &[u8], size: usize) -> Outcome {
        let (listener, pieces) = (Rc::clone(&self.listener), response.to_vec());
        self.runtime.block_on(async {
            let server = tokio::task::spawn_local(async move {
                // Again where the client does so: when nothing was answered.
                while let Ok((stream, _)) = listener.accept().await {
                    say(stream, &pieces, size.max(1)).await;
                }
            });
            let outcome = match self.client.request(method, &self.url).send().await {
                Ok(response) => {
                    let status = response.status();
                    response.bytes().await.ok().map(|body| (status, body))
                }
                Err(_) => None,
            };
            server.abort();
            let counts = self.client.counts();
            assert_eq!((counts.open, counts.in_flight, counts.waiting), (0, 0, 0), "{counts:?}");
            if let Some((status, body)) = &outcome {
                assert!((200..1000).contains(status) && body.len() as u64 <= BODY_BYTES, "{status} {}", body.len());
            }
            outcome
        })
    }
}

/// Reads a request, and says what there is to say.
async fn say(mut stream: UnixStream, response: &[u8], size: usize) {
    let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(count @ 1..) => request.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    for piece in response.chunks(size) {
        if stream.write_all(piece).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
}
