//! The plan of a run: the user's [`Draft`] becomes a [`Plan`], in which every default is filled in.

mod connect_to;
mod problem;
mod protocol;
mod shares;
mod urls;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use oroshi_net::endpoint::ResolveError;
use oroshi_net::{
    Address, ClientTls, ClientTlsOptions, ConnectorOptions, CpuList, Endpoint, Peer, Permitted, Scheme, UnixAddress,
};
use serde::{Deserialize, Serialize};

use crate::arrivals::{Arrivals, Spacing, Stage};
use crate::check::Check;
use crate::journey::Journeys;
pub use crate::part::Part;
use crate::request::Request;
use crate::script::Script;
pub use connect_to::ConnectTo;
pub(crate) use problem::mistake;
pub use problem::{Problem, Problems};
pub(crate) use protocol::ALPN;
pub use protocol::{Http2, Protocol, ProtocolProblem};
pub(crate) use shares::shares;
pub(crate) use urls::MOST_URLS;
use urls::UrlNumbers;

/// A load as the user described it: typed, and not yet validated.
///
/// `Default` has wrk's values: 2 threads, 10 connections, 10 s.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Where to send requests, in turn.
    pub urls: Vec<Endpoint>,
    /// Connect to this unix socket; the URLs then give Host and path only.
    pub unix: Option<UnixAddress>,
    /// `--connect-to`: where to connect instead, by host and port. The first match counts.
    pub connect_to: Vec<ConnectTo>,
    /// Request method.
    pub method: String,
    /// Header lines, in order; `Host`, `Connection` and `Content-Length` replace our own.
    pub headers: Vec<(String, String)>,
    /// Request body. All URLs and threads share one copy.
    pub body: Arc<[u8]>,
    /// Threads, each with its share of the connections and of the timetable.
    ///
    /// `None`: two, or one for an open loop of up to 10,000 requests per second; fewer where CPUs or connections are
    /// fewer.
    pub threads: Option<usize>,
    /// Number of connections.
    pub connections: usize,
    /// Number of idle connections held open beside the load.
    pub hold: usize,
    /// Closed or open loop.
    pub load: Load,
    /// End after this time; `None` with `requests`: when all are done.
    pub duration: Option<Duration>,
    /// End after this many requests.
    pub requests: Option<u64>,
    /// Time before the measured part.
    pub warmup: Duration,
    /// The user did not choose the duration: an experiment may lengthen it where servers are slow.
    pub free_duration: bool,
    /// The same for the warm-up.
    pub free_warmup: bool,
    /// Timeout of a request, and of a connect.
    pub timeout: Duration,
    /// Close each connection after this many requests; `None`: keep it.
    pub requests_per_connection: Option<u64>,
    /// Requests in flight per connection.
    pub pipeline: usize,
    /// Speak HTTP/2, and how to agree on it; `None`: HTTP/1.1.
    pub http2: Option<Http2>,
    /// Streams of HTTP/2 that carry requests at once on each connection.
    pub streams: usize,
    /// In a closed loop, each thread waits this long before it reads what has come, so that it reads more at a time;
    /// zero: it does not wait.
    pub gather: Duration,
    /// Local addresses to connect from, in turn.
    pub sources: Vec<IpAddr>,
    /// CPUs to pin the threads to, in turn.
    pub cpus: Option<CpuList>,
    /// TLS settings for https URLs.
    pub tls: ClientTlsOptions,
    /// Conditions on each response.
    pub checks: Vec<Check>,
    /// Which processes to watch.
    pub watch: Watching,
    /// Also keep per-second histograms for an HdrHistogram log.
    pub interval_histograms: bool,
    /// Also record connect time and total time per request ([`Record::connection_times`](crate::Record)).
    pub connection_times: bool,
    /// Also report every completed request to the observer.
    pub each_request: bool,
    /// Makes the requests instead of `method`, `headers` and `body`, for one URL.
    pub script: Option<Arc<dyn Script>>,
    /// What users do, instead of requests: each of the connections is a user.
    pub journeys: Option<Arc<dyn Journeys>>,
    /// The part of the run that this process has, when several processes share it. `None`: all of it.
    pub part: Option<Part>,
    /// Where connections may go; `None`: anywhere.
    pub permitted: Option<Arc<Permitted>>,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            unix: None,
            connect_to: Vec::new(),
            method: "GET".into(),
            headers: Vec::new(),
            body: Arc::default(),
            threads: None,
            connections: 10,
            hold: 0,
            load: Load::Closed,
            duration: None,
            requests: None,
            warmup: Duration::ZERO,
            free_duration: false,
            free_warmup: false,
            timeout: Duration::from_secs(2),
            requests_per_connection: None,
            pipeline: 1,
            http2: None,
            streams: 1,
            gather: Duration::ZERO,
            sources: Vec::new(),
            cpus: None,
            tls: ClientTlsOptions::default(),
            checks: Vec::new(),
            watch: Watching::Auto,
            interval_histograms: false,
            connection_times: false,
            each_request: false,
            script: None,
            journeys: None,
            part: None,
            permitted: None,
        }
    }
}

