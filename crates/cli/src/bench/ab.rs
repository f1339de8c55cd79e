//! The report as ab prints it, line by line and column by column, for scripts that read ab.
//!
//! The layout is ab's. The figures are as measured, also where ab's own are wrong (docs/bench.md, "As ab prints
//! it", lists these). `files` writes the files of `-g` and `-e`.

mod files;

use std::net::IpAddr;

use oroshi_bench::{Failure, Load, Record};
use oroshi_net::Endpoint;
use oroshi_stats::{Latency, Quantile};

pub(crate) use files::{RequestLog, percentiles};

/// The percentages that ab lists; the last one is the longest request.
const PERCENTAGES: [u32; 9] = [50, 66, 75, 80, 90, 95, 98, 99, 100];

/// Settings of the report that the record does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Decimals of milliseconds; ab has none.
    pub(crate) decimals: usize,
    /// Whether responses of different lengths are accepted: ab's `-l`.
    pub(crate) any_length: bool,
    /// Whether requests have a body; the report then has the sent bytes.
    pub(crate) sends_body: bool,
}

/// Writes the report of a run against `url`.
pub(crate) fn report(record: &Record, url: &str, options: Options) -> String {
    let options = Options { any_length: options.any_length || !one_document(record), ..options };
    let (host, port) = host_and_port(&record.plan.origins[0].address);
    // ab prints as many lines before its report.
    let mut text = format!("This is oroshi, Version {}, with its report laid out as ab's\n", env!("CARGO_PKG_VERSION"));
    text += "HTTP/1.1, and connections are kept unless --close: not what ab does by itself\n";
    text += "docs/bench.md lists what else differs\n\n";
    text += &format!("Benchmarking {host} (be patient).....done\n\n\n");
    text += &subject(record, url, host, port, options);
    text += &counts(record, options);
    if record.requests.completed > 0 {
        text += &rates(record, options);
        text += &connection_times(record, options.decimals);
    }
    text
}

/// Whether all requests are for the same document; only then does a different length mean a failure.
fn one_document(record: &Record) -> bool {
    let plan = &record.plan;
    plan.script.is_none() && plan.origins.len() == 1 && plan.origins[0].requests.len() == 1
}

fn line(label: &str, value: impl std::fmt::Display) -> String {
    format!("{label:<24}{value}\n")
}

/// Returns the lines about the server and the document.
fn subject(record: &Record, url: &str, host: &str, port: &str, options: Options) -> String {
    let (origins, answers) = (&record.plan.origins, &record.answers);
    // ab keeps the first word.
    let server = answers.server.as_deref().unwrap_or_default().split_whitespace().next().unwrap_or_default();
    let mut text = line("Server Software:", server);
    text += &line("Server Hostname:", and_others(host, origins.len()));
    text += &line("Server Port:", port);
    if let Some(tls) = &answers.tls {
        let (cipher, bits) = cipher(&tls.cipher);
        // ab prints the size of the certificate's key as the third part.
        text += &line("SSL/TLS Protocol:", format!("{},{cipher},?,{bits}", tls.protocol));
        let name = url.parse::<Endpoint>().ok().map(|endpoint| endpoint.host().to_owned());
        // An address is never sent as a name (RFC 6066, section 3).
        if let Some(name) = name.filter(|name| name.parse::<IpAddr>().is_err()) {
            text += &line("TLS Server Name:", name);
        }
    }
    let requests: usize = origins.iter().map(|origin| origin.requests.len()).sum();
    let path = origins[0].requests.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("/");
    let length = match (options.any_length, answers.first_body_bytes) {
        (true, _) => "Variable".to_owned(),
        (false, bytes) => format!("{} bytes", bytes.unwrap_or(0)),
    };
    text + "\n" + &line("Document Path:", and_others(path, requests)) + &line("Document Length:", length) + "\n"
}

fn and_others(first: &str, all: usize) -> String {
    if all > 1 { format!("{first} (and {} more)", all - 1) } else { first.to_owned() }
}

/// Splits `host:port`; a unix socket has no port.
fn host_and_port(address: &str) -> (&str, &str) {
    if address.starts_with("unix:") {
        return (address, "none");
    }
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "none"));
    (host.trim_matches(['[', ']']), port)
}

