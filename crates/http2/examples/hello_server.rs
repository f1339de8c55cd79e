//! Answers every request with `hello world`, over cleartext HTTP/2: `cargo run -p oroshi-http2 --example hello_server
//! -- 127.0.0.1:8080`. A peer for h2spec, nghttp and curl, with blocking sockets and a thread per connection.
#![allow(clippy::print_stdout)] // an example is a program of its own

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use oroshi_http2::{Config, Connection, ErrorCode, Event, HeadBuffer};

const BODY: &[u8] = b"hello world\n";

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(&address)?;
    println!("listening on {}", listener.local_addr()?);
    let config = Arc::new(Config { extended_connect: true, ..Config::default() });
    for stream in listener.incoming() {
        let (stream, config) = (stream?, config.clone());
        std::thread::spawn(move || serve(stream, config));
    }
    Ok(())
}

/// Serves a connection until the client closes it or breaks the protocol.
pub(crate) fn serve(mut stream: TcpStream, config: Arc<Config>) -> std::io::Result<()> {
    let (mut out, mut kept, mut buffer, mut heads) = (Vec::new(), Vec::new(), vec![0; 65_536], HeadBuffer::default());
    let mut connection = Connection::server(config, &mut out);
    // The sent bytes of each response's body.
    let mut unsent = BTreeMap::new();
    loop {
        stream.write_all(&out)?;
        out.clear();
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        kept.extend_from_slice(&buffer[..count]);
        let mut input = &kept[..];
        loop {
            match connection.receive(&mut input, &mut heads, &mut out) {
                Ok(Some(event)) => answer(&mut connection, event, &mut unsent, &mut out),
                Ok(None) => break,
                Err(_) => return stream.write_all(&out),
            }
        }
        let used = kept.len() - input.len();
        kept.drain(..used);
    }
}

fn answer(connection: &mut Connection, event: Event<'_>, unsent: &mut BTreeMap<u32, usize>, out: &mut Vec<u8>) {
    match event {
        Event::Request { stream, head, end: true } if head.method == "HEAD" => {
            let sent = connection.send_response(out, stream.id, 200, [("content-length", &b"12"[..])], true);
            debug_assert_eq!(sent, Ok(()));
        }
        Event::Request { stream, end: true, .. } | Event::Data { stream, end: true, .. } => {
            respond(connection, stream.id, unsent, out);
        }
        Event::Trailers { stream, .. } => respond(connection, stream.id, unsent, out),
        Event::Data { stream, data, .. } => connection.grant(out, stream.id, data.len()),
        Event::Reset { stream, .. } => {
            unsent.remove(&stream.id);
        }
        Event::Settings | Event::WindowOpen { .. } => {
            let ids: Vec<u32> = unsent.keys().copied().collect();
            ids.into_iter().for_each(|id| send(connection, id, unsent, out));
        }
        _ => {}
    }
}

fn respond(connection: &mut Connection, id: u32, unsent: &mut BTreeMap<u32, usize>, out: &mut Vec<u8>) {
    let fields = [("content-type", &b"text/plain"[..]), ("content-length", b"12")];
    if connection.send_response(out, id, 200, fields, false).is_err() {
        connection.reset(out, id, ErrorCode::INTERNAL_ERROR);
        return;
    }
    unsent.insert(id, 0);
    send(connection, id, unsent, out);
}

/// Sends what the windows allow of a response's body.
fn send(connection: &mut Connection, id: u32, unsent: &mut BTreeMap<u32, usize>, out: &mut Vec<u8>) {
    let sent = unsent.get(&id).copied().unwrap_or_default();
    let more = connection.send_data(out, id, &BODY[sent..], true).unwrap_or(BODY.len());
    if sent + more >= BODY.len() {
        unsent.remove(&id);
    } else {
        unsent.insert(id, sent + more);
    }
}
