//! Turns flags into a plan; reports every mistake at once.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oroshi_client::{Builder, Bytes, Client, Deadlines, Proxies, Retries};
use oroshi_fetch::{Bodies, Defaults, LARGEST_BURST, Pace, Plan, Source};
use oroshi_net::{ClientTls, ClientTlsOptions, UnixAddress};
use oroshi_words::{units, with_causes};
use rustix::fs::{Access, access};

use super::args::{Args, ConnectionArgs, RequestArgs, TimeArgs};
use crate::bench::{parse_header, parse_size};
use crate::problems::Problems;
use crate::tls::TlsArgs;

/// The default of `--concurrency`.
const CONCURRENCY: usize = 16;
/// The longest wait before a retry; if the server asks for more, there is no retry.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Args {
    /// Reads the flags.
    ///
    /// # Errors
    /// All mistakes, each with its flag.
    pub(super) fn read(self) -> Result<Plan, Vec<String>> {
        let mut problems = Problems::of_flags();
        let sources = sources(&self.url, &self.input, &mut problems);
        if let Some(output) = &self.output.output
            && let Some(list) = sources.iter().find(|source| is_same_file(source, output))
        {
            let output = output.display();
            problems.add("--output", format!("{output} is the list {list} too: expected another file for the records"));
        }
        let prints = self.output.bodies.as_deref() == Some(Path::new("-"));
        let concurrency = problems.one("--concurrency", self.concurrency.as_deref(), at_least_one);
        let per_host = problems.one("--per-host", self.per_host.as_deref(), at_least_one);
        if prints && (self.burst || concurrency.max(per_host).is_some_and(|most| most > 1)) {
            let why = "`-` prints one body after another, so it goes with one request at a time: \
                       leave --concurrency, --per-host and --burst out";
            problems.add("--bodies", why);
        }
        if self.burst && concurrency.is_some_and(|most| most > LARGEST_BURST) {
            problems
                .add("--concurrency", format!("a burst has {} requests at most", units::count(LARGEST_BURST as u64)));
        }
        let pace = match (self.burst, prints) {
            (true, _) => Pace::Burst(concurrency),
            (false, true) => Pace::Steady { concurrency: 1, per_host },
            (false, false) => Pace::Steady { concurrency: concurrency.unwrap_or(CONCURRENCY), per_host },
        };
        let retries = Retries {
            most: problems.one("--retry", self.retry.as_deref(), parse_u32).unwrap_or(0),
            first: problems
                .one("--retry-wait", self.retry_wait.as_deref(), units::parse_time)
                .unwrap_or(Duration::from_secs(1)),
            longest: LONGEST_WAIT,
        };
        let defaults = Defaults {
            method: self.request.method.clone(),
            headers: self.request.headers(&mut problems),
            body: self.request.body(&mut problems),
        };
        let client = self.request.client(&mut problems).deadlines(self.time.deadlines(&mut problems));
        let client = client.tls(self.connection.tls(&mut problems));
        let client = client.proxy_tls(self.connection.proxy_tls(&mut problems));
        let client = self.connection.version(client).proxies(self.connection.proxies(&mut problems));
        let mut client = client.keep_alive(!self.connection.close && !self.burst);
        if let Some(most) = problems.one("--max-body", self.output.max_body.as_deref(), units::parse_count) {
            client = client.stream_bytes(most);
        }
        let unix = problems.one("--unix", self.connection.unix.as_deref(), UnixAddress::parse);
        let bodies = match self.output.bodies {
            None => Bodies::Counted,
            Some(_) if prints => Bodies::Printed,
            Some(folder) => Bodies::Folder(folder),
        };
        if !problems.found.is_empty() {
            return Err(problems.lines());
        }
        Ok(Plan {
            sources,
            pace,
            retries,
            defaults,
            unix,
            client,
            output: self.output.output,
            resume: self.resume,
            bodies,
            headers: self.output.headers,
        })
    }
}

/// Returns URLs first, then files; standard input keeps the position of its `-`.
fn sources(urls: &[String], files: &[PathBuf], problems: &mut Problems) -> Vec<Source> {
    let urls = urls.iter().map(|url| if url == "-" { Source::Stdin } else { Source::Url(url.clone()) });
    let files =
        files.iter().map(|file| if file == Path::new("-") { Source::Stdin } else { Source::File(file.clone()) });
    let sources: Vec<Source> = urls.chain(files).collect();
    if sources.is_empty() {
        problems.add("URL", "nothing to fetch: give a URL, --input FILE, or - for a list on standard input");
    }
    if sources.iter().filter(|source| **source == Source::Stdin).count() > 1 {
        problems.add("URL", "standard input can be read once: give - once");
    }
    for source in &sources {
        match source {
            Source::Url(url) => {
                if let Err(error) = url.parse::<oroshi_net::Endpoint>() {
                    problems.add("URL", error.to_string());
                }
            }
            // It is not opened: the writer of a pipe would find it closed again.
            Source::File(path) => {
                if let Err(error) = access(path, Access::READ_OK) {
                    problems.add("--input", format!("{} cannot be read: {error}", path.display()));
                } else if path.is_dir() {
                    problems.add("--input", format!("{} is a folder: expected a file with a list", path.display()));
                }
            }
            Source::Stdin => {}
        }
    }
    sources
}

