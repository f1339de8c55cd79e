//! The flags of `oroshi fetch`, as they are typed. What `oroshi bench` has as well is called and written as there.
//!
//! Values stay text here: the parser would stop at the first one that is wrong, where `read` finds all of them.

use std::path::PathBuf;

use crate::tls::TlsArgs;

const EXAMPLES: &str = "\
Examples:
  oroshi fetch -c 100 -i urls.txt -o results.ndjson --bodies pages/
      100 concurrent requests; writes a record of each to results.ndjson, and the bodies to pages/
  oroshi fetch -c 100 -i urls.txt -o results.ndjson --bodies pages/ --resume
      resumes after an interruption: skips what results.ndjson has already
  zcat urls.gz | oroshi fetch --per-host 4 --retry 3 - | jq -r 'select(.ok | not) | .url'
      a list of any length from standard input, four concurrent requests per host; prints the failures
  echo '{\"url\":\"http://localhost:8080/\",\"method\":\"PUT\",\"body\":\"x\",\"id\":7}' | oroshi fetch -
      a line may also be a request in JSON: url, method, headers, body, id
  oroshi fetch --burst -c 1000 http://localhost:8080/
      1,000 connections, each with one request, all at the same moment
  oroshi fetch --bodies - http://localhost:8080/
      prints only the body

URLs:
  http://host:port/path, https://..., unix:/run/app.sock, unix:/run/app.sock:/path,
  unix:@abstract-name:/path

Numbers take k, M, G. Times take ns, us, ms, s, m, h; a plain number is seconds.

Exit codes: 0 every request was answered with a status below 400; 1 some were not, or the work could not
be done; 2 wrong usage; 130 ended by Ctrl-C (the first one lets requests in progress end, a second ends at once).";

/// Fetch many URLs concurrently: a record in JSON for each, bodies into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Fetch these URLs; - reads a list from standard input
    #[arg(value_name = "URL|-")]
    pub(super) url: Vec<String>,

    /// Read a list from a file: a URL or a request in JSON per line, # begins a comment; repeatable
    #[arg(short, long, value_name = "FILE", visible_alias = "urls", help_heading = "List")]
    pub(super) input: Vec<PathBuf>,

    /// Continue the file of --output: skip what it has already
    #[arg(long, requires = "output", conflicts_with = "burst", help_heading = "List")]
    pub(super) resume: bool,

    /// Send this many requests concurrently, each on a connection of its own, or a stream of HTTP/2 [default: 16]
    #[arg(short, long, value_name = "N", help_heading = "Pace")]
    pub(super) concurrency: Option<String>,

    /// Send at most this many of them to one host and port, or unix socket [default: no limit of its own]
    ///
    /// The limit holds after redirects too. Waiting requests delay no other host.
    #[arg(long, value_name = "N", conflicts_with = "burst", help_heading = "Pace")]
    pub(super) per_host: Option<String>,

    /// Send all requests at the same moment, each on a connection of its own: as many as -c says, or each URL once
    #[arg(long, help_heading = "Pace")]
    pub(super) burst: bool,

    /// Retry failures up to this many times, where that is safe [default: 0]
    #[arg(long, value_name = "N", help_heading = "Pace")]
    pub(super) retry: Option<String>,

    /// Wait this long before the first retry, then twice as long each time, up to a minute; up to a
    /// half less at random [default: 1s]
    #[arg(long, value_name = "TIME", requires = "retry", help_heading = "Pace")]
    pub(super) retry_wait: Option<String>,

    #[command(flatten)]
    pub(super) request: RequestArgs,

    #[command(flatten)]
    pub(super) time: TimeArgs,

    #[command(flatten)]
    pub(super) connection: ConnectionArgs,

    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// The flags of requests, which a line of the list may override.
#[derive(Debug, Default, clap::Args)]
pub(super) struct RequestArgs {
    /// Set the request method [default: GET, or POST with a body]
    #[arg(short, long, visible_short_alias = 'X', help_heading = "Request")]
    pub(super) method: Option<String>,

    /// Add a header; repeatable
    ///
    /// A redirect to another host drops `Authorization`, `Cookie` and similar headers.
    #[arg(short = 'H', long, value_name = "NAME: VALUE", help_heading = "Request")]
    pub(super) header: Vec<String>,

    /// Send this request body
    #[arg(short, long, value_name = "TEXT", help_heading = "Request")]
    pub(super) body: Option<String>,

