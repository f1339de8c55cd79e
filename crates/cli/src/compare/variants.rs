//! Set-ups as typed: a URL, a name with a URL, or a name with a command and its URLs.
//!
//! `http://h/`, `new=http://h/`, `new='puma -p {{port}}' @http://127.0.0.1:{{port}}/`, and the same in one word. Only
//! this module splits the words of a command line; it checks their values as far as possible before a start.

use std::collections::BTreeSet;
use std::path::PathBuf;

use oroshi_experiment::rules;
use oroshi_lab::template::{self, Values};
use oroshi_net::{Address, Endpoint};

/// The beginnings of URLs.
const SCHEMES: [&str; 5] = ["http://", "https://", "unix:", "http+unix://", "https+unix://"];

/// One of the compared set-ups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Typed {
    /// Its name, given or A, B, C.
    pub(super) name: String,
    /// The command that starts it, as words, each a template; `None`: it runs already.
    pub(super) start: Option<Vec<String>>,
    /// Its URLs: templates.
    pub(super) urls: Vec<String>,
    /// The folder of its command; `None`: the present one.
    pub(super) folder: Option<PathBuf>,
}

/// Splits the words. Returns all mistakes at once.
pub(super) fn parse(words: &[String]) -> (Vec<Typed>, Vec<String>) {
    let mut problems = Vec::new();
    // A word that begins with @ belongs to the word before.
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for word in words {
        match (word.strip_prefix('@'), groups.last_mut()) {
            (Some(""), _) => {
                problems.push("`@` alone: expected a URL right behind it, as in @http://localhost:3000/".into());
            }
            (Some(url), Some((_, urls))) => urls.push(url.to_owned()),
            (Some(_), None) => {
                problems.push(format!("`{word}` says where a command answers, and no command stands before it"));
            }
            (None, _) => groups.push((word, Vec::new())),
        }
    }
    let mut typed = Vec::new();
    for (place, (word, urls)) in groups.into_iter().enumerate() {
        let (name, what) = named(word);
        let name = name.map_or_else(|| letter(place), str::to_owned);
        match one(&name, what, urls) {
            Ok(variant) => typed.push(variant),
            Err(problem) => problems.push(problem),
        }
    }
    let mut seen = BTreeSet::new();
    let twice = typed.iter().map(|v| &v.name).filter(|name| !seen.insert(*name));
    problems
        .extend(twice.map(|name| format!("two variants are called {name}: give them different names, as in NAME=URL")));
    (typed, problems)
}

/// Checks a variant's texts with sample values for placeholders, and returns its sample URLs. `values` are the
/// placeholders that are known everywhere.
pub(super) fn check(variant: &Typed, values: &Values) -> Result<Vec<Endpoint>, Vec<String>> {
    let name = &variant.name;
    let mut values = values.clone();
    let mut problems = Vec::new();
    let words = variant.start.iter().flatten();
    if variant.start.is_some() {
        values.set("dir", "/dir");
        let names = words.clone().flat_map(|word| template::names(word).unwrap_or_default());
        // Ports and sockets are private to the variant, and known once the command has them.
        for place in names.filter(|name| template::is_place(name)) {
            values.set(place, if place.starts_with("port") { "1" } else { "/socket" });
        }
    }
    problems.extend(words.filter_map(|word| template::fill(word, &values).err()).map(|e| format!("{name}: {e}")));
    let mut endpoints = Vec::new();
    for url in &variant.urls {
        let read = match template::fill(url, &values) {
            Ok(text) => text.parse::<Endpoint>().map_err(|e| e.to_string()),
            Err(_) if variant.start.is_none() => {
                Err(format!("`{url}` has a placeholder, and there is no command to fill it in for: expected a URL"))
            }
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(error) => problems.push(format!("{name}: {error}")),
        }
    }
    if problems.is_empty() { Ok(endpoints) } else { Err(problems) }
}

/// Reports commands that would listen at the same address, so that one of them would fail.
pub(super) fn collisions(variants: &[Typed]) -> Vec<String> {
    let places = |variant: &Typed| -> Vec<Address> {
        let known = variant.urls.iter().filter_map(|url| url.parse::<Endpoint>().ok());
        known.map(|endpoint| endpoint.address).collect()
    };
    let mut problems = Vec::new();
    for (i, one) in variants.iter().enumerate() {
        for other in variants[i + 1..].iter().filter(|other| one.start.is_some() || other.start.is_some()) {
            let others = places(other);
            if places(one).iter().any(|place| others.contains(place)) {
                problems.push(format!(
                    "{} and {} answer at the same place, and both are up at the same time: give one of them another \
                     port, or write {{{{port}}}} into its command and its URL",
                    one.name, other.name
                ));
            }
        }
    }
    problems
}

