//! Answers every request with `hello world`, over HTTP/1.1 and HTTP/2: `cargo run -p oroshi-server --example
//! hello_server -- 127.0.0.1:8080`.
#![allow(clippy::print_stdout)] // an example is a program of its own

use std::sync::Mutex;

use oroshi_net::{BoundListener, ListenOptions, Shutdown, Threads, ThreadsOptions};
use oroshi_server::{Exchange, Server, Settings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let shutdown = Shutdown::on_signals()?;
    let bound = BoundListener::bind(&address, &ListenOptions::default())?;
    println!("listening on {}", bound.address());
    let bound = Mutex::new(Some(bound));
    Threads::run(&ThreadsOptions::new("hello", 1), move |_| {
        let bound = bound.lock().ok().and_then(|mut bound| bound.take());
        let shutdown = shutdown.clone();
        async move {
            let hello = async |exchange: &mut Exchange<'_>| {
                while exchange.body.chunk().await?.is_some() {}
                exchange.reply.send(200, [("Content-Type", &b"text/plain"[..])], b"hello world\n").await
            };
            let Some(Ok(listener)) = bound.map(BoundListener::into_listener) else { return };
            Server::new(hello, Settings::default()).serve([listener.into()], shutdown.reached(1)).await;
        }
    })?;
    Ok(())
}