/// Returns OpenSSL's name of a cipher suite, which ab prints, and the length of its key in bits.
fn cipher(suite: &str) -> (String, &'static str) {
    let bits = match suite {
        _ if suite.contains("AES_128") => "128",
        _ if suite.contains("AES_256") || suite.contains("CHACHA20") => "256",
        _ => "?",
    };
    // The suites of TLS 1.3 have the same name everywhere.
    let name = match suite.split_once("_WITH_") {
        None => suite.to_owned(),
        Some((exchange, rest)) => {
            let rest = rest.replace("AES_", "AES").replace("POLY1305_SHA256", "POLY1305");
            format!("{}-{rest}", exchange.trim_start_matches("TLS_")).replace('_', "-")
        }
    };
    (name, bits)
}

/// Returns the lines that count requests and bytes.
fn counts(record: &Record, options: Options) -> String {
    let (plan, answers) = (&record.plan, &record.answers);
    let sum =
        |kind: fn(Failure) -> bool| record.failures.iter().filter(|(f, _)| kind(**f)).map(|(_, n)| n).sum::<u64>();
    let connect = sum(Failure::is_connect);
    let receive = sum(|f| f != Failure::Parse && (f.is_read() || f.is_timeout()));
    let length = if options.any_length { 0 } else { answers.other_lengths };
    let exceptions = sum(|f| matches!(f, Failure::Write | Failure::Parse | Failure::Check));
    let failed = connect + receive + length + exceptions;
    let writes = sum(|f| f == Failure::Write);
    let others: u64 = record.statuses.iter().filter(|(status, _)| !(200..300).contains(*status)).map(|(_, n)| n).sum();

    let mut text = line("Concurrency Level:", plan.connections);
    text += &line("Time taken for tests:", format_args!("{:.3} seconds", record.elapsed_s));
    text += &line("Complete requests:", record.requests.completed);
    text += &line("Failed requests:", failed);
    if failed > 0 {
        let each = [("Connect", connect), ("Receive", receive), ("Length", length), ("Exceptions", exceptions)];
        text += &format!("   ({})\n", each.map(|(name, n)| format!("{name}: {n}")).join(", "));
    }
    if writes > 0 {
        text += &line("Write errors:", writes);
    }
    if others > 0 {
        text += &line("Non-2xx responses:", others);
    }
    if plan.requests_per_connection != Some(1) {
        text += &line("Keep-Alive requests:", answers.kept);
    }
    text += &line("Total transferred:", format_args!("{} bytes", record.rates.read_bytes));
    if options.sends_body {
        text += &line("Total body sent:", record.rates.written_bytes);
    }
    text + &line("HTML transferred:", format_args!("{} bytes", answers.body_bytes))
}

fn rates(record: &Record, options: Options) -> String {
    let rates = &record.rates;
    let [read, written] = [rates.read_bytes_per_s, rates.written_bytes_per_s].map(|bytes| bytes / 1024.0);
    let mut text = line("Requests per second:", format_args!("{:.2} [#/sec] (mean)", rates.requests_per_s));
    if let Some(times) = &record.connection_times {
        let mean = times.total.histogram.mean() / 1e6;
        text += &line("Time per request:", format_args!("{mean:.3} [ms] (mean)"));
    }
    let gap = if rates.requests_per_s > 0.0 { 1e3 / rates.requests_per_s } else { 0.0 };
    text += &line("Time per request:", format_args!("{gap:.3} [ms] (mean, across all concurrent requests)"));
    text += &line("Transfer rate:", format_args!("{read:.2} [Kbytes/sec] received"));
    if options.sends_body {
        text += &line("", format_args!("{written:.2} kb/s sent"));
        text += &line("", format_args!("{:.2} kb/s total", read + written));
    }
    text
}

/// Returns the total times of completed requests (connecting and service), with bounds for unfinished ones.
pub(super) fn totals(record: &Record) -> Latency {
    let mut totals = record.connection_times.as_ref().map_or_else(Latency::new, |times| times.total.histogram.clone());
    let latency = &record.latency;
    totals.merge_censored(match record.plan.load {
        // A request on a new connection is due when connecting begins.
        Load::Closed => &latency.response.histogram,
        // A request may have waited for a connection; these times do not include that.
        Load::Open { .. } => &latency.service.histogram,
    });
    totals
}