/// The rule for when requests are sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "loop")]
pub enum Load {
    /// The server: each connection sends its next request after the response.
    Closed,
    /// The timetable: requests are due, with or without responses to earlier ones.
    Open {
        /// The rate over time; one stage is a steady rate.
        stages: Vec<Stage>,
        /// How gaps between arrivals are drawn.
        spacing: Spacing,
        /// For Poisson gaps.
        seed: u64,
    },
}

impl Load {
    /// A steady rate.
    #[must_use]
    pub fn rate(per_second: f64, spacing: Spacing, seed: u64) -> Self {
        let stages = vec![Stage { duration: Duration::ZERO, rate: per_second }];
        Self::Open { stages, spacing, seed }
    }

    /// Returns the timetable of worker `index`: its `share` of the load, `phase` (0 up to 1) of a gap later.
    ///
    /// Workers differ in their seeds. `None` for a closed loop.
    pub(crate) fn arrivals(&self, share: f64, phase: f64, index: u64) -> Option<Arrivals> {
        let Self::Open { stages, spacing, seed } = self else { return None };
        Some(Arrivals::stages(stages, share, *spacing, seed.wrapping_add(index)).phase(phase))
    }
}

/// Which processes are the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watching {
    /// The processes that hold the listening socket, if it is on this machine.
    Auto,
    /// This process, with its children.
    Pid(u32),
    /// None.
    None,
}

/// A valid load, with every default filled in.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where to connect, each with its requests.
    pub origins: Vec<Origin>,
    /// Names of the URLs whose requests are counted apart; empty if there is one URL.
    pub urls: Vec<String>,
    /// Threads.
    pub threads: usize,
    /// Number of connections: at least one per origin and per thread.
    pub connections: usize,
    /// Number of idle connections.
    pub hold: usize,
    /// Closed or open loop.
    pub load: Load,
    /// Length of the measured part; `None`: until `requests` are done.
    pub duration: Option<Duration>,
    /// Number of requests.
    pub requests: Option<u64>,
    /// Time before the measured part.
    pub warmup: Duration,
    /// Timeout of a request, and of a connect.
    pub timeout: Duration,
    /// Requests on one connection before a new one replaces it.
    pub requests_per_connection: Option<u64>,
    /// Requests in flight per connection of HTTP/1.1.
    pub pipeline: usize,
    /// The version of HTTP.
    pub protocol: Protocol,
    /// Streams at once per connection of HTTP/2; 1 for HTTP/1.1.
    pub streams: usize,
    /// How long each thread waits before it reads; zero: it does not wait.
    pub gather: Duration,
    /// Local addresses.
    pub sources: Vec<IpAddr>,
    /// CPUs for the threads.
    pub cpus: Option<CpuList>,
    /// Conditions on each response.
    pub checks: Vec<Check>,
    /// Which processes to watch.
    pub watch: Watching,
    /// Keep per-second histograms.
    pub interval_histograms: bool,
    /// Record connect time and total time of each request.
    pub connection_times: bool,
    /// Report every completed request to the observer.
    pub each_request: bool,
    /// Makes the requests, in place of the origins' lists.
    pub script: Option<Arc<dyn Script>>,
    /// What users do, in place of requests. `connections` is then the number of users.
    pub journeys: Option<Arc<dyn Journeys>>,
    /// The part that this process has. `threads` are those of a part; all other figures are of the whole.
    pub part: Option<Part>,
    /// Where connections may go.
    pub permitted: Option<Arc<Permitted>>,
}

