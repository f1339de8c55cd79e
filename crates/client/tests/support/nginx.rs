//! nginx, as a server that others wrote: plain, TLS and a unix socket.

use oroshi_testkit::nginx::{Nginx, Setup};

const SERVER: &str = "types { text/html html; }
    gzip on; gzip_min_length 100; gzip_types text/html; keepalive_requests 5;
    server {
        listen @TCP@; listen @TLS@ ssl; listen unix:@UNIX@;
        ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@;
        root @FOLDER@;
        location = / { return 200 \"hello from nginx\"; }
        location = /away { return 302 /; }
        location = /loop { return 302 /loop; }
        location = /none { return 204; }
        location = /post { client_max_body_size 10m; client_body_in_single_buffer on; proxy_pass http://unix:@UNIX@:/; }
    }";

/// Starts an nginx for this test, or notes that `test` is left out.
pub fn start(test: &str) -> Option<Nginx> {
    let (large, text) = (vec![b'x'; 1 << 20], "a line of text\n".repeat(10_000));
    let files: [(&str, &[u8]); 2] = [("large", &large), ("text.html", text.as_bytes())];
    Setup { http: SERVER, files: &files, ..Setup::default() }.start(test)
}