/// One line of the table.
struct Row<'l> {
    label: &'static str,
    /// The name in warnings.
    name: &'static str,
    latency: &'l Latency,
}

fn connection_times(record: &Record, decimals: usize) -> String {
    let Some(times) = &record.connection_times else { return String::new() };
    let totals = &totals(record);
    let clocks = &record.latency;
    let rows = [
        Row { label: "Connect:", name: "the initial connection time", latency: &times.connect.histogram },
        Row { label: "Processing:", name: "the processing time", latency: &clocks.service.histogram },
        Row { label: "Waiting:", name: "the waiting time", latency: &clocks.first_byte.histogram },
        Row { label: "Total:", name: "the total time", latency: totals },
    ];
    let mut text = "\nConnection Times (ms)\n".to_owned() + &header(decimals);
    text.extend(rows.iter().map(|row| row.line(decimals)));
    text.extend(rows.iter().map(Row::doubts));
    if matches!(record.plan.load, Load::Open { .. }) {
        text += "WARNING: The load was an open loop. What requests waited for a free connection is not in\n";
        text += "        these times; other formats have it, as response time.\n";
    }
    if totals.len() > 1 {
        text += "\nPercentage of the requests served within a certain time (ms)\n";
        text.extend(PERCENTAGES.map(|percent| percentage(totals, percent, decimals)));
    }
    text
}

/// Returns how much wider a column with decimals is.
fn wider(decimals: usize) -> usize {
    if decimals > 0 { decimals + 1 } else { 0 }
}

fn header(decimals: usize) -> String {
    if decimals == 0 {
        return "              min  mean[+/-sd] median   max\n".to_owned();
    }
    let more = wider(decimals);
    let [min, mean, median, max] = [17 + more, 11 + more + decimals - 1, 7 + more, 8 + more];
    format!("{:>min$}{:>mean$}{:>median$}{:>max$}\n", "min", "mean[+/-sd]", "median", "max")
}

impl Row<'_> {
    fn median(&self) -> Quantile {
        self.latency.quantile(0.5).unwrap_or(Quantile::Exact(0))
    }

    fn line(&self, decimals: usize) -> String {
        let [min, max] = [self.latency.min(), self.latency.max()].map(|ns| ms(ns, decimals));
        let median = quantile_ms(self.median(), decimals);
        let mean = ms(self.latency.mean().round() as u64, decimals);
        let (more, digits) = (wider(decimals), decimals.max(1));
        let [w5, w4, w6, w7] = [5, 4, 6, 7].map(|width| width + more);
        let w_sd = 5 + digits - 1;
        let sd = self.latency.stdev() / 1e6;
        format!("{:<12}{min:>w5$} {mean:>w4$} {sd:>w_sd$.digits$} {median:>w6$} {max:>w7$}\n", self.label)
    }

    /// Returns ab's warning about mean and median that differ, and oroshi's about a median that is a bound.
    fn doubts(&self) -> String {
        let (mean, sd, median) = (self.latency.mean(), self.latency.stdev(), self.median());
        let mut text = String::new();
        // The median is the upper end of its bucket, whose width is less than a thousandth.
        let (low, high) = (median.value() as f64 * 0.999, median.value() as f64);
        let apart = (mean - high).max(low - mean);
        // If the median is a lower bound, the distance to a greater mean is unknown.
        let known = !median.is_bound() || mean < low;
        if known && apart > 2.0 * sd {
            text += &format!("ERROR: The median and mean for {} are more than twice the standard\n", self.name);
            text += "       deviation apart. These results are NOT reliable.\n";
        } else if known && apart > sd {
            text += &format!("WARNING: The median and mean for {} are not within a normal deviation\n", self.name);
            text += "        These results are probably not that reliable.\n";
        }
        if median.is_bound() {
            text += &format!("WARNING: The median for {} is a lower bound: too many requests\n", self.name);
            text += "        had no answer in time.\n";
        }
        text
    }
}

