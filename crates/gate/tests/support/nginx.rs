//! nginx, as a server that others wrote: on a port and on a unix socket.

use oroshi_gate::upstream::Target;
use oroshi_net::Peer;
use oroshi_testkit::nginx::{self, Setup};

/// An nginx of this test's own, until it is dropped.
pub struct Nginx {
    pub tcp: Target,
    pub unix: Target,
    /// Another unix socket, over HTTP/2.
    pub h2c: Target,
    nginx: nginx::Nginx,
}

impl Nginx {
    /// Starts one whose server block holds this, or notes that `test` is left out. `@FOLDER@` stands for its own
    /// folder.
    pub fn start(test: &str, server: &str) -> Option<Nginx> {
        let http = format!(
            "log_format case '$http_x_case $request_method $request_uri $content_length'; client_max_body_size 200m;
            server {{ listen @TCP@; listen unix:@UNIX@; listen unix:@FOLDER@/h2c.sock http2;
            root @FOLDER@; {server} }}"
        );
        let nginx = Setup { http: &http, ..Setup::default() }.start(test)?;
        let unix = format!("unix:{}", nginx.unix.display()).parse().unwrap();
        let h2c = format!("h2c+unix:{}", nginx.path("h2c.sock").display()).parse().unwrap();
        Some(Nginx { tcp: Target::from(Peer::from(nginx.tcp)), unix, h2c, nginx })
    }

    /// A file in its folder.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.nginx.path(name)
    }

    /// What it has logged in `access`, if it was told to: a line for each request, with its `X-Case`, method, target
    /// and length.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("access")).unwrap_or_default()
    }
}
