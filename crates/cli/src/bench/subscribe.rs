//! `oroshi bench --mode ws|sse|stream`: holds subscriptions and publishes messages to them.

mod fail_if;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use oroshi_bench::Part;
use oroshi_bench::push::{Draft, Mode, Plan, Publishing, PublishingTo, Record, SubscribeProblem};
use oroshi_net::{Endpoint, Permitted};
use oroshi_report::paint::Paint;
use oroshi_report::table;
use oroshi_report::words::push as words;
use oroshi_words::Naming;
use oroshi_words::units;

use super::args::{Args, Format, LoadArgs, OutputArgs, ReportArgs, ScriptArgs};
use super::command_line::without_secrets;
use super::load::{parse_header, parse_size, read_load};
use super::observer::Live;
use super::read::no_format;
use super::{Error, open, tell_conditions, write, write_beside};
use crate::formats::Also;
use crate::interrupt;
use crate::problems::Problems;
use crate::say;
use crate::terminal;
use fail_if::Threshold;

// clap turns `{n}` in a help text into a line break: the texts say "n in braces".
/// The flags of subscriptions.
///
/// The load's flags say how to open them (-c, -H, --source, -T ...). Its -R, --stages, -n, -m and -b then concern
/// publishing.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct SubscribeArgs {
    /// Hold subscriptions and count the messages that arrive: ws (WebSocket), sse (server-sent events), stream (a
    /// response without end)
    ///
    /// In the URL and in the values of -H, n in braces is the number of the subscription, from 0.
    #[arg(long, value_name = "ws|sse|stream", help_heading = "Subscriptions")]
    pub(crate) mode: Option<String>,

    /// Post messages for all subscriptions to this URL: at --rate, or one after the other [default: nothing is
    /// published]
    #[arg(long, value_name = "URL", requires = "mode", help_heading = "Subscriptions")]
    pub(crate) publish: Option<String>,

    /// Add a header to these posts; repeatable
    ///
    /// A header with n in braces in its value is sent once per subscription, for hubs that need the recipients of a
    /// message.
    #[arg(long, value_name = "NAME: VALUE", requires = "publish", help_heading = "Subscriptions")]
    pub(crate) publish_header: Vec<String>,

    /// Use this many publishers, each with one message in progress [default: 1]
    #[arg(long, value_name = "N", requires = "publish", help_heading = "Subscriptions")]
    pub(crate) publishers: Option<String>,

    /// Make each message a JSON object of this many bytes, where there is no --body [default: 100]
    #[arg(long, value_name = "N", requires = "mode", help_heading = "Subscriptions")]
    pub(crate) message_bytes: Option<String>,

    /// Also post messages for one subscription each, with a delay of their own; n in braces, in the URL, a header or
    /// the body, is its number
    #[arg(long, value_name = "URL", requires = "mode", help_heading = "Subscriptions")]
    pub(crate) publish_to: Option<String>,

    /// Post this many of these messages per second [default: 100]
    #[arg(long, value_name = "PER_SECOND", requires = "publish_to", help_heading = "Subscriptions")]
    pub(crate) publish_to_rate: Option<String>,

    /// Add a header to these messages; repeatable
    #[arg(long, value_name = "NAME: VALUE", requires = "publish_to", help_heading = "Subscriptions")]
    pub(crate) publish_to_header: Vec<String>,

    /// Send this body, with {stamp} in it, in these messages [default: a JSON object of --message-bytes]
    #[arg(long, value_name = "TEXT", requires = "publish_to", help_heading = "Subscriptions")]
    pub(crate) publish_to_body: Option<String>,

    /// Open this many subscriptions concurrently [default: 200]
    #[arg(long, value_name = "N", requires = "mode", help_heading = "Subscriptions")]
    pub(crate) connecting: Option<String>,

    /// Begin to open at most this many subscriptions per second [default: no limit]
    #[arg(long, value_name = "PER_SECOND", requires = "mode", help_heading = "Subscriptions")]
    pub(crate) connect_rate: Option<String>,
}