/// Whether a list and the output are one regular file under any names: the run would read its records as requests.
fn is_same_file(source: &Source, output: &Path) -> bool {
    let identity = |path: &Path| {
        let there = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((there.dev(), there.ino()))
    };
    let list = match source {
        Source::Url(_) => None,
        Source::File(path) => identity(path),
        Source::Stdin => identity(Path::new("/dev/stdin")),
    };
    list.is_some() && list == identity(output)
}

impl RequestArgs {
    fn body(&self, problems: &mut Problems) -> Option<Bytes> {
        if let Some(file) = &self.body_file {
            return problems.read("--body-file", file).map(Bytes::from);
        }
        if let Some(json) = &self.json
            && let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(json)
        {
            problems.add("--json", format!("the text is no JSON: {error}"));
        }
        self.body.clone().or_else(|| self.json.clone()).map(Bytes::from)
    }

    /// Returns the headers as fields of each request, not of the client: only then it knows which of them to drop at a
    /// redirect.
    fn headers(&self, problems: &mut Problems) -> Vec<(String, String)> {
        let mut headers = problems.all("--header", &self.header, parse_header);
        // Only for its mistakes; each URL has its own Host.
        let others = headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host"));
        let client = others.fold(Client::builder(), |client, (name, value)| client.header(name, value));
        if let Err(error) = client.connections(1).build_local() {
            problems.add("--header", error.to_string());
        }
        if self.json.is_some() {
            for name in ["Content-Type", "Accept"] {
                if !headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name)) {
                    headers.push((name.to_owned(), "application/json".to_owned()));
                }
            }
        }
        headers
    }

    fn client(&self, problems: &mut Problems) -> Builder {
        let client = Client::builder().decode(!self.no_compression);
        match problems.one("--redirects", self.redirects.as_deref(), parse_u32) {
            Some(most) => client.redirects(most),
            None => client,
        }
    }
}

impl TimeArgs {
    fn deadlines(&self, problems: &mut Problems) -> Deadlines {
        let default = Deadlines::default();
        let mut time =
            |flag, text: &Option<String>, default| match problems.one(flag, text.as_deref(), units::parse_time) {
                Some(time) if time.is_zero() => {
                    problems.add(flag, "nothing takes no time: expected more than 0");
                    default
                }
                Some(time) => time,
                None => default,
            };
        Deadlines {
            // Only this tool's own limit makes a request wait for a connection, which is no failure.
            queue: Duration::MAX,
            dns: time("--dns-timeout", &self.dns_timeout, default.dns),
            connect: time("--connect-timeout", &self.connect_timeout, default.connect),
            tls: time("--tls-timeout", &self.tls_timeout, default.tls),
            write: time("--write-timeout", &self.write_timeout, default.write),
            first_byte: time("--first-byte-timeout", &self.first_byte_timeout, default.first_byte),
            between_bytes: time("--between-bytes-timeout", &self.between_bytes_timeout, default.between_bytes),
            total: time("--timeout", &self.timeout, default.total),
        }
    }
}

impl ConnectionArgs {
    fn version(&self, client: Builder) -> Builder {
        if self.http2_prior_knowledge { client.http2_prior_knowledge() } else { client.http2(!self.http1) }
    }

    fn proxies(&self, problems: &mut Problems) -> Proxies {
        let proxies = match self.proxy.as_deref() {
            None => Ok(Proxies::from_environment()),
            Some("none") => Ok(Proxies::none()),
            Some(url) => Proxies::all(url).map_err(|error| with_causes(&error)),
        };
        let proxies = proxies.map_err(|error| problems.add("--proxy", error)).unwrap_or_default();
        proxies.except(self.no_proxy.as_deref().unwrap_or_default())
    }

    fn tls(&self, problems: &mut Problems) -> ClientTlsOptions {
        let TlsArgs { cacert, cert, key, .. } = &self.tls;
        let files = cacert.iter().chain(cert).chain(key);
        checked(self.tls.options(), files, "--cacert, --cert, --key", problems)
    }

    fn proxy_tls(&self, problems: &mut Problems) -> ClientTlsOptions {
        let (cacert, insecure) = (self.proxy_cacert.clone(), self.proxy_insecure);
        let options = TlsArgs { cacert, insecure, ..TlsArgs::default() }.options();
        checked(options, self.proxy_cacert.iter(), "--proxy-cacert", problems)
    }
}

/// Reports files that cannot be used before the first request, not with each.
fn checked<'f>(
    options: ClientTlsOptions,
    mut files: impl Iterator<Item = &'f PathBuf> + Clone,
    flags: &'static str,
    problems: &mut Problems,
) -> ClientTlsOptions {
    if files.clone().any(|path| path.to_string_lossy().contains("-----BEGIN")) {
        // The text may be the key itself, and is not repeated.
        problems.add(flags, "expected the paths of PEM files, got the content of one".to_owned());
    } else if files.next().is_some()
        && let Err(error) = ClientTls::new(&options, "localhost")
    {
        problems.add(flags, with_causes(&error));
    }
    options
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match parse_size(text)? {
        0 => Err("0 would send nothing: expected at least 1".to_owned()),
        number => Ok(number),
    }
}

