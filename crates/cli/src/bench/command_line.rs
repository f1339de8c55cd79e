//! The command line as a report repeats it: without what may be secret in it.

use clap::{Arg, ArgAction, Command};

/// Headers that hold no secrets.
const HARMLESS: [&str; 8] = [
    "Accept",
    "Accept-Encoding",
    "Accept-Language",
    "Cache-Control",
    "Connection",
    "Content-Type",
    "Host",
    "User-Agent",
];

/// Stands for what is not shown.
pub(crate) const HIDDEN: &str = "***";

/// Bodies and header values often are secret, so neither is shown. `words` are the program, the subcommand and flags that
/// the parser has accepted; they are taken apart by `flags`, the parser's own list.
pub(crate) fn without_secrets(flags: &Command, words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut awaits_value = None;
    let shown = words.into_iter().map(|word| {
        if let Some(flag) = awaits_value.take() {
            return hide(flag, &word);
        }
        match option(flags, &word) {
            Some((flag, Some(at))) => word[..at].to_owned() + &hide(flag, &word[at..]),
            Some((flag, None)) => {
                awaits_value = Some(flag);
                word
            }
            None => word,
        }
    });
    shown.collect()
}

/// The words of a load program, whose flags are its own: most take headers as we do.
pub(crate) fn program_without_secrets(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let header = Arg::new("header").short('H').long("header").action(ArgAction::Append);
    let body = Arg::new("body").long("body").action(ArgAction::Set);
    without_secrets(&Command::new("load").args([header, body]), words)
}

/// A header, `Name: value`, as it may be shown.
pub(crate) fn shown_header(header: &str) -> String {
    let name = header.split(':').next().unwrap_or_default();
    let harmless = HARMLESS.iter().any(|known| name.trim().eq_ignore_ascii_case(known));
    if harmless { header.to_owned() } else { format!("{name}: {HIDDEN}") }
}

/// The flag whose value is the word after this one.
pub(crate) fn awaited<'f>(flags: &'f Command, word: &str) -> Option<&'f Arg> {
    option(flags, word).filter(|(_, value)| value.is_none()).map(|(flag, _)| flag)
}

/// The flag with a value in a word, and where in the word the value begins: `None` if it is the next word.
fn option<'f>(flags: &'f Command, word: &str) -> Option<(&'f Arg, Option<usize>)> {
    let mut with_value = flags.get_arguments().filter(|flag| flag.get_action().takes_values());
    if let Some(rest) = word.strip_prefix("--") {
        let name = rest.split('=').next()?;
        let flag = with_value.find(|flag| flag.get_long() == Some(name))?;
        return Some((flag, (name != rest).then_some("--=".len() + name.len())));
    }
    // One dash begins any number of flags without a value: -Lb TEXT, -LbTEXT, -b=TEXT.
    let with_value: Vec<&Arg> = with_value.collect();
    let letters = word.strip_prefix('-')?;
    let (at, flag) = letters
        .char_indices()
        .find_map(|(at, letter)| Some((at, *with_value.iter().find(|flag| flag.get_short() == Some(letter))?)))?;
    let value = "-".len() + at + 1;
    Some((flag, (value < word.len()).then(|| value + usize::from(word[value..].starts_with('=')))))
}

/// A flag's value as it may be shown.
fn hide(flag: &Arg, value: &str) -> String {
    match flag.get_id().as_str() {
        "body" | "publish_to_body" if !value.is_empty() => HIDDEN.to_owned(),
        "header" | "publish_header" | "publish_to_header" => shown_header(value),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Parser};

    use super::*;
    use crate::bench::Args;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        _args: Args,
    }

    /// What is shown for flags between the program's name and a URL.
    fn shown(flags: &[&str]) -> Vec<String> {
        let words = [&["./oroshi"], flags, &["http://o/"]].concat();
        Line::try_parse_from(&words).unwrap_or_else(|e| panic!("{flags:?}: {e}"));
        let flags = Args::augment_args(Command::new("bench"));
        let mut shown = without_secrets(&flags, words.iter().map(|&word| word.to_owned()));
        assert_eq!((shown.remove(0), shown.pop()), ("./oroshi".into(), Some("http://o/".into())));
        shown
    }

    #[test]
    fn bodies_and_header_values_are_hidden_however_they_are_attached() {
        for (typed, expected) in [
            (&["-b", "password=1"][..], &["-b", "***"][..]),
            (&["-bsecret"], &["-b***"]),
            (&["-b=secret"], &["-b=***"]),
            (&["--body", "secret"], &["--body", "***"]),
            (&["--body=secret=b"], &["--body=***"]),
            (&["-Lkbsecret"], &["-Lkb***"]),
            (&["-Lkb", "secret"], &["-Lkb", "***"]),
            (&["-b", ""], &["-b", ""]),
            (&["-bé"], &["-b***"]),
            (&["-H", "Authorization: Bearer x"], &["-H", "Authorization: ***"]),
            (&["-HX-Key: a:b"], &["-HX-Key: ***"]),
            (&["-H=X-Key:a"], &["-H=X-Key: ***"]),
            (&["--header", "Cookie: a=b"], &["--header", "Cookie: ***"]),
            (&["--header=Cookie: a=b"], &["--header=Cookie: ***"]),
        ] {
            assert_eq!(shown(typed), expected, "{typed:?}");
        }
    }

    #[test]
    fn all_other_words_stay_as_they_were_typed() {
        // The body is also part of the program's name, of the URL and of other values.
        assert_eq!(shown(&["-b", "o", "-o", "o", "-mo", "--hdr=o"]), ["-b", "***", "-o", "o", "-mo", "--hdr=o"]);
        for typed in [
            &["-H", "Accept: */*", "-Huser-agent: b", "--header=Host: b"][..],
            &["-Pb.sock", "--body-file=b"],
            &["-obH", "-Lk", "--close", "-c5", "--fail-if", "p99>1ms"],
        ] {
            assert_eq!(shown(typed), typed);
        }
    }

    #[test]
    fn of_a_load_program_headers_and_bodies_are_hidden() {
        let shown = |words: &[&str]| program_without_secrets(words.iter().map(|&word| word.to_owned())).join(" ");
        assert_eq!(
            shown(&["wrk", "-t2", "-c", "5", "-d", "2s", "-H", "Cookie: a=b", "-HAccept: */*", "--body=x", "{{url}}"]),
            "wrk -t2 -c 5 -d 2s -H Cookie: *** -HAccept: */* --body=*** {{url}}"
        );
    }
}
