//! The tables of other tools' flags in `docs/bench.md`, against the help of those tools that are here and against our
//! own.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common::support::nginx::find;
use crate::common::support::skipped;
use crate::common::{oroshi, to_the_end};

const PAGE: &str = include_str!("../../../../docs/bench.md");

/// The tools with a table, and how each is asked for its help. Those that are not of this machine are skipped.
const TOOLS: [(&str, &str); 6] =
    [("wrk", "--help"), ("wrk2", "--help"), ("ab", "-h"), ("hey", "-h"), ("oha", "--help"), ("h2load", "--help")];

/// The tools whose help is not asked for, as they have commands below commands, or far more flags than can mean
/// anything here.
const OTHERS: [&str; 3] = ["k6", "vegeta", "curl"];

/// Words in a row that say that not every version of the tool has the flag.
const NOT_EVERYWHERE: [&str; 4] = ["of newer versions", "of older versions", "trunk", "patch"];

/// A row: flags of the tool, what to type here, and the remark.
struct Row {
    theirs: Vec<String>,
    ours: String,
    remark: String,
}

#[track_caller]
fn rows(tool: &str) -> Vec<Row> {
    let section = PAGE.split("\n## Flags of other tools\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let part = section.split(&format!("\n### {tool}\n")).nth(1).unwrap_or_else(|| panic!("no table of {tool}"));
    let lines = part.split("\n### ").next().unwrap().lines().filter(|line| line.starts_with('|')).skip(2);
    let rows = lines.map(|line| {
        let [_, theirs, ours, remark, _] = line.split('|').collect::<Vec<_>>()[..] else {
            panic!("not three columns: {line}")
        };
        let theirs = quoted(theirs).into_iter().map(str::to_owned).collect();
        Row { theirs, ours: ours.trim().to_owned(), remark: remark.trim().to_owned() }
    });
    rows.collect()
}

/// What stands in backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The flags that a help text explains: those at the beginning of a line, such as `-c, --connections <N>  Connections`.
fn flags(help: &str) -> BTreeSet<String> {
    let mut flags = BTreeSet::new();
    for line in help.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
        for word in line.split_whitespace() {
            let name = word.trim_end_matches(',').split(['=', '[', '<']).next().unwrap();
            let letters = name.trim_start_matches('-');
            if !name.starts_with('-') || !letters.starts_with(|c: char| c.is_ascii_alphanumeric()) {
                break;
            }
            flags.insert(name.to_owned());
        }
    }
    flags
}

/// The help of a tool that is installed; they print it anywhere, and end with any code.
fn help_of(tool: &str, flag: &str) -> Option<String> {
    let mut command = Command::new(find(tool)?);
    command.arg(flag);
    let ran = to_the_end(command);
    Some(ran.out + &ran.err)
}

#[test]
fn every_flag_of_the_tools_here_has_its_row() {
    let test = "every_flag_of_the_tools_here_has_its_row";
    for (tool, flag) in TOOLS {
        let Some(help) = help_of(tool, flag) else {
            skipped(test, &format!("{tool} is not installed"));
            continue;
        };
        let there = flags(&help);
        assert!(there.len() > 5, "{tool}: {there:?} in {help}");
        let rows = rows(tool);
        let known: BTreeSet<String> = rows.iter().flat_map(|row| row.theirs.clone()).collect();
        let missing: Vec<&String> = there.difference(&known).collect();
        assert!(missing.is_empty(), "{tool} has flags without a row: {missing:?}");
        // Nor is there a row for what it does not have; wrk has some letters of which its help is silent.
        let everywhere =
            rows.iter().filter(|row| !NOT_EVERYWHERE.iter().any(|words| row.remark.to_lowercase().contains(words)));
        for row in everywhere {
            assert!(row.theirs.iter().any(|flag| there.contains(flag)), "{tool} has no {:?}", row.theirs);
        }
    }
}

#[test]
fn every_row_says_what_to_type_here_or_why_there_is_nothing() {
    let help = |command: &[&str]| {
        let ran = oroshi(&[command, &["--help"]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.out
    };
    let bench = help(&["bench"]);
    let (of_bench, of_all) = (flags(&bench), flags(&help(&[])));
    assert!(of_bench.len() > 40 && of_all.contains("--version"), "{of_bench:?} {of_all:?}");
    for tool in TOOLS.map(|(tool, _)| tool).into_iter().chain(OTHERS) {
        let mut seen = BTreeSet::new();
        for Row { theirs, ours, remark } in rows(tool) {
            assert!(!theirs.is_empty() && theirs.iter().all(|flag| flag.starts_with('-')), "{tool}: {theirs:?}");
            assert!(theirs.iter().all(|flag| seen.insert(flag.clone())), "{tool} {theirs:?} has two rows");
            let named = quoted(&ours);
            if named.is_empty() {
                assert!(["", "no"].contains(&&*ours) && !remark.is_empty(), "{tool} {theirs:?}: `{ours}`, `{remark}`");
            }
            for text in named {
                let text = text.strip_prefix("oroshi ").unwrap_or(text);
                let known = if quoted(&ours)[0].starts_with("oroshi ") { &of_all } else { &of_bench };
                let flag = text.split(' ').next().unwrap();
                assert!(known.contains(flag), "{tool} {theirs:?}: there is no {flag} here");
                // A word after --format is one of its values.
                if let Some(format) = text.strip_prefix("--format ") {
                    assert!(bench.contains(&format!("- {format}:")), "{tool} {theirs:?}: no format {format}");
                }
            }
            // Flags of ours in the remark exist as well, where they are long enough not to be those of the other tool.
            for text in quoted(&remark).into_iter().filter(|text| text.starts_with("--")) {
                let flag = text.split([' ', '=']).next().unwrap();
                let known =
                    of_bench.contains(flag) || rows(tool).iter().any(|row| row.theirs.iter().any(|f| f == flag));
                assert!(known || flag == "--", "{tool} {theirs:?}: there is no {flag}");
            }
        }
    }
}