/// Returns one line of the list of percentages; a remark marks the longest request and lower bounds.
fn percentage(totals: &Latency, percent: u32, decimals: usize) -> String {
    let Some(quantile) = totals.quantile(f64::from(percent) / 100.0) else { return String::new() };
    let width = 5 + wider(decimals);
    let words: Vec<&str> = [(percent == 100, "longest request"), (quantile.is_bound(), "at least")]
        .into_iter()
        .filter_map(|(holds, words)| holds.then_some(words))
        .collect();
    let remark = if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
    format!(" {percent:>3}%  {:>width$}{remark}\n", quantile_ms(quantile, decimals))
}

/// Writes a quantile in milliseconds; a lower bound is not rounded up.
fn quantile_ms(quantile: Quantile, decimals: usize) -> String {
    let unit = 10_u64.pow(6 - decimals.min(6) as u32);
    match quantile {
        Quantile::Exact(ns) => ms(ns, decimals),
        Quantile::AtLeast(ns) => ms(ns / unit * unit, decimals),
    }
}

/// Writes milliseconds, rounded like ab: halves go up.
fn ms(ns: u64, decimals: usize) -> String {
    let unit = 10_u64.pow(6 - decimals.min(6) as u32);
    let units = (ns + unit / 2) / unit;
    if decimals == 0 {
        return units.to_string();
    }
    let one = 10_u64.pow(decimals as u32);
    format!("{}.{:0decimals$}", units / one, units % one)
}

#[cfg(test)]
mod tests {
    use oroshi_bench::record::TlsRecord;

    use super::*;
    use oroshi_report::sample::bench as sample;

    const URL: &str = "http://127.0.0.1:8080/hello";

    /// The report without the lines before it.
    fn body(record: &Record, url: &str, options: Options) -> String {
        let text = report(record, url, options);
        text[text.find("Server Software:").unwrap()..].to_owned()
    }

    fn plain(record: &Record) -> String {
        body(record, URL, Options::default())
    }

