//! The founding case: N requests at the same moment, each on a connection of its own, to a server that takes its time
//! to answer. How far is the mean from the server's own delay, and what does a request cost?
//!
//! ```text
//! oroshi target --listen 127.0.0.1:8080 --delay 100ms --cpus 1
//! taskset -c 0 cargo run --release -p oroshi-client --example burst -- http://127.0.0.1:8080/ 10 100 1000 10000
//! ```
//!
//! "mean" and its like count from the moment at which a request was begun; "all-mean" from the moment at which the
//! burst was, as if all had been begun just then. What else can be asked for:
//!
//! - `--at-once` makes all tasks ready before the first of them runs;
//! - `--warm` sends the burst twice, and reports the second, which finds the connections of the first idle;
//! - `--cap N` opens at most N connections, so that the rest waits in line and uses them again;
//! - `--send` uses the client that has a thread of its own instead of the local one;
//! - `--rounds N` repeats each burst;
//! - `--json` prints a line of JSON for each instead of the table: what `experiments/http-clients.toml` reads of every
//!   client.
#![allow(clippy::print_stdout, clippy::print_stderr)] // it is a program

use std::error::Error;
use std::future::Future;
use std::time::{Duration, Instant};

use oroshi_client::{Client, Deadlines, local};
use oroshi_net::clock::process_cpu_ns;
use oroshi_net::{Endpoint, Threads, ThreadsOptions};

struct Options {
    url: Endpoint,
    bursts: Vec<usize>,
    rounds: usize,
    cap: Option<usize>,
    send: bool,
    warm: bool,
    at_once: bool,
    json: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    if !options.json {
        println!(
            "{:>7} {:>9} {:>9} {:>9} {:>11} {:>9} {:>11} {:>12}",
            "N", "mean ms", "p50 ms", "p99 ms", "all-mean ms", "failures", "connections", "CPU us/req"
        );
    }
    Threads::run(&ThreadsOptions::new("burst", 1), move |_| {
        let Options { ref url, ref bursts, rounds, cap, send, warm, at_once, json } = options;
        let (url, bursts) = (url.clone(), bursts.clone());
        async move {
            for n in bursts {
                for _ in 0..rounds {
                    let most = cap.unwrap_or(n);
                    let deadlines = Deadlines { queue: Duration::from_secs(300), ..Deadlines::default() };
                    // A connection of its own for each, unless there is a cap.
                    let builder =
                        Client::builder().connections(most).keep_alive(warm || cap.is_some()).deadlines(deadlines);
                    let (times, connects, cpu_ns) = if send {
                        let client = builder.build().expect("sound settings");
                        if warm {
                            burst(n, at_once, || shared(client.clone(), url.clone())).await;
                        }
                        let before = process_cpu_ns();
                        let times = burst(n, at_once, || shared(client.clone(), url.clone())).await;
                        (times, client.counts().await.connects, process_cpu_ns() - before)
                    } else {
                        let client = builder.build_local().expect("sound settings");
                        if warm {
                            burst(n, at_once, || alone(client.clone(), url.clone())).await;
                        }
                        let before = process_cpu_ns();
                        let times = burst(n, at_once, || alone(client.clone(), url.clone())).await;
                        (times, client.counts().connects, process_cpu_ns() - before)
                    };
                    let seen = Seen { n, connects, cpu_us: cpu_ns as f64 / 1e3 / n as f64, times };
                    if json { seen.as_json() } else { seen.as_row() }
                }
            }
        }
    })?;
    Ok(())
}

async fn alone(client: local::Client, url: Endpoint) -> Result<(), oroshi_client::Error> {
    client.get(url).send().await?.bytes().await.map(drop)
}

async fn shared(client: Client, url: Endpoint) -> Result<(), oroshi_client::Error> {
    client.get(url).send().await?.bytes().await.map(drop)
}

/// When a request was begun and when it ended, both since the burst began; the former is when its task first ran.
type Times = Option<(Duration, Duration)>;

async fn burst<F>(n: usize, at_once: bool, request: impl Fn() -> F) -> Vec<Times>
where
    F: Future<Output = Result<(), oroshi_client::Error>> + 'static,
{
    let start = Instant::now();
    let mut tasks = Vec::with_capacity(n);
    for number in 0..n {
        let request = request();
        tasks.push(tokio::task::spawn_local(async move {
            let began = start.elapsed();
            match request.await {
                Ok(()) => Some((began, start.elapsed())),
                Err(error) => {
                    eprintln!("{error} ({})", error.cause());
                    None
                }
            }
        }));
        // tokio runs tasks in the order in which they become ready. With all of them ready at first, the first answer
        // would be looked at after the last request had been begun; so the sockets are looked at in between.
        if !at_once && number % 32 == 31 {
            tokio::task::yield_now().await;
        }
    }
    let mut times = Vec::with_capacity(n);
    for task in tasks {
        times.push(task.await.expect("no panic"));
    }
    times
}

/// What is known of a burst.
struct Seen {
    n: usize,
    connects: u64,
    /// CPU time of this process, user and system, per request.
    cpu_us: f64,
    times: Vec<Times>,
}

impl Seen {
    fn as_row(&self) {
        let (own, all) = (self.own(), self.all());
        println!(
            "{:>7} {:>9.1} {:>9.1} {:>9.1} {:>11.1} {:>9} {:>11} {:>12.1}",
            self.n,
            mean(&own),
            at(&own, 0.5),
            at(&own, 0.99),
            mean(&all),
            self.n - own.len(),
            self.connects,
            self.cpu_us
        );
    }

    fn as_json(&self) {
        let (own, all) = (self.own(), self.all());
        println!(
            concat!(
                r#"{{"client":"oroshi-client","n":{},"ok":{},"failed":{},"mean_ms":{:.3},"p99_ms":{:.3},"#,
                r#""max_ms":{:.3},"all_mean_ms":{:.3},"cpu_us_per_request":{:.3},"wall_ms":{:.3}}}"#
            ),
            self.n,
            own.len(),
            self.n - own.len(),
            mean(&own),
            at(&own, 0.99),
            at(&own, 1.0),
            mean(&all),
            self.cpu_us,
            at(&all, 1.0)
        );
    }

    /// How long each answered request took, in ms and in order.
    fn own(&self) -> Vec<f64> {
        sorted(self.times.iter().flatten().map(|&(began, ended)| ended - began))
    }

    /// The same from the moment at which the burst began.
    fn all(&self) -> Vec<f64> {
        sorted(self.times.iter().flatten().map(|&(_, ended)| ended))
    }
}

fn sorted(times: impl Iterator<Item = Duration>) -> Vec<f64> {
    let mut times: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// The least time that this share of them does not exceed.
fn at(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("expected a URL, then the numbers of requests, for example 100 1000")?.parse()?;
    let mut options = Options {
        url,
        bursts: Vec::new(),
        rounds: 1,
        cap: None,
        send: false,
        warm: false,
        at_once: false,
        json: false,
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--send" => options.send = true,
            "--warm" => options.warm = true,
            "--at-once" => options.at_once = true,
            "--json" => options.json = true,
            "--cap" => options.cap = Some(arguments.next().ok_or("--cap wants a number")?.parse()?),
            "--rounds" => options.rounds = arguments.next().ok_or("--rounds wants a number")?.parse()?,
            number => options.bursts.push(number.parse()?),
        }
    }
    if options.bursts.is_empty() {
        options.bursts = vec![10, 100, 500, 1000, 5000, 10_000];
    }
    Ok(options)
}