impl SubscribeArgs {
    /// Whether `--mode` asks for subscriptions.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.mode.is_some()
    }

    /// Reads the flags into a draft, beside a load's draft; `None` without a valid mode.
    pub(crate) fn read(&self, base: oroshi_bench::Draft, problems: &mut Problems) -> Option<Draft> {
        let mode = problems.one("--mode", self.mode.as_deref(), parse_mode);
        let default = Draft::default();
        let size = |problems: &mut Problems, flag, text: &Option<String>, default| {
            problems.one(flag, text.as_deref(), parse_size).unwrap_or(default)
        };
        let publish = problems.one("--publish", self.publish.as_deref(), str::parse::<Endpoint>);
        let publishers = size(problems, "--publishers", &self.publishers, 1);
        let headers = problems.all("--publish-header", &self.publish_header, parse_header);
        let publish_to = problems.one("--publish-to", self.publish_to.as_deref(), str::parse::<Endpoint>);
        let rate = problems.one("--publish-to-rate", self.publish_to_rate.as_deref(), units::parse_number);
        let headers_to = problems.all("--publish-to-header", &self.publish_to_header, parse_header);
        Some(Draft {
            publish: publish.map(|url| Publishing { url, headers, publishers }),
            publish_to: publish_to.map(|url| PublishingTo {
                url,
                headers: headers_to,
                body: self.publish_to_body.clone().unwrap_or_default().into_bytes(),
                rate: rate.unwrap_or(100.0),
            }),
            message_bytes: size(problems, "--message-bytes", &self.message_bytes, default.message_bytes),
            connecting: size(problems, "--connecting", &self.connecting, default.connecting),
            connect_rate: problems.one("--connect-rate", self.connect_rate.as_deref(), units::parse_number),
            mode: mode?,
            base,
        })
    }
}

/// Returns the flags of a load of requests that have no meaning for subscriptions.
pub(crate) fn meaningless(load: &LoadArgs) -> Vec<&'static str> {
    let flags = [
        ("--close", load.close),
        ("--requests-per-connection", load.requests_per_connection.is_some()),
        ("--pipeline", load.pipeline.is_some()),
        ("--http2", load.http2),
        ("--http2-prior-knowledge", load.http2_prior_knowledge),
        ("--streams", load.streams.is_some()),
        ("--gather", load.gather.is_some()),
        ("--hold", load.hold.is_some()),
        ("--check", !load.check.is_empty()),
    ];
    flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0).collect()
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    let modes = [Mode::Ws, Mode::Sse, Mode::Stream];
    modes.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
        format!("`{text}`: expected ws (WebSocket), sse (server-sent events) or stream (a line per message)")
    })
}

/// Reads a URL; `ws` and `wss` mean `http` and `https`.
fn parse_url(text: &str) -> Result<Endpoint, String> {
    let http = [("ws://", "http://"), ("wss://", "https://")];
    let named = http.iter().find_map(|(ws, http)| Some(format!("{http}{}", text.strip_prefix(ws)?)));
    named.as_deref().unwrap_or(text).parse().map_err(|error: oroshi_net::endpoint::EndpointError| error.to_string())
}

/// The destination and the content of the report.
pub(super) struct Output {
    format: Format,
    also: Vec<Also<Format>>,
    file: Option<PathBuf>,
    page: Option<PathBuf>,
    thresholds: Vec<Threshold>,
}

/// Runs the load and writes the report.
///
/// # Errors
/// If there is no result.
pub(super) fn run(args: Args) -> Result<ExitCode, Error> {
    let (plan, output) = read(args, Share::default()).map_err(Error::Usage)?;
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    let mut live = Live::new(shutdown, plan.connect.connections, None, None);
    report(&output, || {
        let result = oroshi_bench::push::run(plan, &mut live);
        live.finish(result.is_ok())?;
        Ok(result?)
    })
}

/// Writes the report of the record that `run` makes.
///
/// # Errors
/// If there is no result, or it cannot be written.
pub(super) fn report(output: &Output, run: impl FnOnce() -> Result<Record, Error>) -> Result<ExitCode, Error> {
    let file = output.file.as_deref().map(open).transpose()?;
    let page = output.page.as_deref().map(open).transpose()?;
    let also = output.also.iter().map(Also::open).collect::<Result<Vec<_>, _>>()?;
    let mut record = run()?;
    record.fail_if = output.thresholds.iter().map(|threshold| threshold.judge(&record)).collect();
    if let Some(alarm) = words::alarm(&record) {
        record.warnings.insert(0, alarm);
    }
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let flags = <Args as clap::Args>::augment_args(clap::Command::new("bench"));
    record.environment.command = without_secrets(&flags, words);
    let (paint, width) = match &file {
        None => (terminal::paint(&std::io::stdout()), terminal::width(&std::io::stdout())),
        Some(_) => (Paint::PLAIN, table::WIDTH),
    };
    let report = |format, paint, width| {
        Ok::<_, Error>(match format {
            Format::Json => serde_json::to_string_pretty(&record)? + "\n",
            Format::Junit => oroshi_report::ci::junit_of_subscriptions(&record),
            _ => oroshi_report::text::subscribe(&record, paint, width),
        })
    };
    write(&report(output.format, paint, width)?, file, output.file.as_deref())?;
    for (also, file) in output.also.iter().zip(also) {
        file.write(&report(also.format, Paint::PLAIN, table::WIDTH)?)?;
    }
    if let (Some(page), Some(path)) = (page, output.page.as_deref()) {
        write_beside(&oroshi_report::subscribe_page(&record), page, path)?;
    }
    Ok(ExitCode::from(judge(&record, &output.thresholds)))
}

