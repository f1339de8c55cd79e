//! Turns flags into a draft and an output; reports every mistake at once.

use std::mem;
use std::path::{Path, PathBuf};

use oroshi_bench::Draft;
use oroshi_net::{Endpoint, Scheme};
use oroshi_words::Naming;

use super::ab;
use super::args::{Args, Format, LoadArgs, OutputArgs, ReportArgs, ScriptArgs};
use super::fail_if::Threshold;
use super::load::read_load;
use super::remote;
use super::script::Scripted;
use crate::formats::Also;
use crate::problems::Problems;

/// The destination and the content of the report.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    /// The format.
    pub(crate) format: Format,
    /// Reports in other formats, with their files.
    pub(crate) also: Vec<Also<Format>>,
    /// A receiver of Prometheus' remote write.
    pub(crate) remote_write: Option<remote::Receiver>,
    /// The file; `None`: standard output.
    pub(crate) file: Option<PathBuf>,
    /// The file of the HTML page.
    pub(crate) page: Option<PathBuf>,
    /// The file of the HdrHistogram log.
    pub(crate) hdr: Option<PathBuf>,
    /// Whether to print the latency distribution in detail.
    pub(crate) spectrum: bool,
    /// Whether to add values to the latencies as wrk does.
    pub(crate) backfill: bool,
    /// Options of ab's report.
    pub(crate) ab: ab::Options,
    /// The file with a line per answered request.
    pub(crate) gnuplot: Option<PathBuf>,
    /// The CSV file of all percentiles.
    pub(crate) percentiles: Option<PathBuf>,
    /// Conditions that make the run a failure.
    pub(crate) thresholds: Vec<Threshold>,
    /// Texts to add to the warnings.
    pub(crate) remarks: Vec<String>,
    /// The first URL, or the first file of URLs, as typed, for wrk's report; empty without either.
    pub(crate) url: String,
    /// Whether to draw the run on the whole terminal, and the title of that view.
    pub(crate) tui: bool,
    /// See `tui`.
    pub(crate) title: String,
}

impl Args {
    /// Reads all flags. The draft has no script yet; `Scripted`, beside it, makes one.
    pub(crate) fn read(self) -> (Draft, Option<Scripted>, Output, Vec<String>) {
        let Self { url, load, urls, script, output: args, .. } = self;
        let OutputArgs { report, tui, format, also, remote_write, remote_write_header, output } = args;
        let shown_url = first_of(&url, &urls);
        let title = title_of(&url, &shown_url);
        let rate = load.rate.clone().unwrap_or_default();
        let sends_body = load.body.is_some() || load.body_file.is_some();
        let insecure = load.tls.insecure;
        let (draft, share, mut problems) = read_load(load, Naming::Flags);
        if share.is_some() {
            let text =
                format!("`{rate}` is a share of what set-ups can do, for comparing them: expected requests per second");
            problems.add("--rate", text);
        }
        if report.wrk_backfill && format != Format::Wrk {
            problems.add("--wrk-backfill", "it changes what --format wrk prints: add --format wrk, or leave it out");
        }
        for (flag, given) in
            [("--ab-any-length", report.ab_any_length), ("--ab-decimals", report.ab_decimals.is_some())]
        {
            let lists = flag == "--ab-decimals" && report.gnuplot.is_some();
            if given && format != Format::Ab && !lists {
                problems.add(flag, "it changes what --format ab prints: add --format ab, or leave it out");
            }
        }
        let also = problems.all("--also", &also, str::parse::<Also<Format>>);
        files_of_their_own(&report, output.as_deref(), &also, &mut problems);
        let remote_write = remote::Receiver::read(remote_write.as_deref(), &remote_write_header, &mut problems);
        no_format(output.as_deref(), &mut problems);
        let mut endpoints = problems.all("URL", &url, str::parse::<Endpoint>);
        urls.iter().for_each(|file| read_urls(file, &mut endpoints, &mut problems));
        let secure = endpoints.iter().any(|url| url.scheme == Scheme::Https);
        if insecure && !secure && !endpoints.is_empty() {
            let text = "it is about certificates, and no URL is https: leave it out (ab's -k, kept connections, is the \
                        default here)";
            problems.add("--insecure", text);
        }
        let unverified = "the server's certificate was not verified (-k, --insecure)";
        let remarks = if insecure { vec![unverified.to_owned()] } else { Vec::new() };
        let draft = Draft {
            urls: endpoints,
            interval_histograms: report.hdr.is_some(),
            connection_times: format == Format::Ab
                || also.iter().any(|also| also.format == Format::Ab)
                || report.percentiles.is_some(),
            each_request: report.gnuplot.is_some(),
            ..draft
        };
        let script = Scripted::read(script, &draft, &shown_url, report.wrk_backfill, &mut problems);
        let thresholds = problems.all("--fail-if", &report.fail_if, str::parse::<Threshold>);
        let output = Output {
            format,
            also,
            remote_write,
            file: output,
            page: report.report,
            hdr: report.hdr,
            spectrum: report.latency,
            backfill: report.wrk_backfill,
            ab: ab::Options {
                decimals: problems.one("--ab-decimals", report.ab_decimals.as_deref(), parse_decimals).unwrap_or(0),
                any_length: report.ab_any_length,
                sends_body,
            },
            gnuplot: report.gnuplot,
            percentiles: report.percentiles,
            thresholds,
            remarks,
            url: shown_url,
            tui,
            title,
        };
        (draft, script, output, problems.lines())
    }

