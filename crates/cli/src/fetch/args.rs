//! The flags of `oroshi fetch`, as they are typed. What `oroshi bench` has as well is called and written as there.
//!
//! Values stay text here: the parser would stop at the first one that is wrong, where `read` finds all of them.

use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  oroshi fetch -c 100 -i urls.txt -o results.ndjson --bodies pages/
      100 requests at a time; what came of each goes to results.ndjson, the bodies to pages/
  oroshi fetch -c 100 -i urls.txt -o results.ndjson --bodies pages/ --resume
      the same again after it was interrupted: what is in results.ndjson already is not asked for again
  zcat urls.gz | oroshi fetch --per-host 4 --retry 3 - | jq -r 'select(.ok | not) | .url'
      a list of any length from standard input, four requests per host at a time; prints what failed
  echo '{\"url\":\"http://localhost:8080/\",\"method\":\"PUT\",\"body\":\"x\",\"id\":7}' | oroshi fetch -
      a line may also be a request in JSON: url, method, headers, body, id
  oroshi fetch --burst -c 1000 http://localhost:8080/
      1,000 connections, each sends one request, all at the same moment
  oroshi fetch --bodies - http://localhost:8080/
      prints the body, and nothing else

URLs:
  http://host:port/path, https://..., unix:/run/app.sock, unix:/run/app.sock:/path,
  unix:@abstract-name:/path

Numbers take k, M, G; times take ns, us, ms, s, m, h, and are seconds without.

Exit codes: 0 every request was answered with a status below 400; 1 some were not, or the work could not
be done; 2 wrong usage; 130 ended by Ctrl-C (the first lets requests under way end, a second ends at once).";

/// Fetch many URLs at a time: a line of JSON for each, bodies into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to fetch; - reads a list from standard input
    #[arg(value_name = "URL|-")]
    pub(super) url: Vec<String>,

    /// Read a list from a file: a URL or a request in JSON per line, # begins a comment; repeatable
    #[arg(short, long, value_name = "FILE", visible_alias = "urls", help_heading = "List")]
    pub(super) input: Vec<PathBuf>,

    /// Go on with what is in the file of --output: what came to an end there is not asked for again
    #[arg(long, requires = "output", conflicts_with = "burst", help_heading = "List")]
    pub(super) resume: bool,

    /// How many requests may be under way at a time [default: 16]
    #[arg(short, long, value_name = "N", help_heading = "Pace")]
    pub(super) concurrency: Option<String>,

    /// How many of them to one host and port, or unix socket [default: no limit of its own]
    #[arg(long, value_name = "N", conflicts_with = "burst", help_heading = "Pace")]
    pub(super) per_host: Option<String>,

    /// All at the same moment, each on a connection of its own: as many as -c says with the URLs taken in turn, or each once
    #[arg(long, help_heading = "Pace")]
    pub(super) burst: bool,

    /// Try up to so many times more what failed and can be sent again safely [default: 0]
    #[arg(long, value_name = "N", help_heading = "Pace")]
    pub(super) retry: Option<String>,

    /// How long to wait before the second try; each further wait is twice as long, up to a minute [default: 1s]
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

/// What is sent, where a line does not say otherwise.
#[derive(Debug, Default, clap::Args)]
pub(super) struct RequestArgs {
    /// Request method [default: GET, or POST with a body]
    #[arg(short, long, visible_short_alias = 'X', help_heading = "Request")]
    pub(super) method: Option<String>,

    /// Add a header; repeatable
    #[arg(short = 'H', long, value_name = "NAME: VALUE", help_heading = "Request")]
    pub(super) header: Vec<String>,

    /// Request body
    #[arg(short, long, value_name = "TEXT", help_heading = "Request")]
    pub(super) body: Option<String>,

    /// Request body from a file
    #[arg(long, value_name = "FILE", conflicts_with = "body", help_heading = "Request")]
    pub(super) body_file: Option<PathBuf>,

    /// Request body that is JSON, with the Content-Type and the Accept of that
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["body", "body_file"], help_heading = "Request")]
    pub(super) json: Option<String>,

    /// How many redirects to follow; 0 gives their answers as they are [default: 10]
    #[arg(long, value_name = "N", help_heading = "Request")]
    pub(super) redirects: Option<String>,

    /// Do not ask for compressed bodies (gzip, br, zstd), nor unpack them
    #[arg(long, help_heading = "Request")]
    pub(super) no_compression: bool,
}

/// How long things may take.
#[derive(Debug, Default, clap::Args)]
pub(super) struct TimeArgs {
    /// A whole request, with its redirects, from its beginning to the last byte of the body [default: no limit]
    #[arg(short = 'T', long, value_name = "TIME", help_heading = "Time")]
    pub(super) timeout: Option<String>,

    /// Looking the name up [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) dns_timeout: Option<String>,

    /// Connecting [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) connect_timeout: Option<String>,

    /// The TLS handshake [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) tls_timeout: Option<String>,

    /// The longest time in which the server takes nothing of the request [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) write_timeout: Option<String>,

    /// From the last byte of the request to the end of the answer's head [default: 60s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) first_byte_timeout: Option<String>,

    /// The longest pause within a body [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Time")]
    pub(super) between_bytes_timeout: Option<String>,
}

/// How the server is reached.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ConnectionArgs {
    /// Connect to this unix socket (a path, or @name); the URLs then say Host and path
    #[arg(short = 'P', long, value_name = "SOCKET", help_heading = "Connections")]
    pub(super) unix: Option<String>,

    /// One connection per request
    #[arg(long, help_heading = "Connections")]
    pub(super) close: bool,

    /// Trust these certificate authorities (PEM) instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure", help_heading = "TLS")]
    pub(super) cacert: Vec<PathBuf>,

    /// Show this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key", help_heading = "TLS")]
    pub(super) cert: Option<PathBuf>,

    /// Private key of --cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    pub(super) key: Option<PathBuf>,

    /// Do not verify the server's certificate
    #[arg(short = 'k', long, help_heading = "TLS")]
    pub(super) insecure: bool,
}

/// What is kept.
#[derive(Debug, Default, clap::Args)]
pub(super) struct OutputArgs {
    /// Write the lines of JSON to a file, which must not hold any yet
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(super) output: Option<PathBuf>,

    /// Put each body into a file of this folder; - prints them one after another, and no lines of JSON
    #[arg(long, value_name = "FOLDER|-", help_heading = "Output")]
    pub(super) bodies: Option<PathBuf>,

    /// A body may have so many bytes, unpacked; a larger one has failed [default: no limit]
    #[arg(long, value_name = "BYTES", help_heading = "Output")]
    pub(super) max_body: Option<String>,

    /// Put the answers' header fields into the lines
    #[arg(long, help_heading = "Output")]
    pub(super) headers: bool,

    /// Neither progress nor a summary, nor warnings
    #[arg(short, long, help_heading = "Output")]
    pub(super) quiet: bool,
}