/// One destination, with the requests that go there.
#[derive(Clone, Debug)]
pub struct Origin {
    /// http or https.
    pub scheme: Scheme,
    /// Where to connect (after `--unix` and `--connect-to`).
    pub address: Address,
    /// The URL's host: the name that the server's certificate must show.
    pub host: String,
    /// The URL's host and port, where connections go elsewhere.
    pub elsewhere: Option<String>,
    /// For https.
    pub tls: Option<ClientTls>,
    /// Requests, sent in turn.
    pub requests: Vec<Request>,
    /// Connections, a share of the plan's by the number of requests.
    pub connections: usize,
}

impl Draft {
    /// Fills in every default.
    ///
    /// # Errors
    /// All mistakes, at once.
    pub fn plan(self) -> Result<Plan, Problems> {
        let mut problems = self.problems();
        let threads = self.thread_count();
        let all = threads.saturating_mul(self.part.map_or(1, |part| part.of));
        if self.connections > 0 && all > self.connections {
            problems.push(Problem::TooFewConnections { connections: self.connections, threads: all });
        }
        let urls = UrlNumbers::of(&self.urls);
        let mut origins = match self.origins(&urls) {
            Ok(origins) => origins,
            Err(problem) => {
                problems.push(problem);
                Vec::new()
            }
        };
        if self.connections > 0 && origins.len() > self.connections {
            problems.push(Problem::TooManyOrigins { connections: self.connections, origins: origins.len() });
        }
        if !self.sources.is_empty() {
            let unix = origins.iter().filter(|o| matches!(o.address, Address::Unix(_)));
            problems.extend(unix.map(|o| Problem::SourceWithUnix(o.name())));
        }
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        let weights: Vec<usize> = origins.iter().map(|o| o.requests.len()).collect();
        for (origin, share) in origins.iter_mut().zip(shares(self.connections, &weights)) {
            origin.connections = share;
        }
        let (duration, protocol) = (self.length(), self.protocol());
        Ok(Plan {
            origins,
            urls: urls.into_names(),
            threads,
            connections: self.connections,
            hold: self.hold,
            load: self.load,
            duration,
            requests: self.requests,
            warmup: self.warmup,
            timeout: self.timeout,
            requests_per_connection: self.requests_per_connection,
            pipeline: self.pipeline,
            protocol,
            streams: self.streams,
            gather: self.gather,
            sources: self.sources,
            cpus: self.cpus,
            checks: self.checks,
            watch: self.watch,
            interval_histograms: self.interval_histograms,
            connection_times: self.connection_times,
            each_request: self.each_request,
            script: self.script,
            journeys: self.journeys,
            part: self.part,
            permitted: self.permitted,
        })
    }

