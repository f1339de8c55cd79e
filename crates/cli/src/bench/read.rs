//! From what was typed to a draft and an output: every value read, every mistake found at once.

use std::fs;
use std::path::{Path, PathBuf};

use oroshi_bench::{ConnectTo, Draft, Load, Spacing, Stage, Watching};
use oroshi_net::tls::Roots;
use oroshi_net::{ClientTlsOptions, Endpoint, UnixAddress};

use super::args::{Args, Format, LoadArgs, OutputArgs, ReportArgs};
use super::fail_if::Threshold;
use super::sources;
use oroshi_words::units;

/// Where the report goes, and what is in it.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    /// How it is written.
    pub(crate) format: Format,
    /// Where to; `None` is standard output.
    pub(crate) file: Option<PathBuf>,
    /// HdrHistogram log.
    pub(crate) hdr: Option<PathBuf>,
    /// The latency distribution in detail.
    pub(crate) spectrum: bool,
    /// wrk's corrected latencies.
    pub(crate) backfill: bool,
    /// Conditions that make the run a failure.
    pub(crate) thresholds: Vec<Threshold>,
    /// The first URL, or the first file of URLs, as it was typed: wrk's report repeats it. Empty when there is neither.
    pub(crate) url: String,
}

impl Args {
    /// Reads everything that was typed.
    pub(crate) fn read(self) -> (Draft, Output, Vec<String>) {
        let mut problems = Problems(Vec::new());
        let Self { load, output: OutputArgs { report, format, output, .. }, .. } = self;
        if report.wrk_backfill && format != Format::Wrk {
            problems
                .0
                .push("--wrk-backfill changes what --format wrk prints: add --format wrk, or leave it out".into());
        }
        let url = load.name();
        let draft = Draft { interval_histograms: report.hdr.is_some(), ..load.draft(&mut problems) };
        let thresholds = problems.all("--fail-if", &report.fail_if, str::parse::<Threshold>);
        let output = Output {
            format,
            file: output,
            hdr: report.hdr,
            spectrum: report.latency,
            backfill: report.wrk_backfill,
            thresholds,
            url,
        };
        (draft, output, problems.0)
    }

    /// What is left of the flags for --self-test: the format, and the file.
    ///
    /// # Errors
    /// When there is anything else among them.
    pub(crate) fn read_for_self_test(self) -> Result<(Format, Option<PathBuf>), Vec<String>> {
        let OutputArgs { report, format, output } = self.output;
        if self.load != LoadArgs::default() || report != ReportArgs::default() || format == Format::Wrk {
            return Err(vec![
                "--self-test chooses its own loads: it goes with --format text or json, and --output".into(),
            ]);
        }
        Ok((format, output))
    }
}

impl LoadArgs {
    fn draft(self, problems: &mut Problems) -> Draft {
        let default = Draft::default();
        let has_body = self.body.is_some() || self.body_file.is_some();
        let mut urls = problems.all("URL", &self.url, str::parse::<Endpoint>);
        self.urls.iter().for_each(|file| read_urls(file, &mut urls, problems));
        let identity = self.cert.clone().zip(self.key.clone());
        Draft {
            urls,
            unix: problems.one("--unix", self.unix.as_deref(), UnixAddress::parse),
            connect_to: problems.all("--connect-to", &self.connect_to, str::parse::<ConnectTo>),
            method: self.method.clone().unwrap_or_else(|| if has_body { "POST" } else { "GET" }.into()),
            headers: problems.all("--header", &self.header, parse_header),
            body: match &self.body_file {
                Some(file) => problems.read(file).unwrap_or_default().into(),
                None => self.body.clone().unwrap_or_default().into_bytes().into(),
            },
            threads: problems.one("--threads", self.threads.as_deref(), parse_size),
            connections: problems
                .one("--connections", self.connections.as_deref(), parse_size)
                .unwrap_or(default.connections),
            hold: problems.one("--hold", self.hold.as_deref(), parse_size).unwrap_or(0),
            load: self.rhythm(problems),
            duration: problems.one("--duration", self.duration.as_deref(), units::parse_time),
            requests: problems.one("--requests", self.requests.as_deref(), units::parse_count),
            warmup: problems.one("--warmup", self.warmup.as_deref(), units::parse_time).unwrap_or_default(),
            timeout: problems.one("--timeout", self.timeout.as_deref(), units::parse_time).unwrap_or(default.timeout),
            requests_per_connection: if self.close {
                Some(1)
            } else {
                let text = self.requests_per_connection.as_deref();
                problems.one("--requests-per-connection", text, units::parse_count)
            },
            pipeline: problems.one("--pipeline", self.pipeline.as_deref(), parse_size).unwrap_or(1),
            sources: problems.one("--source", self.source.as_deref(), sources::parse).unwrap_or_default(),
            cpus: problems.one("--cpus", self.cpus.as_deref(), str::parse),
            tls: ClientTlsOptions {
                roots: match (self.insecure, self.cacert.is_empty()) {
                    (true, _) => Roots::Insecure,
                    (false, true) => Roots::System,
                    (false, false) => Roots::Only(self.cacert.clone()),
                },
                identity,
                alpn: vec![b"http/1.1".to_vec()],
                ..ClientTlsOptions::default()
            },
            checks: problems.all("--check", &self.check, str::parse::<oroshi_bench::Check>),
            watch: problems.one("--watch", self.watch.as_deref(), parse_watch).unwrap_or(Watching::Auto),
            interval_histograms: false,
        }
    }

