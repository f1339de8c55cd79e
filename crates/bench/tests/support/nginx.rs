//! nginx, as a peer that others wrote, and that counts by itself.

use std::ops::{Deref, DerefMut};

pub use oroshi_testkit::find;
use oroshi_testkit::nginx::{self, Setup};

/// `/` is a small answer, `/large` one of a megabyte.
const SERVER: &str = "server {
    listen @TCP@; listen @TLS@ ssl; listen unix:@UNIX@;
    ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@;
    location / { return 200 hello; }
    location /large { root @FOLDER@; }
    location /missing { return 404; }
}";

/// An nginx of this test's own, until it is dropped.
pub struct Nginx {
    /// `http://127.0.0.1:PORT/`.
    pub http: String,
    /// `https://localhost:PORT/`, with its certificate.
    pub https: String,
    nginx: nginx::Nginx,
}

impl Nginx {
    /// Starts one with `workers`, or notes that `test` is left out.
    pub fn start(test: &str, workers: usize) -> Option<Self> {
        let large = vec![b'x'; 1 << 20];
        let setup = Setup { workers, http: SERVER, files: &[("large", &large)], ..Setup::default() };
        let nginx = setup.start(test)?;
        let (http, https) = (format!("http://{}/", nginx.tcp), format!("https://localhost:{}/", nginx.tls.port()));
        Some(Self { http, https, nginx })
    }

    /// The unix socket as a URL with this path.
    pub fn unix_url(&self, path: &str) -> String {
        format!("unix:{}:{path}", self.unix.display())
    }
}

impl Deref for Nginx {
    type Target = nginx::Nginx;

    fn deref(&self) -> &nginx::Nginx {
        &self.nginx
    }
}

impl DerefMut for Nginx {
    fn deref_mut(&mut self) -> &mut nginx::Nginx {
        &mut self.nginx
    }
}
