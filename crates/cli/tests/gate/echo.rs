//! A server behind the gateway that tells what it was asked.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

/// A server that tells what it was asked, in the body, after its name; a few paths have answers of their own.
pub(crate) fn echo(dir: &Path, name: &'static str) {
    let listener = UnixListener::bind(dir.join(format!("{name}.sock"))).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(stream, name));
        }
    });
}

fn serve(mut stream: UnixStream, name: &str) {
    let (mut bytes, mut room) = (Vec::new(), [0; 4096]);
    loop {
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                break at + 4;
            }
            match oroshi_testkit::http::read(&mut stream, &mut room) {
                Ok(count) if count > 0 => bytes.extend_from_slice(&room[..count]),
                _ => return,
            }
        };
        let head = String::from_utf8(bytes.drain(..end).collect()).unwrap();
        let path = head.split(' ').nth(1).unwrap();
        let own = format!("X-From: {name}\r\nX-Secret: 1\r\n");
        let answer = match path {
            "/204" => format!("HTTP/1.1 204 No Content\r\n{own}\r\n"),
            "/304" => format!("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n{own}\r\n"),
            "/chunked" => format!(
                "HTTP/1.1 200 OK\r\n{own}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\
                 X-End: 1\r\nX-Secret: 2\r\n\r\n"
            ),
            "/early" => format!(
                "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n{own}Content-Length: 2\r\n\r\nok"
            ),
            "/socket" => {
                format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n{own}\r\nhello"
                )
            }
            _ => {
                let body = format!("{name}\n{head}");
                let sent = if head.starts_with("HEAD ") { "" } else { &*body };
                format!("HTTP/1.1 200 Fine\r\n{own}Content-Length: {}\r\n\r\n{sent}", body.len())
            }
        };
        let is_over = path == "/socket";
        if stream.write_all(answer.as_bytes()).is_err() || is_over {
            return;
        }
    }
}