    /// Closed or open loop.
    fn rhythm(&self, problems: &mut Problems) -> Load {
        let spacing = problems.one("--arrivals", self.arrivals.as_deref(), parse_spacing);
        let seed = problems.one("--seed", self.seed.as_deref(), units::parse_count);
        let rate = problems.one("--rate", self.rate.as_deref(), units::parse_number);
        let stages = problems.one("--stages", self.stages.as_deref(), parse_stages);
        let open = self.rate.is_some() || self.stages.is_some();
        if self.arrivals.is_some() && !open {
            problems.0.push("--arrivals is about an open loop: give a --rate or --stages as well".into());
        }
        if self.seed.is_some() && spacing != Some(Spacing::Poisson) {
            problems.0.push("--seed is for random arrivals: give --arrivals poisson as well, or leave it out".into());
        }
        let (spacing, seed) = (spacing.unwrap_or(Spacing::Constant), seed.unwrap_or(0));
        match (rate, stages) {
            (Some(rate), _) => Load::rate(rate, spacing, seed),
            (None, Some(stages)) => Load::Open { stages, spacing, seed },
            (None, None) => Load::Closed,
        }
    }

    fn name(&self) -> String {
        let file = self.urls.first().map(|file| file.display().to_string());
        self.url.first().cloned().or(file).unwrap_or_default()
    }
}

/// What is wrong with the flags, each with the name of its flag.
struct Problems(Vec<String>);

impl Problems {
    fn one<T, E: ToString>(
        &mut self,
        flag: &str,
        text: Option<&str>,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        match read(text?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push(format!("{flag}: {}", error.to_string()));
                None
            }
        }
    }

    fn all<T, E: ToString>(&mut self, flag: &str, texts: &[String], read: impl Fn(&str) -> Result<T, E>) -> Vec<T> {
        texts.iter().filter_map(|text| self.one(flag, Some(text), &read)).collect()
    }

    fn read(&mut self, file: &Path) -> Option<Vec<u8>> {
        match fs::read(file) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.0.push(format!("{} cannot be read: {error}", file.display()));
                None
            }
        }
    }
}

fn read_urls(file: &Path, urls: &mut Vec<Endpoint>, problems: &mut Problems) {
    let Some(bytes) = problems.read(file) else { return };
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let mut any = false;
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        any = true;
        urls.extend(problems.one(&format!("{} line {number}", file.display()), Some(line), str::parse::<Endpoint>));
    }
    if !any {
        problems.0.push(format!("{} holds no URL: expected one per line", file.display()));
    }
}

