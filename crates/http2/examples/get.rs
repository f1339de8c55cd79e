//! Gets a path over cleartext HTTP/2, by default `/`, and prints status and body: `cargo run -p oroshi-http2 --example
//! get
//! -- 127.0.0.1:8080 /path [COUNT]`. With a COUNT it sends as many requests at once as the server allows, and prints
//! the number of responses.
#![allow(clippy::print_stdout)] // an example is a program of its own

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use oroshi_http2::{Config, Connection, Event, Grants, HeadBuffer, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let address = words.first().map_or("127.0.0.1:8080", String::as_str);
    let path = words.get(1).map_or("/", String::as_str);
    let count = words.get(2).map_or(Ok(1), |count| count.parse::<u32>())?;
    let mut stream = TcpStream::connect(address)?;
    let (mut out, mut kept, mut buffer, mut heads) = (Vec::new(), Vec::new(), vec![0; 65_536], HeadBuffer::default());
    let config = Config { grants: Grants::Automatic, ..Config::default() };
    let mut connection = Connection::client(Arc::new(config), &mut out);
    let (mut sent, mut ended) = (0, 0);
    let mut result = Ok(());
    loop {
        let request = Request { method: "GET", scheme: "http", authority: address, path, protocol: None };
        // The server's settings come first: they say how many streams it allows.
        while connection.is_ready() && sent < count && connection.can_open().is_ok() {
            connection.send_request(&mut out, &request, [("user-agent", &b"oroshi-http2"[..])], true, 0)?;
            sent += 1;
        }
        stream.write_all(&out)?;
        out.clear();
        if ended == count || result.is_err() {
            // The connection stays in order for another moment, as it would for the next request.
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        }
        let length = match stream.read(&mut buffer) {
            Ok(length) if length > 0 => length,
            _ if ended == count || result.is_err() => break,
            Ok(_) => return Err("the server has closed".into()),
            Err(error) => return Err(error.into()),
        };
        kept.extend_from_slice(&buffer[..length]);
        let mut input = &kept[..];
        loop {
            match connection.receive(&mut input, &mut heads, &mut out) {
                Ok(Some(event)) => match print(&event, count == 1) {
                    Ok(end) => ended += u32::from(end),
                    Err(error) => result = Err(error),
                },
                Ok(None) => break,
                Err(defect) => {
                    stream.write_all(&out)?;
                    return Err(format!("{} ({defect})", defect.name()).into());
                }
            }
        }
        let used = kept.len() - input.len();
        kept.drain(..used);
    }
    if count > 1 {
        println!("{ended} responses");
    }
    result
}

/// Prints a message's parts, and returns whether it has ended.
fn print(event: &Event<'_>, verbose: bool) -> Result<bool, Box<dyn Error>> {
    match event {
        Event::Response { head, end, .. } => {
            if verbose {
                println!("{}\n{}", head.status, head.headers.as_bytes().escape_ascii());
            }
            Ok(*end)
        }
        Event::Data { data, end, .. } => {
            if verbose {
                println!("{}", data.escape_ascii());
            }
            Ok(*end)
        }
        Event::Trailers { .. } => Ok(true),
        Event::Reset { code, .. } => Err(format!("the server has reset the stream: {code}").into()),
        _ => Ok(false),
    }
}