    /// Send this file as the request body
    #[arg(long, value_name = "FILE", conflicts_with = "body", help_heading = "Request")]
    pub(super) body_file: Option<PathBuf>,

    /// Send this JSON as the request body, with the matching Content-Type and Accept
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["body", "body_file"], help_heading = "Request")]
    pub(super) json: Option<String>,

    /// Follow at most this many redirects; 0 returns redirects as they are [default: 10]
    #[arg(long, value_name = "N", help_heading = "Request")]
    pub(super) redirects: Option<String>,

    /// Do not request compressed bodies (gzip, br, zstd), and do not decompress them
    #[arg(long, help_heading = "Request")]
    pub(super) no_compression: bool,
}

/// The flags of time limits.
#[derive(Debug, Default, clap::Args)]
pub(super) struct TimeArgs {
    /// Limit a whole request, with its redirects, until the last byte of the body [default: no limit]
    ///
    /// The time starts anew with each attempt.
    #[arg(short = 'T', long, value_name = "TIME", help_heading = "Time")]
    pub(super) timeout: Option<String>,

    /// Limit the look-up of the name [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) dns_timeout: Option<String>,

    /// Limit connecting, to any of the addresses [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) connect_timeout: Option<String>,

    /// Limit the TLS handshake [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) tls_timeout: Option<String>,

    /// Limit the time in which the server reads nothing of the request [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) write_timeout: Option<String>,

    /// Limit the time from the last byte of the request to the end of the response's head [default: 60s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) first_byte_timeout: Option<String>,

    /// Limit each pause within a body [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) between_bytes_timeout: Option<String>,
}

/// The flags of connections.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ConnectionArgs {
    /// Connect to this unix socket (a path, or @name); the URLs then give Host and path
    #[arg(short = 'P', long, value_name = "SOCKET", help_heading = "Connections")]
    pub(super) unix: Option<String>,

    /// Send requests through this proxy: http://, https://, socks5:// or socks5h://; none for no proxy [default: the
    /// environment's: http_proxy, https_proxy, all_proxy]
    #[arg(long, value_name = "URL|none", help_heading = "Connections")]
    pub(super) proxy: Option<String>,

    /// Connect to these servers without the proxy: names, networks, with commas between them
    ///
    /// The variable `no_proxy` adds to them where the environment names the proxy.
    #[arg(long, value_name = "LIST", help_heading = "Connections")]
    pub(super) no_proxy: Option<String>,

    /// Trust these certificate authorities (PEM) for https:// proxies instead of the system's; repeatable
    #[arg(long, value_name = "FILE", conflicts_with = "proxy_insecure", help_heading = "Connections")]
    pub(super) proxy_cacert: Vec<PathBuf>,

    /// Do not verify the certificate of an https:// proxy
    #[arg(long, help_heading = "Connections")]
    pub(super) proxy_insecure: bool,

    /// Use one connection per request
    #[arg(long, help_heading = "Connections")]
    pub(super) close: bool,

    /// Speak HTTP/2 from the first byte, also without TLS; the server must know it
    #[arg(long, conflicts_with = "http1", help_heading = "Connections")]
    pub(super) http2_prior_knowledge: bool,

    /// Speak HTTP/1.1 alone [default: the server chooses HTTP/2 or HTTP/1.1 over TLS]
    #[arg(long, help_heading = "Connections")]
    pub(super) http1: bool,

    #[command(flatten)]
    pub(super) tls: TlsArgs,
}

/// The flags of the output.
#[derive(Debug, Default, clap::Args)]
pub(super) struct OutputArgs {
    /// Write the records to a file [default: standard output]
    ///
    /// Without --resume the file must be new or empty. Two concurrent runs cannot share it.
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(super) output: Option<PathBuf>,

    /// Save each body as a file in this folder; - prints the bodies instead of the records, in the order of the list
    /// [default: counted, discarded]
    ///
    /// With - there is one request at a time.
    #[arg(long, value_name = "FOLDER|-", help_heading = "Output")]
    pub(super) bodies: Option<PathBuf>,

    /// Fail a response whose body is larger than this, after decompression [default: no limit]
    ///
    /// A body with a larger Content-Length is not received, unless it is compressed.
    #[arg(long, value_name = "BYTES", help_heading = "Output")]
    pub(super) max_body: Option<String>,

    /// Put the response headers into the records
    #[arg(long, help_heading = "Output")]
    pub(super) headers: bool,

    /// Print no progress, no summary and no warnings
    #[arg(short, long, help_heading = "Output")]
    pub(super) quiet: bool,
}