fn parse_u32(text: &str) -> Result<u32, String> {
    u32::try_from(units::parse_count(text)?)
        .map_err(|_| format!("`{text}` is more than {}", units::count(u32::MAX.into())))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(line: &str) -> Result<Plan, Vec<String>> {
        let words = std::iter::once("fetch").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).args.read()
    }

    #[test]
    fn urls_come_first_then_files() {
        let sources = |line: &str| read(line).unwrap().sources;
        assert_eq!(
            sources("-i Cargo.toml http://a/ - -i src/main.rs"),
            [
                Source::Url("http://a/".to_owned()),
                Source::Stdin,
                Source::File("Cargo.toml".into()),
                Source::File("src/main.rs".into())
            ]
        );
        let problems = read("-i /nonexistent/list -i src").unwrap_err();
        assert!(problems[0].starts_with("--input: /nonexistent/list cannot be read: No such file"), "{problems:?}");
        assert!(problems[1].starts_with("--input: src is a folder"), "{problems:?}");
        assert_eq!(sources("--urls -"), [Source::Stdin]);
        assert_eq!(read("- --input -").unwrap_err(), ["URL: standard input can be read once: give - once"]);
    }

    #[test]
    fn the_pace_is_steady_or_a_burst() {
        let pace = |line: &str| read(&format!("{line} http://a/")).unwrap().pace;
        assert_eq!(pace(""), Pace::Steady { concurrency: CONCURRENCY, per_host: None });
        assert_eq!(pace("-c 1k --per-host 2"), Pace::Steady { concurrency: 1000, per_host: Some(2) });
        assert_eq!(pace("--bodies -"), Pace::Steady { concurrency: 1, per_host: None });
        assert_eq!((pace("--burst"), pace("--burst -c 5")), (Pace::Burst(None), Pace::Burst(Some(5))));
        assert!(read("--burst -c 2M http://a/").unwrap_err()[0].contains("1,000,000 requests at most"));
    }

    #[test]
    fn a_body_makes_it_a_post_unless_said_otherwise() {
        let method = |line: &str, named: Option<&str>| {
            let defaults = read(&format!("{line} http://a/")).unwrap().defaults;
            defaults.method(named, defaults.body.is_some()).to_owned()
        };
        for (line, named, expected) in [
            ("", None, "GET"),
            ("-b x", None, "POST"),
            ("--json 1 -X PUT", None, "PUT"),
            ("-m PUT", Some("GET"), "GET"),
        ] {
            assert_eq!(method(line, named), expected, "{line} {named:?}");
        }
    }

    #[test]
    fn json_brings_its_fields_unless_they_are_given() {
        let headers = read("--json 1 -H accept:text/plain http://a/").unwrap().defaults.headers;
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(headers, [pair("accept", "text/plain"), pair("Content-Type", "application/json")]);
    }

    #[test]
    fn each_time_is_that_of_its_phase() {
        let line = "--dns-timeout 1 --connect-timeout 2 --tls-timeout 3 --write-timeout 4 --first-byte-timeout 5 \
                    --between-bytes-timeout 6 -T 7 http://a/";
        let client = format!("{:?}", read(line).unwrap().client);
        let phases = "dns: 1s, connect: 2s, tls: 3s, write: 4s, first_byte: 5s, between_bytes: 6s, total: 7s";
        assert!(client.contains(phases), "{client}");
    }

    /// The message about a file that cannot be read had the key in it.
    #[test]
    fn a_key_in_place_of_its_path_is_not_repeated() {
        for flags in
            ["--cert=x --key=-----BEGIN_hidden", "--cacert=-----BEGIN_hidden", "--cert=-----BEGIN_hidden --key=x"]
        {
            let problems = read(&format!("{flags} http://a/")).unwrap_err();
            assert_eq!(problems, ["--cacert, --cert, --key: expected the paths of PEM files, got the content of one"]);
        }
        let problems = read("--proxy-cacert=-----BEGIN_hidden http://a/").unwrap_err();
        assert_eq!(problems, ["--proxy-cacert: expected the paths of PEM files, got the content of one"]);
        let problems = read("--proxy-cacert=/dev/null http://a/").unwrap_err();
        assert!(problems[0].starts_with("--proxy-cacert: could not read a certificate from /dev/null"), "{problems:?}");
    }

    #[test]
    fn every_mistake_is_found_at_once() {
        let flags =
            ["--concurrency", "--retry", "--dns-timeout", "--timeout", "--redirects", "--unix", "--max-body", "URL"];
        let problems =
            read("-c 0 --retry x --dns-timeout soon -T 0 --redirects=-1 -P @ --max-body much ftp://h/").unwrap_err();
        for flag in flags {
            assert!(
                problems.iter().any(|problem| problem.starts_with(&format!("{flag}: "))),
                "{flag} in {problems:#?}"
            );
        }
        assert_eq!(problems.len(), flags.len(), "{problems:#?}");
    }
}