/// The part of a shared run that this process has, and the servers that it may reach. The default: all.
#[derive(Clone, Debug, Default)]
pub(super) struct Share {
    pub(super) part: Option<Part>,
    pub(super) permitted: Option<Arc<Permitted>>,
}

/// Reads all flags.
pub(super) fn read(args: Args, share_of_run: Share) -> Result<(Plan, Output), Vec<String>> {
    let Args { url, load, urls, script, subscribe, output, .. } = args;
    let mut problems = Problems::of_flags();
    let mut foreign = meaningless(&load);
    foreign.extend((!urls.is_empty()).then_some("--urls"));
    foreign.extend((script != ScriptArgs::default()).then_some("--script"));
    refuse(foreign, &mut problems);
    let output = read_output(output, &mut problems);
    let (base, share, found) = read_load(load, Naming::Flags);
    problems.found.extend(found.found);
    if share.is_some() {
        problems
            .add("--rate", "it is a share of what set-ups can do, for comparing them: expected messages per second");
    }
    let endpoints = problems.all("URL", &url, parse_url);
    let typed = endpoints.len() == url.len();
    let publishes = subscribe.publish.is_some();
    let Share { part, permitted } = share_of_run;
    let base = oroshi_bench::Draft { urls: endpoints, part, permitted, ..base };
    let draft = subscribe.read(base, &mut problems);
    let mut problems = problems.lines();
    let plan = draft.and_then(|draft| match draft.plan() {
        Ok(plan) => Some(plan),
        Err(found) => {
            // The problems already name a URL that does not parse.
            let new = |problem: &&SubscribeProblem| match problem {
                SubscribeProblem::Load(oroshi_bench::plan::Problem::NoUrl) => typed,
                SubscribeProblem::NotPublished(_) => !publishes,
                _ => true,
            };
            problems.extend(found.iter().filter(new).map(|problem| problem.told(Naming::Flags)));
            None
        }
    });
    match plan {
        Some(plan) if problems.is_empty() => Ok((plan, output)),
        _ => Err(problems),
    }
}

/// Reads the flags of the report.
pub(super) fn read_output(args: OutputArgs, problems: &mut Problems) -> Output {
    let OutputArgs { report, format, also, remote_write, output, .. } = args;
    let also = problems.all("--also", &also, str::parse::<Also<Format>>);
    let plain = ReportArgs { fail_if: report.fail_if.clone(), report: report.report.clone(), ..ReportArgs::default() };
    let mut foreign = Vec::new();
    foreign.extend((report != plain).then_some("a report other than --format text, json or junit, or --report"));
    let others = |format| !matches!(format, Format::Text | Format::Json | Format::Junit);
    let formats = also.iter().map(|also| also.format).chain([format]);
    foreign.extend(formats.into_iter().any(others).then_some("--format wrk, ab, csv or prometheus"));
    foreign.extend(remote_write.is_some().then_some("--remote-write"));
    refuse(foreign, problems);
    no_format(output.as_deref(), problems);
    let thresholds = problems.all("--fail-if", &report.fail_if, str::parse::<Threshold>);
    Output { format, also, file: output, page: report.report, thresholds }
}

fn refuse(foreign: Vec<&'static str>, problems: &mut Problems) {
    for flag in foreign {
        problems.add(flag, "it has no meaning with --mode: leave out one of the two");
    }
}