    /// Mistakes in single values, and in pairs of them.
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.urls.is_empty() {
            problems.push(Problem::NoUrl);
        }
        if self.script.is_some() && self.urls.len() > 1 {
            problems.push(Problem::ScriptUrls(self.urls.len()));
        }
        if let Some(requests) = self.requests_per_connection
            && requests == 1
            && self.pipeline > 1
        {
            problems.push(Problem::Pipeline { pipeline: self.pipeline, requests });
        }
        let zeros = [
            ("connections", "the number of connections", self.connections == 0),
            ("threads", "the number of threads", self.threads == Some(0)),
            ("requests", "the number of requests", self.requests == Some(0)),
            (
                "requests-per-connection",
                "the number of requests per connection",
                self.requests_per_connection == Some(0),
            ),
            ("pipeline", "the number of pipelined requests", self.pipeline == 0),
            ("streams", "the number of streams", self.streams == 0),
            ("duration", "the duration", self.duration == Some(Duration::ZERO)),
            ("timeout", "the timeout", self.timeout.is_zero()),
        ];
        let zeros = zeros.into_iter().filter(|(.., is_zero)| *is_zero);
        problems.extend(zeros.map(|(field, what, _)| Problem::Zero { field, what }));
        if let Load::Open { stages, .. } = &self.load {
            let highest = stages.iter().map(|s| s.rate).fold(0.0, f64::max);
            problems.extend(
                stages
                    .iter()
                    .map(|s| s.rate)
                    .filter(|r| !(0.0..=1e7).contains(r))
                    .chain((highest <= 0.0).then_some(highest))
                    .map(Problem::Rate),
            );
            if self.pipeline > 1 {
                problems.push(Problem::OpenPipeline);
            }
        }
        if !self.gather.is_zero() {
            if self.load != Load::Closed || self.journeys.is_some() {
                problems.push(Problem::GatherPaced);
            }
            if self.gather > LONGEST_GATHER {
                problems.push(Problem::GatherLong(self.gather));
            }
        }
        problems.extend(ProtocolProblem::of(self).into_iter().map(Problem::Protocol));
        problems
    }

    /// The number of threads: the user's, or the usual one.
    fn thread_count(&self) -> usize {
        let parts = self.part.map_or(1, |part| part.of);
        let available = oroshi_net::available_cpus().map_or(1, |cpus| cpus.iter().count());
        let usual = match &self.load {
            // Within one thread any free connection takes the next arrival; threads pass none to each other.
            Load::Open { stages, .. } if stages.iter().all(|s| s.rate <= ONE_THREAD_RATE * parts as f64) => 1,
            _ => 2,
        };
        self.threads.unwrap_or_else(|| usual.min(available).min((self.connections / parts).max(1)))
    }

    /// Length of the measured part: the user's, or that of the stages, or wrk's default; `None` with a number of
    /// requests.
    fn length(&self) -> Option<Duration> {
        if self.journeys.is_some() {
            // Journeys may be counted, which the load does not know.
            return self.duration;
        }
        let staged = match &self.load {
            Load::Open { stages, .. } => stages.iter().map(|s| s.duration).sum(),
            Load::Closed => Duration::ZERO,
        };
        self.duration.or(match (staged.is_zero(), self.requests) {
            (false, _) => Some(staged),
            (true, None) => Some(DEFAULT_DURATION),
            (true, Some(_)) => None,
        })
    }

    /// Groups the URLs by where their connections go, in their order.
    fn origins(&self, numbers: &UrlNumbers) -> Result<Vec<Origin>, Problem> {
        let mut origins: Vec<Origin> = Vec::new();
        for url in &self.urls {
            let address = self.destination(url);
            let host = url.host();
            let mut request = Request::new(&self.method, url, &self.headers, &self.body, self.requests_per_connection)?;
            request.url = numbers.get(url);
            if self.http2.is_some() {
                request.encode_http2(url.scheme, &self.body)?;
            }
            let same = |o: &&mut Origin| o.scheme == url.scheme && o.address == address && o.host == host;
            match origins.iter_mut().find(same) {
                Some(origin) => origin.requests.push(request),
                None => {
                    let tls = match url.scheme {
                        Scheme::Http => None,
                        Scheme::Https if self.http2.is_some() => {
                            let options = ClientTlsOptions { alpn: vec![ALPN.to_vec()], ..self.tls.clone() };
                            Some(ClientTls::new(&options, host)?)
                        }
                        Scheme::Https => Some(ClientTls::new(&self.tls, host)?),
                    };
                    let requests = vec![request];
                    origins.push(Origin {
                        scheme: url.scheme,
                        elsewhere: (address != url.address).then(|| url.authority.to_string()),
                        address,
                        host: host.to_owned(),
                        tls,
                        requests,
                        connections: 0,
                    });
                }
            }
        }
        Ok(origins)
    }
}

impl Plan {
    /// Returns the number of a thread of this process among all threads of the run, and how many those are.
    pub(crate) fn position(&self, thread: usize) -> (usize, usize) {
        let part = self.part.unwrap_or(Part { index: 0, of: 1 });
        // Threads of the same number stand together, so that shares of parts differ least.
        (thread * part.of + part.index, part.of * self.threads)
    }

    /// Whether each request has its own connection, by the plan or because the user's headers ask for it.
    #[must_use]
    pub fn connects_per_request(&self) -> bool {
        self.requests_per_connection == Some(1) || self.origins.iter().flat_map(|o| &o.requests).all(|r| r.closes)
    }