/// Whether the words of the first set-up begin with a name.
pub(super) fn is_named(words: &[String]) -> bool {
    words.first().is_some_and(|word| named(word).0.is_some())
}

/// Splits `NAME=WHAT`, where NAME is a plain name: the `=` of a URL follows characters that no name has.
fn named(word: &str) -> (Option<&str>, &str) {
    match word.split_once('=') {
        Some((name, what)) if is_name(name) => (Some(name), what),
        _ => (None, word),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

fn letter(place: usize) -> String {
    match u8::try_from(place) {
        Ok(place @ 0..26) => char::from(b'A' + place).to_string(),
        _ => format!("variant-{}", place + 1),
    }
}

fn is_url(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
}

/// Reads one variant. `urls` are the words with @ that follow it.
fn one(name: &str, what: &str, urls: Vec<String>) -> Result<Typed, String> {
    let (what, mut all) = without_urls(what, urls.is_empty());
    all.extend(urls);
    if what.is_empty() {
        return Err(format!("{name}: expected a URL, or a command and @URL"));
    }
    let owned = name.to_owned();
    if is_url(what) {
        all.insert(0, what.to_owned());
        return Ok(Typed { name: owned, start: None, urls: all, folder: None });
    }
    if all.is_empty() {
        return Err(match what.parse::<Endpoint>() {
            Err(error) if !what.contains(char::is_whitespace) => {
                format!("{name}: {error}; if it is a command, @URL behind it says where it answers")
            }
            _ => format!(
                "{name}: where does `{what}` answer? Put @URL behind it, as in {name}='{what}' @http://127.0.0.1:3000/"
            ),
        });
    }
    let words = rules::words(what).map_err(|error| format!("{name}: {error}"))?;
    if words.first().is_none_or(|program| program.trim().is_empty()) {
        return Err(format!("{name}: the command is empty: expected a program and its arguments"));
    }
    Ok(Typed { name: owned, start: Some(words), urls: all, folder: None })
}

/// Splits a command from the `@URL`s at its end, in order. Other words of a command may begin with @ too, so a URL must
/// look like one; only if there is no other, the last such word counts in any case.
fn without_urls(text: &str, alone: bool) -> (&str, Vec<String>) {
    let mut rest = text.trim();
    let mut urls = Vec::new();
    while let Some((before, last)) = rest.rsplit_once(char::is_whitespace) {
        let meant = |url: &&str| is_url(url) || (alone && urls.is_empty());
        // A word within quotes belongs to the command.
        let Some(url) = last.strip_prefix('@').filter(meant).filter(|_| rules::words(before).is_ok()) else { break };
        urls.insert(0, url.to_owned());
        rest = before.trim_end();
    }
    (rest, urls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn typed(name: &str, start: Option<&[&str]>, urls: &[&str]) -> Typed {
        Typed { name: name.into(), start: start.map(words), urls: words(urls), folder: None }
    }

    #[track_caller]
    fn read(line: &[&str]) -> Vec<Typed> {
        let (variants, problems) = parse(&words(line));
        assert!(problems.is_empty(), "{line:?}: {problems:?}");
        variants
    }

    #[track_caller]
    fn refused(line: &[&str], expected: &[&str]) {
        let (_, problems) = parse(&words(line));
        assert_eq!(problems.len(), expected.len(), "{line:?}: {problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.contains(expected), "`{expected}` is not in `{problem}`");
        }
    }

    #[test]
    fn urls_have_names_or_letters() {
        let (a, b) = ("http://h/a", "unix:/run/app.sock:/b?c=d");
        assert_eq!(read(&[a, b]), [typed("A", None, &[a]), typed("B", None, &[b])]);
        assert_eq!(read(&["tcp=http://h/a", "unix=unix:/run/x"])[1], typed("unix", None, &["unix:/run/x"]));
        assert_eq!(read(&["v1.0-rc_2=HTTPS://h/"]), [typed("v1.0-rc_2", None, &["HTTPS://h/"])]);
        assert_eq!(read(&[a, "@http://h/2", b])[0], typed("A", None, &[a, "http://h/2"]));
        assert_eq!(parse(&words(&["http://h/"; 27])).0[26].name, "variant-27");
    }

    #[test]
    fn an_equals_sign_in_a_url_makes_no_name() {
        for url in
            ["http://h/?a=b", "http://h/a=b", "unix:/run/a=b.sock", "unix:@a=b:/", "http://[::1]:80/?x=http://y/"]
        {
            assert_eq!(read(&[url]), [typed("A", None, &[url])]);
            let named = format!("n={url}");
            assert_eq!(read(&[&named]), [typed("n", None, &[url])]);
        }
    }

    #[test]
    fn commands_come_in_one_word_or_two() {
        let start: &[&str] = &["puma", "-p", "3000"];
        let expected = [typed("old", Some(start), &["http://127.0.0.1:3000/"])];
        assert_eq!(read(&["old=puma -p 3000", "@http://127.0.0.1:3000/"]), expected);
        assert_eq!(read(&["old=puma -p 3000 @http://127.0.0.1:3000/"]), expected);
        assert_eq!(read(&["old= puma -p 3000   @http://127.0.0.1:3000/ "]), expected);
        assert_eq!(read(&["puma -p 3000", "@http://127.0.0.1:3000/"])[0].name, "A");
        let two = read(&["a=x @http://h/1 @http://h/2", "@http://h/3"]);
        assert_eq!(two[0].urls, ["http://h/1", "http://h/2", "http://h/3"]);
        assert_eq!(read(&["x=nginx", "@unix:{{socket}}"])[0], typed("x", Some(&["nginx"]), &["unix:{{socket}}"]));
    }

    #[test]
    fn quotes_and_placeholders_keep_words_together() {
        let variants = read(&["a=sh -c 'exec a \"b c\"' --port={{ port }} {{ dir }}/x", "@http://h:{{port}}/"]);
        assert_eq!(variants[0].start, Some(words(&["sh", "-c", "exec a \"b c\"", "--port={{port}}", "{{dir}}/x"])));
        // The text before the first `=` counts as a name only if it is a valid one.
        let variants = read(&["env A=b app", "@http://h/"]);
        assert_eq!(variants[0], typed("A", Some(&["env", "A=b", "app"]), &["http://h/"]));
    }

    #[test]
    fn words_of_a_command_may_begin_with_an_at_sign_too() {
        let variants = read(&["a=app @config @http://h/"]);
        assert_eq!(variants[0], typed("a", Some(&["app", "@config"]), &["http://h/"]));
        let variants = read(&["a=app @config", "@http://h/"]);
        assert_eq!(variants[0], typed("a", Some(&["app", "@config"]), &["http://h/"]));
        // Parsed as a URL, so that its mistake is reported.
        assert_eq!(read(&["a=app @localhost:80"])[0].urls, ["localhost:80"]);
        assert_eq!(read(&["a=sh -c 'x @http://h/'", "@http://i/"])[0].urls, ["http://i/"]);
    }

    #[test]
    fn what_is_wrong_is_told_at_once() {
        refused(
            &["@http://h/", "a=", "b=puma -p 3000", "localhost:3000", "c='x", "@http://h/", "@"],
            &[
                "no command stands before",
                "alone",
                "a: expected",
                "b: where does `puma -p 3000` answer",
                "C: ",
                "c: `'x`",
            ],
        );
        refused(&["x=http://h/", "x=http://i/", "x=http://j/"], &["called x", "called x"]);
        refused(&["http://h/", "A=http://i/"], &["called A"]);
        refused(&["a=''", "@http://h/"], &["the command is empty"]);
    }

    fn checked(line: &[&str]) -> Result<Vec<Endpoint>, Vec<String>> {
        let mut values = Values::default();
        values.set("oroshi", "/bin/oroshi");
        check(&read(line)[0], &values)
    }

    #[test]
    fn placeholders_are_those_of_the_command() {
        assert_eq!(checked(&["a={{oroshi}} target --listen {{port}}", "@http://h:{{port}}/"]).unwrap().len(), 1);
        assert_eq!(checked(&["a=app {{socket.x}} {{dir}}", "@unix:{{socket.x}}"]).unwrap().len(), 1);
        let problems = checked(&["a=app {{prot}}", "@http://h:{{port}}/", "@ftp://h/"]).unwrap_err();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(checked(&["http://h:{{port}}/"]).unwrap_err()[0].contains("no command"));
    }

    #[test]
    fn two_servers_at_one_place_are_noticed() {
        let collide = |line: &[&str]| collisions(&read(line));
        assert_eq!(collide(&["a=x", "@http://h:3000/1", "b=y", "@http://h:3000/2"]).len(), 1);
        assert_eq!(collide(&["a=x", "@http://h:3000/", "http://h:3000/"]).len(), 1);
        assert!(collide(&["http://h:3000/", "http://h:3000/"]).is_empty());
        assert!(collide(&["a=x", "@http://h:3000/", "b=y", "@http://h:3001/"]).is_empty());
        assert!(collide(&["a=x {{port}}", "@http://h:{{port}}/", "b=x {{port}}", "@http://h:{{port}}/"]).is_empty());
    }
}