/// Judges the thresholds, whether any message arrived, and whether subscriptions ended; returns the exit code.
///
/// Prints on standard error, so that thresholds do not change the report.
fn judge(record: &Record, thresholds: &[Threshold]) -> u8 {
    let code = tell_conditions(&record.fail_if);
    if record.subscriptions.opened == 0 {
        let came = words::came(record).map(|came| format!("; {came}")).unwrap_or_default();
        say(&format!("error: not one subscription was opened{}{came}", words::reasons(&record.subscriptions.failures)));
        return 1;
    }
    if record.published.is_some() && record.deliveries.delivered == 0 {
        let failures = record.published.as_ref().map(|published| &published.failures);
        say(&format!("error: not one message came{}", failures.map(words::reasons).unwrap_or_default()));
        return 1;
    }
    // A threshold on ended subscriptions has decided that already.
    if record.subscriptions.lost() > 0 && !thresholds.iter().any(Threshold::is_of_ended) {
        say(&format!("error: {}", words::ended(record)));
        say("  next: find out why they ended; --fail-if 'ended>N' allows up to N");
        return code.max(1);
    }
    code
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use oroshi_bench::Load;
    use oroshi_experiment::words::subscribe_words;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(line: &str) -> Result<Args, clap::Error> {
        Line::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).map(|line| line.args)
    }

    #[track_caller]
    fn plan(line: &str) -> Plan {
        let args = parsed(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        read(args, Share::default()).unwrap_or_else(|e| panic!("{line}: {e:?}")).0
    }

    #[track_caller]
    fn problems(line: &str) -> Vec<String> {
        match read(parsed(line).unwrap_or_else(|e| panic!("{line}: {e}")), Share::default()) {
            Ok(_) => panic!("{line} is taken"),
            Err(problems) => problems,
        }
    }

    #[test]
    fn the_flags_of_a_load_say_how_to_subscribe_and_how_to_publish() {
        let plan = plan(
            "--mode ws -c 1k -R 100 -d 5s -T 3s --publish http://h/pub --publishers 4 --connecting 50 ws://h:1/sub/{n}",
        );
        assert_eq!((plan.mode, plan.connect.connections, plan.connecting), (Mode::Ws, 1000, 50));
        let publish = plan.publish.unwrap();
        assert_eq!((publish.plan.connections, publish.method.as_str()), (4, "POST"));
        assert!(matches!(publish.plan.load, Load::Open { .. }) && plan.connect.load == Load::Closed);
        assert_eq!(plan.connect.origins[0].name(), "h:1");
        assert_eq!(self::plan("--mode sse wss://h/").connect.origins[0].scheme.as_str(), "https");
        assert_eq!(self::plan("--mode stream unix:/run/x:/sub").connect.threads, 1);
        let to =
            self::plan("--mode ws --publish-to http://h/send/{n} --publish-to-rate 50 http://h/").publish_to.unwrap();
        assert!(to.plan.load == Load::rate(50.0, oroshi_bench::Spacing::Constant, 0));
    }

    #[test]
    fn every_mistake_is_told_and_what_is_about_requests_is_refused() {
        let found = problems("--mode websocket -c x --publish ftp://h --connect-rate fast --fail-if lots>0 nowhere");
        for flag in ["--mode", "--connections", "--publish", "--connect-rate", "--fail-if", "URL"] {
            assert!(found.iter().any(|problem| problem.starts_with(&format!("{flag}: "))), "{flag} in {found:#?}");
        }
        for flags in
            ["--close", "--pipeline 2", "--hold 1", "--check status=200", "-s x.lua", "-L", "--format wrk", "--urls x"]
        {
            let found = problems(&format!("--mode ws {flags} http://h/"));
            assert!(found[0].contains("no meaning with --mode: leave out one"), "{flags}: {found:?}");
        }
        assert!(problems("--mode ws -R 50% --publish http://h/ http://h/")[0].contains("share"));
        assert!(problems("--mode ws -R 50 http://h/")[0].contains("--publish URL"));
        assert!(problems("--mode ws -b hello --publish http://h/ http://h/")[0].contains("{stamp}"));
        assert!(problems("--mode ws --publish-to http://h/ http://h/")[0].contains("{n}"));
        assert!(problems("--mode ws --publish http://h/{n} http://h/")[0].contains("--publish-header"));
        assert!(problems("--mode ws http://h/ http://i/")[0].contains("2 URLs"));
        assert!(problems("--mode ws")[0].contains("no URL"));
        for line in ["--publish http://h/ http://h/", "--mode ws --publishers 2 http://h/", "--connecting 5 http://h/"]
        {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_load_is_told_in_words() {
        let words = |line: &str| {
            let Args { load, subscribe, .. } = parsed(line).unwrap();
            let mut problems = Problems::of_flags();
            subscribe_words(&subscribe.read(read_load(load, Naming::Flags).0, &mut problems).unwrap())
        };
        assert_eq!(words("--mode sse -c 5"), "5 subscriptions (sse)");
        assert_eq!(
            words("--mode ws -c 1k -d 2s -w 250ms --publish http://h/ --publishers 16 --publish-to http://h/{n}"),
            "1,000 subscriptions (ws), 16 publishers in a closed loop, 100/s to one each, 2s after 250ms of warm-up"
        );
        assert!(
            words("--mode ws -R 500 -n 10 --publish http://h/")
                .ends_with("1 publisher in an open loop at 500/s, 10 messages")
        );
    }
}
