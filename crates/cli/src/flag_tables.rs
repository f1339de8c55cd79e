//! The tables of flags in `docs/*.md`: rendered from the definitions that make the help, and compared with the pages.
//!
//! A table stands between `<!-- flags: bench: Load, --cpus -->` and `<!-- /flags -->`. The mark names a command
//! and, behind a second colon, help headings or single flags; without them it means all flags of the command.
//! `OROSHI_WRITE=1 cargo test -p oroshi --bin oroshi flag_tables` rewrites the pages.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs};

use clap::{Arg, ArgAction, Command, CommandFactory};
use regex_lite::{Captures, Regex};

use super::Cli;

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
const REWRITE: &str = "OROSHI_WRITE=1 cargo test -p oroshi --bin oroshi flag_tables";

/// The pages, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(PAGES).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// A page with its tables rendered anew.
#[track_caller]
fn rendered(root: &Command, page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("<!-- flags: ") {
        let (mark, after) = after.split_once(" -->\n").expect("a mark ends its line");
        let (_, after) = after.split_once("<!-- /flags -->\n").unwrap_or_else(|| panic!("{mark}: no <!-- /flags -->"));
        text += &format!("{before}<!-- flags: {mark} -->\n\n{}\n<!-- /flags -->\n", table(root, mark));
        rest = after;
    }
    text + rest
}

/// The table that a mark describes, with a column of defaults if one of its flags has a default.
fn table(root: &Command, mark: &str) -> String {
    let (path, chosen) = mark.split_once(": ").map_or((mark, None), |(path, chosen)| (path, Some(chosen)));
    let command = path.split(' ').fold(root, |command, name| {
        command.find_subcommand(name).unwrap_or_else(|| panic!("{mark}: there is no command {name}"))
    });
    let flags: Vec<&Arg> = match chosen {
        None => visible(command).collect(),
        Some(chosen) => chosen.split(", ").flat_map(|name| named(command, name)).collect(),
    };
    let defaults = flags.iter().any(|flag| default(flag).is_some());
    let kind = if flags.iter().any(|flag| !flag.is_positional()) { "flag" } else { "argument" };
    let head = if defaults {
        format!("| {kind} | meaning | default |\n|---|---|---|\n")
    } else {
        format!("| {kind} | meaning |\n|---|---|\n")
    };
    head + &flags.iter().map(|flag| row(flag, defaults) + "\n").collect::<String>()
}

/// The flags and arguments that the help of a command lists, except those of every command.
fn visible(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|flag| !flag.is_hide_set() && heading(flag) != "Help")
}

fn heading(flag: &Arg) -> &str {
    flag.get_help_heading().unwrap_or(if flag.is_positional() { "Arguments" } else { "Options" })
}

/// The flags of a help heading, or the flag of this name.
#[track_caller]
fn named<'c>(command: &'c Command, name: &str) -> Vec<&'c Arg> {
    let is_named = |flag: &&Arg| match name.strip_prefix("--") {
        Some(long) => flag.get_long() == Some(long),
        None => heading(flag) == name,
    };
    let found: Vec<&Arg> = visible(command).filter(is_named).collect();
    assert!(!found.is_empty(), "{} has neither a flag nor a heading {name}", command.get_name());
    found
}

/// `` | `-c, --connections N` | Open this many connections | 10 | ``.
fn row(flag: &Arg, defaults: bool) -> String {
    let mut cells = vec![format!("`{}`", synopsis(flag)), meaning(flag)];
    if defaults {
        cells.push(default(flag).map_or_else(String::new, |text| code(&text)));
    }
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |", cells.join(" | ")).replace("  |", " |")
}

/// Names and value, as they are typed.
fn synopsis(flag: &Arg) -> String {
    let values = flag.get_value_names().unwrap_or_default().join(" ");
    let values = if values.contains(' ') { format!("'{values}'") } else { values };
    if flag.is_positional() {
        let dashes = if flag.is_last_set() { "-- " } else { "" };
        let dots = if matches!(flag.get_action(), ArgAction::Append) { " ..." } else { "" };
        return format!("{dashes}{values}{dots}");
    }
    let mut names: Vec<String> = flag.get_short().map(|short| format!("-{short}")).into_iter().collect();
    names.extend(flag.get_long().map(|long| format!("--{long}")));
    names.extend(flag.get_visible_short_aliases().unwrap_or_default().iter().map(|short| format!("-{short}")));
    names.extend(flag.get_visible_aliases().unwrap_or_default().iter().map(|long| format!("--{long}")));
    let names = names.join(", ");
    if flag.get_action().takes_values() { format!("{names} {values}") } else { names }
}

/// The text of the help in one line.
fn help(flag: &Arg) -> String {
    let text = flag.get_long_help().or(flag.get_help()).map(ToString::to_string).unwrap_or_default();
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join(". ").replace(".. ", ". ")
}

/// The help without the default, with the values that the flag takes.
fn meaning(flag: &Arg) -> String {
    let mut text = default_within().replace(&help(flag), "").into_owned();
    let values = flag.get_possible_values().into_iter().filter(|_| flag.get_action().takes_values());
    let values = values.filter_map(|value| {
        Some(format!("`{}`: {}", value.get_name(), within_sentence(&value.get_help()?.to_string())))
    });
    let values = values.collect::<Vec<_>>().join("; ");
    if !values.is_empty() {
        text += &format!(". {values}");
    }
    code(text.trim_end_matches('.'))
}

