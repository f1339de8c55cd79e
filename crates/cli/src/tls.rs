//! The flags about TLS of commands that connect.

use std::path::PathBuf;

use oroshi_net::tls::{ClientTlsOptions, Roots};

#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct TlsArgs {
    /// Trust these certificate authorities (PEM) instead of the system's; repeatable
    #[arg(long, value_name = "FILE", conflicts_with = "insecure", help_heading = "TLS")]
    pub(crate) cacert: Vec<PathBuf>,

    /// Present this client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key", help_heading = "TLS")]
    pub(crate) cert: Option<PathBuf>,

    /// Use this private key for --cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    pub(crate) key: Option<PathBuf>,

    /// Do not verify the server's certificate
    #[arg(short = 'k', long, help_heading = "TLS")]
    pub(crate) insecure: bool,
}

impl TlsArgs {
    pub(crate) fn options(&self) -> ClientTlsOptions {
        ClientTlsOptions {
            roots: match (self.insecure, self.cacert.is_empty()) {
                (true, _) => Roots::Insecure,
                (false, true) => Roots::System,
                (false, false) => Roots::Only(self.cacert.clone()),
            },
            identity: self.cert.clone().zip(self.key.clone()),
            ..ClientTlsOptions::default()
        }
    }
}
