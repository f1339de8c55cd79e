//! The command line as a report repeats it, without possible secrets.

use clap::{Arg, Command};
use oroshi_words::hidden::{self, Flag, Holds};

/// Hides bodies and header values, which may be secret. `words` are the program, the subcommand and flags that the
/// parser has accepted; `flags`, the parser's own list, tells which of them take values.
pub(crate) fn without_secrets(flags: &Command, words: impl IntoIterator<Item = String>) -> Vec<String> {
    hidden::words(&with_values(flags), words)
}

/// Returns the flag whose value is the next word.
pub(crate) fn awaited<'f>(flags: &'f Command, word: &str) -> Option<&'f Arg> {
    let known = with_values(flags);
    let Flag { long, short, .. } = hidden::awaited(&known, word)?;
    flags.get_arguments().find(|flag| flag.get_long() == long.as_deref() && flag.get_short() == *short)
}

/// Returns the flags that take a value.
fn with_values(flags: &Command) -> Vec<Flag> {
    let with_values = flags.get_arguments().filter(|flag| flag.get_action().takes_values());
    let flag = |flag: &Arg| Flag {
        long: flag.get_long().map(str::to_owned),
        short: flag.get_short(),
        holds: match flag.get_id().as_str() {
            "body" | "publish_to_body" => Holds::Body,
            "nats" | "remote_write" => Holds::Addresses,
            "header" | "publish_header" | "publish_to_header" | "remote_write_header" => Holds::Header,
            _ => Holds::Plain,
        },
    };
    with_values.map(flag).collect()
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

    /// Shows flags between the program's name and a URL.
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
}
