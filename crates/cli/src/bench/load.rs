//! Turns load flags into a draft; reports every mistake at once.

use std::path::Path;
use std::time::Duration;

use oroshi_bench::{ConnectTo, Draft, Http2, Load, Spacing, Stage, Watching};
use oroshi_net::{ClientTlsOptions, UnixAddress};
use oroshi_words::Naming;
use oroshi_words::units;

use super::args::LoadArgs;
use super::sources;
use crate::problems::Problems;

/// Reads load flags. Returns the draft, without a URL; with `--rate 60%` the share (0.6), and then a closed loop in the
/// draft; and all mistakes.
pub(crate) fn read_load(load: LoadArgs, naming: Naming) -> (Draft, Option<f64>, Problems) {
    let mut problems = Problems::new(naming);
    let (rhythm, share) = load.rhythm(&mut problems);
    let draft = load.draft(rhythm, &mut problems);
    (draft, share, problems)
}

impl LoadArgs {
    fn draft(&self, load: Load, problems: &mut Problems) -> Draft {
        let default = Draft::default();
        let has_body = self.body.is_some() || self.body_file.is_some();
        if let Some(file) = self.body.as_deref().and_then(|body| body.strip_prefix('@')) {
            // The text may be a secret, unless it is a file's name.
            let name = if Path::new(file).exists() { file } else { "FILE" };
            let body_file = problems.name("body-file");
            let text =
                format!("it begins with @, which is sent as it stands: {body_file} {name} sends what is in a file");
            problems.add("--body", text);
        }
        Draft {
            unix: problems.one("--unix", self.unix.as_deref(), UnixAddress::parse),
            connect_to: problems.all("--connect-to", &self.connect_to, str::parse::<ConnectTo>),
            method: self.method.clone().unwrap_or_else(|| if has_body { "POST" } else { "GET" }.into()),
            headers: problems.all("--header", &self.header, parse_header),
            body: match &self.body_file {
                Some(file) => problems.read("--body-file", file).unwrap_or_default().into(),
                None => self.body.clone().unwrap_or_default().into_bytes().into(),
            },
            threads: problems.one("--threads", self.threads.as_deref(), parse_size),
            connections: problems
                .one("--connections", self.connections.as_deref(), parse_size)
                .unwrap_or(default.connections),
            hold: problems.one("--hold", self.hold.as_deref(), parse_size).unwrap_or(0),
            load,
            duration: problems.one("--duration", self.duration.as_deref(), parse_duration),
            requests: problems.one("--requests", self.requests.as_deref(), units::parse_count),
            warmup: problems.one("--warmup", self.warmup.as_deref(), units::parse_time).unwrap_or_default(),
            timeout: problems.one("--timeout", self.timeout.as_deref(), parse_timeout).unwrap_or(default.timeout),
            requests_per_connection: if self.close {
                Some(1)
            } else {
                let text = self.requests_per_connection.as_deref();
                problems.one("--requests-per-connection", text, parse_requests_per_connection).flatten()
            },
            pipeline: problems.one("--pipeline", self.pipeline.as_deref(), parse_size).unwrap_or(1),
            http2: match (self.http2, self.http2_prior_knowledge) {
                (_, true) => Some(Http2::PriorKnowledge),
                (true, false) => Some(Http2::Alpn),
                (false, false) => None,
            },
            streams: problems.one("--streams", self.streams.as_deref(), parse_size).unwrap_or(1),
            gather: problems.one("--gather", self.gather.as_deref(), units::parse_time).unwrap_or_default(),
            sources: problems.one("--source", self.source.as_deref(), sources::parse).unwrap_or_default(),
            cpus: problems.one("--cpus", self.cpus.as_deref(), str::parse),
            tls: ClientTlsOptions { alpn: vec![b"http/1.1".to_vec()], ..self.tls.options() },
            checks: problems.all("--check", &self.check, str::parse::<oroshi_bench::Check>),
            watch: problems.one("--watch", self.watch.as_deref(), parse_watch).unwrap_or(Watching::Auto),
            ..default
        }
    }

    /// Reads the kind of loop, and its rate if that is a share.
    fn rhythm(&self, problems: &mut Problems) -> (Load, Option<f64>) {
        let spacing = problems.one("--arrivals", self.arrivals.as_deref(), parse_spacing);
        let seed = problems.one("--seed", self.seed.as_deref(), units::parse_count);
        let rate = problems.one("--rate", self.rate.as_deref(), parse_rate);
        let stages = problems.one("--stages", self.stages.as_deref(), parse_stages);
        let open = self.rate.is_some() || self.stages.is_some();
        if self.arrivals.is_some() && !open {
            let (rate, stages) = (problems.name("rate"), problems.name("stages"));
            problems.add("--arrivals", format!("it is about an open loop: give a {rate} or {stages} as well"));
        }
        if self.seed.is_some() && spacing != Some(Spacing::Poisson) {
            let arrivals = problems.name("arrivals");
            let text = format!("it is for random arrivals: give {arrivals} poisson as well, or leave it out");
            problems.add("--seed", text);
        }
        if spacing == Some(Spacing::Poisson) && matches!(rate, Some(Rate::Share(_))) {
            let rate = problems.name("rate");
            let text =
                format!("poisson arrivals want a rate in requests per second, and {rate} is a share: leave one out");
            problems.add("--arrivals", text);
        }
        let (spacing, seed) = (spacing.unwrap_or(Spacing::Constant), seed.unwrap_or(0));
        match (rate, stages) {
            (Some(Rate::PerSecond(rate)), _) => (Load::rate(rate, spacing, seed), None),
            (Some(Rate::Share(share)), _) => (Load::Closed, Some(share)),
            (None, Some(stages)) => (Load::Open { stages, spacing, seed }, None),
            (None, None) => (Load::Closed, None),
        }
    }
}

pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let number = units::parse_count(text)?;
    usize::try_from(number).ok().filter(|n| *n <= 10_000_000).ok_or_else(|| format!("`{text}` is more than 10 million"))
}

/// Parses `-d`, which is a body in hey, oha and curl.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let is_body = text.starts_with(['{', '[', '@']) || text.contains('=');
    // The text may be a body, and so a secret.
    if is_body { Err("it is a time, such as 30s: a body is -b here".into()) } else { units::parse_time(text) }
}

/// Parses `-T`, which is a content type in ab, hey and oha.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    units::parse_time(text).map_err(|error| match text.contains('/') {
        true => format!("{error}; a content type is -H 'Content-Type: {text}' here"),
        false => error,
    })
}

/// Parses a number; `None` is unlimited.
fn parse_requests_per_connection(text: &str) -> Result<Option<u64>, String> {
    if text == "unlimited" { Ok(None) } else { units::parse_count(text).map(Some) }
}

/// Requests per second, or a share of the slowest set-up's capacity.
enum Rate {
    PerSecond(f64),
    Share(f64),
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    if !text.ends_with('%') {
        return units::parse_number(text).map(Rate::PerSecond);
    }
    match units::parse_percent(text)? {
        share if share > 0.0 && share < 1.0 => Ok(Rate::Share(share)),
        _ => Err(format!("`{text}`: expected a share above 0 % and below 100 %, such as 60%")),
    }
}

pub(crate) fn parse_header(text: &str) -> Result<(String, String), String> {
    // The message omits the value, which may be a secret.
    let (name, value) = text.split_once(':').ok_or_else(|| match text.split_once(' ') {
        Some((name, _)) => format!("`{name} ...` has no colon: expected `Name: value`"),
        None => format!("`{text}` has no colon: expected `Name: value`"),
    })?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub(super) fn parse_spacing(text: &str) -> Result<Spacing, String> {
    match text {
        "constant" => Ok(Spacing::Constant),
        "poisson" => Ok(Spacing::Poisson),
        _ => Err(format!("`{text}`: expected constant or poisson")),
    }
}

pub(super) fn parse_stages(text: &str) -> Result<Vec<Stage>, String> {
    let stages = units::parse_stages(text, "RATE", "10s:1000,30s:5000", units::parse_number)?;
    Ok(stages.into_iter().map(|(duration, rate)| Stage { duration, rate }).collect())
}

fn parse_watch(text: &str) -> Result<Watching, String> {
    match text {
        "auto" => Ok(Watching::Auto),
        "none" => Ok(Watching::None),
        pid => pid.parse().map(Watching::Pid).map_err(|_| format!("`{text}`: expected a process id, auto or none")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use oroshi_experiment::words::load_words;
    use oroshi_words::Mistake;

    use super::*;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn read(line: &str) -> (Draft, Option<f64>, Vec<Mistake>) {
        let line = Line::try_parse_from(line.split_whitespace()).unwrap_or_else(|e| panic!("{line}: {e}"));
        let (draft, share, problems) = read_load(line.load, Naming::Flags);
        (draft, share, problems.found)
    }

    #[test]
    fn a_rate_may_be_a_share() {
        let (draft, share, problems) = read("-R 60%");
        assert_eq!((draft.load, share, problems.len()), (Load::Closed, Some(0.6), 0));
        assert_eq!(read("-R 60").1, None);
        for bad in ["-R 0%", "-R 100%", "-R x%", "-R 50% --arrivals poisson", "-R 50% --seed 1"] {
            assert_eq!(read(bad).2.len(), 1, "{bad}");
        }
    }

    #[test]
    fn connections_may_be_kept_without_end() {
        assert_eq!(read("--requests-per-connection unlimited").0.requests_per_connection, None);
        let (.., problems) = read("--requests-per-connection forever");
        assert_eq!(problems[0].key, "--requests-per-connection");
    }

    #[test]
    fn a_load_is_told_in_words_without_secrets() {
        let words = |line: &str| {
            let (draft, share, problems) = read(line);
            assert!(problems.is_empty(), "{problems:?}");
            load_words(&draft, share)
        };
        assert_eq!(words(""), "10 connections, closed loop");
        assert_eq!(
            words("-c1 -d2s -w250ms --close"),
            "1 connection, one per request, closed loop, 2s after 250ms of warm-up"
        );
        assert_eq!(
            words("-c100 -R 60% --requests-per-connection 10 -n 1k -d5s"),
            "100 connections, each for 10 requests, open loop at 60 % of what the slowest can, 1,000 requests, or 5s"
        );
        assert_eq!(
            words("-R 2k --hold 50 -b secret -H X-Key:secret"),
            "10 connections, open loop at 2,000/s, 50 idle ones beside them, POST with 6 B, with X-Key"
        );
        assert_eq!(
            words("-c 4 --http2-prior-knowledge --streams 32"),
            "4 connections of HTTP/2 with 32 streams each, closed loop"
        );
        assert_eq!(words("--http2 --close"), "10 connections of HTTP/2, one per request, closed loop");
        assert_eq!(words("--pipeline 4 -m PUT"), "10 connections, closed loop, 4 in flight on each, PUT");
    }
}
