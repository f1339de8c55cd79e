//! Clients that leave, or end their sending side, before the answer.

use super::*;

/// A server behind that tells of each request, and when its connection has ended; it answers `/now` alone.
fn working(dir: &Path) -> Receiver<&'static str> {
    let (tell, told) = mpsc::channel();
    let listener = UnixListener::bind(dir.join("work.sock")).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let tell = tell.clone();
            thread::spawn(move || {
                while let Some(head) = head(&mut stream) {
                    if head.starts_with("GET /now") {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnow");
                        continue;
                    }
                    if head.starts_with("GET /begun") {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun");
                    }
                    let _ = tell.send("works");
                }
                let _ = tell.send("cancelled");
            });
        }
    });
    told
}

#[test]
fn a_client_that_leaves_ends_the_work_behind() {
    for half_close in ["", "timeouts = { half-close = \"0s\" }\n", "timeouts = { half-close = \"20ms\" }\n"] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_owned();
        let told_of = working(&dir);
        let config = format!(
            "threads = 1\n{LOG}[listen]\npublic = [\"127.0.0.1:0\", \"unix:{{dir}}/public.sock\"]
[[route]]\npath = \"/streamed\"\nbuffer = \"off\"\nto = \"unix:{{dir}}/work.sock\"\n{half_close}
[[route]]\nto = \"unix:{{dir}}/work.sock\"\n{half_close}"
        );
        let gate = Gate::start(folder, &config);
        let tcp = ports(&gate)[0];
        // The body comes later than its head, and is read to its end: on its way, and before anything goes behind.
        let streamed = "POST /streamed HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";
        let buffered = "POST /buffered HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
        let (silent, begun) = ("GET /silent HTTP/1.1\r\nHost: a\r\n\r\n", "GET /begun HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut number = 0;
        for request in [silent, begun, streamed, buffered] {
            for over_tcp in [true, false] {
                let mut client: Box<dyn ReadWrite> = match over_tcp {
                    true => Box::new(TcpStream::connect(("127.0.0.1", tcp)).unwrap()),
                    false => Box::new(UnixStream::connect(gate.path("public.sock")).unwrap()),
                };
                client.write_all(request.as_bytes()).unwrap();
                if request == buffered {
                    assert!(head(&mut *client).unwrap().starts_with("HTTP/1.1 100 "));
                    assert_eq!(told_of.try_recv(), Err(mpsc::TryRecvError::Empty));
                    client.write_all(b"abc").unwrap();
                }
                assert_eq!(told_of.recv_timeout(HANG), Ok("works"), "{request}");
                if request == streamed {
                    client.write_all(b"abc").unwrap();
                }
                if request.starts_with("GET /begun") {
                    assert!(head(&mut *client).unwrap().starts_with("HTTP/1.1 200 "));
                }
                drop(client);
                assert_eq!(told_of.recv_timeout(HANG), Ok("cancelled"), "{half_close}{request} over TCP: {over_tcp}");
                number += 1;
                let line = &told(&dir, number)[number - 1];
                assert_eq!(line["failure"], "client-gone", "{line}");
                assert_eq!(line["status"], if request.starts_with("GET /begun") { 200 } else { 0 }, "{line}");
            }
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

#[test]
fn a_client_that_has_only_ended_its_sending_side_gets_its_answer() {
    let folder = tempfile::tempdir().unwrap();
    let told_of = working(folder.path());
    let config = "[listen]\npublic = \"127.0.0.1:0\"\n[[route]]\nto = \"unix:{dir}/work.sock\"\n\
                  timeouts = { half-close = \"off\" }\n";
    let gate = Gate::start(folder, config);
    let ask = |path: &str| {
        let mut client = TcpStream::connect(("127.0.0.1", ports(&gate)[0])).unwrap();
        client.set_read_timeout(Some(HANG)).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        client
    };
    let answer = Answer::read(ask("/now"));
    assert_eq!((answer.status, &*answer.body), (200, "now"));
    // One that waits for long is waited for, until it is gone for good.
    let client = ask("/silent");
    assert_eq!(told_of.recv_timeout(HANG), Ok("works"));
    socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    drop(gate);
    assert_eq!(told_of.recv_timeout(HANG), Ok("cancelled"));
}

// Scripts.
