//! Flags of other tools (wrk, oha, k6 ...), and the flags of oroshi in their place. The tables are in docs/bench.md.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use oroshi_words::nearest;

use super::command_line::awaited;

const PAGE: &str = include_str!("../../../../docs/bench.md");
const HEADING: &str = "\n## Flags of other tools\n";
/// Programs whose flags have one dash or two, whatever their length.
const EITHER_DASH: [&str; 2] = ["hey", "vegeta"];

/// A row of a tool's table in docs/bench.md.
#[derive(Debug)]
struct Row {
    tool: &'static str,
    theirs: Vec<&'static str>,
    /// The flag of oroshi; empty: no flag is needed; `no`: there is no equivalent.
    ours: &'static str,
    remark: String,
}

/// Returns all rows of all tools.
fn rows() -> Vec<Row> {
    let section = PAGE.split(HEADING).nth(1).unwrap_or_default().split("\n## ").next().unwrap_or_default();
    let mut rows = Vec::new();
    for part in section.split("\n### ").skip(1) {
        let tool = part.lines().next().unwrap_or_default().trim();
        let mut above = String::new();
        for line in part.lines().filter(|line| line.starts_with("| `-")) {
            let [_, theirs, ours, remark, _] = line.split('|').collect::<Vec<_>>()[..] else { continue };
            let theirs = theirs.split('`').skip(1).step_by(2).collect();
            // "The same" repeats the row above.
            let rest =
                remark.trim().strip_prefix("the same").filter(|rest| rest.is_empty() || rest.starts_with([';', ',']));
            let remark = rest.map_or_else(|| remark.trim().to_owned(), |rest| format!("{above}{rest}"));
            above.clone_from(&remark);
            rows.push(Row { tool, theirs, ours: ours.trim(), remark });
        }
    }
    rows
}

impl Row {
    fn has(&self, flag: &str) -> bool {
        let letters = flag.trim_start_matches('-');
        let either = EITHER_DASH.contains(&self.tool) && letters.len() > 1;
        self.theirs.iter().any(|known| *known == flag || either && known.trim_start_matches('-') == letters)
    }

    /// `oha's -z is -d here`.
    fn words(&self, flag: &str) -> String {
        let plain = |text: &str| text.replace('`', "");
        let whose = format!("{}'s {flag}", self.tool);
        let (ours, remark) = (plain(self.ours), plain(&self.remark));
        match (ours.as_str(), remark.is_empty()) {
            ("no", _) => format!("{whose} has no equivalent here: {remark}"),
            ("", _) => format!("{whose} is not needed here: {remark}"),
            (_, true) => format!("{whose} is {ours} here"),
            (_, false) => format!("{whose} is {ours} here ({remark})"),
        }
    }
}

/// Explains a flag of other tools, in one line per tool.
fn meanings(rows: &[Row], flag: &str) -> Vec<String> {
    rows.iter().filter(|row| row.has(flag)).map(|row| row.words(flag)).collect()
}

/// Explains the first flag of another tool that has one dash and several letters.
///
/// The parser would read such a flag as several flags or as a value.
pub(crate) fn single_dash(command: &Command, words: &[OsString]) -> Option<String> {
    let words: Vec<&str> = words.iter().map_while(|word| word.to_str()).take_while(|word| *word != "--").collect();
    let rows = rows();
    let known: BTreeSet<&str> = rows.iter().flat_map(|row| &row.theirs).copied().collect();
    let foreign = words.iter().enumerate().find_map(|(i, word)| {
        let name = word.split('=').next().unwrap_or_default();
        let long = name.starts_with('-') && !name.starts_with("--") && name.chars().count() > 2;
        let value = i > 0 && awaited(command, words[i - 1]).is_some();
        (long && !value && known.contains(name)).then_some(name)
    })?;
    Some(told(foreign, &meanings(&rows, foreign)))
}

