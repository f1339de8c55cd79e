//! Keys of a load that are flags of `oroshi bench`: which there are, and what their values mean, is asked of the parser that
//! reads them on the command line.

use clap::builder::ValueHint;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Args as _, Command, FromArgMatches};
use oroshi_bench::plan::{Problem, Problems};
use oroshi_bench::push::SubscribeProblem;
use oroshi_bench::{Draft, push};
use oroshi_lab::template::Values;
use oroshi_net::Endpoint;
use oroshi_words::nearest;

use super::document::Table;
use super::load::Entry;
use super::server::{Surroundings, beside, tried};
use crate::bench::{LoadArgs, SubscribeArgs, meaningless, read_load};

/// Flags that say what an experiment says elsewhere.
const ELSEWHERE: [(&str, &str); 3] = [
    ("cpus", "the CPUs of both sides stand at the top of the file: cpus = { load = \"0\", server = \"1\" }"),
    ("unix", "the URL says it: url = \"unix:{{socket}}:/path\""),
    ("watch", "the servers that are started here are watched; for others it is found out who listens"),
];

/// Keys whose value is a URL, in which names may stand.
const URLS: [&str; 2] = ["publish", "publish-to"];
/// What stands for such a URL as long as nothing is known of its names.
const SOMEWHERE: &str = "http://localhost/{n}";

/// What flags say.
#[derive(Debug)]
pub(super) struct Flags {
    pub(super) draft: Draft,
    /// The rate, if it is a share.
    pub(super) share: Option<f64>,
    /// Subscriptions instead of requests, if they are asked for.
    pub(super) subscribe: Option<push::Draft>,
}

/// Whether a load may have this key.
pub(super) fn is_known(key: &str) -> bool {
    flag(&parser(), key).is_some()
}

/// Whether a key takes away the meaning of another one.
pub(super) fn exclude_each_other(a: &str, b: &str) -> bool {
    let parser = parser();
    let (Some(a), Some(b)) = (flag(&parser, a), flag(&parser, b)) else { return false };
    let one_way = |a, b: &Arg| parser.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id());
    one_way(a, b) || one_way(b, a)
}

/// Says that there is no such key, and which was probably meant.
pub(super) fn unknown(entry: &Entry<'_, '_>, others: &[&str]) {
    let parser = parser();
    let flags = parser.get_arguments().filter_map(Arg::get_long);
    let meant = nearest(&entry.key, flags.chain(others.iter().copied()));
    let hint = match meant {
        Some(near) => format!("did you mean `{near}`?"),
        None => "expected a long flag of `oroshi bench`, such as connections, or `command`".into(),
    };
    entry.value.wrong(format!("there is no such key: {hint}"));
}

/// What the flags say; `None` if something is wrong with them. `names` are those that URLs may hold, where they are known.
pub(super) fn draft(entries: &[&Entry<'_, '_>], names: Option<&Values>, around: Surroundings<'_>) -> Option<Flags> {
    let parser = parser();
    let mut words = Vec::new();
    let mut sound = true;
    for (i, entry) in entries.iter().enumerate() {
        let Some(flag) = flag(&parser, &entry.key) else {
            unknown(entry, &[]);
            sound = false;
            continue;
        };
        if let Some((_, why)) = ELSEWHERE.iter().find(|flag| flag.0 == entry.key) {
            entry.value.wrong(*why);
            sound = false;
        } else if let Some(other) = entries[..i].iter().find(|other| exclude_each_other(&other.key, &entry.key)) {
            entry.value.wrong(format!("`{}` and `{}` exclude each other: leave one out", other.key, entry.key));
            sound = false;
        } else if URLS.contains(&entry.key.as_str()) {
            let filled = entry.value.text().and_then(|url| match names {
                Some(names) => tried(&entry.value, &url, names),
                None => Some(SOMEWHERE.to_owned()),
            });
            match filled {
                Some(url) => words.push(format!("--{}={url}", entry.key)),
                None => sound = false,
            }
        } else {
            match as_typed(flag, entry, around) {
                Some(typed) => words.extend(typed),
                None => sound = false,
            }
        }
    }
    let parsed = parser
        .try_get_matches_from(words)
        .and_then(|matches| Ok((LoadArgs::from_arg_matches(&matches)?, SubscribeArgs::from_arg_matches(&matches)?)));
    let (args, subscribe) = match parsed {
        Ok(args) => args,
        Err(error) => {
            blame(&error, entries);
            return None;
        }
    };
    let foreign = if subscribe.is_asked_for() { meaningless(&args) } else { Vec::new() };
    let (draft, share, problems) = read_load(args);
    let mut problems = crate::bench::Problems(problems);
    for flag in foreign {
        problems.add(flag, "it is about requests and their answers: leave it out, or leave out `mode`");
    }
    if subscribe.is_asked_for() && share.is_some() {
        problems.add("--rate", "it is a share of what set-ups can do: with `mode`, expected messages per second");
    }
    let subscribe = subscribe.read(draft.clone(), &mut problems).filter(|_| subscribe.is_asked_for());
    let problems = problems.0;
    for problem in &problems {
        let key = problem.flag.trim_start_matches("--");
        if let Some(entry) = entries.iter().find(|entry| entry.key == key) {
            entry.value.wrong(as_keys(&problem.text));
        }
    }
    (sound && problems.is_empty()).then_some(Flags { draft, share, subscribe })
}