    /// Requests that may be in progress at once: connections, times the streams or the pipelined requests of each.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.connections * self.pipeline.max(self.streams)
    }

    pub(crate) fn connector_options(&self, origin: &Origin) -> ConnectorOptions {
        ConnectorOptions {
            sources: self.sources.clone(),
            // A connection's only request never waits for an acknowledgement, if it fits one segment.
            nodelay: !self.connects_per_request()
                || self.script.is_some()
                || self.journeys.is_some()
                || origin.requests.iter().any(|r| r.size() > 1400),
            tls: origin.tls.clone(),
            permitted: self.permitted.clone(),
            ..ConnectorOptions::default()
        }
    }
}

impl Origin {
    /// Returns host and port, or the socket's name, as reports show it.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.address {
            Address::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp { host, port } => format!("{host}:{port}"),
            Address::Unix(socket) => format!("unix:{socket}"),
        }
    }

    /// Resolves the addresses.
    ///
    /// # Errors
    /// When the name does not resolve.
    pub(crate) async fn peers(&self) -> Result<Vec<Peer>, ResolveError> {
        let (scheme, address) = (self.scheme, self.address.clone());
        Endpoint { scheme, address, authority: self.host.as_str().into(), target: "/".into() }.peers().await
    }
}

/// The longest wait before reading.
const LONGEST_GATHER: Duration = Duration::from_millis(10);

/// Requests per second that one thread carries with ease, whether connections are kept or not.
const ONE_THREAD_RATE: f64 = 10_000.0;
/// Default length of a run: wrk's.
pub const DEFAULT_DURATION: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(urls: &[&str]) -> Draft {
        Draft { urls: urls.iter().map(|u| u.parse().unwrap()).collect(), ..Draft::default() }
    }

    #[test]
    fn urls_are_grouped_by_where_they_connect() {
        let plan = draft(&["http://127.0.0.1:1/a", "http://127.0.0.1:2/b", "http://127.0.0.1:1/c"]).plan().unwrap();
        assert_eq!(plan.origins.len(), 2);
        assert_eq!(plan.origins[0].requests.len(), 2);
        assert_eq!(plan.origins.iter().map(|o| o.connections).sum::<usize>(), 10);
        assert_eq!(plan.duration, Some(DEFAULT_DURATION));
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let wrong = Draft { connections: 0, pipeline: 0, timeout: Duration::ZERO, ..draft(&[]) };
        let Problems(problems) = wrong.plan().unwrap_err();
        assert_eq!(problems.len(), 4, "{problems:?}");
    }

    #[test]
    fn more_threads_than_connections_is_refused_only_when_asked_for() {
        assert_eq!(Draft { connections: 1, ..draft(&["http://h/"]) }.plan().unwrap().threads, 1);
        let asked = Draft { connections: 1, threads: Some(2), ..draft(&["http://h/"]) };
        assert!(asked.plan().unwrap_err().to_string().contains("1 connections on 2 threads"));
    }

    #[test]
    fn connect_to_reads_four_parts_and_the_first_match_counts() {
        let rule: ConnectTo = "example.com:443:[::1]:8443".parse().unwrap();
        assert_eq!(rule.to_host.as_deref(), Some("::1"));
        let any: ConnectTo = ":::9".parse().unwrap();
        assert_eq!((any.from_host.clone(), any.to_port), (None, Some(9)));
        for bad in ["", "a:1:b", "a:1:b:x", "a:1:b:2:3", "[::1:2:a:3"] {
            assert!(bad.parse::<ConnectTo>().is_err(), "{bad}");
        }
        let plan = Draft { connect_to: vec![rule, any], ..draft(&["https://example.com/", "http://other:80/"]) }
            .plan()
            .unwrap();
        assert_eq!(plan.origins[0].address, Address::Tcp { host: "::1".into(), port: 8443 });
        assert_eq!(plan.origins[0].host, "example.com");
        assert_eq!(plan.origins[1].address, Address::Tcp { host: "other".into(), port: 9 });
    }

    #[test]
    fn unix_takes_the_place_of_the_address() {
        let plan = Draft { unix: Some(UnixAddress::path("/run/x.sock").unwrap()), ..draft(&["http://example.com/p"]) }
            .plan()
            .unwrap();
        assert!(matches!(plan.origins[0].address, Address::Unix(_)));
        let bytes = String::from_utf8(plan.origins[0].requests[0].keep.to_vec()).unwrap();
        assert!(bytes.starts_with("GET /p HTTP/1.1\r\nHost: example.com\r\n"), "{bytes}");
    }
}