/// Explains an unknown flag in place of the parser's error, if another tool has it.
pub(crate) fn unknown(command: &Command, error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = flag.split('=').next().unwrap_or_default();
    let rows = rows();
    let found = meanings(&rows, flag);
    if !found.is_empty() {
        return Some(told(flag, &found));
    }
    // A typing error, in a flag of oroshi or of another tool.
    let ours: Vec<String> = command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
    let theirs = rows.iter().flat_map(|row| &row.theirs).copied().filter(|flag| flag.starts_with("--"));
    let near = nearest(flag, ours.iter().map(String::as_str).chain(theirs)).filter(|_| flag.starts_with("--"))?;
    if ours.iter().any(|flag| flag == near) {
        return None;
    }
    Some(told(flag, &meanings(&rows, near)))
}

fn told(flag: &str, meanings: &[String]) -> String {
    format!(
        "error: {flag} is no flag of oroshi bench\n  {}\n  next: `oroshi bench --help` lists all flags; docs/bench.md \
         lists those of other tools",
        meanings.join("\n  ")
    )
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Parser};

    use super::*;
    use crate::bench::Args;

    #[derive(Debug, Parser)]
    #[command(name = "bench")]
    struct Line {
        #[command(flatten)]
        _args: Args,
    }

    fn command() -> Command {
        Args::augment_args(Command::new("bench"))
    }

    /// Returns the explanation for a line.
    fn said(line: &str) -> String {
        let words: Vec<OsString> = std::iter::once("bench").chain(line.split(' ')).map(OsString::from).collect();
        single_dash(&command(), &words[1..])
            .or_else(|| unknown(&command(), &Line::try_parse_from(&words).unwrap_err()))
            .unwrap_or_default()
    }

    #[test]
    fn flags_of_other_tools_are_explained() {
        for (line, expected) in [
            (
                "-z 1s http://h/",
                &[
                    "oha's -z is -d here",
                    "hey's -z is -d here",
                    "ab's -z has no equivalent here: attributes of ab's HTML table",
                ][..],
            ),
            ("-q 5 http://h/", &["oha's -q is -R here", "hey's -q is -R here"]),
            ("--redirects 3 http://h/", &["vegeta's --redirects"]),
            ("-redirects=3 http://h/", &["vegeta's -redirects"]),
            ("--redirct 3 http://h/", &["oha's --redirect is not needed", "always"]),
            ("--vus 5 http://h/", &["k6's --vus is -c here"]),
            ("--max-concurrent-streams 5 http://h/", &["h2load's --max-concurrent-streams is --streams here"]),
            ("-disable-keepalive http://h/", &["hey's -disable-keepalive is --close here"]),
            ("-rate=50 http://h/", &["vegeta's -rate is -R here"]),
            ("--u_latency http://h/", &["wrk2's --u_latency is -L here"]),
            (
                "-X POST http://h/",
                &["curl's -X is -m here", "ab's -X has no equivalent here: there are no proxies here; --connect-to"],
            ),
            ("-i http://h/", &["ab's -i is -m HEAD here", "h2load's -i is --urls here"]),
            ("--warm-up-time=3 http://h/", &["h2load's --warm-up-time is -w here"]),
        ] {
            let said = said(line);
            for words in expected {
                assert!(said.contains(words), "{line}: `{words}` is not in\n{said}");
            }
            assert!(!said.contains("tip:") && !said.contains('`') || said.contains("`oroshi bench --help`"), "{said}");
        }
    }

    #[test]
    fn slips_in_our_own_flags_are_the_parser_s_and_values_are_values() {
        assert_eq!(said("--conections 5 http://h/"), "");
        assert_eq!(said("--xyzzyfoo http://h/"), "");
        let words = ["-b", "-host", "http://h/"].map(OsString::from);
        assert_eq!(single_dash(&command(), &words), None);
        let words = ["-c100", "-d1s", "--", "-host"].map(OsString::from);
        assert_eq!(single_dash(&command(), &words), None);
    }

    #[test]
    fn every_table_is_read() {
        let rows = rows();
        for tool in ["wrk", "wrk2", "ab", "hey", "oha", "h2load", "k6", "vegeta", "curl"] {
            assert!(rows.iter().filter(|row| row.tool == tool).count() > 5, "{tool}");
        }
        assert!(rows.iter().all(|row| !row.theirs.is_empty() && (row.ours != "no" || !row.remark.is_empty())));
    }
}