    #[test]
    fn the_layout_is_abs() {
        // The output of ab 2.3, with the numbers of the sample in place of its own.
        let expected = "\
Server Software:        nginx/1.22.1
Server Hostname:        127.0.0.1
Server Port:            8080

Document Path:          /hello
Document Length:        5 bytes

Concurrency Level:      100
Time taken for tests:   10.000 seconds
Complete requests:      100000
Failed requests:        15
   (Connect: 0, Receive: 15, Length: 0, Exceptions: 0)
Keep-Alive requests:    99999
Total transferred:      16000000 bytes
HTML transferred:       500000 bytes
Requests per second:    10000.00 [#/sec] (mean)
Time per request:       0.550 [ms] (mean)
Time per request:       0.100 [ms] (mean, across all concurrent requests)
Transfer rate:          1562.50 [Kbytes/sec] received

Connection Times (ms)
              min  mean[+/-sd] median   max
Connect:        0    0   0.0      0       0
Processing:     0    1   0.3      1       1
Waiting:        0    1   0.3      1       1
Total:          0    1   0.3      1       1

Percentage of the requests served within a certain time (ms)
  50%      1
  66%      1
  75%      1
  80%      1
  90%      1
  95%      1
  98%      1
  99%      1
 100%      1 (longest request)
";
        assert_eq!(plain(&sample::ab()), expected);
        let text = report(&sample::ab(), URL, Options::default());
        let head: Vec<&str> = text.lines().take(8).collect();
        assert_eq!((head[3], head[4], head[5]), ("", "Benchmarking 127.0.0.1 (be patient).....done", ""), "{head:?}");
        assert!(head[7].starts_with("Server Software:"), "where ab has it: {head:?}");
    }

    #[test]
    fn decimals_widen_every_column_alike() {
        let text = body(&sample::ab(), URL, Options { decimals: 3, ..Options::default() });
        let expected = "
Connection Times (ms)
                  min      mean[+/-sd]     median         max
Connect:        0.000    0.000   0.001      0.000       0.030
Processing:     0.050    0.550   0.289      0.550       1.050
Waiting:        0.040    0.540   0.289      0.540       1.040
Total:          0.050    0.550   0.289      0.550       1.070

Percentage of the requests served within a certain time (ms)
  50%      0.550
";
        assert!(text.contains(expected), "{text}");
        assert!(text.ends_with("\n 100%      1.070 (longest request)\n"), "{text}");
        for decimals in 1..=6 {
            let text = body(&sample::ab(), URL, Options { decimals, ..Options::default() });
            let lines = text.lines().skip_while(|line| *line != "Connection Times (ms)").skip(1).take(5);
            let ends: Vec<usize> = lines.map(str::len).collect();
            assert!(ends.iter().all(|end| *end == ends[0]), "{text}");
        }
    }

    #[test]
    fn nothing_answered_ends_where_ab_ends() {
        let text = plain(&sample::nothing());
        assert!(text.starts_with("Server Software:        \nServer Hostname:        127.0.0.1\n"), "{text}");
        assert!(text.contains("\nDocument Length:        0 bytes\n"), "{text}");
        let failed = "Failed requests:        40\n   (Connect: 40, Receive: 0, Length: 0, Exceptions: 0)\n";
        assert!(text.contains(&format!("Complete requests:      0\n{failed}")), "{text}");
        assert!(text.ends_with("\nHTML transferred:       0 bytes\n"), "{text}");
    }

    #[test]
    fn one_request_has_no_percentages() {
        let mut record = sample::ab();
        let mut one = Latency::new();
        one.record(1_234_567);
        for clock in [&mut record.latency.service, &mut record.latency.response, &mut record.latency.first_byte] {
            *clock = one.clone().into();
        }
        let times = record.connection_times.as_mut().unwrap();
        (times.connect, times.total) = (one.clone().into(), one.into());
        record.requests.completed = 1;
        assert!(plain(&record).ends_with("\nTotal:          1    1   0.0      1       1\n"), "{}", plain(&record));
    }

    #[test]
    fn a_body_has_its_lines_and_a_connection_per_request_has_no_kept_ones() {
        let mut record = sample::ab();
        record.plan.requests_per_connection = Some(1);
        let text = body(&record, URL, Options { sends_body: true, ..Options::default() });
        assert!(!text.contains("Keep-Alive"), "{text}");
        assert!(
            text.contains("\nTotal transferred:      16000000 bytes\nTotal body sent:        4000000\nHTML"),
            "{text}"
        );
        let rates = "\
Transfer rate:          1562.50 [Kbytes/sec] received
                        390.62 kb/s sent
                        1953.12 kb/s total

";
        assert!(text.contains(rates), "{text}");
    }

    #[test]
    fn tls_has_its_lines_and_openssls_names() {
        let mut record = sample::ab();
        let cipher_suite = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384".into();
        record.answers.tls = Some(TlsRecord { protocol: "TLSv1.2".into(), cipher: cipher_suite });
        let text = body(&record, "https://localhost:8080/hello", Options::default());
        let lines = "\
Server Port:            8080
SSL/TLS Protocol:       TLSv1.2,ECDHE-RSA-AES256-GCM-SHA384,?,256
TLS Server Name:        localhost

";
        assert!(text.contains(lines), "{text}");
        assert!(!body(&record, "https://127.0.0.1:8080/", Options::default()).contains("TLS Server Name"));
        for (suite, name, bits) in [
            ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256", "128"),
            ("TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256", "256"),
            ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305", "256"),
            ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256", "128"),
            ("unknown", "unknown", "?"),
        ] {
            assert_eq!(cipher(suite), (name.to_owned(), bits));
        }
    }

    #[test]
    fn places_are_taken_apart() {
        for (address, host, port) in [
            ("127.0.0.1:80", "127.0.0.1", "80"),
            ("[::1]:8080", "::1", "8080"),
            ("localhost:443", "localhost", "443"),
            ("unix:/run/a:b.sock", "unix:/run/a:b.sock", "none"),
        ] {
            assert_eq!(host_and_port(address), (host, port));
        }
    }

    #[test]
    fn failures_are_of_abs_four_kinds() {
        let mut record = sample::ab();
        record.failures = Failure::ALL.into_iter().zip(1..).collect();
        record.statuses = [(200, 10), (204, 1), (302, 20), (404, 300)].into();
        record.answers.other_lengths = 1000;
        // Dns to Tls are 1 to 6, then write 7, read-reset 8, read-eof 9, goaway 10, stream-reset 11, parse 12, timeout
        // 13, flow-control-stall 14, status 15, check 16.
        let failed = "\
Failed requests:        1121
   (Connect: 21, Receive: 65, Length: 1000, Exceptions: 35)
Write errors:           7
Non-2xx responses:      320
Keep-Alive requests:    99999
";
        let text = plain(&record);
        assert!(text.contains(failed), "{text}");
        assert!(text.contains("Document Length:        5 bytes"), "{text}");

        let any = body(&record, URL, Options { any_length: true, ..Options::default() });
        assert!(any.contains("Failed requests:        121\n   (Connect: 21, Receive: 65, Length: 0,"), "{any}");
        assert!(any.contains("Document Length:        Variable\n"), "{any}");
        // Different documents have different lengths.
        record.plan.origins[0].requests.push("GET /other HTTP/1.1".into());
        assert!(
            plain(&record).contains("Document Path:          /hello (and 1 more)\nDocument Length:        Variable\n")
        );
        record.plan.origins[0].requests.truncate(1);
        record.plan.script = Some("a.lua".into());
        assert!(plain(&record).contains("Document Length:        Variable\n"));
    }

    #[test]
    fn what_is_only_a_bound_is_marked_where_ab_has_its_remark() {
        let mut record = sample::ab();
        // Of all requests 4.8 % hang for two seconds at least.
        (0..5000).for_each(|_| record.latency.response.histogram.record_censored(2_000_000_000));
        let text = plain(&record);
        let expected = "\
  95%      1
  98%   2000 (at least)
  99%   2000 (at least)
 100%   2000 (longest request, at least)
";
        assert!(text.ends_with(expected), "{text}");
        assert!(!text.contains("WARNING") && !text.contains("ERROR"), "the median is known: {text}");
    }

    #[test]
    fn a_median_that_is_only_a_bound_is_warned_of() {
        let mut record = sample::ab();
        for clock in [&mut record.latency.service, &mut record.latency.response] {
            (0..200_000).for_each(|_| clock.histogram.record_censored(2_000_000_000));
        }
        let text = plain(&record);
        assert!(text.contains("\nProcessing:     0    1   0.3   2000       1\n"), "{text}");
        for name in ["the processing time", "the total time"] {
            let error = format!("ERROR: The median and mean for {name} are more than twice the standard\n");
            let bound = format!("WARNING: The median for {name} is a lower bound: too many requests\n");
            assert!(text.contains(&error) && text.contains(&bound), "{text}");
        }
        assert_eq!(text.matches("WARNING").count() + text.matches("ERROR").count(), 4, "{text}");
    }

    #[test]
    fn mean_and_median_are_compared_as_measured_and_not_as_printed() {
        let row = |values: &[u64]| {
            let mut latency = Latency::new();
            values.iter().for_each(|us| latency.record(us * 1000));
            Row { label: "Total:", name: "the total time", latency: &latency }.doubts()
        };
        // ab rounds them to 0 and 1 ms, and finds them twenty deviations apart.
        assert_eq!(row(&[480, 490, 495, 530, 540]), "");
        // Nothing measured can be: mean and median are never further apart than a deviation.
        assert_eq!(row(&[1, 1, 1, 1, 1_000_000]), "");
        assert_eq!((row(&[7]), row(&[7, 7, 7]), row(&[])), (String::new(), String::new(), String::new()));
    }

    #[test]
    fn an_open_loop_says_what_is_not_in_the_times() {
        let mut record = sample::ab();
        record.plan.load = Load::rate(100.0, oroshi_bench::Spacing::Constant, 0);
        (0..90_000).for_each(|_| record.latency.response.histogram.record_censored(9_000_000_000));
        let text = plain(&record);
        assert!(text.contains("\nWARNING: The load was an open loop."), "{text}");
        assert!(text.ends_with(" 100%      1 (longest request)\n"), "what was never sent took no time there: {text}");
    }

    #[test]
    fn halves_are_rounded_up() {
        assert_eq!([ms(499_999, 0), ms(500_000, 0), ms(1_500_000, 0)], ["0", "1", "2"]);
        assert_eq!([ms(1_234_567, 1), ms(1_250_000, 1), ms(999_950, 1)], ["1.2", "1.3", "1.0"]);
        assert_eq!([ms(7, 6), ms(1_000_500, 3)], ["0.000007", "1.001"]);
    }
}
