//! nginx, as a peer that others wrote, and that counts by itself.

pub use oroshi_testkit::find;
use oroshi_testkit::nginx::{Nginx, Setup};

/// `/` is a small answer, `/large` one of a megabyte.
const SERVER: &str = "server {
    listen @TCP@; listen @TLS@ ssl; listen unix:@UNIX@;
    ssl_certificate @CERTIFICATE@; ssl_certificate_key @KEY@;
    location / { return 200 hello; }
    location /large { root @FOLDER@; }
    location /missing { return 404; }
}";

/// Starts an nginx with `workers` for this test, or notes that `test` is left out.
pub fn start(test: &str, workers: usize) -> Option<Nginx> {
    let large = vec![b'x'; 1 << 20];
    Setup { workers, http: SERVER, files: &[("large", &large)], ..Setup::default() }.start(test)
}
