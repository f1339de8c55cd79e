//! Keys of a load that are flags of `oroshi bench`. The command line's parser knows the flags and their values, and
//! lends itself for these keys.

use std::fmt;
use std::sync::Arc;

use oroshi_bench::{Draft, push};
use oroshi_config::{Field, Table};
use oroshi_lab::plan::{AgentsLoad, Script};
use oroshi_lab::template::Values;
use oroshi_net::Endpoint;
use oroshi_words::nearest;
use oroshi_words::{Mistake, Naming};

use crate::load::Entry;
use crate::server::{TextContext, beside, tried};

/// The parser of the long flags of `oroshi bench` that make a load, without their dashes.
pub trait LoadKeys: fmt::Debug {
    /// Returns all keys.
    fn names(&self) -> Vec<String>;

    /// Returns the form of a key's value; `None`: there is no such key.
    fn form(&self, key: &str) -> Option<Form>;

    /// Whether two keys exclude each other.
    fn exclude_each_other(&self, a: &str, b: &str) -> bool;

    /// Reads keys with their values. The value of a switch is `true` or `false`.
    ///
    /// # Errors
    /// All mistakes, each with its key.
    fn read(&self, given: &[(&str, Vec<String>)]) -> Result<LoadValues, Vec<Mistake>>;
}

/// The form of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// true or false.
    Switch,
    /// A text or a number; several of them if the flag may be repeated.
    Text {
        /// Whether the key may be repeated.
        several: bool,
    },
    /// A path relative to the file.
    Path {
        /// Whether the key may be repeated.
        several: bool,
    },
}

/// The values of a load's keys.
#[derive(Clone, Debug)]
pub struct LoadValues {
    /// The load, without URLs.
    pub draft: Draft,
    /// The rate, if it is a share of the slowest variant's capacity.
    pub share: Option<f64>,
    /// Subscriptions instead of requests, if requested.
    pub subscribe: Option<push::Draft>,
    /// A script whose users make the load, if there is one.
    pub script: Option<Arc<dyn Script>>,
    /// The agents that carry out the load, if it names some, and what reports call them.
    pub agents: Option<(Arc<dyn AgentsLoad>, String)>,
}

/// Flags that correspond to other keys of an experiment.
const ELSEWHERE: [(&str, &str); 3] = [
    ("cpus", "the CPUs of both sides stand at the top of the file: cpus = { load = \"0\", server = \"1\" }"),
    ("unix", "the URL says it: url = \"unix:{{socket}}:/path\""),
    ("watch", "the servers that are started here are watched; for others it is found out who listens"),
];

/// Keys whose value is a URL, which may hold names.
pub(crate) const URLS: [&str; 2] = ["publish", "publish-to"];
/// A substitute for such a URL while its names are unknown.
const SOMEWHERE: &str = "http://localhost/{n}";

/// Reports an unknown key, and suggests the most similar one.
pub(crate) fn unknown(entry: &Entry<'_>, others: &[&str], keys: &dyn LoadKeys) {
    let names = keys.names();
    let meant = nearest(&entry.key, names.iter().map(String::as_str).chain(others.iter().copied()));
    entry.value.unknown(&match meant {
        Some(near) => format!("did you mean `{near}`?"),
        None => "expected a long flag of `oroshi bench`, such as connections, or `command`".into(),
    });
}

/// Reads the keys; `None` after a mistake. `names` are the names that URLs may hold, if known.
pub(crate) fn draft(entries: &[&Entry<'_>], names: Option<&Values>, around: TextContext<'_>) -> Option<LoadValues> {
    let keys = around.keys;
    let mut given = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let Some(form) = keys.form(&entry.key) else {
            unknown(entry, &[], keys);
            continue;
        };
        if let Some((_, why)) = ELSEWHERE.iter().find(|flag| flag.0 == entry.key) {
            entry.value.wrong(*why);
        } else if let Some(other) = entries[..i].iter().find(|other| keys.exclude_each_other(&other.key, &entry.key)) {
            entry.value.wrong(format!("`{}` and `{}` exclude each other: leave one out", other.key, entry.key));
        } else if let Some(values) = values(form, entry, names, around) {
            given.push((entry.key.as_str(), values));
        }
    }
    match keys.read(&given) {
        Ok(read) => (given.len() == entries.len()).then_some(read),
        Err(mistakes) => {
            for mistake in mistakes {
                if let Some(entry) = to_blame(&mistake, entries).or(entries.first().copied()) {
                    entry.value.wrong(mistake.text);
                }
            }
            None
        }
    }
}

/// Reports mistakes of a load with these URLs. Mistakes that belong to no key are reported at `variant`.
pub(crate) fn check(draft: &Draft, urls: &[Endpoint], entries: &[&Entry<'_>], variant: &Table<'_>) {
    let draft = Draft { urls: urls.to_vec(), ..draft.clone() };
    if let Err(problems) = draft.plan() {
        blame(urls, problems.0.iter().map(|problem| problem.mistake(Naming::Keys)), entries, variant);
    }
}

/// As [`check`], for a load of subscriptions.
pub(crate) fn check_subscribe(draft: &push::Draft, urls: &[Endpoint], entries: &[&Entry<'_>], variant: &Table<'_>) {
    let base = Draft { urls: urls.to_vec(), ..draft.base.clone() };
    if let Err(problems) = (push::Draft { base, ..draft.clone() }).plan() {
        blame(urls, problems.iter().map(|problem| problem.mistake(Naming::Keys)), entries, variant);
    }
}

fn blame(urls: &[Endpoint], mistakes: impl Iterator<Item = Mistake>, entries: &[&Entry<'_>], variant: &Table<'_>) {
    // Without URLs, their own mistakes have been reported.
    for mistake in mistakes.filter(|_| !urls.is_empty()) {
        match to_blame(&mistake, entries) {
            Some(entry) => entry.value.wrong(mistake.text),
            None => variant.wrong(mistake.text),
        }
    }
}

/// Returns the first entry that may cause a mistake.
fn to_blame<'e, 'd>(mistake: &Mistake, entries: &[&'e Entry<'d>]) -> Option<&'e Entry<'d>> {
    entries.iter().find(|entry| mistake.key == entry.key || mistake.looked_at.contains(&entry.key)).copied()
}

/// Returns the values of a key: those of an array if the key may be repeated. Paths are relative to the file.
fn values(form: Form, entry: &Entry<'_>, names: Option<&Values>, around: TextContext<'_>) -> Option<Vec<String>> {
    let value = &entry.value;
    if form == Form::Switch {
        if value.switch().is_none() {
            value.wrong("expected true or false");
        }
        return value.switch().map(|on| vec![on.to_string()]);
    }
    if URLS.contains(&entry.key.as_str()) {
        let url = value.text()?;
        return Some(vec![match names {
            Some(names) => tried(value, url, names)?,
            None => SOMEWHERE.to_owned(),
        }]);
    }
    let (Form::Text { several } | Form::Path { several }) = form else { return None };
    let elements = if several { value.each() } else { vec![value.clone()] };
    let text = |element: &Field<'_>| match form {
        Form::Path { .. } => beside(element, around).map(|path| path.to_string_lossy().into_owned()),
        _ => element.text().map(str::to_owned),
    };
    elements.iter().map(text).collect()
}