/// Returns the text with a small first letter.
fn within_sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// The default: from the text, or set in the definition.
fn default(flag: &Arg) -> Option<String> {
    if let Some(found) = default_within().captures(&help(flag)) {
        return Some(found[1].to_owned());
    }
    let set = flag.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
    Some(set.collect::<Vec<_>>().join(",")).filter(|text| !text.is_empty() && flag.get_action().takes_values())
}

fn default_within() -> Regex {
    Regex::new(r" \[default: ([^\]]*)\]").unwrap()
}

/// Puts what is typed literally into backticks: flags, variables, addresses, words in quotes, placeholders.
fn code(text: &str) -> String {
    let literal = Regex::new(concat!(
        r"(?<kept>`[^`]*`)|(?<before>^|[\s(:])(?<code>",
        r"'[^']+'|--format [a-z]+|--?[A-Za-z][a-z0-9-]*|[A-Z]+_[A-Z_]+|(?:[a-z]+://|unix:)[^\s,;()]*|\{\w+\}",
        ")"
    ));
    let text = text.replace("n in braces", "{n}");
    let quoted = |found: &Captures<'_>| match found.name("kept") {
        Some(kept) => kept.as_str().to_owned(),
        None => format!("{}`{}`", &found["before"], &found["code"]),
    };
    literal.unwrap().replace_all(&text, quoted).into_owned()
}

/// The visible commands below this one, and those below them.
fn commands(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help");
    below.flat_map(|command| [vec![command], commands(command)].concat()).collect()
}

#[test]
fn the_tables_of_flags_in_the_pages_are_those_of_the_help() {
    let root = Cli::command();
    let mut outdated = Vec::new();
    for (path, page) in pages() {
        let rendered = rendered(&root, &page);
        if rendered == page {
            continue;
        }
        if env::var_os("OROSHI_WRITE").is_some() {
            fs::write(path, rendered).unwrap();
        } else {
            outdated.push(path.file_name().unwrap().to_owned());
        }
    }
    assert!(outdated.is_empty(), "{outdated:?} in docs/ differ from the help; to rewrite them: {REWRITE}");
}

/// `compare` has the load's flags of `bench`: a row in one page is enough for the same flag with the same text.
#[test]
fn every_flag_has_a_row_in_a_page() {
    let root = Cli::command();
    let pages: Vec<String> = pages().iter().map(|(_, page)| rendered(&root, page)).collect();
    let rows: BTreeSet<&str> = pages.iter().flat_map(|page| page.lines()).collect();
    let mut checked = 0;
    for command in commands(&root) {
        for flag in visible(command) {
            let found = rows.contains(&*row(flag, true)) || rows.contains(&*row(flag, false));
            assert!(found, "no row for {} of {}: {}", flag.get_id(), command.get_name(), row(flag, true));
            checked += 1;
        }
    }
    assert!(checked > 200, "{checked}");
}

#[test]
fn help_ends_with_the_flags_of_every_command() {
    let mut root = Cli::command();
    root.build();
    for command in commands(&root) {
        let help = command.clone().render_help().to_string();
        let flags = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        let flags: Vec<&str> = flags.map(|line| line.split("  ").next().unwrap()).collect();
        assert!(flags.ends_with(&["-h, --help", "-v, --version"]), "{}: {flags:?}", command.get_name());
    }
}

#[test]
fn literals_are_code() {
    for (text, expected) in [
        ("With --format ab and -g: as ab's -g (CSV)", "With `--format ab` and `-g`: as ab's `-g` (CSV)"),
        ("Send output to a file, or '| command'", "Send output to a file, or `'| command'`"),
        ("`Host` of https://..., unix:/path, or -", "`Host` of `https://...`, `unix:/path`, or -"),
        ("with --http2 (TLS), --http2-prior-knowledge", "with `--http2` (TLS), `--http2-prior-knowledge`"),
        ("KILL_OLD_DELAY; 0; {stamp}; n in braces", "`KILL_OLD_DELAY`; 0; `{stamp}`; `{n}`"),
    ] {
        assert_eq!(code(text), expected);
    }
}

#[test]
fn a_table_has_the_flags_that_its_mark_names() {
    let file =
        Arg::new("file").short('f').long("file").value_name("A|B").help("Read this [default: -]").help_heading("In");
    let loud = Arg::new("loud").long("loud").action(ArgAction::SetTrue).help("Shout").long_help("Shout\n\nAll of it.");
    let root = Command::new("x").subcommand(Command::new("y").arg(file).arg(loud));
    let with = |mark: &str| rendered(&root, &format!("a\n<!-- flags: {mark} -->\nold\n<!-- /flags -->\nb\n"));
    let file = "| `-f, --file A\\|B` | Read this | - |\n";
    let head = "| flag | meaning | default |\n|---|---|---|\n";
    for (mark, table) in [
        ("y", format!("{head}{file}| `--loud` | Shout. All of it | |\n")),
        ("y: In", format!("{head}{file}")),
        ("y: --loud", "| flag | meaning |\n|---|---|\n| `--loud` | Shout. All of it |\n".to_owned()),
    ] {
        assert_eq!(with(mark), format!("a\n<!-- flags: {mark} -->\n\n{table}\n<!-- /flags -->\nb\n"));
    }
}