/// Says what makes no sense about a draft. `variant` is blamed for what no key is to blame for.
pub(super) fn check(draft: &Draft, urls: &[Endpoint], entries: &[&Entry<'_, '_>], variant: &Table<'_, '_>) {
    if urls.is_empty() {
        // What is wrong with them has been said.
        return;
    }
    let draft = Draft { urls: urls.to_vec(), ..draft.clone() };
    let Err(Problems(problems)) = draft.plan() else { return };
    for problem in problems {
        let keys = keys_of(&problem);
        let text = as_keys(&crate::bench::with_causes(&problem));
        match entries.iter().find(|entry| keys.contains(&entry.key.as_str())) {
            Some(entry) => entry.value.wrong(text),
            None => variant.wrong(text),
        }
    }
}

/// The same of a load of subscriptions.
pub(super) fn check_subscribe(
    draft: &push::Draft,
    urls: &[Endpoint],
    entries: &[&Entry<'_, '_>],
    variant: &Table<'_, '_>,
) {
    if urls.is_empty() {
        return;
    }
    let base = Draft { urls: urls.to_vec(), ..draft.base.clone() };
    let Err(problems) = (push::Draft { base, ..draft.clone() }).plan() else { return };
    for problem in problems {
        let keys = match &problem {
            SubscribeProblem::Load(problem) => keys_of(problem),
            SubscribeProblem::Template(_) => &["body", "message-bytes", "publish-to-body"],
            SubscribeProblem::Rate(..) => &["connect-rate", "publish-to-rate"],
            SubscribeProblem::NotPublished(_) => &["rate", "requests", "body"],
            SubscribeProblem::NoTarget => &["publish-to"],
            SubscribeProblem::TargetOfAll => &["publish"],
            SubscribeProblem::Urls(_) => &[][..],
        };
        let text = as_keys(&crate::bench::subscribe_causes(&problem));
        match entries.iter().find(|entry| keys.contains(&entry.key.as_str())) {
            Some(entry) => entry.value.wrong(text),
            None => variant.wrong(text),
        }
    }
}

fn parser() -> Command {
    let parser = Command::new("load").no_binary_name(true).disable_help_flag(true);
    SubscribeArgs::augment_args(LoadArgs::augment_args(parser))
}

fn flag<'p>(parser: &'p Command, key: &str) -> Option<&'p Arg> {
    parser.get_arguments().find(|flag| flag.get_long() == Some(key))
}

/// A key as it would be typed: `--header=A: b`.
fn as_typed(flag: &Arg, entry: &Entry<'_, '_>, around: Surroundings<'_>) -> Option<Vec<String>> {
    let (key, value) = (&entry.key, &entry.value);
    if !flag.get_action().takes_values() {
        return match value.switch() {
            Some(true) => Some(vec![format!("--{key}")]),
            Some(false) => Some(Vec::new()),
            None => {
                value.wrong("expected true or false");
                None
            }
        };
    }
    let several = matches!(flag.get_action(), ArgAction::Append);
    let values = if several && value.is_array() { value.elements()? } else { vec![value.clone()] };
    let text = |value: &super::document::Value<'_, '_>| {
        if flag.get_value_hint() == ValueHint::AnyPath {
            return beside(value, around).map(|path| path.to_string_lossy().into_owned());
        }
        value.text()
    };
    values.iter().map(|value| Some(format!("--{key}={}", text(value)?))).collect()
}

/// Says what the parser says, at the key that it speaks of.
fn blame(error: &clap::Error, entries: &[&Entry<'_, '_>]) {
    let rendered = error.to_string();
    let mut named = entries.iter().filter(|entry| rendered.contains(&format!("--{} ", entry.key)));
    let text = match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            let missing = rendered.lines().nth(1).unwrap_or_default();
            let missing = missing.trim().trim_start_matches("--").split(' ').next().unwrap_or_default();
            format!("it wants `{missing}` as well")
        }
        _ => as_keys(rendered.lines().next().unwrap_or_default().trim_start_matches("error: ")),
    };
    if let Some(entry) = named.next().or_else(|| entries.first()) {
        entry.value.wrong(text);
    }
}

/// Flags are keys here.
fn as_keys(text: &str) -> String {
    let parser = parser();
    let mut flags: Vec<&str> = parser.get_arguments().filter_map(Arg::get_long).collect();
    // The longest first: one begins as another.
    flags.sort_by_key(|flag| std::cmp::Reverse(flag.len()));
    flags.iter().fold(text.to_owned(), |text, flag| text.replace(&format!("--{flag}"), &format!("`{flag}`")))
}

/// The keys that may be to blame.
fn keys_of(problem: &Problem) -> &'static [&'static str] {
    match problem {
        Problem::Zero("the number of connections") => &["connections"],
        Problem::Zero("the number of threads") => &["threads"],
        Problem::Zero("the number of requests") => &["requests"],
        Problem::Zero("the number of requests per connection") => &["requests-per-connection"],
        Problem::Zero("the number of pipelined requests") => &["pipeline"],
        Problem::Zero("the duration") => &["duration"],
        Problem::Zero("the timeout") => &["timeout"],
        Problem::TooFewConnections { .. } => &["threads", "connections"],
        Problem::TooManyOrigins { .. } => &["connections"],
        Problem::Exclusive(..) | Problem::Pipeline { .. } => &["pipeline"],
        Problem::Rate(_) => &["rate", "stages"],
        Problem::SourceWithUnix(_) => &["source"],
        Problem::Request(_) => &["method", "header"],
        Problem::Tls(_) => &["cacert", "cert", "key"],
        Problem::Zero(_) | Problem::NoUrl | Problem::ScriptUrls(_) => &[],
    }
}
