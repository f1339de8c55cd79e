//! nginx, as a server that others wrote: plain, TLS and a unix socket.

use std::ops::Deref;

use oroshi_testkit::nginx::{self, Setup};

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

/// An nginx of this test's own, until it is dropped.
pub struct Nginx {
    /// `http://127.0.0.1:PORT`.
    pub http: String,
    /// `https://localhost:PORT`.
    pub https: String,
    nginx: nginx::Nginx,
}

impl Nginx {
    /// Starts one, or notes that `test` is left out.
    pub fn start(test: &str) -> Option<Self> {
        let (large, text) = (vec![b'x'; 1 << 20], "a line of text\n".repeat(10_000));
        let files: [(&str, &[u8]); 2] = [("large", &large), ("text.html", text.as_bytes())];
        let nginx = Setup { http: SERVER, files: &files, ..Setup::default() }.start(test)?;
        let (http, https) = (format!("http://{}", nginx.tcp), format!("https://localhost:{}", nginx.tls.port()));
        Some(Nginx { http, https, nginx })
    }
}

impl Deref for Nginx {
    type Target = nginx::Nginx;

    fn deref(&self) -> &nginx::Nginx {
        &self.nginx
    }
}