    /// Reads the flags of --self-test: a draft with the version of HTTP, the format of its report, and its file.
    ///
    /// # Errors
    /// If there are other flags, or one of these is wrong.
    pub(crate) fn read_for_self_test(mut self) -> Result<(Draft, Format, Option<PathBuf>), Vec<String>> {
        let OutputArgs { report, format, output, also, remote_write, .. } = self.output;
        let version = LoadArgs {
            http2: mem::take(&mut self.load.http2),
            http2_prior_knowledge: mem::take(&mut self.load.http2_prior_knowledge),
            streams: self.load.streams.take(),
            duration: self.load.duration.take(),
            ..LoadArgs::default()
        };
        let loaded = self.load != LoadArgs::default()
            || self.script != ScriptArgs::default()
            || !self.url.is_empty()
            || !self.urls.is_empty();
        let others = report != ReportArgs::default() || !also.is_empty() || remote_write.is_some();
        if loaded || others || !matches!(format, Format::Text | Format::Json) {
            return Err(vec![
                "--self-test chooses its own loads: expected only --duration, --format text or json, --output, and \
                 --http2 or --http2-prior-knowledge with --streams"
                    .into(),
            ]);
        }
        let (draft, _, mut problems) = read_load(version, Naming::Flags);
        match (draft.streams, draft.http2) {
            (0, _) => problems.add("--streams", "`0`: expected at least 1"),
            (2.., None) => {
                problems.add("--streams", "it is about HTTP/2: give --http2 or --http2-prior-knowledge as well");
            }
            _ => {}
        }
        if problems.found.is_empty() { Ok((draft, format, output)) } else { Err(problems.lines()) }
    }
}

/// Rejects an output file that is named like a format: `-o` is the format in k6 and other tools.
pub(super) fn no_format(output: Option<&Path>, problems: &mut Problems) {
    let Some(name) = output.and_then(Path::to_str) else { return };
    if let Ok(format) = <Format as clap::ValueEnum>::from_str(name, true) {
        let format = clap::ValueEnum::to_possible_value(&format).map_or_else(String::new, |v| v.get_name().to_owned());
        let text = format!(
            "`{name}` names a file: for this format give --format {format}, for a file of this name -o ./{name}"
        );
        problems.add("--output", text);
    } else if name == "html" {
        let text = "`html` names a file: --report FILE draws a page, and for a file of this name give -o ./html";
        problems.add("--output", text);
    }
}

/// Rejects two reports into one file.
fn files_of_their_own(report: &ReportArgs, output: Option<&Path>, also: &[Also<Format>], problems: &mut Problems) {
    let files = [
        ("--output", output),
        ("--report", report.report.as_deref()),
        ("--hdr", report.hdr.as_deref()),
        ("--gnuplot", report.gnuplot.as_deref()),
        ("--percentiles", report.percentiles.as_deref()),
    ];
    let also = also.iter().map(|also| ("--also", Some(also.path.as_path())));
    let given: Vec<(&str, &Path)> =
        files.into_iter().chain(also).filter_map(|(flag, path)| Some((flag, path?))).collect();
    for (i, (flag, path)) in given.iter().enumerate() {
        if let Some((first, _)) = given[..i].iter().find(|(_, other)| other == path) {
            problems.add(flag, format!("it names the same file as {first}: give each its own"));
        }
    }
}