fn parse_size(text: &str) -> Result<usize, String> {
    let number = units::parse_count(text)?;
    usize::try_from(number).ok().filter(|n| *n <= 10_000_000).ok_or_else(|| format!("`{text}` is more than 10 million"))
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    // The value is not repeated: it may be a secret.
    let (name, value) = text.split_once(':').ok_or_else(|| match text.split_once(' ') {
        Some((name, _)) => format!("`{name} ...` has no colon: expected `Name: value`"),
        None => format!("`{text}` has no colon: expected `Name: value`"),
    })?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn parse_spacing(text: &str) -> Result<Spacing, String> {
    match text {
        "constant" => Ok(Spacing::Constant),
        "poisson" => Ok(Spacing::Poisson),
        _ => Err(format!("`{text}`: expected constant or poisson")),
    }
}

fn parse_stages(text: &str) -> Result<Vec<Stage>, String> {
    let stage = |part: &str| {
        let (duration, rate) = part
            .split_once(':')
            .ok_or_else(|| format!("`{part}` is no stage: expected TIME:RATE, as in 10s:1000,30s:5000"))?;
        Ok(Stage { duration: units::parse_time(duration)?, rate: units::parse_number(rate)? })
    };
    text.split(',').map(stage).collect()
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
    use std::time::Duration;

    use clap::Parser;
    use oroshi_bench::Check;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(line: &str) -> (Draft, Output, Vec<String>) {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}")).args.read()
    }

    fn draft(line: &str) -> Draft {
        let (draft, _, problems) = read(line);
        assert!(problems.is_empty(), "{line}: {problems:?}");
        draft
    }

    fn refused(line: &str) -> bool {
        Line::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).is_err()
    }

    #[test]
    fn wrks_flags_mean_what_they_mean_there() {
        for line in [
            "-t2 -c100 -d30s --timeout 5 http://h/",
            "-t 2 -c 100 --duration 30 -T5s http://h/",
            "http://h/ -t2 -c0.1k -d0.5m -T 5000ms",
        ] {
            let d = draft(line);
            assert_eq!((d.threads, d.connections), (Some(2), 100), "{line}");
            assert_eq!((d.duration, d.timeout), (Some(Duration::from_secs(30)), Duration::from_secs(5)), "{line}");
        }
        let d = draft("-c 1k -d 2m http://h/");
        assert_eq!((d.threads, d.connections, d.duration), (None, 1000, Some(Duration::from_secs(120))));
        assert!(read("-L http://h/").1.spectrum && read("--latency http://h/").1.spectrum);
        assert_eq!(draft("-P /run/x.sock http://h/").unix, Some(UnixAddress::path("/run/x.sock").unwrap()));
        let d = draft("http://h/");
        assert_eq!((d.connections, d.duration, d.timeout), (10, None, Duration::from_secs(2)));
    }

    #[test]
    fn headers_are_taken_apart_and_a_broken_one_is_not_dropped() {
        let line = ["bench", "-H", "X-A: b: c", "-HHost:other", "-H", "Empty:", "http://h/"];
        let (draft, _, problems) = Line::try_parse_from(line).unwrap().args.read();
        let headers: Vec<(&str, &str)> = draft.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!((headers, problems.len()), (vec![("X-A", "b: c"), ("Host", "other"), ("Empty", "")], 0));
        let (.., problems) =
            Line::try_parse_from(["bench", "-H", "Authorization secret", "http://h/"]).unwrap().args.read();
        assert!(problems[0].starts_with("--header: `Authorization ...` has no colon"), "{problems:?}");
    }

    #[test]
    fn an_open_loop_is_a_rate_or_stages() {
        assert_eq!(draft("-R 2k http://h/").load, Load::rate(2000.0, Spacing::Constant, 0));
        let poisson = draft("--stages 10s:1000,30s:5k --arrivals poisson --seed 7 http://h/").load;
        let stage = |s, rate| Stage { duration: Duration::from_secs(s), rate };
        let stages = vec![stage(10, 1000.0), stage(30, 5000.0)];
        assert_eq!(poisson, Load::Open { stages, spacing: Spacing::Poisson, seed: 7 });
        assert!(refused("-R 1 --stages 1s:1 http://h/"));
        assert!(read("--arrivals poisson http://h/").2[0].contains("--rate"));
        assert!(read("-R 1 --seed 3 http://h/").2[0].contains("--arrivals poisson"));
        assert!(read("--stages 10s http://h/").2[0].contains("TIME:RATE"));
    }

    #[test]
    fn a_body_makes_it_a_post_unless_said_otherwise() {
        assert_eq!(draft("-b hello http://h/").method, "POST");
        assert_eq!(draft("-b hello -m PUT http://h/").method, "PUT");
        assert_eq!(draft("http://h/").method, "GET");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"\x00\xff").unwrap();
        assert_eq!(&draft(&format!("--body-file {} http://h/", file.path().display())).body[..], *b"\x00\xff");
        assert!(read("--body-file /nonexistent/x http://h/").2[0].contains("/nonexistent/x"));
    }

    #[test]
    fn urls_come_from_a_file_too_and_its_mistakes_have_line_numbers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "# two\nhttp://h/a\n\n  unix:/run/x:/b  \nftp://h/\n").unwrap();
        let (draft, _, problems) = read(&format!("--urls {}", file.path().display()));
        assert_eq!(draft.urls.len(), 2);
        assert!(problems.len() == 1 && problems[0].contains("line 5") && problems[0].contains("ftp"), "{problems:?}");
    }

    #[test]
    fn every_mistake_is_found_at_once() {
        let (.., problems) =
            read("-tx -c1.5 -d10x -Rfast --watch me --cpus a --source b --check c --connect-to d --fail-if e ftp://h/");
        let flags = [
            "--threads",
            "--connections",
            "--duration",
            "--rate",
            "--watch",
            "--cpus",
            "--source",
            "--check",
            "--connect-to",
            "--fail-if",
            "URL",
        ];
        assert_eq!(problems.len(), flags.len(), "{problems:#?}");
        for flag in flags {
            assert!(problems.iter().any(|p| p.starts_with(&format!("{flag}: "))), "{flag} in {problems:#?}");
        }
    }

    #[test]
    fn tls_is_verified_unless_told_otherwise() {
        assert_eq!(draft("https://h/").tls.roots, Roots::System);
        assert_eq!(draft("--cacert a.pem https://h/").tls.roots, Roots::Only(vec!["a.pem".into()]));
        assert_eq!(draft("--insecure https://h/").tls.roots, Roots::Insecure);
        assert_eq!(draft("--cert c --key k https://h/").tls.identity, Some(("c".into(), "k".into())));
        assert!(refused("--cert c https://h/") && refused("--key k https://h/") && refused("-k --cacert a https://h/"));
    }

    #[test]
    fn what_excludes_each_other_is_refused() {
        assert_eq!(draft("--close http://h/").requests_per_connection, Some(1));
        assert_eq!(draft("--requests-per-connection 1k http://h/").requests_per_connection, Some(1000));
        assert!(refused("--close --requests-per-connection 5 http://h/"));
        assert!(refused("-b x --body-file y http://h/"));
        let self_test = |rest: &str| {
            let words = ["bench", "--self-test"].into_iter().chain(rest.split_whitespace());
            Line::try_parse_from(words).unwrap().args.read_for_self_test()
        };
        for line in ["http://h/", "-c 5", "-L", "--format wrk", "--fail-if x"] {
            assert!(self_test(line).unwrap_err()[0].contains("--self-test"), "{line}");
        }
        assert_eq!(self_test("--format json -o x"), Ok((Format::Json, Some("x".into()))));
        assert!(read("--wrk-backfill http://h/").2[0].contains("--format wrk"));
        assert!(refused("-s script.lua http://h/"));
    }

    #[test]
    fn the_rest_is_read_by_those_who_know() {
        let d =
            draft("--watch 12 --cpus 0,2-3 --source 127.0.0.2-127.0.0.4 --check status=2xx --check length=3 http://h/");
        assert_eq!((d.watch, d.sources.len(), d.checks.len()), (Watching::Pid(12), 3, 2));
        assert_eq!(d.checks[1], Check::Length(3));
        assert_eq!(d.cpus.unwrap().len(), 3);
        assert_eq!(draft("--watch none http://h/").watch, Watching::None);
    }
}