fn parse_decimals(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n <= 6).ok_or_else(|| format!("`{text}`: expected a number of digits from 0 to 6"))
}

/// Returns the first URL, or the first file of URLs.
fn first_of(urls: &[String], files: &[PathBuf]) -> String {
    let file = files.first().map(|file| file.display().to_string());
    urls.first().cloned().or(file).unwrap_or_default()
}

/// Returns the title of a run: its first URL, and how many others there are.
fn title_of(urls: &[String], first: &str) -> String {
    match urls.len() {
        0 | 1 => first.to_owned(),
        n => format!("{first} and {} more", n - 1),
    }
}

fn read_urls(file: &Path, urls: &mut Vec<Endpoint>, problems: &mut Problems) {
    let Some(bytes) = problems.read("--urls", file) else { return };
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let mut any = false;
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        any = true;
        urls.extend(problems.one(&format!("{} line {number}", file.display()), Some(line), str::parse::<Endpoint>));
    }
    if !any {
        problems.add("--urls", format!("{} holds no URL: expected one per line", file.display()));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use clap::Parser;
    use oroshi_bench::{Check, Http2, Load, Spacing, Stage, Watching};
    use oroshi_net::UnixAddress;
    use oroshi_net::tls::Roots;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(line: &str) -> (Draft, Output, Vec<String>) {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let (draft, _, output, problems) =
            Line::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}")).args.read();
        (draft, output, problems)
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
        let (draft, .., problems) = Line::try_parse_from(line).unwrap().args.read();
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
        for line in ["http://h/", "-c 5", "-s x", "-L", "--format wrk", "--format ab", "-g x", "--fail-if x"] {
            assert!(self_test(line).unwrap_err()[0].contains("--self-test"), "{line}");
        }
        let (base, format, file) = self_test("--format json -o x").unwrap();
        assert_eq!((base.http2, base.streams, format, file), (None, 1, Format::Json, Some("x".into())));
        let (base, ..) = self_test("--http2 --streams 32 -d 1s").unwrap();
        let second = Some(Duration::from_secs(1));
        assert_eq!((base.http2, base.streams, base.duration), (Some(Http2::Alpn), 32, second));
        assert_eq!(self_test("--http2-prior-knowledge").unwrap().0.http2, Some(Http2::PriorKnowledge));
        assert!(read("--wrk-backfill http://h/").2[0].contains("--format wrk"));
        assert!(read("-o page.html --report page.html http://h/").2[0].contains("--report"));
        let problems = read("--hdr x -g x -e x -o y --report z http://h/").2;
        let flags: Vec<&str> = problems.iter().map(|problem| problem.split(':').next().unwrap()).collect();
        assert_eq!(flags, ["--gnuplot", "--percentiles"], "{problems:?}");
        assert_eq!(read("--report page.html http://h/").1.page, Some("page.html".into()));
        assert!(refused("--script-limit 1s http://h/") && refused("http://h/ -- a"));
    }

    #[test]
    fn what_ab_wants_is_measured_only_for_it() {
        let wants = |line: &str| {
            let draft = draft(line);
            (draft.connection_times, draft.each_request)
        };
        assert_eq!(wants("http://h/"), (false, false));
        assert_eq!(wants("--format ab http://h/"), (true, false));
        assert_eq!(wants("-e x.csv http://h/"), (true, false));
        assert_eq!(wants("-g x.tsv --format json http://h/"), (false, true));
        let output = read("--format ab --ab-decimals 3 --ab-any-length -b x http://h/").1;
        assert_eq!(output.ab, ab::Options { decimals: 3, any_length: true, sends_body: true });
        assert_eq!(read("-g x --ab-decimals 1 http://h/").1.ab.decimals, 1);
        for line in ["--ab-decimals 3", "--ab-any-length", "-e x --ab-decimals 3", "-g x --ab-any-length"] {
            assert!(read(&format!("{line} http://h/")).2[0].contains("--format ab"), "{line}");
        }
        for bad in ["7", "-1", "x"] {
            assert!(read(&format!("--format ab --ab-decimals={bad} http://h/")).2[0].contains("0 to 6"), "{bad}");
        }
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
